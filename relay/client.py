"""A node's side of relays, on trio: keeps a reservation at each of its relays, brings in what is dialled through
them, and dials others through theirs.

What it hands over are plain byte streams; the nodes shake hands inside, so neither this nor the relay is trusted
with anything but to carry bytes. A relay that dies, lies or falls silent costs its circuits; the rest goes on.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog
import trio

from p2p.errors import HandshakeFailed
from p2p.handshake import Handshake
from p2p.identity import Identity, Purpose
from p2p.sockets import tune
from p2p.transport import Acceptance, Endpoint
from relay.errors import Refusal, RelayProtocolError, RelayRefused, RelayUnreachable
from relay.protocol import (
    CONTROL_PREAMBLE,
    DATA_PREAMBLE,
    JOINED,
    Connect,
    ControlChannel,
    Decline,
    Incoming,
    Message,
    Offered,
    Ping,
    Pong,
    Refused,
    Reserve,
    Reserved,
    Voucher,
)
from state.primitives.errors import ConfigError, DecodeError

__all__ = ["RelayClient", "RelayClientOptions", "Reservation"]

RENEW_AT: Final = 0.8
"""Part of a reservation's life after which it is renewed."""
RENEW_S_MIN: Final = 0.5
RECEIVE_BYTES: Final = 4_096
NUMBERS: Final = 2**31
OUTBOX_MESSAGES_MAX: Final = 64
"""Answers that a relay may provoke without reading them."""

CONNECT_ERRORS: Final = (OSError, ValueError, trio.BrokenResourceError, trio.TooSlowError)
"""ValueError: a host name that cannot be encoded."""

log = structlog.get_logger("relay")


@dataclass(frozen=True, slots=True)
class RelayClientOptions:
    """Times in seconds and bounds of the client's side."""

    reservation_s: int = 3_600
    connect_s_max: float = 10
    """To connect and shake hands with a relay, and to open a data connection."""
    answer_s_max: float = 10
    ping_s: float = 10
    """Between pings; a relay that then says nothing for ``answer_s_max`` is dead."""
    link_idle_s: float = 60
    """How long the link to a relay that is not one of ours is kept after its last use."""
    links_max: int = 64
    """Relays connected to at once; ours come first."""
    backoff_s_min: float = 0.25
    backoff_s_max: float = 15
    incoming_max: int = 32
    """Circuits being brought in at once; more are declined."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """A relay's promise to carry circuits to this node."""

    endpoint: Endpoint
    voucher: Voucher
    observed: str
    """The host and port from which the relay sees this node, as the relay says."""


@dataclass(slots=True, eq=False)
class _Call:
    answered: trio.Event = field(default_factory=trio.Event)
    answer: Message | None = None


class RelayClient:
    """Both seams of the peer network: a ``Dialer`` of the scheme ``relay`` and an ``Acceptor``.

    ``make_identity`` returns the node's current identity; it is asked before each handshake with a relay.
    ``dial`` waits for ``run`` to start, and works while it runs, whether or not there are relays to reserve at.
    """

    def __init__(
        self,
        make_identity: Callable[[], Identity],
        relays: Sequence[Endpoint] = (),
        options: RelayClientOptions | None = None,
    ) -> None:
        for endpoint in relays:
            if endpoint.relay is None:
                raise ConfigError(f"{endpoint}: relay:<address>:host:port expected")
        self._make_identity = make_identity
        self._relays = tuple(dict.fromkeys(relays))
        self._options = options or RelayClientOptions()
        self._links: dict[Endpoint, _Link] = {}
        self._reservations: dict[Endpoint, Reservation] = {}
        self._changed = trio.Event()
        self._incoming = 0
        self._started = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._acceptance: Acceptance | None = None

    @property
    def reservations(self) -> tuple[Reservation, ...]:
        """The promises that stand now, in the order of the configured relays."""
        return tuple(self._reservations[e] for e in self._relays if e in self._reservations)

    @property
    def links(self) -> tuple[Endpoint, ...]:
        """Relays that are connected now, or being connected to."""
        return tuple(self._links)

    async def wait_reserved(self, count: int = 1) -> None:
        """Wait until at least ``count`` reservations stand."""
        while len(self._reservations) < count:
            await self._changed.wait()

    async def run(self, acceptance: Acceptance) -> None:
        """Keep the reservations and bring the circuits that others dial, until cancelled."""
        assert self._nursery is None, "runs already"
        self._acceptance = acceptance
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._started.set()
                for endpoint in self._relays:
                    nursery.start_soon(self._keep, endpoint)
                await trio.sleep_forever()
        finally:
            self._nursery = None
            self._acceptance = None

    async def dial(self, endpoint: Endpoint, target: bytes | None) -> trio.abc.Stream:
        """Return a byte stream to the node ``target`` through the relay of ``endpoint``.

        Raises RelayRefused, RelayUnreachable or RelayProtocolError (the relay's fault); the caller sets the time
        limit.
        """
        if endpoint.relay is None or target is None:
            raise RelayUnreachable("a relay and the address behind it are needed")
        await self._started.wait()
        link = await self._link(endpoint)
        answer = await link.ask(lambda request: Connect(request, target))
        match answer:
            case Offered(_, token, _):
                return await self._open_data(endpoint, token)
            case Refused(_, refusal, _):
                raise RelayRefused(refusal)
            case _:
                raise link.fail(RelayProtocolError("an answer to another question"))

    # Reservations.

    async def _keep(self, endpoint: Endpoint) -> None:
        """Hold a reservation at one relay for ever."""
        options = self._options
        failures = 0
        while True:
            retry_s = 0.0
            started = trio.current_time()
            try:
                link = await self._link(endpoint, ours=True)
                while True:
                    life_s = await self._reserve(link)
                    with trio.move_on_after(max(RENEW_S_MIN, life_s * RENEW_AT)):
                        await link.ended.wait()
                        break
            except RelayRefused as error:
                log.warning("relay refused the reservation", relay=str(endpoint), reason=error.refusal.label)
                retry_s = options.backoff_s_max if endpoint not in self._reservations else 0.0
            except (RelayUnreachable, RelayProtocolError) as error:
                log.debug("relay not reached", relay=str(endpoint), error=error.code, detail=str(error))
            if self._reservations.pop(endpoint, None) is not None:
                log.warning("relay lost", relay=str(endpoint))
                self._announce(endpoint, ())
            if trio.current_time() - started > options.backoff_s_max:
                failures = 0
            pause_s = min(options.backoff_s_max, options.backoff_s_min * 2 ** min(failures, 16))
            failures += 1
            await trio.sleep(max(pause_s, retry_s) * random.uniform(0.5, 1))

    async def _reserve(self, link: _Link) -> int:
        answer = await link.ask(lambda request: Reserve(request, self._options.reservation_s))
        match answer:
            case Reserved(_, life_s, voucher_bytes, observed):
                try:
                    voucher = Voucher.decode(voucher_bytes)
                    # Whether it has expired is for those to judge who rely on it: clocks differ.
                    voucher.check(link.relay, link.channel.certificate, client=link.own_address)
                except (DecodeError, RelayProtocolError) as error:
                    raise link.fail(RelayProtocolError(str(error))) from None
                is_new = link.endpoint not in self._reservations
                self._reservations[link.endpoint] = Reservation(link.endpoint, voucher, observed)
                if is_new:
                    log.info("relay reserved", relay=str(link.endpoint), observed=observed)
                    self._announce(link.endpoint, (link.endpoint,))
                return life_s
            case Refused(_, refusal, _):
                raise RelayRefused(refusal)
            case _:
                raise link.fail(RelayProtocolError("an answer to another question"))

    def _announce(self, endpoint: Endpoint, reachable: tuple[Endpoint, ...]) -> None:
        self._changed.set()
        self._changed = trio.Event()
        if self._acceptance is not None:
            self._acceptance.advertise(str(endpoint), reachable)

    # Circuits brought in.

    def incoming(self, link: _Link, message: Incoming) -> bool:
        """Start to fetch a circuit that a relay announced; False: not now."""
        if self._nursery is None or self._incoming >= self._options.incoming_max:
            return False
        self._incoming += 1
        self._nursery.start_soon(self._bring, link.endpoint, message)
        return True

    async def _bring(self, endpoint: Endpoint, message: Incoming) -> None:
        try:
            stream = await self._open_data(endpoint, message.token)
        except (RelayRefused, RelayUnreachable, RelayProtocolError) as error:
            log.debug("circuit not brought in", relay=str(endpoint), source=message.source, error=str(error))
            return
        finally:
            self._incoming -= 1
        if self._acceptance is None:
            await trio.aclose_forcefully(stream)
        else:
            self._acceptance.accept(stream, str(endpoint))

    async def _open_data(self, endpoint: Endpoint, token: bytes) -> trio.SocketStream:
        stream: trio.SocketStream | None = None
        status = b""
        try:
            with trio.fail_after(self._options.connect_s_max):
                stream = await trio.open_tcp_stream(endpoint.host, endpoint.port)
                tune(stream.socket)
                await stream.send_all(DATA_PREAMBLE + token)
                # One byte and no more: what follows belongs to the node at the other end.
                status = await stream.receive_some(1)
            if status == bytes((JOINED,)):
                result, stream = stream, None
                return result
        except CONNECT_ERRORS as error:
            raise RelayUnreachable(f"{endpoint}: {error or type(error).__name__}") from None
        finally:
            if stream is not None:
                await trio.aclose_forcefully(stream)
        if not status:
            raise RelayUnreachable(f"{endpoint}: closed before the circuit was joined")
        try:
            refusal = Refusal(status[0])
        except ValueError:
            raise RelayProtocolError(f"status {status[0]} of a data connection") from None
        raise RelayRefused(refusal)

    # Links.

    async def _link(self, endpoint: Endpoint, *, ours: bool = False) -> _Link:
        """Return the live link to a relay, opening it if need be. Raises RelayUnreachable."""
        link = self._links.get(endpoint)
        if link is None or link.error is not None:
            if self._nursery is None:
                raise RelayUnreachable("the relay client has ended")
            if len(self._links) >= self._options.links_max and not ours:
                raise RelayUnreachable("connected to as many relays as allowed")
            link = self._links[endpoint] = _Link(self, self._make_identity(), endpoint, self._options)
            self._nursery.start_soon(self._run_link, link)
        link.is_ours |= ours
        await link.opened.wait()
        if link.error is not None:
            raise RelayUnreachable(f"{endpoint}: {link.error}")
        return link

    async def _run_link(self, link: _Link) -> None:
        try:
            await link.run()
        finally:
            if self._links.get(link.endpoint) is link:
                del self._links[link.endpoint]


class _Link:
    """One control connection to one relay: questions and answers, pings, and what the relay announces."""

    channel: ControlChannel

    def __init__(
        self, client: RelayClient, identity: Identity, endpoint: Endpoint, options: RelayClientOptions
    ) -> None:
        assert endpoint.relay is not None
        self.endpoint = endpoint
        self.relay: bytes = endpoint.relay
        self.own_address = identity.address
        self.opened = trio.Event()
        """Set when questions may be asked, or ``error`` says why not."""
        self.ended = trio.Event()
        self.error: Exception | None = None
        self.is_ours = False
        """Kept open while nothing is asked."""
        self._client = client
        self._identity = identity
        self._options = options
        self._stream: trio.SocketStream | None = None
        # One task seals and sends, so that an asker who is cancelled leaves no record half sent.
        self._outbox, self._to_send = trio.open_memory_channel[Message](OUTBOX_MESSAGES_MAX)
        self._scope = trio.CancelScope()
        self._calls: dict[int, _Call] = {}
        self._number = 0
        self._heard = -math.inf
        self._used = trio.current_time()

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

    def fail(self, error: Exception) -> Exception:
        """End the link because of ``error``, which is returned."""
        if self.error is None:
            self.error = error
        self._scope.cancel()
        return error

    async def ask(self, question: Callable[[int], Message]) -> Message:
        """Return the relay's answer. Raises RelayUnreachable."""
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

    async def _open(self) -> bool:
        try:
            with trio.fail_after(self._options.connect_s_max):
                stream = await trio.open_tcp_stream(self.endpoint.host, self.endpoint.port)
                self._stream = stream
                tune(stream.socket)
                handshake = Handshake(
                    self._identity,
                    Purpose.RELAY_CONTROL,
                    is_initiator=True,
                    now_ms=time.time_ns() // 1_000_000,
                    expected=self.relay,
                )
                await stream.send_all(CONTROL_PREAMBLE + handshake.start())
                while handshake.session is None:
                    data = await stream.receive_some(RECEIVE_BYTES)
                    if not data:
                        raise RelayUnreachable("closed during the handshake")
                    answer = handshake.receive(bytes(data))
                    if answer:
                        await stream.send_all(answer)
        except (*CONNECT_ERRORS, HandshakeFailed, RelayUnreachable) as error:
            self.fail(error if str(error) else RelayUnreachable("too slow to answer"))
            return False
        self.channel = ControlChannel(handshake.session)
        self._heard = trio.current_time()
        return True

    async def _read(self) -> None:
        assert self._stream is not None
        data = b""  # what came right behind the handshake is in the channel already
        while True:
            try:
                messages = self.channel.receive(data)
            except RelayProtocolError as error:
                self.fail(error)
                return
            for message in messages:
                self._take(message)
            try:
                data = bytes(await self._stream.receive_some(RECEIVE_BYTES))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                data = b""
            if not data:
                self.fail(RelayUnreachable("the relay closed the connection"))
                return
            self._heard = trio.current_time()

    def _take(self, message: Message) -> None:
        match message:
            case Reserved(request) | Offered(request) | Refused(request):
                call = self._calls.get(request)
                if call is not None:  # else its asker gave up
                    call.answer = message
                    call.answered.set()
            case Incoming(token):
                if not self._client.incoming(self, message):
                    self._post(Decline(token))
            case Ping(number):
                self._post(Pong(number))
            case Pong():
                pass
            case _:
                self.fail(RelayProtocolError("a client's message from a relay"))

    async def _ping(self) -> None:
        options = self._options
        while True:
            await trio.sleep(options.ping_s)
            now = trio.current_time()
            if now - self._heard > options.ping_s + options.answer_s_max:
                self.fail(RelayUnreachable("the relay fell silent"))
            elif not self.is_ours and not self._calls and now - self._used > options.link_idle_s:
                self.fail(RelayUnreachable("the link was idle"))
            else:
                self._post(Ping(0))

    def _post(self, message: Message) -> None:
        try:
            self._outbox.send_nowait(message)
        except trio.WouldBlock:
            self.fail(RelayUnreachable("the relay does not read"))

    async def _write(self) -> None:
        assert self._stream is not None
        async for message in self._to_send:
            try:
                await self._stream.send_all(self.channel.seal(message))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self.fail(RelayUnreachable("the connection broke"))
                return
