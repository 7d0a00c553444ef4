"""The model of a request: files that are at hand, with adapters of a task or without, or the model of a task."""

from __future__ import annotations

from typing import Final, NamedTuple

from tasks.requests.fields import BY_TASK, JobFields
from tasks.requests.references import TaskRef, ref_of
from tasks.requests.training import BYTES

__all__ = ["MODEL_FIELDS", "NamedModel", "adapter_of", "base_of", "model_of"]

MODEL_FIELDS: Final = ("model", "adapter", "tokenizer")
_NONE: Final = "none"


class NamedModel(NamedTuple):
    """Path of a model, and the task that tuned it, if one did.

    Where ``model`` is empty, ``adapter`` is the task that has trained the model from scratch. ``tokenizer`` is
    the folder of its tokeniser then, empty for bytes. A model with adapters may be that of a task too: then
    ``model`` names it (``TaskRef``), and ``tokenizer`` is BYTES or a folder.
    """

    model: str
    adapter: TaskRef | None = None
    tokenizer: str = ""


def model_of(fields: JobFields) -> NamedModel:
    """Return the model that a request names. Raises RequestInvalid."""
    tuned = adapter_of(fields)
    if tuned is not None or not fields.text("model").startswith(BY_TASK):
        model, tokenizer = base_of(fields)
        return NamedModel(model, tuned, tokenizer)
    trained = ref_of(fields, "model", "that trained a language model")
    is_bytes = fields.text("tokenizer", BYTES) == BYTES
    return NamedModel("", trained, "" if is_bytes else fields.path("tokenizer"))


def base_of(fields: JobFields) -> tuple[str, str]:
    """Return the model that adapters change, and its tokeniser: that of the model's files if empty.

    The model is a path, or the name of a task that trained it (R169). Raises RequestInvalid.
    """
    if not fields.text("model").startswith(BY_TASK):
        if fields.has("tokenizer"):
            raise fields.wrong("tokenizer", "tokenizer: only for a model of a task; others have their own")
        return fields.path("model"), ""
    named = str(ref_of(fields, "model", "that trained a language model"))
    is_bytes = fields.text("tokenizer", BYTES) == BYTES
    return named, BYTES if is_bytes else fields.path("tokenizer")


def adapter_of(fields: JobFields) -> TaskRef | None:
    """Return the result of the task that tuned the model, None without one. Raises RequestInvalid."""
    if fields.text("adapter", _NONE) == _NONE:
        return None
    return ref_of(fields, "adapter", "that fine-tuned this model")
