"""Text to tokens with a vocabulary from a model's file."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tasks.models.errors import ModelInvalid, ModelUnsupported
from tasks.models.tokens import tokeniser_from_gguf, tokeniser_from_json

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
    made = tokeniser_from_gguf(SETTINGS)
    for text in ("in the end", "a\nb  c", "caf\u00e9", ""):
        assert made.decode(made.encode(text)) == text
    assert made.ends == frozenset({0})


def test_merges_digits_and_control_tokens_are_those_of_the_file() -> None:
    made, names = tokeniser_from_gguf(SETTINGS), SETTINGS["tokenizer.ggml.tokens"]
    found = [names[token] for token in made.encode("in the 12<|end|>x")]
    assert found == ["i", "n", "Ġthe", "Ġ", "1", "2", "<|end|>", "x"]
    assert made.decode(made.encode("a<|end|>b")) == "ab"
    whole = tokeniser_from_gguf(SETTINGS | {"tokenizer.ggml.pre": "gpt-2"})
    assert [names[token] for token in whole.encode("12")] == ["12"]


def test_bytes_that_are_no_text_are_replaced() -> None:
    made, names = tokeniser_from_gguf(SETTINGS), SETTINGS["tokenizer.ggml.tokens"]
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
        tokeniser_from_gguf(SETTINGS | {f"tokenizer.ggml.{key}": value for key, value in change.items()})


def json_file(**changes: Any) -> bytes:
    return json.dumps(json.loads(tokeniser_from_gguf(SETTINGS)._made.to_str()) | changes).encode()


def test_a_json_file_gives_the_same_tokens_and_cuts_nothing() -> None:
    short = {"truncation": {"max_length": 2, "stride": 0, "strategy": "LongestFirst", "direction": "Right"}}
    made, other = tokeniser_from_json(json_file(**short), 200, frozenset({0})), tokeniser_from_gguf(SETTINGS)
    for text in ("in the end", "a\nb  c", "caf\u00e9", "12<|end|>", ""):
        assert made.encode(text) == other.encode(text)
        assert made.decode(made.encode(text)) == other.decode(other.encode(text))
    assert made.ends == {0}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"[]", "object expected"),
        (b"{}", "no tokeniser"),
        (b"\xff", "UTF-8"),
        (json_file(model={"type": "WordPiece"}), "byte pairs"),
        (json_file(model={"type": "BPE", "vocab": {"a": -1}, "merges": []}), "no tokeniser"),
        (json_file(model={"type": "BPE", "vocab": {"a": 200}, "merges": []}), "token 20[0-9] in a vocabulary"),
        (json_file(model={"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}), "no tokeniser"),
        (json_file(added_tokens=[{"id": 5}]), "no tokeniser"),
    ],
)
def test_a_json_file_that_breaks_the_format_is_refused(data: bytes, said: str) -> None:
    with pytest.raises((ModelInvalid, ModelUnsupported), match=said):
        tokeniser_from_json(data, 200, frozenset())


def test_an_end_beyond_the_vocabulary_is_refused() -> None:
    with pytest.raises(ModelInvalid, match="end token"):
        tokeniser_from_json(json_file(), 200, frozenset({200}))
