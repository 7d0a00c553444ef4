"""Prompts in files of JSON lines: their tokens, and completions as lines again."""

from __future__ import annotations

import json

import pytest

from tasks.models.errors import RowsInvalid
from tasks.models.prompts import Prompt, completion_lines, prompts_of


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
    assert completion_lines([[3]], ()) == b'{"row": 0, "output_ids": [3], "ended": false}\n'
