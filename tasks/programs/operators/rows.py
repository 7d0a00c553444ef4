"""Rows as integers with one exponent: quantising, products of rows, sums and maxima of rows (market.md 4.6).

A width of ``bits`` has a ``depth`` and a ``limit``. With the exponent ``e`` of a row its integers are
``rint(x * 2^(depth - e))``, of magnitude ``limit`` at most. All sums are of integers, so order, blocks and threads
change nothing; each is rounded once, when it becomes binary64 again.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import frexp, ldexp
from typing import Final, NamedTuple

from tasks.programs.arrays import Array, Arrays
from tasks.programs.bounds import Bounds, Integers, Magnitudes, integers, magnitudes
from tasks.programs.errors import ElementUndefined, ProgramInvalid
from tasks.programs.operators import Attributes, Context, Read
from tasks.programs.operators.rules import (
    UNITS,
    ByElements,
    Fold,
    canonical,
    expect,
    expect_attributes,
    whole,
    work,
)
from tasks.programs.tensors import ElementType, Number, TensorType

__all__ = ["BLOCK_TERMS_MIN", "CONTRACT", "CONTRACTED", "EXPONENT_MAX", "EXPONENT_MIN", "QUANTISE", "ROW_EXPONENT",
           "ROW_MAXIMUM", "ROW_SUM", "SUM_BITS", "SUM_TERMS", "TERMS_MAX", "WIDTHS", "Contract", "Width",
           "check_column", "check_terms", "product_bounds", "product_units", "products", "scaled", "sides",
           "terms_at_once"]  # fmt: skip

TERMS_MAX: Final = 1 << 20
"""Terms of a sum, and of a product of rows whose widths leave room for them in 64 bits (``sides``)."""
BLOCK_TERMS_MIN: Final = 128
"""So many terms of a product binary64 has to hold exactly. With fewer, adding up blocks would take too long."""
EXPONENT_MIN: Final = -120
"""Rows whose largest magnitude is below 2^-120 lose bits evenly. So squares of products stay normal numbers."""
EXPONENT_MAX: Final = 500
SUM_BITS: Final = 40
_EXACT_BITS: Final = 53
_ALIGNED: Final = 8
"""Values of binary64 in 64 bytes: blocks of terms begin at such places."""


class Width(NamedTuple):
    """Integers of a width: ``depth`` is the binary place of a row's largest value, ``limit`` the largest integer.

    From ``threshold`` on, as a fraction in [1, 2), rounding would exceed the limit: the exponent is one higher.
    """

    depth: int
    limit: int
    threshold: float


WIDTHS: Final = {
    15: Width(14, 32_639, 32_639.5 / 16_384),  # two signed digits of 8 bits: 127 * 256 + 127
    20: Width(18, 1 << 19, 2.0),
    23: Width(22, 8_355_711, 8_355_711.5 / 4_194_304),  # three signed digits of 8 bits
    28: Width(26, 1 << 27, 2.0),
    40: Width(39, 1 << 40, 2.0),
}
SUM_TERMS: Final = (1 << _EXACT_BITS) // WIDTHS[SUM_BITS].limit
"""Terms of a sum that binary64 adds up exactly."""
CONTRACTED: Final = (15, 20, 23, 28)
_SUM_MAX: Final = (1 << 63) - 1


def _width(name: str, attributes: Attributes, allowed: Sequence[int]) -> Width:
    expect_attributes(name, attributes, 1)
    if attributes[0] not in allowed:
        raise ProgramInvalid(f"{name} has a width of {', '.join(map(str, allowed))} bits, not {attributes[0]}")
    return WIDTHS[attributes[0]]


def _scale_exponents(bounds: Bounds, width: Width) -> tuple[int, int]:
    assert isinstance(bounds, Integers)
    return max(bounds.low, EXPONENT_MIN) - width.depth, min(bounds.high, EXPONENT_MAX) - width.depth


def scaled(total: int, exponent: int) -> float:
    """Return ``total * 2^exponent``, rounded once to binary64. Raises ElementUndefined outside of the range."""
    try:
        return canonical(ldexp(float(total), exponent) + 0.0)
    except OverflowError:
        raise ElementUndefined(f"{total} * 2^{exponent} is no binary64") from None


class RowExponent(Fold):
    """``row_exponent(values; bits)``: for each row the exponent with which its integers fit the width."""

    name: Final = "row_exponent"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        _width(self.name, attributes, tuple(WIDTHS))
        expect(self.name, inputs, ElementType.BINARY64)
        check_terms(self.name, inputs[0].columns)
        return TensorType(ElementType.INT64, inputs[0].rows, 1)

    def units(self, inputs: Sequence[TensorType], output: TensorType, attributes: Attributes) -> int:
        """See Operator."""
        return work(self.name, output, inputs[0].values)

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator. Raises ProgramInvalid for rows that may exceed 2^EXPONENT_MAX."""
        values = magnitudes(inputs, 0)
        if values.most >= EXPONENT_MAX:
            raise ProgramInvalid(f"rows of values up to 2^{values.most + 1}, beyond 2^{EXPONENT_MAX}")
        low = EXPONENT_MIN if values.zero else max(values.least, EXPONENT_MIN)
        return Integers(low, max(values.most, EXPONENT_MIN) + 1)

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator."""
        largest = arrays.amax(arrays.abs(inputs[0]), 1)
        exponents = arrays.to_doubles(arrays.exponent(largest))
        threshold = WIDTHS[attributes[0]].threshold
        if threshold < 2.0:
            exponents = exponents + arrays.to_doubles(arrays.fraction(largest) >= threshold)
        return arrays.clip(exponents, EXPONENT_MIN, EXPONENT_MAX)

    def length(self, inputs: Sequence[TensorType], attributes: Attributes) -> int:
        """See FoldOperator."""
        return inputs[0].columns

    def term(
        self, read: Read, inputs: Sequence[TensorType], attributes: Attributes, row: int, column: int, index: int
    ) -> int:
        """See FoldOperator."""
        value = abs(canonical(read(0, row, index)))
        if not value:
            return EXPONENT_MIN
        half, above = frexp(value)
        exponent = above - 1 + (2.0 * half >= WIDTHS[attributes[0]].threshold)
        return max(exponent, EXPONENT_MIN)

    def combine(self, left: int, right: int) -> int:
        """See FoldOperator."""
        return max(left, right)

    def finish(
        self, read: Read, inputs: Sequence[TensorType], attributes: Attributes, row: int, column: int, total: int
    ) -> Number:
        """See FoldOperator."""
        return whole(total, EXPONENT_MIN, EXPONENT_MAX)


def check_terms(name: str, terms: int) -> None:
    """Check the length of rows. Raises ProgramInvalid."""
    if terms > TERMS_MAX:
        raise ProgramInvalid(f"{name} of {terms} terms, {TERMS_MAX} are allowed")


def _quantised(value: float, exponent: int, width: Width) -> int:
    """Return ``rint(value * 2^(depth - exponent))``, in integers. Raises ElementUndefined beyond the limit."""
    numerator, denominator = value.as_integer_ratio()
    shift = width.depth - exponent
    numerator <<= max(shift, 0)
    denominator <<= max(-shift, 0)
    floor, rest = divmod(numerator, denominator)
    up = 2 * rest > denominator or (2 * rest == denominator and floor & 1)
    return whole(floor + up, -width.limit, width.limit)


class Quantise(ByElements):
    """``quantise(values, exponents; bits)``: the integers of each row, with the row's exponent."""

    name: Final = "quantise"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        _width(self.name, attributes, tuple(WIDTHS))
        expect(self.name, inputs, ElementType.BINARY64, ElementType.INT64)
        check_column(self.name, inputs[0], inputs[1])
        return TensorType(ElementType.INT64, inputs[0].rows, inputs[0].columns)

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator. That the exponents are those of the values is checked by ``check_bounds``."""
        limit = WIDTHS[attributes[0]].limit
        return Integers(-limit, limit)

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator. What becomes subnormal here rounds to zero with and without flushing."""
        return _integers_of_rows(arrays, inputs[0], inputs[1], WIDTHS[attributes[0]].depth)

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
        exponent = whole(read(1, row, 0), EXPONENT_MIN, EXPONENT_MAX)
        return _quantised(canonical(read(0, row, column)), exponent, WIDTHS[attributes[0]])


def _integers_of_rows(arrays: Arrays, values: Array, exponents: Array, depth: int) -> Array:
    return arrays.rint(values * arrays.power_of_two(arrays.to_integers(depth - exponents)))


def check_column(name: str, values: TensorType, exponents: TensorType) -> None:
    """Check that there is one exponent a row. Raises ProgramInvalid."""
    if (exponents.rows, exponents.columns) != (values.rows, 1):
        raise ProgramInvalid(f"{name} of {values.rows} rows takes one exponent for each")


def sides(name: str, bits: Attributes, terms: int) -> tuple[Width, Width]:
    """Return the widths of both sides of a product of ``terms`` terms, given one for both or two (market.md R150).

    Raises ProgramInvalid where the sum may exceed 64 bits, or binary64 holds fewer than BLOCK_TERMS_MIN terms.
    """
    if len(bits) not in (1, 2) or any(one not in CONTRACTED for one in bits):
        raise ProgramInvalid(f"{name} has widths of {', '.join(map(str, CONTRACTED))} bits, not {bits}")
    one, other = WIDTHS[bits[0]], WIDTHS[bits[-1]]
    largest = one.limit * other.limit
    if terms_at_once((one, other)) < BLOCK_TERMS_MIN:
        raise ProgramInvalid(f"{name} of {bits[0]} by {bits[-1]} bits: too wide for exact blocks in binary64")
    if largest * terms > _SUM_MAX:
        most = min(_SUM_MAX // largest, TERMS_MAX)
        raise ProgramInvalid(f"{name} of {bits[0]} by {bits[-1]} bits has {terms} terms, {most} are allowed")
    return one, other


def product_bounds(inputs: Sequence[Bounds], terms: int, widths: tuple[Width, Width]) -> Magnitudes:
    """Return the bounds of products of ``terms`` terms, given those of integers and exponents of both sides.

    Raises ProgramInvalid for integers beyond their width, and for exponents that no row has.
    """
    for at, width in enumerate(widths):
        if max(integers(inputs, at).high, -integers(inputs, at).low) > width.limit:
            raise ProgramInvalid(f"integers above {width.limit}")
    exponents = [integers(inputs, at) for at in (2, 3)]
    if any(one.low < EXPONENT_MIN or one.high > EXPONENT_MAX for one in exponents):
        raise ProgramInvalid(f"exponents outside of {EXPONENT_MIN} to {EXPONENT_MAX}")
    one, other = widths
    low, high = (sum(ends) - one.depth - other.depth for ends in zip(*exponents, strict=True))
    return Magnitudes(low, high + (one.limit * other.limit * terms).bit_length()).check()


def terms_at_once(widths: tuple[Width, Width]) -> int:
    """Return how many terms of a product are summed in binary64: the sum is exact, whatever the integers."""
    terms = (1 << _EXACT_BITS) // (widths[0].limit * widths[1].limit)
    return terms - terms % _ALIGNED


_AT_ONCE: Final = {
    (one, other): terms_at_once((WIDTHS[one], WIDTHS[other])) for one in CONTRACTED for other in CONTRACTED
}
"""``terms_at_once`` as a table: units of a job are counted before it is paid for, so counting must be cheap."""


def products(arrays: Arrays, left: Array, right: Array, widths: tuple[Width, Width]) -> Array:
    """Return the exact sums of products of rows, each rounded once; of matrices or of stacks of them.

    A side in its stored form is expanded for this call alone.
    """
    terms, block = left.shape[-1], terms_at_once(widths)

    def product(part: slice) -> Array:
        one, other = (arrays.to_doubles(side[..., part]) for side in (left, right))
        return arrays.matmul(one, other.swapaxes(-1, -2))

    if terms <= block:
        return product(slice(terms))
    sums: Array = None
    for start in range(0, terms, block):
        found = arrays.to_integers(product(slice(start, start + block)))
        if start:
            sums += found
        else:
            sums = found
    return arrays.to_doubles(sums)


def product_units(name: str, bits: Attributes, found: int, terms: int, values: int) -> int:
    """Return the work units of a product that gives ``found`` elements of ``terms`` terms and reads ``values``.

    The units of an element are for each of its sums in binary64 (market.md R150).
    """
    cost = UNITS[name]
    sums = found * -(-terms // _AT_ONCE[bits[0], bits[-1]])
    return cost.call + cost.element * sums + cost.term * found * terms + cost.read * values


class Contract(Fold):
    """``contract(left, right, left exponents, right exponents; bits[, right bits])``: products of rows.

    Element (i, j) is the sum over k of ``left[i, k] * right[j, k]``, times both rows' powers of two. Without bits
    of the right side both have one width.
    """

    name = "contract"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        expect(self.name, inputs, *(ElementType.INT64,) * 4)
        left, right = inputs[:2]
        sides(self.name, attributes, left.columns)
        if left.columns != right.columns:
            raise ProgramInvalid(f"rows of {left.columns} and of {right.columns} values have no product")
        check_terms(self.name, left.columns)
        check_column(self.name, left, inputs[2])
        check_column(self.name, right, inputs[3])
        return TensorType(ElementType.BINARY64, left.rows, right.rows)

    def units(self, inputs: Sequence[TensorType], output: TensorType, attributes: Attributes) -> int:
        """See Operator."""
        left, right = inputs[:2]
        return product_units(self.name, attributes, output.values, left.columns, left.values + right.values)

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator."""
        return product_bounds(inputs, types[0].columns, sides(self.name, attributes, types[0].columns))

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator."""
        left, right, left_exponents, right_exponents = inputs
        one, other = sides(self.name, attributes, left.shape[1])
        result = products(arrays, left, right, (one, other))
        result *= arrays.power_of_two(arrays.to_integers(left_exponents - one.depth))
        result *= arrays.power_of_two(arrays.to_integers(right_exponents - other.depth)).T
        result += 0.0  # a zero has a positive sign: a kernel may or may not add to a zero first
        return result

    def length(self, inputs: Sequence[TensorType], attributes: Attributes) -> int:
        """See FoldOperator."""
        return inputs[0].columns

    def term(
        self, read: Read, inputs: Sequence[TensorType], attributes: Attributes, row: int, column: int, index: int
    ) -> int:
        """See FoldOperator."""
        widths = sides(self.name, attributes, inputs[0].columns)
        return self.product(widths, read(0, row, index), read(1, column, index))

    def product(self, widths: tuple[Width, Width], left: Number, right: Number) -> int:
        """Return the product of two integers of these widths. Raises ElementUndefined."""
        one, other = (width.limit for width in widths)
        return whole(left, -one, one) * whole(right, -other, other)

    def combine(self, left: int, right: int) -> int:
        """See FoldOperator."""
        return left + right

    def finish(
        self, read: Read, inputs: Sequence[TensorType], attributes: Attributes, row: int, column: int, total: int
    ) -> Number:
        """See FoldOperator."""
        left = whole(read(2, row, 0), EXPONENT_MIN, EXPONENT_MAX)
        right = whole(read(3, column, 0), EXPONENT_MIN, EXPONENT_MAX)
        one, other = sides(self.name, attributes, inputs[0].columns)
        return scaled(total, left + right - one.depth - other.depth)


class RowSum(Fold):
    """``row_sum(values, exponents)``: the sum of each row, whose terms are the row's integers of 40 bits."""

    name: Final = "row_sum"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        expect_attributes(self.name, attributes, 0)
        expect(self.name, inputs, ElementType.BINARY64, ElementType.INT64)
        check_terms(self.name, inputs[0].columns)
        check_column(self.name, inputs[0], inputs[1])
        return TensorType(ElementType.BINARY64, inputs[0].rows, 1)

    def units(self, inputs: Sequence[TensorType], output: TensorType, attributes: Attributes) -> int:
        """See Operator."""
        return work(self.name, output, inputs[0].values)

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator. Positive rows have a positive sum: their largest value is no zero as an integer."""
        values, width = magnitudes(inputs, 0), WIDTHS[SUM_BITS]
        low, high = _scale_exponents(inputs[1], width)
        lost = values.zero or values.least < EXPONENT_MIN or (values.negative and values.positive)
        grown = (width.limit * types[0].columns).bit_length()
        return Magnitudes(low, high + grown, lost, values.negative, values.positive).check()

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator."""
        values, exponents = inputs
        width, terms = WIDTHS[SUM_BITS], values.shape[1]
        if terms <= SUM_TERMS:
            result = arrays.sum_integers(_integers_of_rows(arrays, values, exponents, width.depth), 1)
        else:
            sums = 0
            for start in range(0, terms, SUM_TERMS):
                part = _integers_of_rows(arrays, values[:, start : start + SUM_TERMS], exponents, width.depth)
                sums = sums + arrays.to_integers(arrays.sum_integers(part, 1))
            result = arrays.to_doubles(sums)
        return result * arrays.power_of_two(arrays.to_integers(exponents - width.depth)) + 0.0

    def length(self, inputs: Sequence[TensorType], attributes: Attributes) -> int:
        """See FoldOperator."""
        return inputs[0].columns

    def term(
        self, read: Read, inputs: Sequence[TensorType], attributes: Attributes, row: int, column: int, index: int
    ) -> int:
        """See FoldOperator."""
        exponent = whole(read(1, row, 0), EXPONENT_MIN, EXPONENT_MAX)
        return _quantised(canonical(read(0, row, index)), exponent, WIDTHS[SUM_BITS])

    def combine(self, left: int, right: int) -> int:
        """See FoldOperator."""
        return left + right

    def finish(
        self, read: Read, inputs: Sequence[TensorType], attributes: Attributes, row: int, column: int, total: int
    ) -> Number:
        """See FoldOperator."""
        exponent = whole(read(1, row, 0), EXPONENT_MIN, EXPONENT_MAX)
        return scaled(total, exponent - WIDTHS[SUM_BITS].depth)


class RowMaximum(Fold):
    """``row_maximum(values)``: the largest value of each row; a zero has a positive sign.

    A term is the value's bit pattern as a signed integer, which orders as the values do.
    """

    name: Final = "row_maximum"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        expect_attributes(self.name, attributes, 0)
        expect(self.name, inputs, ElementType.BINARY64)
        check_terms(self.name, inputs[0].columns)
        return TensorType(ElementType.BINARY64, inputs[0].rows, 1)

    def units(self, inputs: Sequence[TensorType], output: TensorType, attributes: Attributes) -> int:
        """See Operator."""
        return work(self.name, output, inputs[0].values)

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator."""
        return magnitudes(inputs, 0)

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator."""
        return arrays.amax(inputs[0], 1) + 0.0  # of two zeros, engines return either

    def length(self, inputs: Sequence[TensorType], attributes: Attributes) -> int:
        """See FoldOperator."""
        return inputs[0].columns

    def term(
        self, read: Read, inputs: Sequence[TensorType], attributes: Attributes, row: int, column: int, index: int
    ) -> int:
        """See FoldOperator."""
        value = canonical(read(0, row, index))
        pattern: int = struct.unpack(">q", struct.pack(">d", abs(value)))[0]
        return -pattern if value < 0 else pattern

    def combine(self, left: int, right: int) -> int:
        """See FoldOperator."""
        return max(left, right)

    def finish(
        self, read: Read, inputs: Sequence[TensorType], attributes: Attributes, row: int, column: int, total: int
    ) -> Number:
        """See FoldOperator."""
        if abs(total) >= 1 << 63:
            raise ElementUndefined(f"{total} is the pattern of no binary64")
        magnitude: float = struct.unpack(">d", struct.pack(">q", abs(total)))[0]
        return canonical(-magnitude if total < 0 else magnitude)


ROW_EXPONENT: Final = RowExponent()
QUANTISE: Final = Quantise()
CONTRACT: Final = Contract()
ROW_SUM: Final = RowSum()
ROW_MAXIMUM: Final = RowMaximum()
