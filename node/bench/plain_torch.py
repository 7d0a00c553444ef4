"""What people run today, in float32 with torch: the other measure beside exact programs.

Decoders of the Llama family, encoders of the BERT family and the classifier, written with torch's own functions.
Gradients are torch's, AdamW is ``torch.optim.AdamW``. Needs the extra ``ml``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tasks.programs.bert_shape import BertShape
from tasks.programs.llama_shape import LlamaShape
from tasks.programs.operators.scalars import NANO

__all__ = ["TorchDecoder", "TorchEncoder", "torch_classifier", "torch_optimiser", "torch_tensors"]


def torch_tensors(weights: Mapping[str, np.ndarray], *, trained: bool = False) -> dict[str, Any]:
    """Return weights as float32 tensors."""
    import torch

    return {
        name: torch.tensor(np.asarray(values, np.float32), requires_grad=trained)
        for name, values in weights.items()
    }


def torch_optimiser(
    trained: Mapping[str, Any], loss: Callable[[], Any], rate: float, decay: float = 0.0
) -> Callable[[], None]:
    """Return what does a step of AdamW on ``trained``: the way forward, the way back and the change."""
    import torch

    made = torch.optim.AdamW(list(trained.values()), lr=rate, weight_decay=decay)

    def step() -> None:
        with torch.enable_grad():
            made.zero_grad(set_to_none=True)
            loss().backward()
            made.step()

    return step


def torch_classifier(weights: Mapping[str, Any], depth: int, rows: Any) -> Any:
    """Return the logits of a classifier with ReLU between its layers."""
    functional = _functional()
    for at in range(depth):
        rows = functional.linear(rows, weights[f"{at}/weight"], weights[f"{at}/bias"][0])
        rows = functional.relu(rows) if at < depth - 1 else rows
    return rows


class TorchDecoder:
    """A decoder; ``adapters`` are matrices A and B, whose product is scaled and added to a weight's."""

    def __init__(
        self, shape: LlamaShape, weights: Mapping[str, Any], adapters: Mapping[str, Any] | None = None,
        scale: float = 1.0,
    ) -> None:  # fmt: skip
        self._shape, self._weights, self._adapters, self._scale = shape, weights, adapters or {}, scale
        half = shape.head_width // 2
        angles = np.outer(np.arange(shape.context), shape.rotary_base ** (-np.arange(half) / half))
        turns = torch_tensors({"cosines": np.cos(angles), "sines": np.sin(angles)})
        self._cosines, self._sines = turns["cosines"], turns["sines"]

    def stream(self, tokens: Any, cache: list[tuple[Any, Any]] | None = None) -> Any:
        """Return the last layer's rows after their norm; ``cache`` has keys and values of earlier places."""
        import torch

        functional, shape = _functional(), self._shape
        first = cache[0][0].shape[2] if cache else 0
        stream = functional.embedding(tokens, self._weights["embedding"])
        for layer in range(shape.layers):
            at = f"layer/{layer}"
            values = self._normed(stream, f"{at}/attention_norm")
            query, key, value = (
                self._linear(values, f"{at}/{name}").unflatten(-1, (-1, shape.head_width)).transpose(1, 2)
                for name in ("query", "key", "value")
            )
            query, key = self._turned(query, first), self._turned(key, first)
            if cache is not None:
                if first:
                    before = cache[layer]
                    key, value = torch.cat((before[0], key), 2), torch.cat((before[1], value), 2)
                    cache[layer] = key, value
                else:
                    cache.append((key, value))
            repeated = shape.heads // shape.key_heads
            key, value = (one.repeat_interleave(repeated, 1) for one in (key, value))
            read = functional.scaled_dot_product_attention(query, key, value, is_causal=not first)
            stream = stream + self._linear(read.transpose(1, 2).flatten(2), f"{at}/output")
            values = self._normed(stream, f"{at}/hidden_norm")
            inner = functional.silu(self._linear(values, f"{at}/gate")) * self._linear(values, f"{at}/up")
            stream = stream + self._linear(inner, f"{at}/down")
        return self._normed(stream, "norm")

    def loss(self, tokens: Any, targets: Any, picked: Any = None) -> Any:
        """Return the mean cross entropy; ``picked`` are the rows that have a target, of all of a batch."""
        rows = self.stream(tokens).flatten(0, 1)
        logits = self._head(rows if picked is None else rows[picked])
        return _functional().cross_entropy(logits, targets)

    def decode(self, prompts: Sequence[Sequence[int]], most: int) -> list[list[int]]:
        """Return the likeliest tokens after prompts of one length."""
        import torch

        cache: list[tuple[Any, Any]] = []
        choice = torch.tensor(prompts)
        found = []
        for _ in range(most):
            choice = self._head(self.stream(choice, cache)[:, -1]).argmax(-1, keepdim=True)
            found.append(choice)
        tokens: list[list[int]] = torch.cat(found, 1).tolist()
        return tokens

    def _head(self, rows: Any) -> Any:
        return rows @ self._weights["embedding" if self._shape.tied else "head"].T

    def _linear(self, values: Any, name: str) -> Any:
        bias = self._weights.get(f"{name}_bias")
        found = _functional().linear(values, self._weights[name], None if bias is None else bias[0])
        if f"{name}/a" in self._adapters:
            inner = values @ self._adapters[f"{name}/a"].T
            found = found + inner @ self._adapters[f"{name}/b"].T * self._scale
        return found

    def _normed(self, values: Any, name: str) -> Any:
        epsilon = self._shape.epsilon_nano / NANO
        return _functional().rms_norm(values, (self._shape.width,), self._weights[name].flatten(), epsilon)

    def _turned(self, values: Any, first: int) -> Any:
        import torch

        half, last = values.shape[-1] // 2, first + values.shape[2]
        left, right = values[..., :half], values[..., half:]
        cosines, sines = self._cosines[first:last], self._sines[first:last]
        return torch.cat((left * cosines - right * sines, right * cosines + left * sines), -1)


class TorchEncoder:
    """An encoder over texts of one length, without padding."""

    def __init__(self, shape: BertShape, weights: Mapping[str, Any]) -> None:
        self._shape, self._weights = shape, weights

    def vectors(self, tokens: Any) -> Any:
        """Return the mean of each text's rows, divided by its length."""
        functional, shape, weights = _functional(), self._shape, self._weights
        stream = functional.embedding(tokens, weights["embedding"]) + weights["positions"][: tokens.shape[1]]
        stream = self._normed(stream + weights["type"], "norm")
        for layer in range(shape.layers):
            at = f"layer/{layer}"
            query, key, value = (
                self._linear(stream, f"{at}/{name}").unflatten(-1, (-1, shape.head_width)).transpose(1, 2)
                for name in ("query", "key", "value")
            )
            read = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
            stream = self._normed(stream + self._linear(read, f"{at}/output"), f"{at}/attention_norm")
            inner = self._linear(functional.gelu(self._linear(stream, f"{at}/up")), f"{at}/down")
            stream = self._normed(stream + inner, f"{at}/hidden_norm")
        return functional.normalize(stream.mean(1), dim=-1)

    def _linear(self, values: Any, name: str) -> Any:
        return _functional().linear(values, self._weights[name], self._weights[f"{name}_bias"].flatten())

    def _normed(self, values: Any, name: str) -> Any:
        vectors = (self._weights[one].flatten() for one in (name, f"{name}_bias"))
        return _functional().layer_norm(values, (self._shape.width,), *vectors, self._shape.epsilon_nano / NANO)


def _functional() -> Any:
    import torch

    return torch.nn.functional
