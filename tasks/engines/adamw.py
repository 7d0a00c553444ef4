"""AdamW from elementwise operations that IEEE 754 fixes, in one written order (market.md 4.3)."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.engines import exact
from tasks.engines.arrays import Array, Arrays
from tasks.engines.plan import NANO, TrainingPlan

__all__ = ["AdamW", "Slot"]


@dataclass(frozen=True)
class Slot:
    """One tensor with its first and second moments; all three hold float32 values."""

    parameter: Array
    m: Array
    v: Array


class AdamW:
    """The step rule of a plan."""

    def __init__(self, plan: TrainingPlan) -> None:
        self._rate = plan.learning_rate_nano / NANO
        self._beta1, self._beta2 = plan.beta1_nano / NANO, plan.beta2_nano / NANO
        self._other1, self._other2 = (NANO - plan.beta1_nano) / NANO, (NANO - plan.beta2_nano) / NANO
        self._epsilon = plan.epsilon_nano / NANO
        self._keep = 1.0 - self._rate * (plan.weight_decay_nano / NANO)

    def update(self, arrays: Arrays, slot: Slot, gradient: Array, step: int, *, decays: bool) -> Slot:
        """Return the slot after step ``step`` (the first is 1). Biases do not decay."""
        # Factors, not divisors: dividing by a plain number, some engines multiply by its reciprocal on their own.
        size = self._rate * (1.0 / (1.0 - _power(self._beta1, step)))
        unbias2 = 1.0 / (1.0 - _power(self._beta2, step))
        m = exact.storable(arrays, slot.m * self._beta1 + gradient * self._other1)
        v = exact.storable(arrays, slot.v * self._beta2 + gradient * gradient * self._other2)
        change = m * size / (arrays.sqrt(v * unbias2) + self._epsilon)
        kept = slot.parameter * self._keep if decays and self._keep != 1.0 else slot.parameter
        return Slot(exact.storable(arrays, kept - change), m, v)


def _power(base: float, exponent: int) -> float:
    """Return base**exponent by squaring: the library's power may differ in the last bit between platforms."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result
