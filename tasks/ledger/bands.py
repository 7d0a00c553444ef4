"""Which machines a group takes in a call: the cheapest of like speed (market.md 6.2). Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Final, NamedTuple

from billing.prices import BPS

__all__ = ["BAND_BPS", "Offer", "cheapest_band", "rate_top", "seats_of"]

BAND_BPS: Final = 8_700
"""The slowest machine of a group is at least so fast, as a part of the fastest."""


class Offer(NamedTuple):
    """A machine that admits a group, by its place in the order of prices: ``at``."""

    at: int
    price: int
    rate: int
    owner: bytes


def rate_top(rate: int) -> int:
    """Return the highest rate of a band from ``rate`` on."""
    return rate * BPS // BAND_BPS


class _Lowest:
    """The ``count`` lowest offers of those that are in, and the sum of their prices."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._prices: dict[int, int] = {}
        """Of all that are in, by place."""
        self._chosen: set[int] = set()
        self._highest: list[int] = []
        self._rest: list[int] = []
        self.total = 0

    @property
    def is_full(self) -> bool:
        return len(self._chosen) == self._count

    def add(self, offer: Offer) -> None:
        self._prices[offer.at] = offer.price
        self._choose(offer.at)
        if len(self._chosen) <= self._count:
            return
        while (at := -heappop(self._highest)) not in self._chosen:
            pass  # it has left before
        self._chosen.remove(at)
        self.total -= self._prices[at]
        heappush(self._rest, at)

    def remove(self, offer: Offer) -> None:
        price = self._prices.pop(offer.at)
        if offer.at not in self._chosen:
            return
        self._chosen.remove(offer.at)
        self.total -= price
        while self._rest:
            at = heappop(self._rest)
            if at in self._prices and at not in self._chosen:
                self._choose(at)
                return

    def _choose(self, at: int) -> None:
        self._chosen.add(at)
        self.total += self._prices[at]
        heappush(self._highest, -at)


def cheapest_band(offers: Sequence[Offer], members: int, spares: int) -> list[Offer] | None:
    """Return all offers of the band whose lowest ``members + spares`` cost least, by price; ties by lower rates.

    A band goes from the rate of an offer to ``rate_top`` of it. It has at least ``spares`` owners.
    """
    by_rate = sorted(offers, key=lambda offer: (offer.rate, offer.at))
    lowest, owners = _Lowest(members + spares), Counter[bytes]()
    best: tuple[int, int, int] | None = None
    end = 0
    for start, first in enumerate(by_rate):
        if start and by_rate[start - 1].rate == first.rate:
            pass  # the band of this rate was looked at with the offer before
        else:
            top = rate_top(first.rate)
            while end < len(by_rate) and by_rate[end].rate <= top:
                lowest.add(by_rate[end])
                owners[by_rate[end].owner] += 1
                end += 1
            if lowest.is_full and len(owners) >= spares and (best is None or lowest.total < best[0]):
                best = lowest.total, start, end
        lowest.remove(first)
        owners[first.owner] -= 1
        if not owners[first.owner]:
            del owners[first.owner]
    return None if best is None else sorted(by_rate[best[1] : best[2]])


def seats_of(band: Sequence[Offer], members: int, spares: int) -> list[Offer]:
    """Return the offers of a band that a group takes: its members by price, and then its spares.

    Those are the lowest of all. Where they have fewer owners than there are spares, the dearest of an owner with
    several gives way to the lowest of another one. Spares are the dearest of different owners.
    """
    count = members + spares
    taken = list(band[:count])
    owners = Counter(offer.owner for offer in taken)
    for offer in band[count:]:
        if len(owners) >= spares:
            break
        if offer.owner in owners:
            continue
        at = max(at for at, other in enumerate(taken) if owners[other.owner] > 1)
        owners[taken.pop(at).owner] -= 1
        taken.append(offer)
        owners[offer.owner] = 1
    standing: list[Offer] = []
    for offer in reversed(taken):
        if len(standing) < spares and offer.owner not in {other.owner for other in standing}:
            standing.append(offer)
    return [offer for offer in taken if offer not in standing] + standing
