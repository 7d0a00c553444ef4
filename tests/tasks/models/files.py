"""GGUF files made here: of a small random model, as llama.cpp's converter lays them out."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from tasks.programs.llama import LlamaShape
from tests.tasks.programs.llamas import plain_weights

NAMES = {
    "embedding": "token_embd.weight", "norm": "output_norm.weight", "head": "output.weight",
    "attention_norm": "attn_norm.weight", "query": "attn_q.weight", "query_bias": "attn_q.bias",
    "key": "attn_k.weight", "key_bias": "attn_k.bias", "value": "attn_v.weight", "value_bias": "attn_v.bias",
    "output": "attn_output.weight", "hidden_norm": "ffn_norm.weight", "gate": "ffn_gate.weight",
    "up": "ffn_up.weight", "down": "ffn_down.weight",
}  # fmt: skip


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def setting(value: Any) -> bytes:
    match value:
        case bool():
            return struct.pack("<IB", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + text(value)
        case _:
            return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))


def packed(values: np.ndarray, storage: int) -> bytes:
    """Bytes of values in a storage type; blocks are rounded in the simplest way."""
    if storage == 0:
        return values.astype("<f4").tobytes()
    if storage == 1:
        return values.astype("<f2").tobytes()
    if storage == 30:
        return (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    blocks, found = values.reshape(-1, 32), b""
    for block in blocks:
        low, high = float(block.min()), float(np.abs(block).max())
        if storage == 8:
            scale = np.float16(high / 127)
            found += scale.tobytes() + np.rint(block / float(scale or 1)).astype("i1").tobytes()
            continue
        scale, shift = (np.float16(high / 7), 8.0) if storage == 2 else (np.float16((block.max() - low) / 15), 0.0)
        begin = np.float16(low) if storage == 3 else np.float16(0)
        codes = np.clip(np.rint((block - float(begin)) / float(scale or 1) + shift), 0, 15).astype("u1")
        found += scale.tobytes() + (begin.tobytes() if storage == 3 else b"")
        found += (codes[:16] | codes[16:] << 4).tobytes()
    return found


def gguf(
    settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray], storages: Mapping[str, int] | None = None
) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(settings))
    head += b"".join(text(key) + setting(value) for key, value in settings.items())
    body = b""
    for name, values in tensors.items():
        storage = (storages or {}).get(name, 0)
        dimensions = [size for size in reversed(values.shape) if size]
        head += text(name) + struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
        head += struct.pack("<IQ", storage, len(body))
        content = packed(values, storage)
        body += content + bytes(-len(content) % 32)
    return head + bytes(-len(head) % 32) + body


def settings_of(shape: LlamaShape, architecture: str = "llama") -> dict[str, Any]:
    return {
        "general.architecture": architecture,
        f"{architecture}.block_count": shape.layers,
        f"{architecture}.context_length": shape.context,
        f"{architecture}.embedding_length": shape.width,
        f"{architecture}.feed_forward_length": shape.hidden,
        f"{architecture}.attention.head_count": shape.heads,
        f"{architecture}.attention.head_count_kv": shape.key_heads,
        f"{architecture}.attention.key_length": shape.head_width,
        f"{architecture}.rope.freq_base": float(shape.rotary_base),
        f"{architecture}.attention.layer_norm_rms_epsilon": shape.epsilon_nano * 1e-9,
    }


def tensors_of(shape: LlamaShape, architecture: str = "llama") -> dict[str, np.ndarray]:
    return laid_out(shape, plain_weights(shape), architecture)


def laid_out(shape: LlamaShape, weights: Mapping[str, np.ndarray], architecture: str) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for name, values in weights.items():
        part = name.split("/")[-1]
        heads = {"query": shape.heads, "key": shape.key_heads}.get(part.removesuffix("_bias"))
        if architecture == "llama" and heads:  # the converter puts the two columns of a pair side by side
            rows = values.T if part.endswith("_bias") else values
            rows = rows.reshape(heads, 2, -1, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)
            values = rows.T if part.endswith("_bias") else rows
        place = NAMES[part] if "/" not in name else f"blk.{name.split('/')[1]}.{NAMES[part]}"
        found[place] = values[0] if values.shape[0] == 1 else values
    return found
