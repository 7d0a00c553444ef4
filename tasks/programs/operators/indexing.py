"""Operators that move values: rows by number, marks of labels, rows and columns exchanged (market.md 4.6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tasks.programs.arrays import Array, Arrays
from tasks.programs.bounds import Bounds, Magnitudes, integers
from tasks.programs.errors import ProgramInvalid
from tasks.programs.operators import Attributes, Context, Read
from tasks.programs.operators.rules import ByElements, Moves, expect_attributes, whole
from tasks.programs.tensors import DIMENSION_MAX, ElementType, Number, TensorType

__all__ = ["GATHER", "ONE_HOT", "TRANSPOSE"]


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
ONE_HOT: Final = OneHot()
TRANSPOSE: Final = Transpose()
