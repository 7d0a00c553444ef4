"""What a run of fine-tuning follows from, checked against the limits of a job (market.md R57). No NumPy here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Final

from tasks.engines.datasets import DATASET_BYTES_MAX, DATASET_LEAVES_MAX
from tasks.engines.errors import UnsupportedJob
from tasks.engines.held import Held
from tasks.programs.errors import ProgramInvalid
from tasks.programs.finetune import (
    FinetuneRates,
    FinetuneShape,
    check_rates,
    finetune_program,
    layer_adapters,
    layer_tensors,
    marked_program,
    row_tensors,
    state_tensors,
)
from tasks.programs.finetune_units import check_finetune, finetune_cost
from tasks.programs.llama_shape import model_bytes
from tasks.programs.loop import EVALUATIONS_MAX, Loop
from tasks.programs.looped import groups_of, losses_in, single_tensors
from tasks.programs.program import Program
from tasks.programs.tally import Cost
from tasks.programs.tensors import ElementType, TensorType

__all__ = ["MODEL_BYTES_MAX", "ROWS_BYTES_MAX", "TuningPlan"]

MODEL_BYTES_MAX: Final = 1 << 35
"""Tensors of a frozen model: 16 x 10^9 weights."""
ROWS_BYTES_MAX: Final = DATASET_BYTES_MAX
"""Tensors of the rows."""
_TENSOR_BYTES: Final = 96
"""Room for a name and a length."""


_HELD: Final = Held(
    cost=finetune_cost, check=check_finetune, marked=marked_program,
    program=partial(finetune_program, checks_bounds=False),
)  # fmt: skip


@dataclass(frozen=True)
class TuningPlan:
    """What a run of fine-tuning follows from: shape, rates, and the seed of adapters and of the rows' order.

    ``patience`` is that of a job that may end early (R87); it changes no program.
    Raises UnsupportedJob beyond the limits of a job.
    """

    shape: FinetuneShape
    rates: FinetuneRates
    seed: bytes
    patience: int = 0

    def __post_init__(self) -> None:
        try:
            check_rates(self.shape, self.rates)
        except ProgramInvalid as error:
            raise UnsupportedJob(str(error)) from None
        if not 0 <= self.patience <= EVALUATIONS_MAX or (self.patience and not self.shape.evaluate_every):
            raise UnsupportedJob(
                f"a patience of {self.patience} evaluations, of a job without them or beyond them"
            )
        if (size := model_bytes(self.shape.model)) > MODEL_BYTES_MAX:
            raise UnsupportedJob(f"a model of {size} bytes, at most {MODEL_BYTES_MAX}")
        rows = row_tensors(self.shape).values()
        if (size := sum(kind.size_bytes for kind in rows)) > ROWS_BYTES_MAX:
            raise UnsupportedJob(f"rows of {size} bytes, at most {ROWS_BYTES_MAX}")
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
    def _cost(self) -> Cost:
        return _HELD.cost(self.shape, self.rates)

    @property
    def step_units(self) -> int:
        """Work units of one step: those of its program."""
        return self._cost[0]

    @property
    def step_calls(self) -> int:
        """Calls of the program."""
        return self._cost[1]

    @cached_property
    def parameters(self) -> int:
        """Number of trained numbers."""
        return self.shape.model.layers * sum(kind.values for kind in layer_tensors(self.shape))

    @cached_property
    def state_limit_bytes(self) -> int:
        """Upper bound of an encoded state: a binary32 a parameter and group, and room for names and lengths."""
        shape = self.shape
        count = shape.model.layers * 2 * len(shape.targets)
        single = sum(4 * columns + _TENSOR_BYTES for _, columns in single_tensors(shape))
        return 64 + len(groups_of(shape)) * (4 * self.parameters + _TENSOR_BYTES * count) + single

    def tensors(self) -> dict[str, TensorType]:
        """Names and types of the tensors of a state, in canonical (sorted) order."""
        return state_tensors(self.shape)

    def alike(self) -> Iterator[tuple[int, str, TensorType]]:
        """See StatePlan: layers whose numbers have as many digits."""
        layers, first, kinds = self.shape.model.layers, 0, layer_adapters(self.shape)
        for name, columns in single_tensors(self.shape):
            yield 1, name, TensorType(ElementType.BINARY32, 1, columns)
        while first < layers:
            after = min(layers, max(10, 10 * first))
            for group in groups_of(self.shape):
                for name, kind in kinds.items():
                    yield after - first, f"{group}/layer/{first}/{name}", kind
            first = after
