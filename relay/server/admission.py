"""Admission of connections to a relay: limits by host, network and block, and eviction when the relay is full."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from p2p.base.limits import HalfOpenSlot, HalfOpenSlots, SharedRate
from p2p.base.netgroups import Netgroups
from relay.protocol.limits import HostTable, HostUse, RelayLimits
from state.primitives.token_bucket import RateLimiter

__all__ = ["ConnectionAdmission"]

_TRUSTED = "trusted"


class ConnectionAdmission:
    """All connections of one relay; ``drop(transport, reason, host)`` ends one that is evicted for another.

    A new connection is *half open* until its handshake is finished. Half-open connections are counted on top of
    ``connections_max``, so a connection that proved nothing yet evicts none.
    """

    def __init__(
        self,
        limits: RelayLimits,
        hosts: HostTable,
        drop: Callable[[asyncio.Transport, str, str], None],
    ) -> None:
        self._limits = limits
        self._hosts = hosts
        self._drop = drop
        self._connections: dict[asyncio.Transport, HostUse] = {}
        self._crowds: Netgroups[asyncio.Transport] = Netgroups()
        """Admitted incoming connections by block, without those of trusted hosts."""
        self._placed: set[asyncio.Transport] = set()
        """Connections that count towards ``connections_max``."""
        self._half_open = HalfOpenSlots(limits.half_open_max)
        self._network_rate = RateLimiter(
            per_s=limits.accepts_per_network_per_s, burst=limits.accepts_per_network_burst
        )
        self._block_rate = RateLimiter(per_s=limits.accepts_per_block_per_s, burst=limits.accepts_per_block_burst)
        self._accepts = SharedRate(
            per_s=limits.accepts_per_s, burst=limits.accepts_burst, kept_per_s=limits.accepts_kept_per_s
        )
        self._all_gone = asyncio.Event()
        self._all_gone.set()

    def __len__(self) -> int:
        return len(self._connections)

    @property
    def half_open(self) -> int:
        """Connections whose handshake is not finished and that have not shown a token."""
        return len(self._half_open)

    def admit(self, transport: asyncio.Transport, ip: str, now_ms: int) -> tuple[HostUse, HalfOpenSlot] | str:
        """Count a new connection as half open and return its place among those, or return why it is refused."""
        limits = self._limits
        host = self._hosts.use(ip, now_ms)
        if host is None:
            return "hosts"
        if not host.is_trusted:
            if not host.accepts.take(now_ms):
                return "host_rate"
            if not (
                self._network_rate.allows(host.network, now_ms / 1000)
                and self._block_rate.allows(host.block, now_ms / 1000)
            ):
                return "network_rate"
            if host.connections >= limits.connections_per_host_max:
                return "host_connections"
            if host.net.connections >= limits.connections_per_network_max:
                return "network_connections"
            if host.half_open >= limits.half_open_per_host_max:
                return "host_half_open"
        if not self._accepts.allows(host.block, now_ms / 1000):
            return "rate"
        if self._is_full and self._crowds.eviction_candidate(host.block) is None:
            return "connections"
        self._enter(transport, host)
        host.half_open += 1
        place = self._half_open.enter(_TRUSTED if host.is_trusted else host.block)
        place.on_lost = partial(self._drop, transport, "half_open_lost", ip)
        return host, place

    def handshake_ended(self, host: HostUse, place: HalfOpenSlot) -> None:
        """Count a connection out of the half-open ones; it proved nothing."""
        host.half_open -= 1
        self._half_open.leave(place)

    def promote(self, transport: asyncio.Transport, ip: str, host: HostUse, place: HalfOpenSlot) -> bool:
        """Admit a half-open connection that proved its purpose; False: the relay is full, and it was dropped."""
        self.handshake_ended(host, place)
        if self._is_full:
            last = self._crowds.eviction_candidate(host.block)
            if last is None:
                self._drop(transport, "refused_connections", ip)
                return False
            self._displace(last)
            self._drop(last, "evicted", ip)
        self._placed.add(transport)
        if not host.is_trusted:
            self._crowds.enter(host.block, transport)
        return True

    def adopt(self, transport: asyncio.Transport, ip: str, now_ms: int) -> HostUse | None:
        """Count a connection that this relay opened; None: too many connections."""
        host = self._hosts.use(ip, now_ms)
        if host is None or self._is_full:
            return None
        self._enter(transport, host)
        self._placed.add(transport)
        return host

    @property
    def _is_full(self) -> bool:
        return len(self._placed) >= self._limits.connections_max

    def _displace(self, transport: asyncio.Transport) -> None:
        self._placed.discard(transport)
        self._crowds.leave(transport)

    def _enter(self, transport: asyncio.Transport, host: HostUse) -> None:
        host.count(connections=1)
        self._connections[transport] = host
        self._all_gone.clear()

    def connection_closed(self, transport: asyncio.Transport) -> None:
        """Count a closed connection out."""
        self._connections.pop(transport).count(connections=-1)
        self._displace(transport)
        if not self._connections:
            self._all_gone.set()

    async def close(self) -> None:
        """Close all connections, and wait until they are closed."""
        for transport in list(self._connections):
            transport.abort()
        await self._all_gone.wait()  # connection_lost is called from the loop
