"""Between stored and computed values: binary32 to binary64 and back, bytes to fractions (market.md 4.6)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from tasks.programs.arrays import Array, Arrays
from tasks.programs.bounds import Bounds, Magnitudes, magnitudes
from tasks.programs.errors import ElementDiverged, ElementUndefined, ProgramInvalid, StoreDiverged
from tasks.programs.operators import Attributes, Context, Read
from tasks.programs.operators.rules import ByElements, Moves, canonical, expect, expect_attributes, whole
from tasks.programs.tensors import ElementType, Number, TensorType

__all__ = [
    "LOAD",
    "SCALE_BYTES",
    "STORE",
    "STORED_EXPONENT_MAX",
    "STORED_EXPONENT_MIN",
    "diverged_content",
    "first_diverged",
    "stored_bounds",
]

STORED_EXPONENT_MIN: Final = -100
"""Stored magnitudes below 2^-100 are zero: no engine meets a subnormal binary32."""
STORED_EXPONENT_MAX: Final = 100
"""Highest limit of a store: stored magnitudes are below 2^100."""
SHIFT_MAX: Final = 8
_BYTE_MAX: Final = 255


def stored_bounds(limit: int) -> Magnitudes:
    """Return the bounds of stored values with ``limit``."""
    return Magnitudes(STORED_EXPONENT_MIN, limit - 1)


def first_diverged(values: bytes, limit: int) -> int:
    """Return the place of the first binary64 value that cannot be stored. Raises ValueError if there is none."""
    for place, (value,) in enumerate(struct.iter_unpack("<d", values)):
        try:
            stored(value, limit)
        except ElementUndefined:
            return place
    raise ValueError("each value can be stored")


class Load(Moves):
    """``load(stored)``: binary32 as binary64."""

    name: Final = "load"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        expect_attributes(self.name, attributes, 0)
        expect(self.name, inputs, ElementType.BINARY32)
        return inputs[0]._replace(element=ElementType.BINARY64)

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator. Engines hold stored values as binary64."""
        return inputs[0]

    def element(
        self,
        read: Read,
        inputs: Sequence[TensorType],
        attributes: Attributes,
        context: Context,
        row: int,
        column: int,
    ) -> Number:
        """See Operator. Raises ElementUndefined for what no store gives."""
        value = canonical(read(0, row, column))
        if value != stored(value, STORED_EXPONENT_MAX):
            raise ElementUndefined(f"{value!r} is no stored value")
        return value


def stored(value: float, limit: int) -> float:
    """Return what is stored of a binary64. Raises ElementUndefined from 2^limit on: the training has diverged."""
    if abs(value) < 2.0 ** (STORED_EXPONENT_MIN - 1):
        return 0.0
    if abs(value) < 2.0**limit:
        rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
        if abs(rounded) < 2.0**STORED_EXPONENT_MIN:
            return 0.0
        if abs(rounded) < 2.0**limit:
            return rounded
    raise ElementUndefined(f"{value!r} is not below 2^{limit}")


def diverged_content(values: bytes, limit: int, mark: bytes) -> bytes:
    """Return what a diverged store makes of binary64 values: ``mark``, of 4 bytes, where no value is right."""
    found = bytearray()
    for (value,) in struct.iter_unpack("<d", values):
        try:
            found += struct.pack("<f", stored(value, limit))
        except ElementUndefined:
            found += mark
    return bytes(found)


class Store(ByElements):
    """``store(values; limit)``: rounded to binary32, halves to even; below 2^-100 it is +0.

    From 2^limit on the computation has diverged.
    """

    name: Final = "store"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        expect_attributes(self.name, attributes, 1)
        if not STORED_EXPONENT_MIN < attributes[0] <= STORED_EXPONENT_MAX:
            raise ProgramInvalid(f"a store below 2^{attributes[0]}")
        expect(self.name, inputs, ElementType.BINARY64)
        return inputs[0]._replace(element=ElementType.BINARY32)

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator."""
        values = magnitudes(inputs, 0)
        return stored_bounds(attributes[0])._replace(negative=values.negative, positive=values.positive)

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator. Raises StoreDiverged."""
        result = arrays.round_to_single(inputs[0], 2.0**STORED_EXPONENT_MIN)
        if not arrays.all_below(result, 2.0 ** attributes[0]):
            raise StoreDiverged(f"a value is not below 2^{attributes[0]}")
        return result

    def element(
        self,
        read: Read,
        inputs: Sequence[TensorType],
        attributes: Attributes,
        context: Context,
        row: int,
        column: int,
    ) -> Number:
        """See Operator. Raises ElementDiverged too."""
        value = canonical(read(0, row, column))
        try:
            return stored(value, attributes[0])
        except ElementUndefined as error:
            raise ElementDiverged(str(error)) from None


class ScaleBytes(ByElements):
    """``scale_bytes(bytes; shift)``: each byte times 2^-shift."""

    name: Final = "scale_bytes"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        expect_attributes(self.name, attributes, 1)
        if not 0 <= attributes[0] <= SHIFT_MAX:
            raise ProgramInvalid(f"a shift of 0 to {SHIFT_MAX} bits, not {attributes[0]}")
        expect(self.name, inputs, ElementType.UINT8)
        return inputs[0]._replace(element=ElementType.BINARY64)

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator."""
        return Magnitudes(-attributes[0], 7 - attributes[0], True, False)

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator."""
        return arrays.to_doubles(inputs[0]) * 0.5 ** attributes[0]

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
        return whole(read(0, row, column), 0, _BYTE_MAX) * 0.5 ** attributes[0]


LOAD: Final = Load()
STORE: Final = Store()
SCALE_BYTES: Final = ScaleBytes()
