"""Reads and writes typed values as codec values, by their type annotations.

The types of requests and answers between the node and its gateway are ordinary annotations: ``int``, ``bytes``,
``str``, ``bool``, ``list[X]``, ``tuple[X, Y]``, ``tuple[X, ...]``, ``X | None`` and records (NamedTuple).
``Range``, ``Length`` and ``Encoded`` in ``Annotated`` bound them. Each annotation is compiled once, at import.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Final, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from state.primitives.codec import Value, decode, encode
from state.primitives.errors import DecodeError

__all__ = ["Codec", "Encoded", "Length", "Range", "codec_of", "read_record", "record_value"]

_Record = TypeVar("_Record", bound=tuple[Any, ...])


class Range(NamedTuple):
    """Bounds of an integer: ``first`` to ``stop - 1``."""

    first: int
    stop: int


class Length(NamedTuple):
    """Bounds of the length of bytes or of a list, both included."""

    min: int
    max: int


class Encoded(NamedTuple):
    """A list that is sent as its encoded bytes, so that it nests no deeper in a frame than any other value."""

    limit_bytes: int


class Codec(NamedTuple):
    """``read`` turns a codec value into the typed value and raises DecodeError; ``write`` does the reverse.

    ``write`` is None where both are the same object. ``types`` are the accepted types where these are all that
    ``read`` checks: a list of such values is checked at once, for answers have hundreds.
    """

    read: Callable[[Any], Any]
    write: Callable[[Any], Value] | None
    types: frozenset[type] | None = None


def codec_of(hint: Any) -> Codec:
    """Return the codec of a type annotation. Raises TypeError for one that cannot be sent."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _bounded(args[0], args[1])
    if origin in (Union, types.UnionType):
        [inner] = [arg for arg in args if arg is not types.NoneType]
        return _optional(codec_of(inner))
    if origin is list:
        return _list(codec_of(args[0]), _ANY_LENGTH)
    if origin is tuple:
        if args[1:] == (...,):
            return _tuple(codec_of(args[0]))
        return _fixed(tuple, tuple(map(codec_of, args)), "tuple")
    if hint is bool:
        return Codec(_read_bool, int)
    if hint in (int, bytes, str):
        return Codec(_read_type(hint), None, frozenset((hint,)))
    if hint is types.NoneType:
        return Codec(_read_none, None)
    if isinstance(hint, type) and hasattr(hint, "_fields"):
        return _record_codec(hint)
    raise TypeError(f"{hint!r} cannot be sent between node and gateway")


_ANY_LENGTH: Final = Length(0, 2**63)


def _bounded(hint: Any, bound: Range | Length | Encoded) -> Codec:
    match bound:
        case Range(first, stop):
            return Codec(_read_integer(first, stop), None)
        case Length(least, most) if hint is bytes:
            return Codec(_read_bytes(least, most), None)
        case Length():
            [inner] = get_args(hint)
            return _list(codec_of(inner), bound)
        case Encoded(limit_bytes):
            return Codec(_read_encoded(limit_bytes), encode)


def _read_type(expected: type) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if type(value) is not expected:
            raise DecodeError(f"{expected.__name__} expected")
        return value

    return read


def _read_none(value: Any) -> None:
    if value is not None:
        raise DecodeError("nothing expected")


def _read_bool(value: Any) -> bool:
    if type(value) is not int or not 0 <= value <= 1:
        raise DecodeError("0 or 1 expected")
    return value == 1


def _read_integer(first: int, stop: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if type(value) is not int or not first <= value < stop:
            raise DecodeError(f"an integer from {first} to {stop - 1} expected")
        return value

    return read


def _read_bytes(least: int, most: int) -> Callable[[Any], bytes]:
    def read(value: Any) -> bytes:
        if type(value) is not bytes or not least <= len(value) <= most:
            raise DecodeError(f"{least} to {most} bytes expected")
        return value

    return read


def _read_encoded(limit_bytes: int) -> Callable[[Any], list[Any]]:
    def read(value: Any) -> list[Any]:
        if type(value) is not bytes:
            raise DecodeError("an encoded array expected")
        found = decode(value, limit_bytes=limit_bytes)
        if type(found) is not list:
            raise DecodeError("an encoded array expected")
        return found

    return read


def _optional(inner: Codec) -> Codec:
    read_inner, write_inner, types_inner = inner

    def read(value: Any) -> Any:
        return None if value is None else read_inner(value)

    if write_inner is None:
        return Codec(read, None, types_inner and types_inner | {types.NoneType})
    return Codec(read, lambda value: None if value is None else write_inner(value))


def _list(inner: Codec, length: Length) -> Codec:
    read_inner, write_inner, types_inner = inner

    def read(value: Any) -> list[Any]:
        if type(value) is not list or not length.min <= len(value) <= length.max:
            raise DecodeError(f"an array of {length.min} to {length.max} values expected")
        if types_inner is not None and types_inner.issuperset(map(type, value)):
            return value
        return [read_inner(item) for item in value]

    if write_inner is None:
        return Codec(read, None)
    return Codec(read, lambda value: [write_inner(item) for item in value])


def _tuple(inner: Codec) -> Codec:
    read_inner, write_inner, _ = inner

    def read(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise DecodeError("an array expected")
        return tuple([read_inner(item) for item in value])

    return Codec(read, list if write_inner is None else lambda value: [write_inner(item) for item in value])


def _fixed(make: Callable[[Any], Any], parts: tuple[Codec, ...], name: str) -> Codec:
    """Return the codec of a tuple or record with ``parts``."""
    readers = tuple(part.read for part in parts)
    writers = tuple(part.write for part in parts)

    def read(value: Any) -> Any:
        if type(value) is not list or len(value) != len(readers):
            raise DecodeError(f"not a {name}")
        return make([reader(item) for reader, item in zip(readers, value, strict=True)])

    def write(value: Any) -> Value:
        return [
            item if writer is None else writer(item) for writer, item in zip(writers, value, strict=True)
        ]  # fmt: skip

    return Codec(read, write if any(writers) else list)


@cache
def _record_codec(kind: Any) -> Codec:
    hints = get_type_hints(kind, include_extras=True)
    return _fixed(kind._make, tuple(codec_of(hints[name]) for name in kind._fields), kind.__name__)


def read_record(kind: type[_Record], value: Any) -> _Record:
    """Return the record of ``kind`` that a codec value stands for. Raises DecodeError."""
    return _record_codec(kind).read(value)  # type: ignore[no-any-return]


def record_value(record: tuple[Any, ...]) -> Value:
    """Return a record as a codec value."""
    write = _record_codec(type(record)).write
    assert write is not None, "a record is never its own codec value"
    return write(record)
