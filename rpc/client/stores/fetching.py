"""Fetching inputs from a store into a cache of this machine: resumed, checked, with bounded memory.

Each object is fetched in ranges of one version; ranges on disk are not fetched again. What is in the cache and
unchanged in the store is not fetched at all.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rpc.client.stores.bucket import Bucket, Head
from rpc.client.stores.errors import StoreChanged, StoreChecksum, StoreMissing, of_file
from rpc.client.stores.listing import Stored
from rpc.client.stores.manifest import MANIFEST_BYTES_MAX, MANIFEST_NAME, Entry, decode_manifest
from rpc.client.stores.resuming import NOTE_BYTES_MAX, PART_BYTES, Note, bounds, parts_of
from rpc.client.stores.threads import Stopped, settle
from state.primitives.errors import DekubeError
from tasks.requests.sources import (
    BlobPlace,
    LocalPlace,
    ObjectPlace,
    OutputPlace,
    is_output,
    is_url,
    output_of,
    place_of,
)

if TYPE_CHECKING:
    from tasks.requests.reading import Request
    from tasks.requests.references import TaskRef

__all__ = [
    "blobs_named",
    "cache_folder",
    "fetch_request",
    "fetch_source",
    "is_remote",
    "model_named",
    "outputs_named",
    "remove_unused",
    "replaced",
]

Progress = Callable[[int, int], None]

FILES_AT_ONCE: Final = 4
READS_AT_ONCE: Final = 4
"""Ranges in memory at once: 32 MiB in all."""
KEPT_S: Final = 14 * 24 * 3_600
"""Sources that nobody has used for so long are removed from the cache."""
STATE_BYTES_MAX: Final = 64 << 20
_HASHED_BYTES: Final = 1 << 20
_FIELDS: Final = ("data", "model", "tokenizer", "validation", "image")
_OWN_NAME: Final = re.compile(r"[0-9a-f]{32}|(?:blob|task|model)-[0-9a-f]{64}")
"""Names that are made here: a program may name a folder with other files for the cache."""


def cache_folder() -> Path:
    """Return the folder of this user's copies of stores."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "dekube" / "stores"


def remove_unused(folder: Path, *, but: Path | None = None) -> None:
    """Remove what a cache has of sources, or notes of uploads, that nobody has used for ``KEPT_S``."""
    oldest = time.time() - KEPT_S
    with suppress(OSError):
        for other in folder.iterdir():
            if other != but and _OWN_NAME.fullmatch(other.name) and other.lstat().st_mtime < oldest:
                if other.is_dir():
                    shutil.rmtree(other, ignore_errors=True)
                else:
                    other.unlink()


def fetch_request(request: Request, *, progress: Progress | None = None) -> Request:
    """Return the request with paths of this machine instead of URLs; what they name is fetched.

    Raises RequestInvalid, whose ``code`` is that of the store's error.
    """
    from tasks.requests.errors import RequestInvalid

    def local(source: str, field: str) -> str:
        try:
            return str(fetch_source(source, progress=progress))
        except DekubeError as error:
            raise RequestInvalid(str(error), file=request.file, field=field, code=error.code) from None

    return replaced(request, local)


def replaced(request: Request, local: Callable[[str, str], str]) -> Request:
    """Return the request with what ``local`` gives for each URL and its field."""
    made: Any = request
    mounts = getattr(request, "mounts", ())
    if any(is_url(mount.source) or is_output(mount.source) for mount in mounts):
        made = made._replace(
            mounts=tuple(
                mount._replace(source=local(mount.source, "mounts"))
                if is_url(mount.source) or is_output(mount.source)
                else mount
                for mount in mounts
            )
        )
    for field in _FIELDS:
        value = getattr(made, field, "")
        if isinstance(value, str) and is_url(value):
            made = made._replace(**{field: local(value, field)})
    found: Request = made
    return found


def blobs_named(request: Request) -> list[bytes]:
    """Return the blobs that a request names as its sources."""
    found: list[bytes] = []

    def note(source: str, _field: str) -> str:
        if isinstance(place := place_of(source), BlobPlace):
            found.append(place.name)
        return source

    replaced(request, note)
    return list(dict.fromkeys(found))


def outputs_named(request: Request) -> list[OutputPlace]:
    """Return the outputs of tasks that a request names as sources of mounts."""
    return [output_of(mount.source) for mount in getattr(request, "mounts", ()) if is_output(mount.source)]


def model_named(request: Request) -> TaskRef | None:
    """Return the task whose model a request names as the one that adapters change."""
    from tasks.requests.references import read_ref

    return read_ref(getattr(request, "model", ""))


def is_remote(request: Request) -> bool:
    """Whether a request names what a client of a node or gateway fetches: blobs, outputs or models of tasks."""
    return bool(blobs_named(request) or outputs_named(request) or model_named(request))


def fetch_source(source: str, *, cache: Path | None = None, progress: Progress | None = None) -> Path:
    """Return the file or folder of this machine that has what a source names.

    Raises SourceInvalid, StoreDenied, StoreMissing, StoreChanged, StoreFull, StoreChecksum, StoreUnreachable,
    StoreRefused, StoreTooLarge, StoreExtraMissing, StoreError.
    """
    if is_output(source):
        raise StoreMissing(f"{output_of(source)}: fetched by a client of a node or gateway alone")
    match place_of(source):
        case LocalPlace(path):
            if not Path(path).exists():
                raise StoreMissing(f"{path}: no such file or folder")
            return Path(path)
        case BlobPlace(name):
            raise StoreMissing(f"blob:{name.hex()}: fetched by a client of a node or gateway alone")
        case ObjectPlace() as place:
            return _Fetch(place, cache or cache_folder(), progress).run()


class _Have(NamedTuple):
    """A file of the cache: which version of an object it is, and its time on disk."""

    etag: str
    size_bytes: int
    mtime_ns: int


class _Fetch:
    """Fetches one source. One process at a time does that for a source."""

    def __init__(self, place: ObjectPlace, cache: Path, progress: Progress | None) -> None:
        self._place, self._bucket, self._progress = place, Bucket(place.bucket), progress
        name = hashlib.sha256(f"{self._bucket.endpoint}\n{place.url}".encode()).hexdigest()[:32]
        self._cache, self._folder = cache, cache / name
        self._content, self._parts = self._folder / "content", self._folder / "parts"
        self._stop, self._lock = threading.Event(), threading.Lock()
        self._done = self._all = 0
        self._have: dict[str, _Have] = {}
        self._entries: dict[PurePosixPath, Entry] = {}

    def run(self) -> Path:
        place = self._place
        is_single, listing = self._bucket.find(place.key, is_folder=place.is_folder)
        objects = listing.objects
        self._all = listing.size_bytes
        with self._locked():
            if not is_single:
                objects = self._of_manifest(objects)
            self._have = self._read_state()
            self._drop_others({str(stored.path) for stored in objects})
            missing = [stored for stored in objects if not self._is_here(stored)]
            self._tell(sum(stored.size_bytes for stored in objects) - sum(one.size_bytes for one in missing))
            try:
                self._fetch_all(missing)
            finally:
                self._write_state()
            self._tell(self._all - self._done)
        return self._content / objects[0].path if is_single else self._content

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self._content.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._parts.mkdir(exist_ok=True, mode=0o700)
            with (self._folder / "lock").open("wb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                os.utime(self._folder)
                remove_unused(self._cache, but=self._folder)
                yield
        except OSError as error:
            raise of_file(self._folder, error) from None

    def _of_manifest(self, objects: list[Stored]) -> list[Stored]:
        """Return the objects without a manifest of a result; what that says is checked. Raises StoreMissing."""
        if not any(str(stored.path) == MANIFEST_NAME for stored in objects):
            return objects
        prefix = self._place.key + "/" if self._place.key else ""
        self._entries = decode_manifest(self._bucket.read_small(prefix + MANIFEST_NAME, MANIFEST_BYTES_MAX))
        found = {stored.path: stored for stored in objects}
        for path, entry in self._entries.items():
            if path not in found:
                raise StoreMissing(f"{self._place.url}: {path} stands in the manifest and is not there")
            if found[path].size_bytes != entry.size_bytes:
                raise StoreChecksum(f"{self._place.url}: {path} has another size than the manifest says")
        manifest = next(stored for stored in objects if str(stored.path) == MANIFEST_NAME)
        self._all -= manifest.size_bytes
        return [stored for stored in objects if stored is not manifest]

    # What is here

    def _read_state(self) -> dict[str, _Have]:
        """Return what the cache has. It is our own file: damage means that everything is fetched."""
        try:
            with (self._folder / "state.json").open("rb") as file:
                document = json.loads(file.read(STATE_BYTES_MAX))
            return {path: _Have(str(etag), int(size), int(at)) for path, (etag, size, at) in document.items()}
        except (OSError, ValueError, TypeError, AttributeError, RecursionError):
            return {}

    def _write_state(self) -> None:
        temporary = self._folder / "state.new"
        with suppress(OSError):  # without it everything is fetched again
            temporary.write_text(json.dumps(self._have))
            temporary.replace(self._folder / "state.json")

    def _is_here(self, stored: Stored) -> bool:
        have = self._have.get(str(stored.path))
        try:
            found = (self._content / stored.path).lstat()
        except OSError:
            return False
        return have == _Have(stored.etag, found.st_size, found.st_mtime_ns) and found.st_size == stored.size_bytes

    def _drop_others(self, kept: set[str]) -> None:
        """Remove files that are no longer in the store, and empty folders."""
        for parent, folders, files in os.walk(self._content, topdown=False):
            for name in files:
                path = Path(parent) / name
                if str(path.relative_to(self._content)) not in kept:
                    path.unlink()
            for name in folders:
                with suppress(OSError):
                    (Path(parent) / name).rmdir()
        self._have = {path: have for path, have in self._have.items() if path in kept}

    # Fetching

    def _fetch_all(self, missing: list[Stored]) -> None:
        with ThreadPoolExecutor(READS_AT_ONCE) as reads, ThreadPoolExecutor(FILES_AT_ONCE) as files:
            try:
                waiting = [files.submit(self._fetch_one, stored, reads) for stored in missing]
                settle(waiting)
            except BaseException:
                self._stop.set()
                files.shutdown(wait=False, cancel_futures=True)
                reads.shutdown(wait=False, cancel_futures=True)
                raise

    def _fetch_one(self, stored: Stored, reads: ThreadPoolExecutor) -> None:
        """Fetch one object into the cache. Raises StoreError."""
        if self._stop.is_set():
            return
        head = self._bucket.head(stored.key)
        if (head.etag, head.size_bytes) != (stored.etag, stored.size_bytes):
            raise StoreChanged(f"s3://{self._place.bucket}/{stored.key}: changed since it was listed; try again")
        name = hashlib.sha256(stored.key.encode()).hexdigest()[:32]
        part, notes = self._parts / name, self._parts / f"{name}.notes"
        target = self._content / stored.path
        try:
            self._fetch_parts(stored, part, notes, reads)
            self._check(stored, head, part, notes)
            target.parent.mkdir(parents=True, exist_ok=True)
            part.replace(target)
            notes.unlink(missing_ok=True)
            found = target.lstat()
        except OSError as error:
            raise of_file(target, error) from None
        with self._lock:
            self._have[str(stored.path)] = _Have(stored.etag, found.st_size, found.st_mtime_ns)

    def _fetch_parts(self, stored: Stored, part: Path, notes: Path, reads: ThreadPoolExecutor) -> None:
        note = Note(stored.etag, stored.size_bytes, frozenset())
        if part.exists() and notes.exists():
            with notes.open("rb") as file:
                note = Note.read(file.read(NOTE_BYTES_MAX + 1), stored.etag, stored.size_bytes)
        if not note.done:
            part.unlink(missing_ok=True)
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "r+b"), notes.open("wb", buffering=0) as noted:
            noted.write(note.head + b"".join(b"%d\n" % number for number in sorted(note.done)))
            if stored.size_bytes:
                os.posix_fallocate(descriptor, 0, stored.size_bytes)  # a full disk is noticed before the transfer
            done = (bounds(number, stored.size_bytes, PART_BYTES) for number in note.done)
            self._tell(sum(end - first for first, end in done))

            def fetch(number: int) -> None:
                if self._stop.is_set():
                    return
                first, end = bounds(number, stored.size_bytes, PART_BYTES)
                content = self._bucket.read(stored.key, stored.etag, first, end, stop=self._stop)
                os.pwrite(descriptor, content, first)
                noted.write(b"%d\n" % number)
                self._tell(end - first)

            numbers = [one for one in range(parts_of(stored.size_bytes, PART_BYTES)) if one not in note.done]
            waiting = [reads.submit(fetch, number) for number in numbers]
            try:
                settle(waiting)
            except BaseException:
                self._stop.set()
                raise
            finally:
                for future in waiting:
                    future.cancel()
                wait(waiting)  # none writes after the file is closed
            os.fsync(descriptor)

    def _check(self, stored: Stored, head: Head, part: Path, notes: Path) -> None:
        """Check the whole content by the hashes that are known of it. Raises StoreChecksum."""
        if self._stop.is_set():
            raise Stopped("the transfer was stopped")
        entry = self._entries.get(stored.path)
        wanted = {"sha256": {entry.sha256} if entry is not None else set(), "md5": set[str]()}
        if head.sha256:
            wanted["sha256"].add(head.sha256)
        if head.md5 and not wanted["sha256"]:
            wanted["md5"].add(head.md5)
        for name, hashes in wanted.items():
            if not hashes:
                continue
            found = hashlib.new(name, usedforsecurity=False)
            with part.open("rb") as file:
                while piece := file.read(_HASHED_BYTES):
                    found.update(piece)
            if hashes != {found.hexdigest()}:
                part.unlink()
                notes.unlink(missing_ok=True)
                where = f"s3://{self._place.bucket}/{stored.key}"
                raise StoreChecksum(f"{where}: its content does not have the {name} that is named for it")

    def _tell(self, count: int) -> None:
        with self._lock:
            self._done += count
            if self._progress is not None:
                self._progress(min(self._done, self._all), max(self._all, 1))
