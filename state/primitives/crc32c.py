"""CRC-32C (Castagnoli) with the mask of LevelDB's logs and of TFRecord files. It finds accidents, not attacks."""

from __future__ import annotations

from typing import Final

__all__ = ["masked_crc32c"]

_POLYNOMIAL: Final = 0x82F63B78
"""Reflected."""
_MASK_DELTA: Final = 0xA282EAD8


def _table() -> tuple[int, ...]:
    rows = []
    for row in range(256):
        for _ in range(8):
            row = (row >> 1) ^ (_POLYNOMIAL if row & 1 else 0)
        rows.append(row)
    return tuple(rows)


_TABLE: Final = _table()


def masked_crc32c(data: bytes) -> int:
    """Return the CRC-32C of ``data``, rotated right by 15 bits, plus a constant, as these formats store it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF
