"""What sampling needs: sums and counts of a row's weights, a threshold, a random integer, and its column.

See market.md 4.6, Sampling. Weights are integers, so every sum is exact, and the order of terms changes nothing.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from hashlib import shake_256
from typing import Final

from tasks.programs.arrays import Array, Arrays
from tasks.programs.bounds import Bounds, Integers, integers
from tasks.programs.errors import ProgramInvalid
from tasks.programs.operators import Attributes, Context, Read
from tasks.programs.operators.rows import TERMS_MAX, WIDTHS, check_column, check_terms
from tasks.programs.operators.rules import ByElements, Fold, expect, expect_attributes, whole, work
from tasks.programs.operators.scalars import NANO
from tasks.programs.permutation import COUNT_MAX
from tasks.programs.tensors import DIMENSION_MAX, ElementType, Number, TensorType

__all__ = [
    "COUNT_FROM",
    "DRAW",
    "FIRST_ABOVE",
    "RAISE_THRESHOLD",
    "SHARE_OF",
    "SUM_FROM",
    "SUM_UP_TO",
    "TOTAL_MAX",
    "WEIGHT_BITS",
    "WEIGHT_MAX",
    "check_thresholds",
    "column_of",
    "drawn",
    "one_of",
    "share_of",
]

WEIGHT_BITS: Final = 28
"""Width of weights."""
WEIGHT_MAX: Final = WIDTHS[WEIGHT_BITS].limit
THRESHOLD_MAX: Final = 2 * WEIGHT_MAX
TOTAL_MAX: Final = WEIGHT_MAX * TERMS_MAX
"""Sum of a row: below 2^53, so engines add in any order."""
_RANDOM_BYTES: Final = 16


def check_thresholds(name: str, rows: int, thresholds: TensorType) -> None:
    """Check that there is one threshold, or one for each row. Raises ProgramInvalid."""
    if thresholds.columns != 1 or thresholds.rows not in (1, rows):
        raise ProgramInvalid(f"{name} of {rows} rows takes one threshold, or one for each")


def one_of(rows: int, row: int) -> int:
    """Return the row of a column that has one row for all rows, or one for each."""
    return row if rows > 1 else 0


class _FromThreshold(Fold):
    """Folds of the integers of a row that are not below the row's threshold plus ``more``."""

    @property
    @abstractmethod
    def name(self) -> str:
        """See Operator."""

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        expect_attributes(self.name, attributes, 1)
        expect(self.name, inputs, ElementType.INT64, ElementType.INT64)
        check_terms(self.name, inputs[0].columns)
        check_thresholds(self.name, inputs[0].rows, inputs[1])
        if not 0 <= attributes[0] <= WEIGHT_MAX:
            raise ProgramInvalid(f"{self.name} raises thresholds by 0 to {WEIGHT_MAX}")
        return TensorType(ElementType.INT64, inputs[0].rows, 1)

    def units(self, inputs: Sequence[TensorType], output: TensorType, attributes: Attributes) -> int:
        """See Operator."""
        return work(self.name, output, inputs[0].values)

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator. Raises ProgramInvalid for weights and thresholds that do not fit their widths."""
        return Integers(0, self.largest(_checked(self.name, inputs)) * types[0].columns)

    @abstractmethod
    def largest(self, weight: int) -> int:
        """Return the largest term, given the largest weight."""

    def length(self, inputs: Sequence[TensorType], attributes: Attributes) -> int:
        """See FoldOperator."""
        return inputs[0].columns

    def term(
        self, read: Read, inputs: Sequence[TensorType], attributes: Attributes, row: int, column: int, index: int
    ) -> int:
        """See FoldOperator."""
        weight, threshold = _weight_of(read, inputs, row, index)
        return self.folded(weight) if weight >= threshold + attributes[0] else 0

    @abstractmethod
    def folded(self, weight: int) -> int:
        """Return the term of a weight that is not below."""

    def combine(self, left: int, right: int) -> int:
        """See FoldOperator."""
        return left + right

    def finish(
        self, read: Read, inputs: Sequence[TensorType], attributes: Attributes, row: int, column: int, total: int
    ) -> Number:
        """See FoldOperator."""
        return whole(total, 0, TOTAL_MAX)


def _checked(name: str, inputs: Sequence[Bounds]) -> int:
    """Return the largest weight. Raises ProgramInvalid for weights and thresholds that do not fit their widths."""
    weights, thresholds = integers(inputs, 0), integers(inputs, 1)
    if max(weights.high, -weights.low) > WEIGHT_MAX:
        raise ProgramInvalid(f"{name} takes weights up to {WEIGHT_MAX}, not {weights.high}")
    if thresholds.low < 0 or thresholds.high > THRESHOLD_MAX:
        raise ProgramInvalid(f"{name} takes thresholds from 0 to {THRESHOLD_MAX}")
    return max(weights.high, 0)


def _weight_of(read: Read, inputs: Sequence[TensorType], row: int, column: int) -> tuple[int, int]:
    """Return a weight and the threshold of its row. Raises ElementUndefined."""
    weight = whole(read(0, row, column), -WEIGHT_MAX, WEIGHT_MAX)
    return weight, whole(read(1, one_of(inputs[1].rows, row), 0), 0, THRESHOLD_MAX)


class SumFrom(_FromThreshold):
    """``sum_from(weights, thresholds; more)``: in each row the sum of the weights from threshold plus more on."""

    name: Final = "sum_from"

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator."""
        weights, thresholds = inputs
        kept = arrays.where(weights >= thresholds + float(attributes[0]), weights, 0.0)
        return arrays.sum_integers(kept, 1) + 0.0

    def largest(self, weight: int) -> int:
        """See _FromThreshold."""
        return weight

    def folded(self, weight: int) -> int:
        """See _FromThreshold."""
        return weight


class CountFrom(_FromThreshold):
    """``count_from(weights, thresholds; more)``: in each row how many weights are from threshold plus more on."""

    name: Final = "count_from"

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator."""
        weights, thresholds = inputs
        return arrays.sum_integers(arrays.to_doubles(weights >= thresholds + float(attributes[0])), 1)

    def largest(self, weight: int) -> int:
        """See _FromThreshold."""
        return 1

    def folded(self, weight: int) -> int:
        """See _FromThreshold."""
        return 1


class SumUpTo(Fold):
    """``sum_up_to(weights, thresholds)``: for each column the sum up to it of weights from the threshold on."""

    name: Final = "sum_up_to"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        expect_attributes(self.name, attributes, 0)
        expect(self.name, inputs, ElementType.INT64, ElementType.INT64)
        check_terms(self.name, inputs[0].columns)
        check_thresholds(self.name, inputs[0].rows, inputs[1])
        return inputs[0]

    def units(self, inputs: Sequence[TensorType], output: TensorType, attributes: Attributes) -> int:
        """See Operator. An engine adds each value of a row once."""
        return work(self.name, output)

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator. Raises ProgramInvalid for weights and thresholds that do not fit their widths."""
        return Integers(0, _checked(self.name, inputs) * types[0].columns)

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator."""
        weights, thresholds = inputs
        return arrays.running_sums(arrays.where(weights >= thresholds, weights, 0.0)) + 0.0

    def length(self, inputs: Sequence[TensorType], attributes: Attributes) -> int:
        """See FoldOperator."""
        return inputs[0].columns

    def term(
        self, read: Read, inputs: Sequence[TensorType], attributes: Attributes, row: int, column: int, index: int
    ) -> int:
        """See FoldOperator."""
        if index > column:
            return 0
        weight, threshold = _weight_of(read, inputs, row, index)
        return weight if weight >= threshold else 0

    def combine(self, left: int, right: int) -> int:
        """See FoldOperator."""
        return left + right

    def finish(
        self, read: Read, inputs: Sequence[TensorType], attributes: Attributes, row: int, column: int, total: int
    ) -> Number:
        """See FoldOperator."""
        return whole(total, 0, TOTAL_MAX)


class FirstAbove(Fold):
    """``first_above(sums, wanted)``: in each row the first column whose integer exceeds the row's wanted one.

    It is the number of columns if there is none.
    """

    name: Final = "first_above"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        expect_attributes(self.name, attributes, 0)
        expect(self.name, inputs, ElementType.INT64, ElementType.INT64)
        check_terms(self.name, inputs[0].columns)
        check_column(self.name, inputs[0], inputs[1])
        return TensorType(ElementType.INT64, inputs[0].rows, 1)

    def units(self, inputs: Sequence[TensorType], output: TensorType, attributes: Attributes) -> int:
        """See Operator."""
        return work(self.name, output, inputs[0].values)

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator. Raises ProgramInvalid for integers beyond the largest sum."""
        for at in range(2):
            found = integers(inputs, at)
            if found.low < 0 or found.high > TOTAL_MAX:
                raise ProgramInvalid(f"{self.name} takes integers from 0 to {TOTAL_MAX}")
        return Integers(0, types[0].columns)

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator."""
        sums, wanted = inputs
        columns = sums.shape[1]
        before = arrays.where(sums > wanted, columns - arrays.counting(columns), 0.0)
        return columns - arrays.amax(before, 1) + 0.0

    def length(self, inputs: Sequence[TensorType], attributes: Attributes) -> int:
        """See FoldOperator."""
        return inputs[0].columns

    def term(
        self, read: Read, inputs: Sequence[TensorType], attributes: Attributes, row: int, column: int, index: int
    ) -> int:
        """See FoldOperator."""
        is_above = whole(read(0, row, index), 0, TOTAL_MAX) > whole(read(1, row, 0), 0, TOTAL_MAX)
        return index if is_above else inputs[0].columns

    def combine(self, left: int, right: int) -> int:
        """See FoldOperator."""
        return min(left, right)

    def finish(
        self, read: Read, inputs: Sequence[TensorType], attributes: Attributes, row: int, column: int, total: int
    ) -> Number:
        """See FoldOperator."""
        return whole(total, 0, inputs[0].columns)


class RaiseThreshold(ByElements):
    """``raise_threshold(thresholds, found, goal; more)``: the threshold, plus more where found reaches the goal.

    One threshold or one goal may serve all rows.
    """

    name: Final = "raise_threshold"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        expect_attributes(self.name, attributes, 1)
        expect(self.name, inputs, *[ElementType.INT64] * 3)
        found = inputs[1]
        if found.columns != 1:
            raise ProgramInvalid(f"{self.name} takes columns")
        for kind in (inputs[0], inputs[2]):
            check_thresholds(self.name, found.rows, kind)
        if not 0 <= attributes[0] <= WEIGHT_MAX:
            raise ProgramInvalid(f"{self.name} raises thresholds by 0 to {WEIGHT_MAX}")
        return found

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator. Raises ProgramInvalid for numbers that no threshold, sum or goal is."""
        thresholds, found, goal = (integers(inputs, at) for at in range(3))
        if thresholds.low < 0 or thresholds.high + attributes[0] > THRESHOLD_MAX:
            raise ProgramInvalid(f"a threshold of {thresholds.high} that is raised by {attributes[0]}")
        if min(found.low, goal.low) < 0 or max(found.high, goal.high) > TOTAL_MAX:
            raise ProgramInvalid(f"{self.name} takes sums and goals from 0 to {TOTAL_MAX}")
        return Integers(thresholds.low, thresholds.high + attributes[0])

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator."""
        thresholds, found, goal = inputs
        return thresholds + arrays.where(found >= goal, float(attributes[0]), 0.0)

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
        threshold = whole(read(0, one_of(inputs[0].rows, row), 0), 0, THRESHOLD_MAX)
        goal = whole(read(2, one_of(inputs[2].rows, row), 0), 0, TOTAL_MAX)
        return threshold + (attributes[0] if whole(read(1, row, 0), 0, TOTAL_MAX) >= goal else 0)


def share_of(total: int, nano: int) -> int:
    """Return the share ``nano * 10^-9`` of a sum, rounded up, and 1 at least."""
    return max(1, -(-total * nano // NANO))


class ShareOf(ByElements):
    """``share_of(totals; nano)``: ``ceil(total * nano / 10^9)``, and 1 at least."""

    name: Final = "share_of"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        expect_attributes(self.name, attributes, 1)
        expect(self.name, inputs, ElementType.INT64)
        if inputs[0].columns != 1 or not 0 <= attributes[0] <= NANO:
            raise ProgramInvalid(f"{self.name} takes a column and a share of 0 to {NANO} units of 10^-9")
        return inputs[0]

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator. Raises ProgramInvalid for numbers that no sum is."""
        totals = integers(inputs, 0)
        if totals.low < 0 or totals.high > TOTAL_MAX:
            raise ProgramInvalid(f"{self.name} takes sums from 0 to {TOTAL_MAX}")
        return Integers(share_of(totals.low, attributes[0]), share_of(totals.high, attributes[0]))

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator. Products have up to 77 bits, one for each row: Python's integers take them."""
        totals = arrays.store(inputs[0])[:, 0]
        return column_of(arrays, [share_of(int(total), attributes[0]) for total in totals])

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
        return share_of(whole(read(0, row, 0), 0, TOTAL_MAX), attributes[0])


def column_of(arrays: Arrays, values: Sequence[int]) -> Array:
    """Return integers as a column."""
    import numpy as np  # the judge of a dispute imports this module and needs no NumPy

    return arrays.load(np.array(values, dtype=np.float64).reshape(-1, 1))


def drawn(seed: bytes, row: int, place: int, total: int) -> int:
    """Return the random integer below ``total`` of a place of a row; 0 where ``total`` is 0.

    Each integer is as likely as any other but for 2^-81.
    """
    label = b"dekube token draw\x00" + seed + row.to_bytes(8, "big") + place.to_bytes(8, "big")
    number = int.from_bytes(shake_256(label).digest(_RANDOM_BYTES), "big")
    return number * total >> 8 * _RANDOM_BYTES


class Draw(ByElements):
    """``draw(totals, rows, places)``: for each row a random integer below its total, by seed and place.

    ``rows`` are the numbers of the rows in the job. One place may serve all rows.
    """

    name: Final = "draw"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        expect_attributes(self.name, attributes, 0)
        expect(self.name, inputs, *[ElementType.INT64] * 3)
        totals, rows, places = inputs
        if totals.columns != 1 or rows != totals:
            raise ProgramInvalid(f"{self.name} takes a total and a number for each row")
        check_thresholds(self.name, totals.rows, places)
        return totals

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator. Raises ProgramInvalid for numbers that no sum, row or place has."""
        totals, rows, places = (integers(inputs, at) for at in range(3))
        if min(totals.low, rows.low, places.low) < 0 or totals.high > TOTAL_MAX:
            raise ProgramInvalid(f"{self.name} takes sums from 0 to {TOTAL_MAX}")
        if rows.high > COUNT_MAX or places.high > DIMENSION_MAX:
            raise ProgramInvalid(f"{self.name} takes rows up to {COUNT_MAX}, places up to {DIMENSION_MAX}")
        return Integers(0, max(totals.high - 1, 0))

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator. There is one hash for each row."""
        totals, rows, places = ([int(value) for value in arrays.store(one)[:, 0]] for one in inputs)
        if len(places) == 1:
            places *= len(rows)
        found = zip(rows, places, totals, strict=True)
        return column_of(arrays, [drawn(context.seed, *one) for one in found])

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
        total = whole(read(0, row, 0), 0, TOTAL_MAX)
        number = whole(read(1, row, 0), 0, COUNT_MAX)
        place = whole(read(2, one_of(inputs[2].rows, row), 0), 0, DIMENSION_MAX)
        return drawn(context.seed, number, place, total)


SUM_FROM: Final = SumFrom()
COUNT_FROM: Final = CountFrom()
SUM_UP_TO: Final = SumUpTo()
FIRST_ABOVE: Final = FirstAbove()
RAISE_THRESHOLD: Final = RaiseThreshold()
SHARE_OF: Final = ShareOf()
DRAW: Final = Draw()
