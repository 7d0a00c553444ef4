"""Mounts of containers as files on disk: a folder of any size is packed in constant memory.

A packed file is uploaded in pieces, and an interrupted upload goes on where it stopped. What is packed here lies
in a folder for large temporary files, and is removed with the object that names it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from state.primitives.errors import StoreError
from state.primitives.manifests import BLOB_PIECES_MAX, PIECE_BYTES, manifest_of
from tasks.kinds.container import MountForm
from tasks.kinds.folders import pack_to

__all__ = ["MOUNT_SENT_BYTES_MAX", "PackedFile", "folder_for_large_files", "pack_source", "placed", "written"]

MOUNT_SENT_BYTES_MAX: Final = BLOB_PIECES_MAX * PIECE_BYTES
"""Bytes of a packed mount: what one blob holds."""
_LARGE_FILES: Final = "/var/tmp"  # noqa: S108  # names in it are drawn by tempfile


class PackedFile:
    """A file whose content is sent as one blob. ``blob`` is its name for the network, ``size_bytes`` its size.

    With ``is_owned`` the file is removed once nothing refers to this object.
    """

    def __init__(self, path: Path, *, is_owned: bool) -> None:
        """Read the file once. Raises OSError, BlobTooLarge."""
        self.path = path
        if is_owned:
            weakref.finalize(self, _remove, path)
        with path.open("rb") as file:
            manifest = manifest_of(file)
        self.size_bytes, self.blob = manifest.size_bytes, manifest.blob_id


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def folder_for_large_files() -> Path | None:
    """Return where large temporary files go; None for the default. /tmp is in memory on many machines."""
    if tempfile.gettempdir() == "/tmp" and os.access(_LARGE_FILES, os.W_OK):  # noqa: S108
        return Path(_LARGE_FILES)
    return None


def written(write: Callable[[IO[bytes]], object], *, near: Path | None = None) -> PackedFile:
    """Return a new file with what ``write`` writes; it lies in the folder ``near``.

    Raises what ``write`` raises, OSError, BlobTooLarge.
    """
    descriptor, name = tempfile.mkstemp(suffix=".blob", dir=near or folder_for_large_files())
    path = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
        return PackedFile(path, is_owned=True)
    except BaseException:
        _remove(path)
        raise


def pack_source(source: Path) -> tuple[PackedFile, MountForm]:
    """Return the content of a file or folder as a file that can be sent.

    A single file is sent as it is, without a copy. Raises ArchiveInvalid, BlobTooLarge, OSError, and
    FileNotFoundError for what is neither a file nor a folder.
    """
    if source.is_dir():
        return written(lambda file: pack_to(source, file, limit_bytes=MOUNT_SENT_BYTES_MAX)), MountForm.FOLDER
    if not source.is_file():
        raise FileNotFoundError(str(source))
    return PackedFile(source, is_owned=False), MountForm.FILE


def placed(content: bytes | PackedFile, near: Path | None) -> PackedFile:
    """Return the content as a file in the folder ``near``; None: anywhere.

    Raises OSError, StoreError if the content is no longer what was packed.

    Another process opens the file by its path, which may be in another container: so it has to lie there.
    """
    if isinstance(content, bytes):
        data = content
        return written(lambda file: file.write(data), near=near)
    if near is None:
        return content
    with content.path.open("rb") as source:
        copy = written(lambda file: shutil.copyfileobj(source, file, PIECE_BYTES), near=near)
    if copy.blob != content.blob:
        raise StoreError(f"{content.path}: it changed after it was read")
    return copy
