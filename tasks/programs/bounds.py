"""Between what the values of a tensor lie: intervals of exponents for fractions, intervals for integers.

See market.md 4.6. A program whose bounds hold keeps every number normal and finite, so no engine and no judge ever
meets a subnormal number, an infinity or a NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from tasks.programs.errors import ProgramInvalid

__all__ = ["EXPONENT_HIGH", "EXPONENT_LOW", "Bounds", "Integers", "Magnitudes", "integers", "magnitudes"]

EXPONENT_LOW: Final = -900
"""No nonzero value of a tensor is below 2^EXPONENT_LOW: a polynomial may multiply it by 2^-100 and stay normal."""
EXPONENT_HIGH: Final = 1000
_CANCELLED_BITS: Final = 54
"""A difference of two numbers is zero or at least 2^-54 of the larger one."""


class Magnitudes(NamedTuple):
    """Numbers that are zero (if ``zero``) or of a magnitude from 2^least to below 2^(most + 1)."""

    least: int
    most: int
    zero: bool = True
    negative: bool = True
    positive: bool = True

    def check(self) -> Magnitudes:
        """Return itself. Raises ProgramInvalid where such numbers may leave the exact range."""
        if not EXPONENT_LOW <= self.least <= self.most <= EXPONENT_HIGH:
            raise ProgramInvalid(
                f"values from 2^{self.least} to 2^{self.most}, outside of 2^{EXPONENT_LOW} to 2^{EXPONENT_HIGH}"
            )
        return self

    def either(self, other: Magnitudes) -> Magnitudes:
        """Return the bounds of values that are of this kind or of another."""
        return Magnitudes(
            min(self.least, other.least),
            max(self.most, other.most),
            self.zero or other.zero,
            self.negative or other.negative,
            self.positive or other.positive,
        )

    def plus(self, other: Magnitudes) -> Magnitudes:
        """Return the bounds of the rounded sum."""
        cancels = (self.positive and other.negative) or (self.negative and other.positive)
        # Of opposite signs and within a factor of two, both are multiples of 2^-53 of the larger one, and so is
        # the result. Otherwise it is at least half of the larger one.
        least = [max(self.least, other.least) - (_CANCELLED_BITS if cancels else 0)]
        least += [other.least] if self.zero else []
        least += [self.least] if other.zero else []
        return Magnitudes(
            min(least),
            max(self.most, other.most) + 1,
            cancels or (self.zero and other.zero),
            self.negative or other.negative,
            self.positive or other.positive,
        ).check()

    def negated(self) -> Magnitudes:
        """Return the bounds of the negated values."""
        return self._replace(negative=self.positive, positive=self.negative)

    def times(self, other: Magnitudes) -> Magnitudes:
        """Return the bounds of the rounded product."""
        return Magnitudes(
            self.least + other.least, self.most + other.most + 1, self.zero or other.zero, *self._signs(other)
        ).check()

    def over(self, other: Magnitudes) -> Magnitudes:
        """Return the bounds of the rounded quotient. Raises ProgramInvalid where the divisor may be zero."""
        if other.zero:
            raise ProgramInvalid("a divisor that may be zero")
        return Magnitudes(
            self.least - other.most - 1, self.most - other.least, self.zero, *self._signs(other)
        ).check()

    def _signs(self, other: Magnitudes) -> tuple[bool, bool]:
        negative = (self.negative and other.positive) or (self.positive and other.negative)
        positive = (self.negative and other.negative) or (self.positive and other.positive)
        return negative, positive


class Integers(NamedTuple):
    """Integers from ``low`` to ``high``."""

    low: int
    high: int


Bounds: TypeAlias = Magnitudes | Integers


def magnitudes(inputs: Sequence[Bounds], at: int) -> Magnitudes:
    """Return the bounds of input ``at``, which its type says is of fractions."""
    found = inputs[at]
    assert isinstance(found, Magnitudes)
    return found


def integers(inputs: Sequence[Bounds], at: int) -> Integers:
    """Return the bounds of input ``at``, which its type says is of integers."""
    found = inputs[at]
    assert isinstance(found, Integers)
    return found
