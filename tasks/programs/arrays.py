"""The few array operations that exact programs stand on: what an engine must offer (market.md 4.2).

Only operations whose result IEEE 754 fixes to the bit are here: separate add, subtract, multiply, divide, square
root, rounding, comparison, bit patterns, and a float64 matrix product that is only ever given small integers.
No exp, log, float32 product or library reduction: their bits depend on the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:  # the judge of a dispute imports this module and needs no NumPy
    import numpy as np

__all__ = ["Array", "Arrays"]

Array: TypeAlias = Any
"""An array of the engine in use: float64 unless said; + - * / and comparisons are its operators.

What divides is an array too (``Arrays.constant``): on a GPU torch multiplies by the reciprocal of a plain number,
and the last bit may differ.
"""


class Arrays(Protocol):
    """One engine: where the arrays live and who computes."""

    @property
    def device(self) -> str:
        """Name for the meter and the logs, e.g. ``cpu:numpy``."""

    def load(self, values: np.ndarray) -> Array:
        """Return the values as a float64 array of this engine."""

    def load_bytes(self, values: np.ndarray) -> Array:
        """Return uint8 values as an array of bytes of this engine."""

    def store(self, values: Array) -> np.ndarray:
        """Return a float64 NumPy copy."""

    def from_content(self, content: bytes, code: str, rows: int, columns: int) -> Array:
        """Return an array from little-endian values; ``code`` is f8, f4, i8 or i4 (float64
        results), u1 (bytes) or i2 (integers of 16 bits).
        """

    def content(self, values: Array, code: str) -> bytes:
        """Return an array's values as little-endian bytes, row by row; see ``from_content``."""

    def constant(self, value: float) -> Array:
        """Return one value as a matrix of one element."""

    def counting(self, count: int) -> Array:
        """Return the row 0.0, 1.0, ..., count - 1."""

    def matmul(self, left: Array, right: Array) -> Array:
        """Return the float64 product of matrices, or of each pair of two stacks of them.

        It is exact only for integers whose sums stay below 2**53.
        """

    def rint(self, values: Array) -> Array:
        """Round to the nearest integer, halves to even."""

    def sqrt(self, values: Array) -> Array:
        """Return the correctly rounded square root."""

    def abs(self, values: Array) -> Array:
        """Return absolute values."""

    def where(self, condition: Array, yes: Array | float, no: Array | float) -> Array:
        """Choose elementwise."""

    def clip(self, values: Array, low: float, high: float) -> Array:
        """Clamp a float64 array; ``low`` is below 0 and ``high`` above, so no zero meets a bound."""

    def amax(self, values: Array, axis: int) -> Array:
        """Return the maximum along ``axis``, which stays with length 1; NaN wins."""

    def sum_integers(self, values: Array, axis: int) -> Array:
        """Return the float64 sum along ``axis``, which stays; exact only while every partial sum is < 2**53."""

    def running_sums(self, values: Array) -> Array:
        """Return for each column the float64 sum of its row up to it; exact only for sums of integers < 2**53."""

    def exponent(self, values: Array) -> Array:
        """Return the unbiased binary exponent of each value as an integer array."""

    def fraction(self, values: Array) -> Array:
        """Return each positive normal value scaled by a power of two into [1, 2)."""

    def power_of_two(self, exponents: Array) -> Array:
        """Return 2.0**e for integers e between -1022 and 1023."""

    def to_integers(self, values: Array) -> Array:
        """Return integral float64 values as an integer array (64 bits)."""

    def to_doubles(self, values: Array) -> Array:
        """Return bytes, integers or truth values as float64, rounded to the nearest, halves to even.

        A float64 array may be returned as it is.
        """

    def narrow(self, values: Array) -> Array:
        """Return integers of 16 bits as they are, all others as float64."""

    def take_rows(self, values: Array, rows: Array) -> Array:
        """Return the rows of a matrix that an integer column names, in its order."""

    def stack(self, parts: Sequence[Array], axis: int) -> Array:
        """Return arrays of one shape as one array with a new axis."""

    def with_rows(self, values: Array, rows: Array, starts: Sequence[int]) -> Array:
        """Return a copy of ``values`` with new rows from ``starts`` on.

        Both have four axes: sequence, group, row, column. There is one start for each sequence.
        """

    def round_to_single(self, values: Array, smallest: float) -> Array:
        """Round to float32, halves to even; what is then below ``smallest`` in magnitude is +0. Return float64."""

    def all_below(self, values: Array, limit: float) -> bool:
        """Tell whether every magnitude is below ``limit``; NaN is not."""
