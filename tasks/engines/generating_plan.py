"""What a run of decoding follows from, checked against the limits of a job (market.md R77). No NumPy here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from tasks.engines.datasets import DATASET_BYTES_MAX, DATASET_LEAVES_MAX
from tasks.engines.errors import UnsupportedJob
from tasks.engines.tuning_plan import MODEL_BYTES_MAX
from tasks.programs.errors import ProgramInvalid
from tasks.programs.generate import GenerateShape, generate_program, prompt_tensors, state_tensors
from tasks.programs.generate_units import check_generate, generate_cost
from tasks.programs.llama_shape import model_bytes
from tasks.programs.program import Program
from tasks.programs.tensors import TensorType

__all__ = ["GeneratingPlan"]

PROGRAMS_HELD_MAX: Final = 8
"""Programs kept in memory."""
CHECKS_HELD_MAX: Final = 256
"""Shapes that are known to be exact."""
_TENSOR_BYTES: Final = 96
"""Room for a name and a length."""


@lru_cache(maxsize=CHECKS_HELD_MAX)
def _check(shape: GenerateShape) -> None:
    check_generate(shape)


@lru_cache(maxsize=PROGRAMS_HELD_MAX)
def _program(shape: GenerateShape) -> Program:
    return generate_program(shape, checks_bounds=False)


@dataclass(frozen=True)
class GeneratingPlan:
    """What a run of decoding follows from. The seed changes nothing: the likeliest token is taken.

    Raises UnsupportedJob beyond the limits of a job.
    """

    shape: GenerateShape
    seed: bytes

    def __post_init__(self) -> None:
        if (size := model_bytes(self.shape.model)) > MODEL_BYTES_MAX:
            raise UnsupportedJob(f"a model of {size} bytes, at most {MODEL_BYTES_MAX}")
        prompts = prompt_tensors(self.shape).values()
        if (size := sum(kind.size_bytes for kind in prompts)) > DATASET_BYTES_MAX:
            raise UnsupportedJob(f"prompts of {size} bytes, at most {DATASET_BYTES_MAX}")
        if (leaves := sum(kind.leaves for kind in prompts)) > DATASET_LEAVES_MAX:
            raise UnsupportedJob(f"prompts of {leaves} leaves, at most {DATASET_LEAVES_MAX}")
        try:
            generate_cost(self.shape)
        except ProgramInvalid as error:
            raise UnsupportedJob(str(error)) from None

    def check(self) -> None:
        """Raises UnsupportedJob where a number of the program could leave the exact range."""
        try:
            _check(self.shape)
        except ProgramInvalid as error:
            raise UnsupportedJob(str(error)) from None

    @property
    def program(self) -> Program:
        """The program of one step, which ``check`` says is exact. Raises UnsupportedJob for what is no program."""
        try:
            return _program(self.shape)
        except ProgramInvalid as error:
            raise UnsupportedJob(str(error)) from None

    @property
    def step_units(self) -> int:
        """Work units of one step: those of its program."""
        return generate_cost(self.shape).units

    @property
    def step_calls(self) -> int:
        """Calls of the program."""
        return generate_cost(self.shape).calls

    @property
    def parameters(self) -> int:
        """Number of values of a state; none is trained."""
        return sum(kind.values for kind in self.tensors().values())

    @property
    def state_limit_bytes(self) -> int:
        """Upper bound of an encoded state: its tensors, and room for names and lengths."""
        return 64 + sum(kind.size_bytes + _TENSOR_BYTES for kind in self.tensors().values())

    def tensors(self) -> dict[str, TensorType]:
        """Names and types of the tensors of a state, in canonical (sorted) order."""
        return state_tensors(self.shape)

    def alike(self) -> Iterator[tuple[int, str, TensorType]]:
        """See StatePlan."""
        return ((1, name, kind) for name, kind in self.tensors().items())
