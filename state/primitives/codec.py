"""Canonical encoding: deterministic CBOR of int, bytes, str, None and arrays, one encoding for each value.

See chain.md R1.

The subset of RFC 8949 section 4.2.1 (core deterministic encoding): unsigned, negative and big integers, byte
and text strings, null and definite arrays. No maps, floats, booleans, tags (but bignums) or indefinite lengths.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NoReturn, TypeAlias

import cbor2

from state.primitives.errors import DecodeError, NotCanonical

__all__ = [
    "DEPTH_MAX",
    "INTEGER_BITS_MAX",
    "ITEMS_FREE",
    "ITEM_BYTES_MIN",
    "Value",
    "decode",
    "decode_stored",
    "encode",
]

Value: TypeAlias = "int | bytes | str | list[Value] | tuple[Value, ...] | None"

DEPTH_MAX: Final = 16
"""Deepest nesting of arrays that is decoded; every wire and disk type stays far below."""
INTEGER_BITS_MAX: Final = 256
"""Widest integer in either direction."""
ITEMS_FREE: Final = 4_096
ITEM_BYTES_MIN: Final = 8
"""A long encoding has no more items than ``ITEMS_FREE`` and one for each so many bytes.

An empty array takes one byte on the wire, 64 in memory and a microsecond: without a bound a message of some MiB
would cost its receiver seconds.
"""

_INTEGER_LIMIT: Final = 1 << INTEGER_BITS_MAX
_WORD_BYTES: Final = 8
_WORD_LIMIT: Final = 1 << 64
# Tags that the library would turn into other objects, some at unbounded cost (a bigfloat's exponent).
# Bignums (2, 3) are part of the subset; any other tag becomes a CBORTag, which the type check refuses.
_BUILT_IN_TAGS: Final = (
    0, 1, 4, 5, 25, 28, 29, 30, 35, 36, 37, 52, 54, 100, 256, 258, 260, 261, 1004, 43000, 55799,
)  # fmt: skip


def _refuse(_value: object, immutable: bool = False) -> NoReturn:
    raise NotCanonical("a tag where none is allowed")


def _magnitude(value: object) -> int:
    """Return the value of a bignum's bytes. Raises an error if the number has a shorter encoding."""
    if type(value) is not bytes or len(value) <= _WORD_BYTES or not value[0]:
        raise NotCanonical("not the canonical spelling")
    return int.from_bytes(value, "big")


def _positive(value: object, immutable: bool = False) -> int:
    return _magnitude(value)


def _negative(value: object, immutable: bool = False) -> int:
    return ~_magnitude(value)


# A bignum of few bytes can be as short as the number's own head, or shorter: no length would tell them apart.
_SEMANTIC_DECODERS: Final[Mapping[int, Any]] = {
    **dict.fromkeys(_BUILT_IN_TAGS, _refuse), 2: _positive, 3: _negative,
}  # fmt: skip


def encode(value: Value) -> bytes:
    """Return the canonical bytes of ``value``.

    Types are the caller's duty (mypy checks them); floats, maps and booleans would encode but never decode.
    """
    return cbor2.dumps(value)


def decode(data: bytes, *, limit_bytes: int, limit_items: int | None = None) -> Any:
    """Return the value whose canonical encoding is exactly ``data``; arrays come back as lists.

    ``limit_items`` bounds the items at all depths together, for types of which it is known; without it the bound
    follows from the length (``ITEM_BYTES_MIN``). Raises DecodeError and nothing else, on any bytes. Memory is
    bounded by a small multiple of ``limit_bytes``.
    """
    size = len(data)
    if size > limit_bytes:
        raise NotCanonical(f"{size} bytes, limit {limit_bytes}")
    if size > ITEMS_FREE and (limit_items is None or limit_items < size):  # there are no more items than bytes
        _check_items(data, ITEMS_FREE + size // ITEM_BYTES_MIN if limit_items is None else limit_items)
    try:
        value = cbor2.loads(
            data,
            max_depth=DEPTH_MAX + 1,
            allow_indefinite=False,
            semantic_decoders=_SEMANTIC_DECODERS,
        )
        # Of the spellings that the library reads, the canonical one is shorter than all others of its value.
        if _size(value, DEPTH_MAX) != size:
            raise NotCanonical("not the canonical spelling")
    except DecodeError:
        raise
    except Exception as error:  # the library documents several types and lets ValueError and others slip
        raise NotCanonical(str(error)[:200]) from None
    return value


def decode_stored(data: bytes, *, limit_bytes: int) -> Any:
    """Return the value of bytes that ``encode`` has written before: a record of one's own state.

    Whoever reads a record checks the types of its items. Only the spelling is checked here, by writing it again,
    which takes a quarter of the time of ``decode``. Raises DecodeError and nothing else, on any bytes.
    """
    if len(data) > limit_bytes:
        raise NotCanonical(f"{len(data)} bytes, limit {limit_bytes}")
    try:
        value = cbor2.loads(
            data, max_depth=DEPTH_MAX + 1, allow_indefinite=False, semantic_decoders=_SEMANTIC_DECODERS
        )
        is_canonical = cbor2.dumps(value) == data
    except Exception as error:  # see decode
        raise NotCanonical(str(error)[:200]) from None
    if not is_canonical:
        raise NotCanonical("not the canonical spelling")
    return value


def _check_items(data: bytes, limit: int) -> None:
    """Raise DecodeError for more than ``limit`` items; malformed input is left to the library."""
    at, end, left = 0, len(data), limit
    while at < end:
        if not left:
            raise NotCanonical(f"more than {limit} items in {end} bytes")
        left -= 1
        head = data[at]
        at += 1
        length = head & 31
        if length >= 24:
            if length > 27:
                return
            width = 1 << length - 24
            length = int.from_bytes(data[at : at + width], "big")
            at += width
        if 0x40 <= head < 0x80:  # a string
            at += length


def _size(value: object, depth: int) -> int:
    """Return the length of the canonical encoding. Raises DecodeError for a value outside the subset."""
    kind = type(value)
    if kind is list:
        if depth == 0:
            raise NotCanonical("nested too deeply")
        count = len(value)  # type: ignore[arg-type]
        size = 1 if count < 24 else _head_size(count)
        for item in value:  # type: ignore[attr-defined]
            kind = type(item)
            if kind is bytes:  # most items are these or naturals, which cost no call
                length = len(item)
                size += length + (1 if length < 24 else 2 if length < 256 else _head_size(length))
            elif kind is int and 0 <= item < _WORD_LIMIT:
                if item < 24:
                    size += 1
                elif item < 1 << 16:
                    size += 2 if item < 256 else 3
                else:
                    size += 5 if item < 1 << 32 else 9
            else:
                size += _size(item, depth - 1)
        return size
    if kind is int:
        number: int = value if value >= 0 else ~value  # type: ignore
        if number < _WORD_LIMIT:
            return _head_size(number)
        if not -_INTEGER_LIMIT < value < _INTEGER_LIMIT:  # type: ignore[operator]
            raise NotCanonical("integer out of range")
        length = (number.bit_length() + 7) // 8
        return 1 + _head_size(length) + length  # a tag before the bytes
    if kind is bytes:
        length = len(value)  # type: ignore[arg-type]
    elif kind is str:
        length = len(value.encode())  # type: ignore[attr-defined]
    elif value is None:
        return 1
    else:
        raise NotCanonical(f"a {kind.__name__} where int, bytes, str, None or an array is allowed")
    return _head_size(length) + length


def _head_size(number: int) -> int:
    return 1 if number < 24 else 2 if number < 1 << 8 else 3 if number < 1 << 16 else 5 if number < 1 << 32 else 9
