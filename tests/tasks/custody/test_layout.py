"""A blob in custody is tied to its state root: any byte that differs can be shown, and no honest one."""

from __future__ import annotations

from random import Random
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state.primitives.codec import decode, encode
from state.primitives.merkle import MerkleTree
from tasks.custody.chunks import CHUNK_BYTES, BlobCommitment, CipherBlob
from tasks.custody.errors import ChunkInvalid
from tasks.custody.layout import (
    LeafEvidence,
    PlainChunk,
    StateLayout,
    check_mismatch,
    leaf_evidence_from_value,
    leaf_evidence_to_value,
    plain_chunk_from_value,
    plain_chunk_to_value,
    state_size,
)
from tasks.engines.state import TrainingState
from tasks.engines.tuning_plan import TuningPlan
from tasks.programs.adamw import Rates
from tasks.programs.finetune import FinetuneRates, FinetuneShape
from tasks.programs.llama_shape import LlamaShape
from tasks.programs.states import state_leaves
from tasks.programs.tensors import leaves_of, tensor_root
from tests.tasks.world import spec

PLAN: Final = spec().plan()
TYPES: Final = PLAN.tensors()
STEP: Final = 300
STATE: Final = TrainingState(
    STEP, {name: Random(name).randbytes(kind.size_bytes) for name, kind in TYPES.items()}
)  # fmt: skip
CONTENT: Final = STATE.encode()
ROOT: Final = STATE.root(PLAN)
LAYOUT: Final = StateLayout(PLAN, STEP)
ROOTS: Final = {name: tensor_root(kind, STATE.tensors[name]) for name, kind in TYPES.items()}


@pytest.mark.parametrize("layers", [1, 3, 10, 11, 40])
@pytest.mark.parametrize("step", [0, 23, 24, 70_000])
def test_the_size_of_a_state_is_known_without_its_layout(layers: int, step: int) -> None:
    for plan in (PLAN, deep(layers)):
        size = state_size(plan, step)
        assert size == StateLayout(plan, step).size
        content = TrainingState(step, {name: bytes(kind.size_bytes) for name, kind in plan.tensors().items()})
        assert size == len(content.encode())


def deep(layers: int) -> TuningPlan:
    """Return the plan of a model of so many small layers."""
    model = LlamaShape(40, 8, layers, 2, 1, 4, 12, 16, 10_000, 10_000)
    shape = FinetuneShape(model, 3, 4, ("query", "output"), 2, 6, 4, 8, 8)
    return TuningPlan(shape, FinetuneRates(Rates(1_000_000), total_steps=9), bytes(32))


def evidence(position: int, leaf: int) -> LeafEvidence:
    """Return a leaf of the right state with its paths."""
    name = list(TYPES)[position]
    kind, root = TYPES[name], ROOTS[name]
    leaves = leaves_of(kind, STATE.tensors[name])
    above = MerkleTree(state_leaves(STEP, {each: (TYPES[each], ROOTS[each]) for each in TYPES}))
    return LeafEvidence(
        position, root, above.siblings(position + 1), leaf, leaves[leaf], MerkleTree(leaves).siblings(leaf)
    )  # fmt: skip


def commitment(content: bytes) -> tuple[BlobCommitment, list[PlainChunk]]:
    parts = [content[at : at + CHUNK_BYTES] for at in range(0, len(content), CHUNK_BYTES)]
    tree = MerkleTree(parts)
    blob = CipherBlob(b"k" * 32, content).commitment
    return blob, [PlainChunk(at, part, tree.siblings(at)) for at, part in enumerate(parts)]


def leaf_at(place: int) -> LeafEvidence | None:
    """Return the leaf that has the byte at ``place`` of the encoding; None: it is fixed."""
    for position, (name, kind, offset) in enumerate(LAYOUT.tensors):
        if offset <= place < offset + kind.size_bytes:
            row, at = divmod(place - offset, kind.row_bytes)
            assert name in TYPES
            return evidence(position, row * kind.leaves_per_row + at // 128)
    return None


def is_shown(content: bytes, number: int, shown: LeafEvidence | None) -> bool:
    blob, chunks = commitment(content)
    try:
        check_mismatch(LAYOUT, ROOT, blob, chunks[number], shown)
    except ChunkInvalid:
        return False
    return True


@pytest.mark.parametrize("step", [0, 23, 24, 255, 256, 65_536, 1 << 33])
def test_the_layout_is_that_of_the_encoding_at_every_step(step: int) -> None:
    state = TrainingState(step, STATE.tensors).encode()
    layout = StateLayout(PLAN, step)
    assert layout.size == len(state)
    assert all(state[offset : offset + len(fixed)] == fixed for offset, fixed in layout.fixed)
    for name, kind, offset in layout.tensors:
        assert state[offset : offset + kind.size_bytes] == STATE.tensors[name]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(CONTENT) - 1), st.integers(1, 255))
def test_any_byte_that_differs_is_shown_with_the_leaf_that_it_lies_in(place: int, change: int) -> None:
    false = bytearray(CONTENT)
    false[place] ^= change
    shown = leaf_at(place)
    assert is_shown(bytes(false), place // CHUNK_BYTES, shown)
    assert not is_shown(CONTENT, place // CHUNK_BYTES, shown)


def test_a_leaf_that_crosses_two_chunks_shows_either_part() -> None:
    crossing = [
        (position, leaf)
        for position, (_, kind, offset) in enumerate(LAYOUT.tensors)
        for leaf in range(kind.leaves)
        if (start := offset + leaf // kind.leaves_per_row * kind.row_bytes + leaf % kind.leaves_per_row * 128)
        < CHUNK_BYTES
        < start + len(evidence(position, leaf).content)
    ]
    assert len(crossing) == 1
    for at in (CHUNK_BYTES - 1, CHUNK_BYTES):
        false = bytearray(CONTENT)
        false[at] ^= 1
        shown = leaf_at(at)
        assert is_shown(bytes(false), at // CHUNK_BYTES, shown)
        other = 1 - at // CHUNK_BYTES
        assert not is_shown(bytes(false), other, shown)


def test_junk_shows_nothing_about_an_honest_blob() -> None:
    false = bytes(len(CONTENT))
    right = evidence(1, 3)
    offset = LAYOUT.tensors[1].offset
    number = offset // CHUNK_BYTES
    assert is_shown(false, number, right)
    for wrong in (
        right._replace(position=2), right._replace(position=99), right._replace(leaf=4),
        right._replace(leaf=10**6),
        right._replace(content=b"x" * len(right.content)), right._replace(content=right.content[:-1]),
        right._replace(tensor_root=b"r" * 32), right._replace(tensor_siblings=()),
        right._replace(leaf_siblings=right.leaf_siblings[:-1]),
    ):  # fmt: skip
        assert not is_shown(false, number, wrong)
    blob, chunks = commitment(false)
    for chunk in (
        chunks[number]._replace(number=7), chunks[number]._replace(content=b"y" * CHUNK_BYTES),
        chunks[number]._replace(siblings=()),
    ):  # fmt: skip
        with pytest.raises(ChunkInvalid):
            check_mismatch(LAYOUT, ROOT, blob, chunk, right)


def test_encodings_of_a_chunk_and_of_a_leaf_are_read_back() -> None:
    chunk, leaf = commitment(CONTENT)[1][1], evidence(3, 1)
    assert plain_chunk_from_value(decode(encode(plain_chunk_to_value(chunk)), limit_bytes=1 << 20)) == chunk
    assert leaf_evidence_from_value(decode(encode(leaf_evidence_to_value(leaf)), limit_bytes=1 << 20)) == leaf
    assert leaf_evidence_from_value([]) is None
