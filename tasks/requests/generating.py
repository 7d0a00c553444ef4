"""A request to continue prompts: a model, prompts, and settings that all have a default (market.md R77)."""

from __future__ import annotations

from typing import Final, NamedTuple

from tasks.models.generating import GeneratingSettings
from tasks.programs.operators.decoding import ENDS_MAX
from tasks.requests.fields import JobFields

__all__ = ["GeneratingRequest", "generating_of"]

_FIELDS: Final = ("kind", "model", "data", "new_tokens", "batch", "segment_steps", "ends")


class GeneratingRequest(NamedTuple):
    """Where the model and the prompts lie, and what is to be done with them; ``file`` names the request."""

    file: str
    model: str
    data: str
    settings: GeneratingSettings


def generating_of(fields: JobFields) -> GeneratingRequest:
    """Return what is asked for. Raises RequestInvalid."""
    usual = GeneratingSettings()
    fields.expect(_FIELDS)
    settings = GeneratingSettings(
        new_tokens=fields.whole("new_tokens", usual.new_tokens),
        batch=fields.whole("batch", usual.batch),
        ends=_ends(fields),
        segment_steps=fields.whole("segment_steps", usual.segment_steps),
    )
    return GeneratingRequest(fields.file, fields.path("model"), fields.path("data"), settings)


def _ends(fields: JobFields) -> tuple[int, ...] | None:
    value = fields.listed("ends")
    if value is None:
        return None
    tokens = {one for one in value if type(one) is int and one >= 0}
    if len(tokens) != len(value) or len(value) > ENDS_MAX:
        raise fields.wrong("ends", f"ends: a list of {ENDS_MAX} token numbers at most expected, each once")
    return tuple(sorted(tokens))
