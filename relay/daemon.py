"""The relay daemon: asyncio on uvloop, protocols only, one process.

It carries circuits between addresses and knows nothing of their content. The state is ``relay.circuit``'s; here
are sockets, time-outs and metrics. What a client does wrong costs that client its connection, nobody else's.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import secrets
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import structlog
import uvloop

from p2p.errors import HandshakeFailed
from p2p.handshake import Handshake
from p2p.identity import Identity, Purpose
from p2p.limits import Place
from p2p.punch import OBSERVE_PREAMBLE, observed_answer
from p2p.sockets import tune
from p2p.transport import Endpoint
from relay.circuit import Drop, Effect, End, Hold, Join, Onward, Refuse, RelayCore, Send
from relay.credit import Credit, CreditOptions, Ledger, Standing
from relay.door import Door
from relay.errors import LedgerUnavailable, Refusal, RelayProtocolError
from relay.fanout import FANOUT_PREAMBLE, FanoutLimits
from relay.fanout_daemon import FanoutServer
from relay.limits import HostTable, HostUse, RelayLimits, paces
from relay.links import LINK_STATE_S, LinkState
from relay.metering import CHANNEL_AGE_MS_MAX, Cashier, FreeTier, Tariff
from relay.onward import OnwardConnection, OnwardLinks
from relay.protocol import (
    ALTERNATIVES_MAX,
    CONTROL_PREAMBLE,
    DATA_PREAMBLE,
    DATA_PREAMBLE_BYTES,
    JOINED,
    PREAMBLE_BYTES,
    AskLinks,
    Charged,
    ControlChannel,
    Links,
    Message,
    Pay,
    Pong,
    Terms,
    Voucher,
)
from relay.receipts import ReceiptStore, StoredReceipt, settle_receipts
from relay.route import Route, VerifiedRoute
from relay.splice import LOOK_BYTES, STRANGER_LOOK_BYTES, Circuit, keep_alive, set_pace
from relay.telemetry import HttpAnswerer, registry_of
from state.primitives.address import format_address
from state.primitives.errors import ConfigError, DecodeError

__all__ = ["RelayDaemon", "RelayOptions", "run_relay"]

TICK_S: Final = 0.25
IDENTITY_RENEWAL_MS: Final = 24 * 3_600_000
LISTEN_BACKLOG: Final = 1024
EARLY_BYTES_MAX: Final = 4_096
"""What an end may send after its token, before the other end has come."""
DESCRIPTORS_SPARE: Final = 64
SLOW_TICKS: Final = 4
"""Pacing and links to other relays are looked after every so many ticks."""
EXPIRE_TICKS: Final = 240
"""Certificates that have ended are looked for every so many ticks: there may be very many."""
SAVE_S: Final = 5
"""How often new receipts go to disk."""
ASK_AT_ONCE: Final = 16
"""Payers that a thread asks the chain about before it looks who else waits."""
SETTLE_LOOK_S: Final = 5
SETTLE_AT_ONCE: Final = 8
"""Payers whose receipts a thread brings on chain before it looks again."""
FEE_S: Final = 60
"""What settling costs is asked for anew after so long."""
LEDGER_PAUSE_S: Final = 30
"""The chain is left alone for so long where no node answers."""

_PREAMBLES: Final = (CONTROL_PREAMBLE, DATA_PREAMBLE, OBSERVE_PREAMBLE, FANOUT_PREAMBLE)
_PURPOSES: Final = {CONTROL_PREAMBLE: Purpose.RELAY_CONTROL, FANOUT_PREAMBLE: Purpose.RELAY_FANOUT}

_T = TypeVar("_T")
log = structlog.get_logger("relay")


@dataclass(frozen=True, slots=True)
class RelayOptions:
    """Options of a relay daemon."""

    listen: str = ":26680"
    """host:port for clients; port 0: any free one."""
    metrics_listen: str = ""
    """host:port for /metrics and /healthz; empty: none."""
    limits: RelayLimits = field(default_factory=RelayLimits)
    fanout: FanoutLimits = field(default_factory=FanoutLimits)
    tariff: Tariff = field(default_factory=Tariff)
    credit: CreditOptions = field(default_factory=CreditOptions)
    peers: tuple[str, ...] = ()
    """Other relays, as ``relay:<address>:host:port``: connections to them are kept, and measured."""
    receipts: Path | None = None
    """Directory of the payers' receipts; None: they are not kept."""
    drain_s_max: int = 20
    """How long clients may take to go elsewhere when the relay is told to end; 0: it ends at once."""


def run_relay(
    options: RelayOptions,
    make_identity: Callable[[], Identity],
    *,
    on_ready: Callable[[RelayDaemon], None] | None = None,
    ledger: Ledger | None = None,
) -> None:
    """Run a relay until SIGTERM or SIGINT; ``on_ready`` is called when it listens.

    At the first signal it sends its clients away and ends when they are gone or ``drain_s_max`` is over; at the
    second it ends at once.

    ``make_identity`` returns the relay's identity with a fresh certificate, always of the same node secret, for
    vouchers are signed with it. It is called again every day. A relay that asks a price and has a ``ledger``
    learns there what its payers are good for and settles what they sign; without one they are strangers to it.
    Raises ConfigError where it cannot listen; any other exception is a bug that ended the daemon.
    """

    async def main() -> None:
        daemon = RelayDaemon(options, make_identity, ledger)
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
        self, options: RelayOptions, make_identity: Callable[[], Identity], ledger: Ledger | None = None
    ) -> None:
        self.options = options
        self.limits = options.limits
        self.hosts = HostTable(options.limits)
        self.endpoint: tuple[str, int] = ("", 0)
        """Host and port that clients reach, once started."""
        self.metrics_endpoint: tuple[str, int] | None = None
        self.drops: Counter[str] = Counter()
        """Connections closed by the relay, by reason."""
        self.circuits_total = 0
        self.bytes_total = 0
        self.has_bbr = False
        self._loop = asyncio.get_running_loop()
        self._make_identity = make_identity
        self._identity = make_identity()
        self._identity_until_ms = self.now_ms() + IDENTITY_RENEWAL_MS
        self.cashier = Cashier(
            options.tariff, genesis_hash=self._identity.genesis_hash, relay=self._identity.address
        )
        self.credit = Credit(options.credit, self.cashier)
        self.core = RelayCore(
            options.limits,
            self.hosts,
            issue=self._issue,
            random=secrets.token_bytes,
            address=self._identity.address,
            check_route=self._check_route,
            may_dial=self._is_served,
            others=self._others,
        )
        self.links = OnwardLinks(self)
        self.fanout = FanoutServer(
            options.fanout,
            is_reserved=lambda address: self.core.is_reserved(address, self.now_ms()),
            is_served=self._is_served,
            charge=self._charge_copies,
            now_ms=self.now_ms,
            drop=self.drop,
            gone=self.gone,
        )
        self.receipts_total = 0
        self.settled_total = 0
        self._ledger = ledger if options.tariff.price_per_gib else None
        self._ledger_after_ms = 0
        self._asking: asyncio.Task[None] | None = None
        self._settling: asyncio.Task[None] | None = None
        self._settle_looked_at_ms = 0
        self._fee: int | None = None
        self._fee_until_ms = 0
        self._peers = tuple(_relay_endpoint(text) for text in options.peers)
        self._link_state = b""
        self._link_names: set[bytes] = set()
        self._link_state_at_ms = -LINK_STATE_S * 1000
        self._store = None if options.receipts is None else ReceiptStore(options.receipts)
        self._unsaved: dict[bytes, StoredReceipt] = {}
        self._saving: asyncio.Future[None] | None = None
        self._saved_at_ms = self.now_ms()
        self._payers: dict[int, tuple[bytes, FreeTier, HostUse]] = {}
        self._onward: dict[int, Endpoint] = {}
        self._moved: Counter[int] = Counter()
        self._paces: dict[int, int] = {}
        self._ticks = 0
        self._drain_until_ms: int | None = None
        self._stopped: asyncio.Future[None] = self._loop.create_future()
        self._servers: list[asyncio.AbstractServer] = []
        self._door = Door(options.limits, self.hosts, self.drop, self.now_ms())
        self._number = 0
        self._controls: dict[int, _Control] = {}
        self._waiting: dict[int, _Opening | OnwardConnection] = {}
        self._circuits: dict[int, Circuit] = {}
        self._counted_bytes: dict[int, int] = {}
        self._tick: asyncio.TimerHandle | None = None

    def now_ms(self) -> int:
        """Return the loop's monotonic time."""
        return int(self._loop.time() * 1000)

    async def start(self) -> None:
        """Listen. Raises ConfigError."""
        self._loop.set_exception_handler(self._on_exception)
        if self._ledger is not None and self._store is not None:
            for stored in await self._loop.run_in_executor(None, self._store.load):
                self.credit.signed(stored.receipt, self.now_ms())
        _raise_descriptor_limit(self.limits.connections_max + self.limits.half_open_max + DESCRIPTORS_SPARE)
        self.endpoint = await self._listen(self.options.listen, lambda: _Opening(self), "relay.listen")
        if self.options.metrics_listen:
            registry = registry_of(self)
            self.metrics_endpoint = await self._listen(
                self.options.metrics_listen, lambda: HttpAnswerer(registry), "relay.metrics_listen"
            )
        self.links.keep(self._peers)
        self._tick = self._loop.call_later(TICK_S, self._on_tick)
        log.info(
            "relay listens",
            address=format_address(self._identity.address),
            host=self.endpoint[0],
            port=self.endpoint[1],
        )

    def stop(self) -> None:
        """Let ``wait_stopped`` return."""
        if not self._stopped.done():
            self._stopped.set_result(None)

    def drain(self) -> None:
        """Take nothing new and send the clients away; ``wait_stopped`` returns when they are gone, or in time."""
        if self._drain_until_ms is not None or self.core.is_empty or not self.options.drain_s_max:
            self.stop()
            return
        now_ms = self.now_ms()
        self._drain_until_ms = now_ms + self.options.drain_s_max * 1000
        log.info("relay drains", reservations=self.core.reservations, circuits=self.core.circuits)
        self.do(self.core.drain(now_ms, self._drain_until_ms))

    async def wait_stopped(self) -> None:
        """Wait for ``stop``; raises what ended the daemon if that is a bug."""
        await self._stopped

    async def close(self) -> None:
        """Close everything; circuits end, clients find another relay."""
        if self._tick is not None:
            self._tick.cancel()
        for server in self._servers:
            server.close()
        self.links.close()
        await self._door.close()
        if self._saving is not None:
            await self._saving
        self._save_receipts()
        if self._saving is not None:
            await self._saving
        self._ledger = None  # what its threads are at ends with the transaction under way
        log.info("relay stopped", circuits=self.circuits_total, bytes=self.bytes_total)

    def identity(self) -> Identity:
        """Return what this relay proves itself with, certified within the last day."""
        now_ms = self.now_ms()
        if self._identity_until_ms <= now_ms:
            self._identity = self._make_identity()
            self._identity_until_ms = now_ms + IDENTITY_RENEWAL_MS
        return self._identity

    @property
    def half_open(self) -> int:
        """Connections that have not yet proved what they are for."""
        return self._door.half_open

    @property
    def connections(self) -> int:
        """All connections of clients."""
        return len(self._door)

    # What the links to other relays need and report.

    def may_reach(self, ip: str, *, is_trusted: bool) -> bool:
        """Say whether a client, trusted or not, may make this relay connect to ``ip``.

        Anybody to the world; to what is trusted only who is trusted, or strangers could probe local services.
        """
        host = self.hosts.use(ip, self.now_ms())
        if host is None:
            return False
        address = ip_address(ip.partition("%")[0])
        return (address.is_global and not address.is_multicast) or (host.is_trusted and is_trusted)

    def adopt(self, transport: asyncio.Transport, ip: str) -> HostUse | None:
        """Count a connection that this relay opened; None: too many."""
        return self._door.adopt(transport, ip, self.now_ms())

    def onward_opened(self, circuit: int, connection: OnwardConnection) -> None:
        """Take the joined data connection of a circuit's next relay."""
        self._number += 1
        connection.number = self._number
        self._waiting[connection.number] = connection
        self.do(self.core.onward_opened(circuit, connection.number))

    def onward_failed(self, circuit: int, refusal: Refusal) -> None:
        """Note that a circuit goes no further."""
        self.do(self.core.onward_failed(circuit, refusal))

    def onward_lost(self, connection: OnwardConnection) -> None:
        """Note that a joined data connection ended before its circuit ran."""
        if self._waiting.pop(connection.number, None) is not None:
            self.do(self.core.data_closed(connection.number))

    def _check_route(self, data: bytes) -> VerifiedRoute:
        return Route.decode(data).check(genesis_hash=self._identity.genesis_hash, now_ms=_wall_ms())

    def _others(self) -> tuple[str, ...]:
        return tuple(str(endpoint) for endpoint in self.links.known[:ALTERNATIVES_MAX])

    # What the protocols below report.

    def admit(self, opening: _Opening) -> tuple[HostUse, Place] | str:
        """Count a new connection in, or return why it is turned away."""
        answer = self._door.admit(opening.transport, opening.peer[0], self.now_ms())
        if not isinstance(answer, str):
            self._number += 1
            opening.number = self._number
        return answer

    def opened(self, opening: _Opening, place: Place) -> bool:
        """Give a connection that has proved what it is for its place; False: there is none, it is dropped."""
        return self._door.opened(opening.transport, opening.peer[0], opening.host, place)

    def left(self, opening: _Opening, place: Place) -> None:
        """Count a connection out of the half-open ones that proved nothing."""
        self._door.left(opening.host, place)

    def gone(self, transport: asyncio.Transport) -> None:
        """Count a closed connection out."""
        self._door.gone(transport)

    def control_opened(self, opening: _Opening, channel: ControlChannel) -> None:
        """Take a connection whose handshake proved an address."""
        control = _Control(self, opening.number, opening.transport, channel)
        self._controls[opening.number] = control
        name, port = opening.peer
        observed = f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
        self.core.control_opened(
            opening.number, channel.address, opening.host, observed, self.now_ms(), channel.certificate
        )
        opening.transport.set_protocol(control)
        tariff = self.options.tariff
        control.send(Terms(tariff.price_per_gib, tariff.free_bytes, tariff.free_ms, tariff.unpaid_bytes_max))
        self.cashier.opened(channel.address)
        self.credit.met(channel.address, opening.host, self.now_ms())
        control.data_received(b"")  # what came right behind the handshake

    def control_message(self, control: _Control, message: Message) -> None:
        """Take a client's message. Raises RelayProtocolError."""
        match message:
            case Pay(data):
                self._take_receipt(control, data)
                message = Pong(0)  # it counts as a message like others
            case AskLinks(request):
                control.send(Links(request, self._signed_links()))
                message = Pong(0)
            case _:
                pass
        self.do(self.core.control_message(control.number, message, self.now_ms()))

    def _take_receipt(self, control: _Control, data: bytes) -> None:
        channel = control.channel
        receipt = self.cashier.take(
            channel.address, channel.certificate, channel.channel, data, opened_ms=control.opened_ms,
            now_ms=_wall_ms(),
        )  # fmt: skip
        if receipt is not None:
            self.receipts_total += 1
            self.credit.signed(receipt, self.now_ms())
            self._unsaved[receipt.channel] = StoredReceipt(receipt, channel.certificate.encode())

    def _signed_links(self) -> bytes:
        now_ms = self.now_ms()
        measured = self.links.measured()
        if now_ms - self._link_state_at_ms >= LINK_STATE_S * 1000 or self._link_names != set(measured):
            self._link_state_at_ms, self._link_names = now_ms, set(measured)
            self._link_state = LinkState.sign(self.identity(), measured, now_ms=_wall_ms()).encode()
        return self._link_state

    def _save_receipts(self) -> None:
        if self._store is None or not self._unsaved or (self._saving is not None and not self._saving.done()):
            return
        # Words of those for whom nothing was carried would cost a file each, and a fee to find them worthless.
        unsaved = [kept for kept in self._unsaved.values() if self.cashier.has_carried(kept.receipt.payer)]
        self._unsaved = {}
        store = self._store

        def save() -> None:
            try:
                store.save(unsaved)
            except OSError as error:  # a full disk costs receipts, not circuits
                log.error("receipts not written", count=len(unsaved), error=str(error))

        self._saving = self._loop.run_in_executor(None, save)

    def control_closed(self, control: _Control) -> None:
        """Take the end of a control connection."""
        if self._controls.pop(control.number, None) is not None:
            self.do(self.core.control_closed(control.number))

    def data_opened(self, opening: _Opening, token: bytes) -> None:
        """Take a connection that showed a token."""
        self._waiting[opening.number] = opening
        self.do(self.core.data_opened(opening.number, token))

    def data_closed(self, opening: _Opening) -> None:
        """Take the end of a data connection that waited for its other end."""
        if self._waiting.pop(opening.number, None) is not None:
            self.do(self.core.data_closed(opening.number))

    def drop(self, transport: asyncio.Transport, reason: str, peer: str) -> None:
        """Close a connection that broke a rule."""
        self.drops[reason] += 1
        log.debug("connection dropped", reason=reason, peer=peer)
        transport.abort()

    def do(self, effects: Iterable[Effect]) -> None:
        """Carry out what the core says, in order."""
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
                    opening = self._waiting[connection]
                    assert isinstance(opening, _Opening)
                    opening.hold()
                case Onward(circuit, following, route, asker):
                    assert asker is not None
                    self.links.carry(circuit, following, route, asker)
                case Join():
                    self._join(effect)
                case End(circuit, reason):
                    self.drops[f"circuit_{reason}"] += 1
                    self._circuits[circuit].abort()

    def _join(self, join: Join) -> None:
        dialler, target = self._waiting.pop(join.dialler), self._waiting.pop(join.target)
        circuit = Circuit(
            join.circuit,
            dialler.transport,
            target.transport,
            self.limits,
            self.now_ms(),
            on_end_closed=self.gone,
            on_closed=self._on_circuit_closed,
            on_look=self._look,
            look_bytes=STRANGER_LOOK_BYTES if self.options.tariff.price_per_gib else LOOK_BYTES,
        )
        self._circuits[join.circuit] = circuit
        assert isinstance(dialler, _Opening)  # what this relay opened leads onward, never back
        tier = FreeTier(self.options.tariff, self.now_ms())
        self._payers[join.circuit] = join.dialler_address, tier, dialler.host
        self.circuits_total += 1
        if isinstance(target, OnwardConnection):
            self._onward[join.circuit] = target.endpoint
        for opening in (dialler, target):
            if self.limits.circuit_bytes_per_s_max:
                set_pace(opening.socket(), self.limits.circuit_bytes_per_s_max)
            keep_alive(opening.socket())
            if isinstance(opening, _Opening):
                opening.transport.write(bytes((JOINED,)))
        circuit.start(dialler.early, target.early)
        self._collect(circuit, self.now_ms())  # or each circuit of who is not served would carry something
        log.debug("circuit joined", circuit=join.circuit, dialler=join.dialler_address, target=join.target_address)

    def _look(self, circuit: Circuit) -> None:
        """Count what has passed, and hold the circuit where its payer owes too much."""
        if circuit.number in self._payers:
            self._count_bytes(circuit)
            self._collect(circuit, self.now_ms())

    def _on_circuit_closed(self, circuit: Circuit) -> None:
        self._count_bytes(circuit)
        self._counted_bytes.pop(circuit.number, None)
        self._onward.pop(circuit.number, None)
        self._paces.pop(circuit.number, None)
        del self._circuits[circuit.number], self._payers[circuit.number]
        self.core.circuit_closed(circuit.number)
        log.debug(
            "circuit closed",
            circuit=circuit.number,
            bytes_forward=circuit.bytes_forward,
            bytes_backward=circuit.bytes_backward,
            ms=self.now_ms() - circuit.started_ms,
        )

    def _count_bytes(self, circuit: Circuit) -> None:
        carried = circuit.bytes_forward + circuit.bytes_backward
        moved = carried - self._counted_bytes.get(circuit.number, 0)
        if moved:
            self.bytes_total += moved
            self._counted_bytes[circuit.number] = carried
            self._moved[circuit.number] += moved
            payer, tier, host = self._payers[circuit.number]
            now_ms = self.now_ms()
            self.credit.carried(payer, host, moved, now_ms)
            self.cashier.charge(payer, tier.charge(moved, now_ms))

    def count_bytes(self) -> int:
        """Return the payload carried so far, running circuits included."""
        for circuit in self._circuits.values():
            self._count_bytes(circuit)
        return self.bytes_total

    def _on_tick(self) -> None:
        now_ms = self.now_ms()
        self.do(self.core.tick(now_ms))
        for circuit in list(self._circuits.values()):
            self._count_bytes(circuit)
            reason = self._collect(circuit, now_ms) or circuit.sweep(now_ms)
            if reason is not None:
                self.drops[f"circuit_{reason}"] += 1
                circuit.abort()
        self._ticks += 1
        if self._ticks % EXPIRE_TICKS == 0:
            self.core.expire(_wall_ms())
        if self._ticks % SLOW_TICKS == 0:
            too_old_ms = _wall_ms() - CHANNEL_AGE_MS_MAX
            for control in list(self._controls.values()) if len(self.cashier) else ():
                if control.opened_ms < too_old_ms:
                    self.drop(control.transport, "channel_age", control.channel.address.hex())
                    continue
                claim = self.cashier.claim(control.channel.address, control.channel.channel)
                if claim is not None:
                    control.send(Charged(claim))
            self._pace()
            self._consult(now_ms)
            self.fanout.tick(now_ms)
            moved: Counter[Endpoint] = Counter()
            for number, endpoint in self._onward.items():
                moved[endpoint] += self._moved[number]
            self.links.tick(moved)
            self._moved.clear()
        if now_ms - self._saved_at_ms >= SAVE_S * 1000:
            self._saved_at_ms = now_ms
            self._save_receipts()
        if self._drain_until_ms is not None and (self.core.is_empty or now_ms >= self._drain_until_ms):
            self.stop()
        self._tick = self._loop.call_later(TICK_S, self._on_tick)

    def _collect(self, circuit: Circuit, now_ms: int) -> str | None:
        """Hold a circuit whose payer owes too much; return why it is to end, where that has lasted."""
        payer, _, host = self._payers[circuit.number]
        is_stranger = self.credit.is_stranger(payer, host, now_ms)
        circuit.look_bytes = STRANGER_LOOK_BYTES if is_stranger else LOOK_BYTES
        if self.credit.is_served(payer, host, now_ms):
            circuit.release()
            return None
        circuit.hold(now_ms)
        held_ms = now_ms - (circuit.held_since_ms or now_ms)
        return "unpaid" if held_ms >= self.options.tariff.unpaid_ms_max else None

    def _is_served(self, payer: bytes, host: HostUse) -> bool:
        return self.credit.is_served(payer, host, self.now_ms())

    def _charge_copies(self, publisher: bytes, host: HostUse, size_bytes: int) -> None:
        self.credit.carried(publisher, host, size_bytes, self.now_ms())
        self.cashier.charge(publisher, size_bytes)

    # What the chain says of payers, and what it pays for their receipts: threads ask, the loop is never blocked.

    def _consult(self, now_ms: int) -> None:
        ledger = self._ledger
        if ledger is None or now_ms < self._ledger_after_ms:
            return
        if self._asking is None or self._asking.done():
            payers = self.credit.wanted(now_ms, ASK_AT_ONCE)
            if payers:
                self._asking = self._loop.create_task(self._ask(ledger, payers))
        if (self._settling is None or self._settling.done()) and (
            now_ms - self._settle_looked_at_ms >= SETTLE_LOOK_S * 1000
        ):
            self._settle_looked_at_ms = now_ms
            if self.credit.is_owed and self._store is not None:
                self._settling = self._loop.create_task(self._settle(ledger, self._store))

    async def _in_thread(self, work: Callable[[], _T]) -> _T | None:
        """Return what a thread found out, None where no node answered."""
        try:
            return await self._loop.run_in_executor(None, work)
        except (LedgerUnavailable, OSError) as error:  # no node that answers, or a disk that does not
            self._ledger_after_ms = self.now_ms() + LEDGER_PAUSE_S * 1000
            log.warning("accounts with the chain wait", error=str(error))
            return None
        except Exception as error:
            if not self._stopped.done():  # a bug: see _on_exception
                self._stopped.set_exception(error)
            return None

    async def _ask(self, ledger: Ledger, payers: list[bytes]) -> None:
        def work() -> list[tuple[bytes, Standing]]:
            return [(payer, ledger.standing(payer)) for payer in payers]

        found = await self._in_thread(work)
        if found is not None:
            self.credit.learn(found, self.now_ms())

    async def _settle(self, ledger: Ledger, store: ReceiptStore) -> None:
        if self._fee is None or self.now_ms() >= self._fee_until_ms:
            self._fee = await self._in_thread(ledger.fee)
            self._fee_until_ms = self.now_ms() + FEE_S * 1000
        fee = self._fee
        for payer in () if fee is None else self.credit.ripe(fee, self.now_ms(), SETTLE_AT_ONCE):
            self.credit.tried(payer, self.now_ms())
            found = await self._in_thread(partial(settle_receipts, ledger, store, payer, fee or 0))
            if found is None or self._ledger is None:
                return
            standing, settled = found
            self.settled_total += settled
            self.credit.learn([(payer, standing)], self.now_ms())
            if settled:
                self.credit.collected(payer, self.now_ms())
                log.info("receipts settled", payer=format_address(payer), count=settled)

    def _pace(self) -> None:
        """Share out the line, and each client's part of it, among the circuits that move."""
        limits = self.limits
        if not (limits.line_bytes_per_s or limits.client_bytes_per_s_max):
            return
        active = {number: self._payers[number][0] for number in self._circuits if self._moved[number]}
        for number, pace in paces(limits, active).items():
            if pace != self._paces.get(number):
                self._paces[number] = pace
                circuit = self._circuits[number]
                for half in (circuit.forward, circuit.backward):
                    if not half.source.is_closing():
                        set_pace(half.source.get_extra_info("socket"), pace)

    def _on_exception(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is None or isinstance(error, OSError):
            self.drops["socket_error"] += 1  # a line that broke; its connection is closed already
            return
        if not self._stopped.done():  # a bug: end as a whole rather than run on with a state nobody vouches for
            self._stopped.set_exception(error)

    def _issue(self, client: bytes, life_s: int) -> bytes:
        return Voucher.issue(
            self.identity(),
            client=client,
            not_after_ms=_wall_ms() + life_s * 1000,
        ).encode()

    async def _listen(self, where: str, factory: Callable[[], asyncio.Protocol], option: str) -> tuple[str, int]:
        host, colon, port = where.rpartition(":")
        if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise ConfigError(f"{option}: {where!r}: host:port expected")
        try:
            server = await self._loop.create_server(
                factory, host.strip("[]"), int(port), backlog=LISTEN_BACKLOG, reuse_address=True
            )
        except OSError as error:
            raise ConfigError(f"{option}: cannot listen on {where}: {error.strerror or error}") from None
        self._servers.append(server)
        bound = server.sockets[0].getsockname()
        return bound[0], bound[1]


class _Opening(asyncio.Protocol):
    """A connection from its first byte until it is known what it is; a data end also while it waits."""

    __slots__ = (
        "_buffer", "_daemon", "_handshake", "_is_held", "_place", "_purpose", "_timer", "early", "host", "number",
        "peer", "transport",
    )  # fmt: skip

    transport: asyncio.Transport
    host: HostUse
    _place: Place

    def __init__(self, daemon: RelayDaemon) -> None:
        self._daemon = daemon
        self._buffer = b""
        self._handshake: Handshake | None = None
        self._purpose = Purpose.RELAY_CONTROL
        self._timer: asyncio.TimerHandle | None = None
        self._is_held = False
        self.number = 0
        self.peer: tuple[str, int] = ("", 0)
        self.early = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if not peer:  # gone between the kernel's accept and ours
            transport.abort()  # type: ignore[attr-defined]
            return
        self.peer = peer[0], peer[1]
        answer = self._daemon.admit(self)
        if isinstance(answer, str):
            self._daemon.drop(self.transport, f"refused_{answer}", self.peer[0])
            return
        self.host, self._place = answer
        self._daemon.has_bbr = tune(cast(Any, self.socket())).congestion == "bbr"
        self._timer = asyncio.get_running_loop().call_later(
            self._daemon.limits.handshake_ms_max / 1000, self._too_slow
        )

    def socket(self) -> socket.socket:
        """Return the socket, for its options only."""
        return cast(socket.socket, self.transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        if self._timer is None:
            if self._is_held:
                self._daemon.drop(self.transport, "garbage", self.peer[0])
            return  # refused already, or its preamble is complete
        try:
            if self._handshake is not None:
                self._shake(data)
                return
            self._buffer += data
            if self._buffer[:PREAMBLE_BYTES] in _PURPOSES:
                self._purpose = _PURPOSES[self._buffer[:PREAMBLE_BYTES]]
                self._handshake = Handshake(
                    self._daemon.identity(), self._purpose, is_initiator=False, now_ms=_wall_ms()
                )
                rest, self._buffer = self._buffer[PREAMBLE_BYTES:], b""
                self._shake(rest)
            elif self._buffer[:PREAMBLE_BYTES] == DATA_PREAMBLE:
                self._take_token()
            elif self._buffer == OBSERVE_PREAMBLE:
                # Stays open as long as an opening may: its mapping at the asker's NAT lives with it.
                self.transport.write(observed_answer(*self.peer))
            elif not any(preamble.startswith(self._buffer) for preamble in _PREAMBLES):
                raise RelayProtocolError("not a client of a relay")
        except HandshakeFailed as error:
            self._daemon.drop(self.transport, error.code, self.peer[0])
        except RelayProtocolError:
            self._daemon.drop(self.transport, "garbage", self.peer[0])

    def _shake(self, data: bytes) -> None:
        assert self._handshake is not None
        answer = self._handshake.receive(data)
        if answer:
            self.transport.write(answer)
        session = self._handshake.session
        if session is not None:
            if not self._finish(has_proved=True):
                return
            if self._purpose is Purpose.RELAY_FANOUT:
                self._daemon.fanout.open(self.number, self.transport, session, self.host)
            else:
                self._daemon.control_opened(self, ControlChannel(session))

    def hold(self) -> None:
        """Wait parked: reading, so that its end is noticed, though nothing may come."""
        if self.early:
            self._daemon.drop(self.transport, "garbage", self.peer[0])
            return
        self._is_held = True
        keep_alive(self.socket())
        self.transport.resume_reading()

    def _take_token(self) -> None:
        if len(self._buffer) < DATA_PREAMBLE_BYTES:
            return
        self.early = self._buffer[DATA_PREAMBLE_BYTES:]
        if len(self.early) > EARLY_BYTES_MAX:
            raise RelayProtocolError("too much before the circuit is joined")
        token = self._buffer[PREAMBLE_BYTES:DATA_PREAMBLE_BYTES]
        if not self._finish(has_proved=self._daemon.core.is_awaited(token)):
            return
        self.transport.pause_reading()
        self._daemon.data_opened(self, token)

    def _finish(self, *, has_proved: bool) -> bool:
        """Be half open no more; False: there is no place for this one, and it was dropped."""
        assert self._timer is not None
        self._timer.cancel()
        self._timer = None
        if has_proved:
            return self._daemon.opened(self, self._place)
        self._daemon.left(self, self._place)
        return True

    def _too_slow(self) -> None:
        self._daemon.drop(self.transport, "slow_handshake", self.peer[0])

    def refuse(self, refusal: Refusal) -> None:
        """Tell the other side why, and close."""
        self.transport.write(bytes((refusal,)))
        self.transport.close()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        if not self.number:
            return  # never admitted
        if self._timer is not None:
            self._finish(has_proved=False)
        self._daemon.gone(self.transport)
        self._daemon.data_closed(self)


class _Control(asyncio.Protocol):
    """A client's control connection after its handshake."""

    __slots__ = ("_daemon", "channel", "number", "opened_ms", "transport")

    def __init__(
        self,
        daemon: RelayDaemon,
        number: int,
        transport: asyncio.Transport,
        channel: ControlChannel,
    ) -> None:
        self._daemon = daemon
        self.number = number
        self.transport = transport
        self.channel = channel
        self.opened_ms = _wall_ms()

    def send(self, message: Message) -> None:
        self.transport.write(self.channel.seal(message))
        if self.transport.get_write_buffer_size() > self._daemon.limits.control_backlog_bytes_max:
            self._daemon.drop(self.transport, "slow_reader", self.channel.address.hex())

    def data_received(self, data: bytes) -> None:
        try:
            for message in self.channel.receive(data):
                if self.transport.is_closing():
                    return
                self._daemon.control_message(self, message)
        except RelayProtocolError as error:
            self._daemon.drop(self.transport, error.code, self.channel.address.hex())

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._daemon.gone(self.transport)
        self._daemon.control_closed(self)


def _relay_endpoint(text: str) -> Endpoint:
    try:
        endpoint = Endpoint.parse(text)
    except DecodeError as error:
        raise ConfigError(f"relay.peers: {text!r}: {error}") from None
    if endpoint.relay is None:
        raise ConfigError(f"relay.peers: {text!r}: relay:<address>:host:port expected")
    return endpoint


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _raise_descriptor_limit(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        with contextlib.suppress(OSError, ValueError):  # fewer descriptors: accepting fails sooner, nothing else
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
