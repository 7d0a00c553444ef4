"""Operators that move values: rows by number, marks of labels, rows and columns exchanged (market.md 4.6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tasks.programs.arrays import Array, Arrays
from tasks.programs.bounds import Bounds, Magnitudes, integers, magnitudes
from tasks.programs.errors import ProgramInvalid
from tasks.programs.operators import Attributes, Context, Read
from tasks.programs.operators.rules import ByElements, Moves, canonical, expect_attributes, whole
from tasks.programs.tensors import DIMENSION_MAX, ElementType, Number, TensorType

__all__ = ["GATHER", "GATHER_GROUPS", "ONE_HOT", "TRANSPOSE"]


def _check_index(name: str, kind: TensorType) -> None:
    if not kind.element.is_integer or kind.columns != 1:
        raise ProgramInvalid(f"{name} takes a column of integers")


class Gather(ByElements):
    """``gather(values, rows)``: the rows of ``values`` whose numbers stand in a column of integers."""

    name: Final = "gather"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        expect_attributes(self.name, attributes, 0)
        if len(inputs) != 2:
            raise ProgramInvalid(f"{self.name} takes values and a column")
        _check_index(self.name, inputs[1])
        return inputs[0]._replace(rows=inputs[1].rows)

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator. Raises ProgramInvalid where a number may be of no row."""
        rows = integers(inputs, 1)
        if rows.low < 0 or rows.high >= types[0].rows:
            raise ProgramInvalid(f"rows {rows.low} to {rows.high} of a tensor of {types[0].rows}")
        return inputs[0]

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator."""
        return arrays.take_rows(inputs[0], arrays.to_integers(inputs[1]))

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
        return read(0, whole(read(1, row, 0), 0, inputs[0].rows - 1), column)


class GatherGroups(ByElements):
    """``gather_groups(values, rows; groups)``: in each group of rows, those whose numbers stand in a column.

    There are as many numbers for each group. A number beyond the group's rows gives a row of zeros.
    """

    name: Final = "gather_groups"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        expect_attributes(self.name, attributes, 1)
        if len(inputs) != 2 or inputs[0].element != ElementType.BINARY64:
            raise ProgramInvalid(f"{self.name} takes values of binary64 and a column")
        _check_index(self.name, inputs[1])
        groups, (values, rows) = attributes[0], inputs
        if groups < 1 or values.rows % groups or rows.rows % groups:
            raise ProgramInvalid(f"{groups} groups of {values.rows} and of {rows.rows} rows")
        return values._replace(rows=rows.rows)

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator. Raises ProgramInvalid for numbers below 0."""
        rows = integers(inputs, 1)
        if rows.low < 0 or rows.high > DIMENSION_MAX:
            raise ProgramInvalid(f"rows {rows.low} to {rows.high} of a group")
        return magnitudes(inputs, 0)._replace(zero=True)

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator."""
        values, rows = inputs
        length = values.shape[0] // attributes[0]
        stack = arrays.to_doubles(rows).reshape(attributes[0], -1)
        present = stack < length
        numbers = arrays.where(present, stack, 0.0) + arrays.counting(attributes[0]).T * float(length)
        found = arrays.take_rows(values, arrays.to_integers(numbers.reshape(-1, 1)))
        return arrays.where(present.reshape(-1, 1), found, 0.0)

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
        length, count = inputs[0].rows // attributes[0], inputs[1].rows // attributes[0]
        number = whole(read(1, row, 0), 0, DIMENSION_MAX)
        if number >= length:
            return 0.0
        return canonical(read(0, row // count * length + number, column))


class OneHot(ByElements):
    """``one_hot(labels; classes)``: a row for each label with 1 in its column and 0 in the others."""

    name: Final = "one_hot"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        expect_attributes(self.name, attributes, 1)
        if len(inputs) != 1 or not 1 <= attributes[0] <= DIMENSION_MAX:
            raise ProgramInvalid(f"{self.name} takes one column and a number of classes")
        _check_index(self.name, inputs[0])
        return TensorType(ElementType.BINARY64, inputs[0].rows, attributes[0])

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator."""
        return Magnitudes(0, 0, True, False)

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator."""
        return arrays.to_doubles(arrays.to_doubles(inputs[0]) == arrays.counting(attributes[0]))

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
        return 1.0 if read(0, row, 0) == column else 0.0


class Transpose(Moves):
    """``transpose(values)``: rows become columns."""

    name: Final = "transpose"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        expect_attributes(self.name, attributes, 0)
        if len(inputs) != 1:
            raise ProgramInvalid(f"{self.name} takes one tensor")
        return TensorType(inputs[0].element, inputs[0].columns, inputs[0].rows)

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator. Engines read the same memory in another order."""
        return inputs[0].T

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
        return read(0, column, row)


GATHER: Final = Gather()
GATHER_GROUPS: Final = GatherGroups()
ONE_HOT: Final = OneHot()
TRANSPOSE: Final = Transpose()
