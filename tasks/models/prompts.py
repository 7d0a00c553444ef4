"""Prompts for decoding: JSON lines with texts, chats or tokens; and completions as JSON lines (market.md R77).

Every fault is named with its line, before anything is computed or paid. No line is dropped or cut.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from tasks.models.errors import RowsInvalid
from tasks.models.rows import (
    ASSISTANT,
    UNTRAINED_LABEL,
    Tokens,
    objects_of,
    open_turn,
    text_of,
    tokens_of,
    turns_of,
)

__all__ = ["Prompt", "completion_lines", "continued_rows", "prompts_of"]


class Prompt(NamedTuple):
    """Tokens of one line of a file."""

    line: int
    tokens: tuple[int, ...]


def prompts_of(data: bytes, tokens: Tokens, vocabulary: int, most: int) -> list[Prompt]:
    """Return the prompts of a file of JSON lines, of ``most`` tokens at most. Raises RowsInvalid with its line.

    A line has ``prompt``, a text; or ``messages`` with ``role`` and ``content`` in the form of ChatML, after which
    the assistant's turn begins; or ``input_ids`` below ``vocabulary``.
    """
    found = list[Prompt]()
    for number, fields in objects_of(data):
        one = _tokens(number, fields, tokens, vocabulary)
        if not one:
            raise RowsInvalid("a prompt without a token: nothing comes after it", number)
        if len(one) > most:
            raise RowsInvalid(f"{len(one)} tokens, at most {most}: shorten it, or lower new_tokens", number)
        found.append(Prompt(number, tuple(one)))
    return found


def _tokens(number: int, fields: Mapping[str, Any], tokens: Tokens, vocabulary: int) -> list[int]:
    match sorted(fields):
        case ["input_ids"]:
            return tokens_of(number, fields, vocabulary)
        case ["prompt"]:
            return tokens.encode(text_of(number, fields, "prompt"))
        case ["messages"]:
            turns = list(turns_of(number, fields["messages"], tokens))
            if fields["messages"][-1]["role"] == ASSISTANT:
                raise RowsInvalid("messages: the last one is the assistant's; end with a question", number)
            return [token for part, _ in turns for token in part] + open_turn(ASSISTANT, tokens)
        case names:
            what = ", ".join(names)[:80] or "none"
            raise RowsInvalid(f"fields {what}; one of prompt, messages and input_ids expected", number)


def continued_rows(prompts: Sequence[Sequence[int]], found: Sequence[Sequence[int]], *, labelled: bool) -> bytes:
    """Return a JSON line for each prompt that was continued: rows of tokens, for other jobs.

    With ``labelled`` only the tokens that were made are trained, or counted.
    """
    lines = list[str]()
    for prompt, made in zip(prompts, found, strict=False):
        line = {"input_ids": [*prompt, *made]}
        if labelled:
            line["labels"] = [*[UNTRAINED_LABEL] * len(prompt), *made]
        lines.append(json.dumps(line) + "\n")
    return "".join(lines).encode()


def completion_lines(
    found: Sequence[Sequence[int]], ends: Collection[int], decode: Callable[[Sequence[int]], str] | None = None,
    stops: Sequence[str] = (),
) -> bytes:  # fmt: skip
    """Return a JSON line for each completion, in the order of the prompts, with its text if it is decoded.

    A text ends before the first of ``stops`` in it, wherever tokens begin. The tokens are all that were made: they
    are what is proved.
    """
    lines = list[str]()
    for row, one in enumerate(found):
        line: dict[str, Any] = {"row": row, "output_ids": list(one), "ended": bool(one) and one[-1] in ends}
        if decode is not None:
            text = decode(one)
            end = min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))
            line["text"] = text[:end]
            if stops:
                line["stopped"] = end < len(text)
        lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    return "".join(lines).encode()
