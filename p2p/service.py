"""The network as the node uses it: peers by their addresses, messages by priority, gossip, requests, blobs.

One ``Network`` is started in the node's nursery. It knows nothing of what it carries: the node registers, before
``run``, what is to be done with each kind, topic and method. A peer that misbehaves loses its own connection only.
"""

from __future__ import annotations

import ipaddress
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import trio

from p2p.addrbook import ANCHORS_MAX, AddressBook
from p2p.bans import Bans
from p2p.blobs import BlobStore
from p2p.channel import Hello, Opening, Word
from p2p.crowds import Origin, crowd_of, origin_of, site_of
from p2p.dialling import Dialling, PathMaker, Way, parse_bootstrap
from p2p.entrance import Entrance
from p2p.errors import PeerUnreachable
from p2p.frame import Class
from p2p.gossip import Deliver, Disconnect, Effect, Gossip, GossipParameters, Send, Verdict
from p2p.handshake import Handshake, Session
from p2p.identity import Identity, Purpose
from p2p.limits import NetworkLimits, Place, ReceiveMemory
from p2p.link import Link, LinkLost, shake_hands
from p2p.multicast_service import MulticastService
from p2p.outbox import Outbox
from p2p.peer import KIND_GOSSIP, RESERVED_KIND_MIN, Peer, PeerOwner
from p2p.peerinfo import LaneStats, PeerInfo
from p2p.places import Guest, Standings, admit, lots
from p2p.recordkeeping import METHOD_PEERS, RecordKeeper
from p2p.records import RECORD_BYTES_MAX, PeerRecord
from p2p.requests import RequestHandler, Served
from p2p.sockets import Connector, TcpDialer, kernel_notes, tune
from p2p.steering import Steering
from p2p.transfer import BlobTransfer
from p2p.transport import Acceptor, Dialer, Endpoint, Fanout
from p2p.validation import BatchValidator, GossipItem, Validation, Validator, one_by_one
from p2p.vicinity import Vicinity
from state.primitives.errors import ConfigError, DecodeError, ProtocolError

__all__ = [
    "TOPIC_RECORD",
    "GossipItem",
    "Network",
    "NetworkConfig",
    "parse_bootstrap",
    "vicinity_of",
]

TOPIC_RECORD: Final = "record"
_MANAGE_INTERVAL_S: Final = 0.25
_SIMULTANEOUS_S: Final = 5.0

MessageHandler = Callable[[bytes, bytes], Awaitable[None]]


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
    dial_inner: bool = False
    """Dial private and loopback addresses too that strangers name; so it is anyhow where the options above do."""
    blob_dir: Path | None = None
    blob_budget_bytes: int = 16 * 1024**3
    limits: NetworkLimits = field(default_factory=NetworkLimits)
    gossip: GossipParameters = field(default_factory=GossipParameters)


class Network:
    """The peers of one node. Register handlers, then ``run``; everything else may be called while it runs."""

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
        self.config = config
        self.limits = config.limits
        self.identity = identity
        self.counters: Counter[str] = Counter()
        """Events by name since the start, for metrics."""
        self.bound: tuple[tuple[str, int], ...] = ()
        """Where this node listens, once ``run`` has started."""
        self.direct: tuple[Endpoint, ...] = ()
        """Where its owner says that others can dial this node, once ``run`` has started; see ``p2p.reach``."""
        self.open_ports: tuple[int, ...] = ()
        """Where it listens on all addresses and its owner does not say which of them others can dial."""
        self.congestion_control = ""
        """What the kernel granted on the listening sockets."""
        self.started = trio.Event()
        self.blobs: BlobStore | None = None
        self.connector = connector or Connector(vicinity_of(config))
        """Opens what is dialled by host and port, here and for who brings other dialers."""
        self._dialers: dict[str, Dialer] = {"tcp": TcpDialer(self.connector), **(dialers or {})}
        self._acceptors = acceptors
        self._now_ms = now_ms
        self._random = random or Random(secrets.randbits(64))
        self._log = log or (lambda *_args, **_fields: None)
        self.memory = ReceiveMemory(config.limits.receive_bytes_max)
        """What peers' messages on their way in hold."""
        book = AddressBook(key=secrets.token_bytes(32), genesis_hash=identity.genesis_hash)
        self._book = book
        self._gossip = Gossip(random=self._random, now=0.0, parameters=config.gossip)
        self._peers: dict[bytes, Peer] = {}
        self._changed = trio.Event()
        self._manage = trio.Event()
        self._persistent: frozenset[bytes] = frozenset()
        self._is_bonded: Callable[[bytes], bool] = lambda _address: False
        self._kept: int | None = None
        self._draw_at = 0.0
        self._draw_delay_s = 0.0
        self._bans = Bans(config.limits.bans_max, trio.current_time)
        self._outbox = Outbox(config.limits)
        self._handlers: dict[int, MessageHandler] = {}
        self._served: dict[str, Served] = {}
        self._validations: dict[str, Validation] = {}
        self._watchers: list[Callable[[bytes, bool], None]] = []
        self._entrance = Entrance(config.limits)
        self._draw = lots(secrets.token_bytes(32))
        self._standings = Standings()
        self._origin_of = origin_of
        self._dialling_now = 0
        self._lanes_in = 0
        self._nursery: trio.Nursery | None = None
        limits = self.limits
        self._dialling = Dialling(
            limits=limits, dialers=self._dialers, book=book, counters=self.counters, shake=self._shake_out,
            log=self._log,
        )  # fmt: skip
        self._ways = self._dialling.ways
        self._steering = Steering(
            self._dialling, self._peers, limits=limits, counters=self.counters, log=self._log
        )
        self._owner = PeerOwner(
            self._handlers, self._on_gossip_message, self._served.get,
            self._steering.find_way, self._steering.open_lanes, self._steering.answer_lanes,
            self._steering.take_ways,
        )  # fmt: skip
        self._records = RecordKeeper(
            book,
            path=None if config.data_dir is None else config.data_dir / "peers",
            identity=lambda: self.identity,
            limits=limits,
            random=self._random,
            now_ms=now_ms,
            publish=lambda data: self.publish(TOPIC_RECORD, data),
            blame=lambda address: self.penalise(address, config.gossip.reject_points),
            on_news=lambda: self._manage.set(),
            is_kept=lambda address: address in self._persistent,
            on_revoked=self._close_revoked,
            log=self._log,
        )
        for text in config.bootstrap:
            address, endpoint = parse_bootstrap(text)
            self._ways[address or endpoint] = Way(address, (endpoint,))
        self._advertised = tuple(_endpoint(text) for text in config.advertise)
        self.on_request(METHOD_PEERS, self._records.serve)
        self.on_gossip(TOPIC_RECORD, self._records.validate, payload_bytes_max=RECORD_BYTES_MAX, earns=False)
        self.multicasts = MulticastService(self, fanout, deliver=self._deliver, random=self._random, log=self._log)
        """One message to many; use ``multicast``."""
        if config.blob_dir is not None:
            self.blobs = BlobStore(config.blob_dir, budget_bytes=config.blob_budget_bytes)
            self._transfer = BlobTransfer(
                self.blobs, self.request, limits, rtt_s=self._rtt_s, credit=self.credit,
                blame=lambda address: self.penalise(address, config.gossip.reject_points),
            )  # fmt: skip
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

    def on_gossip(
        self, topic: str, validator: Validator, *, payload_bytes_max: int = 64 * 1024, earns: bool = True
    ) -> None:
        """Take part in a topic; ``await validator(peer address, payload)`` says whether to forward.

        ``earns``: whether to be the first to bring something good of it speaks for a peer (``p2p.places``); not
        where anybody can make as much of it as it likes.
        """
        self.on_gossip_batch(topic, one_by_one(validator), payload_bytes_max=payload_bytes_max, earns=earns)

    def on_gossip_batch(
        self, topic: str, validator: BatchValidator, *, payload_bytes_max: int = 64 * 1024, earns: bool = True
    ) -> None:
        """Like ``on_gossip``, with a validator that gets all that waits (up to ``gossip_batch_max``) at once."""
        assert topic not in self._validations
        credit = self.credit if earns else lambda _address: None
        self._validations[topic] = Validation(validator, self.limits, self._judged, credit)
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
        if address == self.identity.address or address in self._bans:
            return False
        self._reach(address)
        return self._outbox.post(address, cls, kind, body, trio.current_time())

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

    def multicast(
        self, addresses: Iterable[bytes], cls: Class, kind: int, body: bytes, *, followers: Iterable[bytes] = ()
    ) -> None:
        """Bring a message to each of these addresses but our own, through relays and each other where that pays.

        To them it is as if this node had sent it itself. ``followers`` get it too, once it delays nobody else.
        Whom it does not reach within some seconds, it does not reach.
        """
        self.multicasts.send(addresses, cls, kind, body, followers=followers)

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
        return await peer.requests.ask(method, body, timeout_s=left_s, limit_bytes=limit_bytes)

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
        return [peer.info(score=self._gossip.score(address)) for address, peer in self._peers.items()]

    def peer(self, address: bytes) -> PeerInfo | None:
        """Return the connection to an address, where there is one."""
        peer = self._peers.get(address)
        return None if peer is None else peer.info(score=self._gossip.score(address))

    def lane_stats(self, address: bytes) -> list[LaneStats]:
        """Return what is known of each connection of a peer, the control connection first."""
        peer = self._peers.get(address)
        return [] if peer is None else peer.lane_stats()

    async def move(self, address: bytes, endpoint: Endpoint) -> bool:
        """Let a peer's control traffic go on over another path; whether it does. Nothing is lost on the way."""
        peer = self._peers.get(address)
        return peer is not None and await self._steering.move(peer, endpoint)

    def leave(self, relay: Endpoint) -> None:
        """Take what runs through this relay over other ways; the present ones carry it until those are there."""
        self._steering.leave(relay)

    def on_paths(self, maker: PathMaker) -> None:
        """Ask ``maker(address, endpoints known)`` for more paths to an address whenever they are looked up."""
        self._dialling.on_paths(maker)

    def on_roam(self, watcher: Callable[[frozenset[str]], None]) -> None:
        """Call ``watcher`` with the IP addresses from which this machine reaches the world no more."""
        self._steering.roam_watchers.append(watcher)

    def _rtt_s(self, address: bytes) -> float | None:
        peer = self._peers.get(address)
        return None if peer is None else peer.rtt_s

    def is_connected(self, address: bytes) -> bool:
        """Whether there is a peer of this address; between two of its connections it is one still."""
        return address in self._peers

    async def wait_peers(self, count: int) -> None:
        """Wait until at least so many peers are connected."""
        while len(self._peers) < count:
            await self._changed.wait()

    @property
    def persistent(self) -> frozenset[bytes]:
        """To whom connections are always kept."""
        return self._persistent

    def set_persistent(self, addresses: Iterable[bytes], *, kept: int | None = None) -> None:
        """Say to whom connections shall always be kept (the committee); they have reserved places.

        ``kept`` is for who is not one of them: to so many a connection is kept, drawn anew whenever one lacks. If
        everybody dialled all of them, those outside would fill the places of every one.
        """
        self._persistent = frozenset(addresses) - {self.identity.address}
        self._kept = kept
        for address in self._persistent:
            self._bans.lift(address)  # whoever is elected is heard, whatever came before
        self._manage.set()

    def on_bonded(self, is_bonded: Callable[[bytes], bool]) -> None:
        """Ask ``is_bonded(address)`` who answers for itself with something that it has locked.

        Of those that one relay brings, each such one counts as from a block of addresses of its own.
        """
        self._is_bonded = is_bonded

    def add_endpoint(self, address: bytes, endpoint: Endpoint) -> None:
        """Say where an address can be reached, as far as the caller knows; its records add to that."""
        self.connector.vicinity.name(endpoint.host)
        self._dialling.add_endpoint(address, endpoint)

    def record(self, address: bytes) -> PeerRecord | None:
        """Return the newest record known of an address, our own included."""
        return self._records.own if address == self.identity.address else self._book.get(address)

    def records(self) -> list[PeerRecord]:
        """Return the newest record of everybody who is known, in no order."""
        return list(self._book.records())

    def ban(self, address: bytes, reason: str, *, ban_s: float | None = None) -> None:
        """Drop a peer and keep it away for ``ban_s``; None: as long as the limits say."""
        self._bans.add(address, self.limits.ban_s if ban_s is None else ban_s)
        self.counters["bans"] += 1
        self._log("peer banned", peer=address.hex(), reason=reason)
        peer = self._peers.get(address)
        if peer is not None:
            peer.close(reason)

    def bans(self) -> dict[bytes, float]:
        """Return who is kept away, and for how many seconds more."""
        return self._bans.left_s()

    def unban(self, address: bytes) -> bool:
        """Let an address in again; tell whether it was kept away."""
        return self._bans.lift(address)

    def connect(self, address: bytes, endpoint: Endpoint) -> None:
        """Dial an address at an endpoint now, whatever its back-off says."""
        self.add_endpoint(address, endpoint)
        way = self._dialling.way_to(address)
        way.next_at = 0.0
        if address not in self._peers and address not in self._bans:
            self._dial(way)

    def disconnect(self, address: bytes, reason: str) -> bool:
        """End the connection to a peer; tell whether there was one."""
        peer = self._peers.get(address)
        if peer is not None:
            peer.close(reason)
        return peer is not None

    def arrived_at(self, host: str) -> float:
        """Return when a connection last came from an IP address, by trio's clock; minus infinity: long ago."""
        return self._entrance.arrived_at(host)

    def penalise(self, address: bytes, points: float) -> None:
        """Take points from a peer for what the node found out about it; enough of them drop or ban it."""
        self._apply(self._gossip.penalise(address, points))

    def credit(self, address: bytes) -> None:
        """Note that a peer has just been useful: by something that was checked, and that costs more than words."""
        peer = self._peers.get(address)
        if peer is not None:
            peer.service.note(trio.current_time())

    def accept(self, stream: trio.abc.Stream, remote: str) -> None:
        """Take over a stream that an acceptor brought (``Acceptance``)."""
        assert self._nursery is not None
        place = self._entrance.circuit(remote, trio.current_time())
        if place is None:
            self.counters["accepts_refused"] += 1
            self._nursery.start_soon(trio.aclose_forcefully, stream)
            return
        self._nursery.start_soon(self._incoming, stream, remote, None, place)

    def advertise(self, source: str, endpoints: tuple[Endpoint, ...]) -> None:
        """Say where this node can be reached by way of ``source`` (``Acceptance``)."""
        if self._records.advertise(source, endpoints) and self.started.is_set():
            self._records.sign()

    def renew(self, identity: Identity) -> None:
        """Go on under a newer certificate of the same address; new handshakes use it."""
        assert identity.address == self.identity.address
        self.identity = identity
        if self.started.is_set():
            self._records.sign()

    # -- life ------------------------------------------------------------------------------------------------

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen, dial, carry; until cancelled. Raises ConfigError when a listening address cannot be had."""
        await self._records.load()
        listeners = await self._open_listeners()
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                for listener in listeners:
                    nursery.start_soon(self._accept_from, listener)
                self._records.sign()
                for anchor in self._book.anchors:
                    self._reach(anchor)
                for validation in self._validations.values():
                    nursery.start_soon(validation.run)
                nursery.start_soon(self._keep_peers)
                nursery.start_soon(self._beat)
                nursery.start_soon(self._records.run, self._peers.values, lambda: self._changed)
                nursery.start_soon(self._steering.run)
                nursery.start_soon(self.multicasts.run)
                for acceptor in self._acceptors:
                    nursery.start_soon(acceptor.run, self)
                self.started.set()
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._nursery = None
            with trio.CancelScope(shield=True), trio.move_on_after(2):
                await self._records.save()

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
        self.direct = own
        if not self._advertised:
            everywhere = (port for host, port in self.bound if ipaddress.ip_address(host).is_unspecified)
            self.open_ports = tuple(dict.fromkeys(everywhere))
        self._records.advertise("listen", own)
        if listeners:
            self._log("network listens", congestion_control=self.congestion_control)
            for note in kernel_notes():
                self._log("kernel setting", note=note)
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
            place = self._entrance.connection(remote, trio.current_time())
            if place is None:
                self.counters["accepts_refused"] += 1
                stream.socket.close()
                continue
            tune(stream.socket)
            self._nursery.start_soon(self._incoming, stream, remote, site_of(remote), place)

    async def _incoming(self, stream: trio.abc.Stream, remote: str, site: str | None, place: Place) -> None:
        self.counters["accepts"] += 1
        link: Link | None = None
        hello: Hello | None = None
        self._entrance.count(site, 1)
        is_direct = site is not None
        try:
            try:
                with trio.CancelScope() as scope:
                    place.on_lost = scope.cancel
                    if place.is_lost:
                        scope.cancel()
                    purpose = Purpose.PEER if is_direct else Purpose.CIRCUIT
                    session = await self._shake(stream, purpose, is_initiator=False, expected=None)
                    if session is not None:
                        link = Link(session, stream, remote=remote, is_direct=is_direct)
                        hello = await self._hear(link)
            finally:
                self._entrance.half_open.leave(place)
            self.counters["half_open_lost"] += scope.cancelled_caught
            if link is None or hello is None:
                return
            if link.session.address in self._persistent:  # many of them may live in one place
                self._entrance.count(site, -1)
                site = None
            if self._entrance.is_crowded(site):
                self.counters["refused_site"] += 1
                return
            peer = self._peers.get(link.session.address)
            match hello.opening:
                case Opening.NEW:
                    await self._live(link)
                case Opening.RESUME:
                    if await self._steering.take_move(peer, hello, link):
                        await link.ended.wait()
                case Opening.LANE:
                    await self._take_lane(peer, hello, link, site)
                case _:
                    self.counters["handshake_failed"] += 1
        except (LinkLost, trio.TooSlowError, ProtocolError):
            self.counters["handshake_failed"] += 1
        finally:
            self._entrance.count(site, -1)
            if link is not None:
                await link.aclose()
            await trio.aclose_forcefully(stream)

    async def _hear(self, link: Link) -> Hello | None:
        """Return what a connection is for, or None when it does not say so in time."""
        try:
            with trio.fail_after(self.limits.handshake_timeout_s):
                return await link.hear_hello()
        except ProtocolError as error:
            self.counters[error.code] += 1
        except trio.TooSlowError:
            self.counters["handshake_failed"] += 1
        return None

    async def _take_lane(self, peer: Peer | None, hello: Hello, link: Link, site: str | None) -> None:
        is_full = self._lanes_in >= self.limits.lanes_in_sum_max and link.session.address not in self._persistent
        if peer is None or not peer.lanes.may_add(hello, link) or is_full:
            self.counters["lanes_refused"] += 1
            return
        # It belongs to a peer that has its place already, and has limits of its own.
        self._entrance.count(site, -1)
        self._lanes_in += 1
        self._steering.lane_asked(peer, hello, link)
        try:
            await peer.lanes.carry(link, hello)
        finally:
            self._lanes_in -= 1
            self._entrance.count(site, 1)
        self._steering.lane_ended(peer, link)

    async def _shake_out(
        self, stream: trio.abc.Stream, purpose: Purpose, expected: bytes | None
    ) -> Session | None:
        return await self._shake(stream, purpose, is_initiator=True, expected=expected)

    async def _shake(
        self, stream: trio.abc.Stream, purpose: Purpose, *, is_initiator: bool, expected: bytes | None
    ) -> Session | None:
        """Return the session, or None when the peer did not complete the handshake in time."""
        handshake = Handshake(
            self.identity, purpose, is_initiator=is_initiator, now_ms=self._now_ms(), expected=expected
        )
        try:
            with trio.fail_after(self.limits.handshake_timeout_s):
                return await shake_hands(stream, handshake)
        except ProtocolError as error:
            self.counters[error.code] += 1
        except (trio.TooSlowError, trio.BrokenResourceError, trio.ClosedResourceError):
            self.counters["handshake_failed"] += 1
        return None

    async def _live(self, link: Link) -> bool:
        """Carry one peer from the end of its first handshake to its own; whether it was let in at all."""
        address = link.session.address
        refused = self._refusal(link)
        if refused is not None:
            self.counters[refused] += 1
            if not link.is_outbound:
                link.channel.say(Word.BYE)
                await link.aclose(goodbye=link.channel.seal())
            return False
        if link.is_outbound:
            try:
                await link.say_hello(Hello(Opening.NEW), timeout_s=self.limits.handshake_timeout_s)
            except (LinkLost, trio.TooSlowError):
                return False
            if self._refusal(link) is not None:  # somebody came in meanwhile
                return False
        peer = Peer(
            link, own_address=self.identity.address, limits=self.limits, memory=self.memory, owner=self._owner
        )
        old = self._peers.get(address)
        if old is not None:
            self._leave(old)
            old.close("replaced")
            for message in old.undelivered():
                peer.queue(*message)
        peer.service = self._standings.take(address, self._origin(peer).block, trio.current_time())
        self._peers[address] = peer
        self._apply(
            self._gossip.peer_joined(address, outbound=peer.is_outbound, network=crowd_of(link.remote_host))
        )
        self._flush(peer)
        self._tell(address, True)
        self._log("peer connected", peer=address.hex(), remote=link.remote, outbound=peer.is_outbound)
        try:
            await peer.run()
        finally:
            self._leave(peer)
            if peer.closed_for == "connection_lost":
                self._keep_for_later(peer)
            self.counters[f"closed_{peer.closed_for}"] += 1
            self._log("peer gone", peer=address.hex(), reason=peer.closed_for)
        return True

    def _refusal(self, link: Link) -> str | None:
        """Return why a new peer may not stay, or None."""
        address = link.session.address
        if address == self.identity.address:
            return "refused_self"
        if address in self._bans:
            return "refused_banned"
        if self._records.is_revoked(address, link.session.certificate):
            return "refused_revoked"
        self._records.met(address, link.session.certificate)
        old = self._peers.get(address)
        if old is not None:
            return None if self._replaces(link, old) else "refused_duplicate"
        return None if link.is_outbound or address in self._persistent else self._admit(link)

    def _close_revoked(self, address: bytes) -> None:
        """Drop a peer of whom is known by now that its certificate is an old one."""
        peer = self._peers.get(address)
        if peer is not None and self._records.is_revoked(address, peer.session.certificate):
            peer.close("certificate_revoked")

    def _admit(self, link: Link) -> str | None:
        """Make room for a peer that came in without a place of its own; return why there is none, or None."""
        guests = [
            Guest(
                address, self._origin(peer), peer.since, peer.service.periods,
                self._gossip.score(address), peer.rtt_s,
            )
            for address, peer in self._peers.items()
            if not peer.is_outbound and address not in self._persistent and peer.closed_for is None
        ]  # fmt: skip
        origin, now = self._origin_from(link.session.address, link.remote), trio.current_time()
        admission = admit(
            guests, origin, now=now, places_max=self.limits.peers_in_max,
            per_network_max=self.limits.peers_per_network_max, draw=self._draw,
            service=self._standings.periods(link.session.address, origin.block, now),
        )  # fmt: skip
        if admission.gives_way is not None:
            self._peers[admission.gives_way].close("crowded_out")
        return admission.refusal

    def _origin(self, peer: Peer) -> Origin:
        return self._origin_from(peer.address, peer.remote)

    def _origin_from(self, address: bytes, remote: str) -> Origin:
        """Return where a peer comes from; who has locked a bond and comes by a relay, from a block of its own."""
        origin = self._origin_of(remote)
        return origin.of_its_own(address) if origin.is_relayed and self._is_bonded(address) else origin

    def _replaces(self, new: Link, old: Peer) -> bool:
        ours, theirs = new.session.certificate, old.session.certificate
        if ours.sequence != theirs.sequence:
            return ours.sequence > theirs.sequence  # a later certificate revokes
        if ours.static_key != theirs.static_key or new.is_outbound == old.is_outbound or not old.is_attached:
            return True  # the newest handshake is the one that is alive
        if new.since - old.since > _SIMULTANEOUS_S:
            return True
        # Both dialled at once: both must keep the same one, that of the lower address.
        initiator = self.identity.address if new.is_outbound else old.address
        return initiator == min(self.identity.address, old.address)

    def _leave(self, peer: Peer) -> None:
        if self._peers.get(peer.address) is peer:
            del self._peers[peer.address]
            if peer.closed_for not in _FAULTS and peer.address not in self._bans:
                now = trio.current_time()
                self._standings.keep(peer.address, self._origin(peer).block, peer.service, now)
            if peer.closed_for in _FAULTS:
                # The score outlives the connection: who comes back to do it again is banned before long.
                self._apply(self._gossip.penalise(peer.address, self.config.gossip.malformed_points))
            self._gossip.peer_left(peer.address)
            self._tell(peer.address, False)

    def _tell(self, address: bytes, is_there: bool) -> None:
        self._changed.set()
        self._changed = trio.Event()
        self._manage.set()
        if is_there:
            self._choose_anchors()
        for watcher in self._watchers:
            watcher(address, is_there)

    # -- connections out -------------------------------------------------------------------------------------

    async def _connected(self, address: bytes) -> Peer:
        while True:
            peer = self._peers.get(address)
            if peer is not None and peer.closed_for is None:
                return peer
            if address == self.identity.address or address in self._bans:
                raise PeerUnreachable(f"0x{address.hex()} is {'banned' if address in self._bans else 'this node'}")
            self._reach(address)
            with trio.move_on_after(_MANAGE_INTERVAL_S):
                await self._changed.wait()

    def _reach(self, address: bytes) -> None:
        """Dial an address now unless its back-off says to wait."""
        self._dial(self._dialling.way_to(address))

    def _dial(self, way: Way) -> None:
        if (
            self._nursery is None
            or not way.is_open(trio.current_time())
            or self._dialling_now >= self._dials_max(way)
            or not (endpoints := self._dialling.endpoints_of(way))
        ):
            return
        way.is_dialling = True
        self._dialling_now += 1
        self._nursery.start_soon(self._dial_and_live, way, endpoints)

    def _dials_max(self, way: Way) -> int:
        """Dials of strangers leave room: however slow they make theirs, those that we need are made meanwhile."""
        is_needed = bool(way.endpoints) or self._is_needed(way.target)
        return self.limits.dials_max - (0 if is_needed else self.limits.dials_reserved)

    async def _dial_and_live(self, way: Way, endpoints: list[Endpoint]) -> None:
        link = None
        began = trio.current_time()
        is_settled = False
        try:
            try:
                link = await self._dialling.open(way.target, endpoints)
            finally:
                self._dialling_now -= 1
            if link is not None:
                way.found = link.session.address
                self._book.succeeded(link.session.address)
                began = trio.current_time()
                if await self._live(link):
                    is_settled = trio.current_time() - began >= self.limits.settled_s
            elif way.target is not None and self._peers and way.target not in self._persistent:
                self._book.failed(way.target)  # alone, the fault is more likely on our side
        finally:
            limits = self.limits
            if self._is_needed(way.target):
                limit_s = limits.redial_persistent_max_s
            elif link is not None and not way.endpoints:
                limit_s = limits.redial_refused_max_s  # it is there, and has no place for us
            else:
                limit_s = limits.redial_max_s
            way.ended(
                trio.current_time(), is_settled=is_settled, limit_s=limit_s, limits=limits, random=self._random
            )
            if link is not None:
                await link.aclose()

    async def _keep_peers(self) -> None:
        """Dial whom the node wants always, the bootstrap peers, and others up to the wished number."""
        felt_at = trio.current_time()
        while True:
            self._manage = trio.Event()
            self._dialling.forget(2 * self.limits.bans_max, trio.current_time())
            wanted = [a for a in self._persistent if a not in self._peers and a not in self._bans]
            for address in wanted if self._kept is None else self._drawn(wanted):
                self._reach(address)
            outgoing = sum(peer.is_outbound for peer in self._peers.values())
            lacking = self.limits.peers_out_target - outgoing
            # Without any peer the bootstrap list is the way back in; with some, it fills up what is lacking.
            for way in list(self._ways.values()):
                known = way.target or way.found
                if lacking <= 0:
                    break
                if known == self.identity.address or (known is not None and known in self._peers):
                    continue
                if way.endpoints and (known is None or known not in self._bans):
                    self._dial(way)
            if lacking > 0:
                excluded = {*self._peers, *self._bans, self.identity.address}
                for address in self._book.candidates(self._random, exclude=excluded)[:lacking]:
                    self._reach(address)
            if lacking <= 0 and trio.current_time() - felt_at >= self.limits.feeler_interval_s:
                felt_at = trio.current_time()
                self._feel()
            with trio.move_on_after(_MANAGE_INTERVAL_S):
                await self._manage.wait()
            await trio.lowlevel.checkpoint()

    def _drawn(self, wanted: Sequence[bytes]) -> list[bytes]:
        """Return whom to dial so that enough persistent peers are kept: one at a time, and ever more slowly."""
        assert self._kept is not None
        now, limits = trio.current_time(), self.limits
        connected = sum(address in self._peers for address in self._persistent)
        if connected >= self._kept:
            self._draw_delay_s = 0.0
            return []
        if not wanted or now < self._draw_at:
            return []
        limit_s = limits.redial_max_s if connected else limits.redial_persistent_max_s
        self._draw_delay_s = min(max(2 * self._draw_delay_s, limits.redial_min_s), limit_s)
        self._draw_at = now + self._draw_delay_s * self._random.uniform(0.75, 1.25)
        return [self._random.choice(sorted(wanted))]

    def _is_needed(self, address: bytes | None) -> bool:
        """Tell whether a connection to this address is wanted before those to others."""
        return self._kept is None and address in self._persistent

    def _choose_anchors(self) -> None:
        """Keep the names of those whom we dialled and that have stayed longest."""
        settled = [peer for peer in self._peers.values() if peer.is_outbound and peer.address in self._book]
        settled.sort(key=lambda peer: peer.since)
        self._book.set_anchors(peer.address for peer in settled[:ANCHORS_MAX])

    def _feel(self) -> None:
        """Find out whether somebody of whom we were only told is there, so that the tried stay many."""
        address = self._book.untried(self._random, exclude={*self._peers, *self._bans, self.identity.address})
        if address is not None and self._nursery is not None:
            self.counters["feelers"] += 1
            self._nursery.start_soon(self._feel_for, address)

    async def _feel_for(self, address: bytes) -> None:
        endpoints = self._dialling.endpoints_of(self._dialling.way_to(address))
        link = await self._dialling.open(address, endpoints)
        if link is None:
            self._book.failed(address)
        else:
            self._book.succeeded(address)
            await link.aclose()

    # -- messages of peers -----------------------------------------------------------------------------------

    def _on_gossip_message(self, address: bytes, body: bytes) -> None:
        self._apply(self._gossip.receive(address, body, trio.current_time()))

    async def _deliver(self, sender: bytes, kind: int, body: bytes) -> None:
        """Hand over what came in pieces like a message of its sender; what it costs a peer it costs this one."""
        handler = self._handlers.get(kind)
        peer = self._peers.get(sender)
        try:
            if handler is not None:
                await handler(sender, body)
        except ProtocolError as error:
            if peer is not None:
                peer.close(error.code)

    def _apply(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(address, body):
                    peer = self._peers.get(address)
                    if peer is not None:
                        peer.queue(Class.GOSSIP, KIND_GOSSIP, body)
                case Deliver():
                    self._validations[effect.topic].put(effect)
                case Disconnect(address, is_banned):
                    if address in self._persistent:
                        self.counters["limited_persistent"] += 1  # its score limits it; it is heard all the same
                    elif is_banned:
                        self.ban(address, "bad_score")
                    elif address in self._peers:
                        self._peers[address].close("bad_score")

    def _judged(self, verdicts: Iterable[tuple[bytes, Verdict]]) -> None:
        self._apply(self._gossip.verdict(verdicts))

    async def _beat(self) -> None:
        while True:
            now = trio.current_time()
            self._apply(self._gossip.heartbeat(now))
            self._bans.expire()
            self._outbox.expire(now)
            await trio.sleep(self.config.gossip.heartbeat_s)

    # -- messages that wait for a connection -----------------------------------------------------------------

    def _keep_for_later(self, peer: Peer) -> None:
        """Keep what a lost peer was to hear of the consensus: it may be back in a moment, and know nothing."""
        for cls, kind, body in peer.undelivered():
            if cls is Class.CONSENSUS:
                self._outbox.post(peer.address, cls, kind, body, trio.current_time())

    def _flush(self, peer: Peer) -> None:
        for _, cls, kind, body in self._outbox.take(peer.address, trio.current_time()):
            peer.queue(cls, kind, body)


_FAULTS: Final = frozenset({"frame_invalid", "decode_error", "protocol_error", "signature_invalid"})
"""Reasons to end a connection that speak against the peer. A want of memory does not: others may have made it."""


def vicinity_of(config: NetworkConfig, relays: Iterable[Endpoint] = ()) -> Vicinity:
    """Return what strangers may send a node of this configuration to. Raises ConfigError."""
    listen = [host for host, _ in config.listen if host]
    first = [parse_bootstrap(text)[1] for text in config.bootstrap]
    endpoints = (*first, *map(_endpoint, config.advertise), *relays)
    return Vicinity([*listen, *(endpoint.host for endpoint in endpoints)], is_inner=config.dial_inner)


def _endpoint(text: str) -> Endpoint:
    try:
        return Endpoint.parse(text if text.startswith(("tcp:", "relay:")) else f"tcp:{text}")
    except DecodeError as error:
        raise ConfigError(f"advertised endpoint {text!r}: {error}") from None
