"""Integers: those of sources, constants, rows scaled back, and the place of a value in its row (market.md 4.6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tasks.programs.arrays import Array, Arrays
from tasks.programs.bounds import Bounds, Integers, Magnitudes, integers
from tasks.programs.errors import ProgramInvalid
from tasks.programs.operators import Attributes, Context, Read
from tasks.programs.operators.rows import EXPONENT_MAX, EXPONENT_MIN, WIDTHS, check_column, check_terms
from tasks.programs.operators.rules import ByElements, Fold, canonical, expect, expect_attributes, whole, work
from tasks.programs.tensors import ElementType, Number, TensorType

__all__ = ["FIND", "LOAD_INTEGERS", "NUMBER", "SCALE_ROWS", "WHOLE_MAX"]

WHOLE_MAX: Final = 1 << 40


class LoadIntegers(ByElements):
    """``load_integers(stored; low, high)``: integers of a source, which lie from ``low`` to ``high``."""

    name: Final = "load_integers"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        expect_attributes(self.name, attributes, 2)
        if len(inputs) != 1 or not inputs[0].element.is_integer:
            raise ProgramInvalid(f"{self.name} takes one tensor of integers")
        if not -WHOLE_MAX <= attributes[0] <= 0 <= attributes[1] <= WHOLE_MAX:
            raise ProgramInvalid(f"integers from {attributes[0]} to {attributes[1]}")
        return inputs[0]._replace(element=ElementType.INT64)

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator. Whoever loads a source checks its values (``load_tensor``)."""
        return Integers(*attributes)

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator. A frozen weight stays in its stored form; whoever multiplies it makes binary64 of it."""
        return arrays.narrow(inputs[0])

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
        return whole(read(0, row, column), *attributes)


class NumberOf(ByElements):
    """``number(; value)``: one integer."""

    name: Final = "number"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        expect_attributes(self.name, attributes, 1)
        expect(self.name, inputs)
        if not 0 <= attributes[0] <= WHOLE_MAX:
            raise ProgramInvalid(f"a number from 0 to {WHOLE_MAX}, not {attributes[0]}")
        return TensorType(ElementType.INT64, 1, 1)

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator."""
        return Integers(attributes[0], attributes[0])

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator."""
        return arrays.constant(float(attributes[0]))

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
        return attributes[0]


class ScaleRows(ByElements):
    """``scale_rows(integers, exponents; bits)``: what ``quantise`` made of rows, as binary64 again."""

    name: Final = "scale_rows"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        expect_attributes(self.name, attributes, 1)
        if attributes[0] not in WIDTHS:
            raise ProgramInvalid(f"{self.name} has no width of {attributes[0]} bits")
        expect(self.name, inputs, ElementType.INT64, ElementType.INT64)
        check_column(self.name, inputs[0], inputs[1])
        return inputs[0]._replace(element=ElementType.BINARY64)

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator."""
        values, exponents, width = integers(inputs, 0), integers(inputs, 1), WIDTHS[attributes[0]]
        largest = max(values.high, -values.low)
        if largest > width.limit or exponents.low < EXPONENT_MIN or exponents.high > EXPONENT_MAX:
            raise ProgramInvalid(f"integers or exponents beyond a width of {attributes[0]} bits")
        low, high = exponents.low - width.depth, exponents.high - width.depth
        return Magnitudes(low, high + largest.bit_length(), True, values.low < 0, values.high > 0)

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator."""
        exponents = arrays.to_integers(inputs[1] - WIDTHS[attributes[0]].depth)
        return inputs[0] * arrays.power_of_two(exponents) + 0.0

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
        width = WIDTHS[attributes[0]]
        exponent = whole(read(1, row, 0), EXPONENT_MIN, EXPONENT_MAX) - width.depth
        return whole(read(0, row, column), -width.limit, width.limit) * 2.0**exponent


class Find(Fold):
    """``find(values, wanted)``: in each row, the first column that holds the row's wanted value.

    It is the number of columns if there is none. With the row's maximum: the first of the largest.
    """

    name = "find"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        expect_attributes(self.name, attributes, 0)
        expect(self.name, inputs, ElementType.BINARY64, ElementType.BINARY64)
        check_terms(self.name, inputs[0].columns)
        check_column(self.name, inputs[0], inputs[1])
        return TensorType(ElementType.INT64, inputs[0].rows, 1)

    def units(self, inputs: Sequence[TensorType], output: TensorType, attributes: Attributes) -> int:
        """See Operator."""
        return work(self.name, output, inputs[0].values)

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator."""
        return Integers(0, types[0].columns)

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator."""
        values, wanted = inputs
        columns = values.shape[1]
        before = arrays.where(values == wanted, columns - arrays.counting(columns), 0.0)
        return columns - arrays.amax(before, 1) + 0.0

    def length(self, inputs: Sequence[TensorType], attributes: Attributes) -> int:
        """See FoldOperator."""
        return inputs[0].columns

    def term(
        self, read: Read, inputs: Sequence[TensorType], attributes: Attributes, row: int, column: int, index: int
    ) -> int:
        """See FoldOperator."""
        found = canonical(read(0, row, index)) == canonical(read(1, row, 0))
        return index if found else inputs[0].columns

    def combine(self, left: int, right: int) -> int:
        """See FoldOperator."""
        return min(left, right)

    def finish(
        self, read: Read, inputs: Sequence[TensorType], attributes: Attributes, row: int, column: int, total: int
    ) -> Number:
        """See FoldOperator."""
        return whole(total, 0, inputs[0].columns)


LOAD_INTEGERS: Final = LoadIntegers()
NUMBER: Final = NumberOf()
SCALE_ROWS: Final = ScaleRows()
FIND: Final = Find()
