"""What a validator judges in a dispute: openings, one element, the terms of one block (market.md 7.7).

An element is wrong if and only if its reference function, on the accused's own committed inputs, gives another
value than the accused's own committed result. Values are compared by their bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Final, NamedTuple, cast

from state.primitives.merkle import MerkleProof, verify_merkle_proof
from tasks.dispute.commitments import Question
from tasks.dispute.errors import MoveInconsistent
from tasks.dispute.moves import TensorOpening
from tasks.programs.divergence import diverged_place
from tasks.programs.errors import ElementDiverged, ElementUndefined, ProgramInvalid
from tasks.programs.operators import Context, FoldOperator, Operator, Read
from tasks.programs.program import Call, Place, PlaceKind, Program
from tasks.programs.states import tensor_leaf
from tasks.programs.tensors import Number, TensorType, leaf_of, pack_values, unpack_leaf

__all__ = ["Commitments", "Element", "Opened", "element_of", "open_tensors", "tensor_is_under"]


# A liar's values need not be numbers: what no arithmetic is defined for is no reason to stop a validator.
_UNDEFINED: Final = (ElementUndefined, ProgramInvalid, ArithmeticError, ValueError)


class Commitments(NamedTuple):
    """What the accused is bound to in the disputed step."""

    step: int
    state_before: bytes
    state_after: bytes
    trace_root: bytes
    probe_root: bytes
    store: int | None = None
    """The store with which the step is claimed to diverge: ``trace_root`` is over all results before it."""

    def place(self, program: Program, tensor: int) -> Place:
        """Return where the root of a tensor stands. Raises IndexError for one that has none."""
        if self.store is not None:
            return diverged_place(program, self.store, tensor)
        if tensor < 0:
            raise IndexError(tensor)
        return program.places[tensor]

    def traced(self, program: Program) -> int:
        """Return how many tensors the trace covers."""
        return len(program.traced) if self.store is None else self.store - len(program.sources)


class Element(NamedTuple):
    """One value of the result of one call."""

    tensor: int
    row: int
    column: int


class Opened:
    """Leaves of tensors that were shown to stand under the accused's commitments, by (tensor, leaf)."""

    def __init__(self, program: Program, leaves: Mapping[tuple[int, int], bytes]) -> None:
        """Raises MoveInconsistent for a leaf of another length."""
        self._program = program
        self._leaves = leaves
        try:
            self._values = {
                (tensor, leaf): unpack_leaf(program.types[tensor], leaf, content)
                for (tensor, leaf), content in leaves.items()
            }
        except ProgramInvalid as error:
            raise MoveInconsistent(str(error)) from None

    def value(self, tensor: int, row: int, column: int) -> Number:
        """Return a value. Raises MoveInconsistent if it was not opened."""
        key, at = self._place(tensor, row, column)
        return self._values[key][at]

    def bits(self, tensor: int, row: int, column: int) -> bytes:
        """Return the bytes of a value as they were committed to. Raises MoveInconsistent if it was not opened."""
        key, at = self._place(tensor, row, column)
        size = self._program.types[tensor].element.size
        return self._leaves[key][at * size : (at + 1) * size]

    def _place(self, tensor: int, row: int, column: int) -> tuple[tuple[int, int], int]:
        try:
            leaf, at = leaf_of(self._program.types[tensor], row, column)
        except IndexError:
            raise MoveInconsistent("a value outside of its tensor") from None
        if (tensor, leaf) not in self._values:
            raise MoveInconsistent(f"value {row}, {column} of tensor {tensor} was not opened")
        return (tensor, leaf), at


def tensor_is_under(
    question: Question, bound: Commitments, tensor: int, root: bytes, siblings: tuple[bytes, ...]
) -> bool:
    """Tell whether ``root`` is that of a tensor by the accused's commitments."""
    program = question.program
    try:
        kind, position = bound.place(program, tensor)
    except IndexError:
        return False
    match kind:
        case PlaceKind.PROBE:
            return not siblings and root == bound.probe_root
        case PlaceKind.TRACE:
            proof = MerkleProof(position, bound.traced(program), siblings)
            return verify_merkle_proof(bound.trace_root, root, proof)
        case PlaceKind.BEFORE | PlaceKind.ADAPTER:
            source = program.sources[tensor]
            leaf = tensor_leaf(source.key, program.types[tensor], root)
            state = bound.state_before if kind == PlaceKind.BEFORE else question.adapter
            proof = MerkleProof(position + 1, 1 + program.count(source.kind), siblings)
            return verify_merkle_proof(state, leaf, proof)
        case PlaceKind.DATA | PlaceKind.MODEL:
            source = program.sources[tensor]
            leaf = tensor_leaf(source.key, program.types[tensor], root)
            given = question.data if kind == PlaceKind.DATA else question.model
            return verify_merkle_proof(given, leaf, MerkleProof(position, program.count(source.kind), siblings))
        case PlaceKind.AFTER:
            proof = MerkleProof(position + 1, len(program.stored) + 1, siblings)
            leaf = tensor_leaf(program.stored[position][0], program.types[tensor], root)
            return verify_merkle_proof(bound.state_after, leaf, proof)


def open_tensors(question: Question, bound: Commitments, openings: Sequence[TensorOpening]) -> Opened:
    """Check openings and return their values. Raises MoveInconsistent."""
    program = question.program
    leaves: dict[tuple[int, int], bytes] = {}
    for opening in openings:
        if not tensor_is_under(question, bound, opening.tensor, opening.root, opening.siblings):
            raise MoveInconsistent(f"tensor {opening.tensor} does not stand under the commitments of the step")
        kind = program.types[opening.tensor]
        for leaf in opening.leaves:
            proof = MerkleProof(leaf.leaf, kind.leaves, leaf.siblings)
            if not verify_merkle_proof(opening.root, leaf.content, proof):
                raise MoveInconsistent(
                    f"leaf {leaf.leaf} does not stand under the root of tensor {opening.tensor}"
                )
            leaves[opening.tensor, leaf.leaf] = leaf.content
    return Opened(program, leaves)


class JudgedCall:
    """The call that made an element, ready to be judged on opened values."""

    def __init__(self, question: Question, step: int, element: Element) -> None:
        """Raises MoveInconsistent if the element is of no call."""
        program = question.program
        tensor, row, column = element
        try:
            call = program.call_of(tensor)
        except IndexError:
            call = None
        if call is None:
            raise MoveInconsistent("the element is of a tensor that no call made")
        self.element = element
        self.type: TensorType = program.types[tensor]
        if not (row < self.type.rows and column < self.type.columns):
            raise MoveInconsistent("the element is outside of its tensor")
        self.call: Call = call
        self.operator: Operator = program.operators[call.operator]
        self.inputs = [program.types[at] for at in call.inputs]
        self._context = Context(step, question.seed)

    @property
    def fold(self) -> FoldOperator | None:
        """The operator, if it folds terms."""
        return cast("FoldOperator", self.operator) if hasattr(self.operator, "combine") else None

    @property
    def terms(self) -> int:
        """Number of terms of a fold; 0 for other operators."""
        fold = self.fold
        return 0 if fold is None else fold.length(self.inputs, self.call.attributes)

    def claimed(self, opened: Opened) -> bytes:
        """Return the bytes of the accused's value. Raises MoveInconsistent."""
        return opened.bits(*self.element)

    def _bytes(self, value: Number) -> bytes:
        return pack_values(self.type.element, [value])

    def value(self, read: Read) -> Number:
        """Return the right value of the element. Raises what its reference function raises."""
        _, row, column = self.element
        return self.operator.element(read, self.inputs, self.call.attributes, self._context, row, column)

    def term(self, read: Read, index: int) -> int:
        """Return one term of a fold. Raises what its reference function raises."""
        assert self.fold is not None
        _, row, column = self.element
        return self.fold.term(read, self.inputs, self.call.attributes, row, column, index)

    def value_of_fold(self, read: Read, total: int) -> Number:
        """Return the element from the fold of all terms. Raises what its reference function raises."""
        assert self.fold is not None
        _, row, column = self.element
        return self.fold.finish(read, self.inputs, self.call.attributes, row, column, total)

    def combined(self, values: Sequence[int]) -> int:
        """Return the fold of partial folds, of which there is one at least."""
        assert self.fold is not None
        return reduce(self.fold.combine, values)

    def computed(self, opened: Opened) -> bytes | None:
        """Return the bytes of the right value; None if undefined on these inputs. Raises MoveInconsistent.

        No bytes at all are right for a value with which the step diverged.
        """
        try:
            return self._bytes(self.value(self._read(opened)))
        except ElementDiverged:
            return b""
        except _UNDEFINED:
            return None

    def diverges(self, opened: Opened) -> bool:
        """Tell whether a store has no value of what was opened. Raises MoveInconsistent.

        What is no number shows nothing: a step meets none.
        """
        try:
            self.value(self._read(opened))
        except ElementDiverged:
            return True
        except _UNDEFINED:
            pass
        return False

    def finished(self, opened: Opened, total: int) -> bytes | None:
        """Return the bytes of the element of a fold; None if undefined. Raises MoveInconsistent."""
        try:
            return self._bytes(self.value_of_fold(self._read(opened), total))
        except _UNDEFINED:
            return None

    def folded(self, opened: Opened, first: int, count: int) -> int | None:
        """Return the fold of a block of terms; None if a term is undefined. Raises MoveInconsistent."""
        read = self._read(opened)
        try:
            return self.combined([self.term(read, index) for index in range(first, first + count)])
        except _UNDEFINED:
            return None

    def _read(self, opened: Opened) -> Read:
        tensors = self.call.inputs

        def read(source: int, row: int, column: int) -> Number:
            value = opened.value(tensors[source], row, column)
            if isinstance(value, float) and math.isnan(value):
                raise ElementUndefined("bits of a NaN do not survive a copy on every machine")
            return value

        return read


def element_of(question: Question, step: int, element: Element) -> JudgedCall:
    """Return the call of an element. Raises MoveInconsistent."""
    return JudgedCall(question, step, element)
