"""The table of one node's peers: connected, persistent and banned ones. All parts of the network share it.

``p2p.peers.lifecycle`` adds peers; ``p2p.peers.admission`` and ``p2p.peers.outbound`` read it for their decisions;
gossip and the node use it for sending. It opens no connection and makes no decision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import trio

from p2p.base.limits import NetworkLimits
from p2p.peers.bans import Bans
from p2p.session.peer import Peer

__all__ = ["PeerWatcher", "Roster"]

PeerWatcher = Callable[[bytes, bool], None]


class Roster:
    """Peers by their addresses; ``own`` is the address of this node."""

    def __init__(
        self, own: bytes, *, limits: NetworkLimits, counters: Counter[str], log: Callable[..., None]
    ) -> None:
        self.own = own
        self.peers: dict[bytes, Peer] = {}
        """Connected peers. A peer that changes its connection stays in the table."""
        self.bans = Bans(limits.bans_max, trio.current_time)
        self.persistent: frozenset[bytes] = frozenset()
        """Addresses to which connections are always kept; they have reserved slots."""
        self.kept: int | None = None
        """To how many of these connections are kept; None: to all."""
        self.changed = trio.Event()
        """Set, and replaced by a new event, when a peer connects or leaves."""
        self._watchers: list[PeerWatcher] = []
        self._limits = limits
        self._counters = counters
        self._log = log

    def is_persistent(self, address: bytes) -> bool:
        """Whether a connection to this address should always be kept."""
        return address in self.persistent

    def rtt_s(self, address: bytes) -> float | None:
        """Return the round trip to a peer, if measured."""
        peer = self.peers.get(address)
        return None if peer is None else peer.rtt_s

    def credit(self, address: bytes) -> None:
        """Note that a peer was useful just now; see ``p2p.peers.eviction``."""
        peer = self.peers.get(address)
        if peer is not None:
            peer.usefulness.note(trio.current_time())

    def is_own_or_banned(self, address: bytes) -> bool:
        """Whether an address is the own one or banned, so that no connection to it is possible."""
        return address == self.own or address in self.bans

    def not_to_dial(self) -> set[bytes]:
        """Return the addresses that are connected, banned or the own one."""
        return {*self.peers, *self.bans, self.own}

    def is_needed(self, address: bytes | None) -> bool:
        """Whether a connection to this address has priority over others."""
        return self.kept is None and address in self.persistent

    def want(self, addresses: Iterable[bytes], *, kept: int | None) -> None:
        """Set the persistent peers; their bans are lifted."""
        self.persistent = frozenset(addresses) - {self.own}
        self.kept = kept
        for address in self.persistent:
            self.bans.lift(address)

    def watch(self, watcher: PeerWatcher) -> None:
        """Call ``watcher(address, True)`` when a peer connects and ``watcher(address, False)`` when it leaves."""
        self._watchers.append(watcher)

    def notify_watchers(self, address: bytes, is_there: bool) -> None:
        """Tell all watchers that a peer connected or left."""
        self.changed.set()
        self.changed = trio.Event()
        for watcher in self._watchers:
            watcher(address, is_there)

    async def wait_peers(self, count: int) -> None:
        """Wait until at least ``count`` peers are connected."""
        while len(self.peers) < count:
            await self.changed.wait()

    def close(self, address: bytes, reason: str) -> bool:
        """Close the connection to a peer; return whether there was one."""
        peer = self.peers.get(address)
        if peer is not None:
            peer.close(reason)
        return peer is not None

    def ban(self, address: bytes, reason: str, *, ban_s: float | None = None) -> None:
        """Drop a peer and ban it for ``ban_s``; None: the default of the limits."""
        self.bans.add(address, self._limits.ban_s if ban_s is None else ban_s)
        self._counters["bans"] += 1
        self._log("peer banned", peer=address.hex(), reason=reason)
        self.close(address, reason)
