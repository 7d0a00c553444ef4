"""A request to train a decoder from scratch: texts, a size, and settings that all have a default (R88)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from tasks.kinds.classifier import KIND_TRAIN
from tasks.kinds.finetune import DECODERS, MODEL_GPT2
from tasks.models.training import PRESETS, DecoderSize, TrainingSettings
from tasks.programs.operators.schedules import SCHEDULES
from tasks.requests.fields import BY_TASK, JobFields
from tasks.requests.looping import LOOP_TEXTS, LOOP_WHOLE, RECOMPUTE, loop_fields
from tasks.requests.references import TaskRef, ref_of

__all__ = ["BYTES", "TrainingRequest", "training_of"]

BYTES: Final = "bytes"
"""The tokeniser that needs no file."""
_SHAPE: Final = "shape"
_FIELDS: Final = (
    "kind", "model", "data", "tokenizer", "epochs", "steps", "batch", "learning_rate", "weight_decay", "schedule",
    "warmup_steps", "clip", "segment_steps", *LOOP_WHOLE, *LOOP_TEXTS, RECOMPUTE,
)  # fmt: skip
_SIZES: Final = ("layers", "width", "heads", "key_heads", "hidden", "context")
_PRESET: Final = "small"


class TrainingRequest(NamedTuple):
    """Where the texts lie, what makes tokens of them (BYTES, or the folder of a model), and the settings.

    ``model`` is the path of a model whose weights are the first ones, empty where no files have it. ``adapter``
    is the task whose model is trained on, if there is one. Both have the size then. ``tokenizer`` is empty for
    that of the model's files. ``validation`` is a file of texts for validation, empty if there is none. ``file``
    names the request.
    """

    file: str
    data: str
    tokenizer: str
    settings: TrainingSettings
    model: str = ""
    adapter: TaskRef | None = None
    validation: str = ""

    @property
    def kind(self) -> str:
        """The kind of job that is asked for."""
        return KIND_TRAIN


def training_of(fields: JobFields) -> TrainingRequest:
    """Return what is asked for. Raises RequestInvalid."""
    usual = TrainingSettings()
    start, model = None, ""
    if fields.has("model"):
        if fields.text("model").startswith(BY_TASK):
            start = ref_of(fields, "model", "that trained a language model")
        else:
            model = fields.path("model")
        if fields.has(_SHAPE):
            raise fields.wrong(_SHAPE, "shape: a model that is trained on has its own; remove shape")
    size = _size_of(fields)
    if fields.both("epochs", "steps"):
        raise fields.wrong("steps", "steps and epochs: give one of them")
    loop = loop_fields(fields)
    settings = TrainingSettings(
        size=size,
        epochs=fields.whole("epochs", usual.epochs),
        steps=fields.whole("steps", usual.steps),
        batch=fields.whole("batch", usual.batch),
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
        save_every=loop.save_every,
        recompute=fields.truth(RECOMPUTE),
    )
    tokenizer = fields.text("tokenizer", BYTES)
    if model and fields.has("tokenizer"):
        raise fields.wrong("tokenizer", "tokenizer: a model that lies in files has its own; remove it")
    if tokenizer != BYTES:
        tokenizer = fields.path("tokenizer")
    data = fields.path("data")
    return TrainingRequest(
        fields.file, data, "" if model else tokenizer, settings, model, adapter=start, validation=loop.path
    )


def _size_of(fields: JobFields) -> DecoderSize:
    """Return the size of the model: a preset by name, or sizes that change one. Raises RequestInvalid."""
    if fields.has(_SHAPE) and isinstance(fields.value(_SHAPE), str):
        found = PRESETS[fields.choice(_SHAPE, tuple(PRESETS), _PRESET)]
        fields.drop((_SHAPE,))
        fields.expect((*_FIELDS, _SHAPE))
        return found
    fields.expect(_FIELDS, _SHAPE, ("preset", "architecture", *_SIZES, "tied"))
    usual = PRESETS[fields.choice("preset", tuple(PRESETS), _PRESET)]
    sizes = {name: fields.whole(name, getattr(usual, name)) for name in _SIZES}
    tied = fields.truth("tied", otherwise=usual.tied)
    architecture = fields.choice("architecture", DECODERS, usual.architecture)
    found = replace(usual, **sizes, tied=tied, architecture=architecture)
    if found.width % found.heads or found.width // found.heads % 2:
        raise fields.wrong("heads", f"heads: {found.heads} heads of an even part of width {found.width} expected")
    if architecture == MODEL_GPT2 and found.key_heads not in (0, found.heads):
        raise fields.wrong("key_heads", f"key_heads: {found.heads} expected, as many as heads, with gpt2")
    if found.heads % (found.key_heads or found.heads):
        raise fields.wrong("key_heads", f"key_heads: a divisor of {found.heads} heads expected")
    return found
