"""A file that describes a job of one's own model and data (YAML, docs/jobs.md)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from node.cli.files import read_text
from node.home.paths import Home
from tasks.requests.sources import is_output, is_url

if TYPE_CHECKING:
    from tasks.requests.reading import JobFile

__all__ = ["read_job"]

FILE_BYTES_MAX: Final = 1 << 16
EXPECTED: Final = "a job in YAML (`dekube templates` shows some)"


def read_job(file: Path, home: Home | None = None) -> JobFile:
    """Return what a file asks for; its models may be those of ``home`` by name.

    Raises ConfigError, and RequestInvalid, which names file and line.
    """
    from tasks.requests.reading import read_file  # with NumPy, which other commands do without

    found = read_file(read_text(file, FILE_BYTES_MAX, EXPECTED), str(file))
    return found if home is None else found._replace(model_of=partial(_named_model, file=file, home=home))


def _named_model(model: str, file: Path, home: Home) -> str:
    """Return the path of a model of the home, where ``model`` is a bare name and no file beside the job file."""
    place = Path(model)
    if is_url(model) or is_output(model) or place.parent != file.parent or place.exists():
        return model
    from node.home.models import find_model

    return str(find_model(home, place.name) or model)
