"""Prompts of a batch as rows of one job, and the job's completions as answers to its requests."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, Protocol, TypeAlias

from node.api.errors import ApiError, unsupported, wrong
from node.api.lines import GREEDY, Answer, BatchLine, Drawing, cut, error_line, output_line
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
    drawing: Drawing = GREEDY
    """How the tokens of all rows are drawn."""

    def data(self) -> bytes:
        """Return the rows as the data of a job."""
        return b"".join(json.dumps({"input_ids": tokens}).encode() + b"\n" for _, tokens in self.rows)


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

    All rows of a job have the same number of new tokens. A request that wants fewer gets the first of them, which
    are the same. All are drawn alike, as the first request says; those that want it otherwise are refused.
    """
    found: list[tuple[BatchLine, tuple[tuple[int, ...], ...]]] = []
    for line in lines:
        try:
            found.append((line, () if line.refused else _tokens(line, text, vocabulary, context)))
        except ApiError as error:
            found.append((replace(line, refused=error), ()))
    drawing = next((line.drawing for line, prompts in found if prompts), GREEDY)
    found = [_drawn_alike(line, prompts, drawing) for line, prompts in found]
    wanted = max((line.new_tokens or 0 for line, prompts in found if prompts), default=0)
    if any(prompts and not line.new_tokens for line, prompts in found):
        longest = max(len(row) for _, prompts in found for row in prompts)
        wanted = max(wanted, min(NEW_TOKENS_USUAL, context + 1 - longest))
    kept, rows, limits = list[BatchLine](), list[tuple[int, tuple[int, ...]]](), list[int]()
    for line, prompts in found:
        longest = max(map(len, prompts), default=0)
        if prompts and longest > context + 1 - wanted:
            text_ = (
                f"{longest} tokens of the prompt and {wanted} new ones, the most of this batch, exceed {context}."
            )
            line, prompts = replace(line, refused=_too_long(text_)), ()
        rows += [(len(kept), row) for row in prompts for _ in range(line.copies)]
        limits.append(min(line.new_tokens or wanted, wanted) if prompts else 0)
        kept.append(line)
    return BatchPlan(tuple(kept), tuple(rows), tuple(limits), wanted, drawing)


_Prompts: TypeAlias = tuple[tuple[int, ...], ...]


def _drawn_alike(line: BatchLine, prompts: _Prompts, drawing: Drawing) -> tuple[BatchLine, _Prompts]:
    """Return a request with its prompts, and refuse one that wants its tokens to be drawn in another way."""
    if not prompts or line.drawing == drawing:
        return line, prompts
    pairs = zip(Drawing._fields, line.drawing, drawing, strict=True)
    name = next(name for name, own, first in pairs if own != first)
    what = f"The requests of a batch have one {name}: that of the first request. Use another batch."
    return replace(line, refused=unsupported(what, name)), ()


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
