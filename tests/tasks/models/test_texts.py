"""Texts as rows of tokens: nothing is left out, bytes are tokens as the library reads them, faults are placed."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.models.byte_tokens import BYTES_VOCABULARY, END_TEXT, END_TOKEN, ByteTokens, tokenizer_files
from tasks.models.errors import RowsInvalid
from tasks.models.texts import TextRows, texts_of, token_rows, token_stream
from tasks.programs.finetune import ROW_TOKENS, TARGETS

TOKENS = ByteTokens()
TEXTS = st.text(max_size=60)


def rows_of(data: bytes, name: str = "book.txt", context: int = 8) -> TextRows:
    return token_rows(token_stream(texts_of(data, name, TOKENS, BYTES_VOCABULARY), BYTES_VOCABULARY), context)


def table(rows: TextRows, name: str) -> np.ndarray:
    return np.frombuffer(rows.contents[name], dtype="<i4").reshape(rows.rows, rows.length)


@given(TEXTS)
def test_a_text_comes_back_from_its_bytes(text: str) -> None:
    found = TOKENS.encode(text)
    assert TOKENS.decode(found) == text.replace(END_TEXT, "")
    assert all(0 <= token <= END_TOKEN for token in found)


def test_the_end_of_a_text_is_a_token_of_its_own() -> None:
    assert TOKENS.encode(f"a{END_TEXT}é") == [97, END_TOKEN, 0xC3, 0xA9]
    assert TOKENS.decode([97, END_TOKEN, 0xC3]) == "a�"


def test_the_library_of_the_field_reads_the_same_tokens_from_the_file() -> None:
    library = pytest.importorskip("tokenizers", reason="tokenizers (extra models) IS NOT INSTALLED")
    files = tokenizer_files(64)
    made = library.Tokenizer.from_str(files["tokenizer.json"].decode())
    every = "".join(map(chr, range(0x250))) + "☃ \n\t  the 12 😀" + END_TEXT + "x"
    for text in (every, "", " a", "a\r\n b"):
        assert made.encode(text).ids == TOKENS.encode(text)
        assert made.decode(made.encode(text).ids) == TOKENS.decode(TOKENS.encode(text))
    assert json.loads(files["tokenizer_config.json"])["model_max_length"] == 64


@given(st.lists(st.integers(0, 39), min_size=2, max_size=90), st.integers(1, 20))
def test_every_token_is_trained_and_the_last_row_is_whole(stream: list[int], context: int) -> None:
    rows = token_rows(token_stream(iter([stream]), 40), context)
    tokens, targets = table(rows, ROW_TOKENS), table(rows, TARGETS)
    assert rows.length == min(context, len(stream) - 1)
    assert (rows.rows - 1) * rows.length < len(stream) - 1 <= rows.rows * rows.length
    assert (tokens[:, 1:] == targets[:, :-1]).all()
    whole = [*tokens[: rows.rows - 1].reshape(-1).tolist(), *tokens[-1].tolist(), int(targets[-1, -1])]
    twice = rows.rows * rows.length - (len(stream) - 1)
    first = (rows.rows - 1) * rows.length
    assert whole[:first] + whole[first + twice :] == stream


def test_texts_are_followed_by_an_end_and_numbers_are_not() -> None:
    lines = b'{"text": "ab"}\n\n{"input_ids": [1, 2]}\n{"text": "c"}\n'
    found = list(texts_of(lines, "rows.jsonl", TOKENS, BYTES_VOCABULARY))
    assert found == [[97, 98, END_TOKEN], [1, 2], [99, END_TOKEN]]
    assert rows_of(lines, "rows.jsonl").texts == 3
    assert rows_of(b"\xef\xbb\xbfab").tokens == 3


@pytest.mark.parametrize(
    ("name", "data", "line", "column"),
    [
        ("a.txt", b"one\ntw\xff", 2, 3),
        ("a.txt", b"", None, None),
        ("a.jsonl", b'{"text": "ab"}\nnothing\n', 2, 1),
        ("a.jsonl", b'{"text": "ab"}\n{"prompt": "a"}\n', 2, None),
        ("a.jsonl", b'{"input_ids": [1, 257]}\n', 1, None),
        ("a.jsonl", b'{"text": 3}\n', 1, None),
        ("a.jsonl", b"", None, None),
    ],
)
def test_a_fault_is_named_with_its_place(name: str, data: bytes, line: int | None, column: int | None) -> None:
    with pytest.raises(RowsInvalid) as caught:
        rows_of(data, name)
    assert (caught.value.line, caught.value.column) == (line, column)


def test_a_token_beyond_the_vocabulary_is_refused() -> None:
    with pytest.raises(RowsInvalid, match="vocabulary"):
        token_stream(iter([[1, 40]]), 40)
