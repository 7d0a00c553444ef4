"""Seeded changes of bytes: blind ones, and ones that know where the parts of an input lie (``structure``).

A change is cheap beside a decoder: nothing is parsed twice, and what is put in was encoded beforehand.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any, Final

import cbor2

from tests.fuzz.structure import Entry, Item, Kind, structure_of

LENGTHS = (
    b"\x5f", b"\x9f", b"\xbf", b"\x5a\x7f\xff\xff\xff", b"\x9a\x10\x00\x00\x00",
    b"\xba\x7f\xff\xff\xff", b"\x5b" + b"\xff" * 8, b"\x9b\x00\x00\x00\x10\x00\x00\x00\x00",
    b"\x7b\x7f" + b"\xff" * 7, b"\xc2\x5a\x00\xff\xff\xff", b"\xd8\x1c", b"\xd8\x1d\x00",
    b"\xc5\x82\x1b" + b"\xff" * 8, b"\xc4\x82\x1a\x7f\xff\xff\xff\x01",
)  # fmt: skip
"""Heads of CBOR items that promise much, or that are no part of the canonical subset."""
BYTES = bytes.fromhex("0001171b203b40587f80818a98a0c2c3f4f6f7fbff")
NUMBERS = (
    0, 1, 2, 23, 24, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**48, 2**53, 2**63 - 1, 2**63,
    2**64 - 1, 2**64, 2**127, 2**128, 2**255, 2**256 - 1,
)  # fmt: skip
TEXTS = ("", "a", "\0", "0", "-1", "tcp:h:1", "é" * 40, "x" * 70_000, "\U0001f600", "0x", "1e9", "9" * 5000)
LONE = chr(0xD800)
"""Half a surrogate pair, which JSON can spell and no encoder of UTF-8 takes."""
STRINGS = (b"", bytes(20), bytes(32), bytes(33), bytes(64), b"\xff" * 32, b"\x80")
SHAPES: tuple[Any, ...] = (None, [], [[]], [0] * 300, True, 1.5, {})
JSON_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, 1e308, float("inf"), float("nan"), 10**40, [], {}, [[]], {"a": []}, LONE,
    10**4000, *TEXTS,
)  # fmt: skip
TOML_VALUES = (
    b"true", b"false", b"0", b"-1", b"1.5", b"inf", b"nan", b'""', b'"a"', b"[]", b"[[]]", b'[""]', b"{}",
    b"{a = 1}", b"1979-05-27", b"07:32:00", b"9" * 5000, b"9223372036854775808", b'"""', b"'x'", b'"\\ud800"',
    b"1_0", b"0x7fffffff", b'["a", 1]', b'"' + b"x" * 5_000 + b'"', b'"' + b"9" * 5_000 + b'"',
)  # fmt: skip
WORDS = (
    b"", b"-", b"0", b"-1", b"+1", b"1e9", b"00", b"65536", b"9" * 5000, b"0x", b"zz", b"\xc3\xa9", b"\xff", b" ",
)  # fmt: skip
MANY: Final = (2, 16, 300)
"""How often a part is repeated."""

_PLAIN: Final = tuple(map(cbor2.dumps, (*(n for number in NUMBERS for n in (number, number, -number)), *STRINGS)))
_STRANGE: Final = tuple(map(cbor2.dumps, (*SHAPES, *TEXTS)))
_JSON: Final = tuple(json.dumps(value).encode() for value in JSON_VALUES)
_KEYS: Final = tuple(json.dumps(text).encode() + b": " for text in TEXTS[:6])
_CALL: Final = tuple(
    (number % 2**256).to_bytes(32, "big")
    for number in (*NUMBERS, *(-number for number in NUMBERS), 32, 64, 96, 160, 31, 33, 2**160 - 1, 2**160)
)


def _rlp_head(base: int, length: int) -> bytes:
    """Return the head of a string (0x80) or list (0xc0) of RLP."""
    if length <= 55:
        return bytes((base + length,))
    size = length.to_bytes(-(-length.bit_length() // 8), "big")
    return bytes((base + 55 + len(size),)) + size


def _rlp_string(data: bytes) -> bytes:
    return data if len(data) == 1 and data[0] < 0x80 else _rlp_head(0x80, len(data)) + data


_RLP: Final = (
    *(_rlp_string(n.to_bytes(-(-n.bit_length() // 8), "big")) for n in (*NUMBERS, *range(26, 40))),
    *map(_rlp_string, STRINGS), b"\xc0", b"\xc1\x80", b"\x81\x05", b"\x82\x00\x01", b"\xb8\x01\x80", b"\xc1\xc0",
)  # fmt: skip
_TYPICAL: Final = {
    Kind.JSON: _JSON, Kind.VALUE: TOML_VALUES, Kind.WORD: WORDS, Kind.CALL_WORD: _CALL, Kind.JSON_ARRAY: _JSON,
    Kind.JSON_OBJECT: _JSON, Kind.LINES: TOML_VALUES, Kind.TEXT: WORDS, Kind.CALL: _CALL, Kind.RLP: _RLP,
    Kind.RLP_LIST: _RLP,
}  # fmt: skip
"""What stands in for a part of a kind, CBOR apart."""
_CBOR: Final = (Kind.INTEGER, Kind.BYTES, Kind.OTHER, Kind.ARRAY)


def mutate(random: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Return ``data`` changed in a few places; ``others`` are samples to splice with."""
    draw = random.random
    how = draw()
    if how < 0.5:
        levels = structure_of(data)
        if levels:
            level = levels[int(draw() * len(levels))]
            changed = _change_item(random, data, level[int(draw() * len(level))], others)
            if how > 0.05:
                return changed
            data = changed
    out = bytearray(data)
    count = (1, 1, 1, 2, 4)[int(draw() * 5)]
    for _ in range(count):
        _change(random, out, others)
    return bytes(out)


def _change(random: Random, out: bytearray, others: Sequence[bytes]) -> None:
    draw = random.random
    size = len(out)
    at = int(draw() * (size + 1))
    match int(draw() * 9):
        case 0 if size:
            out[at % size] ^= 1 << int(draw() * 8)
        case 1 if size:
            out[at % size] = BYTES[int(draw() * len(BYTES))]
        case 2:
            del out[at:]
        case 3:
            end = at + 1 + int(draw() * 8)
            del out[at:end]
        case 4:
            out[at:at] = random.randbytes(1 + int(draw() * 8))
        case 5:
            end = at + 1 + int(draw() * 63)
            out[at:at] = out[at:end]
        case 6:
            other = others[int(draw() * len(others))]
            start = int(draw() * (len(other) + 1))
            out[at:] = other[start:]
        case 7:
            head = LENGTHS[int(draw() * len(LENGTHS))]
            end = at + (0, 1, len(head))[int(draw() * 3)]
            out[at:end] = head
        case _:
            length = (1, 2, 4, 8)[int(draw() * 4)]
            out[at : at + length] = (b"\0", b"\xff", b"\x7f")[int(draw() * 3)] * length


def _change_item(random: Random, data: bytes, item: Item, others: Sequence[bytes]) -> bytes:
    """Put something else in the place of an item, and say so in every length around it."""
    kind, start, end = item.kind, item.start, item.end
    if item.entries and random.random() < 0.875:
        new = _change_entries(random, data, item)
    elif kind in _CBOR:
        new = _cbor_leaf(random, data, item, others)
    else:
        typical = _TYPICAL[kind]
        new = typical[int(random.random() * len(typical))]
    out = data[:start] + new + data[end:]
    if item.wraps:
        grown = len(new) - (end - start)
        for wrap in reversed(item.wraps):
            length = wrap.length + grown
            width = wrap.width
            if width > 0:
                head = (length % (1 << 8 * width)).to_bytes(width, "big")
            else:
                head = _head(0x40, length) if width == 0 else _rlp_head(0xC0, length)
            out = out[: wrap.start] + head + out[wrap.content :]
            grown += len(head) - (wrap.content - wrap.start)
    return out


def _change_entries(random: Random, data: bytes, item: Item) -> bytes:
    """Return a container with an entry less, more, elsewhere, or under another key."""
    draw = random.random
    kind, entries = item.kind, item.entries
    parts = [data[entry.start : entry.end] for entry in entries]
    at, other = int(draw() * len(parts)), int(draw() * len(parts))
    match int(draw() * 8):
        case 0 | 1:
            del parts[at]
        case 2:
            parts.insert(at, parts[other])
        case 3:
            parts[at], parts[other] = parts[other], parts[at]
        case 4:
            parts[at:at] = [parts[other]] * MANY[int(draw() * len(MANY))]
        case 5:
            del parts[at:]
        case 6:
            typical = _PLAIN if kind is Kind.ARRAY else _TYPICAL[kind]
            parts.insert(at, typical[int(draw() * len(typical))])
        case _:
            parts[at] = _renamed(random, data, kind, entries[at], entries[other])
    if kind is Kind.ARRAY:
        return _head(0x80, len(parts)) + b"".join(parts)
    if kind is Kind.RLP_LIST:
        return _rlp_head(0xC0, sum(map(len, parts))) + b"".join(parts)
    if kind is Kind.JSON_ARRAY:
        return b"[" + b",".join(parts) + b"]"
    if kind is Kind.JSON_OBJECT:
        return b"{" + b",".join(parts) + b"}"
    return b"".join(parts)


def _renamed(random: Random, data: bytes, kind: Kind, entry: Entry, other: Entry) -> bytes:
    """Return an entry under another key, or the value of another where there are no keys."""
    if kind is Kind.JSON_OBJECT and random.random() < 0.5:
        return _KEYS[int(random.random() * len(_KEYS))] + data[entry.value : entry.end]
    return data[entry.start : entry.value] + data[other.value : other.end]


def _cbor_leaf(random: Random, data: bytes, item: Item, others: Sequence[bytes]) -> bytes:
    draw = random.random
    kind, content, end = item.kind, item.content, item.end
    match int(draw() * 8):
        case 0 if kind is Kind.BYTES:
            return _head(0x40, end - content + 1) + data[content:end] + b"\0"
        case 1 if kind is Kind.BYTES and end > content:
            return _head(0x40, end - content - 1) + data[content : end - 1]
        case 2 if kind is Kind.BYTES and end > content:
            changed = bytearray(data[item.start : end])
            changed[content - item.start + int(draw() * (end - content))] ^= 1 << int(draw() * 8)
            return bytes(changed)
        case 0 if kind is Kind.INTEGER:
            number = cbor2.loads(data[item.start : end]) + (-1 if draw() < 0.5 else 1)
            return cbor2.dumps(number)
        case 1 if kind is Kind.INTEGER:
            return cbor2.dumps(random.getrandbits(1 + int(draw() * 64)))
        case 2 if kind is Kind.INTEGER:
            return bytes((int(draw() * 4),))
        case 3:
            return _STRANGE[int(draw() * len(_STRANGE))]
        case 4:
            return _other_item(random, others)
        case 5 if kind is not Kind.OTHER:
            return _spelled_longer(data, item)
        case _:
            return _PLAIN[int(draw() * len(_PLAIN))]


def _other_item(random: Random, others: Sequence[bytes]) -> bytes:
    """Return an item of another sample, where that is of CBOR."""
    draw = random.random
    other = others[int(draw() * len(others))]
    levels = structure_of(other)
    if not levels:
        return b"\x80"
    level = levels[int(draw() * len(levels))]
    item = level[int(draw() * len(level))]
    return other[item.start : item.end] if item.kind in _CBOR else b"\x80"


def _spelled_longer(data: bytes, item: Item) -> bytes:
    """Return an item under a head of nine bytes, which no encoder writes for a small number."""
    head = data[item.start]
    low = head & 31
    number = low if low < 24 else int.from_bytes(data[item.start + 1 : item.start + 1 + (1 << low - 24)], "big")
    at = item.start + 1 + (0 if low < 24 else 1 << low - 24)
    return bytes((head & 0xE0 | 27,)) + number.to_bytes(8, "big") + data[at : item.end]


def _head(major: int, length: int) -> bytes:
    """Return the shortest head of a string or an array."""
    if length < 24:
        return bytes((major | length,))
    if length < 1 << 8:
        return bytes((major | 24, length))
    if length < 1 << 16:
        return bytes((major | 25,)) + length.to_bytes(2, "big")
    return bytes((major | 26,)) + length.to_bytes(4, "big")
