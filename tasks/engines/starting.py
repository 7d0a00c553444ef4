"""A job of training that goes on from the state of another task (market.md R133). No NumPy here."""

from __future__ import annotations

from typing import NamedTuple

from tasks.engines.decoder_plan import DecoderPlan
from tasks.engines.errors import DatasetInvalid, StateInvalid
from tasks.engines.pass_plan import adapter_plan_of
from tasks.engines.state import TrainingState
from tasks.engines.tuning_plan import TuningPlan
from tasks.programs.llama_shape import Adapter, LlamaShape

__all__ = ["Start", "state_left"]

_PARAMETER = "parameter/"


def state_left(model: LlamaShape, layout: Adapter, root: bytes, blob: bytes) -> TrainingState:
    """Return the state of a blob, which another task has left. Raises DatasetInvalid where it has another root."""
    plan = adapter_plan_of(model, layout)
    try:
        found = TrainingState.decode(blob, plan)
    except StateInvalid as error:
        raise DatasetInvalid(f"the state to start from: {error}") from None
    if found.step != layout.step or found.root(plan) != root:
        raise DatasetInvalid("the state to start from is not the one that the job names")
    return found


class Start(NamedTuple):
    """The state that a job of ``plan`` begins with: the trained matrices of another one, and nothing else of it.

    ``root`` is that of the other state; ``layout`` says what it has, and after how many steps.
    """

    plan: TuningPlan | DecoderPlan
    root: bytes
    layout: Adapter

    def state(self, blob: bytes) -> TrainingState:
        """Return the state before the first step, given the blob of the other one. Raises DatasetInvalid."""
        return self.of(state_left(self.plan.shape.model, self.layout, self.root, blob))

    def of(self, found: TrainingState) -> TrainingState:
        """Return the state before the first step, given the other one: moments, sums and losses are zero."""
        tensors = dict[str, bytes]()
        for name, kind in self.plan.tensors().items():
            own = f"{self.layout.group}/{name.removeprefix(_PARAMETER)}"
            tensors[name] = found.tensors[own] if name.startswith(_PARAMETER) else bytes(kind.size_bytes)
        return TrainingState(0, tensors)
