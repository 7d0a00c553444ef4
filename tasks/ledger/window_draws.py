"""The draws of a window: its lot, who checks it, declined seats, and its end if nobody can (market.md 6.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from state.primitives.hashing import digest
from tasks.errors import (
    AlreadySealed,
    DeclineTooLate,
    NotYours,
    TooManyDeclines,
    WrongPhase,
)
from tasks.evaluations import ended_by
from tasks.kinds.verifiers import ANYBODY
from tasks.ledger import registry
from tasks.ledger.audits import CHECK_GAS, SURE, is_hit, samples_of
from tasks.ledger.capacity import count_decline, has_room, owe
from tasks.ledger.deadlines import Draw, schedule_draw
from tasks.ledger.disputes import load_docket
from tasks.ledger.endings import accept, fail_unchecked, let_pass, may_pass
from tasks.ledger.games import (
    go_on,
    settle_ended,
    void_window,
)
from tasks.ledger.lifecycle import Event, Phase, Reason, WindowEvent, WindowPhase
from tasks.ledger.matching import draw_seed, draw_segments, draw_verifiers, eligible_verifiers
from tasks.ledger.open_task import SEAT_DECLINED, SEAT_DRAWN, Case
from tasks.ledger.records import Seat, WindowRecord, by_verifier_key
from tasks.ledger.reruns import RERUN_SEATS, needs_agreement, settle_rerun
from tasks.ledger.seats import (
    DELIVERY_PHASES,
    check_time,
    dismiss,
    is_jury,
    seats_of,
    with_seats,
)
from tasks.ledger.serving import (
    ENLARGED_JURY,
    first_jurors,
    is_enlarged,
)
from tasks.ledger.settlement import (
    fund_checks,
    give_back_demand,
    juror_fee,
    may_fund,
)

__all__ = [
    "GAS_WAITS_MAX",
    "USED_MAX_TO_DECLINE",
    "WAIT_DOUBLINGS_MAX",
    "decline_seat",
    "draw_seats",
    "drawn_since",
    "end_demand",
    "fill_seats",
    "my_seat",
    "redraw",
    "schedule_window",
]

USED_MAX_TO_DECLINE: Final = 128
"""Machines and operators drawn for a window after which its seats cannot be declined: its record is bounded."""
WAIT_DOUBLINGS_MAX: Final = 5
"""A draw that is put off waits ``p.draw_blocks``, twice as long each time up to so many doublings."""
GAS_WAITS_MAX: Final = 5
"""Times that a draw is put off for gas that is dearer than its window pays. Then the check fund bears the rest."""


def schedule_window(case: Case, window: WindowRecord, since: int) -> None:
    """Have the beacon ``p.draw_blocks`` after the block at ``since`` draw for a window."""
    schedule_draw(case.state, Draw(since + case.parameters.draw_blocks, window.task, window.number))


def drawn_since(window: WindowRecord) -> int:
    """Return the height as of which the register counts in the draw that a window waits for."""
    return window.vacant[-1] if window.vacant else window.height


def _seed(case: Case, window: WindowRecord) -> bytes:
    numbers = (window.number, window.draws, int(window.phase), *window.vacant)
    return draw_seed(b"verifier-draw", case.scope.block.beacon, window.task, *numbers)


def draw_seats(case: Case, window: WindowRecord, waits: int = 0) -> bool:
    """Draw for a window; tell whether machines were looked at for it."""
    if case.scope.block.height < window.height + case.parameters.draw_blocks:
        schedule_window(case, window, window.height)
        return False
    if window.phase == WindowPhase.PROVED:
        # Once the lot has fallen on a window it stays so: a draw that is put off gives no other chance.
        if not is_hit(window.chance, digest(b"audit-lot", _seed(case, window))):
            _pass(case, window)
            return False
        window = window._replace(chance=SURE)
        case.put_window(window)
        if not _is_funded(case, window, _payment(case, window, window.wanted), waits):
            _put_off(case, window, waits)
            return False
    pool = _pool(case, window)
    wanted = _wanted(case, window)
    if window.rerun:
        if needs_agreement(case, window) and pool.operators < wanted:
            wanted = 0  # one alone decides nothing
    elif is_jury(window) and not is_enlarged(window) and min(wanted, pool.operators) % 2 == 0:
        wanted = min(wanted, pool.operators) - 1  # an even jury could tie
    if wanted <= 0 or not pool.operators:
        redraw(case, window, case.now + case.parameters.draw_retry_ms)
        return True
    if pool.operators_with_room < min(wanted, pool.operators):
        # Who fills the time of verifiers with other windows shall not choose who checks this one, nor void it.
        _put_off(case, window, waits)
        return True
    nodes = draw_verifiers(pool.seed, pool.with_room, wanted, drawn_since(window), case.parameters)
    payment = _payment(case, window, len(nodes))
    if not _is_funded(case, window, payment, waits):
        _put_off(case, window, waits)
        return True
    window = fund_checks(case, window, payment.needed)._replace(fee=payment.fee, gas_price=payment.gas_price)
    case.put_window(window)
    _seat(case, window, pool.seed, nodes)
    return True


def _seat(case: Case, window: WindowRecord, seed: bytes, nodes: Sequence[registry.NodeRecord]) -> None:
    """Give the seats of a window to drawn machines."""
    seats = tuple(Seat(node.address, b"", None) for node in nodes)
    if window.phase == WindowPhase.PROVED:
        count = samples_of(window.proof.segments, window.wanted, case.parameters)
        window = case.advance_window(
            window.number, WindowEvent.DRAW, Reason.VERIFIERS_DRAWN,
            sampled=_sampled(window, seed, count, ends=bool(ended_by(case.spec, window.proof))),
            verifiers=seats,
        )  # fmt: skip
        _tell_drawn(case, window, Reason.VERIFIERS_DRAWN)
    else:
        if is_enlarged(window):
            seats = (*window.jurors, *seats)
        window = case.advance_window(window.number, WindowEvent.DRAW, Reason.VERIFIERS_DRAWN, jurors=seats)
    _ask(case, window, nodes)


def _put_off(case: Case, window: WindowRecord, waits: int) -> None:
    """Have the draw of a window come later, each time after twice as long, with a beacon that nobody knows yet."""
    pause = case.parameters.draw_blocks << min(waits, WAIT_DOUBLINGS_MAX)
    waits = min(waits, WAIT_DOUBLINGS_MAX) + 1
    schedule_draw(case.state, Draw(case.scope.block.height + pause, window.task, window.number, waits))


def _sampled(window: WindowRecord, seed: bytes, count: int, *, ends: bool) -> tuple[int, ...]:
    """Draw ``count`` segments to run again; one that is claimed to diverge, or ``ends`` the job, is among them.

    What was opened in an earlier round is public: only where nothing else is left it is run again.
    """
    segments = window.proof.segments
    others = range(segments - 1 if ends or window.proof.diverged is not None else segments)
    fresh = [segment for segment in others if segment not in window.seen] or list(others)
    count -= segments - len(others)
    drawn = [fresh[at] for at in draw_segments(seed, len(fresh), count)] if count else []
    return (*drawn, *range(len(others), segments))


def _pass(case: Case, window: WindowRecord) -> None:
    """Let a window go that is not selected for audit: it is final after the time in which it can be challenged."""
    case.put_window(window._replace(chance=0))
    accept(case, window, Reason.NOT_DRAWN, WindowEvent.PASS)
    _go_on_passed(case, window, Reason.NOT_DRAWN)


def _go_on_passed(case: Case, window: WindowRecord, reason: Reason) -> None:
    _tell_drawn(case, window, reason)
    docket = load_docket(case.state, window.task, window.number)
    if docket.next_call < docket.seals:  # sealed before the draw
        go_on(case, window.number, reason)


def _tell_drawn(case: Case, window: WindowRecord, reason: Reason) -> None:
    if case.record.phase == Phase.OUTPUT and window.number + 1 == case.record.next_window:
        case.advance(Event.DRAWN, reason)


class _Payment(NamedTuple):
    """What is needed for the checks of a window; with the fee and the gas price that its verifiers get."""

    needed: int
    fee: int
    gas_price: int
    is_raised: bool


def _payment(case: Case, window: WindowRecord, seats: int) -> _Payment:
    """Return what the check fund puts down for ``seats``.

    A verifier is paid the fee of the proof, and what gas costs above that. Jurors about a missing blob have their
    fee beside. Who runs segments again because the worker was silent is paid out of its bond, and so are jurors
    that it asked for.
    """
    fee, gas_price, needed = window.fee, window.gas_price, window.reserve
    if window.phase == WindowPhase.PROVED:
        gas_price = max(gas_price, case.scope.block.base_fee)
        fee += CHECK_GAS * (gas_price - window.gas_price)
        needed = fee * seats
    elif window.phase == WindowPhase.DOUBTED and not window.rerun and not is_enlarged(window):
        needed = fee * len(window.verifiers) + juror_fee(window) * seats
    return _Payment(needed, fee, gas_price, gas_price > window.gas_price)


def _is_funded(case: Case, window: WindowRecord, payment: _Payment, waits: int) -> bool:
    """Tell whether a draw is paid for now.

    While gas is dearer than its window pays for it is put off, until it was ``GAS_WAITS_MAX`` times.
    """
    if payment.is_raised and waits < GAS_WAITS_MAX:
        return False
    return may_fund(case, window, payment.needed, is_raised=payment.is_raised)


class _DrawPool(NamedTuple):
    """Machines that may be drawn, and of these the ones that have time; with the seed of the draw."""

    seed: bytes
    all: tuple[registry.NodeRecord, ...]
    with_room: tuple[registry.NodeRecord, ...]

    @property
    def operators(self) -> int:
        return len({node.operator for node in self.all})

    @property
    def operators_with_room(self) -> int:
        return len({node.operator for node in self.with_room})


def _pool(case: Case, window: WindowRecord) -> _DrawPool:
    scope, parameters, seed = case.scope, case.parameters, _seed(case, window)
    # What the leader of this block, who knows the beacon first, does to the register in it does not count.
    pool = eligible_verifiers(
        scope.parent, case.record, window.worker, window.used, seed, case.now, parameters, drawn_since(window),
        chosen=ANYBODY if is_jury(window) else case.spec.verifiers,  # a jury decides about a bond (R167)
    )  # fmt: skip
    time = check_time(case, window)
    with_room = [
        node for node in pool if has_room(node, case.state, scope.block.height, time.work_ms, time.run_ms)
    ]  # fmt: skip
    return _DrawPool(seed, tuple(pool), tuple(with_room))


def _ask(case: Case, window: WindowRecord, nodes: Sequence[registry.NodeRecord]) -> None:
    """Ask a verdict of drawn machines, and give the window its time to seal."""
    time = check_time(case, window)
    deadline_ms = case.now + _seal_ms(case, window)
    case.put_window(window._replace(deadline_ms=deadline_ms, used=(*window.used, *_parties(nodes)), vacant=()))
    for node in nodes:
        owe(case.state, node.address, case.scope.block.height, time.owed_ms)
        case.state.put(by_verifier_key(node.address, window.task, window.number), b"\x01")
        case.scope.emit(SEAT_DRAWN(window.task, window.number, node.address))


def decline_seat(case: Case, number: int, sender: bytes) -> None:
    """Leave a seat soon after its draw, without a fine; another machine is drawn for it.

    Raises WrongPhase, NotYours, AlreadySealed, DeclineTooLate, TooManyDeclines.
    """
    window = case.window(number)
    # The salt of a demanded result is made of who was drawn: there a seat stays.
    if window.phase not in (WindowPhase.SEALING, WindowPhase.JURY_SEALING):
        raise WrongPhase(window.phase.name.lower())
    at = my_seat(window, sender)
    seats = seats_of(window)
    if seats[at].seal:
        raise AlreadySealed(number)
    drawn_ms = window.deadline_ms - _seal_ms(case, window)
    if not window.vacant and case.now > drawn_ms + case.parameters.decline_seat_ms:
        raise DeclineTooLate(f"{case.now - drawn_ms} ms after the draw")
    if len(window.used) >= USED_MAX_TO_DECLINE:
        raise TooManyDeclines(f"{len(window.used)} machines and operators were drawn for this window")
    count_decline(case.state, sender, case.now, case.parameters)
    dismiss(case, window, seats[at : at + 1])
    window = with_seats(window, seats[:at] + seats[at + 1 :])
    vacant = (*window.vacant, case.scope.block.height)
    window = window._replace(vacant=vacant, deadline_ms=0)
    case.put_window(window)
    schedule_window(case, window, vacant[-1])
    case.scope.emit(SEAT_DECLINED(window.task, number, sender))


def _seal_ms(case: Case, window: WindowRecord) -> int:
    """Return the time to seal. An enlarged jury has more: a line that is cut for minutes shall cost no bond."""
    extra_ms = case.parameters.opening_extra_ms if is_jury(window) and is_enlarged(window) else 0
    return check_time(case, window).total_ms + extra_ms


def fill_seats(case: Case, window: WindowRecord, waits: int = 0) -> bool:
    """Draw machines for the seats that were declined; those that stay have the new ones' time too.

    Tell whether all that sit have sealed: then the window goes on.
    """
    parameters = case.parameters
    pool = _pool(case, window)
    wanted = min(len(window.vacant), pool.operators)
    if pool.operators_with_room < wanted:
        _put_off(case, window, waits)
        return False
    if not wanted and not seats_of(window):
        window = window._replace(vacant=())
        case.put_window(window)
        redraw(case, window, case.now + parameters.draw_retry_ms)
        return False
    nodes = draw_verifiers(pool.seed, pool.with_room, wanted, drawn_since(window), parameters)
    seats = (*seats_of(window), *(Seat(node.address, b"", None) for node in nodes))
    _ask(case, with_seats(window, seats), nodes)
    return all(seat.seal for seat in seats)


def _parties(nodes: Sequence[registry.NodeRecord]) -> list[bytes]:
    """Return machines and the accounts behind them, each once: they have one seat of a window in all."""
    return list(dict.fromkeys(party for node in nodes for party in node.parties))


def _wanted(case: Case, window: WindowRecord) -> int:
    if is_jury(window):
        if is_enlarged(window):
            return ENLARGED_JURY - len(window.jurors)
        return RERUN_SEATS if window.rerun else case.parameters.jury
    return window.wanted


def redraw(case: Case, window: WindowRecord, deadline_ms: int) -> None:
    """Draw again, or give up: a window that nobody could check is not paid, and nobody is blamed for it."""
    draws = window.draws + 1
    by_jury = is_jury(window)
    reason = Reason.DISPUTE_UNRESOLVED if by_jury else Reason.NO_VERIFIER
    if draws < case.parameters.draws_max:
        kept = first_jurors(window) if is_enlarged(window) else ()
        seats: dict[str, Any] = {"jurors": kept} if by_jury else {"verifiers": ()}
        case.advance_window(
            window.number, WindowEvent.REDRAW, reason, deadline_ms=deadline_ms, draws=draws,
            height=case.scope.block.height, **seats,
        )  # fmt: skip
    elif window.phase in DELIVERY_PHASES:
        end_demand(case, window, WindowEvent.FINALISE, Reason.DISPUTE_UNRESOLVED)
    elif window.rerun:
        settle_rerun(case, window.number, ())
    elif is_enlarged(window) and by_jury:  # nobody is left to ask: as before the bond was at stake
        void_window(case, window.number, WindowEvent.REJECT, Reason.WORK_REJECTED, blamed=window.worker)
    elif by_jury:
        void_window(case, window.number, WindowEvent.DROP, reason, blamed=b"")
    else:
        settle_ended(case, window.number)
        window = case.window(window.number)
        if window.phase == WindowPhase.VOID:
            return
        if may_pass(case, window):
            let_pass(case, window, WindowEvent.PASS)
            _go_on_passed(case, window, Reason.NO_VERIFIER)
        else:
            fail_unchecked(case, window)


def my_seat(window: WindowRecord, sender: bytes) -> int:
    """Return which seat of a window the sender has. Raises NotYours."""
    for at, seat in enumerate(seats_of(window)):
        if seat.address == sender:
            return at
    raise NotYours("the sender is not drawn to check this window")


def end_demand(case: Case, window: WindowRecord, event: WindowEvent, reason: Reason) -> None:
    """End the demand of a result, and give its requester back what is left of the amount."""
    dismiss(case, window, window.jurors)
    give_back_demand(case)
    case.advance_window(window.number, event, reason)
