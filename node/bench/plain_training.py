"""A step of training all weights of a decoder, and a pass of an encoder, in plain NumPy.

In binary32 they are the measure of time, in binary64 that of gradients and vectors. See ``plain_tuning``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from node.bench.plain_tuning import Arrays, PlainPass, Rows
from tasks.programs.bert_shape import BertShape
from tasks.programs.finetune import FinetuneShape
from tasks.programs.llama_shape import LlamaShape
from tasks.programs.operators.scalars import NANO

__all__ = ["plain_training", "plain_training_logits", "plain_vectors"]


def plain_training(
    model: LlamaShape, weights: Mapping[str, np.ndarray], tokens: np.ndarray, targets: np.ndarray
) -> tuple[float, Arrays]:
    """Return the mean loss over all tokens of a batch, and the gradients of all weights."""
    return _TrainingPass(model, weights, tokens, targets).run()


def plain_training_logits(
    model: LlamaShape, weights: Mapping[str, np.ndarray], tokens: np.ndarray, targets: np.ndarray
) -> np.ndarray:
    """Return the logits of all tokens of a batch."""
    return _TrainingPass(model, weights, tokens, targets).picked_logits()


class _TrainingPass(PlainPass):
    """One way forward and back, with the gradients of weights instead of adapters'."""

    def __init__(
        self, model: LlamaShape, weights: Mapping[str, np.ndarray], tokens: np.ndarray, targets: np.ndarray
    ) -> None:
        batch, length = tokens.shape
        job = FinetuneShape(model, 1, 1, ("query",), batch, length, length, batch, batch)
        places = np.broadcast_to(np.arange(length), tokens.shape)
        super().__init__(job, weights, {}, Rows(tokens, places, targets))
        self._inputs: Arrays = {}

    def run(self) -> tuple[float, Arrays]:
        loss, gradient = super().through()
        rows = self._found.pop("embedding", np.zeros_like(self._weights["embedding"]))
        np.add.at(rows, self._rows.tokens.reshape(-1), gradient)
        self._found["embedding"] = rows
        return loss, self._found

    def linear(self, values: np.ndarray, name: str) -> np.ndarray:
        self._inputs[name] = values
        return super().linear(values, name)

    def linear_back(self, gradient: np.ndarray, name: str) -> np.ndarray:
        self._found[name] = gradient.T @ self._inputs[name]
        return super().linear_back(gradient, name)

    def normed_back(self, gradient: np.ndarray, name: str, rows: np.ndarray, root: np.ndarray) -> np.ndarray:
        self._found[name] = (gradient * rows).sum(0, keepdims=True)
        return super().normed_back(gradient, name, rows, root)

    def logits(self, values: np.ndarray) -> np.ndarray:
        self._inputs[self.head] = values
        return super().logits(values)

    def logits_back(self, gradient: np.ndarray) -> np.ndarray:
        self._found[self.head] = gradient.T @ self._inputs[self.head]
        return super().logits_back(gradient)


def plain_vectors(shape: BertShape, weights: Mapping[str, np.ndarray], tokens: np.ndarray) -> np.ndarray:
    """Return the vectors of texts of one length: the mean of their rows, divided by its length."""
    erf = _erf(weights["norm"].dtype)
    batch, length = tokens.shape

    def normed(values: np.ndarray, name: str) -> np.ndarray:
        rest = values - values.mean(-1, keepdims=True)
        root = np.sqrt((rest * rest).mean(-1, keepdims=True) + rest.dtype.type(shape.epsilon_nano / NANO))
        found: np.ndarray = rest / root * weights[name] + weights[f"{name}_bias"]
        return found

    def linear(values: np.ndarray, name: str) -> np.ndarray:
        found: np.ndarray = values @ weights[name].T + weights[f"{name}_bias"]
        return found

    stream = weights["embedding"][tokens] + weights["positions"][:length] + weights["type"]
    stream = normed(stream.reshape(batch * length, -1), "norm")
    for layer in range(shape.layers):
        at = f"layer/{layer}"
        query, key, value = (
            linear(stream, f"{at}/{name}").reshape(batch, length, shape.heads, -1).transpose(0, 2, 1, 3)
            for name in ("query", "key", "value")
        )
        scores = query @ key.swapaxes(-1, -2) * query.dtype.type(shape.head_width**-0.5)
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        read = (powers / powers.sum(-1, keepdims=True)) @ value
        read = read.transpose(0, 2, 1, 3).reshape(batch * length, -1)
        stream = normed(stream + linear(read, f"{at}/output"), f"{at}/attention_norm")
        inner = linear(stream, f"{at}/up")
        inner = inner * (1 + erf(inner * inner.dtype.type(0.5**0.5))) * inner.dtype.type(0.5)
        stream = normed(stream + linear(inner, f"{at}/down"), f"{at}/hidden_norm")
    means = stream.reshape(batch, length, -1).mean(1)
    found: np.ndarray = means / np.sqrt((means * means).sum(-1, keepdims=True))
    return found


def _erf(dtype: Any) -> Any:
    """Return the error function: in binary32 by a polynomial of five terms (Abramowitz and Stegun 7.1.26)."""
    if dtype == np.float64:
        from math import erf

        return np.vectorize(erf, otypes=[np.float64])
    terms = [np.float32(one) for one in (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)]

    def single(values: np.ndarray) -> np.ndarray:
        size = np.abs(values)
        t = 1 / (1 + np.float32(0.3275911) * size)
        series = ((((terms[4] * t + terms[3]) * t + terms[2]) * t + terms[1]) * t + terms[0]) * t
        found: np.ndarray = np.copysign(1 - series * np.exp(-size * size), values)
        return found

    return single
