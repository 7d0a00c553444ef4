"""Which asks of a call meet a bid, and which machines can lock its bond: for all of a call's asks at once (R92).

A set of asks is an integer: bit ``at`` stands for the ask at place ``at``. Each field has the sets of asks that
have at least a value, in the order of values. So a bid takes a search and a few operations on bits for each
field, and not a look at each ask. Pure: it reads no state.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import compress
from typing import Final, Generic, Protocol, TypeVar

from tasks.kinds.egress import covering

__all__ = ["AskIndex", "Thresholds", "bits_of", "places_of"]

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


class _Wanted(Protocol):
    """What a job needs of a machine, and what it pays at most."""

    @property
    def limit(self) -> int: ...
    @property
    def gpus(self) -> int: ...
    @property
    def memory_mib(self) -> int: ...
    @property
    def rate_min(self) -> int: ...
    @property
    def rate_max(self) -> int: ...
    @property
    def host_cores(self) -> int: ...
    @property
    def until_ms(self) -> int: ...
    @property
    def egress(self) -> tuple[str, ...]: ...
    @property
    def refused(self) -> int: ...
    @property
    def barred(self) -> frozenset[bytes]: ...


class _Offered(Protocol):
    """What a machine has, and what it asks."""

    @property
    def machine(self) -> bytes: ...
    @property
    def price(self) -> int: ...
    @property
    def gpus(self) -> int: ...
    @property
    def memory_mib(self) -> int: ...
    @property
    def rate(self) -> int: ...
    @property
    def host_cores(self) -> int: ...
    @property
    def until_ms(self) -> int: ...
    @property
    def egress(self) -> tuple[str, ...]: ...
    @property
    def takes_all_kinds(self) -> bool: ...
    @property
    def limits(self) -> int: ...


_Ask = TypeVar("_Ask", bound=_Offered)


class AskIndex(Generic[_Ask]):
    """Asks at their places, by what they offer."""

    def __init__(self, asks: Sequence[_Ask]) -> None:
        self.asks = asks
        self.number = {ask.machine: at for at, ask in enumerate(asks)}
        self.all = (1 << len(asks)) - 1
        self.rates = Thresholds([ask.rate for ask in asks])
        self._prices = Thresholds([ask.price for ask in asks])
        self._gpus = Thresholds([ask.gpus for ask in asks])
        self._memories = Thresholds([ask.memory_mib for ask in asks])
        self._host_cores = Thresholds([ask.host_cores for ask in asks])
        self._untils = Thresholds([ask.until_ms for ask in asks])
        self._of_pattern: dict[str, int] = {}
        """The asks that have a pattern of names that may be reached, by pattern."""
        for at, ask in enumerate(asks):
            for pattern in ask.egress:
                self._of_pattern[pattern] = self._of_pattern.get(pattern, 0) | 1 << at
        self._of_all_kinds = sum(1 << at for at, ask in enumerate(asks) if ask.takes_all_kinds)
        self._limited: dict[int, int] = {}
        """The asks that have limits, by the limits: a few sets, however many asks there are."""
        for at, ask in enumerate(asks):
            if ask.limits:
                self._limited[ask.limits] = self._limited.get(ask.limits, 0) | 1 << at

    def at_most(self, price: int) -> int:
        """Return the asks of ``price`` or less."""
        return self.all & ~self._prices.at_least(price + 1)

    def meeting(self, bid: _Wanted) -> int:
        """Return the asks that have what a bid needs, at its limit or less: those that ``Ask.meets`` tells."""
        found = self.at_most(bid.limit) & self._gpus.at_least(bid.gpus) & self._memories.at_least(bid.memory_mib)
        found &= self.rates.at_least(bid.rate_min) & ~self.rates.at_least(bid.rate_max + 1)
        found &= self._host_cores.at_least(bid.host_cores) & self._untils.at_least(bid.until_ms)
        if not bid.host_cores:
            found &= self._of_all_kinds
        for entry in bid.egress if found else ():
            found &= self._letting_reach(entry)
        if bid.refused:
            for limits, having in self._limited.items():
                found &= ~having if limits & bid.refused else -1
        if found:
            for machine in bid.barred:
                at = self.number.get(machine)
                if at is not None:
                    found &= ~(1 << at)
        return found

    def _letting_reach(self, entry: str) -> int:
        """Return the asks that let a container reach an entry: a few look-ups, however many asks there are."""
        found = 0
        for pattern in covering(entry):
            found |= self._of_pattern.get(pattern, 0)
        return found
