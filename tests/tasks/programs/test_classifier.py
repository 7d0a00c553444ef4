"""The classifier as a program: it learns, resumes, and every element of its traces is what the judge computes."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import replace
from hashlib import shake_256
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tasks.engines.builtin_datasets import make_dataset
from tasks.engines.datasets import Dataset
from tasks.programs.bounds import Integers, Magnitudes
from tasks.programs.checks import check_bounds
from tasks.programs.classifier import ACTIVATIONS, ClassifierShape, Rates, classifier_program
from tasks.programs.classifier_units import classifier_units
from tasks.programs.errors import ElementUndefined, ProgramInvalid, SourceInvalid, StoreDiverged
from tasks.programs.operators import Context
from tasks.programs.operators.scalars import NANO
from tasks.programs.program import PlaceKind, Program, SourceKind
from tasks.programs.running import Runner
from tasks.programs.tensors import ElementType, Number, TensorType, unpack_leaf
from tests.tasks.engines.helpers import SEED, made_up_dataset
from tests.tasks.programs.engines import NAMES, engine
from tests.tasks.programs.models import contents_of, first_state
from tests.tasks.programs.values import bits, watched

DATA = made_up_dataset()
FAST = Rates(5_000_000, weight_decay_nano=10_000_000)
NUMPY = engine("numpy")


def program_for(
    data: Dataset, widths: tuple[int, ...], activation: str, batch: int, rates: Rates = FAST
) -> Program:
    return classifier_program(
        ClassifierShape(widths, activation, batch, data.rows, data.train_rows, data.shift), rates
    )


class Run:
    """A run of a program that goes on from step to step."""

    def __init__(
        self, program: Program, data: Dataset, name: str = "numpy", state: Mapping[str, bytes] | None = None
    ) -> None:
        self.runner = Runner(program, engine(name))
        self.state = self.runner.load(SourceKind.STATE, state or first_state(program))
        self.data = self.runner.load(SourceKind.DATA, contents_of(data))
        self.arrays, self.program, self.step = engine(name), program, 0

    def steps(self, count: int) -> list[float]:
        """Do steps and return their losses."""
        losses = []
        for _ in range(count):
            result = self.runner.run(self.runner.sources(self.state, self.data), Context(self.step, SEED))
            self.state, self.step = result.stores, self.step + 1
            losses.append(float(self.arrays.store(result.loss)[0, 0]))
        return losses

    def trace(self) -> list[bytes]:
        return self.runner.trace(self.runner.sources(self.state, self.data), Context(self.step, SEED))

    def contents(self) -> dict[str, bytes]:
        return {name: self.arrays.content(values, "f4") for name, values in self.state.items()}


def scores(run: Run, rows: np.ndarray, activation: str) -> np.ndarray:
    values = rows
    depth = len(run.state) // 6
    for layer in range(depth):
        weight, bias = (run.arrays.store(run.state[f"parameter/{layer}/{part}"]) for part in ("weight", "bias"))
        values = values @ weight.T + bias
        if layer < depth - 1:
            values = np.maximum(values, 0) if activation == "relu" else values / (1 + np.exp(-values))
    return values


@pytest.mark.nightly
def test_it_learns_the_digits_as_well_as_the_first_profile() -> None:
    """97 to 98 of 100 right answers, as before."""
    data = make_dataset("digits")
    run = Run(
        program_for(data, (64, 256, 128, 10), "relu", 64, Rates(2_000_000, weight_decay_nano=10_000_000)), data
    )
    losses = run.steps(220)
    assert losses[-1] < 0.1 < losses[0]
    rows = np.frombuffer(data.features, dtype=np.uint8).reshape(data.rows, -1)[data.train_rows :] * 0.5**data.shift
    labels = np.frombuffer(data.labels, dtype=np.uint8)[data.train_rows :]
    right = (scores(run, rows, "relu").argmax(axis=1) == labels).mean()
    assert right > 0.96


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_are_the_slopes_of_the_loss(activation: str) -> None:
    """The first moment after the first step, with a decay of 0, is the gradient."""
    program = program_for(DATA, (12, 9, 7, 4), activation, 10, Rates(NANO, beta1_nano=0))
    start = first_state(program)
    run = Run(program, DATA)
    first = next(at for at, call in enumerate(program.calls) if call.operator == "sample_order")
    order = np.frombuffer(run.trace()[len(program.sources) + first], dtype="<i8")
    picked = np.frombuffer(DATA.features, dtype=np.uint8).reshape(DATA.rows, -1)[order] * 0.5**DATA.shift
    labels = np.frombuffer(DATA.labels, dtype=np.uint8)[order]

    def loss_with(name: str, place: tuple[int, int], change: float) -> float:
        other = Run(program, DATA)
        other.state = dict(other.state)
        other.state[name] = other.state[name].copy()
        other.state[name][place] += change
        shifted = scores(other, picked, activation)
        shifted = shifted - shifted.max(1, keepdims=True)
        return float((np.log(np.exp(shifted).sum(1)) - shifted[np.arange(10), labels]).mean())

    assert run.steps(1)[0] == pytest.approx(loss_with("parameter/0/bias", (0, 0), 0.0), rel=1e-4)
    for name, content in start.items():
        if name.startswith("parameter"):
            found = run.arrays.store(run.state[name.replace("parameter", "adam_m")])
            for place in ((0, 0), (found.shape[0] - 1, found.shape[1] - 1)):
                slope = (loss_with(name, place, 1e-5) - loss_with(name, place, -1e-5)) / 2e-5
                assert found[place] == pytest.approx(slope, rel=2e-3, abs=2e-5)
            assert content


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_engine_gives_the_same_trace(activation: str, name: str) -> None:
    program = program_for(DATA, (12, 20, 9, 4), activation, 10)
    run, other = Run(program, DATA), Run(program, DATA, name)
    assert run.steps(12) == other.steps(12)
    assert run.contents() == other.contents()
    assert run.trace() == other.trace()


def test_a_trace_holds_what_the_run_gives() -> None:
    program = program_for(DATA, (12, 20, 4), "silu", 10)
    run = Run(program, DATA)
    run.steps(3)
    trace = run.trace()
    assert [len(content) for content in trace] == [kind.size_bytes for kind in program.types]
    result = run.runner.run(run.runner.sources(run.state, run.data), Context(3, SEED))
    for name, number in program.stores.items():
        assert trace[number] == run.arrays.content(result.stores[name], "f4")
    assert trace[program.probe] == run.arrays.content(result.probe, "f4")
    assert trace[program.loss] == run.arrays.content(result.loss, "f8")


def test_a_run_from_stored_contents_goes_on_to_the_same_bits() -> None:
    program = program_for(DATA, (12, 20, 4), "relu", 10)
    whole = Run(program, DATA)
    whole.steps(5)
    resumed = Run(program, DATA, state=whole.contents())
    resumed.step = 5
    assert resumed.steps(4) == whole.steps(4)
    assert resumed.contents() == whole.contents()


def values_of(kind: TensorType, content: bytes) -> list[tuple[Number, ...]]:
    width = kind.row_bytes
    return [
        struct.unpack(f"<{kind.columns}{'_dfqB'[kind.element]}", content[at : at + width])
        for at in range(0, len(content), width)
    ]


def elements(
    program: Program, trace: list[bytes], every: int, wrap: Any = None, only: int | None = None
) -> Iterator[tuple[int, Number, Number]]:
    """Give the judged and the committed value of every ``every``-th element of each result of a trace.

    What the judge finds undefined is NaN. ``only`` is the one result to look at.
    """
    types = program.types
    tensors = [values_of(kind, content) for kind, content in zip(types, trace, strict=True)]
    for number, call in enumerate(program.calls, len(program.sources)):
        inputs = call.inputs

        def read(at: int, row: int, column: int, inputs: tuple[int, ...] = inputs) -> Number:
            value = tensors[inputs[at]][row][column]
            return wrap(value) if wrap and isinstance(value, float) else value

        if only not in (None, number):
            continue
        operator, kinds = program.operators[call.operator], [types[at] for at in inputs]
        kind = types[number]
        for place in range(number % every, kind.values, every):
            row, column = divmod(place, kind.columns)
            try:
                judged = operator.element(read, kinds, call.attributes, Context(0, SEED), row, column)
            except ElementUndefined:
                judged = math.nan
            yield number, judged, tensors[number][row][column]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_judge_finds_every_element_of_a_trace_right(activation: str) -> None:
    program = program_for(DATA, (12, 11, 6, 4), activation, 7)
    count = 0
    for number, judged, committed in elements(program, Run(program, DATA).trace(), every=3):
        assert bits(judged) == bits(committed), (number, program.call_of(number))
        count += 1
    assert count > 1_500


def test_the_judge_finds_a_changed_element() -> None:
    program = program_for(DATA, (12, 11, 4), "relu", 7)
    trace = Run(program, DATA).trace()
    for number in range(len(program.sources), len(program.types)):
        changed = list(trace)
        changed[number] = bytes([trace[number][0] ^ 1]) + trace[number][1:]
        found = list(elements(program, changed, every=1, only=number))
        assert [bits(judged) != bits(committed) for _, judged, committed in found] == [
            place == 0 for place in range(len(found))
        ]


@st.composite
def shapes(draw: st.DrawFn) -> tuple[ClassifierShape, Rates]:
    widths = draw(st.lists(st.sampled_from((1, 2, 3, 7)), min_size=1, max_size=8))
    train_rows = draw(st.sampled_from((1, 2, 20)))
    nano = st.one_of(st.sampled_from((0, 1, NANO // 2, NANO - 1)), st.integers(0, NANO - 1))
    return ClassifierShape(
        (*widths, draw(st.sampled_from((2, 5)))),
        draw(st.sampled_from(ACTIVATIONS)),
        draw(st.sampled_from((1, 2, 5))),
        train_rows + 1,
        train_rows,
        draw(st.integers(0, 8)),
    ), Rates(1 + draw(nano), draw(nano), draw(nano), 1 + draw(nano), draw(st.one_of(nano, st.just(NANO))))


@pytest.mark.slow
@given(
    shapes(), st.lists(st.sampled_from((1, 2, 17, 255, 4096)), min_size=2, max_size=9),
    st.sampled_from((1, 2, 64, 4096)), st.sampled_from((1, 3, 4096, 10**5)),
)  # fmt: skip
def test_the_units_of_a_program_are_known_without_it(
    shape: tuple[ClassifierShape, Rates], widths: list[int], batch: int, train_rows: int
) -> None:
    found = replace(shape[0], widths=tuple(widths), batch=batch, rows=10**5, train_rows=train_rows)
    assert classifier_units(found, shape[1]) == classifier_program(found, shape[1]).units


def extreme_state(program: Program, label: bytes, exponents: tuple[int, int, int]) -> dict[str, bytes]:
    """A state as a stranger may publish it: values of any size that may be stored, and zeros."""
    found: dict[str, bytes] = {}
    for source in program.sources:
        if source.kind == SourceKind.STATE:
            count = source.type.values
            stream = shake_256(label + source.key.encode()).digest(8 * count)
            words = np.frombuffer(stream, dtype="<u4").reshape(2, -1)
            top = exponents[("parameter", "adam_m", "adam_v").index(source.key.split("/")[0])]
            values = np.ldexp(1.0 + words[0] / 2.0**33, top - (words[1] % 40).astype(np.int64))
            values[((words[1] >> 8) % 5 == 0) | (values < 2.0**-100)] = 0.0
            values = np.where((words[1] >> 16) % 2 == 0, -values, values) + 0.0
            found[source.key] = values.astype("<f4").tobytes()
    return found


def data_for(shape: ClassifierShape, label: bytes) -> Dataset:
    columns, classes = shape.widths[0], shape.widths[-1]
    stream = shake_256(b"data" + label).digest(shape.rows * (columns + 1))
    features = bytes(columns) + stream[columns : shape.rows * columns]
    labels = bytes(byte % classes for byte in stream[shape.rows * columns :])
    return Dataset(shape.rows, columns, classes, shape.shift, shape.train_rows, features, labels)


VAST = (ClassifierShape((7,) * 8 + (5,), "silu", 5, 21, 20, 0), Rates(NANO, 0, 0, NANO, NANO))
cases = given(
    shapes(), st.binary(min_size=1, max_size=4),
    st.tuples(st.integers(-110, 39), st.integers(-110, 99), st.integers(-110, 99)),
)  # fmt: skip


@cases
@example(VAST, b"v", (39, 99, 99))
@example(VAST, b"w", (-90, -90, -90))
@settings(max_examples=25, deadline=None)
def test_extreme_states_give_traces_within_their_bounds_that_the_judge_confirms(
    case: tuple[ClassifierShape, Rates], label: bytes, exponents: tuple[int, int, int]
) -> None:
    """From normal numbers alone; or the step ends as diverged."""
    program = classifier_program(*case)
    limits = check_bounds(program)
    data = data_for(case[0], label)
    run = Run(program, data, state=extreme_state(program, label, exponents))
    try:
        trace = run.trace()
    except StoreDiverged:
        with pytest.raises(StoreDiverged):
            Run(program, data, "contrary", extreme_state(program, label, exponents)).trace()
        return
    other = Run(program, data, "contrary", extreme_state(program, label, exponents))
    assert other.trace() == trace
    for number, (kind, content) in enumerate(zip(program.types, trace, strict=True)):
        for row in values_of(kind, content):
            assert all(within(value, limits[number]) for value in row), program.call_of(number)
    for number, judged, committed in elements(program, trace, every=5, wrap=watched):
        assert bits(judged) == bits(committed), (number, program.call_of(number))


def within(value: Number, limits: Magnitudes | Integers) -> bool:
    if isinstance(limits, Integers):
        return limits.low <= value <= limits.high
    if value == 0:
        return limits.zero
    signed = limits.negative if value < 0 else limits.positive
    return signed and 2.0**limits.least <= abs(value) < 2.0 ** (limits.most + 1)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_largest_models_stay_within_the_exact_range(activation: str) -> None:
    for widths in ((4_096, *(1_024,) * 7, 256), (1_448,) * 9, (1, 4_096, 1, 4_096, 1, 4_096, 1, 4_096, 2)):
        shape = ClassifierShape(widths, activation, 4_096, 10**6, 10**6, 0)
        for rates in (Rates(NANO, 0, 0, NANO, NANO), Rates(1, NANO - 1, NANO - 1, 1, 1)):
            classifier_program(shape, rates)


def test_states_that_no_step_could_have_stored_are_refused() -> None:
    program = program_for(DATA, (12, 20, 4), "relu", 10)
    runner = Runner(program, NUMPY)
    for value in (float("nan"), float("inf"), 2.0**40, -(2.0**41), -0.0, 2.0**-101, 2.0**-140):
        state = first_state(program)
        state["parameter/0/bias"] = np.full((1, 20), value, dtype="<f4").tobytes()
        with pytest.raises(SourceInvalid):
            runner.load(SourceKind.STATE, state)
    state = first_state(program)
    for broken in ({**state, "parameter/0/bias": b""}, {"parameter/0/bias": state["parameter/0/bias"]}):
        with pytest.raises(SourceInvalid):
            runner.load(SourceKind.STATE, broken)


def test_training_that_diverges_says_so_at_the_same_step() -> None:
    program = program_for(DATA, (12, 8, 8, 4), "relu", 10)
    state = extreme_state(program, b"large", (39, 99, 99))
    with pytest.raises(StoreDiverged, match="step 0"):
        Run(program, DATA, state=state).steps(5)


@pytest.mark.parametrize(
    ("shape", "rates"),
    [
        ({"widths": (4,)}, {}), ({"widths": (4,) * 10}, {}), ({"widths": (0, 4)}, {}),
        ({"activation": "tanh"}, {}), ({"batch": 0}, {}), ({"train_rows": 0}, {}), ({"train_rows": 91}, {}),
        ({"shift": 9}, {}), ({"batch": 1 << 21}, {}),
        ({}, {"learning_rate_nano": 0}), ({}, {"beta1_nano": NANO}), ({}, {"epsilon_nano": 0}),
        ({}, {"weight_decay_nano": -1}),
    ],
    ids=str,
)  # fmt: skip
def test_shapes_and_rates_beyond_the_limits_are_refused(shape: dict[str, Any], rates: dict[str, Any]) -> None:
    usual: dict[str, Any] = {"widths": (12, 4), "activation": "relu", "batch": 5, "rows": 90, "train_rows": 70,
                             "shift": 8}  # fmt: skip
    classifier_program(ClassifierShape(**usual), Rates(1))
    with pytest.raises(ProgramInvalid):
        classifier_program(ClassifierShape(**usual | shape), Rates(**{"learning_rate_nano": 1} | rates))


def test_the_program_is_one_for_all_machines() -> None:
    """Its hash may change with the profile's name alone."""
    program = program_for(DATA, (12, 20, 4), "silu", 10)
    assert program.hash == program_for(DATA, (12, 20, 4), "silu", 10).hash
    assert program.hash != program_for(DATA, (12, 20, 4), "relu", 10).hash
    kinds = {place.kind for place in program.places}
    assert kinds == set(PlaceKind) - {PlaceKind.MODEL, PlaceKind.ADAPTER}
    assert all(
        kind.element == ElementType.BINARY32 for kind in (program.types[at] for at in program.stores.values())
    )
    assert unpack_leaf(program.types[program.loss], 0, Run(program, DATA).trace()[program.loss])[0] > 0
