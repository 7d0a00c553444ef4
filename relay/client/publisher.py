"""A node's fan-out connections to relays, on trio: it publishes pieces and receives those of other publishers.

If a relay fails, lies or falls silent, the pieces under way are lost; receivers fetch them from peers.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

import structlog
import trio

from p2p.base.endpoint import Endpoint
from p2p.base.errors import HandshakeFailed
from p2p.base.limits import EventLoopLimiter
from p2p.base.sockets import CONNECT_ERRORS, LowWater, Opener, tune
from p2p.secure.handshake import Handshake
from p2p.secure.identity import Identity, Purpose
from p2p.session.connection import run_handshake
from relay.protocol.errors import RelayProtocolError, RelayUnreachable
from relay.protocol.fanout import (
    FANOUT_PREAMBLE,
    GROUPS_MAX,
    MEMBERS_MAX,
    PIECE_BYTES_MAX,
    PUBLISHERS_MAX,
    Delivery,
    FanoutChannel,
    FanoutMessage,
    Group,
    Ping,
    Pong,
    Publish,
    Subscribe,
)

__all__ = ["FanoutClient", "FanoutOptions"]

RECEIVE_BYTES: Final = 256 * 1024
log = structlog.get_logger("relay")


@dataclass(frozen=True, slots=True)
class FanoutOptions:
    """Durations in seconds and limits of the fan-out client."""

    connect_s_max: float = 10
    ping_s: float = 15
    silence_s_max: float = 40
    """A relay that stays silent for this long is dead."""
    idle_s: float = 300
    """A connection without subscription is closed this long after its last piece."""
    backoff_s_min: float = 0.25
    backoff_s_max: float = 15
    event_loop_percent_max: int = 75
    event_loop_burst_s: float = 0.1
    """Limits of the event loop's time that the pieces of one relay may take, as for a peer."""
    relays_max: int = 16
    """Relays connected to at once."""


class FanoutClient:
    """``p2p.base.transport.Fanout`` over relays; ``make_identity`` is called before each handshake.

    ``on_published`` hears of each piece that a relay was given: which one, and how many bytes all copies may be.
    """

    def __init__(
        self,
        make_identity: Callable[[], Identity],
        options: FanoutOptions | None = None,
        *,
        on_published: Callable[[Endpoint, int], None] = lambda _relay, _size_bytes: None,
        connect: Opener = trio.open_tcp_stream,
    ) -> None:
        self._make_identity = make_identity
        self._connect = connect
        self._on_published = on_published
        self._options = options or FanoutOptions()
        self._nursery: trio.Nursery | None = None
        self._receive: Callable[[bytes, bytes, bytes], None] = lambda _relay, _publisher, _piece: None
        self._connections: dict[bytes, _FanoutConnection] = {}
        self._wanted: dict[bytes, Endpoint] = {}
        self._kept: dict[bytes, trio.CancelScope] = {}
        self._publishers: tuple[bytes, ...] = ()

    @property
    def waiting_at(self) -> tuple[bytes, ...]:
        """Addresses of the relays from which pieces can arrive now."""
        return tuple(
            relay
            for relay, connection in self._connections.items()
            if connection.is_open and relay in self._wanted
        )

    async def run(self, receive: Callable[[bytes, bytes, bytes], None]) -> None:
        """Serve until cancelled; see ``p2p.base.transport.Fanout``."""
        assert self._nursery is None, "runs already"
        self._receive = receive
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._reconcile()
                await trio.sleep_forever()
        finally:
            self._nursery = None
            self._connections.clear()
            self._kept.clear()

    def subscribe(self, relays: Collection[Endpoint], publishers: Collection[bytes]) -> None:
        """Receive the pieces of ``publishers`` from ``relays`` from now on; replaces the last subscription."""
        self._wanted = {endpoint.relay: endpoint for endpoint in relays if endpoint.relay is not None}
        self._wanted = dict(list(self._wanted.items())[: self._options.relays_max])
        accepted = tuple(sorted(publishers))[:PUBLISHERS_MAX]
        if accepted != self._publishers:
            self._publishers = accepted
            for connection in self._connections.values():
                connection.accept(accepted)
        self._reconcile()

    async def publish(self, relay: Endpoint, members: Collection[bytes], piece: bytes) -> None:
        """Send a relay one piece for ``members``; see ``p2p.base.transport.Fanout``."""
        assert len(piece) <= PIECE_BYTES_MAX and len(members) <= MEMBERS_MAX
        connection = await self._connection(relay)
        await connection.publish(frozenset(members), piece)
        self._on_published(relay, len(piece) * len(members))

    def _reconcile(self) -> None:
        """Keep a connection to each subscribed relay and end the others."""
        if self._nursery is None:
            return
        for relay, scope in list(self._kept.items()):
            if relay not in self._wanted:
                scope.cancel()
                del self._kept[relay]
        for relay in self._wanted:
            if relay not in self._kept:
                self._kept[relay] = trio.CancelScope()
                self._nursery.start_soon(self._keep, relay, self._kept[relay])

    async def _keep(self, relay: bytes, scope: trio.CancelScope) -> None:
        options = self._options
        failures = 0
        with scope:
            while True:
                began = trio.current_time()
                endpoint = self._wanted[relay]  # its endpoint may have changed
                try:
                    connection = await self._connection(endpoint)
                    await connection.ended.wait()
                except RelayUnreachable as error:
                    log.debug("relay not reached for fan-out", relay=str(endpoint), detail=str(error))
                if trio.current_time() - began > options.backoff_s_max:
                    failures = 0
                pause_s = min(options.backoff_s_max, options.backoff_s_min * 2 ** min(failures, 16))
                failures += 1
                await trio.sleep(pause_s * random.uniform(0.5, 1))

    async def _connection(self, endpoint: Endpoint) -> _FanoutConnection:
        """Return the open connection to a relay, connecting first where there is none. Raises RelayUnreachable."""
        relay = endpoint.relay
        if relay is None or self._nursery is None:
            raise RelayUnreachable("no relay, or the fan-out client does not run")
        connection = self._connections.get(relay)
        if connection is None or connection.error is not None:
            if len(self._connections) >= self._options.relays_max and relay not in self._wanted:
                raise RelayUnreachable("connected to as many relays as allowed")
            connection = self._connections[relay] = _FanoutConnection(
                self._make_identity(), endpoint, relay, self._options, self._connect
            )  # fmt: skip
            connection.accept(self._publishers)
            self._nursery.start_soon(self._run_connection, connection)
        await connection.opened.wait()
        if connection.error is not None:
            raise RelayUnreachable(f"{endpoint}: {connection.error}")
        return connection

    async def _run_connection(self, connection: _FanoutConnection) -> None:
        try:
            await connection.run(self._receive, lambda: connection.relay in self._wanted)
        finally:
            if self._connections.get(connection.relay) is connection:
                del self._connections[connection.relay]


class _FanoutConnection:
    """One fan-out connection to one relay."""

    channel: FanoutChannel

    def __init__(
        self, identity: Identity, endpoint: Endpoint, relay: bytes, options: FanoutOptions, connect: Opener
    ) -> None:
        self._connect = connect
        self.endpoint = endpoint
        self.relay = relay
        self.opened = trio.Event()
        """Set when pieces can be sent, or when ``error`` says why not."""
        self.ended = trio.Event()
        self.error: Exception | None = None
        self._identity = identity
        self._options = options
        self._stream: trio.SocketStream | None = None
        self._scope = trio.CancelScope()
        self._lock = trio.Lock()
        self._accepted: dict[bytes, None] = {}
        self._told: dict[bytes, None] | None = None
        self._news = trio.Event()
        self._groups: dict[frozenset[bytes], int] = {}
        self._next_group = 0
        self._heard = self._used = -math.inf

    @property
    def is_open(self) -> bool:
        """Whether pieces can be sent."""
        return self.opened.is_set() and self.error is None

    def accept(self, publishers: tuple[bytes, ...]) -> None:
        """Set the publishers to subscribe to; the relay is told soon."""
        self._accepted = dict.fromkeys(publishers)
        self._news.set()

    async def run(self, receive: Callable[[bytes, bytes, bytes], None], is_wanted: Callable[[], bool]) -> None:
        """Connect and serve until something fails; afterwards ``error`` says what."""
        try:
            with self._scope:
                if await self._open():
                    self.opened.set()
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._ping, is_wanted)
                        nursery.start_soon(self._tell)
                        await self._read(receive)
        finally:
            if self.error is None:
                self.error = RelayUnreachable("the connection was closed")
            self.opened.set()
            self.ended.set()
            if self._stream is not None:
                await trio.aclose_forcefully(self._stream)

    async def publish(self, members: frozenset[bytes], piece: bytes) -> None:
        """Send a piece once the socket has room. Raises RelayUnreachable."""
        async with self._lock:
            # Wait until the kernel has sent what it holds, so that a piece is not queued behind older ones.
            await self._wait_room()
            messages: list[FanoutMessage] = []
            group = self._groups.get(members)
            if group is None:
                group, self._next_group = self._next_group, (self._next_group + 1) % GROUPS_MAX
                self._groups = {known: number for known, number in self._groups.items() if number != group}
                self._groups[members] = group
                messages.append(Group(group, tuple(sorted(members))))
            await self._send([*messages, Publish(group, len(piece))], piece)
        self._used = trio.current_time()

    async def _wait_room(self) -> None:
        if self.error is not None or self._stream is None:
            raise RelayUnreachable(f"{self.endpoint}: {self.error}")
        try:
            await self._stream.wait_send_all_might_not_block()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise RelayUnreachable(f"{self.endpoint}: the connection broke") from error

    async def _send(self, messages: list[FanoutMessage], piece: bytes = b"") -> None:
        """Send under the lock; a cancellation in the middle ends the connection."""
        assert self._stream is not None
        is_whole = False
        try:
            await self._stream.send_all(b"".join((*map(self.channel.seal, messages), piece)))
            is_whole = True
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise RelayUnreachable(f"{self.endpoint}: the connection broke") from error
        finally:
            if not is_whole:
                self._fail(RelayUnreachable("the connection broke, or a piece was given up in the middle"))

    def _fail(self, error: Exception) -> None:
        if self.error is None:
            self.error = error
        self._scope.cancel()

    async def _open(self) -> bool:
        try:
            with trio.fail_after(self._options.connect_s_max):
                stream = await self._connect(self.endpoint.host, self.endpoint.port)
                self._stream = stream
                tune(stream.socket)
                handshake = Handshake(
                    self._identity,
                    Purpose.RELAY_FANOUT,
                    is_initiator=True,
                    now_ms=time.time_ns() // 1_000_000,
                    expected=self.relay,
                )
                session = await run_handshake(stream, handshake, preamble=FANOUT_PREAMBLE)
        except (*CONNECT_ERRORS, HandshakeFailed) as error:
            self._fail(error if str(error) else RelayUnreachable("too slow to answer"))
            return False
        self.channel = FanoutChannel(session)
        self._heard = self._used = trio.current_time()
        return True

    async def _read(self, receive: Callable[[bytes, bytes, bytes], None]) -> None:
        assert self._stream is not None
        data = b""
        low_water = LowWater(self._stream.socket, limit=PIECE_BYTES_MAX)
        options = self._options
        share = EventLoopLimiter(
            trio.current_time(), percent=options.event_loop_percent_max, debt_s=options.event_loop_burst_s
        )
        while True:
            started = time.thread_time()
            try:
                messages = self.channel.receive(data)
            except RelayProtocolError as error:
                self._fail(error)
                return
            for message, piece in messages:
                match message:
                    case Delivery(publisher) if publisher in self._accepted:
                        receive(self.relay, publisher, piece)
                    case Delivery() | Pong():  # not subscribed to, or no longer
                        pass
                    case _:
                        self._fail(RelayProtocolError("a client's message from a relay"))
                        return
            low_water.expect(self.channel.lacking)
            ahead_s = share.wait_s(time.thread_time() - started, trio.current_time())
            if ahead_s > 0:
                await trio.sleep(ahead_s)
            try:
                data = bytes(await self._stream.receive_some(RECEIVE_BYTES))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                data = b""
            if not data:
                self._fail(RelayUnreachable("the relay closed the connection"))
                return
            self._heard = trio.current_time()

    async def _tell(self) -> None:
        """Send the subscription to the relay, at first and whenever it changes."""
        while True:
            self._news = trio.Event()
            if self._told != self._accepted:
                self._told = self._accepted
                await self._write(Subscribe(tuple(self._accepted)))
            await self._news.wait()

    async def _ping(self, is_wanted: Callable[[], bool]) -> None:
        options = self._options
        while True:
            await trio.sleep(options.ping_s)
            now = trio.current_time()
            if now - self._heard > options.silence_s_max:
                self._fail(RelayUnreachable("the relay fell silent"))
            elif now - self._used > options.idle_s and not is_wanted():
                self._fail(RelayUnreachable("the connection was idle"))
            else:
                await self._write(Ping(0))

    async def _write(self, message: FanoutMessage) -> None:
        try:
            async with self._lock:
                await self._wait_room()
                await self._send([message])
        except RelayUnreachable:
            return  # the connection is ending
