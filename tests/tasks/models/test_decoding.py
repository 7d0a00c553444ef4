"""Decoding: what it chooses, with neighbours and alone; one pass over the result gives the same logits."""

from __future__ import annotations

import numpy as np
import pytest

from tasks.models.decoding import Decoder
from tasks.models.gguf import read_gguf
from tasks.models.llama import model_from_gguf
from tasks.programs.errors import SourceInvalid
from tasks.programs.llama import LlamaShape
from tests.tasks.models.files import gguf, settings_of, tensors_of
from tests.tasks.programs.engines import NAMES, engine
from tests.tasks.programs.llamas import BIASED, TINY, plain_logits, plain_weights

KINDS = {"llama": (TINY, "llama"), "llama with biases": (BIASED, "llama"), "qwen2": (BIASED, "qwen2")}
PROMPTS = [[3, 1, 4, 1, 5], [9], [2, 6, 5]]


def decoder(shape: LlamaShape, architecture: str, name: str = "numpy", *, wide: bool = True) -> Decoder:
    model = model_from_gguf(read_gguf(gguf(settings_of(shape, architecture), tensors_of(shape, architecture))))
    return Decoder(model, engine(name), wide=wide)


@pytest.mark.parametrize(("shape", "architecture"), KINDS.values(), ids=KINDS)
def test_a_file_s_model_is_that_of_plain_arithmetic(shape: LlamaShape, architecture: str) -> None:
    tokens = [7, 11, 2, 9, 30, 7]
    (found,) = decoder(shape, architecture).logits([tokens])
    wanted = plain_logits(shape, plain_weights(shape), tokens)
    assert np.abs(found - wanted).max() < 2e-3 * np.abs(wanted).max()


@pytest.mark.parametrize("wide", [True, False], ids=["binary64", "int16"])
@pytest.mark.parametrize("name", NAMES)
def test_decoding_equals_one_pass_over_what_was_decoded(name: str, wide: bool) -> None:
    made = decoder(TINY, "llama", name, wide=wide)
    found = made.decode(PROMPTS, 9, kept=True)
    sequences = [[*prompt, *tokens] for prompt, tokens in zip(PROMPTS, found.tokens, strict=True)]
    checked = decoder(TINY, "llama").logits(sequences)
    for prompt, tokens, logits, whole in zip(PROMPTS, found.tokens, found.logits, checked, strict=True):
        rows = whole[len(prompt) - 1 : -1]
        assert tokens == rows.argmax(axis=1).tolist()
        assert np.stack(logits).tobytes() == rows.tobytes()


def test_a_completion_does_not_depend_on_its_neighbours() -> None:
    made = decoder(BIASED, "qwen2")
    together = made.decode(PROMPTS, 7, kept=True)
    for at, prompt in enumerate(PROMPTS):
        alone = made.decode([prompt], 7, kept=True)
        assert alone.tokens[0] == together.tokens[at]
        assert np.stack(alone.logits[0]).tobytes() == np.stack(together.logits[at]).tobytes()


def test_decoding_stops_after_an_end_token() -> None:
    made = decoder(TINY, "llama")
    free = made.decode(PROMPTS, 12).tokens
    end = free[0][2]
    for tokens, whole in zip(made.decode(PROMPTS, 12, frozenset({end})).tokens, free, strict=True):
        assert tokens == (whole[: whole.index(end) + 1] if end in whole else whole)


@pytest.mark.parametrize(
    ("prompts", "most"),
    [([[]], 1), ([], 1), ([[1]], 0), ([[67]], 1), ([[-1]], 1), ([[1] * 60], 5), ([[1], []], 3)],
    ids=str,
)
def test_prompts_that_cannot_be_continued_are_refused(prompts: list[list[int]], most: int) -> None:
    with pytest.raises(SourceInvalid):
        decoder(TINY, "llama").decode(prompts, most)
