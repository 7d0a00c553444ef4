"""The life of a peer: admission, entry into the roster, its run, its removal.

Connections come from ``p2p.peers.inbound`` and ``p2p.peers.outbound``; ``p2p.peers.admission`` decides, and
``p2p.session.peer`` is the conversation that starts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

import trio

from p2p.base.limits import NetworkLimits, ReceiveMemory, excess_holders
from p2p.base.netgroups import public_netgroup_of
from p2p.peers.admission import PeerAdmission
from p2p.peers.gossip_service import GossipService
from p2p.peers.roster import Roster
from p2p.secure.channel import Hello, HelloKind
from p2p.secure.frame import TrafficClass
from p2p.session.connection import Connection, ConnectionLost
from p2p.session.outbox import Outbox
from p2p.session.peer import Peer, PeerCallbacks

__all__ = ["PeerLifecycle"]

_FAULTS: Final = frozenset({"frame_invalid", "decode_error", "protocol_error", "signature_invalid"})
"""Reasons that count against the peer when its connection ends. Lack of memory does not: others may have caused
it."""


class PeerLifecycle:
    """Adds peers to the roster and removes them; ``outbox`` holds messages that wait for a peer."""

    def __init__(
        self,
        roster: Roster,
        admission: PeerAdmission,
        gossip: GossipService,
        outbox: Outbox,
        *,
        callbacks: PeerCallbacks,
        memory: ReceiveMemory,
        limits: NetworkLimits,
        counters: Counter[str],
        log: Callable[..., None],
    ) -> None:
        self._roster = roster
        self._admission = admission
        self._gossip = gossip
        self._outbox = outbox
        self._callbacks = callbacks
        self._memory = memory
        self._limits = limits
        self._counters = counters
        self._log = log

    async def live(self, connection: Connection) -> bool:
        """Run one peer from its first handshake to its end; return whether it was admitted."""
        address = connection.session.address
        if not await self._let_in(connection):
            return False
        peer = Peer(
            connection,
            own_address=self._roster.own,
            limits=self._limits,
            memory=self._memory,
            callbacks=self._callbacks,
        )
        self._enter(peer, connection)
        self._log("peer connected", peer=address.hex(), remote=connection.remote, outbound=peer.is_outbound)
        try:
            await peer.run()
        finally:
            self._leave(peer)
            if peer.closed_for == "connection_lost":
                self._keep_for_later(peer)
            self._counters[f"closed_{peer.closed_for}"] += 1
            self._log("peer disconnected", peer=address.hex(), reason=peer.closed_for)
        return True

    def recheck(self, address: bytes) -> None:
        """Drop a peer whose certificate is now known to be revoked."""
        peer = self._roster.peers.get(address)
        if peer is not None and self._admission.is_revoked(peer):
            peer.close("certificate_revoked")

    def bound_memory(self) -> None:
        """Drop the peers with the largest backlogs if all backlogs together are too large."""
        holdings = {peer: peer.backlog() for peer in self._roster.peers.values() if peer.closed_for is None}
        for peer in excess_holders(holdings, self._limits.send_bytes_max):
            peer.close("send_memory")

    async def _let_in(self, connection: Connection) -> bool:
        admission = self._admission.admit(connection, trio.current_time())
        if admission.refusal is not None:
            self._counters[admission.refusal] += 1
            if not connection.is_outbound:
                await connection.part()
            return False
        if admission.evicted is not None:
            self._roster.close(admission.evicted, "evicted")
        if connection.is_outbound:
            try:
                await connection.send_hello(Hello(HelloKind.NEW), timeout_s=self._limits.handshake_timeout_s)
            except (ConnectionLost, trio.TooSlowError):
                return False
            # Somebody may have come in meanwhile.
            return self._admission.admit(connection, trio.current_time()).refusal is None
        return True

    def _enter(self, peer: Peer, connection: Connection) -> None:
        address, now = peer.address, trio.current_time()
        old = self._roster.peers.get(address)
        if old is not None:
            self._leave(old)
            old.close("replaced")
            for message in old.undelivered():
                peer.queue(*message)
        peer.usefulness = self._admission.came(peer, now)
        self._roster.peers[address] = peer
        self._gossip.joined(address, outbound=peer.is_outbound, network=public_netgroup_of(connection.remote_host))
        for _, cls, kind, body in self._outbox.take(address, now):
            peer.queue(cls, kind, body)
        self._roster.notify_watchers(address, True)

    def _leave(self, peer: Peer) -> None:
        if self._roster.peers.get(peer.address) is not peer:
            return
        del self._roster.peers[peer.address]
        if peer.closed_for in _FAULTS:
            # The score outlives the connection: who comes back to do it again is banned before long.
            self._gossip.blame_malformed(peer.address)
        elif peer.address not in self._roster.bans:
            self._admission.left(peer, trio.current_time())
        self._gossip.left(peer.address)
        self._roster.notify_watchers(peer.address, False)

    def _keep_for_later(self, peer: Peer) -> None:
        """Keep the consensus messages that a lost peer has not received; it may reconnect soon."""
        for cls, kind, body in peer.undelivered():
            if cls is TrafficClass.CONSENSUS:
                self._outbox.post(peer.address, cls, kind, body, trio.current_time())
