"""Results that go to a store: written to a temporary place first, then put with a manifest."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from node.cli.blobs import show_progress
from node.cli.session import Session
from node.cli.tasks.watch import record_of, say
from rpc.client.packing import folder_for_large_files
from rpc.client.stores import put_folder
from rpc.client.tasks import spec_of
from tasks.requests.sources import place_of
from tasks.spec import ClassifierPart, FinetunePart, GeneratePart

__all__ = ["put_result", "temporary_out"]

_FOLDER: Final = "output"
_STATE: Final = "state.safetensors"
_COMPLETIONS: Final = "completions.jsonl"


@contextmanager
def temporary_out(session: Session, task: bytes, to: str, base: str) -> Iterator[Path]:
    """Give the path for a result that is put to ``to``; its name says the form of the task's kind.

    Raises SourceInvalid before anything is fetched.
    """
    place_of(to)
    with session.client() as client:
        part = spec_of(record_of(client, task)).part
    name = _FOLDER
    if isinstance(part, GeneratePart):
        name = _COMPLETIONS
    elif isinstance(part, ClassifierPart) or (isinstance(part, FinetunePart) and not base):
        name = _STATE
    with tempfile.TemporaryDirectory(prefix="dekube-", dir=folder_for_large_files()) as folder:
        yield Path(folder) / name


def put_result(out: Path, to: str, about: Mapping[str, str]) -> dict[str, Any]:
    """Put a result to a store; return what is told about it. Raises StoreError."""
    say(f"Storing in {to} ...")
    report = put_folder(out, to, about=about, progress=show_progress("Storing"))
    return {"stored": report.url, "stored_files": report.files, "sent": report.sent}
