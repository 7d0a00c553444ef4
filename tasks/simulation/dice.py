"""Numbers drawn from one seed by hashing: the same on every machine, and no state outside the object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

from state.primitives.hashing import digest

__all__ = ["Dice"]

_Item = TypeVar("_Item")
_WHOLE: Final = 1 << 53


class Dice:
    """A stream of numbers. ``fork`` names another stream, which does not depend on how far this one has come."""

    def __init__(self, seed: bytes) -> None:
        self._seed = seed
        self._drawn = 0

    def fork(self, name: str) -> Dice:
        """Return the stream of this name."""
        return Dice(digest(b"sim-fork", self._seed + name.encode()))

    def bytes(self) -> bytes:
        """Return the next 32 bytes."""
        self._drawn += 1
        return digest(b"sim-draw", self._seed + self._drawn.to_bytes(8, "big"))

    def below(self, limit: int) -> int:
        """Return an integer from 0 to below ``limit``."""
        return int.from_bytes(self.bytes(), "big") % limit

    def share(self) -> float:
        """Return a number from 0 to below 1."""
        return self.below(_WHOLE) / _WHOLE

    def chance(self, probability: float) -> bool:
        """Tell whether something of this probability happens."""
        return self.share() < probability

    def pick(self, items: Sequence[_Item]) -> _Item:
        """Return one of ``items``."""
        return items[self.below(len(items))]

    def between(self, low: int, high: int) -> int:
        """Return an integer from ``low`` to ``high``, evenly in its logarithm."""
        return min(high, int(low * (high / low) ** self.share()))
