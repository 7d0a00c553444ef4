"""A job of the kind ``train`` on a tiny decoder with its rows, and a job that asks the model that it leaves."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Final, NamedTuple

from tasks.engines.arrays import NumpyArrays
from tasks.engines.decoder_plan import DecoderPlan
from tasks.engines.decoder_training import DecoderTrainer, first_state
from tasks.engines.generating_plan import GeneratingPlan
from tasks.engines.input_blobs import rows_root
from tasks.engines.state import TrainingState
from tasks.kinds.decoder import DecoderModel, DecoderPart, TextRows
from tasks.kinds.finetune import RateSchedule, TrainingLoop, family_of
from tasks.models.generating import GeneratingJob, GeneratingSettings, TrainedModel, make_generating
from tasks.programs.adamw import Rates
from tasks.programs.finetune import FinetuneRates
from tasks.programs.llama_shape import LlamaShape
from tasks.programs.operators.scalars import NANO
from tasks.spec import KIND_TRAIN, JobSpec, Optimiser, Requirements, Schedule, decode_spec, encode_spec
from tests.tasks.programs.trainings import Training, training
from tests.tasks.world import WORTH

STEPS: Final = 6
PLAIN: Final = TrainingLoop()
TINY: Final = LlamaShape(
    vocabulary=40, width=8, layers=1, heads=2, key_heads=1, head_width=4, hidden=12, context=16,
    rotary_base=10_000, epsilon_nano=10_000,
)  # fmt: skip


def trained(
    layers: int = 1,
    shape: LlamaShape | None = None,
    segment: int = 2,
    *,
    loop: TrainingLoop = PLAIN,
    samples: int = 4,
) -> tuple[JobSpec, DecoderPlan, Training]:
    """Return a job, its plan, and the contents of its rows. ``shape`` is another one than the tiny.

    A ``loop`` is for ``samples`` of the four rows.
    """
    rates = FinetuneRates(Rates(20_000_000, weight_decay_nano=10_000_000), "cosine", 1, STEPS, NANO)
    made = training(
        shape or replace(TINY, layers=layers), rates, batch=2, rows=4, length=6, train_rows=samples, loop=loop[:3]
    )
    plan = DecoderPlan(made.job, rates, bytes(range(32)), loop.patience)
    steps = plan.loop.steps
    segment = 1 if steps % segment else segment
    model, job = made.job.model, made.job
    part = DecoderPart(
        model=DecoderModel(
            family_of(model), model.vocabulary, model.width, model.layers, model.heads, model.key_heads,
            model.head_width, model.hidden, model.context, model.rotary_base, model.epsilon_nano, int(model.tied),
        ),
        dataset=TextRows(b"r" * 32, rows_root(job, made.data), job.rows, job.train_rows, job.length),
        batch=job.batch,
        optimiser=Optimiser("adamw", *rates.adamw),
        rates=RateSchedule(rates.schedule, rates.warmup_steps, rates.clip_nano),
        loop=loop,
    )  # fmt: skip
    spec = JobSpec(
        KIND_TRAIN, 3, "exact/2", part, plan.seed, first_state(plan).root(plan), Schedule(steps, segment, steps),
        WORTH // 1000, Requirements(0, 0, 0), 60_000,
    )  # fmt: skip
    return decode_spec(encode_spec(spec)), plan, made


class LeftBehind(NamedTuple):
    """What a task has left: its job, and its last state."""

    spec: JobSpec
    state: TrainingState


def left_behind(
    layers: int = 1, shape: LlamaShape | None = None, *, loop: TrainingLoop = PLAIN, samples: int = 4
) -> LeftBehind:  # fmt: skip
    """Return the job of a tiny model, and the state after all of its steps."""
    spec, plan, made = trained(layers, shape, loop=loop, samples=samples)
    run = DecoderTrainer(plan, made.data, NumpyArrays(), first_state(plan))
    run.run_steps(plan.loop.steps)
    return LeftBehind(spec, run.state())


@cache
def asked_whole(layers: int = 1) -> tuple[GeneratingJob, GeneratingPlan, LeftBehind]:
    """Return a job that asks the model of a task, its plan, and what the task has left."""
    left = left_behind(layers)
    prompts = b'{"input_ids": [1, 2, 3]}\n{"input_ids": [4]}\n{"input_ids": [5, 6]}\n{"input_ids": [7, 8, 9]}\n'
    job = make_generating(
        TrainedModel.of(left, None), prompts, GeneratingSettings(new_tokens=4, batch=2), seed=bytes(range(32)),
        max_price_per_tera_unit=WORTH // 1000, match_ms=60_000,
    )  # fmt: skip
    plan = job.spec.plan()
    assert isinstance(plan, GeneratingPlan)
    return job, plan, left
