"""The circuits that a relay carries now: what each has moved, who pays, how fast it goes, when it ends.

``relay.server.core`` says which two connections are joined, ``relay.server.splice`` passes the bytes; the accounts
(``relay.payment.accounts``) say who is carried further.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import structlog

from p2p.base.endpoint import Endpoint
from relay.payment.accounts import PayerAccounts
from relay.payment.metering import FreeTier, Tariff
from relay.protocol.keep_alive import keep_alive
from relay.protocol.limits import HostUse, RelayLimits, paces
from relay.server.splice import CHECK_BYTES, STRANGER_CHECK_BYTES, Splice, set_pace

__all__ = ["CarriedCircuits"]

log = structlog.get_logger("relay")


class _CircuitEnd(Protocol):
    """One end of a circuit: a connection that has shown its token, or leads to another relay."""

    @property
    def transport(self) -> asyncio.Transport: ...
    @property
    def early(self) -> bytes: ...
    def socket(self) -> socket.socket: ...


@dataclass(slots=True, eq=False)
class _CarriedCircuit:
    circuit: Splice
    payer: bytes
    host: HostUse
    tier: FreeTier
    next_hop: Endpoint | None
    """The relay that it leads to."""
    counted_bytes: int = 0
    moved_bytes: int = 0
    """Since the last ``pace``."""
    pace: int | None = None


class CarriedCircuits:
    """``end_closed`` is called for each transport of a circuit that closes, ``closed`` with the number of one."""

    def __init__(
        self,
        accounts: PayerAccounts,
        tariff: Tariff,
        limits: RelayLimits,
        *,
        now_ms: Callable[[], int],
        end_closed: Callable[[asyncio.Transport], None],
        closed: Callable[[int], None],
    ) -> None:
        self.circuits_total = 0
        self.bytes_total = 0
        """Of circuits that were looked at; see ``count_bytes``."""
        self._accounts = accounts
        self._tariff = tariff
        self._limits = limits
        self._now_ms = now_ms
        self._end_closed = end_closed
        self._closed = closed
        self._carried: dict[int, _CarriedCircuit] = {}

    def begin(
        self,
        number: int,
        dialler: _CircuitEnd,
        target: _CircuitEnd,
        *,
        payer: bytes,
        host: HostUse,
        next_hop: Endpoint | None,
    ) -> None:
        """Carry a circuit that ``payer`` dialled from ``host``, by the relay ``next_hop`` where one follows."""
        now_ms = self._now_ms()
        circuit = Splice(
            number,
            dialler.transport,
            target.transport,
            self._limits,
            now_ms,
            on_end_closed=self._end_closed,
            on_closed=self._on_closed,
            on_check=self._check,
            check_bytes=STRANGER_CHECK_BYTES if self._tariff.price_per_gib else CHECK_BYTES,
        )
        carried = _CarriedCircuit(circuit, payer, host, FreeTier(self._tariff, now_ms), next_hop)
        self._carried[number] = carried
        self.circuits_total += 1
        for end in (dialler, target):
            if self._limits.circuit_bytes_per_s_max:
                set_pace(end.socket(), self._limits.circuit_bytes_per_s_max)
            keep_alive(end.socket())
        circuit.start(dialler.early, target.early)
        self._collect(carried, now_ms)  # or each circuit of who is not served would carry something

    def abort(self, number: int) -> None:
        """End a circuit now."""
        self._carried[number].circuit.abort()

    def count_bytes(self) -> int:
        """Return the payload carried so far, running circuits included."""
        for carried in self._carried.values():
            self._count(carried)
        return self.bytes_total

    def tick(self, now_ms: int) -> list[tuple[Splice, str]]:
        """Count, and return the circuits that are to end now, each with the reason."""
        ended: list[tuple[Splice, str]] = []
        for carried in list(self._carried.values()):
            self._count(carried)
            reason = self._collect(carried, now_ms) or carried.circuit.sweep(now_ms)
            if reason is not None:
                ended.append((carried.circuit, reason))
        return ended

    def pace(self) -> Counter[Endpoint]:
        """Pace what moves, and return how much has moved to each relay since the last call."""
        self._pace()
        moved: Counter[Endpoint] = Counter()
        for carried in self._carried.values():
            if carried.next_hop is not None:
                moved[carried.next_hop] += carried.moved_bytes
            carried.moved_bytes = 0
        return moved

    def _check(self, circuit: Splice) -> None:
        """Count what has passed, and hold the circuit where its payer owes too much."""
        carried = self._carried.get(circuit.number)
        if carried is not None:
            self._count(carried)
            self._collect(carried, self._now_ms())

    def _on_closed(self, circuit: Splice) -> None:
        self._count(self._carried[circuit.number])
        del self._carried[circuit.number]
        self._closed(circuit.number)
        log.debug(
            "circuit closed",
            circuit=circuit.number,
            bytes_forward=circuit.bytes_forward,
            bytes_backward=circuit.bytes_backward,
            ms=self._now_ms() - circuit.started_ms,
        )

    def _count(self, carried: _CarriedCircuit) -> None:
        size_bytes = carried.circuit.bytes_forward + carried.circuit.bytes_backward
        moved = size_bytes - carried.counted_bytes
        if moved:
            self.bytes_total += moved
            carried.counted_bytes = size_bytes
            carried.moved_bytes += moved
            charged_bytes = carried.tier.charge(moved, self._now_ms())
            self._accounts.carried(carried.payer, carried.host, moved, charged_bytes=charged_bytes)

    def _collect(self, carried: _CarriedCircuit, now_ms: int) -> str | None:
        """Hold a circuit whose payer owes too much; return why it is to end, where that has lasted."""
        circuit, credit = carried.circuit, self._accounts.credit
        is_stranger = credit.is_stranger(carried.payer, carried.host, now_ms)
        circuit.check_bytes = STRANGER_CHECK_BYTES if is_stranger else CHECK_BYTES
        if credit.is_served(carried.payer, carried.host, now_ms):
            circuit.release()
            return None
        circuit.hold(now_ms)
        held_ms = now_ms - (circuit.held_since_ms or now_ms)
        return "unpaid" if held_ms >= self._tariff.unpaid_ms_max else None

    def _pace(self) -> None:
        """Share out the line, and each client's part of it, among the circuits that move."""
        limits = self._limits
        if not (limits.line_bytes_per_s or limits.client_bytes_per_s_max):
            return
        active = {number: carried.payer for number, carried in self._carried.items() if carried.moved_bytes}
        for number, pace in paces(limits, active).items():
            carried = self._carried[number]
            if pace != carried.pace:
                carried.pace = pace
                for direction in (carried.circuit.forward, carried.circuit.backward):
                    if not direction.source.is_closing():
                        set_pace(direction.source.get_extra_info("socket"), pace)
