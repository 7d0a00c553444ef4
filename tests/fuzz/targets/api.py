"""Decoders of ``dekube api``: bodies of requests, and lines of batches."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import orjson

from node.api.errors import ApiError
from node.api.lines import parse_lines
from node.api.reading import read_json
from node.api.requests import CHAT, COMPLETIONS, read_batch, read_tuning
from tests.fuzz.targets.base import Target

ROW = {"custom_id": "a", "method": "POST", "url": CHAT, "body": {
    "model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "why?"}]}], "max_tokens": 4,
    "stop": ["\n"], "n": 2, "temperature": 0.7, "top_p": 0.9, "seed": 5}}  # fmt: skip
PROMPT = {"custom_id": "b", "method": "POST", "url": COMPLETIONS, "body": {"model": "m", "prompt": [[1, 2], [3]]}}
TUNING = {
    "model": "m", "training_file": "file-1", "suffix": "mine", "seed": 5, "metadata": {"a": "b"},
    "method": {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 3, "batch_size": "auto"}}},
}  # fmt: skip
BATCH = {"input_file_id": "file-1", "endpoint": CHAT, "completion_window": "24h"}


def _lines(data: bytes) -> None:
    """Read a batch, in both forms. Whatever is wrong can be sent to the client."""
    for endpoint in (CHAT, COMPLETIONS):
        found, faults = parse_lines(data, endpoint)
        assert not (found and faults)
        orjson.dumps([one.to_json() for one in faults])
        orjson.dumps([[one.custom_id, one.model, str(one.refused or "")] for one in found])


def _body(read: Callable[[Mapping[str, Any]], object], data: bytes) -> None:
    try:
        read(read_json(data))
    except ApiError as error:
        orjson.dumps(error.to_json())
        raise


def targets() -> Iterator[tuple[str, Target]]:
    """Yield the targets by name."""
    rows = b"\n".join(json.dumps(one).encode() for one in (ROW, {**ROW, "custom_id": "c"}))
    yield "lines of a batch", Target(
        _lines, (rows, json.dumps(PROMPT).encode()),
        ("node.api.lines:parse_lines", "node.api.lines:read_request"), (ApiError,), cost=2, memory=400,
    )  # fmt: skip
    for name, read, sample in (("fine-tuning job", read_tuning, TUNING), ("batch", read_batch, BATCH)):
        yield f"body of a {name}", Target(
            partial(_body, read), (json.dumps(sample).encode(),), ("node.api.reading:read_json",), (ApiError,),
            memory=160,
        )  # fmt: skip
