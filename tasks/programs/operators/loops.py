"""Operators about the training loop: the rows of a step, which of them count, and what ends (market.md 4.6).

Their first six attributes are those of ``Loop``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tasks.programs.arrays import Array, Arrays
from tasks.programs.bounds import Bounds, Integers, Magnitudes
from tasks.programs.errors import ProgramInvalid
from tasks.programs.loop import EVALUATIONS_MAX, UPDATES_MAX, Loop
from tasks.programs.operators import Attributes, Context, Read
from tasks.programs.operators.rules import ByElements, expect, expect_attributes
from tasks.programs.operators.scalars import sample_numbers
from tasks.programs.permutation import COUNT_MAX, order_keys, permuted
from tasks.programs.tensors import ElementType, Number, TensorType

__all__ = ["FLAGS", "LOOP_FLAG", "LOOP_NUMBER", "LOOP_ROWS", "LOOP_WEIGHTS", "NUMBERS"]

FLAGS: Final = ("goes_on", "updates", "evaluates", "begins")
"""What ``loop_flag`` tells: the update or evaluation goes on after the step; weights change with it; an evaluation
is complete with it; the evaluation that it belongs to is the job's first."""
NUMBERS: Final = ("update", "evaluation")
"""What ``loop_number`` gives: the number of the update; that of the evaluation that is complete with the step."""
_LOOP: Final = len(Loop._fields)


def _loop(name: str, inputs: Sequence[TensorType], attributes: Attributes, more: int) -> Loop:
    """Return the loop of a call without inputs. Raises ProgramInvalid."""
    expect_attributes(name, attributes, _LOOP + more)
    expect(name, inputs)
    return Loop(*attributes[:_LOOP]).check()


class LoopRows(ByElements):
    """``loop_rows(; loop)``: the rows of a step, one below the other.

    Rows that fill up the last batch of an epoch repeat its last one, so no exponent of a sum changes by them.
    """

    name: Final = "loop_rows"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        return TensorType(ElementType.INT64, _loop(self.name, inputs, attributes, 0).batch, 1)

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator."""
        return Integers(0, Loop(*attributes).rows - 1)

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator."""
        import numpy as np  # the judge of a dispute imports this module and needs no NumPy

        loop = Loop(*attributes)
        moment = loop.at(context.step)
        places = np.minimum(np.arange(loop.batch), moment.counted - 1)
        if moment.evaluation >= 0:
            rows = loop.train_rows + moment.first + places
        else:
            order = sample_numbers(context.seed, moment.epoch, loop.train_rows, moment.first, moment.counted)
            rows = order[places]
        return arrays.load(rows.reshape(-1, 1))

    def element(
        self, read: Read, inputs: Sequence[TensorType], attributes: Attributes, context: Context, row: int,
        column: int,
    ) -> Number:  # fmt: skip
        """See Operator."""
        loop = Loop(*attributes)
        moment = loop.at(context.step)
        place = moment.first + min(row, moment.counted - 1)
        if moment.evaluation >= 0:
            return loop.train_rows + place
        return permuted(place, loop.train_rows, order_keys(context.seed, moment.epoch))


class LoopWeights(ByElements):
    """``loop_weights(; loop, each)``: a column with ``each`` values for a row of the step: 1 where it counts."""

    name: Final = "loop_weights"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        loop = _loop(self.name, inputs, attributes, 1)
        if not 1 <= attributes[_LOOP] <= COUNT_MAX:
            raise ProgramInvalid(f"{attributes[_LOOP]} values for a row")
        return TensorType(ElementType.BINARY64, loop.batch * attributes[_LOOP], 1)

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator."""
        return Magnitudes(0, 0, True, False)

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator."""
        import numpy as np

        loop, each = Loop(*attributes[:_LOOP]), attributes[_LOOP]
        counted = loop.at(context.step).counted
        return arrays.load((np.arange(loop.batch * each) < counted * each).astype(np.float64).reshape(-1, 1))

    def element(
        self, read: Read, inputs: Sequence[TensorType], attributes: Attributes, context: Context, row: int,
        column: int,
    ) -> Number:  # fmt: skip
        """See Operator."""
        moment = Loop(*attributes[:_LOOP]).at(context.step)
        return 1.0 if row < moment.counted * attributes[_LOOP] else 0.0


class LoopFlag(ByElements):
    """``loop_flag(; loop, what)``: 1 where FLAGS[what] is true of the step, otherwise 0."""

    name: Final = "loop_flag"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        _loop(self.name, inputs, attributes, 1)
        if not 0 <= attributes[_LOOP] < len(FLAGS):
            raise ProgramInvalid(f"there is no flag {attributes[_LOOP]} of a loop")
        return TensorType(ElementType.BINARY64, 1, 1)

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator."""
        return Magnitudes(0, 0, True, False)

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator."""
        return arrays.constant(_flag(attributes, context.step))

    def element(
        self, read: Read, inputs: Sequence[TensorType], attributes: Attributes, context: Context, row: int,
        column: int,
    ) -> Number:  # fmt: skip
        """See Operator."""
        return _flag(attributes, context.step)


def _flag(attributes: Attributes, step: int) -> float:
    moment = Loop(*attributes[:_LOOP]).at(step)
    trains = moment.evaluation < 0
    found = (not moment.ends, moment.ends and trains, moment.ends and not trains, moment.evaluation == 0)
    return float(found[attributes[_LOOP]])


class LoopNumber(ByElements):
    """``loop_number(; loop, what)``: the number NUMBERS[what] of the step.

    That of an evaluation is EVALUATIONS_MAX where none is complete with the step.
    """

    name: Final = "loop_number"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        _loop(self.name, inputs, attributes, 1)
        if not 0 <= attributes[_LOOP] < len(NUMBERS):
            raise ProgramInvalid(f"there is no number {attributes[_LOOP]} of a loop")
        return TensorType(ElementType.INT64, 1, 1)

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator."""
        return Integers(0, EVALUATIONS_MAX if attributes[_LOOP] else UPDATES_MAX)

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator."""
        return arrays.constant(float(_number(attributes, context.step)))

    def element(
        self, read: Read, inputs: Sequence[TensorType], attributes: Attributes, context: Context, row: int,
        column: int,
    ) -> Number:  # fmt: skip
        """See Operator."""
        return _number(attributes, context.step)


def _number(attributes: Attributes, step: int) -> int:
    moment = Loop(*attributes[:_LOOP]).at(step)
    if not attributes[_LOOP]:
        return moment.update
    return moment.evaluation if moment.ends and moment.evaluation >= 0 else EVALUATIONS_MAX


LOOP_ROWS: Final = LoopRows()
LOOP_WEIGHTS: Final = LoopWeights()
LOOP_FLAG: Final = LoopFlag()
LOOP_NUMBER: Final = LoopNumber()
