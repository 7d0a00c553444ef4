"""Content-addressed blobs on disk: every piece is verified before it is written and before it is served.

A blob is named by the hash of its manifest: [size, piece size, hashes of the pieces]. The calls block on files and
are safe from several threads; trio code calls them through ``trio.to_thread``.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from p2p.base.errors import BlobOverLimit, BlobUnavailable
from state.primitives.errors import DecodeError, ProtocolError, StoreError
from state.primitives.manifests import (
    BLOB_PIECES_MAX,
    MANIFEST_BYTES_MAX,
    PIECE_BYTES,
    Manifest,
    manifest_of,
    piece_hash,
    pieces_of,
)

__all__ = [
    "BLOB_PIECES_MAX",
    "MANIFEST_BYTES_MAX",
    "PIECE_BYTES",
    "BlobStore",
    "Manifest",
    "PieceInvalid",
    "check_size",
    "manifest_of",
]

_NAME: Final = re.compile(r"[0-9a-f]{64}")
_MANIFEST: Final = "manifest"
_DATA: Final = "data"
_HAVE: Final = "have"
_COMPLETE: Final = "complete"


class PieceInvalid(ProtocolError):
    """A piece or manifest does not have the hash that was requested."""

    code = "piece_invalid"


@dataclass(slots=True)
class _Blob:
    manifest: Manifest
    have: set[int] = field(default_factory=set)
    is_complete: bool = False
    users: int = 0
    """Fetches and readers in progress. A blob in use is not evicted."""
    used: int = 0
    """A counter that increases with every use of the store."""


class BlobStore:
    """Blobs in one directory, with ``budget_bytes`` of content in total; the least recently used are evicted.

    Raises StoreError if the directory cannot be used.
    """

    def __init__(self, root: Path, *, budget_bytes: int) -> None:
        self._root = root
        self._budget_bytes = budget_bytes
        self._lock = threading.Lock()
        self._blobs: dict[bytes, _Blob] = {}
        self._bytes = 0
        self._uses = 0
        self._pinned: dict[bytes, set[str]] = {}
        """Blobs that are never evicted, each with the purposes that it was pinned for."""
        try:
            root.mkdir(parents=True, exist_ok=True)
            entries = [(path.stat().st_mtime, path) for path in root.iterdir() if _NAME.fullmatch(path.name)]
        except OSError as error:
            raise StoreError(f"blobs: {error}") from None
        for _, path in sorted(entries):
            self._load(path)

    @property
    def budget_bytes(self) -> int:
        """Maximum content of the store."""
        return self._budget_bytes

    @property
    def used_bytes(self) -> int:
        """Content of all blobs, complete or begun, at full size."""
        return self._bytes

    def blobs(self) -> list[bytes]:
        """Return the names of the complete blobs."""
        with self._lock:
            return [name for name, blob in self._blobs.items() if blob.is_complete]

    def is_complete(self, name: bytes) -> bool:
        """Whether every piece is present."""
        with self._lock:
            blob = self._blobs.get(name)
            return blob is not None and blob.is_complete

    def manifest(self, name: bytes) -> Manifest | None:
        """Return the manifest of a complete or begun blob."""
        with self._lock:
            blob = self._blobs.get(name)
            return None if blob is None else blob.manifest

    def missing(self, name: bytes) -> list[int]:
        """Return the numbers of missing pieces. Raises BlobUnavailable for a blob that was not begun."""
        with self._lock:
            blob = self._blobs.get(name)
            if blob is None:
                raise BlobUnavailable("the blob was removed during the operation")
            return [index for index in range(len(blob.manifest.hashes)) if index not in blob.have]

    def pin(self, name: bytes, purpose: str = "") -> None:
        """Never evict this blob while this process runs, until it is unpinned for each purpose."""
        with self._lock:
            self._pinned.setdefault(name, set()).add(purpose)

    def unpin(self, name: bytes, purpose: str = "") -> None:
        """End a pin: one purpose does not end another's."""
        with self._lock:
            purposes = self._pinned.get(name, set())
            purposes.discard(purpose)
            if not purposes:
                self._pinned.pop(name, None)

    def kept_bytes(self, besides: Collection[bytes] = ()) -> int:
        """Return the size of content that cannot be evicted, pinned or in use, without the blobs in
        ``besides``.
        """
        with self._lock:
            return sum(
                blob.manifest.size_bytes
                for name, blob in self._blobs.items()
                if (blob.users or name in self._pinned) and name not in besides
            )

    def add(self, content: bytes) -> bytes:
        """Store ``content`` and return its name. Raises BlobUnavailable if it exceeds the budget."""
        pieces = [content[at : at + PIECE_BYTES] for at in range(0, len(content), PIECE_BYTES)]
        manifest = Manifest(len(content), tuple(piece_hash(piece) for piece in pieces))
        return self._add(manifest, iter(pieces))

    def add_file(self, path: Path) -> bytes:
        """Store a copy of a file and return its name. Raises BlobUnavailable, OSError for the file itself."""
        with path.open("rb") as source:
            manifest = manifest_of(source)
            source.seek(0)
            return self._add(manifest, pieces_of(source))

    def begin(self, data: bytes, *, name: bytes, limit_bytes: int | None = None) -> Manifest:
        """Make room for the blob ``name`` with the manifest from a peer; pieces already present are kept.

        Raises PieceInvalid if these bytes are not its manifest, BlobUnavailable if there is no room or it has more
        than ``limit_bytes``.
        """
        try:
            manifest = Manifest.decode(data)
        except DecodeError as error:
            raise PieceInvalid(str(error)) from None
        if manifest.blob_id != name:
            raise PieceInvalid("the manifest does not match its hash")
        check_size(manifest, limit_bytes)
        with self._lock:
            if name not in self._blobs:
                self._make_room(manifest.size_bytes)
                directory = self._directory(name)
                try:
                    directory.mkdir(exist_ok=True)
                    _write(directory / _MANIFEST, data)
                    with (directory / _DATA).open("ab") as file:
                        file.truncate(manifest.size_bytes)
                except OSError as error:
                    shutil.rmtree(directory, ignore_errors=True)
                    raise StoreError(f"blobs: {error}") from None
                self._blobs[name] = _Blob(manifest)
                self._bytes += manifest.size_bytes
            self._touch(name)
            if not manifest.hashes:
                self._complete(name)
        return manifest

    def write_piece(self, name: bytes, index: int, data: bytes) -> bool:
        """Verify and write one piece; return whether the blob is complete now. Raises PieceInvalid."""
        with self._lock:
            blob = self._blobs.get(name)
        if blob is None:
            raise BlobUnavailable("the blob was removed during the operation")
        if not 0 <= index < len(blob.manifest.hashes) or not blob.manifest.is_piece(index, data):
            raise PieceInvalid(f"piece {index} does not match its hash")
        directory = self._directory(name)
        try:
            with (directory / _DATA).open("r+b") as file:
                file.seek(index * PIECE_BYTES)
                file.write(data)
            with self._lock, (directory / _HAVE).open("ab") as file:
                file.write(index.to_bytes(4, "big"))
                blob.have.add(index)
                is_last = len(blob.have) == len(blob.manifest.hashes) and not blob.is_complete
            if is_last:
                try:
                    self._settle(name, blob)
                except OSError:
                    # A full disk: the piece is asked for again, for nothing else would settle the blob.
                    with self._lock:
                        blob.have.discard(index)
                    raise
            return blob.is_complete
        except OSError as error:
            raise StoreError(f"blobs: {error}") from None

    def _settle(self, name: bytes, blob: _Blob) -> None:
        """Mark a blob complete whose content is on disk. Other calls do not wait for the sync."""
        with (self._directory(name) / _DATA).open("rb") as file:
            os.fsync(file.fileno())
        with self._lock:
            if self._blobs.get(name) is blob and len(blob.have) == len(blob.manifest.hashes):
                self._mark(name)

    def read_piece(self, name: bytes, index: int) -> bytes | None:
        """Return one piece, or None if it is missing; a piece damaged on disk becomes missing."""
        with self._lock:
            blob = self._blobs.get(name)
            if blob is None or index not in blob.have:
                return None
            self._touch(name)
        try:
            with (self._directory(name) / _DATA).open("rb") as file:
                file.seek(index * PIECE_BYTES)
                data = file.read(PIECE_BYTES)
        except OSError:
            data = b""
        if blob.manifest.is_piece(index, data):
            return data
        with self._lock:
            blob.have.discard(index)
            blob.is_complete = False
            self._directory(name).joinpath(_COMPLETE).unlink(missing_ok=True)
        return None

    def read(self, name: bytes) -> bytes:
        """Return the whole content. Raises BlobUnavailable if a piece is missing."""
        manifest = self.manifest(name)
        pieces = (
            [] if manifest is None else [self.read_piece(name, index) for index in range(len(manifest.hashes))]
        )
        if manifest is None or any(piece is None for piece in pieces):
            raise BlobUnavailable(f"blob {name.hex()} is not complete")
        return b"".join(piece for piece in pieces if piece is not None)

    def is_whole(self, name: bytes) -> bool:
        """Read a blob and compare it; pieces that are damaged on the disk become missing."""
        manifest = self.manifest(name)
        if manifest is None:
            return False
        missing = [index for index in range(len(manifest.hashes)) if self.read_piece(name, index) is None]
        return not missing

    def path(self, name: bytes) -> Path:
        """Return the file of a complete blob, for reading only. Raises BlobUnavailable."""
        if not self.is_complete(name):
            raise BlobUnavailable(f"blob {name.hex()} is not complete")
        return self._directory(name) / _DATA

    def remove(self, name: bytes) -> None:
        """Delete a blob, complete or not."""
        with self._lock:
            self._remove(name)

    def discard(self, name: bytes) -> None:
        """Delete a blob unless it is in use or pinned."""
        with self._lock:
            blob = self._blobs.get(name)
            if blob is not None and not blob.users and name not in self._pinned:
                self._remove(name)

    def hold(self, name: bytes) -> None:
        """Protect a begun blob from eviction until ``release``."""
        with self._lock:
            if name in self._blobs:
                self._blobs[name].users += 1

    def release(self, name: bytes) -> None:
        """End a ``hold``."""
        with self._lock:
            if name in self._blobs:
                self._blobs[name].users = max(0, self._blobs[name].users - 1)

    def _add(self, manifest: Manifest, pieces: Iterator[bytes]) -> bytes:
        name = manifest.blob_id
        self.begin(manifest.encode(), name=name)
        self.hold(name)
        try:
            if not self.is_complete(name):
                for index, piece in enumerate(pieces):
                    self.write_piece(name, index, piece)
        finally:
            self.release(name)
        return name

    def _directory(self, name: bytes) -> Path:
        return self._root / name.hex()

    def _touch(self, name: bytes) -> None:
        self._uses += 1
        self._blobs[name].used = self._uses

    def _make_room(self, size_bytes: int) -> None:
        if size_bytes > self._budget_bytes:
            raise BlobUnavailable(f"{size_bytes} bytes exceed the budget of {self._budget_bytes}")
        while self._bytes + size_bytes > self._budget_bytes:
            evictable = [n for n, b in self._blobs.items() if not b.users and n not in self._pinned]
            if not evictable:
                raise BlobUnavailable("the blob store is full of blobs in use")
            self._remove(min(evictable, key=lambda n: self._blobs[n].used))

    def _remove(self, name: bytes) -> None:
        blob = self._blobs.pop(name, None)
        if blob is not None:
            self._bytes -= blob.manifest.size_bytes
            shutil.rmtree(self._directory(name), ignore_errors=True)

    def _complete(self, name: bytes) -> None:
        directory = self._directory(name)
        with (directory / _DATA).open("rb") as file:
            os.fsync(file.fileno())
        self._mark(name)

    def _mark(self, name: bytes) -> None:
        _write(self._directory(name) / _COMPLETE, b"")
        self._blobs[name].is_complete = True

    def _load(self, directory: Path) -> None:
        """Load the blobs of earlier runs. Incomplete ones are verified piece by piece."""
        name = bytes.fromhex(directory.name)
        try:
            data = (directory / _MANIFEST).read_bytes()
            manifest = Manifest.decode(data)
            if manifest.blob_id != name or (directory / _DATA).stat().st_size != manifest.size_bytes:
                raise DecodeError("the manifest belongs to another blob")
            blob = _Blob(manifest)
            if (directory / _COMPLETE).exists():
                blob.have, blob.is_complete = set(range(len(manifest.hashes))), True
            elif (directory / _HAVE).exists():
                blob.have = self._verified(directory, manifest)
        except (OSError, DecodeError):
            shutil.rmtree(directory, ignore_errors=True)  # half made when the machine stopped: nothing to keep
            return
        self._blobs[name] = blob
        self._bytes += manifest.size_bytes
        self._touch(name)
        if not blob.is_complete and len(blob.have) == len(manifest.hashes):
            self._complete(name)

    @staticmethod
    def _verified(directory: Path, manifest: Manifest) -> set[int]:
        log = (directory / _HAVE).read_bytes()[: 8 * BLOB_PIECES_MAX]
        noted = {int.from_bytes(log[at : at + 4], "big") for at in range(0, len(log) - 3, 4)}
        found = set()
        with (directory / _DATA).open("rb") as file:
            for index in sorted(noted):
                if index < len(manifest.hashes):
                    file.seek(index * PIECE_BYTES)
                    if manifest.is_piece(index, file.read(PIECE_BYTES)):
                        found.add(index)
        return found


def check_size(manifest: Manifest, limit_bytes: int | None) -> None:
    """Raise BlobOverLimit for a blob of more than ``limit_bytes``: its name came from an untrusted node."""
    if limit_bytes is not None and manifest.size_bytes > limit_bytes:
        raise BlobOverLimit(f"{manifest.size_bytes} bytes, limit {limit_bytes}")


def _write(path: Path, data: bytes) -> None:
    """Write a small file atomically."""
    temporary = path.with_name(path.name + ".new")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
