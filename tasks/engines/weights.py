"""The weights that a job begins with, a pure function of the task's seed (market.md 4.3).

SHAKE-256 with a label, so that any engine and any language can derive the same integers.
"""

from __future__ import annotations

from hashlib import shake_256
from math import sqrt
from typing import Final

import numpy as np

__all__ = ["initial_weights"]

_WEIGHT_BITS: Final = 24


def initial_weights(seed: bytes, layer: int, inputs: int, outputs: int) -> np.ndarray:
    """Return float64 weights, outputs by inputs: uniform in +-sqrt(6 / inputs) on a grid of 2**24 steps.

    That is He's bound for ReLU.
    """
    label = b"dekube weights\x00" + seed + layer.to_bytes(8, "big")
    words = np.frombuffer(shake_256(label).digest(4 * inputs * outputs), dtype="<u4")
    integers = (words >> (32 - _WEIGHT_BITS)).astype(np.int64) - (1 << (_WEIGHT_BITS - 1))
    step = sqrt(6.0 / inputs) / (1 << (_WEIGHT_BITS - 1))
    return (integers.astype(np.float64) * step).reshape(outputs, inputs)
