"""A window from its proof to its verdicts: draws, seals, reveals, the worker's opening, jury (market.md 7).

A verifier that computed something else has a game (``games``). One that could not fetch what it needed does not
decide: a jury of fresh verifiers tries to fetch and re-run the segments in question (``serving``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from billing.errors import PaymentMissing
from billing.escrow import Pool, Purpose
from billing.prices import share
from state.primitives.codec import encode
from state.primitives.hashing import digest
from tasks.errors import (
    AlreadyRevealed,
    AlreadySealed,
    BadEvidence,
    DeclineTooLate,
    NotYours,
    TooManyDeclines,
    WrongPhase,
)
from tasks.ledger import registry, reputation
from tasks.ledger.audits import CHECK_GAS, SURE, average_cost, is_hit, samples_of
from tasks.ledger.capacity import bounded_fine, count_decline, has_room, owe, settle_owed
from tasks.ledger.custody import begin_custody, on_custody_draw
from tasks.ledger.deadlines import WINDOW_SLOTS, Draw, schedule_draw
from tasks.ledger.disputes import load_docket
from tasks.ledger.dockets import proof_in, renew_docket
from tasks.ledger.endings import accept, fail_unchecked, finalise
from tasks.ledger.games import (
    SETTLES,
    accuse_silent,
    check_leaf,
    go_on,
    is_contested,
    note_break,
    on_disputes_due,
    on_not_opened,
    open_games,
    opened_of,
    settle_ended,
    void_window,
)
from tasks.ledger.lifecycle import ENDED, Event, Phase, Reason, WindowEvent, WindowPhase
from tasks.ledger.matching import draw_seed, draw_segments, draw_verifiers, eligible_verifiers
from tasks.ledger.open_task import SEAT_DECLINED, SEAT_DRAWN, Case
from tasks.ledger.records import Seat, WindowRecord, by_verifier_key
from tasks.ledger.reruns import RERUN_SEATS, agreed, needs_agreement, settle_rerun
from tasks.ledger.seats import (
    DELIVERY_PHASES,
    check_time,
    dismiss,
    has_fetched,
    is_jury,
    missed_by,
    seats_of,
    segments_to_check,
    with_seats,
)
from tasks.ledger.serving import (
    ENLARGED_JURY,
    first_jurors,
    is_enlarged,
    is_upheld,
    lose_unserved,
    wait_for_worker,
)
from tasks.ledger.settlement import (
    charge_of,
    check_terms,
    delivery_fees,
    fine_opening,
    fund_checks,
    give_back_demand,
    juror_fee,
    may_fund,
    pay_delivery,
    pay_for_lost_result,
    pay_jurors,
)
from tasks.proofs import Code, Finding, Opening, WindowProof, verdict_seal

__all__ = [
    "decline_seat",
    "delivery_salt",
    "demand",
    "on_draw_due",
    "on_window_due",
    "open_window",
    "prove",
    "reveal",
    "seal",
]

_SEALING: Final = (WindowPhase.SEALING, WindowPhase.JURY_SEALING, WindowPhase.DELIVERY_SEALING)
USED_MAX_TO_DECLINE: Final = 128
"""Machines and operators drawn for a window after which its seats cannot be declined: its record is bounded."""
WAIT_DOUBLINGS_MAX: Final = 5
"""A draw that is put off waits ``p.draw_blocks``, twice as long each time up to so many doublings."""
GAS_WAITS_MAX: Final = 5
"""Times that a draw is put off for gas that is dearer than its window pays. Then the check fund bears the rest."""
_REVEALING: Final = (WindowPhase.REVEALING, WindowPhase.JURY_REVEALING, WindowPhase.DELIVERY_REVEALING)


def prove(case: Case, proof: WindowProof) -> None:
    """Take the proof of the window under way; the beacon of a later block draws who checks it."""
    number = proof.window
    charge = charge_of(case, proof)
    terms = check_terms(case, number, charge, is_claim=proof.diverged is not None)
    window = WindowRecord(
        task=case.record.id,
        number=number,
        phase=WindowPhase.PROVED,
        reason=Reason.PROVED,
        proof=proof,
        worker=case.record.worker,
        height=case.scope.block.height,
        deadline_ms=0,
        draws=0,
        sampled=(),
        verifiers=(),
        opened=(),
        missed=(),
        unserved=0,
        jurors=(),
        used=(),
        vacant=(),
        charge=charge,
        fee=terms.fee,
        ripe=0,
        seen=(),
        rerun=(),
        chance=terms.audit.chance,
        wanted=terms.audit.verifiers,
        due=average_cost(terms.audit, terms.fee),
        reserve=0,
        gas_price=terms.gas_price,
    )
    case.begin_window(window)
    _schedule(case, window, window.height)
    renew_docket(case, window)
    begin_custody(case, window)


# Draws


def _schedule(case: Case, window: WindowRecord, since: int) -> None:
    """Have the beacon ``p.draw_blocks`` after the block at ``since`` draw for a window."""
    schedule_draw(case.state, Draw(since + case.parameters.draw_blocks, window.task, window.number))


def on_draw_due(case: Case, number: int, waits: int = 0) -> bool:
    """Draw for a window whose height has come, or for its custody, if it still waits for that.

    Tell whether machines were looked at: a lot that passes the window over looks at none. ``waits`` is how often
    the draw was put off.
    """
    if number >= WINDOW_SLOTS:
        on_custody_draw(case, number - WINDOW_SLOTS)
        return True
    if number >= case.record.next_window:  # its task has ended, or it is void and not proved again
        return False
    window = case.window(number)
    if window.deadline_ms or case.scope.block.height < _since(window) + case.parameters.draw_blocks:
        return False
    match window.phase:
        case WindowPhase.PROVED | WindowPhase.DOUBTED | WindowPhase.DEMANDED:
            return _draw(case, window, waits)
        case WindowPhase.SEALING | WindowPhase.JURY_SEALING if window.vacant:
            _fill_seats(case, window, waits)
            return True
    return False


def _since(window: WindowRecord) -> int:
    """Return the height as of which the register counts in the draw that a window waits for."""
    return window.vacant[-1] if window.vacant else window.height


def _seed(case: Case, window: WindowRecord) -> bytes:
    numbers = (window.number, window.draws, int(window.phase), *window.vacant)
    return draw_seed(b"verifier-draw", case.scope.block.beacon, window.task, *numbers)


def _draw(case: Case, window: WindowRecord, waits: int = 0) -> bool:
    """Draw for a window; tell whether machines were looked at for it."""
    if case.scope.block.height < window.height + case.parameters.draw_blocks:
        _schedule(case, window, window.height)
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
        _redraw(case, window, case.now + case.parameters.draw_retry_ms)
        return True
    if pool.operators_with_room < min(wanted, pool.operators):
        # Who fills the time of verifiers with other windows shall not choose who checks this one, nor void it.
        _put_off(case, window, waits)
        return True
    nodes = draw_verifiers(pool.seed, pool.with_room, wanted, _since(window), case.parameters)
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
            sampled=_sampled(window, seed, count), verifiers=seats,
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


def _sampled(window: WindowRecord, seed: bytes, count: int) -> tuple[int, ...]:
    """Draw ``count`` segments to run again; the one that is claimed to diverge is always among them.

    What was opened in an earlier round is public: only where nothing else is left it is run again.
    """
    segments = window.proof.segments
    others = range(segments if window.proof.diverged is None else segments - 1)
    fresh = [segment for segment in others if segment not in window.seen] or list(others)
    count -= segments - len(others)
    drawn = [fresh[at] for at in draw_segments(seed, len(fresh), count)] if count else []
    return (*drawn, *range(len(others), segments))


def _pass(case: Case, window: WindowRecord) -> None:
    """Let a window go that is not selected for audit: it is final after the time in which it can be challenged."""
    case.put_window(window._replace(chance=0))
    accept(case, window, Reason.NOT_DRAWN, WindowEvent.PASS)
    _tell_drawn(case, window, Reason.NOT_DRAWN)
    docket = load_docket(case.state, window.task, window.number)
    if docket.next_call < docket.seals:  # sealed before the draw
        go_on(case, window.number, Reason.NOT_DRAWN)


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
        scope.parent, case.record, window.worker, window.used, seed, case.now, parameters, _since(window)
    )
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
    at = _my_seat(window, sender)
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
    _schedule(case, window, vacant[-1])
    case.scope.emit(SEAT_DECLINED(window.task, number, sender))


def _seal_ms(case: Case, window: WindowRecord) -> int:
    """Return the time to seal. An enlarged jury has more: a line that is cut for minutes shall cost no bond."""
    extra_ms = case.parameters.opening_extra_ms if is_jury(window) and is_enlarged(window) else 0
    return check_time(case, window).total_ms + extra_ms


def _fill_seats(case: Case, window: WindowRecord, waits: int = 0) -> None:
    """Draw machines for the seats that were declined; those that stay have the new ones' time too."""
    parameters = case.parameters
    pool = _pool(case, window)
    wanted = min(len(window.vacant), pool.operators)
    if pool.operators_with_room < wanted:
        _put_off(case, window, waits)
        return
    if not wanted and not seats_of(window):
        window = window._replace(vacant=())
        case.put_window(window)
        _redraw(case, window, case.now + parameters.draw_retry_ms)
        return
    nodes = draw_verifiers(pool.seed, pool.with_room, wanted, _since(window), parameters)
    seats = (*seats_of(window), *(Seat(node.address, b"", None) for node in nodes))
    _ask(case, with_seats(window, seats), nodes)
    if all(seat.seal for seat in seats):
        _close_seals(case, case.window(window.number), Reason.ALL_SEALED)


def _parties(nodes: Sequence[registry.NodeRecord]) -> list[bytes]:
    """Return machines and the accounts behind them, each once: they have one seat of a window in all."""
    return list(dict.fromkeys(party for node in nodes for party in node.parties))


def _wanted(case: Case, window: WindowRecord) -> int:
    if is_jury(window):
        if is_enlarged(window):
            return ENLARGED_JURY - len(window.jurors)
        return RERUN_SEATS if window.rerun else case.parameters.jury
    return window.wanted


def _redraw(case: Case, window: WindowRecord, deadline_ms: int) -> None:
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
        _end_demand(case, window, WindowEvent.FINALISE, Reason.DISPUTE_UNRESOLVED)
    elif window.rerun:
        settle_rerun(case, window.number, ())
    elif is_enlarged(window) and by_jury:  # nobody is left to ask: as before the bond was at stake
        void_window(case, window.number, WindowEvent.REJECT, Reason.WORK_REJECTED, blamed=window.worker)
    elif by_jury:
        void_window(case, window.number, WindowEvent.DROP, reason, blamed=b"")
    else:
        settle_ended(case, window.number)
        if case.window(window.number).phase != WindowPhase.VOID:
            fail_unchecked(case, case.window(window.number))


# Seals and reveals


def _my_seat(window: WindowRecord, sender: bytes) -> int:
    for at, seat in enumerate(seats_of(window)):
        if seat.address == sender:
            return at
    raise NotYours("the sender is not drawn to check this window")


def seal(case: Case, number: int, sender: bytes, verdict: bytes) -> None:
    """Take a verifier's sealed verdict. Raises WrongPhase, NotYours, AlreadySealed."""
    window = case.window(number)
    if window.phase not in _SEALING:
        raise WrongPhase(window.phase.name.lower())
    at = _my_seat(window, sender)
    seats = list(seats_of(window))
    if seats[at].seal:
        raise AlreadySealed(number)
    seats[at] = seats[at]._replace(seal=verdict)
    settle_owed(case.state, sender, check_time(case, window).owed_ms)
    case.put_window(with_seats(window, seats))
    if all(seat.seal for seat in seats) and not window.vacant:
        _close_seals(case, case.window(number), Reason.ALL_SEALED)


def reveal(case: Case, number: int, sender: bytes, findings: tuple[Finding, ...], nonce: bytes) -> None:
    """Take a verifier's findings, which must be those it sealed.

    Raises WrongPhase, NotYours, AlreadyRevealed, BadEvidence.
    """
    window = case.window(number)
    if window.phase not in _REVEALING:
        raise WrongPhase(window.phase.name.lower())
    at = _my_seat(window, sender)
    seats = list(seats_of(window))
    if seats[at].findings is not None:
        raise AlreadyRevealed(number)
    if tuple(finding.segment for finding in findings) != segments_to_check(window):
        raise BadEvidence("the findings are about other segments than the drawn ones")
    if verdict_seal(window.task, number, sender, findings, nonce) != seats[at].seal:
        raise BadEvidence("the findings are not the sealed ones")
    is_broken = any(finding.code == Code.BROKEN for finding in findings)
    proof = proof_in(case, window)
    if is_broken and proof is None:
        raise BadEvidence("nobody has shown that the leaves do not fit")
    seats[at] = seats[at]._replace(findings=findings)
    dismiss(case, window, seats[at : at + 1])
    case.put_window(with_seats(window, seats))
    if window.phase == WindowPhase.JURY_REVEALING or proof is not None:
        # That may void as many windows as are open: the end of the block does it, within its budget.
        if all(seat.findings is not None for seat in seats):
            case.put_window(case.window(number)._replace(deadline_ms=case.now))
    elif all(seat.findings is not None for seat in seats):
        _close_reveals(case, case.window(number), Reason.ALL_REVEALED)


def _fine_silent(case: Case, window: WindowRecord, silent: Sequence[Seat]) -> None:
    fine = share(window.fee, case.parameters.verifier_fine_bps)
    for seat in silent:
        taken = bounded_fine(case.state, seat.address, fine, case.now, case.parameters)
        registry.fine_node(
            case.state, seat.address, taken, case.scope.emit, case.scope.block.height, case.parameters
        )
        reputation.mark_failure(case.state, seat.address, case.now, case.scope.emit, case.parameters)
    dismiss(case, window, silent)


def _close_seals(case: Case, window: WindowRecord, reason: Reason) -> None:
    seats = seats_of(window)
    _fine_silent(case, window, [seat for seat in seats if not seat.seal])
    window = with_seats(window, [seat for seat in seats if seat.seal])
    case.put_window(window)
    if not seats_of(window):
        _redraw(case, window, case.now + 1)
        return
    case.advance_window(
        window.number, WindowEvent.CLOSE_SEALS, reason, deadline_ms=case.now + case.parameters.reveal_ms
    )


def _close_reveals(case: Case, window: WindowRecord, reason: Reason) -> None:
    seats = seats_of(window)
    _fine_silent(case, window, [seat for seat in seats if seat.findings is None])
    window = with_seats(window, [seat for seat in seats if seat.findings is not None])
    case.put_window(window)
    if proof_in(case, window) is not None:
        settle_ended(case, window.number)
        return
    if not seats_of(window):
        _redraw(case, window, case.now + 1)
    elif window.phase == WindowPhase.DELIVERY_REVEALING:
        _judge_delivery(case, window)
    elif is_jury(window):
        _judge(case, window)
    else:
        case.advance_window(
            window.number, WindowEvent.CLOSE_REVEALS, reason, deadline_ms=case.now + case.parameters.reveal_ms
        )


# The worker's opening and the verdict


def open_window(case: Case, number: int, sender: bytes, openings: tuple[Opening, ...]) -> None:
    """Take the worker's opening of the sampled leaves and compare it with what the verifiers found.

    Each verifier that computed something else has a game of its own. Raises WrongPhase, NotYours, BadEvidence.
    """
    window = case.window(number)
    if window.phase != WindowPhase.OPENING:
        raise WrongPhase(window.phase.name.lower())
    if sender != window.worker:
        raise NotYours("the sender is not the window's worker")
    if proof_in(case, window) is not None:
        raise WrongPhase("a lie in this window is proven")
    if tuple(opening.leaf.segment for opening in openings) != window.sampled:
        raise BadEvidence("other segments than the sampled ones")
    broken = [opening.leaf.segment for opening in openings if not check_leaf(case, window, opening)]
    if broken:
        note_break(case, number, sender, broken[0])
        return
    window = window._replace(
        opened=tuple(opened_of(opening) for opening in openings), missed=missed_by(window.verifiers)
    )
    case.put_window(window)
    open_games(case, window, window.verifiers)
    go_on(case, number, Reason.VERDICTS_AGREE)


def _judge(case: Case, window: WindowRecord) -> None:
    """Have the jury decide whether what was missed could be fetched; games decide what was computed."""
    if window.rerun:
        found = agreed(window) if needs_agreement(case, window) else ()
        if found is None:
            _redraw(case, window, case.now + 1)
        else:
            settle_rerun(case, window.number, found)
        return
    votes = [has_fetched(window, seat) for seat in window.jurors]
    if 2 * sum(votes) == len(votes) and not is_enlarged(window):
        _redraw(case, window, case.now + 1)
        return
    upheld = is_upheld(window, sum(votes))
    if not upheld and not is_enlarged(window):
        wait_for_worker(case, window)
    elif upheld:
        _uphold(case, window)
    else:
        _reject_unserved(case, window)


def _pay_jury(case: Case, window: WindowRecord, blamed: Sequence[bytes], *, upheld: bool) -> None:
    """Pay the jurors that were right: whoever is ``blamed`` pays the first jury, the worker the one it asked for.

    A verifier whose verdict did not stand earns no fee. Nobody is marked: whoever serves a blob chooses whom.
    """
    right = [seat.address for seat in window.jurors if has_fetched(window, seat) == upheld]
    stood = tuple(seat for seat in window.verifiers if has_fetched(window, seat) == upheld)
    window = window._replace(verifiers=stood)
    case.put_window(window)
    first = [address for address in right if address in (seat.address for seat in first_jurors(window))]
    pay_jurors(case, window, first, blamed)
    others = [address for address in right if address not in first]
    if others:
        pay_jurors(case, case.window(window.number), others, (window.worker,))


def _uphold(case: Case, window: WindowRecord) -> None:
    """Go on with a window whose missed segments could be fetched: with games of jurors that differ, if any."""
    number = window.number
    _pay_jury(case, window, _doubted(case, window), upheld=True)
    window = case.window(number)._replace(unserved=0)
    case.put_window(window)
    if window.opened:
        open_games(case, window, window.jurors)
    elif not accuse_silent(case, window, window.jurors) and not _has_games(case, window):
        void_window(case, number, WindowEvent.REJECT, Reason.NOT_OPENED, blamed=window.worker)
        return
    go_on(case, number, Reason.JURY_UPHELD)


def _has_games(case: Case, window: WindowRecord) -> bool:
    docket = load_docket(case.state, window.task, window.number)
    return docket.games > docket.first_game


def _reject_unserved(case: Case, window: WindowRecord) -> None:
    """Take the bond of a worker that serves nobody what was missed."""
    _pay_jury(case, window, (window.worker,), upheld=False)
    lose_unserved(case, window.number)


def _doubted(case: Case, window: WindowRecord) -> tuple[bytes, ...]:
    """Return who is to blame that a jury was asked for a blob that it could fetch: verifiers, worker, or nobody.

    Nobody can tell whether a verifier or the worker made that up: the one that such arguments follow is taken to
    be. New ones, and those whom they never follow, pay for none.
    """
    doubting = [seat.address for seat in window.verifiers if missed_by([seat])]
    theirs = [reputation.doubts_of(case.state, address) for address in doubting]
    its = reputation.doubts_of(case.state, window.worker)
    for address in (*doubting, window.worker):
        reputation.mark_doubt(case.state, address)
    most = max(theirs, default=0)
    if its > most:
        return (window.worker,)
    return tuple(address for address, doubts in zip(doubting, theirs, strict=True) if doubts == most > its)


# A result that its requester cannot have


def demand(case: Case, sender: bytes, amount: int) -> None:
    """Have drawn machines try to fetch the result of an ended task, as its requester cannot.

    It locks their fees, which return if they cannot fetch it either. Each machine that can then has a
    copy. Raises WrongPhase where nobody answers for the result any more, PaymentMissing.
    """
    record = case.record
    if case.parameters.custody_copies:  # custodians answer demands
        raise WrongPhase("custody")
    # Its worker's bond waits for what was asked in time, not for ever new demands.
    is_late = case.now > record.changed_ms + case.parameters.bond_release_ms
    if record.phase not in ENDED or not record.final_windows or not record.deadline_ms or is_late:
        raise WrongPhase(record.phase.name.lower())
    window = case.window(record.final_windows - 1)
    if window.phase != WindowPhase.FINAL or not case.vault.held(Pool.BOND, window.worker):
        raise WrongPhase(window.phase.name.lower())
    due = delivery_fees(window, case.parameters)
    if amount < due:
        raise PaymentMissing(due=due, got=amount)
    case.vault.lock(Pool.VERIFICATION, sender, amount, Purpose.DEMAND)
    case.advance_window(
        window.number, WindowEvent.DEMAND, Reason.RESULT_DEMANDED, deadline_ms=case.now + 1, draws=0,
        height=case.scope.block.height, jurors=(), used=(),
    )  # fmt: skip


def delivery_salt(window: WindowRecord) -> bytes:
    """Return the salt of a drawn machine's ``delivery_digest``, while verdicts are sealed.

    Nobody knows it before the draw: who did not keep the result then cannot have the digest.
    """
    return digest(
        b"delivery-salt",
        encode([window.task, window.number, window.height, [seat.address for seat in window.jurors]]),
    )


def _judge_delivery(case: Case, window: WindowRecord) -> None:
    found = Counter(
        (finding.code, finding.work_digest, finding.state_root_after)
        for seat in window.jurors
        for finding in seat.findings or ()
    )
    outcome, count = found.most_common(1)[0]
    code, _, root = outcome
    if 2 * count <= len(window.jurors) or (code != Code.UNAVAILABLE and root != window.proof.result_root):
        _redraw(case, window, case.now + 1)
        return
    right = [
        seat.address
        for seat in window.jurors
        for finding in seat.findings or ()
        if (finding.code, finding.work_digest, finding.state_root_after) == outcome
    ]
    if code != Code.UNAVAILABLE:
        pay_delivery(case, window, right, blamed=())
        _end_demand(case, window, WindowEvent.AGREE, Reason.RESULT_DELIVERED)
        return
    pay_delivery(case, window, right, blamed=(window.worker,))
    pay_for_lost_result(case, window)
    reputation.mark_failure(case.state, window.worker, case.now, case.scope.emit, case.parameters)
    _end_demand(case, window, WindowEvent.REJECT, Reason.RESULT_LOST)


def _end_demand(case: Case, window: WindowRecord, event: WindowEvent, reason: Reason) -> None:
    dismiss(case, window, window.jurors)
    give_back_demand(case)
    case.advance_window(window.number, event, reason)


def on_window_due(case: Case, number: int) -> None:
    """Do what the passed deadline of the window's phase demands."""
    window = case.window(number)._replace(deadline_ms=0)
    case.put_window(window)
    if window.phase in SETTLES and proof_in(case, window) is not None:
        settle_ended(case, number)
        return
    match window.phase:
        case WindowPhase.DOUBTED if window.unserved == 1:  # its worker had its time
            _reject_unserved(case, window)
        case WindowPhase.PROVED | WindowPhase.DOUBTED | WindowPhase.DEMANDED:
            _draw(case, window)
        case WindowPhase.DISPUTED:
            on_disputes_due(case, number)
        case WindowPhase.SEALING | WindowPhase.JURY_SEALING if window.vacant:
            _fill_seats(case, window)
        case WindowPhase.SEALING | WindowPhase.JURY_SEALING | WindowPhase.DELIVERY_SEALING:
            _close_seals(case, window, Reason.SEAL_TIMEOUT)
        case WindowPhase.REVEALING | WindowPhase.JURY_REVEALING | WindowPhase.DELIVERY_REVEALING:
            _close_reveals(case, window, Reason.REVEAL_TIMEOUT)
        case WindowPhase.OPENING if window.reason != Reason.OPENING_LATE:
            fine_opening(case, window)
            extra_ms = case.parameters.opening_extra_ms
            if is_contested(case, window):
                extra_ms = max(extra_ms, case.parameters.dispute_resume_ms)
            case.advance_window(number, WindowEvent.EXTEND, Reason.OPENING_LATE, deadline_ms=case.now + extra_ms)
        case WindowPhase.OPENING:
            on_not_opened(case, number)
        case WindowPhase.ACCEPTED:
            finalise(case, window)
        case phase:
            raise AssertionError(f"window phase {phase.name} has no deadline")
