"""A job of the kind ``train`` on a tiny decoder, with the rows that its worker fetches."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tasks.engines.decoder_plan import DecoderPlan
from tasks.engines.decoder_training import first_state
from tasks.engines.input_blobs import rows_root
from tasks.kinds.decoder import DecoderModel, DecoderPart, TextRows
from tasks.kinds.finetune import RateSchedule
from tasks.programs.adamw import Rates
from tasks.programs.finetune import FinetuneRates
from tasks.programs.llama_shape import LlamaShape
from tasks.programs.operators.scalars import NANO
from tasks.spec import KIND_TRAIN, JobSpec, Optimiser, Requirements, Schedule, decode_spec, encode_spec
from tests.tasks.programs.trainings import Training, training
from tests.tasks.world import WORTH

STEPS: Final = 6
TINY: Final = LlamaShape(
    vocabulary=40, width=8, layers=1, heads=2, key_heads=1, head_width=4, hidden=12, context=16,
    rotary_base=10_000, epsilon_nano=10_000,
)  # fmt: skip


def trained(
    layers: int = 1, shape: LlamaShape | None = None, segment: int = 2
) -> tuple[JobSpec, DecoderPlan, Training]:
    """Return a job, its plan, and the contents of its rows. ``shape`` is another one than the tiny."""
    rates = FinetuneRates(Rates(20_000_000, weight_decay_nano=10_000_000), "cosine", 1, STEPS, NANO)
    made = training(shape or replace(TINY, layers=layers), rates, batch=2, rows=4, length=6)
    plan = DecoderPlan(made.job, rates, bytes(range(32)))
    model, job = made.job.model, made.job
    part = DecoderPart(
        model=DecoderModel(
            "llama", model.vocabulary, model.width, model.layers, model.heads, model.key_heads, model.head_width,
            model.hidden, model.context, model.rotary_base, model.epsilon_nano, int(model.tied),
        ),
        dataset=TextRows(b"r" * 32, rows_root(job, made.data), job.rows, job.train_rows, job.length),
        batch=job.batch,
        optimiser=Optimiser("adamw", *rates.adamw),
        rates=RateSchedule(rates.schedule, rates.warmup_steps, rates.clip_nano),
    )  # fmt: skip
    spec = JobSpec(
        KIND_TRAIN, 3, "exact/2", part, plan.seed, first_state(plan).root(plan), Schedule(STEPS, segment, STEPS),
        WORTH // 1000, Requirements(0, 0, 0), 60_000,
    )  # fmt: skip
    return decode_spec(encode_spec(spec)), plan, made
