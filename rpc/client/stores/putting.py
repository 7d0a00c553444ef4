"""Results to a store: resumed, checked after the upload, with a manifest that is written last.

Whoever finds the manifest finds all files that it names. Run again, only what is missing is sent.
"""

from __future__ import annotations

import base64
import hashlib
import os
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from rpc.client.stores.bucket import Bucket, Part
from rpc.client.stores.errors import StoreChanged, StoreChecksum, StoreMissing, StoreRefused, of_file
from rpc.client.stores.fetching import cache_folder, remove_unused
from rpc.client.stores.manifest import (
    MANIFEST_BYTES_MAX,
    MANIFEST_NAME,
    Entry,
    decode_manifest,
    encode_manifest,
)
from rpc.client.stores.resuming import (
    SENT_BYTES_MIN,
    SENT_NOTE_BYTES_MAX,
    Sent,
    bounds,
    part_bytes_of,
    parts_of,
)
from rpc.client.stores.threads import Stopped, settle
from state.primitives.errors import StoreError
from tasks.kinds.folders import ENTRIES_MAX, ArchiveInvalid, check_name
from tasks.requests.sources import BlobPlace, LocalPlace, ObjectPlace, SourceInvalid, place_of

__all__ = ["PutReport", "put_folder"]

Progress = Callable[[int, int], None]

SENDS_AT_ONCE: Final = 4
_HASHED_BYTES: Final = 1 << 20


class PutReport(NamedTuple):
    """What was stored: ``files`` in all, of which ``sent`` were written now, and bytes in all."""

    url: str
    files: int
    sent: int
    size_bytes: int


def put_folder(
    folder: Path, to: str, *, about: Mapping[str, str] | None = None, notes: Path | None = None,
    progress: Progress | None = None,
) -> PutReport:  # fmt: skip
    """Write the files of a folder, or one file, below a prefix of a store or into a folder.

    ``notes`` is the folder for notes of unfinished uploads. Raises as ``fetch_source``.
    """
    place = place_of(to)
    entries = _entries(folder)
    root = folder if folder.is_dir() else folder.parent
    manifest = encode_manifest(entries, about or {})
    if len(manifest) > MANIFEST_BYTES_MAX:
        raise StoreRefused(f"{folder}: more files than a manifest can name")
    match place:
        case LocalPlace(path):
            store: _Target = _Folder(Path(path))
        case BlobPlace():
            raise SourceInvalid("blob: names content; a result goes to s3://BUCKET/PREFIX or a folder")
        case ObjectPlace():
            store = _Prefix(place, notes or cache_folder().parent / "uploads")
    size_bytes = sum(entry.size_bytes for entry in entries)
    told = _Told(progress, size_bytes)
    store.open(entries)
    with ThreadPoolExecutor(SENDS_AT_ONCE) as pool:
        waiting = [pool.submit(store.put, root / entry.path, entry, told) for entry in entries]
        try:
            settle(waiting)
        except BaseException:
            told.stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        sent = sum(future.result() for future in waiting)
    store.close(manifest)
    return PutReport(to, len(entries), sent, size_bytes)


def _entries(folder: Path) -> list[Entry]:
    """Return the files with their hashes. Raises StoreMissing, StoreRefused, StoreError."""
    try:
        if folder.is_file():
            found = [(PurePosixPath(folder.name), folder)]
        elif folder.is_dir():
            found = []
            for parent, folders, files in os.walk(folder, onerror=_raise):
                folders.sort()
                links = [name for name in folders if (Path(parent) / name).is_symlink()]
                for name in sorted([*files, *links]):
                    path = Path(parent) / name
                    found.append((PurePosixPath(path.relative_to(folder).as_posix()), path))
        else:
            raise StoreMissing(f"{folder}: no such file or folder")
        if len(found) > ENTRIES_MAX:
            raise StoreRefused(f"{folder}: more than {ENTRIES_MAX} files")
        entries = []
        for inner, path in found:
            if path.is_symlink() or not path.is_file():
                raise StoreRefused(f"{path}: only regular files can be stored, no links")
            check_name(inner)
            if str(inner) != MANIFEST_NAME:
                entries.append(Entry(inner, path.stat().st_size, _sha256(path)))
    except OSError as error:
        raise of_file(folder, error) from None
    except ArchiveInvalid as error:
        raise StoreRefused(str(error)) from None
    return entries


def _raise(error: OSError) -> None:
    """A folder that cannot be read is an error: the manifest would lack its files."""
    raise error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _Told:
    """Progress of several threads; ``stop`` is set when one fails."""

    def __init__(self, progress: Progress | None, size_bytes: int) -> None:
        self._progress, self._all, self._done = progress, size_bytes, 0
        self._lock, self.stop = threading.Lock(), threading.Event()

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count
            if self._progress is not None:
                self._progress(min(self._done, self._all), max(self._all, 1))


class _Target:
    """Where files go: ``open`` first, ``put`` from several threads, ``close`` writes the manifest."""

    def open(self, entries: Sequence[Entry]) -> None:
        """Withdraw the manifest of another result: it would name files that are being replaced."""
        raise NotImplementedError

    def put(self, source: Path, entry: Entry, told: _Told) -> bool:
        """Write a file; return whether it was sent, or was there already. Raises StoreError."""
        raise NotImplementedError

    def close(self, manifest: bytes) -> None:
        """Write the manifest."""
        raise NotImplementedError


def _names(data: bytes, entries: Sequence[Entry]) -> bool:
    """Whether a manifest names just these files."""
    try:
        return decode_manifest(data) == {entry.path: entry for entry in entries}
    except StoreRefused:
        return False


class _Folder(_Target):
    """A folder of this machine."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def open(self, entries: Sequence[Entry]) -> None:
        manifest = self._root / MANIFEST_NAME
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            if manifest.exists():
                with manifest.open("rb") as file:
                    data = file.read(MANIFEST_BYTES_MAX + 1)
                if not _names(data, entries):
                    manifest.unlink()
        except OSError as error:
            raise of_file(manifest, error) from None

    def put(self, source: Path, entry: Entry, told: _Told) -> bool:
        target = self._root / entry.path
        if told.stop.is_set():
            return False
        try:
            if target.is_file() and target.stat().st_size == entry.size_bytes and _sha256(target) == entry.sha256:
                told.add(entry.size_bytes)
                return False
            target.parent.mkdir(parents=True, exist_ok=True)
            with source.open("rb") as file:
                self._write(target, entry, file.read, told)
        except OSError as error:
            raise of_file(target, error) from None
        return True

    def _write(self, target: Path, entry: Entry, read: Callable[[int], bytes], told: _Told) -> None:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name[:64]}.", delete=False) as file:
            beside = Path(file.name)
            try:
                found = hashlib.sha256()
                while piece := read(_HASHED_BYTES):
                    found.update(piece)
                    file.write(piece)
                    told.add(len(piece))
                file.flush()
                os.fsync(file.fileno())
                if found.hexdigest() != entry.sha256:
                    raise StoreChanged(f"{target}: changed while it was written")
                beside.chmod(0o644)
                beside.replace(target)
            except BaseException:
                beside.unlink(missing_ok=True)
                raise

    def close(self, manifest: bytes) -> None:
        entry = Entry(PurePosixPath(MANIFEST_NAME), len(manifest), hashlib.sha256(manifest).hexdigest())
        pieces = iter((manifest, b""))
        try:
            self._write(self._root / MANIFEST_NAME, entry, lambda _size: next(pieces), _Told(None, 0))
        except OSError as error:
            raise of_file(self._root / MANIFEST_NAME, error) from None


def _sent(note: Path) -> Sent | None:
    """Return the unfinished upload that a note names. Raises OSError."""
    try:
        with note.open("rb") as file:
            return Sent.read(file.read(SENT_NOTE_BYTES_MAX + 1))
    except FileNotFoundError:
        return None


class _Prefix(_Target):
    """A prefix of a bucket."""

    def __init__(self, place: ObjectPlace, notes: Path) -> None:
        self._bucket, self._notes = Bucket(place.bucket), notes
        self._prefix = place.key + "/" if place.key else ""

    def open(self, entries: Sequence[Entry]) -> None:
        remove_unused(self._notes)
        key = self._prefix + MANIFEST_NAME
        try:
            data = self._bucket.read_small(key, MANIFEST_BYTES_MAX)
        except StoreMissing as error:
            if "NoSuchBucket" in str(error):
                raise
            return
        if not _names(data, entries):
            self._bucket.delete(key)

    def put(self, source: Path, entry: Entry, told: _Told) -> bool:
        if told.stop.is_set():
            return False
        key = self._prefix + str(entry.path)
        try:
            head = self._bucket.head(key)
            if (head.size_bytes, head.sha256) == (entry.size_bytes, entry.sha256):
                told.add(entry.size_bytes)
                return False
        except StoreMissing:
            pass
        try:
            if entry.size_bytes <= SENT_BYTES_MIN:
                self._give_up(key, self._note(key))
                data = source.read_bytes()
                if hashlib.sha256(data).hexdigest() != entry.sha256:
                    raise StoreChanged(f"{source}: changed while it was sent")
                self._bucket.put(key, data, entry.sha256)
                told.add(len(data))
                expected = hashlib.md5(data, usedforsecurity=False).hexdigest()
            else:
                expected = self._put_parts(key, source, entry, told)
        except OSError as error:
            raise of_file(source, error) from None
        self._check(key, entry, expected)
        return True

    def _put_parts(self, key: str, source: Path, entry: Entry, told: _Told) -> str:
        """Send a large file in parts, those that the store lacks; return the version that it should have."""
        note = self._note(key)
        upload, there = self._begun(key, entry, note)
        size = part_bytes_of(entry.size_bytes)
        parts: dict[int, Part] = {}
        whole, folded = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
        with source.open("rb") as file:
            for number in range(parts_of(entry.size_bytes, size)):
                if told.stop.is_set():
                    raise Stopped("the transfer was stopped")
                first, end = bounds(number, entry.size_bytes, size)
                data = file.read(end - first)
                whole.update(data)
                md5 = hashlib.md5(data, usedforsecurity=False)
                folded.update(md5.digest())
                checked = base64.b64encode(hashlib.sha256(data).digest()).decode()
                have = there.get(number + 1)
                is_there = have is not None and have.size_bytes == len(data) and (
                    have.sha256 == checked or (not have.sha256 and have.etag.strip('"') == md5.hexdigest())
                )  # fmt: skip
                if have is not None and is_there:
                    parts[number + 1] = have._replace(sha256=checked)
                else:
                    parts[number + 1] = self._bucket.send(key, upload, number + 1, data)
                told.add(len(data))
        if whole.hexdigest() != entry.sha256:
            self._give_up(key, note)
            raise StoreChanged(f"{source}: changed while it was sent")
        self._bucket.complete(key, upload, parts)
        note.unlink(missing_ok=True)
        return f"{folded.hexdigest()}-{len(parts)}"

    def _begun(self, key: str, entry: Entry, note: Path) -> tuple[str, dict[int, Part]]:
        """Return an upload of this content and its parts: the one that was interrupted, or a new one."""
        sent = _sent(note)
        if sent is not None and (sent.sha256, sent.size_bytes) == (entry.sha256, entry.size_bytes):
            with suppress(StoreMissing):
                return sent.upload, self._bucket.parts(key, sent.upload)
        self._give_up(key, note)
        upload = self._bucket.begin(key, entry.sha256)
        note.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        note.write_bytes(Sent(upload, entry.sha256, entry.size_bytes).encode())
        return upload, {}

    def _note(self, key: str) -> Path:
        """Return the file that names the unfinished upload of an object, if there is one."""
        identity = hashlib.sha256(f"{self._bucket.endpoint}\n{self._bucket.name}\n{key}".encode()).hexdigest()
        return self._notes / identity[:32]

    def _give_up(self, key: str, note: Path) -> None:
        """End an upload that nothing will complete: the store would keep its parts, and bill them."""
        if (sent := _sent(note)) is not None:
            with suppress(StoreError):  # it may not allow that, or not know the upload any more
                self._bucket.abort(key, sent.upload)
        note.unlink(missing_ok=True)

    def _check(self, key: str, entry: Entry, expected: str) -> None:
        """Check what the store has now, by its version or by reading it. Raises StoreChecksum."""
        head = self._bucket.head(key)
        where = f"s3://{self._bucket.name}/{key}"
        if (head.size_bytes, head.sha256) != (entry.size_bytes, entry.sha256):
            raise StoreChecksum(f"{where}: the store has another content than was sent")
        if head.etag.strip('"').lower() == expected:
            return
        found = hashlib.sha256()  # its version is no hash: read it
        for number in range(parts_of(entry.size_bytes, SENT_BYTES_MIN)):
            first, end = bounds(number, entry.size_bytes, SENT_BYTES_MIN)
            found.update(self._bucket.read(key, head.etag, first, end))
        if found.hexdigest() != entry.sha256:
            raise StoreChecksum(f"{where}: the store has another content than was sent")

    def close(self, manifest: bytes) -> None:
        key, sha256 = self._prefix + MANIFEST_NAME, hashlib.sha256(manifest).hexdigest()
        self._bucket.put(key, manifest, sha256)
        self._check(
            key, Entry(PurePosixPath(MANIFEST_NAME), len(manifest), sha256),
            hashlib.md5(manifest, usedforsecurity=False).hexdigest(),
        )  # fmt: skip
