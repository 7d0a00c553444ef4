"""A peer: the conversation with one address, over its current connection.

It writes queued messages, passes received messages to their handlers, and migrates between connections.
``p2p.session.mux`` keeps order and limits, ``p2p.session.requests`` the requests, ``p2p.session.bulk_connections``
the bulk connections. ``p2p.session.liveness`` detects that the peer is gone. ``p2p.peers.admission`` decides which
connections become peers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import trio

from p2p.base.errors import PeerUnreachable, RecordDamaged
from p2p.base.limits import EventLoopLimiter, NetworkLimits, ReceiveMemory, SendBacklog
from p2p.base.transport import TransportFault
from p2p.secure.channel import Hello
from p2p.secure.frame import TrafficClass
from p2p.secure.handshake import Session
from p2p.session.bulk_connections import BulkConnections, MessageHandler
from p2p.session.connection import Connection, ConnectionLost
from p2p.session.liveness import Liveness, LivenessAction
from p2p.session.migration import Migration
from p2p.session.mux import Message, Mux
from p2p.session.path_offers import OfferedPath
from p2p.session.peerinfo import ConnectionStats, PeerInfo
from p2p.session.requests import Requests, Served
from p2p.session.stall_detection import is_silent, silence_limit_s
from p2p.session.usefulness import Usefulness
from state.primitives.errors import ProtocolError

__all__ = ["KIND_GOSSIP", "RESERVED_KIND_MIN", "Peer", "PeerCallbacks"]

KIND_GOSSIP: Final = 0xE8
RESERVED_KIND_MIN: Final = 0xE0
"""Kinds from here on belong to the network itself; the node's messages use lower ones."""

_CONSENSUS: Final = TrafficClass.CONSENSUS
_BULK: Final = TrafficClass.BULK
"""Cached: looking up an enumeration member costs a tenth of handling a small message."""
_LOOK_S_MIN: Final = 0.02
"""Interval of liveness checks."""
_DAMAGED_MAX: Final = 3
"""Damaged records after which the peer itself is at fault, not its lines, ..."""
_DAMAGED_S: Final = 60.0
"""... unless this much time without any has passed between them."""


@dataclass(frozen=True, slots=True)
class PeerCallbacks:
    """Functions of the network that a peer calls."""

    handlers: Mapping[int, MessageHandler]
    """Handlers of the messages (address, body) of each kind. Awaited before the next message of the same
    connection, so a peer that sends faster than its messages are handled is slowed down. A ProtocolError in a
    handler ends the peer."""
    gossip: Callable[[bytes, bytes], None]
    """Receives the gossip messages of a peer."""
    served: Callable[[str], Served | None]
    find_path: Callable[[Peer], None]
    """Called when the peer lost its connection or receives nothing on it, to open another one."""
    left_silent: Callable[[Peer, Connection, bool], None]
    """Called for a connection that was left for its silence, with whether it was dead."""
    open_bulk_connections: Callable[[Peer], bool]
    """Called when bulk waits without a bulk connection, to open some; returns whether that is tried."""
    replace_suspected: Callable[[Peer, Connection], None]
    """Called when a bulk connection stalls, to open one on another path beside it."""
    answer_request: Callable[[Peer, Mapping[int, int]], None]
    """Called when the peer requests bulk connections over own paths, because it cannot open them itself."""
    take_offered_paths: Callable[[Peer, tuple[OfferedPath, ...]], None]
    """Called when the peer has offered paths for requested bulk connections."""


class Peer:
    """A conversation after its first handshake. ``run`` lasts as long as the conversation, over any
    connections.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        own_address: bytes,
        limits: NetworkLimits,
        memory: ReceiveMemory,
        callbacks: PeerCallbacks,
    ) -> None:
        session = connection.session
        self.session: Session = session
        self.address = session.address
        self.is_outbound = session.is_initiator
        self.since = trio.current_time()
        self.account = memory.open(limits.receive_bytes_per_peer_max, lambda: self.close("receive_memory"))
        self.mux = Mux(connection.channel, account=self.account)
        self.migration = Migration(session, own_address=own_address)
        self.conversation = self.migration.conversation
        self.control: Connection | None = connection
        self.last = connection
        """The current or last connection that carries it."""
        self.is_finding_path = False
        self.rtt_s: float | None = None
        self.usefulness = Usefulness()
        self.closed_for: str | None = None
        """Why it ended: a stable code; empty before."""
        self.bulk_connections = BulkConnections(
            self, limits=limits, handlers=callbacks.handlers, bring=lambda: callbacks.open_bulk_connections(self),
            on_suspected=lambda connection: callbacks.replace_suspected(self, connection),
        )  # fmt: skip
        """The connections for its bulk beside the control connection."""
        self.requests = Requests(
            self.address, limits=limits, classes=self.mux.limits.classes, served=callbacks.served,
            say=self.queue, say_when_room=self.queue_when_room,
        )  # fmt: skip
        self._limits = limits
        self._callbacks = callbacks
        self._attached = trio.Event()
        self._wake = trio.Event()
        self._room = trio.Event()
        self._is_room_wanted = False
        self._scope = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self._liveness = Liveness(self.since, limits)
        self._until = trio.CancelScope(deadline=math.inf)
        """Cancel scope of the pause until the next liveness check."""
        self._voted_at = -math.inf
        self._damaged = 0
        self._damaged_at = -math.inf
        self._bytes_in = 0
        self._bytes_out = 0

    def __repr__(self) -> str:
        return f"Peer(0x{self.address.hex()}, {self.last})"

    # -- what is known of it ---------------------------------------------------------------------------------

    @property
    def remote(self) -> str:
        """The name of the other end of the current or last control connection."""
        return self.last.remote

    @property
    def is_attached(self) -> bool:
        """Whether a connection carries the conversation now."""
        return self.control is not None and self.closed_for is None

    @property
    def is_over(self) -> bool:
        """Whether the conversation has ended or is about to."""
        return self.closed_for is not None

    @property
    def bytes_in(self) -> int:
        """Bytes received over all connections."""
        return (
            self._bytes_in
            + self.bulk_connections.bytes_in
            + sum(connection.bytes_in for connection in self._connections())
        )

    @property
    def bytes_out(self) -> int:
        """Bytes sent over all connections."""
        return (
            self._bytes_out
            + self.bulk_connections.bytes_out
            + sum(connection.bytes_out for connection in self._connections())
        )

    def _connections(self) -> list[Connection]:
        return [*([self.control] if self.control is not None else []), *self.bulk_connections]

    def info(self, *, score: float) -> PeerInfo:
        """Return the peer's data for an operator; ``score`` is its gossip score."""
        return PeerInfo(
            address=self.address,
            roles=self.session.certificate.roles,
            is_outbound=self.is_outbound,
            remote=self.remote,
            rtt_ms=None if self.rtt_s is None else self.rtt_s * 1_000,
            score=score,
            age_s=trio.current_time() - self.since,
            bytes_in=self.bytes_in,
            bytes_out=self.bytes_out,
            bulk_connections=len(self.bulk_connections),
            moves=self.migration.generation,
            is_attached=self.is_attached,
            host=None if self.control is None else self.control.remote_host,
        )

    def connection_stats(self) -> list[ConnectionStats]:
        """Return the figures of each connection, the control connection first."""
        now = trio.current_time()
        return [
            ConnectionStats(
                is_control=connection is self.control,
                path=str(connection.endpoint or connection.remote),
                is_outbound=connection.is_outbound,
                age_s=now - connection.since,
                rtt_ms=None if connection.rtt_s is None else connection.rtt_s * 1_000,
                bytes_in=connection.bytes_in,
                bytes_out=connection.bytes_out,
                tcp=connection.tcp_info(),
            )
            for connection in self._connections()
        ]

    def is_voting(self, now: float) -> bool:
        """Whether messages of class consensus were recently sent to this peer."""
        return now - self._voted_at < self._limits.short_records_s

    @property
    def is_suspected(self) -> bool:
        """Whether the control connection has missed a deadline and nothing has arrived since."""
        return self._liveness.is_suspected

    # -- sending ---------------------------------------------------------------------------------------------

    def queue(self, cls: TrafficClass, kind: int, body: bytes) -> bool:
        """Queue a message; return False if it was refused, or if the peer was too slow and is being dropped."""
        if self.closed_for is not None:
            return False
        try:
            queued = self.mux.queue(cls, kind, body)
        except ProtocolError as error:
            self.close(error.code)
            return False
        if cls is _BULK:
            self.bulk_connections.seek()
            self.bulk_connections.wake()
        elif cls is _CONSENSUS:
            self._voted_at = now = trio.current_time()
            if self._liveness.voted(now):
                self._ping(now)
            else:
                self._hasten()
        self._wake.set()
        return queued

    async def queue_when_room(self, cls: TrafficClass, kind: int, body: bytes) -> None:
        """Queue a message once its class has room. Raises PeerUnreachable if the peer ends first."""
        while not self.queue(cls, kind, body):
            if self.closed_for is not None:
                raise PeerUnreachable(f"connection lost: {self.closed_for}")
            self._is_room_wanted = True
            await self._room.wait()

    def undelivered(self) -> list[tuple[TrafficClass, int, bytes]]:
        """Return the messages of the node that may not have arrived, once the conversation has ended."""
        return [message for message in self.mux.undelivered() if message[1] < RESERVED_KIND_MIN]

    def backlog(self) -> SendBacklog:
        """Return the bytes kept for this peer."""
        backlog = self.mux.backlog()
        return backlog._replace(size_bytes=backlog.size_bytes + self.requests.waiting_bytes)

    def request_connections(self, wishes: Mapping[int, int]) -> None:
        """Request bulk connections on offered paths of the peer."""
        self.mux.request_connections(wishes)
        self._wake.set()

    def offer_paths(self, paths: tuple[OfferedPath, ...]) -> None:
        """Tell the peer on which paths it may request bulk connections."""
        self.mux.offer_paths(paths)
        self._wake.set()

    def request_ping(self, now: float) -> None:
        """Send an extra ping unless one was just sent."""
        if self.is_attached and self._liveness.may_ask(now):
            self._ping(now)

    def wake(self) -> None:
        """Wake the writer of the control connection."""
        self._wake.set()

    def give_room(self) -> None:
        """Wake senders that wait for room."""
        if self._is_room_wanted:
            self._is_room_wanted = False
            self._room.set()
            self._room = trio.Event()

    def close(self, reason: str) -> None:
        """End the conversation; ``run`` returns soon after."""
        if self.closed_for is None:
            self.closed_for = reason
            self._room.set()
            self._scope.cancel()

    # -- life ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run the conversation until either side ends it; ``closed_for`` is then the reason."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    self.bulk_connections.start(nursery)
                    nursery.start_soon(self._write)
                    nursery.start_soon(self._watch)
                    nursery.start_soon(self._read)
        finally:
            self.closed_for = self.closed_for or "shutdown"
            self.account.close()
            self._room.set()
            self.requests.end(self.closed_for)
            control, bulk_connections = self.control, self.bulk_connections.end()
            self.control = None
            if control is not None:
                await control.part()
            for connection in bulk_connections:
                await connection.aclose()

    # -- moving to another connection ------------------------------------------------------------------------

    def may_move(self, hello: Hello, connection: Connection) -> bool:
        """Whether the conversation may continue over ``connection``, whose authenticated peer sent ``hello``."""
        return (
            self._nursery is not None
            and self.may_carry(hello, connection)
            and self.migration.may_replace(hello, connection.session, self.last.session)
        )

    def may_carry(self, hello: Hello, connection: Connection) -> bool:
        """Whether ``connection`` is for this conversation, and the conversation continues."""
        return self.closed_for is None and self.migration.may_carry(hello, connection.session)

    def attach(self, connection: Connection, hello: Hello) -> None:
        """Migrate to ``connection``; see ``may_move``. Raises FrameInvalid."""
        old = self.control
        silent_s = trio.current_time() - self._liveness.heard_at
        is_dead = is_silent(silent_s, rtt_s=self.rtt_s or 0.0, limit_s=self._limits.stall_s)
        is_waiting = self._liveness.is_waiting
        is_left = is_waiting and connection.is_outbound  # the end that accepts says a word on it and closes it
        self.mux.attach(connection.channel, hello.received)
        self.control = self.last = connection
        self.migration.generation = hello.generation
        self._liveness.attached(trio.current_time())
        if old is not None and is_left and not is_dead:
            self._count(old)
            old.retire()
            assert self._nursery is not None
            self._nursery.start_soon(self._await_word, old, silent_s, self.rtt_s or 0.0)
        elif old is not None:
            if is_dead:
                old.report_fault(TransportFault.SILENT)
                if is_waiting:
                    self._callbacks.left_silent(self, old, True)
            self._count(old)
            assert self._nursery is not None
            self._nursery.start_soon(old.leave, self.mux.received)
        self._attached.set()
        self._attached = trio.Event()
        self._wake.set()

    def _lose(self, connection: Connection) -> None:
        """Note that the control connection is lost."""
        if connection is not self.control:
            return
        self.control = None
        self.mux.detach()
        self._retire(connection)
        if not self._liveness.has_heard:  # refused, more likely than broken
            self.close("connection_lost")
            return
        self._liveness.detached(trio.current_time())
        self._callbacks.find_path(self)

    async def _await_word(self, connection: Connection, silent_s: float, rtt_s: float) -> None:
        """Find out whether a connection that was left for its silence is dead; on a live one a record of the peer
        arrives.

        Only a long enough silence counts against the path and its relays.
        """
        is_dead = await connection.is_dead(
            max(silence_limit_s(rtt_s, limit_s=self._limits.stall_s) - silent_s, 0.0)
        )
        if is_dead:
            connection.report_fault(TransportFault.SILENT)
        self._callbacks.left_silent(self, connection, is_dead)
        await connection.aclose()

    def _count(self, connection: Connection) -> None:
        self._bytes_in += connection.bytes_in
        self._bytes_out += connection.bytes_out

    def _retire(self, connection: Connection) -> None:
        self._count(connection)
        connection.retire()
        assert self._nursery is not None
        self._nursery.start_soon(connection.aclose)

    def _fail(self, connection: Connection, error: ProtocolError) -> None:
        """End the connection, or the peer if the error is its fault."""
        now = trio.current_time()
        if now - self._damaged_at > _DAMAGED_S:
            self._damaged = 0
        if isinstance(error, RecordDamaged) and self._damaged < _DAMAGED_MAX and self._liveness.has_heard:
            self._damaged += 1
            self._damaged_at = now
            connection.report_fault(TransportFault.CHANGED)
            self._lose(connection)
        else:
            self.close(error.code)

    # -- the control connection ------------------------------------------------------------------------------

    async def _write(self) -> None:
        mux = self.mux
        while True:
            connection = self.control
            is_short = self.is_voting(trio.current_time())
            record = mux.next_record(is_short=is_short) if connection is not None else None
            if connection is None or record is None:
                self._wake = trio.Event()
                await self._wake.wait()
                continue
            try:
                await connection.send(record, timeout_s=self._limits.write_timeout_s)
            except trio.TooSlowError:
                self.close("peer_too_slow")
            except ConnectionLost:
                self._lose(connection)
            self.give_room()

    async def _watch(self) -> None:
        """Carry out the actions of ``Liveness``, and open bulk connections for waiting bulk."""
        self._ping(self.since)
        while True:
            now = trio.current_time()
            due_at = max(self._liveness.due_at, now + _LOOK_S_MIN)
            with trio.CancelScope(deadline=min(now + self._limits.probe_s / 2, due_at)) as self._until:
                await trio.sleep_forever()
            now = trio.current_time()
            is_owed = self.mux.is_owed or self.bulk_connections.is_quiet
            for act in self._liveness.tick(now, is_owed=is_owed, is_finding_path=self.is_finding_path):
                match act:
                    case LivenessAction.REKEY:
                        if self.control is not None:
                            self.control.channel.rekey()
                    case LivenessAction.PING:
                        self._ping(now)
                    case LivenessAction.FIND_PATH:
                        self._callbacks.find_path(self)
                    case LivenessAction.END_SILENT:
                        self.close("peer_silent")
                    case LivenessAction.END_LOST:
                        self.close("connection_lost")
            if self.is_attached:
                self.bulk_connections.seek()

    def _ping(self, now: float) -> None:
        self._liveness.asked(now)
        if self.control is not None:
            self.mux.ping(self.control.new_ping(now))
        self._hasten()
        self._wake.set()

    def _hasten(self) -> None:
        """Wake ``_watch`` no later than liveness is due."""
        due_at = self._liveness.due_at
        if due_at < self._until.deadline:
            self._until.deadline = due_at

    async def _read(self) -> None:
        data, connection, opened = b"", self.control, 0
        handlers, gossip, address = self._callbacks.handlers, self._callbacks.gossip, self.address
        share = EventLoopLimiter(
            self.since, percent=self._limits.event_loop_percent_max, debt_s=self._limits.event_loop_burst_s
        )
        while True:
            if connection is None:
                if (connection := self.control) is None:
                    await self._attached.wait()
                continue
            try:
                started = time.thread_time()
                messages = self.mux.receive(data)
                took_s = time.thread_time() - started
                now = trio.current_time()
                if self.mux.records_opened != opened:
                    opened = self.mux.records_opened
                    self._liveness.heard(now)
                for message in messages:
                    kind = message.kind
                    if kind < RESERVED_KIND_MIN:
                        if message.cls is _CONSENSUS:
                            self._liveness.heard_vote(now)
                        handler = handlers.get(kind)
                        if handler is not None:
                            await handler(address, message.body)
                    elif kind == KIND_GOSSIP:
                        started = time.thread_time()
                        gossip(address, message.body)
                        took_s += time.thread_time() - started
                    elif Mux.is_pong(message):
                        pong_at = trio.current_time()
                        answered_s = connection.take_pong(message.body, pong_at)
                        self.rtt_s = connection.rtt_s
                        if answered_s is not None and self.rtt_s is not None:
                            self._liveness.answered(answered_s, self.rtt_s, pong_at)
                    elif Mux.is_bye(message):
                        self.close("peer_left")
                    else:
                        started = time.thread_time()
                        self.take(message)
                        took_s += time.thread_time() - started
                    if message.number:
                        self.release(message.number)
                self._hasten()
                if self.mux.has_output:  # pongs and credit
                    self._wake.set()
                self.bulk_connections.wake()
                self._take_bulk_reports()
                ahead_s = share.wait_s(took_s, now)
                if ahead_s > 0:  # short pauses: what the peer sends in earnest must not wait long either
                    await trio.sleep(ahead_s)
                data = await connection.receive()
            except ConnectionLost:
                self._lose(connection)
                data = b""
            except ProtocolError as error:
                self._fail(connection, error)
                data = b""
            if connection is not self.control:  # what else came there will be sent again
                data, connection = b"", self.control

    def take(self, message: Message) -> None:
        """Process a message of a reserved kind. Raises ProtocolError."""
        assert self._nursery is not None
        self.requests.take(message, self._nursery)

    def release(self, number: int) -> None:
        """Note that a bulk message was handled."""
        rtt_s = max((connection.rtt_s or 0.0 for connection in self._connections()), default=0.0)
        self.mux.release_bulk(number, trio.current_time(), rtt_s)

    def _take_bulk_reports(self) -> None:
        """Process the peer's reports and requests about bulk connections. Raises FrameInvalid."""
        mux = self.mux
        self.bulk_connections.hear()
        if mux.paths_offered is not None:
            paths, mux.paths_offered = mux.paths_offered, None
            self._callbacks.take_offered_paths(self, paths)
        if mux.connections_wanted:
            wanted, mux.connections_wanted = mux.connections_wanted, {}
            self._callbacks.answer_request(self, wanted)
