"""What attention needs beside products: the causal mask, powers of two of keys, a store of keys (market.md 4.6).

A sequence has a first position: the number of its tokens that came before. It is one for all sequences of a batch,
or one for each. So the calls are the same for a whole sequence and for its next token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tasks.programs.arrays import Array, Arrays
from tasks.programs.bounds import Bounds, Integers, integers, magnitudes
from tasks.programs.errors import ProgramInvalid
from tasks.programs.operators import Attributes, Context, Read
from tasks.programs.operators.rows import EXPONENT_MAX, EXPONENT_MIN
from tasks.programs.operators.rules import ByElements, canonical, expect, expect_attributes, whole
from tasks.programs.operators.scalars import SCALAR, bits_value
from tasks.programs.tensors import DIMENSION_MAX, ElementType, Number, TensorType

__all__ = ["CAUSAL", "PLACE_ROWS", "POSITIONS", "SCALE_COLUMNS", "SINCE"]


def _check_first(name: str, kind: TensorType, batch: int) -> None:
    if kind.element != ElementType.INT64 or kind.columns != 1 or batch < 1 or kind.rows not in (1, batch):
        raise ProgramInvalid(f"{name} takes one first position, or one for each sequence")


def _check_range(first: Integers) -> None:
    if first.low < 0 or first.high > DIMENSION_MAX:
        raise ProgramInvalid(f"first positions from {first.low} to {first.high}")


def _first(read: Read, at: int, kind: TensorType, sequence: int) -> int:
    return whole(read(at, sequence if kind.rows > 1 else 0, 0), 0, DIMENSION_MAX)


class Positions(ByElements):
    """``positions(first; batch, length)``: the position of each token, one sequence below the other."""

    name: Final = "positions"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        expect_attributes(self.name, attributes, 2)
        batch, length = attributes
        if len(inputs) != 1 or not 1 <= length <= DIMENSION_MAX:
            raise ProgramInvalid(f"{self.name} takes first positions and a length")
        _check_first(self.name, inputs[0], batch)
        return TensorType(ElementType.INT64, batch * length, 1)

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator."""
        first = integers(inputs, 0)
        _check_range(first)
        return Integers(first.low, first.high + attributes[1] - 1)

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator."""
        batch, length = attributes
        zeros = arrays.counting(batch).T * 0.0
        return (inputs[0] + zeros + arrays.counting(length)).reshape(batch * length, 1)

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
        sequence, at = divmod(row, attributes[1])
        return _first(read, 0, inputs[0], sequence) + at


class Causal(ByElements):
    """``causal(values, first; batch, length, bits)``: values of columns up to the row's position, then a constant.

    Rows are those of sequences, in groups of ``length`` tokens; columns are positions.
    ``bits`` are the constant's.
    """

    name: Final = "causal"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        expect_attributes(self.name, attributes, 3)
        expect(self.name, inputs, ElementType.BINARY64, ElementType.INT64)
        batch, length, bits = attributes
        _check_first(self.name, inputs[1], batch)
        SCALAR.shape((), (bits,))
        if length < 1 or inputs[0].rows % (batch * length):
            raise ProgramInvalid(f"{inputs[0].rows} rows of {batch} sequences of {length} tokens")
        return inputs[0]

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator."""
        _check_range(integers(inputs, 1))
        fill = magnitudes([SCALAR.bounds((), (), attributes[2:])], 0)
        # A fill of zero says nothing about magnitudes.
        values = magnitudes(inputs, 0)
        return values._replace(zero=True) if fill.zero else values.either(fill)

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator."""
        batch, length, bits = attributes
        values, first = inputs
        rows, columns = values.shape
        last = first.reshape(-1, 1, 1, 1) + arrays.counting(length).reshape(1, 1, length, 1)
        stack = values.reshape(batch, rows // (batch * length), length, columns)
        return arrays.where(arrays.counting(columns) <= last, stack, bits_value(bits)).reshape(rows, columns)

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
        batch, length, bits = attributes
        position = _first(read, 1, inputs[1], row // (inputs[0].rows // batch)) + row % length
        return canonical(read(0, row, column)) if column <= position else bits_value(bits)


class Since(ByElements):
    """``since(values, starts; batch, bits)``: values of columns from the token's start on, before it a constant.

    Rows are those of sequences, in groups of their tokens; columns are positions. There is a start for each token
    of each sequence: where its row begins, in a sequence that several rows share. ``bits`` are the constant's.
    """

    name: Final = "since"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        expect_attributes(self.name, attributes, 2)
        expect(self.name, inputs, ElementType.BINARY64, ElementType.INT64)
        batch, bits = attributes
        values, starts = inputs
        SCALAR.shape((), (bits,))
        if starts.columns != 1 or batch < 1 or starts.rows % batch or values.rows % starts.rows:
            raise ProgramInvalid(f"{starts.rows} starts of {batch} sequences, {values.rows} rows")
        return values

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator."""
        _check_range(integers(inputs, 1))
        fill = magnitudes([SCALAR.bounds((), (), attributes[1:])], 0)
        values = magnitudes(inputs, 0)
        return values._replace(zero=True) if fill.zero else values.either(fill)

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator."""
        (batch, bits), (values, starts) = attributes, inputs
        rows, columns = values.shape
        length = starts.shape[0] // batch
        stack = values.reshape(batch, rows // (batch * length), length, columns)
        first = starts.reshape(batch, 1, length, 1)
        return arrays.where(first <= arrays.counting(columns), stack, bits_value(bits)).reshape(rows, columns)

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
        batch, bits = attributes
        length = inputs[1].rows // batch
        sequence = row // (inputs[0].rows // batch)
        start = whole(read(1, sequence * length + row % length, 0), 0, DIMENSION_MAX)
        return canonical(read(0, row, column)) if start <= column else bits_value(bits)


class ScaleColumns(ByElements):
    """``scale_columns(values, exponents)``: each column times a power of two; each group of rows has its own.

    There is an exponent for each column of each group, group by group: those of keys, whose integers have no
    exponents of their own in the product that follows.
    """

    name: Final = "scale_columns"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        expect_attributes(self.name, attributes, 0)
        expect(self.name, inputs, ElementType.BINARY64, ElementType.INT64)
        values, exponents = inputs
        if exponents.columns != 1 or exponents.rows % values.columns:
            raise ProgramInvalid(f"{exponents.rows} exponents of groups of {values.columns} columns")
        groups = exponents.rows // values.columns
        if values.rows % groups:
            raise ProgramInvalid(f"{groups} groups of {values.rows} rows")
        return values

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator."""
        values, exponents = magnitudes(inputs, 0), integers(inputs, 1)
        if exponents.low < EXPONENT_MIN or exponents.high > EXPONENT_MAX:
            raise ProgramInvalid(f"exponents outside of {EXPONENT_MIN} to {EXPONENT_MAX}")
        return values._replace(least=values.least + exponents.low, most=values.most + exponents.high).check()

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator."""
        values, exponents = inputs
        rows, columns = values.shape
        groups = exponents.shape[0] // columns
        powers = arrays.power_of_two(arrays.to_integers(exponents)).reshape(groups, 1, columns)
        return (values.reshape(groups, rows // groups, columns) * powers).reshape(rows, columns)

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
        values, exponents = inputs
        group = row // (values.rows // (exponents.rows // values.columns))
        power = whole(read(1, group * values.columns + column, 0), EXPONENT_MIN, EXPONENT_MAX)
        return canonical(canonical(read(0, row, column)) * 2.0**power)


class PlaceRows(ByElements):
    """``place_rows(stored, rows, first; batch, groups)``: in each group, new rows from the first position on.

    Both have ``groups`` groups of rows; groups of one sequence are neighbours.
    """

    name: Final = "place_rows"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        expect_attributes(self.name, attributes, 2)
        batch, groups = attributes
        if len(inputs) != 3 or inputs[0]._replace(rows=1) != inputs[1]._replace(rows=1):
            raise ProgramInvalid(f"{self.name} takes two tensors of one kind, and first positions")
        _check_first(self.name, inputs[2], batch)
        stored, rows = inputs[:2]
        if groups < 1 or groups % batch or stored.rows % groups or rows.rows % groups:
            raise ProgramInvalid(f"{groups} groups of {stored.rows} and of {rows.rows} rows")
        return stored

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator. Raises ProgramInvalid where new rows may not fit."""
        first, groups = integers(inputs, 2), attributes[1]
        if first.low < 0 or first.high + types[1].rows // groups > types[0].rows // groups:
            raise ProgramInvalid(f"rows from {first.low} to {first.high} on do not fit")
        if isinstance(inputs[0], Integers):
            rows = integers(inputs, 1)
            return Integers(min(inputs[0].low, rows.low), max(inputs[0].high, rows.high))
        return inputs[0].either(magnitudes(inputs, 1))

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator."""
        batch, groups = attributes
        stored, rows, first = inputs
        columns = stored.shape[1]
        starts = [int(start) for start in arrays.store(first)[:, 0]]
        stack = arrays.to_doubles(stored).reshape(batch, groups // batch, stored.shape[0] // groups, columns)
        new = rows.reshape(batch, groups // batch, rows.shape[0] // groups, columns)
        return arrays.with_rows(stack, new, starts * (batch // len(starts))).reshape(stored.shape)

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
        batch, groups = attributes
        length, new = inputs[0].rows // groups, inputs[1].rows // groups
        group, at = divmod(row, length)
        place = at - _first(read, 2, inputs[2], group // (groups // batch))
        return read(1, group * new + place, column) if 0 <= place < new else read(0, row, column)


POSITIONS: Final = Positions()
CAUSAL: Final = Causal()
SINCE: Final = Since()
SCALE_COLUMNS: Final = ScaleColumns()
PLACE_ROWS: Final = PlaceRows()
