"""Reading a request: ``kind`` says of which kind of job it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, Final, NamedTuple, TypeAlias

from tasks.kinds.finetune import KIND_FINETUNE
from tasks.kinds.generate import KIND_GENERATE
from tasks.requests.fields import JobFields
from tasks.requests.generating import GeneratingRequest, generating_of
from tasks.requests.terms import Terms, terms_of
from tasks.requests.tuning import TuningRequest, tuning_of
from tasks.requests.yaml_text import read_yaml

__all__ = ["KINDS", "JobFile", "Request", "kind_of", "read_file", "read_request", "request_of"]

Request: TypeAlias = TuningRequest | GeneratingRequest
KINDS: Final[Mapping[str, Callable[[JobFields], Request]]] = {
    KIND_FINETUNE: tuning_of,
    KIND_GENERATE: generating_of,
}
"""What reads the fields of a kind."""


class JobFile(NamedTuple):
    """What a file asks for, and on which terms."""

    terms: Terms
    request: Request


def read_file(text: str, file: str) -> JobFile:
    """Return what the text of a file (YAML) asks for. Raises RequestInvalid, naming file and line."""
    document = read_yaml(text, file)
    fields = JobFields(document.values, file=file, lines=document.lines)
    return JobFile(terms_of(fields), read_request(fields))


def read_request(fields: JobFields) -> Request:
    """Return what the fields ask for. Raises RequestInvalid."""
    kind = fields.text("kind")
    if kind not in KINDS:
        near = get_close_matches(kind, KINDS, 1)
        what = f"did you mean {near[0]}?" if near else f"{' or '.join(KINDS)} expected"
        raise fields.wrong("kind", f"kind: {kind[:40]!r} is not known; {what}")
    return KINDS[kind](fields)


def kind_of(request: Request) -> str:
    """Return the kind of job that is asked for."""
    return KIND_GENERATE if isinstance(request, GeneratingRequest) else KIND_FINETUNE


def request_of(values: Mapping[str, Any]) -> Request:
    """Return what the fields of a program ask for, with the names of a job file. Raises RequestInvalid."""
    return read_request(JobFields(values))
