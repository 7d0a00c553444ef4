"""Training runs: they learn, resume to the same bits, and no cheat goes unseen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tasks.engines.training
from tasks.engines.arrays import NumpyArrays
from tasks.engines.builtin_datasets import make_dataset
from tasks.engines.datasets import Dataset
from tasks.engines.errors import DatasetInvalid, Diverged, StateInvalid, UnsupportedJob
from tasks.engines.mlp import Layer, gradients
from tasks.engines.order import DataOrder
from tasks.engines.plan import TrainingPlan
from tasks.engines.state import TrainingState
from tasks.engines.training import SegmentResult, Trainer, evaluation_rows_max, initial_state
from tests.tasks.engines.helpers import RELU, SEED, SILU, made_up_dataset

ARRAYS = NumpyArrays()
DATA = made_up_dataset()


def run(
    plan: TrainingPlan, steps: int, *, data: Dataset = DATA, state: TrainingState | None = None
) -> SegmentResult:
    return Trainer(plan, data, ARRAYS, state or initial_state(plan)).run_segment(steps)


@pytest.mark.parametrize("plan", [RELU, SILU], ids=["relu", "silu"])
def test_gradients_are_the_slopes_of_the_loss(plan: TrainingPlan) -> None:
    generator = np.random.default_rng(5)
    layers = tuple(
        Layer(generator.normal(size=shape) / 2, generator.normal(size=(1, shape[1])) / 2) for shape in plan.layers
    )
    features, one_hot = generator.random((7, plan.widths[0])), np.eye(plan.widths[-1])[generator.integers(0, 4, 7)]

    def loss_with(index: int, place: tuple[int, int], change: float) -> float:
        """The loss in plain float64, with one weight changed."""
        values = features
        for at, layer in enumerate(layers):
            weight = layer.weight.copy()
            if at == index:
                weight[place] += change
            values = values @ weight + layer.bias
            if at < len(layers) - 1:
                values = np.maximum(values, 0) if plan.activation == "relu" else values / (1 + np.exp(-values))
        shifted = values - values.max(1, keepdims=True)
        return float((np.log(np.exp(shifted).sum(1)) - (shifted * one_hot).sum(1)).mean())

    found = gradients(ARRAYS, layers, features, one_hot, plan.activation)
    assert float(found.loss[0, 0]) == pytest.approx(loss_with(0, (0, 0), 0.0), rel=1e-5)
    for index, layer in enumerate(found.layers):
        for place in ((0, 0), (2, 3), (layer.weight.shape[0] - 1, 1)):
            slope = (loss_with(index, place, 1e-6) - loss_with(index, place, -1e-6)) / 2e-6
            assert float(layer.weight[place]) == pytest.approx(slope, rel=2e-4, abs=2e-6)


def test_it_learns_the_digits() -> None:
    data = make_dataset("digits")
    plan = TrainingPlan((64, 128, 10), "relu", 64, SEED, 3_000_000, weight_decay_nano=10_000_000)
    trainer = Trainer(plan, data, ARRAYS, initial_state(plan))
    trainer.run_segment(300)
    found = trainer.evaluate()
    assert found.samples == 360
    assert found.right / found.samples > 0.93


def test_an_evaluation_ends_however_many_rows_a_data_set_has_for_testing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger's may have 2**22 of them, of which its job says nothing, and the last window waits for it."""
    data = made_up_dataset(rows=2_000, train_rows=70)
    trainer = Trainer(RELU, data, ARRAYS, initial_state(RELU))
    whole = trainer.evaluate()
    assert whole.samples == 1_930
    monkeypatch.setattr(tasks.engines.training, "EVALUATION_UNITS", 1)
    part = trainer.evaluate()
    assert (part.samples, evaluation_rows_max(RELU)) == (512, 512)
    assert 0 < part.right <= whole.right


def test_what_an_evaluation_looks_at_follows_from_the_size_of_the_model() -> None:
    narrow, usual, wide, costly = (
        evaluation_rows_max(TrainingPlan(widths, "silu", 1, SEED, 1))
        for widths in ((1, 2), (64, 256, 128, 10), (15, 4096, 4000, 2), (1, 4096, 1, 4096, 1, 4096, 1, 4096, 2))
    )
    assert narrow > 1 << 22  # whatever there is
    assert 40_000 < usual < narrow
    assert 1_000 < costly < wide < 1_500  # measured: 1.3 s and 1.9 s of a core


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
    used = int(DataOrder(SEED, DATA.train_rows, RELU.batch).batch(0)[0]) * DATA.columns
    features = bytearray(DATA.features)
    features[used] ^= 1
    honest, other = run(RELU, 1), run(RELU, 1, data=replace(DATA, features=bytes(features)))
    assert other.work_digest != honest.work_digest


def test_training_that_diverges_says_so_at_the_same_step() -> None:
    """Nothing infinite is ever hashed: the run ends where a number leaves the range."""
    plan = replace(RELU, widths=(12, 16, 16, 4))
    shapes = plan.tensors()
    tensors = {
        name: np.full(shapes[name], 2.0**39 * (name.startswith("parameter")), dtype="<f4").tobytes()
        for name in shapes
    }
    odd = np.full(shapes["parameter/2/weight"], 2.0**39, dtype="<f4")
    odd[:, 0] = -(2.0**39)
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
    tensors = dict(initial_state(RELU).tensors)
    tensors["adam_v/0/bias"] = np.full((1, 16), -1.0, dtype="<f4").tobytes()
    with pytest.raises(StateInvalid):
        Trainer(RELU, DATA, ARRAYS, TrainingState(0, tensors))


def test_a_dataset_of_other_sizes_is_refused() -> None:
    with pytest.raises(DatasetInvalid):
        Trainer(RELU, made_up_dataset(columns=11), ARRAYS, initial_state(RELU))
    with pytest.raises(DatasetInvalid):
        Trainer(RELU, made_up_dataset(classes=3), ARRAYS, initial_state(RELU))


def test_every_epoch_sees_every_sample_once() -> None:
    order = DataOrder(SEED, 70, 16)
    seen = np.concatenate([order.batch(step) for step in range(35)])  # 8 epochs
    assert len(seen) == 560
    for epoch in range(8):
        assert sorted(seen[epoch * 70 : (epoch + 1) * 70]) == list(range(70))
    assert not np.array_equal(seen[:70], seen[70:140])
    assert np.array_equal(DataOrder(SEED, 70, 16).batch(34), order.batch(34))
    assert len(DataOrder(SEED, 3, 16).batch(5)) == 16


@pytest.mark.parametrize(
    "change",
    [
        {"widths": (4,)}, {"widths": (4, 5000, 2)}, {"widths": (4,) * 10}, {"widths": (4096,) * 8 + (2,)},
        {"widths": (4, 1)}, {"widths": (0, 4)}, {"activation": "tanh"}, {"batch": 0}, {"batch": 5000},
        {"seed": b""}, {"learning_rate_nano": 0}, {"beta1_nano": 10**9}, {"epsilon_nano": 0},
        {"weight_decay_nano": -1},
    ],
    ids=str,
)  # fmt: skip
def test_plans_beyond_the_limits_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(UnsupportedJob):
        replace(RELU, **change)  # type: ignore[arg-type]
