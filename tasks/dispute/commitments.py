"""What a worker commits to in a segment, and the trees over it that a dispute opens (market.md 7.7).

Each step has a record. The records of a segment have a Merkle root, the steps root, which stands under the
segment's seal. So nobody who did not do the work knows the probes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES
from state.primitives.merkle import MerkleTree, merkle_root
from tasks.programs.program import PlaceKind, Program, SourceKind
from tasks.programs.states import step_leaf, tensor_leaf
from tasks.programs.tensors import leaves_of
from tasks.programs.work import add_losses

__all__ = [
    "Question",
    "SegmentWitness",
    "StepRecord",
    "StepTrace",
    "decode_record",
    "encode_record",
    "steps_root",
]

RECORD_LIMIT_BYTES: Final = 96


class StepRecord(NamedTuple):
    """What a step ended in. ``loss_total`` is the sum of the segment's losses so far: bits of a binary64."""

    state_root: bytes
    probe_root: bytes
    loss_total: int


def encode_record(record: StepRecord) -> bytes:
    """Return the canonical bytes of a record: a leaf of the steps root."""
    return encode(list(record))


def decode_record(data: bytes) -> StepRecord:
    """Return the record of canonical bytes. Raises DecodeError."""
    match decode(data, limit_bytes=RECORD_LIMIT_BYTES):
        case [bytes(state), bytes(probe), int(loss)] if (
            len(state) == len(probe) == HASH_BYTES and 0 <= loss < 2**64
        ):
            return StepRecord(state, probe, loss)
    raise DecodeError("not the record of a step")


def steps_root(records: Sequence[StepRecord]) -> bytes:
    """Return the Merkle root over the records of a segment's steps."""
    return merkle_root([encode_record(record) for record in records])


class Question(NamedTuple):
    """What a dispute is about: one segment of one window, as its worker committed to it.

    ``state_before`` is not disputed; the window's verdict names the segment. ``loss_total`` is the sum of losses
    at its end. ``data`` is the root of the task's data, ``seed`` the job's.
    """

    program: Program
    seed: bytes
    data: bytes
    step_from: int
    steps: int
    state_before: bytes
    state_after: bytes
    steps_root: bytes
    loss_total: int


class StepTrace:
    """All tensors of one step as somebody computed them, with the trees over them. ``contents`` are by number."""

    def __init__(self, program: Program, step: int, contents: Sequence[bytes]) -> None:
        """``step`` is the number of the step in the job, from 0."""
        if len(contents) != len(program.types):
            raise ValueError(f"{len(contents)} tensors, the program has {len(program.types)}")
        self.program = program
        self.step = step
        self.contents = contents
        self._trees: dict[int, MerkleTree] = {}

    def tree(self, tensor: int) -> MerkleTree:
        """Return the tree over the leaves of a tensor."""
        tree = self._trees.get(tensor)
        if tree is None:
            tree = self._trees[tensor] = MerkleTree(leaves_of(self.program.types[tensor], self.contents[tensor]))
        return tree

    @cached_property
    def trace_leaves(self) -> list[bytes]:
        """Leaves of the trace: the roots of its tensors."""
        return [self.tree(number).root for number in self.program.traced]

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
        types, stores = self.program.types, self.program.stores
        return [
            step_leaf(self.step + 1),
            *(tensor_leaf(name, types[stores[name]], self.tree(stores[name]).root) for name in sorted(stores)),
        ]

    @cached_property
    def after_tree(self) -> MerkleTree:
        """Tree of the state after the step."""
        return MerkleTree(self.after_leaves)

    @cached_property
    def data_tree(self) -> MerkleTree:
        """Tree of the task's data."""
        return MerkleTree(self._source_leaves(SourceKind.DATA))

    def _source_leaves(self, kind: SourceKind) -> list[bytes]:
        named = sorted(
            (source.key, number) for number, source in enumerate(self.program.sources) if source.kind == kind
        )
        return [tensor_leaf(key, self.program.types[number], self.tree(number).root) for key, number in named]

    @property
    def loss(self) -> int:
        """The loss of the step, as the bits of a binary64."""
        return int.from_bytes(self.contents[self.program.loss], "little")

    def record(self, loss_total: int) -> StepRecord:
        """Return the step's record; ``loss_total`` is the sum of losses before it."""
        return StepRecord(
            self.after_tree.root, self.tree(self.program.probe).root, add_losses(loss_total, self.loss)
        )

    def path(self, tensor: int) -> tuple[bytes, ...]:
        """Return the siblings that tie a tensor's root to where it stands."""
        kind, position = self.program.places[tensor]
        match kind:
            case PlaceKind.BEFORE:
                return self.before_tree.siblings(position + 1)
            case PlaceKind.AFTER:
                return self.after_tree.siblings(position + 1)
            case PlaceKind.DATA:
                return self.data_tree.siblings(position)
            case PlaceKind.TRACE:
                return self.trace_tree.siblings(position)
            case PlaceKind.PROBE:
                return ()


class SegmentWitness(NamedTuple):
    """What one who ran a segment can show: the records of its steps, and the trace of a step on demand.

    ``trace`` takes the step's place in the segment, from 0.
    """

    records: tuple[StepRecord, ...]
    trace: Callable[[int], StepTrace]

    def tree(self) -> MerkleTree:
        """Return the tree over the records."""
        return MerkleTree([encode_record(record) for record in self.records])


def hashes(value: Any, most: int) -> tuple[bytes, ...]:
    """Return a list of hashes of a decoded value. Raises DecodeError for another value or more than ``most``."""
    if not isinstance(value, list) or len(value) > most:
        raise DecodeError(f"up to {most} hashes expected")
    if not all(type(item) is bytes and len(item) == HASH_BYTES for item in value):
        raise DecodeError("not a hash")
    return tuple(value)
