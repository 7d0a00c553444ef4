"""A machine reports that a job on it was tampered with, and is off the market for a while (R110 to R112).

The sender is the machine: no payload names another one. So nobody's word suspends the machine of somebody else.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final, NamedTuple

from state.primitives.codec import encode
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES
from state.primitives.receipts import EventType
from state.transition.calls import CallForm
from state.transition.rules import Context, Rule
from state.view import Overlay, Reader, Table
from state.view.records import items_of, read_record
from tasks.errors import MachineTampered, NotYours
from tasks.ledger.lifecycle import Phase, Reason
from tasks.ledger.metering import require_metered
from tasks.ledger.open_task import Case
from tasks.ledger.progress import part_silently
from tasks.ledger.registry import REGISTRY_ADDRESS, NodeStatus, index, require_node, save_node
from tasks.ledger.trials import leave_round

__all__ = [
    "REPORT_TAMPERING",
    "TAMPER_EVENTS",
    "TamperRecord",
    "TamperSign",
    "check_untampered",
    "load_tamper",
    "report_values",
    "suspended_for_ms",
    "tamper_rules",
]

REPORT_TAMPERING: Final = 0x57
SUSPENDED_MS: Final = 24 * 3_600_000
"""How long the first report suspends; each later one twice as long as the one before, ..."""
DOUBLINGS_MAX: Final = 4
"""... up to sixteen days."""
TAMPER_LIMIT_BYTES: Final = 128
TAMPERED: Final = EventType(
    REGISTRY_ADDRESS,
    "NodeTampered(address indexed node, bytes32 indexed task, uint256 sign, uint256 until, uint256 reports)",
)
TAMPER_EVENTS: Final = (TAMPERED,)
_TABLE: Final = bytes([Table.NODE_TAMPER])
_CALL: Final = CallForm(REGISTRY_ADDRESS, "reportTampering(bytes32 task, uint8 sign)")


class TamperSign(IntEnum):
    """What the machine's own node has seen. Each reads or changes a job's memory or files."""

    EXEC = 1
    """Somebody had the engine start a program in the container."""
    COPY = 2
    """Files were copied out of the container or into it."""
    COMMIT = 3
    """An image was made of the container."""
    EXPORT = 4
    """The files of the container were exported."""
    CHECKPOINT = 5
    """The memory of the container was written to a disk."""
    TRACER = 6
    """A process outside of the container traces one inside."""
    STRANGER = 7
    """A process that the container has not started is in its control group or its namespaces."""
    DRIFT = 8
    """The container has another image, other mounts or other rights than were ordered."""


class TamperRecord(NamedTuple):
    """The last report of a machine: its sign, its task, and until when it is suspended, by how many reports."""

    sign: TamperSign
    task: bytes
    reported_ms: int
    until_ms: int
    reports: int


def load_tamper(state: Reader, address: bytes) -> TamperRecord | None:
    """Return the last report of a machine, or None. Raises RecordDamaged."""
    data = state.get(_TABLE + address)
    if data is None:
        return None

    def make(value: Any) -> TamperRecord:
        sign, task, *rest = items_of(value, int, bytes, int, int, int)
        if len(task) != HASH_BYTES:
            raise DecodeError("not the report of a machine")
        return TamperRecord(TamperSign(sign), task, *rest)

    return read_record(data, make, what=f"report of 0x{address.hex()}", limit_bytes=TAMPER_LIMIT_BYTES)


def suspended_for_ms(reports: int) -> int:
    """Return how long the report with this number, from 1, suspends its machine."""
    return SUSPENDED_MS << min(reports - 1, DOUBLINGS_MAX)


def check_untampered(state: Reader, address: bytes, now_ms: int) -> None:
    """Raise MachineTampered while the last report of a machine suspends it (R111)."""
    found = load_tamper(state, address)
    if found is not None and now_ms < found.until_ms:
        raise MachineTampered(until_ms=found.until_ms)


class _Report(NamedTuple):
    """The task of a container, and what was seen."""

    task: bytes
    sign: TamperSign


def report_values(task: bytes, sign: TamperSign) -> list[Any]:
    """Return the payload of REPORT_TAMPERING."""
    return [task, int(sign)]


_SIGNS: Final = frozenset(int(sign) for sign in TamperSign)


def _decode(payload: list[Any]) -> _Report:
    match payload:
        case [bytes(task), int(sign)] if len(task) == HASH_BYTES and sign in _SIGNS:
            return _Report(task, TamperSign(sign))
        case _:
            raise DecodeError("[task, sign] expected")


def report_tampering(case: Case, address: bytes, sign: TamperSign) -> None:
    """Suspend the sender's own machine, and have another one go on with a task that it runs (R110, R111).

    Raises KindMismatch, NodeUnknown, and NotYours for a task that the machine has never had.
    """
    require_metered(case)
    state, record = case.state, case.record
    if address != record.worker and address not in record.excluded:
        raise NotYours("the sender has never been the task's worker")
    if address == record.worker and record.phase == Phase.RUNNING:
        part_silently(case, Reason.TAMPERED)
    node = require_node(state, address)
    known = load_tamper(state, address)
    reports = 1 if known is None else known.reports + 1
    until_ms = max(0 if known is None else known.until_ms, case.now + suspended_for_ms(reports))
    state.put(_TABLE + address, encode([int(sign), record.id, case.now, until_ms, reports]))
    status = NodeStatus.RETIRING if node.status == NodeStatus.RETIRING else NodeStatus.SUSPENDED
    save_node(state, node._replace(status=status, seen_ms=case.now))
    index(state, require_node(state, address), case.parameters)
    if node.status == NodeStatus.ACTIVE:
        leave_round(state, address)
    case.scope.emit(TAMPERED(address, record.id, sign, until_ms, reports))


def tamper_rules(case_of: Callable[[Overlay, Context, bytes], Case]) -> tuple[Rule[Any], ...]:
    """Return the transaction of machines that report themselves; ``case_of`` opens a task for its sender."""

    def apply(state: Overlay, payload: _Report, context: Context) -> None:
        case = case_of(state, context, payload.task)
        report_tampering(case, context.sender, payload.sign)
        case.save()

    return (Rule(REPORT_TAMPERING, "report_tampering", 700_000, _decode, lambda _: 0, apply, call=_CALL),)
