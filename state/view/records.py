"""Records of the state, read strictly: only the rules write them, so one of another shape is a damaged disk.

Its error is a ``StoreError``, which ends the node: a rule must not take damage for a transaction's fault, because
the other nodes do not see it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from state.primitives.codec import decode_stored
from state.primitives.errors import DecodeError, RecordDamaged

__all__ = ["items_of", "number_of", "read_record"]

_T = TypeVar("_T")


def read_record(data: bytes, make: Callable[[Any], _T], *, what: str, limit_bytes: int) -> _T:
    """Return what ``make`` makes of an encoded record; it may raise DecodeError, ValueError or TypeError.

    Raises RecordDamaged, which names ``what`` was read.
    """
    try:
        return make(decode_stored(data, limit_bytes=limit_bytes))
    except (DecodeError, ValueError, TypeError) as error:
        raise RecordDamaged(f"the record of {what} is damaged: {error}") from None


def number_of(data: bytes, size_bytes: int, *, what: str) -> int:
    """Return a number that is kept in so many bytes. Raises RecordDamaged, which names ``what`` was read."""
    if len(data) != size_bytes:
        raise RecordDamaged(f"the record of {what} is damaged: {len(data)} bytes and not {size_bytes}")
    return int.from_bytes(data, "big")


def items_of(value: Any, *shape: type | int) -> list[Any]:
    """Return the items of a list that has the types of ``shape``; a number there stands for as many bytes.

    Raises DecodeError.
    """
    if type(value) is list and tuple(map(type, value)) == shape:
        return value  # most records: no item has a size of its own
    if type(value) is not list or len(value) != len(shape):
        raise DecodeError(f"{len(shape)} items expected")
    for place, (item, expected) in enumerate(zip(value, shape, strict=True)):
        if type(expected) is int:
            is_right = type(item) is bytes and len(item) == expected
        else:
            is_right = type(item) is expected
        if not is_right:
            raise DecodeError(f"item {place} is of another type or size")
    return value
