"""How a window ends its way: accepted, void with all that stands on it, or final (market.md 7.4, 7.8)."""

from __future__ import annotations

from collections.abc import Sequence

from billing.escrow import Purpose
from tasks.ledger import reputation
from tasks.ledger.audits import SURE
from tasks.ledger.claims import uphold_divergence
from tasks.ledger.custody import drop_custody, is_held_up
from tasks.ledger.deadlines import Draw, schedule_draw
from tasks.ledger.disputes import DisputeRecord, load_docket, save_docket
from tasks.ledger.dockets import drop_disputes
from tasks.ledger.lifecycle import Phase, Reason, WindowEvent, WindowPhase
from tasks.ledger.open_task import Case
from tasks.ledger.progress import arm_running, exclude, finish, give_up_idle, lose_worker, wind_up
from tasks.ledger.records import WindowRecord
from tasks.ledger.seats import dismiss
from tasks.ledger.settlement import (
    final_ms_of,
    forfeit_hold,
    may_pay_verifiers,
    pay_final_window,
    pay_void_verifiers,
    release_checks,
)
from tasks.ledger.stakes import burn_rest

__all__ = [
    "accept", "fail_unchecked", "final_at", "finalise", "hasten_draw", "let_pass", "may_pass", "reject",
    "void_from", "void_unkept",
]  # fmt: skip

_SILENT = (Reason.NOT_OPENED, Reason.ANSWER_MISSING, Reason.NOT_KEPT)
"""Faults that prove nothing about the work: what was verified before is not taken for them."""


def accept(case: Case, window: WindowRecord, reason: Reason, event: WindowEvent = WindowEvent.AGREE) -> None:
    """Begin the time of challenges, or go on with what is left of it after a dispute."""
    until_ms = load_docket(case.state, window.task, window.number).until_ms or final_at(case, window)
    deadline_ms = max(case.now + 1, until_ms)
    case.advance_window(window.number, event, reason, deadline_ms=deadline_ms)


def final_at(case: Case, window: WindowRecord) -> int:
    """Return when a window whose time of challenges begins now is final, by the value that is at stake."""
    record = case.record
    is_own = window.number >= record.own_from and window.worker == record.worker
    value = record.open_charge if is_own else window.charge
    return case.now + final_ms_of(value, case.parameters)


def _void(
    case: Case, window: WindowRecord, event: WindowEvent, reason: Reason, *, blamed: bytes,
    lie: DisputeRecord | None,
) -> None:  # fmt: skip
    dismiss(case, window, (*window.verifiers, *window.jurors))
    drop_disputes(case, window, lie)
    pay_void_verifiers(case, window, blamed=blamed, is_silent=reason in _SILENT)
    drop_custody(case, window, blamed=blamed, is_silent=reason in _SILENT)
    _close(case, window)
    case.advance_window(window.number, event, reason, reserve=0)


def _close(case: Case, window: WindowRecord) -> None:
    """Note that a window of the present worker is open no more."""
    if window.number >= case.record.own_from and window.worker == case.record.worker:
        case.change(open_charge=case.record.open_charge - window.charge)


def void_from(
    case: Case, window: WindowRecord, event: WindowEvent, reason: Reason, *, blamed: bytes,
    lie: DisputeRecord | None = None,
) -> list[bytes]:  # fmt: skip
    """Void a window and all that stand on it; the task continues from the state before it. Return their workers.

    ``blamed`` is whose fault that is, or empty; it bears the checks of all of them. ``lie`` is the dispute that
    proved a lie in one of them.
    """
    _void(case, window, event, reason, blamed=blamed, lie=lie)
    workers = [window.worker]
    for number in range(window.number + 1, case.record.next_window):
        later = case.window(number)
        is_liars = lie is not None and later.worker == window.worker
        why = reason if is_liars else Reason.PREDECESSOR_VOID
        _void(case, later, WindowEvent.DROP, why, blamed=blamed, lie=lie)
        workers.append(later.worker)
    _take_back_end(case)
    case.change(next_window=window.number, state_root=window.proof.state_root_in)
    return workers


def _take_back_end(case: Case) -> None:
    """Have a task go on whose last window is void, if that had ended it. A cancelled one stays cancelled."""
    record = case.record
    if not record.ending:  # its losses had ended the job early (R87)
        case.change(target=case.spec.windows)
    is_claim = case.window(record.next_window - 1).proof.diverged is not None
    if is_claim and record.ending_reason == Reason.JOB_DIVERGED:
        case.change(ending=0, ending_reason=0, target=case.spec.windows)


def reject(
    case: Case, window: WindowRecord, event: WindowEvent, reason: Reason, *, blamed: bytes,
    lie: DisputeRecord | None = None,
) -> None:  # fmt: skip
    """Void a window and all that stand on it, and part with its worker. ``lie`` is as for ``void_from``."""
    author = window.worker
    workers = void_from(case, window, event, reason, blamed=blamed, lie=lie)
    if lie is not None:
        burn_rest(case, window)
    elif reason == Reason.NOT_SERVED:
        burn_rest(case, window, Purpose.NOT_SERVED)
    if blamed:
        if reason not in _SILENT:
            forfeit_hold(case, author)
        reputation.mark_failure(case.state, author, case.now, case.scope.emit, case.parameters)
    _part(case, author, workers, reason)


def void_unkept(case: Case, window: WindowRecord) -> None:
    """Void a window whose output no custodian has, and part with its worker (R90).

    Nobody can tell whose fault that is. So it is no failure; but what checks of void windows cost is the worker's,
    or a requester and its friends would have the check fund pay them again and again.
    """
    workers = void_from(case, window, WindowEvent.DROP, Reason.NOT_KEPT, blamed=window.worker)
    _part(case, window.worker, workers, Reason.NOT_KEPT)


def _part(case: Case, author: bytes, workers: Sequence[bytes], reason: Reason) -> None:
    """Let go of workers whose windows are void, and have another one go on."""
    exclude(case, author)
    give_up_idle(case, workers)
    if case.record.worker:  # another worker than the author built on a void state: it leaves without blame
        lose_worker(case, reason)
    else:
        finish(case)


def fail_unchecked(case: Case, window: WindowRecord) -> None:
    """End the task: nobody can check a window of it, and nobody is blamed for that."""
    workers = void_from(case, window, WindowEvent.DROP, Reason.NO_VERIFIER, blamed=b"")
    give_up_idle(case, workers)
    wind_up(case, Phase.FAILED, Reason.NO_VERIFIER)


def may_pass(case: Case, window: WindowRecord) -> bool:
    """Tell whether an unchecked window is accepted: its requester chose the verifiers, and it has no claim (R168).

    A claim of divergence ends its task and is paid, so none is upheld unchecked (R34).
    """
    return case.spec.verifiers.is_chosen and window.proof.diverged is None


def let_pass(case: Case, window: WindowRecord, event: WindowEvent) -> None:
    """Accept a window that the verifiers of its requester's choice have not checked (R168).

    They may be the requester's friends: their silence shall not take the pay of work that was done. Outsiders have
    the time of challenges from now on: it may have ended while the verdicts that fell were played for.
    """
    dismiss(case, window, window.verifiers)
    docket = load_docket(case.state, window.task, window.number)
    save_docket(case.state, window.task, window.number, docket._replace(until_ms=0, extended=0))
    case.put_window(window._replace(chance=0, sampled=(), verifiers=(), opened=(), missed=()))
    accept(case, case.window(window.number), Reason.NO_VERIFIER, event)


def hasten_draw(case: Case, window: WindowRecord) -> None:
    """Have the draw of a window come soon that has become the first open one, where it was put off.

    The beacon of that draw is one that nobody knows yet.
    """
    is_waiting = window.phase in (WindowPhase.PROVED, WindowPhase.DOUBTED) and not window.deadline_ms
    if is_waiting and window.chance == SURE:
        height = case.scope.block.height + case.parameters.draw_blocks
        schedule_draw(case.state, Draw(height, window.task, window.number))


def _mark_success(case: Case, window: WindowRecord) -> None:
    if case.spec.verifiers.is_chosen:  # a record that friends write for each other is none (R168)
        return
    for address in (window.worker, *(seat.address for seat in window.verifiers)):
        reputation.mark_success(
            case.state, address, window.charge, case.now, case.parameters, is_worker=address == window.worker
        )


def finalise(case: Case, window: WindowRecord) -> None:
    """Make a window final, and then those after it that only waited for it.

    It waits for those before it, and until its output is kept.
    """
    if window.number != case.record.final_windows or is_held_up(case, window):
        case.put_window(release_checks(case, window)._replace(ripe=1, deadline_ms=0))
        return
    workers = []
    while True:
        if not may_pay_verifiers(case, window):
            case.put_window(window._replace(ripe=0, deadline_ms=case.now + case.parameters.draw_retry_ms))
            break
        workers.append(window.worker)
        _close(case, window)
        case.change(final_windows=window.number + 1, final_root=window.proof.result_root)
        pay_final_window(case, window)
        claim = window.proof.diverged
        window = case.advance_window(window.number, WindowEvent.FINALISE, Reason.CHALLENGE_OVER, reserve=0)
        if claim is None:
            _mark_success(case, window)
        else:  # nothing counts for or against anybody
            uphold_divergence(case, window, claim)
        if window.number + 1 == case.record.next_window:
            break
        window = case.window(window.number + 1)
        if not window.ripe or is_held_up(case, window):
            hasten_draw(case, window)
            break
    if case.record.phase == Phase.RUNNING and not case.record.deadline_ms:
        arm_running(case)
    give_up_idle(case, workers)
    finish(case)
