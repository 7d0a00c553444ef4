"""What a run that trains a decoder follows from, checked against the limits of a job (R88). No NumPy here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Final

from tasks.engines.datasets import DATASET_BYTES_MAX, DATASET_LEAVES_MAX
from tasks.engines.errors import UnsupportedJob
from tasks.engines.held import Held
from tasks.engines.plan import PARAMETERS_MAX
from tasks.programs.decoder import (
    DecoderShape,
    check_decoder_rates,
    decoder_program,
    marked_program,
    row_tensors,
    state_tensors,
)
from tasks.programs.decoder_units import check_decoder, decoder_cost
from tasks.programs.errors import ProgramInvalid
from tasks.programs.finetune import FinetuneRates
from tasks.programs.llama_shape import layer_parameters, other_parameters
from tasks.programs.loop import EVALUATIONS_MAX, Loop
from tasks.programs.looped import groups_of, losses_in, single_tensors
from tasks.programs.program import Program
from tasks.programs.tensors import ElementType, TensorType

__all__ = ["DecoderPlan"]

_TENSOR_BYTES: Final = 96
"""Room for a name and a length."""


_HELD: Final = Held(
    cost=decoder_cost, check=check_decoder, marked=marked_program,
    program=partial(decoder_program, checks_bounds=False),
)  # fmt: skip


@dataclass(frozen=True)
class DecoderPlan:
    """What a run follows from: shape, rates, and the seed of the first weights and of the rows' order.

    ``patience`` is that of a job that may end early (R87); it changes no program.
    Raises UnsupportedJob beyond the limits of a job.
    """

    shape: DecoderShape
    rates: FinetuneRates
    seed: bytes
    patience: int = 0

    def __post_init__(self) -> None:
        try:
            check_decoder_rates(self.shape.model, self.rates)
            self.loop.check()
        except ProgramInvalid as error:
            raise UnsupportedJob(str(error)) from None
        if not 0 <= self.patience <= EVALUATIONS_MAX or (self.patience and not self.shape.evaluate_every):
            raise UnsupportedJob(
                f"a patience of {self.patience} evaluations, of a job without them or beyond them"
            )
        if self.parameters > PARAMETERS_MAX:
            raise UnsupportedJob(f"{self.parameters} parameters, at most {PARAMETERS_MAX}")
        rows = row_tensors(self.shape).values()
        if (size := sum(kind.size_bytes for kind in rows)) > DATASET_BYTES_MAX:
            raise UnsupportedJob(f"rows of {size} bytes, at most {DATASET_BYTES_MAX}")
        if (leaves := sum(kind.leaves for kind in rows)) > DATASET_LEAVES_MAX:
            raise UnsupportedJob(f"rows of {leaves} leaves, at most {DATASET_LEAVES_MAX}")

    @property
    def loop(self) -> Loop:
        """The training loop."""
        return self.shape.loop(self.rates.total_steps)

    def ends_at(self, step: int, losses: bytes) -> bool:
        """Tell whether the job ends early after ``step`` steps, by ``evaluation/losses`` in that state (R87)."""
        return bool(self.patience) and self.loop.ended_by(step, losses_in(losses), self.patience) == step

    def check(self) -> None:
        """Raises UnsupportedJob where a number of the program could leave the exact range."""
        _HELD.check(self.shape, self.rates)

    @property
    def program(self) -> Program:
        """The program of one step, which ``check`` says is exact. Raises UnsupportedJob for what is no program."""
        return _HELD.program(self.shape, self.rates)

    @property
    def step_units(self) -> int:
        """Work units of one step: those of its program."""
        return _HELD.cost(self.shape, self.rates).units

    @property
    def step_calls(self) -> int:
        """Calls of the program."""
        return _HELD.cost(self.shape, self.rates).calls

    @cached_property
    def parameters(self) -> int:
        """Number of trained numbers."""
        model = self.shape.model
        layer = sum(kind.values for kind in layer_parameters(model).values())
        return model.layers * layer + sum(kind.values for kind in other_parameters(model).values())

    @cached_property
    def state_limit_bytes(self) -> int:
        """Upper bound of an encoded state: a binary32 a parameter and group, and room for names and lengths."""
        shape, model = self.shape, self.shape.model
        count = model.layers * len(layer_parameters(model)) + len(other_parameters(model))
        single = sum(4 * columns + _TENSOR_BYTES for _, columns in single_tensors(shape))
        return 64 + len(groups_of(shape)) * (4 * self.parameters + _TENSOR_BYTES * count) + single

    def tensors(self) -> dict[str, TensorType]:
        """Names and types of the tensors of a state, in canonical (sorted) order."""
        return state_tensors(self.shape.model, self.shape)

    def alike(self) -> Iterator[tuple[int, str, TensorType]]:
        """See StatePlan: layers whose numbers have as many digits."""
        model = self.shape.model
        for name, columns in single_tensors(self.shape):
            yield 1, name, TensorType(ElementType.BINARY32, 1, columns)
        for group in groups_of(self.shape):
            for name, kind in other_parameters(model).items():
                yield 1, f"{group}/{name}", kind
            first = 0
            while first < model.layers:
                after = min(model.layers, max(10, 10 * first))
                for name, kind in layer_parameters(model).items():
                    yield after - first, f"{group}/layer/{first}/{name}", kind
                first = after
