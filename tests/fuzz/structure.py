"""Where the parts of an input lie: spans of its items, found once, so that a change needs no new encoding.

CBOR (bare, behind a form byte, in frames, and inside of byte strings), RLP, JSON, lines of TOML, words of text,
and the 32-byte words of contract calls. What is none of these has no structure and is changed blindly.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import IntEnum
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

DEPTH_MAX: Final = 24
ITEMS_MAX: Final = 4_000
TEXT_BYTES_MAX: Final = 20_000
WORD_BYTES: Final = 32
SELECTOR_BYTES: Final = (0, 1, 4, 5)
"""What stands before the words of a call: nothing, our own mark of the contract, the selector, or both."""
FRAME_BYTES: Final = (4, 2)
KNOWN_MAX: Final = 4_096


class Kind(IntEnum):
    """What an item is; those from ARRAY on have entries."""

    INTEGER = 0
    BYTES = 1
    OTHER = 2
    JSON = 3
    VALUE = 4
    """What stands behind = in TOML."""
    WORD = 5
    CALL_WORD = 6
    RLP = 7
    ARRAY = 8
    JSON_ARRAY = 9
    JSON_OBJECT = 10
    LINES = 11
    TEXT = 12
    CALL = 13
    RLP_LIST = 14


class Wrap(NamedTuple):
    """A length that covers an item: a byte string's head, or that of a frame."""

    start: int
    content: int
    length: int
    width: int
    """Of a frame's length; 0 for a head of CBOR, negative for one of RLP."""


class Entry(NamedTuple):
    """A part of a container; ``value`` is where it begins behind its key."""

    start: int
    value: int
    end: int


class Item(NamedTuple):
    """A part of an input."""

    kind: Kind
    start: int
    content: int
    end: int
    entries: tuple[Entry, ...] = ()
    wraps: tuple[Wrap, ...] = ()


class _Unknown(Exception):
    """The bytes are not of this form."""


Levels = tuple[tuple[Item, ...], ...]
"""Items by depth, so that what stands alone is found as easily as what stands in a crowd."""


@lru_cache(KNOWN_MAX)
def structure_of(data: bytes) -> Levels:
    """Return the items of an input by depth; none where it has no structure that is known."""
    for found in _readings(data):
        try:
            by_depth: dict[int, list[Item]] = {}
            for depth, item in found:
                by_depth.setdefault(depth, []).append(item)
        except (_Unknown, IndexError):
            continue
        if by_depth:
            return tuple(tuple(by_depth[depth]) for depth in sorted(by_depth))
    return ()


def _readings(data: bytes) -> Iterator[Iterator[tuple[int, Item]]]:
    size = len(data)
    if not size:
        return
    if data[0] in b"{[":
        yield _json(data)
    for skip in (0, 1):
        if size > skip + 1:
            yield _cbor(data, skip, size, ())
    for width in FRAME_BYTES:
        yield _frames(data, width)
    for skip in (0, 1):
        if size > skip and data[skip] >= RLP_LISTS:
            yield _rlp(data, skip)
    if size <= TEXT_BYTES_MAX and all(byte in b"\t\n" or 32 <= byte < 127 for byte in data):
        yield _lines(data) if b" = " in data else _text(data)
    if size % WORD_BYTES in SELECTOR_BYTES and size >= WORD_BYTES:
        yield _call(data)


def _cbor(
    data: bytes, start: int, stop: int, wraps: tuple[Wrap, ...], depth: int = 0
) -> Iterator[tuple[int, Item]]:
    """Yield the items of exactly one value between two places."""
    found: list[tuple[int, Item]] = []
    if _cbor_item(data, start, stop, wraps, depth, found) != stop:
        raise _Unknown
    yield from found


def _cbor_item(
    data: bytes, at: int, stop: int, wraps: tuple[Wrap, ...], depth: int, found: list[tuple[int, Item]]
) -> int:
    if at >= stop or depth > DEPTH_MAX or len(found) > ITEMS_MAX:
        raise _Unknown
    start, major, length = at, data[at] >> 5, data[at] & 31
    at += 1
    if length > 23:
        if length > 27:
            raise _Unknown
        width = 1 << length - 24
        length = int.from_bytes(data[at : at + width], "big")
        at += width
    content = at
    kind = Kind.OTHER
    entries: tuple[Entry, ...] = ()
    match major:
        case 0 | 1:
            kind = Kind.INTEGER
        case 2 | 3:
            at += length
            if at > stop:
                raise _Unknown
            if major == 2:
                kind = Kind.BYTES
                found += _inside(data, content, at, (*wraps, Wrap(start, content, length, 0)), depth + 1)
        case 4:
            kind, ends = Kind.ARRAY, [at]
            if length > stop - at:
                raise _Unknown
            for _ in range(length):
                ends.append(_cbor_item(data, ends[-1], stop, wraps, depth + 1, found))
            at = ends[-1]
            entries = tuple(Entry(one, one, end) for one, end in pairwise(ends))
        case 6:
            at = _cbor_item(data, at, stop, wraps, depth + 1, [])
        case 7 if content == start + 1:
            pass
        case _:
            raise _Unknown
    if at > stop:
        raise _Unknown
    found.append((depth, Item(kind, start, content, at, entries, wraps)))
    return at


def _inside(data: bytes, start: int, stop: int, wraps: tuple[Wrap, ...], depth: int) -> list[tuple[int, Item]]:
    """Return the items of an array that fills a byte string, with or without a form byte before it."""
    for skip in (0, 1):
        if stop - start > 1 + skip and data[start + skip] >> 5 == 4:
            try:
                return list(_cbor(data, start + skip, stop, wraps, depth))
            except (_Unknown, IndexError):
                continue
    return []


def _frames(data: bytes, width: int) -> Iterator[tuple[int, Item]]:
    at = 0
    while at < len(data):
        length, content = int.from_bytes(data[at : at + width], "big"), at + width
        if not 0 < length <= len(data) - content:
            raise _Unknown
        yield from _cbor(data, content, content + length, (Wrap(at, content, length, width),))
        at = content + length


_TOKEN: Final = re.compile(rb"""\s*(?:([{}\[\],:])|("(?:[^"\\]|\\.)*"|[^\s{}\[\],:"]+))\s*""")


def _json(data: bytes) -> Iterator[tuple[int, Item]]:
    found: list[tuple[int, Item]] = []
    if _json_value(data, 0, 0, found) != len(data):
        raise _Unknown
    yield from found


def _token(data: bytes, at: int) -> re.Match[bytes]:
    token = _TOKEN.match(data, at)
    if token is None:
        raise _Unknown
    return token


def _json_value(data: bytes, at: int, depth: int, found: list[tuple[int, Item]]) -> int:
    if depth > DEPTH_MAX or len(found) > ITEMS_MAX:
        raise _Unknown
    token = _token(data, at)
    if token[2] is not None:
        found.append((depth, Item(Kind.JSON, token.start(2), token.start(2), token.end(2))))
        return token.end()
    if token[1] not in b"{[":
        raise _Unknown
    entries: list[Entry] = []
    is_object, start, at = token[1] == b"{", token.start(1), token.end()
    closing = b"}" if is_object else b"]"
    while (token := _token(data, at))[1] != closing:
        if entries:
            if token[1] != b",":
                raise _Unknown
            at = token.end()
        first = value = at
        if is_object:
            if _token(data, at)[2] is None:
                raise _Unknown
            value = _token(data, _token(data, at).end()).end()
        at = _json_value(data, value, depth + 1, found)
        entries.append(Entry(first, value, at))
    kind = Kind.JSON_OBJECT if is_object else Kind.JSON_ARRAY
    found.append((depth, Item(kind, start, start + 1, token.end(1), tuple(entries))))
    return token.end()


RLP_LISTS: Final = 0xC0
_RLP_STRINGS: Final = 0x80
_RLP_SHORT: Final = 55


def _rlp(data: bytes, start: int) -> Iterator[tuple[int, Item]]:
    found: list[tuple[int, Item]] = []
    if _rlp_item(data, start, len(data), (), 0, found) != len(data):
        raise _Unknown
    yield from found


def _rlp_item(
    data: bytes, start: int, stop: int, wraps: tuple[Wrap, ...], depth: int, found: list[tuple[int, Item]]
) -> int:
    if depth > DEPTH_MAX or len(found) > ITEMS_MAX or start >= stop:
        raise _Unknown
    head, content, length = data[start], start + 1, 1
    base = RLP_LISTS if head >= RLP_LISTS else _RLP_STRINGS
    if head < _RLP_STRINGS:
        content = start
    elif head - base <= _RLP_SHORT:
        length = head - base
    else:
        content += head - base - _RLP_SHORT
        length = int.from_bytes(data[start + 1 : content], "big")
    end = content + length
    if end > stop:
        raise _Unknown
    if head < RLP_LISTS:
        found.append((depth, Item(Kind.RLP, start, content, end, (), wraps)))
        return end
    ends = [content]
    while ends[-1] < end:
        inner = (*wraps, Wrap(start, content, length, -1))
        ends.append(_rlp_item(data, ends[-1], end, inner, depth + 1, found))
    entries = tuple(Entry(one, one, after) for one, after in pairwise(ends))
    found.append((depth, Item(Kind.RLP_LIST, start, content, end, entries, wraps)))
    return end


_LINE: Final = re.compile(rb"[^\n]*\n?")
_VALUE: Final = re.compile(rb"\s*[\w.\"-]+\s*=\s*(.+)")
_WORD: Final = re.compile(rb"[A-Za-z0-9]+|[^A-Za-z0-9]")


def _lines(data: bytes) -> Iterator[tuple[int, Item]]:
    lines = [found.span() for found in _LINE.finditer(data) if found[0]]
    yield 0, Item(Kind.LINES, 0, 0, len(data), tuple(Entry(start, start, end) for start, end in lines))
    for start, end in lines:
        value = _VALUE.match(data, start, end)
        if value is not None:
            yield 1, Item(Kind.VALUE, value.start(1), value.start(1), value.end(1))


def _text(data: bytes) -> Iterator[tuple[int, Item]]:
    words = [found.span() for found in _WORD.finditer(data)]
    yield 0, Item(Kind.TEXT, 0, 0, len(data), tuple(Entry(start, start, end) for start, end in words))
    for start, end in words:
        yield 1, Item(Kind.WORD, start, start, end)


def _call(data: bytes) -> Iterator[tuple[int, Item]]:
    first = len(data) % WORD_BYTES
    words = [(at, at + WORD_BYTES) for at in range(first, len(data), WORD_BYTES)]
    yield 0, Item(Kind.CALL, first, first, len(data), tuple(Entry(start, start, end) for start, end in words))
    for start, end in words:
        yield 1, Item(Kind.CALL_WORD, start, start, end)
