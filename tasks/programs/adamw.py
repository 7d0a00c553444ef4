"""AdamW as calls of a program, for whatever is trained (market.md 4.3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from tasks.programs.builder import Builder
from tasks.programs.errors import ProgramInvalid
from tasks.programs.operators.scalars import NANO

__all__ = ["MOMENT_LIMIT", "PARAMETER_LIMIT", "STATE_GROUPS", "Gate", "Rates", "adamw"]

PARAMETER_LIMIT: Final = 40
"""Parameters are below 2^40, so that activations of a few layers stay in the range of a row's exponent."""
MOMENT_LIMIT: Final = 100
STATE_GROUPS: Final = ("adam_m", "adam_v", "parameter")
"""Each trained tensor has one of each in the state."""


class Gate(NamedTuple):
    """Tensors of one value: whether the step updates (1 or 0), and the number of the update."""

    applies: int
    number: int


class Rates(NamedTuple):
    """Numbers of AdamW in units of 10^-9."""

    learning_rate_nano: int
    beta1_nano: int = 900_000_000
    beta2_nano: int = 999_000_000
    epsilon_nano: int = 10
    weight_decay_nano: int = 0

    def check(self) -> None:
        """Raises ProgramInvalid for numbers that are no rates."""
        if not (
            0 < self.learning_rate_nano <= NANO
            and 0 <= self.beta1_nano < NANO
            and 0 <= self.beta2_nano < NANO
            and 0 < self.epsilon_nano <= NANO
            and 0 <= self.weight_decay_nano <= NANO
        ):
            raise ProgramInvalid("rates of the optimiser are between 0 and 1")


def adamw(
    build: Builder, rates: Rates, name: str, gradient: int, state: Callable[[str], int], rate: Callable[[], int],
    keep: Callable[[], int] | None, limit: int = PARAMETER_LIMIT, *, gate: Gate | None = None,
) -> dict[str, int]:  # fmt: skip
    """Return what is stored for one tensor. ``state`` loads a tensor of the state by its name.

    ``rate`` gives the learning rate, ``keep`` the factor of the parameter that decays. From 2^limit on the
    parameter has diverged. ``gate`` tells which steps update; without it each one does.
    """

    def times(values: int, factor: float) -> int:
        return build.call("multiply", values, build.constant(factor))

    def chosen(new: int, old: str) -> int:
        """Return the new value where the step updates, otherwise that of the state."""
        return new if gate is None else build.call("select", gate.applies, new, state(f"{old}/{name}"))

    number = () if gate is None else (gate.number,)
    size = build.call("multiply", build.call("bias_correction", *number, attributes=(rates.beta1_nano,)), rate())
    unbias = build.call("bias_correction", *number, attributes=(rates.beta2_nano,))
    moments = [
        chosen(
            build.call("add", times(state(f"{group}/{name}"), beta / NANO), times(new, (NANO - beta) / NANO)),
            group,
        )
        for group, new, beta in (
            ("adam_m", gradient, rates.beta1_nano),
            ("adam_v", build.call("multiply", gradient, gradient), rates.beta2_nano),
        )
    ]
    # The parameter follows from the rounded moments. No call reads what is stored, so they are rounded apart.
    m, v = (build.binary32(moment, MOMENT_LIMIT) for moment in moments)
    stored_m, stored_v = (build.call("store", moment, attributes=(MOMENT_LIMIT,)) for moment in (m, v))
    root = build.call("square_root", build.call("multiply", v, unbias))
    divisor = build.call("add", root, build.constant(rates.epsilon_nano / NANO))
    change = build.call("divide", build.call("multiply", m, size), divisor)
    kept = state(f"parameter/{name}")
    if keep is not None:
        kept = build.call("multiply", kept, keep())
    changed = chosen(build.call("subtract", kept, change), "parameter")
    parameter = build.call("store", changed, attributes=(limit,))
    return {f"adam_m/{name}": stored_m, f"adam_v/{name}": stored_v, f"parameter/{name}": parameter}
