"""Texts of a batch over embeddings as rows of one job, and the job's vectors as answers to its requests."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from node.api.errors import ApiError, wrong
from node.api.lines import BatchLine, error_line, result_line
from node.api.prompting import Results
from tasks.models.embedding import texts_of
from tasks.models.errors import RowsInvalid

if TYPE_CHECKING:
    import numpy as np

    from tasks.models.encoders import TextTokens

__all__ = ["VectorPlan", "plan_vectors", "vector_results"]


class VectorPlan(NamedTuple):
    """The requests of a batch, and the rows of its job: of which request each is, and its tokens."""

    lines: tuple[BatchLine, ...]
    rows: tuple[tuple[int, tuple[int, ...]], ...]

    def data(self) -> bytes:
        """Return the rows as the data of a job."""
        return b"".join(json.dumps({"input_ids": tokens}).encode() + b"\n" for _, tokens in self.rows)


def plan_vectors(lines: Sequence[BatchLine], tokens: TextTokens, vocabulary: int, context: int) -> VectorPlan:
    """Return the rows of the requests that can be done. No text is cut: one that is too long is refused."""
    kept, rows = list[BatchLine](), list[tuple[int, tuple[int, ...]]]()
    for line in lines:
        found = list[tuple[int, ...]]()
        if line.refused is None:
            try:
                found = [_tokens(one, tokens, vocabulary, context) for one in line.prompts]
            except ApiError as error:
                line, found = replace(line, refused=error), []
        rows += [(len(kept), one) for one in found]
        kept.append(line)
    return VectorPlan(tuple(kept), tuple(rows))


def _tokens(prompt: Any, tokens: TextTokens, vocabulary: int, context: int) -> tuple[int, ...]:
    try:
        [(_, found, is_long)] = texts_of(json.dumps(prompt).encode(), tokens, vocabulary, context, "truncate")
    except RowsInvalid as error:
        raise wrong(str(error).removeprefix("line 1: "), "input", "invalid_input") from None
    if is_long:
        raise wrong(f"A text of more tokens than the model takes, {context}.", "input", "context_length_exceeded")
    return tuple(found)


def vector_results(
    plan: VectorPlan, vectors: np.ndarray | None, *, batch: str, unfinished: ApiError
) -> Results:  # fmt: skip
    """Return the files of a batch, requests in their order; ``unfinished`` is said of those without vectors."""
    done = 0 if vectors is None else len(vectors)
    places = [list[int]() for _ in plan.lines]
    for place, (number, _) in enumerate(plan.rows):
        places[number].append(place)
    output, errors, asked = list[bytes](), list[bytes](), 0
    for number, line in enumerate(plan.lines):
        if line.refused is not None:
            errors.append(error_line(line.line, line.custom_id, line.refused, batch=batch))
        elif vectors is None or places[number][-1] >= done:
            errors.append(error_line(line.line, line.custom_id, unfinished, batch=batch, was_asked=False))
        else:
            count = sum(len(plan.rows[place][1]) for place in places[number])
            asked += count
            found = [vectors[place] for place in places[number]]
            output.append(_output_line(line, found, count, batch))
    return Results(b"".join(output), b"".join(errors), len(output), len(errors), asked, 0)


def _output_line(line: BatchLine, vectors: Sequence[np.ndarray], tokens: int, batch: str) -> bytes:
    data = [
        {"object": "embedding", "index": index, "embedding": _shown(vector, as_base64=line.as_base64)}
        for index, vector in enumerate(vectors)
    ]
    body = {
        "object": "list", "data": data, "model": line.model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }  # fmt: skip
    return result_line(line.line, line.custom_id, batch, body)


def _shown(vector: np.ndarray, *, as_base64: bool) -> str | list[float]:
    """Return a vector as the format has it: numbers with as many digits as tell binary32 apart, or its bytes."""
    if as_base64:
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return [float(str(value)) for value in vector]
