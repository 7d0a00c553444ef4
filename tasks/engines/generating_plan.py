"""What a run of decoding follows from, checked against the limits of a job (market.md R77). No NumPy here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Final

from tasks.engines.datasets import DATASET_BYTES_MAX, DATASET_LEAVES_MAX
from tasks.engines.decoder_plan import DecoderPlan
from tasks.engines.errors import UnsupportedJob
from tasks.engines.held import Held
from tasks.engines.pass_plan import adapter_plan_of
from tasks.engines.tuning_plan import MODEL_BYTES_MAX, TuningPlan
from tasks.programs.generate import (
    MADE,
    GenerateShape,
    generate_program,
    layer_tensors,
    made_tensor,
    marked_program,
    prompt_tensors,
    state_tensors,
)
from tasks.programs.generate_units import check_generate, generate_cost
from tasks.programs.llama_shape import frozen_bytes
from tasks.programs.program import Program
from tasks.programs.tensors import TensorType

__all__ = ["VALUES_AT_ONCE", "GeneratingPlan"]

_TENSOR_BYTES: Final = 96
"""Room for a name and a length."""


_HELD: Final = Held(
    cost=generate_cost, check=check_generate, marked=marked_program,
    program=partial(generate_program, checks_bounds=False),
)  # fmt: skip
VALUES_AT_ONCE: Final = 1 << 22
"""Values of the largest tensor of a pass over several places."""


@dataclass(frozen=True)
class GeneratingPlan:
    """What a run of decoding follows from. The seed says which tokens are drawn, if any are.

    Raises UnsupportedJob beyond the limits of a job.
    """

    shape: GenerateShape
    seed: bytes

    def __post_init__(self) -> None:
        if (size := frozen_bytes(self.shape.model, self.shape.adapter)) > MODEL_BYTES_MAX:
            raise UnsupportedJob(f"a model of {size} bytes, at most {MODEL_BYTES_MAX}")
        prompts = prompt_tensors(self.shape).values()
        if (size := sum(kind.size_bytes for kind in prompts)) > DATASET_BYTES_MAX:
            raise UnsupportedJob(f"prompts of {size} bytes, at most {DATASET_BYTES_MAX}")
        if (leaves := sum(kind.leaves for kind in prompts)) > DATASET_LEAVES_MAX:
            raise UnsupportedJob(f"prompts of {leaves} leaves, at most {DATASET_LEAVES_MAX}")

    def check(self) -> None:
        """Raises UnsupportedJob where a number of the program could leave the exact range."""
        _HELD.check(self.shape)

    @property
    def program(self) -> Program:
        """The program of one step, which ``check`` says is exact. Raises UnsupportedJob for what is no program."""
        return _HELD.program(self.shape)

    @cached_property
    def adapter_plan(self) -> TuningPlan | DecoderPlan | None:
        """What the state with the model's adapters follows from; only its layout counts. Raises UnsupportedJob."""
        shape = self.shape
        return None if shape.adapter is None else adapter_plan_of(shape.model, shape.adapter)

    @property
    def step_units(self) -> int:
        """Work units of one step: those of its program."""
        return _HELD.cost(self.shape).units

    @property
    def step_calls(self) -> int:
        """Calls of the program."""
        return _HELD.cost(self.shape).calls

    @cached_property
    def parameters(self) -> int:
        """Number of values of a state; none is trained."""
        return sum(count * kind.values for count, _, kind in self.alike())

    @cached_property
    def state_limit_bytes(self) -> int:
        """Upper bound of an encoded state: its tensors, and room for names and lengths."""
        return 64 + sum(count * (kind.size_bytes + _TENSOR_BYTES) for count, _, kind in self.alike())

    def tensors(self) -> dict[str, TensorType]:
        """Names and types of the tensors of a state, in canonical (sorted) order."""
        return state_tensors(self.shape)

    def alike(self) -> Iterator[tuple[int, str, TensorType]]:
        """See StatePlan: layers whose numbers have as many digits."""
        layers, first = self.shape.model.layers, 0
        yield 1, MADE, made_tensor(self.shape)
        while first < layers:
            after = min(layers, max(10, 10 * first))
            for name, kind in layer_tensors(self.shape, first).items():
                yield after - first, name, kind
            first = after
