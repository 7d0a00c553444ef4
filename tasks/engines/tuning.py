"""A fine-tuning run in segments: adapters and AdamW's moments are the state, the frozen model is shared."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import shake_256
from math import sqrt
from typing import Final

import numpy as np

from tasks.engines.arrays import Array, Arrays
from tasks.engines.decoder_plan import DecoderPlan
from tasks.engines.errors import StateInvalid
from tasks.engines.state import TrainingState
from tasks.engines.steps import Steps
from tasks.engines.tuning_plan import TuningPlan
from tasks.programs.errors import SourceInvalid
from tasks.programs.looped import EVALUATION_LOSSES
from tasks.programs.program import SourceKind
from tasks.programs.running import Runner, content_of

__all__ = ["Tuner", "TuningPlan", "first_state", "is_over"]

_WEIGHT_BITS: Final = 24


def first_state(plan: TuningPlan) -> TrainingState:
    """Return the state before the first step: A uniform in +-1 / sqrt(inputs) from the seed, B and moments zero.

    The bound of A is PEFT's.
    """
    tensors: dict[str, bytes] = {}
    for name, kind in plan.tensors().items():
        if not (name.startswith("parameter/") and name.endswith("/a")):
            tensors[name] = bytes(kind.size_bytes)
            continue
        label = b"dekube adapter\x00" + plan.seed + name.encode("ascii")
        words = np.frombuffer(shake_256(label).digest(4 * kind.values), dtype="<u4")
        integers = (words >> (32 - _WEIGHT_BITS)).astype(np.int64) - (1 << (_WEIGHT_BITS - 1))
        step = 1.0 / sqrt(kind.columns) / (1 << (_WEIGHT_BITS - 1))
        tensors[name] = ((integers * step).astype("<f4") + np.float32(0)).tobytes()
    return TrainingState(0, tensors)


class Tuner(Steps):
    """One run of ``plan`` over rows and a model, given as contents by name, standing at ``state``."""

    def __init__(
        self, plan: TuningPlan, model: Mapping[str, bytes], rows: Mapping[str, bytes], arrays: Arrays,
        state: TrainingState, *, wide: bool = False,
    ) -> None:  # fmt: skip
        """``wide`` holds the model as binary64: four times the memory, no conversion at each use.

        Raises StateInvalid, SourceInvalid, UnsupportedJob.
        """
        plan.check()
        runner = Runner(plan.program, arrays)
        held = runner.load(SourceKind.MODEL, model)
        if wide:
            held = {name: arrays.to_doubles(values) for name, values in held.items()}
        try:
            loaded = runner.load(SourceKind.STATE, state.tensors)
        except SourceInvalid as error:
            raise StateInvalid(str(error)) from None
        super().__init__(
            plan, arrays, runner, state=loaded, data=runner.load(SourceKind.DATA, rows), model=held,
            step=state.step,
        )  # fmt: skip
        self._plan = plan

    @property
    def is_over(self) -> bool:
        """See Steps: the losses of its evaluations may end the job (R87)."""
        return is_over(self._plan, self._arrays, self._state, self.step)


def is_over(plan: TuningPlan | DecoderPlan, arrays: Arrays, state: Mapping[str, Array], step: int) -> bool:
    """Tell whether a job ends early with a state that an engine holds (R87)."""
    if not plan.patience or plan.loop.at(step - 1).evaluation < 0:
        return False
    losses = content_of(arrays, plan.tensors()[EVALUATION_LOSSES], state[EVALUATION_LOSSES])
    return plan.ends_at(step, losses)
