"""The circuits that a relay carries now: their bytes, payers, pacing rates and end.

``relay.server.core`` decides which two connections are joined, ``relay.server.splice`` passes the bytes, and
``relay.payment.accounts`` decides for which payers the relay carries.
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
from relay.protocol.limits import HostUse, RelayLimits, pacing_rates
from relay.server.splice import CHECK_BYTES, UNFUNDED_CHECK_BYTES, Splice, set_pace

__all__ = ["CarriedCircuits"]

log = structlog.get_logger("relay")


class _CircuitEnd(Protocol):
    """One end of a circuit: a client's data connection, or one to the next relay."""

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
    """The next relay of the circuit's route; None: the target is a client here."""
    counted_bytes: int = 0
    moved_bytes: int = 0
    """Bytes since the last ``pace``."""
    pace: int | None = None


class CarriedCircuits:
    """All circuits of one relay.

    ``end_closed`` is called for each transport of a circuit that closed, ``closed`` with the number of each.
    """

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
        """Bytes counted so far; ``count_bytes`` brings it up to date."""
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
        """Carry a circuit that ``payer`` dialled from ``host``; ``next_hop`` is the next relay, if any."""
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
            check_bytes=UNFUNDED_CHECK_BYTES if self._tariff.price_per_gib else CHECK_BYTES,
        )
        carried = _CarriedCircuit(circuit, payer, host, FreeTier(self._tariff, now_ms), next_hop)
        self._carried[number] = carried
        self.circuits_total += 1
        for end in (dialler, target):
            if self._limits.circuit_bytes_per_s_max:
                set_pace(end.socket(), self._limits.circuit_bytes_per_s_max)
            keep_alive(end.socket())
        circuit.start(dialler.early, target.early)
        self._collect(carried, now_ms)  # or each new circuit of an unpaid payer would carry some bytes

    def abort(self, number: int) -> None:
        """End a circuit now."""
        self._carried[number].circuit.abort()

    def count_bytes(self) -> int:
        """Return the bytes carried so far, running circuits included."""
        for carried in self._carried.values():
            self._count(carried)
        return self.bytes_total

    def tick(self, now_ms: int) -> list[tuple[Splice, str]]:
        """Count bytes, and return the circuits that must end now with the reason."""
        ended: list[tuple[Splice, str]] = []
        for carried in list(self._carried.values()):
            self._count(carried)
            reason = self._collect(carried, now_ms) or carried.circuit.sweep(now_ms)
            if reason is not None:
                ended.append((carried.circuit, reason))
        return ended

    def pace(self) -> Counter[Endpoint]:
        """Set the pacing rates, and return the bytes carried to each next relay since the last call."""
        self._pace()
        moved: Counter[Endpoint] = Counter()
        for carried in self._carried.values():
            if carried.next_hop is not None:
                moved[carried.next_hop] += carried.moved_bytes
            carried.moved_bytes = 0
        return moved

    def _check(self, circuit: Splice) -> None:
        """Count bytes, and hold the circuit if its payer owes too much."""
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
        """Hold a circuit whose payer owes too much; return why it must end, if that lasted too long."""
        circuit, credit = carried.circuit, self._accounts.credit
        is_unfunded = credit.is_unfunded(carried.payer, carried.host, now_ms)
        circuit.check_bytes = UNFUNDED_CHECK_BYTES if is_unfunded else CHECK_BYTES
        if credit.is_served(carried.payer, carried.host, now_ms):
            circuit.release()
            return None
        circuit.hold(now_ms)
        held_ms = now_ms - (circuit.held_since_ms or now_ms)
        return "unpaid" if held_ms >= self._tariff.unpaid_ms_max else None

    def _pace(self) -> None:
        """Divide the rates of the line and of each client among the active circuits."""
        limits = self._limits
        if not (limits.line_bytes_per_s or limits.client_bytes_per_s_max):
            return
        active = {number: carried.payer for number, carried in self._carried.items() if carried.moved_bytes}
        for number, pace in pacing_rates(limits, active).items():
            carried = self._carried[number]
            if pace != carried.pace:
                carried.pace = pace
                for direction in (carried.circuit.forward, carried.circuit.backward):
                    if not direction.source.is_closing():
                        set_pace(direction.source.get_extra_info("socket"), pace)
