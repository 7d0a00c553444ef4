"""Files that survive a power failure."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["sync_folder", "write_durably"]


def write_durably(path: Path, *parts: bytes) -> None:
    """Write or replace a file, and sync it and its name. After a power failure it is the old or the new one.

    What was cut off has the file's name with a dot before it. Raises OSError.
    """
    beside = path.with_name(f".{path.name}")
    with beside.open("wb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
