"""The docket of a window under change: disputes begin and end, seals are called, bonds return (market.md 7.8)."""

from __future__ import annotations

from typing import Final

from state.primitives.hashing import ZERO_HASH
from state.primitives.receipts import EventType
from tasks.dispute.clock import Clock
from tasks.dispute.game import Side, begin, turn_of
from tasks.dispute.records import encode_game
from tasks.ledger.disputes import (
    OUTSIDERS_AT_ONCE_MAX,
    Challenger,
    DisputeEnding,
    DisputePhase,
    DisputeRecord,
    Docket,
    load_dispute,
    load_docket,
    load_seal,
    save_dispute,
    save_docket,
    schedule_release,
)
from tasks.ledger.open_task import LEDGER_ADDRESS, Case
from tasks.ledger.records import Opened, WindowRecord, by_player_key
from tasks.ledger.stakes import burn_challenge, return_challenge

__all__ = [
    "CHALLENGE_CALLED",
    "CHALLENGE_SEALED",
    "DISPUTE_EVENTS",
    "DISPUTE_MOVE",
    "begin_dispute",
    "begin_game",
    "begin_proof",
    "call_seals",
    "drop_disputes",
    "end_dispute",
    "fall_silent",
    "player_of",
    "proof_in",
    "renew_docket",
    "run_ms",
    "running_disputes",
    "silent_disputes",
    "tell",
]

DISPUTE_PHASE: Final = EventType(
    LEDGER_ADDRESS,
    "DisputePhase(bytes32 indexed task, uint256 number, uint256 game, "
    "uint256 phase, uint256 ending, address challenger)",
)
DISPUTE_MOVE: Final = EventType(
    LEDGER_ADDRESS,
    "DisputeMove(bytes32 indexed task, uint256 number, uint256 game, uint256 move, address indexed player)",
)
CHALLENGE_SEALED: Final = EventType(
    LEDGER_ADDRESS,
    "ChallengeSealed(bytes32 indexed task, uint256 number, uint256 challenge, address indexed challenger)",
)
CHALLENGE_CALLED: Final = EventType(
    LEDGER_ADDRESS,
    "ChallengeCalled(bytes32 indexed task, uint256 number, uint256 challenge, address indexed challenger)",
)
DISPUTE_EVENTS: Final = (DISPUTE_PHASE, DISPUTE_MOVE, CHALLENGE_SEALED, CHALLENGE_CALLED)


def tell(case: Case, dispute: DisputeRecord) -> None:
    """Emit where a dispute stands."""
    case.scope.emit(
        DISPUTE_PHASE(
            dispute.task, dispute.window, dispute.number, dispute.phase, dispute.ending, dispute.challenger
        )
    )


def player_of(window: WindowRecord, dispute: DisputeRecord, side: Side) -> bytes:
    """Return who plays a side."""
    return window.worker if side is Side.ACCUSED else dispute.challenger


def running_disputes(case: Case, window: WindowRecord, docket: Docket) -> list[DisputeRecord]:
    """Return the disputes of a window that are not settled, in order."""
    return [load_dispute(case.state, window.task, window.number, number) for number in docket.running]


def proof_in(case: Case, window: WindowRecord) -> DisputeRecord | None:
    """Return a dispute that has proven a lie in a window and is not settled, or None."""
    docket = load_docket(case.state, window.task, window.number)
    return next((dispute for dispute in running_disputes(case, window, docket) if dispute.ending.is_proof), None)


def renew_docket(case: Case, window: WindowRecord) -> None:
    """Begin with no challenges on a window that is proved again; numbers go on."""
    docket = load_docket(case.state, window.task, window.number)
    if docket.games or docket.seals:
        fresh = Docket(
            docket.games, docket.games, docket.seals, docket.seals, docket.seals, (), (), 0, 0, (), 0, 0
        )
        save_docket(case.state, window.task, window.number, fresh)


# Disputes


def begin_dispute(
    case: Case, window: WindowRecord, kind: Challenger, challenger: bytes, segment: int,
    root: tuple[bytes, bytes, int], opened: Opened | None, seal: int = 0,
) -> DisputeRecord:  # fmt: skip
    """Open a dispute about a segment. ``root`` is the work digest, the state root and the sum of losses of the
    challenger.

    Its game begins if the worker has opened the segment; otherwise the worker opens it first. With the same root
    there is nothing to dispute: the challenger has lost.
    """
    parameters = case.parameters
    dispute = _new_dispute(case, window, kind, challenger, segment, root)._replace(seal=seal, opened=opened)
    dispute = dispute._replace(deadline_ms=dispute.clock.deadline_ms(parameters.dispute_move_ms + run_ms(case)))
    if opened is not None:
        dispute = begin_game(case, window, dispute, opened)
    _enter(case, window, dispute)
    return dispute


def begin_proof(case: Case, window: WindowRecord, witness: bytes, segment: int) -> None:
    """Note that ``witness`` has shown a broken chain of leaves: a dispute that is over with its first word."""
    root = ZERO_HASH, ZERO_HASH, 0
    dispute = _new_dispute(case, window, Challenger.WITNESS, witness, segment, root)
    _enter(case, window, dispute._replace(phase=DisputePhase.OVER, ending=DisputeEnding.COMMITMENT_BROKEN))


def _new_dispute(
    case: Case,
    window: WindowRecord,
    kind: Challenger,
    challenger: bytes,
    segment: int,
    root: tuple[bytes, bytes, int],
) -> DisputeRecord:
    parameters, block = case.parameters, case.scope.block
    docket = load_docket(case.state, window.task, window.number)
    return DisputeRecord(
        task=window.task,
        window=window.number,
        number=docket.games,
        kind=kind,
        challenger=challenger,
        seal=0,
        segment=segment,
        work_digest=root[0],
        state_root_after=root[1],
        loss_bits=root[2],
        opened=None,
        phase=DisputePhase.OPENING,
        ending=DisputeEnding.NONE,
        game=b"",
        moves=0,
        clock=Clock.start(Side.ACCUSED, case.now, parameters.dispute_side_ms + run_ms(case)),
        deadline_ms=0,
        resumed=0,
        moved_height=0,
        opened_ms=case.now,
        ended_ms=0,
        base_fee=block.base_fee,
    )


def _enter(case: Case, window: WindowRecord, dispute: DisputeRecord) -> None:
    """Put a new dispute on the docket."""
    docket = load_docket(case.state, window.task, window.number)
    docket = docket._replace(games=docket.games + 1, running=(*docket.running, dispute.number))
    save_docket(case.state, window.task, window.number, docket)
    save_dispute(case.state, dispute)
    for player in (window.worker, dispute.challenger):
        case.state.put(by_player_key(player, window.task, window.number, dispute.number), b"\x01")
    tell(case, dispute)


def begin_game(case: Case, window: WindowRecord, dispute: DisputeRecord, opened: Opened) -> DisputeRecord:
    """Begin the game about what the worker opened; its clock runs from now on."""
    if dispute.kind is Challenger.OUTSIDER and dispute.has_result_of(opened):
        return dispute._replace(
            opened=opened, phase=DisputePhase.OVER, ending=DisputeEnding.SAME_ROOT, deadline_ms=0
        )
    game = begin(case.scope.question_of(case.spec, window, opened, needs_program=False))
    side = turn_of(game)
    assert side is not None
    clock = dispute.clock.moved(side, case.now)
    return dispute._replace(
        opened=opened,
        phase=DisputePhase.RUNNING,
        game=encode_game(game),
        clock=clock,
        deadline_ms=clock.deadline_ms(case.parameters.dispute_move_ms + run_ms(case)),
    )


def run_ms(case: Case) -> int:
    """Return the time in which a slow machine has run a segment again: before its first move a side does so."""
    return case.parameters.seal_slack * case.spec.schedule.segment_steps * case.spec.step_ms


def end_dispute(case: Case, window: WindowRecord, dispute: DisputeRecord, ending: DisputeEnding) -> DisputeRecord:
    """Write a dispute as over, and take it off the docket."""
    dispute = dispute._replace(phase=DisputePhase.OVER, ending=ending, deadline_ms=0, ended_ms=case.now)
    save_dispute(case.state, dispute)
    schedule_release(case.state, dispute)
    docket = load_docket(case.state, window.task, window.number)
    running = tuple(number for number in docket.running if number != dispute.number)
    silent = tuple(number for number in docket.silent if number != dispute.number)
    save_docket(case.state, window.task, window.number, docket._replace(running=running, silent=silent))
    for player in (window.worker, dispute.challenger):
        case.state.delete(by_player_key(player, window.task, window.number, dispute.number))
    tell(case, dispute)
    return dispute


def fall_silent(case: Case, window: WindowRecord, dispute: DisputeRecord) -> None:
    """Note that a side did not answer in a dispute: it waits for the others, and then for drawn machines."""
    dispute = dispute._replace(phase=DisputePhase.SILENT, deadline_ms=0)
    save_dispute(case.state, dispute)
    docket = load_docket(case.state, window.task, window.number)
    running = tuple(number for number in docket.running if number != dispute.number)
    silent = (*docket.silent, dispute.number)
    save_docket(case.state, window.task, window.number, docket._replace(running=running, silent=silent))
    tell(case, dispute)


def silent_disputes(case: Case, window: WindowRecord) -> list[DisputeRecord]:
    """Return the disputes of a window in which a side did not answer, in order; ``clock.side`` tells which."""
    docket = load_docket(case.state, window.task, window.number)
    return [load_dispute(case.state, window.task, window.number, number) for number in docket.silent]


def drop_disputes(case: Case, window: WindowRecord, lie: DisputeRecord | None) -> None:
    """End all disputes of a window that is void, and settle the bonds of outsiders.

    These return. A dispute in which the accused was silent ends so. But of a segment in which ``lie`` has proven
    one, an opened root that is not the winner's loses its bond: else a random root could wait there for free.
    """
    docket = load_docket(case.state, window.task, window.number)
    if docket.is_idle and not docket.silent:
        return
    for dispute in (*running_disputes(case, window, docket), *silent_disputes(case, window)):
        if lie is not None and dispute.number == lie.number and window.number == lie.window:
            continue  # settled by whom it was won
        was_silent = lie is None and dispute.phase is DisputePhase.SILENT and dispute.clock.side is Side.ACCUSED
        end_dispute(case, window, dispute, DisputeEnding.ACCUSED_SILENT if was_silent else DisputeEnding.DROPPED)
        if dispute.kind is Challenger.OUTSIDER:
            seal = load_seal(case.state, window.task, window.number, dispute.seal)
            is_wrong = (
                lie is not None
                and lie.kind is not Challenger.WITNESS  # nobody's root is wrong by that
                and (lie.window, lie.segment) == (window.number, dispute.segment)
                and not dispute.has_result_of(lie)
            )
            settle = burn_challenge if is_wrong else return_challenge
            settle(case, window, dispute.seal, seal)
    docket = load_docket(case.state, window.task, window.number)
    waiting = [number for number, _ in docket.called] + list(range(docket.next_call, docket.seals))
    for number in waiting:
        seal = load_seal(case.state, window.task, window.number, number)
        return_challenge(case, window, number, seal)
    docket = docket._replace(called=(), next_call=docket.seals)
    save_docket(case.state, window.task, window.number, docket)


# Seals


def call_seals(case: Case, window: WindowRecord) -> Docket:
    """Call the next sealed challenges while there is room for them; burn the bonds of those not opened in time."""
    docket = load_docket(case.state, window.task, window.number)
    late = [number for number, deadline_ms in docket.called if deadline_ms <= case.now]
    for number in late:
        burn_challenge(case, window, number, load_seal(case.state, window.task, window.number, number))
    called = [call for call in docket.called if call[1] > case.now]
    outsiders = sum(dispute.kind is Challenger.OUTSIDER for dispute in running_disputes(case, window, docket))
    next_call = docket.next_call
    while next_call < docket.seals and outsiders + len(called) < OUTSIDERS_AT_ONCE_MAX:
        seal = load_seal(case.state, window.task, window.number, next_call)
        called.append((next_call, case.now + case.parameters.reveal_ms))
        case.scope.emit(CHALLENGE_CALLED(window.task, window.number, next_call, seal.address))
        next_call += 1
    after = docket._replace(called=tuple(called), next_call=next_call)
    if after != docket:
        save_docket(case.state, window.task, window.number, after)
    return after
