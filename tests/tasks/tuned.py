"""A job of the kind ``finetune`` on a tiny model, with everything that its worker fetches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from tasks.engines.input_blobs import model_root, rows_root
from tasks.engines.tuning import first_state
from tasks.engines.tuning_plan import TuningPlan
from tasks.kinds.finetune import (
    KIND_FINETUNE,
    Adapters,
    BaseModel,
    FinetunePart,
    Preference,
    RateSchedule,
    RowSet,
    TrainingLoop,
    family_of,
)
from tasks.programs.adamw import Rates
from tasks.programs.finetune import FinetuneRates
from tasks.programs.llama_shape import LlamaShape
from tasks.programs.operators.scalars import NANO
from tasks.spec import JobSpec, Optimiser, Requirements, Schedule, decode_spec, encode_spec
from tests.tasks.programs.tunings import Tuning, tuning
from tests.tasks.world import WORTH

STEPS: Final = 6
PLAIN_LOOP: Final = TrainingLoop()
TINY: Final = LlamaShape(
    vocabulary=40, width=8, layers=1, heads=2, key_heads=1, head_width=4, hidden=12, context=16,
    rotary_base=10_000, epsilon_nano=10_000,
)  # fmt: skip


def of_shape(loop: TrainingLoop) -> dict[str, Any]:
    """Return the fields of a loop that a program follows from."""
    return {name: value for name, value in loop._asdict().items() if name != "patience"}


def tuned(
    layers: int = 1, targets: tuple[str, ...] = ("query", "key", "value", "output"),
    shape: LlamaShape | None = None, segment: int = 2, updates: int = STEPS, samples: int = 4,
    loop: TrainingLoop = PLAIN_LOOP, window: int = 0, preference: int = 0,
) -> tuple[JobSpec, TuningPlan, Tuning]:  # fmt: skip
    """Return a job, its plan, and the contents of its model and rows. ``shape`` is another one than the tiny.

    Of the four rows, or pairs, the first ``samples`` are trained on. The loop's steps follow from its ``updates``.
    """
    rates = FinetuneRates(Rates(20_000_000), "cosine", 1, updates, NANO)
    made = tuning(shape or replace(TINY, layers=layers), rates, targets, batch=2, rows=4, length=6, slots=4,
                  preference=preference)  # fmt: skip
    made = replace(made, job=replace(made.job, train_rows=samples, **of_shape(loop)))
    plan = TuningPlan(made.job, rates, bytes(range(32)), loop.patience)
    model, job = made.job.model, made.job
    part = FinetunePart(
        model=BaseModel(
            family_of(model), b"m" * 32, model_root(job, made.model), model.vocabulary, model.width, model.layers,
            model.heads, model.key_heads, model.head_width, model.hidden, model.context, model.rotary_base,
            model.epsilon_nano, int(model.tied), int(model.biased),
        ),
        dataset=RowSet(b"r" * 32, rows_root(job, made.data), job.rows, job.train_rows, job.length, job.slots),
        adapters=Adapters(job.rank, job.alpha, job.targets),
        batch=job.batch,
        optimiser=Optimiser("adamw", *rates.adamw),
        rates=RateSchedule(rates.schedule, rates.warmup_steps, rates.clip_nano),
        loop=loop,
        preference=Preference(preference) if preference else None,
    )  # fmt: skip
    total = plan.loop.steps
    schedule = Schedule(total, segment, window or total)
    spec = JobSpec(
        KIND_FINETUNE, 3, "exact/2", part, plan.seed, first_state(plan).root(plan), schedule,
        WORTH // 1000, Requirements(0, 0, 0), 60_000,
    )  # fmt: skip
    return decode_spec(encode_spec(spec)), plan, made
