"""Derived numbers: initial weights and the order of the samples, pure functions of the task's seed.

See market.md 4.3.

SHAKE-256 with a label for each use, so that any engine and any language can derive the same integers.
"""

from __future__ import annotations

from hashlib import shake_256
from math import sqrt
from typing import Final

import numpy as np

__all__ = ["DataOrder", "initial_weights"]

_WEIGHT_BITS: Final = 24


def _stream(label: bytes, seed: bytes, index: int, size_bytes: int) -> bytes:
    return shake_256(label + b"\x00" + seed + index.to_bytes(8, "big")).digest(size_bytes)


def initial_weights(seed: bytes, layer: int, inputs: int, outputs: int) -> np.ndarray:
    """Return float64 weights uniform in +-sqrt(6 / inputs) on a grid of 2**24 steps (He's bound for ReLU)."""
    words = np.frombuffer(_stream(b"dekube weights", seed, layer, 4 * inputs * outputs), dtype="<u4")
    integers = (words >> (32 - _WEIGHT_BITS)).astype(np.int64) - (1 << (_WEIGHT_BITS - 1))
    step = sqrt(6.0 / inputs) / (1 << (_WEIGHT_BITS - 1))
    return (integers.astype(np.float64) * step).reshape(inputs, outputs)


class DataOrder:
    """Samples in shuffled epochs laid end to end; a batch may span two epochs."""

    def __init__(self, seed: bytes, samples: int, batch: int) -> None:
        self._seed, self._samples, self._batch = seed, samples, batch
        self._epochs: dict[int, np.ndarray] = {}

    def batch(self, step: int) -> np.ndarray:
        """Return the int64 sample numbers of step ``step`` (the first step is 0)."""
        parts, at, wanted = [], step * self._batch, self._batch
        while wanted:
            epoch, offset = divmod(at, self._samples)
            part = self._epoch(epoch)[offset : offset + wanted]
            parts.append(part)
            at, wanted = at + len(part), wanted - len(part)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _epoch(self, epoch: int) -> np.ndarray:
        order = self._epochs.get(epoch)
        if order is None:
            keys = np.frombuffer(_stream(b"dekube order", self._seed, epoch, 8 * self._samples), dtype="<u8")
            order = np.argsort(keys, kind="stable").astype(np.int64)  # equal keys keep the samples' order
            if len(self._epochs) > 1:
                self._epochs.clear()
            self._epochs[epoch] = order
        return order
