"""What a run of evaluating follows from (market.md R85). No NumPy here."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from tasks.engines.held import Held
from tasks.engines.pass_plan import PassPlan
from tasks.programs.evaluate import (
    EvaluateShape,
    evaluate_program,
    marked_program,
    row_tensors,
    state_tensors,
)
from tasks.programs.evaluate_units import check_evaluate, evaluate_cost
from tasks.programs.llama_shape import Adapter, LlamaShape, frozen_bytes, frozen_tensors
from tasks.programs.program import Program
from tasks.programs.tally import Cost
from tasks.programs.tensors import TensorType

__all__ = ["EvaluationPlan"]


_HELD: Final = Held(
    cost=evaluate_cost, check=check_evaluate, marked=marked_program,
    program=partial(evaluate_program, checks_bounds=False),
)  # fmt: skip


@dataclass(frozen=True)
class EvaluationPlan(PassPlan):
    """The plan of a job that evaluates a model on rows."""

    shape: EvaluateShape

    @property
    def steps(self) -> int:
        """See PassPlan."""
        return self.shape.steps

    @property
    def batch(self) -> int:
        """See PassPlan."""
        return self.shape.batch

    @property
    def model_bytes(self) -> int:
        """See PassPlan."""
        return frozen_bytes(self.shape.model, self.shape.adapter)

    def row_tensors(self) -> dict[str, TensorType]:
        """See PassPlan."""
        return row_tensors(self.shape)

    def weight_tensors(self) -> dict[str, TensorType]:
        """See PassPlan."""
        return frozen_tensors(self.shape.model, self.shape.adapter)

    def tensors(self) -> dict[str, TensorType]:
        """See PassPlan."""
        return state_tensors(self.shape)

    @property
    def adapter(self) -> Adapter | None:
        """See PassPlan."""
        return self.shape.adapter

    @property
    def decoder(self) -> LlamaShape:
        """See PassPlan."""
        return self.shape.model

    @property
    def program(self) -> Program:
        """See PassPlan."""
        return _HELD.program(self.shape)

    def check(self) -> None:
        """See PassPlan."""
        _HELD.check(self.shape)

    @property
    def _cost(self) -> Cost:
        return _HELD.cost(self.shape)
