"""Rows for training a decoder: texts one after another, cut into rows of as many tokens (market.md R88).

Each text is followed by an end token. No token is left out: the last row begins earlier where the texts end within
it, so some tokens of it are trained twice as often. Attention does not stop at the end of a text within a row, as
is usual where models are trained from scratch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from tasks.models.errors import RowsInvalid
from tasks.models.rows import FILE_BYTES_MAX, Tokens, objects_of, text_of, tokens_of
from tasks.programs.finetune import ROW_TOKENS, TARGETS
from tasks.programs.operators.scalars import NANO

__all__ = ["LINES", "Stream", "TextRows", "split_stream", "texts_of", "token_rows", "token_stream"]

LINES: Final = ".jsonl"
"""How the name of a file of JSON lines ends; any other file is a text."""
TOKENS_MAX: Final = 1 << 23
"""Tokens of all texts: the limit of a job's data."""
_BOM: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class TextRows:
    """Rows of one length: contents of the tensors of a job's data by name. ``tokens`` are those of all texts."""

    rows: int
    length: int
    tokens: int
    texts: int
    contents: Mapping[str, bytes]


def texts_of(data: bytes, name: str, tokens: Tokens, vocabulary: int) -> Iterator[list[int]]:
    """Yield the tokens of each text of a file, with an end. Raises RowsInvalid with line and column.

    A file whose name ends in ``.jsonl`` has an object a line: ``text``, or ``input_ids`` below ``vocabulary``,
    which get no end. Any other file is one text in UTF-8.
    """
    if name.endswith(LINES):
        for line, fields in objects_of(data):
            yield _line_tokens(line, fields, tokens, vocabulary)
        return
    if len(data) > FILE_BYTES_MAX:
        raise RowsInvalid(f"a file of {len(data)} bytes, at most {FILE_BYTES_MAX}")
    text = data.removeprefix(_BOM)
    try:
        yield [*tokens.encode(text.decode("utf-8")), *sorted(tokens.ends)[:1]]
    except UnicodeDecodeError as error:
        before = text[: error.start]
        line, column = before.count(b"\n") + 1, error.start - (before.rfind(b"\n") + 1) + 1
        raise RowsInvalid(f"bytes that are no UTF-8; a file of JSON lines ends in {LINES}", line, column) from None


def _line_tokens(line: int, fields: Mapping[str, Any], tokens: Tokens, vocabulary: int) -> list[int]:
    match sorted(fields):
        case ["text"]:
            return [*tokens.encode(text_of(line, fields, "text")), *sorted(tokens.ends)[:1]]
        case ["input_ids"]:
            return tokens_of(line, fields, vocabulary)
        case names:
            raise RowsInvalid(f"fields {', '.join(names)[:80] or 'none'}; text or input_ids expected", line)


class Stream(NamedTuple):
    """The tokens of texts one after another, and how many texts they are."""

    tokens: list[int]
    texts: int


def token_stream(texts: Iterator[list[int]], vocabulary: int) -> Stream:
    """Return the tokens of texts, two at least. Raises RowsInvalid."""
    stream, count = list[int](), 0
    for text in texts:
        count += 1
        stream += text
        if len(stream) > TOKENS_MAX:
            raise RowsInvalid(f"more than {TOKENS_MAX} tokens")
    if len(stream) < 2:
        raise RowsInvalid("no token to train: the first one has nothing before it")
    if (most := max(stream)) >= vocabulary:
        raise RowsInvalid(f"token {most}, the vocabulary has {vocabulary}")
    return Stream(stream, count)


def split_stream(stream: Stream, share_nano: int) -> tuple[Stream, Stream]:
    """Return the tokens to train on, and the last share of them for validation, two of each at least.

    Which ones does not depend on a job's seed. Raises RowsInvalid for fewer than four tokens.
    """
    count = len(stream.tokens)
    if count < 4:
        raise RowsInvalid("fewer than four tokens: training and validation need two each")
    first = count - min(max(2, (count * share_nano + NANO // 2) // NANO), count - 2)
    return Stream(stream.tokens[:first], stream.texts), Stream(stream.tokens[first:], 1)


def token_rows(held: Stream, context: int) -> TextRows:
    """Return the rows of texts, of ``context`` tokens or of all of them if there are fewer."""
    stream, count = held
    length = min(context, len(stream) - 1)
    rows = -(-(len(stream) - 1) // length)
    starts = np.minimum(np.arange(rows) * length, len(stream) - 1 - length)
    places = starts[:, None] + np.arange(length)
    numbers = np.array(stream, dtype="<i4")
    contents = {ROW_TOKENS: numbers[places].tobytes(), TARGETS: numbers[places + 1].tobytes()}
    return TextRows(rows, length, len(stream), count, contents)
