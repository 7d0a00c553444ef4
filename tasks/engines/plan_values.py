"""Plans as values of the codec: one place that knows the form of all their fields (docs/decisions/0121).

What is written follows from the fields of a plan's class and of the shapes in it, and so does what is read. A new
field is part of both.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, TypeVar, Union, cast

from state.primitives.codec import Value
from state.primitives.errors import DecodeError

__all__ = ["plan_from_value", "plan_to_value"]

_T = TypeVar("_T")
_PLAIN: Final = (int, str, bytes)


def plan_to_value(item: Any) -> Value:
    """Return a plan, or a part of it, as a codec value: an array of its fields in their order.

    A truth is 0 or 1. What may be absent is an array of one item or none. What may be of several classes is an
    array of the number of its class and the item.
    """
    return _written(type(item), item)


def plan_from_value(kind: type[_T], value: Any) -> _T:
    """Read what ``plan_to_value`` gives of a class. Raises DecodeError, and what its constructor raises."""
    return cast("_T", _read(kind, value))


@lru_cache(maxsize=64)
def _fields(kind: type) -> Mapping[str, Any] | None:
    """Return names and types of the fields that a class is made of; None for a class without fields."""
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.init}
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        hints = typing.get_type_hints(kind)
        return {name: hints[name] for name in kind._fields}
    return None


def _choices(kind: Any) -> tuple[Any, ...]:
    """Return the types of a union; none of another type."""
    return typing.get_args(kind) if typing.get_origin(kind) in (Union, types.UnionType) else ()


def _written(kind: Any, item: Any) -> Value:
    if choices := _choices(kind):
        classes = [one for one in choices if one is not type(None)]
        if item is None:
            return []
        number = next(number for number, one in enumerate(classes) if type(item) is one)
        written = _written(classes[number], item)
        return [written] if len(classes) == 1 else [number, written]
    if kind is bool:
        return int(item)
    if kind in _PLAIN:
        return cast("Value", item)
    if typing.get_origin(kind) is tuple:
        return [_written(typing.get_args(kind)[0], one) for one in item]
    fields = _fields(kind)
    if fields is None:
        raise AssertionError(f"{kind} has no form")
    return [_written(one, getattr(item, name)) for name, one in fields.items()]


def _read(kind: Any, value: Any) -> Any:
    if choices := _choices(kind):
        return _read_choice([one for one in choices if one is not type(None)], value)
    if kind is bool:
        if type(value) is not int or value not in (0, 1):
            raise DecodeError("not a truth")
        return bool(value)
    if kind in _PLAIN:
        if type(value) is not kind:
            raise DecodeError(f"not of the type {kind.__name__}")
        return value
    if not isinstance(value, list):
        raise DecodeError("not an array")
    if typing.get_origin(kind) is tuple:
        return tuple(_read(typing.get_args(kind)[0], one) for one in value)
    fields = _fields(kind)
    if fields is None:
        raise AssertionError(f"{kind} has no form")
    if len(value) != len(fields):
        raise DecodeError(f"{len(value)} fields of {kind.__name__}, which has {len(fields)}")
    return kind(*[_read(one, item) for one, item in zip(fields.values(), value, strict=True)])


def _read_choice(classes: list[Any], value: Any) -> Any:
    if not isinstance(value, list):
        raise DecodeError("not an array")
    match value:
        case [] if len(classes) == 1:
            return None
        case [one] if len(classes) == 1:
            return _read(classes[0], one)
        case [int(number), one] if 0 <= number < len(classes) > 1:
            return _read(classes[number], one)
    raise DecodeError("none of the forms that there are")
