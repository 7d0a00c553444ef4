"""States and datasets as bytes: canonical, bounded, and nothing but typed errors on any input."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state.primitives.codec import Value, encode
from state.primitives.merkle import merkle_root
from tasks.engines.builtin_datasets import make_dataset
from tasks.engines.datasets import Dataset
from tasks.engines.errors import DatasetInvalid, StateInvalid
from tasks.engines.plan import TrainingPlan
from tasks.engines.state import TrainingState
from tasks.engines.training import initial_state
from tasks.programs.program import SourceKind
from tests.tasks.engines.helpers import RELU, SILU, made_up_dataset

STATE = initial_state(RELU)
ENCODED = STATE.encode()
DATA = made_up_dataset()
BLOB = DATA.encode()


def mutated(data: bytes, at: int, value: int, cut: int) -> bytes:
    changed = bytearray(data)
    changed[at % len(data)] ^= value
    return bytes(changed[: len(data) - cut])


def test_a_state_comes_back_as_it_was() -> None:
    assert TrainingState.decode(ENCODED, RELU) == STATE
    assert len(ENCODED) <= RELU.state_limit_bytes
    assert len(initial_state(SILU).encode()) <= SILU.state_limit_bytes


def test_the_root_covers_every_byte_and_the_step() -> None:
    root = STATE.root(RELU)
    assert TrainingState(1, STATE.tensors).root(RELU) != root
    for name, content in STATE.tensors.items():
        for at in (0, len(content) - 1):
            changed = bytearray(content)
            changed[at] ^= 1
            assert TrainingState(0, {**STATE.tensors, name: bytes(changed)}).root(RELU) != root


def test_the_rows_of_a_tensor_are_cut_into_leaves_of_their_own() -> None:
    plan = TrainingPlan((40, 3, 2), "relu", 1, 2, 1, 0, bytes(32), 1)
    state = initial_state(plan)
    leaves = [encode(["step", 0])]
    for name, (_, rows, columns) in plan.tensors().items():
        content = state.tensors[name]
        each = [content[4 * columns * row : 4 * columns * (row + 1)] for row in range(rows)]
        pieces = [row[at : at + 128] for row in each for at in range(0, len(row), 128)]
        leaves.append(encode([name, 2, rows, columns, merkle_root(pieces)]))
    assert state.root(plan) == merkle_root(leaves)


def test_a_state_is_what_the_program_of_a_step_reads_and_stores() -> None:
    for plan in (RELU, SILU):
        sources = {one.key: one.type for one in plan.program.sources if one.kind == SourceKind.STATE}
        assert sources == plan.tensors() and plan.program.stores.keys() == sources.keys()


def test_the_root_of_a_data_set_is_that_of_features_and_labels() -> None:
    roots = [merkle_root([DATA.features[at : at + 12] for at in range(0, 90 * 12, 12)])]
    roots.append(merkle_root([bytes([label]) for label in DATA.labels]))
    leaves = [encode(["features", 4, 90, 12, roots[0]]), encode(["labels", 4, 90, 1, roots[1]])]
    assert DATA.root() == merkle_root(leaves)


@given(st.integers(0), st.integers(0, 255), st.integers(0, 40))
@settings(max_examples=150, deadline=None)
def test_a_damaged_state_is_refused_or_another_state(at: int, value: int, cut: int) -> None:
    data = mutated(ENCODED, at, value, cut)
    try:
        found = TrainingState.decode(data, RELU)
    except StateInvalid:
        return
    assert found.encode() == data
    assert (found.root(RELU) == STATE.root(RELU)) == (data == ENCODED)


@pytest.mark.parametrize(
    "value",
    [
        None, [], [1, 0], [2, 0, []], [1, -1, []], [1, 0, [["parameter/0/weight", b""]]],
        [1, 0, [[name, b""] for name in RELU.tensors()]], [1, 0, [[b"x", b""]] * len(RELU.tensors())],
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_state_is_refused(value: object) -> None:
    with pytest.raises(StateInvalid):
        TrainingState.decode(encode(value), RELU)  # type: ignore[arg-type]


def test_a_state_beyond_its_size_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(StateInvalid, match="limit"):
        TrainingState.decode(bytes(RELU.state_limit_bytes + 1), RELU)


def test_bytes_that_would_make_masses_of_objects_are_refused_before_they_make_them() -> None:
    """A blob is a stranger's. An item takes a byte there and 64 in memory: a GiB for the largest state's size."""
    plan = TrainingPlan((4096, 256), "relu", 1, 2, 1, 0, bytes(32), 1)
    masses: list[list[Value]] = [[0] * 5_000, [[]] * 500_000]
    for items in masses:
        filler = encode([b"x" * 8 * len(items), *items])
        with pytest.raises(StateInvalid, match="more than 22 items"):
            TrainingState.decode(filler, plan)
        with pytest.raises(DatasetInvalid, match="more than 10 items"):
            Dataset.decode(filler)


def test_a_dataset_comes_back_as_it_was() -> None:
    assert Dataset.decode(BLOB) == DATA


@given(st.integers(0), st.integers(0, 255), st.integers(0, 40))
@settings(max_examples=150, deadline=None)
def test_a_damaged_dataset_is_refused_or_another_dataset(at: int, value: int, cut: int) -> None:
    data = mutated(BLOB, at, value, cut)
    try:
        found = Dataset.decode(data)
    except DatasetInvalid:
        return
    assert found.encode() == data
    same = (found.features, found.labels, found.rows, found.columns) == (
        DATA.features, DATA.labels, DATA.rows, DATA.columns,
    )  # fmt: skip
    assert (found.root() == DATA.root()) == same


@given(st.binary(max_size=300))
def test_any_bytes_are_a_typed_error(data: bytes) -> None:
    with pytest.raises(DatasetInvalid):
        Dataset.decode(data)
    with pytest.raises(StateInvalid):
        TrainingState.decode(data, RELU)


def test_the_digits_are_always_the_same() -> None:
    data = make_dataset("digits")
    assert (data.rows, data.columns, data.train_rows) == (1797, 64, 1437)
    assert data.root().hex() == "fb6be493eefef2e6d77521b4e2a94eda824ef0f7421054e742047b3fedd10bf2"
    assert Dataset.decode(data.encode()).root() == data.root()
    assert set(data.labels[1437:]) == set(range(10))
