"""What the engine is asked to do: a job's numbers, checked against the engine's limits (market.md R3)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

from tasks.engines.datasets import (
    DATASET_BYTES_MAX,
    DATASET_LEAVES_MAX,
    ROWS_MAX,
    SHIFT_MAX,
    dataset_leaves,
)
from tasks.engines.errors import UnsupportedJob
from tasks.programs.classifier import (
    ACTIVATIONS,
    LAYERS_MAX,
    ClassifierShape,
    Rates,
    classifier_program,
    classifier_scores,
)
from tasks.programs.classifier_units import classifier_units
from tasks.programs.errors import ProgramInvalid
from tasks.programs.program import Computation, Program
from tasks.programs.tensors import ElementType, TensorType

__all__ = [
    "ACTIVATIONS",
    "BATCH_MAX",
    "CLASSES_MAX",
    "LAYERS_MAX",
    "PARAMETERS_MAX",
    "WIDTH_MAX",
    "TrainingPlan",
]

WIDTH_MAX: Final = 4096
"""Units of a layer. With LAYERS_MAX and the bound on parameters it keeps every number inside the exact range."""
PARAMETERS_MAX: Final = 1 << 24
CLASSES_MAX: Final = 256
BATCH_MAX: Final = 4096
NANO: Final = 1_000_000_000
PROGRAMS_HELD_MAX: Final = 64
"""Programs kept in memory; the largest has 0.3 MB and is built in 5 ms."""


@lru_cache(maxsize=PROGRAMS_HELD_MAX)
def _program(shape: ClassifierShape, rates: Rates) -> Program:
    return classifier_program(shape, rates)


@dataclass(frozen=True)
class TrainingPlan:
    """A classifier of fully connected layers, its optimiser (AdamW), its data and their order.

    ``widths`` runs from the features to the classes. Of ``rows`` rows of data the first ``train_rows`` are trained
    on; a feature is a byte times 2^-shift. Rates are in units of 1e-9. Raises UnsupportedJob.
    """

    widths: tuple[int, ...]
    activation: str
    batch: int
    rows: int
    train_rows: int
    shift: int
    seed: bytes
    learning_rate_nano: int
    beta1_nano: int = 900_000_000
    beta2_nano: int = 999_000_000
    epsilon_nano: int = 10
    weight_decay_nano: int = 0

    def __post_init__(self) -> None:
        if not 2 <= len(self.widths) <= LAYERS_MAX + 1 or not all(
            1 <= width <= WIDTH_MAX for width in self.widths
        ):
            raise UnsupportedJob(f"1 to {LAYERS_MAX} layers of 1 to {WIDTH_MAX} units")
        if not 2 <= self.widths[-1] <= CLASSES_MAX:
            raise UnsupportedJob(f"2 to {CLASSES_MAX} classes")
        if self.parameters > PARAMETERS_MAX:
            raise UnsupportedJob(f"{self.parameters} parameters, at most {PARAMETERS_MAX}")
        if self.activation not in ACTIVATIONS:
            raise UnsupportedJob(f"activation must be one of {', '.join(ACTIVATIONS)}")
        if not 1 <= self.batch <= BATCH_MAX:
            raise UnsupportedJob(f"a batch of 1 to {BATCH_MAX}")
        if not 1 <= self.train_rows <= self.rows <= ROWS_MAX:
            raise UnsupportedJob(f"1 to {ROWS_MAX} rows, of which at least one is for training")
        if not 0 <= self.shift <= SHIFT_MAX:
            raise UnsupportedJob(f"a shift of 0 to {SHIFT_MAX}")
        if len(self.seed) != 32:
            raise UnsupportedJob("a seed of 32 bytes")
        if not (
            0 < self.learning_rate_nano <= NANO
            and 0 <= self.beta1_nano < NANO
            and 0 <= self.beta2_nano < NANO
            and 0 < self.epsilon_nano <= NANO
            and 0 <= self.weight_decay_nano <= NANO
        ):
            raise UnsupportedJob("optimiser rates between 0 and 1")
        # A row has a byte for each feature, and its label.
        if self.rows * (self.widths[0] + 1) > DATASET_BYTES_MAX:
            raise UnsupportedJob(
                f"a data set of {self.rows} rows of {self.widths[0]} features exceeds {DATASET_BYTES_MAX} bytes"
            )
        if dataset_leaves(self.rows, self.widths[0]) > DATASET_LEAVES_MAX:
            raise UnsupportedJob(
                f"a data set of {self.rows} rows of {self.widths[0]} features exceeds {DATASET_LEAVES_MAX} leaves"
            )

    @property
    def shape(self) -> ClassifierShape:
        """What the program of a step follows from, beside the rates."""
        return ClassifierShape(self.widths, self.activation, self.batch, self.rows, self.train_rows, self.shift)

    @property
    def rates(self) -> Rates:
        """The numbers of AdamW."""
        return Rates(
            self.learning_rate_nano, self.beta1_nano, self.beta2_nano, self.epsilon_nano, self.weight_decay_nano
        )

    @property
    def program(self) -> Program:
        """The program of one step. Raises UnsupportedJob where a number could leave the exact range."""
        try:
            return _program(self.shape, self.rates)
        except ProgramInvalid as error:
            raise UnsupportedJob(str(error)) from None

    def check(self) -> None:
        """Raises UnsupportedJob where ``program`` does."""
        self.program  # noqa: B018

    @cached_property
    def step_units(self) -> int:
        """Work units of one step: those of its program."""
        return classifier_units(self.shape, self.rates)

    @property
    def scores(self) -> Computation:
        """The scores of some rows of data, for the test at the end of a job."""
        return classifier_scores(self.shape)

    @property
    def parameters(self) -> int:
        """Number of trained numbers."""
        return sum(a * b + b for a, b in zip(self.widths, self.widths[1:], strict=False))

    @property
    def layers(self) -> tuple[tuple[int, int], ...]:
        """(inputs, outputs) of each layer."""
        return tuple(zip(self.widths, self.widths[1:], strict=False))

    @property
    def state_limit_bytes(self) -> int:
        """Upper bound of an encoded state: three binary32 a parameter and room for names and lengths."""
        return 12 * self.parameters + 96 * 6 * len(self.layers) + 64

    def tensors(self) -> dict[str, TensorType]:
        """Names and types of the tensors of a state, in canonical (sorted) order."""
        types: dict[str, TensorType] = {}
        for group in ("adam_m", "adam_v", "parameter"):
            for index, (inputs, outputs) in enumerate(self.layers):
                types[f"{group}/{index}/bias"] = TensorType(ElementType.BINARY32, 1, outputs)
                types[f"{group}/{index}/weight"] = TensorType(ElementType.BINARY32, outputs, inputs)
        return types

    def alike(self) -> Iterator[tuple[int, str, TensorType]]:
        """See StatePlan."""
        return ((1, name, kind) for name, kind in self.tensors().items())
