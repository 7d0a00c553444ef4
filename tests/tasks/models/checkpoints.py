"""Safetensors files and folders made here: of a small random model, as the field shares them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tasks.programs.llama import LlamaShape
from tests.tasks.models.files import packed
from tests.tasks.programs.llamas import plain_weights

STORAGES = {"F32": 0, "F16": 1, "BF16": 30}
MODULES = {
    "query": "self_attn.q_proj", "key": "self_attn.k_proj", "value": "self_attn.v_proj",
    "output": "self_attn.o_proj", "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
    "attention_norm": "input_layernorm", "hidden_norm": "post_attention_layernorm",
}  # fmt: skip
OUTER = {"embedding": "model.embed_tokens.weight", "norm": "model.norm.weight", "head": "lm_head.weight"}


def head_and_body(
    tensors: Mapping[str, np.ndarray], dtypes: Mapping[str, str] | None = None
) -> tuple[dict[str, Any], bytes]:
    head, body = dict[str, Any](), b""
    for name, values in tensors.items():
        dtype = (dtypes or {}).get(name, "F32")
        content = packed(values, STORAGES[dtype])
        head[name] = {
            "dtype": dtype, "shape": list(values.shape), "data_offsets": [len(body), len(body) + len(content)]
        }  # fmt: skip
        body += content
    return head, body


def file_of(head: object, body: bytes) -> bytes:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return len(text).to_bytes(8, "little") + text + body


def safetensors(tensors: Mapping[str, np.ndarray], dtypes: Mapping[str, str] | None = None) -> bytes:
    return file_of(*head_and_body(tensors, dtypes))


def config_of(shape: LlamaShape, kind: str = "llama") -> dict[str, Any]:
    return {
        "model_type": kind, "hidden_act": "silu", "vocab_size": shape.vocabulary, "hidden_size": shape.width,
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads, "eos_token_id": 1,
        "num_key_value_heads": shape.key_heads, "head_dim": shape.head_width, "sliding_window": None,
        "intermediate_size": shape.hidden, "max_position_embeddings": shape.context,
        "rope_theta": float(shape.rotary_base), "rms_norm_eps": shape.epsilon_nano * 1e-9,
        "tie_word_embeddings": shape.tied,
    }  # fmt: skip


def tensors_of(shape: LlamaShape) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for name, values in plain_weights(shape).items():
        part = name.split("/")[-1]
        if "/" not in name:
            place = OUTER[part]
        else:
            end = "bias" if part.endswith("_bias") else "weight"
            place = f"model.layers.{name.split('/')[1]}.{MODULES[part.removesuffix('_bias')]}.{end}"
        found[place] = values[0] if values.shape[0] == 1 else values
    return found


def write_folder(folder: Path, shape: LlamaShape, shards: int = 1, **changes: Any) -> None:
    """A folder with config.json and weights in one file or more."""
    (folder / "config.json").write_text(json.dumps(config_of(shape) | changes))
    tensors = tensors_of(shape)
    if shards == 1:
        (folder / "model.safetensors").write_bytes(safetensors(tensors))
        return
    names = [f"model-{at + 1:05}-of-{shards:05}.safetensors" for at in range(shards)]
    places = {tensor: names[at % shards] for at, tensor in enumerate(tensors)}
    for name in names:
        part = {tensor: values for tensor, values in tensors.items() if places[tensor] == name}
        (folder / name).write_bytes(safetensors(part))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
