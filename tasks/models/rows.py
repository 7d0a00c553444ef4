"""Rows for fine-tuning: JSON lines with prompts or chats as tokens, and which of them are trained (market.md 4.6).

Every fault is named with its line and column, before anything is computed or paid. No line is dropped silently.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import numpy as np

from tasks.models.errors import RowsInvalid
from tasks.models.strict_json import JsonFault, read_object
from tasks.programs.finetune import PLACES, ROW_TOKENS, SLOTS, TARGETS
from tasks.programs.operators.scalars import NANO
from tasks.programs.permutation import order_keys, permuted

__all__ = [
    "ASSISTANT",
    "LONG_ROWS",
    "WHOLE_ROWS",
    "Example",
    "Pair",
    "TokenRows",
    "Tokens",
    "examples_of",
    "fitted",
    "fitted_pairs",
    "make_rows",
    "objects_of",
    "open_turn",
    "pair_rows_of",
    "pairs_of",
    "rows_of",
    "split_rows",
    "text_of",
    "tokens_of",
    "turns_of",
]

FILE_BYTES_MAX: Final = 256 << 20
LINE_BYTES_MAX: Final = 4 << 20
ROWS_MAX: Final = 1 << 20
MESSAGES_MAX: Final = 1 << 10
WHOLE_ROWS: Final = ("refuse", "truncate", "drop")
LONG_ROWS: Final = (*WHOLE_ROWS, "split")
"""What is done with a row of more tokens than are allowed. A line that is split gives several rows."""
ROLES: Final = ("system", "user", "assistant")
UNTRAINED_LABEL: Final = -100
"""What a label is where nothing is trained."""
_VALIDATION_SEED: Final = bytes(32)
_BOM: Final = b"\xef\xbb\xbf"
ASSISTANT: Final = "assistant"
"""The role whose turns are trained, and asked for."""


class Tokens(Protocol):
    """What turns text into tokens, with none added."""

    @property
    def ends(self) -> frozenset[int]:
        """Tokens that end a completion."""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""


class Example(NamedTuple):
    """Tokens of one line of a file, and for each whether it is trained."""

    line: int
    tokens: tuple[int, ...]
    trained: tuple[bool, ...]


class Pair(NamedTuple):
    """Two examples of one line, of which one is preferred."""

    chosen: Example
    rejected: Example

    @property
    def line(self) -> int:
        """The line of a file."""
        return self.chosen.line


_Row = TypeVar("_Row")


@dataclass(frozen=True)
class TokenRows:
    """Rows of one length: contents of the tensors of a job's data, by name.

    ``dropped`` are the lines that gave no row, with the reason.
    """

    rows: int
    length: int
    slots: int
    tokens: int
    trained: int
    dropped: tuple[tuple[int, str], ...]
    contents: Mapping[str, bytes]


def examples_of(data: bytes, tokens: Tokens, vocabulary: int = 0) -> Iterator[Example]:
    """Yield the examples of a file of JSON lines. Raises RowsInvalid with line and column.

    A line has ``prompt`` and ``completion``, of which the completion and an end are trained; or ``messages`` with
    ``role`` and ``content`` in the form of ChatML, of which the assistant's are trained; or ``text``, all of it;
    or ``input_ids`` below ``vocabulary``, and perhaps ``labels``, in which -100 is not trained.
    """
    for number, fields in objects_of(data):
        if "input_ids" in fields and fields.keys() <= {"input_ids", "labels"}:
            yield _numbered(number, fields, vocabulary)
        else:
            yield _example(number, fields, tokens)


def pairs_of(data: bytes, tokens: Tokens, vocabulary: int = 0) -> Iterator[Pair]:
    """Yield the pairs of a file of JSON lines with preferences. Raises RowsInvalid with line and column.

    A line has ``prompt``, ``chosen`` and ``rejected``: texts, or lists of messages of which the assistant's are
    trained in what comes after the prompt; or numbers of tokens below ``vocabulary``, with ``_input_ids`` behind
    each name. An end is added to texts. Or it has ``input`` with messages, ``preferred_output`` and
    ``non_preferred_output``, as other servers take them.
    """
    for number, fields in objects_of(data):
        match sorted(fields):
            case ["chosen", "prompt", "rejected"]:
                before, *two = (
                    _preferred(number, fields, name, tokens) for name in ("prompt", "chosen", "rejected")
                )
            case ["chosen_input_ids", "prompt_input_ids", "rejected_input_ids"]:
                before, *two = (
                    [(token, True) for token in tokens_of(number, fields, vocabulary, f"{name}_input_ids")]
                    for name in ("prompt", "chosen", "rejected")
                )
            case ["input", "non_preferred_output", "preferred_output"]:
                asked = fields["input"]
                if not isinstance(asked, dict) or sorted(asked) != ["messages"]:
                    raise RowsInvalid("input: an object with messages, and nothing else, expected", number)
                parts = (asked["messages"], fields["preferred_output"], fields["non_preferred_output"])
                before, *two = (_turned(number, part, tokens) for part in parts)
            case names:
                what = ", ".join(names)[:80] or "none"
                raise RowsInvalid(f"fields {what}; prompt, chosen and rejected expected", number)
        if two[0] == two[1]:
            raise RowsInvalid("chosen and rejected are the same: nothing is preferred", number)
        untrained = [(token, False) for token, _ in before]
        yield Pair(*(_checked(number, [*untrained, *one]) for one in two))


def _preferred(number: int, fields: Mapping[str, Any], name: str, tokens: Tokens) -> list[tuple[int, bool]]:
    """Return the tokens of a part of a pair, and which of them are trained."""
    if isinstance(fields[name], list):
        return _turned(number, fields[name], tokens)
    end = [] if name == "prompt" else _end(tokens)
    return [(token, True) for token in tokens.encode(text_of(number, fields, name)) + end]


def _turned(number: int, messages: Any, tokens: Tokens) -> list[tuple[int, bool]]:
    return [(token, trained) for part, trained in turns_of(number, messages, tokens) for token in part]


def objects_of(data: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield number and object of each line that is not blank. Raises RowsInvalid, and for a file without one."""
    if len(data) > FILE_BYTES_MAX:
        raise RowsInvalid(f"a file of {len(data)} bytes, at most {FILE_BYTES_MAX}")
    rows = 0
    for number, line in enumerate(data.removeprefix(_BOM).split(b"\n"), 1):
        text = line.removesuffix(b"\r")
        if text.strip():
            rows += 1
            if rows > ROWS_MAX:
                raise RowsInvalid(f"more than {ROWS_MAX} rows", number)
            yield number, _decoded(number, text)
    if not rows:
        raise RowsInvalid("a file without a row")


def _decoded(number: int, line: bytes) -> dict[str, Any]:
    if len(line) > LINE_BYTES_MAX:
        raise RowsInvalid(f"a line of {len(line)} bytes, at most {LINE_BYTES_MAX}", number)
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RowsInvalid("bytes that are no UTF-8", number, error.start + 1) from None
    try:
        return read_object(text)
    except JsonFault as fault:
        raise RowsInvalid(str(fault), number, fault.column) from None


def text_of(number: int, fields: Mapping[str, Any], name: str) -> str:
    """Return a field of a line that is a text. Raises RowsInvalid."""
    value = fields[name]
    if not isinstance(value, str):
        raise RowsInvalid(f"{name}: a text expected, not {type(value).__name__}", number)
    if "\x00" in value:
        raise RowsInvalid(f"{name}: NUL in a text", number)
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise RowsInvalid(f"{name}: half of a surrogate pair", number) from None
    return value


def _example(number: int, fields: Mapping[str, Any], tokens: Tokens) -> Example:
    parts: list[tuple[list[int], bool]]
    match sorted(fields):
        case ["completion", "prompt"]:
            prompt, completion = (text_of(number, fields, name) for name in ("prompt", "completion"))
            parts = [(tokens.encode(prompt), False), (tokens.encode(completion) + _end(tokens), True)]
        case ["text"]:
            parts = [(tokens.encode(text_of(number, fields, "text")) + _end(tokens), True)]
        case ["messages"]:
            parts = list(turns_of(number, fields["messages"], tokens))
        case names:
            more = ""
            if {"chosen", "rejected"} <= set(names):
                more = "; a file of preferences needs preference: dpo"
            raise RowsInvalid(
                f"fields {', '.join(names)[:80] or 'none'}; prompt and completion, messages, text, or input_ids "
                f"expected{more}", number,
            )  # fmt: skip
    return _checked(number, [(token, trained) for part, trained in parts for token in part])


def _checked(number: int, found: Sequence[tuple[int, bool]]) -> Example:
    if not any(trained for _, trained in found[1:]):
        raise RowsInvalid("no token to train: the first one of a row has nothing before it", number)
    return Example(number, tuple(token for token, _ in found), tuple(trained for _, trained in found))


def _numbered(number: int, fields: Mapping[str, Any], vocabulary: int) -> Example:
    """Return the example of tokens that somebody made, with labels as trainers share them."""
    tokens = tokens_of(number, fields, vocabulary)
    labels = _integers(number, fields, "labels") if "labels" in fields else tokens
    if len(labels) != len(tokens):
        raise RowsInvalid(f"{len(labels)} labels for {len(tokens)} input_ids", number)
    for place, (token, label) in enumerate(zip(tokens, labels, strict=True)):
        if label not in (token, UNTRAINED_LABEL):
            what = f"{token} as in input_ids, or {UNTRAINED_LABEL}"
            raise RowsInvalid(f"labels: {what} expected at place {place}, not {label}", number)
    return _checked(number, [(token, label == token) for token, label in zip(tokens, labels, strict=True)])


def _integers(number: int, fields: Mapping[str, Any], name: str) -> list[int]:
    values = fields[name]
    if not isinstance(values, list) or any(type(value) is not int for value in values):
        raise RowsInvalid(f"{name}: a list of integers expected", number)
    return values


def tokens_of(number: int, fields: Mapping[str, Any], vocabulary: int, name: str = "input_ids") -> list[int]:
    """Return a field of a line with numbers of tokens. Raises RowsInvalid."""
    tokens = _integers(number, fields, name)
    for place, token in enumerate(tokens):
        if not 0 <= token < vocabulary:
            raise RowsInvalid(f"{name}: {token} at place {place}, the vocabulary has {vocabulary}", number)
    return tokens


def _end(tokens: Tokens) -> list[int]:
    return sorted(tokens.ends)[:1]


def open_turn(role: str, tokens: Tokens) -> list[int]:
    """Return what a turn of a chat begins with."""
    return tokens.encode(f"<|im_start|>{role}\n")


def turns_of(number: int, messages: Any, tokens: Tokens) -> Iterator[tuple[list[int], bool]]:
    """Yield the tokens of a chat, and whether they are the assistant's. Raises RowsInvalid."""
    if not isinstance(messages, list) or not 1 <= len(messages) <= MESSAGES_MAX:
        raise RowsInvalid(f"messages: a list of 1 to {MESSAGES_MAX} expected", number)
    for message in messages:
        if not isinstance(message, dict) or sorted(message) != ["content", "role"]:
            raise RowsInvalid("messages: objects with role and content expected", number)
        role, content = (text_of(number, message, name) for name in ("role", "content"))
        if role not in ROLES:
            raise RowsInvalid(f"messages: role {role[:20]!r}; {', '.join(ROLES)} expected", number)
        yield open_turn(role, tokens), False
        yield tokens.encode(f"{content}<|im_end|>"), role == ASSISTANT
        yield tokens.encode("\n"), False


def fitted(
    examples: Iterator[Example] | Sequence[Example], max_length: int, long_rows: str = "refuse"
) -> tuple[list[Example], list[tuple[int, str]]]:
    """Return the examples of rows, and the lines that give none with the reason.

    Raises RowsInvalid for a long row unless it is to be cut or dropped, and where no row is left.
    """
    if long_rows not in LONG_ROWS:
        raise ValueError(long_rows)
    kept: list[Example] = []
    dropped: list[tuple[int, str]] = []
    for example in examples:
        for part in _parts(example, max_length) if long_rows == "split" else (example,):
            one = _fitted(part, max_length, long_rows)
            if isinstance(one, str):
                dropped.append((example.line, one))
            else:
                kept.append(one)
            if len(kept) > ROWS_MAX:  # lines are no more, but their parts may be
                raise RowsInvalid(f"more than {ROWS_MAX} rows, once long ones are split", example.line)
    if not kept:
        raise RowsInvalid("no row is left")
    return kept, dropped


def _parts(example: Example, max_length: int) -> Iterator[Example]:
    """Yield the parts of an example that each fit. The last token of one is the first of the next.

    So each trained token is trained once. A part sees nothing of those before it. One without a trained token is
    left out: it changes no loss.
    """
    for first in range(0, max(len(example.tokens) - 1, 1), max_length):
        after = first + max_length + 1
        one = Example(example.line, example.tokens[first:after], example.trained[first:after])
        if any(one.trained[1:]) or len(example.tokens) - 1 <= max_length:
            yield one


def fitted_pairs(
    pairs: Iterator[Pair], max_length: int, long_rows: str = "refuse"
) -> tuple[list[Pair], list[tuple[int, str]]]:
    """Return the pairs of a job, as ``fitted`` does examples: a pair is dropped with either of its two."""
    kept, dropped = list[Pair](), list[tuple[int, str]]()
    for pair in pairs:
        found = [_fitted(one, max_length, long_rows) for one in pair]
        two = [one for one in found if isinstance(one, Example)]
        if len(two) == len(pair):
            kept.append(Pair(*two))
        else:
            dropped.append((pair.line, next(one for one in found if isinstance(one, str))))
    if not kept:
        raise RowsInvalid("no row is left")
    return kept, dropped


def _fitted(example: Example, max_length: int, long_rows: str) -> Example | str:
    """Return an example that fits, or why there is none. Raises RowsInvalid where it is to be refused."""
    if len(example.tokens) - 1 <= max_length:
        return example
    if long_rows == "refuse":
        raise RowsInvalid(
            f"{len(example.tokens)} tokens, at most {max_length + 1}: shorten it, or set long_rows", example.line
        )
    one = Example(example.line, example.tokens[: max_length + 1], example.trained[: max_length + 1])
    if long_rows == "drop" or not any(one.trained[1:]):
        return f"{len(example.tokens)} tokens, at most {max_length + 1}"
    return one


def split_rows(examples: Sequence[_Row], share_nano: int) -> tuple[list[_Row], list[_Row]]:
    """Return the examples to train on, and a share of them for validation, at least one of each.

    Which ones does not depend on a job's seed, so jobs about one file are compared on the same rows. Both keep
    their order. Raises RowsInvalid for a single row.
    """
    count = len(examples)
    if count < 2:
        raise RowsInvalid("one row is left: training and validation need one each")
    taken = min(max(1, (count * share_nano + NANO // 2) // NANO), count - 1)
    keys = order_keys(_VALIDATION_SEED, 0)
    chosen = {permuted(place, count, keys) for place in range(taken)}
    return (
        [one for at, one in enumerate(examples) if at not in chosen],
        [one for at, one in enumerate(examples) if at in chosen],
    )


def make_rows(
    examples: Iterator[Example] | Sequence[Example], max_length: int, long_rows: str = "refuse"
) -> TokenRows:
    """Return the rows of a job's data. Raises RowsInvalid as ``fitted``."""
    return rows_of(*fitted(examples, max_length, long_rows))


def pair_rows_of(kept: Sequence[Pair], dropped: Sequence[tuple[int, str]] = ()) -> TokenRows:
    """Return the rows of pairs: both sequences of a pair stand one behind the other."""
    found = rows_of([one for pair in kept for one in pair], dropped)
    return replace(found, rows=len(kept))


def rows_of(kept: Sequence[Example], dropped: Sequence[tuple[int, str]] = ()) -> TokenRows:
    """Return the rows of examples.

    A row has a place for every token that comes before another one. Shorter rows end with token 0, which is
    trained nowhere: what is trained is told by places, never by a token's number.
    """
    length = max(len(one.tokens) for one in kept) - 1
    slots = max(sum(one.trained[1:]) for one in kept)
    tokens, numbers = (np.full((len(kept), length), fill, dtype="<i4") for fill in (0, slots))
    places, targets = (np.full((len(kept), slots), fill, dtype="<i4") for fill in (length, 0))
    for row, one in enumerate(kept):
        tokens[row, : len(one.tokens) - 1] = one.tokens[:-1]
        found = np.flatnonzero(one.trained[1:])
        places[row, : len(found)] = found
        targets[row, : len(found)] = np.array(one.tokens)[found + 1]
        numbers[row, found] = np.arange(len(found))
    contents = {ROW_TOKENS: tokens, PLACES: places, TARGETS: targets, SLOTS: numbers}
    return TokenRows(
        len(kept), length, slots, sum(len(one.tokens) for one in kept), sum(sum(one.trained[1:]) for one in kept),
        tuple(dropped), {name: values.tobytes() for name, values in contents.items()},
    )  # fmt: skip
