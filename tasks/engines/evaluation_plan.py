"""What a run of evaluating follows from (market.md R85). No NumPy here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from state.primitives.codec import Value
from state.primitives.errors import DecodeError
from tasks.engines.errors import UnsupportedJob
from tasks.engines.pass_plan import (
    CHECKS_HELD_MAX,
    PROGRAMS_HELD_MAX,
    PassPlan,
    adapter_plan_of,
    llama_of,
    llama_value,
)
from tasks.engines.tuning_plan import COSTS_HELD_MAX, TuningPlan
from tasks.programs.errors import ProgramInvalid
from tasks.programs.evaluate import (
    EvaluateShape,
    evaluate_program,
    marked_program,
    row_tensors,
    state_tensors,
)
from tasks.programs.evaluate_units import check_evaluate, evaluate_cost
from tasks.programs.layered import LAYERS, Pattern, layered_program
from tasks.programs.llama_shape import Adapter, model_bytes, weight_tensors
from tasks.programs.program import Program
from tasks.programs.tally import Cost
from tasks.programs.tensors import TensorType

__all__ = ["EvaluationPlan"]


@lru_cache(maxsize=CHECKS_HELD_MAX)
def _check(shape: EvaluateShape) -> None:
    check_evaluate(shape)


@lru_cache(maxsize=COSTS_HELD_MAX)
def _cost_of(shape: EvaluateShape) -> Cost:
    return evaluate_cost(shape)


@lru_cache(maxsize=PROGRAMS_HELD_MAX)
def _pattern(shape: EvaluateShape) -> Pattern:
    return Pattern(marked_program(shape))


@lru_cache(maxsize=PROGRAMS_HELD_MAX)
def _program(shape: EvaluateShape) -> Program:
    if shape.model.layers <= LAYERS:
        return evaluate_program(shape, checks_bounds=False)
    like = replace(shape, model=replace(shape.model, layers=LAYERS))
    return layered_program(_pattern(like), shape.model.layers)


def _adapter_of(value: list[Any]) -> Adapter | None:
    """Return the adapters of a job. Raises DecodeError."""
    match value:
        case []:
            return None
        case [int(rank), int(alpha), list(targets), int(step), int(layout)] if (
            all(type(one) is str for one in targets)
        ):  # fmt: skip
            return Adapter(rank, alpha, tuple(targets), step, layout)
    raise DecodeError("not adapters")


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
        return model_bytes(self.shape.model)

    def row_tensors(self) -> dict[str, TensorType]:
        """See PassPlan."""
        return row_tensors(self.shape)

    def weight_tensors(self) -> dict[str, TensorType]:
        """See PassPlan."""
        return weight_tensors(self.shape.model)

    def tensors(self) -> dict[str, TensorType]:
        """See PassPlan."""
        return state_tensors(self.shape)

    @property
    def adapter_plan(self) -> TuningPlan | None:
        """See PassPlan."""
        shape = self.shape
        return None if shape.adapter is None else adapter_plan_of(shape.model, shape.adapter)

    @property
    def adapter_step(self) -> int:
        """See PassPlan."""
        return 0 if self.shape.adapter is None else self.shape.adapter.step

    def to_value(self) -> list[Value]:
        """See PassPlan."""
        shape, adapter = self.shape, list[Value]()
        if shape.adapter is not None:
            rank, alpha, targets, step, layout = shape.adapter
            adapter = [rank, alpha, list(targets), step, layout]
        sizes: list[Value] = [shape.batch, shape.rows, shape.length, shape.slots]
        return [llama_value(shape.model), sizes, adapter]

    @classmethod
    def from_value(cls, value: list[Any], seed: bytes) -> EvaluationPlan:
        """Read what ``to_value`` gives. Raises DecodeError, UnsupportedJob."""
        match value:
            case [list(model), [int(batch), int(rows), int(length), int(slots)], list(adapter)]:
                pass
            case _:
                raise DecodeError("not a plan of evaluating")
        try:
            shape = EvaluateShape(llama_of(model), batch, rows, length, slots, _adapter_of(adapter))
            return cls(seed, shape)
        except ProgramInvalid as error:
            raise UnsupportedJob(str(error)) from None

    @property
    def program(self) -> Program:
        """See PassPlan."""
        try:
            return _program(self.shape)
        except ProgramInvalid as error:
            raise UnsupportedJob(str(error)) from None

    def check(self) -> None:
        """See PassPlan."""
        try:
            _check(self.shape)
        except ProgramInvalid as error:
            raise UnsupportedJob(str(error)) from None

    @property
    def _cost(self) -> Cost:
        return _cost_of(self.shape)
