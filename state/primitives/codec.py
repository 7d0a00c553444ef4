"""Canonical bytes: deterministic CBOR of int, bytes, str, None and arrays, one spelling for each value.

The subset of RFC 8949 section 4.2.1 (core deterministic encoding): unsigned, negative and big integers, byte
and text strings, null and definite arrays. No maps, floats, booleans, tags (but bignums) or indefinite lengths.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NoReturn, TypeAlias

import cbor2

from state.primitives.errors import DecodeError

__all__ = ["DEPTH_MAX", "INTEGER_BITS_MAX", "Value", "decode", "encode"]

Value: TypeAlias = "int | bytes | str | list[Value] | tuple[Value, ...] | None"

DEPTH_MAX: Final = 16
"""Deepest nesting of arrays that is decoded; every wire and disk type stays far below."""
INTEGER_BITS_MAX: Final = 256
"""Widest integer in either direction."""

_INTEGER_LIMIT: Final = 1 << INTEGER_BITS_MAX
# Tags that the library would turn into other objects, some at unbounded cost (a bigfloat's exponent).
# Bignums (2, 3) are part of the subset; any other tag becomes a CBORTag, which the type check refuses.
_BUILT_IN_TAGS: Final = (
    0, 1, 4, 5, 25, 28, 29, 30, 35, 36, 37, 52, 54, 100, 256, 258, 260, 261, 1004, 43000, 55799,
)  # fmt: skip


def _refuse(_value: object, immutable: bool = False) -> NoReturn:
    raise DecodeError("a tag where none is allowed")


_SEMANTIC_DECODERS: Final[Mapping[int, Any]] = dict.fromkeys(_BUILT_IN_TAGS, _refuse)


def encode(value: Value) -> bytes:
    """Return the canonical bytes of ``value``.

    Types are the caller's duty (mypy checks them); floats, maps and booleans would encode but never decode.
    """
    return cbor2.dumps(value)


def decode(data: bytes, *, limit_bytes: int) -> Any:
    """Return the value whose canonical encoding is exactly ``data``; arrays come back as lists.

    Raises DecodeError and nothing else, on any bytes. Memory is bounded by a small multiple of ``limit_bytes``.
    """
    if len(data) > limit_bytes:
        raise DecodeError(f"{len(data)} bytes, limit {limit_bytes}")
    try:
        value = cbor2.loads(
            data,
            max_depth=DEPTH_MAX + 1,
            allow_indefinite=False,
            semantic_decoders=_SEMANTIC_DECODERS,
        )
        _check(value, DEPTH_MAX)
        if cbor2.dumps(value) != data:
            raise DecodeError("not the canonical spelling")
    except DecodeError:
        raise
    except Exception as error:  # the library documents several types and lets ValueError and others slip
        raise DecodeError(str(error)[:200]) from None
    return value


def _check(value: object, depth: int) -> None:
    kind = type(value)
    if kind is bytes or kind is str or value is None:
        return
    if kind is int:
        if not -_INTEGER_LIMIT < value < _INTEGER_LIMIT:  # type: ignore[operator]
            raise DecodeError("integer out of range")
        return
    if kind is not list:
        raise DecodeError(f"a {kind.__name__} where int, bytes, str, None or an array is allowed")
    if depth == 0:
        raise DecodeError("nested too deeply")
    for item in value:  # type: ignore[attr-defined]
        item_kind = type(item)
        if (
            item_kind is bytes
            or item_kind is str
            or (item_kind is int and -_INTEGER_LIMIT < item < _INTEGER_LIMIT)
        ):
            continue  # most items, without a call for each
        _check(item, depth - 1)
