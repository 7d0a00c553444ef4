"""One task opened for changes: its record, its windows and its escrow, written back together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from billing.escrow import Vault
from state.primitives.address import ADDRESS_BYTES
from state.primitives.hashing import ZERO_HASH
from state.primitives.receipts import Event as LogEvent
from state.primitives.receipts import EventType
from state.transition.rules import BlockContext
from state.view import Overlay, Reader
from tasks.errors import WrongPhase
from tasks.ledger.deadlines import (
    FIRST_GROUP_SLOT,
    FIRST_MATCH_SLOT,
    FURTHER_GROUP_SLOT,
    MATCH_SLOT,
    TASK_SLOT,
    Due,
    cancel,
    schedule,
    window_slot,
)
from tasks.ledger.group_records import follow_seat
from tasks.ledger.jobs import KeptJob
from tasks.ledger.lifecycle import NEXT_PHASE, NEXT_WINDOW_PHASE, Event, Phase, Reason, WindowEvent
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.parking import move_parked
from tasks.ledger.questions import QuestionOf, question_of
from tasks.ledger.quorum_records import follow_quorum_seat
from tasks.ledger.records import (
    LEDGER_ADDRESS,
    HistoryEntry,
    TaskRecord,
    WindowRecord,
    append_history,
    by_phase_key,
    load_job,
    load_task,
    load_window,
    save_task,
    save_window,
)

__all__ = [
    "CHAIN",
    "LEDGER_ADDRESS",
    "LEDGER_EVENTS",
    "SEAT_DECLINED",
    "SEAT_DRAWN",
    "TASK_CREATED",
    "WORKER_ASSIGNED",
    "Case",
    "Scope",
]

TASK_CREATED: Final = EventType(
    LEDGER_ADDRESS, "TaskCreated(bytes32 indexed task, address indexed requester, bytes32 spec, uint256 budget)"
)
TASK_PHASE: Final = EventType(
    LEDGER_ADDRESS,
    "TaskPhase(bytes32 indexed task, uint256 before, uint256 phase, "
    "uint256 reason, address actor, bytes32 evidence)",
)
WORKER_ASSIGNED: Final = EventType(
    LEDGER_ADDRESS, "WorkerAssigned(bytes32 indexed task, address indexed worker, uint256 price)"
)
WINDOW_PHASE: Final = EventType(
    LEDGER_ADDRESS,
    "WindowPhase(bytes32 indexed task, uint256 number, uint256 before, "
    "uint256 phase, uint256 reason, address actor)",
)
SEAT_DRAWN: Final = EventType(
    LEDGER_ADDRESS, "SeatDrawn(bytes32 indexed task, uint256 number, address indexed verifier)"
)
SEAT_DECLINED: Final = EventType(
    LEDGER_ADDRESS, "SeatDeclined(bytes32 indexed task, uint256 number, address indexed verifier)"
)
LEDGER_EVENTS: Final = (TASK_CREATED, TASK_PHASE, WORKER_ASSIGNED, WINDOW_PHASE, SEAT_DRAWN, SEAT_DECLINED)

_PLACES: Final = {name: at for at, name in enumerate(TaskRecord._fields)}

CHAIN: Final = bytes(ADDRESS_BYTES)
"""The actor of what the chain does by itself."""


class Scope:
    """What every change is made under: the state, the block, the parameters, who acts, and what shows it.

    ``question_of`` makes the questions of disputes: tests and the simulation have programs of their own.
    """

    __slots__ = ("actor", "block", "emit", "evidence", "parameters", "question_of", "state")

    def __init__(
        self, state: Overlay, block: BlockContext, emit: Callable[[LogEvent], None], parameters: TaskParameters, *,
        actor: bytes = CHAIN, evidence: bytes = ZERO_HASH, question_of: QuestionOf = question_of,
    ) -> None:  # fmt: skip
        self.state = state
        self.question_of = question_of
        self.block = block
        self.emit = emit
        self.parameters = parameters
        self.actor = actor
        self.evidence = evidence

    @property
    def parent(self) -> Reader:
        """The state before the block: what its leader, who knows the beacon first, can no longer change."""
        return self.state.base


class Case:
    """A task under change. ``save`` writes it back and moves its indexes and deadlines along."""

    def __init__(self, scope: Scope, record: TaskRecord, *, is_new: bool = False) -> None:
        self.scope = scope
        self.state = scope.state
        self.parameters = scope.parameters
        self.now = scope.block.steady_ms
        self.record = record
        self._before = None if is_new else record
        self._spec: KeptJob | None = None
        self._vault: Vault | None = None
        self._windows: dict[int, WindowRecord] = {}
        self._stored: dict[int, WindowRecord] = {}

    @classmethod
    def load(cls, scope: Scope, task_id: bytes) -> Case:
        """Open a task. Raises TaskUnknown."""
        return cls(scope, load_task(scope.state, task_id))

    @property
    def spec(self) -> KeptJob:
        """The job."""
        if self._spec is None:
            self._spec = load_job(self.state, self.record)
        return self._spec

    @property
    def vault(self) -> Vault:
        """The task's escrow, which writes at once."""
        if self._vault is None:
            self._vault = Vault.load(self.state, self.record.id, self.scope.emit, self.scope.block.height)
        return self._vault

    @vault.setter
    def vault(self, vault: Vault) -> None:
        self._vault = vault

    def change(self, **fields: Any) -> None:
        """Set fields of the record."""
        values: list[Any] = list(self.record)  # as _replace does, in a third of the time
        for name, value in fields.items():
            values[_PLACES[name]] = value
        self.record = TaskRecord._make(values)

    def advance(self, event: Event, reason: Reason) -> None:
        """Move the task to its next phase and clear its deadline. Raises WrongPhase where there is none."""
        before = self.record.phase
        phase = NEXT_PHASE.get((before, event))
        if phase is None:
            raise WrongPhase(before.name.lower())
        self._enter(phase, reason, int(before))

    def begin(self) -> None:
        """Enter the phase that a new record names."""
        self._enter(self.record.phase, self.record.reason, 0)

    def _enter(self, phase: Phase, reason: Reason, before: int) -> None:
        scope, block = self.scope, self.scope.block
        number = self.record.history
        self.change(
            phase=phase, reason=reason, changed_height=block.height, changed_ms=self.now, deadline_ms=0,
            match_at_ms=0, parked=0, waker=b"", history=number + 1,
        )  # fmt: skip
        append_history(
            self.state,
            self.record.id,
            HistoryEntry(number, block.height, block.time_ms, before, phase, reason, scope.actor, scope.evidence),
        )
        scope.emit(TASK_PHASE(self.record.id, before, phase, reason, scope.actor, scope.evidence))

    def window(self, number: int) -> WindowRecord:
        """Return a window of the task. Raises WindowUnknown."""
        window = self._windows.get(number)
        if window is None:
            window = self._windows[number] = load_window(self.state, self.record.id, number)
            self._stored[number] = window
        return window

    def open_windows(self) -> list[WindowRecord]:
        """Return the windows that are proved and not final, in order."""
        return [self.window(number) for number in self.record.open_windows]

    def put_window(self, window: WindowRecord) -> None:
        """Note a changed window."""
        self._windows[window.number] = window

    def begin_window(self, window: WindowRecord) -> None:
        """Note a window that was just proved (again: an earlier proof of it was void)."""
        self.put_window(window)
        self._tell(window, 0)

    def advance_window(
        self, number: int, event: WindowEvent, reason: Reason, *, deadline_ms: int = 0, **fields: Any
    ) -> WindowRecord:
        """Move a window to its next phase, with a new deadline. Raises WrongPhase."""
        window = self.window(number)
        phase = NEXT_WINDOW_PHASE.get((window.phase, event))
        if phase is None:
            raise WrongPhase(window.phase.name.lower())
        before = window.phase
        window = window._replace(phase=phase, reason=reason, deadline_ms=deadline_ms, **fields)
        self.put_window(window)
        self._tell(window, before)
        return window

    def _tell(self, window: WindowRecord, before: int) -> None:
        self.scope.emit(
            WINDOW_PHASE(window.task, window.number, before, window.phase, window.reason, self.scope.actor)
        )

    def save(self) -> None:
        """Write everything back."""
        record, before, state = self.record, self._before, self.state
        for number, window in self._windows.items():
            stored = self._stored.get(number)
            if window is stored:
                continue
            self._requeue(window_slot(number), stored.deadline_ms if stored else 0, window.deadline_ms)
            save_window(state, window)
            self._stored[number] = window
        if record is before:
            return
        self._requeue(TASK_SLOT, before.deadline_ms if before else 0, record.deadline_ms)
        move_parked(state, before, record)
        for slot in (FIRST_MATCH_SLOT, MATCH_SLOT, FIRST_GROUP_SLOT, FURTHER_GROUP_SLOT):
            self._requeue(slot, _match_at(before, slot), _match_at(record, slot))
        if before is None or before.phase != record.phase:
            if before is not None:
                state.delete(by_phase_key(before.phase, before.created_ms, before.id))
            state.put(by_phase_key(record.phase, record.created_ms, record.id), b"\x01")
        save_task(state, record)
        if record.is_metered and before is not None:
            follow_quorum_seat(state, before, record, self.now)
        if record.group:
            follow_seat(state, before, record, self.scope.block, self.scope.emit)
        self._before = record

    def _requeue(self, slot: int, old_ms: int, new_ms: int) -> None:
        if old_ms == new_ms:
            return
        if old_ms:
            cancel(self.state, Due(old_ms, self.record.id, slot, self.record.rank))
        if new_ms:
            schedule(self.state, Due(new_ms, self.record.id, slot, self.record.rank))


def _match_at(record: TaskRecord | None, slot: int) -> int:
    """Return from when on a task is in the book, in the part ``slot``.

    The first part has new searches, and tasks that a machine had come back. The bids of groups have parts of their
    own: each is a seat in phase matching.
    """
    if record is None:
        return 0
    is_first = record.match_at_ms == record.changed_ms or bool(record.waker)
    if record.group and record.phase is Phase.MATCHING:
        own = FIRST_GROUP_SLOT if is_first else FURTHER_GROUP_SLOT
    else:
        own = FIRST_MATCH_SLOT if is_first else MATCH_SLOT
    return record.match_at_ms if slot == own else 0
