"""Notes on images that a node pushed to the registry of a cluster: where each is, and who needs it (R163).

A note has a file of its own. It is written before the first byte is pushed, and removed after the last is gone.
So what a killed node has left in the registry is known to its next life. Blocking: each file is small.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tasks.executor.containers.request import ContainerRequest
from tasks.executor.durable import sync_folder, write_durably
from tasks.kinds.container import ARCHIVED

__all__ = ["PushedImage", "PushedNotes"]

IMAGES_KEPT: Final = 16
"""Public images of this node in the registry: those beyond that nobody has needed for longest are deleted."""
NOTE_BYTES_MAX: Final = 1 << 17
USERS_MAX: Final = 1_024
"""Tasks that need one image: a node takes no more at once."""
_NAME: Final = re.compile(rf"{ARCHIVED}|[0-9a-f]{{32}}")
_TASK: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class PushedImage:
    """An image in the registry: its repository, its manifest, and the tasks whose containers have not started.

    ``is_checked``: its archive was compared with its hashes, and its push has begun.
    """

    name: str
    is_private: bool
    digest: bytes
    is_checked: bool = False
    users: frozenset[bytes] = frozenset()


class PushedNotes:
    """The notes of one node, by digest and archive (or by the key of private tasks)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, request: ContainerRequest) -> Path:
        """Return where the note of a request's image is."""
        return self.folder / f"{request.image.digest.hex()}-{request.archive.hex()}"

    def read(self, path: Path) -> PushedImage | None:
        """Return what a note says, None for none and for a damaged one."""
        try:
            with path.open("rb") as file:
                name, is_private, digest, is_checked, users = json.loads(file.read(NOTE_BYTES_MAX))
            if not _NAME.fullmatch(name) or len(users) > USERS_MAX or not all(map(_TASK.fullmatch, users)):
                return None
            tasks = frozenset(map(bytes.fromhex, users))
            found = PushedImage(name, is_private is True, bytes.fromhex(digest), is_checked is True, tasks)
        except (OSError, ValueError, TypeError, RecursionError):
            return None
        return found if path.name.startswith(f"{found.digest.hex()}-") else None

    def write(self, path: Path, pushed: PushedImage) -> None:
        """Write a note, whole or not at all, also where the power fails. Raises OSError."""
        if not path.parent.is_dir():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            sync_folder(path.parent.parent)
        users = sorted(task.hex() for task in pushed.users)
        note = [pushed.name, pushed.is_private, pushed.digest.hex(), pushed.is_checked, users]
        write_durably(path, json.dumps(note).encode())

    def add_user(self, path: Path, pushed: PushedImage, task: bytes) -> None:
        """Note that a task needs an image; ``pushed`` counts where there is no note. Raises OSError."""
        known = self.read(path) or pushed
        self.write(path, replace(known, users=known.users | {task}))

    def drop_users(self, kept: frozenset[bytes]) -> None:
        """Forget all users but those ``kept``. Raises OSError."""
        for path, pushed in self.all():
            if pushed is not None and pushed.users - kept:
                self.write(path, replace(pushed, users=pushed.users & kept))

    def drop_user(self, task: bytes) -> None:
        """Forget a task. Raises OSError."""
        for path, pushed in self.all():
            if pushed is not None and task in pushed.users:
                self.write(path, replace(pushed, users=pushed.users - {task}))

    def all(self) -> Iterator[tuple[Path, PushedImage | None]]:
        """Yield the notes, the ones written last first; a damaged one as None."""
        found = []
        for path in self.folder.glob("[0-9a-f]*-*"):
            try:
                found.append((path.stat().st_mtime_ns, path))
            except FileNotFoundError:  # removed meanwhile
                continue
        for _, path in sorted(found, reverse=True):
            yield path, self.read(path)

    def unneeded(self) -> list[tuple[Path, PushedImage | None]]:
        """Return the notes that may go: without a user, and private, damaged or public beyond the limit."""
        found: list[tuple[Path, PushedImage | None]] = []
        public = 0
        for path, pushed in self.all():
            if pushed is None or (pushed.is_private and not pushed.users):
                found.append((path, pushed))
            elif not pushed.is_private:
                public += 1
                if public > IMAGES_KEPT and not pushed.users:
                    found.append((path, pushed))
        return found

    def is_shared(self, path: Path, pushed: PushedImage) -> bool:
        """Whether another note names the same manifest in the same repository."""
        place = (pushed.name, pushed.digest)
        return any(
            one is not None and other != path and (one.name, one.digest) == place for other, one in self.all()
        )
