"""Sets of places as integers: bit ``at`` stands for place ``at``. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import compress
from typing import Final

__all__ = ["Thresholds", "bits_of", "places_of"]

_BITS: Final = bytes(byte == ord("1") for byte in range(256))


def bits_of(chosen: int) -> Iterator[int]:
    """Yield the places in a set, the lowest first; for sets of which the first few are wanted."""
    while chosen:
        low = chosen & -chosen
        yield low.bit_length() - 1
        chosen ^= low


def places_of(chosen: int) -> list[int]:
    """Return all places in a set, in order."""
    digits = format(chosen, "b").encode().translate(_BITS)
    return list(compress(range(len(digits)), reversed(digits)))


class Thresholds:
    """Of many values at places, the sets of those that are at least a value."""

    __slots__ = ("_sets", "values")

    def __init__(self, values: Sequence[int]) -> None:
        order = sorted(range(len(values)), key=values.__getitem__)
        sets, chosen = [0] * (len(values) + 1), 0
        for at in range(len(order) - 1, -1, -1):
            chosen |= 1 << order[at]
            sets[at] = chosen
        self._sets = sets
        self.values = [values[at] for at in order]
        """In ascending order."""

    def at_least(self, value: int) -> int:
        """Return the set of places whose value is ``value`` or more."""
        return self._sets[bisect_left(self.values, value)]

    def within(self, least: int, most: int) -> int:
        """Return the set of places whose value is from ``least`` to ``most``."""
        return self.at_least(least) & ~self.at_least(most + 1)
