"""What files and folders take on the disk of a machine that unpacks them (market.md R149)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

__all__ = ["BLOCK_BYTES", "ENTRIES_MAX", "ENTRY_BYTES", "disk_bytes", "inodes_of"]

ENTRIES_MAX: Final = 65_536
"""Files and folders of a packed folder."""
BLOCK_BYTES: Final = 4_096
"""What a small file takes of a disk, ..."""
ENTRY_BYTES: Final = 512
"""... and its name and its record."""

SMALL_MIB: Final = 512
"""A disk below that may have a file for each ``SMALL_FILE_BYTES``, others for each ``USUAL_FILE_BYTES``."""
SMALL_FILE_BYTES: Final = 4_096
USUAL_FILE_BYTES: Final = 16_384
OWN_INODES: Final = 256
"""What the file system and the folders that each container has take, and what a count is rounded down by."""


def inodes_of(size_mib: int, entries: int = 0) -> int:
    """Return how many files and folders a disk holds: as many as is usual for its size, and ``entries`` more."""
    usual_bytes = SMALL_FILE_BYTES if size_mib < SMALL_MIB else USUAL_FILE_BYTES
    return (size_mib << 20) // usual_bytes + entries + OWN_INODES


def disk_bytes(sizes: Iterable[int]) -> int:
    """Return what files and folders of these sizes take on a disk (R149); a folder counts as one byte.

    Contents take whole blocks, and each has a name and a record of its own.
    """
    return sum(-(-size // BLOCK_BYTES) * BLOCK_BYTES + ENTRY_BYTES for size in sizes)
