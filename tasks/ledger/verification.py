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
from tasks.errors import (
    AlreadyRevealed,
    AlreadySealed,
    BadEvidence,
    DeclineTooLate,
    NotYours,
    TooManyDeclines,
    WrongPhase,
)
from tasks.ledger import registry
from tasks.ledger.capacity import bounded_fine, count_decline, has_room, owe, settle_owed
from tasks.ledger.lifecycle import ENDED, Event, Phase, Reason, WindowEvent, WindowPhase
from tasks.ledger.matching import draw_seed, draw_segments, draw_verifiers, eligible_verifiers
from tasks.ledger.open_task import SEAT_DECLINED, SEAT_DRAWN, Case
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.progress import arm_running, exclude, finish, give_up_idle, lose_worker, wind_up
from tasks.ledger.records import Opened, Seat, WindowRecord, by_verifier_key
from tasks.ledger.settlement import (
    charge_of,
    check_fee,
    delivery_fees,
    final_ms_of,
    fine_opening,
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
    "decline_seat",
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
USED_MAX_TO_DECLINE: Final = 128
"""Machines and operators drawn for a window after which its seats cannot be declined: its record is bounded."""
_REVEALING: Final = (WindowPhase.REVEALING, WindowPhase.JURY_REVEALING, WindowPhase.DELIVERY_REVEALING)


class SealTime(NamedTuple):
    """The time from a draw to the seals: for fetching the states, and for everything else.

    ``work_ms`` is what the check takes on one slow core.
    """

    fetch_ms: int
    run_ms: int
    work_ms: int

    @property
    def total_ms(self) -> int:
        """From the draw to the deadline."""
        return self.fetch_ms + self.run_ms

    @property
    def owed_ms(self) -> int:
        """What the check takes on one slow core and the slowest line."""
        return self.fetch_ms + self.work_ms


def seal_time(spec: JobSpec, segments: int, parameters: TaskParameters) -> SealTime:
    """Return how long a verifier of ``segments`` segments has.

    It fetches the state before each of them and the one after the window; a state is as large as the job's model.
    """
    states_bytes = (segments + 1) * spec.plan().state_limit_bytes
    work_ms = segments * spec.schedule.segment_steps * spec.step_ms
    run_ms = max(parameters.seal_ms_min, parameters.seal_slack * work_ms)
    return SealTime(1000 * states_bytes // parameters.seal_bytes_per_s, run_ms, work_ms)


def agrees(finding: Finding, opened: Opened) -> bool:
    """Tell whether a verifier found for a segment what the worker committed to."""
    return (
        finding.code == Code.COMPUTED
        and finding.work_digest == opened.work_digest
        and finding.state_root_after == opened.state_root_after
        and finding.loss_bits == opened.loss_bits
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
        vacant=(),
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


def _seal_time(case: Case, window: WindowRecord) -> SealTime:
    """Return the time of a check as the window's phase asks for it."""
    segments = len(_segments_to_check(window))
    if window.phase == WindowPhase.PROVED:
        segments = min(window.proof.segments, case.parameters.samples)
    elif window.phase in DELIVERY_PHASES:
        segments = 0
    return seal_time(case.spec, segments, case.parameters)


def _dismiss(case: Case, window: WindowRecord, seats: Sequence[Seat]) -> None:
    """Ask no more of the seats; checks that were not sealed are owed no more."""
    for seat in seats:
        key = by_verifier_key(seat.address, window.task, window.number)
        if not seat.seal and case.state.get(key) is not None:
            settle_owed(case.state, seat.address, _seal_time(case, window).owed_ms)
        case.state.delete(key)


# Draws


def _draw(case: Case, window: WindowRecord) -> None:
    parameters = case.parameters
    if case.scope.block.height < window.height + parameters.draw_blocks:
        case.put_window(window._replace(deadline_ms=case.now + 1))
        return
    pool = _pool(case, window)
    wanted = _wanted(case, window)
    if _is_jury(window) and min(wanted, pool.operators) % 2 == 0:
        wanted = min(wanted, pool.operators) - 1  # an even jury could tie
    if wanted <= 0 or not pool.operators:
        _redraw(case, window, case.now + parameters.draw_retry_ms)
        return
    if pool.operators_with_room < min(wanted, pool.operators):
        # Who fills the time of verifiers with other windows shall not choose who checks this one, nor void it.
        case.put_window(window._replace(deadline_ms=case.now + parameters.draw_retry_ms))
        return
    nodes = draw_verifiers(pool.seed, pool.with_room, wanted)
    seats = tuple(Seat(node.address, b"", None) for node in nodes)
    if window.phase == WindowPhase.PROVED:
        sampled = draw_segments(pool.seed, window.proof.segments, parameters.samples)
        window = case.advance_window(
            window.number, WindowEvent.DRAW, Reason.VERIFIERS_DRAWN, sampled=sampled, verifiers=seats
        )
        if case.record.phase == Phase.OUTPUT and window.number + 1 == case.record.next_window:
            case.advance(Event.DRAWN, Reason.VERIFIERS_DRAWN)
    else:
        window = case.advance_window(window.number, WindowEvent.DRAW, Reason.VERIFIERS_DRAWN, jurors=seats)
    _ask(case, window, nodes)


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
    scope, parameters = case.scope, case.parameters
    numbers = (window.number, window.draws, int(window.phase), *window.vacant)
    seed = draw_seed(b"verifier-draw", scope.block.beacon, window.task, *numbers)
    # Of the register as it was before the block: one unit more of bond would move the draw to any other node.
    pool = eligible_verifiers(scope.parent, case.record, window.worker, window.used, seed, case.now, parameters)
    time = _seal_time(case, window)
    with_room = [
        node for node in pool if has_room(node, case.state, scope.block.height, time.work_ms, time.run_ms)
    ]  # fmt: skip
    return _DrawPool(seed, tuple(pool), tuple(with_room))


def _ask(case: Case, window: WindowRecord, nodes: Sequence[registry.NodeRecord]) -> None:
    """Ask a verdict of drawn machines, and give the window its time to seal."""
    time = _seal_time(case, window)
    deadline_ms = case.now + time.total_ms
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
    seats = _seats(window)
    if seats[at].seal:
        raise AlreadySealed(number)
    drawn_ms = window.deadline_ms - _seal_time(case, window).total_ms
    if not window.vacant and case.now > drawn_ms + case.parameters.decline_seat_ms:
        raise DeclineTooLate(f"{case.now - drawn_ms} ms after the draw")
    if len(window.used) >= USED_MAX_TO_DECLINE:
        raise TooManyDeclines(f"{len(window.used)} machines and operators were drawn for this window")
    count_decline(case.state, sender, case.now, case.parameters)
    _dismiss(case, window, seats[at : at + 1])
    window = _with_seats(window, seats[:at] + seats[at + 1 :])
    vacant = (*window.vacant, case.scope.block.height)
    case.put_window(window._replace(vacant=vacant, deadline_ms=case.now + 1))
    case.scope.emit(SEAT_DECLINED(window.task, number, sender))


def _fill_seats(case: Case, window: WindowRecord) -> None:
    """Draw machines for the seats that were declined; those that stay have the new ones' time too."""
    parameters = case.parameters
    if case.scope.block.height < window.vacant[-1] + parameters.draw_blocks:
        case.put_window(window._replace(deadline_ms=case.now + 1))
        return
    pool = _pool(case, window)
    wanted = min(len(window.vacant), pool.operators)
    if pool.operators_with_room < wanted:
        case.put_window(window._replace(deadline_ms=case.now + parameters.draw_retry_ms))
        return
    if not wanted and not _seats(window):
        window = window._replace(vacant=())
        case.put_window(window)
        _redraw(case, window, case.now + parameters.draw_retry_ms)
        return
    nodes = draw_verifiers(pool.seed, pool.with_room, wanted)
    seats = (*_seats(window), *(Seat(node.address, b"", None) for node in nodes))
    _ask(case, _with_seats(window, seats), nodes)
    if all(seat.seal for seat in seats):
        _close_seals(case, case.window(window.number), Reason.ALL_SEALED)


def _parties(nodes: Sequence[registry.NodeRecord]) -> list[bytes]:
    """Return machines and their operators, each once: an operator has one seat of a window, whatever it is for."""
    return list(dict.fromkeys(party for node in nodes for party in (node.address, node.operator)))


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
    settle_owed(case.state, sender, _seal_time(case, window).owed_ms)
    case.put_window(_with_seats(window, seats))
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
    if window.phase == WindowPhase.JURY_REVEALING:
        # A jury may void as many windows as are open: the end of the block does that, within its budget.
        if all(seat.findings is not None for seat in seats):
            case.put_window(case.window(number)._replace(deadline_ms=case.now))
    elif all(seat.findings is not None for seat in seats):
        _close_reveals(case, case.window(number), Reason.ALL_REVEALED)


def _fine_silent(case: Case, window: WindowRecord, silent: Sequence[Seat]) -> None:
    fine = share(window.fee, case.parameters.verifier_fine_bps)
    for seat in silent:
        taken = bounded_fine(case.state, seat.address, fine, case.now, case.parameters)
        registry.fine_node(case.state, seat.address, taken, case.scope.emit, case.scope.block.height)
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
        Opened(leaf.segment, work_digest, leaf.state_root_after, leaf.loss_bits)
        for leaf, _, _, work_digest in openings
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
    record = case.record
    is_own = window.number >= record.own_from and window.worker == record.worker
    value = record.open_charge if is_own else window.charge
    deadline_ms = case.now + final_ms_of(value, case.parameters)
    case.advance_window(window.number, WindowEvent.AGREE, reason, deadline_ms=deadline_ms)


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
        (finding.code, finding.work_digest, finding.state_root_after)
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
        if (finding.code, finding.work_digest, finding.state_root_after) == outcome
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
    pay_void_verifiers(case, window, blamed=blamed, is_silent=reason == Reason.NOT_OPENED)
    _close(case, window)
    case.advance_window(window.number, event, reason)


def _close(case: Case, window: WindowRecord) -> None:
    """Note that a window of the present worker is open no more."""
    if window.number >= case.record.own_from and window.worker == case.record.worker:
        case.change(open_charge=case.record.open_charge - window.charge)


def _void_from(
    case: Case, window: WindowRecord, event: WindowEvent, reason: Reason, *, blamed: bytes
) -> list[bytes]:  # fmt: skip
    """Void a window and all that stand on it; the task continues from the state before it. Return their workers.

    ``blamed`` is whose fault that is, or empty; it bears the checks of all of them.
    """
    _void(case, window, event, reason, blamed=blamed)
    workers = [window.worker]
    for number in range(window.number + 1, case.record.next_window):
        later = case.window(number)
        _void(case, later, WindowEvent.DROP, Reason.PREDECESSOR_VOID, blamed=blamed)
        workers.append(later.worker)
    case.change(next_window=window.number, state_root=window.proof.state_root_in)
    return workers


def _reject(case: Case, window: WindowRecord, event: WindowEvent, reason: Reason, *, blamed: bytes) -> None:
    author = window.worker
    workers = _void_from(case, window, event, reason, blamed=blamed)
    if blamed:
        if reason != Reason.NOT_OPENED:  # what was verified before is not taken for silence
            forfeit_hold(case, author)
        registry.mark_failure(case.state, author, case.now, case.scope.emit, case.parameters)
    exclude(case, author)
    give_up_idle(case, workers)
    if case.record.worker:  # another worker than the author built on a void state: it leaves without blame
        lose_worker(case, reason)
    else:
        finish(case)


def _fail_unchecked(case: Case, window: WindowRecord) -> None:
    workers = _void_from(case, window, WindowEvent.DROP, Reason.NO_VERIFIER, blamed=b"")
    give_up_idle(case, workers)
    wind_up(case, Phase.FAILED, Reason.NO_VERIFIER)


def _finalise(case: Case, window: WindowRecord) -> None:
    """Make a window final, and then those after it that only waited for it."""
    if window.number != case.record.final_windows:
        case.put_window(window._replace(ripe=1, deadline_ms=0))
        return
    workers = []
    while True:
        workers.append(window.worker)
        _close(case, window)
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
    give_up_idle(case, workers)
    finish(case)


def on_window_due(case: Case, number: int) -> None:
    """Do what the passed deadline of the window's phase demands."""
    window = case.window(number)._replace(deadline_ms=0)
    case.put_window(window)
    match window.phase:
        case WindowPhase.PROVED | WindowPhase.DISPUTED | WindowPhase.DEMANDED:
            _draw(case, window)
        case WindowPhase.SEALING | WindowPhase.JURY_SEALING if window.vacant:
            _fill_seats(case, window)
        case WindowPhase.SEALING | WindowPhase.JURY_SEALING | WindowPhase.DELIVERY_SEALING:
            _close_seals(case, window, Reason.SEAL_TIMEOUT)
        case WindowPhase.REVEALING | WindowPhase.JURY_REVEALING | WindowPhase.DELIVERY_REVEALING:
            _close_reveals(case, window, Reason.REVEAL_TIMEOUT)
        case WindowPhase.OPENING if window.reason != Reason.OPENING_LATE:
            fine_opening(case, window)
            case.advance_window(
                number, WindowEvent.EXTEND, Reason.OPENING_LATE,
                deadline_ms=case.now + case.parameters.opening_extra_ms,
            )  # fmt: skip
        case WindowPhase.OPENING:
            _reject(case, window, WindowEvent.REJECT, Reason.NOT_OPENED, blamed=window.worker)
        case WindowPhase.ACCEPTED:
            _finalise(case, window)
        case phase:
            raise AssertionError(f"window phase {phase.name} has no deadline")
