"""A window from its proof to its final payment: draws, seals, reveals, the worker's opening, jury (market.md 7).

One verifier that computed something else, or could not fetch what it needed, does not decide: a jury of fresh
verifiers re-runs the one segment in question, and its majority does. What a jury finds is no objective proof, so
it costs the loser its pay, never its bond. A bisection game will take the jury's place after DISPUTED.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from billing.errors import PaymentMissing
from billing.escrow import Pool, Purpose
from billing.prices import share
from state.primitives.codec import encode
from state.primitives.hashing import digest
from tasks.errors import AlreadyRevealed, AlreadySealed, BadEvidence, NotYours, WrongPhase
from tasks.ledger import registry
from tasks.ledger.lifecycle import ENDED, Event, Phase, Reason, WindowEvent, WindowPhase
from tasks.ledger.matching import draw_seed, draw_segments, draw_verifiers, eligible_verifiers
from tasks.ledger.open_task import Case
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.progress import arm_running, exclude, finish, give_up_idle, lose_worker, wind_up
from tasks.ledger.records import Opened, Seat, WindowRecord, by_verifier_key
from tasks.ledger.settlement import (
    charge_of,
    check_fee,
    delivery_fees,
    forfeit_hold,
    give_back_demand,
    pay_delivery,
    pay_final_window,
    pay_for_lost_result,
    pay_jurors,
    pay_void_verifiers,
)
from tasks.proofs import Code, Finding, Opening, WindowProof, check_opening, verdict_seal
from tasks.spec import JobSpec

__all__ = [
    "DELIVERY_PHASES",
    "SealTime",
    "agrees",
    "delivery_salt",
    "demand",
    "on_window_due",
    "open_window",
    "prove",
    "reveal",
    "seal",
    "seal_time",
]

DELIVERY_PHASES: Final = (WindowPhase.DEMANDED, WindowPhase.DELIVERY_SEALING, WindowPhase.DELIVERY_REVEALING)
_JURY_PHASES: Final = (
    WindowPhase.DISPUTED, WindowPhase.JURY_SEALING, WindowPhase.JURY_REVEALING, *DELIVERY_PHASES,
)  # fmt: skip
_SEALING: Final = (WindowPhase.SEALING, WindowPhase.JURY_SEALING, WindowPhase.DELIVERY_SEALING)
_REVEALING: Final = (WindowPhase.REVEALING, WindowPhase.JURY_REVEALING, WindowPhase.DELIVERY_REVEALING)


class SealTime(NamedTuple):
    """The time from a draw to the seals: for fetching the states, and for everything else."""

    fetch_ms: int
    run_ms: int


def seal_time(spec: JobSpec, segments: int, parameters: TaskParameters) -> SealTime:
    """Return how long a verifier of ``segments`` segments has.

    It fetches the state before each of them and the one after the window; a state is as large as the job's model.
    """
    states_bytes = (segments + 1) * spec.plan().state_limit_bytes
    run_ms = parameters.seal_slack * segments * spec.schedule.segment_steps * spec.step_ms
    return SealTime(1000 * states_bytes // parameters.seal_bytes_per_s, max(parameters.seal_ms_min, run_ms))


def agrees(finding: Finding, opened: Opened) -> bool:
    """Tell whether a verifier found for a segment what the worker committed to."""
    return (
        finding.code == Code.COMPUTED
        and finding.probe_root == opened.probe_root
        and finding.state_root_after == opened.state_root_after
    )


def prove(case: Case, proof: WindowProof) -> None:
    """Take the proof of the window under way; the beacon of a later block draws who checks it."""
    number = proof.window
    charge = charge_of(case, number)
    window = WindowRecord(
        task=case.record.id,
        number=number,
        phase=WindowPhase.PROVED,
        reason=Reason.PROVED,
        proof=proof,
        worker=case.record.worker,
        height=case.scope.block.height,
        deadline_ms=case.now + 1,
        draws=0,
        sampled=(),
        verifiers=(),
        opened=(),
        disputed=-1,
        jurors=(),
        used=(),
        charge=charge,
        fee=check_fee(charge, case.parameters),
        ripe=0,
    )
    case.begin_window(window)


def _is_jury(window: WindowRecord) -> bool:
    return window.phase in _JURY_PHASES


def _seats(window: WindowRecord) -> tuple[Seat, ...]:
    return window.jurors if _is_jury(window) else window.verifiers


def _with_seats(window: WindowRecord, seats: Sequence[Seat]) -> WindowRecord:
    if _is_jury(window):
        return window._replace(jurors=tuple(seats))
    return window._replace(verifiers=tuple(seats))


def _segments_to_check(window: WindowRecord) -> tuple[int, ...]:
    if window.phase in DELIVERY_PHASES:
        return (window.proof.segments - 1,)
    return (window.disputed,) if _is_jury(window) else window.sampled


def _dismiss(case: Case, window: WindowRecord, seats: Sequence[Seat]) -> None:
    for seat in seats:
        case.state.delete(by_verifier_key(seat.address, window.task, window.number))


# Draws


def _draw(case: Case, window: WindowRecord) -> None:
    parameters, scope = case.parameters, case.scope
    if scope.block.height < window.height + parameters.draw_blocks:
        case.put_window(window._replace(deadline_ms=case.now + 1))
        return
    seed = draw_seed(
        b"verifier-draw", scope.block.beacon, window.task, window.number, window.draws, int(window.phase)
    )
    # Of the register as it was before the block: one unit more of bond would move the draw to any other node.
    pool = eligible_verifiers(scope.parent, case.record, window.worker, window.used, seed, case.now, parameters)
    count = min(_wanted(case, window), len({node.profile.operator for node in pool}))
    if _is_jury(window) and count % 2 == 0:
        count -= 1  # an even jury could tie
    if count <= 0:
        _redraw(case, window, case.now + parameters.draw_retry_ms)
        return
    nodes = draw_verifiers(seed, pool, count)
    drawn = [node.address for node in nodes]
    seats = tuple(Seat(address, b"", None) for address in drawn)
    if window.phase == WindowPhase.PROVED:
        sampled = draw_segments(seed, window.proof.segments, parameters.samples)
        window = case.advance_window(
            window.number, WindowEvent.DRAW, Reason.VERIFIERS_DRAWN, sampled=sampled, verifiers=seats
        )
        if case.record.phase == Phase.OUTPUT and window.number + 1 == case.record.next_window:
            case.advance(Event.DRAWN, Reason.VERIFIERS_DRAWN)
    else:
        window = case.advance_window(window.number, WindowEvent.DRAW, Reason.VERIFIERS_DRAWN, jurors=seats)
    segments = 0 if window.phase in DELIVERY_PHASES else len(_segments_to_check(window))
    time = seal_time(case.spec, segments, parameters)
    deadline_ms = case.now + time.fetch_ms + time.run_ms
    case.put_window(window._replace(deadline_ms=deadline_ms, used=(*window.used, *_parties(nodes))))
    for address in drawn:
        case.state.put(by_verifier_key(address, window.task, window.number), b"\x01")


def _parties(nodes: Sequence[registry.NodeRecord]) -> list[bytes]:
    """Return machines and their operators, each once: an operator has one seat of a window, whatever it is for."""
    return list(dict.fromkeys(party for node in nodes for party in (node.address, node.profile.operator)))


def _wanted(case: Case, window: WindowRecord) -> int:
    parameters = case.parameters
    if _is_jury(window):
        return parameters.jury
    node = registry.load_node(case.state, window.worker)
    is_new = registry.is_new(node, window.charge, parameters)
    return parameters.verifiers_new if is_new else parameters.verifiers


def _redraw(case: Case, window: WindowRecord, deadline_ms: int) -> None:
    """Draw again, or give up: a window that nobody could check is not paid, and nobody is blamed for it."""
    draws = window.draws + 1
    is_jury = _is_jury(window)
    reason = Reason.DISPUTE_UNRESOLVED if is_jury else Reason.NO_VERIFIER
    if draws < case.parameters.draws_max:
        seats: dict[str, Any] = {"jurors": ()} if is_jury else {"verifiers": ()}
        case.advance_window(
            window.number, WindowEvent.REDRAW, reason, deadline_ms=deadline_ms, draws=draws,
            height=case.scope.block.height, **seats,
        )  # fmt: skip
    elif window.phase in DELIVERY_PHASES:
        _end_demand(case, window, WindowEvent.FINALISE, Reason.DISPUTE_UNRESOLVED)
    elif is_jury:
        _reject(case, window, WindowEvent.DROP, reason, blamed=b"")
    else:
        _fail_unchecked(case, window)


# Seals and reveals


def _my_seat(window: WindowRecord, sender: bytes) -> int:
    for at, seat in enumerate(_seats(window)):
        if seat.address == sender:
            return at
    raise NotYours("the sender is not drawn to check this window")


def seal(case: Case, number: int, sender: bytes, verdict: bytes) -> None:
    """Take a verifier's sealed verdict. Raises WrongPhase, NotYours, AlreadySealed."""
    window = case.window(number)
    if window.phase not in _SEALING:
        raise WrongPhase(window.phase.name.lower())
    at = _my_seat(window, sender)
    seats = list(_seats(window))
    if seats[at].seal:
        raise AlreadySealed(number)
    seats[at] = seats[at]._replace(seal=verdict)
    case.put_window(_with_seats(window, seats))
    if all(seat.seal for seat in seats):
        _close_seals(case, case.window(number), Reason.ALL_SEALED)


def reveal(case: Case, number: int, sender: bytes, findings: tuple[Finding, ...], nonce: bytes) -> None:
    """Take a verifier's findings, which must be those it sealed.

    Raises WrongPhase, NotYours, AlreadyRevealed, BadEvidence.
    """
    window = case.window(number)
    if window.phase not in _REVEALING:
        raise WrongPhase(window.phase.name.lower())
    at = _my_seat(window, sender)
    seats = list(_seats(window))
    if seats[at].findings is not None:
        raise AlreadyRevealed(number)
    if tuple(finding.segment for finding in findings) != _segments_to_check(window):
        raise BadEvidence("the findings are about other segments than the drawn ones")
    if verdict_seal(window.task, number, sender, findings, nonce) != seats[at].seal:
        raise BadEvidence("the findings are not the sealed ones")
    seats[at] = seats[at]._replace(findings=findings)
    _dismiss(case, window, seats[at : at + 1])
    case.put_window(_with_seats(window, seats))
    if all(seat.findings is not None for seat in seats):
        _close_reveals(case, case.window(number), Reason.ALL_REVEALED)


def _fine_silent(case: Case, window: WindowRecord, silent: Sequence[Seat]) -> None:
    fine = share(window.fee, case.parameters.verifier_fine_bps)
    for seat in silent:
        registry.fine_node(case.state, seat.address, fine, case.scope.emit, case.scope.block.height)
        registry.mark_failure(case.state, seat.address, case.now, case.scope.emit, case.parameters)
    _dismiss(case, window, silent)


def _close_seals(case: Case, window: WindowRecord, reason: Reason) -> None:
    seats = _seats(window)
    _fine_silent(case, window, [seat for seat in seats if not seat.seal])
    window = _with_seats(window, [seat for seat in seats if seat.seal])
    case.put_window(window)
    if not _seats(window):
        _redraw(case, window, case.now + 1)
        return
    case.advance_window(
        window.number, WindowEvent.CLOSE_SEALS, reason, deadline_ms=case.now + case.parameters.reveal_ms
    )


def _close_reveals(case: Case, window: WindowRecord, reason: Reason) -> None:
    seats = _seats(window)
    _fine_silent(case, window, [seat for seat in seats if seat.findings is None])
    window = _with_seats(window, [seat for seat in seats if seat.findings is not None])
    case.put_window(window)
    if not _seats(window):
        _redraw(case, window, case.now + 1)
    elif window.phase == WindowPhase.DELIVERY_REVEALING:
        _judge_delivery(case, window)
    elif _is_jury(window):
        _judge(case, window)
    else:
        case.advance_window(
            window.number, WindowEvent.CLOSE_REVEALS, reason, deadline_ms=case.now + case.parameters.reveal_ms
        )


# The worker's opening and the verdict


def open_window(case: Case, number: int, sender: bytes, openings: tuple[Opening, ...]) -> None:
    """Take the worker's opening of the sampled leaves and compare it with what the verifiers found.

    Raises WrongPhase, NotYours, BadEvidence.
    """
    window = case.window(number)
    if window.phase != WindowPhase.OPENING:
        raise WrongPhase(window.phase.name.lower())
    if sender != window.worker:
        raise NotYours("the sender is not the window's worker")
    if tuple(opening.leaf.segment for opening in openings) != window.sampled:
        raise BadEvidence("other segments than the sampled ones")
    for opening in openings:
        _check_leaf(case, window, opening)
    opened = tuple(
        Opened(opening.leaf.segment, opening.probe_root, opening.leaf.state_root_after) for opening in openings
    )
    window = window._replace(opened=opened)
    case.put_window(window)
    differing = [
        result.segment
        for seat in window.verifiers
        for finding, result in zip(seat.findings or (), opened, strict=True)
        if not agrees(finding, result)
    ]
    if differing:
        case.advance_window(
            number, WindowEvent.MISMATCH, Reason.VERDICTS_DIFFER, deadline_ms=case.now + 1,
            disputed=min(differing), draws=0, height=case.scope.block.height,
        )  # fmt: skip
    else:
        _accept(case, window, Reason.VERDICTS_AGREE)


def _check_leaf(case: Case, window: WindowRecord, opening: Opening) -> None:
    proof, leaf = window.proof, opening.leaf
    if not check_opening(proof, opening):
        raise BadEvidence("the opening is not under the window's commitments")
    if (leaf.step_from, leaf.step_to) != case.spec.segment_range(window.number, leaf.segment):
        raise BadEvidence("the leaf covers other steps than its segment")
    if leaf.segment == 0 and leaf.state_root_before != proof.state_root_in:
        raise BadEvidence("the first segment does not start where the window starts")
    if leaf.segment == proof.segments - 1 and leaf.state_root_after != proof.state_root_out:
        raise BadEvidence("the last segment does not end where the window ends")


def _accept(case: Case, window: WindowRecord, reason: Reason) -> None:
    case.advance_window(window.number, WindowEvent.AGREE, reason, deadline_ms=case.now + case.parameters.final_ms)


def _judge(case: Case, window: WindowRecord) -> None:
    opened = next(result for result in window.opened if result.segment == window.disputed)

    def finding_of(seat: Seat) -> Finding | None:
        return next((finding for finding in seat.findings or () if finding.segment == opened.segment), None)

    def upholds(seat: Seat) -> bool:
        finding = finding_of(seat)
        return finding is not None and agrees(finding, opened)

    def contradicts(seat: Seat) -> bool:
        finding = finding_of(seat)
        return finding is not None and finding.code == Code.COMPUTED and not agrees(finding, opened)

    votes = [upholds(seat) for seat in window.jurors]
    if 2 * sum(votes) == len(votes):
        _redraw(case, window, case.now + 1)
        return
    upheld = 2 * sum(votes) > len(votes)
    right = [seat.address for seat, vote in zip(window.jurors, votes, strict=True) if vote == upheld]
    # A verdict that did not stand earns no fee. It counts against its author, whichever side it was on, where
    # results differ; but not where some could fetch what others could not, for whoever serves it chooses whom.
    mistaken = contradicts if upheld else upholds
    if upheld or 2 * sum(map(contradicts, window.jurors)) > len(votes):
        for seat in (*window.verifiers, *window.jurors):
            if mistaken(seat):
                registry.mark_failure(case.state, seat.address, case.now, case.scope.emit, case.parameters)
    blamed = _disputants(case, window, finding_of, contradicts) if upheld else (window.worker,)
    stood = tuple(seat for seat in window.verifiers if upholds(seat) == upheld)
    window = window._replace(verifiers=stood)
    case.put_window(window)
    pay_jurors(case, window, right, blamed)
    if upheld:
        _accept(case, window, Reason.JURY_UPHELD)
    else:
        _reject(case, window, WindowEvent.REJECT, Reason.WORK_REJECTED, blamed=window.worker)


def _disputants(
    case: Case, window: WindowRecord, finding_of: Callable[[Seat], Finding | None],
    contradicts: Callable[[Seat], bool],
) -> tuple[bytes, ...]:  # fmt: skip
    """Return who is to blame that a jury had to uphold a window: verifiers, its worker, or nobody.

    A verifier that computed something else was wrong. Of one that could not fetch what the jury could, nobody can
    tell whether it or the worker made that up: the one that such arguments follow is taken to be. New ones, and
    those whom they never follow, pay for none.
    """
    wrong = tuple(seat.address for seat in window.verifiers if contradicts(seat))
    if wrong:
        return wrong
    doubting = [
        seat.address
        for seat in window.verifiers
        if (finding := finding_of(seat)) is not None and finding.code == Code.UNAVAILABLE
    ]
    theirs = [registry.doubts_of(case.state, address) for address in doubting]
    its = registry.doubts_of(case.state, window.worker)
    for address in (*doubting, window.worker):
        registry.mark_doubt(case.state, address)
    most = max(theirs, default=0)
    if its > most:
        return (window.worker,)
    return tuple(address for address, doubts in zip(doubting, theirs, strict=True) if doubts == most > its)


# A result that its requester cannot have


def demand(case: Case, sender: bytes, amount: int) -> None:
    """Have drawn machines try to fetch the result of an ended task, as its requester cannot.

    It puts down their fees, and has them back where they cannot fetch it either. Each machine that can then has a
    copy. Raises WrongPhase where nobody answers for the result any more, PaymentMissing.
    """
    record = case.record
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
        (finding.code, finding.probe_root, finding.state_root_after)
        for seat in window.jurors
        for finding in seat.findings or ()
    )
    outcome, count = found.most_common(1)[0]
    code, _, root = outcome
    if 2 * count <= len(window.jurors) or (code == Code.COMPUTED and root != window.proof.state_root_out):
        _redraw(case, window, case.now + 1)
        return
    right = [
        seat.address
        for seat in window.jurors
        for finding in seat.findings or ()
        if (finding.code, finding.probe_root, finding.state_root_after) == outcome
    ]
    if code == Code.COMPUTED:
        pay_delivery(case, window, right, blamed=())
        _end_demand(case, window, WindowEvent.AGREE, Reason.RESULT_DELIVERED)
        return
    pay_delivery(case, window, right, blamed=(window.worker,))
    pay_for_lost_result(case, window)
    registry.mark_failure(case.state, window.worker, case.now, case.scope.emit, case.parameters)
    _end_demand(case, window, WindowEvent.REJECT, Reason.RESULT_LOST)


def _end_demand(case: Case, window: WindowRecord, event: WindowEvent, reason: Reason) -> None:
    _dismiss(case, window, window.jurors)
    give_back_demand(case)
    case.advance_window(window.number, event, reason)


# Ends of a window


def _void(case: Case, window: WindowRecord, event: WindowEvent, reason: Reason, *, blamed: bytes) -> None:
    _dismiss(case, window, (*window.verifiers, *window.jurors))
    pay_void_verifiers(case, window, blamed=blamed)
    case.advance_window(window.number, event, reason)


def _void_from(case: Case, window: WindowRecord, event: WindowEvent, reason: Reason, *, blamed: bytes) -> None:
    """Void a window and all that stand on it; the task continues from the state before it.

    ``blamed`` is whose fault that is, or empty; it bears the checks of all of them.
    """
    _void(case, window, event, reason, blamed=blamed)
    for number in range(window.number + 1, case.record.next_window):
        _void(case, case.window(number), WindowEvent.DROP, Reason.PREDECESSOR_VOID, blamed=blamed)
    case.change(next_window=window.number, state_root=window.proof.state_root_in)


def _reject(case: Case, window: WindowRecord, event: WindowEvent, reason: Reason, *, blamed: bytes) -> None:
    author = window.worker
    _void_from(case, window, event, reason, blamed=blamed)
    if blamed:
        forfeit_hold(case, author)
        registry.mark_failure(case.state, author, case.now, case.scope.emit, case.parameters)
    exclude(case, author)
    if case.record.worker:  # another worker than the author built on a void state: it leaves without blame
        lose_worker(case, reason)
    else:
        give_up_idle(case)
        finish(case)


def _fail_unchecked(case: Case, window: WindowRecord) -> None:
    _void_from(case, window, WindowEvent.DROP, Reason.NO_VERIFIER, blamed=b"")
    wind_up(case, Phase.FAILED, Reason.NO_VERIFIER)


def _finalise(case: Case, window: WindowRecord) -> None:
    """Make a window final, and then those after it that only waited for it."""
    if window.number != case.record.final_windows:
        case.put_window(window._replace(ripe=1, deadline_ms=0))
        return
    while True:
        case.change(final_windows=window.number + 1, final_root=window.proof.state_root_out)
        pay_final_window(case, window)
        window = case.advance_window(window.number, WindowEvent.FINALISE, Reason.CHALLENGE_OVER)
        for address in (window.worker, *(seat.address for seat in window.verifiers)):
            registry.mark_success(
                case.state, address, window.charge, case.now, case.parameters, is_worker=address == window.worker
            )
        if window.number + 1 == case.record.next_window:
            break
        window = case.window(window.number + 1)
        if not window.ripe:
            break
    if case.record.phase == Phase.RUNNING and not case.record.deadline_ms:
        arm_running(case)
    give_up_idle(case)
    finish(case)


def on_window_due(case: Case, number: int) -> None:
    """Do what the passed deadline of the window's phase demands."""
    window = case.window(number)._replace(deadline_ms=0)
    case.put_window(window)
    match window.phase:
        case WindowPhase.PROVED | WindowPhase.DISPUTED | WindowPhase.DEMANDED:
            _draw(case, window)
        case WindowPhase.SEALING | WindowPhase.JURY_SEALING | WindowPhase.DELIVERY_SEALING:
            _close_seals(case, window, Reason.SEAL_TIMEOUT)
        case WindowPhase.REVEALING | WindowPhase.JURY_REVEALING | WindowPhase.DELIVERY_REVEALING:
            _close_reveals(case, window, Reason.REVEAL_TIMEOUT)
        case WindowPhase.OPENING:
            _reject(case, window, WindowEvent.REJECT, Reason.NOT_OPENED, blamed=window.worker)
        case WindowPhase.ACCEPTED:
            _finalise(case, window)
        case phase:
            raise AssertionError(f"window phase {phase.name} has no deadline")
