"""A request to evaluate a model on rows, with or without adapters of a task, or one that a task has trained
(market.md R85)."""

from __future__ import annotations

from typing import Final, NamedTuple

from tasks.kinds.evaluate import KIND_EVALUATE
from tasks.models.evaluating import EvaluatingSettings
from tasks.models.rows import WHOLE_ROWS
from tasks.requests.fields import JobFields
from tasks.requests.models import MODEL_FIELDS, model_of
from tasks.requests.references import TaskRef, path_or_task

__all__ = ["EvaluatingRequest", "evaluating_of"]

_WHOLE: Final = ("batch", "max_length", "segment_steps", "window_steps")
_FIELDS: Final = ("kind", *MODEL_FIELDS, "data", "long_rows", *_WHOLE)


class EvaluatingRequest(NamedTuple):
    """Where the model and the rows lie, and what is to be done with them; ``file`` names the request.

    ``model``, ``adapter`` and ``tokenizer`` are those of ``NamedModel``.
    """

    file: str
    model: str
    data: str
    settings: EvaluatingSettings
    adapter: TaskRef | None = None
    tokenizer: str = ""

    @property
    def kind(self) -> str:
        """The kind of job that is asked for."""
        return KIND_EVALUATE


def evaluating_of(fields: JobFields) -> EvaluatingRequest:
    """Return what is asked for. Raises RequestInvalid."""
    usual = EvaluatingSettings()
    fields.expect(_FIELDS)
    batch, max_length, segment_steps, window_steps = (
        fields.whole(name, int(getattr(usual, name))) for name in _WHOLE
    )
    settings = EvaluatingSettings(
        batch=batch, max_length=max_length, long_rows=fields.choice("long_rows", WHOLE_ROWS, usual.long_rows),
        segment_steps=segment_steps, window_steps=window_steps,
    )  # fmt: skip
    found, data = model_of(fields), path_or_task(fields, "data")
    return EvaluatingRequest(fields.file, found.model, data, settings, found.adapter, found.tokenizer)
