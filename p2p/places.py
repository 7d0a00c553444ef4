"""Who may have a place among the peers that come in, and who gives way when all are taken; without I/O.

Whoever takes all places of a node decides what it hears from those who dial it. So the places are shared between
the parts of the network: when they are full the largest block of addresses makes room for a newcomer of a smaller
one. Those who have proved useful are passed over: the oldest, the nearest, those of the best score; of one block a
few each, or a crowd that came first would be all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from p2p.crowds import Origin

__all__ = ["Admission", "Guest", "admit"]

OLDEST_SHARE: Final = 4
"""One in so many places is kept for those who have stayed longest, ..."""
BEST_SHARE: Final = 8
"""... one in so many for the best scores, ..."""
NEAREST_SHARE: Final = 8
"""... and one in so many for the shortest round trips."""
KEPT_PER_BLOCK: Final = 2
"""For each of these reasons, of one block."""


@dataclass(frozen=True, slots=True)
class Guest:
    """A peer that came in and has no place of its own; times in seconds of any one clock."""

    address: bytes
    origin: Origin
    since: float
    score: float = 0.0
    rtt_s: float | None = None


class Admission(NamedTuple):
    """Whether a newcomer may stay."""

    refusal: str | None = None
    """Why not: a stable code."""
    gives_way: bytes | None = None
    """Whose place it takes."""


def admit(guests: Sequence[Guest], origin: Origin, *, places_max: int, per_network_max: int) -> Admission:
    """Say whether a newcomer from ``origin`` may join these guests.

    Who is alone in its block never gives way.
    """
    if origin.is_bounded and sum(guest.origin.network == origin.network for guest in guests) >= per_network_max:
        return Admission(refusal="refused_network")
    if len(guests) < places_max:
        return Admission()
    blocks = Counter(guest.origin.block for guest in guests)
    networks = Counter(guest.origin.network for guest in guests)
    kept = _kept(guests, places_max)
    # As in p2p.crowds: only where the newcomer's block stays smaller by it.
    last = max(
        (guest for guest in guests
         if guest.address not in kept and blocks[guest.origin.block] >= blocks[origin.block] + 2),
        key=lambda guest: (blocks[guest.origin.block], networks[guest.origin.network], guest.since, guest.address),
        default=None,
    )  # fmt: skip
    return Admission(refusal="refused_full") if last is None else Admission(gives_way=last.address)


def _kept(guests: Iterable[Guest], places_max: int) -> set[bytes]:
    """Return those who are passed over."""
    guests = list(guests)
    near = [(guest.rtt_s, guest) for guest in guests if guest.rtt_s is not None]
    nearest = {guest.address: rtt_s for rtt_s, guest in near}
    kept: set[bytes] = set()
    reasons: list[tuple[int, list[Guest], Callable[[Guest], float]]] = [
        (OLDEST_SHARE, guests, lambda guest: guest.since),
        (BEST_SHARE, [guest for guest in guests if guest.score > 0], lambda guest: -guest.score),
        (NEAREST_SHARE, [guest for _, guest in near], lambda guest: nearest[guest.address]),
    ]
    for share, candidates, cost in reasons:
        taken: Counter[str] = Counter()
        for guest in sorted(candidates, key=lambda guest: (cost(guest), guest.address)):
            if taken.total() >= places_max // share:
                break
            if taken[guest.origin.block] < KEPT_PER_BLOCK:
                taken[guest.origin.block] += 1
                kept.add(guest.address)
    return kept
