"""Small random models, and the same way forward in plain binary64."""

from __future__ import annotations

import numpy as np

from tasks.engines.arrays import NumpyArrays
from tasks.programs.llama import BITS, LlamaShape, exponents_of, weight_tensors
from tasks.programs.operators import Context
from tasks.programs.table import OPERATORS
from tasks.programs.tensors import ElementType

CONTEXT = Context(0, bytes(32))
TINY = LlamaShape(
    vocabulary=67, width=24, layers=2, heads=6, key_heads=2, head_width=8, hidden=40, context=64,
    rotary_base=10_000, epsilon_nano=10_000,
)  # fmt: skip
BIASED = LlamaShape(
    vocabulary=50, width=16, layers=2, heads=2, key_heads=1, head_width=6, hidden=20, context=40,
    rotary_base=1_000_000, epsilon_nano=1_000, tied=False, biased=True,
)  # fmt: skip


def plain_weights(shape: LlamaShape, seed: int = 3) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    found: dict[str, np.ndarray] = {}
    for name, kind in weight_tensors(shape).items():
        if kind.element == ElementType.BINARY32:
            centre = 1.0 if name.endswith("norm") else 0.0
            found[name] = (centre + random.normal(0, 0.3, (1, kind.columns))).astype(np.float32).astype(np.float64)
        elif kind.columns > 1:
            found[name] = random.normal(0, 2.5 / np.sqrt(kind.columns), (kind.rows, kind.columns))
    return found


def frozen_weights(shape: LlamaShape, seed: int = 3) -> dict[str, np.ndarray]:
    """Weights as a model's tensors: quantised by the operators themselves."""
    arrays, found = NumpyArrays(), dict[str, np.ndarray]()
    for name, values in plain_weights(shape, seed).items():
        if weight_tensors(shape)[name].element == ElementType.BINARY32:
            found[name] = values
            continue
        exponents = OPERATORS["row_exponent"].run(arrays, [values], (BITS,), CONTEXT)
        found[name] = OPERATORS["quantise"].run(arrays, [values, exponents], (BITS,), CONTEXT)
        found[exponents_of(name)] = exponents
    return found


def plain_logits(shape: LlamaShape, weights: dict[str, np.ndarray], tokens: list[int]) -> np.ndarray:
    """The same model written down as the field does, in binary64 with library functions."""

    def normed(values: np.ndarray, name: str) -> np.ndarray:
        root: np.ndarray = np.sqrt((values**2).mean(1, keepdims=True) + shape.epsilon_nano * 1e-9)
        scaled: np.ndarray = values / root * weights[name]
        return scaled

    def turned(values: np.ndarray) -> np.ndarray:
        half = shape.head_width // 2
        angles = np.outer(np.arange(len(tokens)), shape.rotary_base ** (-np.arange(half) / half))[:, None]
        found = values.copy()
        first, second = values[..., :half], values[..., half:]
        found[..., :half] = first * np.cos(angles) - second * np.sin(angles)
        found[..., half:] = second * np.cos(angles) + first * np.sin(angles)
        return found

    count, width = len(tokens), shape.head_width
    stream = weights["embedding"][tokens]
    hidden = np.triu(np.ones((count, count), dtype=bool), 1)
    for layer in range(shape.layers):
        at = f"layer/{layer}"
        values = normed(stream, f"{at}/attention_norm")
        query, key, value = (
            (values @ weights[f"{at}/{name}"].T + weights.get(f"{at}/{name}_bias", 0)).reshape(count, -1, width)
            for name in ("query", "key", "value")
        )
        query, key = turned(query), turned(key)
        heads = []
        for head in range(shape.heads):
            shared = head // (shape.heads // shape.key_heads)
            scores = np.where(hidden, -np.inf, query[:, head] @ key[:, shared].T / np.sqrt(width))
            powers = np.exp(scores - scores.max(1, keepdims=True))
            heads.append(powers / powers.sum(1, keepdims=True) @ value[:, shared])
        stream = stream + np.concatenate(heads, 1) @ weights[f"{at}/output"].T
        values = normed(stream, f"{at}/hidden_norm")
        gate = values @ weights[f"{at}/gate"].T
        inner = gate / (1 + np.exp(-gate)) * (values @ weights[f"{at}/up"].T)
        stream = stream + inner @ weights[f"{at}/down"].T
    found: np.ndarray = normed(stream, "norm") @ weights["embedding" if shape.tied else "head"].T
    return found
