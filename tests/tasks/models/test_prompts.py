"""Prompts in files of JSON lines: their tokens, and completions as lines again."""

from __future__ import annotations

import json

import pytest

from tasks.engines.generating import Own, stop_columns
from tasks.models.errors import RowsInvalid
from tasks.models.prompts import Prompt, completion_lines, prompts_of
from tasks.models.row_options import RowOptions, own_of
from tasks.programs.generate import STOP_COLUMNS_MAX
from tasks.programs.operators.row_sampling import key_of
from tasks.programs.operators.scalars import NANO
from tasks.programs.sampling import Sampling
from tasks.programs.tensors import DIMENSION_MAX


class Letters:
    """A token for each byte."""

    ends = frozenset({0})

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


def test_each_form_of_a_line_has_its_tokens_in_order() -> None:
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]
    data = [{"prompt": "ab"}, {"input_ids": [5, 0]}, {"messages": chat}]
    found = prompts_of("\r\n\n".join(map(json.dumps, data)).encode(), Letters(), 6, 100)
    asked = "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert found == [Prompt(1, (97, 98)), Prompt(3, (5, 0)), Prompt(5, tuple(asked.encode()))]


def test_what_cannot_be_continued_is_refused_with_its_line() -> None:
    answered = json.dumps({"messages": [{"role": "assistant", "content": "a"}]})
    for line, why in (
        ('{"prompt": ""}', "line 2: a prompt without a token"),
        ('{"prompt": "abcd"}', "line 2: 4 tokens, at most 3: shorten it"),
        ('{"prompt": "a", "completion": "b"}', "line 2: fields completion, prompt; one of prompt"),
        (answered, "line 2: messages: the last one is the assistant's"),
    ):
        with pytest.raises(RowsInvalid) as caught:
            prompts_of(b'{"prompt": "abc"}\n' + line.encode(), Letters(), 6, 3)
        assert str(caught.value).startswith(why)


def test_a_line_may_say_how_it_is_decoded() -> None:
    line = {
        "prompt": "ab", "temperature": 0.25, "top_p": 1, "top_k": 0, "seed": -7, "max_new_tokens": 3, "stop": "x",
    }  # fmt: skip
    (one,) = prompts_of(json.dumps(line).encode(), Letters(), 6, 5)
    assert one == Prompt(1, (97, 98), RowOptions(250_000, NANO, 0, "-7", 3, ("x",)))
    how = Sampling(NANO // 2, NANO // 4, 9)
    own = own_of(one.own, 4, seed=b"s", new_tokens=9, sampling=how, line=1)
    assert own == Own(3, 250_000, DIMENSION_MAX, NANO, key_of(b"\x01-7"), ("x",))
    usual = own_of(RowOptions(), 4, seed=b"s", new_tokens=9, sampling=how, line=1)
    assert usual == Own(9, 500_000, 9, NANO // 4, key_of(b"\x00s" + bytes(7) + b"\x04"))
    assert own_of(RowOptions(0), 4, seed=b"s", new_tokens=9, sampling=how, line=1).key == (0, 0, 0, 0)
    seeds = [own_of(RowOptions(seed=text), 0, seed=b"s", new_tokens=1, sampling=how, line=1).key for text in "ab"]
    assert seeds[0] != seeds[1]
    with pytest.raises(RowsInvalid, match="line 6: top_k: without a temperature"):
        own_of(RowOptions(top_k=3), 4, seed=b"s", new_tokens=9, sampling=None, line=6)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1), ("temperature", 101), ("temperature", "1"), ("temperature", True),
        ("temperature", 1e-7), ("temperature", None), ("top_p", 1.5), ("top_p", 1e-10), ("top_k", 1.0),
        ("top_k", -1), ("top_k", 1 << 40), ("seed", 1.5), ("seed", ""), ("seed", "x" * 129), ("seed", 1 << 63),
        ("seed", True), ("max_new_tokens", 0), ("max_new_tokens", True), ("stop", []), ("stop", ""), ("stop", [1]),
        ("stop", ["a"] * 5), ("stop", "x" * 257), ("stop", {}), ("max_tokens", 3),
        ("seed", "\ud800"), ("stop", ["\udfff"]),
    ],
)  # fmt: skip
def test_an_option_that_cannot_be_is_refused_with_its_line(field: str, value: object) -> None:
    data = b'{"prompt": "a"}\n' + json.dumps({"prompt": "a", field: value}).encode()
    if value == []:
        assert prompts_of(data, Letters(), 6, 5)[1].own.stop == ()
        return
    with pytest.raises(RowsInvalid, match=f"line 2: .*{field}"):
        prompts_of(data, Letters(), 6, 5)


@pytest.mark.parametrize("letter", ["\u00e9", "\U0001f600", '"'])
def test_as_many_stop_texts_as_a_line_may_have_find_room(letter: str) -> None:
    texts = [letter * 256] * 4
    (one,) = prompts_of(json.dumps({"prompt": "a", "stop": texts}).encode(), Letters(), 6, 5)
    assert one.own.stop == tuple(texts) and stop_columns([texts]) <= STOP_COLUMNS_MAX


def test_stop_texts_that_find_no_room_are_refused_with_their_line() -> None:
    data = b'{"prompt": "a"}\n' + json.dumps({"prompt": "a", "stop": ["\x01" * 256] * 4}).encode()
    with pytest.raises(RowsInvalid, match="line 2: stop: too many control characters"):
        prompts_of(data, Letters(), 6, 5)


def test_a_line_that_wants_too_many_tokens_is_refused_and_one_that_wants_few_has_room() -> None:
    assert prompts_of(b'{"prompt": "abcde", "max_new_tokens": 1}', Letters(), 6, 5, 3)
    for line, why in (
        (b'{"prompt": "abcd"}', "4 tokens, at most 3: shorten it, or lower new_tokens"),
        (b'{"prompt": "ab", "max_new_tokens": 5}', "2 tokens, at most 1: shorten it, or lower max_new_tokens"),
        (b'{"prompt": "ab", "max_new_tokens": 50}', "2 tokens, at most 0"),
    ):
        with pytest.raises(RowsInvalid, match=f"line 1: {why}"):
            prompts_of(line, Letters(), 6, 5, 3)


def test_completions_are_lines_with_ends_and_texts() -> None:
    content = completion_lines([[3, 7], [4, 4]], (7, 9), lambda tokens: "é\n" * len(tokens))
    assert content.decode().split("\n") == [
        '{"row": 0, "output_ids": [3, 7], "ended": true, "text": "é\\né\\n"}',
        '{"row": 1, "output_ids": [4, 4], "ended": false, "text": "é\\né\\n"}', "",
    ]  # fmt: skip
    texts = {3: "one. ", 4: "two\nHu", 5: "man: three"}
    stopped = completion_lines(
        [[3, 4, 5], [3]], (), lambda tokens: "".join(texts[one] for one in tokens), ("\nHuman:", "three")
    )
    first, second = (json.loads(line) for line in stopped.splitlines())
    assert first == {"row": 0, "output_ids": [3, 4, 5], "ended": False, "text": "one. two", "stopped": True}
    assert (second["text"], second["stopped"]) == ("one. ", False)
    own = completion_lines(
        [[3, 4], [3, 4]], (), lambda made: "".join(texts[one] for one in made), ("two",), [(), ("ne",)]
    )
    assert [json.loads(line)["text"] for line in own.splitlines()] == ["one. ", "o"]
    assert completion_lines([[3]], ()) == b'{"row": 0, "output_ids": [3], "ended": false}\n'


def test_a_stop_word_that_is_named_twice_or_stands_twice_ends_a_text_once() -> None:
    texts = {3: "a STOP b ", 4: "STOP c"}
    found = completion_lines(
        [[3, 4], [4, 3]], (), lambda made: "".join(texts[one] for one in made), ("STOP", "STOP", "STOP b")
    )
    first, second = (json.loads(line) for line in found.splitlines())
    assert (first["text"], first["stopped"], first["output_ids"]) == ("a ", True, [3, 4])
    assert (second["text"], second["stopped"]) == ("", True)
