"""A step of fine-tuning with adapters in plain NumPy, way back included: what the exact program is compared with.

In binary32 it is the measure of time, in binary64 that of gradients. It uses library functions and sums in any
order, as the field does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from tasks.programs.adamw import Rates
from tasks.programs.finetune import FinetuneShape, adapter_tensors
from tasks.programs.llama_shape import exponents_of
from tasks.programs.operators.rows import WIDTHS
from tasks.programs.operators.scalars import NANO

__all__ = ["Arrays", "PlainPass", "Rows", "plain_adamw", "plain_gradients", "plain_logits", "plain_weights"]

_DEPTH: Final = WIDTHS[15].depth
Arrays = dict[str, np.ndarray]


class Rows(NamedTuple):
    """A batch: tokens, and for each slot the place of the token before it (the length if it is free), and it."""

    tokens: np.ndarray
    places: np.ndarray
    targets: np.ndarray


def plain_weights(tensors: Mapping[str, np.ndarray], dtype: Any) -> Arrays:
    """Return a model's frozen tensors as fractions."""
    found: Arrays = {}
    for name, values in tensors.items():
        exponents = tensors.get(exponents_of(name))
        if exponents is not None:
            found[name] = np.ldexp(values.astype(dtype), exponents.astype(np.int32) - _DEPTH)
        elif not name.endswith("/exponents"):
            found[name] = values.astype(dtype)
    return found


def plain_gradients(
    job: FinetuneShape, weights: Mapping[str, np.ndarray], adapters: Mapping[str, np.ndarray], rows: Rows
) -> tuple[float, Arrays]:
    """Return the mean loss over the trained tokens, and the gradients of all adapters."""
    return PlainPass(job, weights, adapters, rows).run()


def plain_logits(
    job: FinetuneShape, weights: Mapping[str, np.ndarray], adapters: Mapping[str, np.ndarray], rows: Rows
) -> np.ndarray:
    """Return the logits that each trained token is given by."""
    return PlainPass(job, weights, adapters, rows).picked_logits()


def plain_adamw(
    rates: Rates, step: int, adapters: Arrays, moments: tuple[Arrays, Arrays], gradients: Arrays
) -> None:
    """Change adapters and moments as AdamW does at ``step``, from 1."""
    rate, beta1, beta2, epsilon, decay = (number / NANO for number in rates)
    for name, gradient in gradients.items():
        first, second = (part[name] for part in moments)
        first += (1 - beta1) * (gradient - first)
        second += (1 - beta2) * (gradient * gradient - second)
        change = first / (1 - beta1**step) / (np.sqrt(second / (1 - beta2**step)) + epsilon)
        adapters[name] *= 1 - rate * decay
        adapters[name] -= rate * change


class PlainPass:
    """One way forward and back through adapters."""

    def __init__(
        self, job: FinetuneShape, weights: Mapping[str, np.ndarray], adapters: Mapping[str, np.ndarray], rows: Rows
    ) -> None:
        self._job, self._shape, self._weights = job, job.model, weights
        self._adapters, self._rows = adapters, rows
        self._batch, self._length = rows.tokens.shape
        self._type: Any = weights["norm"].dtype
        self._scale = self._type.type(job.alpha / job.rank)
        half = self._shape.head_width // 2
        angles = np.outer(np.arange(self._length), self._shape.rotary_base ** (-np.arange(half) / half))[:, None]
        self._angles = np.cos(angles).astype(self._type), np.sin(angles).astype(self._type)
        self._taken: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self._found: Arrays = {}

    def run(self) -> tuple[float, Arrays]:
        """Return the mean loss, and the gradients of adapters."""
        loss, _ = self.through()
        return loss, {name: self._found[name] for name in adapter_tensors(self._job)}

    def picked_logits(self) -> np.ndarray:
        """Return the logits of the tokens that are trained, row by row."""
        stream = self._forward()[0][self._picked()[0]]
        return self.logits(self.normed(stream, "norm")[0])

    def through(self) -> tuple[float, np.ndarray]:
        """Return the mean loss, and the gradient of the first layer's rows."""
        stream, kept = self._forward()
        loss, gradient = self._head(stream)
        for number in range(self._shape.layers - 1, -1, -1):
            gradient = self._layer_back(gradient, f"layer/{number}", kept[number])
        return loss, gradient

    @property
    def head(self) -> str:
        """Name of the weight that gives logits."""
        return "embedding" if self._shape.tied else "head"

    def logits(self, values: np.ndarray) -> np.ndarray:
        """Return the logits of rows."""
        found: np.ndarray = values @ self._weights[self.head].T
        return found

    def logits_back(self, gradient: np.ndarray) -> np.ndarray:
        """Return the gradient of rows, by that of their logits."""
        found: np.ndarray = gradient @ self._weights[self.head]
        return found

    def _picked(self) -> tuple[np.ndarray, np.ndarray]:
        """Return which rows of the stream are trained, and the token that each shall give."""
        sequences, slots = np.nonzero(self._rows.places < self._length)
        return sequences * self._length + self._rows.places[sequences, slots], self._rows.targets[sequences, slots]

    def _forward(self) -> tuple[np.ndarray, list[dict[str, Any]]]:
        stream = self._weights["embedding"][self._rows.tokens.reshape(-1)]
        kept = []
        for number in range(self._shape.layers):
            stream, layer = self._layer(stream, f"layer/{number}")
            kept.append(layer)
        return stream, kept

    def linear(self, values: np.ndarray, name: str) -> np.ndarray:
        """Return the products of rows with those of a weight, its adapters and its bias."""
        found: np.ndarray = values @ self._weights[name].T
        if f"{name}/a" in self._adapters:
            inner = values @ self._adapters[f"{name}/a"].T
            self._taken[name] = values, inner
            found += inner @ self._adapters[f"{name}/b"].T * self._scale
        if f"{name}_bias" in self._weights:
            found += self._weights[f"{name}_bias"]
        return found

    def linear_back(self, gradient: np.ndarray, name: str) -> np.ndarray:
        """Return the gradient of a weight's rows."""
        found: np.ndarray = gradient @ self._weights[name]
        if name in self._taken:
            values, inner = self._taken[name]
            change = gradient * self._scale
            self._found[f"{name}/b"] = change.T @ inner
            change = change @ self._adapters[f"{name}/b"]
            self._found[f"{name}/a"] = change.T @ values
            found += change @ self._adapters[f"{name}/a"]
        return found

    def normed(self, values: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return rows by their root mean square, times the norm's weights; and what the way back needs."""
        mean = (values * values).mean(-1, keepdims=True) + self._type.type(self._shape.epsilon_nano / NANO)
        root = np.sqrt(mean)
        rows = values / root
        return rows * self._weights[name], rows, root

    def normed_back(self, gradient: np.ndarray, name: str, rows: np.ndarray, root: np.ndarray) -> np.ndarray:
        """Return the gradient of rows before their norm."""
        inner = gradient * self._weights[name]
        found: np.ndarray = (inner - rows * (inner * rows).mean(-1, keepdims=True)) / root
        return found

    def turned(self, values: np.ndarray, sign: int) -> np.ndarray:
        """Turn rows of (batch, length, heads, width)."""
        cosines, sines = self._angles
        half = values.shape[-1] // 2
        left, right = values[..., :half], values[..., half:]
        return np.concatenate(
            (left * cosines - sign * right * sines, right * cosines + sign * left * sines), axis=-1
        )

    def split(self, values: np.ndarray) -> np.ndarray:
        """Return rows as (batch, length, heads, width)."""
        return values.reshape(self._batch, self._length, -1, self._shape.head_width)

    def grouped(self, values: np.ndarray) -> np.ndarray:
        """Return (batch, length, heads, width) with the heads of one key head below each other."""
        keys = self._shape.key_heads
        return values.transpose(0, 2, 1, 3).reshape(self._batch, keys, -1, self._shape.head_width)

    def joined(self, values: np.ndarray) -> np.ndarray:
        """Return (batch, length, heads, width) of heads below each other."""
        split = values.reshape(self._batch, -1, self._length, self._shape.head_width)
        return split.transpose(0, 2, 1, 3)

    def _layer(self, stream: np.ndarray, at: str) -> tuple[np.ndarray, dict[str, Any]]:
        kept: dict[str, Any] = {}
        values, *kept["attention_norm"] = self.normed(stream, f"{at}/attention_norm")
        query, key, value = (self.split(self.linear(values, f"{at}/{name}")) for name in ("query", "key", "value"))
        query, key, value = (self.grouped(part) for part in (self.turned(query, 1), self.turned(key, 1), value))
        scores = query @ key.swapaxes(-1, -2) * self._type.type(self._shape.head_width**-0.5)
        scores = scores.reshape(*scores.shape[:2], -1, self._length, self._length)
        scores += np.triu(np.full((self._length, self._length), -np.inf, dtype=self._type), 1)
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        shares = (powers / powers.sum(-1, keepdims=True)).reshape(*query.shape[:3], self._length)
        kept["heads"] = query, key, value, shares
        joined = self.joined(shares @ value).reshape(len(stream), -1)
        stream = stream + self.linear(joined, f"{at}/output")
        values, *kept["hidden_norm"] = self.normed(stream, f"{at}/hidden_norm")
        gate, up = (self.linear(values, f"{at}/{name}") for name in ("gate", "up"))
        sigmoid = 1 / (1 + np.exp(-gate))
        kept["gated"] = gate, sigmoid, up
        return stream + self.linear(gate * sigmoid * up, f"{at}/down"), kept

    def _layer_back(self, gradient: np.ndarray, at: str, kept: dict[str, Any]) -> np.ndarray:
        gate, sigmoid, up = kept["gated"]
        inner = self.linear_back(gradient, f"{at}/down")
        slope = sigmoid * (1 + gate * (1 - sigmoid))
        hidden = self.linear_back(inner * gate * sigmoid, f"{at}/up")
        hidden = hidden + self.linear_back(inner * up * slope, f"{at}/gate")
        gradient = gradient + self.normed_back(hidden, f"{at}/hidden_norm", *kept["hidden_norm"])
        query, key, value, shares = kept["heads"]
        read = self.grouped(self.split(self.linear_back(gradient, f"{at}/output")))
        changes = read @ value.swapaxes(-1, -2)
        scores = shares * (changes - (changes * shares).sum(-1, keepdims=True))
        scores *= self._type.type(self._shape.head_width**-0.5)
        parts = (
            ("query", self.turned(self.joined(scores @ key), -1)),
            ("key", self.turned(self.joined(scores.swapaxes(-1, -2) @ query), -1)),
            ("value", self.joined(shares.swapaxes(-1, -2) @ read)),
        )
        if at == "layer/0" and not {"query", "key", "value"} & set(self._job.targets):
            return gradient
        values = sum(self.linear_back(part.reshape(len(gradient), -1), f"{at}/{name}") for name, part in parts)
        assert isinstance(values, np.ndarray)
        found: np.ndarray = gradient + self.normed_back(values, f"{at}/attention_norm", *kept["attention_norm"])
        return found

    def _head(self, stream: np.ndarray) -> tuple[float, np.ndarray]:
        picked, targets = self._picked()
        values, rows, root = self.normed(stream[picked], "norm")
        logits = self.logits(values)
        logits -= logits.max(-1, keepdims=True)
        powers = np.exp(logits)
        norms = powers.sum(-1, keepdims=True)
        count = len(picked)
        loss = float((np.log(norms[:, 0]) - logits[np.arange(count), targets]).sum() / count)
        powers /= norms
        powers[np.arange(count), targets] -= 1
        powers /= count
        gradient = np.zeros_like(stream)
        gradient[picked] = self.normed_back(self.logits_back(powers), "norm", rows, root)
        return loss, gradient
