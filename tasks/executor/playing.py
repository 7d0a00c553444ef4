"""One side of a dispute in a job's process: the order, the messages, and the player (market.md 7.7).

The process re-runs the segment once. Then it answers with the move that is due after all moves so far. It waits
for more moves of the same game, so that a long segment is not run again for each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from state.primitives.codec import Value
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES
from tasks.dispute.commitments import Question, SegmentWitness, StepRecord, record_of, record_value
from tasks.dispute.errors import NoMove
from tasks.dispute.game import MOVES_MAX, Side, begin, play, turn_of
from tasks.dispute.moves import MOVE_LIMIT_BYTES, Move, decode_move, encode_move
from tasks.dispute.players import Accused, Challenger
from tasks.programs.divergence import Divergence, divergence_from_value, divergence_to_value
from tasks.spec import JobSpec, decode_spec, encode_spec

__all__ = [
    "ANSWER_LIMIT_BYTES", "MOVES_LIMIT_BYTES", "MoreMoves", "Play", "Played", "Player",
    "moves_from", "play_from", "play_to_value",
]  # fmt: skip

MOVES_LIMIT_BYTES: Final = MOVES_MAX * (MOVE_LIMIT_BYTES + 8)
"""All moves of a game in one frame."""
ANSWER_LIMIT_BYTES: Final = MOVE_LIMIT_BYTES + 4096
"""A frame of a process that plays."""
STEPS_MAX: Final = 1 << 40


@dataclass(frozen=True)
class Play:
    """To the process: play ``side`` of the dispute about a segment, after ``moves``.

    ``state`` is the encoded state before the segment, of ``state_root``. ``end`` is what the accused committed to.
    ``secret`` is a challenger's, for a segment that should have diverged.
    """

    spec: JobSpec
    dataset: bytes
    state: bytes
    state_root: bytes
    step_from: int
    steps: int
    side: Side
    end: StepRecord
    secret: bytes | None
    moves: tuple[bytes, ...]
    diverged: Divergence | None = None
    """How the segment is claimed to diverge in its last step."""
    model: bytes = b""
    """Blob of the frozen model, of a job that has one."""

    @property
    def step_to(self) -> int:
        """Step after the segment's last."""
        return self.step_from + self.steps


@dataclass(frozen=True)
class MoreMoves:
    """To the process: moves that followed those it knows."""

    moves: tuple[bytes, ...]


@dataclass(frozen=True)
class Played:
    """From the process: the move that is due. Empty: what was computed contradicts this side (NoMove)."""

    move: bytes


def play_to_value(order: Play) -> list[Value]:
    """Return an order as a codec value, with the size of its model alone."""
    return [
        encode_spec(order.spec), order.dataset, order.state, order.state_root, order.step_from, order.steps,
        int(order.side), record_value(order.end), order.secret, list(order.moves),
        [] if order.diverged is None else divergence_to_value(order.diverged), len(order.model),
    ]  # fmt: skip


def play_from(value: list[Any], model: bytes = b"") -> Play:
    """Return the order of a decoded codec value, about a model that came as a file. Raises DecodeError."""
    match value:
        case [
            bytes(spec), bytes(dataset), bytes(state), bytes(root), int(step_from), int(steps), (1 | 2) as side,
            list(end), (bytes() | None) as secret, list(moves), list(diverged), int(size),
        ] if len(root) == HASH_BYTES and 0 <= step_from < STEPS_MAX and 0 < steps < STEPS_MAX and (
            secret is None or len(secret) == HASH_BYTES
        ) and size == len(model):  # fmt: skip
            return Play(
                decode_spec(spec), dataset, state, root, step_from, steps, Side(side), record_of(end), secret,
                moves_from(moves), divergence_from_value(diverged) if diverged else None, model,
            )  # fmt: skip
    raise DecodeError("not an order to play")


def moves_from(value: list[Any]) -> tuple[bytes, ...]:
    """Return encoded moves of a decoded codec value. Raises DecodeError."""
    if len(value) > MOVES_MAX or not all(type(move) is bytes and len(move) <= MOVE_LIMIT_BYTES for move in value):
        raise DecodeError("not moves of a game")
    return tuple(value)


class Player:
    """Plays one side. It replays the game from its moves, so it needs no other memory."""

    def __init__(self, question: Question, side: Side, witness: SegmentWitness) -> None:
        """``witness`` is what this machine computed."""
        self._question, self._side = question, side
        self._game = begin(question)
        self._moves: list[Move] = []
        self._accused, self._challenger = Accused(question, witness), Challenger(question, witness)

    def hear(self, moves: Sequence[bytes]) -> None:
        """Take further moves of the game. Raises DecodeError, MoveRefused: no chain has such a game."""
        for data in moves:
            move = decode_move(data)
            side = turn_of(self._game)
            if side is None:
                raise DecodeError("a move after the end of the game")
            self._game = play(self._question, self._game, side, move)
            self._moves.append(move)

    def answer(self) -> bytes:
        """Return the move that is due; nothing if this side is wrong. Raises DecodeError if it is not its turn."""
        if turn_of(self._game) is not self._side:
            raise DecodeError("it is not this side's turn")
        try:
            if self._side is Side.ACCUSED:
                return encode_move(self._accused.move(self._game))
            return encode_move(self._challenger.move(self._game, self._moves))
        except NoMove:
            return b""
