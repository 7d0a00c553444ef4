"""Text to tokens with a vocabulary from a model's file."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.models.errors import ModelInvalid, ModelUnsupported
from tasks.models.tokens import Tokeniser

pytest.importorskip("tokenizers", reason="tokenizers (extra models) IS NOT INSTALLED: TOKENS WERE NOT CHECKED")

LETTERS = [chr(code) for code in range(33, 127)]
SETTINGS: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": ["<|end|>", *LETTERS, "Ġ", "Ċ", "Ã", "©", "th", "Ġth", "Ġthe", "12"],
    "tokenizer.ggml.token_type": [3, *[1] * (len(LETTERS) + 8)],
    "tokenizer.ggml.merges": ["t h", "Ġ th", "Ġth e", "1 2"],
    "tokenizer.ggml.eos_token_id": 0,
}


def test_text_comes_back() -> None:
    made = Tokeniser(SETTINGS)
    for text in ("in the end", "a\nb  c", "caf\u00e9", ""):
        assert made.decode(made.encode(text)) == text
    assert made.ends == frozenset({0})


def test_merges_digits_and_control_tokens_are_those_of_the_file() -> None:
    made, names = Tokeniser(SETTINGS), SETTINGS["tokenizer.ggml.tokens"]
    found = [names[token] for token in made.encode("in the 12<|end|>x")]
    assert found == ["i", "n", "Ġthe", "Ġ", "1", "2", "<|end|>", "x"]
    assert made.decode(made.encode("a<|end|>b")) == "ab"
    whole = Tokeniser(SETTINGS | {"tokenizer.ggml.pre": "gpt-2"})
    assert [names[token] for token in whole.encode("12")] == ["12"]


def test_bytes_that_are_no_text_are_replaced() -> None:
    made, names = Tokeniser(SETTINGS), SETTINGS["tokenizer.ggml.tokens"]
    assert made.decode([names.index("Ã"), names.index("x")]) == "\ufffdx"


@pytest.mark.parametrize(
    "change",
    [
        {"model": "llama"},
        {"pre": "qwen2"},
        {"tokens": 5},
        {"tokens": [*SETTINGS["tokenizer.ggml.tokens"], "th"]},
        {"merges": ["t q q"]},
        {"merges": ["t q"]},
        {"merges": ["t"]},
        {"merges": None},
        {"token_type": [3]},
    ],
    ids=str,
)
def test_a_vocabulary_that_does_not_fit_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises((ModelInvalid, ModelUnsupported)):
        Tokeniser(SETTINGS | {f"tokenizer.ggml.{key}": value for key, value in change.items()})
