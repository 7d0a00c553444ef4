"""Keys that a machine holds for tasks of others: each in a file of its own, encrypted under the node's account.

A worker's key of a task, and a share that a machine keeps for a requester, outlive a restart. Blocking; the files
are small, and their number is bounded.
"""

from __future__ import annotations

import re
import secrets
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from node.market.promises import write_durably
from state.primitives.errors import DekubeError
from state.primitives.hashing import digest

__all__ = ["KeyFiles", "TooManyKeys"]

FILES_MAX: Final = 4_096
FILE_BYTES_MAX: Final = 12_288
_NONCE_BYTES: Final = 12
_NAME: Final = re.compile(r"([0-9a-f]{64})\.(key|share)")


class TooManyKeys(DekubeError):
    """This machine holds as many keys for others as it may."""

    code = "too_many_keys"


class KeyFiles:
    """Files of one kind, ``key`` or ``share``, in one directory: one a task."""

    def __init__(self, root: Path, kind: str, secret: bytes) -> None:
        self._root, self._kind = root, kind
        self._cipher = ChaCha20Poly1305(digest(b"key-file", secret))
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in root.glob(f"*.{kind}.new"):  # half written when the node stopped
            path.unlink(missing_ok=True)

    def tasks(self) -> list[bytes]:
        """Return the tasks that have a file here."""
        found = (_NAME.fullmatch(path.name) for path in self._root.iterdir())
        return [bytes.fromhex(match[1]) for match in found if match is not None and match[2] == self._kind]

    def put(self, task: bytes, content: bytes) -> None:
        """Keep ``content`` durably. Raises TooManyKeys, OSError."""
        path = self._path(task)
        if not path.exists() and len(self.tasks()) >= FILES_MAX:
            raise TooManyKeys(f"{FILES_MAX} tasks have keys here")
        nonce = secrets.token_bytes(_NONCE_BYTES)
        write_durably(path, nonce + self._cipher.encrypt(nonce, content, self._bound_to(task)))

    def get(self, task: bytes) -> bytes | None:
        """Return what is kept for a task; None if there is nothing, or it is damaged or of another account."""
        try:
            with self._path(task).open("rb") as file:
                data = file.read(FILE_BYTES_MAX)
            return self._cipher.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], self._bound_to(task))
        except (OSError, InvalidTag, ValueError):
            return None

    def remove(self, task: bytes) -> None:
        """Forget what is kept for a task."""
        self._path(task).unlink(missing_ok=True)

    def _path(self, task: bytes) -> Path:
        return self._root / f"{task.hex()}.{self._kind}"

    def _bound_to(self, task: bytes) -> bytes:
        return self._kind.encode() + task
