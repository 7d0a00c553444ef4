"""Profile ``exact/1``: the same bits from every CPU, thread count, library build and engine (market.md R4).

Why it is exact: each row of a contraction is scaled by its own power of two and rounded to integers of at most
2**19, so that over at most 2**14 terms each partial sum is an integer below 2**53, which float64 holds exactly.
Then order, blocking, threads and fused multiply-add cannot change the result. Sums work alike with 2**40 and
2**12. Between contractions there are only elementwise operations that IEEE 754 fixes.

Zeros come out of every contraction and sum with a positive sign: a kernel may or may not add to a zero first.
"""

from __future__ import annotations

from typing import Final

from tasks.engines.arrays import Array, Arrays

__all__ = ["CONTRACTION_BITS", "TERMS_MAX", "contract", "exp", "log", "sigmoid", "storable", "total"]

CONTRACTION_BITS: Final = 19
"""Operands of a contraction are rounded to integers of at most 2**19 in magnitude."""
TERMS_MAX: Final = 1 << 14
"""Longest stretch of a contraction done in one product: 2**(19 + 19 + 14) < 2**53."""
SUM_BITS: Final = 40
SUM_TERMS_MAX: Final = 1 << 12
EXPONENT_MIN: Final = -240
"""Rows whose largest magnitude is below 2**-240 lose bits evenly instead of leaving the range of float64."""
EXPONENT_MAX: Final = 500
"""Largest exponent of an operand; the bounds of training.py keep every value far below it."""
TINY_EXPONENT: Final = -100
"""Stored numbers below 2**-100 become zero: no engine ever meets a subnormal float32."""

_LOG2_E: Final = float.fromhex("0x1.71547652b82fep+0")
_LN2_HIGH: Final = float.fromhex("0x1.62e42fee00000p-1")
"""The upper 32 bits of ln 2: times an integer below 2**20 it is exact."""
_LN2_LOW: Final = float.fromhex("0x1.a39ef35793c76p-33")
_EXP_ARGUMENT_MIN: Final = -700.0
_EXP_TERMS: Final = tuple(1.0 / n for n in (
    6227020800, 479001600, 39916800, 3628800, 362880, 40320, 5040, 720, 120, 24, 6, 2, 1, 1,
))  # fmt: skip
_LOG_TERMS: Final = tuple(2.0 / n for n in range(23, 0, -2))
_SQRT_2: Final = float.fromhex("0x1.6a09e667f3bcdp+0")


def _scaled(arrays: Arrays, values: Array, axis: int, bits: int) -> tuple[Array, Array]:
    """Return the integers of ``values`` and the exponent by which each row along ``axis`` is to be scaled back."""
    largest = arrays.amax(arrays.abs(values), axis)
    exponents = arrays.clip_integers(arrays.exponent(largest), EXPONENT_MIN, EXPONENT_MAX) + (1 - bits)
    return arrays.rint(values * arrays.power_of_two(-exponents)), exponents


def contract(arrays: Arrays, left: Array, right: Array) -> Array:
    """Return ``left @ right`` for matrices, rows of ``left`` and columns of ``right`` rounded to 20-bit integers.

    Each stretch of TERMS_MAX terms is exact; stretches are added in order. The relative error is about 2e-6.
    """
    terms = left.shape[1]
    result = _contract_stretch(arrays, left[:, :TERMS_MAX], right[:TERMS_MAX])
    for start in range(TERMS_MAX, terms, TERMS_MAX):
        stop = start + TERMS_MAX
        result = result + _contract_stretch(arrays, left[:, start:stop], right[start:stop])
    return result


def _contract_stretch(arrays: Arrays, left: Array, right: Array) -> Array:
    left_integers, left_exponents = _scaled(arrays, left, 1, CONTRACTION_BITS)
    right_integers, right_exponents = _scaled(arrays, right, 0, CONTRACTION_BITS)
    product = arrays.matmul(left_integers, right_integers)
    return product * arrays.power_of_two(left_exponents) * arrays.power_of_two(right_exponents) + 0.0


def total(arrays: Arrays, values: Array, axis: int) -> Array:
    """Return the sum of a matrix along ``axis``, which stays with length 1; error: 2**-40 of the largest."""
    if values.shape[axis] <= SUM_TERMS_MAX:
        return _total_stretch(arrays, values, axis)
    stretches = []
    for start in range(0, values.shape[axis], SUM_TERMS_MAX):
        stop = start + SUM_TERMS_MAX
        stretches.append(_total_stretch(arrays, values[start:stop] if axis == 0 else values[:, start:stop], axis))
    result = stretches[0]
    for stretch in stretches[1:]:
        result = result + stretch
    return result


def _total_stretch(arrays: Arrays, values: Array, axis: int) -> Array:
    integers, exponents = _scaled(arrays, values, axis, SUM_BITS)
    return arrays.sum_integers(integers, axis) * arrays.power_of_two(exponents) + 0.0


def exp(arrays: Arrays, values: Array) -> Array:
    """Return e**x for x <= 0 to about 1e-15, from separate multiplications and additions; 0-range below -700."""
    bounded = arrays.where(values > _EXP_ARGUMENT_MIN, values, _EXP_ARGUMENT_MIN)
    whole = arrays.rint(bounded * _LOG2_E)
    rest = bounded - whole * _LN2_HIGH
    rest = rest - whole * _LN2_LOW
    result = rest * _EXP_TERMS[0] + _EXP_TERMS[1]
    for term in _EXP_TERMS[2:]:
        result = result * rest
        result = result + term
    return result * arrays.power_of_two(arrays.to_integers(whole))


def log(arrays: Arrays, values: Array) -> Array:
    """Return ln x for positive normal x to about 1e-15, by the series of the inverse hyperbolic tangent."""
    exponents = arrays.exponent(values)
    fraction = arrays.fraction(values)
    above = fraction > _SQRT_2
    fraction = arrays.where(above, fraction * 0.5, fraction)
    whole = exponents + arrays.where(above, 1.0, 0.0)
    ratio = (fraction - 1.0) / (fraction + 1.0)
    square = ratio * ratio
    result = square * _LOG_TERMS[0] + _LOG_TERMS[1]
    for term in _LOG_TERMS[2:]:
        result = result * square
        result = result + term
    return whole * _LN2_HIGH + (result * ratio + whole * _LN2_LOW)


def sigmoid(arrays: Arrays, values: Array) -> Array:
    """Return 1 / (1 + e**-x), computed from e**-|x| so that nothing overflows."""
    small = exp(arrays, 0.0 - arrays.abs(values))
    upper = 1.0 / (small + 1.0)
    return arrays.where(values < 0.0, small * upper, upper)


def storable(arrays: Arrays, values: Array) -> Array:
    """Round to what a state may hold: float32, no magnitude below 2**-100, no negative zero."""
    return arrays.round_to_single(values, 2.0**TINY_EXPONENT)
