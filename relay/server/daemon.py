"""The relay daemon: one process, asyncio on uvloop, protocols only.

It carries circuits between addresses and cannot read their content. ``relay.server.core`` holds the state, and
this module carries out its effects. ``relay.server.handshake`` owns the connections of clients,
``relay.server.circuits`` the running circuits, and ``relay.payment.accounts`` the receipts. An error of a client
closes the connection of that client only.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import secrets
import signal
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

import structlog
import uvloop

from p2p.base.endpoint import Endpoint
from p2p.base.limits import HalfOpenSlot
from p2p.base.listening import open_sockets
from p2p.secure.handshake import Session
from p2p.secure.identity import Identity
from relay.payment.accounts import PayerAccounts
from relay.payment.credit import CreditOptions, SettlementGateway
from relay.payment.metering import CHANNEL_AGE_MS_MAX, RelayMeter, Tariff
from relay.protocol.errors import Refusal
from relay.protocol.fanout import FanoutLimits
from relay.protocol.limits import HostTable, HostUse, RelayLimits
from relay.protocol.link_state import LINK_STATE_S, LinkState
from relay.protocol.route import Route, VerifiedRoute
from relay.protocol.wire import (
    ALTERNATIVES_MAX,
    AskLinkState,
    Charged,
    ControlChannel,
    LinkStateReply,
    Message,
    Pay,
    Pong,
    Terms,
    Voucher,
)
from relay.server.admission import ConnectionAdmission
from relay.server.circuits import CarriedCircuits
from relay.server.core import Drop, Effect, End, ExtendCircuit, Hold, Join, Refuse, RelayCore, Send
from relay.server.fanout_daemon import FanoutServer
from relay.server.handshake import ClientHandshake, ControlConnection, wall_ms
from relay.server.next_hop import NextHopConnection, NextHopLinks
from relay.server.telemetry import HttpAnswerer, registry_of
from state.primitives.address import format_address
from state.primitives.errors import ConfigError, DecodeError
from state.primitives.listen import parse_listen

__all__ = ["RelayDaemon", "RelayOptions", "run_relay"]

TICK_S: Final = 0.25
IDENTITY_RENEWAL_MS: Final = 24 * 3_600_000
LISTEN_BACKLOG: Final = 1024
DESCRIPTORS_SPARE: Final = 64
SLOW_TICKS: Final = 4
"""Ticks between two runs of pacing, claims and link maintenance."""
EXPIRE_TICKS: Final = 240
"""Ticks between two searches for expired certificates: there may be very many."""

log = structlog.get_logger("relay")


@dataclass(frozen=True, slots=True)
class RelayOptions:
    """Options of a relay daemon."""

    listen: str = ":26680"
    """host:port for clients; port 0 picks a free port."""
    metrics_listen: str = ""
    """host:port for /metrics and /healthz; empty: none."""
    limits: RelayLimits = field(default_factory=RelayLimits)
    fanout: FanoutLimits = field(default_factory=FanoutLimits)
    tariff: Tariff = field(default_factory=Tariff)
    credit: CreditOptions = field(default_factory=CreditOptions)
    peers: tuple[str, ...] = ()
    """Other relays, as ``relay:<address>:host:port``: links to them are kept open and measured."""
    receipts: Path | None = None
    """Directory of the payers' receipts; None: they are not saved."""
    collectors: tuple[Any, ...] = ()
    """Additional collectors of prometheus_client for /metrics, for example of the process."""
    drain_s_max: int = 20
    """Time for clients to move to other relays at shutdown; 0: no wait."""


def run_relay(
    options: RelayOptions,
    make_identity: Callable[[], Identity],
    *,
    on_ready: Callable[[RelayDaemon], None] | None = None,
    gateway: SettlementGateway | None = None,
) -> None:
    """Run a relay until SIGTERM or SIGINT; ``on_ready`` is called when it listens.

    At the first signal it announces its end to the clients, and ends when they have left or after ``drain_s_max``.
    At the second signal it ends at once.

    ``make_identity`` returns the relay's identity with a fresh certificate, always of the same node secret,
    which signs the vouchers. It is called again every day. A relay with a price uses ``gateway`` to look up the
    funds of its payers and to settle their receipts; without a gateway, all payers count as unfunded.
    Raises ConfigError if it cannot listen; any other exception is a bug that ended the daemon.
    """

    async def main() -> None:
        daemon = RelayDaemon(options, make_identity, gateway)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, daemon.drain)
        await daemon.start()
        try:
            if on_ready is not None:
                on_ready(daemon)
            await daemon.wait_stopped()
        finally:
            await daemon.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


class RelayDaemon:
    """One relay on the running loop; ``start``, then ``wait_stopped``, then ``close``."""

    def __init__(
        self,
        options: RelayOptions,
        make_identity: Callable[[], Identity],
        gateway: SettlementGateway | None = None,
    ) -> None:
        self.options = options
        self.limits = options.limits
        self.hosts = HostTable(options.limits)
        self.endpoint: tuple[str, int] = ("", 0)
        """Host and port for clients, once started."""
        self.metrics_endpoint: tuple[str, int] | None = None
        self.drops: Counter[str] = Counter()
        """Connections closed by the relay, by reason."""
        self.has_bbr = False
        self._loop = asyncio.get_running_loop()
        self._make_identity = make_identity
        self._identity = make_identity()
        self._identity_until_ms = self.now_ms() + IDENTITY_RENEWAL_MS
        self.accounts = PayerAccounts(
            RelayMeter(options.tariff, genesis_hash=self._identity.genesis_hash, relay=self._identity.address),
            options.credit,
            receipts=options.receipts,
            gateway=gateway,
            now_ms=self.now_ms,
            on_bug=self._end_for,
        )
        self.core = RelayCore(
            options.limits,
            self.hosts,
            issue=self._issue,
            random=secrets.token_bytes,
            address=self._identity.address,
            check_route=self._check_route,
            may_dial=self.accounts.is_served,
            others=self._others,
        )
        self.circuits = CarriedCircuits(
            self.accounts, options.tariff, options.limits, now_ms=self.now_ms, end_closed=self.connection_closed,
            closed=self.core.circuit_closed,
        )  # fmt: skip
        self.links = NextHopLinks(self)
        self.fanout = FanoutServer(
            options.fanout,
            is_reserved=lambda address: self.core.is_reserved(address, self.now_ms()),
            is_served=self.accounts.is_served,
            charge=self._charge_copies,
            now_ms=self.now_ms,
            drop=self.drop,
            connection_closed=self.connection_closed,
        )
        self._peers = tuple(_relay_endpoint(text) for text in options.peers)
        self._link_state = b""
        self._link_names: set[bytes] = set()
        self._link_state_at_ms = -LINK_STATE_S * 1000
        self._ticks = 0
        self._drain_until_ms: int | None = None
        self._stopped: asyncio.Future[None] = self._loop.create_future()
        self._servers: list[asyncio.AbstractServer] = []
        self._admission = ConnectionAdmission(options.limits, self.hosts, self.drop)
        self._number = 0
        self._controls: dict[int, ControlConnection] = {}
        self._waiting: dict[int, ClientHandshake | NextHopConnection] = {}
        self._tick: asyncio.TimerHandle | None = None

    def now_ms(self) -> int:
        """Return the loop's monotonic time."""
        return int(self._loop.time() * 1000)

    async def start(self) -> None:
        """Listen. Raises ConfigError."""
        self._loop.set_exception_handler(self._on_exception)
        await self.accounts.load()
        _raise_descriptor_limit(self.limits.connections_max + self.limits.half_open_max + DESCRIPTORS_SPARE)
        self.endpoint = await self._listen(self.options.listen, lambda: ClientHandshake(self), "relay.listen")
        if self.options.metrics_listen:
            registry, answerers = registry_of(self, self.options.collectors), set[HttpAnswerer]()
            self.metrics_endpoint = await self._listen(
                self.options.metrics_listen, lambda: HttpAnswerer(registry, answerers), "relay.metrics_listen"
            )
        self.links.keep(self._peers)
        self._tick = self._loop.call_later(TICK_S, self._on_tick)
        log.info(
            "the relay listens",
            address=format_address(self._identity.address),
            host=self.endpoint[0],
            port=self.endpoint[1],
        )

    def stop(self) -> None:
        """Let ``wait_stopped`` return."""
        if not self._stopped.done():
            self._stopped.set_result(None)

    def drain(self) -> None:
        """Accept nothing new and announce the end; ``wait_stopped`` returns when all left or time is over."""
        if self._drain_until_ms is not None or self.core.is_empty or not self.options.drain_s_max:
            self.stop()
            return
        now_ms = self.now_ms()
        self._drain_until_ms = now_ms + self.options.drain_s_max * 1000
        log.info("the relay drains", reservations=self.core.reservations, circuits=self.core.circuits)
        self.do(self.core.drain(now_ms, self._drain_until_ms))

    async def wait_stopped(self) -> None:
        """Wait for ``stop``; raises the exception that ended the daemon, if there was one."""
        await self._stopped

    async def close(self) -> None:
        """Close everything: circuits end, and clients use other relays."""
        if self._tick is not None:
            self._tick.cancel()
        for server in self._servers:
            server.close()
        self.links.close()
        await self._admission.close()
        await self.accounts.close()
        log.info("the relay stopped", circuits=self.circuits.circuits_total, bytes=self.circuits.bytes_total)

    def identity(self) -> Identity:
        """Return the identity for handshakes, with a certificate of the last day."""
        now_ms = self.now_ms()
        if self._identity_until_ms <= now_ms:
            self._identity = self._make_identity()
            self._identity_until_ms = now_ms + IDENTITY_RENEWAL_MS
        return self._identity

    @property
    def half_open(self) -> int:
        """Connections with an unfinished handshake."""
        return self._admission.half_open

    @property
    def connections(self) -> int:
        """All connections of clients."""
        return len(self._admission)

    # Calls of the links to other relays.

    def may_reach(self, ip: str, *, is_trusted: bool) -> bool:
        """Tell whether a client, trusted or not, may make this relay connect to ``ip``.

        Any client may name public addresses. Trusted networks only trusted clients may name: others could probe
        local services through the relay.
        """
        host = self.hosts.use(ip, self.now_ms())
        if host is None:
            return False
        address = ip_address(ip.partition("%")[0])
        return (address.is_global and not address.is_multicast) or (host.is_trusted and is_trusted)

    def adopt(self, transport: asyncio.Transport, ip: str) -> HostUse | None:
        """Count a connection that this relay opened; None: too many connections."""
        return self._admission.adopt(transport, ip, self.now_ms())

    def next_hop_opened(self, circuit: int, connection: NextHopConnection) -> None:
        """Take the joined data connection to a circuit's next relay."""
        self._number += 1
        connection.number = self._number
        self._waiting[connection.number] = connection
        self.do(self.core.next_hop_opened(circuit, connection.number))

    def next_hop_failed(self, circuit: int, refusal: Refusal) -> None:
        """Note that the next relay of a circuit was not reached, or refused."""
        self.do(self.core.next_hop_failed(circuit, refusal))

    def next_hop_lost(self, connection: NextHopConnection) -> None:
        """Note that a joined data connection closed before its circuit ran."""
        if self._waiting.pop(connection.number, None) is not None:
            self.do(self.core.data_closed(connection.number))

    def _check_route(self, data: bytes) -> VerifiedRoute:
        return Route.decode(data).check(genesis_hash=self._identity.genesis_hash, now_ms=wall_ms())

    def _others(self) -> tuple[str, ...]:
        return tuple(str(endpoint) for endpoint in self.links.known[:ALTERNATIVES_MAX])

    # Calls of the connections of clients.

    def admit(self, handshake: ClientHandshake) -> tuple[HostUse, HalfOpenSlot] | str:
        """Count a new connection as half open, or return why it is refused."""
        answer = self._admission.admit(handshake.transport, handshake.peer[0], self.now_ms())
        if not isinstance(answer, str):
            self._number += 1
            handshake.number = self._number
        return answer

    def promote(self, handshake: ClientHandshake, place: HalfOpenSlot) -> bool:
        """Admit a connection that proved its purpose; False: the relay is full, and it was dropped."""
        return self._admission.promote(handshake.transport, handshake.peer[0], handshake.host, place)

    def handshake_ended(self, handshake: ClientHandshake, place: HalfOpenSlot) -> None:
        """Count a connection out of the half-open ones; it proved nothing."""
        self._admission.handshake_ended(handshake.host, place)

    def connection_closed(self, transport: asyncio.Transport) -> None:
        """Count a closed connection out."""
        self._admission.connection_closed(transport)

    def control_opened(self, handshake: ClientHandshake, channel: ControlChannel) -> None:
        """Take a control connection whose handshake proved an address."""
        control = ControlConnection(self, handshake.number, handshake.transport, channel)
        self._controls[handshake.number] = control
        name, port = handshake.peer
        observed = f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
        self.core.control_opened(
            handshake.number, channel.address, handshake.host, observed, self.now_ms(), channel.certificate
        )
        handshake.transport.set_protocol(control)
        tariff = self.options.tariff
        control.send(Terms(tariff.price_per_gib, tariff.free_bytes, tariff.free_ms, tariff.unpaid_bytes_max))
        self.accounts.payer_connected(channel.address, handshake.host)
        control.data_received(b"")  # bytes received with the handshake

    def control_message(self, control: ControlConnection, message: Message) -> None:
        """Take a client's message. Raises RelayProtocolError."""
        match message:
            case Pay(data):
                self.accounts.take_receipt(control.channel, data, opened_ms=control.opened_ms, wall_ms=wall_ms())
                message = Pong(0)  # it counts towards the limit of messages
            case AskLinkState(request):
                control.send(LinkStateReply(request, self._signed_links()))
                message = Pong(0)
            case _:
                pass
        self.do(self.core.control_message(control.number, message, self.now_ms()))

    def _signed_links(self) -> bytes:
        now_ms = self.now_ms()
        measured = self.links.measured()
        if now_ms - self._link_state_at_ms >= LINK_STATE_S * 1000 or self._link_names != set(measured):
            self._link_state_at_ms, self._link_names = now_ms, set(measured)
            self._link_state = LinkState.sign(self.identity(), measured, now_ms=wall_ms()).encode()
        return self._link_state

    def control_closed(self, control: ControlConnection) -> None:
        """Note that a control connection closed."""
        if self._controls.pop(control.number, None) is not None:
            self.do(self.core.control_closed(control.number))

    def is_awaited(self, token: bytes) -> bool:
        """Tell whether a token was given out and not used yet."""
        return self.core.is_awaited(token)

    def fanout_opened(self, handshake: ClientHandshake, session: Session) -> None:
        """Take a fan-out connection whose handshake proved an address."""
        self.fanout.open(handshake.number, handshake.transport, session, handshake.host)

    def data_opened(self, handshake: ClientHandshake, token: bytes) -> None:
        """Take a data connection that sent a token."""
        self._waiting[handshake.number] = handshake
        self.do(self.core.data_opened(handshake.number, token))

    def data_closed(self, handshake: ClientHandshake) -> None:
        """Note that a data connection closed before its circuit was joined."""
        if self._waiting.pop(handshake.number, None) is not None:
            self.do(self.core.data_closed(handshake.number))

    def drop(self, transport: asyncio.Transport, reason: str, peer: str) -> None:
        """Close a connection that broke a rule."""
        self.drops[reason] += 1
        log.debug("connection dropped", reason=reason, peer=peer)
        transport.abort()

    def do(self, effects: Iterable[Effect]) -> None:
        """Carry out the effects of the core, in order."""
        for effect in effects:
            match effect:
                case Send(connection, message):
                    control = self._controls.get(connection)
                    if control is not None:
                        control.send(message)
                case Drop(connection, reason):
                    control = self._controls.pop(connection, None)
                    if control is not None:
                        self.drop(control.transport, reason, control.channel.address.hex())
                case Refuse(connection, refusal):
                    self._waiting.pop(connection).refuse(refusal)
                case Hold(connection):
                    handshake = self._waiting[connection]
                    assert isinstance(handshake, ClientHandshake)
                    handshake.hold()
                case ExtendCircuit(circuit, next_hop, route, client_host):
                    assert client_host is not None
                    self.links.extend(circuit, next_hop, route, client_host)
                case Join():
                    self._join(effect)
                case End(circuit, reason):
                    self.drops[f"circuit_{reason}"] += 1
                    self.circuits.abort(circuit)

    def _join(self, join: Join) -> None:
        dialler, target = self._waiting.pop(join.dialler), self._waiting.pop(join.target)
        assert isinstance(dialler, ClientHandshake)  # what this relay opened leads to the next hop, never back
        dialler.joined()
        next_hop = None
        if isinstance(target, NextHopConnection):
            next_hop = target.endpoint
        else:
            target.joined()
        self.circuits.begin(
            join.circuit, dialler, target, payer=join.dialler_address, host=dialler.host, next_hop=next_hop
        )
        log.debug("circuit joined", circuit=join.circuit, dialler=join.dialler_address, target=join.target_address)

    def _on_tick(self) -> None:
        now_ms = self.now_ms()
        self.do(self.core.tick(now_ms))
        for circuit, reason in self.circuits.tick(now_ms):
            self.drops[f"circuit_{reason}"] += 1
            circuit.abort()
        self._ticks += 1
        if self._ticks % EXPIRE_TICKS == 0:
            self.core.expire(wall_ms())
        if self._ticks % SLOW_TICKS == 0:
            self._claim()
            self.links.tick(self.circuits.pace())
            self.accounts.consult()
            self.fanout.tick(now_ms)
        self.accounts.save_in_time()
        if self._drain_until_ms is not None and (self.core.is_empty or now_ms >= self._drain_until_ms):
            self.stop()
        self._tick = self._loop.call_later(TICK_S, self._on_tick)

    def _claim(self) -> None:
        """Send each client its claim, and drop connections whose payment channel is too old."""
        meter = self.accounts.meter
        too_old_ms = wall_ms() - CHANNEL_AGE_MS_MAX
        for control in list(self._controls.values()) if len(meter) else ():
            if control.opened_ms < too_old_ms:
                self.drop(control.transport, "channel_age", control.channel.address.hex())
                continue
            claim = meter.claim(control.channel.address, control.channel.channel)
            if claim is not None:
                control.send(Charged(claim))

    def _charge_copies(self, publisher: bytes, host: HostUse, size_bytes: int) -> None:
        self.accounts.carried(publisher, host, size_bytes, charged_bytes=size_bytes)

    def _on_exception(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is None or isinstance(error, OSError):
            self.drops["socket_error"] += 1  # a broken connection; it is closed already
            return
        self._end_for(error)

    def _end_for(self, bug: BaseException) -> None:
        """Stop the daemon: after a bug its state cannot be trusted."""
        if not self._stopped.done():
            self._stopped.set_exception(bug)

    def _issue(self, client: bytes, life_s: int) -> bytes:
        return Voucher.issue(
            self.identity(),
            client=client,
            not_after_ms=wall_ms() + life_s * 1000,
        ).encode()

    async def _listen(self, where: str, factory: Callable[[], asyncio.Protocol], option: str) -> tuple[str, int]:
        try:
            listeners = open_sockets(parse_listen(where), backlog=LISTEN_BACKLOG)
        except ConfigError as error:
            raise ConfigError(f"{option}: {error}") from None
        except OSError as error:
            raise ConfigError(f"{option}: cannot listen on {where}: {error.strerror or error}") from None
        for listener in listeners:
            self._servers.append(await self._loop.create_server(factory, sock=listener, backlog=LISTEN_BACKLOG))
        bound = listeners[0].getsockname()
        return bound[0], bound[1]


def _relay_endpoint(text: str) -> Endpoint:
    try:
        endpoint = Endpoint.parse(text)
    except DecodeError as error:
        raise ConfigError(f"relay.peers: {text!r}: {error}") from None
    if endpoint.relay is None:
        raise ConfigError(f"relay.peers: {text!r}: relay:<address>:host:port expected")
    return endpoint


def _raise_descriptor_limit(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        with contextlib.suppress(OSError, ValueError):  # with fewer descriptors only accepting fails sooner
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
