"""One control connection of a node to a relay, on trio: requests, pings, and the announcements of the relay."""

from __future__ import annotations

import errno
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

import trio

from p2p.base.endpoint import Endpoint
from p2p.base.errors import HandshakeFailed
from p2p.base.limits import EventLoopLimiter
from p2p.base.sockets import CONNECT_ERRORS, Opener, tune
from p2p.secure.handshake import Handshake
from p2p.secure.identity import Identity, Purpose
from p2p.session.connection import run_handshake
from relay.client.options import RelayClientOptions
from relay.client.reputation import Fault
from relay.protocol.errors import RelayProtocolError, RelayUnreachable
from relay.protocol.wire import (
    CONTROL_PREAMBLE,
    Charged,
    ControlChannel,
    Decline,
    Incoming,
    LinkStateReply,
    Message,
    Offered,
    Ping,
    Pong,
    Refused,
    Reserved,
    Restarting,
    Terms,
)

__all__ = ["ControlLink", "ControlLinkOwner", "ParkedConnection", "is_no_route", "local_host", "wall_ms"]

RECEIVE_BYTES: Final = 4_096
NUMBERS: Final = 2**31
OUTBOX_MESSAGES_MAX: Final = 64
"""Messages that may wait unsent; a relay that provokes more without reading them loses the link."""
_NO_ROUTE: Final = frozenset((errno.ENETUNREACH, errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL))


@dataclass(slots=True, eq=False)
class _Call:
    answered: trio.Event = field(default_factory=trio.Event)
    answer: Message | None = None


@dataclass(slots=True, eq=False)
class ParkedConnection:
    """A data connection that waits at a relay to become one end of a circuit, dialled or incoming."""

    token: bytes
    stream: trio.SocketStream
    is_asked: bool = False
    """Whether this node has requested a circuit over it."""
    status: int | None = None
    """The status byte that the relay sent; -1: the connection closed; None: still waiting."""
    done: trio.Event = field(default_factory=trio.Event)


class ControlLinkOwner(Protocol):
    """What a control link calls on the client that owns it."""

    @property
    def connect(self) -> Opener:
        """Opens TCP connections."""

    def incoming(self, link: ControlLink, message: Incoming) -> bool:
        """Open the data connection of an incoming circuit; False: too many at once."""

    def terms(self, link: ControlLink, terms: Terms) -> None:
        """Take a relay's terms."""

    def charged(self, link: ControlLink, size_bytes: int) -> None:
        """Take a relay's claim of the bytes carried."""

    def leaving(self, link: ControlLink, left_ms: int) -> None:
        """Take a relay's announcement that it ends in ``left_ms``."""

    def measured(self, endpoint: Endpoint, rtt_s: float) -> None:
        """Take a round trip to a relay."""

    def has_circuits(self, endpoint: Endpoint) -> bool:
        """Tell whether circuits run through this relay."""

    def heard_at(self, endpoint: Endpoint) -> float:
        """Return when bytes last arrived over a circuit through this relay."""

    def cut(self, endpoint: Endpoint) -> None:
        """End the circuits through a relay that fell silent."""


class ControlLink:
    """One control connection to one relay."""

    channel: ControlChannel

    def __init__(
        self, owner: ControlLinkOwner, identity: Identity, endpoint: Endpoint, options: RelayClientOptions
    ) -> None:
        assert endpoint.relay is not None
        self.endpoint = endpoint
        self.relay: bytes = endpoint.relay
        self.own_address = identity.address
        self.opened = trio.Event()
        """Set when requests can be sent, or when ``error`` says why not."""
        self.ended = trio.Event()
        self.error: Exception | None = None
        self.fault: Fault | None = None
        """The fault of the relay that ended the link; None: no fault."""
        self.is_reserving = False
        """Whether the link holds a reservation and stays open while idle."""
        self.has_no_route = False
        """Whether this machine has no route to such an address: a host without IPv6 and an IPv6 address."""
        self.used_at = -math.inf
        """When a circuit last began through this relay."""
        self.parked: list[ParkedConnection] = []
        self.parking = 0
        self._owner = owner
        self._identity = identity
        self._options = options
        self._stream: trio.SocketStream | None = None
        # One task encrypts and sends: a cancelled request then leaves no record half sent.
        self._outbox, self._to_send = trio.open_memory_channel[Message](OUTBOX_MESSAGES_MAX)
        self._scope = trio.CancelScope()
        self._calls: dict[int, _Call] = {}
        self._number = 0
        self.heard_at = -math.inf
        """When the relay last sent a message."""
        self._pinged: tuple[int, float] | None = None
        self._used = trio.current_time()

    @property
    def local_host(self) -> str | None:
        """The address of this machine that the link uses, once it is connected."""
        return None if self._stream is None else local_host(self._stream.socket)

    async def run(self) -> None:
        """Connect and serve until something fails; afterwards ``error`` says what."""
        try:
            with self._scope:
                if await self._open():
                    self.opened.set()
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._ping)
                        nursery.start_soon(self._write)
                        await self._read()
        finally:
            if self.error is None:
                self.error = RelayUnreachable("the link was closed")
            self.opened.set()
            self.ended.set()
            for call in self._calls.values():
                call.answered.set()
            if self._stream is not None:
                await trio.aclose_forcefully(self._stream)

    def fail(self, error: Exception, fault: Fault | None = None) -> Exception:
        """End the link because of ``error``, which is returned."""
        if self.error is None:
            self.error = error
            self.fault = Fault.PROTOCOL_VIOLATION if isinstance(error, RelayProtocolError) else fault
        self._scope.cancel()
        return error

    async def ask(self, question: Callable[[int], Message]) -> Message:
        """Send a request and return the relay's answer. Raises RelayUnreachable."""
        self._used = trio.current_time()
        self._number = (self._number + 1) % NUMBERS
        number, call = self._number, _Call()
        self._calls[number] = call
        try:
            with trio.move_on_after(self._options.answer_s_max):
                await self._outbox.send(question(number))
                await call.answered.wait()
        finally:
            del self._calls[number]
        if call.answer is None:
            raise RelayUnreachable(f"{self.endpoint}: {self.error or 'no answer'}")
        return call.answer

    def take_parked(self) -> ParkedConnection | None:
        """Return a parked data connection, for a request of this node."""
        if not self.parked:
            return None
        parked = self.parked.pop()
        parked.is_asked = True
        return parked

    async def _open(self) -> bool:
        try:
            with trio.fail_after(self._options.connect_s_max):
                began = trio.current_time()
                stream = await self._owner.connect(self.endpoint.host, self.endpoint.port)
                self._stream = stream
                connected_s = trio.current_time() - began
                tune(stream.socket)
                handshake = Handshake(
                    self._identity,
                    Purpose.RELAY_CONTROL,
                    is_initiator=True,
                    now_ms=wall_ms(),
                    expected=self.relay,
                )
                session = await run_handshake(stream, handshake, preamble=CONTROL_PREAMBLE)
        except (*CONNECT_ERRORS, HandshakeFailed) as error:
            self.has_no_route = self._stream is None and is_no_route(error)
            fault = None if self.has_no_route else Fault.UNREACHABLE  # which is no fault of the relay
            self.fail(error if str(error) else RelayUnreachable("too slow to answer"), fault)
            return False
        self.channel = ControlChannel(session)
        self.heard_at = trio.current_time()
        self._owner.measured(self.endpoint, connected_s)
        return True

    async def _read(self) -> None:
        assert self._stream is not None
        data = b""  # bytes received with the handshake are in the channel already
        options = self._options
        share = EventLoopLimiter(
            trio.current_time(), percent=options.event_loop_percent_max, debt_s=options.event_loop_burst_s
        )
        while True:
            started = time.thread_time()
            try:
                messages = self.channel.receive(data)
            except RelayProtocolError as error:
                self.fail(error)
                return
            for message in messages:
                self._take(message)
            ahead_s = share.wait_s(time.thread_time() - started, trio.current_time())
            if ahead_s > 0:
                await trio.sleep(ahead_s)
            try:
                data = bytes(await self._stream.receive_some(RECEIVE_BYTES))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                data = b""
            if not data:
                self.fail(RelayUnreachable("the relay closed the connection"), Fault.LOST)
                return
            self.heard_at = trio.current_time()

    def _take(self, message: Message) -> None:
        match message:
            case Reserved(request) | Offered(request) | Refused(request) | LinkStateReply(request):
                call = self._calls.get(request)
                if call is not None:  # else the request was cancelled
                    call.answer = message
                    call.answered.set()
            case Incoming(token):
                if not self._owner.incoming(self, message):
                    self.post(Decline(token))
            case Ping(number):
                self.post(Pong(number))
            case Pong(number):
                if self._pinged is not None and self._pinged[0] == number:
                    now = trio.current_time()
                    self._owner.measured(self.endpoint, now - self._pinged[1])
                    self._pinged = None
            case Terms():
                self._owner.terms(self, message)
            case Charged(size_bytes):
                self._owner.charged(self, size_bytes)
            case Restarting(left_ms):
                self._owner.leaving(self, left_ms)
            case _:
                self.fail(RelayProtocolError("a client's message from a relay"))

    async def _ping(self) -> None:
        options = self._options
        number, asked_at = 0, -math.inf
        while True:
            await trio.sleep(min(options.ping_s, options.busy_ping_s))
            now = trio.current_time()
            is_busy = self._owner.has_circuits(self.endpoint)
            pause_s = min(options.ping_s, options.busy_ping_s) if is_busy else options.ping_s
            silent_s = min(options.answer_s_max, options.busy_silent_s) if is_busy else options.answer_s_max
            heard = max(self.heard_at, self._owner.heard_at(self.endpoint))
            if heard < asked_at and now - asked_at > silent_s:
                self.fail(RelayUnreachable("the relay fell silent"), Fault.LOST)
                self._owner.cut(self.endpoint)
                return
            if is_busy:
                self._used = now
            elif not self.is_reserving and not self._calls and now - self._used > options.link_idle_s:
                self.fail(RelayUnreachable("the link was idle"))
                return
            if heard >= asked_at and now - asked_at >= pause_s * 0.99:
                number = (number + 1) % NUMBERS
                asked_at, self._pinged = now, (number, now)
                self.post(Ping(number))

    def post(self, message: Message) -> None:
        """Send without waiting; if the relay does not read, the link ends."""
        try:
            self._outbox.send_nowait(message)
        except trio.WouldBlock:
            self.fail(RelayUnreachable("the relay does not read"), Fault.LOST)

    async def _write(self) -> None:
        assert self._stream is not None
        async for message in self._to_send:
            try:
                await self._stream.send_all(self.channel.seal(message))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self.fail(RelayUnreachable("the connection broke"), Fault.LOST)
                return


def is_no_route(error: BaseException) -> bool:
    """Tell whether the system has no route to such an address at all."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_no_route, error.exceptions))
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _NO_ROUTE
    return error.__cause__ is not None and is_no_route(error.__cause__)


def local_host(sock: trio.socket.SocketType) -> str | None:
    """Return the address of this machine that a socket uses; None if the socket is closed."""
    try:
        return str(sock.getsockname()[0]).partition("%")[0]
    except OSError:
        return None


def wall_ms() -> int:
    """Return the wall-clock time in milliseconds."""
    return time.time_ns() // 1_000_000
