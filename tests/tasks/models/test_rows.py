"""Files of JSON lines as rows of tokens: what is trained, what is padded, and what is refused with its line."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.models import rows as rows_module
from tasks.models.errors import RowsInvalid
from tasks.models.rows import Example, TokenRows, examples_of, make_rows
from tasks.programs.finetune import PLACES, ROW_TOKENS, SLOTS, TARGETS

END = 300


class Bytes:
    """A token for each byte, so no library is needed."""

    ends = frozenset({END})

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


def read(text: str | bytes) -> list[Example]:
    return list(examples_of(text.encode() if isinstance(text, str) else text, Bytes(), 100))


def matrices(rows: TokenRows) -> dict[str, np.ndarray]:
    widths = {ROW_TOKENS: rows.length, SLOTS: rows.length, PLACES: rows.slots, TARGETS: rows.slots}
    return {
        name: np.frombuffer(content, dtype="<i4").reshape(rows.rows, widths[name])
        for name, content in rows.contents.items()
    }


def test_of_prompt_and_completion_the_completion_and_the_end_are_trained() -> None:
    (one,) = read('{"prompt": "ab", "completion": "c"}')
    assert one == Example(1, (97, 98, 99, END), (False, False, True, True))


def test_of_a_chat_the_assistant_s_turns_and_their_ends_are_trained() -> None:
    turns = [("system", "s"), ("user", "u"), ("assistant", "one"), ("user", "v"), ("assistant", "two")]
    messages = [{"role": role, "content": content} for role, content in turns]
    (one,) = read(json.dumps({"messages": messages}))
    text = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in turns)
    assert bytes(one.tokens).decode() == text
    trained = bytes(token for token, is_trained in zip(one.tokens, one.trained, strict=True) if is_trained)
    assert trained == b"one<|im_end|>two<|im_end|>"


@given(st.lists(st.tuples(st.text(max_size=5), st.text(max_size=9)), min_size=1, max_size=6))
def test_rows_say_for_each_trained_token_what_comes_before_it(pairs: list[tuple[str, str]]) -> None:
    lines = [
        json.dumps({"prompt": prompt.replace("\x00", "") + "?", "completion": completion.replace("\x00", "")})
        for prompt, completion in pairs
    ]
    examples = read("\n".join(lines))
    rows = make_rows(examples, 1000)
    found = matrices(rows)
    for row, one in enumerate(examples):
        pairs_of_row = [(at, one.tokens[at + 1]) for at in range(len(one.tokens) - 1) if one.trained[at + 1]]
        used = found[PLACES][row] < rows.length
        assert list(zip(found[PLACES][row][used], found[TARGETS][row][used], strict=True)) == pairs_of_row
        assert found[ROW_TOKENS][row].tolist()[: len(one.tokens) - 1] == list(one.tokens[:-1])
        assert not found[ROW_TOKENS][row, len(one.tokens) - 1 :].any()
        for place, slot in enumerate(found[SLOTS][row]):
            assert slot == rows.slots or found[PLACES][row, slot] == place
        assert (found[SLOTS][row] < rows.slots).sum() == used.sum()
    assert rows.trained == sum(sum(one.trained) for one in examples)


def test_byte_order_mark_crlf_blank_lines_and_a_missing_last_newline_are_read() -> None:
    plain = '{"text": "ab"}\n{"text": "cd"}\n'
    other = b'\xef\xbb\xbf{"text": "ab"}\r\n\r\n{"text": "cd"}'
    assert [one.tokens for one in read(plain)] == [one.tokens for one in read(other)]
    assert [one.line for one in read(other)] == [1, 3]


def test_an_end_whose_number_is_that_of_padding_is_trained_and_padding_is_not() -> None:
    """Rows are told apart by their lengths: where padding and end are one token, a model still learns to stop."""
    short, long = Example(1, (5, 6, 0), (False, True, True)), Example(2, (5, 6, 7, 8, 0), (False, *[True] * 4))
    rows = make_rows([short, long], 10)
    found = matrices(rows)
    assert found[ROW_TOKENS].tolist() == [[5, 6, 0, 0], [5, 6, 7, 8]]
    assert found[TARGETS].tolist() == [[6, 0, 0, 0], [6, 7, 8, 0]]
    assert found[PLACES].tolist() == [[0, 1, rows.length, rows.length], [0, 1, 2, 3]] and rows.trained == 6


GOOD = '{"text": "ab"}\n' * 16


@pytest.mark.parametrize(
    ("line", "column", "said"),
    [
        ('{"text": "ab"', 14, "JSON"),
        ('{"text": "ab"} {"text": "cd"}', 16, "Extra data"),
        ('[{"text": "ab"}]', 1, "list"),
        ('{"text": "a\x00b"}', 12, "control character"),
        ('{"text": "a\\u0000b"}', None, "NUL"),
        ('{"text": "\\ud800"}', None, "surrogate"),
        ('{"text": NaN}', None, "NaN"),
        ('{"text": 7}', None, "int"),
        ('{"text": "a", "text": "b"}', None, "duplicate name"),
        ('{"prompt": "a"}', None, "prompt"),
        ('{"messages": []}', None, "messages"),
        ('{"messages": [{"role": "tool", "content": "x"}]}', None, "role"),
        ('{"messages": [{"role": "user", "content": "x"}]}', None, "no token to train"),
        ('{"text": ""}', None, "no token to train"),
        ("[" * 100_000, None, "JSON"),
    ],
)
def test_a_broken_line_17_is_refused_with_its_place(line: str, column: int | None, said: str) -> None:
    with pytest.raises(RowsInvalid, match=said) as caught:
        read(GOOD + line + "\n")
    assert caught.value.line == 17
    assert column is None or caught.value.column == column
    assert "line 17" in str(caught.value)


def test_bytes_that_are_no_text_are_refused_with_their_place() -> None:
    with pytest.raises(RowsInvalid, match="line 2, column 11") as caught:
        read(b'{"text": "ab"}\n{"text": "\xff"}')
    assert caught.value.code == "rows_invalid"


@pytest.mark.parametrize("data", [b"", b"\n\r\n", b"\xef\xbb\xbf"])
def test_a_file_without_rows_is_refused(data: bytes) -> None:
    with pytest.raises(RowsInvalid):
        read(data)


def test_long_rows_are_refused_cut_or_dropped_and_never_silently() -> None:
    examples = read('{"prompt": "abc", "completion": "defgh"}\n{"prompt": "a", "completion": "b"}\n'
                    '{"prompt": "abcdefghi", "completion": "b"}')  # fmt: skip
    with pytest.raises(RowsInvalid, match="line 1: 9 tokens"):
        make_rows(examples, 5)
    cut = make_rows(examples, 5, "truncate")
    assert (cut.rows, cut.length, [line for line, _ in cut.dropped]) == (2, 5, [3])
    few = make_rows(examples, 5, "drop")
    assert (few.rows, few.length, [line for line, _ in few.dropped]) == (1, 2, [1, 3])
    with pytest.raises(RowsInvalid, match="no row is left"):
        make_rows(examples[:1], 5, "drop")


@pytest.mark.parametrize("most", range(1, 9))
def test_a_long_row_that_is_split_trains_each_token_once(most: int) -> None:
    """After the token that stands before it, whatever the length of a part; a part without one is left out."""
    (one,) = read('{"prompt": "abc", "completion": "defgh"}')
    rows = make_rows([one], most, "split")
    names = (ROW_TOKENS, PLACES, TARGETS)
    tokens, places, targets = (
        np.frombuffer(rows.contents[name], dtype="<i4").reshape(rows.rows, -1) for name in names
    )  # fmt: skip
    found = [
        (int(tokens[row, place]), int(targets[row, slot]))
        for row in range(rows.rows) for slot, place in enumerate(places[row]) if place < rows.length
    ]  # fmt: skip
    wanted = [
        (one.tokens[at - 1], token) for at, token in enumerate(one.tokens) if at and one.trained[at]
    ]  # fmt: skip
    assert found == wanted and rows.length <= most and rows.dropped == ()


def test_parts_of_long_rows_are_no_more_than_rows_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    examples = read('{"text": "abcdef"}\n{"text": "abcdef"}')
    count = make_rows(examples, 2, "split").rows
    monkeypatch.setattr(rows_module, "ROWS_MAX", count)
    assert make_rows(examples, 2, "split").rows == count
    monkeypatch.setattr(rows_module, "ROWS_MAX", count - 1)
    with pytest.raises(RowsInvalid, match=f"line 2: more than {count - 1} rows"):
        make_rows(examples, 2, "split")


def test_rows_of_numbers_need_no_tokeniser_and_are_trained_where_labels_say_so() -> None:
    plain, labelled = read('{"input_ids": [5, 6, 7]}\n{"input_ids": [5, 6, 7], "labels": [-100, -100, 7]}')
    assert plain == Example(1, (5, 6, 7), (True, True, True))
    assert labelled == Example(2, (5, 6, 7), (False, False, True))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"input_ids": [5, 100]}', "line 1: input_ids: 100 at place 1, the vocabulary has 100"),
        ('{"input_ids": [5, -1]}', "line 1: input_ids: -1 at place 1"),
        ('{"input_ids": [5, true]}', "line 1: input_ids: a list of integers"),
        ('{"input_ids": "5 6"}', "line 1: input_ids: a list of integers"),
        ('{"input_ids": [5, 6], "labels": [5]}', "line 1: 1 labels for 2 input_ids"),
        ('{"input_ids": [5, 6], "labels": [5, 7]}', "line 1: labels: 6 as in input_ids, or -100"),
        ('{"input_ids": [5, 6], "labels": [5, -100]}', "line 1: no token to train"),
        ('{"input_ids": [5, 6], "attention_mask": [1, 1]}', "line 1: fields attention_mask, input_ids"),
    ],
)  # fmt: skip
def test_rows_of_other_numbers_are_refused_with_their_place(line: str, why: str) -> None:
    with pytest.raises(RowsInvalid) as caught:
        read(line)
    assert str(caught.value).startswith(why)
