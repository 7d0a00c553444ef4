"""How a task moves on: matching, the loss of a worker, winding up, the end; and what its deadlines do.

See market.md 5.4.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from billing.escrow import Pool, Purpose
from state.view.accounts import balance_of
from tasks.errors import KindMismatch, WrongPhase
from tasks.ledger import registry, reputation
from tasks.ledger.audits import bond_floor
from tasks.ledger.capacity import bounded_fine
from tasks.ledger.checkpoints import (
    doubt_checkpoint,
    has_stored,
    leave_to_requester,
    lose_unstored,
    note_match,
    pay_what_waits,
    readmit,
    refusal_ms,
    stays_until_ms,
)
from tasks.ledger.complaints import aside_ms, is_aside, take_complaint
from tasks.ledger.custody_records import custody_count, find_terms
from tasks.ledger.disputes import forget_disputes, has_disputes
from tasks.ledger.group_records import GroupPhase, group_of_task, is_spare, load_group, seat_of_task
from tasks.ledger.lifecycle import ENDED, Event, Phase, Reason
from tasks.ledger.matching import Miss, draw_seed, free_slots, has_slot, may_admit
from tasks.ledger.meter_records import load_meter
from tasks.ledger.metering import count_to_now, pay_held, silent_for_ms, stop_container
from tasks.ledger.open_task import WORKER_ASSIGNED, Case, Scope
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.parking import parked_for, wake_order
from tasks.ledger.quorum_records import QuorumPhase, find_quorum
from tasks.ledger.records import (
    JobReport,
    by_duty_key,
    by_task_of_worker_key,
    forget_report,
    load_report,
    load_spec_bytes,
    save_report,
)
from tasks.ledger.refusals import REFUSED_IN, refuse_stored
from tasks.ledger.seats import DELIVERY_PHASES
from tasks.ledger.settlement import (
    Bonds,
    close_escrow,
    fine_late_window,
    fine_worker,
    forfeit_hold,
    fund_check,
    has_holds,
    has_room,
    pay_cancelled,
    pay_kill_fee,
    release_bond,
    release_bonds,
    release_holds,
    window_work_ms,
)
from tasks.ledger.trials import measured_node, measured_rate
from tasks.spec import JobSpec, container_of, spec_hash

__all__ = [
    "arm_ended",
    "arm_running",
    "assign",
    "blame_worker",
    "cancel_work",
    "enter_book",
    "exclude",
    "finish",
    "free_slot",
    "give_up_idle",
    "go_on_elsewhere",
    "hold_back",
    "is_firm",
    "is_funded",
    "leave_book",
    "lose_worker",
    "miss_checkpoint",
    "new_search",
    "on_task_due",
    "part_silently",
    "refuse_checkpoint",
    "report",
    "resume",
    "search",
    "stay_of",
    "turn_down",
    "waits_for_group",
    "wake",
    "wind_up",
    "window_span_ms",
    "withdraw",
]

PASSED_MAX: Final = 32
"""Parked tasks that a machine cannot take and that one look of it puts behind others."""
WAKES_MAX: Final = 8
"""Parked tasks that one change of a machine wakes."""
WITHDRAWAL_MS_MAX: Final = 60_000
"""A bid that is withdrawn and firm leaves after the next call, or after so long where none takes it up."""
_REPORTED: Final = frozenset(
    {Reason.INPUT_UNAVAILABLE, Reason.JOB_DIVERGED, Reason.JOB_UNFIT, Reason.INPUT_INVALID}
)
"""What a worker may say or prove against a job."""
_END_EVENTS = {Phase.SETTLED: Event.SETTLE, Phase.FAILED: Event.FAIL, Phase.CANCELLED: Event.CANCEL}


def search(case: Case) -> None:
    """Set the deadlines of a task that looks for a worker, again or for the first time, and put it into the book.

    One that was offered in vain comes with those whose search takes long: tasks that are made to be turned down
    delay no others.
    """
    record, parameters = case.record, case.parameters
    deadline_ms = record.match_by_ms
    if record.phase != Phase.MATCHING:
        deadline_ms = min(deadline_ms, case.now + parameters.replace_ms)
    in_vain = max(0, record.vain_offers + 1 - parameters.offers_ranked)
    wait_ms = min(parameters.match_retry_ms_max, parameters.match_retry_ms * in_vain)
    wait_ms = max(wait_ms, aside_ms(case))
    case.change(
        deadline_ms=max(deadline_ms, case.now + 1), match_at_ms=case.now + wait_ms,
        bid_height=case.scope.block.height,
    )  # fmt: skip


def new_search(case: Case) -> None:
    """Begin a search for a replacement."""
    case.change(match_by_ms=case.now + case.parameters.replace_ms_max)
    search(case)


def resume(case: Case) -> None:
    """Begin the search again that the requester's task has paused, or that waits for what machines said (R53).

    Raises WrongPhase.
    """
    if not is_aside(case):
        is_left_alone = case.record.reason == Reason.NO_REPLACEMENT
        case.advance(Event.RESUME, Reason.REQUESTER_RESUMED)
        if is_left_alone and not case.record.is_metered:
            _take_back(case)
        if case.record.attempts >= case.parameters.attempts_max:
            case.change(attempts=0)
        new_search(case)
    case.change(match_at_ms=case.now, bid_height=case.scope.block.height)


def _take_back(case: Case) -> None:
    """Offer the task again to machines that only turned it down, for no other was found (R160)."""

    def has_failed(machine: bytes) -> bool:
        node = registry.load_node(case.state, machine)
        return node is None or node.bad > 0  # good work elsewhere ends a row of failures, not what is known

    case.change(excluded=tuple(filter(has_failed, case.record.excluded)))


def _put_off(case: Case) -> None:
    """Have the task in a call again later: the longer it searches, the rarer, for a hopeless task."""
    least_ms, most_ms = case.parameters.match_retry_ms, case.parameters.match_retry_ms_max
    searched_ms = case.now - case.record.changed_ms
    case.change(match_at_ms=case.now + max(least_ms, min(most_ms, searched_ms // 2)))


def leave_book(case: Case, miss: Miss, *, is_outbid: bool) -> None:
    """Have a task that a call left without a machine wait for one to change; one that was withdrawn ends.

    Where more machines are than were in the call, it comes again as well. A task that a machine had come back in
    vain goes behind the others of its class, unless others paid more for that machine.
    """
    record = case.record
    if record.ending:
        _end_withdrawn(case)
        return
    in_vain = record.waker and not is_outbid
    case.change(parked=wake_order(record) if in_vain else max(1, record.parked), match_at_ms=0, waker=b"")
    if miss != Miss.NOBODY:
        _put_off(case)


def waits_for_group(case: Case) -> bool:
    """Tell whether a task is no bid of its own: its group is not matched yet, and it is not the group's bid.

    That is seat 0, once all seats have a task.
    """
    if not case.record.group:
        return False
    group = load_group(case.state, group_of_task(case.record))
    return group.phase == GroupPhase.MATCHING and (seat_of_task(case.record) > 0 or not group.is_whole)


def enter_book(case: Case) -> None:
    """Have a task that was held back be a bid: its search begins now, as far as the book is concerned."""
    record = case.record
    if waits_for_group(case):
        return
    if record.phase == Phase.MATCHING and not record.ending and not record.match_at_ms and not record.parked:
        case.change(match_at_ms=case.now, changed_ms=case.now, bid_height=case.scope.block.height)


def hold_back(case: Case) -> None:
    """Take a task that has no worker yet out of the book, and from those that a changed machine looks at."""
    if case.record.phase == Phase.MATCHING and not case.record.ending:
        case.change(match_at_ms=0, parked=0, waker=b"")


def is_firm(case: Case) -> bool:
    """Tell whether a task may have stood long enough for the next call, so that it is too late to leave it."""
    record, blocks = case.record, case.parameters.order_blocks
    is_in_book = 0 < record.match_at_ms <= case.now
    return blocks > 0 and is_in_book and case.scope.block.height >= record.bid_height + blocks - 1


def withdraw(case: Case, reason: Reason) -> None:
    """Have a task without a worker leave after the next call: it stays an order until then."""
    deadline_ms = min(case.record.deadline_ms, case.now + WITHDRAWAL_MS_MAX)
    case.change(ending=int(Phase.CANCELLED), ending_reason=int(reason), deadline_ms=deadline_ms)


def cancel_work(case: Case, reason: Reason) -> None:
    """End a task as its requester wishes. Raises WrongPhase before it changes anything."""
    record = case.record
    if record.ending:
        raise WrongPhase("ending")
    match record.phase:
        case Phase.MATCHING | Phase.DEGRADED if is_firm(case):
            withdraw(case, reason)
        case Phase.MATCHING:
            case.advance(Event.CANCEL, reason)
            close_escrow(case)
        case Phase.ASSIGNED | Phase.PREPARING:  # a bid that cost nothing would have other bids pay more
            pay_cancelled(case)
            wind_up(case, Phase.CANCELLED, reason)
        case Phase.DEGRADED | Phase.PAUSED:
            wind_up(case, Phase.CANCELLED, reason)
        case Phase.RUNNING if record.is_metered:
            stop_container(case, reason)
        case Phase.RUNNING:
            # The window under way is still done and paid, so that no work in good faith is lost.
            if record.next_window + 1 == record.target:
                raise WrongPhase("in its last window")
            case.change(ending=int(Phase.CANCELLED), ending_reason=int(reason), target=record.next_window + 1)
        case phase:
            raise WrongPhase(phase.name.lower())


def _end_withdrawn(case: Case) -> None:
    if case.record.phase == Phase.MATCHING:
        case.advance(Event.CANCEL, Reason(case.record.ending_reason))
        close_escrow(case)
    else:
        wind_up(case, Phase.CANCELLED, Reason(case.record.ending_reason))


def _bond_of(case: Case, node: registry.NodeRecord) -> int:
    profile, bonds = node.profile, Bonds(case.spec, case.record.next_window, case.parameters)
    is_new = bonds.is_new(node, profile.price_per_tera_unit)
    floor = bond_floor(case.scope.block.base_fee, is_new=is_new, parameters=case.parameters)
    return bonds.at(profile.price_per_tera_unit, profile.rate, floor)


def wake(scope: Scope, address: bytes) -> None:
    """Have parked tasks that a changed machine admits come back: ``WAKES_MAX``, and one beside its slots, at most.

    That one is what the others pay for the slot. ``PASSED_MAX`` of those that it cannot take go behind others of
    their class: else as many as a look reads would hide all others, and they cost their requester nothing.
    """
    woken, passed, seed = 0, 0, draw_seed(b"wake", scope.block.beacon, registry.node_subject(address))
    node = registry.load_node(scope.state, address)
    if node is None or not node.profile.roles & registry.NodeRole.COMPUTE:
        return
    if not has_slot(node, scope.block.steady_ms, scope.parameters):
        return
    node = measured_node(scope.state, node, scope.block.steady_ms, scope.parameters)
    if node is None:  # it looks when its speed was measured
        return
    most = min(WAKES_MAX, free_slots(node, scope.parameters) + 1)
    for task_id in list(parked_for(scope.state, node.profile, seed)):
        case = Case.load(scope, task_id)
        if _can_take(case, node):
            woken += 1
            if not case.record.waker:
                case.change(waker=address)
                if not 0 < case.record.match_at_ms <= case.now:  # what stands in the book keeps its place there
                    case.change(match_at_ms=case.now, bid_height=scope.block.height)
                case.save()
            if woken == most:
                return
        elif passed < PASSED_MAX and (turn := wake_order(case.record)) != case.record.parked:
            passed += 1
            case.change(parked=turn)
            case.save()


def _can_take(case: Case, node: registry.NodeRecord) -> bool:
    """Tell whether a machine admits a task, has not left it, and can lock its bond."""
    until_ms = stay_of(case)
    return (
        may_admit(node.profile, case.spec, until_ms)
        and node.address not in case.record.excluded
        and balance_of(case.state, node.address) >= _bond_of(case, node)
    )


def stay_of(case: Case) -> int:
    """Return until when a machine must have offered to stay for a task; 0: no job but some containers ask that."""
    if not case.record.is_metered:
        return 0
    counted = load_meter(case.state, case.record.id).seconds
    return stays_until_ms(case.spec, counted, case.now, case.parameters)


def is_funded(case: Case) -> bool:
    """Tell whether a task can pay its verifiers; it pauses if not, or ends if it was withdrawn."""
    if fund_check(case):
        return True
    if case.record.ending:
        _end_withdrawn(case)
        case.save()
        return False
    if case.record.phase == Phase.MATCHING:
        raise AssertionError("a new task covers its first window")
    _pause(case, Reason.FUNDS_LOW)
    case.save()
    return False


def assign(case: Case, worker: bytes, price: int) -> None:
    """Give a task to a machine at ``price`` per 10^12 units. If it was withdrawn, it pays a segment and ends."""
    record = case.record
    node = registry.require_node(case.state, worker)
    registry.save_node(case.state, node._replace(busy_slots=node.busy_slots + 1))
    rate = measured_rate(case.state, node, case.now, case.parameters) or 0
    case.advance(Event.ASSIGN, Reason.MATCHED)
    case.change(
        worker=worker, price_per_tera_unit=price, rate=rate, busy=1, assigned_ms=case.now,
        deadline_ms=case.now + case.parameters.accept_ms, own_from=record.next_window, open_charge=0,
        base_fee=case.scope.block.base_fee,
        is_new=int(Bonds(case.spec, record.next_window, case.parameters).is_new(node, price)),
    )  # fmt: skip
    note_match(case, node.profile.until_ms)
    case.state.put(by_task_of_worker_key(worker, record.created_ms, record.id), b"\x01")
    case.state.put(by_duty_key(worker, record.id), b"\x01")
    case.scope.emit(WORKER_ASSIGNED(record.id, worker, price))
    if record.ending:
        pay_cancelled(case)
        wind_up(case, Phase(record.ending), Reason(record.ending_reason))


def free_slot(case: Case) -> None:
    """Count the worker's machine as free again."""
    if not case.record.busy:
        return
    node = registry.load_node(case.state, case.record.worker)
    if node is not None:
        registry.save_node(case.state, node._replace(busy_slots=node.busy_slots - 1))
        registry.wake_at(case.state, node, case.now)
    case.change(busy=0)


def give_up_idle(case: Case, workers: Iterable[bytes]) -> None:
    """Let go of those of ``workers`` that have left and have nothing open: bonds return, duties end.

    The open windows of a worker follow one another: nobody gets a task again that asks something of it. Those of
    each of ``workers`` are the first or the last that are open.
    """
    record = case.record
    ends = {number for number in (record.final_windows, record.next_window - 1) if number in record.open_windows}
    busy = {case.window(number).worker for number in ends} | {record.worker}
    for worker in dict.fromkeys(workers):
        if worker not in busy:
            if not custody_count(case.state, record.id, worker):  # it answers for what lies in custody
                release_bond(case, worker)
            case.state.delete(by_duty_key(worker, record.id))


def _vacate(case: Case) -> None:
    worker = case.record.worker
    if not worker:
        return
    free_slot(case)
    case.change(worker=b"")
    give_up_idle(case, [worker])


def exclude(case: Case, worker: bytes) -> None:
    """Do not offer the task to ``worker`` again."""
    others = [known for known in case.record.excluded if known != worker]
    case.change(excluded=(*others, worker)[-case.parameters.excluded_max :])


def report(case: Case, reason: Reason, worker: bytes = b"") -> None:
    """Note what the worker says or has proven against the job, for whoever is about to post the same.

    The worker is the task's unless another one is named.
    """
    record = case.record
    if reason not in _REPORTED:
        return
    job = spec_hash(load_spec_bytes(case.state, record.id))
    before = load_report(case.state, job)
    times = 1 if before is None else before.times + 1
    save_report(
        case.state, job, JobReport(reason, case.scope.block.height, worker or record.worker, record.id, times)
    )


def turn_down(case: Case, reason: Reason, *, is_excused: bool = False, is_against: bool = False) -> None:
    """Part with a worker that will not start the task: no mark against it, no try of the task, but a pause.

    Who gives no excuse pays a fine instead of the pause. Who says nothing at all has both, for it may be off. Who
    cannot have the inputs has none until others prove that they can be had.
    """
    worker, held_ms = case.record.worker, case.now - case.record.assigned_ms
    has_paid = not is_excused and _fine_unstarted(case, worker)
    if is_against and take_complaint(case, worker):
        pass
    elif has_paid and reason != Reason.ACCEPT_TIMEOUT:
        reputation.count_decline(case.state, worker, case.now, case.parameters)
    else:
        reputation.mark_decline(case.state, worker, case.now, held_ms, case.parameters)
    exclude(case, worker)
    lose_worker(case, reason)


def _fine_unstarted(case: Case, worker: bytes) -> bool:
    """Burn the fine for a task that was not started; tell whether the machine had all of it.

    It doubles with each time in a row. It takes no bond below the least, and no more than a day may cost.
    """
    node, parameters = registry.load_node(case.state, worker), case.parameters
    if node is None:
        return False
    row = min(reputation.declines_in_row(node, case.now, parameters), parameters.decline_doublings_max)
    fine = parameters.decline_fine << row
    taken = bounded_fine(case.state, worker, fine, case.now, parameters)
    registry.fine_node(
        case.state, worker, taken, case.scope.emit, case.scope.block.height, parameters, Purpose.WORKER_FINE
    )  # fmt: skip
    return taken == fine


def blame_worker(case: Case, reason: Reason) -> None:
    """Part with a worker that broke off or is late: a part of its bond burns, and it counts against it."""
    worker = case.record.worker
    fine_worker(case, worker)
    reputation.mark_failure(case.state, worker, case.now, case.scope.emit, case.parameters)
    exclude(case, worker)
    lose_worker(case, reason)


def part_silently(case: Case, reason: Reason) -> None:
    """Part with the machine of a running container that is silent or leaves; another one begins again (R96).

    Nobody can tell whose fault that is: nothing is taken, and nothing counts against the machine. It gets a pause
    as long as the task has waited for it. The specification says how often another one tries.
    """
    record, worker = case.record, case.record.worker
    if not record.ending:
        if reason != Reason.WORKER_LEFT or not has_stored(case):  # else its work goes on elsewhere
            reputation.mark_decline(case.state, worker, case.now, silent_for_ms(case), case.parameters)
        lose_unstored(case)
        exclude(case, worker)
        if record.attempts > container_of(case.spec).metering.retries:
            wind_up(case, Phase.FAILED, reason)
            return
    elif record.ending == Phase.CANCELLED and case.spec.is_quorum:  # at level 0 it was paid tick by tick
        pay_held(case, load_meter(case.state, record.id).own_seconds)
    lose_worker(case, reason)  # if it was stopped, nobody does anything of it again


def go_on_elsewhere(case: Case) -> None:
    """Part with the machine of a container that has ended with a code of ``again``: another one goes on (R141)."""
    lose_unstored(case, is_fined=False)
    exclude(case, case.record.worker)
    lose_worker(case, Reason.CONTAINER_AGAIN)


def miss_checkpoint(case: Case, blob: bytes) -> None:
    """Part with a machine that prepares and cannot have the checkpoint: no mark, no pause, no try (R156).

    Others are asked first. It is matched again once one has started, or where a search finds none. Raises
    WrongPhase, MeterMismatch.
    """
    doubt_checkpoint(case, blob)
    exclude(case, case.record.worker)
    lose_worker(case, Reason.CHECKPOINT_MISSED)
    if case.record.phase == Phase.DEGRADED:  # prolongs the search at most DOUBTERS_MAX times before a start
        new_search(case)


def refuse_checkpoint(case: Case, blob: bytes) -> None:
    """Burn what waits for a container's checkpoint, or for its end, which its requester refuses (R137 to R139).

    A running machine is replaced, without a pause or a mark. It may come back where another one's checkpoint is
    refused. Raises KindMismatch, WrongPhase, MeterMismatch.
    """
    record = case.record
    if case.spec.is_quorum:
        raise KindMismatch("machines of a quorum are compared: none is refused")
    is_running = record.phase == Phase.RUNNING
    if record.phase not in REFUSED_IN or (record.ending and record.phase not in ENDED):
        raise WrongPhase("ending" if record.ending else record.phase.name.lower())
    if is_running and container_of(case.spec).checkpoint is not None:
        count_to_now(case)
    is_blamed = refuse_stored(case, blob)
    if not is_running:
        readmit(case)  # what they could not have may be what is refused
        return
    if is_blamed:
        exclude(case, record.worker)
    if record.attempts > container_of(case.spec).metering.retries:
        wind_up(case, Phase.FAILED, Reason.CHECKPOINT_REFUSED)
    else:
        lose_worker(case, Reason.CHECKPOINT_REFUSED)


def lose_worker(case: Case, reason: Reason) -> None:
    """Part with the worker and look for another, unless the task was ending or has had its tries.

    After those its requester decides: machines that start and leave shall not be what ends a task.
    """
    is_unstarted = case.record.phase in (Phase.ASSIGNED, Phase.PREPARING)
    if is_unstarted and case.record.group:
        # What a spare earned is its own once it has started in the seat that it was called to.
        forfeit_hold(case, case.record.worker)
    _vacate(case)
    case.change(vain_offers=case.record.vain_offers + 1)
    record = case.record
    if record.ending:
        wind_up(case, Phase(record.ending), Reason(record.ending_reason))
    elif is_spare(case.state, record):  # a spare is not replaced
        wind_up(case, Phase.CANCELLED, reason)
    elif record.attempts >= case.parameters.attempts_max:
        case.advance(Event.LOSE, reason)
        _pause(case, Reason.ATTEMPTS_EXHAUSTED)
    else:
        case.advance(Event.LOSE if record.started_ms or record.group else Event.SEARCH, reason)
        if is_unstarted:  # who keeps the task without starting it does not prolong the search
            search(case)
        else:
            new_search(case)


def _pause(case: Case, reason: Reason) -> None:
    case.advance(Event.PAUSE, reason)
    case.change(deadline_ms=case.now + case.parameters.pause_ms)


def wind_up(case: Case, ending: Phase, reason: Reason) -> None:
    """Have no more work done; the task ends as ``ending`` once the windows that are proved are settled.

    What is held of workers' pay is left to the next deadline: a call may end many tasks, and no transaction that
    ends one weighs as much as these payments.
    """
    if case.record.is_metered:
        leave_to_requester(case)
    _vacate(case)
    case.change(ending=int(ending), ending_reason=int(reason), target=case.record.next_window)
    if case.record.phase != Phase.VERIFYING:
        case.advance(Event.WIND_UP, reason)
    finish(case, pays_holds=False)


def finish(case: Case, *, pays_holds: bool = True) -> None:
    """End the task if all its windows are settled."""
    record = case.record
    if record.phase != Phase.VERIFYING or record.open_windows or _waits_for_quorum(case):
        return
    if record.ending:
        ending, reason = Phase(record.ending), Reason(record.ending_reason)
    elif record.final_windows == record.target:
        ending, reason = Phase.SETTLED, Reason.ALL_WINDOWS_FINAL
    else:
        return
    if ending == Phase.SETTLED:
        forget_report(case.state, spec_hash(load_spec_bytes(case.state, record.id)))
    if ending == Phase.CANCELLED and record.worker:
        pay_kill_fee(case, record.worker)
    close_escrow(case, pays_holds=pays_holds)
    if record.worker:
        free_slot(case)
        case.state.delete(by_duty_key(record.worker, record.id))
    case.advance(_END_EVENTS[ending], reason)
    arm_ended(case)


def _waits_for_quorum(case: Case) -> bool:
    """Tell whether a task is a seat of a quorum that has not ended: all its tasks end with it (R113)."""
    quorum = find_quorum(case.state, case.record.id) if case.record.is_metered else None
    return quorum is not None and quorum.phase != QuorumPhase.ENDED


def arm_ended(case: Case) -> None:
    """Set when an ended task goes on: at once while holds are left, else when its bonds return.

    They stay while windows are in custody; the end of the last of them sets it then. Records of its disputes are
    deleted with them.
    """
    terms = find_terms(case.state, case.record.id)
    if has_holds(case):
        wait_ms = refusal_ms(case) if case.record.is_metered else 0
        case.change(deadline_ms=max(case.now + 1, wait_ms))
    elif terms is not None and terms.live:
        return
    elif case.vault.total(Pool.BOND) or has_disputes(case.state, case.record.id):
        returns_ms = case.record.changed_ms + case.parameters.bond_release_ms
        case.change(deadline_ms=max(case.now + 1, returns_ms))


def _on_ended_due(case: Case) -> None:
    if has_holds(case):
        if case.record.is_metered:
            pay_what_waits(case)
        else:
            release_holds(case)
        arm_ended(case)
        return
    terms = find_terms(case.state, case.record.id)
    if terms is not None and terms.live:
        return
    last = case.record.final_windows - 1
    if last >= 0 and case.window(last).phase in DELIVERY_PHASES:
        # Its worker answers for what is asked of it until that ends.
        again_ms = case.window(last).deadline_ms or case.now + case.parameters.draw_retry_ms
        case.change(deadline_ms=max(case.now, again_ms) + 1)
        return
    release_bonds(case)
    forget_disputes(case.state, case.record.id)
    arm_ended(case)


def window_span_ms(spec: JobSpec, window: int, rate: int, parameters: TaskParameters) -> int:
    """Return how long a worker that does ``rate`` work units a second has for ``window``; 0: of unknown rate.

    A slow core's time is the most that anybody has, and the job's least rate the least that a worker is held to.
    Whoever claims a higher rate than it has is late, and gains nothing by it.
    """
    return parameters.window_slack * window_work_ms(spec, window, rate) + parameters.window_grace_ms


def arm_running(case: Case) -> None:
    """Set the deadline of the window under way; there is none while the worker must wait for open windows."""
    record, parameters = case.record, case.parameters
    if not has_room(case):
        case.change(deadline_ms=0)
        return
    span_ms = window_span_ms(case.spec, record.next_window, record.rate, parameters)
    case.change(deadline_ms=case.now + span_ms)


def on_task_due(case: Case) -> None:
    """Do what the passed deadline of the task's phase demands."""
    case.change(deadline_ms=0)
    match case.record.phase:
        case Phase.MATCHING | Phase.DEGRADED if case.record.ending:
            _end_withdrawn(case)
        case Phase.MATCHING:
            case.advance(Event.EXPIRE, Reason.NO_MATCH)
            close_escrow(case)
        case Phase.ASSIGNED:
            turn_down(case, Reason.ACCEPT_TIMEOUT)
        case Phase.PREPARING if case.record.is_metered:  # its image may be what took too long
            turn_down(case, Reason.PREPARE_TIMEOUT, is_excused=True)
        case Phase.PREPARING:
            blame_worker(case, Reason.PREPARE_TIMEOUT)
        case Phase.RUNNING if case.record.is_metered:
            part_silently(case, Reason.METER_SILENT)
        case Phase.RUNNING if case.record.reason != Reason.WINDOW_LATE and case.parameters.window_extra_ms:
            fine_late_window(case)
            case.advance(Event.EXTEND, Reason.WINDOW_LATE)
            case.change(deadline_ms=case.now + case.parameters.window_extra_ms)
        case Phase.RUNNING:
            blame_worker(case, Reason.WINDOW_TIMEOUT)
        case Phase.DEGRADED if case.record.is_metered and readmit(case):
            new_search(case)
        case Phase.DEGRADED:
            _pause(case, Reason.NO_REPLACEMENT)
        case Phase.PAUSED:
            wind_up(case, Phase.FAILED, Reason.GRACE_OVER)
        case phase if phase in ENDED:
            _on_ended_due(case)
        case phase:
            raise AssertionError(f"{phase.name} has no deadline of its own")
