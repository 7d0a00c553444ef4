"""A game as a record of the chain: its canonical bytes (market.md 7.7)."""

from __future__ import annotations

from typing import Any, Final

from state.primitives.codec import Value, decode, encode
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES
from state.primitives.merkle import LEAVES_MAX
from tasks.dispute.commitments import record_of, record_value
from tasks.dispute.game import MOVES_MAX, Descent, Ending, Fold, Game, Interval, Stage
from tasks.dispute.judge import Element
from tasks.dispute.moves import FANOUT, FOLD_LIMIT, RECORDS_MAX, TENSOR_NUMBER_MAX, Tree
from tasks.programs.tensors import DIMENSION_MAX

__all__ = ["GAME_LIMIT_BYTES", "decode_game", "encode_game"]

GAME_LIMIT_BYTES: Final = 2 * 1024
"""A game has at most RECORDS_MAX records, FANOUT hashes or FANOUT partial folds, and little else."""
STEPS_MAX: Final = 1 << 32


def encode_game(game: Game) -> bytes:
    """Return the canonical bytes of a game."""
    first, steps, start, end = game.interval
    return encode([
        int(game.stage),
        [first, steps, record_value(start), record_value(end)],
        game.moves,
        [record_value(record) for record in game.records],
        game.trace_root,
        game.probe_root,
        None if game.descent is None else list(game.descent),
        list(game.shown),
        None if game.element is None else list(game.element),
        None if game.fold is None else list(game.fold),
        list(game.partials),
        0 if game.ending is None else int(game.ending),
    ])  # fmt: skip


def decode_game(data: bytes) -> Game:
    """Return the game of canonical bytes. Raises DecodeError."""
    match decode(data, limit_bytes=GAME_LIMIT_BYTES):
        case [
            int(stage), list(interval), int(moves), list(records), bytes(trace), bytes(probe),
            (list() | None) as descent, list(shown), (list() | None) as element, (list() | None) as fold,
            list(partials), int(ending),
        ] if (
            0 <= moves <= MOVES_MAX and len(records) <= RECORDS_MAX
            and len(trace) in (0, HASH_BYTES) and len(probe) in (0, HASH_BYTES)
            and len(shown) <= FANOUT
            and all(type(item) is bytes and len(item) <= HASH_BYTES for item in shown)
            and len(partials) <= FANOUT and all(_is_fold(value) for value in partials)
        ):  # fmt: skip
            return Game(
                stage=_member(Stage, stage),
                interval=_interval(interval),
                moves=moves,
                records=tuple(record_of(record) for record in records),
                trace_root=trace,
                probe_root=probe,
                descent=None if descent is None else _descent(descent),
                shown=tuple(shown),
                element=None if element is None else _element(element),
                fold=None if fold is None else _fold(fold),
                partials=tuple(partials),
                ending=None if ending == 0 else _member(Ending, ending),
            )
    raise DecodeError("not a game")


def _member(kind: Any, number: int) -> Any:
    try:
        return kind(number)
    except ValueError as error:
        raise DecodeError(str(error)) from None


def _is_fold(value: Value) -> bool:
    return type(value) is int and -FOLD_LIMIT <= value < FOLD_LIMIT


def _interval(value: list[Any]) -> Interval:
    match value:
        case [int(first), int(steps), start, end] if 0 <= first < first + steps <= STEPS_MAX:
            return Interval(first, steps, record_of(start), record_of(end))
    raise DecodeError("not an interval of steps")


def _descent(value: list[Any]) -> Descent:
    match value:
        case [
            (Tree.TRACE | Tree.AFTER | Tree.TENSOR) as tree, int(tensor), bytes(root), int(leaves),
            int(level), int(position), bytes(node),
        ] if (
            0 <= tensor < TENSOR_NUMBER_MAX and len(root) == HASH_BYTES and 0 < leaves <= LEAVES_MAX
            and 0 <= level <= LEAVES_MAX.bit_length() and 0 <= position < LEAVES_MAX
            and len(node) in (0, HASH_BYTES)
        ):  # fmt: skip
            return Descent(tree, tensor, root, leaves, level, position, node)
    raise DecodeError("not a descent")


def _element(value: list[Any]) -> Element:
    match value:
        case [int(tensor), int(row), int(column)] if (
            0 <= tensor < TENSOR_NUMBER_MAX and 0 <= row < DIMENSION_MAX and 0 <= column < DIMENSION_MAX
        ):
            return Element(tensor, row, column)
    raise DecodeError("not an element")


def _fold(value: list[Any]) -> Fold:
    match value:
        case [int(first), int(terms), (int() | None) as total] if (
            0 <= first < DIMENSION_MAX and 0 < terms <= DIMENSION_MAX and (total is None or _is_fold(total))
        ):
            return Fold(first, terms, total)
    raise DecodeError("not a fold")
