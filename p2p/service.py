"""The peer network as the node uses it: peers by address, messages by priority, gossip, requests, multicasts,
blobs.

One ``Network`` runs in the node's nursery. It does not know what it carries: before ``run``, the node registers a
handler for each kind of message, topic and method. A peer that misbehaves loses only its own connection.

``p2p.assembly`` builds the parts, and ``Network`` is their interface. All parts share one table of peers
(``p2p.peers.roster``). Connections are accepted by ``p2p.peers.inbound`` and dialled by ``p2p.peers.outbound``;
``p2p.peers.lifecycle`` turns them into peers if ``p2p.peers.admission`` allows it; ``p2p.path.selection``
maintains their connections. Over them run gossip (``p2p.peers.gossip_service``), peer records
(``p2p.peers.record_exchange``), multicasts (``p2p.multicast.service``) and blobs (``p2p.blob.transfer``).
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Final

import trio

from p2p.assembly import Environment, assemble
from p2p.base.endpoint import Endpoint
from p2p.base.errors import PeerUnreachable
from p2p.base.netgroups import Origin, origin_of
from p2p.base.sockets import Connector, kernel_notes
from p2p.base.transport import Acceptor, Dialer, Fanout
from p2p.blob.store import BlobStore
from p2p.blob.transfer import BlobTransfer
from p2p.config import NetworkConfig, dial_policy_of
from p2p.gossip.validation import BatchValidator, GossipItem, Validator, one_by_one
from p2p.multicast.service import MulticastService
from p2p.path.dialling import PathMaker
from p2p.peers.inbound import listen
from p2p.peers.record_exchange import METHOD_PEERS, TOPIC_RECORD
from p2p.peers.roster import PeerWatcher, Roster
from p2p.records.records import RECORD_BYTES_MAX, PeerRecord
from p2p.secure.frame import TrafficClass
from p2p.secure.identity import Identity
from p2p.session.bulk_connections import MessageHandler
from p2p.session.peer import RESERVED_KIND_MIN
from p2p.session.peerinfo import ConnectionStats, PeerInfo
from p2p.session.requests import RequestHandler, Served
from state.primitives.errors import ProtocolError

__all__ = [
    "GossipItem",
    "Network",
    "NetworkConfig",
    "dial_policy_of",
]

_DIALLED_MAX: Final = 4
"""Maximum number of peers named as observers."""


class MessageDelivery:
    """Passes a message that arrived in pieces to the handler of its kind, as if its sender had sent it whole."""

    def __init__(self, handlers: Mapping[int, MessageHandler], roster: Roster) -> None:
        self._handlers = handlers
        self._roster = roster

    async def deliver(self, sender: bytes, kind: int, body: bytes) -> None:
        """Await the handler. An error that would end the peer of a whole message ends this message's sender."""
        handler = self._handlers.get(kind)
        if handler is None:
            return
        try:
            await handler(sender, body)
        except ProtocolError as error:
            self._roster.close(sender, error.code)


class Network:
    """The peers of one node. Register handlers, then ``run``. All other methods may be called while it runs."""

    def __init__(
        self,
        config: NetworkConfig,
        identity: Identity,
        *,
        dialers: Mapping[str, Dialer] | None = None,
        acceptors: Sequence[Acceptor] = (),
        fanout: Fanout | None = None,
        connector: Connector | None = None,
        origin_of: Callable[[str], Origin] = origin_of,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        random: Random | None = None,
        log: Callable[..., None] | None = None,
    ) -> None:
        limits = config.limits
        self.config = config
        self.limits = limits
        self.identity = identity
        self.counters: Counter[str] = Counter()
        """Events by name since the start, for metrics."""
        self.bound: tuple[tuple[str, int], ...] = ()
        """The listening addresses, once ``run`` has started."""
        self.direct: tuple[Endpoint, ...] = ()
        """Own endpoints that others can dial, as configured, once ``run`` has started."""
        self.open_ports: tuple[int, ...] = ()
        """Ports that listen on all addresses, without configured endpoints."""
        self.congestion_control = ""
        """The kernel's congestion control on the listening sockets."""
        self.started = trio.Event()
        self.is_running = False
        """Whether streams can be accepted and peers dialled."""
        self.connector = connector or Connector(dial_policy_of(config))
        """Opens TCP connections, also for dialers of other schemes."""
        random = random or Random(secrets.randbits(64))
        self._log = log = log or (lambda *_args, **_fields: None)
        self._acceptors = acceptors
        environment = Environment(
            identity=lambda: self.identity, connector=self.connector, dialers=dialers or {}, origin_of=origin_of,
            now_ms=now_ms, random=random, counters=self.counters, log=log,
        )  # fmt: skip
        self.parts = parts = assemble(config, environment)
        self._peers = parts.roster.peers
        self._outbox = parts.outbox
        self.memory = parts.memory
        """Memory of messages being received from peers."""
        self.bans = parts.roster.bans
        """Banned addresses, with the remaining time."""
        self.on_request(METHOD_PEERS, parts.records.serve)
        self.on_gossip(TOPIC_RECORD, parts.records.validate, payload_bytes_max=RECORD_BYTES_MAX, earns=False)
        deliver = MessageDelivery(parts.handlers, parts.roster).deliver
        self.multicasts = MulticastService(
            self, fanout, deliver=deliver, random=random, log=log, parameters=config.multicast
        )
        """A message to many receivers; use ``multicast``."""
        self.blobs: BlobStore | None = None
        if config.blob_dir is not None:
            self.blobs = BlobStore(config.blob_dir, budget_bytes=config.blob_budget_bytes)
            self._transfer = BlobTransfer(
                self.blobs, self.request, limits, rtt_s=parts.roster.rtt_s, credit=parts.roster.credit,
                blame=parts.gossip.blame,
            )  # fmt: skip
            for method, handler in self._transfer.served().items():
                self.on_request(method, handler, cls=TrafficClass.BULK)

    # -- what the node registers -----------------------------------------------------------------------------

    def on_message(self, kind: int, handler: MessageHandler) -> None:
        """Call ``await handler(peer address, body)`` for every message of a kind (below 0xE0).

        The peer's next message, including its pings, waits for the handler. Start a task for long work, or the
        peer counts as silent. A ProtocolError in the handler drops the peer.
        """
        assert 0 <= kind < RESERVED_KIND_MIN and kind not in self.parts.handlers
        self.parts.handlers[kind] = handler

    def on_request(
        self, method: str, handler: RequestHandler, *, cls: TrafficClass = TrafficClass.REQUEST
    ) -> None:
        """Answer requests with ``await handler(peer address, body)``; a DekubeError refuses with its code."""
        assert method not in self.parts.served
        self.parts.served[method] = Served(handler, cls)

    def on_gossip(
        self, topic: str, validator: Validator, *, payload_bytes_max: int = 64 * 1024, earns: bool = True
    ) -> None:
        """Join a topic; ``await validator(peer address, payload)`` returns the verdict.

        ``earns``: whether valid payloads credit the peer that delivered them first (``p2p.peers.eviction``). Not
        for topics in which anybody can create valid payloads at will.
        """
        self.on_gossip_batch(topic, one_by_one(validator), payload_bytes_max=payload_bytes_max, earns=earns)

    def on_gossip_batch(
        self, topic: str, validator: BatchValidator, *, payload_bytes_max: int = 64 * 1024, earns: bool = True
    ) -> None:
        """Like ``on_gossip``, with a validator that gets up to ``gossip_batch_max`` queued payloads at once."""
        self.parts.gossip.subscribe(topic, validator, payload_bytes_max=payload_bytes_max, earns=earns)

    def on_peer(self, watcher: PeerWatcher) -> None:
        """Call ``watcher(address, True)`` when a peer connects and ``watcher(address, False)`` when it leaves."""
        self.parts.roster.watch(watcher)

    # -- messages --------------------------------------------------------------------------------------------

    def send(self, address: bytes, cls: TrafficClass, kind: int, body: bytes) -> bool:
        """Queue a message; return whether it was accepted. Acceptance does not guarantee delivery.

        Without a connection one is dialled, and the message waits a few seconds for it.
        """
        assert 0 <= kind < RESERVED_KIND_MIN
        peer = self._peers.get(address)
        if peer is not None:
            return peer.queue(cls, kind, body)
        if self.parts.roster.is_own_or_banned(address):
            return False
        self.parts.outbound.reach(address)
        return self._outbox.post(address, cls, kind, body, trio.current_time())

    async def send_when_room(self, address: bytes, cls: TrafficClass, kind: int, body: bytes) -> None:
        """Queue a message for a connected peer as soon as its class has room, so that bulk senders are slowed
        down.

        Raises PeerUnreachable if there is no connection, or it ends first.
        """
        peer = self._peers.get(address)
        if peer is None:
            raise PeerUnreachable(f"0x{address.hex()} is not connected")
        await peer.queue_when_room(cls, kind, body)

    def broadcast(self, addresses: Iterable[bytes], cls: TrafficClass, kind: int, body: bytes) -> int:
        """Queue a message for each of these addresses except the own one; return how many accepted it."""
        own = self.identity.address
        return sum(self.send(address, cls, kind, body) for address in addresses if address != own)

    def multicast(
        self,
        addresses: Iterable[bytes],
        cls: TrafficClass,
        kind: int,
        body: bytes,
        *,
        followers: Iterable[bytes] = (),
    ) -> None:
        """Send a message to each of these addresses except the own one, through relays and other receivers if
        useful.

        Receivers see it as sent directly by this node. ``followers`` get it too, if that delays no other receiver.
        After some seconds without success a receiver is given up.
        """
        self.multicasts.send(addresses, cls, kind, body, followers=followers)

    async def request(
        self, address: bytes, method: str, body: bytes, *, timeout_s: float = 10.0, limit_bytes: int = 1024 * 1024
    ) -> bytes:
        """Return a peer's answer; dial it if needed.

        Raises PeerUnreachable, RequestTimeout, RequestRefused (whose text is the peer's code).
        """
        assert len(body) <= self.limits.request_bytes_max
        deadline = trio.current_time() + timeout_s
        peer = None
        with trio.move_on_at(deadline):
            peer = await self.parts.outbound.connected(address)
        if peer is None:
            raise PeerUnreachable(f"0x{address.hex()}: no connection within {timeout_s} s")
        left_s = max(deadline - trio.current_time(), 0.0)
        return await peer.requests.ask(method, body, timeout_s=left_s, limit_bytes=limit_bytes)

    def publish(self, topic: str, *payloads: bytes) -> None:
        """Gossip own payloads; those seen before are not sent again."""
        self.parts.gossip.publish(topic, payloads)

    # -- blobs -----------------------------------------------------------------------------------------------

    async def fetch_blob(
        self,
        blob_id: bytes,
        sources: Sequence[bytes],
        *,
        progress: Callable[[int, int], None] | None = None,
        limit_bytes: int | None = None,
    ) -> Path:
        """Return the file of a blob, fetched from any of the ``sources`` (addresses) that have it.

        Pieces of earlier fetches are kept, also from earlier runs. ``progress(pieces here, pieces in total)``. A
        blob of more than ``limit_bytes`` is not fetched. Raises BlobUnavailable, StoreError.
        """
        assert self.blobs is not None, "no blob_dir configured"
        return await self._transfer.fetch(blob_id, sources, progress, limit_bytes)

    # -- peers -----------------------------------------------------------------------------------------------

    def peers(self) -> list[PeerInfo]:
        """Return the connections."""
        return [peer.info(score=self.parts.gossip.core.score(address)) for address, peer in self._peers.items()]

    def peer(self, address: bytes) -> PeerInfo | None:
        """Return the connection to an address, if there is one."""
        peer = self._peers.get(address)
        return None if peer is None else peer.info(score=self.parts.gossip.core.score(address))

    def connection_stats(self, address: bytes) -> list[ConnectionStats]:
        """Return the figures of each connection of a peer, the control connection first."""
        peer = self._peers.get(address)
        return [] if peer is None else peer.connection_stats()

    async def move(self, address: bytes, endpoint: Endpoint) -> bool:
        """Migrate the control traffic of a peer to another path; return whether it did. No message is lost."""
        peer = self._peers.get(address)
        return peer is not None and await self.parts.path_selection.move(peer, endpoint)

    def leave(self, relay: Endpoint) -> None:
        """Move everything that uses this relay to other paths; the current connections carry it until then."""
        self.parts.path_selection.leave(relay)

    def on_paths(self, maker: PathMaker) -> None:
        """Call ``maker(address, known endpoints)`` for additional paths to an address at each lookup."""
        self.parts.dialling.on_paths(maker)

    def on_roam(self, watcher: Callable[[frozenset[str]], None]) -> None:
        """Call ``watcher`` with the IP addresses that this machine has lost."""
        self.parts.path_selection.roam_watchers.append(watcher)

    def is_connected(self, address: bytes) -> bool:
        """Whether this address is a peer, also while it changes its connection."""
        return address in self._peers

    async def wait_peers(self, count: int) -> None:
        """Wait until at least this many peers are connected."""
        await self.parts.roster.wait_peers(count)

    @property
    def persistent(self) -> frozenset[bytes]:
        """The addresses to which connections are always kept."""
        return self.parts.roster.persistent

    def set_persistent(self, addresses: Iterable[bytes], *, kept: int | None = None) -> None:
        """Set the addresses to which connections are always kept (the committee); they have reserved slots.

        ``kept`` is for a node outside the committee: it keeps connections to this many of them, drawn at random.
        If every node dialled all of them, outside nodes would fill their slots.
        """
        self.parts.roster.want(addresses, kept=kept)
        self.parts.outbound.wake()

    def on_bonded(self, is_bonded: Callable[[bytes], bool]) -> None:
        """Use ``is_bonded(address)`` to tell whether an address has locked a bond.

        Among the peers of one relay, each bonded one counts as a block of its own.
        """
        self.parts.admission.is_bonded = is_bonded

    def add_endpoint(self, address: bytes, endpoint: Endpoint) -> None:
        """Add a caller's endpoint of an address; its records add more."""
        self.connector.dial_policy.name(endpoint.host)
        self.parts.dialling.add_endpoint(address, endpoint)

    @property
    def dialled(self) -> tuple[Endpoint, ...]:
        """Endpoints of connected peers that were dialled directly; they can serve as observers."""
        found = (peer.control.endpoint for peer in self._peers.values() if peer.control is not None)
        return tuple(dict.fromkeys(e for e in found if e is not None and e.scheme == "tcp"))[:_DIALLED_MAX]

    def record(self, address: bytes) -> PeerRecord | None:
        """Return the newest known record of an address, including the own one."""
        return self.parts.records.own if address == self.identity.address else self.parts.book.get(address)

    def records(self) -> list[PeerRecord]:
        """Return the newest record of every known node, in no order."""
        return list(self.parts.book.records())

    def ban(self, address: bytes, reason: str, *, ban_s: float | None = None) -> None:
        """Drop a peer and ban it for ``ban_s``; None: the default of the limits."""
        self.parts.roster.ban(address, reason, ban_s=ban_s)

    def connect(self, address: bytes, endpoint: Endpoint) -> None:
        """Dial an address at an endpoint now, regardless of its back-off."""
        self.add_endpoint(address, endpoint)
        self.parts.outbound.retry_until_connected(address)

    def disconnect(self, address: bytes, reason: str) -> bool:
        """End the connection to a peer; return whether there was one."""
        return self.parts.roster.close(address, reason)

    def arrived_at(self, host: str) -> float:
        """Return when a connection last came from an IP address, by trio's clock; minus infinity: long ago."""
        return self.parts.inbound.handshake_limits.arrived_at(host)

    def penalise(self, address: bytes, points: float) -> None:
        """Take points from a peer for a fault that the node found; enough of them drop or ban it."""
        self.parts.gossip.penalise(address, points)

    def credit(self, address: bytes) -> None:
        """Note that a peer was useful just now, by verified work that costs effort."""
        self.parts.roster.credit(address)

    def accept(self, stream: trio.abc.Stream, remote: str) -> None:
        """Take over a stream that an acceptor brought (``Acceptance``)."""
        self.parts.inbound.take(stream, remote)

    def advertise(self, source: str, endpoints: tuple[Endpoint, ...]) -> None:
        """Set where this node is reachable by way of ``source`` (``Acceptance``)."""
        if self.parts.records.advertise(source, endpoints) and self.started.is_set():
            self.parts.records.sign()

    def renew(self, identity: Identity) -> None:
        """Use a newer certificate of the same address for new handshakes."""
        assert identity.address == self.identity.address
        self.identity = identity
        if self.started.is_set():
            self.parts.records.sign()

    # -- life ------------------------------------------------------------------------------------------------

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen, dial and serve until cancelled. Raises ConfigError if a listening address is not available."""
        parts = self.parts
        await parts.records.load()
        listening = await listen(self.config.listen, self.config.advertised())
        self.bound, self.congestion_control = listening.bound, listening.congestion_control
        self.direct, self.open_ports = listening.own.direct, listening.own.open_ports
        parts.records.advertise("listen", self.direct)
        if self.bound:
            self._log("the network listens", congestion_control=self.congestion_control)
            for note in kernel_notes():
                self._log("a kernel setting differs from the advice in docs/operations.md", note=note)
        try:
            async with trio.open_nursery() as nursery:
                self.is_running = True
                parts.inbound.start(nursery, listening.listeners)
                parts.records.sign()
                parts.outbound.start(nursery)
                parts.gossip.start(nursery)
                nursery.start_soon(self._beat)
                nursery.start_soon(parts.records.run, self._peers.values, lambda: parts.roster.changed)
                nursery.start_soon(parts.path_selection.run)
                nursery.start_soon(self.multicasts.run)
                for acceptor in self._acceptors:
                    nursery.start_soon(acceptor.run, self)
                self.started.set()
                task_status.started()
                await trio.sleep_forever()
        finally:
            self.is_running = False
            parts.outbound.stop()
            with trio.CancelScope(shield=True), trio.move_on_after(2):
                await parts.records.save()

    async def _beat(self) -> None:
        """Run the gossip heartbeat, and drop what has expired."""
        while True:
            now = trio.current_time()
            self.parts.gossip.beat(now)
            self.parts.lifecycle.bound_memory()
            self.parts.roster.bans.expire()
            self._outbox.expire(now)
            await trio.sleep(self.config.gossip.heartbeat_s)
