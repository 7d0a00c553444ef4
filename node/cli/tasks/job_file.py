"""A file that describes a job of one's own model and data (YAML, docs/jobs.md)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from node.cli.files import read_text

if TYPE_CHECKING:
    from tasks.requests.reading import JobFile

__all__ = ["read_job"]

FILE_BYTES_MAX: Final = 1 << 16
EXPECTED: Final = "a job in YAML (`dekube templates` shows some)"


def read_job(file: Path) -> JobFile:
    """Return what a file asks for. Raises ConfigError, and RequestInvalid, which names file and line."""
    from tasks.requests.reading import read_file  # with NumPy, which other commands do without

    return read_file(read_text(file, FILE_BYTES_MAX, EXPECTED), str(file))
