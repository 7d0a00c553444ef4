"""The network as the node uses it: peers by their addresses, messages by priority, gossip, requests, blobs.

One ``Network`` is started in the node's nursery. It knows nothing of what it carries: the node registers, before
``run``, what is to be done with each kind, topic and method. A peer that misbehaves loses its own connection only.
"""

from __future__ import annotations

import ipaddress
import secrets
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import trio

from p2p.addrbook import AddressBook
from p2p.blobs import BlobStore
from p2p.errors import HandshakeFailed, PeerUnreachable, RecordInvalid, RequestFailed, RequestRefused
from p2p.frame import Class
from p2p.gossip import Deliver, Disconnect, Effect, Gossip, GossipParameters, Send, Verdict
from p2p.handshake import Handshake, Session
from p2p.identity import Identity, Purpose
from p2p.limits import NetworkLimits, RateLimiter
from p2p.mux import Message
from p2p.peer import KIND_GOSSIP, RESERVED_KIND_MIN, Peer, PeerInfo, RequestHandler, Served
from p2p.records import RECORD_BYTES_MAX, PeerRecord, sign_record, verify_record
from p2p.sockets import TcpDialer, tune
from p2p.transfer import BlobTransfer
from p2p.transport import Acceptor, Dialer, Endpoint
from state.primitives.address import parse_address
from state.primitives.codec import decode, encode
from state.primitives.errors import ConfigError, DecodeError, DekubeError, ProtocolError

__all__ = [
    "TOPIC_RECORD",
    "GossipItem",
    "Network",
    "NetworkConfig",
    "parse_bootstrap",
]

TOPIC_RECORD: Final = "record"
METHOD_PEERS: Final = "peers"
_BOOK_BYTES_MAX: Final = 4 * 1024 * 1024
_SAVE_INTERVAL_S: Final = 60.0
_MANAGE_INTERVAL_S: Final = 0.25
_RECORD_INTERVAL_S: Final = 1_800.0
_SIMULTANEOUS_S: Final = 5.0
_HANDSHAKE_READ_BYTES: Final = 4_096
_EXPECTED_ERRORS: Final = (OSError, ValueError, DekubeError, trio.BrokenResourceError, trio.ClosedResourceError)
"""ValueError: a stranger's host name that cannot be encoded."""

MessageHandler = Callable[[bytes, bytes], Awaitable[None]]
Validator = Callable[[bytes, bytes], Awaitable[Verdict]]


@dataclass(frozen=True, slots=True)
class GossipItem:
    """One payload that waits for its verdict, and who sent it first."""

    peer: bytes
    payload: bytes


BatchValidator = Callable[[Sequence[GossipItem]], Awaitable[Sequence[Verdict]]]


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """A node's own options of its network."""

    listen: tuple[tuple[str, int], ...] = ()
    """(host, port) pairs; port 0 takes a free one, see ``Network.bound``."""
    advertise: tuple[str, ...] = ()
    """Endpoints to tell others; where there is none, those of ``listen`` that are no wildcard."""
    bootstrap: tuple[str, ...] = ()
    """``0x<address>@host:port``, ``host:port`` or either with a whole endpoint: see ``parse_bootstrap``."""
    data_dir: Path | None = None
    """Where the address book is kept over a restart; None: nowhere."""
    blob_dir: Path | None = None
    blob_budget_bytes: int = 16 * 1024**3
    limits: NetworkLimits = field(default_factory=NetworkLimits)
    gossip: GossipParameters = field(default_factory=GossipParameters)


def parse_bootstrap(text: str) -> tuple[bytes | None, Endpoint]:
    """Return the address, where one is given, and the endpoint of a bootstrap peer. Raises ConfigError."""
    name, at, where = text.rpartition("@")
    try:
        address = parse_address(name) if at else None
        endpoint = Endpoint.parse(where if where.startswith(("tcp:", "relay:")) else f"tcp:{where}")
    except DecodeError as error:
        raise ConfigError(f"bootstrap peer {text!r}: {error}") from None
    return address, endpoint


@dataclass(slots=True)
class _Way:
    """What dialling one address, or one endpoint whose address is not known yet, has brought so far."""

    target: bytes | None
    endpoints: tuple[Endpoint, ...] = ()
    """Fixed by configuration; those of the address's record come after them."""
    is_dialling: bool = False
    delay_s: float = 0.0
    next_at: float = 0.0
    found: bytes | None = None
    """Who answered at an endpoint without an address."""


class Network:
    """The peers of one node. Register handlers, then ``run``; everything else may be called while it runs."""

    def __init__(
        self,
        config: NetworkConfig,
        identity: Identity,
        *,
        dialers: Mapping[str, Dialer] | None = None,
        acceptors: Sequence[Acceptor] = (),
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        random: Random | None = None,
        log: Callable[..., None] | None = None,
    ) -> None:
        self.config = config
        self.limits = config.limits
        self.identity = identity
        self.counters: Counter[str] = Counter()
        """Events by name since the start, for metrics."""
        self.bound: tuple[tuple[str, int], ...] = ()
        """Where this node listens, once ``run`` has started."""
        self.congestion_control = ""
        """What the kernel granted on the listening sockets."""
        self.started = trio.Event()
        self.blobs: BlobStore | None = None
        self._dialers: dict[str, Dialer] = {"tcp": TcpDialer(), **(dialers or {})}
        self._acceptors = acceptors
        self._now_ms = now_ms
        self._random = random or Random(secrets.randbits(64))
        self._log = log or (lambda *_args, **_fields: None)
        self._book = AddressBook(key=secrets.token_bytes(32), genesis_hash=identity.genesis_hash)
        self._gossip = Gossip(random=self._random, now=0.0, parameters=config.gossip)
        self._peers: dict[bytes, Peer] = {}
        self._changed = trio.Event()
        self._manage = trio.Event()
        self._persistent: frozenset[bytes] = frozenset()
        self._ways: dict[object, _Way] = {}
        self._bans: OrderedDict[bytes, float] = OrderedDict()
        self._outbox: OrderedDict[bytes, deque[tuple[float, Class, int, bytes]]] = OrderedDict()
        self._handlers: dict[int, MessageHandler] = {}
        self._served: dict[str, Served] = {}
        self._validators: dict[str, BatchValidator] = {}
        self._inboxes: dict[str, deque[Deliver]] = {}
        self._inbox_wakes: dict[str, trio.Event] = {}
        self._watchers: list[Callable[[bytes, bool], None]] = []
        self._endpoints: dict[str, tuple[Endpoint, ...]] = {}
        self._record: PeerRecord | None = None
        self._half_open = 0
        self._dialling = 0
        self._per_ip: Counter[str] = Counter()
        limits = self.limits
        self._ip_rate = RateLimiter(per_s=limits.accepts_per_ip_per_s, burst=limits.accepts_per_ip_burst)
        self._accept_rate = RateLimiter(per_s=limits.accepts_per_s, burst=limits.accepts_per_s)
        self._record_rate = RateLimiter(per_s=limits.records_per_peer_per_s, burst=limits.records_per_peer_burst)
        self._exchange_rate = RateLimiter(per_s=2 / limits.exchange_interval_s, burst=4)
        self._nursery: trio.Nursery | None = None
        for text in config.bootstrap:
            address, endpoint = parse_bootstrap(text)
            self._ways[address or endpoint] = _Way(address, (endpoint,))
        self._advertised = tuple(_endpoint(text) for text in config.advertise)
        self.on_request(METHOD_PEERS, self._serve_peers)
        self.on_gossip(TOPIC_RECORD, self._validate_record, payload_bytes_max=RECORD_BYTES_MAX)
        if config.blob_dir is not None:
            self.blobs = BlobStore(config.blob_dir, budget_bytes=config.blob_budget_bytes)
            self._transfer = BlobTransfer(self.blobs, self.request, limits)
            for method, handler in self._transfer.served().items():
                self.on_request(method, handler, cls=Class.BULK)

    # -- what the node registers -----------------------------------------------------------------------------

    def on_message(self, kind: int, handler: MessageHandler) -> None:
        """Call ``await handler(peer address, body)`` for every message of a kind (below 0xE0).

        The peer's next message, its pings included, waits for it: hand long work over to a task of your own, or
        the peer is taken for silent. A ProtocolError that it raises drops the peer.
        """
        assert 0 <= kind < RESERVED_KIND_MIN and kind not in self._handlers
        self._handlers[kind] = handler

    def on_request(self, method: str, handler: RequestHandler, *, cls: Class = Class.REQUEST) -> None:
        """Answer requests with ``await handler(peer address, body)``; a DekubeError refuses with its code."""
        assert method not in self._served
        self._served[method] = Served(handler, cls)

    def on_gossip(self, topic: str, validator: Validator, *, payload_bytes_max: int = 64 * 1024) -> None:
        """Take part in a topic; ``await validator(peer address, payload)`` says whether to forward."""

        async def validate(items: Sequence[GossipItem]) -> Sequence[Verdict]:
            return [await validator(item.peer, item.payload) for item in items]

        self.on_gossip_batch(topic, validate, payload_bytes_max=payload_bytes_max)

    def on_gossip_batch(
        self, topic: str, validator: BatchValidator, *, payload_bytes_max: int = 64 * 1024
    ) -> None:
        """Like ``on_gossip``, with a validator that gets all that waits (up to ``gossip_batch_max``) at once."""
        assert topic not in self._validators
        self._validators[topic] = validator
        self._inboxes[topic] = deque()
        self._inbox_wakes[topic] = trio.Event()
        self._apply(self._gossip.subscribe(topic, payload_bytes_max))

    def on_peer(self, watcher: Callable[[bytes, bool], None]) -> None:
        """Call ``watcher(address, True)`` when a peer comes and ``watcher(address, False)`` when it goes."""
        self._watchers.append(watcher)

    # -- messages --------------------------------------------------------------------------------------------

    async def send(self, address: bytes, cls: Class, kind: int, body: bytes) -> bool:
        """Queue a message for a peer; see ``send_now``."""
        return self.send_now(address, cls, kind, body)

    def send_now(self, address: bytes, cls: Class, kind: int, body: bytes) -> bool:
        """Queue a message; whether it was taken. Being taken is no promise of arrival.

        Where there is no connection one is dialled, and the message waits a few seconds for it.
        """
        assert 0 <= kind < RESERVED_KIND_MIN
        peer = self._peers.get(address)
        if peer is not None:
            return peer.queue(cls, kind, body)
        if address == self.identity.address or self._is_banned(address):
            return False
        self._reach(address)
        return self._post(address, cls, kind, body)

    async def send_when_room(self, address: bytes, cls: Class, kind: int, body: bytes) -> None:
        """Queue a message for a connected peer as soon as its class has room, so that a sender of much is paced.

        Raises PeerUnreachable where there is no connection, or when it ends first.
        """
        peer = self._peers.get(address)
        if peer is None:
            raise PeerUnreachable(f"0x{address.hex()} is not connected")
        await peer.queue_when_room(cls, kind, body)

    def broadcast(self, addresses: Iterable[bytes], cls: Class, kind: int, body: bytes) -> int:
        """Queue a message for each of these addresses but our own; return how many took it."""
        own = self.identity.address
        return sum(self.send_now(address, cls, kind, body) for address in addresses if address != own)

    async def request(
        self, address: bytes, method: str, body: bytes, *, timeout_s: float = 10.0, limit_bytes: int = 1024 * 1024
    ) -> bytes:
        """Return a peer's answer, dialling it if need be.

        Raises PeerUnreachable, RequestTimeout, RequestRefused (whose text is the peer's code).
        """
        assert len(body) <= self.limits.request_bytes_max
        deadline = trio.current_time() + timeout_s
        peer = None
        with trio.move_on_at(deadline):
            peer = await self._connected(address)
        if peer is None:
            raise PeerUnreachable(f"0x{address.hex()}: no connection within {timeout_s} s")
        left_s = max(deadline - trio.current_time(), 0.0)
        return await peer.request(method, body, timeout_s=left_s, limit_bytes=limit_bytes)

    def publish(self, topic: str, *payloads: bytes) -> None:
        """Gossip own payloads; those seen before are not sent again."""
        self._apply(self._gossip.publish(topic, payloads))

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

        What was fetched before, also by an earlier run, is kept. ``progress(pieces here, pieces in all)``.
        A blob of more than ``limit_bytes`` is not fetched. Raises BlobUnavailable, StoreError.
        """
        assert self.blobs is not None, "no blob_dir configured"
        return await self._transfer.fetch(blob_id, sources, progress, limit_bytes)

    # -- peers -----------------------------------------------------------------------------------------------

    def peers(self) -> list[PeerInfo]:
        """Return the connections."""
        now = trio.current_time()
        return [
            PeerInfo(
                address=peer.address,
                roles=peer.session.certificate.roles,
                is_outbound=peer.is_outbound,
                remote=peer.remote,
                rtt_ms=None if peer.rtt_s is None else peer.rtt_s * 1_000,
                score=self._gossip.score(peer.address),
                age_s=now - peer.since,
                bytes_in=peer.bytes_in,
                bytes_out=peer.bytes_out,
            )
            for peer in self._peers.values()
        ]

    def is_connected(self, address: bytes) -> bool:
        """Whether there is a connection to an address now."""
        return address in self._peers

    async def wait_peers(self, count: int) -> None:
        """Wait until at least so many peers are connected."""
        while len(self._peers) < count:
            await self._changed.wait()

    def set_persistent(self, addresses: Iterable[bytes]) -> None:
        """Say to whom connections shall always be kept (the committee); they have reserved places."""
        self._persistent = frozenset(addresses) - {self.identity.address}
        self._manage.set()

    def add_endpoint(self, address: bytes, endpoint: Endpoint) -> None:
        """Say where an address can be reached, as far as the caller knows; its records add to that."""
        way = self._ways.setdefault(address, _Way(address))
        if endpoint not in way.endpoints:
            way.endpoints = (endpoint, *way.endpoints)[:8]

    def add_record(self, data: bytes) -> PeerRecord:
        """Verify a record that came by another road (the chain's registry) and note it. Raises RecordInvalid."""
        record = verify_record(data, genesis_hash=self.identity.genesis_hash, now_ms=self._now_ms())
        self._book.add(record, source=b"")
        return record

    def record(self, address: bytes) -> PeerRecord | None:
        """Return the newest record known of an address, our own included."""
        return self._record if address == self.identity.address else self._book.get(address)

    def ban(self, address: bytes, reason: str, *, ban_s: float | None = None) -> None:
        """Drop a peer and keep it away for ``ban_s``; None: as long as the limits say."""
        self._bans.pop(address, None)
        self._bans[address] = trio.current_time() + (self.limits.ban_s if ban_s is None else ban_s)
        while len(self._bans) > self.limits.bans_max:
            self._bans.popitem(last=False)
        self.counters["bans"] += 1
        self._log("peer banned", peer=address.hex(), reason=reason)
        peer = self._peers.get(address)
        if peer is not None:
            peer.close(reason)

    def bans(self) -> dict[bytes, float]:
        """Return who is kept away, and for how many seconds more."""
        now = trio.current_time()
        return {address: until - now for address, until in self._bans.items() if until > now}

    def unban(self, address: bytes) -> bool:
        """Let an address in again; tell whether it was kept away."""
        return self._bans.pop(address, 0.0) > trio.current_time()

    def connect(self, address: bytes, endpoint: Endpoint) -> None:
        """Dial an address at an endpoint now, whatever its back-off says."""
        self.add_endpoint(address, endpoint)
        way = self._ways[address]
        way.next_at = 0.0
        if address not in self._peers and not self._is_banned(address):
            self._dial(address, way)

    def disconnect(self, address: bytes, reason: str) -> bool:
        """End the connection to a peer; tell whether there was one."""
        peer = self._peers.get(address)
        if peer is not None:
            peer.close(reason)
        return peer is not None

    def penalise(self, address: bytes, points: float) -> None:
        """Take points from a peer for what the node found out about it; enough of them drop or ban it."""
        self._apply(self._gossip.penalise(address, points))

    def accept(self, stream: trio.abc.Stream, remote: str) -> None:
        """Take over a stream that an acceptor brought (``Acceptance``)."""
        assert self._nursery is not None
        if self._half_open >= self.limits.half_open_max:
            self.counters["accepts_refused"] += 1
            self._nursery.start_soon(trio.aclose_forcefully, stream)
            return
        self._nursery.start_soon(self._incoming, stream, remote, None)

    def advertise(self, source: str, endpoints: tuple[Endpoint, ...]) -> None:
        """Say where this node can be reached by way of ``source`` (``Acceptance``)."""
        if self._endpoints.get(source) != endpoints:
            self._endpoints[source] = endpoints
            if self.started.is_set():
                self._publish_record()

    def renew(self, identity: Identity) -> None:
        """Go on under a newer certificate of the same address; new handshakes use it."""
        assert identity.address == self.identity.address
        self.identity = identity
        if self.started.is_set():
            self._publish_record()

    # -- life ------------------------------------------------------------------------------------------------

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen, dial, carry; until cancelled. Raises ConfigError when a listening address cannot be had."""
        await self._load_book()
        listeners = await self._open_listeners()
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                for listener in listeners:
                    nursery.start_soon(self._accept_from, listener)
                self._publish_record()
                for topic in self._validators:
                    nursery.start_soon(self._validate, topic)
                nursery.start_soon(self._keep_peers)
                nursery.start_soon(self._beat)
                nursery.start_soon(self._keep_records)
                for acceptor in self._acceptors:
                    nursery.start_soon(acceptor.run, self)
                self.started.set()
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._nursery = None
            with trio.CancelScope(shield=True), trio.move_on_after(2):
                await self._save_book()

    @property
    def is_running(self) -> bool:
        """Whether streams can be accepted and peers dialled."""
        return self._nursery is not None

    async def _open_listeners(self) -> list[trio.SocketListener]:
        listeners: list[trio.SocketListener] = []
        for host, port in self.config.listen:
            try:
                listeners += await trio.open_tcp_listeners(port, host=host or None)
            except (OSError, ValueError) as error:
                for listener in listeners:
                    await listener.aclose()
                raise ConfigError(f"cannot listen on {host}:{port}: {error}") from None
        names = [listener.socket.getsockname()[:2] for listener in listeners]
        self.bound = tuple((str(host), int(port)) for host, port in names)
        for listener in listeners:
            self.congestion_control = tune(listener.socket).congestion
        own = self._advertised or tuple(
            Endpoint(host, port) for host, port in self.bound if not ipaddress.ip_address(host).is_unspecified
        )
        self._endpoints["listen"] = own
        return listeners

    # -- connections in --------------------------------------------------------------------------------------

    async def _accept_from(self, listener: trio.SocketListener) -> None:
        assert self._nursery is not None
        while True:
            try:
                stream = await listener.accept()
            except OSError as error:  # out of descriptors, or the connection was gone already
                self._log("accept failed", error=str(error))
                await trio.sleep(0.1)
                continue
            try:
                remote = str(stream.socket.getpeername()[0])
            except OSError:
                stream.socket.close()
                continue
            ip = _site_of(remote)
            if not self._may_enter(ip):
                self.counters["accepts_refused"] += 1
                stream.socket.close()
                continue
            tune(stream.socket)
            self._nursery.start_soon(self._incoming, stream, remote, ip)

    def _may_enter(self, ip: str) -> bool:
        limits = self.limits
        if self._half_open >= limits.half_open_max:
            return False
        if ipaddress.ip_address(ip).is_loopback:
            return True  # a test network lives behind one address, and this machine can harm itself otherwise
        now = trio.current_time()
        return (
            self._per_ip[ip] < limits.peers_per_ip_max
            and self._ip_rate.allows(ip, now)
            and self._accept_rate.allows(None, now)
        )

    async def _incoming(self, stream: trio.abc.Stream, remote: str, ip: str | None) -> None:
        self.counters["accepts"] += 1
        if ip is not None:
            self._per_ip[ip] += 1
        self._half_open += 1
        try:
            try:
                purpose = Purpose.PEER if ip is not None else Purpose.CIRCUIT
                session = await self._shake(stream, purpose, is_initiator=False, expected=None)
            finally:
                self._half_open -= 1
            if session is not None:
                await self._live(session, stream, remote)
        finally:
            if ip is not None:
                self._per_ip[ip] -= 1
                if not self._per_ip[ip]:
                    del self._per_ip[ip]
            await trio.aclose_forcefully(stream)

    async def _shake(
        self, stream: trio.abc.Stream, purpose: Purpose, *, is_initiator: bool, expected: bytes | None
    ) -> Session | None:
        """Return the session, or None when the peer did not complete the handshake in time."""
        handshake = Handshake(
            self.identity, purpose, is_initiator=is_initiator, now_ms=self._now_ms(), expected=expected
        )
        try:
            with trio.fail_after(self.limits.handshake_timeout_s):
                out = handshake.start()
                while True:
                    if out:
                        await stream.send_all(out)
                    if handshake.session is not None:
                        return handshake.session
                    data = await stream.receive_some(_HANDSHAKE_READ_BYTES)
                    if not data:
                        raise HandshakeFailed("closed during the handshake")
                    out = handshake.receive(bytes(data))
        except ProtocolError as error:
            self.counters[error.code] += 1
        except (trio.TooSlowError, trio.BrokenResourceError, trio.ClosedResourceError):
            self.counters["handshake_failed"] += 1
        return None

    async def _live(self, session: Session, stream: trio.abc.Stream, remote: str) -> bool:
        """Carry one connection from the end of its handshake to its own; whether it was let in at all."""
        peer = Peer(session, stream, remote=remote, is_outbound=session.is_initiator, limits=self.limits)
        refused = self._refusal(peer)
        if refused is not None:
            self.counters[refused] += 1
            return False
        old = self._peers.get(peer.address)
        if old is not None:
            self._leave(old)
            old.close("replaced")
        self._peers[peer.address] = peer
        self._apply(self._gossip.peer_joined(peer.address, outbound=peer.is_outbound))
        self._flush(peer)
        self._tell(peer.address, True)
        self._log("peer connected", peer=peer.address.hex(), remote=remote, outbound=peer.is_outbound)
        try:
            await peer.run(self._dispatch, self._served.get)
        finally:
            self._leave(peer)
            self.counters[f"closed_{peer.closed_for}"] += 1
            self._log("peer gone", peer=peer.address.hex(), reason=peer.closed_for)
        return True

    def _refusal(self, peer: Peer) -> str | None:
        """Return why a connection may not stay, or None."""
        if peer.address == self.identity.address:
            return "refused_self"
        if self._is_banned(peer.address):
            return "refused_banned"
        old = self._peers.get(peer.address)
        if old is not None:
            return None if self._replaces(peer, old) else "refused_duplicate"
        if not peer.is_outbound and peer.address not in self._persistent:
            incoming = sum(not p.is_outbound and a not in self._persistent for a, p in self._peers.items())
            if incoming >= self.limits.peers_in_max:
                return "refused_full"
        return None

    def _replaces(self, new: Peer, old: Peer) -> bool:
        ours, theirs = new.session.certificate, old.session.certificate
        if ours.sequence != theirs.sequence:
            return ours.sequence > theirs.sequence  # a later certificate revokes
        if ours.static_key != theirs.static_key or new.is_outbound == old.is_outbound:
            return True  # the newest handshake is the one that is alive
        if new.since - old.since > _SIMULTANEOUS_S:
            return True
        # Both dialled at once: both must keep the same one, that of the lower address.
        initiator = self.identity.address if new.is_outbound else new.address
        return initiator == min(self.identity.address, new.address)

    def _leave(self, peer: Peer) -> None:
        if self._peers.get(peer.address) is peer:
            del self._peers[peer.address]
            if peer.closed_for in _FAULTS:
                # The score outlives the connection: who comes back to do it again is banned before long.
                self._apply(self._gossip.penalise(peer.address, self.config.gossip.malformed_points))
            self._gossip.peer_left(peer.address)
            self._tell(peer.address, False)

    def _tell(self, address: bytes, is_there: bool) -> None:
        self._changed.set()
        self._changed = trio.Event()
        self._manage.set()
        for watcher in self._watchers:
            watcher(address, is_there)

    # -- connections out -------------------------------------------------------------------------------------

    async def _connected(self, address: bytes) -> Peer:
        while True:
            peer = self._peers.get(address)
            if peer is not None and peer.closed_for is None:
                return peer
            if address == self.identity.address or self._is_banned(address):
                raise PeerUnreachable(f"0x{address.hex()} is {'banned' if address in self._bans else 'this node'}")
            self._reach(address)
            with trio.move_on_after(_MANAGE_INTERVAL_S):
                await self._changed.wait()

    def _reach(self, address: bytes) -> None:
        """Dial an address now unless its back-off says to wait."""
        way = self._ways.setdefault(address, _Way(address))
        self._dial(address, way)

    def _dial(self, key: object, way: _Way) -> None:
        if (
            self._nursery is None
            or way.is_dialling
            or trio.current_time() < way.next_at
            or self._dialling >= self.limits.dials_max
            or not self._endpoints_of(way)
        ):
            return
        way.is_dialling = True
        self._dialling += 1
        self._nursery.start_soon(self._dial_and_live, key, way)

    def _endpoints_of(self, way: _Way) -> list[Endpoint]:
        """Return where to try, direct endpoints before relays."""
        record = None if way.target is None else self._book.get(way.target)
        known = dict.fromkeys((*way.endpoints, *(() if record is None else record.endpoints)))
        return sorted((e for e in known if e.scheme in self._dialers), key=lambda e: e.relay is not None)

    async def _dial_and_live(self, key: object, way: _Way) -> None:
        stream = None
        began = trio.current_time()
        is_settled = False
        try:
            try:
                found = await self._open(way)
            finally:
                self._dialling -= 1
            if found is not None:
                session, stream, endpoint = found
                way.found = session.address
                self._book.succeeded(session.address)
                began = trio.current_time()
                if await self._live(session, stream, str(endpoint)):
                    is_settled = trio.current_time() - began >= self.limits.settled_s
            elif way.target is not None and self._peers and way.target not in self._persistent:
                self._book.failed(way.target)  # alone, the fault is more likely on our side
        finally:
            way.is_dialling = False
            limit_s = self.limits.redial_max_s
            if way.target in self._persistent:
                limit_s = self.limits.redial_persistent_max_s
            way.delay_s = 0.0 if is_settled else min(max(2 * way.delay_s, self.limits.redial_min_s), limit_s)
            way.next_at = trio.current_time() + way.delay_s * self._random.uniform(0.75, 1.25)
            if stream is not None:
                await trio.aclose_forcefully(stream)

    async def _open(self, way: _Way) -> tuple[Session, trio.abc.Stream, Endpoint] | None:
        for endpoint in self._endpoints_of(way):
            self.counters["dials"] += 1
            stream: trio.abc.Stream | None = None
            with trio.move_on_after(self.limits.dial_timeout_s):
                try:
                    stream = await self._dialers[endpoint.scheme].dial(endpoint, way.target)
                except _EXPECTED_ERRORS as error:
                    self._log("dial failed", endpoint=str(endpoint), error=str(error))
            if stream is None:
                self.counters["dials_failed"] += 1
                continue
            purpose = Purpose.PEER if endpoint.relay is None else Purpose.CIRCUIT
            session = None
            try:
                session = await self._shake(stream, purpose, is_initiator=True, expected=way.target)
            finally:
                if session is None:
                    await trio.aclose_forcefully(stream)
            if session is not None:
                return session, stream, endpoint
            self.counters["dials_failed"] += 1
        return None

    async def _keep_peers(self) -> None:
        """Dial whom the node wants always, the bootstrap peers, and others up to the wished number."""
        while True:
            self._manage = trio.Event()
            self._forget_ways()
            wanted: list[bytes] = [a for a in self._persistent if a not in self._peers]
            for address in wanted:
                if not self._is_banned(address):
                    self._reach(address)
            outgoing = sum(peer.is_outbound for peer in self._peers.values())
            lacking = self.limits.peers_out_target - outgoing
            # Without any peer the bootstrap list is the way back in; with some, it fills up what is lacking.
            for key, way in list(self._ways.items()):
                known = way.target or way.found
                if lacking <= 0:
                    break
                if known == self.identity.address or (known is not None and known in self._peers):
                    continue
                if way.endpoints and (known is None or not self._is_banned(known)):
                    self._dial(key, way)
            if lacking > 0:
                excluded = {*self._peers, *self._bans, self.identity.address}
                for address in self._book.candidates(self._random, exclude=excluded)[:lacking]:
                    self._reach(address)
            with trio.move_on_after(_MANAGE_INTERVAL_S):
                await self._manage.wait()
            await trio.lowlevel.checkpoint()

    def _forget_ways(self) -> None:
        if len(self._ways) <= 2 * self.limits.bans_max:
            return
        now = trio.current_time()
        for key, way in list(self._ways.items()):
            if not way.endpoints and not way.is_dialling and way.next_at < now:
                del self._ways[key]

    # -- messages of peers -----------------------------------------------------------------------------------

    async def _dispatch(self, peer: Peer, message: Message) -> None:
        if message.kind == KIND_GOSSIP:
            self._apply(self._gossip.receive(peer.address, message.body, trio.current_time()))
            return
        handler = self._handlers.get(message.kind)
        if handler is not None:
            await handler(peer.address, message.body)

    def _apply(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(address, body):
                    peer = self._peers.get(address)
                    if peer is not None:
                        peer.queue(Class.GOSSIP, KIND_GOSSIP, body)
                case Deliver():
                    self._inboxes[effect.topic].append(effect)  # bounded by the core's pending limits
                    self._inbox_wakes[effect.topic].set()
                case Disconnect(address, is_banned):
                    if is_banned and address not in self._persistent:
                        self.ban(address, "bad_score")
                    elif address in self._peers:
                        self._peers[address].close("bad_score")

    async def _validate(self, topic: str) -> None:
        inbox, validator = self._inboxes[topic], self._validators[topic]
        while True:
            if not inbox:
                self._inbox_wakes[topic] = trio.Event()
                await self._inbox_wakes[topic].wait()
            batch: list[Deliver] = []
            size = 0
            while inbox and len(batch) < self.limits.gossip_batch_max:
                if batch and size + len(inbox[0].payload) > self.limits.gossip_batch_bytes_max:
                    break
                batch.append(inbox.popleft())
                size += len(batch[-1].payload)
            verdicts = await validator([GossipItem(item.peer, item.payload) for item in batch])
            assert len(verdicts) == len(batch)
            named = [(item.message_id, verdict) for item, verdict in zip(batch, verdicts, strict=True)]
            self._apply(self._gossip.verdict(named))
            await trio.lowlevel.checkpoint()

    async def _beat(self) -> None:
        while True:
            now = trio.current_time()
            self._apply(self._gossip.heartbeat(now))
            for address in [a for a, until in self._bans.items() if until <= now]:
                del self._bans[address]
            for address in [a for a, box in self._outbox.items() if box[-1][0] <= now]:
                del self._outbox[address]
            await trio.sleep(self.config.gossip.heartbeat_s)

    def _is_banned(self, address: bytes) -> bool:
        return self._bans.get(address, 0.0) > trio.current_time()

    # -- messages that wait for a connection -----------------------------------------------------------------

    def _post(self, address: bytes, cls: Class, kind: int, body: bytes) -> bool:
        box = self._outbox.get(address)
        if box is None:
            if len(self._outbox) >= self.limits.outbox_peers_max:
                self._outbox.popitem(last=False)
            box = self._outbox[address] = deque()
        if sum(len(item[3]) for item in box) + len(body) > self.limits.outbox_bytes_max or len(box) >= 256:
            return False
        box.append((trio.current_time() + self.limits.outbox_s, cls, kind, body))
        return True

    def _flush(self, peer: Peer) -> None:
        now = trio.current_time()
        for until, cls, kind, body in self._outbox.pop(peer.address, ()):
            if until > now:
                peer.queue(cls, kind, body)

    # -- records ---------------------------------------------------------------------------------------------

    def _publish_record(self) -> None:
        endpoints = tuple(dict.fromkeys(e for group in self._endpoints.values() for e in group))
        self._record = sign_record(self.identity, endpoints, now_ms=self._now_ms())
        self.publish(TOPIC_RECORD, self._record.data)

    async def _validate_record(self, sender: bytes, payload: bytes) -> Verdict:
        if not self._record_rate.allows(sender, trio.current_time()):
            return Verdict.IGNORE
        try:
            record = verify_record(payload, genesis_hash=self.identity.genesis_hash, now_ms=self._now_ms())
        except RecordInvalid:
            return Verdict.REJECT
        return Verdict.ACCEPT if self._note(record, sender) else Verdict.IGNORE

    def _note(self, record: PeerRecord, source: bytes) -> bool:
        if record.address == self.identity.address:
            return False
        is_news = self._book.add(record, source=source)
        if is_news:
            self._manage.set()
        return is_news

    async def _serve_peers(self, sender: bytes, body: bytes) -> bytes:
        if not self._exchange_rate.allows(sender, trio.current_time()):
            raise RequestRefused("asked too often")
        own = [] if self._record is None else [self._record]
        records = own + self._book.sample(self._random, self.limits.exchange_records_max - len(own))
        return encode([record.data for record in records])

    async def _keep_records(self) -> None:
        """Ask peers for others, sign our own record again in time, keep the book on disk."""
        asked: set[Peer] = set()
        signed_at = saved_at = asked_at = trio.current_time()
        while True:
            asked &= set(self._peers.values())
            for peer in list(self._peers.values()):
                if peer not in asked:
                    asked.add(peer)
                    await self._exchange(peer)
            now = trio.current_time()
            if self._peers and now - asked_at >= self.limits.exchange_interval_s:
                asked_at = now
                await self._exchange(self._random.choice(list(self._peers.values())))
            if now - signed_at >= _RECORD_INTERVAL_S:
                signed_at = now
                self._publish_record()
            if now - saved_at >= _SAVE_INTERVAL_S:
                saved_at = now
                self._book.expire(self._now_ms())
                await self._save_book()
            with trio.move_on_after(min(_SAVE_INTERVAL_S, _RECORD_INTERVAL_S) / 4):
                await self._changed.wait()

    async def _exchange(self, peer: Peer) -> None:
        limit_bytes = (self.limits.exchange_records_max + 1) * (RECORD_BYTES_MAX + 8)
        try:
            answer = await peer.request(METHOD_PEERS, b"", timeout_s=5.0, limit_bytes=limit_bytes)
            items = decode(answer, limit_bytes=limit_bytes)
            if not isinstance(items, list) or len(items) > self.limits.exchange_records_max + 1:
                raise DecodeError("not a list of records")
            for item in items:
                if not isinstance(item, bytes):
                    raise DecodeError("not a record")
                record = verify_record(item, genesis_hash=self.identity.genesis_hash, now_ms=self._now_ms())
                if self._note(record, peer.address):
                    self.publish(TOPIC_RECORD, item)  # what is news to us may be to others
        except (RequestFailed, PeerUnreachable):
            return
        except ProtocolError:
            self.penalise(peer.address, self.config.gossip.reject_points)

    async def _load_book(self) -> None:
        path = self._book_path
        if path is None or not path.exists():
            return
        try:
            data = await trio.to_thread.run_sync(path.read_bytes)
            self._book.load(data[:_BOOK_BYTES_MAX], now_ms=self._now_ms())
        except (OSError, DecodeError) as error:
            self._log("address book not readable, starting with an empty one", error=str(error))

    async def _save_book(self) -> None:
        path = self._book_path
        if path is None:
            return
        try:
            await trio.to_thread.run_sync(_replace_file, path, self._book.encode())
        except OSError as error:  # a full disk costs what was learnt of peers, not the node
            self._log("address book not written", error=str(error))

    @property
    def _book_path(self) -> Path | None:
        return None if self.config.data_dir is None else self.config.data_dir / "peers"


_FAULTS: Final = frozenset({"frame_invalid", "decode_error", "protocol_error", "signature_invalid"})
"""Reasons to end a connection that speak against the peer."""


def _site_of(remote: str) -> str:
    """Return what the bounds for one address hold for: an IPv4 address, or the /64 that one site has of IPv6."""
    address = ipaddress.ip_address(remote.partition("%")[0])
    if isinstance(address, ipaddress.IPv4Address) or address.is_loopback:
        return str(address)
    return str(address.ipv4_mapped or ipaddress.IPv6Address(int(address) >> 64 << 64))


def _endpoint(text: str) -> Endpoint:
    try:
        return Endpoint.parse(text if text.startswith(("tcp:", "relay:")) else f"tcp:{text}")
    except DecodeError as error:
        raise ConfigError(f"advertised endpoint {text!r}: {error}") from None


def _replace_file(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".new")
    temporary.write_bytes(data)
    temporary.replace(path)
