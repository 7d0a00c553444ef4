"""What all operators share: checks of shapes and values, work units, the fold of all terms of an element."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from tasks.programs.bounds import Bounds
from tasks.programs.errors import ElementUndefined, ProgramInvalid
from tasks.programs.operators import Attributes, Context, Read
from tasks.programs.tensors import ElementType, Number, TensorType

__all__ = [
    "UNITS",
    "ByElements",
    "Cost",
    "Fold",
    "Moves",
    "canonical",
    "expect",
    "expect_attributes",
    "whole",
    "work",
]

_SMALLEST: Final = 2.0**-1022
_LARGEST: Final = float.fromhex("0x1.fffffffffffffp+1023")


class Cost(NamedTuple):
    """Work units of an operator.

    They are for each call, each element of the result, each term that is folded, and each value that a contraction
    reads: products of few rows take as long as their inputs take to come from memory.
    """

    call: int
    element: int
    term: int = 0
    read: int = 0


UNITS: Final[Mapping[str, Cost]] = MappingProxyType({
    "add": Cost(40_000, 12),
    "bias_correction": Cost(80_000, 0),
    "bound": Cost(60_000, 14),
    "causal": Cost(400_000, 72),
    "contract": Cost(900_000, 64, 1, 12),
    "contract_groups": Cost(900_000, 96, 1, 24),
    "count_from": Cost(300_000, 32, 40),
    "divide": Cost(40_000, 16),
    "draw": Cost(300_000, 40_000),
    "draw_by": Cost(500_000, 80_000),
    "erf": Cost(3_200_000, 1_100),
    "exp": Cost(1_500_000, 500),
    "find": Cost(400_000, 32, 56),
    "first_above": Cost(400_000, 32, 88),
    "gather": Cost(220_000, 40),
    "gather_groups": Cost(700_000, 80),
    "join_heads": Cost(120_000, 16),
    "learning_rate": Cost(80_000, 0),
    "load": Cost(10_000, 0),
    "load_integers": Cost(50_000, 20),
    "log": Cost(1_900_000, 700),
    "loop_flag": Cost(60_000, 0),
    "loop_number": Cost(60_000, 0),
    "loop_rows": Cost(2_200_000, 8_000),
    "loop_weights": Cost(260_000, 12),
    "multiply": Cost(40_000, 12),
    "number": Cost(60_000, 0),
    "one_hot": Cost(260_000, 40),
    "place_rows": Cost(300_000, 24),
    "positions": Cost(350_000, 40),
    "quantise": Cost(440_000, 72),
    "raise_threshold": Cost(260_000, 40),
    "rotary": Cost(4_000_000, 1_000),
    "rotate": Cost(700_000, 88),
    "row_exponent": Cost(750_000, 32, 24),
    "row_maximum": Cost(160_000, 16, 16),
    "row_sum": Cost(900_000, 96, 64),
    "sample_order": Cost(200_000, 8_000),
    "scalar": Cost(60_000, 0),
    "scale_bytes": Cost(120_000, 16),
    "scale_columns": Cost(400_000, 20),
    "scale_rows": Cost(400_000, 24),
    "select": Cost(110_000, 28),
    "share_by": Cost(300_000, 12_000),
    "share_of": Cost(200_000, 8_000),
    "since": Cost(400_000, 72),
    "split_heads": Cost(120_000, 16),
    "square_root": Cost(260_000, 56),
    "step_place": Cost(60_000, 0),
    "store": Cost(480_000, 80),
    "store_integers": Cost(50_000, 20),
    "subtract": Cost(40_000, 12),
    "sum_from": Cost(300_000, 32, 88),
    "sum_up_to": Cost(400_000, 180),
    "temper": Cost(400_000, 80),
    "token_at": Cost(260_000, 40),
    "transpose": Cost(25_000, 0),
    "transpose_groups": Cost(120_000, 80),
    "until": Cost(260_000, 60),
})  # fmt: skip
"""A unit is about one multiplication and addition of a large contraction (docs/decisions/0035-programs.md)."""


def work(name: str, output: TensorType, terms: int = 0, values: int = 0) -> int:
    """Return the work units of a call that gives ``output``, folds ``terms`` terms and reads ``values`` values."""
    cost = UNITS[name]
    return cost.call + cost.element * output.values + cost.term * terms + cost.read * values


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


class ByElements(ABC):
    """The work of operators that cost so much for each value of the result."""

    @property
    @abstractmethod
    def name(self) -> str:
        """See Operator."""

    def units(self, inputs: Sequence[TensorType], output: TensorType, attributes: Attributes) -> int:
        """See Operator."""
        return work(self.name, output)


class Moves(ByElements):
    """Operators whose result has the values of their first input, in the same places or in others."""

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator."""
        return inputs[0]


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
