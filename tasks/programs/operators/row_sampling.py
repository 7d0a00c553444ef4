"""Sampling with numbers of each row's own: a temperature, a share, and the key of its random integers (R136).

Beside the operators of ``sampling``, which take one number for all rows of a job.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import shake_256
from typing import Final

from tasks.programs.arrays import Array, Arrays
from tasks.programs.bounds import Bounds, Integers, Magnitudes, integers, magnitudes
from tasks.programs.errors import ProgramInvalid
from tasks.programs.operators import Attributes, Context, Read
from tasks.programs.operators.rows import check_column
from tasks.programs.operators.rules import ByElements, canonical, expect, expect_attributes, whole
from tasks.programs.operators.sampling import TOTAL_MAX, check_thresholds, column_of, one_of, share_of
from tasks.programs.operators.scalars import NANO
from tasks.programs.tensors import DIMENSION_MAX, ElementType, Number, TensorType

__all__ = [
    "DRAW_BY",
    "KEY_COLUMNS",
    "KEY_PART_MAX",
    "MICRO",
    "SHARE_BY",
    "TEMPER",
    "TEMPERATURE_MICRO_MAX",
    "key_of",
]

MICRO: Final = 1_000_000
"""Units of a row's temperature in one."""
TEMPERATURE_MICRO_MAX: Final = 100 * MICRO
KEY_COLUMNS: Final = 4
KEY_PART_MAX: Final = (1 << 31) - 1
"""Of a key: four integers of 31 bits. One of zeros draws the first token that is left."""
_FAR_EXPONENT: Final = 61
_FAR: Final = -(2.0**_FAR_EXPONENT)
_RANDOM_BYTES: Final = 16
_TEMPERATURES: Final = Magnitudes(-20, 6, zero=False, negative=False)
"""Between 10^-6 and 100."""


class Temper(ByElements):
    """``temper(values, temperatures)``: each row by its temperature; with 0 what is not zero is far below.

    Temperatures are in units of 10^-6.
    """

    name: Final = "temper"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        expect_attributes(self.name, attributes, 0)
        expect(self.name, inputs, ElementType.BINARY64, ElementType.INT64)
        check_column(self.name, inputs[0], inputs[1])
        return inputs[0]

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator. Raises ProgramInvalid for numbers that are no temperature."""
        found = integers(inputs, 1)
        if found.low < 0 or found.high > TEMPERATURE_MICRO_MAX:
            raise ProgramInvalid(f"{self.name} takes temperatures from 0 to {TEMPERATURE_MICRO_MAX}")
        far = Magnitudes(_FAR_EXPONENT, _FAR_EXPONENT, zero=False, positive=False)
        return magnitudes(inputs, 0).over(_TEMPERATURES).either(far)._replace(zero=True)

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator."""
        values, temperatures = inputs
        is_zero = temperatures == 0
        by = arrays.where(is_zero, 1.0, temperatures / arrays.constant(float(MICRO)))
        far = arrays.where(values == 0, 0.0, _FAR)
        return arrays.where(is_zero, far, values / by)

    def element(
        self, read: Read, inputs: Sequence[TensorType], attributes: Attributes, context: Context, row: int,
        column: int,
    ) -> Number:  # fmt: skip
        """See Operator."""
        temperature = whole(read(1, row, 0), 0, TEMPERATURE_MICRO_MAX)
        value = canonical(read(0, row, column))
        if not temperature:
            return _FAR if value else 0.0
        return canonical(value / (temperature / MICRO))


class ShareBy(ByElements):
    """``share_by(totals, shares)``: ``share_of`` with a share for each row, in units of 10^-9."""

    name: Final = "share_by"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        expect_attributes(self.name, attributes, 0)
        expect(self.name, inputs, ElementType.INT64, ElementType.INT64)
        if inputs[0].columns != 1 or inputs[1] != inputs[0]:
            raise ProgramInvalid(f"{self.name} takes a sum and a share for each row")
        return inputs[0]

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator. Raises ProgramInvalid for numbers that no sum or share is."""
        totals, shares = (integers(inputs, at) for at in range(2))
        if totals.low < 0 or totals.high > TOTAL_MAX or shares.low < 0 or shares.high > NANO:
            raise ProgramInvalid(f"{self.name} takes sums from 0 to {TOTAL_MAX}, shares from 0 to {NANO}")
        return Integers(share_of(totals.low, shares.low), share_of(totals.high, shares.high))

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator. Products have up to 77 bits, one for each row: Python's integers take them."""
        totals, shares = ([int(value) for value in arrays.store(one)[:, 0]] for one in inputs)
        return column_of(arrays, [share_of(*one) for one in zip(totals, shares, strict=True)])

    def element(
        self, read: Read, inputs: Sequence[TensorType], attributes: Attributes, context: Context, row: int,
        column: int,
    ) -> Number:  # fmt: skip
        """See Operator."""
        return share_of(whole(read(0, row, 0), 0, TOTAL_MAX), whole(read(1, row, 0), 0, NANO))


def key_of(seed: bytes) -> tuple[int, ...]:
    """Return the key of a row's random integers, of the bytes of its seed."""
    found = shake_256(b"dekube row key\x00" + seed).digest(4 * KEY_COLUMNS)
    return tuple(int.from_bytes(found[at : at + 4], "big") >> 1 for at in range(0, 4 * KEY_COLUMNS, 4))


def drawn_by(key: Sequence[int], place: int, total: int) -> int:
    """Return the random integer below ``total`` of a place, by the key of its row; 0 for a key of zeros."""
    if not any(key):
        return 0
    label = b"dekube row draw\x00" + b"".join(part.to_bytes(4, "big") for part in key) + place.to_bytes(8, "big")
    number = int.from_bytes(shake_256(label).digest(_RANDOM_BYTES), "big")
    return number * total >> 8 * _RANDOM_BYTES


class DrawBy(ByElements):
    """``draw_by(totals, keys, places)``: for each row a random integer below its total, by key and place.

    A key has KEY_COLUMNS columns. One place may serve all rows.
    """

    name: Final = "draw_by"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        expect_attributes(self.name, attributes, 0)
        expect(self.name, inputs, *[ElementType.INT64] * 3)
        totals, keys, places = inputs
        if totals.columns != 1 or (keys.rows, keys.columns) != (totals.rows, KEY_COLUMNS):
            raise ProgramInvalid(f"{self.name} takes a total and a key of {KEY_COLUMNS} integers for each row")
        check_thresholds(self.name, totals.rows, places)
        return totals

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator. Raises ProgramInvalid for numbers that no sum, key or place has."""
        totals, keys, places = (integers(inputs, at) for at in range(3))
        if min(totals.low, keys.low, places.low) < 0 or totals.high > TOTAL_MAX:
            raise ProgramInvalid(f"{self.name} takes sums from 0 to {TOTAL_MAX}")
        if keys.high > KEY_PART_MAX or places.high > DIMENSION_MAX:
            raise ProgramInvalid(f"{self.name} takes keys up to {KEY_PART_MAX}, places up to {DIMENSION_MAX}")
        return Integers(0, max(totals.high - 1, 0))

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator. There is one hash for each row."""
        totals, places = ([int(value) for value in arrays.store(inputs[at])[:, 0]] for at in (0, 2))
        keys = [[int(part) for part in row] for row in arrays.store(inputs[1])]
        if len(places) == 1:
            places *= len(keys)
        found = zip(keys, places, totals, strict=True)
        return column_of(arrays, [drawn_by(*one) for one in found])

    def element(
        self, read: Read, inputs: Sequence[TensorType], attributes: Attributes, context: Context, row: int,
        column: int,
    ) -> Number:  # fmt: skip
        """See Operator."""
        total = whole(read(0, row, 0), 0, TOTAL_MAX)
        key = [whole(read(1, row, at), 0, KEY_PART_MAX) for at in range(KEY_COLUMNS)]
        place = whole(read(2, one_of(inputs[2].rows, row), 0), 0, DIMENSION_MAX)
        return drawn_by(key, place, total)


TEMPER: Final = Temper()
SHARE_BY: Final = ShareBy()
DRAW_BY: Final = DrawBy()
