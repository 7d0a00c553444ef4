"""Which machines of a call can lock the bond of a job: found for all of them at once, by bits (R92).

A bond is the highest of three amounts: the price of the windows that it covers at the machine's ask, a part of
that at the job's limit, and the floor of a check. How many windows it covers follows from the machine's rate. It
never falls as that rises. So machines in the order of rates are in few classes with one number each. In each of
them money covers a bond if it covers as many work units at the machine's ask. That number of units is one of the
machine alone, whatever the job.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from billing.prices import BPS, TERA
from tasks.ledger.auction import Ask
from tasks.ledger.bit_sets import Thresholds
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.settlement import Bonds

__all__ = ["Backing", "BondIndex", "Funds", "units_for"]

_ANY: Final = 1 << 512
"""Units that a machine can back which asks for nothing: above all jobs."""


def units_for(amount: int, price: int) -> int:
    """Return the most work units whose price, rounded down, is at most ``amount``."""
    return ((amount + 1) * TERA - 1) // price if price else _ANY


class _Class(NamedTuple):
    """Machines whose bond for a job covers the same number of windows: their ``units``, and the least bond."""

    machines: int
    units: int
    least: int


class Backing(NamedTuple):
    """What decides who can back a job, whatever machines have at the moment.

    ``known`` are the machines that are not new to it. ``is_over``: no window is left to prove.
    """

    classes: tuple[_Class, ...]
    known: int
    is_over: bool


class Funds:
    """What machines can lock at one moment of a call."""

    def __init__(self, asks: Sequence[Ask], funds: Sequence[int], bond_bps: int) -> None:
        self.amounts = Thresholds(funds)
        # The bond is ``bond_bps`` of the price, rounded up.
        self.units = Thresholds(
            [
                units_for(amount * BPS // bond_bps, ask.price) if bond_bps else _ANY
                for ask, amount in zip(asks, funds, strict=True)
            ]
        )


class BondIndex:
    """Asks at their places, by what decides about bonds. ``proved`` is what each machine has proved since a fault.

    ``floors`` are the least bonds of a machine that is not new to a job, and of one that is.
    """

    def __init__(
        self, asks: Sequence[Ask], proved: Sequence[int], floors: tuple[int, int], parameters: TaskParameters
    ) -> None:
        self._asks, self._floors, self._new_windows = asks, floors, parameters.new_windows
        self._bond_bps = parameters.bond_windows_bps
        self.all = (1 << len(asks)) - 1
        self._rates = Thresholds([ask.traits.rate for ask in asks])
        self._proved = Thresholds(proved)
        count = max(1, self._new_windows)
        # A machine is not new to a window of so many units at its own ask.
        self._known = Thresholds(
            [units_for(worth // count, ask.price) for ask, worth in zip(asks, proved, strict=True)]
        )

    def funds(self, funds: Sequence[int]) -> Funds:
        """Return what the machines can lock, of the amount that each of them has."""
        return Funds(self._asks, funds, self._bond_bps)

    def backing_of(self, bonds: Bonds) -> Backing:
        """Return what decides who can back a job."""
        rates, sets, start = self._rates.values, self._rates, 0
        classes = []
        for end in (*self._ends(bonds), len(rates)):
            if end > start:
                above = sets.at_least(rates[end]) if end < len(rates) else 0
                classes.append(_Class(sets.at_least(rates[start]) & ~above, *bonds.terms_at(rates[start])))
            start = end
        return Backing(tuple(classes), self._known_to(bonds), bonds.is_over)

    def _ends(self, bonds: Bonds) -> Iterator[int]:
        """Yield the places in the order of rates where the number of windows rises."""
        rates = self._rates.values
        if not rates:
            return
        parts = [(0, len(rates) - 1, bonds.count_at(rates[0]), bonds.count_at(rates[-1]))]
        while parts:
            low, high, count_low, count_high = parts.pop()
            if count_low == count_high:
                continue
            if high - low == 1:
                yield high
                continue
            middle = (low + high) // 2
            count = bonds.count_at(rates[middle])
            parts.append((middle, high, count, count_high))
            parts.append((low, middle, count_low, count))

    def _known_to(self, bonds: Bonds) -> int:
        """Return the machines that are not new to a job at their own ask."""
        if not self._new_windows:
            return self.all
        worth = self._proved.at_least(self._new_windows * bonds.least_worth)
        return worth & self._known.at_least(bonds.window_units)

    def backers(self, job: Backing, funds: Funds) -> int:
        """Return the machines whose money covers the bond of a job at their own ask."""
        usual, new = (funds.amounts.at_least(floor) for floor in self._floors)
        if job.is_over:  # no bond but the floor of a machine that is new
            return job.known | new
        found = 0
        for machines, units, least in job.classes:
            found |= machines & funds.units.at_least(units) & funds.amounts.at_least(least)
        return found & (job.known & usual | new)
