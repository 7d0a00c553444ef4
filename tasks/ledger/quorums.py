"""Quorums: machines of different owners run one container, and what most of them left counts (market.md 5.8).

What happens to a seat wakes its quorum. All that follows for other seats is done in a step of it, at the end of a
block. Nothing is paid before the comparison, nobody loses a bond, and who differs is not paid.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from billing.prices import Budget
from state.view import Reader
from tasks.errors import AlreadyRevealed, KindMismatch, MeterMismatch, NotYours, WrongPhase
from tasks.kinds.container import ExitKind
from tasks.ledger import reputation
from tasks.ledger.creation import begin_task
from tasks.ledger.lifecycle import ENDED, Event, Phase, Reason
from tasks.ledger.matching import parties_of
from tasks.ledger.meter_records import ContainerEnd, load_meter, save_meter
from tasks.ledger.metering import pay_held, pay_until
from tasks.ledger.open_task import Case, Scope
from tasks.ledger.progress import cancel_work, finish, free_slot, search, wind_up
from tasks.ledger.quorum_records import (
    OUTPUT_REVEALED,
    OUTPUT_SEALED,
    QUORUM_PHASE,
    SEATS,
    SEATS_FIRST,
    QuorumPhase,
    QuorumRecord,
    QuorumSeat,
    SeatState,
    find_quorum,
    load_quorum,
    output_result,
    output_seal,
    quorum_of,
    quorum_seat_task,
    save_quorum,
    save_seat_of,
    seat_number,
    wake_quorum,
)
from tasks.ledger.records import TaskRecord, load_task
from tasks.ledger.settlement import close_escrow
from tasks.spec import RATE_BAND_BPS, JobSpec

__all__ = [
    "UNDECIDED_PARTS",
    "begin_quorum",
    "cancel_quorum",
    "end_seat",
    "on_quorum_due",
    "quorum_budget",
    "reveal_output",
    "seal_output",
    "seats_barred",
]

UNDECIDED_PARTS: Final = 4
"""Where no two outputs are the same, each machine is paid this part of the shortest of their times."""
STEPS_MAX: Final = 8
"""Changes of phase of a quorum in one block."""
_LAST: Final = SEATS - 1
_HAS_OUTPUT: Final = (SeatState.REVEALED, SeatState.AGREED)


def quorum_budget(spec: JobSpec, budget: Budget) -> int:
    """Return what the creation of a task locks, whose one machine locks ``budget``."""
    return budget.total * (SEATS if spec.is_quorum else 1)


def begin_quorum(
    scope: Scope, task: bytes, requester: bytes, spec: JobSpec, raw: bytes, budget: Budget
) -> Case:  # fmt: skip
    """Make the tasks of all seats; return that of seat 0, which is no bid yet. The others wait to be called."""
    working, idle = QuorumSeat(SeatState.WORKING), QuorumSeat(SeatState.IDLE)
    seats = (working, *[idle] * _LAST)
    save_quorum(scope.state, QuorumRecord(task, QuorumPhase.RUNNING, 0, 0, 0, 0, b"", seats))
    scope.emit(QUORUM_PHASE(task, 0, QuorumPhase.RUNNING, bytes(32)))
    for seat in range(SEATS):
        save_seat_of(scope.state, task, seat)
    first = begin_task(scope, task, requester, spec, raw, budget)
    for seat in range(1, SEATS):
        begin_task(scope, quorum_seat_task(task, seat), requester, spec, raw, budget).save()
    return first


def cancel_quorum(case: Case) -> None:
    """Stop a quorum as its requester wishes: each machine is paid what it has metered.

    Raises WrongPhase once results are revealed, and for another seat than the first.
    """
    quorum = _quorum_of(case)
    if quorum.id != case.record.id:
        raise WrongPhase("a part of its quorum alone")
    if quorum.phase != QuorumPhase.RUNNING:
        raise WrongPhase(f"its quorum is {quorum.phase.name.lower()}")
    save_quorum(case.state, _stopping(case.scope, quorum, Reason.REQUESTER_CANCELLED))
    wake_quorum(case.state, quorum.id, case.now)


# What machines send


def _quorum_of(case: Case) -> QuorumRecord:
    quorum = find_quorum(case.state, case.record.id) if case.record.is_metered else None
    if quorum is None:
        raise KindMismatch("one machine alone runs this task: nothing is compared")
    return quorum


def _note(case: Case, quorum: QuorumRecord, seat: QuorumSeat) -> None:
    save_quorum(case.state, quorum.with_seat(seat_number(case.state, case.record.id), seat))
    wake_quorum(case.state, quorum.id, case.now)


def _span_s(case: Case) -> int:
    return max(0, case.now - load_meter(case.state, case.record.id).began_ms) // 1000


def seal_output(case: Case, own_seconds: int, seal: bytes) -> None:
    """Note that a container has ended, and the seal over its result; the machine is free from now on (R114).

    Raises KindMismatch, WrongPhase, MeterAhead, MeterMismatch.
    """
    quorum, record = _quorum_of(case), case.record
    if record.phase != Phase.RUNNING or not quorum.is_blind:
        raise WrongPhase(f"{record.phase.name.lower()}, its quorum {quorum.phase.name.lower()}")
    save_meter(
        case.state, record.id, pay_until(case, load_meter(case.state, record.id), own_seconds, is_held=True)
    )
    _note(case, quorum, QuorumSeat(SeatState.SEALED, record.worker, seal, b"", _span_s(case)))
    _await_others(case)
    case.scope.emit(OUTPUT_SEALED(record.id, record.worker, seal))


def _await_others(case: Case) -> None:
    free_slot(case)
    case.advance(Event.LAST_WINDOW, Reason.OUTPUT_SEALED)


def reveal_output(case: Case, result: bytes, salt: bytes) -> None:
    """Open a seal once all machines have sealed (R115). Raises KindMismatch, WrongPhase, AlreadyRevealed."""
    quorum, record = _quorum_of(case), case.record
    if quorum.phase != QuorumPhase.REVEALING:
        raise WrongPhase(f"its quorum is {quorum.phase.name.lower()}")
    seat = quorum.seats[seat_number(case.state, record.id)]
    if seat.state != SeatState.SEALED:
        raise AlreadyRevealed("nothing of this machine is sealed any more")
    if output_seal(record.id, record.worker, result, salt) != seat.seal:
        raise MeterMismatch("result and salt do not open the seal")
    _note(case, quorum, seat._replace(state=SeatState.REVEALED, result=result))
    case.scope.emit(OUTPUT_REVEALED(record.id, record.worker, result))


def end_seat(case: Case, own_seconds: int, end: ContainerEnd) -> None:
    """Take the word of a machine of a quorum how its container ended.

    Where two results are equal it is paid. A machine that was called after results were revealed says it in the
    clear. Where the quorum is stopped, it is paid what it metered. Raises WrongPhase, MeterAhead, MeterMismatch.
    """
    quorum, record = _quorum_of(case), case.record
    match quorum.phase, record.phase:
        case QuorumPhase.STOPPING, Phase.RUNNING:
            _count(case, own_seconds, end)
            pay_held(case, own_seconds)
            wind_up(case, Phase(quorum.ending), Reason(quorum.ending_reason))
        case QuorumPhase.THIRD, Phase.RUNNING:
            _count(case, own_seconds, end)
            _note(case, quorum, QuorumSeat(SeatState.REVEALED, record.worker, b"", _result_of(end), _span_s(case)))
            _await_others(case)
        case QuorumPhase.SHOWING, Phase.OUTPUT:
            _show(case, quorum, own_seconds, end)
        case _:
            raise WrongPhase(f"{record.phase.name.lower()}, its quorum {quorum.phase.name.lower()}")


def _result_of(end: ContainerEnd) -> bytes:
    """Return the result of a container that has ended so."""
    return output_result(end.kind, end.code, end.output, end.output_bytes)


def _count(case: Case, own_seconds: int, end: ContainerEnd) -> None:
    meter = pay_until(case, load_meter(case.state, case.record.id), own_seconds, is_held=True)
    save_meter(case.state, case.record.id, meter._replace(end=end))


def _show(case: Case, quorum: QuorumRecord, own_seconds: int, end: ContainerEnd) -> None:
    """Pay a machine whose result is that of the majority, once its end is what it had sealed."""
    task = case.record.id
    seat, meter = quorum.seats[seat_number(case.state, task)], load_meter(case.state, task)
    if seat.state != SeatState.REVEALED or seat.result != quorum.result:
        raise NotYours("the result of this machine is not that of the majority, or was shown")
    if _result_of(end) != seat.result or own_seconds != meter.own_seconds:
        raise MeterMismatch("not the end that was sealed, or other seconds")
    save_meter(case.state, task, meter._replace(end=end))
    _settle(case, quorum)
    _note(case, quorum, seat._replace(state=SeatState.AGREED))


def _settle(case: Case, quorum: QuorumRecord) -> None:
    """Pay the machine of a seat that agrees, up to what the fastest of them makes likely (R116)."""
    shortest = min(seat.span_s for seat in quorum.seats if seat.result == quorum.result)
    most = shortest * RATE_BAND_BPS // 10_000 + case.spec.tick_s
    meter = load_meter(case.state, case.record.id)
    pay_held(case, min(meter.own_seconds, most))
    ending, reason = _ending_of(meter.end)
    wind_up(case, ending, reason)


def _ending_of(end: ContainerEnd | None) -> tuple[Phase, Reason]:
    if end is None:
        return Phase.FAILED, Reason.NOT_REVEALED
    if end.kind == ExitKind.STOPPED:
        return Phase.FAILED, Reason.TIME_USED_UP
    is_well = end.kind == ExitKind.EXITED and end.code == 0
    return Phase.SETTLED if is_well else Phase.FAILED, Reason.CONTAINER_EXITED


def seats_barred(state: Reader, record: TaskRecord) -> tuple[set[bytes], set[bytes]]:
    """Return parties that may not be behind the machine of a seat, and machines that may not have it.

    Those are its requester, who is behind the machines of the other seats, and machines that other seats lost.
    """
    parties, machines = set(parties_of(state, record.requester)), set[bytes]()
    quorum = load_quorum(state, quorum_of(state, record.id))
    for at, seat in enumerate(quorum.seats):
        task = quorum_seat_task(quorum.id, at)
        if task != record.id:
            other = load_task(state, task)
            machines |= set(other.excluded)
            for machine in {seat.machine, other.worker} - {b""}:
                parties |= set(parties_of(state, machine))
    return parties, machines


# What follows for the others


def on_quorum_due(scope: Scope, quorum_id: bytes) -> None:
    """Do what the seats of a quorum make possible, and what its time demands."""
    quorum = load_quorum(scope.state, quorum_id)._replace(due_ms=0)
    if quorum.phase == QuorumPhase.ENDED:
        return
    save_quorum(scope.state, quorum)
    for _ in range(STEPS_MAX):
        before, quorum = quorum, _step(scope, quorum)
        if quorum == before or quorum.phase == QuorumPhase.ENDED:
            break
    save_quorum(scope.state, quorum._replace(due_ms=quorum.until_ms))


def _step(scope: Scope, quorum: QuorumRecord) -> QuorumRecord:
    match quorum.phase:
        case QuorumPhase.RUNNING:
            return _step_running(scope, quorum)
        case QuorumPhase.REVEALING:
            if _is_late(scope, quorum):
                quorum = _miss(scope, quorum, SeatState.SEALED)
            is_open = any(seat.state == SeatState.SEALED for seat in quorum.seats)
            return quorum if is_open else _compare(scope, quorum)
        case QuorumPhase.THIRD:
            quorum = _note_lost(scope, quorum)
            is_open = quorum.seats[_LAST].state == SeatState.WORKING
            return quorum if is_open else _compare(scope, quorum)
        case QuorumPhase.SHOWING:
            return _step_showing(scope, quorum)
        case _:
            return _step_stopping(scope, quorum)


def _cases(scope: Scope, quorum: QuorumRecord) -> list[Case]:
    return [Case.load(scope, quorum_seat_task(quorum.id, seat)) for seat in range(SEATS)]


def _is_late(scope: Scope, quorum: QuorumRecord) -> bool:
    return 0 < quorum.until_ms <= scope.block.steady_ms


def _move(
    scope: Scope, quorum: QuorumRecord, phase: QuorumPhase, *, until_ms: int = 0, result: bytes = b""
) -> QuorumRecord:
    scope.emit(QUORUM_PHASE(quorum.id, quorum.phase, phase, result or bytes(32)))
    return quorum._replace(phase=phase, until_ms=until_ms, result=result)


def _stopping(scope: Scope, quorum: QuorumRecord, reason: Reason) -> QuorumRecord:
    return _move(scope, quorum, QuorumPhase.STOPPING)._replace(
        ending=int(Phase.CANCELLED), ending_reason=int(reason)
    )


def _note_lost(scope: Scope, quorum: QuorumRecord) -> QuorumRecord:
    """Note seats that were called and will have no output any more."""
    for at, case in enumerate(_cases(scope, quorum)):
        if quorum.seats[at].state != SeatState.WORKING:
            continue
        if case.record.phase == Phase.PAUSED:  # others wait for it
            wind_up(case, Phase.FAILED, case.record.reason)
            case.save()
        if case.record.phase == Phase.VERIFYING or case.record.phase in ENDED:
            quorum = quorum.with_seat(at, quorum.seats[at]._replace(state=SeatState.MISSING))
    return quorum


def _call(scope: Scope, quorum: QuorumRecord, at: int) -> QuorumRecord:
    """Have a seat look for a machine."""
    case = Case.load(scope, quorum_seat_task(quorum.id, at))
    case.change(match_by_ms=case.now + case.spec.match_ms)
    search(case)
    case.save()
    return quorum.with_seat(at, QuorumSeat(SeatState.WORKING))


def _step_running(scope: Scope, quorum: QuorumRecord) -> QuorumRecord:
    quorum = _note_lost(scope, quorum)
    states = [seat.state for seat in quorum.seats]
    cases = _cases(scope, quorum)
    is_unmatched = any(case.record.phase == Phase.EXPIRED for case in cases)
    if is_unmatched or states.count(SeatState.MISSING) > SEATS - SEATS_FIRST:
        return _stopping(scope, quorum, Reason.NO_PARTNER)
    if states[1] == SeatState.IDLE:
        return _call(scope, quorum, 1) if cases[0].record.worker or SeatState.MISSING in states else quorum
    if SeatState.MISSING in states and states[_LAST] == SeatState.IDLE:
        return _call(scope, quorum, _LAST)
    if SeatState.WORKING in states:
        return quorum
    until_ms = scope.block.steady_ms + scope.parameters.reveal_ms
    return _move(scope, quorum, QuorumPhase.REVEALING, until_ms=until_ms)


def _miss(scope: Scope, quorum: QuorumRecord, state: SeatState) -> QuorumRecord:
    """Note seats in ``state`` of which nothing more is awaited; their machines pause."""
    for at, seat in enumerate(quorum.seats):
        if seat.state == state and seat.result == quorum.result:
            quorum = quorum.with_seat(at, seat._replace(state=SeatState.MISSING))
            _pause(scope, seat)
    return quorum


def _pause(scope: Scope, seat: QuorumSeat) -> None:
    """Offer a machine nothing for as long as it held the task: that is no mark against it, and takes nothing."""
    now_ms = scope.block.steady_ms
    reputation.mark_decline(scope.state, seat.machine, now_ms, 1000 * seat.span_s, scope.parameters)


def _compare(scope: Scope, quorum: QuorumRecord) -> QuorumRecord:
    """Find two equal results; otherwise have the last machine run the container, if it has not."""
    known = [seat.result for seat in quorum.seats if seat.state == SeatState.REVEALED]
    twice = next((result for result in known if known.count(result) > 1), b"")
    if twice:
        until_ms = scope.block.steady_ms + scope.parameters.reveal_ms
        return _move(scope, quorum, QuorumPhase.SHOWING, until_ms=until_ms, result=twice)
    if known and quorum.seats[_LAST].state == SeatState.IDLE:
        return _call(scope, _move(scope, quorum, QuorumPhase.THIRD), _LAST)
    return _leave_undecided(scope, quorum)


def _leave_undecided(scope: Scope, quorum: QuorumRecord) -> QuorumRecord:
    """End a quorum without a majority: each machine with a result is paid a part of the shortest time (R116)."""
    spans = [seat.span_s for seat in quorum.seats if seat.state == SeatState.REVEALED]
    for at, seat in enumerate(quorum.seats):
        if seat.state == SeatState.REVEALED:
            case = Case.load(scope, quorum_seat_task(quorum.id, at))
            own = load_meter(scope.state, case.record.id).own_seconds
            pay_held(case, min(own, min(spans)) // UNDECIDED_PARTS)
            case.save()
            quorum = quorum.with_seat(at, seat._replace(state=SeatState.DIFFERED))
    return _end(scope, quorum, Phase.FAILED, Reason.NO_MAJORITY if spans else Reason.NOT_REVEALED)


def _step_showing(scope: Scope, quorum: QuorumRecord) -> QuorumRecord:
    for at, seat in enumerate(quorum.seats):
        if seat.state != SeatState.REVEALED:
            continue
        if seat.result != quorum.result:
            quorum = quorum.with_seat(at, seat._replace(state=SeatState.DIFFERED))
            _pause(scope, seat)
        elif not seat.seal:  # it has said in the clear how its container ended
            case = Case.load(scope, quorum_seat_task(quorum.id, at))
            _settle(case, quorum)
            case.save()
            quorum = quorum.with_seat(at, seat._replace(state=SeatState.AGREED))
    if _is_late(scope, quorum):
        quorum = _miss(scope, quorum, SeatState.REVEALED)
    if any(seat.state == SeatState.REVEALED for seat in quorum.seats):
        return quorum
    shown = [at for at, seat in enumerate(quorum.seats) if seat.state == SeatState.AGREED]
    end = load_meter(scope.state, quorum_seat_task(quorum.id, shown[0])).end if shown else None
    ending, reason = _ending_of(end)
    return _end(scope, quorum, ending, reason)


def _step_stopping(scope: Scope, quorum: QuorumRecord) -> QuorumRecord:
    reason, is_over = Reason(quorum.ending_reason), True
    for at, case in enumerate(_cases(scope, quorum)):
        if quorum.seats[at].state == SeatState.IDLE:
            continue
        if case.record.phase == Phase.OUTPUT:
            pay_held(case, load_meter(scope.state, case.record.id).own_seconds)
            wind_up(case, Phase.CANCELLED, reason)
        elif case.record.phase != Phase.VERIFYING and case.record.phase not in ENDED:
            with suppress(WrongPhase):
                cancel_work(case, reason)
        case.save()
        is_over = is_over and (case.record.phase == Phase.VERIFYING or case.record.phase in ENDED)
    return _end(scope, quorum, Phase.CANCELLED, reason) if is_over else quorum


_REASONS: Final = {SeatState.DIFFERED: Reason.OUTPUT_DIFFERS, SeatState.MISSING: Reason.NOT_REVEALED}


def _end(scope: Scope, quorum: QuorumRecord, ending: Phase, reason: Reason) -> QuorumRecord:
    """End a quorum and its tasks: all as it ends, each with a reason of its own."""
    quorum = _move(scope, quorum, QuorumPhase.ENDED, result=quorum.result)
    quorum = quorum._replace(due_ms=0, ending=int(ending), ending_reason=int(reason))
    save_quorum(scope.state, quorum)  # the tasks wait for it
    for seat, case in zip(quorum.seats, _cases(scope, quorum), strict=True):
        if case.record.phase == Phase.MATCHING:
            case.advance(Event.CANCEL, Reason.SEAT_UNNEEDED)
            close_escrow(case)
        elif case.record.phase == Phase.OUTPUT:
            wind_up(case, ending, reason if reason == Reason.NO_MAJORITY else _REASONS.get(seat.state, reason))
        elif case.record.phase == Phase.VERIFYING:
            case.change(ending=int(ending))
            finish(case)
        case.save()
    return quorum
