"""The kinds of transactions of disputes: moves, sealed challenges, resumptions (market.md 7.8)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, NamedTuple

from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES
from state.transition.calls import CallForm
from state.transition.rules import Context, Rule, Ticket
from state.view import Overlay, Reader
from tasks.dispute.moves import MOVE_LIMIT_BYTES
from tasks.errors import DisputeUnknown, WindowUnknown
from tasks.ledger import registration
from tasks.ledger.disputes import MOVE_GAS, SHOW_GAS, DisputePhase, load_dispute
from tasks.ledger.dockets import player_of
from tasks.ledger.games import move, open_challenge, resume, seal_challenge, show_break
from tasks.ledger.open_task import LEDGER_ADDRESS, Case
from tasks.ledger.records import by_player_key, load_window
from tasks.proofs import Break, break_from_value
from tasks.spec import SEGMENTS_MAX

__all__ = ["MOVE", "OPEN_CHALLENGE", "RESUME_DISPUTE", "SEAL_CHALLENGE", "SHOW_BREAK", "dispute_rules"]

MOVE: Final = 0x30
SEAL_CHALLENGE: Final = 0x31
OPEN_CHALLENGE: Final = 0x32
RESUME_DISPUTE: Final = 0x33
SHOW_BREAK: Final = 0x1D

_CALLS: Final = {
    MOVE: CallForm(LEDGER_ADDRESS, "move(bytes32 task, uint32 window, uint32 game, uint32 number, bytes encoded)"),
    SEAL_CHALLENGE: CallForm(
        LEDGER_ADDRESS, "sealChallenge(bytes32 task, uint32 window, bytes32 seal)", value_at=3
    ),
    OPEN_CHALLENGE: CallForm(
        LEDGER_ADDRESS,
        "openChallenge(bytes32 task, uint32 window, uint32 challenge, uint32 segment, bytes32 workDigest, "
        "bytes32 stateRoot, uint64 lossBits, bytes32 salt)",
    ),
    RESUME_DISPUTE: CallForm(
        LEDGER_ADDRESS, "resumeDispute(bytes32 task, uint32 window, uint32 game)", value_at=3
    ),
    SHOW_BREAK: CallForm(
        LEDGER_ADDRESS,
        "showBreak(bytes32 task, uint32 window, uint32 segment, bytes leaves)",
        nested=("leaves",),
    ),
}
NUMBER_LIMIT: Final = 1 << 32
AMOUNT_LIMIT: Final = 1 << 127
CaseOf = Callable[[Overlay, Context, bytes], Case]


class GameMove(NamedTuple):
    """An encoded move of a game of a window, with its ``number`` there."""

    task: bytes
    window: int
    game: int
    number: int
    move: bytes


class NewChallenge(NamedTuple):
    """An outsider's sealed challenge, and what it locks for it at most."""

    task: bytes
    window: int
    seal: bytes
    bond: int


class OpenedChallenge(NamedTuple):
    """What an outsider had sealed."""

    task: bytes
    window: int
    challenge: int
    segment: int
    work_digest: bytes
    state_root_after: bytes
    loss_bits: int
    salt: bytes


class Resumption(NamedTuple):
    """A game that goes on, and what that costs."""

    task: bytes
    window: int
    game: int
    amount: int


class ShownBreak(NamedTuple):
    """Leaves of a window that do not fit."""

    task: bytes
    window: int
    shown: Break


def _is_place(task: bytes, *numbers: int) -> bool:
    return len(task) == HASH_BYTES and all(0 <= number < NUMBER_LIMIT for number in numbers)


def _decode_move(payload: list[Any]) -> GameMove:
    match payload:
        case [bytes(task), int(window), int(game), int(number), bytes(data)] if (
            _is_place(task, window, game, number) and 0 < len(data) <= MOVE_LIMIT_BYTES
        ):
            return GameMove(task, window, game, number, data)
        case _:
            raise DecodeError("[task, window, game, number, move] expected")


def _decode_seal(payload: list[Any]) -> NewChallenge:
    match payload:
        case [bytes(task), int(window), bytes(seal), int(bond)] if (
            _is_place(task, window) and len(seal) == HASH_BYTES and 0 <= bond < AMOUNT_LIMIT
        ):
            return NewChallenge(task, window, seal, bond)
        case _:
            raise DecodeError("[task, window, seal, bond] expected")


def _decode_open(payload: list[Any]) -> OpenedChallenge:
    match payload:
        case [
            bytes(task), int(window), int(challenge), int(segment), bytes(work), bytes(root),
            int(loss_bits), bytes(salt),
        ] if (
            _is_place(task, window, challenge) and 0 <= segment < SEGMENTS_MAX and 0 <= loss_bits < 1 << 64
            and len(work) == len(root) == len(salt) == HASH_BYTES
        ):  # fmt: skip
            return OpenedChallenge(task, window, challenge, segment, work, root, loss_bits, salt)
        case _:
            raise DecodeError(
                "[task, window, challenge, segment, work digest, state root, loss bits, salt] expected"
            )


def _decode_resume(payload: list[Any]) -> Resumption:
    match payload:
        case [bytes(task), int(window), int(game), int(amount)] if (
            _is_place(task, window, game) and 0 <= amount < AMOUNT_LIMIT
        ):
            return Resumption(task, window, game, amount)
        case _:
            raise DecodeError("[task, window, game, amount] expected")


def _decode_show(payload: list[Any]) -> ShownBreak:
    match payload:
        case [bytes(task), int(window), int(segment), list(leaves)] if _is_place(task, window):
            return ShownBreak(task, window, break_from_value([segment, leaves]))
        case _:
            raise DecodeError("[task, window, segment, leaves] expected")


class _Disputes:
    """The rules; ``case_of`` opens a task for the sender of a transaction."""

    def __init__(self, case_of: CaseOf) -> None:
        self._case_of = case_of

    def _done(self, state: Overlay, case: Case, context: Context) -> None:
        registration.touch(state, context.sender, context.block.steady_ms, case.parameters)
        case.save()

    def move(self, state: Overlay, payload: GameMove, context: Context) -> None:
        case = self._case_of(state, context, payload.task)
        move(case, payload.window, payload.game, payload.number, context.sender, payload.move)
        self._done(state, case, context)

    def seal(self, state: Overlay, payload: NewChallenge, context: Context) -> None:
        case = self._case_of(state, context, payload.task)
        seal_challenge(case, payload.window, context.sender, payload.seal, payload.bond)
        self._done(state, case, context)

    def open(self, state: Overlay, payload: OpenedChallenge, context: Context) -> None:
        case = self._case_of(state, context, payload.task)
        root = payload.work_digest, payload.state_root_after, payload.loss_bits
        open_challenge(
            case, payload.window, payload.challenge, context.sender, payload.segment, root, payload.salt
        )
        self._done(state, case, context)

    def resume(self, state: Overlay, payload: Resumption, context: Context) -> None:
        case = self._case_of(state, context, payload.task)
        resume(case, payload.window, payload.game, context.sender, payload.amount)
        self._done(state, case, context)

    def show(self, state: Overlay, payload: ShownBreak, context: Context) -> None:
        case = self._case_of(state, context, payload.task)
        show_break(case, payload.window, context.sender, payload.shown)
        self._done(state, case, context)


def ticket_of_move(state: Reader, payload: GameMove, sender: bytes) -> Ticket | None:
    """Return a place in the lane for a move that is due from its sender (R42).

    A leader asks for it for all moves that wait. Who plays no such game is told by one look into the index.
    """
    if state.get(by_player_key(sender, payload.task, payload.window, payload.game)) is None:
        return None
    try:
        dispute = load_dispute(state, payload.task, payload.window, payload.game)
        window = load_window(state, payload.task, payload.window)
    except (DisputeUnknown, WindowUnknown):
        return None
    is_due = dispute.phase in (DisputePhase.OPENING, DisputePhase.RUNNING) and payload.number == dispute.moves
    if not is_due or sender != player_of(window, dispute, dispute.clock.side):
        return None
    place = payload.window.to_bytes(4, "big") + payload.game.to_bytes(4, "big")
    return Ticket(payload.task + place, dispute.deadline_ms)


def dispute_rules(case_of: CaseOf) -> tuple[Rule[Any], ...]:
    """Return the kinds of transactions of disputes."""
    disputes = _Disputes(case_of)
    own = (
        Rule(MOVE, "move", MOVE_GAS, _decode_move, lambda _: 0, disputes.move, ticket=ticket_of_move),
        # It may call the next challenges of the window, and looks at its games.
        Rule(SEAL_CHALLENGE, "seal_challenge", 620_000, _decode_seal, lambda p: p.bond, disputes.seal),
        Rule(OPEN_CHALLENGE, "open_challenge", 380_000, _decode_open, lambda _: 0, disputes.open),
        Rule(RESUME_DISPUTE, "resume_dispute", 500_000, _decode_resume, lambda p: p.amount, disputes.resume),
        Rule(SHOW_BREAK, "show_break", SHOW_GAS, _decode_show, lambda _: 0, disputes.show),
    )
    return tuple(replace(rule, call=_CALLS[rule.kind]) for rule in own)
