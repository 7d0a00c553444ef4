"""A relay's links to the next relays of routes, kept open while they are used.

Here a relay is a client of another relay. It proves its own address on a control connection, forwards the
dialler's signed route, and opens a data connection, which the daemon splices with the dialler's. Two data
connections stay parked at a relay in use, so that the next circuit takes one round trip.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

import structlog

from p2p.base.endpoint import Endpoint
from p2p.base.errors import HandshakeFailed
from p2p.base.netgroups import network_of
from p2p.base.sockets import tune
from p2p.secure.handshake import Handshake
from p2p.secure.identity import Identity, Purpose
from relay.protocol.errors import Refusal, RelayProtocolError, RelayRefused, RelayUnreachable
from relay.protocol.keep_alive import keep_alive
from relay.protocol.limits import HostTable, HostUse, RelayLimits
from relay.protocol.link_state import LinkMeasurement
from relay.protocol.wire import (
    CONTROL_PREAMBLE,
    DATA_PREAMBLE,
    JOINED,
    TOKEN_BYTES,
    ControlChannel,
    Extend,
    Message,
    Offered,
    Park,
    Ping,
    Pong,
    Refused,
    Restarting,
)
from relay.server.next_hop_eviction import NextHopUse, choose_eviction
from state.primitives.token_bucket import TokenBucket

__all__ = ["NextHopConnection", "NextHopLinks"]

PARKED: Final = 2
"""Data connections kept parked at a relay in use."""
PING_S: Final = 10
SILENT_S: Final = 25
FAILED_S: Final = 5
"""Wait before a relay that was not reached is tried again, in seconds."""
EXTENDS_PER_S: Final = 8
EXTENDS_BURST: Final = 40
"""Rate of circuits requested of one relay: it drops a client that exceeds its limits, this relay included."""
RATE_DECAY_PERCENT: Final = 98
"""The highest rate seen decays to this part each second."""

log = structlog.get_logger("relay")


class NextHopOwner(Protocol):
    """What the links call on the daemon that owns them."""

    limits: RelayLimits
    hosts: HostTable

    def identity(self) -> Identity:
        """Return the identity that this relay uses in handshakes."""
        ...

    def may_reach(self, ip: str, *, is_trusted: bool) -> bool:
        """Tell whether a client, trusted or not, may make this relay connect to ``ip``."""
        ...

    def adopt(self, transport: asyncio.Transport, ip: str) -> HostUse | None:
        """Count a connection that this relay opened; None: too many connections."""
        ...

    def connection_closed(self, transport: asyncio.Transport) -> None:
        """Count a closed connection out."""
        ...

    def next_hop_opened(self, circuit: int, connection: NextHopConnection) -> None:
        """Take the joined data connection to a circuit's next relay."""
        ...

    def next_hop_failed(self, circuit: int, refusal: Refusal) -> None:
        """Note that the next relay of a circuit was not reached, or refused."""
        ...

    def next_hop_lost(self, connection: NextHopConnection) -> None:
        """Note that a joined data connection closed before its circuit ran."""
        ...


class NextHopLinks:
    """All links of one relay to other relays, by endpoint."""

    def __init__(self, daemon: NextHopOwner) -> None:
        self._daemon = daemon
        self._loop = asyncio.get_running_loop()
        self._links: dict[Endpoint, _NextHopLink] = {}
        self._failed: dict[Endpoint, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._kept: frozenset[Endpoint] = frozenset()
        self._pinged_at = 0.0
        self._counted_at = self._loop.time()

    @property
    def known(self) -> tuple[Endpoint, ...]:
        """Relays that are connected now and accept circuits."""
        return tuple(e for e, link in self._links.items() if link.is_open and not link.is_leaving)

    def keep(self, endpoints: tuple[Endpoint, ...]) -> None:
        """Keep links to these relays open, used or not."""
        self._kept = frozenset(endpoints)

    def extend(self, circuit: int, next_hop: Endpoint, route: bytes, client_host: HostUse) -> None:
        """Extend a circuit to the relay ``next_hop``, and report the result to the daemon.

        A client in a trusted network may name hosts that are not public, and is not limited.
        """
        self._spawn(self._try_extend(circuit, next_hop, route, client_host))

    def measured(self) -> dict[bytes, LinkMeasurement]:
        """Return the measurements of the links that are open now, by the relay's address."""
        return {
            link.relay: LinkMeasurement(link.rtt_us, link.bytes_per_s)
            for link in self._links.values()
            if link.is_open and link.rtt_us is not None
        }

    def tick(self, moved: dict[Endpoint, int]) -> None:
        """Ping, close idle links, and take the bytes ``moved`` to each relay since the last call."""
        now = self._loop.time()
        elapsed_s = max(now - self._counted_at, 0.001)
        self._counted_at = now
        for endpoint, link in list(self._links.items()):
            rate = int(moved.get(endpoint, 0) / elapsed_s)
            link.bytes_per_s = max(rate, link.bytes_per_s * RATE_DECAY_PERCENT // 100)
            if moved.get(endpoint):
                link.used_at = now
        for endpoint in self._kept:
            if endpoint not in self._links and self._failed.get(endpoint, 0.0) <= now:
                self._spawn(self._try(endpoint))
        if now - self._pinged_at < PING_S:
            return
        self._pinged_at = now
        self._failed = {endpoint: until for endpoint, until in self._failed.items() if until > now}
        for endpoint, link in list(self._links.items()):
            link.ping(now)
            idle_s = self._daemon.limits.relay_idle_ms_max / 1000
            if endpoint not in self._kept and now - link.used_at > idle_s:
                link.close("idle")

    def close(self) -> None:
        """Close all links."""
        for task in self._tasks:
            task.cancel()
        for link in list(self._links.values()):
            link.close("closed")

    def _spawn(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _try(self, endpoint: Endpoint) -> None:
        try:
            async with asyncio.timeout(self._daemon.limits.handshake_ms_max / 1000):
                await self._link(endpoint, None)
        except (RelayUnreachable, RelayRefused, TimeoutError):
            self._failed[endpoint] = self._loop.time() + FAILED_S

    async def _try_extend(self, circuit: int, next_hop: Endpoint, route: bytes, client_host: HostUse) -> None:
        connection: NextHopConnection | None = None
        try:
            async with asyncio.timeout(self._daemon.limits.pending_ms_max / 1000):
                link = await self._link(next_hop, None if client_host.is_trusted else client_host)
                if not link.extends.take(int(self._loop.time() * 1000)):
                    raise RelayRefused(Refusal.TOO_FAST)
                connection = await self._extend(link, route)
        except RelayRefused as error:
            self._daemon.next_hop_failed(circuit, error.refusal)
        except (RelayUnreachable, TimeoutError, OSError) as error:
            log.debug("next hop not reached", relay=str(next_hop), error=str(error) or type(error).__name__)
            self._daemon.next_hop_failed(circuit, Refusal.NEXT_UNREACHABLE)
        else:
            self._daemon.next_hop_opened(circuit, connection)

    async def _extend(self, link: _NextHopLink, route: bytes) -> NextHopConnection:
        connection = link.take_parked()
        token = b"" if connection is None else connection.token
        try:
            answer = await link.ask(lambda request: Extend(request, route, token))
            match answer:
                case Offered(_, offered, _) if connection is not None and offered == token:
                    pass
                case Offered(_, offered, _):
                    if connection is not None:
                        connection.transport.abort()  # died on the way; the relay expects another
                    connection = await self._open_data(link, offered)
                case Refused(_, refusal, _):
                    raise RelayRefused(refusal)
                case _:
                    link.close("another answer")
                    raise RelayUnreachable("an answer to another question")
            await connection.joined
        except BaseException:
            if connection is not None:
                connection.transport.abort()
            raise
        self._spawn(self._refill(link))
        return connection

    async def _refill(self, link: _NextHopLink) -> None:
        """Keep data connections waiting at a relay that is used."""
        while link.is_open and len(link.parked) + link.parking < PARKED:
            token = secrets.token_bytes(TOKEN_BYTES)
            link.parking += 1
            try:
                link.send(Park(token))
                connection = await self._open_data(link, token)
            except (RelayUnreachable, OSError):
                return
            finally:
                link.parking -= 1
            if not link.is_open:
                connection.transport.abort()
                return
            link.parked.append(connection)

    async def _open_data(self, link: _NextHopLink, token: bytes) -> NextHopConnection:
        connection = NextHopConnection(self._daemon, link, token)
        try:
            await self._loop.create_connection(lambda: connection, link.ip, link.endpoint.port)
        except OSError as error:
            raise RelayUnreachable(str(error)) from None
        connection.transport.write(DATA_PREAMBLE + token)
        return connection

    async def _link(self, endpoint: Endpoint, client_host: HostUse | None) -> _NextHopLink:
        """Return the open link to a relay. Raises RelayUnreachable, RelayRefused.

        ``client_host`` is the host that requested it; None: the operator, or a host of a trusted network.
        """
        link = self._links.get(endpoint)
        if link is None:
            now = self._loop.time()
            if self._failed.get(endpoint, 0.0) > now:
                raise RelayUnreachable("failed a moment ago")
            self._make_room(client_host, int(now * 1000))
            link = self._links[endpoint] = _NextHopLink(self._daemon, endpoint, client_host, self._forget)
            self._spawn(self._open(link))
        await asyncio.shield(link.opened)
        if link.is_leaving:
            raise RelayRefused(Refusal.RESTARTING)
        link.used_at = self._loop.time()
        return link

    def _make_room(self, client_host: HostUse | None, now_ms: int) -> None:
        """Evict a link for a new one that ``client_host`` requests. Raises RelayRefused if none may be evicted."""
        uses = [
            NextHopUse(endpoint, link.client_host, int(link.used_at * 1000), endpoint in self._kept)
            for endpoint, link in self._links.items()
        ]
        room = choose_eviction(uses, client_host, self._daemon.limits, now_ms)
        if room.refusal is not None:
            raise RelayRefused(room.refusal)
        if room.evicted is not None:
            self._links[room.evicted].close("evicted for another link")

    async def _open(self, link: _NextHopLink) -> None:
        endpoint = link.endpoint
        try:
            async with asyncio.timeout(self._daemon.limits.handshake_ms_max / 1000):
                found = await self._loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
                ips = [str(item[4][0]) for item in found]
                link.ip = next((ip for ip in ips if self._may_link(link, ip)), "")
                if not link.ip:
                    raise RelayUnreachable("no address that clients may reach, or too many links to its network")
                await self._loop.create_connection(lambda: link, link.ip, endpoint.port)
                await asyncio.shield(link.opened)
        except (OSError, ValueError, TimeoutError, RelayUnreachable) as error:
            self._failed[endpoint] = self._loop.time() + FAILED_S
            link.close(str(error) or "too slow")

    def _may_link(self, link: _NextHopLink, ip: str) -> bool:
        """Tell whether a link may lead to ``ip``: links named by clients are limited for each network."""
        if not self._daemon.may_reach(ip, is_trusted=link.client_host is None):
            return False
        host = self._daemon.hosts.use(ip, int(self._loop.time() * 1000))
        if link.client_host is None or host is None or host.is_trusted:
            return True
        network = network_of(ip)
        others = [other for other in self._links.values() if other.client_host is not None and other.ip]
        count = sum(network_of(other.ip) == network for other in others)
        return count < self._daemon.limits.relays_per_network_max

    def _forget(self, link: _NextHopLink) -> None:
        if self._links.get(link.endpoint) is link:
            del self._links[link.endpoint]


class _NextHopLink(asyncio.Protocol):
    """One control connection to another relay."""

    def __init__(
        self,
        daemon: NextHopOwner,
        endpoint: Endpoint,
        client_host: HostUse | None,
        on_closed: Callable[[_NextHopLink], None],
    ) -> None:
        assert endpoint.relay is not None
        self.endpoint = endpoint
        self.client_host = client_host
        """The host of the client that named this relay; None: configured, or named by a trusted client."""
        self.relay: bytes = endpoint.relay
        self.ip = ""
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_leaving = False
        """Whether the relay announced its end."""
        self.rtt_us: int | None = None
        self.bytes_per_s = 0
        self.used_at = asyncio.get_running_loop().time()
        self.parked: list[NextHopConnection] = []
        self.parking = 0
        self.extends = TokenBucket(EXTENDS_PER_S, EXTENDS_BURST, int(self.used_at * 1000))
        limits = daemon.limits
        self._messages = TokenBucket(limits.messages_per_s, limits.messages_burst, int(self.used_at * 1000))
        """Limits the messages of the other relay: any client can name any host as a relay."""
        self._daemon = daemon
        self._on_closed = on_closed
        self._transport: asyncio.Transport | None = None
        self._handshake: Handshake | None = None
        self._channel: ControlChannel | None = None
        self._calls: dict[int, asyncio.Future[Message]] = {}
        self._number = 0
        self._heard_at = self._hello_at = self.used_at
        self._pings: dict[int, float] = {}
        self._is_closed = False
        self._is_counted = False

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self._channel is not None and not self._is_closed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._is_closed or self._daemon.adopt(self._transport, self.ip) is None:
            self.close("too many connections")
            self._transport.abort()
            return
        self._is_counted = True
        tune(cast(Any, self._transport.get_extra_info("socket")))
        self._handshake = Handshake(
            self._daemon.identity(), Purpose.RELAY_CONTROL, is_initiator=True,
            now_ms=time.time_ns() // 1_000_000, expected=self.relay,
        )  # fmt: skip
        self._hello_at = asyncio.get_running_loop().time()
        self._transport.write(CONTROL_PREAMBLE + self._handshake.start())

    def data_received(self, data: bytes) -> None:
        if self._is_closed:
            return
        assert self._transport is not None
        self._heard_at = asyncio.get_running_loop().time()
        try:
            if self._channel is None:
                assert self._handshake is not None
                answer = self._handshake.receive(data)
                if answer:
                    self.rtt_us = int((self._heard_at - self._hello_at) * 1_000_000)
                    self._transport.write(answer)
                if self._handshake.session is None:
                    return
                self._channel, self._handshake, data = ControlChannel(self._handshake.session), None, b""
                self.ping(self._heard_at)
                if not self.opened.done():
                    self.opened.set_result(None)
            for message in self._channel.receive(data):
                if self._is_closed:
                    return
                if not self._messages.take(int(self._heard_at * 1000)):
                    raise RelayProtocolError("more messages than a relay may send")
                self._take(message)
        except (HandshakeFailed, RelayProtocolError) as error:
            self.close(str(error))

    def _take(self, message: Message) -> None:
        match message:
            case Offered(request) | Refused(request):
                call = self._calls.pop(request, None)
                if call is not None and not call.done():
                    call.set_result(message)
            case Pong(number):
                sent_at = self._pings.pop(number, None)
                if sent_at is not None:
                    sample = int((self._heard_at - sent_at) * 1_000_000)
                    self.rtt_us = sample if self.rtt_us is None else (3 * self.rtt_us + sample) // 4
            case Ping(number):
                self.send(Pong(number))
            case Restarting():
                self.is_leaving = True
            case _:
                return  # terms and announcements for clients, which this relay does not use

    def send(self, message: Message) -> None:
        """Send a message if the link is open; if the other relay does not read, the link closes."""
        if self.is_open:
            assert self._channel is not None and self._transport is not None
            self._transport.write(self._channel.seal(message))
            if self._transport.get_write_buffer_size() > self._daemon.limits.control_backlog_bytes_max:
                self.close("does not read")

    def ping(self, now: float) -> None:
        """Measure the round trip, or close the link to a silent relay."""
        if now - self._heard_at > SILENT_S:
            self.close("silent")
            return
        self._number = (self._number + 1) % 2**31
        self._pings = {self._number: now}
        self.send(Ping(self._number))

    async def ask(self, question: Callable[[int], Message]) -> Message:
        """Send a request and return the answer. Raises RelayUnreachable."""
        if not self.is_open:
            raise RelayUnreachable("the link has ended")
        self._number = (self._number + 1) % 2**31
        number = self._number
        call: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._calls[number] = call
        try:
            self.send(question(number))
            return await call
        finally:
            self._calls.pop(number, None)

    def take_parked(self) -> NextHopConnection | None:
        """Return a data connection parked at the other relay, if there is one."""
        while self.parked:
            connection = self.parked.pop()
            if not connection.transport.is_closing():
                return connection
        return None

    def close(self, reason: str) -> None:
        """Close the link; circuits that run over its data connections go on."""
        if self._is_closed:
            return
        self._is_closed = True
        error = RelayUnreachable(f"{self.endpoint}: {reason}")
        waited: list[asyncio.Future[Any]] = [self.opened, *self._calls.values()]
        for future in waited:
            if not future.done():
                future.set_exception(error)
                future.exception()  # mark it as seen: without a waiter it is not a bug
        for connection in self.parked:
            connection.transport.abort()
        self.parked.clear()
        if self._transport is not None:
            self._transport.abort()
        self._on_closed(self)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.close("connection lost")
        if self._is_counted:
            assert self._transport is not None
            self._daemon.connection_closed(self._transport)


class NextHopConnection(asyncio.Protocol):
    """A data connection to the next relay, until it is one end of a running circuit."""

    transport: asyncio.Transport

    def __init__(self, daemon: NextHopOwner, link: _NextHopLink, token: bytes) -> None:
        self._daemon = daemon
        self._link = link
        self.token = token
        self.endpoint = link.endpoint
        self.number = 0
        """Its number at the daemon, once its circuit is joined."""
        self.early = b""
        self.joined: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_counted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection."""
        self.transport = cast(asyncio.Transport, transport)
        if self._daemon.adopt(self.transport, self._link.ip) is None:
            self._fail(RelayUnreachable("too many connections"))
            self.transport.abort()
            return
        self._is_counted = True
        tune(cast(Any, self.socket()))
        keep_alive(self.socket())

    def socket(self) -> socket.socket:
        """Return the socket, for its options only."""
        return cast(socket.socket, self.transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        """Take the other relay's status byte."""
        if self.joined.done():
            self.early += data  # received with the status byte; reading is paused since then
            return
        if data[0] == JOINED:
            self.early = data[1:]
            self.transport.pause_reading()
            self.joined.set_result(None)
            return
        try:
            self._fail(RelayRefused(Refusal(data[0])))
        except ValueError:
            self._fail(RelayUnreachable(f"status {data[0]} of a data connection"))
        self.transport.abort()

    def refuse(self, _refusal: Refusal) -> None:
        """Close: the circuit failed on the other side."""
        self.transport.abort()

    def _fail(self, error: Exception) -> None:
        if not self.joined.done():
            self.joined.set_exception(error)
            self.joined.exception()

    def eof_received(self) -> bool:
        """Close both directions: the circuit does not run yet."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """Count the connection out."""
        self._fail(RelayUnreachable("closed before the circuit was joined"))
        if self in self._link.parked:
            self._link.parked.remove(self)
        if self._is_counted:
            self._daemon.connection_closed(self.transport)
        if self.number:
            self._daemon.next_hop_lost(self)
