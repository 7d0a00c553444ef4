"""The few array operations that the exact profile stands on, and NumPy's spelling of them.

Only operations whose result IEEE 754 fixes to the bit are here: separate add, subtract, multiply, divide, square
root, rounding, comparison, bit patterns, and a float64 matrix product that is only ever given small integers.
No exp, log, float32 product or library reduction: their bits depend on the machine (market.md 4.2).
"""

from __future__ import annotations

from typing import Any, Final, Protocol, TypeAlias

import numpy as np

__all__ = ["Array", "Arrays", "NumpyArrays"]

Array: TypeAlias = Any
"""An array of the engine in use: float64 unless said; + - * / and comparisons are its operators."""

_EXPONENT_SHIFT: Final = 52
_EXPONENT_MASK: Final = 0x7FF
_EXPONENT_BIAS: Final = 1023


class Arrays(Protocol):
    """One engine: where the arrays live and who computes."""

    @property
    def device(self) -> str:
        """Name for the meter and the logs, e.g. ``cpu:numpy``."""

    def load(self, values: np.ndarray) -> Array:
        """Return the values as a float64 array of this engine."""

    def store(self, values: Array) -> np.ndarray:
        """Return a float64 NumPy copy."""

    def matmul(self, left: Array, right: Array) -> Array:
        """Return the float64 product; exact only for the operands that ``exact.contract`` prepares."""

    def rint(self, values: Array) -> Array:
        """Round to the nearest integer, halves to even."""

    def sqrt(self, values: Array) -> Array:
        """Return the correctly rounded square root."""

    def abs(self, values: Array) -> Array:
        """Return absolute values."""

    def where(self, condition: Array, yes: Array | float, no: Array | float) -> Array:
        """Choose elementwise."""

    def amax(self, values: Array, axis: int) -> Array:
        """Return the maximum along ``axis``, which stays with length 1; NaN wins."""

    def sum_integers(self, values: Array, axis: int) -> Array:
        """Return the float64 sum along ``axis``, which stays; exact only while every partial sum is < 2**53."""

    def exponent(self, values: Array) -> Array:
        """Return the unbiased binary exponent of each value as an integer array."""

    def fraction(self, values: Array) -> Array:
        """Return each positive normal value scaled by a power of two into [1, 2)."""

    def power_of_two(self, exponents: Array) -> Array:
        """Return 2.0**e for integers e between -1022 and 1023."""

    def clip_integers(self, values: Array, low: int, high: int) -> Array:
        """Clamp an integer array."""

    def to_integers(self, values: Array) -> Array:
        """Return integral float64 values as an integer array."""

    def round_to_single(self, values: Array, smallest: float) -> Array:
        """Round to float32, halves to even; what is then below ``smallest`` in magnitude is +0. Return float64."""


class NumpyArrays:
    """The engine that is always installed: NumPy on the CPU."""

    device: Final = "cpu:numpy"

    def load(self, values: np.ndarray) -> Array:
        """See Arrays."""
        return np.asarray(values, dtype=np.float64)

    def store(self, values: Array) -> np.ndarray:
        """See Arrays."""
        return np.array(values, dtype=np.float64)

    def matmul(self, left: Array, right: Array) -> Array:
        """See Arrays."""
        return left @ right

    def rint(self, values: Array) -> Array:
        """See Arrays."""
        return np.rint(values)

    def sqrt(self, values: Array) -> Array:
        """See Arrays."""
        return np.sqrt(values)

    def abs(self, values: Array) -> Array:
        """See Arrays."""
        return np.abs(values)

    def where(self, condition: Array, yes: Array | float, no: Array | float) -> Array:
        """See Arrays."""
        return np.where(condition, yes, no)

    def amax(self, values: Array, axis: int) -> Array:
        """See Arrays."""
        return values.max(axis=axis, keepdims=True)

    def sum_integers(self, values: Array, axis: int) -> Array:
        """See Arrays."""
        return values.sum(axis=axis, keepdims=True)

    def exponent(self, values: Array) -> Array:
        """See Arrays."""
        return ((values.view(np.int64) >> _EXPONENT_SHIFT) & _EXPONENT_MASK) - _EXPONENT_BIAS

    def fraction(self, values: Array) -> Array:
        """See Arrays."""
        mantissa = values.view(np.int64) & ((1 << _EXPONENT_SHIFT) - 1)
        return (mantissa | (_EXPONENT_BIAS << _EXPONENT_SHIFT)).view(np.float64)

    def power_of_two(self, exponents: Array) -> Array:
        """See Arrays."""
        return ((exponents + _EXPONENT_BIAS) << _EXPONENT_SHIFT).view(np.float64)

    def clip_integers(self, values: Array, low: int, high: int) -> Array:
        """See Arrays."""
        return np.clip(values, low, high)

    def to_integers(self, values: Array) -> Array:
        """See Arrays."""
        return values.astype(np.int64)

    def round_to_single(self, values: Array, smallest: float) -> Array:
        """See Arrays."""
        rounded = values.astype(np.float32)
        kept = np.where(np.abs(rounded) < np.float32(smallest), np.float32(0), rounded)  # NaN is not below
        return kept.astype(np.float64)
