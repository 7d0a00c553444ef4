"""Folders of trained models have one form, are checked against the state's root, and load with transformers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.engines.decoder_plan import DecoderPlan
from tasks.engines.decoder_training import first_state
from tasks.engines.state import TrainingState
from tasks.kinds.finetune import TrainingLoop
from tasks.models.byte_tokens import BYTES_VOCABULARY, ByteTokens
from tasks.models.errors import FolderInvalid
from tasks.models.opening import open_model
from tasks.models.safetensors import read_safetensors
from tasks.models.trained import (
    FILES,
    TrainedReceipt,
    check_model_folder,
    check_trained_state,
    is_of_training,
    model_folder,
    trained_receipt,
)
from tasks.programs.adamw import Rates
from tasks.programs.decoder import DecoderShape
from tasks.programs.finetune import FinetuneRates
from tasks.programs.llama_shape import LlamaShape, parameters_of
from tasks.programs.looped import layout_of
from tests.tasks.trained import left_behind

MODEL = LlamaShape(BYTES_VOCABULARY, 24, 2, 6, 2, 8, 40, 64, 10_000, 10_000)


def state_of(model: LlamaShape, seed: int = 3) -> TrainingState:
    """Return a state whose moments are not zero."""
    plan = DecoderPlan(DecoderShape(model, 1, 1, 1, 1), FinetuneRates(Rates(1)), bytes(32))
    random, first = np.random.default_rng(seed), first_state(plan)
    rest = {
        name: random.random(len(content) // 4).astype("<f4").tobytes()
        for name, content in first.tensors.items()
        if not name.startswith("parameter")
    }
    return TrainingState(7, {**first.tensors, **rest})


STATE = state_of(MODEL)
MADE = trained_receipt(MODEL, STATE, rows_root=b"r" * 32, task=b"t" * 32)
FOLDER = model_folder(MADE, STATE.tensors)


def test_a_folder_commits_to_the_state_of_the_task() -> None:
    plan = DecoderPlan(DecoderShape(MODEL, 1, 1, 1, 1), FinetuneRates(Rates(1)), bytes(32))
    assert set(FOLDER) == set(FILES)
    assert check_model_folder(FOLDER) == MADE
    assert MADE.state_root == STATE.root(plan)
    assert is_of_training(FOLDER["receipt.json"])
    check_trained_state(MADE, STATE)
    for other in (state_of(MODEL, 4), TrainingState(8, STATE.tensors)):
        with pytest.raises(FolderInvalid, match="state is not the one"):
            check_trained_state(MADE, other)


def test_the_folder_of_a_job_with_validation_has_the_best_weights() -> None:
    """Its receipt has the roots of all other tensors; before the first evaluation there is no folder."""
    left = left_behind(loop=TrainingLoop(2, 1, 1), samples=3)
    plan: Any = left.spec.plan()
    layout = layout_of(plan.shape)
    made = trained_receipt(plan.shape.model, left.state, rows_root=b"r" * 32, task=None, layout=layout)
    folder = model_folder(made, left.state.tensors)
    assert check_model_folder(folder) == TrainedReceipt.decode(made.encode()) == made
    assert made.layout == layout == 7 and made.state_root == left.state.root(plan)
    check_trained_state(made, left.state)
    held = read_safetensors(folder["model.safetensors"])
    assert held.content_of("model.norm.weight") == left.state.tensors["best/norm"]
    for wrong in (0, 3, 8, True, "7", None):
        with pytest.raises(FolderInvalid):
            TrainedReceipt.decode(json.dumps(json.loads(made.encode()) | {"layout": wrong}).encode())
    before = first_state(plan)
    with pytest.raises(FolderInvalid, match="no best model yet"):
        trained_receipt(plan.shape.model, before, rows_root=b"r" * 32, task=None, layout=layout)


@pytest.mark.parametrize("name", FILES)
def test_a_changed_or_missing_file_is_named(name: str) -> None:
    changed = FOLDER[name][:-3] + bytes([FOLDER[name][-3] ^ 1]) + FOLDER[name][-2:]
    for files in ({**FOLDER, name: changed}, {one: c for one, c in FOLDER.items() if one != name}):
        with pytest.raises(FolderInvalid):
            check_model_folder(files)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", 2), ("kind", "finetune"), ("task", 3), ("task", "0x12"), ("rows_root", None), ("step", -1),
        ("step", True), ("state_root", "0x" + "AB" * 32), ("moments", {}), ("model", {}), ("more", 1),
        ("model", {"vocabulary": 1}), ("moments", []),
    ],
)  # fmt: skip
def test_a_receipt_of_another_form_is_refused(field: str, value: Any) -> None:
    found = json.loads(FOLDER["receipt.json"]) | {field: value}
    with pytest.raises(FolderInvalid):
        TrainedReceipt.decode(json.dumps(found).encode())


def test_a_model_with_biases_or_numbers_of_another_type_is_no_receipt() -> None:
    found = json.loads(FOLDER["receipt.json"])
    for change in ({"biased": True}, {"tied": 1}, {"layers": 2.0}, {"heads": 5}):
        with pytest.raises(FolderInvalid, match="model"):
            TrainedReceipt.decode(json.dumps(found | {"model": found["model"] | change}).encode())


def test_a_model_of_another_vocabulary_has_no_tokeniser_of_its_own() -> None:
    model = replace(MODEL, vocabulary=40, tied=False)
    state = state_of(model)
    files = model_folder(trained_receipt(model, state, rows_root=b"r" * 32, task=None), state.tensors)
    assert not {"tokenizer.json", "tokenizer_config.json"} & set(files)
    assert check_model_folder(files).task is None
    assert json.loads(files["config.json"])["eos_token_id"] is None


def test_the_folder_is_a_model_that_other_jobs_start_from(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="tokenizers (extra models) IS NOT INSTALLED")
    for name, content in FOLDER.items():
        (tmp_path / name).write_bytes(content)
    with open_model(tmp_path) as opened:
        assert opened.shape == MODEL
        assert opened.tokeniser().encode("Grüße") == ByteTokens().encode("Grüße")
        assert opened.tokeniser().ends == ByteTokens.ends
        assert opened.load().notes == ()


@pytest.mark.slow
def test_transformers_loads_the_folder_with_the_same_weights(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers (extra peft) IS NOT INSTALLED")
    for name, content in FOLDER.items():
        (tmp_path / name).write_bytes(content)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    kinds = parameters_of(MODEL)
    assert model.num_parameters() == sum(kind.values for kind in kinds.values())
    found = model.state_dict()["model.layers.1.mlp.down_proj.weight"].numpy()
    assert found.astype("<f4").tobytes() == STATE.tensors["parameter/layer/1/down"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer("Grüße")["input_ids"] == ByteTokens().encode("Grüße")
