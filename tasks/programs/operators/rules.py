"""What all operators share: checks of shapes and values, work units, the fold of all terms of an element."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final, NamedTuple

from tasks.programs.errors import ElementUndefined, ProgramInvalid
from tasks.programs.operators import Attributes, Context, Read
from tasks.programs.tensors import ElementType, Number, TensorType

__all__ = ["UNITS", "Cost", "Fold", "canonical", "expect", "expect_attributes", "whole", "work"]

_SMALLEST: Final = 2.0**-1022
_LARGEST: Final = float.fromhex("0x1.fffffffffffffp+1023")


class Cost(NamedTuple):
    """Work units of an operator: for each call, each element of the result, and each term that is folded."""

    call: int
    element: int
    term: int = 0


UNITS: Final[dict[str, Cost]] = {
    "add": Cost(40_000, 12),
    "bias_correction": Cost(40_000, 0),
    "bound": Cost(40_000, 12),
    "contract": Cost(160_000, 64, 1),
    "divide": Cost(40_000, 16),
    "exp": Cost(400_000, 240),
    "gather": Cost(80_000, 12),
    "load": Cost(10_000, 0),
    "log": Cost(400_000, 280),
    "multiply": Cost(40_000, 12),
    "one_hot": Cost(80_000, 24),
    "quantise": Cost(80_000, 24),
    "row_exponent": Cost(160_000, 16, 16),
    "row_maximum": Cost(80_000, 8, 8),
    "row_sum": Cost(160_000, 16, 32),
    "sample_order": Cost(400_000, 400),
    "scalar": Cost(40_000, 0),
    "scale_bytes": Cost(40_000, 16),
    "select": Cost(80_000, 24),
    "square_root": Cost(80_000, 32),
    "store": Cost(160_000, 64),
    "subtract": Cost(40_000, 12),
    "transpose": Cost(10_000, 0),
}
"""About the time of one multiplication and addition in a large contraction (docs/decisions/0035-programs.md)."""


def work(name: str, output: TensorType, terms: int = 0) -> int:
    """Return the work units of a call that gives ``output`` and folds ``terms`` terms in all."""
    cost = UNITS[name]
    return cost.call + cost.element * output.values + cost.term * terms


def expect(name: str, inputs: Sequence[TensorType], *elements: ElementType) -> None:
    """Check the number of inputs and their element types. Raises ProgramInvalid."""
    if tuple(kind.element for kind in inputs) != elements:
        found = ", ".join(kind.element.name for kind in inputs)
        raise ProgramInvalid(f"{name} takes {', '.join(one.name for one in elements) or 'no inputs'}, not {found}")


def expect_attributes(name: str, attributes: Attributes, count: int) -> None:
    """Check the number of attributes. Raises ProgramInvalid."""
    if len(attributes) != count:
        raise ProgramInvalid(f"{name} takes {count} attributes, not {len(attributes)}")


def canonical(value: Number) -> float:
    """Return a binary64 that is zero or normal. Raises ElementUndefined: honest traces hold no others."""
    if isinstance(value, float) and (value == 0.0 or _SMALLEST <= abs(value) <= _LARGEST):
        return value
    raise ElementUndefined(f"{value!r} is subnormal or not finite")


def whole(value: Number, low: int, high: int) -> int:
    """Return an integer from ``low`` to ``high``. Raises ElementUndefined."""
    if isinstance(value, int) and low <= value <= high:
        return value
    raise ElementUndefined(f"{value!r} is no integer from {low} to {high}")


class Fold(ABC):
    """The element function of operators that fold many terms into one integer (``FoldOperator``)."""

    @abstractmethod
    def length(self, inputs: Sequence[TensorType], attributes: Attributes) -> int:
        """See FoldOperator."""

    @abstractmethod
    def term(
        self, read: Read, inputs: Sequence[TensorType], attributes: Attributes, row: int, column: int, index: int
    ) -> int:
        """See FoldOperator."""

    @abstractmethod
    def combine(self, left: int, right: int) -> int:
        """See FoldOperator."""

    @abstractmethod
    def finish(
        self, read: Read, inputs: Sequence[TensorType], attributes: Attributes, row: int, column: int, total: int
    ) -> Number:
        """See FoldOperator."""

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
        total = self.term(read, inputs, attributes, row, column, 0)
        for index in range(1, self.length(inputs, attributes)):
            total = self.combine(total, self.term(read, inputs, attributes, row, column, index))
        return self.finish(read, inputs, attributes, row, column, total)
