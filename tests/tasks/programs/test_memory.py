"""The memory that a program plans is what its steps need, call by call (market.md R153)."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tasks.programs.decoder import decoder_program
from tasks.programs.finetune import PROJECTIONS, finetune_program
from tasks.programs.llama_shape import LlamaShape
from tasks.programs.memory import WIDE_BYTES_MAX, is_wide, step_memory
from tasks.programs.operators import Context
from tasks.programs.program import SourceKind
from tasks.programs.running import Runner
from tests.tasks.programs.engines import engine
from tests.tasks.programs.test_finetune_units import RATES
from tests.tasks.programs.trainings import training
from tests.tasks.programs.tunings import tuning

MODEL = LlamaShape(700, 96, 2, 4, 2, 24, 256, 64, 10_000, 10_000)
START = Context(0, bytes(32))
NUMPY = engine("numpy")


def measured(runner: Runner, sources: list[Any]) -> int:
    """Return the most bytes that a step holds beside its sources."""
    with np.errstate(all="ignore"):
        runner.run(sources, START)  # first touches
        tracemalloc.start()
        runner.run(sources, START)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


@pytest.mark.parametrize("recompute", [0, 1])
@pytest.mark.parametrize("kind", ["finetune", "train"])
def test_a_plan_is_at_least_the_peak_and_within_a_tenth_of_it(kind: str, recompute: int) -> None:
    made: Any
    if kind == "finetune":
        made = tuning(MODEL, RATES, PROJECTIONS, batch=4, rows=4, length=48, slots=40)
        program = finetune_program(replace(made.job, recompute=recompute), RATES, checks_bounds=False)
    else:
        made = training(MODEL, RATES, batch=4, rows=4, length=48)
        program = decoder_program(replace(made.job, recompute=recompute), RATES, checks_bounds=False)
    runner = Runner(program, NUMPY)
    model = runner.load(SourceKind.MODEL, made.model) if kind == "finetune" else {}
    state, data = runner.load(SourceKind.STATE, made.state), runner.load(SourceKind.DATA, made.data)
    sources = runner.sources(state, data, model)
    plan = step_memory(program)
    assert plan.sources == sum(one.nbytes for one in sources)
    most = measured(runner, sources)
    assert most <= plan.step <= 1.1 * most


def test_frozen_weights_stay_in_their_stored_form() -> None:
    made = tuning(MODEL, RATES, batch=1, rows=1)
    program = finetune_program(made.job, RATES, checks_bounds=False)
    stored, wide = step_memory(program), step_memory(program, wide=True)
    frozen = Runner(program, NUMPY).load(SourceKind.MODEL, made.model)
    held = sum(one.nbytes for one in frozen.values() if one.dtype == np.int16)
    assert held == sum(2 * one.size for one in frozen.values() if one.dtype == np.int16) > 0
    assert wide.sources - stored.sources == 3 * held
    assert wide.step <= stored.step < wide.step + 8 * MODEL.vocabulary * MODEL.width


def test_a_model_that_decodes_is_expanded_up_to_a_limit() -> None:
    made = tuning(MODEL, RATES, batch=1, rows=1)
    assert is_wide(finetune_program(made.job, RATES, checks_bounds=False))
    large = replace(MODEL, vocabulary=1 << 20, width=WIDE_BYTES_MAX // 8 >> 20)
    assert not is_wide(finetune_program(replace(made.job, model=large), RATES, checks_bounds=False))
