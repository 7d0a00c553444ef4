"""Eviction of links to other relays: which link to close when a client requests one more, without I/O.

Any client can name its own hosts as relays, so the links for one network are limited. When the relay is full,
unused links are evicted first, then a link of the block that requested most. An evicted link costs the next
circuit over it a round trip; running circuits go on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from p2p.base.endpoint import Endpoint
from relay.protocol.errors import Refusal
from relay.protocol.limits import HostUse, RelayLimits

__all__ = ["Eviction", "NextHopUse", "choose_eviction"]


@dataclass(frozen=True, slots=True)
class NextHopUse:
    """A link to another relay, and when it was last used."""

    endpoint: Endpoint
    client_host: HostUse | None
    """The host that requested it; None: the operator, or a trusted client."""
    used_at_ms: int
    is_kept: bool = False
    """Whether it is configured: then it stays open, used or not."""


@dataclass(frozen=True, slots=True)
class Eviction:
    """The decision: a refusal, a link to evict, or neither if there is room."""

    refusal: Refusal | None = None
    evicted: Endpoint | None = None


def choose_eviction(
    links: Sequence[NextHopUse], client_host: HostUse | None, limits: RelayLimits, now_ms: int
) -> Eviction:
    """Decide whether ``client_host`` (None: as in ``NextHopUse``) may have another link beside these."""
    loose = [link for link in links if not link.is_kept]
    spare = [link for link in loose if now_ms - link.used_at_ms >= limits.relay_spare_ms]

    def oldest(candidates: Sequence[NextHopUse]) -> Eviction | None:
        last = min(candidates, key=lambda link: (link.used_at_ms, str(link.endpoint)), default=None)
        return None if last is None else Eviction(evicted=last.endpoint)

    if client_host is not None:
        its = [
            link
            for link in loose
            if link.client_host is not None and link.client_host.network == client_host.network
        ]
        if len(its) >= limits.relays_per_client_network_max:
            return oldest([link for link in its if link in spare]) or Eviction(Refusal.HOST_LIMIT)
    if len(links) < limits.relays_max:
        return Eviction()
    blocks = Counter(link.client_host.block for link in loose if link.client_host is not None)
    own = 0 if client_host is None else blocks[client_host.block]
    largest = max(blocks.values(), default=0)
    crowd = [
        link for link in loose
        if link.client_host is not None and blocks[link.client_host.block] == largest and largest >= own + 2
    ]  # fmt: skip
    return oldest(spare) or oldest(crowd) or Eviction(Refusal.RELAY_FULL)
