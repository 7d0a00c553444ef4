"""What an operator of a program is: shape rule, work units, kernel, and the reference function of one element.

See market.md 4.6. The kernel runs on an array engine. The reference functions are what the judge of a dispute
runs: pure Python integers and IEEE 754 binary64. Both must give the same bits for every canonical input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from tasks.programs.bounds import Bounds
from tasks.programs.tensors import Number, TensorType

__all__ = ["FOLD_BITS_MAX", "Attributes", "Context", "FoldOperator", "Operator", "Read"]

FOLD_BITS_MAX: Final = 64
"""Bits of a partial fold, its sign included."""

Attributes = tuple[int, ...]
"""Integers that are part of the operator's call, for example a width in bits."""
Read = Callable[[int, int, int], Number]
"""``read(input, row, column)`` gives one value of the call's input number ``input``."""


class Context(NamedTuple):
    """What differs from step to step beside tensors: the step's number from 0, and the job's seed."""

    step: int
    seed: bytes


class Operator(Protocol):
    """One operator. An elementwise operator gives its element from few values of its inputs."""

    @property
    def name(self) -> str:
        """The name that stands in programs."""

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """Return the type of the result. Raises ProgramInvalid where the inputs or attributes do not fit."""

    def units(self, inputs: Sequence[TensorType], output: TensorType, attributes: Attributes) -> int:
        """Return the work units of one call."""

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """Return between what the result lies, given the same for the inputs. Raises ProgramInvalid.

        With these bounds neither kernel nor reference meets a subnormal or non-finite number.
        """

    def run(self, arrays: Any, inputs: Sequence[Any], attributes: Attributes, context: Context) -> Any:
        """Return the result on an array engine (``tasks.programs.arrays``).

        Tensors of bytes are arrays of bytes; all others are float64 arrays. The result may share memory with an
        input: nobody writes to either.
        """

    def element(
        self,
        read: Read,
        inputs: Sequence[TensorType],
        attributes: Attributes,
        context: Context,
        row: int,
        column: int,
    ) -> Number:
        """Return one value of the result. Raises ElementUndefined. A fold operator computes all its terms."""


class FoldOperator(Operator, Protocol):
    """An operator whose element folds many terms into one integer, by sums or by the maximum.

    ``element`` equals ``finish(fold of term(0 .. length - 1))``. Partial folds are Python integers of any size
    within FOLD_BITS_MAX bits; order does not change a fold.
    """

    def length(self, inputs: Sequence[TensorType], attributes: Attributes) -> int:
        """Return the number of terms of one element."""

    def term(
        self, read: Read, inputs: Sequence[TensorType], attributes: Attributes, row: int, column: int, index: int
    ) -> int:
        """Return one term. Raises ElementUndefined."""

    def combine(self, left: int, right: int) -> int:
        """Return the fold of two partial folds."""

    def finish(
        self, read: Read, inputs: Sequence[TensorType], attributes: Attributes, row: int, column: int, total: int
    ) -> Number:
        """Return the element from the fold of all terms and values that belong to the whole element."""
