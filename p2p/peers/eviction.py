"""Chooses which inbound peer loses its slot when all slots are taken; without I/O.

An attacker that holds all inbound slots decides what this node receives from peers that dial it. Three rules
choose the peer to evict. Each covers what the others leave open:

- The largest block of addresses loses a peer to a newcomer of a smaller block. So a few blocks cannot keep others
out. - Some slots go to blocks drawn by a keyed hash that only this node can compute. An owner of many blocks gets
its share of these slots and no more, at any time and with any behaviour. - A peer that was not useful in its first
minutes loses its slot to a block without a slot. So idle connections hold none.

Peers that proved useful by work, time or proximity are protected, above all by their *useful periods*: the number
of periods in which the peer was the first to deliver something valid. A newcomer always has fewer of them, so no
netgroup that comes later outranks a peer that keeps working (docs/decisions/0041-peer-network.md).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, NamedTuple

from p2p.base.netgroups import Origin
from p2p.session.usefulness import Usefulness

__all__ = ["AdmissionDecision", "DepartedPeers", "InboundPeer", "admit", "keyed_hash"]

STANDING_SHARE: Final = 2
"""One slot in this many is protected for peers with most useful periods (of equals, the oldest), ..."""
BEST_SHARE: Final = 8
"""... one in this many for the best scores (the most work at present), ..."""
NEAREST_SHARE: Final = 8
"""... one in this many for the shortest round trips, ..."""
DRAWN_SHARE: Final = 8
"""... and one in this many for drawn blocks, one slot each."""
KEPT_PER_BLOCK: Final = 2
"""Per block, for scores and round trips: otherwise one early netgroup could take all of them."""
STANDING_PER_BLOCK_SHARE: Final = 8
"""Per block, for useful periods: one in this many of all slots, because all peers of a relay are one block."""
TRIAL_S: Final = 600.0
"""Time in which a peer must be useful before it may be evicted for a block without a slot."""
DEPARTED_MAX: Final = 1_024
"""Departed peers whose useful periods are remembered, ..."""
DEPARTED_S: Final = 3_600.0
"""... for this long."""


class _Past(NamedTuple):
    usefulness: Usefulness
    block: str
    until: float


class DepartedPeers:
    """The usefulness of departed peers, with their block of addresses; bounded.

    The useful periods of one block protect few slots only, so a peer must not earn them in one block and use them
    in another. Each return costs a period, so a peer that keeps reconnecting soon has none.
    """

    def __init__(self, departed_max: int = DEPARTED_MAX, kept_s: float = DEPARTED_S) -> None:
        self._max, self._kept_s = departed_max, kept_s
        self._past: OrderedDict[bytes, _Past] = OrderedDict()

    def __len__(self) -> int:
        return len(self._past)

    def keep(self, address: bytes, block: str, usefulness: Usefulness, now: float) -> None:
        """Remember a departed peer; beyond the limit, the least useful one is dropped."""
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
        """Return the useful periods with which a peer would return."""
        past = self._past.get(address)
        return past.usefulness.periods - 1 if past is not None and past.block == block and past.until > now else 0

    def take(self, address: bytes, block: str, now: float) -> Usefulness:
        """Return the usefulness with which a returning peer starts, and forget it here."""
        periods = self.periods(address, block, now)
        past = self._past.pop(address, None)
        if past is None or not periods:
            return Usefulness()
        past.usefulness.periods = periods
        return past.usefulness

    def forget(self, address: bytes) -> None:
        """Forget a peer."""
        self._past.pop(address, None)


@dataclass(frozen=True, slots=True)
class InboundPeer:
    """An inbound peer without a reserved slot; times in seconds of one monotonic clock."""

    address: bytes
    origin: Origin
    since: float
    useful_periods: int = 0
    """``Usefulness.periods``."""
    score: float = 0.0
    rtt_s: float | None = None


class AdmissionDecision(NamedTuple):
    """Whether a newcomer is admitted."""

    refusal: str | None = None
    """The reason of a refusal: a stable code."""
    evicted: bytes | None = None
    """The peer that it replaces."""


def keyed_hash(key: bytes) -> Callable[[str], int]:
    """Return a hash of blocks under a node's secret ``key``."""

    def draw(block: str) -> int:
        return int.from_bytes(blake2b(block.encode(), digest_size=8, key=key, person=b"places").digest(), "big")

    return draw


def admit(
    peers: Sequence[InboundPeer],
    origin: Origin,
    *,
    now: float,
    slots_max: int,
    per_network_max: int,
    draw: Callable[[str], int],
    useful_periods: int = 0,
) -> AdmissionDecision:
    """Decide whether a newcomer from ``origin`` may join these peers.

    ``draw`` is a keyed hash of a block, with this node's secret as key; the blocks with the lowest hashes are
    drawn. ``useful_periods`` is what ``DepartedPeers`` remembers of the newcomer.
    """
    if origin.is_bounded and sum(peer.origin.network == origin.network for peer in peers) >= per_network_max:
        return AdmissionDecision(refusal="refused_network")
    if len(peers) < slots_max:
        return AdmissionDecision()
    blocks = Counter(peer.origin.block for peer in peers)
    networks = Counter(peer.origin.network for peer in peers)
    drawn = set(sorted({*blocks, origin.block}, key=draw)[: slots_max // DRAWN_SHARE])
    kept = _kept(peers, slots_max, drawn)
    loose = [peer for peer in peers if peer.address not in kept]
    is_absent = not blocks[origin.block]

    def size(peer: InboundPeer) -> tuple[int, int, float, bytes]:
        return blocks[peer.origin.block], networks[peer.origin.network], peer.since, peer.address

    # As in p2p.base.netgroups: only where the newcomer's block stays smaller by it.
    netgroup = [peer for peer in loose if blocks[peer.origin.block] >= blocks[origin.block] + 2]
    if netgroup:
        return AdmissionDecision(evicted=max(netgroup, key=size).address)
    if loose and is_absent and origin.block in drawn:
        return AdmissionDecision(evicted=max(loose, key=size).address)
    if useful_periods:
        evicted = _for_standing(peers, InboundPeer(b"", origin, now, useful_periods), slots_max, drawn)
        if evicted is not None:
            return AdmissionDecision(evicted=evicted)
    idle = [peer for peer in loose if not peer.useful_periods and now - peer.since >= TRIAL_S]
    if idle and is_absent:
        return AdmissionDecision(evicted=min(idle, key=lambda peer: (peer.since, peer.address)).address)
    return AdmissionDecision(refusal="refused_full")


def _for_standing(
    peers: Sequence[InboundPeer], back: InboundPeer, slots_max: int, drawn: set[str]
) -> bytes | None:
    """Return the peer to evict for a returning peer whose useful periods would have protected it."""
    everybody = [*peers, back]
    if back.address not in _standing(everybody, slots_max):
        return None
    kept = _kept(everybody, slots_max, drawn)
    less = [peer for peer in peers if peer.address not in kept and peer.useful_periods < back.useful_periods]
    return min(less, key=lambda peer: (peer.useful_periods, -peer.since, peer.address)).address if less else None


def _by_standing(peers: Sequence[InboundPeer]) -> list[InboundPeer]:
    return sorted(peers, key=lambda peer: (-peer.useful_periods, peer.since, peer.address))


def _standing(peers: Sequence[InboundPeer], slots_max: int) -> list[bytes]:
    """Return the peers that their useful periods protect."""
    per_block = max(KEPT_PER_BLOCK, slots_max // STANDING_PER_BLOCK_SHARE)
    return _first(_by_standing(peers), slots_max // STANDING_SHARE, per_block)


def _kept(peers: Sequence[InboundPeer], slots_max: int, drawn: set[str]) -> set[bytes]:
    """Return all protected peers."""
    near = [(peer.rtt_s, peer) for peer in peers if peer.rtt_s is not None]
    best = sorted((g for g in peers if g.score > 0), key=lambda peer: (-peer.score, peer.address))
    nearest = [peer for _, peer in sorted(near, key=lambda item: (item[0], item[1].address))]
    of_drawn = [peer for peer in _by_standing(peers) if peer.origin.block in drawn]
    return {
        *_standing(peers, slots_max),
        *_first(best, slots_max // BEST_SHARE, KEPT_PER_BLOCK),
        *_first(nearest, slots_max // NEAREST_SHARE, KEPT_PER_BLOCK),
        *_first(of_drawn, slots_max // DRAWN_SHARE, 1),
    }


def _first(ranked: Sequence[InboundPeer], count: int, per_block: int) -> list[bytes]:
    """Return the first ``count`` of the ranked peers, at most ``per_block`` of one block."""
    taken: Counter[str] = Counter()
    found: list[bytes] = []
    for peer in ranked:
        if len(found) >= count:
            break
        if taken[peer.origin.block] < per_block:
            taken[peer.origin.block] += 1
            found.append(peer.address)
    return found
