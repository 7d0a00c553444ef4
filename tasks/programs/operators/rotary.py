"""Rotary positions: sines of whole turns in integers, and the rotation of pairs of columns (market.md 4.6).

An angle is an integer in units of 2^-64 turns, so it wraps as integers of 64 bits do. What remains of a quarter
turn goes through a fixed polynomial in binary64. No library's sine is used: its bits depend on the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Context as DecimalContext
from decimal import Decimal, localcontext
from functools import lru_cache
from math import factorial
from typing import Final

from tasks.programs.arrays import Array, Arrays
from tasks.programs.bounds import Bounds, Magnitudes, integers, magnitudes
from tasks.programs.errors import ProgramInvalid
from tasks.programs.operators import Attributes, Context, Read
from tasks.programs.operators.rules import ByElements, canonical, expect, expect_attributes, whole
from tasks.programs.tensors import ElementType, Number, TensorType

__all__ = ["BASE_MAX", "POSITION_MAX", "ROTARY", "ROTATE", "WIDTH_MAX", "turns"]

BASE_MAX: Final = 1 << 30
WIDTH_MAX: Final = 1 << 10
"""Columns of a head."""
POSITION_MAX: Final = 1 << 24
_PI: Final = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")
_DIGITS: Final = 60
_TURN: Final = 64
_HALF_RIGHT: Final = 1 << 61
_RIGHT: Final = 62
_RADIANS: Final = float.fromhex("0x1.921fb54442d18p+0") * 2.0**-62
"""Of one unit of 2^-64 turns."""
_SINE: Final = tuple((-1) ** n / factorial(2 * n + 1) for n in range(8, -1, -1))
_COSINE: Final = tuple((-1) ** n / factorial(2 * n) for n in range(9, -1, -1))
_WORD: Final = 32


@lru_cache(maxsize=64)
def turns(base: int, width: int) -> tuple[int, ...]:
    """Return the angle of one position for each pair of columns, in units of 2^-64 turns, to the nearest integer.

    The angle of pair j is ``base^(-2 j / width)`` radians. Logarithm and exponential are those of decimal
    arithmetic with 60 digits, correctly rounded: the same on every machine.
    """
    with localcontext(DecimalContext(prec=_DIGITS)):
        logarithm = Decimal(base).ln()
        angles = [(-(2 * pair * logarithm) / width).exp() for pair in range(width // 2)]
        return tuple(int((angle / (2 * _PI) * (1 << _TURN)).to_integral_value()) for angle in angles)


class Rotary(ByElements):
    """``rotary(positions; base, width, quarter)``: the sine of each pair's angle, for each position.

    With quarter 1 a quarter turn is added: the cosine.
    """

    name: Final = "rotary"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        expect_attributes(self.name, attributes, 3)
        expect(self.name, inputs, ElementType.INT64)
        base, width, quarter = attributes
        if not (2 <= base <= BASE_MAX and 2 <= width <= WIDTH_MAX) or width % 2 or quarter not in (0, 1):
            raise ProgramInvalid(f"{self.name} with base {base}, width {width}, quarter {quarter}")
        if inputs[0].columns != 1:
            raise ProgramInvalid(f"{self.name} takes a column of positions")
        return TensorType(ElementType.BINARY64, inputs[0].rows, width // 2)

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator. Raises ProgramInvalid for positions whose angles would not be accurate."""
        positions = integers(inputs, 0)
        if positions.low < 0 or positions.high > POSITION_MAX:
            raise ProgramInvalid(f"positions from {positions.low} to {positions.high}")
        return Magnitudes(-_RIGHT, 0)

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator."""
        base, width, quarter = attributes
        units = _row(arrays, turns(base, width))
        angles = arrays.to_integers(inputs[0]) * units + (quarter << _RIGHT)
        rights = (angles + _HALF_RIGHT) >> _RIGHT
        rest = arrays.to_doubles(angles - (rights << _RIGHT)) * _RADIANS
        square = rest * rest
        sine, cosine = (_polynomial(terms, square) for terms in (_SINE, _COSINE))
        sine *= rest
        signs = arrays.to_doubles(1 - (rights & 2))
        return arrays.where((rights & 1) > 0, cosine, sine) * signs + 0.0

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
        base, width, quarter = attributes
        position = whole(read(0, row, 0), 0, POSITION_MAX)
        angle = position * turns(base, width)[column] + (quarter << _RIGHT)
        rights = (angle + _HALF_RIGHT) >> _RIGHT
        rest = float(angle - (rights << _RIGHT)) * _RADIANS
        square = rest * rest
        value: float = _polynomial(_COSINE, square) if rights & 1 else _polynomial(_SINE, square) * rest
        return (-value if rights & 2 else value) + 0.0


def _row(arrays: Arrays, values: Sequence[int]) -> Array:
    """Return integers of 64 bits as a row on the engine, which takes no more than 53 bits at once."""
    parts = []
    for shift in (_WORD, 0):
        content = b"".join(((value >> shift) & 0xFFFFFFFF).to_bytes(8, "little") for value in values)
        parts.append(arrays.to_integers(arrays.from_content(content, "i8", 1, len(values))))
    return (parts[0] << _WORD) + parts[1]


def _polynomial(terms: Sequence[float], square: Array) -> Array:
    result = square * terms[0]
    result = result + terms[1]
    for term in terms[2:]:
        result = result * square
        result = result + term
    return result


class Rotate(ByElements):
    """``rotate(values, cosines, sines)``: in each head, columns j and j + width / 2 turn by angle j."""

    name: Final = "rotate"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        expect_attributes(self.name, attributes, 0)
        expect(self.name, inputs, *(ElementType.BINARY64,) * 3)
        values, cosines, sines = inputs
        if cosines != sines or cosines.rows != values.rows or values.columns % (2 * cosines.columns):
            raise ProgramInvalid(f"{self.name} of {values.columns} columns by {cosines.columns} angles a row")
        return values

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator."""
        values, cosines, sines = (magnitudes(inputs, at) for at in range(3))
        first, second = values.times(cosines), values.times(sines)
        return first.plus(second.negated()).either(first.plus(second)).check()

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator."""
        values, cosines, sines = inputs
        rows, columns = values.shape
        half = cosines.shape[1]
        pairs = values.reshape(rows, columns // (2 * half), 2, half)
        first, second = pairs[:, :, 0], pairs[:, :, 1]
        cosines, sines = cosines.reshape(rows, 1, half), sines.reshape(rows, 1, half)
        turned = (first * cosines - second * sines, second * cosines + first * sines)
        return arrays.stack(turned, 2).reshape(rows, columns)

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
        half = inputs[1].columns
        pair = column % half
        cosine, sine = canonical(read(1, row, pair)), canonical(read(2, row, pair))
        value = canonical(read(0, row, column))
        if column % (2 * half) < half:
            return canonical(value * cosine - canonical(read(0, row, column + half)) * sine)
        return canonical(value * cosine + canonical(read(0, row, column - half)) * sine)


ROTARY: Final = Rotary()
ROTATE: Final = Rotate()
