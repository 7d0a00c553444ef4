"""Who may have a place among the peers that come in, and who gives way when all are taken; without I/O.

Whoever takes all places of a node decides what it hears from those who dial it. Three rules say who makes room,
and each guards against what the others leave open:

- the largest block of addresses makes room for a newcomer of a smaller one, so few blocks keep nobody out;
- some places are drawn by a keyed hash of the block, which nobody outside can work out: who has many blocks has
  its share of those places and no more, whenever it comes and however it behaves;
- who has done nothing in its first minutes makes room for a block that has no place, so merely sitting holds none.

Passed over are those who have proved useful, by what only work, time and nearness bring. Above all *standing*: in
how many minutes a peer was the first to bring something good. Who comes later has fewer of them, whatever it does,
so no crowd that comes after a peer which works on takes that peer's rank (docs/decisions/0041-peer-network.md).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, NamedTuple

from p2p.base.netgroups import Origin
from p2p.session.usefulness import Usefulness

__all__ = ["Admission", "Guest", "Standings", "admit", "lots"]

STANDING_SHARE: Final = 2
"""One in so many places is kept for those who have worked in most minutes, of equals for the oldest, ..."""
BEST_SHARE: Final = 8
"""... one in so many for the best scores: who works most at present, ..."""
NEAREST_SHARE: Final = 8
"""... one in so many for the shortest round trips, ..."""
DRAWN_SHARE: Final = 8
"""... and one in so many for blocks that are drawn, one each."""
KEPT_PER_BLOCK: Final = 2
"""For scores and round trips, of one block: or a crowd that came first would be all of them."""
STANDING_PER_BLOCK_SHARE: Final = 8
"""By standing, of one block one in so many of all places: all that a relay brings are one block."""
TRIAL_S: Final = 600.0
"""How long a peer has to do something useful, before it makes room for a block that has no place."""
STANDINGS_MAX: Final = 1_024
"""Peers that are gone and whose standing is remembered, ..."""
STANDINGS_S: Final = 3_600.0
"""... for so long."""


class _Past(NamedTuple):
    usefulness: Usefulness
    block: str
    until: float


class Standings:
    """What peers that are gone had done for this node, by the block of addresses that they did it from; bounded.

    The standing of one block counts for few places only, so nobody shall earn it in one block and use it in many.
    Each return costs a period: who leaves and comes back for ever has nothing left of it before long.
    """

    def __init__(self, standings_max: int = STANDINGS_MAX, standings_s: float = STANDINGS_S) -> None:
        self._max, self._kept_s = standings_max, standings_s
        self._past: OrderedDict[bytes, _Past] = OrderedDict()

    def __len__(self) -> int:
        return len(self._past)

    def keep(self, address: bytes, block: str, usefulness: Usefulness, now: float) -> None:
        """Remember a peer that has gone; of too many, whoever has done least is forgotten."""
        self.forget(address)
        if usefulness.periods <= 1:
            return
        self._past[address] = _Past(usefulness, block, now + self._kept_s)
        for known, past in [*self._past.items()]:  # in the order of leaving
            if past.until > now:
                break
            del self._past[known]
        if len(self._past) > self._max:
            del self._past[min(self._past, key=lambda known: self._past[known].usefulness.periods)]

    def periods(self, address: bytes, block: str, now: float) -> int:
        """Return the periods with which a peer would come back."""
        past = self._past.get(address)
        return past.usefulness.periods - 1 if past is not None and past.block == block and past.until > now else 0

    def take(self, address: bytes, block: str, now: float) -> Usefulness:
        """Return what a peer that has come begins with, and remember it no more."""
        periods = self.periods(address, block, now)
        past = self._past.pop(address, None)
        if past is None or not periods:
            return Usefulness()
        past.usefulness.periods = periods
        return past.usefulness

    def forget(self, address: bytes) -> None:
        """Remember nothing of a peer."""
        self._past.pop(address, None)


@dataclass(frozen=True, slots=True)
class Guest:
    """A peer that came in and has no place of its own; times in seconds of any one clock."""

    address: bytes
    origin: Origin
    since: float
    useful_periods: int = 0
    """``Usefulness.periods``."""
    score: float = 0.0
    rtt_s: float | None = None


class Admission(NamedTuple):
    """Whether a newcomer may stay."""

    refusal: str | None = None
    """Why not: a stable code."""
    gives_way: bytes | None = None
    """Whose place it takes."""


def lots(key: bytes) -> Callable[[str], int]:
    """Return what draws blocks by a node's secret ``key``."""

    def draw(block: str) -> int:
        return int.from_bytes(blake2b(block.encode(), digest_size=8, key=key, person=b"places").digest(), "big")

    return draw


def admit(
    guests: Sequence[Guest],
    origin: Origin,
    *,
    now: float,
    places_max: int,
    per_network_max: int,
    draw: Callable[[str], int],
    useful_periods: int = 0,
) -> Admission:
    """Say whether a newcomer from ``origin`` may join these guests.

    ``draw`` is a keyed hash of a block whose key is this node's secret; the blocks with the lowest hashes are
    drawn. ``useful_periods`` is what ``Standings`` remembers of the newcomer.
    """
    if origin.is_bounded and sum(guest.origin.network == origin.network for guest in guests) >= per_network_max:
        return Admission(refusal="refused_network")
    if len(guests) < places_max:
        return Admission()
    blocks = Counter(guest.origin.block for guest in guests)
    networks = Counter(guest.origin.network for guest in guests)
    drawn = set(sorted({*blocks, origin.block}, key=draw)[: places_max // DRAWN_SHARE])
    kept = _kept(guests, places_max, drawn)
    loose = [guest for guest in guests if guest.address not in kept]
    is_absent = not blocks[origin.block]

    def size(guest: Guest) -> tuple[int, int, float, bytes]:
        return blocks[guest.origin.block], networks[guest.origin.network], guest.since, guest.address

    # As in p2p.base.netgroups: only where the newcomer's block stays smaller by it.
    crowd = [guest for guest in loose if blocks[guest.origin.block] >= blocks[origin.block] + 2]
    if crowd:
        return Admission(gives_way=max(crowd, key=size).address)
    if loose and is_absent and origin.block in drawn:
        return Admission(gives_way=max(loose, key=size).address)
    if useful_periods:
        gives_way = _for_standing(guests, Guest(b"", origin, now, useful_periods), places_max, drawn)
        if gives_way is not None:
            return Admission(gives_way=gives_way)
    idle = [guest for guest in loose if not guest.useful_periods and now - guest.since >= TRIAL_S]
    if idle and is_absent:
        return Admission(gives_way=min(idle, key=lambda guest: (guest.since, guest.address)).address)
    return Admission(refusal="refused_full")


def _for_standing(guests: Sequence[Guest], back: Guest, places_max: int, drawn: set[str]) -> bytes | None:
    """Return who makes room for a peer that is back and, had it stayed, would be kept for its standing."""
    everybody = [*guests, back]
    if back.address not in _standing(everybody, places_max):
        return None
    kept = _kept(everybody, places_max, drawn)
    less = [guest for guest in guests if guest.address not in kept and guest.useful_periods < back.useful_periods]
    return (
        min(less, key=lambda guest: (guest.useful_periods, -guest.since, guest.address)).address if less else None
    )


def _by_standing(guests: Sequence[Guest]) -> list[Guest]:
    return sorted(guests, key=lambda guest: (-guest.useful_periods, guest.since, guest.address))


def _standing(guests: Sequence[Guest], places_max: int) -> list[bytes]:
    """Return those who are kept for their standing."""
    per_block = max(KEPT_PER_BLOCK, places_max // STANDING_PER_BLOCK_SHARE)
    return _first(_by_standing(guests), places_max // STANDING_SHARE, per_block)


def _kept(guests: Sequence[Guest], places_max: int, drawn: set[str]) -> set[bytes]:
    """Return those who are passed over."""
    near = [(guest.rtt_s, guest) for guest in guests if guest.rtt_s is not None]
    best = sorted((g for g in guests if g.score > 0), key=lambda guest: (-guest.score, guest.address))
    nearest = [guest for _, guest in sorted(near, key=lambda item: (item[0], item[1].address))]
    of_drawn = [guest for guest in _by_standing(guests) if guest.origin.block in drawn]
    return {
        *_standing(guests, places_max),
        *_first(best, places_max // BEST_SHARE, KEPT_PER_BLOCK),
        *_first(nearest, places_max // NEAREST_SHARE, KEPT_PER_BLOCK),
        *_first(of_drawn, places_max // DRAWN_SHARE, 1),
    }


def _first(ranked: Sequence[Guest], count: int, per_block: int) -> list[bytes]:
    """Return the first so many of the ranked, of one block at most ``per_block``."""
    taken: Counter[str] = Counter()
    found: list[bytes] = []
    for guest in ranked:
        if len(found) >= count:
            break
        if taken[guest.origin.block] < per_block:
            taken[guest.origin.block] += 1
            found.append(guest.address)
    return found
