"""Reading a request: ``kind`` says of which kind of job it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from tasks.kinds.finetune import KIND_FINETUNE
from tasks.kinds.generate import KIND_GENERATE
from tasks.requests.fields import JobFields
from tasks.requests.generating import GeneratingRequest, generating_of
from tasks.requests.tuning import TuningRequest, tuning_of

__all__ = ["KINDS", "Request", "read_request", "request_of"]

Request: TypeAlias = TuningRequest | GeneratingRequest
KINDS: Final[Mapping[str, Callable[[JobFields], Request]]] = {
    KIND_FINETUNE: tuning_of,
    KIND_GENERATE: generating_of,
}
"""What reads the fields of a kind."""


def read_request(fields: JobFields) -> Request:
    """Return what the fields ask for. Raises RequestInvalid."""
    kind = fields.text("kind", KIND_FINETUNE)
    if kind not in KINDS:
        raise fields.wrong("kind", f"kind: {' or '.join(KINDS)} expected; use --spec for other jobs")
    return KINDS[kind](fields)


def request_of(values: Mapping[str, Any]) -> Request:
    """Return what the fields of a program ask for, with the names of a job file. Raises RequestInvalid."""
    return read_request(JobFields(values))
