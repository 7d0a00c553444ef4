"""Limits on inbound connections before they are authenticated; without I/O."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from typing import Final

from p2p.base.limits import HalfOpenSlot, HalfOpenSlots, NetworkLimits, SharedRate
from p2p.base.netgroups import address_of, block_of, network_of, site_of
from state.primitives.token_bucket import RateLimiter

__all__ = ["HandshakeLimits"]

_UNPROVEN_PER_SITE: Final = 4
"""Connections of one site beyond its limit that may still authenticate: persistent peers may be among them."""
_ARRIVALS_MAX: Final = 1_024
"""Hosts whose last connection time is remembered."""


class HandshakeLimits:
    """Rates and half-open slots of one node; times in seconds of one monotonic clock."""

    def __init__(self, limits: NetworkLimits) -> None:
        self._limits = limits
        self.half_open = HalfOpenSlots(limits.half_open_max)
        """The slots for connections whose handshake has not finished."""
        self._arrivals: OrderedDict[str, float] = OrderedDict()
        self._per_site: Counter[str] = Counter()
        self._site_rate = RateLimiter(per_s=limits.accepts_per_ip_per_s, burst=limits.accepts_per_ip_burst)
        self._network_rate = RateLimiter(
            per_s=limits.accepts_per_network_per_s, burst=limits.accepts_per_network_burst
        )
        self._block_rate = RateLimiter(per_s=limits.accepts_per_block_per_s, burst=limits.accepts_per_block_burst)
        self._rate = SharedRate(
            per_s=limits.accepts_per_s, burst=limits.accepts_per_s, kept_per_s=limits.accepts_kept_per_s
        )
        self._relay_rate = RateLimiter(per_s=limits.accepts_per_block_per_s, burst=limits.accepts_per_block_burst)
        self._circuit_rate = RateLimiter(per_s=limits.accepts_per_s, burst=limits.accepts_per_s)

    def arrived_at(self, host: str) -> float:
        """Return the time of the last connection from an IP address; minus infinity if none is remembered."""
        return self._arrivals.get(host, -math.inf)

    def connection(self, remote: str, now: float) -> HalfOpenSlot | None:
        """Return a slot for a connection from the IP address ``remote``; None: refuse it."""
        host, site, limits = str(address_of(remote)), site_of(remote), self._limits
        self._arrivals[host] = now
        self._arrivals.move_to_end(host)
        if len(self._arrivals) > _ARRIVALS_MAX:
            self._arrivals.popitem(last=False)
        # A test network lives behind one address, and this machine can harm itself otherwise.
        if not address_of(remote).is_loopback and not (
            self._per_site[site] < limits.peers_per_ip_max + _UNPROVEN_PER_SITE
            and self._site_rate.allows(site, now)
            and self._network_rate.allows(network_of(remote), now)
            and self._block_rate.allows(block_of(remote), now)
            and self._rate.allows(block_of(remote), now)
        ):
            return None
        return self.half_open.enter(network_of(remote))

    def circuit(self, remote: str, now: float) -> HalfOpenSlot | None:
        """Return a slot for a stream from an acceptor; None: refuse it."""
        # All that one relay brings are one block: what it makes up is not to keep out what others bring.
        if not (self._relay_rate.allows(remote, now) and self._circuit_rate.allows(None, now)):
            return None
        return self.half_open.enter(remote)

    def is_full(self, site: str | None) -> bool:
        """Whether a site has more connections than allowed."""
        return (
            site is not None
            and not address_of(site).is_loopback
            and self._per_site[site] > self._limits.peers_per_ip_max
        )

    def count(self, site: str | None, change: int) -> None:
        """Count a connection of a site (1) or its end (-1); None is not counted."""
        if site is not None:
            self._per_site[site] += change
            if not self._per_site[site]:
                del self._per_site[site]
