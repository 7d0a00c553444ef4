"""What a run of embedding follows from (market.md R84). No NumPy here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from state.primitives.codec import Value
from state.primitives.errors import DecodeError
from tasks.engines.errors import UnsupportedJob
from tasks.engines.pass_plan import CHECKS_HELD_MAX, PROGRAMS_HELD_MAX, PassPlan, llama_of, llama_value
from tasks.engines.tuning_plan import COSTS_HELD_MAX, TuningPlan
from tasks.programs.bert_shape import BertShape
from tasks.programs.embed import (
    EmbedShape,
    ModelShape,
    embed_program,
    frozen_bytes,
    frozen_tensors,
    marked_program,
    state_tensors,
    text_tensors,
)
from tasks.programs.embed_units import check_embed, embed_cost
from tasks.programs.errors import ProgramInvalid
from tasks.programs.layered import LAYERS, Pattern, layered_program
from tasks.programs.llama_shape import LlamaShape
from tasks.programs.program import Program
from tasks.programs.tally import Cost
from tasks.programs.tensors import TensorType

__all__ = ["EmbeddingPlan"]


@lru_cache(maxsize=CHECKS_HELD_MAX)
def _check(shape: EmbedShape) -> None:
    check_embed(shape)


@lru_cache(maxsize=COSTS_HELD_MAX)
def _cost_of(shape: EmbedShape) -> Cost:
    return embed_cost(shape)


@lru_cache(maxsize=PROGRAMS_HELD_MAX)
def _pattern(shape: EmbedShape) -> Pattern:
    return Pattern(marked_program(shape))


@lru_cache(maxsize=PROGRAMS_HELD_MAX)
def _program(shape: EmbedShape) -> Program:
    if shape.model.layers <= LAYERS:
        return embed_program(shape, checks_bounds=False)
    like = replace(shape, model=replace(shape.model, layers=LAYERS))
    return layered_program(_pattern(like), shape.model.layers)


def _model_value(model: ModelShape) -> list[Value]:
    if isinstance(model, LlamaShape):
        return llama_value(model)
    return [
        model.vocabulary, model.width, model.layers, model.heads, model.hidden, model.context, model.epsilon_nano,
    ]  # fmt: skip


def _model_of(value: list[Any]) -> ModelShape:
    """Return a model's shape. Raises ProgramInvalid, DecodeError."""
    match value:
        case [_, _, _, _, _, _, _] if all(type(one) is int for one in value):
            return BertShape(*value)
    return llama_of(value)


@dataclass(frozen=True)
class EmbeddingPlan(PassPlan):
    """The plan of a job that embeds texts."""

    shape: EmbedShape

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
        return frozen_bytes(self.shape.model)

    def row_tensors(self) -> dict[str, TensorType]:
        """See PassPlan."""
        return text_tensors(self.shape)

    def weight_tensors(self) -> dict[str, TensorType]:
        """See PassPlan."""
        return frozen_tensors(self.shape.model)

    def tensors(self) -> dict[str, TensorType]:
        """See PassPlan."""
        return state_tensors(self.shape)

    @property
    def adapter_plan(self) -> TuningPlan | None:
        """See PassPlan: there are none."""
        return None

    @property
    def adapter_step(self) -> int:
        """See PassPlan."""
        return 0

    def to_value(self) -> list[Value]:
        """See PassPlan."""
        shape = self.shape
        sizes: list[Value] = [shape.batch, shape.rows, shape.length]
        return [_model_value(shape.model), sizes, shape.pooling, int(shape.normalised)]

    @classmethod
    def from_value(cls, value: list[Any], seed: bytes) -> EmbeddingPlan:
        """Read what ``to_value`` gives. Raises DecodeError, UnsupportedJob."""
        match value:
            case [list(model), [int(batch), int(rows), int(length)], str(pooling), (0 | 1) as normalised]:
                pass
            case _:
                raise DecodeError("not a plan of embedding")
        try:
            return cls(seed, EmbedShape(_model_of(model), batch, rows, length, pooling, bool(normalised)))
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
