"""The dispute game in the ledger: who opens one, moves, clocks, sealed challenges, and what an ending costs.

See market.md 7.8. A game that a move ended is settled at the end of the block: it may void as many windows as are
open. No majority decides what was computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from state.primitives.codec import decode
from tasks.dispute.errors import MoveRefused
from tasks.dispute.game import Ending, Side, Stage, play, turn_of
from tasks.dispute.moves import MOVE_LIMIT_BYTES, decode_move
from tasks.dispute.records import decode_game, encode_game
from tasks.errors import BadEvidence, ChallengeClosed, ChallengeUnknown, MoveTooSoon, NotYours, WrongPhase
from tasks.ledger.custody import void_costs
from tasks.ledger.disputes import (
    SEALS_MAX,
    Challenger,
    DisputeEnding,
    DisputePhase,
    DisputeRecord,
    Docket,
    SealedChallenge,
    add_move,
    challenge_seal,
    load_dispute,
    load_docket,
    load_seal,
    result_of,
    save_dispute,
    save_docket,
    save_seal,
)
from tasks.ledger.dockets import (
    CHALLENGE_SEALED,
    DISPUTE_MOVE,
    begin_dispute,
    begin_game,
    begin_proof,
    call_seals,
    end_dispute,
    fall_silent,
    player_of,
    proof_in,
    run_ms,
    running_disputes,
    silent_disputes,
    tell,
)
from tasks.ledger.endings import accept, fail_unchecked, final_at, let_pass, may_pass, reject
from tasks.ledger.lifecycle import LIVE_WINDOW, NEXT_WINDOW_PHASE, Reason, WindowEvent, WindowPhase
from tasks.ledger.open_task import Case
from tasks.ledger.records import Opened, Seat, WindowRecord
from tasks.ledger.seats import DELIVERY_PHASES, agrees, differs, finding_of, has_verdict, missed_by
from tasks.ledger.settlement import final_ms_of
from tasks.ledger.stakes import (
    burn_for_silence,
    lock_challenge,
    mark,
    pay_resumption,
    return_challenge,
    share_lie,
    slash_equal,
    take_from_challenger,
)
from tasks.proofs import (
    SAMPLED_MAX,
    Break,
    Code,
    Finding,
    Opening,
    check_opening,
    is_break,
    opening_fits,
    opening_from_value,
)

__all__ = [
    "SETTLES",
    "accuse_silent",
    "check_leaf",
    "go_on",
    "is_contested",
    "lose_bond",
    "lose_challenge",
    "move",
    "note_break",
    "on_disputes_due",
    "on_not_opened",
    "open_challenge",
    "open_games",
    "opened_of",
    "resume",
    "seal_challenge",
    "settle_ended",
    "show_break",
    "void_silent",
    "void_window",
]

TRACE_BYTES_PER_S: Final = 32 * 1024 * 1024
"""A slow machine hashes the tensors of a step at this rate, for the moves about its trace."""
EXTENDED_BY_SIDES: Final = 2
"""Challenges are open for the time of both sides of a game more after a late one."""
OUTSIDER_RESUME_PART: Final = 8
"""An outsider that missed its clock has this part of the time to resume: nobody asked it to delay the window."""
VERIFIER_RESUME_PART: Final = 48
"""A drawn verifier has this part, and the time of a move at least: others run its segment again after that."""
LATE_PART: Final = 10
"""A challenge in the last tenth of its time is late."""


def opened_of(opening: Opening) -> Opened:
    """Return what an opening shows of its segment."""
    leaf = opening.leaf
    return Opened(leaf.segment, leaf.state_root_before, leaf.state_root_after, opening.work_digest, leaf.loss_bits)


def check_leaf(case: Case, window: WindowRecord, opening: Opening) -> bool:
    """Check that an opening is under the window's commitments; tell whether its leaves fit. Raises BadEvidence.

    Leaves that do not fit each other or the job are a broken commitment (R28).
    """
    if not check_opening(window.proof, opening):
        raise BadEvidence("the opening is not under the window's commitments")
    return opening_fits(case.spec, window.proof, opening)


def open_games(case: Case, window: WindowRecord, seats: Sequence[Seat]) -> None:
    """Open a game in the name of each seat that computed something else, about its lowest such segment."""
    for seat in seats:
        opened = next((opened for opened in window.opened if differs(seat, opened)), None)
        if opened is None:
            continue
        finding = finding_of(seat, opened.segment)
        assert finding is not None
        root = result_of(finding)
        begin_dispute(case, window, Challenger.VERIFIER, seat.address, opened.segment, root, opened)


def go_on(case: Case, number: int, reason: Reason) -> None:
    """Move a window on as its docket allows: to games, to the jury about a missing blob, or to acceptance.

    ``reason`` is why it is accepted if nothing is left.
    """
    window = case.window(number)
    _begin_challenges(case, window)
    docket = call_seals(case, window)
    if not docket.is_idle:
        deadline_ms = _earliest(case, window, docket)
        if window.phase == WindowPhase.DISPUTED:
            case.put_window(window._replace(deadline_ms=deadline_ms))
        else:
            why = Reason.VERDICTS_DIFFER if docket.running else Reason.CHALLENGED
            case.advance_window(number, WindowEvent.MISMATCH, why, deadline_ms=deadline_ms)
    elif docket.silent:
        _run_again(case, window)
    elif window.missed and not window.jurors:
        case.advance_window(
            number, WindowEvent.DOUBT, Reason.BLOB_MISSED, deadline_ms=case.now + 1,
            height=case.scope.block.height,
        )  # fmt: skip
    elif (window.sampled and not window.opened) or _was_silent(case, window, docket):
        void_silent(case, number)
    elif window.sampled and not has_verdict(window):
        _recheck(case, window)
    else:
        accept(case, window, reason)


def _was_silent(case: Case, window: WindowRecord, docket: Docket) -> bool:
    """Tell whether the worker has lost a dispute about the window by its clock, before a jury sat about it."""
    disputes = (load_dispute(case.state, window.task, window.number, at) for at in _games_of(docket))
    return any(dispute.ending is DisputeEnding.ACCUSED_SILENT for dispute in disputes)


def _games_of(docket: Docket) -> range:
    return range(docket.first_game, docket.games)


def _recheck(case: Case, window: WindowRecord) -> None:
    """Have others drawn for a window of which no verdict stands. All draws of a window together have a bound.

    What was opened is public: others re-run other segments, as long as there are any.
    """
    draws = window.draws + 1
    if draws >= case.parameters.draws_max:
        if may_pass(case, window):
            let_pass(case, window, WindowEvent.AGREE)
        else:
            fail_unchecked(case, window)
        return
    docket = load_docket(case.state, window.task, window.number)
    disputes = (
        load_dispute(case.state, window.task, window.number, game)
        for game in range(docket.first_game, docket.games)
    )
    opened = {dispute.segment for dispute in disputes if dispute.opened is not None}
    # Outsiders have the time of challenges again: it may have ended while the verdicts that fell were played for.
    save_docket(case.state, window.task, window.number, docket._replace(rerun_from=0, until_ms=0, extended=0))
    seen = sorted({*window.seen, *window.sampled, *opened})
    case.advance_window(
        window.number, WindowEvent.RECHECK, Reason.NO_VERIFIER, deadline_ms=case.now + 1, draws=draws,
        height=case.scope.block.height, sampled=(), verifiers=(), opened=(), missed=(), unserved=0,
        jurors=(), seen=tuple(seen),
    )  # fmt: skip


def _begin_challenges(case: Case, window: WindowRecord) -> None:
    """Set when the time of challenges ends, once: games that are played meanwhile do not prolong it."""
    docket = load_docket(case.state, window.task, window.number)
    if not docket.until_ms:
        docket = docket._replace(until_ms=final_at(case, window))
        save_docket(case.state, window.task, window.number, docket)


def _run_again(case: Case, window: WindowRecord) -> None:
    """Have drawn machines run the segments again about which a side was silent: those of verifiers first."""
    silent = sorted(silent_disputes(case, window), key=lambda dispute: (dispute.kind, dispute.number))
    segments = list(dict.fromkeys(dispute.segment for dispute in silent))[:SAMPLED_MAX]
    docket = load_docket(case.state, window.task, window.number)
    save_docket(case.state, window.task, window.number, docket._replace(rounds=window.draws))
    case.advance_window(
        window.number, WindowEvent.DOUBT, Reason.ANSWER_MISSING, deadline_ms=case.now + 1, draws=0,
        height=case.scope.block.height, jurors=(), rerun=tuple(sorted(segments)),
    )  # fmt: skip


def is_contested(case: Case, window: WindowRecord) -> bool:
    """Tell whether a worker that opens its window would have to play: a verifier or an outsider differs."""
    docket = load_docket(case.state, window.task, window.number)
    return docket.seals > docket.next_call or any(_claim_of(seat) is not None for seat in window.verifiers)


def _claim_of(seat: Seat) -> Finding | None:
    return next((finding for finding in seat.findings or () if finding.code is Code.DIFFERS), None)


def on_not_opened(case: Case, number: int) -> None:
    """Void a window that was not opened in time, after what verifiers and outsiders found is pursued."""
    window = case.window(number)
    missed = missed_by(window.verifiers)
    if not missed and not is_contested(case, window):
        void_window(case, number, WindowEvent.REJECT, Reason.NOT_OPENED, blamed=window.worker)
        return
    window = window._replace(missed=missed)
    case.put_window(window)
    accuse_silent(case, window, window.verifiers)
    go_on(case, number, Reason.CHALLENGES_LOST)


def accuse_silent(case: Case, window: WindowRecord, seats: Sequence[Seat]) -> bool:
    """Open a silent dispute for each of ``seats`` that differs from a window that is not opened; tell of any."""
    for seat in seats:
        if (claim := _claim_of(seat)) is not None:
            root = result_of(claim)
            dispute = begin_dispute(case, window, Challenger.VERIFIER, seat.address, claim.segment, root, None)
            fall_silent(case, window, dispute)
    return any(_claim_of(seat) is not None for seat in seats)


def void_silent(case: Case, number: int) -> None:
    """Void a window whose worker did not answer: that is no proven lie, and costs a part of S."""
    window = case.window(number)
    burn_for_silence(case, window)
    reason = Reason.ANSWER_MISSING if window.opened else Reason.NOT_OPENED
    void_window(case, number, WindowEvent.REJECT, reason, blamed=window.worker)


def _earliest(case: Case, window: WindowRecord, docket: Docket) -> int:
    times = [deadline_ms for _, deadline_ms in docket.called]
    disputes = running_disputes(case, window, docket)
    if any(dispute.phase is DisputePhase.OVER for dispute in disputes):
        return case.now  # the end of this block settles it, whatever comes after it in the block
    times += [dispute.deadline_ms for dispute in disputes]
    return max(case.now + 1, min(times))


# Moves


def _require(case: Case, number: int, game: int) -> tuple[WindowRecord, DisputeRecord]:
    window = case.window(number)
    return window, load_dispute(case.state, window.task, number, game)


def move(case: Case, number: int, game: int, at: int, sender: bytes, data: bytes) -> None:
    """Take the move with the number ``at`` of the side whose turn it is, or the accused's opening of the segment.

    By its number a move that is sent twice is not taken for the next one of its side.
    Raises DisputeUnknown, WrongPhase, NotYours, MoveTooSoon, DecodeError, BadEvidence, MoveRefused.
    """
    window, dispute = _require(case, number, game)
    height = case.scope.block.height
    if dispute.phase not in (DisputePhase.OPENING, DisputePhase.RUNNING):
        raise WrongPhase(dispute.phase.name.lower())
    if sender != player_of(window, dispute, dispute.clock.side):
        raise NotYours("it is not the sender's turn")
    if at != dispute.moves:
        raise MoveRefused(f"move {dispute.moves} is due")
    if dispute.deadline_ms <= case.now:
        raise MoveRefused("the clock has run out")
    if dispute.moved_height == height:
        raise MoveTooSoon(f"the game has a move in block {height}")
    if dispute.phase is DisputePhase.OPENING:
        opening = opening_from_value(decode(data, limit_bytes=MOVE_LIMIT_BYTES))
        if opening.leaf.segment != dispute.segment:
            raise BadEvidence("another segment than the disputed one")
        fits = check_leaf(case, window, opening)
        after = begin_game(case, window, dispute, opened_of(opening))
        if not fits:
            broken = DisputeEnding.COMMITMENT_BROKEN
            after = after._replace(phase=DisputePhase.OVER, ending=broken, deadline_ms=0)
    else:
        after = _played(case, window, dispute, data)
    after = after._replace(moved_height=height)
    save_dispute(case.state, after)
    case.scope.emit(DISPUTE_MOVE(window.task, number, game, dispute.moves, sender))
    due_ms = case.now if after.phase is DisputePhase.OVER else after.deadline_ms
    if due_ms < window.deadline_ms:
        case.put_window(window._replace(deadline_ms=due_ms))


def _played(case: Case, window: WindowRecord, dispute: DisputeRecord, data: bytes) -> DisputeRecord:
    assert dispute.opened is not None
    question = case.scope.question_of(case.spec, window, dispute.opened)
    game = play(question, decode_game(dispute.game), dispute.clock.side, decode_move(data))
    add_move(case.state, dispute, data)
    dispute = dispute._replace(game=encode_game(game), moves=dispute.moves + 1)
    side = turn_of(game)
    if side is None:
        assert game.ending is not None
        return dispute._replace(phase=DisputePhase.OVER, ending=_ending_of(game.ending), deadline_ms=0)
    extra_ms = run_ms(case) if dispute.moves == 1 else 0  # the other side's first move
    clock = dispute.clock.moved(side, case.now)
    if game.stage in (Stage.TRACE, Stage.NAME):
        hash_ms = 1000 * question.program.size_bytes // TRACE_BYTES_PER_S
        extra_ms += hash_ms
        clock = clock.given(side, hash_ms)
    return dispute._replace(clock=clock, deadline_ms=clock.deadline_ms(case.parameters.dispute_move_ms + extra_ms))


def _ending_of(ending: Ending) -> DisputeEnding:
    return DisputeEnding(int(ending))


def resume(case: Case, number: int, game: int, sender: bytes, amount: int) -> None:
    """Go on with a game whose clock the sender missed, once, and pay the other side for it.

    Its time begins anew. Raises DisputeUnknown, WrongPhase, NotYours, PaymentMissing.
    """
    window, dispute = _require(case, number, game)
    if dispute.phase is not DisputePhase.SUSPENDED:
        raise WrongPhase(dispute.phase.name.lower())
    side = dispute.clock.side
    if sender != player_of(window, dispute, side):
        raise NotYours("the other side missed its clock")
    if dispute.deadline_ms <= case.now:
        raise MoveRefused("the time to resume is over")
    pay_resumption(case, window, sender, player_of(window, dispute, side.other), amount)
    parameters, clock = case.parameters, dispute.clock
    side_ms = parameters.dispute_side_ms + run_ms(case)
    if side is Side.ACCUSED:
        clock = clock._replace(since_ms=case.now, accused_left_ms=side_ms)
    else:
        clock = clock._replace(since_ms=case.now, challenger_left_ms=side_ms)
    dispute = dispute._replace(
        phase=DisputePhase.RUNNING if dispute.game else DisputePhase.OPENING,
        clock=clock,
        resumed=dispute.resumed | int(side),
        deadline_ms=clock.deadline_ms(parameters.dispute_move_ms + run_ms(case)),
    )
    save_dispute(case.state, dispute)
    tell(case, dispute)
    case.put_window(window._replace(deadline_ms=min(window.deadline_ms, dispute.deadline_ms)))


# Challenges of outsiders


def seal_challenge(case: Case, number: int, sender: bytes, seal: bytes, amount: int) -> None:
    """Take an outsider's sealed challenge with its bond, of which what is due is locked.

    Raises WrongPhase, ChallengeClosed, PaymentMissing, InsufficientBalance.
    """
    window = case.window(number)
    if window.phase not in LIVE_WINDOW or window.phase in DELIVERY_PHASES:
        raise WrongPhase(window.phase.name.lower())
    docket = load_docket(case.state, window.task, number)
    until_ms = docket.until_ms
    if window.phase == WindowPhase.ACCEPTED and not until_ms:
        until_ms = window.deadline_ms or case.now
    if until_ms and case.now >= until_ms:
        raise ChallengeClosed("the time of challenges is over")
    earlier = docket.seals - docket.first_seal
    if earlier >= SEALS_MAX:
        raise ChallengeClosed(f"{earlier} challenges were sealed")
    bond = lock_challenge(case, window, sender, amount, earlier)
    left_ms, extended = until_ms - case.now, docket.extended
    if until_ms and not extended and left_ms * LATE_PART <= final_ms_of(window.charge, case.parameters):
        until_ms, extended = until_ms + EXTENDED_BY_SIDES * case.parameters.dispute_side_ms, 1
    is_early = window.phase in (WindowPhase.PROVED, WindowPhase.SEALING)
    save_seal(
        case.state, window.task, number, docket.seals,
        SealedChallenge(sender, seal, bond, docket.games, int(is_early)),
    )  # fmt: skip
    save_docket(
        case.state, window.task, number,
        docket._replace(seals=docket.seals + 1, until_ms=until_ms, extended=extended),
    )  # fmt: skip
    case.scope.emit(CHALLENGE_SEALED(window.task, number, docket.seals, sender))
    if window.phase in (WindowPhase.ACCEPTED, WindowPhase.DISPUTED):
        go_on(case, number, Reason.CHALLENGES_LOST)


def open_challenge(
    case: Case,
    number: int,
    challenge: int,
    sender: bytes,
    segment: int,
    root: tuple[bytes, bytes, int],
    salt: bytes,
) -> None:
    """Open a sealed challenge that was called; its dispute begins.

    Raises ChallengeUnknown, NotYours, BadEvidence.
    """
    window = case.window(number)
    docket = load_docket(case.state, window.task, number)
    if challenge not in (at for at, _ in docket.called):
        raise ChallengeUnknown(f"{window.task.hex()} window {number} challenge {challenge}")
    seal = load_seal(case.state, window.task, number, challenge)
    if sender != seal.address:
        raise NotYours("another account sealed this challenge")
    if challenge_seal(window.task, number, segment, *root, sender, salt) != seal.seal:
        raise BadEvidence("the challenge is not the sealed one")
    if segment >= window.proof.segments:
        raise BadEvidence("the window has no such segment")
    called = tuple(call for call in docket.called if call[0] != challenge)
    save_docket(case.state, window.task, number, docket._replace(called=called))
    opened = next((opened for opened in window.opened if opened.segment == segment), None)
    dispute = begin_dispute(case, window, Challenger.OUTSIDER, sender, segment, root, opened, seal=challenge)
    due_ms = case.now if dispute.phase is DisputePhase.OVER else dispute.deadline_ms
    case.put_window(window._replace(deadline_ms=min(window.deadline_ms, due_ms)))


# Leaves that do not fit

SETTLES: Final = frozenset(
    (
        WindowPhase.OPENING, WindowPhase.DISPUTED, WindowPhase.DOUBTED, WindowPhase.JURY_SEALING,
        WindowPhase.ACCEPTED,
    )
)  # fmt: skip
"""Phases in which the end of the block settles a broken chain. While verdicts are revealed it waits for them."""
_SHOWS: Final = SETTLES | {WindowPhase.REVEALING, WindowPhase.JURY_REVEALING}
"""Phases in which it can be shown: nobody copies it into a seal then."""


def show_break(case: Case, number: int, sender: bytes, shown: Break) -> None:
    """Take the proof that leaves of a window do not fit; the end of the block settles it.

    Raises WrongPhase, ChallengeClosed if a lie in the window is proven already, BadEvidence.
    """
    window = case.window(number)
    if window.phase not in _SHOWS:
        raise WrongPhase(window.phase.name.lower())
    if proof_in(case, window) is not None:
        raise ChallengeClosed("a lie in this window is proven already")
    if not is_break(case.spec, window.proof, shown):
        raise BadEvidence("these leaves are not under the segment root, or they fit")
    note_break(case, number, sender, shown.segment)


def note_break(case: Case, number: int, witness: bytes, segment: int) -> None:
    """Note that ``witness`` has shown that the leaf of a segment does not fit."""
    window = case.window(number)
    begin_proof(case, window, witness, segment)
    if window.phase in SETTLES:
        case.put_window(window._replace(deadline_ms=case.now))


# What becomes due


def on_disputes_due(case: Case, number: int) -> None:
    """Settle games that are over, proofs of a lie first; apply clocks; call challenges; move the window on."""
    settle_ended(case, number)
    window = case.window(number)
    if window.phase == WindowPhase.VOID:
        return
    docket = load_docket(case.state, window.task, number)
    for dispute in running_disputes(case, window, docket):
        ending = _ending_by_clock(case, dispute)
        if ending is DisputeEnding.ACCUSED_SILENT or _is_left_to_others(docket, dispute, ending):
            fall_silent(case, window, dispute)
    go_on(case, number, Reason.CHALLENGES_LOST)


def settle_ended(case: Case, number: int) -> None:
    """Settle the games that this block ended, of the windows that may be void with window ``number``.

    Those are all of its worker, and all that stand on it. Lost games are paid for while there is a bond to measure
    them by. Then each worker with a proof against it loses its bond: the last one first, since an earlier void
    would drop what stands on it. So nothing that a worker gives up in a block saves it from a proof.
    """
    worker = case.window(number).worker
    first = next(window.number for window in case.open_windows() if window.worker == worker)
    due = [
        window.number for window in case.open_windows()
        if window.number >= first
        and (
            (window.phase == WindowPhase.DISPUTED and window.deadline_ms <= case.now)
            or proof_in(case, window) is not None
        )
    ]  # fmt: skip
    for at in due:
        docket = load_docket(case.state, case.record.id, at)
        for dispute in _running(case, at):
            ending = _ending_by_clock(case, dispute)
            if ending.is_refuted and not _is_left_to_others(docket, dispute, ending):
                lose_challenge(case, case.window(at), end_dispute(case, case.window(at), dispute, ending))
    for at in reversed(due):
        proof = next((dispute for dispute in _running(case, at) if dispute.ending.is_proof), None)
        if proof is not None and at < case.record.next_window:
            _prove_lie(case, case.window(at), proof)


def _is_left_to_others(docket: Docket, dispute: DisputeRecord, ending: DisputeEnding) -> bool:
    """Tell whether machines are drawn in the place of a verifier that fell silent: once a round of verdicts.

    A machine that was drawn so loses by its own silence. Otherwise friends that are drawn one after the other
    could delay a window for long.
    """
    return (
        ending is DisputeEnding.CHALLENGER_SILENT and dispute.kind is Challenger.VERIFIER and not docket.rerun_from
    )


def _running(case: Case, number: int) -> list[DisputeRecord]:
    window = case.window(number)
    return running_disputes(case, window, load_docket(case.state, window.task, number))


def void_window(case: Case, number: int, event: WindowEvent, reason: Reason, *, blamed: bytes) -> None:
    """Reject a window without a proof, unless games that this block ended prove a lie about it or a later one."""
    settle_ended(case, number)
    window = case.window(number)
    if window.phase != WindowPhase.VOID:
        reject(case, window, event, reason, blamed=blamed)


def _ending_by_clock(case: Case, dispute: DisputeRecord) -> DisputeEnding:
    """Return how a dispute has ended; a side that missed its clock for the first time is suspended only."""
    if dispute.phase is DisputePhase.OVER or dispute.deadline_ms > case.now:
        return dispute.ending
    side = dispute.clock.side
    if dispute.phase is DisputePhase.SUSPENDED or dispute.resumed & int(side):
        return DisputeEnding.ACCUSED_SILENT if side is Side.ACCUSED else DisputeEnding.CHALLENGER_SILENT
    resume_ms = case.parameters.dispute_resume_ms
    if side is Side.CHALLENGER and dispute.kind is Challenger.OUTSIDER:
        resume_ms //= OUTSIDER_RESUME_PART
    elif side is Side.CHALLENGER:
        resume_ms = max(resume_ms // VERIFIER_RESUME_PART, case.parameters.dispute_move_ms)
        mark(case, dispute.challenger)  # it delays others now, whether it resumes or not
    dispute = dispute._replace(phase=DisputePhase.SUSPENDED, deadline_ms=case.now + resume_ms)
    save_dispute(case.state, dispute)
    tell(case, dispute)
    return DisputeEnding.NONE


def lose_challenge(case: Case, window: WindowRecord, dispute: DisputeRecord) -> None:
    """Take from a challenger what its lost game costs; a verifier's verdict earns no fee then."""
    take_from_challenger(case, window, dispute)
    if dispute.kind is Challenger.VERIFIER:
        left = tuple(seat for seat in window.verifiers if seat.address != dispute.challenger)
        case.put_window(window._replace(verifiers=left))


def _prove_lie(case: Case, window: WindowRecord, dispute: DisputeRecord) -> None:
    """Slash who agreed with what is proven wrong, and have the liar lose its bond."""
    equal = _equal_seats(window, dispute)
    window = window._replace(verifiers=tuple(seat for seat in window.verifiers if seat not in equal))
    case.put_window(window)
    lose_bond(case, window, dispute, dispute.ending, equal)


def lose_bond(
    case: Case, window: WindowRecord, dispute: DisputeRecord, ending: DisputeEnding, equal: Sequence[Seat] = ()
) -> None:
    """Share the liar's bond, slash ``equal``, and void all its windows that are not final."""
    own = [open_window for open_window in case.open_windows() if open_window.worker == window.worker]
    first = own[0]
    void = [open_window for open_window in case.open_windows() if open_window.number >= first.number]
    fees = sum(one.fee * sum(seat.findings is not None for seat in one.verifiers) for one in void)
    fees += void_costs(case, void)
    right = _right_verifiers(case, window, dispute)
    share_lie(case, window, dispute, right, _earliest_outsider(case, window, dispute), fees)
    if dispute.kind is Challenger.OUTSIDER:
        seal = load_seal(case.state, window.task, window.number, dispute.seal)
        return_challenge(case, window, dispute.seal, seal)
    dispute = end_dispute(case, window, dispute, ending)
    slash_equal(case, window, [seat.address for seat in equal])
    is_first = first.number == window.number and (window.phase, WindowEvent.REJECT) in NEXT_WINDOW_PHASE
    event = WindowEvent.REJECT if is_first else WindowEvent.DROP
    reject(case, first, event, Reason.LIE_PROVEN, blamed=window.worker, lie=dispute)


def _equal_seats(window: WindowRecord, lie: DisputeRecord) -> list[Seat]:
    """Return the seats that had agreed with a proven lie.

    Who computed something says that the leaves fit. So all of those had agreed with a broken chain, but for those
    that computed something else than was opened.
    """
    seats = (*window.verifiers, *window.jurors)
    if lie.kind is Challenger.WITNESS:
        return [
            seat for seat in seats
            if any(found.code == Code.COMPUTED for found in seat.findings or ())
            and not any(differs(seat, opened) for opened in window.opened)
        ]  # fmt: skip
    opened = lie.opened
    assert opened is not None
    return [seat for seat in seats if (found := finding_of(seat, opened.segment)) and agrees(found, opened)]


def _right_verifiers(case: Case, window: WindowRecord, lie: DisputeRecord) -> list[bytes]:
    """Return verifiers and jurors that had found what the winner found, each once, and lost no game themselves.

    Machines that ran a segment again after a silence have their fee alone: no share is an offer to them.
    """
    seats = window.verifiers if window.rerun else (*window.verifiers, *window.jurors)
    docket = load_docket(case.state, window.task, window.number)
    disputes = [
        load_dispute(case.state, window.task, window.number, number)
        for number in range(docket.first_game, docket.games)
    ]
    if lie.kind is Challenger.WITNESS:
        right = [seat.address for seat in seats if any(found.code == Code.BROKEN for found in seat.findings or ())]
    else:
        right = [
            seat.address for seat in seats
            if (found := finding_of(seat, lie.segment)) is not None
            and found.is_computed and lie.has_result_of(found)
            and (lie.opened is None or not agrees(found, lie.opened))
        ]  # fmt: skip
        right += [
            dispute.challenger for dispute in disputes
            if dispute.kind is Challenger.VERIFIER and dispute.segment == lie.segment
            and dispute.has_result_of(lie)
        ]  # fmt: skip
    lost = {dispute.challenger for dispute in disputes if dispute.ending.is_refuted}
    return [address for address in dict.fromkeys(right) if address not in lost]


def _earliest_outsider(case: Case, window: WindowRecord, lie: DisputeRecord) -> bytes:
    """Return the outsider with the earliest opened seal that has the right root and copied nothing, or empty.

    Of a broken chain no root is right. There it is who showed it, if that is nobody of the window (R55).
    """
    if lie.kind is Challenger.WITNESS:
        drawn = {seat.address for seat in (*window.verifiers, *window.jurors)}
        return b"" if lie.challenger in {window.worker, *drawn} else lie.challenger
    docket = load_docket(case.state, window.task, window.number)
    disputes = (*running_disputes(case, window, docket), *silent_disputes(case, window))
    rivals = [
        dispute for dispute in disputes
        if dispute.kind is Challenger.OUTSIDER and dispute.segment == lie.segment
        and dispute.has_result_of(lie)
    ]  # fmt: skip
    for dispute in sorted(rivals, key=lambda dispute: dispute.seal):
        if not _is_copy(case, window, dispute):
            return dispute.challenger
    return b""


def _is_copy(case: Case, window: WindowRecord, dispute: DisputeRecord) -> bool:
    """Tell whether an outsider's root was public on chain when it sealed its challenge."""
    seal = load_seal(case.state, window.task, window.number, dispute.seal)

    if not seal.is_early and any(
        found.segment == dispute.segment and dispute.has_result_of(found)
        for seat in (*window.verifiers, *window.jurors)
        for found in seat.findings or ()
    ):
        return True
    return any(
        earlier.segment == dispute.segment and dispute.has_result_of(earlier)
        for earlier in (
            load_dispute(case.state, window.task, window.number, number)
            for number in range(load_docket(case.state, window.task, window.number).first_game, seal.games)
        )
    )
