"""What a worker commits to in a segment, and the trees over a step's tensors that a dispute opens (market.md 7.7).

A worker hashes its state at the end of a segment only. Where it stood after other steps it says in a dispute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

from state.primitives.codec import Value
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES
from state.primitives.merkle import MerkleTree
from tasks.programs.divergence import Divergence, diverged_place
from tasks.programs.program import Place, PlaceKind, Program, SourceKind
from tasks.programs.states import step_leaf, tensor_leaf
from tasks.programs.tensors import leaves_of, tensor_root
from tasks.programs.work import WORK_START, add_losses, extend_work

__all__ = ["Question", "SegmentWitness", "StepRecord", "StepTrace", "record_of", "record_value", "start_record"]

BITS_LIMIT: Final = 1 << 64
"""Bits of a binary64 are below it."""
TREES_KEPT: Final = 8
"""Trees of a trace that are kept, as many as a move opens tensors: all of a large step's take more memory than its
tensors."""


TREE_LEAVES_KEPT: Final = 1 << 20
"""Leaves of the trees that are kept, unless one alone has more; a leaf takes 300 bytes."""


class StepRecord(NamedTuple):
    """Where a segment stands after some of its steps: its state, its work digest, and the sum of its losses.

    ``loss_total`` are the bits of a binary64.
    """

    state_root: bytes
    work_digest: bytes
    loss_total: int


def start_record(state_root: bytes) -> StepRecord:
    """Return where a segment stands before its first step."""
    return StepRecord(state_root, WORK_START, 0)


def record_value(record: StepRecord) -> Value:
    """Return a record as a value to encode."""
    return list(record)


def record_of(value: Any) -> StepRecord:
    """Return the record of a decoded value. Raises DecodeError."""
    match value:
        case [bytes(state), bytes(work), int(loss)] if (
            len(state) == len(work) == HASH_BYTES and 0 <= loss < BITS_LIMIT
        ):
            return StepRecord(state, work, loss)
    raise DecodeError("not the record of a step")


class Question(NamedTuple):
    """What a dispute is about: one segment of one window, as its worker committed to it.

    ``start`` is not disputed; the window's verdict names the segment. ``end`` is what the accused claims after the
    last step. ``data`` is the root of the task's data, ``seed`` the job's, ``model`` the root of its frozen model,
    ``adapter`` that of the state with the model's adapters.
    ``diverged`` is what the accused claims of the last step if that diverges: then ``end`` stands for it.
    """

    program: Program
    seed: bytes
    data: bytes
    step_from: int
    steps: int
    start: StepRecord
    end: StepRecord
    model: bytes = b""
    diverged: Divergence | None = None
    adapter: bytes = b""

    def store_at(self, place: int) -> int | None:
        """Return the store with which a step, by its place in the segment, is claimed to diverge."""
        return None if self.diverged is None or place != self.steps - 1 else self.diverged.store


class StepTrace:
    """All tensors of one step as somebody computed them, with the trees over them. ``contents`` are by number.

    If the step is claimed to diverge, the trace covers the results of all calls before ``store``, and nothing
    stands from there on.
    """

    def __init__(
        self, program: Program, step: int, contents: Sequence[bytes], store: int | None = None,
        roots: Mapping[int, bytes] | None = None,
    ) -> None:  # fmt: skip
        """``step`` is the number of the step in the job, from 0. ``roots`` are those that are known already."""
        if len(contents) != len(program.types):
            raise ValueError(f"{len(contents)} tensors, the program has {len(program.types)}")
        self.program = program
        self.step = step
        self.contents = contents
        self.store = store
        self.traced: Sequence[int] = program.traced if store is None else range(len(program.sources), store)
        """Numbers of the tensors whose roots make the trace, in order."""
        self._roots = dict(roots or {})
        self._trees: dict[int, MerkleTree] = {}

    def place(self, tensor: int) -> Place:
        """Return where the root of a tensor stands. Raises IndexError for one that has none."""
        return (
            self.program.places[tensor] if self.store is None else diverged_place(self.program, self.store, tensor)
        )

    def root(self, tensor: int) -> bytes:
        """Return the root of a tensor."""
        if tensor not in self._roots:
            self._roots[tensor] = tensor_root(self.program.types[tensor], self.contents[tensor])
        return self._roots[tensor]

    def tree(self, tensor: int) -> MerkleTree:
        """Return the tree over the leaves of a tensor; the last TREES_KEPT that were asked for are kept."""
        tree = self._trees.pop(tensor, None)
        if tree is None:
            most = TREE_LEAVES_KEPT - self.program.types[tensor].leaves
            while self._trees and (len(self._trees) >= TREES_KEPT or self._tree_leaves() > most):
                del self._trees[next(iter(self._trees))]
            tree = MerkleTree(leaves_of(self.program.types[tensor], self.contents[tensor]))
        self._trees[tensor] = tree
        return tree

    def _tree_leaves(self) -> int:
        return sum(self.program.types[tensor].leaves for tensor in self._trees)

    @cached_property
    def trace_leaves(self) -> list[bytes]:
        """Leaves of the trace: the roots of its tensors."""
        return [self.root(number) for number in self.traced]

    @cached_property
    def trace_tree(self) -> MerkleTree:
        """Tree of the trace."""
        return MerkleTree(self.trace_leaves)

    @cached_property
    def before_tree(self) -> MerkleTree:
        """Tree of the state before the step."""
        return MerkleTree([step_leaf(self.step), *self._source_leaves(SourceKind.STATE)])

    @cached_property
    def after_leaves(self) -> list[bytes]:
        """Leaves of the state after the step."""
        types, stored = self.program.types, self.program.stored
        return [
            step_leaf(self.step + 1),
            *(tensor_leaf(name, types[number], self.root(number)) for name, number in stored),
        ]

    @cached_property
    def after_tree(self) -> MerkleTree:
        """Tree of the state after the step."""
        return MerkleTree(self.after_leaves)

    @cached_property
    def data_tree(self) -> MerkleTree:
        """Tree of the task's data."""
        return MerkleTree(self._source_leaves(SourceKind.DATA))

    @cached_property
    def model_tree(self) -> MerkleTree:
        """Tree of the frozen model."""
        return MerkleTree(self._source_leaves(SourceKind.MODEL))

    @cached_property
    def adapter_tree(self) -> MerkleTree:
        """Tree of the state with the model's adapters."""
        return MerkleTree([step_leaf(self.program.adapter_step), *self._source_leaves(SourceKind.ADAPTER)])

    def _source_leaves(self, kind: SourceKind) -> list[bytes]:
        named = sorted(
            (source.key, number) for number, source in enumerate(self.program.sources) if source.kind == kind
        )
        return [tensor_leaf(key, self.program.types[number], self.root(number)) for key, number in named]

    @property
    def loss(self) -> int:
        """The loss of the step, as the bits of a binary64."""
        return int.from_bytes(self.contents[self.program.loss], "little")

    def record(self, before: StepRecord) -> StepRecord:
        """Return where a segment stands after the step, which stood at ``before``."""
        loss_total = add_losses(before.loss_total, self.loss)
        probe_root = self.root(self.program.probe)
        return StepRecord(
            self.after_tree.root, extend_work(before.work_digest, probe_root, loss_total), loss_total
        )

    def path(self, tensor: int) -> tuple[bytes, ...]:
        """Return the siblings that tie a tensor's root to where it stands."""
        kind, position = self.place(tensor)
        match kind:
            case PlaceKind.BEFORE:
                return self.before_tree.siblings(position + 1)
            case PlaceKind.AFTER:
                return self.after_tree.siblings(position + 1)
            case PlaceKind.DATA:
                return self.data_tree.siblings(position)
            case PlaceKind.MODEL:
                return self.model_tree.siblings(position)
            case PlaceKind.ADAPTER:
                return self.adapter_tree.siblings(position + 1)
            case PlaceKind.TRACE:
                return self.trace_tree.siblings(position)
            case PlaceKind.PROBE:
                return ()


class SegmentWitness(NamedTuple):
    """What one who ran a segment can show: where it stood after so many steps, and the trace of a step.

    Both take a place in the segment: ``record(0)`` is the segment's start, ``record(place + 1)`` is where
    ``trace(place)`` leads.
    """

    record: Callable[[int], StepRecord]
    trace: Callable[[int], StepTrace]


def hashes(value: Any, most: int) -> tuple[bytes, ...]:
    """Return a list of hashes of a decoded value. Raises DecodeError for another value or more than ``most``."""
    if not isinstance(value, list) or len(value) > most:
        raise DecodeError(f"up to {most} hashes expected")
    if not all(type(item) is bytes and len(item) == HASH_BYTES for item in value):
        raise DecodeError("not a hash")
    return tuple(value)
