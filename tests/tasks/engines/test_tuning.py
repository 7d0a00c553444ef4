"""Runs of fine-tuning in segments: adapters alone are the state, the model is loaded once."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tasks.dispute.running import SegmentRun
from tasks.engines.errors import StateInvalid
from tasks.engines.input_blobs import model_root, rows_root
from tasks.engines.state import TrainingState
from tasks.engines.tuning import Tuner, TuningPlan, first_state
from tasks.programs.adamw import Rates
from tasks.programs.errors import SourceInvalid
from tasks.programs.finetune import FinetuneRates
from tests.tasks.programs.engines import engine
from tests.tasks.programs.llamas import TINY
from tests.tasks.programs.tunings import SEED, tuning

NUMPY = engine("numpy")
MADE = tuning(TINY, FinetuneRates(Rates(20_000_000), "linear", 2, 50), batch=2, rows=5)
PLAN = TuningPlan(MADE.job, MADE.rates, SEED)


def tuner(state: TrainingState | None = None, *, wide: bool = True) -> Tuner:
    return Tuner(PLAN, MADE.model, MADE.data, NUMPY, state or first_state(PLAN), wide=wide)


@cache
def twelve_steps() -> Tuner:
    found = tuner()
    found.run_segment(12)
    return found


def test_a_state_holds_adapters_and_moments_and_nothing_of_the_model() -> None:
    state = first_state(PLAN)
    assert {name.split("/")[0] for name in state.tensors} == {"adam_m", "adam_v", "parameter"}
    data = state.encode()
    assert len(data) <= PLAN.state_limit_bytes < sum(map(len, MADE.model.values()))
    assert TrainingState.decode(data, PLAN) == state


def test_first_adapters_are_within_peft_s_bound_and_change_nothing() -> None:
    state = first_state(PLAN)
    for name, kind in PLAN.tensors().items():
        values = np.frombuffer(state.tensors[name], dtype="<f4")
        if name.startswith("parameter/") and name.endswith("/a"):
            assert 0.8 * kind.columns**-0.5 < np.abs(values).max() <= kind.columns**-0.5
        else:
            assert not values.any()
    other = first_state(replace(PLAN, seed=b"\x01" * 32))
    assert other.tensors != state.tensors


def test_segments_go_on_where_the_last_one_ended() -> None:
    first = tuner()
    one, two = first.run_segment(7), first.run_segment(5)
    assert first.state() == twelve_steps().state()
    again = tuner(TrainingState.decode(_after_seven().encode(), PLAN), wide=False)
    assert again.run_segment(5) == two
    assert one.step_to == two.step_from == 7


@cache
def _after_seven() -> TrainingState:
    found = tuner()
    found.run_segment(7)
    return found.state()


def test_a_verifier_and_a_dispute_find_the_same_end() -> None:
    made = tuner()
    result = made.run_segment(3)
    run = SegmentRun(
        PLAN.program, NUMPY, seed=SEED, state=first_state(PLAN).tensors, data=MADE.data, model=MADE.model,
        step_from=0, steps=3,
    )  # fmt: skip
    assert run.end_record == (result.state_root, result.work_digest, result.loss_bits)
    trace = run.trace(2)
    assert trace.model_tree.root == model_root(PLAN.shape, MADE.model)
    assert trace.data_tree.root == rows_root(PLAN.shape, MADE.data)


def test_a_model_s_root_is_that_of_all_jobs_that_use_it() -> None:
    other = tuning(TINY, MADE.rates, ("query",), batch=1, rows=2, seed=9)
    assert model_root(other.job, other.model) == model_root(PLAN.shape, MADE.model)
    assert rows_root(other.job, other.data) != rows_root(PLAN.shape, MADE.data)


def test_tensors_of_another_size_or_value_are_refused() -> None:
    with pytest.raises(SourceInvalid, match="embedding"):
        model_root(PLAN.shape, {**MADE.model, "embedding": b""})
    beyond = np.full(MADE.job.rows * MADE.job.length, MADE.job.model.vocabulary, dtype="<i4").tobytes()
    with pytest.raises(SourceInvalid, match="tokens"):
        Tuner(PLAN, MADE.model, {**MADE.data, "tokens": beyond}, NUMPY, first_state(PLAN))
    state = first_state(PLAN)
    name = next(iter(state.tensors))
    nan = np.full(len(state.tensors[name]) // 4, np.nan, dtype="<f4").tobytes()
    with pytest.raises(StateInvalid):
        tuner(TrainingState(0, {**state.tensors, name: nan}))
