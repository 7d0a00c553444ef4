"""Prompts for decoding: JSON lines with texts, chats or tokens; and completions as JSON lines (market.md R77).

Every fault is named with its line, before anything is computed or paid. No line is dropped or cut.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from tasks.models.errors import RowsInvalid
from tasks.models.row_options import RowOptions, options_of
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
    """Tokens of one line of a file, and what it says of its own decoding."""

    line: int
    tokens: tuple[int, ...]
    own: RowOptions = RowOptions()


def prompts_of(data: bytes, tokens: Tokens, vocabulary: int, context: int, new_tokens: int = 1) -> list[Prompt]:
    """Return the prompts of a file of JSON lines. Raises RowsInvalid with its line.

    A line has ``prompt``, a text; or ``messages`` with ``role`` and ``content`` in the form of ChatML, after which
    the assistant's turn begins; or ``input_ids`` below ``vocabulary``. Beside it may stand OPTIONS. A prompt and
    its new tokens, ``new_tokens`` unless it says another number, are the context and one more at most.
    """
    found = list[Prompt]()
    for number, fields in objects_of(data):
        own, rest = options_of(number, fields)
        one = _tokens(number, rest, tokens, vocabulary)
        if not one:
            raise RowsInvalid("a prompt without a token: nothing comes after it", number)
        wanted, name = own.max_new_tokens or new_tokens, "max_new_tokens" if own.max_new_tokens else "new_tokens"
        if len(one) > (most := context + 1 - wanted):
            raise RowsInvalid(f"{len(one)} tokens, at most {max(most, 0)}: shorten it, or lower {name}", number)
        found.append(Prompt(number, tuple(one), own))
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
    stops: Sequence[str] = (), own: Sequence[Sequence[str]] = (),
) -> bytes:  # fmt: skip
    """Return a JSON line for each completion, in the order of the prompts, with its text if it is decoded.

    A text ends before the first of ``stops`` in it, or of the row's ``own`` ones if it has some, wherever tokens
    begin. The tokens are all that were made: they are what is proved.
    """
    lines, usual = list[str](), stops
    for row, one in enumerate(found):
        stops = own[row] if row < len(own) and own[row] else usual
        line: dict[str, Any] = {"row": row, "output_ids": list(one), "ended": bool(one) and one[-1] in ends}
        if decode is not None:
            text = decode(one)
            end = min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))
            line["text"] = text[:end]
            if stops:
                line["stopped"] = end < len(text)
        lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    return "".join(lines).encode()
