"""A window from its proof to its verdicts: draws, seals, reveals, the worker's opening, jury (market.md 7).

A verifier that computed something else has a game (``games``). One that could not fetch what it needed does not
decide: a jury of fresh verifiers tries to fetch and re-run the segments in question (``serving``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from billing.errors import PaymentMissing
from billing.escrow import Pool, Purpose
from billing.prices import share
from state.primitives.codec import encode
from state.primitives.hashing import digest
from tasks.errors import (
    AlreadyRevealed,
    AlreadySealed,
    BadEvidence,
    NotYours,
    WrongPhase,
)
from tasks.ledger import registry, reputation
from tasks.ledger.audits import average_cost
from tasks.ledger.capacity import bounded_fine, settle_owed
from tasks.ledger.custody import begin_custody, on_custody_draw
from tasks.ledger.deadlines import WINDOW_SLOTS
from tasks.ledger.disputes import load_docket
from tasks.ledger.dockets import proof_in, renew_docket
from tasks.ledger.endings import finalise
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
from tasks.ledger.lifecycle import ENDED, Reason, WindowEvent, WindowPhase
from tasks.ledger.open_task import Case
from tasks.ledger.records import Seat, WindowRecord
from tasks.ledger.reruns import agreed, needs_agreement, settle_rerun
from tasks.ledger.seats import (
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
    first_jurors,
    is_enlarged,
    is_upheld,
    lose_unserved,
    wait_for_worker,
)
from tasks.ledger.settlement import (
    audited_charge,
    charge_of,
    check_terms,
    delivery_fees,
    fine_opening,
    pay_delivery,
    pay_for_lost_result,
    pay_jurors,
)
from tasks.ledger.window_draws import (
    draw_seats,
    drawn_since,
    end_demand,
    fill_seats,
    my_seat,
    redraw,
    schedule_window,
)
from tasks.proofs import Code, Finding, Opening, WindowProof, verdict_seal

__all__ = [
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
_REVEALING: Final = (WindowPhase.REVEALING, WindowPhase.JURY_REVEALING, WindowPhase.DELIVERY_REVEALING)


def prove(case: Case, proof: WindowProof) -> None:
    """Take the proof of the window under way; the beacon of a later block draws who checks it."""
    number = proof.window
    charge = charge_of(case, proof)
    audited = audited_charge(case.spec, proof, charge)
    terms = check_terms(case, number, audited, is_claim=proof.diverged is not None)
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
    schedule_window(case, window, window.height)
    renew_docket(case, window)
    begin_custody(case, window)


def _fill(case: Case, window: WindowRecord, waits: int = 0) -> None:
    if fill_seats(case, window, waits):
        _close_seals(case, case.window(window.number), Reason.ALL_SEALED)


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
    if window.deadline_ms or case.scope.block.height < drawn_since(window) + case.parameters.draw_blocks:
        return False
    match window.phase:
        case WindowPhase.PROVED | WindowPhase.DOUBTED | WindowPhase.DEMANDED:
            return draw_seats(case, window, waits)
        case WindowPhase.SEALING | WindowPhase.JURY_SEALING if window.vacant:
            _fill(case, window, waits)
            return True
    return False


# Seals and reveals


def seal(case: Case, number: int, sender: bytes, verdict: bytes) -> None:
    """Take a verifier's sealed verdict. Raises WrongPhase, NotYours, AlreadySealed."""
    window = case.window(number)
    if window.phase not in _SEALING:
        raise WrongPhase(window.phase.name.lower())
    at = my_seat(window, sender)
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
    at = my_seat(window, sender)
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
        redraw(case, window, case.now + 1)
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
        redraw(case, window, case.now + 1)
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
            redraw(case, window, case.now + 1)
        else:
            settle_rerun(case, window.number, found)
        return
    votes = [has_fetched(window, seat) for seat in window.jurors]
    if 2 * sum(votes) == len(votes) and not is_enlarged(window):
        redraw(case, window, case.now + 1)
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
        redraw(case, window, case.now + 1)
        return
    right = [
        seat.address
        for seat in window.jurors
        for finding in seat.findings or ()
        if (finding.code, finding.work_digest, finding.state_root_after) == outcome
    ]
    if code != Code.UNAVAILABLE:
        pay_delivery(case, window, right, blamed=())
        end_demand(case, window, WindowEvent.AGREE, Reason.RESULT_DELIVERED)
        return
    pay_delivery(case, window, right, blamed=(window.worker,))
    pay_for_lost_result(case, window)
    reputation.mark_failure(case.state, window.worker, case.now, case.scope.emit, case.parameters)
    end_demand(case, window, WindowEvent.REJECT, Reason.RESULT_LOST)


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
            draw_seats(case, window)
        case WindowPhase.DISPUTED:
            on_disputes_due(case, number)
        case WindowPhase.SEALING | WindowPhase.JURY_SEALING if window.vacant:
            _fill(case, window)
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
