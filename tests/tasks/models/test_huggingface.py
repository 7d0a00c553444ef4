"""Folders of safetensors give the model of the same weights in a GGUF file, or are refused with a remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.models.errors import ModelError, ModelInvalid, ModelUnsupported
from tasks.models.gguf import read_gguf
from tasks.models.huggingface import Checkpoint, ends_of, shards_of
from tasks.models.llama import model_from_gguf
from tasks.models.opening import open_model
from tasks.models.safetensors import read_safetensors
from tests.tasks.models import files
from tests.tasks.models.checkpoints import config_of, safetensors, tensors_of, write_folder
from tests.tasks.programs.llamas import BIASED, TINY

TENSORS = tensors_of(TINY)
QUERY = "model.layers.1.self_attn.q_proj.weight"


def checkpoint(tensors: dict[str, np.ndarray] | None = None, **changes: Any) -> Checkpoint:
    config = {key: value for key, value in (config_of(TINY) | changes).items() if value != "absent"}
    file = read_safetensors(safetensors(TENSORS if tensors is None else tensors))
    return Checkpoint(json.dumps(config).encode(), {"model.safetensors": file})


@pytest.mark.parametrize("shards", [1, 3])
def test_a_folder_gives_the_model_of_the_gguf_file(tmp_path: Path, shards: int) -> None:
    write_folder(tmp_path, TINY, shards)
    with open_model(tmp_path) as opened:
        found = opened.load()
    content = files.gguf(files.settings_of(TINY), files.tensors_of(TINY))
    (tmp_path / "a.gguf").write_bytes(content)
    with open_model(tmp_path / "a.gguf") as opened:
        other = opened.load()
    assert found.shape == other.shape == TINY
    assert found.contents() == other.contents() == model_from_gguf(read_gguf(content)).contents()
    assert found.notes == ()


def test_own_heads_and_biases_are_found() -> None:
    file = read_safetensors(safetensors(tensors_of(BIASED)))
    found = Checkpoint(json.dumps(config_of(BIASED, "qwen2")).encode(), {"w": file})
    content = files.gguf(files.settings_of(BIASED, "qwen2"), files.tensors_of(BIASED, "qwen2"))
    assert found.shape == BIASED
    assert found.model().contents() == model_from_gguf(read_gguf(content)).contents()


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"model_type": "mamba"}, ModelUnsupported, "config.json: model_type 'mamba'.*Choose"),
        ({"hidden_act": "gelu"}, ModelUnsupported, "hidden_act 'gelu'"),
        ({"mlp_bias": True}, ModelUnsupported, "mlp_bias"),
        ({"quantization_config": {}}, ModelUnsupported, "Take the model's bfloat16"),
        ({"rope_scaling": {"rope_type": "llama3"}}, ModelUnsupported, "rope_type 'llama3'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, ModelUnsupported, "type 'linear'"),
        ({"rope_parameters": {"rope_theta": 5}}, ModelInvalid, "differ"),
        ({"rope_theta": 10_000.5}, ModelUnsupported, "rope_theta"),
        ({"rope_theta": True}, ModelUnsupported, "rope_theta"),
        ({"rms_norm_eps": 1.5e-9}, ModelUnsupported, "rms_norm_eps"),
        ({"rms_norm_eps": 0}, ModelInvalid, "rms_norm_eps"),
        ({"rms_norm_eps": "absent"}, ModelInvalid, "rms_norm_eps"),
        ({"num_hidden_layers": "absent"}, ModelInvalid, "num_hidden_layers is not a positive integer"),
        ({"num_hidden_layers": 2.0}, ModelInvalid, "num_hidden_layers"),
        ({"num_hidden_layers": 1 << 39}, ModelUnsupported, "layers"),
        ({"num_hidden_layers": 3}, ModelInvalid, "tensor model.layers.2.* is missing.*Take all files"),
        ({"num_hidden_layers": 1}, ModelUnsupported, "model.safetensors: tensor model.layers.1"),
        ({"num_attention_heads": 5}, ModelUnsupported, "heads"),
        (
            {"vocab_size": 66},
            ModelInvalid,
            "model.safetensors: tensor .*tokens.weight is 67 by 24, not 66",
        ),
        ({"tie_word_embeddings": False}, ModelInvalid, "lm_head.weight is missing"),
        ({"tie_word_embeddings": 1}, ModelInvalid, "neither true nor false"),
    ],
)
def test_a_model_that_no_program_computes_is_refused(
    changes: dict[str, Any], error: type[ModelError], said: str
) -> None:
    with pytest.raises(error, match=said):
        checkpoint(**changes).model()


@pytest.mark.parametrize(
    ("changes", "context"),
    [
        ({}, 64),
        ({"sliding_window": 20}, 20),
        ({"model_type": "mistral"}, 64),
        ({"model_type": "mistral", "sliding_window": 20}, 20),
        ({"model_type": "mistral", "sliding_window": "absent", "max_position_embeddings": 5_000}, 4_096),
        ({"model_type": "qwen2", "sliding_window": 20}, 64),
        ({"model_type": "qwen2", "sliding_window": 20, "use_sliding_window": True}, 20),
    ],
)
def test_a_sliding_window_bounds_the_context(changes: dict[str, Any], context: int) -> None:
    assert checkpoint(**changes).shape.context == context


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 2.0**21])
def test_a_number_that_is_not_read_is_named_with_its_place(value: float) -> None:
    changed = TENSORS[QUERY].copy()
    changed[7, 3] = value
    said = f"model.safetensors: tensor {QUERY} has .* at row 7, column 3; .*another checkpoint"
    with pytest.raises(ModelInvalid, match=said) as caught:
        checkpoint(TENSORS | {QUERY: changed}).model()
    assert caught.value.file == "model.safetensors"


def test_n11_values_near_zero_are_taken_as_zero_and_said() -> None:
    changed = TENSORS[QUERY].copy()
    changed[7, 3:5] = 1e-40, 2.0**-101  # the first is subnormal
    found = checkpoint(TENSORS | {QUERY: changed}).model()
    assert found.notes == (f"model.safetensors: tensor {QUERY}: 2 values below 2^-100 are taken as 0",)
    changed[7, 3:5] = 0.0
    assert found.contents() == checkpoint(TENSORS | {QUERY: changed}).model().contents()


def test_a_tied_head_is_the_embedding_or_refused() -> None:
    head = TENSORS["model.embed_tokens.weight"]
    assert checkpoint(TENSORS | {"lm_head.weight": head}).shape.tied
    with pytest.raises(ModelInvalid, match=r"lm_head.weight differs"):
        checkpoint(TENSORS | {"lm_head.weight": head * 2})
    with pytest.raises(ModelInvalid, match=r"lm_head.weight differs"):
        checkpoint(TENSORS | {"lm_head.weight": head[1:]})


def test_tensors_that_follow_from_the_settings_are_not_read() -> None:
    assert checkpoint(TENSORS | {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4)}).shape == TINY
    with pytest.raises(ModelUnsupported, match=r"not of this architecture"):
        checkpoint(TENSORS | {"model.layers.0.self_attn.o_proj.bias": np.ones(24)})


def test_files_and_index_must_agree(tmp_path: Path) -> None:
    write_folder(tmp_path, TINY, 2)
    index = tmp_path / "model.safetensors.index.json"
    places = json.loads(index.read_text())["weight_map"]
    first = tmp_path / "model-00001-of-00002.safetensors"
    first.write_bytes((tmp_path / "model-00002-of-00002.safetensors").read_bytes())
    with (
        pytest.raises(ModelInvalid, match=r"00001-of-00002.safetensors: other tensors"),
        open_model(tmp_path),
    ):
        pass
    first.unlink()
    with pytest.raises(ModelInvalid, match=r"00001-of-00002.safetensors: not readable"), open_model(tmp_path):
        pass
    with pytest.raises(ModelInvalid, match=r"is not the name of a safetensors file"):
        shards_of(json.dumps({"weight_map": places | {"a": "../secret.safetensors"}}).encode())
    with pytest.raises(ModelInvalid, match=r"line 1"):
        shards_of(b"{")


def test_one_tensor_stands_in_one_file() -> None:
    file = read_safetensors(safetensors(TENSORS))
    with pytest.raises(ModelInvalid, match=r"two: tensor .* is in one as well"):
        Checkpoint(json.dumps(config_of(TINY)).encode(), {"one": file, "two": file})


def test_ends_come_from_all_settings() -> None:
    assert ends_of(("a", b'{"eos_token_id": 2}'), ("b", b'{"eos_token_id": [3, 2]}'), ("c", b"{}")) == {2, 3}
    with pytest.raises(ModelInvalid, match=r"b: eos_token_id"):
        ends_of(("a", b"{}"), ("b", b'{"eos_token_id": "2"}'))


def test_a_file_that_shrinks_while_it_is_read_is_said(tmp_path: Path) -> None:
    write_folder(tmp_path, TINY)
    with open_model(tmp_path) as opened:
        (tmp_path / "model.safetensors").write_bytes(b"short")
        with pytest.raises(ModelInvalid, match=r"model.safetensors: the file was changed"):
            opened.load()


def test_a_folder_without_settings_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(ModelInvalid, match=r"config.json: not readable.*A folder needs"), open_model(tmp_path):
        pass
