"""The core of a relay, without I/O: its reservations, pending circuits and running circuits.

The shell numbers the connections, reports their events and carries out the effects in order. Times are monotonic
milliseconds that the shell passes in. A client is an address that a handshake proved.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from p2p.base.endpoint import Endpoint
from p2p.base.netgroups import Netgroups
from p2p.records.revocations import Revocations
from p2p.secure.identity import NodeCertificate
from relay.protocol.errors import RETRY_HELPS, Refusal, RelayProtocolError
from relay.protocol.limits import HostTable, HostUse, RelayLimits
from relay.protocol.route import SeenRoutes, VerifiedRoute
from relay.protocol.wire import (
    Connect,
    Decline,
    Extend,
    Incoming,
    Message,
    Offered,
    Park,
    Ping,
    Pong,
    Refused,
    Release,
    Reserve,
    Reserved,
    Restarting,
)
from state.primitives.errors import DecodeError
from state.primitives.token_bucket import TokenBucket

__all__ = ["Drop", "Effect", "End", "ExtendCircuit", "Hold", "Join", "Refuse", "RelayCore", "Send"]

RETRY_MS: Final = 5_000
"""Retry delay sent with refusals that a limit caused."""
REFUSED_ENDS_MAX: Final = 1_024
"""Tokens of diallers whose circuit was refused before their data connection arrived."""
_NAMES_OTHERS: Final = frozenset({Refusal.RELAY_FULL, Refusal.HOST_LIMIT, Refusal.RESTARTING})
"""Refusals that name other relays."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message on a control connection."""

    connection: int
    message: Message


@dataclass(frozen=True, slots=True)
class Drop:
    """Close a control connection; the core has forgotten it."""

    connection: int
    reason: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer a data connection with this refusal and close it; the core has forgotten it."""

    connection: int
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Hold:
    """Keep this parked data connection, and report if it closes, until its circuit is joined."""

    connection: int


@dataclass(frozen=True, slots=True)
class ExtendCircuit:
    """Request the circuit from the relay ``next_hop``; report ``next_hop_opened`` or ``next_hop_failed``."""

    circuit: int
    next_hop: Endpoint
    route: bytes
    client_host: HostUse | None = field(default=None, compare=False)
    """The host that sent the request: a link to ``next_hop`` counts towards its limits."""


@dataclass(frozen=True, slots=True)
class Join:
    """Answer both data connections that they are joined, and splice them.

    ``dialler_address`` pays. Report ``circuit_closed`` once both have closed.
    """

    circuit: int
    dialler: int
    target: int
    dialler_address: bytes
    target_address: bytes


@dataclass(frozen=True, slots=True)
class End:
    """Close both data connections of a running circuit; the core has forgotten it."""

    circuit: int
    reason: str


Effect: TypeAlias = Send | Drop | Refuse | Hold | ExtendCircuit | Join | End


@dataclass(slots=True, eq=False)
class _Client:
    """One address, while it has a control connection or a circuit here."""

    address: bytes
    controls: int = 0
    circuits: int = 0
    pending: int = 0


@dataclass(slots=True, eq=False)
class _Control:
    connection: int
    client: _Client
    host: HostUse
    observed: str
    messages: TokenBucket
    heard_ms: int
    reserved_until_ms: int | None = None
    offers: set[int] = field(default_factory=set)
    """Pending circuits that this connection requested or was offered."""
    certificate: NodeCertificate | None = None
    parked: dict[bytes, int | None] = field(default_factory=dict)
    """Tokens of parked data connections, with the connection once it arrived."""


@dataclass(slots=True, eq=False)
class _Circuit:
    number: int
    dialler: _Control
    """The sender of the request: the dialler, or the previous relay."""
    payer: _Client
    """The dialler, also if the request came from a previous relay."""
    target: _Control | None
    """None if another relay comes next."""
    target_address: bytes
    host: HostUse
    tokens: tuple[bytes, bytes]
    deadline_ms: int
    ends: list[int | None] = field(default_factory=lambda: [None, None])
    """Data connections of the dialler and the target, once they arrived."""

    def clients(self) -> tuple[_Client, ...]:
        """Return the clients at its ends that this relay knows."""
        return (self.payer,) if self.target is None else (self.payer, self.target.client)


def _no_routes(_data: bytes) -> VerifiedRoute:
    raise RelayProtocolError("this relay takes no routes")


class RelayCore:
    """Reservations and circuits of one relay.

    ``issue`` signs the voucher for (client, life in seconds); ``random`` returns unguessable bytes.
    ``check_route`` decodes and verifies a route, ``may_dial`` says whether the relay carries for a payer from a
    host, and ``others`` names the relays to send with refusals.
    """

    def __init__(
        self,
        limits: RelayLimits,
        hosts: HostTable,
        *,
        issue: Callable[[bytes, int], bytes],
        random: Callable[[int], bytes],
        address: bytes = b"",
        check_route: Callable[[bytes], VerifiedRoute] = _no_routes,
        may_dial: Callable[[bytes, HostUse], bool] = lambda _payer, _host: True,
        others: Callable[[], tuple[str, ...]] = tuple,
    ) -> None:
        self._limits = limits
        self._hosts = hosts
        self._issue = issue
        self._random = random
        self._address = address
        self._check_route = check_route
        self._may_dial = may_dial
        self._others = others
        self._routes = SeenRoutes()
        self._parked: dict[bytes, _Control] = {}
        self._held: dict[int, tuple[_Control, bytes]] = {}
        self._refused_ends: OrderedDict[bytes, Refusal] = OrderedDict()
        self._drain_until_ms: int | None = None
        self._clients: dict[bytes, _Client] = {}
        self._controls: dict[int, _Control] = {}
        self._reserved: dict[bytes, _Control] = {}
        self._pending: dict[int, _Circuit] = {}
        self._tokens: dict[bytes, tuple[_Circuit, int]] = {}
        self._waiting: dict[int, _Circuit] = {}
        self._running: dict[int, tuple[tuple[_Client, ...], HostUse]] = {}
        self._crowds: Netgroups[int] = Netgroups()
        """Running circuits by the block that requested them, without those of trusted hosts."""
        self._pending_crowds: Netgroups[int] = Netgroups()
        self._reserved_crowds: Netgroups[bytes] = Netgroups()
        self._revocations = Revocations(known_max=2 * limits.reservations_max, is_kept=self._reserved.__contains__)
        """The newest certificate of each client with a reservation."""
        self._number = 0
        self.refusals: dict[Refusal, int] = dict.fromkeys(Refusal, 0)
        """Number of refusals sent, by reason."""

    @property
    def reservations(self) -> int:
        """Clients that can be reached through this relay now."""
        return len(self._reserved)

    @property
    def controls(self) -> int:
        """Open control connections."""
        return len(self._controls)

    @property
    def pending(self) -> int:
        """Circuits that wait for a data connection."""
        return len(self._pending)

    @property
    def circuits(self) -> int:
        """Running circuits."""
        return len(self._running)

    def is_reserved(self, address: bytes, now_ms: int) -> bool:
        """Tell whether an address can be reached through this relay."""
        holder = self._reserved.get(address)
        return holder is not None and _expiry(holder) > now_ms

    @property
    def parked(self) -> int:
        """Parked data connections."""
        return len(self._held)

    @property
    def is_empty(self) -> bool:
        """Whether the relay has no reservation and no circuit."""
        return not (self._reserved or self._pending or self._running)

    @property
    def load_percent(self) -> int:
        """The load of the relay in percent of its limits."""
        limits = self._limits
        circuits = len(self._pending) + len(self._running)
        return min(
            100, max(100 * len(self._reserved) // limits.reservations_max, 100 * circuits // limits.circuits_max)
        )

    def drain(self, now_ms: int, until_ms: int) -> list[Effect]:
        """Accept nothing new from now on, and announce the end at ``until_ms`` to every client."""
        self._drain_until_ms = until_ms
        left_ms = max(0, until_ms - now_ms)
        return [Send(number, Restarting(left_ms)) for number in sorted(self._controls)]

    def control_opened(
        self, connection: int, address: bytes, host: HostUse, observed: str, now_ms: int,
        certificate: NodeCertificate | None = None,
    ) -> None:  # fmt: skip
        """Add a control connection whose handshake proved ``address`` with ``certificate``."""
        client = self._clients.setdefault(address, _Client(address))
        client.controls += 1
        messages = TokenBucket(self._limits.messages_per_s, self._limits.messages_burst, now_ms)
        control = _Control(connection, client, host, observed, messages, now_ms, certificate=certificate)
        self._controls[connection] = control

    def control_message(self, connection: int, message: Message, now_ms: int) -> list[Effect]:
        """Take a client's message. Raises RelayProtocolError if a client may not send it: then drop the client."""
        control = self._controls[connection]
        control.heard_ms = now_ms
        if not control.messages.take(now_ms):
            raise RelayProtocolError("more messages than a client may send")
        match message:
            case Reserve(request, life_s):
                return self._reserve(control, request, life_s, now_ms)
            case Release():
                self._unreserve(control)
                return []
            case Connect(request, target, parked):
                return self._connect(control, request, target, parked, now_ms)
            case Extend(request, route, parked):
                return self._extend(control, request, route, parked, now_ms)
            case Decline(token):
                found = self._tokens.get(token)
                if found is None or found[0].target is not control or found[1] != 1:
                    return []  # expired meanwhile, or never of this client
                return self._abandon(found[0], Refusal.DECLINED)
            case Park(token):
                return self._park(control, token)
            case Ping(number):
                return [Send(connection, Pong(number))]
            case Pong():
                return []
            case _:
                raise RelayProtocolError("a relay's message from a client")

    def control_closed(self, connection: int) -> list[Effect]:
        """Forget a control connection: its reservation ends and its pending circuits are refused; others go on."""
        control = self._controls.pop(connection, None)
        if control is None:
            return []
        self._unreserve(control)
        effects: list[Effect] = []
        for number in sorted(control.offers):
            circuit = self._pending[number]
            gone = Refusal.NO_RESERVATION if circuit.target is control else Refusal.TARGET_TIMEOUT
            effects += self._abandon(circuit, gone)
        for token in list(control.parked):
            effects += self._unpark(control, token)
        control.client.controls -= 1
        self._forget(control.client)
        return effects

    def is_awaited(self, token: bytes) -> bool:
        """Tell whether a data connection with ``token`` is expected."""
        parked = self._parked.get(token)
        return token in self._tokens or (parked is not None and parked.parked[token] is None)

    def data_opened(self, connection: int, token: bytes) -> list[Effect]:
        """Take a data connection that sent ``token``; it waits, is joined with its other end, or is refused."""
        found = self._tokens.pop(token, None)
        if found is not None:
            return self._arrived(*found, connection)
        refusal = self._refused_ends.pop(token, None)
        if refusal is not None:
            return [self._refuse(connection, refusal)]
        control = self._parked.get(token)
        if control is None or control.parked[token] is not None:
            return [self._refuse(connection, Refusal.BAD_TOKEN)]
        control.parked[token] = connection
        self._held[connection] = control, token
        return [Hold(connection)]

    def _arrived(self, circuit: _Circuit, end: int, connection: int) -> list[Effect]:
        """Take one end of a circuit; with both ends it runs, and may replace a running circuit of a full relay.

        It replaces one only now: otherwise a mere request could end the circuits of others.
        """
        circuit.ends[end] = connection
        self._waiting[connection] = circuit
        dialler, target = circuit.ends
        if dialler is None or target is None:
            return []
        is_full = len(self._running) >= self._limits.circuits_max
        last = self._crowds.eviction_candidate(circuit.host.block) if is_full else None
        if is_full and last is None:
            return self._abandon(circuit, Refusal.RELAY_FULL)
        self._end_pending(circuit)
        clients = circuit.clients()
        for client in clients:
            client.circuits += 1
        circuit.host.count(circuits=1)
        effects: list[Effect] = []
        if last is not None:
            self.circuit_closed(last)
            effects.append(End(last, "evicted"))
        if not circuit.host.is_trusted:
            self._crowds.enter(circuit.host.block, circuit.number)
        self._running[circuit.number] = clients, circuit.host
        return [*effects, Join(circuit.number, dialler, target, circuit.payer.address, circuit.target_address)]

    def next_hop_opened(self, circuit: int, connection: int) -> list[Effect]:
        """Take the data connection to the next relay of a circuit's route; it is joined there already."""
        found = self._pending.get(circuit)
        if found is None:
            return [Refuse(connection, Refusal.TARGET_TIMEOUT)]  # too late: the circuit was abandoned
        return self._arrived(found, 1, connection)

    def next_hop_failed(self, circuit: int, refusal: Refusal) -> list[Effect]:
        """Note that the next relay of a circuit's route was not reached, or refused."""
        found = self._pending.get(circuit)
        return [] if found is None else self._abandon(found, refusal)

    def data_closed(self, connection: int) -> list[Effect]:
        """Note that a client closed a data connection whose circuit was not joined yet."""
        held = self._held.pop(connection, None)
        if held is not None:
            control, token = held
            del control.parked[token], self._parked[token]
            return []
        circuit = self._waiting.pop(connection, None)
        if circuit is None:
            return []
        circuit.ends[circuit.ends.index(connection)] = None
        return self._abandon(circuit, Refusal.TARGET_TIMEOUT)

    def circuit_closed(self, circuit: int) -> None:
        """Note that both ends of a running circuit closed."""
        if circuit not in self._running:
            return  # ended to make room
        clients, host = self._running.pop(circuit)
        host.count(circuits=-1)
        self._crowds.leave(circuit)
        for client in clients:
            client.circuits -= 1
            self._forget(client)

    def tick(self, now_ms: int) -> list[Effect]:
        """End expired reservations and pending circuits, and drop silent clients."""
        effects: list[Effect] = []
        for circuit in [c for c in self._pending.values() if c.deadline_ms <= now_ms]:
            effects += self._abandon(circuit, Refusal.TARGET_TIMEOUT)
        for control in [c for c in self._reserved.values() if _expiry(c) <= now_ms]:
            self._unreserve(control)
        silent_since = now_ms - self._limits.control_idle_ms_max
        for connection in [n for n, c in self._controls.items() if c.heard_ms <= silent_since]:
            effects += [*self.control_closed(connection), Drop(connection, "silent")]
        return effects

    def expire(self, now_ms: int) -> None:
        """Forget expired certificates; ``now_ms`` is wall-clock time."""
        self._revocations.expire(now_ms)

    def _reserve(self, control: _Control, request: int, life_s: int, now_ms: int) -> list[Effect]:
        address = control.client.address
        if self._drain_until_ms is not None:
            return [self._refused(control, request, Refusal.RESTARTING)]
        if control.certificate is not None and self._revocations.is_revoked(address, control.certificate):
            return [*self.control_closed(control.connection), Drop(control.connection, "revoked")]
        holder = self._reserved.get(address)
        effects: list[Effect] = []
        if holder is not None and holder is not control:
            # The same key on a newer connection: the old connection is dead, or its client will reconnect.
            effects = [*self.control_closed(holder.connection), Drop(holder.connection, "superseded")]
        if control.reserved_until_ms is None:
            if not self._hosts.may_reserve(control.host):
                return [*effects, self._refused(control, request, Refusal.HOST_LIMIT)]
            if len(self._reserved) >= self._limits.reservations_max:
                last = self._reserved_crowds.eviction_candidate(control.host.block)
                if last is None:
                    return [*effects, self._refused(control, request, Refusal.RELAY_FULL)]
                number = self._reserved[last].connection
                effects += [*self.control_closed(number), Drop(number, "evicted")]
            self._hosts.count_reservation(control.host, 1)
            if not control.host.is_trusted:
                self._reserved_crowds.enter(control.host.block, address)
            self._reserved[address] = control
        if control.certificate is not None:  # only now: a refused client uses no memory
            self._revocations.note(address, control.certificate, is_met=True)
        life_s = max(1, min(life_s, self._limits.reservation_s_max))
        control.reserved_until_ms = now_ms + life_s * 1000
        reply = Reserved(request, life_s, self._issue(address, life_s), control.observed)
        return [*effects, Send(control.connection, reply)]

    def _connect(
        self, control: _Control, request: int, address: bytes, parked: bytes, now_ms: int
    ) -> list[Effect]:
        target = self._reserved.get(address)
        if self._is_too_fast(control, now_ms):
            return [self._refused(control, request, Refusal.TOO_FAST)]
        refusal = self._refusal_for(control, control.client, target)
        if refusal is None and (target is None or _expiry(target) <= now_ms):
            refusal = Refusal.NO_RESERVATION
        if refusal is not None:
            return [self._refused(control, request, refusal)]
        effects, _ = self._add_pending(control, control.client, target, address, request, parked, now_ms)
        return effects

    def _extend(self, control: _Control, request: int, data: bytes, parked: bytes, now_ms: int) -> list[Effect]:
        if self._is_too_fast(control, now_ms):  # before the cost of checking two signatures
            return [self._refused(control, request, Refusal.TOO_FAST)]
        try:
            verified = self._check_route(data)
            next_hop = verified.next_of(self._address, control.client.address)
        except (RelayProtocolError, DecodeError):
            return [self._refused(control, request, Refusal.BAD_ROUTE)]
        if not self._routes.note(verified, control.host, now_ms):
            return [self._refused(control, request, Refusal.BAD_ROUTE)]
        address = verified.route.target
        target = self._reserved.get(address) if next_hop is None else None
        payer = self._clients.get(verified.dialler) or _Client(verified.dialler)
        refusal = self._refusal_for(control, payer, target)
        if refusal is None and next_hop is None and (target is None or _expiry(target) <= now_ms):
            refusal = Refusal.NO_RESERVATION
        if refusal is not None:
            return [self._refused(control, request, refusal)]
        effects, circuit = self._add_pending(control, payer, target, address, request, parked, now_ms)
        if next_hop is not None:
            effects.append(ExtendCircuit(circuit.number, next_hop, data, control.host))
        return effects

    def _add_pending(
        self, control: _Control, payer: _Client, target: _Control | None, address: bytes, request: int,
        parked: bytes, now_ms: int,
    ) -> tuple[list[Effect], _Circuit]:  # fmt: skip
        """Add a pending circuit, and request the data connections that are not parked here already."""
        effects = self._make_pending_room(control.host)
        self._clients[payer.address] = (
            payer  # only now: if its last circuit was just evicted, the client was forgotten
        )
        self._number += 1
        mine, theirs = self._random(32), self._random(32)
        wait_ms = self._limits.pending_ms_max
        circuit = _Circuit(
            self._number, control, payer, target, address, control.host, (mine, theirs), now_ms + wait_ms
        )
        self._pending[circuit.number] = circuit
        control.offers.add(circuit.number)
        control.host.count(circuits=1, pending=1)
        if not control.host.is_trusted:
            self._pending_crowds.enter(control.host.block, circuit.number)
        for client in circuit.clients():
            client.pending += 1
        if target is not None:
            target.offers.add(circuit.number)
            waiting = next((token for token, number in target.parked.items() if number is not None), None)
            if waiting is None or target is control:
                self._tokens[theirs] = circuit, 1
                effects.append(Send(target.connection, Incoming(theirs, payer.address, wait_ms)))
            else:
                self._arrived(circuit, 1, self._take_parked(target, waiting))
        connection = control.parked.get(parked) if parked else None
        if connection is None:
            self._tokens[mine] = circuit, 0
            effects.append(Send(control.connection, Offered(request, mine, wait_ms)))
        else:
            effects.append(Send(control.connection, Offered(request, parked, wait_ms)))
            effects += self._arrived(circuit, 0, self._take_parked(control, parked))
        return effects, circuit

    def _park(self, control: _Control, token: bytes) -> list[Effect]:
        if token in self._parked or token in self._tokens or self._drain_until_ms is not None:
            return []
        effects: list[Effect] = []
        if len(control.parked) >= self._limits.parked_per_client_max:
            effects = self._unpark(control, next(iter(control.parked)))
        control.parked[token] = None
        self._parked[token] = control
        return effects

    def _unpark(self, control: _Control, token: bytes) -> list[Effect]:
        """Forget one parked connection, arrived or not."""
        connection = control.parked.pop(token)
        del self._parked[token]
        if connection is None:
            return []
        del self._held[connection]
        return [self._refuse(connection, Refusal.NO_RESERVATION)]

    def _take_parked(self, control: _Control, token: bytes) -> int:
        connection = control.parked.pop(token)
        assert connection is not None
        del self._parked[token], self._held[connection]
        return connection

    def _is_too_fast(self, control: _Control, now_ms: int) -> bool:
        return not control.host.is_trusted and not control.host.connects.take(now_ms)

    def _refusal_for(self, control: _Control, payer: _Client, target: _Control | None) -> Refusal | None:
        limits = self._limits
        if self._drain_until_ms is not None:
            return Refusal.RESTARTING
        is_dialler = payer is control.client
        if not control.host.is_trusted:
            circuits_max = limits.circuits_per_host_max if is_dialler else limits.circuits_per_relay_max
            if control.host.circuits >= circuits_max or control.host.pending >= limits.pending_per_host_max:
                return Refusal.HOST_LIMIT
            net = control.host.net
            if net.circuits >= limits.circuits_per_network_max or net.pending >= limits.pending_per_network_max:
                return Refusal.HOST_LIMIT
        if not self._may_dial(payer.address, control.host):
            return Refusal.UNPAID
        for crowds, is_full in self._fullness():
            if is_full and crowds.eviction_candidate(control.host.block) is None:
                return Refusal.RELAY_FULL
        clients = [(payer, Refusal.CLIENT_LIMIT)]
        if target is not None:
            clients.append((target.client, Refusal.TARGET_LIMIT))
        for client, refusal in clients:
            if (
                client.pending >= limits.pending_per_client_max
                or client.pending + client.circuits >= limits.circuits_per_client_max
            ):
                return refusal
        return None

    def _fullness(self) -> tuple[tuple[Netgroups[int], bool], ...]:
        """Return for each limit of the whole relay who uses it, and whether it is reached."""
        return (
            (self._pending_crowds, len(self._pending) >= self._limits.pending_max),
            (self._crowds, len(self._running) >= self._limits.circuits_max),
        )

    def _make_pending_room(self, host: HostUse) -> list[Effect]:
        """Abandon the newest pending circuit of the largest block for one of ``host``, if the limit is reached."""
        if len(self._pending) < self._limits.pending_max:
            return []
        last = self._pending_crowds.eviction_candidate(host.block)
        return [] if last is None else self._abandon(self._pending[last], Refusal.RELAY_FULL)

    def _end_pending(self, circuit: _Circuit) -> None:
        """Remove a circuit from the pending ones and from their counts."""
        del self._pending[circuit.number]
        for token in circuit.tokens:
            self._tokens.pop(token, None)
        for end in circuit.ends:
            if end is not None:
                self._waiting.pop(end, None)
        circuit.host.count(circuits=-1, pending=-1)
        self._pending_crowds.leave(circuit.number)
        circuit.dialler.offers.discard(circuit.number)
        if circuit.target is not None:
            circuit.target.offers.discard(circuit.number)
        for client in circuit.clients():
            client.pending -= 1

    def _abandon(self, circuit: _Circuit, refusal: Refusal) -> list[Effect]:
        mine = circuit.tokens[0]
        if mine in self._tokens:  # the dialler's data connection will still arrive, and gets this answer
            self._refused_ends[mine] = refusal
            if len(self._refused_ends) > REFUSED_ENDS_MAX:
                self._refused_ends.popitem(last=False)
        self._end_pending(circuit)
        self._forget(circuit.payer)
        return [self._refuse(end, refusal) for end in circuit.ends if end is not None]

    def _unreserve(self, control: _Control) -> None:
        if control.reserved_until_ms is not None:
            control.reserved_until_ms = None
            del self._reserved[control.client.address]
            self._reserved_crowds.leave(control.client.address)
            self._hosts.count_reservation(control.host, -1)

    def _forget(self, client: _Client) -> None:
        if not (client.controls or client.circuits or client.pending):
            self._clients.pop(client.address, None)

    def _refused(self, control: _Control, request: int, refusal: Refusal) -> Send:
        self.refusals[refusal] += 1
        others = self._others() if refusal in _NAMES_OTHERS else ()
        retry_ms = RETRY_MS if refusal in RETRY_HELPS else 0
        return Send(control.connection, Refused(request, refusal, retry_ms, self.load_percent, others))

    def _refuse(self, connection: int, refusal: Refusal) -> Refuse:
        self.refusals[refusal] += 1
        return Refuse(connection, refusal)


def _expiry(control: _Control) -> int:
    assert control.reserved_until_ms is not None
    return control.reserved_until_ms
