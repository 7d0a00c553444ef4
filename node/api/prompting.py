"""Prompts of a batch as rows of one job, and the job's completions as answers to its requests."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, Protocol

from node.api.errors import ApiError, wrong
from node.api.lines import GREEDY, Answer, BatchLine, cut, error_line, output_line
from tasks.models.errors import RowsInvalid
from tasks.models.prompts import prompts_of

__all__ = ["NEW_TOKENS_USUAL", "BatchPlan", "Results", "answers_of", "plan_batch", "results_of"]

NEW_TOKENS_USUAL: Final = 256
"""New tokens of a request that does not say how many, as far as the model takes them."""


class Text(Protocol):
    """A model's tokeniser."""

    @property
    def ends(self) -> frozenset[int]:
        """Tokens that end a completion."""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""


class BatchPlan(NamedTuple):
    """The requests of a batch, and the rows of its job: of which request each is, and its tokens."""

    lines: tuple[BatchLine, ...]
    rows: tuple[tuple[int, tuple[int, ...]], ...]
    limits: tuple[int, ...]
    """New tokens of each request at most; 0 for those that are refused."""
    new_tokens: int

    def data(self) -> bytes:
        """Return the rows as the data of a job: each with the numbers of its request (R136).

        Answers to one prompt have a seed each, of that of the request.
        """
        asked, counts, found = [self.lines[number] for number, _ in self.rows], dict[int, int](), list[bytes]()
        is_alike = (
            all(line.drawing == GREEDY for line in asked) and len({self.limits[n] for n, _ in self.rows}) == 1
        )
        for line, (number, tokens) in zip(asked, self.rows, strict=True):
            fields: dict[str, Any] = {"input_ids": tokens}
            if not is_alike:  # a step costs less where no row has numbers of its own
                fields["max_new_tokens"] = self.limits[number]
            counts[number] = counts.get(number, -1) + 1
            if line.drawing != GREEDY:
                fields |= line.drawing.fields
                if line.drawing.seed is not None:
                    answer = counts[number] % line.copies
                    fields["seed"] = f"{line.drawing.seed}/{answer}" if answer else line.drawing.seed
            found.append(json.dumps(fields).encode() + b"\n")
        return b"".join(found)


class Results(NamedTuple):
    """Files of a batch that has ended, and how many requests are in each."""

    output: bytes
    errors: bytes
    completed: int
    failed: int
    prompt_tokens: int
    new_tokens: int


def plan_batch(lines: Sequence[BatchLine], text: Text, vocabulary: int, context: int) -> BatchPlan:
    """Return the rows of the requests that can be done.

    Each request says how many new tokens it wants, and how they are drawn. The largest number is that of the job.
    """
    found: list[tuple[BatchLine, tuple[tuple[int, ...], ...]]] = []
    for line in lines:
        try:
            found.append((line, () if line.refused else _tokens(line, text, vocabulary, context)))
        except ApiError as error:
            found.append((replace(line, refused=error), ()))
    kept, rows, limits = list[BatchLine](), list[tuple[int, tuple[int, ...]]](), list[int]()
    for line, prompts in found:
        longest = max(map(len, prompts), default=0)
        rows += [(len(kept), row) for row in prompts for _ in range(line.copies)]
        limits.append((line.new_tokens or min(NEW_TOKENS_USUAL, context + 1 - longest)) if prompts else 0)
        kept.append(line)
    return BatchPlan(tuple(kept), tuple(rows), tuple(limits), max(limits, default=0))


def _too_long(message: str) -> ApiError:
    return wrong(message, "max_tokens", "context_length_exceeded")


def _tokens(line: BatchLine, text: Text, vocabulary: int, context: int) -> tuple[tuple[int, ...], ...]:
    most = context + 1 - (line.new_tokens or 1)
    if most < 1:
        raise _too_long(f"{line.new_tokens} new tokens; the model takes {context} tokens.")
    found = []
    for number, prompt in enumerate(line.prompts):
        try:
            [one] = prompts_of(json.dumps(prompt).encode(), text, vocabulary, context + 1)
        except RowsInvalid as error:
            raise wrong(_without_place(error), next(iter(prompt)), "invalid_prompt") from None
        if len(one.tokens) > most:
            where = f" of prompt {number}" * (len(line.prompts) > 1)
            raise _too_long(
                f"{len(one.tokens)} tokens{where} and {line.new_tokens or 1} new ones; the model takes {context}."
            )
        found.append(one.tokens)
    return tuple(found)


def _without_place(error: RowsInvalid) -> str:
    """Return what is wrong without the line, which is that of a file made here."""
    return str(error).removeprefix("line 1: ")


def answers_of(
    plan: BatchPlan, completions: Sequence[Sequence[int]], text: Text, ends: Collection[int]
) -> Iterator[tuple[int, list[Answer] | None]]:
    """Yield the number of each request that is not refused, and its answers; None where a row is missing."""
    by_line: dict[int, list[Answer] | None] = {}
    for place, (number, prompt) in enumerate(plan.rows):
        known = by_line.setdefault(number, [])
        if place >= len(completions):
            by_line[number] = None
        elif known is not None:
            line, limit = plan.lines[number], plan.limits[number]
            tokens = list(completions[place][:limit])
            has_ended = bool(tokens) and tokens[-1] in ends
            told, is_cut = cut(text.decode(tokens[:-1] if has_ended else tokens), line.stops)
            asked = 0 if len(known) % line.copies else len(prompt)
            known.append(Answer(told, has_ended or is_cut, asked, len(tokens)))
    yield from by_line.items()


def results_of(
    plan: BatchPlan, completions: Sequence[Sequence[int]], text: Text, *, ends: Collection[int], batch: str,
    endpoint: str, created_s: int, fingerprint: str, unfinished: ApiError,
) -> Results:  # fmt: skip
    """Return the files of a batch, requests in their order; ``unfinished`` is said of those without an answer."""
    answers = dict(answers_of(plan, completions, text, ends))
    output, errors, told = list[bytes](), list[bytes](), [0, 0]
    for number, line in enumerate(plan.lines):
        found = answers.get(number)
        if line.refused is not None:
            errors.append(error_line(line.line, line.custom_id, line.refused, batch=batch))
        elif found is None:
            errors.append(error_line(line.line, line.custom_id, unfinished, batch=batch, was_asked=False))
        else:
            told[0] += sum(one.prompt_tokens for one in found)
            told[1] += sum(one.new_tokens for one in found)
            output.append(
                output_line(
                    line.line, line.custom_id, line.model, endpoint, found, batch=batch, created_s=created_s,
                    fingerprint=fingerprint,
                )
            )  # fmt: skip
    return Results(b"".join(output), b"".join(errors), len(output), len(errors), *told)
