"""NumPy's spelling of the array operations that exact programs stand on (market.md 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from tasks.programs.arrays import Array, Arrays

__all__ = ["Array", "Arrays", "NumpyArrays"]

_EXPONENT_SHIFT: Final = 52
_EXPONENT_MASK: Final = 0x7FF
_EXPONENT_BIAS: Final = 1023


class NumpyArrays:
    """The engine that is always installed: NumPy on the CPU."""

    device: Final = "cpu:numpy"

    def load(self, values: np.ndarray) -> Array:
        """See Arrays."""
        return np.asarray(values, dtype=np.float64)

    def load_bytes(self, values: np.ndarray) -> Array:
        """See Arrays."""
        return np.asarray(values, dtype=np.uint8)

    def store(self, values: Array) -> np.ndarray:
        """See Arrays."""
        return np.array(values, dtype=np.float64)

    def from_content(self, content: bytes, code: str, rows: int, columns: int) -> Array:
        """See Arrays."""
        values = np.frombuffer(content, dtype=f"<{code}").reshape(rows, columns)
        if code == "i2":
            return np.require(values, dtype=np.int16, requirements="A")  # the memory of the content
        return self.load_bytes(values) if code == "u1" else self.load(values)

    def content(self, values: Array, code: str) -> bytes:
        """See Arrays."""
        return values.astype(f"<{code}", copy=False).tobytes()  # type: ignore[no-any-return]

    def constant(self, value: float) -> Array:
        """See Arrays."""
        return np.full((1, 1), value)

    def counting(self, count: int) -> Array:
        """See Arrays."""
        return np.arange(count, dtype=np.float64).reshape(1, count)

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

    def clip(self, values: Array, low: float, high: float) -> Array:
        """See Arrays."""
        return np.clip(values, low, high)

    def amax(self, values: Array, axis: int) -> Array:
        """See Arrays."""
        return values.max(axis=axis, keepdims=True)

    def sum_integers(self, values: Array, axis: int) -> Array:
        """See Arrays."""
        return values.sum(axis=axis, keepdims=True)

    def running_sums(self, values: Array) -> Array:
        """See Arrays."""
        return values.cumsum(axis=1)

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

    def to_integers(self, values: Array) -> Array:
        """See Arrays."""
        return values.astype(np.int64)

    def to_doubles(self, values: Array) -> Array:
        """See Arrays."""
        return values.astype(np.float64, copy=False)

    def narrow(self, values: Array) -> Array:
        """See Arrays."""
        return values if values.dtype == np.int16 else self.to_doubles(values)

    def take_rows(self, values: Array, rows: Array) -> Array:
        """See Arrays."""
        return values[rows[:, 0]]

    def stack(self, parts: Sequence[Array], axis: int) -> Array:
        """See Arrays."""
        return np.stack(parts, axis)

    def with_rows(self, values: Array, rows: Array, starts: Sequence[int]) -> Array:
        """See Arrays."""
        result = values.copy()
        for sequence, start in enumerate(starts):
            result[sequence, :, start : start + rows.shape[2]] = rows[sequence]
        return result

    def round_to_single(self, values: Array, smallest: float) -> Array:
        """See Arrays."""
        with np.errstate(over="ignore"):  # callers look for infinities
            rounded = values.astype(np.float32)
        kept = np.where(np.abs(rounded) < np.float32(smallest), np.float32(0), rounded)  # NaN is not below
        return kept.astype(np.float64)

    def all_below(self, values: Array, limit: float) -> bool:
        """See Arrays."""
        return bool((np.abs(values) < limit).all())
