"""Operators without inputs: constants, AdamW's corrections of a step, the samples of a step (market.md 4.6)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from math import frexp
from typing import TYPE_CHECKING, Final

from tasks.programs.arrays import Array, Arrays
from tasks.programs.bounds import Bounds, Integers, Magnitudes, integers
from tasks.programs.errors import ElementUndefined, ProgramInvalid
from tasks.programs.operators import Attributes, Context, Read
from tasks.programs.operators.rules import UNITS, ByElements, canonical, expect, expect_attributes, whole
from tasks.programs.permutation import COUNT_MAX, feistel, order_keys, permuted, width_of
from tasks.programs.tensors import ElementType, Number, TensorType

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "BIAS_CORRECTION",
    "NANO",
    "NUMBER_MAX",
    "SAMPLE_ORDER",
    "SCALAR",
    "bits_value",
    "check_number",
    "constant_bits",
    "expect_number",
    "order_units",
    "sample_numbers",
]

NANO: Final = 1_000_000_000
EPOCH_UNITS: Final = 2_000_000
"""Work units of a batch's samples for each epoch that they fill: the keys of its order, and a few dozen calls."""
NUMBER_MAX: Final = 1 << 40
"""Of an update that an operator is given."""
_NEGLIGIBLE: Final = 2.0**-100
_PLACES: Final = 4_096
"""Places of an epoch that the kernel computes at once and keeps."""


def constant_bits(value: float) -> int:
    """Return the attribute of ``scalar`` for a constant. Raises ElementUndefined for one that is not canonical."""
    found: int = struct.unpack(">Q", struct.pack(">d", canonical(value) + 0.0))[0]
    return found


def bits_value(bits: int) -> float:
    """Return the binary64 with these bits. Raises struct.error for what are not 64 bits."""
    value: float = struct.unpack(">d", struct.pack(">Q", bits))[0]
    return value


class Scalar(ByElements):
    """``scalar(; bits)``: one constant, given as the bits of a binary64."""

    name: Final = "scalar"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        expect_attributes(self.name, attributes, 1)
        expect(self.name, inputs)
        try:
            value = bits_value(attributes[0])
            canonical(value)
        except (struct.error, ElementUndefined):
            raise ProgramInvalid(f"{attributes[0]:#x} are the bits of no normal number") from None
        if constant_bits(value) != attributes[0]:
            raise ProgramInvalid("a constant of minus zero")
        return TensorType(ElementType.BINARY64, 1, 1)

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator."""
        value = bits_value(attributes[0])
        exponent = frexp(value)[1] - 1 if value else 0
        return Magnitudes(exponent, exponent, value == 0.0, value < 0.0, value > 0.0).check()

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator."""
        return arrays.constant(bits_value(attributes[0]))

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
        return bits_value(attributes[0])


def expect_number(name: str, inputs: Sequence[TensorType]) -> None:
    """Check the inputs of an operator that takes the number of an update, or none. Raises ProgramInvalid."""
    expect(name, inputs, *[ElementType.INT64] * bool(inputs))
    if inputs and (inputs[0].rows, inputs[0].columns) != (1, 1):
        raise ProgramInvalid(f"{name} takes one number")


def check_number(name: str, inputs: Sequence[Bounds]) -> None:
    """Check between what the number of an update lies, if it is given. Raises ProgramInvalid."""
    if inputs and not (integers(inputs, 0).low >= 0 and integers(inputs, 0).high <= NUMBER_MAX):
        raise ProgramInvalid(f"{name} takes a number from 0 to {NUMBER_MAX}")


class BiasCorrection(ByElements):
    """``bias_correction([number]; beta)``: 1 / (1 - beta^(number + 1)), beta in units of 10^-9.

    Without an input the number is that of the step. Powers are by squaring.
    """

    name: Final = "bias_correction"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        expect_attributes(self.name, attributes, 1)
        expect_number(self.name, inputs)
        if not 0 <= attributes[0] < NANO:
            raise ProgramInvalid(f"a decay of {attributes[0]} units of 10^-9")
        return TensorType(ElementType.BINARY64, 1, 1)

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator."""
        check_number(self.name, inputs)
        return Magnitudes(0, NANO.bit_length(), False, False)

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator."""
        step = int(arrays.store(inputs[0])[0, 0]) if inputs else context.step
        return arrays.constant(_correction(attributes[0], step + 1))

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
        step = whole(read(0, 0, 0), 0, NUMBER_MAX) if inputs else context.step
        return _correction(attributes[0], step + 1)


def _correction(beta_nano: int, exponent: int) -> float:
    return 1.0 / (1.0 - _power(beta_nano / NANO, exponent))


def _power(base: float, exponent: int) -> float:
    """Return base^exponent for a base below 1. What falls below 2^-100 is zero: nothing becomes subnormal."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result = _or_nothing(result * base)
        base = _or_nothing(base * base)
        exponent >>= 1
    return result


def _or_nothing(value: float) -> float:
    return 0.0 if value < _NEGLIGIBLE else value


def order_units(batch: int, samples: int) -> int:
    """Return the work units of ``sample_order``: each epoch that the batch fills has an order of its own."""
    return UNITS["sample_order"].call + UNITS["sample_order"].element * batch + EPOCH_UNITS * -(-batch // samples)


class SampleOrder:
    """``sample_order(; batch, samples)``: the numbers of the samples that a step takes, one a row.

    Epochs are laid end to end, each in an order of its own; a batch may span several.
    """

    name: Final = "sample_order"

    def shape(self, inputs: Sequence[TensorType], attributes: Attributes) -> TensorType:
        """See Operator."""
        expect_attributes(self.name, attributes, 2)
        expect(self.name, inputs)
        batch, samples = attributes
        if not (1 <= batch <= COUNT_MAX and 1 <= samples <= COUNT_MAX):
            raise ProgramInvalid(f"a batch of {batch} out of {samples} samples")
        return TensorType(ElementType.INT64, batch, 1)

    def units(self, inputs: Sequence[TensorType], output: TensorType, attributes: Attributes) -> int:
        """See Operator."""
        return order_units(*attributes)

    def bounds(self, inputs: Sequence[Bounds], types: Sequence[TensorType], attributes: Attributes) -> Bounds:
        """See Operator."""
        return Integers(0, attributes[1] - 1)

    def run(self, arrays: Arrays, inputs: Sequence[Array], attributes: Attributes, context: Context) -> Array:
        """See Operator."""
        import numpy as np  # the judge of a dispute imports this module and needs no NumPy

        batch, samples = attributes
        parts: list[np.ndarray] = []
        at = context.step * batch
        stop = at + batch
        while at < stop:
            epoch, place = divmod(at, samples)
            parts.append(sample_numbers(context.seed, epoch, samples, place, min(stop - at, samples - place)))
            at += len(parts[-1])
        return arrays.load(np.concatenate(parts).reshape(batch, 1))

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
        batch, samples = attributes
        epoch, place = divmod(context.step * batch + row, samples)
        return permuted(place, samples, order_keys(context.seed, epoch))


def sample_numbers(seed: bytes, epoch: int, samples: int, first: int, count: int) -> np.ndarray:
    """Return the samples at ``count`` places of an epoch from ``first`` on."""
    import numpy as np

    parts: list[np.ndarray] = []
    while count:
        block, offset = divmod(first, _PLACES)
        parts.append(_numbers(seed, epoch, samples, block)[offset : offset + count])
        first, count = first + len(parts[-1]), count - len(parts[-1])
    return np.concatenate(parts)


@lru_cache(maxsize=16)
def _numbers(seed: bytes, epoch: int, samples: int, block: int) -> np.ndarray:
    """Return the sample numbers at the places of a block of an epoch, in vectors of unsigned 64-bit integers."""
    import numpy as np

    keys, width = order_keys(seed, epoch), width_of(samples)
    first = block * _PLACES
    places = np.arange(first, min(first + _PLACES, samples), dtype=np.uint64)
    numbers: np.ndarray = feistel(places, width, keys)
    beyond = np.flatnonzero(numbers >= samples)
    while len(beyond):
        numbers[beyond] = feistel(numbers[beyond], width, keys)
        beyond = beyond[numbers[beyond] >= samples]
    return numbers


SCALAR: Final = Scalar()
BIAS_CORRECTION: Final = BiasCorrection()
SAMPLE_ORDER: Final = SampleOrder()
