"""A job of the kind ``generate`` on a tiny model, with everything that its worker fetches."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tasks.engines.generating import Own, first_state
from tasks.engines.generating_plan import GeneratingPlan
from tasks.engines.input_blobs import model_root, rows_root
from tasks.kinds.adapters import TunedAdapter
from tasks.kinds.finetune import BaseModel
from tasks.kinds.generate import KIND_GENERATE, Decoding, GeneratePart, PromptSet
from tasks.programs.generate import ByRow
from tasks.programs.llama_shape import Adapter
from tasks.programs.operators.row_sampling import key_of
from tasks.programs.sampling import Sampling
from tasks.spec import JobSpec, Requirements, Schedule, decode_spec, encode_spec
from tests.tasks.programs.generations import Generation, generation
from tests.tasks.tuned import TINY
from tests.tasks.world import WORTH

STEPS: Final = 12
HOW: Final = Sampling(1_500_000_000, 900_000_000, 20)


def generated(segment: int = 2, window: int = STEPS) -> tuple[JobSpec, GeneratingPlan, Generation]:
    """Return a job of two batches of six places, its plan, and the contents of its model and prompts."""
    return job_of(generation(TINY, length=3, new=4, ends=(2, 7)), segment, window)


def asked(segment: int = 2, window: int = STEPS) -> tuple[JobSpec, GeneratingPlan, Generation]:
    """Return a job that asks a tuned model."""
    adapter = Adapter(2, 4, ("query", "down"), 6)
    return job_of(generation(TINY, length=3, new=4, ends=(2, 7), adapter=adapter), segment, window)


def sampled(
    segment: int = 2, window: int = STEPS, how: Sampling = HOW
) -> tuple[JobSpec, GeneratingPlan, Generation]:
    """Return a job like that of ``generated`` whose tokens are drawn."""
    made = generation(TINY, length=3, new=4, ends=(2, 7))
    return job_of(replace(made, shape=replace(made.shape, sampling=how)), segment, window)


def by_row(segment: int = 2, window: int = STEPS) -> tuple[JobSpec, GeneratingPlan, Generation]:
    """Return a job like that of ``generated`` whose rows say how they are decoded."""
    made = generation(TINY, length=3, new=4, ends=(2, 7))
    own = tuple(Own(4, 20_000_000 * (row != 1), 20, 500_000_000, key_of(bytes([row, 5]))) for row in range(4))
    return job_of(replace(made, shape=replace(made.shape, by_row=ByRow(0)), own=own), segment, window)


def job_of(made: Generation, segment: int, window: int) -> tuple[JobSpec, GeneratingPlan, Generation]:
    """Return a job with its plan and everything that its worker fetches."""
    plan, model, shape = made.plan, made.shape.model, made.shape
    part = GeneratePart(
        model=BaseModel(
            "llama", b"m" * 32, model_root(shape, made.model), model.vocabulary, model.width,
            model.layers, model.heads, model.key_heads, model.head_width, model.hidden, model.context,
            model.rotary_base, model.epsilon_nano, int(model.tied), int(model.biased),
        ),
        dataset=PromptSet(b"p" * 32, rows_root(shape, made.data), shape.rows, shape.length),
        batch=shape.batch,
        decoding=Decoding.of(shape.new, shape.ends, shape.sampling),
        adapter=_adapter(made),
        by_row=shape.by_row,
    )  # fmt: skip
    spec = JobSpec(
        KIND_GENERATE, 3, "exact/2", part, plan.seed, first_state(plan).root(plan),
        Schedule(shape.steps, segment, window), WORTH // 1000, Requirements(0, 0, 0), 60_000,
    )  # fmt: skip
    return decode_spec(encode_spec(spec)), plan, made


def _adapter(made: Generation) -> TunedAdapter | None:
    layout, shape = made.plan.adapter_plan, made.shape.adapter
    if layout is None or shape is None or made.adapter is None:
        return None
    return TunedAdapter(b"a" * 32, made.adapter.root(layout), *shape)
