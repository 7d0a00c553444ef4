"""Fields of a specification: which are there, of what type and between what limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from state.primitives.codec import Value
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES

__all__ = [
    "INTEGER_MAX", "SPEC_VERSION", "Found", "KindFields", "fields_by_name", "read_fields", "with_later",
]  # fmt: skip

SPEC_VERSION: Final = 1
INTEGER_MAX: Final = (1 << 63) - 1
_SHOWN: Final = 80

Found: TypeAlias = Mapping[str, Any]
"""Values by name; those of an inner array are named ``array.field``."""


@dataclass(frozen=True)
class KindFields:
    """Fields in their order. Each is a name, a type, and the names of the fields of an inner array."""

    fields: tuple[tuple[str, type, tuple[str, ...]], ...]
    ranges: Mapping[str, tuple[int, int]]
    hashes: frozenset[str] = frozenset()
    texts: frozenset[str] = frozenset()
    integers: frozenset[str] = frozenset()
    """Arrays of integers of any length."""
    names: frozenset[str] = frozenset()
    """Arrays of texts of any length."""
    optional: frozenset[str] = frozenset()
    """Inner arrays that may be empty; then none of their fields is there."""
    trailing: Mapping[str, int] = field(default_factory=dict)
    """Inner arrays that may end before so many of their last fields; then none of these is there."""
    later: tuple[str, ...] = ()
    """Inner arrays that came with later versions, one behind the other: none of them is there, or the first ones.

    The last one that is there is not empty, so there is one form.
    """
    lists: frozenset[str] = frozenset()
    """Arrays whose items the kind checks itself."""

    def with_more(self, other: KindFields, at: int) -> KindFields:
        """Return these fields with those of another in between."""
        return KindFields(
            (*self.fields[:at], *other.fields, *self.fields[at:]), {**self.ranges, **other.ranges},
            self.hashes | other.hashes, self.texts | other.texts, self.integers | other.integers,
            self.names | other.names, self.optional | other.optional,
            {**self.trailing, **other.trailing}, self.later + other.later, self.lists | other.lists,
        )  # fmt: skip


def fields_by_name(value: Any, kind: KindFields) -> Found:
    """Return the fields of a decoded array by name. Raises DecodeError for another form, not for values."""
    fields, most = kind.fields, len(kind.fields)
    if not isinstance(value, list) or not most - len(kind.later) <= len(value) <= most:
        raise _fault(f"a list of {most} fields is expected")
    absent = kind.later[len(kind.later) + len(value) - most :]
    if absent:
        fields = tuple(field for field in fields if field[0] not in absent)
    last = kind.later[len(kind.later) - len(absent) - 1] if len(absent) < len(kind.later) else ""
    found: dict[str, Any] = {}
    for (name, wanted, inner), item in zip(fields, value, strict=True):
        if type(item) is not wanted:
            raise _fault(f"{name}: {wanted.__name__} expected")
        if not isinstance(item, list):
            found[name] = item
            continue
        if not item and name != last and (name in kind.optional or name in kind.later):
            continue
        if len(item) not in (len(inner), len(inner) - kind.trailing.get(name, 0)):
            raise _fault(f"{name}: {len(inner)} fields expected")
        for part, each in zip(inner, item, strict=False):
            found[f"{name}.{part}"] = each
    return found


def with_later(fields: Sequence[Value], *later: list[Value]) -> list[Value]:
    """Return the fields with inner arrays of later versions, without the empty ones at the end."""
    count = max((at for at, inner in enumerate(later, 1) if inner), default=0)
    return [*fields, *later[:count]]


def read_fields(value: Any, kind: KindFields) -> Found:
    """Return the fields of a decoded array by name. Raises DecodeError, which names the first that is wrong."""
    found = fields_by_name(value, kind)
    for name, item in found.items():
        wrong = ""
        if name in kind.hashes:
            wrong = "" if type(item) is bytes and len(item) == HASH_BYTES else f"{HASH_BYTES} bytes expected"
        elif name in kind.ranges:
            first, last = kind.ranges[name]
            if type(item) is not int or not first <= item <= last:
                wrong = f"an integer from {first} to {last} expected, not {str(item)[:_SHOWN]}"
        elif name in kind.texts:
            wrong = "" if type(item) is str else "a text expected"
        elif name in kind.integers:
            wrong = "" if type(item) is list and _are_integers(item) else "a list of integers expected"
        elif name in kind.names:
            is_list = type(item) is list and {str}.issuperset(map(type, item))
            wrong = "" if is_list else "a list of texts expected"
        elif name in kind.lists:
            wrong = "" if type(item) is list else "a list expected"
        else:
            raise AssertionError(f"{name} has no rule")
        if wrong:
            raise _fault(f"{name}: {wrong}")
    return found


def _are_integers(items: Sequence[Any]) -> bool:
    return (
        {int}.issuperset(map(type, items)) and min(items, default=0) >= 0 and max(items, default=0) <= INTEGER_MAX
    )


def _fault(text: str) -> DecodeError:
    return DecodeError(f"not a job specification: {text}")
