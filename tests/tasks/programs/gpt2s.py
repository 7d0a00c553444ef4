"""A small GPT-2, and its way forward as the field writes it down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tasks.programs.llama_shape import LlamaShape
from tasks.programs.operators.scalars import NANO

GPT2 = LlamaShape(
    vocabulary=67, width=24, layers=2, heads=4, key_heads=4, head_width=6, hidden=96, context=40, rotary_base=0,
    epsilon_nano=10_000,
)  # fmt: skip
TURN = (2.0 / np.pi) ** 0.5


def plain_gpt2_logits(shape: LlamaShape, weights: dict[str, np.ndarray], tokens: list[int]) -> np.ndarray:
    """The logits in binary64 with library functions."""

    def normed(values: np.ndarray, name: str) -> np.ndarray:
        rest = values - values.mean(1, keepdims=True)
        root = np.sqrt((rest**2).mean(1, keepdims=True) + shape.epsilon_nano * 1e-9)
        found: np.ndarray = rest / root * weights[name] + weights[f"{name}_bias"]
        return found

    def linear(values: np.ndarray, name: str) -> np.ndarray:
        found: np.ndarray = values @ weights[name].T + weights[f"{name}_bias"]
        return found

    count = len(tokens)
    stream = weights["embedding"][tokens] + weights["positions"][:count]
    hidden = np.triu(np.ones((count, count), dtype=bool), 1)
    for layer in range(shape.layers):
        at = f"layer/{layer}"
        fused = linear(normed(stream, f"{at}/attention_norm"), f"{at}/query_key_value")
        query, key, value = (one.reshape(count, shape.heads, -1) for one in np.split(fused, 3, 1))
        heads = []
        for head in range(shape.heads):
            scores = query[:, head] @ key[:, head].T / np.sqrt(shape.head_width)
            powers = np.exp(np.where(hidden, -np.inf, scores - scores.max(1, keepdims=True)))
            heads.append(powers / powers.sum(1, keepdims=True) @ value[:, head])
        stream = stream + linear(np.concatenate(heads, 1), f"{at}/output")
        up = linear(normed(stream, f"{at}/hidden_norm"), f"{at}/up")
        inner = 0.5 * up * (1 + np.tanh(TURN * (up + 0.044715 * up**3)))
        stream = stream + linear(inner, f"{at}/down")
    found: np.ndarray = normed(stream, "norm") @ weights["embedding" if shape.tied else "head"].T
    return found


def torch_gpt2_logits(torch: Any, shape: LlamaShape, weights: Mapping[str, Any], tokens: Any, linear: Any) -> Any:
    """The logits with torch; ``linear(values, name)`` has weight, bias and adapters of a layer."""
    functional = torch.nn.functional

    def normed(values: Any, name: str) -> Any:
        return functional.layer_norm(
            values, (shape.width,), weights[name][0], weights[f"{name}_bias"][0], shape.epsilon_nano / NANO
        )

    stream = weights["embedding"][tokens] + weights["positions"][: tokens.shape[-1]]
    for layer in range(shape.layers):
        at = f"layer/{layer}"
        fused = linear(normed(stream, f"{at}/attention_norm"), f"{at}/query_key_value").chunk(3, -1)
        query, key, value = (one.unflatten(-1, (shape.heads, -1)).transpose(1, 2) for one in fused)
        read = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        stream = stream + linear(read.transpose(1, 2).flatten(2), f"{at}/output")
        up = functional.gelu(linear(normed(stream, f"{at}/hidden_norm"), f"{at}/up"), approximate="tanh")
        stream = stream + linear(up, f"{at}/down")
    return normed(stream, "norm") @ weights["embedding" if shape.tied else "head"].T
