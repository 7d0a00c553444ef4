"""The memory that a program plans is what its steps need, call by call (market.md R153)."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tasks.engines.generating import Generator, Own, first_state
from tasks.executor.resource_needs import _memory_of
from tasks.programs.decoder import decoder_program
from tasks.programs.finetune import PROJECTIONS, finetune_program
from tasks.programs.generate import ByRow
from tasks.programs.llama_shape import LlamaShape
from tasks.programs.memory import ARRAY_BYTES, WIDE, WIDE_BYTES_MAX, is_wide, scratch_bytes, step_memory
from tasks.programs.operators import Attributes, Context
from tasks.programs.operators.scalars import NANO, constant_bits
from tasks.programs.program import Call, SourceKind
from tasks.programs.running import Runner
from tasks.programs.sampling import Sampling
from tasks.programs.table import OPERATORS
from tasks.programs.tensors import ElementType, TensorType
from tests.tasks.programs.engines import engine
from tests.tasks.programs.generations import Generation, generation, made_prompts
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


@pytest.mark.slow
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
    stored_types = [one.type for one in program.sources if one.type.element == ElementType.INT16]
    assert held == sum(kind.size_bytes for kind in stored_types) > 0
    assert wide.sources - stored.sources == 3 * held
    assert wide.step <= stored.step < wide.step + 8 * MODEL.vocabulary * MODEL.width


def test_a_model_that_decodes_is_expanded_up_to_a_limit() -> None:
    made = tuning(MODEL, RATES, batch=1, rows=1)
    assert is_wide(finetune_program(made.job, RATES, checks_bounds=False))
    large = replace(MODEL, vocabulary=1 << 20, width=WIDE_BYTES_MAX // 8 >> 20)
    assert not is_wide(finetune_program(replace(made.job, model=large), RATES, checks_bounds=False))


SIDE = 1 << 18
"""Values of the columns: far more than what an operator needs beside its arrays."""
COLUMN = (ElementType.INT64, SIDE, 1)
OWN = Own(2, 700_000, 5, NANO // 2, (1,) * 4)
CASES: list[tuple[str, list[tuple[ElementType, int, int]], Attributes]] = [
    ("gather", [(ElementType.BINARY64, SIDE, 1), COLUMN], ()),
    ("gather_groups", [(ElementType.BINARY64, SIDE, 1), COLUMN], (8,)),
    ("scale_columns", [(ElementType.BINARY64, 512, 512), COLUMN], ()),
    ("row_sum", [(ElementType.BINARY64, 4, SIDE), (ElementType.INT64, 4, 1)], ()),
    ("row_sum", [(ElementType.BINARY64, SIDE, 1), COLUMN], ()),
    ("since", [(ElementType.BINARY64, 512, 512), (ElementType.INT64, 512, 1)], (1, constant_bits(-1.5))),
    ("since", [(ElementType.BINARY64, 512, 512), (ElementType.INT64, 128, 1)], (1, constant_bits(-1.5))),
]


@pytest.mark.parametrize(("name", "kinds", "attributes"), CASES)
def test_an_operator_needs_no_more_than_its_plan(
    name: str, kinds: list[tuple[ElementType, int, int]], attributes: Attributes
) -> None:
    """Attack: columns as large as a result, and sums of more terms than a block, needed up to twice their plan."""
    types = [TensorType(*kind) for kind in kinds]
    inputs = [NUMPY.load(np.zeros((kind.rows, kind.columns))) for kind in types]
    output = OPERATORS[name].shape(types, attributes)
    OPERATORS[name].run(NUMPY, inputs, attributes, START)
    tracemalloc.start()
    OPERATORS[name].run(NUMPY, inputs, attributes, START)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    call = Call(name, tuple(range(len(inputs))), attributes)
    plan = WIDE * output.values + scratch_bytes(call, types, output, [WIDE] * len(inputs))
    assert most <= plan + 16 * ARRAY_BYTES


@pytest.mark.parametrize("how", [(None, None), (Sampling(NANO // 2, NANO // 2, 5), None), (None, ByRow(3))])
def test_a_pass_over_prompts_needs_no_more_than_its_plan(how: tuple[Sampling | None, ByRow | None]) -> None:
    """Attack: tokens were drawn for all places of a prompt in memory that no plan had."""
    made = generation(LlamaShape(4_000, 16, 1, 2, 1, 8, 32, 64, 10_000, 10_000), batch=1, rows=1, length=48, new=2)
    shape = replace(made.shape, sampling=how[0], by_row=how[1])
    made = Generation(shape, made.frozen, made_prompts(shape), own=(OWN,) if how[1] else ())

    def peak() -> int:
        run = Generator(made.plan, made.model, made.data, NUMPY, first_state(made.plan))
        tracemalloc.start()
        run.run_steps(47)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak()  # first touches
    memory, most = _memory_of(made.plan, 47), peak()
    assert most <= max(memory.scores, memory.step.step) <= 1.5 * most
