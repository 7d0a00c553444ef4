"""Who may verify the windows of a job: any machine, machines with a bond, or named ones (market.md R166)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final, NamedTuple

from state.primitives.address import ADDRESS_BYTES
from state.primitives.codec import Value
from state.primitives.errors import DecodeError

__all__ = ["ANYBODY", "BOND_MAX", "NAMES_MAX", "Verifiers"]

NAMES_MAX: Final = 8
"""Accounts that a job may name. The rules read the machine of each at every draw."""
BOND_MAX: Final = (1 << 127) - 1


class Verifiers(NamedTuple):
    """The choice of a job's requester; nothing: any machine that verifies.

    ``bond_min`` is the least bond behind a machine. ``names`` are machines, or accounts that operate machines,
    ascending. A job has one of both at most.
    """

    bond_min: int = 0
    names: tuple[bytes, ...] = ()

    @property
    def is_chosen(self) -> bool:
        """Whether not every machine that verifies may be drawn."""
        return bool(self.bond_min or self.names)

    def to_value(self) -> list[Value]:
        """Return the fields in their order."""
        return [self.bond_min, [*self.names]]

    @classmethod
    def of(cls, value: Any) -> Verifiers:
        """Return the choice of a decoded array. Raises DecodeError; a choice of anybody has no array."""
        match value:
            case [bond_min, []] if type(bond_min) is int and 0 < bond_min <= BOND_MAX:
                return cls(bond_min)
            case [first, [*names]] if type(first) is int and not first and 0 < len(names) <= NAMES_MAX:
                if not all(type(name) is bytes and len(name) == ADDRESS_BYTES for name in names):
                    raise _fault(f"names of {ADDRESS_BYTES} bytes expected")
                if any(name >= after for name, after in pairwise(names)):
                    raise _fault("names in ascending order expected, each once")
                return cls(0, tuple(names))
        raise _fault(f"a bond up to {BOND_MAX}, or 1 to {NAMES_MAX} names expected")


ANYBODY: Final = Verifiers()


def _fault(text: str) -> DecodeError:
    return DecodeError(f"not a job specification: verifiers: {text}")
