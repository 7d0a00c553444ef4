"""A request to embed texts: a model, texts, and settings that all have a default (market.md R84)."""

from __future__ import annotations

from typing import Final, NamedTuple

from tasks.kinds.embed import KIND_EMBED
from tasks.models.embedding import LONG_TEXTS, EmbeddingSettings
from tasks.programs.embed import POOLINGS
from tasks.requests.fields import JobFields
from tasks.requests.models import MODEL_FIELDS, model_of
from tasks.requests.references import TaskRef, path_or_task

__all__ = ["EmbeddingRequest", "embedding_of"]

_WHOLE: Final = ("batch", "max_length", "segment_steps", "window_steps")
_FIELDS: Final = ("kind", *MODEL_FIELDS, "data", "pooling", "normalise", "long_rows", *_WHOLE)
_AUTO: Final = "auto"


class EmbeddingRequest(NamedTuple):
    """Where the model and the texts lie, and what is to be done with them; ``file`` names the request.

    ``model``, ``adapter`` and ``tokenizer`` are those of ``NamedModel``.
    """

    file: str
    model: str
    data: str
    settings: EmbeddingSettings
    adapter: TaskRef | None = None
    tokenizer: str = ""

    @property
    def kind(self) -> str:
        """The kind of job that is asked for."""
        return KIND_EMBED


def embedding_of(fields: JobFields) -> EmbeddingRequest:
    """Return what is asked for. Raises RequestInvalid."""
    usual = EmbeddingSettings()
    fields.expect(_FIELDS)
    pooling = fields.choice("pooling", (_AUTO, *POOLINGS), _AUTO)
    normalise = fields.value("normalise") if fields.has("normalise") else None
    if normalise is not None and type(normalise) is not bool:
        raise fields.wrong("normalise", "normalise: true or false expected")
    batch, max_length, segment_steps, window_steps = (
        fields.whole(name, int(getattr(usual, name))) for name in _WHOLE
    )
    settings = EmbeddingSettings(
        batch=batch, max_length=max_length, long_rows=fields.choice("long_rows", LONG_TEXTS, usual.long_rows),
        pooling="" if pooling == _AUTO else pooling, normalise=normalise, segment_steps=segment_steps,
        window_steps=window_steps,
    )  # fmt: skip
    found, data = model_of(fields), path_or_task(fields, "data")
    return EmbeddingRequest(fields.file, found.model, data, settings, found.adapter, found.tokenizer)
