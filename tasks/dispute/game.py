"""The game between the accused of a segment and its challenger: a pure state machine (market.md 7.7).

The challenger says that a segment is wrong. The two search for a step whose start they agree on and whose end they
do not. The accused commits to that step's trace, and the challenger names one element. Validators judge it. No
majority decides: a challenger cannot be outvoted, only refuted.

``play`` gives the game after a move. A move that is not due raises MoveRefused and changes nothing. A move that
contradicts its own side's commitments ends the game against its side.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from state.primitives.hashing import HASH_BYTES
from state.primitives.merkle import (
    MerkleProof,
    ancestor_of,
    leaf_hash,
    level_width,
    root_of_top,
    verify_merkle_proof,
)
from tasks.dispute.commitments import Question, StepRecord
from tasks.dispute.errors import MoveInconsistent, MoveRefused
from tasks.dispute.judge import Commitments, Element, element_of, open_tensors, tensor_is_under
from tasks.dispute.moves import (
    CONTENT_LIMIT_BYTES,
    FANOUT,
    Ask,
    Move,
    Name,
    Nodes,
    Partials,
    Pick,
    PickTerms,
    ShowDiverged,
    ShowRecords,
    ShowTrace,
    Tree,
)
from tasks.programs.divergence import diverged_root, extend_diverged
from tasks.programs.program import PlaceKind
from tasks.programs.states import step_leaf, tensor_leaf
from tasks.programs.tensors import leaf_size
from tasks.programs.work import add_losses, extend_work

__all__ = [
    "MOVES_MAX",
    "Descent",
    "Ending",
    "Fold",
    "Game",
    "Interval",
    "Side",
    "Stage",
    "begin",
    "blocks_of",
    "parts_of",
    "play",
    "turn_of",
]

MOVES_MAX: Final = 96
"""Longest game: the search of a step, then three trees and a fold, all on chain, is below it."""
DEPTH: Final = FANOUT.bit_length() - 1
"""Levels of a binary tree that one answer goes down."""


class Side(IntEnum):
    """Who plays."""

    ACCUSED = 1
    CHALLENGER = 2

    @property
    def other(self) -> Side:
        """The opponent."""
        return Side.CHALLENGER if self is Side.ACCUSED else Side.ACCUSED


class Stage(IntEnum):
    """What the next move is."""

    SHOW_RECORDS = 1
    """The accused shows records between the parts of the interval in question."""
    PICK_PART = 2
    """The challenger picks one of the parts."""
    TRACE = 3
    """The accused commits to the disputed step's trace."""
    NAME = 4
    """The challenger names an element, or asks for a tree."""
    SHOW = 5
    """The accused shows nodes of the tree that is descended."""
    PICK = 6
    """The challenger picks one of them."""
    FOLD_SHOW = 7
    """The accused shows partial folds of the named element."""
    FOLD_PICK = 8
    """The challenger picks one of them."""
    OVER = 9


class Ending(IntEnum):
    """How a game was decided. The first three show that the accused is dishonest."""

    ELEMENT_WRONG = 1
    COMMITMENT_BROKEN = 2
    ACCUSED_INCONSISTENT = 3
    """The accused made a move that contradicts its own commitments. Honest software never does."""
    ELEMENT_RIGHT = 4
    CHALLENGER_INCONSISTENT = 5
    MOVES_EXHAUSTED = 6
    """The challenger named nothing within MOVES_MAX moves."""

    @property
    def loser(self) -> Side:
        """Who loses."""
        return Side.ACCUSED if self <= Ending.ACCUSED_INCONSISTENT else Side.CHALLENGER


class Interval(NamedTuple):
    """Steps ``first`` to ``first + steps`` of the segment. Both sides agree on its start; its end is disputed."""

    first: int
    steps: int
    start: StepRecord
    end: StepRecord


class Descent(NamedTuple):
    """A node of a tree that is being searched. ``node`` is empty at the top, which is known by the root alone."""

    tree: int
    tensor: int
    root: bytes
    leaves: int
    level: int
    position: int
    node: bytes

    @property
    def lower(self) -> int:
        """The level that the next answer shows."""
        return max(0, self.level - DEPTH)

    @property
    def width(self) -> int:
        """Nodes that the next answer shows."""
        depth = self.level - self.lower
        return min(1 << depth, level_width(self.leaves, self.lower) - (self.position << depth))


class Fold(NamedTuple):
    """Terms ``first`` to ``first + terms`` of the named element; ``total`` is the accused's, None at the start."""

    first: int
    terms: int
    total: int | None


class Game(NamedTuple):
    """A game after its moves so far.

    ``records`` were shown in the interval; ``shown`` are nodes of a tree, or the claimed value of an element.
    ``trace_root`` and ``probe_root`` are what the accused committed to for the disputed step.
    """

    stage: Stage
    interval: Interval
    moves: int = 0
    records: tuple[StepRecord, ...] = ()
    trace_root: bytes = b""
    probe_root: bytes = b""
    descent: Descent | None = None
    shown: tuple[bytes, ...] = ()
    element: Element | None = None
    fold: Fold | None = None
    partials: tuple[int, ...] = ()
    ending: Ending | None = None

    @property
    def step(self) -> int:
        """The disputed step's place in the segment; -1 while it is unknown."""
        return self.interval.first if self.interval.steps == 1 else -1


_TURNS: Final = {
    Stage.SHOW_RECORDS: Side.ACCUSED, Stage.TRACE: Side.ACCUSED, Stage.SHOW: Side.ACCUSED,
    Stage.FOLD_SHOW: Side.ACCUSED,
    Stage.PICK_PART: Side.CHALLENGER, Stage.NAME: Side.CHALLENGER, Stage.PICK: Side.CHALLENGER,
    Stage.FOLD_PICK: Side.CHALLENGER,
}  # fmt: skip


def turn_of(game: Game) -> Side | None:
    """Return whose move is due; None when the game is over."""
    return _TURNS.get(game.stage)


def _descent(tree: int, tensor: int, root: bytes, leaves: int) -> Descent:
    return Descent(tree, tensor, root, leaves, (leaves - 1).bit_length(), 0, b"")


def begin(question: Question) -> Game:
    """Return the game at its start: the whole segment is in question."""
    return _in_question(Interval(0, question.steps, question.start, question.end))


def _in_question(interval: Interval, moves: int = 0) -> Game:
    return Game(Stage.TRACE if interval.steps == 1 else Stage.SHOW_RECORDS, interval, moves)


def parts_of(steps: int) -> list[int]:
    """Return the sizes of the parts into which an interval of two steps or more is divided: at most FANOUT."""
    size = -(-steps // FANOUT)
    return [min(size, steps - at) for at in range(0, steps, size)]


def blocks_of(count: int) -> list[int]:
    """Return the sizes of the blocks into which ``count`` terms of a fold are divided: at most FANOUT."""
    size = FANOUT
    while size * FANOUT < count:
        size *= FANOUT
    return [min(size, count - at) for at in range(0, count, size)]


def play(question: Question, game: Game, side: Side, move: Move) -> Game:
    """Return the game after a move of ``side``. Raises MoveRefused."""
    if turn_of(game) is not side:
        raise MoveRefused("it is not this side's turn")
    game = game._replace(moves=game.moves + 1)
    try:
        game = _played(question, game, move)
    except MoveInconsistent:
        ending = Ending.ACCUSED_INCONSISTENT if side is Side.ACCUSED else Ending.CHALLENGER_INCONSISTENT
        return _over(game, ending)
    if game.ending is None and game.moves >= MOVES_MAX:
        return _over(game, Ending.MOVES_EXHAUSTED)
    return game


def _over(game: Game, ending: Ending) -> Game:
    return game._replace(stage=Stage.OVER, ending=ending, records=(), shown=(), partials=(), descent=None)


def _played(question: Question, game: Game, move: Move) -> Game:
    match game.stage, move:
        case Stage.SHOW_RECORDS, ShowRecords(records):
            return _show_records(game, records)
        case Stage.PICK_PART, Pick(part):
            return _pick_part(game, part)
        case Stage.TRACE, ShowTrace() if question.store_at(game.step) is None:
            return _show_trace(question, game, move)
        case Stage.TRACE, ShowDiverged() if question.store_at(game.step) is not None:
            return _show_diverged(question, game, move)
        case Stage.SHOW, Nodes(nodes):
            return _show(question, game, nodes)
        case Stage.PICK, Pick(child):
            return _pick(game, child)
        case ((Stage.NAME | Stage.PICK), Ask()):
            return _ask(question, game, move)
        case ((Stage.NAME | Stage.PICK), Name()):
            return _name(question, game, move)
        case Stage.FOLD_SHOW, Partials():
            return _show_partials(question, game, move)
        case Stage.FOLD_PICK, PickTerms():
            return _pick_terms(question, game, move)
        case _:
            raise MoveRefused("another kind of move is due")


# Steps


def _show_records(game: Game, records: tuple[StepRecord, ...]) -> Game:
    due = len(parts_of(game.interval.steps)) - 1
    if len(records) != due:
        raise MoveInconsistent(f"{due} records are due")
    return game._replace(stage=Stage.PICK_PART, records=records)


def _pick_part(game: Game, part: int) -> Game:
    first, steps, start, end = game.interval
    parts, records = parts_of(steps), (start, *game.records, end)
    if part >= len(parts):
        raise MoveInconsistent("the interval has no such part")
    interval = Interval(first + sum(parts[:part]), parts[part], records[part], records[part + 1])
    return _in_question(interval, game.moves)


def _show_trace(question: Question, game: Game, move: ShowTrace) -> Game:
    program, start, end = question.program, game.interval.start, game.interval.end
    place = program.places[program.loss]
    assert place.kind == PlaceKind.TRACE
    loss_root = root_of_top(1, leaf_hash(move.loss.to_bytes(8, "little")))
    proof = MerkleProof(place.position, len(program.traced), move.loss_siblings)
    if not verify_merkle_proof(move.trace_root, loss_root, proof):
        raise MoveInconsistent("the loss is not under the trace")
    game = game._replace(stage=Stage.NAME, trace_root=move.trace_root, probe_root=move.probe_root)
    if (
        add_losses(start.loss_total, move.loss) != end.loss_total
        or extend_work(start.work_digest, move.probe_root, end.loss_total) != end.work_digest
    ):
        return _over(game, Ending.COMMITMENT_BROKEN)
    return game


def _show_diverged(question: Question, game: Game, move: ShowDiverged) -> Game:
    claim, start, end = question.diverged, game.interval.start, game.interval.end
    assert claim is not None
    game = game._replace(stage=Stage.NAME, trace_root=move.results_root)
    if (
        start.state_root != claim.state_before
        or end != (diverged_root(claim), extend_diverged(start.work_digest, move.results_root), start.loss_total)
    ):  # fmt: skip
        return _over(game, Ending.COMMITMENT_BROKEN)
    bound = _bound(question, game)
    store = element_of(question, bound.step, Element(claim.store, claim.row, claim.column))
    if not store.diverges(open_tensors(question, bound, move.openings)):
        return _over(game, Ending.COMMITMENT_BROKEN)
    return game


# Trees


def _show(question: Question, game: Game, nodes: tuple[bytes, ...]) -> Game:
    at = game.descent
    assert at is not None
    if len(nodes) != at.width:
        raise MoveInconsistent(f"{at.width} nodes are due")
    hashes = nodes
    if at.lower == 0:
        if any(len(node) > CONTENT_LIMIT_BYTES for node in nodes):
            raise MoveInconsistent("too large for a leaf")
        hashes = tuple(leaf_hash(node) for node in nodes)
    elif any(len(node) != HASH_BYTES for node in nodes):
        raise MoveInconsistent("a node is a hash")
    above = ancestor_of(hashes, at.level - at.lower)
    expected = above == at.node if at.node else root_of_top(at.leaves, above) == at.root
    if not expected:
        raise MoveInconsistent("the nodes are not those below the node in question")
    if at.lower:
        return game._replace(stage=Stage.PICK, shown=nodes)
    first = at.position << (at.level - at.lower)
    if not all(_is_leaf(question, game, at, first + place, node) for place, node in enumerate(nodes)):
        return _over(game, Ending.COMMITMENT_BROKEN)
    return game._replace(stage=Stage.NAME, descent=None, shown=())


def _is_leaf(question: Question, game: Game, at: Descent, leaf: int, content: bytes) -> bool:
    """Tell whether a tree that the accused committed to has a leaf of the right form in a place."""
    program = question.program
    match at.tree:
        case Tree.TRACE:
            return len(content) == HASH_BYTES
        case Tree.AFTER if leaf == 0:
            return content == step_leaf(question.step_from + game.step + 1)
        case Tree.AFTER:
            name, tensor = program.stored[leaf - 1]
            return content == tensor_leaf(name, program.types[tensor], content[-HASH_BYTES:])
        case _:
            return len(content) == leaf_size(program.types[at.tensor], leaf)


def _pick(game: Game, child: int) -> Game:
    at = game.descent
    assert at is not None
    if child >= len(game.shown):
        raise MoveInconsistent("no such node was shown")
    position = (at.position << (at.level - at.lower)) + child
    below = at._replace(level=at.lower, position=position, node=game.shown[child])
    return game._replace(stage=Stage.SHOW, descent=below, shown=())


def _bound(question: Question, game: Game) -> Commitments:
    first, _, start, end = game.interval
    return Commitments(
        question.step_from + first, start.state_root, end.state_root, game.trace_root, game.probe_root,
        question.store_at(game.step),
    )  # fmt: skip


def _ask(question: Question, game: Game, move: Ask) -> Game:
    program, bound = question.program, _bound(question, game)
    match move.tree:
        case Tree.TRACE:
            descent = _descent(Tree.TRACE, 0, game.trace_root, bound.traced(program))
        case Tree.AFTER if bound.store is not None:
            raise MoveInconsistent("there is no state after a step that diverges")
        case Tree.AFTER:
            descent = _descent(Tree.AFTER, 0, game.interval.end.state_root, len(program.stored) + 1)
        case _:
            if not tensor_is_under(question, bound, move.tensor, move.root, move.siblings):
                raise MoveInconsistent("the tensor does not stand under the commitments of the step")
            descent = _descent(Tree.TENSOR, move.tensor, move.root, program.types[move.tensor].leaves)
    return game._replace(stage=Stage.SHOW, descent=descent, shown=())


# Elements


def _name(question: Question, game: Game, move: Name) -> Game:
    bound = _bound(question, game)
    element = Element(move.tensor, move.row, move.column)
    call = element_of(question, bound.step, element)
    opened = open_tensors(question, bound, move.openings)
    claimed = call.claimed(opened)
    if call.terms > FANOUT:
        return game._replace(
            stage=Stage.FOLD_SHOW, element=element, fold=Fold(0, call.terms, None), descent=None, shown=(claimed,)
        )
    computed = call.computed(opened)
    # What is undefined follows from an element before it that is wrong: that one was to be named.
    wrong = computed is not None and computed != claimed
    return _over(game, Ending.ELEMENT_WRONG if wrong else Ending.ELEMENT_RIGHT)


def _show_partials(question: Question, game: Game, move: Partials) -> Game:
    fold, element, bound = game.fold, game.element, _bound(question, game)
    assert fold is not None and element is not None
    if len(move.values) != len(blocks_of(fold.terms)):
        raise MoveInconsistent("another number of partial folds is due")
    call = element_of(question, bound.step, element)
    total = call.combined(move.values)
    if fold.total is None:
        opened = open_tensors(question, bound, move.openings)
        if call.finished(opened, total) != game.shown[0]:
            raise MoveInconsistent("the partial folds do not make the claimed value")
    elif total != fold.total:
        raise MoveInconsistent("the partial folds do not make the one that was shown for all of them")
    return game._replace(stage=Stage.FOLD_PICK, partials=move.values, shown=())


def _pick_terms(question: Question, game: Game, move: PickTerms) -> Game:
    fold, element, bound = game.fold, game.element, _bound(question, game)
    assert fold is not None and element is not None
    blocks = blocks_of(fold.terms)
    if move.child >= len(blocks):
        raise MoveInconsistent("no such partial fold was shown")
    first, count = fold.first + sum(blocks[: move.child]), blocks[move.child]
    partial = game.partials[move.child]
    if count > FANOUT:
        return game._replace(stage=Stage.FOLD_SHOW, fold=Fold(first, count, partial), partials=())
    call = element_of(question, bound.step, element)
    folded = call.folded(open_tensors(question, bound, move.openings), first, count)
    wrong = folded is not None and folded != partial
    return _over(game, Ending.ELEMENT_WRONG if wrong else Ending.ELEMENT_RIGHT)
