"""Folders of adapters have one form, are checked against the state's root, and load where the field loads them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.engines.arrays import NumpyArrays
from tasks.engines.state import TrainingState
from tasks.engines.tuning import TuningPlan
from tasks.models.adapters import FILES, Receipt, adapter_folder, check_folder, check_state, receipt_of
from tasks.models.decoding import Decoder
from tasks.models.errors import FolderInvalid
from tasks.models.llama import Model, frozen
from tasks.models.safetensors import write_safetensors
from tasks.programs.adamw import Rates
from tasks.programs.finetune import PROJECTIONS, FinetuneRates, FinetuneShape, state_tensors
from tasks.programs.llama import exponents_of
from tests.tasks.models.checkpoints import write_folder
from tests.tasks.programs.llamas import TINY, plain_logits, plain_weights

SHAPE = FinetuneShape(TINY, 3, 6, PROJECTIONS, 2, 8, 4, 6, 6)
ADAPTERS, SETTINGS, README, RECEIPT = FILES


def random_state(seed: int = 7) -> TrainingState:
    random = np.random.default_rng(seed)
    tensors = {
        name: random.normal(0, 0.3, (kind.rows, kind.columns)).astype("<f4").tobytes()
        for name, kind in state_tensors(SHAPE).items()
    }
    return TrainingState(5, tensors)


STATE = random_state()
MADE = receipt_of(SHAPE, STATE, base="a/base-1", model_root=b"m" * 32, rows_root=b"r" * 32, task=b"t" * 32)
FOLDER = adapter_folder(MADE, STATE.tensors)


def test_a_folder_commits_to_the_state_of_the_task() -> None:
    receipt = check_folder(FOLDER)
    plan = TuningPlan(SHAPE, FinetuneRates(Rates(1_000_000)), bytes(32))
    assert receipt == MADE
    assert receipt.state_root == STATE.root(plan)
    check_state(receipt, STATE)
    with pytest.raises(FolderInvalid, match="state is not the one"):
        check_state(receipt, random_state(8))
    with pytest.raises(FolderInvalid, match="state is not the one"):
        check_state(receipt, TrainingState(6, STATE.tensors))


def test_a_folder_has_one_form() -> None:
    turned = {name: STATE.tensors[name] for name in reversed(list(STATE.tensors))}
    assert adapter_folder(MADE, turned) == FOLDER
    assert tuple(FOLDER) == FILES
    assert b"a/base-1" in FOLDER[README] and MADE.state_root.hex().encode() in FOLDER[README]


@pytest.mark.parametrize("name", FILES)
def test_a_change_of_any_byte_is_found(name: str) -> None:
    random = np.random.default_rng(3)
    content = FOLDER[name]
    for at in [0, len(content) - 1, *random.integers(0, len(content), 40)]:
        changed = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        with pytest.raises(FolderInvalid):
            check_folder(FOLDER | {name: changed})
    with pytest.raises(FolderInvalid, match=f"{name}: the file is missing"):
        check_folder({other: data for other, data in FOLDER.items() if other != name})


def receipt(**changes: Any) -> bytes:
    return json.dumps(json.loads(FOLDER[RECEIPT]) | changes, sort_keys=True, indent=1).encode() + b"\n"


def shape(**changes: Any) -> dict[str, Any]:
    return json.loads(FOLDER[RECEIPT])["shape"] | changes  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b"{}", b"\xff", receipt(version=2), receipt(kind="train"), receipt(more=1), receipt(step=True),
        receipt(step=-1), receipt(step=6), receipt(base="a b"), receipt(base="x" * 300), receipt(task="0x12"),
        receipt(state_root="0x" + "0" * 64), receipt(moments={}), receipt(shape={}), receipt(shape=shape(rank=0)),
        receipt(shape=shape(rank=4)), receipt(shape=shape(rank=True)), receipt(shape=shape(targets=["x"])),
        receipt(shape=shape(targets=7)), receipt(shape=shape(model=5)), receipt(shape=shape(more=1)),
        receipt(shape=shape(model=shape()["model"] | {"tied": 1})), receipt(shape=shape(batch=None)),
    ],
)  # fmt: skip
def test_a_receipt_that_says_something_else_is_refused(data: bytes) -> None:
    with pytest.raises(FolderInvalid):
        check_folder(FOLDER | {RECEIPT: data})


def test_a_receipt_comes_back_and_names_are_bounded() -> None:
    assert Receipt.decode(MADE.encode()) == MADE
    alone = replace(MADE, task=None)
    assert check_folder(adapter_folder(alone, STATE.tensors)) == alone
    with pytest.raises(FolderInvalid, match="not the name of a model"):
        receipt_of(SHAPE, STATE, base="a`b", model_root=bytes(32), rows_root=bytes(32), task=None)


def test_other_tensors_are_refused() -> None:
    for matrices in ({}, {"x": np.ones((2, 2), dtype=np.float32)}):
        with pytest.raises(FolderInvalid, match="other tensors"):
            check_folder(FOLDER | {ADAPTERS: write_safetensors(matrices, {"format": "pt"})})


def merged(shape: FinetuneShape, state: TrainingState) -> dict[str, np.ndarray]:
    """The weights of a model with its adapters added."""
    weights = plain_weights(shape.model)
    for layer in range(shape.model.layers):
        for target in shape.targets:
            name = f"layer/{layer}/{target}"
            a = np.frombuffer(state.tensors[f"parameter/{name}/a"], dtype="<f4").reshape(shape.rank, -1)
            b = np.frombuffer(state.tensors[f"parameter/{name}/b"], dtype="<f4").reshape(-1, shape.rank)
            weights[name] = weights[name] + shape.alpha / shape.rank * b.astype(float) @ a.astype(float)
    return weights


def loaded(folder: Path) -> Callable[[list[int]], np.ndarray]:
    """The logits of transformers with PEFT, from a folder of the base and one of the adapters."""
    reason = "transformers and peft (make peft) ARE NOT INSTALLED: FOLDERS WERE NOT LOADED WITH THEM"
    peft = pytest.importorskip("peft", reason=reason)
    torch = pytest.importorskip("torch", reason=reason)
    transformers = pytest.importorskip("transformers", reason=reason)
    (folder / "base").mkdir()
    write_folder(folder / "base", TINY, architectures=["LlamaForCausalLM"], bos_token_id=None)
    (folder / "adapters").mkdir()
    for name, content in FOLDER.items():
        (folder / "adapters" / name).write_bytes(content)
    base = transformers.AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float32)
    model = peft.PeftModel.from_pretrained(base, folder / "adapters").eval()
    assert not [name for name, one in model.named_parameters() if one.device.type == "meta"]

    def logits(tokens: list[int]) -> np.ndarray:
        with torch.no_grad():
            found: np.ndarray = model(torch.tensor([tokens])).logits[0].numpy()
        return found

    return logits


@pytest.mark.slow
def test_transformers_and_peft_load_a_folder_and_choose_the_same_tokens(tmp_path: Path) -> None:
    logits = loaded(tmp_path)
    weights, tokens = merged(SHAPE, STATE), [3, 60, 11, 5, 42]
    wanted = plain_logits(TINY, weights, tokens)
    assert np.abs(logits(tokens) - wanted).max() < 1e-4 * np.abs(wanted).max()
    assert np.abs(plain_logits(TINY, plain_weights(TINY), tokens) - wanted).max() > 0.1 * np.abs(wanted).max()
    tensors: dict[str, np.ndarray] = {}
    for name, values in weights.items():
        if values.shape[0] == 1:
            tensors[name] = values
        else:
            tensors[name], tensors[exponents_of(name)] = frozen(values)
    chosen = Decoder(Model(TINY, tensors), NumpyArrays()).decode([tokens], 12).tokens[0]
    found = list(tokens)
    for _ in range(12):
        found.append(int(logits(found)[-1].argmax()))
    assert found[len(tokens) :] == chosen
