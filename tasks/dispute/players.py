"""How honest software plays a dispute, for either side: a pure function from what it knows to its next move.

A player needs no memory: what it does follows from the question, the game and its moves as the chain has them, and
what it computed itself. So a node that restarts in the middle of a game goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Final

from tasks.dispute.commitments import Question, SegmentWitness, StepRecord, StepTrace
from tasks.dispute.errors import NoMove
from tasks.dispute.game import Descent, Game, Interval, Stage, blocks_of, parts_of
from tasks.dispute.judge import Element, JudgedCall, element_of
from tasks.dispute.moves import (
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
    TensorOpening,
    Tree,
)
from tasks.dispute.views import ChainView, ServedView, View, leaf_content, open_leaves
from tasks.programs.errors import ElementDiverged, ElementUndefined, ProgramInvalid
from tasks.programs.tensors import LEAF_BYTES, Number, leaf_of, leaves_of, unpack_leaf

__all__ = ["Accused", "Challenger", "Reader"]

_NOTHING: Final[tuple[TensorOpening, ...]] = ()


class Reader:
    """Runs the reference functions of one element on a trace, and notes which leaves they read."""

    def __init__(self, question: Question, trace: StepTrace, element: Element) -> None:
        self.call: JudgedCall = element_of(question, trace.step, element)
        self._trace = trace
        self.leaves: dict[int, set[int]] = {}

    def read(self, source: int, row: int, column: int) -> Number:
        """Return a value of an input."""
        tensor = self.call.call.inputs[source]
        kind = self._trace.program.types[tensor]
        leaf, at = leaf_of(kind, row, column)
        self.leaves.setdefault(tensor, set()).add(leaf)
        return unpack_leaf(kind, leaf, leaf_content(kind, self._trace.contents[tensor], leaf))[at]

    def read_element(self) -> None:
        """Read what an element follows from that is not a long fold."""
        self.call.value(self.read)

    def read_finish(self, total: int) -> None:
        """Read what an element takes from the whole of a fold."""
        self.call.value_of_fold(self.read, total)

    def terms(self, first: int, count: int) -> list[int]:
        """Return terms of a fold."""
        return [self.call.term(self.read, index) for index in range(first, first + count)]

    def partials(self, first: int, count: int) -> list[int]:
        """Return the folds of the blocks of terms ``first`` to ``first + count``."""
        partials, at = [], first
        for size in blocks_of(count):
            partials.append(self.call.combined(self.terms(at, size)))
            at += size
        return partials


def _places(interval: Interval) -> list[int]:
    """Return the places after which the parts of an interval end, its own end included."""
    return list(accumulate(parts_of(interval.steps), initial=interval.first))[1:]


class Accused:
    """Answers for a segment as its worker committed to it, by what this machine computes.

    It answers only while that is what was committed to: so no answer of honest software proves a lie against it.
    """

    def __init__(self, question: Question, witness: SegmentWitness) -> None:
        self._question = question
        self._witness = witness

    def move(self, game: Game) -> Move:
        """Return the move that is due. Raises NoMove if the commitment is not what was computed."""
        match game.stage:
            case Stage.SHOW_RECORDS:
                self._check(game.interval)
                return ShowRecords(tuple(map(self._witness.record, _places(game.interval)[:-1])))
            case Stage.TRACE:
                self._check(game.interval)
                return self._trace(game.step)
            case Stage.SHOW:
                assert game.descent is not None
                return Nodes(self._nodes(game.step, game.descent))
            case Stage.FOLD_SHOW:
                return self._partials(game)
            case _:
                raise ValueError(f"the accused has no move in {game.stage.name}")

    def _check(self, interval: Interval) -> None:
        for place, record in ((0, interval.start), (interval.steps, interval.end)):
            if self._witness.record(interval.first + place) != record:
                raise NoMove(f"the segment after {interval.first + place} steps is not what was committed to")

    def _nodes(self, step: int, at: Descent) -> tuple[bytes, ...]:
        trace = self._witness.trace(step)
        match at.tree:
            case Tree.TRACE:
                tree, leaves = trace.trace_tree, trace.trace_leaves
            case Tree.AFTER:
                tree, leaves = trace.after_tree, trace.after_leaves
            case _:
                kind = trace.program.types[at.tensor]
                tree, leaves = trace.tree(at.tensor), leaves_of(kind, trace.contents[at.tensor])
        depth = at.level - at.lower
        if at.lower:
            return tree.nodes(at.level, at.position, depth)
        first = at.position << depth
        return tuple(leaves[first : first + at.width])

    def _trace(self, step: int) -> Move:
        trace, claim = self._witness.trace(step), self._question.diverged
        if claim is not None and trace.store is not None:
            reader = Reader(self._question, trace, Element(claim.store, claim.row, claim.column))
            with suppress(ElementUndefined):  # it was read
                reader.read_element()
            return ShowDiverged(trace.trace_tree.root, open_leaves(ServedView(trace), reader.leaves))
        loss, probe = trace.program.loss, trace.program.probe
        return ShowTrace(trace.trace_tree.root, trace.root(probe), trace.loss, trace.path(loss))

    def _partials(self, game: Game) -> Move:
        assert game.fold is not None and game.element is not None
        trace = self._witness.trace(game.step)
        reader = Reader(self._question, trace, game.element)
        values = reader.partials(game.fold.first, game.fold.terms)
        openings = _NOTHING
        if game.fold.total is None:
            reader.leaves.clear()
            reader.read_finish(reader.call.combined(values))
            openings = open_leaves(ServedView(trace), reader.leaves)
        return Partials(tuple(values), openings)


def _first_difference(shown: Sequence[object], own: Sequence[object]) -> int:
    """Return the first place that differs; the last one if none does."""
    return next(
        (at for at, (left, right) in enumerate(zip(shown, own, strict=True)) if left != right), len(own) - 1
    )


class Challenger:
    """Shows that a segment is wrong, by what it computed itself.

    ``served`` is the trace of the disputed step that the accused gave off chain; it is used only if it is the one
    that the accused committed to.
    """

    def __init__(self, question: Question, witness: SegmentWitness, served: StepTrace | None = None) -> None:
        self._question = question
        self._witness = witness
        self._served = served
        self._checked: StepTrace | None = None

    def move(self, game: Game, moves: Sequence[Move]) -> Move:
        """Return the move that is due after ``moves``, which are all moves of the game so far.

        Raises NoMove if what is in question is right.
        """
        match game.stage:
            case Stage.PICK_PART:
                return self._pick_part(game)
            case Stage.PICK:
                return self._pick(game)
            case Stage.NAME:
                return self._search(game, moves)
            case Stage.FOLD_PICK:
                return self._pick_terms(game, moves)
            case _:
                raise ValueError(f"the challenger has no move in {game.stage.name}")

    def _pick_part(self, game: Game) -> Move:
        """Pick the first part whose end differs from one's own, so that both sides agree on its start."""
        shown: tuple[StepRecord, ...] = (*game.records, game.interval.end)
        for part, (place, record) in enumerate(zip(_places(game.interval), shown, strict=True)):
            if self._witness.record(place) != record:
                return Pick(part)
        raise NoMove("the segment is right: nothing differs in it")

    def _pick(self, game: Game) -> Move:
        at = game.descent
        assert at is not None
        depth = at.level - at.lower
        own = self._witness.trace(game.step)
        tree = {Tree.TRACE: own.trace_tree, Tree.AFTER: own.after_tree}.get(at.tree) or own.tree(at.tensor)
        return Pick(_first_difference(game.shown, tree.nodes(at.level, at.position, depth)))

    def _served_view(self, game: Game) -> StepTrace | None:
        """Return the trace that was served, if it is what the accused committed to.

        What the step starts from is taken from one's own trace: it is not disputed, and nothing here ties what was
        served of it to a root.
        """
        served = self._served
        if served is None:
            return None
        if self._checked is None:
            own = self._witness.trace(game.step)
            sources = len(own.program.sources)
            contents = [*own.contents[:sources], *served.contents[sources:]]
            try:
                trace = StepTrace(own.program, own.step, contents, own.store)
                if trace.trace_tree.root != game.trace_root:
                    return None
                if trace.store is None and (trace.after_tree.root, trace.root(trace.program.probe)) != (
                    game.interval.end.state_root, game.probe_root,
                ):  # fmt: skip
                    return None
            except (ProgramInvalid, ValueError):  # a tensor of another length, or another number of them
                return None
            self._checked = trace
        return self._checked

    def _search(self, game: Game, moves: Sequence[Move]) -> Move:
        own = self._witness.trace(game.step)
        served = self._served_view(game)
        if served is not None:
            count = len(own.program.types) if own.store is None else own.store
            differing = (number for number in range(count) if own.root(number) != served.root(number))
            tensor = next(differing, None)
            if tensor is None:
                raise NoMove("the disputed step is right: there is nothing to name")
            return self._name(own, tensor, served.contents[tensor], 0, ServedView(served))
        view = ChainView(self._question, game, own, moves)
        return self._ask(game, own, view)

    def _ask(self, game: Game, own: StepTrace, view: ChainView) -> Move:
        """Have the accused show the first wrong tensor and its first wrong leaf on chain; then name an element."""
        program = own.program
        if game.trace_root != own.trace_tree.root:
            tensor = view.wrong_traced()
            if tensor is None:
                return Ask(Tree.TRACE, 0, bytes(32), ())
        elif own.store is not None:
            raise NoMove("the step diverges as it is claimed: there is nothing to name")
        elif game.probe_root != own.root(program.probe):
            tensor = program.probe
        elif game.interval.end.state_root == own.after_tree.root:
            raise NoMove("the disputed step is right: there is nothing to name")
        else:
            at = view.first_difference(Tree.AFTER, 0, own.after_leaves)
            if at is None:
                return Ask(Tree.AFTER, 0, bytes(32), ())
            tensor = program.stored[at - 1][1]
        kind = program.types[tensor]
        leaf = view.first_difference(Tree.TENSOR, tensor, leaves_of(kind, own.contents[tensor]))
        if leaf is None:
            return Ask(Tree.TENSOR, tensor, view.root(tensor), view.path(tensor))
        return self._name(own, tensor, view.contents[Tree.TENSOR, tensor][leaf], leaf, view)

    def _name(self, own: StepTrace, tensor: int, shown: bytes, leaf: int, view: View) -> Move:
        """Name the first wrong element of ``shown``: values from the beginning of ``leaf`` on."""
        kind = own.program.types[tensor]
        size, per_row = kind.element.size, kind.leaves_per_row
        start = leaf // per_row * kind.row_bytes + leaf % per_row * LEAF_BYTES
        at = next(
            start + at
            for at in range(0, len(shown), size)
            if own.contents[tensor][start + at : start + at + size] != shown[at : at + size]
        )
        element = Element(tensor, *divmod(at // size, kind.columns))
        reader = Reader(self._question, own, element)
        if reader.call.terms <= FANOUT:
            with suppress(ElementDiverged):  # it was read, and no value is right
                reader.read_element()
        claimed, _ = leaf_of(kind, element.row, element.column)
        return Name(*element, open_leaves(view, {**reader.leaves, tensor: {claimed}}))

    def _pick_terms(self, game: Game, moves: Sequence[Move]) -> Move:
        assert game.fold is not None and game.element is not None
        own = self._witness.trace(game.step)
        reader = Reader(self._question, own, game.element)
        child = _first_difference(game.partials, reader.partials(game.fold.first, game.fold.terms))
        blocks = blocks_of(game.fold.terms)
        if blocks[child] > FANOUT:
            return PickTerms(child, _NOTHING)
        reader.leaves.clear()
        reader.terms(game.fold.first + sum(blocks[:child]), blocks[child])
        served = self._served_view(game)
        view = ServedView(served) if served is not None else ChainView(self._question, game, own, moves)
        return PickTerms(child, open_leaves(view, reader.leaves))
