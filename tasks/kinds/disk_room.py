"""What files and folders take on the disk of a machine that unpacks them (market.md R149)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

__all__ = ["BLOCK_BYTES", "ENTRIES_MAX", "ENTRY_BYTES", "disk_bytes"]

ENTRIES_MAX: Final = 65_536
"""Files and folders of a packed folder."""
BLOCK_BYTES: Final = 4_096
"""What a small file takes of a disk, ..."""
ENTRY_BYTES: Final = 512
"""... and its name and its record."""


def disk_bytes(sizes: Iterable[int]) -> int:
    """Return what files and folders of these sizes take on a disk (R149); a folder counts as one byte.

    Contents take whole blocks, and each has a name and a record of its own.
    """
    return sum(-(-size // BLOCK_BYTES) * BLOCK_BYTES + ENTRY_BYTES for size in sizes)
