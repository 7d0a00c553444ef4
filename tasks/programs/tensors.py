"""Tensors of a program and how one commits to them: small leaves under a Merkle root (market.md 4.6).

A tensor is a matrix. Its leaves hold LEAF_BYTES of consecutive values of one row, little-endian; the last leaf of
a row may be shorter. So the terms of a contraction, which run along rows, lie in few leaves. No NumPy here: the
judge of a dispute reads leaves, and needs none.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from state.primitives.merkle import LEAVES_MAX, merkle_root
from tasks.programs.errors import ProgramInvalid

__all__ = [
    "LEAF_BYTES",
    "ElementType",
    "Number",
    "TensorType",
    "leaf_of",
    "leaves_of",
    "pack_values",
    "tensor_root",
    "unpack_leaf",
]

LEAF_BYTES: Final = 128
"""Bytes of values in a leaf: 16 terms of a contraction are one leaf of each side."""
DIMENSION_MAX: Final = 1 << 28

Number = int | float
"""A value of a tensor: int for integers, float (binary64) for the rest."""


class ElementType(IntEnum):
    """How one value is stored. Numbers are stable: they stand in programs."""

    BINARY64 = 1
    BINARY32 = 2
    INT64 = 3
    UINT8 = 4
    INT16 = 5
    INT32 = 6

    @property
    def size(self) -> int:
        """Bytes of one value."""
        return _SIZES[self]

    @property
    def is_integer(self) -> bool:
        """Whether its values are integers."""
        return self not in (ElementType.BINARY64, ElementType.BINARY32)


_SIZES: Final = {
    ElementType.BINARY64: 8, ElementType.BINARY32: 4, ElementType.INT64: 8, ElementType.UINT8: 1,
    ElementType.INT16: 2, ElementType.INT32: 4,
}  # fmt: skip
_FORMATS: Final = {
    ElementType.BINARY64: "d", ElementType.BINARY32: "f", ElementType.INT64: "q", ElementType.UINT8: "B",
    ElementType.INT16: "h", ElementType.INT32: "i",
}  # fmt: skip


class TensorType(NamedTuple):
    """Element type and shape of a tensor; both dimensions are at least 1."""

    element: ElementType
    rows: int
    columns: int

    @property
    def values(self) -> int:
        """Number of values."""
        return self.rows * self.columns

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.columns * self.element.size

    @property
    def size_bytes(self) -> int:
        """Bytes of all values."""
        return self.rows * self.row_bytes

    @property
    def leaves_per_row(self) -> int:
        """Leaves of one row."""
        return -(-self.row_bytes // LEAF_BYTES)

    @property
    def leaves(self) -> int:
        """Leaves of the tensor."""
        return self.rows * self.leaves_per_row

    def check(self) -> TensorType:
        """Return itself. Raises ProgramInvalid for a shape that no tensor has."""
        if (
            not (1 <= self.rows <= DIMENSION_MAX and 1 <= self.columns <= DIMENSION_MAX)
            or self.leaves > LEAVES_MAX
        ):
            raise ProgramInvalid(f"a tensor of {self.rows} by {self.columns} values")
        return self


def leaf_of(kind: TensorType, row: int, column: int) -> tuple[int, int]:
    """Return the leaf that holds a value and the value's place in it. Raises IndexError."""
    if not (0 <= row < kind.rows and 0 <= column < kind.columns):
        raise IndexError((row, column))
    per_leaf = LEAF_BYTES // kind.element.size
    return row * kind.leaves_per_row + column // per_leaf, column % per_leaf


def leaf_size(kind: TensorType, leaf: int) -> int:
    """Return the bytes of leaf number ``leaf``."""
    at = leaf % kind.leaves_per_row
    return min(LEAF_BYTES, kind.row_bytes - at * LEAF_BYTES)


def leaves_of(kind: TensorType, content: bytes) -> list[bytes]:
    """Return the leaves of a tensor's values, given row by row. Raises ProgramInvalid for another length."""
    return list(_leaves(kind, content))


def _leaves(kind: TensorType, content: bytes) -> Iterator[bytes]:
    if len(content) != kind.size_bytes:
        raise ProgramInvalid(f"{len(content)} bytes, not the {kind.size_bytes} of {kind.rows} by {kind.columns}")
    width = kind.row_bytes
    for row in range(0, len(content), width):
        for at in range(row, row + width, LEAF_BYTES):
            yield content[at : min(at + LEAF_BYTES, row + width)]


def tensor_root(kind: TensorType, content: bytes) -> bytes:
    """Return the Merkle root over a tensor's leaves. Raises ProgramInvalid."""
    return merkle_root(_leaves(kind, content))


def unpack_leaf(kind: TensorType, leaf: int, content: bytes) -> tuple[Number, ...]:
    """Return the values of a leaf. Raises ProgramInvalid for a leaf of another length."""
    size = leaf_size(kind, leaf)
    if len(content) != size:
        raise ProgramInvalid(f"a leaf of {len(content)} bytes, not {size}")
    return struct.unpack(f"<{size // kind.element.size}{_FORMATS[kind.element]}", content)


def pack_values(element: ElementType, values: list[Number]) -> bytes:
    """Return values as they stand in a leaf. Raises ProgramInvalid for a value that the type does not hold."""
    try:
        return struct.pack(f"<{len(values)}{_FORMATS[element]}", *values)
    except (struct.error, OverflowError) as error:
        raise ProgramInvalid(f"a value outside of {element.name}: {error}") from None
