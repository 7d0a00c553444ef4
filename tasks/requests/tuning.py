"""A request to fine-tune: a model, rows, and settings that all have a default."""

from __future__ import annotations

from typing import Final, NamedTuple

from tasks.kinds.finetune import KIND_FINETUNE
from tasks.models.jobs import TuningSettings
from tasks.models.rows import LONG_ROWS, WHOLE_ROWS
from tasks.programs.finetune import BETA_NANO_MAX
from tasks.programs.llama_shape import FUSED, PROJECTIONS
from tasks.programs.operators.scalars import NANO
from tasks.programs.operators.schedules import SCHEDULES
from tasks.requests.fields import JobFields
from tasks.requests.looping import LOOP_TEXTS, LOOP_WHOLE, RECOMPUTE, loop_fields
from tasks.requests.models import adapter_of, base_of
from tasks.requests.references import TaskRef, path_or_task

__all__ = ["TuningRequest", "tuning_of"]

_WHOLE: Final = (
    "epochs", "steps", "batch", "max_length", "warmup_steps", "segment_steps", *LOOP_WHOLE,
)  # fmt: skip
_FRACTIONS: Final = ("learning_rate", "weight_decay", "clip", "beta")
_TEXTS: Final = (
    "kind", "model", "data", "long_rows", "schedule", *LOOP_TEXTS, "adapter", "tokenizer", "preference", RECOMPUTE,
    "packing",
)  # fmt: skip
PREFERENCES: Final = ("dpo",)
"""What trains on preferences."""
BETA_NANO: Final = NANO // 10
"""As trainers begin with."""
_LORA: Final = ("rank", "alpha", "targets")
_OTHER_NAMES: Final = {
    "q": "query", "k": "key", "v": "value", "o": "output",
    "q_proj": "query", "k_proj": "key", "v_proj": "value", "o_proj": "output", "gate_proj": "gate",
    "up_proj": "up", "down_proj": "down", "c_attn": FUSED, "c_fc": "up", "attn.c_attn": FUSED,
    "attn.c_proj": "output", "mlp.c_fc": "up", "mlp.c_proj": "down",
}  # fmt: skip
"""What PEFT calls them."""
_BOTH: Final = "c_proj"
"""What PEFT calls two weights of a layer of GPT-2."""
_TARGETS: Final = (*PROJECTIONS, FUSED)


class TuningRequest(NamedTuple):
    """Where the model and the rows lie, and what is to be done with them; ``file`` names the request.

    ``validation`` is a file of rows for validation; empty if there is none. ``adapter`` is the task whose adapters
    this one goes on from: they have its rank, alpha and targets. ``model`` and ``tokenizer`` are those of
    ``base_of``.
    """

    file: str
    model: str
    data: str
    settings: TuningSettings
    validation: str = ""
    adapter: TaskRef | None = None
    tokenizer: str = ""

    @property
    def kind(self) -> str:
        """The kind of job that is asked for."""
        return KIND_FINETUNE


def tuning_of(fields: JobFields) -> TuningRequest:
    """Return what is asked for. Raises RequestInvalid."""
    usual = TuningSettings()
    fields.expect((*_TEXTS, *_WHOLE, *_FRACTIONS), "lora", _LORA)
    start = adapter_of(fields)
    given = next((name for name in _LORA if fields.has(name)), None)
    if start is not None and given is not None:
        raise fields.wrong(given, f"{given}: a job that goes on from adapters of a task has theirs; remove lora")
    if fields.both("epochs", "steps"):
        raise fields.wrong("steps", "steps and epochs: give one of them")
    loop = loop_fields(fields)
    settings = TuningSettings(
        epochs=fields.whole("epochs", usual.epochs),
        steps=fields.whole("steps", usual.steps),
        batch=fields.whole("batch", usual.batch),
        max_length=fields.whole("max_length", usual.max_length),
        long_rows=fields.choice("long_rows", LONG_ROWS, usual.long_rows),
        rank=fields.whole("rank", usual.rank),
        alpha=fields.whole("alpha", usual.alpha),
        targets=_targets(fields, usual.targets),
        learning_rate_nano=fields.nano("learning_rate", usual.learning_rate_nano),
        weight_decay_nano=fields.nano("weight_decay", usual.weight_decay_nano),
        schedule=fields.choice("schedule", SCHEDULES, usual.schedule),
        warmup_steps=fields.whole("warmup_steps", usual.warmup_steps, least=0),
        clip_nano=fields.nano("clip", usual.clip_nano),
        segment_steps=fields.whole("segment_steps", usual.segment_steps),
        window_steps=loop.window_steps,
        accumulate=loop.accumulate,
        validation_nano=loop.share_nano,
        evaluate_every=loop.evaluate_every,
        keep=loop.keep,
        patience=loop.patience,
        beta_nano=_beta(fields),
        save_every=loop.save_every,
        recompute=fields.truth(RECOMPUTE),
        packing=_packing(fields),
    )
    if settings.beta_nano and settings.long_rows == "split":
        raise fields.wrong(
            "long_rows", f"long_rows: {', '.join(WHOLE_ROWS)} expected: a pair is compared as a whole"
        )
    data = path_or_task(fields, "data")
    model, tokenizer = base_of(fields)
    return TuningRequest(fields.file, model, data, settings, loop.path, start, tokenizer)


def _packing(fields: JobFields) -> bool:
    """Return whether rows share sequences."""
    found = fields.truth("packing")
    if found and fields.has("preference"):
        raise fields.wrong("packing", "packing: none with preference, which compares whole rows")
    return found


def _beta(fields: JobFields) -> int:
    """Return beta of a job on preferences in units of 10^-9, 0 for any other job."""
    if not fields.has("preference"):
        if fields.has("beta"):
            raise fields.wrong("beta", "beta: only for a job on preferences; add preference: dpo")
        return 0
    fields.choice("preference", PREFERENCES, PREFERENCES[0])
    beta = fields.nano("beta", BETA_NANO, BETA_NANO_MAX // NANO)
    if not beta:
        raise fields.wrong("beta", f"beta: above 0, up to {BETA_NANO_MAX // NANO}")
    return beta


def _targets(fields: JobFields, otherwise: tuple[str, ...]) -> tuple[str, ...]:
    value = fields.listed("targets")
    if value is None:
        return otherwise
    known = [one for one in value if isinstance(one, str)]
    named = [_OTHER_NAMES.get(one, one) for one in known if one != _BOTH]
    named += ["output", "down"] * known.count(_BOTH)
    if not named or len(known) != len(value) or not set(named) <= set(_TARGETS) or len(set(named)) < len(named):
        raise fields.wrong("targets", f"targets: a list of some of {', '.join(_TARGETS)} expected")
    return tuple(named)
