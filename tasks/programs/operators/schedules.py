"""The learning rate of a step: a warm-up, then a constant, a line or half a wave of the cosine (market.md 4.6)."""

from __future__ import annotations

from collections.abc import Sequence
from math import factorial
from typing import Final

from tasks.programs.arrays import Array, Arrays
from tasks.programs.bounds import Bounds, Magnitudes
from tasks.programs.errors import ProgramInvalid
from tasks.programs.operators import Attributes, Context, Read
from tasks.programs.operators.rules import ByElements, expect_attributes, whole
from tasks.programs.operators.scalars import NANO, NUMBER_MAX, check_number, expect_number
from tasks.programs.tensors import ElementType, Number, TensorType

__all__ = ["LEARNING_RATE", "SCHEDULES", "STEPS_MAX"]

SCHEDULES: Final = ("constant", "linear", "cosine")
"""After the warm-up: the peak, a line down to zero, half a wave of the cosine down to zero."""
STEPS_MAX: Final = 1 << 32
_RATE_EXPONENT_MIN: Final = -(STEPS_MAX.bit_length() + NANO.bit_length() + 54)
_PI: Final = float.fromhex("0x1.921fb54442d18p+1")
_COSINE: Final[tuple[float, ...]] = tuple((-1) ** n / factorial(2 * n) for n in range(9, -1, -1))


class LearningRate(ByElements):
    """``learning_rate([number]; peak, schedule, warmup, total)``: the rate of an update.

    The peak is in units of 10^-9. Without an input the number is that of the step. ``schedule`` is a place in
    SCHEDULES. From ``total`` on it is zero, if it falls at all.
    """

    name: Final = "learning_rate"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        expect_attributes(self.name, attributes, 4)
        expect_number(self.name, inputs)
        peak, schedule, warmup, total = attributes
        if not 0 < peak <= NANO or not 0 <= schedule < len(SCHEDULES):
            raise ProgramInvalid(f"a rate of {peak} x 10^-9 by schedule {schedule}")
        if not 0 <= warmup < total <= STEPS_MAX:
            raise ProgramInvalid(f"a warm-up of {warmup} out of {total} steps")
        return TensorType(ElementType.BINARY64, 1, 1)

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator."""
        check_number(self.name, inputs)
        return Magnitudes(_RATE_EXPONENT_MIN, 0, True, False)

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator."""
        return arrays.constant(_rate(attributes, int(arrays.store(inputs[0])[0, 0]) if inputs else context.step))

    def element(
        self,
        read: Read,
        inputs: Sequence[TensorType],
        attributes: Attributes,
        context: Context,
        row: int,
        column: int,
    ) -> Number:
        """See Operator."""
        return _rate(attributes, whole(read(0, 0, 0), 0, NUMBER_MAX) if inputs else context.step)


def _rate(attributes: Attributes, step: int) -> float:
    peak_nano, schedule, warmup, total = attributes
    peak = peak_nano / NANO
    if step < warmup:
        return peak * ((step + 1) / warmup)
    done, whole = min(step - warmup, total - warmup), total - warmup
    if schedule == 0:
        return peak
    if schedule == 1:
        return peak * ((whole - done) / whole)
    return peak * _half_wave(done, whole)


def _half_wave(done: int, whole: int) -> float:
    """Return (1 + cos(pi * done / whole)) / 2: at the middle a half, symmetric around it."""
    if 2 * done > whole:
        return 1.0 - _half_wave(whole - done, whole)
    # The square of the cosine of half the angle, which is a quarter turn at most.
    angle = _PI * (done / (2 * whole))
    square = angle * angle
    cosine: float = square * _COSINE[0] + _COSINE[1]
    for term in _COSINE[2:]:
        cosine = cosine * square + term
    return cosine * cosine


LEARNING_RATE: Final = LearningRate()
