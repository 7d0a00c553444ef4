"""Runs that train a decoder: their first state, their segments, and the limits of a plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tasks.engines.arrays import NumpyArrays
from tasks.engines.decoder_plan import DecoderPlan
from tasks.engines.decoder_training import DecoderTrainer, first_state
from tasks.engines.errors import StateInvalid, UnsupportedJob
from tasks.engines.state import TrainingState, state_size
from tasks.programs.adamw import Rates
from tasks.programs.decoder import DecoderShape
from tasks.programs.finetune import FinetuneRates
from tasks.programs.llama_shape import LlamaShape
from tasks.programs.operators.scalars import NANO
from tests.tasks.programs.llamas import TINY
from tests.tasks.programs.trainings import training

RATES = FinetuneRates(Rates(20_000_000, weight_decay_nano=10_000_000), "cosine", 1, 9, NANO)
MADE = training(replace(TINY, layers=5), RATES, batch=2, rows=4)
PLAN = DecoderPlan(MADE.job, RATES, bytes(range(32)))


def run_from(state: TrainingState) -> DecoderTrainer:
    return DecoderTrainer(PLAN, MADE.data, NumpyArrays(), state)


def test_segments_do_not_depend_on_how_a_run_is_divided() -> None:
    whole, first = run_from(first_state(PLAN)), run_from(first_state(PLAN))
    one = whole.run_segment(4)
    first.run_segment(1)
    second = run_from(TrainingState.decode(first.state().encode(), PLAN))
    assert second.run_segment(3).state_root == one.state_root
    assert whole.state() == second.state()


def test_the_first_state_has_the_variance_that_its_documentation_says() -> None:
    model = LlamaShape(257, 64, 2, 4, 4, 16, 160, 64, 10_000, 10_000, tied=False)
    plan = DecoderPlan(DecoderShape(model, 2, 16, 4, 4), RATES, bytes(32))
    state = first_state(plan)
    for name, kind in plan.tensors().items():
        values = np.frombuffer(state.tensors[name], dtype="<f4").astype(np.float64)
        group, *_, own = name.split("/")
        if group != "parameter" or own.endswith("norm"):
            assert set(values.tolist()) == {1.0 if group == "parameter" else 0.0}, name
            continue
        most = (
            3**0.5 * 0.02 if own == "embedding" else kind.columns**-0.5 / (2.0 if own in ("output", "down") else 1)
        )
        assert np.abs(values).max() <= most < 1.1 * np.abs(values).max(), name
        assert float(values.std()) == pytest.approx(most / 3**0.5, rel=0.05), name


def test_another_seed_gives_other_weights_and_the_same_seed_the_same() -> None:
    other = replace(PLAN, seed=bytes(32))
    assert first_state(PLAN) == first_state(PLAN)
    assert first_state(PLAN).root(PLAN) != first_state(other).root(other)


@pytest.mark.parametrize("layers", [1, 5, 11, 101])
@pytest.mark.parametrize("tied", [True, False])
def test_the_size_of_a_state_follows_from_few_of_its_tensors(layers: int, tied: bool) -> None:
    model = replace(TINY, layers=layers, tied=tied)
    plan = DecoderPlan(replace(MADE.job, model=model), RATES._replace(clip_nano=0), bytes(32))
    state = first_state(plan)
    assert state_size(plan, 0) == len(state.encode()) <= plan.state_limit_bytes
    assert plan.parameters == sum(k.values for n, k in plan.tensors().items() if n.startswith("parameter"))


def test_a_state_of_another_plan_is_refused() -> None:
    state = first_state(PLAN)
    changed = {**state.tensors, "parameter/norm": b"\x00\x00\xc0\x7f" * TINY.width}
    with pytest.raises(StateInvalid):
        run_from(TrainingState(0, changed))
    with pytest.raises(StateInvalid):
        TrainingState.decode(state.encode(), replace(PLAN, shape=replace(MADE.job, model=TINY)))


@pytest.mark.parametrize(
    "shape",
    [replace(MADE.job, model=replace(TINY, vocabulary=1 << 20)),
     replace(MADE.job, rows=1 << 22, train_rows=1)],
    ids=["parameters", "rows"],
)  # fmt: skip
def test_a_job_beyond_the_limits_is_refused(shape: DecoderShape) -> None:
    with pytest.raises(UnsupportedJob):
        DecoderPlan(shape, RATES, bytes(32))
