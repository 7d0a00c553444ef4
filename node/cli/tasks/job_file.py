"""A file that describes a job of one's own model and data (TOML)."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from node.cli.files import read_text
from tasks.requests.errors import RequestInvalid
from tasks.requests.fields import JobFields

if TYPE_CHECKING:
    from tasks.requests.reading import Request

__all__ = ["read_job"]

FILE_BYTES_MAX: Final = 1 << 16
EXPECTED: Final = "a job in TOML (docs/tasks.md, Fine-tuning and Generating)"


def read_job(file: Path) -> Request:
    """Return what a file asks for. Raises RequestInvalid, naming file and line."""
    from tasks.requests.reading import read_request  # with NumPy, which other commands do without

    text = read_text(file, FILE_BYTES_MAX, EXPECTED)
    lines = text.splitlines()
    try:
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise RequestInvalid(f"not valid TOML ({error}); expected {EXPECTED}", file=str(file)) from None

    def line_of(name: str) -> int | None:
        pattern = re.compile(rf"\s*\[?\s*[\"']?{re.escape(name)}[\"']?\s*[]=]")
        return next((number for number, line in enumerate(lines, 1) if pattern.match(line)), None)

    return read_request(JobFields(values, file=str(file), line_of=line_of))
