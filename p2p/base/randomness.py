"""The source of randomness that pure modules take as an argument: the caller chooses the seed."""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from typing import Any, Protocol, TypeVar

__all__ = ["RandomSource"]

_Item = TypeVar("_Item")


class RandomSource(Protocol):
    """The methods of ``random.Random`` that this package uses; an instance of it is one."""

    def random(self) -> float:
        """Return a number in [0, 1)."""
        ...

    def uniform(self, a: float, b: float, /) -> float:
        """Return a number between ``a`` and ``b``."""
        ...

    def choice(self, seq: Sequence[_Item], /) -> _Item:
        """Return one item of a sequence that is not empty."""
        ...

    def sample(self, population: Sequence[_Item], k: int, /) -> list[_Item]:
        """Return ``k`` different items."""
        ...

    def shuffle(self, x: MutableSequence[Any], /) -> None:
        """Bring a sequence into a random order, in place."""
        ...
