"""Which asks of a call meet a bid, for all of a call's asks at once (R92).

A set of asks is an integer (``bit_sets``). Each row of ``fitting.REQUIREMENTS`` keeps the sets of asks by what
they have. So a bid takes a search and a few operations on bits for each row, and not a look at each ask. Pure: it
reads no state.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Generic, Protocol, TypeVar

from tasks.ledger.bit_sets import Thresholds
from tasks.ledger.fitting import REQUIREMENTS, Needs, Traits

__all__ = ["AskIndex"]


class _Bid(Protocol):
    """What a job needs of a machine, what it pays at most, and the machines that it may not have."""

    @property
    def limit(self) -> int: ...
    @property
    def needs(self) -> Needs: ...
    @property
    def barred(self) -> frozenset[bytes]: ...


class _Priced(Protocol):
    """What a machine has, and what it asks."""

    @property
    def machine(self) -> bytes: ...
    @property
    def price(self) -> int: ...
    @property
    def traits(self) -> Traits: ...


_Ask = TypeVar("_Ask", bound=_Priced)


class AskIndex(Generic[_Ask]):
    """Asks at their places, by what they have."""

    def __init__(self, asks: Sequence[_Ask]) -> None:
        self.asks = asks
        self.number = {ask.machine: at for at, ask in enumerate(asks)}
        self.all = (1 << len(asks)) - 1
        self._prices = Thresholds([ask.price for ask in asks])
        columns = zip(*(ask.traits for ask in asks), strict=True) if asks else [()] * len(REQUIREMENTS)
        self._rows = [row.sets(column) for row, column in zip(REQUIREMENTS, columns, strict=True)]

    @cached_property
    def rates(self) -> Thresholds:
        """Return the sets of asks by their rates."""
        return Thresholds([ask.traits.rate for ask in self.asks])

    def at_most(self, price: int) -> int:
        """Return the asks of ``price`` or less."""
        return self.all & ~self._prices.at_least(price + 1)

    def meeting(self, bid: _Bid) -> int:
        """Return the asks that fit what a bid needs, at its limit or less, and are not barred."""
        found = self.at_most(bid.limit)
        for meets, wants in zip(self._rows, bid.needs, strict=True):
            found &= meets(wants)
        if found:
            for machine in bid.barred:
                at = self.number.get(machine)
                if at is not None:
                    found &= ~(1 << at)
        return found
