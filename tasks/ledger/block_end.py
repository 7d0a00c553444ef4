"""The end of a block: draws, due deadlines, steps of trials, wakes and a call (market.md 5.4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from state.primitives.address import ADDRESS_BYTES
from state.primitives.receipts import Event as LogEvent
from state.transition.rules import BlockContext
from state.view import Overlay
from tasks.ledger import registration
from tasks.ledger.bonds import on_sponsor_due
from tasks.ledger.calls import bids_due, hold_call, put_off, was_put_off
from tasks.ledger.carriage import on_withdrawal_due
from tasks.ledger.custody_lies import on_custody_due
from tasks.ledger.deadlines import (
    CARRIAGE_SLOT,
    GROUP_SLOT,
    NODE_SLOT,
    QUORUM_SLOT,
    SPONSOR_SLOT,
    TASK_SLOT,
    WINDOW_SLOTS,
    Due,
    cancel,
    due_before,
    wakes_due,
)
from tasks.ledger.disputes import release_moves
from tasks.ledger.draws import hold_draws
from tasks.ledger.groups import on_group_due
from tasks.ledger.open_task import Case, Scope
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.progress import on_task_due, wake
from tasks.ledger.questions import QuestionOf
from tasks.ledger.quorums import on_quorum_due
from tasks.ledger.trials import step_trials
from tasks.ledger.verification import on_window_due

__all__ = ["CALL_EVENTS_MAX", "EVENTS_PER_BLOCK_MAX", "EVENTS_PER_DRAW", "end_block"]

EVENTS_PER_BLOCK_MAX: Final = 1792
"""Deadlines wait for the next block when those before them told so much: a receipt of events is bounded."""
CALL_EVENTS_MAX: Final = 512
"""A call is put off to the next block when the deadlines of a block told more; there they stop at so many."""

EVENTS_PER_DRAW: Final = 8
"""A draw takes the time of so many events of deadlines: those have so many fewer, ``CALL_EVENTS_MAX`` at least."""


def end_block(
    state: Overlay, block: BlockContext, emit: Callable[[LogEvent], None], parameters: TaskParameters,
    question_of: QuestionOf,
) -> None:  # fmt: skip
    """Fire what is due, the earliest first, as many as the parameters allow in a block; the rest waits."""
    emitted = 0

    def count(event: LogEvent) -> None:
        nonlocal emitted
        emitted += 1
        emit(event)

    def scope() -> Scope:
        return Scope(state, block, count, parameters, question_of=question_of)

    release_moves(state)
    has_waited = was_put_off(state, block.height)
    events_max = CALL_EVENTS_MAX if has_waited else EVENTS_PER_BLOCK_MAX
    bids = bids_due(state, block.steady_ms, parameters)  # not of tasks that lose their worker below
    drawn = hold_draws(scope, lambda: emitted >= events_max)
    left = max(CALL_EVENTS_MAX, EVENTS_PER_BLOCK_MAX - EVENTS_PER_DRAW * drawn)
    events_max = min(events_max, emitted + left)
    for due in due_before(state, block.steady_ms, max(1, parameters.deadlines_per_block - drawn)):
        if emitted >= events_max:
            break
        cancel(state, due)
        _fire(scope(), due)
    is_full = emitted > CALL_EVENTS_MAX and not has_waited
    step_trials(state, block, count, parameters)
    for due in wakes_due(state, block.steady_ms, parameters.wakes_per_block):
        if emitted >= EVENTS_PER_BLOCK_MAX:
            break
        cancel(state, due)
        wake(scope(), due.subject[-ADDRESS_BYTES:])
    if bids and is_full:
        put_off(state, block.height)
    elif bids:
        hold_call(scope(), bids)


def _fire(scope: Scope, due: Due) -> None:
    """Do what is due; it has left the queue."""
    state, block, emit = scope.state, scope.block, scope.emit
    who = due.subject[-ADDRESS_BYTES:]
    if due.slot == NODE_SLOT:
        registration.on_node_due(state, who, block, emit, scope.parameters)
    elif due.slot == SPONSOR_SLOT:
        on_sponsor_due(state, who, block, emit)
    elif due.slot == CARRIAGE_SLOT:
        on_withdrawal_due(state, who, block, emit)
    elif due.slot == GROUP_SLOT:
        on_group_due(scope, due.subject)
    elif due.slot == QUORUM_SLOT:
        on_quorum_due(scope, due.subject)
    else:
        _fire_task(Case.load(scope, due.subject), due)


def _fire_task(case: Case, due: Due) -> None:
    # A deadline that was moved or met by what fired before it in this block no longer stands.
    if due.slot >= WINDOW_SLOTS:
        on_custody_due(case, due.slot - WINDOW_SLOTS, due.time_ms)
    elif due.slot == TASK_SLOT:
        if case.record.deadline_ms == due.time_ms:
            on_task_due(case)
    elif case.window(due.slot - 1).deadline_ms == due.time_ms:
        on_window_due(case, due.slot - 1)
    case.save()
