"""Layouts of attention heads: columns become groups of rows and come back; groups are transposed (market.md 4.6).

Rows of a batch lie one sequence below the other. A row of ``heads * width`` columns holds its heads side by side.
Split, the rows of one head of one sequence are a group: sequence by sequence, head by head. Query heads that share
a key head are neighbours, so their groups together are one group of the shared key head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tasks.programs.arrays import Array, Arrays
from tasks.programs.errors import ProgramInvalid
from tasks.programs.operators import Attributes, Context, Read
from tasks.programs.operators.rules import Moves, expect_attributes
from tasks.programs.tensors import Number, TensorType

__all__ = ["JOIN_HEADS", "SPLIT_HEADS", "TRANSPOSE_GROUPS"]


def _one(name: str, inputs: Sequence[TensorType], attributes: Attributes, count: int) -> TensorType:
    expect_attributes(name, attributes, count)
    if len(inputs) != 1 or min(attributes) < 1:
        raise ProgramInvalid(f"{name} takes one tensor and positive numbers")
    return inputs[0]


class SplitHeads(Moves):
    """``split_heads(values; batch, heads)``: each row's heads become rows of a group each."""

    name: Final = "split_heads"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        kind = _one(self.name, inputs, attributes, 2)
        batch, heads = attributes
        if kind.rows % batch or kind.columns % heads:
            raise ProgramInvalid(f"{kind.rows} by {kind.columns} values in {batch} sequences of {heads} heads")
        return TensorType(kind.element, kind.rows * heads, kind.columns // heads)

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator."""
        batch, heads = attributes
        rows, columns = inputs[0].shape
        width = columns // heads
        return inputs[0].reshape(batch, rows // batch, heads, width).swapaxes(1, 2).reshape(rows * heads, width)

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
        batch, heads = attributes
        length, width = inputs[0].rows // batch, inputs[0].columns // heads
        sequence, rest = divmod(row, heads * length)
        head, at = divmod(rest, length)
        return read(0, sequence * length + at, head * width + column)


class JoinHeads(Moves):
    """``join_heads(values; batch, heads)``: what ``split_heads`` split, as it was."""

    name: Final = "join_heads"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        kind = _one(self.name, inputs, attributes, 2)
        batch, heads = attributes
        if kind.rows % (batch * heads):
            raise ProgramInvalid(f"{kind.rows} rows in {batch} sequences of {heads} heads")
        return TensorType(kind.element, kind.rows // heads, kind.columns * heads)

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator."""
        batch, heads = attributes
        rows, width = inputs[0].shape
        split = inputs[0].reshape(batch, heads, rows // (batch * heads), width)
        return split.swapaxes(1, 2).reshape(rows // heads, heads * width)

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
        batch, heads = attributes
        length, width = inputs[0].rows // (batch * heads), inputs[0].columns
        (sequence, at), (head, place) = divmod(row, length), divmod(column, width)
        return read(0, (sequence * heads + head) * length + at, place)


class TransposeGroups(Moves):
    """``transpose_groups(values; groups)``: in each group of rows, rows become columns."""

    name: Final = "transpose_groups"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        kind = _one(self.name, inputs, attributes, 1)
        if kind.rows % attributes[0]:
            raise ProgramInvalid(f"{attributes[0]} groups of {kind.rows} rows")
        return TensorType(kind.element, kind.columns * attributes[0], kind.rows // attributes[0])

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator."""
        rows, columns = inputs[0].shape
        groups = attributes[0]
        split = inputs[0].reshape(groups, rows // groups, columns)
        return split.swapaxes(1, 2).reshape(groups * columns, rows // groups)

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
        group, at = divmod(row, inputs[0].columns)
        return read(0, group * (inputs[0].rows // attributes[0]) + column, at)


SPLIT_HEADS: Final = SplitHeads()
JOIN_HEADS: Final = JoinHeads()
TRANSPOSE_GROUPS: Final = TransposeGroups()
