"""Training runs: they learn, resume to the same bits, and no cheat goes unseen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tasks.engines.training
from tasks.engines.arrays import NumpyArrays
from tasks.engines.builtin_datasets import make_dataset
from tasks.engines.datasets import ROWS_MAX, Dataset
from tasks.engines.errors import DatasetInvalid, Diverged, StateInvalid, UnsupportedJob
from tasks.engines.plan import TrainingPlan
from tasks.engines.state import TrainingState
from tasks.engines.training import SegmentResult, Trainer, evaluation_rows_max, initial_state
from tasks.programs.operators import Context
from tasks.programs.permutation import order_keys, permuted
from tasks.programs.program import SourceKind
from tasks.programs.running import ResultRunner, Runner
from tests.tasks.engines.helpers import RELU, SEED, SILU, made_up_dataset

ARRAYS = NumpyArrays()
DATA = made_up_dataset()


def run(
    plan: TrainingPlan, steps: int, *, data: Dataset = DATA, state: TrainingState | None = None
) -> SegmentResult:
    return Trainer(plan, data, ARRAYS, state or initial_state(plan)).run_segment(steps)


def test_it_learns_the_digits() -> None:
    data = make_dataset("digits")
    plan = TrainingPlan((64, 128, 10), "relu", 64, 1797, 1437, 4, SEED, 3_000_000, weight_decay_nano=10_000_000)
    trainer = Trainer(plan, data, ARRAYS, initial_state(plan))
    trainer.run_segment(300)
    found = trainer.evaluate()
    assert found.samples == 360
    assert found.right / found.samples > 0.93


@pytest.mark.parametrize("plan", [RELU, SILU], ids=["relu", "silu"])
def test_rows_are_tested_with_the_scores_that_a_step_gives_them(plan: TrainingPlan) -> None:
    trainer = Trainer(plan, DATA, ARRAYS, initial_state(plan))
    trainer.run_segment(3)
    program, runner = plan.program, Runner(plan.program, ARRAYS)
    state = runner.load(SourceKind.STATE, trainer.state().tensors)
    sources = runner.sources(state, runner.load(SourceKind.DATA, DATA.contents))
    trace = runner.trace(sources, Context(3, SEED))
    made = {call.operator: (number, call) for number, call in enumerate(program.calls, len(program.sources))}
    picked = np.frombuffer(trace[made["sample_order"][0]], dtype="<i8")
    rows = np.frombuffer(DATA.features, dtype=np.uint8).reshape(DATA.rows, DATA.columns)[picked]
    features = ARRAYS.from_content(rows.tobytes(), "u1", plan.batch, DATA.columns)
    parameters = [state[one.key] for one in plan.scores.sources if one.kind == SourceKind.STATE]
    (scores,) = ResultRunner(plan.scores, ARRAYS).run([features, *parameters], Context(3, SEED))
    assert ARRAYS.content(scores, "f8") == trace[made["row_maximum"][1].inputs[0]]


def test_an_evaluation_ends_however_many_rows_a_data_set_has_for_testing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger's may have half a million of them, and the last window waits for all that are tested."""
    data, plan = made_up_dataset(rows=2_000, train_rows=70), replace(RELU, rows=2_000)
    trainer = Trainer(plan, data, ARRAYS, initial_state(plan))
    whole = trainer.evaluate()
    assert whole.samples == 1_930
    monkeypatch.setattr(tasks.engines.training, "EVALUATION_UNITS", 1)
    part = trainer.evaluate()
    assert (part.samples, evaluation_rows_max(plan)) == (256, 256)
    assert 0 < part.right <= whole.right


def test_what_an_evaluation_looks_at_follows_from_the_size_of_the_model() -> None:
    narrow, usual, wide, costly = (
        evaluation_rows_max(TrainingPlan(widths, "silu", 1, 2, 1, 0, SEED, 1))
        for widths in ((1, 2), (64, 256, 128, 10), (15, 4096, 4000, 2), (1, 4096, 1, 4096, 1, 4096, 1, 4096, 2))
    )
    assert narrow > ROWS_MAX  # whatever there is
    assert 40_000 < usual < narrow
    assert 4_000 < wide < costly < 11_000  # measured: 5.4 s and 6.2 s of a core


@pytest.mark.parametrize("plan", [RELU, SILU], ids=["relu", "silu"])
def test_a_run_from_a_stored_state_goes_on_to_the_same_bits(plan: TrainingPlan) -> None:
    whole = Trainer(plan, DATA, ARRAYS, initial_state(plan))
    whole.run_segment(9)
    halfway = whole.state().encode()
    expected = whole.run_segment(6)
    resumed = Trainer(plan, DATA, ARRAYS, TrainingState.decode(halfway, plan))
    assert resumed.run_segment(6) == expected
    assert resumed.state() == whole.state()


def test_segments_of_any_length_end_in_the_same_state() -> None:
    trainer = Trainer(RELU, DATA, ARRAYS, initial_state(RELU))
    for steps in (1, 3, 8):
        last = trainer.run_segment(steps)
    assert last.state_root == run(RELU, 12).state_root


@pytest.mark.parametrize(
    "cheat",
    [
        replace(RELU, learning_rate_nano=RELU.learning_rate_nano + 1),
        replace(RELU, seed=bytes(32)),
        replace(RELU, batch=15),
        replace(RELU, epsilon_nano=11),
        replace(RELU, beta2_nano=999_000_001),
        replace(RELU, weight_decay_nano=0),
    ],
    ids=["rate", "seed", "batch", "epsilon", "beta2", "decay"],
)
def test_a_changed_setting_changes_the_state_root(cheat: TrainingPlan) -> None:
    start = initial_state(RELU)
    assert run(cheat, 3, state=start).state_root != run(RELU, 3, state=start).state_root


def test_a_skipped_step_changes_every_root() -> None:
    """Nine steps passed off as ten: even with the step counter set forward."""
    honest = run(RELU, 10)
    trainer = Trainer(RELU, DATA, ARRAYS, initial_state(RELU))
    trainer.run_segment(8)
    skipped = Trainer(RELU, DATA, ARRAYS, replace(trainer.state(), step=9)).run_segment(1)
    assert skipped.step_to == honest.step_to
    assert skipped.state_root != honest.state_root


def test_other_data_changes_the_work_digest() -> None:
    used = permuted(0, DATA.train_rows, order_keys(SEED, 0)) * DATA.columns
    features = bytearray(DATA.features)
    features[used] ^= 1
    honest, other = run(RELU, 1), run(RELU, 1, data=replace(DATA, features=bytes(features)))
    assert other.work_digest != honest.work_digest


def test_training_that_diverges_says_so_at_the_same_step() -> None:
    """Nothing infinite is ever hashed: the run ends where a number leaves the range."""
    plan = replace(RELU, widths=(12, 16, 16, 4))
    types = plan.tensors()
    tensors = {
        name: np.full(kind.values, 2.0**39 * (name.startswith("parameter")), dtype="<f4").tobytes()
        for name, kind in types.items()
    }
    odd = np.full((4, 16), 2.0**39, dtype="<f4")
    odd[0] = -(2.0**39)
    state = TrainingState(0, {**tensors, "parameter/2/weight": odd.tobytes()})
    for _ in range(2):
        with pytest.raises(Diverged) as raised:
            Trainer(plan, DATA, ARRAYS, state).run_segment(5)
        assert raised.value.step == 1


def test_a_forged_state_with_numbers_out_of_range_is_refused() -> None:
    for value in (float("nan"), float("inf"), 2.0**41, -0.0, 2.0**-110):
        tensors = dict(initial_state(RELU).tensors)
        tensors["parameter/0/bias"] = np.full((1, 16), value, dtype="<f4").tobytes()
        with pytest.raises(StateInvalid):
            Trainer(RELU, DATA, ARRAYS, TrainingState(0, tensors))


@pytest.mark.parametrize(
    "data",
    [
        made_up_dataset(columns=11), made_up_dataset(classes=3), made_up_dataset(rows=91),
        made_up_dataset(train_rows=69), replace(DATA, shift=7),
    ],
    ids=["columns", "classes", "rows", "training rows", "shift"],
)  # fmt: skip
def test_a_dataset_of_other_sizes_is_refused(data: Dataset) -> None:
    with pytest.raises(DatasetInvalid):
        Trainer(RELU, data, ARRAYS, initial_state(RELU))


@pytest.mark.parametrize(
    "change",
    [
        {"widths": (4,)}, {"widths": (4, 5000, 2)}, {"widths": (4,) * 10}, {"widths": (4096,) * 8 + (2,)},
        {"widths": (4, 1)}, {"widths": (0, 4)}, {"activation": "tanh"}, {"batch": 0}, {"batch": 5000},
        {"seed": b""}, {"learning_rate_nano": 0}, {"beta1_nano": 10**9}, {"epsilon_nano": 0},
        {"weight_decay_nano": -1}, {"rows": 0}, {"train_rows": 0}, {"train_rows": 91}, {"shift": 9}, {"shift": -1},
        {"rows": ROWS_MAX + 1}, {"rows": 1 << 14, "widths": (4096, 4)}, {"rows": 350_000, "widths": (129, 4)},
    ],
    ids=str,
)  # fmt: skip
def test_plans_beyond_the_limits_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(UnsupportedJob):
        replace(RELU, **change)  # type: ignore[arg-type]
