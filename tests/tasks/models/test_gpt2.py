"""GPT-2 from files and back: transformers and PEFT compute the same from both sides (R154)."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.engines.arrays import NumpyArrays
from tasks.engines.decoder_plan import DecoderPlan
from tasks.engines.generating import Generator, completions, first_state
from tasks.engines.generating_plan import GeneratingPlan
from tasks.engines.state import TrainingState
from tasks.models.adapters import adapter_folder, check_folder, receipt_of
from tasks.models.decoding import Decoder
from tasks.models.errors import ModelError
from tasks.models.gguf import read_gguf
from tasks.models.gguf_writing import adapters_gguf
from tasks.models.gpt2 import gpt2_config, gpt2_place, is_turned
from tasks.models.llama import gguf_place, model_from_gguf, places_of
from tasks.models.opening import open_model
from tasks.models.safetensors import write_safetensors
from tasks.models.trained import check_model_folder, model_folder, trained_receipt
from tasks.programs.adamw import Rates
from tasks.programs.decoder import DecoderShape
from tasks.programs.finetune import FinetuneRates, FinetuneShape
from tasks.programs.finetune import state_tensors as tuned_tensors
from tasks.programs.generate import GenerateShape
from tasks.programs.llama_shape import GPT2_PROJECTIONS, Adapter, LlamaShape
from tests.tasks.models.files import gguf, settings_of
from tests.tasks.programs.generations import Generation, made_adapter, made_model
from tests.tasks.programs.gpt2s import GPT2, plain_gpt2_logits
from tests.tasks.programs.llamas import plain_weights
from tests.tasks.programs.trainings import training

REASON = "transformers and peft (make peft) ARE NOT INSTALLED: FOLDERS WERE NOT LOADED WITH THEM"
PROMPT = [3, 60, 11, 5, 42]
NEW = 12
OWN_HEAD = replace(GPT2, tied=False, hidden=17)
ENDS = {"bos_token_id": None, "eos_token_id": None}


def laid_out(shape: LlamaShape, *, prefix: bool = True) -> dict[str, np.ndarray]:
    """Weights as a safetensors file has them."""
    found = dict[str, np.ndarray]()
    for name, values in plain_weights(shape).items():
        place = gpt2_place(name)
        values = values.T if is_turned(name) else values
        found[place if prefix else place.removeprefix("transformer.")] = values[0] if len(values) == 1 else values
    return found


def written(folder: Path, tensors: dict[str, np.ndarray], shape: LlamaShape = GPT2, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(write_safetensors(tensors, {"format": "pt"}))
    (folder / "config.json").write_text(json.dumps(gpt2_config(shape) | ENDS | changes))
    return folder


@cache
def plain_tokens(shape: LlamaShape) -> list[int]:
    found = list(PROMPT)
    for _ in range(NEW):
        found.append(int(plain_gpt2_logits(shape, plain_weights(shape), found)[-1].argmax()))
    return found[len(PROMPT) :]


@pytest.mark.parametrize("shape", [GPT2, OWN_HEAD], ids=["tied", "own head"])
@pytest.mark.parametrize("prefix", [True, False])
def test_a_folder_gives_the_model_with_its_logits(tmp_path: Path, shape: LlamaShape, prefix: bool) -> None:
    """Names begin with ``transformer.``, or are those of the bare model with masks of places, as the field has."""
    tensors = laid_out(shape, prefix=prefix)
    if not prefix:
        tensors["h.0.attn.bias"] = np.tri(shape.context).reshape(1, 1, shape.context, shape.context)
    with open_model(written(tmp_path / "m", tensors, shape)) as opened:
        model = opened.load()
    assert (model.shape, model.notes) == (shape, ())
    wanted = plain_gpt2_logits(shape, plain_weights(shape), PROMPT)
    decoder = Decoder(model, NumpyArrays())
    assert np.abs(decoder.logits([PROMPT])[0] - wanted).max() < 2e-3 * np.abs(wanted).max()
    assert decoder.decode([PROMPT], NEW).tokens[0] == plain_tokens(shape)


@pytest.mark.parametrize("head", [None, "same", "other"])
def test_a_gguf_file_gives_the_same_model(tmp_path: Path, head: str | None) -> None:
    """A head that is the embedding once more is tied to it: llama.cpp's converter wrote such files."""
    shape = replace(GPT2, tied=head != "other")
    weights = plain_weights(shape)
    tensors = {gguf_place(name): one[0] if len(one) == 1 else one for name, one in weights.items()}
    if head == "same":
        tensors["output.weight"] = tensors["token_embd.weight"]
    settings = {
        key: value for key, value in settings_of(shape, "gpt2").items() if "rope" not in key and "rms" not in key
    } | {"gpt2.attention.layer_norm_epsilon": shape.epsilon_nano * 1e-9}  # fmt: skip
    found = model_from_gguf(read_gguf(gguf(settings, tensors)))
    with open_model(written(tmp_path / "m", laid_out(shape), shape)) as opened:
        wanted = opened.load()
    assert found.shape == wanted.shape == shape
    assert found.contents() == wanted.contents()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"activation_function": "gelu"}, "activation_function"), ({"scale_attn_weights": False}, "scale_attn"),
        ({"scale_attn_by_inverse_layer_idx": True}, "inverse_layer"), ({"add_cross_attention": True}, "cross"),
        ({"n_head": 5}, "24 columns in 5 heads"), ({"n_embd": 0}, "n_embd"), ({"n_layer": None}, "n_layer"),
        ({"layer_norm_epsilon": 2}, "layer_norm_epsilon"), ({"model_type": "gpt_neo"}, "gpt_neo"),
        ({"n_positions": 99}, "wpe"), ({"n_inner": 7}, "mlp.c_fc"), ({"tie_word_embeddings": False}, "lm_head"),
        ({"quantization_config": {}}, "quantization_config"),
    ],
)  # fmt: skip
def test_what_no_program_computes_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    with (
        pytest.raises(ModelError, match=text),
        open_model(written(tmp_path / "m", laid_out(GPT2), **changes)) as opened,
    ):
        opened.load()


def test_a_tensor_of_more_dimensions_is_still_refused(tmp_path: Path) -> None:
    tensors = laid_out(GPT2) | {"transformer.h.0.attn.bias": np.ones((2, 1, 3, 3))}
    with pytest.raises(ModelError, match="4 dimensions"), open_model(written(tmp_path / "m", tensors)):
        pass


TUNED = FinetuneShape(GPT2, 3, 6, GPT2_PROJECTIONS, 2, 8, 4, 6, 6)


def tuned_state(shape: FinetuneShape = TUNED) -> TrainingState:
    random = np.random.default_rng(7)
    return TrainingState(5, {
        name: random.normal(0, 0.3, kind.values).astype("<f4").tobytes()
        for name, kind in tuned_tensors(shape).items()
    })  # fmt: skip


def generated(adapter: Adapter, state: TrainingState) -> list[int]:
    """The tokens that a job of generating makes with adapters, or with a model that a task has trained."""
    shape = GenerateShape(GPT2, 1, 1, len(PROMPT), NEW, (), adapter)
    made = Generation(shape, made_model(GPT2), [PROMPT], state)
    plan = GeneratingPlan(shape, bytes(32))
    run = Generator(plan, made.model, made.data, NumpyArrays(), first_state(plan))
    run.run_steps(shape.steps)
    return completions(shape, made.data, run.state())[0]


def test_adapters_have_the_names_of_peft() -> None:
    state = tuned_state()
    made = receipt_of(TUNED, state, base="a/b", model_root=bytes(32), rows_root=bytes(32), task=None)
    files = adapter_folder(made, state.tensors)
    assert check_folder(files) == made
    settings = json.loads(files["adapter_config.json"])
    assert settings["fan_in_fan_out"] is True
    assert settings["target_modules"] == ["c_attn", "c_fc", "c_proj"]
    alone = replace(TUNED, targets=("output", "up"))
    other = receipt_of(alone, tuned_state(alone), base="a/b", model_root=bytes(32), rows_root=bytes(32), task=None)
    named = json.loads(adapter_folder(other, tuned_state(alone).tensors)["adapter_config.json"])
    assert named["target_modules"] == ["attn.c_proj", "c_fc"]
    held = read_gguf(adapters_gguf(made, files["adapter_model.safetensors"]))
    assert held.settings["general.architecture"] == "gpt2"
    assert "blk.1.attn_qkv.weight.lora_b" in held.tensors


def greedy(model: Any, torch: Any) -> list[int]:
    found = list(PROMPT)
    with torch.no_grad():
        for _ in range(NEW):
            found.append(int(model(torch.tensor([found])).logits[0, -1].argmax()))
    return found[len(PROMPT) :]


@pytest.mark.slow
def test_transformers_computes_the_same_logits(tmp_path: Path) -> None:
    torch, transformers = (pytest.importorskip(name, reason=REASON) for name in ("torch", "transformers"))
    folder = written(tmp_path / "m", laid_out(GPT2))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    wanted = plain_gpt2_logits(GPT2, plain_weights(GPT2), PROMPT)
    with torch.no_grad():
        found = model(torch.tensor([PROMPT])).logits[0].numpy()
    assert np.abs(found - wanted).max() < 1e-5 * np.abs(wanted).max()
    assert greedy(model, torch) == plain_tokens(GPT2)


@pytest.mark.slow
def test_peft_loads_adapters_and_chooses_the_same_tokens(tmp_path: Path) -> None:
    torch, peft, transformers = (
        pytest.importorskip(name, reason=REASON) for name in ("torch", "peft", "transformers")
    )
    folder, state = written(tmp_path / "m", laid_out(GPT2)), tuned_state()
    made = receipt_of(TUNED, state, base="a/b", model_root=bytes(32), rows_root=bytes(32), task=None)
    (tmp_path / "a").mkdir()
    for name, content in adapter_folder(made, state.tensors).items():
        (tmp_path / "a" / name).write_bytes(content)
    base = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model = peft.PeftModel.from_pretrained(base, tmp_path / "a").eval()
    assert sum("lora_A" in name for name, _ in model.named_parameters()) == 4 * GPT2.layers
    chosen = generated(Adapter(3, 6, GPT2_PROJECTIONS, 5), state)
    assert greedy(model, torch) == chosen != plain_tokens(GPT2)


@pytest.mark.slow
def test_transformers_loads_a_trained_model_and_chooses_the_same_tokens(tmp_path: Path) -> None:
    torch, transformers = (pytest.importorskip(name, reason=REASON) for name in ("torch", "transformers"))
    adapter = Adapter(0, 0, (), 7)
    state = made_adapter(GPT2, adapter, 9)
    files = model_folder(trained_receipt(GPT2, state, rows_root=b"r" * 32, task=None), state.tensors)
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    assert not [name for name, one in model.named_parameters() if one.device.type == "meta"]
    assert greedy(model, torch) == generated(adapter, state)


def test_the_folder_of_a_trained_model_commits_to_its_state() -> None:
    made = training(GPT2, FinetuneRates(Rates(1)))
    state = TrainingState(0, dict(made.state))
    receipt = trained_receipt(GPT2, state, rows_root=b"r" * 32, task=None)
    plan = DecoderPlan(DecoderShape(GPT2, 1, 1, 1, 1), FinetuneRates(Rates(1)), bytes(32))
    assert receipt.state_root == state.root(plan)
    assert check_model_folder(model_folder(receipt, state.tensors)) == receipt
    assert len(places_of(GPT2, gpt2_place)) == 12 * GPT2.layers + 4
