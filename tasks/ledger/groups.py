"""Groups: their seats, their match, who replaces a lost member, and their end (market.md 5.6)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from billing.errors import PaymentMissing
from billing.escrow import Pool, Purpose
from billing.prices import Budget, Role, share, share_up, work_price
from state.primitives.hashing import HASH_BYTES
from state.view import Reader
from tasks.errors import GroupsOff, NotYours, SeatsMismatch, WrongPhase
from tasks.ledger import registry
from tasks.ledger.creation import begin_task
from tasks.ledger.custody_records import INPUT_WINDOW, CustodyPhase, find_custody
from tasks.ledger.group_records import (
    GROUP_SEAT,
    GroupPhase,
    GroupRecord,
    barred_of,
    begin_group,
    group_id_of,
    group_of_task,
    holders_of,
    load_group,
    move_group,
    save_group,
    seat_spec,
    seat_task,
    wake_group,
)
from tasks.ledger.lifecycle import ENDED, Event, Phase, Reason
from tasks.ledger.open_task import Case, Scope
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.progress import assign, cancel_work, enter_book, search, wind_up
from tasks.ledger.records import load_spec, load_spec_bytes
from tasks.ledger.registry import is_available
from tasks.ledger.settlement import (
    budget_of,
    check_affordable,
    check_measured,
    close_escrow,
    pay_cancelled,
    pay_earned,
)
from tasks.spec import JobSpec, encode_spec, spec_hash

__all__ = [
    "SEATS_PER_STEP",
    "LoneSeat",
    "Seated",
    "add_seats",
    "cancel_group",
    "create_group",
    "lone_seat",
    "on_group_due",
    "seats_budget",
    "spare_budget",
    "stand_by",
    "start_group",
]

SEATS_PER_STEP: Final = 8
"""Seats that one transaction makes, and that one step of a group ends."""
SEATS_LOOKED_MAX: Final = 16
"""Seats that one step of a group that ends reads: the next step goes on behind them."""


class Seated(NamedTuple):
    """A seat, the machine that a call gave it, and the price."""

    seat: int
    machine: bytes
    price: int


def spare_budget(spec: JobSpec, parameters: TaskParameters) -> Budget:
    """Return what is locked for a spare: its preparation, and its part of the price of all windows of a member."""
    budget = budget_of(spec, parameters)
    return Budget(share_up(budget.price, parameters.group_standby_bps), 0, 0, budget.preparation)


def seats_budget(spec: JobSpec, members: int, spares: int, parameters: TaskParameters) -> int:
    """Return what so many seats of a job lock."""
    member, spare = budget_of(spec, parameters), spare_budget(spec, parameters)
    return members * member.total + spares * spare.total


def create_group(
    scope: Scope, sender: bytes, nonce: int, spec: JobSpec, raw: bytes, members: int, spares: int
) -> None:
    """Create a group and the task of its seat 0.

    Raises GroupsOff, CheckTooDear, TrialsOff, UnsupportedJob, InsufficientBalance.
    """
    parameters, block = scope.parameters, scope.block
    if members > parameters.group_members_max:
        raise GroupsOff(f"{parameters.group_members_max} members at most, not {members}")
    check_affordable(spec, parameters)
    check_measured(spec, parameters)
    spec.plan().check()
    group = GroupRecord(
        id=group_id_of(sender, nonce), requester=sender, specification=spec_hash(raw), phase=GroupPhase.MATCHING,
        reason=Reason.CREATED, created_height=block.height, created_ms=block.steady_ms,
        changed_height=block.height, changed_ms=block.steady_ms, due_ms=0, members=members, spares=spares, seats=1,
        band=0, lost=0, paused=0, ended=0, standby=0, final=0, barred=0, ending=0, ending_reason=0, ending_from=0,
        history=(),
    )  # fmt: skip
    begin_group(scope.state, group, block, scope.emit)
    case = begin_task(
        scope, seat_task(group.id, 0), sender, spec, raw, budget_of(spec, parameters),
        group=group.id + bytes([0]), rank_of=seats_budget(spec, members, spares, parameters),
    )  # fmt: skip
    scope.emit(GROUP_SEAT(group.id, case.record.id, 0))
    search(case)
    if not group.is_whole:
        case.change(match_at_ms=0)
    case.save()


def add_seats(scope: Scope, sender: bytes, group_id: bytes, roots: Sequence[bytes], amount: int) -> None:
    """Make the tasks of the next seats of a group, which is a bid once it has all of them.

    ``roots`` has the state that a member starts from, and empty bytes for a spare.
    Raises GroupUnknown, NotYours, WrongPhase, SeatsMismatch, PaymentMissing, InsufficientBalance.
    """
    state, parameters = scope.state, scope.parameters
    group = load_group(state, group_id)
    if sender != group.requester:
        raise NotYours("the sender is not the requester")
    if group.phase != GroupPhase.MATCHING or group.is_whole:
        raise WrongPhase("whole" if group.is_whole else group.phase.name.lower())
    seats = range(group.seats, group.seats + len(roots))
    is_fitting = seats.stop <= group.members + group.spares and all(
        len(root) == (HASH_BYTES if seat < group.members else 0) for seat, root in zip(seats, roots, strict=True)
    )
    if not is_fitting:
        raise SeatsMismatch(f"{len(roots)} seats from {group.seats} on")
    first = seat_task(group_id, 0)
    spec, raw = load_spec(state, first), load_spec_bytes(state, first)
    spares = sum(not root for root in roots)
    due = seats_budget(spec, len(roots) - spares, spares, parameters)
    if amount != due:
        raise PaymentMissing(due=due, got=amount)
    save_group(state, group._replace(seats=seats.stop))
    member, spare = budget_of(spec, parameters), spare_budget(spec, parameters)
    for seat, root in zip(seats, roots, strict=True):
        own = seat_spec(spec, seat, root) if root else spec
        begin_task(
            scope, seat_task(group_id, seat), sender, own, encode_spec(own) if root else raw,
            member if root else spare, group=group_id + bytes([seat]),
        ).save()  # fmt: skip
        scope.emit(GROUP_SEAT(group_id, seat_task(group_id, seat), seat))
    case = Case.load(scope, first)
    kept = find_custody(state, first, INPUT_WINDOW)
    if kept is None or kept.phase == CustodyPhase.KEPT:  # else custody of the input has it enter
        enter_book(case)
        case.save()


def cancel_group(scope: Scope, sender: bytes, group_id: bytes) -> None:
    """End a group: each seat as if its requester had cancelled it, in steps.

    Raises GroupUnknown, NotYours, WrongPhase.
    """
    state, reason = scope.state, Reason.REQUESTER_CANCELLED
    group = load_group(state, group_id)
    if sender != group.requester:
        raise NotYours("the sender is not the requester")
    if group.phase == GroupPhase.ENDED or group.ending:
        raise WrongPhase("ended" if group.phase == GroupPhase.ENDED else "ending")
    if group.phase == GroupPhase.MATCHING:  # its bid is that of seat 0
        case = Case.load(scope, seat_task(group_id, 0))
        cancel_work(case, reason)
        case.save()
        return
    group = group._replace(ending=int(Phase.CANCELLED), ending_reason=int(reason))
    save_group(state, wake_group(group, scope.block.steady_ms))


def start_group(scope: Scope, group_id: bytes, seated: Sequence[Seated], rates: Sequence[int]) -> None:
    """Give each seat of a group the machine that a call found for it, at its price.

    If the group was withdrawn, each machine is paid a segment, and it ends.
    """
    group = load_group(scope.state, group_id)
    group = group._replace(band=min(rates))
    save_group(scope.state, move_group(group, GroupPhase.RUNNING, Reason.MATCHED, scope.block, scope.emit))
    ending = Case.load(scope, seat_task(group_id, 0)).record
    for each in seated:
        case = Case.load(scope, seat_task(group_id, each.seat))
        by_ms = scope.block.steady_ms + scope.parameters.replace_ms_max
        case.change(match_by_ms=by_ms, ending=ending.ending, ending_reason=ending.ending_reason)
        assign(case, each.machine, each.price)
        case.save()


def stand_by(case: Case) -> None:
    """Have a spare that has prepared wait for a call."""
    group = load_group(case.state, group_of_task(case.record))
    case.advance(Event.STAND_BY, Reason.STANDING_BY)
    case.change(own_from=group.final)


def _earned(case: Case, group: GroupRecord) -> int:
    """Return what a spare that stands by has earned: its part of what members have done since.

    Nobody can see whether it has prepared, so nothing is paid for that (R71).
    """
    record = case.record
    units = case.spec.window_units(0) * (group.final - record.own_from)
    stood = share(work_price(units, record.price_per_tera_unit), case.parameters.group_standby_bps)
    return min(case.vault.held(Pool.PRICE), stood // group.members)


def on_group_due(scope: Scope, group_id: bytes) -> None:
    """Do a step of a group: end seats where it ends, otherwise call spares to seats that lost their machines."""
    group = load_group(scope.state, group_id)._replace(due_ms=0)
    save_group(scope.state, group)
    if group.phase == GroupPhase.ENDED or group.ending:
        _end_seats(scope, group)
    else:
        _call_spares(scope, group)


def _call_spares(scope: Scope, group: GroupRecord) -> None:
    """Give seats that have lost their machines those of spares, both in their order."""
    state, now_ms = scope.state, scope.block.steady_ms
    barred = barred_of(state, group.id) if group.lost else set()
    lost: list[Case] = []
    if group.lost and group.standby:
        cases = (Case.load(scope, seat_task(group.id, seat)) for seat in range(group.members))
        lost = [case for case in cases if case.record.phase == Phase.DEGRADED and not case.record.ending]
    for seat in range(group.members, group.members + group.spares):
        if not lost:
            return
        spare = Case.load(scope, seat_task(group.id, seat))
        machine = spare.record.worker
        if spare.record.phase != Phase.STANDBY or machine in barred:
            continue
        node = registry.load_node(state, machine)
        if node is not None and is_available(node, now_ms, scope.parameters):
            _call_spare(spare, lost.pop(0), group)


def _call_spare(spare: Case, case: Case, group: GroupRecord) -> None:
    """Give a seat the machine of a spare, which has what it earned once it has started there."""
    machine, price = spare.record.worker, spare.record.price_per_tera_unit
    earned = _earned(spare, group)
    spare.vault.refund(Pool.PRICE, group.requester, earned, Purpose.STANDBY)
    wind_up(spare, Phase.CANCELLED, Reason.SPARE_CALLED)
    spare.save()
    case.vault.lock(Pool.HOLD, group.requester, earned, Purpose.STANDBY, owner=machine)
    assign(case, machine, price)
    case.save()


def _end_seats(scope: Scope, group: GroupRecord) -> None:
    """End up to ``SEATS_PER_STEP`` seats of the next ``SEATS_LOOKED_MAX`` that can be.

    Those whose last window is under way end with it.
    """
    left, seat = SEATS_PER_STEP, group.ending_from
    looked_to = min(group.seats, seat + SEATS_LOOKED_MAX)
    while left and seat < looked_to:
        case = Case.load(scope, seat_task(group.id, seat))
        if case.record.phase not in ENDED and not case.record.ending and _end_seat(case, group, seat):
            case.save()
            left -= 1
        seat += 1
    current = load_group(scope.state, group.id)
    if seat < group.seats:
        current = current._replace(ending_from=seat, due_ms=scope.block.steady_ms + 1)
    else:
        current = current._replace(ending_from=0)
    save_group(scope.state, current)


def _end_seat(case: Case, group: GroupRecord, seat: int) -> bool:
    """End a seat as its group ends; tell whether that could be done."""
    record = case.record
    reason = Reason(group.ending_reason) if group.ending else Reason.GROUP_ENDED
    if record.phase == Phase.MATCHING:  # of a group that was never matched
        is_expired = group.ending == Phase.EXPIRED
        case.advance(Event.EXPIRE if is_expired else Event.CANCEL, reason)
        close_escrow(case)
        return True
    if seat < group.members:
        with suppress(WrongPhase):
            cancel_work(case, reason)
            return True
        return False
    if record.phase in (Phase.ASSIGNED, Phase.PREPARING):
        pay_cancelled(case)
    elif record.phase == Phase.STANDBY:
        earned = _earned(case, group)
        pay_earned(case, Pool.PRICE, record.worker, earned, Purpose.STANDBY, Role.COMPUTE)
    else:
        return False
    wind_up(case, Phase.CANCELLED, reason)
    return True


class LoneSeat(NamedTuple):
    """What a seat of a group that looks for a machine alone asks of it beside its job."""

    rate_min: int
    rate_max: int
    barred: frozenset[bytes]


def lone_seat(state: Reader, group_id: bytes) -> LoneSeat:
    """Return what a group asks of the machine that takes one of its seats alone. Raises GroupUnknown."""
    group = load_group(state, group_id)
    barred = frozenset(holders_of(state, group_id)) | barred_of(state, group_id)
    return LoneSeat(group.band, group.rate_max, barred)
