"""Training a decoder from scratch in segments: all weights and AdamW's moments are the state (market.md R88)."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import shake_256
from math import sqrt
from typing import Final

import numpy as np

from tasks.engines.arrays import Arrays
from tasks.engines.decoder_plan import DecoderPlan
from tasks.engines.errors import StateInvalid
from tasks.engines.state import TrainingState
from tasks.engines.steps import Steps
from tasks.engines.tuning import is_over
from tasks.programs.errors import SourceInvalid
from tasks.programs.program import SourceKind
from tasks.programs.running import Runner
from tasks.programs.tensors import TensorType

__all__ = ["DecoderTrainer", "first_state"]

EMBEDDING_STEP: Final = 50
"""Embedding and positions are uniform within +-sqrt(3) / 50: of variance 0.02^2, as decoders begin."""
_WEIGHT_BITS: Final = 24
_STREAMED: Final = ("output", "down")
"""Matrices that add to the stream: two a layer."""


def first_state(plan: DecoderPlan) -> TrainingState:
    """Return the state before the first step: norms 1, matrices uniform from the seed, biases and moments zero.

    Matrices lie within +-1 / sqrt(inputs), as the field's linear layers begin. What adds to the stream is smaller
    by sqrt(2 * layers), so the stream of a deep model begins as that of a flat one.
    """
    tensors: dict[str, bytes] = {}
    for name, kind in plan.tensors().items():
        group, _, own = name.partition("/")
        if group != "parameter" or own.endswith("bias"):
            tensors[name] = bytes(kind.size_bytes)
        elif own.endswith("norm"):
            tensors[name] = np.ones(kind.values, dtype="<f4").tobytes()
        else:
            tensors[name] = _uniform(plan, name, kind)
    return TrainingState(0, tensors)


def _uniform(plan: DecoderPlan, name: str, kind: TensorType) -> bytes:
    label = b"dekube decoder\x00" + plan.seed + name.encode("ascii")
    words = np.frombuffer(shake_256(label).digest(4 * kind.values), dtype="<u4")
    integers = (words >> (32 - _WEIGHT_BITS)).astype(np.int64) - (1 << (_WEIGHT_BITS - 1))
    most = 1.0 / sqrt(kind.columns)
    if name in ("parameter/embedding", "parameter/positions"):
        most = sqrt(3.0) / EMBEDDING_STEP
    elif name.rsplit("/", 1)[-1] in _STREAMED:
        most /= sqrt(2 * plan.shape.model.layers)
    step = most / (1 << (_WEIGHT_BITS - 1))
    return ((integers * step).astype("<f4") + np.float32(0)).tobytes()


class DecoderTrainer(Steps):
    """One run of ``plan`` over rows, given as contents by name, standing at ``state``."""

    def __init__(
        self, plan: DecoderPlan, rows: Mapping[str, bytes], arrays: Arrays, state: TrainingState
    ) -> None:  # fmt: skip
        """Raises StateInvalid, SourceInvalid, UnsupportedJob."""
        plan.check()
        runner = Runner(plan.program, arrays)
        try:
            loaded = runner.load(SourceKind.STATE, state.tensors)
        except SourceInvalid as error:
            raise StateInvalid(str(error)) from None
        data = runner.load(SourceKind.DATA, rows)
        super().__init__(plan, arrays, runner, state=loaded, data=data, model={}, step=state.step)
        self._plan = plan

    @property
    def is_over(self) -> bool:
        """See Steps: the losses of its evaluations may end the job (R87)."""
        return is_over(self._plan, self._arrays, self._state, self.step)
