"""A request to evaluate a model on rows, with or without adapters of a task (market.md R85)."""

from __future__ import annotations

from typing import Final, NamedTuple

from tasks.kinds.evaluate import KIND_EVALUATE
from tasks.models.evaluating import EvaluatingSettings
from tasks.models.rows import LONG_ROWS
from tasks.requests.fields import JobFields
from tasks.requests.generating import adapter_of
from tasks.requests.references import TaskRef, path_or_task

__all__ = ["EvaluatingRequest", "evaluating_of"]

_WHOLE: Final = ("batch", "max_length", "segment_steps", "window_steps")
_FIELDS: Final = ("kind", "model", "data", "adapter", "long_rows", *_WHOLE)


class EvaluatingRequest(NamedTuple):
    """Where the model and the rows lie, and what is to be done with them; ``file`` names the request.

    ``adapter`` is the task that tuned the model, if one did.
    """

    file: str
    model: str
    data: str
    settings: EvaluatingSettings
    adapter: TaskRef | None = None

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
        batch=batch, max_length=max_length, long_rows=fields.choice("long_rows", LONG_ROWS, usual.long_rows),
        segment_steps=segment_steps, window_steps=window_steps,
    )  # fmt: skip
    model, data = fields.path("model"), path_or_task(fields, "data")
    return EvaluatingRequest(fields.file, model, data, settings, adapter_of(fields))
