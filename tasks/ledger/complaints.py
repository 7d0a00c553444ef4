"""Complaints of machines that a task's inputs cannot be fetched, and what follows from them (market.md R53).

Nobody can show that a blob could not be fetched. So a complaint costs the machine nothing until another operator
proves a window of the task. Once machines of three operators have said the same, the task stays out of the book
for a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from state.view import Reader
from tasks.ledger import reputation
from tasks.ledger.lifecycle import Phase, Reason
from tasks.ledger.open_task import Case
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.records import TaskRecord
from tasks.ledger.registry import load_node

__all__ = [
    "COMPLAINTS_MAX",
    "aside_ms",
    "aside_until_ms",
    "is_aside",
    "is_complaint",
    "refute_complaints",
    "take_complaint",
]

COMPLAINTS_WANTED: Final = 3
"""Operators whose machines say the same, after which a task is set aside."""
COMPLAINTS_MAX: Final = 8
"""Complaints that a task keeps. A further one is a decline with an excuse, like any other."""


def is_complaint(phase: Phase, reason: Reason) -> bool:
    """Tell whether a machine that leaves with this reason complains of the inputs.

    A job that is unfit before it is accepted is one that the machine has no room for.
    """
    if phase == Phase.ASSIGNED:
        return reason == Reason.INPUT_UNAVAILABLE
    return phase == Phase.PREPARING and reason in (Reason.INPUT_UNAVAILABLE, Reason.JOB_UNFIT)


def take_complaint(case: Case, machine: bytes) -> bool:
    """Keep the complaint of the task's machine; False where no more are kept."""
    complaints = case.record.complaints
    if len(complaints) >= COMPLAINTS_MAX:
        return False
    case.change(complaints=(*(known for known in complaints if known != machine), machine))
    return True


def _parties(state: Reader, machine: bytes) -> frozenset[bytes]:
    node = load_node(state, machine)
    return frozenset((machine,) if node is None else node.parties)


def _operators(state: Reader, machines: Iterable[bytes]) -> int:
    """Return of how many operators machines are: none of them shares a party with another one."""
    count, known = 0, frozenset[bytes]()
    for machine in machines:
        parties = _parties(state, machine)
        count += known.isdisjoint(parties)
        known |= parties
    return count


def aside_ms(case: Case) -> int:
    """Return for how long a task that searches again stays out of the book: it doubles with each complaint."""
    return _wait_ms(case.state, case.record, case.parameters)


def _wait_ms(state: Reader, record: TaskRecord, parameters: TaskParameters) -> int:
    beyond = _operators(state, record.complaints) - COMPLAINTS_WANTED
    return 0 if beyond < 0 else parameters.complaints_wait_ms << beyond


def is_aside(case: Case) -> bool:
    """Tell whether a task is out of the book for what machines have said against it."""
    return aside_until_ms(case.state, case.record, case.now, case.parameters) > 0


def aside_until_ms(state: Reader, record: TaskRecord, now_ms: int, parameters: TaskParameters) -> int:
    """Return until when a task is out of the book for what machines have said against it, in steady time; or 0."""
    is_searching = record.phase in (Phase.MATCHING, Phase.DEGRADED) and not record.ending
    if not is_searching or record.match_at_ms <= now_ms or _wait_ms(state, record, parameters) <= 0:
        return 0
    return record.match_at_ms


def refute_complaints(case: Case) -> None:
    """Count the complaints against a task as declines: its worker, of another operator, has proved a window."""
    if not case.record.complaints:
        return
    worker = _parties(case.state, case.record.worker)
    for machine in case.record.complaints:
        if worker.isdisjoint(_parties(case.state, machine)):
            reputation.mark_refuted(case.state, machine, case.now, case.parameters)
    case.change(complaints=())
