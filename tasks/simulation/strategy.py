"""What a strategy is: who plays what, which of its own parameters are searched, and what it is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from tasks.simulation.stage import Cast, Setting, honest_cast

__all__ = ["BOTH", "PARTS", "SHARES", "Strategy", "Values"]

Values = tuple[int, ...] | tuple[float, ...] | tuple[str, ...] | tuple[bool, ...]
SHARES: Final = (10, 20, 33, 45)
PARTS: Final = (0.05, 0.1, 0.25, 0.5, 0.75, 1.0)
BOTH: Final = (False, True)


class Strategy(NamedTuple):
    """``text`` says what it does, ``space`` has the values of each of its parameters."""

    name: str
    text: str
    space: Mapping[str, Values] = {}
    cast: Cast | None = None
    own_tasks: bool = False
    """Whether the plot posts the tasks; else a requester outside it does."""
    needs: str = ""
    custody: bool = False
    """Whether outputs lie in custody."""
    known: tuple[Setting, ...] = ()
    """Settings that are tried first: those of known attacks."""
    baseline: Cast = honest_cast
    """What its gain is above: the same accounts when they are honest."""
