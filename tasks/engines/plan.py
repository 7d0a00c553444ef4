"""What the engine is asked to do: a job's numbers, checked against the engine's limits (market.md R3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tasks.engines.errors import UnsupportedJob

__all__ = ["ACTIVATIONS", "BATCH_MAX", "LAYERS_MAX", "PARAMETERS_MAX", "WIDTH_MAX", "TrainingPlan"]

LAYERS_MAX: Final = 8
WIDTH_MAX: Final = 4096
"""Units of a layer. With LAYERS_MAX and the bound on parameters it keeps every number inside the exact range."""
PARAMETERS_MAX: Final = 1 << 24
BATCH_MAX: Final = 4096
ACTIVATIONS: Final = ("relu", "silu")
NANO: Final = 1_000_000_000


@dataclass(frozen=True)
class TrainingPlan:
    """A classifier of fully connected layers, its optimiser (AdamW) and its data order.

    ``widths`` runs from the features to the classes. Rates are in units of 1e-9. Raises UnsupportedJob.
    """

    widths: tuple[int, ...]
    activation: str
    batch: int
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
        if not 2 <= self.widths[-1] <= 256:
            raise UnsupportedJob("2 to 256 classes")
        if self.parameters > PARAMETERS_MAX:
            raise UnsupportedJob(f"{self.parameters} parameters, at most {PARAMETERS_MAX}")
        if self.activation not in ACTIVATIONS:
            raise UnsupportedJob(f"activation must be one of {', '.join(ACTIVATIONS)}")
        if not 1 <= self.batch <= BATCH_MAX:
            raise UnsupportedJob(f"a batch of 1 to {BATCH_MAX}")
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
        """Upper bound of an encoded state: three float32 a parameter and room for names and shapes."""
        return 12 * self.parameters + 96 * 6 * len(self.layers) + 64

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the float32 tensors of a state, in canonical (sorted) order."""
        shapes: dict[str, tuple[int, ...]] = {}
        for group in ("adam_m", "adam_v", "parameter"):
            for index, (inputs, outputs) in enumerate(self.layers):
                shapes[f"{group}/{index}/bias"] = (1, outputs)
                shapes[f"{group}/{index}/weight"] = (inputs, outputs)
        return shapes
