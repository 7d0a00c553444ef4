"""Erasure code: any subset of data and parity pieces as large as the number of data pieces restores the message.
See network.md 7.4.

A systematic Reed-Solomon code over GF(256). Its parity rows form a Cauchy matrix, every square submatrix of which
is invertible. Multiplication by a constant is a table of 256 bytes, so ``bytes.translate`` multiplies a piece in
one call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final

import numpy as np

__all__ = ["PIECES_MAX", "parity", "rebuild"]

PIECES_MAX: Final = 256
"""Data and parity pieces together: rows and columns of the Cauchy matrix are different field elements."""
_POLYNOMIAL: Final = 0x11D
_ORDER: Final = 255


def _powers() -> tuple[tuple[int, ...], tuple[int, ...]]:
    exponents, logarithms, value = [0] * (2 * _ORDER), [0] * 256, 1
    for power in range(_ORDER):
        exponents[power] = exponents[power + _ORDER] = value
        logarithms[value] = power
        value = value << 1 ^ (_POLYNOMIAL if value & 0x80 else 0)
    return tuple(exponents), tuple(logarithms)


_EXPONENTS, _LOGARITHMS = _powers()


@cache
def _times(factor: int) -> bytes:
    """Return the table of products with ``factor``."""
    if not factor:
        return bytes(256)
    at = _LOGARITHMS[factor]
    return bytes((0, *(_EXPONENTS[at + _LOGARITHMS[value]] for value in range(1, 256))))


def _inverse(value: int) -> int:
    return _EXPONENTS[_ORDER - _LOGARITHMS[value]]


def _coefficient(row: int, column: int) -> int:
    """Return the share of data piece ``column`` in parity piece ``row``."""
    return _inverse((PIECES_MAX - 1 - row) ^ column)


def _sum(size: int, terms: Sequence[tuple[int, bytes]]) -> bytes:
    total = np.zeros(size, np.uint8)
    for factor, piece in terms:
        total ^= np.frombuffer(piece.translate(_times(factor)), np.uint8)
    return total.tobytes()


def parity(data: Sequence[bytes], count: int) -> list[bytes]:
    """Return ``count`` parity pieces of data pieces of equal size."""
    assert len(data) + count <= PIECES_MAX
    size = len(data[0])
    return [
        _sum(size, [(_coefficient(row, column), piece) for column, piece in enumerate(data)])
        for row in range(count)
    ]


def rebuild(pieces: Mapping[int, bytes], count: int) -> list[bytes]:
    """Return the ``count`` data pieces from any ``count`` pieces of one size; parity is numbered after the data.

    Pieces of different data give a wrong result: verify it.
    """
    missing = [index for index in range(count) if index not in pieces]
    rows = sorted(index - count for index in pieces if index >= count)[: len(missing)]
    assert len(rows) == len(missing), "too few pieces"
    if not missing:
        return [pieces[index] for index in range(count)]
    size = len(next(iter(pieces.values())))
    known = [index for index in range(count) if index in pieces]
    rests = [
        _sum(size, [(1, pieces[count + row]), *((_coefficient(row, c), pieces[c]) for c in known)]) for row in rows
    ]
    inverted = _invert([[_coefficient(row, column) for column in missing] for row in rows])
    found = {
        column: _sum(size, list(zip(factors, rests, strict=True)))
        for column, factors in zip(missing, inverted, strict=True)
    }
    return [pieces[index] if index in pieces else found[index] for index in range(count)]


def _invert(matrix: list[list[int]]) -> list[bytes]:
    """Return the rows of the inverse by Gauss-Jordan elimination; a square part of a Cauchy matrix has one."""
    size = len(matrix)
    rows = [bytes(row) + bytes(at) + b"\x01" + bytes(size - at - 1) for at, row in enumerate(matrix)]
    for column in range(size):
        pivot = next(at for at in range(column, size) if rows[at][column])
        rows[column], rows[pivot] = rows[pivot], rows[column]
        lead = rows[column] = rows[column].translate(_times(_inverse(rows[column][column])))
        for at, row in enumerate(rows):
            if at != column and row[column]:
                scaled = lead.translate(_times(row[column]))
                rows[at] = bytes(a ^ b for a, b in zip(row, scaled, strict=True))
    return [row[size:] for row in rows]
