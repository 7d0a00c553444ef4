"""The state of a relay without I/O: who is reserved, which circuits wait for an end, which run.

The shell gives every connection a number, reports what happens on it and carries out the effects in order. Time is
a monotonic count of milliseconds that the shell passes in. Clients are addresses that a handshake proved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from relay.errors import RETRY_HELPS, Refusal, RelayProtocolError
from relay.limits import Bucket, HostTable, HostUse, RelayLimits
from relay.protocol import (
    Connect,
    Decline,
    Incoming,
    Message,
    Offered,
    Ping,
    Pong,
    Refused,
    Release,
    Reserve,
    Reserved,
)

__all__ = ["Drop", "Effect", "Join", "Refuse", "RelayCore", "Send"]

RETRY_MS: Final = 5_000
"""Told to clients that a limit turned away."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message on a control connection."""

    connection: int
    message: Message


@dataclass(frozen=True, slots=True)
class Drop:
    """Close a control connection; the core knows it no more."""

    connection: int
    reason: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer a data connection with this refusal and close it; the core knows it no more."""

    connection: int
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Join:
    """Answer both data connections that they are joined, and make one byte stream of them.

    Report ``circuit_closed`` once both are closed.
    """

    circuit: int
    dialler: int
    target: int
    dialler_address: bytes
    target_address: bytes


Effect: TypeAlias = Send | Drop | Refuse | Join


@dataclass(slots=True, eq=False)
class _Client:
    """One address, as long as it has a control connection or a circuit here."""

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
    messages: Bucket
    heard_ms: int
    reserved_until_ms: int | None = None
    offers: set[int] = field(default_factory=set)
    """Pending circuits that this connection asked for or was told of."""


@dataclass(slots=True, eq=False)
class _Circuit:
    number: int
    dialler: _Control
    target: _Control
    host: HostUse
    tokens: tuple[bytes, bytes]
    deadline_ms: int
    ends: list[int | None] = field(default_factory=lambda: [None, None])
    """Data connections of the dialler and the target, once they have come."""


class RelayCore:
    """Reservations and circuits of one relay.

    ``issue`` makes the voucher for (client, life in seconds); ``random`` returns so many unguessable bytes.
    """

    def __init__(
        self,
        limits: RelayLimits,
        hosts: HostTable,
        *,
        issue: Callable[[bytes, int], bytes],
        random: Callable[[int], bytes],
    ) -> None:
        self._limits = limits
        self._hosts = hosts
        self._issue = issue
        self._random = random
        self._clients: dict[bytes, _Client] = {}
        self._controls: dict[int, _Control] = {}
        self._reserved: dict[bytes, _Control] = {}
        self._pending: dict[int, _Circuit] = {}
        self._tokens: dict[bytes, tuple[_Circuit, int]] = {}
        self._waiting: dict[int, _Circuit] = {}
        self._running: dict[int, tuple[_Client, _Client, HostUse]] = {}
        self._number = 0
        self.refusals: dict[Refusal, int] = dict.fromkeys(Refusal, 0)
        """How often each was answered."""

    @property
    def reservations(self) -> int:
        """Clients that can be reached through this relay now."""
        return len(self._reserved)

    @property
    def controls(self) -> int:
        """Control connections that are open."""
        return len(self._controls)

    @property
    def pending(self) -> int:
        """Circuits that wait for one of their ends."""
        return len(self._pending)

    @property
    def circuits(self) -> int:
        """Circuits that run."""
        return len(self._running)

    def control_opened(self, connection: int, address: bytes, host: HostUse, observed: str, now_ms: int) -> None:
        """Note a control connection whose handshake proved ``address``."""
        client = self._clients.setdefault(address, _Client(address))
        client.controls += 1
        messages = Bucket(self._limits.messages_per_s, self._limits.messages_burst, now_ms)
        self._controls[connection] = _Control(connection, client, host, observed, messages, now_ms)

    def control_message(self, connection: int, message: Message, now_ms: int) -> list[Effect]:
        """Take a client's message. Raises RelayProtocolError for one that a client may not send: then drop it."""
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
            case Connect(request, target):
                return self._connect(control, request, target, now_ms)
            case Decline(token):
                found = self._tokens.get(token)
                if found is None or found[0].target is not control or found[1] != 1:
                    return []  # expired meanwhile, or never this client's
                return self._abandon(found[0], Refusal.DECLINED)
            case Ping(number):
                return [Send(connection, Pong(number))]
            case Pong():
                return []
            case _:
                raise RelayProtocolError("a relay's message from a client")

    def control_closed(self, connection: int) -> list[Effect]:
        """Forget a control connection: its reservation ends, what waits for it is refused; circuits run on."""
        control = self._controls.pop(connection, None)
        if control is None:
            return []
        self._unreserve(control)
        effects: list[Effect] = []
        for number in sorted(control.offers):
            circuit = self._pending[number]
            gone = Refusal.NO_RESERVATION if circuit.target is control else Refusal.TARGET_TIMEOUT
            effects += self._abandon(circuit, gone)
        control.client.controls -= 1
        self._forget(control.client)
        return effects

    def data_opened(self, connection: int, token: bytes) -> list[Effect]:
        """Take a data connection that showed ``token``; it waits, is joined with its other end, or is refused."""
        found = self._tokens.pop(token, None)
        if found is None:
            return [self._refuse(connection, Refusal.BAD_TOKEN)]
        circuit, end = found
        circuit.ends[end] = connection
        self._waiting[connection] = circuit
        dialler, target = circuit.ends
        if dialler is None or target is None:
            return []
        self._settle(circuit)
        clients = circuit.dialler.client, circuit.target.client
        for client in clients:
            client.circuits += 1
        circuit.host.circuits += 1
        self._running[circuit.number] = (*clients, circuit.host)
        return [Join(circuit.number, dialler, target, clients[0].address, clients[1].address)]

    def data_closed(self, connection: int) -> list[Effect]:
        """Note that a data connection which waited for its other end was closed by its client."""
        circuit = self._waiting.pop(connection, None)
        if circuit is None:
            return []
        circuit.ends[circuit.ends.index(connection)] = None
        return self._abandon(circuit, Refusal.TARGET_TIMEOUT)

    def circuit_closed(self, circuit: int) -> None:
        """Note that both ends of a joined circuit are closed."""
        dialler, target, host = self._running.pop(circuit)
        host.circuits -= 1
        for client in (dialler, target):
            client.circuits -= 1
            self._forget(client)

    def tick(self, now_ms: int) -> list[Effect]:
        """Do what is due: end expired reservations and waits, drop the silent."""
        effects: list[Effect] = []
        for circuit in [c for c in self._pending.values() if c.deadline_ms <= now_ms]:
            effects += self._abandon(circuit, Refusal.TARGET_TIMEOUT)
        for control in [c for c in self._reserved.values() if _expiry(c) <= now_ms]:
            self._unreserve(control)
        silent_since = now_ms - self._limits.control_idle_ms_max
        for connection in [n for n, c in self._controls.items() if c.heard_ms <= silent_since]:
            effects += [*self.control_closed(connection), Drop(connection, "silent")]
        return effects

    def _reserve(self, control: _Control, request: int, life_s: int, now_ms: int) -> list[Effect]:
        address = control.client.address
        holder = self._reserved.get(address)
        effects: list[Effect] = []
        if holder is not None and holder is not control:
            # The same key on a newer connection: the old one is a ghost of a lost line, or will reconnect.
            effects = [*self.control_closed(holder.connection), Drop(holder.connection, "superseded")]
        if control.reserved_until_ms is None:
            if len(self._reserved) >= self._limits.reservations_max:
                return [*effects, self._refused(control, request, Refusal.RELAY_FULL)]
            if not self._hosts.may_reserve(control.host):
                return [*effects, self._refused(control, request, Refusal.HOST_LIMIT)]
            self._hosts.count_reservation(control.host, 1)
            self._reserved[address] = control
        life_s = max(1, min(life_s, self._limits.reservation_s_max))
        control.reserved_until_ms = now_ms + life_s * 1000
        reply = Reserved(request, life_s, self._issue(address, life_s), control.observed)
        return [*effects, Send(control.connection, reply)]

    def _connect(self, control: _Control, request: int, address: bytes, now_ms: int) -> list[Effect]:
        target = self._reserved.get(address)
        refusal = self._why_not(control, target, now_ms)
        if refusal is not None or target is None:
            return [self._refused(control, request, refusal or Refusal.NO_RESERVATION)]
        self._number += 1
        mine, theirs = self._random(32), self._random(32)
        wait_ms = self._limits.pending_ms_max
        circuit = _Circuit(self._number, control, target, control.host, (mine, theirs), now_ms + wait_ms)
        self._pending[circuit.number] = circuit
        self._tokens[mine] = (circuit, 0)
        self._tokens[theirs] = (circuit, 1)
        control.offers.add(circuit.number)
        target.offers.add(circuit.number)
        control.client.pending += 1
        target.client.pending += 1
        control.host.circuits += 1
        return [
            Send(target.connection, Incoming(theirs, control.client.address, wait_ms)),
            Send(control.connection, Offered(request, mine, wait_ms)),
        ]

    def _why_not(self, control: _Control, target: _Control | None, now_ms: int) -> Refusal | None:
        limits = self._limits
        if not control.host.is_trusted:
            if not control.host.connects.take(now_ms):
                return Refusal.TOO_FAST
            if control.host.circuits >= limits.circuits_per_host_max:
                return Refusal.HOST_LIMIT
        if target is None or _expiry(target) <= now_ms:
            return Refusal.NO_RESERVATION
        if len(self._pending) >= limits.pending_max or (
            len(self._pending) + len(self._running) >= limits.circuits_max
        ):
            return Refusal.RELAY_FULL
        for client, refusal in (
            (control.client, Refusal.CLIENT_LIMIT),
            (target.client, Refusal.TARGET_LIMIT),
        ):
            if (
                client.pending >= limits.pending_per_client_max
                or client.pending + client.circuits >= limits.circuits_per_client_max
            ):
                return refusal
        return None

    def _settle(self, circuit: _Circuit) -> None:
        """Take a circuit out of the pending ones, with everything that counted it there."""
        del self._pending[circuit.number]
        for token in circuit.tokens:
            self._tokens.pop(token, None)
        for end in circuit.ends:
            if end is not None:
                self._waiting.pop(end, None)
        circuit.host.circuits -= 1
        # A set: one client may be both ends.
        for control in (circuit.dialler, circuit.target):
            control.offers.discard(circuit.number)
            control.client.pending -= 1

    def _abandon(self, circuit: _Circuit, refusal: Refusal) -> list[Effect]:
        self._settle(circuit)
        return [self._refuse(end, refusal) for end in circuit.ends if end is not None]

    def _unreserve(self, control: _Control) -> None:
        if control.reserved_until_ms is not None:
            control.reserved_until_ms = None
            del self._reserved[control.client.address]
            self._hosts.count_reservation(control.host, -1)

    def _forget(self, client: _Client) -> None:
        if not (client.controls or client.circuits or client.pending):
            self._clients.pop(client.address, None)

    def _refused(self, control: _Control, request: int, refusal: Refusal) -> Send:
        self.refusals[refusal] += 1
        return Send(control.connection, Refused(request, refusal, RETRY_MS if refusal in RETRY_HELPS else 0))

    def _refuse(self, connection: int, refusal: Refusal) -> Refuse:
        self.refusals[refusal] += 1
        return Refuse(connection, refusal)


def _expiry(control: _Control) -> int:
    assert control.reserved_until_ms is not None
    return control.reserved_until_ms
