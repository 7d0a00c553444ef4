"""Elementwise operators on binary64: each element of the result comes from one element of each input.

An input may have one row, one column or both: then its value serves all rows or columns. Only operations that
IEEE 754 fixes are used, one rounding each (market.md 4.2, 4.6).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tasks.programs.arrays import Array, Arrays
from tasks.programs.bounds import Bounds, Magnitudes, magnitudes
from tasks.programs.errors import ProgramInvalid
from tasks.programs.operators import Attributes, Context, Read
from tasks.programs.operators.rules import canonical, expect, expect_attributes, work
from tasks.programs.tensors import ElementType, Number, TensorType

__all__ = ["ELEMENTWISE", "EXP_ARGUMENT_MAX", "PIECE"]

EXP_ARGUMENT_MAX: Final = 80.0
"""``exp`` bounds its argument to this magnitude: softmax and sigmoid have no use for less than 2^-115."""
BOUND_EXPONENT_MAX: Final = 100

_LOG2_E: Final = float.fromhex("0x1.71547652b82fep+0")
_LN2_HIGH: Final = float.fromhex("0x1.62e42fee00000p-1")
"""The upper 32 bits of ln 2: times an integer below 2**20 it is exact."""
_LN2_LOW: Final = float.fromhex("0x1.a39ef35793c76p-33")
_EXP_TERMS: Final = tuple(1.0 / n for n in (
    6227020800, 479001600, 39916800, 3628800, 362880, 40320, 5040, 720, 120, 24, 6, 2, 1, 1,
))  # fmt: skip
_LOG_TERMS: Final = tuple(2.0 / n for n in range(23, 0, -2))
PIECE: Final = 1 << 14
"""Values of which an exponential is computed at once."""
_ERF_MAX: Final = 6.0
"""From here on ``erf`` is 1 to the last bit."""
_ERF_NOTHING: Final = 2.0**-60
"""Below this ``erf`` is 0: squares stay normal numbers."""
_ERF_MIDDLE: Final = 0.625
_ERF_TERMS: Final = tuple(float.fromhex(term) for term in (
    "0x1.c07fe26c63055p-7", "-0x1.2eada78b09f62p-6", "-0x1.02061870d8e77p-8", "0x1.e710d13b9abffp-6",
    "-0x1.a8b0a058c644fp-6", "-0x1.bfd42f712b0d7p-7", "0x1.a6f0cf10eed88p-5", "-0x1.dd3739b305c23p-6",
    "-0x1.db86ddc85598ep-5", "0x1.8ae6c169bc8ffp-4", "0x1.898309595ff1cp-5", "-0x1.cbebae2718990p-3",
    "-0x1.59f3851713571p-4", "0x1.40559d201db3fp-1", "0x1.3465a8db55e00p+0", "0x1.2036a0c10ef15p+0",
    "0x1.839f500817f68p-2",
))  # fmt: skip
"""Of the polynomial in t - _ERF_MIDDLE that interpolates exp(x^2) erfc(x), where x = 2 (1 / t - 1), at 17 points
of Chebyshev for t from 1/4 to 1. With it ``erf`` is within 2e-15."""
_SQRT_2: Final = float.fromhex("0x1.6a09e667f3bcdp+0")


@dataclass(frozen=True)
class Elementwise:
    """One elementwise operator of ``arity`` inputs: its kernel, the same for one element, and its bounds."""

    name: str
    arity: int
    kernel: Callable[[Arrays, Sequence[Array], Attributes], Array]
    reference: Callable[[Sequence[float], Attributes], float]
    limits: Callable[[Sequence[Magnitudes], Attributes], Magnitudes]
    attributes: int = 0

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        expect_attributes(self.name, attributes, self.attributes)
        if self.name == "bound" and not 0 <= attributes[0] <= BOUND_EXPONENT_MAX:
            raise ProgramInvalid(f"bound takes an exponent from 0 to {BOUND_EXPONENT_MAX}")
        expect(self.name, inputs, *(ElementType.BINARY64,) * self.arity)
        rows = self._common([kind.rows for kind in inputs])
        return TensorType(ElementType.BINARY64, rows, self._common([kind.columns for kind in inputs]))

    def _common(self, sizes: Sequence[int]) -> int:
        most = max(sizes)
        if any(size not in (1, most) for size in sizes):
            raise ProgramInvalid(f"{self.name} of tensors of {', '.join(map(str, sizes))} rows or columns")
        return most

    def units(self, inputs: Sequence[TensorType], output: TensorType, attributes: Attributes) -> int:
        """See Operator."""
        return work(self.name, output)

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator."""
        found = [magnitudes(inputs, at) for at in range(len(inputs))]
        return self.limits(found, attributes).check()

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator."""
        return self.kernel(arrays, inputs, attributes)

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
        values = [
            canonical(read(at, row if kind.rows > 1 else 0, column if kind.columns > 1 else 0))
            for at, kind in enumerate(inputs)
        ]
        return canonical(self.reference(values, attributes))


def _divided(values: Sequence[float], attributes: Attributes) -> float:
    return values[0] / values[1] if values[1] else math.inf


def _select(arrays: Arrays, inputs: Sequence[Array], attributes: Attributes) -> Array:
    return arrays.where(inputs[0] > 0.0, inputs[1], inputs[2])


def _bound_limits(inputs: Sequence[Magnitudes], attributes: Attributes) -> Magnitudes:
    return inputs[0]._replace(least=min(inputs[0].least, attributes[0]), most=min(inputs[0].most, attributes[0]))


def _clamped(value: float, most: float) -> float:
    return min(max(value, -most), most)


def _square_root(arrays: Arrays, inputs: Sequence[Array], attributes: Attributes) -> Array:
    return arrays.sqrt(arrays.where(inputs[0] > 0.0, inputs[0], 0.0))


def _square_root_limits(inputs: Sequence[Magnitudes], attributes: Attributes) -> Magnitudes:
    (one,) = inputs
    return Magnitudes(one.least // 2, one.most // 2, one.zero or one.negative, False)


def _in_pieces(of_piece: Callable[[Arrays, Array], Array], arrays: Arrays, values: Array) -> Array:
    """Return a function of each value.

    On a processor it runs piece by piece, so that what is between stays in its caches.
    """
    rows, columns = values.shape
    if rows * columns <= PIECE or not arrays.device.startswith("cpu"):
        return of_piece(arrays, values)
    result = values + 0.0
    if columns >= PIECE:
        for row in range(rows):
            for at in range(0, columns, PIECE):
                part = slice(at, at + PIECE)
                result[row, part] = of_piece(arrays, values[row, part])
        return result
    step = PIECE // columns
    for at in range(0, rows, step):
        result[at : at + step] = of_piece(arrays, values[at : at + step])
    return result


def _exp(arrays: Arrays, inputs: Sequence[Array], attributes: Attributes) -> Array:
    return _in_pieces(_exp_of_piece, arrays, inputs[0])


def _exp_of_piece(arrays: Arrays, values: Array) -> Array:
    bounded = arrays.clip(values, -EXP_ARGUMENT_MAX, EXP_ARGUMENT_MAX)
    whole = arrays.rint(bounded * _LOG2_E)
    rest = bounded - whole * _LN2_HIGH
    rest -= whole * _LN2_LOW
    result = rest * _EXP_TERMS[0]
    result += _EXP_TERMS[1]
    for term in _EXP_TERMS[2:]:
        result *= rest
        result += term
    result *= arrays.power_of_two(arrays.to_integers(whole))
    return result


def _exp_of(values: Sequence[float], attributes: Attributes) -> float:
    bounded = _clamped(values[0], EXP_ARGUMENT_MAX)
    whole = round(bounded * _LOG2_E)
    rest = bounded - whole * _LN2_HIGH
    rest = rest - whole * _LN2_LOW
    result = rest * _EXP_TERMS[0]
    result = result + _EXP_TERMS[1]
    for term in _EXP_TERMS[2:]:
        result = result * rest
        result = result + term
    return math.ldexp(result, whole)


def _exp_limits(inputs: Sequence[Magnitudes], attributes: Attributes) -> Magnitudes:
    most = math.ceil(EXP_ARGUMENT_MAX * _LOG2_E)
    return Magnitudes(-most, most, False, False)


def _erf(arrays: Arrays, inputs: Sequence[Array], attributes: Attributes) -> Array:
    return _in_pieces(_erf_of_piece, arrays, inputs[0])


def _erf_of_piece(arrays: Arrays, values: Array) -> Array:
    size = arrays.abs(arrays.clip(values, -_ERF_MAX, _ERF_MAX))
    size = arrays.where(size < _ERF_NOTHING, 0.0, size)
    place = 1.0 / (size * 0.5 + 1.0) - _ERF_MIDDLE
    rest = place * _ERF_TERMS[0]
    rest += _ERF_TERMS[1]
    for term in _ERF_TERMS[2:]:
        rest *= place
        rest += term
    found = 1.0 - _exp_of_piece(arrays, 0.0 - size * size) * rest
    return arrays.where(values > 0.0, found, 0.0 - found)


def _erf_of(values: Sequence[float], attributes: Attributes) -> float:
    (value,) = values
    size = abs(_clamped(value, _ERF_MAX))
    size = 0.0 if size < _ERF_NOTHING else size
    place = 1.0 / (size * 0.5 + 1.0) - _ERF_MIDDLE
    rest = place * _ERF_TERMS[0]
    rest = rest + _ERF_TERMS[1]
    for term in _ERF_TERMS[2:]:
        rest = rest * place
        rest = rest + term
    found = 1.0 - _exp_of((0.0 - size * size,), attributes) * rest
    return found if value > 0.0 else 0.0 - found


def _erf_limits(inputs: Sequence[Magnitudes], attributes: Attributes) -> Magnitudes:
    return Magnitudes(-54, 0)  # 1 minus a number near 1 is zero or at least 2^-53


def _log(arrays: Arrays, inputs: Sequence[Array], attributes: Attributes) -> Array:
    (values,) = inputs
    fraction = arrays.fraction(values)
    above = fraction > _SQRT_2
    fraction = arrays.where(above, fraction * 0.5, fraction)
    whole = arrays.exponent(values) + arrays.to_doubles(above)
    ratio = (fraction - 1.0) / (fraction + 1.0)
    square = ratio * ratio
    result = square * _LOG_TERMS[0]
    result += _LOG_TERMS[1]
    for term in _LOG_TERMS[2:]:
        result *= square
        result += term
    result *= ratio
    result += whole * _LN2_LOW
    return whole * _LN2_HIGH + result


def _log_of(values: Sequence[float], attributes: Attributes) -> float:
    (value,) = values
    if value <= 0.0:
        return math.nan
    half, above = math.frexp(value)
    fraction, whole = half * 2.0, float(above - 1)
    if fraction > _SQRT_2:
        fraction, whole = fraction * 0.5, whole + 1.0
    ratio = (fraction - 1.0) / (fraction + 1.0)
    square = ratio * ratio
    result = square * _LOG_TERMS[0]
    result = result + _LOG_TERMS[1]
    for term in _LOG_TERMS[2:]:
        result = result * square
        result = result + term
    result = result * ratio
    result = result + whole * _LN2_LOW
    return whole * _LN2_HIGH + result


def _log_limits(inputs: Sequence[Magnitudes], attributes: Attributes) -> Magnitudes:
    (one,) = inputs
    if one.zero or one.negative:
        raise ProgramInvalid("the logarithm of a value that may be zero or negative")
    return Magnitudes(-54, max(-one.least, one.most + 1).bit_length(), True)


ELEMENTWISE: Final = (
    Elementwise(
        "add", 2,
        lambda _arrays, inputs, _: inputs[0] + inputs[1],
        lambda values, _: values[0] + values[1],
        lambda inputs, _: inputs[0].plus(inputs[1]),
    ),
    Elementwise(
        "bound", 1,
        lambda arrays, inputs, attributes: arrays.clip(inputs[0], -(2.0 ** attributes[0]), 2.0 ** attributes[0]),
        lambda values, attributes: _clamped(values[0], 2.0 ** attributes[0]),
        _bound_limits, attributes=1,
    ),
    Elementwise(
        "divide", 2,
        lambda _arrays, inputs, _: inputs[0] / inputs[1],
        _divided,
        lambda inputs, _: inputs[0].over(inputs[1]),
    ),
    Elementwise("erf", 1, _erf, _erf_of, _erf_limits),
    Elementwise("exp", 1, _exp, _exp_of, _exp_limits),
    Elementwise("log", 1, _log, _log_of, _log_limits),
    Elementwise(
        "multiply", 2,
        lambda _arrays, inputs, _: inputs[0] * inputs[1],
        lambda values, _: values[0] * values[1],
        lambda inputs, _: inputs[0].times(inputs[1]),
    ),
    Elementwise(
        "select", 3, _select,
        lambda values, _: values[1] if values[0] > 0.0 else values[2],
        lambda inputs, _: inputs[1].either(inputs[2]),
    ),
    Elementwise(
        "square_root", 1, _square_root,
        lambda values, _: math.sqrt(values[0]) if values[0] > 0.0 else 0.0,
        _square_root_limits,
    ),
    Elementwise(
        "subtract", 2,
        lambda _arrays, inputs, _: inputs[0] - inputs[1],
        lambda values, _: values[0] - values[1],
        lambda inputs, _: inputs[0].plus(inputs[1].negated()),
    ),
)  # fmt: skip
