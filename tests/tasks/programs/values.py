"""Random tensors at the edges of what programs may hold, and both ways to compute an operator."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tasks.programs.arrays import Arrays
from tasks.programs.bounds import Bounds, Integers, Magnitudes
from tasks.programs.operators import Attributes, Context, Operator
from tasks.programs.tensors import ElementType, Number, TensorType

CODES = {
    ElementType.BINARY64: "f8",
    ElementType.BINARY32: "f4",
    ElementType.INT64: "i8",
    ElementType.UINT8: "u1",
    ElementType.INT16: "i2",
    ElementType.INT32: "i4",
}
CONTEXT = Context(5, bytes(range(32)))


class Tensor(NamedTuple):
    """A tensor's type, its values, and between what they were drawn."""

    type: TensorType
    values: np.ndarray
    bounds: Bounds

    @property
    def content(self) -> bytes:
        return self.values.astype(f"<{CODES[self.type.element]}").tobytes()


def fractions(
    seed: int, rows: int, columns: int, bounds: Magnitudes, element: ElementType = ElementType.BINARY64
) -> Tensor:
    """Values of all magnitudes that ``bounds`` allow: random, powers of two, halfway between integers, zeros."""
    random = np.random.default_rng(seed)
    shape = (rows, columns)
    spread = random.integers(0, 4)
    top = random.integers(bounds.least, bounds.most + 1, (rows, 1))
    exponents = np.maximum(top - random.integers(0, (3, 20, 60, 2000)[spread], shape), bounds.least)
    if element == ElementType.BINARY32:
        mantissas = 1.0 + random.integers(0, 1 << 23, shape) / 2.0**23
    else:
        mantissas = 1.0 + random.integers(0, 1 << 52, shape) / 2.0**52
    few_bits = 1.0 + random.integers(0, 1 << 16, shape) / 2.0**16
    kind = random.integers(0, 6, shape)
    mantissas = np.where(kind == 0, 1.0, np.where(kind == 1, few_bits, mantissas))
    if element == ElementType.BINARY64:
        mantissas = np.where(kind == 2, np.nextafter(2.0, 1.0), mantissas)
    values = np.ldexp(mantissas, exponents)
    if bounds.negative:
        values = np.where(~np.bool_(bounds.positive) | (random.integers(0, 2, shape) == 0), -values, values)
    if bounds.zero:
        share = (0.0, 0.2, 1.0)[random.integers(0, 3)]
        zero = random.random(shape) < share
        sign = random.integers(0, 2, shape) if element == ElementType.BINARY64 else np.zeros(shape, dtype=np.int64)
        values = np.where(zero, np.where(sign == 0, 0.0, -0.0), values)
    return Tensor(TensorType(element, rows, columns), values, bounds)


def whole_numbers(
    seed: int, rows: int, columns: int, bounds: Integers, element: ElementType = ElementType.INT64
) -> Tensor:
    """Integers between ``bounds``, both ends among them."""
    random = np.random.default_rng(seed)
    values = random.integers(bounds.low, bounds.high + 1, (rows, columns))
    ends = random.integers(0, 6, (rows, columns))
    values = np.where(ends == 0, bounds.low, np.where(ends == 1, bounds.high, values))
    return Tensor(TensorType(element, rows, columns), values, bounds)


def computed(
    operator: Operator,
    arrays: Arrays,
    inputs: Sequence[Tensor],
    attributes: Attributes,
    context: Context = CONTEXT,
) -> np.ndarray:
    """Return the kernel's result as the values of its type."""
    types = [one.type for one in inputs]
    output = operator.shape(types, attributes)
    loaded = [arrays.from_content(one.content, CODES[one.type.element], *one.type[1:]) for one in inputs]
    content = arrays.content(operator.run(arrays, loaded, attributes, context), CODES[output.element])
    return np.frombuffer(content, dtype=f"<{CODES[output.element]}").reshape(output.rows, output.columns)


def reader(inputs: Sequence[Tensor], wrap: Any = None) -> Any:
    """Return the ``read`` of a reference function."""
    found: list[list[list[Number]]] = [one.values.tolist() for one in inputs]

    def read(at: int, row: int, column: int) -> Number:
        value = found[at][row][column]
        return wrap(value) if wrap and isinstance(value, float) else value

    return read


def referred(
    operator: Operator,
    inputs: Sequence[Tensor],
    attributes: Attributes,
    context: Context = CONTEXT,
    wrap: Any = None,
) -> list[list[Number]]:
    """Return what the reference function gives for every element."""
    types = [one.type for one in inputs]
    output, read = operator.shape(types, attributes), reader(inputs, wrap)
    return [
        [operator.element(read, types, attributes, context, row, column) for column in range(output.columns)]
        for row in range(output.rows)
    ]


def bits(value: Number) -> int:
    """Return the bit pattern of a fraction, and an integer as it is: zeros of both signs differ."""
    if isinstance(value, int):
        return value
    pattern: int = struct.unpack(">q", struct.pack(">d", value))[0]
    return pattern


def patterns(values: np.ndarray | list[list[Number]]) -> list[list[int]]:
    rows = values.tolist() if isinstance(values, np.ndarray) else values
    return [[bits(value) for value in row] for row in rows]


class Watched(float):
    """A fraction whose sums, products and quotients must not be subnormal."""

    def __add__(self, other: float) -> Watched:
        return watched(float(self) + float(other))

    def __radd__(self, other: float) -> Watched:
        return watched(float(other) + float(self))

    def __sub__(self, other: float) -> Watched:
        return watched(float(self) - float(other))

    def __rsub__(self, other: float) -> Watched:
        return watched(float(other) - float(self))

    def __mul__(self, other: float) -> Watched:
        return watched(float(self) * float(other))

    def __rmul__(self, other: float) -> Watched:
        return watched(float(other) * float(self))

    def __truediv__(self, other: float) -> Watched:
        return watched(float(self) / float(other))

    def __rtruediv__(self, other: float) -> Watched:
        return watched(float(other) / float(self))

    def __abs__(self) -> Watched:
        return watched(abs(float(self)))

    def __neg__(self) -> Watched:
        return watched(-float(self))


def watched(value: float) -> Watched:
    assert value == 0.0 or 2.0**-1022 <= abs(value) < float("inf"), f"{value!r} is no normal number"
    return Watched(value)
