"""Products of rows group by group: what attention heads and batches need (market.md 4.6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tasks.programs.arrays import Array, Arrays
from tasks.programs.bounds import Bounds, Integers
from tasks.programs.errors import ProgramInvalid
from tasks.programs.operators import Attributes, Context, Read
from tasks.programs.operators.rows import (
    EXPONENT_MAX,
    EXPONENT_MIN,
    Contract,
    Width,
    check_column,
    check_terms,
    product_bounds,
    product_units,
    products,
    scaled,
    sides,
)
from tasks.programs.operators.rules import expect, whole
from tasks.programs.tensors import ElementType, Number, TensorType

__all__ = ["CONTRACT_GROUPS"]

_ZERO: Final = Integers(0, 0)


def _widths(attributes: Attributes, terms: int) -> tuple[Width, Width]:
    if len(attributes) not in (2, 3):
        raise ProgramInvalid(f"{CONTRACT_GROUPS.name} takes 2 or 3 attributes, not {len(attributes)}")
    return sides(CONTRACT_GROUPS.name, (attributes[0], *attributes[2:]), terms)


class ContractGroups(Contract):
    """``contract_groups(left, right, left exponents[, right exponents]; bits, groups[, right bits])``.

    Both sides are as many groups of rows, one below the other. Each row of a group on the left is multiplied with
    each row of the same group on the right. Without right exponents these are 0: for integers whose powers of two
    were folded into the left side before it was quantised.
    """

    name = "contract_groups"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        expect(self.name, inputs, *(ElementType.INT64,) * (4 if len(inputs) == 4 else 3))
        left, right = inputs[:2]
        _widths(attributes, left.columns)
        groups = attributes[1]
        if left.columns != right.columns:
            raise ProgramInvalid(f"rows of {left.columns} and of {right.columns} values have no product")
        if groups < 1 or left.rows % groups or right.rows % groups:
            raise ProgramInvalid(f"{groups} groups of {left.rows} and of {right.rows} rows")
        check_terms(self.name, left.columns)
        check_column(self.name, left, inputs[2])
        if len(inputs) == 4:
            check_column(self.name, right, inputs[3])
        return TensorType(ElementType.BINARY64, left.rows, right.rows // groups)

    def units(self, inputs: Sequence[TensorType], output: TensorType, attributes: Attributes) -> int:
        """See Operator."""
        left, right = inputs[:2]
        bits = (attributes[0], *attributes[2:])
        return product_units(self.name, bits, output.values, left.columns, left.values + right.values)

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator."""
        given = [*inputs, _ZERO] if len(inputs) == 3 else inputs
        return product_bounds(given, types[0].columns, _widths(attributes, types[0].columns))

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator."""
        (one, other), groups = _widths(attributes, inputs[0].shape[1]), attributes[1]
        left, right = (values.reshape(groups, -1, values.shape[1]) for values in inputs[:2])
        result = products(arrays, left, right, (one, other))
        result *= arrays.power_of_two(arrays.to_integers(inputs[2] - one.depth)).reshape(groups, -1, 1)
        if len(inputs) == 4:
            result *= arrays.power_of_two(arrays.to_integers(inputs[3] - other.depth)).reshape(groups, 1, -1)
        else:
            result *= 0.5**other.depth
        result += 0.0
        return result.reshape(inputs[0].shape[0], -1)

    def term(
        self, read: Read, inputs: Sequence[TensorType], attributes: Attributes, row: int, column: int, index: int
    ) -> int:
        """See FoldOperator."""
        right = self._right(inputs, attributes, row, column)
        return self.product(_widths(attributes, inputs[0].columns), read(0, row, index), read(1, right, index))

    def finish(
        self, read: Read, inputs: Sequence[TensorType], attributes: Attributes, row: int, column: int, total: int
    ) -> Number:
        """See FoldOperator."""
        exponent = whole(read(2, row, 0), EXPONENT_MIN, EXPONENT_MAX)
        if len(inputs) == 4:
            right = self._right(inputs, attributes, row, column)
            exponent += whole(read(3, right, 0), EXPONENT_MIN, EXPONENT_MAX)
        one, other = _widths(attributes, inputs[0].columns)
        return scaled(total, exponent - one.depth - other.depth)

    def _right(self, inputs: Sequence[TensorType], attributes: Attributes, row: int, column: int) -> int:
        groups = attributes[1]
        return row // (inputs[0].rows // groups) * (inputs[1].rows // groups) + column


CONTRACT_GROUPS: Final = ContractGroups()
