"""A request to continue prompts: a model, prompts, and settings that all have a default (market.md R77)."""

from __future__ import annotations

from typing import Final, NamedTuple

from tasks.kinds.generate import KIND_GENERATE
from tasks.models.generating import GeneratingSettings
from tasks.programs.operators.decoding import ENDS_MAX
from tasks.programs.operators.scalars import NANO
from tasks.programs.sampling import TEMPERATURE_MAX, Sampling
from tasks.programs.tensors import DIMENSION_MAX
from tasks.requests.fields import JobFields
from tasks.requests.models import MODEL_FIELDS, model_of
from tasks.requests.references import TaskRef

__all__ = ["GeneratingRequest", "generating_of"]

_SAMPLING: Final = ("temperature", "top_p", "top_k")
_FIELDS: Final = (
    "kind",
    *MODEL_FIELDS,
    "data",
    "new_tokens",
    "batch",
    "segment_steps",
    "ends",
    *_SAMPLING,
)


class GeneratingRequest(NamedTuple):
    """Where the model and the prompts lie, and what is to be done with them; ``file`` names the request.

    ``adapter`` is the task that tuned the model, if one did. Where ``model`` is empty, it is the task that has
    trained the model from scratch; ``tokenizer`` is then the folder of its tokeniser, empty for bytes.
    """

    file: str
    model: str
    data: str
    settings: GeneratingSettings
    adapter: TaskRef | None = None
    tokenizer: str = ""

    @property
    def kind(self) -> str:
        """The kind of job that is asked for."""
        return KIND_GENERATE


def generating_of(fields: JobFields) -> GeneratingRequest:
    """Return what is asked for. Raises RequestInvalid."""
    usual = GeneratingSettings()
    fields.expect(_FIELDS)
    settings = GeneratingSettings(
        new_tokens=fields.whole("new_tokens", usual.new_tokens),
        batch=fields.whole("batch", usual.batch),
        ends=_ends(fields),
        segment_steps=fields.whole("segment_steps", usual.segment_steps),
        sampling=_sampling(fields),
    )
    data = fields.path("data")
    found = model_of(fields)
    return GeneratingRequest(fields.file, found.model, data, settings, found.adapter, found.tokenizer)


def _sampling(fields: JobFields) -> Sampling | None:
    """Return how tokens are drawn, None if the likeliest one is taken. Raises RequestInvalid."""
    if not fields.has("temperature"):
        given = next((name for name in _SAMPLING if fields.has(name)), None)
        if given is not None:
            raise fields.wrong(
                given, f"{given}: without a temperature the likeliest token is taken; add temperature"
            )
        return None
    temperature, top_p = fields.nano("temperature", 0, TEMPERATURE_MAX), fields.nano("top_p", NANO, 1)
    top_k = fields.whole("top_k", 0, least=0)
    if top_k > DIMENSION_MAX:
        raise fields.wrong("top_k", f"top_k: {DIMENSION_MAX} at most; 0 keeps all tokens")
    return Sampling(temperature, top_p, top_k) if temperature else None


def _ends(fields: JobFields) -> tuple[int, ...] | None:
    value = fields.listed("ends")
    if value is None:
        return None
    tokens = {one for one in value if type(one) is int and one >= 0}
    if len(tokens) != len(value) or len(value) > ENDS_MAX:
        raise fields.wrong("ends", f"ends: a list of {ENDS_MAX} token numbers at most expected, each once")
    return tuple(sorted(tokens))
