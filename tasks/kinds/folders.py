"""Folders as one blob: what a container reads and what it leaves, packed the same everywhere (market.md R93).

The form is an uncompressed tar archive with regular files and folders alone. The same files give the same bytes:
entries are sorted, and owners, times and modes are fixed. What is unpacked was written by a stranger. So links,
devices and paths that leave the folder are refused before a byte is written.
"""

from __future__ import annotations

import io
import os
import stat
import tarfile
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Final

from tasks.kinds.disk_room import ENTRIES_MAX, disk_bytes
from tasks.kinds.tar_heads import ArchiveInvalid, HeadReader

__all__ = ["ENTRIES_MAX", "ArchiveInvalid", "pack", "pack_to", "unpack"]

DEPTH_MAX: Final = 64
NAME_BYTES_MAX: Final = 255
PATH_BYTES_MAX: Final = 4096
_PIECE: Final = 1 << 20
_DEVICE_NAMES: Final = frozenset({"con", "prn", "aux", "nul"})


def _entries(root: Path) -> Iterator[tuple[PurePosixPath, os.stat_result]]:
    """Yield what is in a folder, sorted; links are not followed. Raises ArchiveInvalid."""
    waiting, seen = [PurePosixPath()], 0
    while waiting:
        inner = waiting.pop()
        if len(inner.parts) > DEPTH_MAX:
            raise ArchiveInvalid(f"{inner}: nested deeper than {DEPTH_MAX}")
        folders = []
        for name in sorted(os.listdir(root / inner)):
            path = inner / name
            seen += 1
            if seen > ENTRIES_MAX:
                raise ArchiveInvalid(f"more than {ENTRIES_MAX} files and folders")
            check_name(path)
            found = os.lstat(root / path)
            if stat.S_ISDIR(found.st_mode):
                folders.append(path)
            elif not stat.S_ISREG(found.st_mode):
                raise ArchiveInvalid(f"{path}: only regular files and folders can be packed, no links")
            yield path, found
        waiting += reversed(folders)


def check_name(path: PurePosixPath) -> None:
    """Check a path inside a folder. Raises ArchiveInvalid."""
    try:
        whole = str(path).encode()
    except UnicodeEncodeError:
        raise ArchiveInvalid(f"{str(path)!r}: not UTF-8") from None
    bad = not path.parts or path.is_absolute() or len(whole) > PATH_BYTES_MAX or len(path.parts) > DEPTH_MAX
    for part in path.parts:
        bad = bad or part in (".", "..") or len(part.encode()) > NAME_BYTES_MAX
        bad = bad or any(unicodedata.category(sign) in ("Cc", "Cs") or sign in "\\:" for sign in part)
        bad = bad or part.partition(".")[0].lower() in _DEVICE_NAMES
    if bad:
        raise ArchiveInvalid(f"{str(path)[:80]!r}: no name of a file that every machine can have")


def pack_to(root: Path, file: IO[bytes], *, limit_bytes: int) -> int:
    """Write the content of a folder as an archive; return its bytes. Raises ArchiveInvalid, OSError."""
    counted = _Counted(file, limit_bytes)
    with tarfile.open(mode="w|", fileobj=counted, format=tarfile.PAX_FORMAT, encoding="utf-8") as archive:
        for path, found in _entries(root):
            entry = tarfile.TarInfo(str(path))
            if stat.S_ISDIR(found.st_mode):
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(entry)
                continue
            entry.mode = 0o755 if found.st_mode & 0o100 else 0o644
            # A link that came in its place since is not followed.
            descriptor = os.open(root / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with os.fdopen(descriptor, "rb") as content:
                now = os.fstat(content.fileno())
                if not stat.S_ISREG(now.st_mode):
                    raise ArchiveInvalid(f"{path}: changed while it was packed")
                entry.size = now.st_size
                if counted.written + entry.size > limit_bytes:
                    raise ArchiveInvalid(f"more than {limit_bytes} bytes")
                try:
                    archive.addfile(entry, content)
                except OSError as error:
                    if error.errno is not None:
                        raise
                    raise ArchiveInvalid(f"{path}: changed while it was packed") from None
    return counted.written


def pack(root: Path, *, limit_bytes: int) -> bytes:
    """Return the content of a folder as an archive. Raises ArchiveInvalid, OSError."""
    file = io.BytesIO()
    pack_to(root, file, limit_bytes=limit_bytes)
    return file.getvalue()


class _Counted(io.RawIOBase):
    """A file that takes a bounded number of bytes."""

    def __init__(self, file: IO[bytes], limit_bytes: int) -> None:
        self._file, self._limit, self.written = file, limit_bytes, 0

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self.written += len(data)
        if self.written > self._limit:
            raise ArchiveInvalid(f"more than {self._limit} bytes")
        self._file.write(data)
        return len(data)


def unpack(
    file: IO[bytes], to: Path, *, limit_bytes: int, disk_limit_bytes: int | None = None,
    note: Callable[[str], None] | None = None,
) -> int:  # fmt: skip
    """Write what an archive has into the new or empty folder ``to``; return the number of files.

    All entries are checked before the first is written. Files are made anew, readable and never run as another
    user; a path never leaves ``to``. They take ``disk_limit_bytes`` of a disk at most (``disk_bytes``). ``note``
    gets the path of each file. Raises ArchiveInvalid, OSError.
    """
    entries = _checked(file, limit_bytes)
    if disk_limit_bytes is not None:
        needed = disk_bytes(1 if entry.isdir() else entry.size for _, _, entry in entries)
        if needed > disk_limit_bytes:
            raise ArchiveInvalid(f"{needed} bytes on a disk, at most {disk_limit_bytes}")
    to.mkdir(parents=True, exist_ok=True)
    if any(to.iterdir()):
        raise ArchiveInvalid(f"{to}: a new or empty folder expected")
    count = 0
    for path, offset, entry in entries:
        place = to.joinpath(*path.parts)
        if entry.isdir():
            place.mkdir(parents=True, exist_ok=True)
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        mode = 0o755 if entry.mode & 0o100 else 0o644
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        with os.fdopen(descriptor, "wb") as target:
            file.seek(offset)
            left = entry.size
            while left:
                piece = file.read(min(left, _PIECE))
                if not piece:
                    raise ArchiveInvalid("the archive ends too early")
                target.write(piece)
                left -= len(piece)
        count += 1
        if note is not None:
            note(str(path))
    return count


def _checked(file: IO[bytes], limit_bytes: int) -> list[tuple[PurePosixPath, int, tarfile.TarInfo]]:
    """Return what an archive has; nothing of it is written. Raises ArchiveInvalid."""
    file.seek(0, os.SEEK_END)
    size = file.tell()
    if size > limit_bytes:
        raise ArchiveInvalid(f"{size} bytes, at most {limit_bytes}")
    file.seek(0)
    found: dict[PurePosixPath, tuple[int, tarfile.TarInfo]] = {}
    heads = HeadReader(file)
    try:
        with tarfile.open(mode="r:", fileobj=heads, encoding="utf-8", errors="strict") as archive:
            for entry in archive:
                heads.next_entry()
                if len(found) >= ENTRIES_MAX:
                    raise ArchiveInvalid(f"more than {ENTRIES_MAX} files and folders")
                # A sparse file would be larger than its bytes in the archive.
                is_file = entry.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not entry.issparse()
                if not (is_file or entry.isdir()):
                    raise ArchiveInvalid(f"{entry.name[:80]!r}: regular files and folders alone")
                path = _path_of(entry)
                if path in found:
                    raise ArchiveInvalid(f"{str(path)[:80]!r} is there twice")
                if is_file and not 0 <= entry.size <= size - entry.offset_data:
                    raise ArchiveInvalid("the archive ends too early")
                found[path] = entry.offset_data, entry
    except (tarfile.TarError, UnicodeError, ValueError, EOFError, OverflowError, RecursionError) as error:
        raise ArchiveInvalid(f"not an archive of this form: {str(error)[:80]}") from None
    for path in found:
        for parent in list(path.parents)[:-1]:
            if parent in found and not found[parent][1].isdir():
                raise ArchiveInvalid(f"{str(path)[:80]!r} lies in a file")
    return [(path, offset, entry) for path, (offset, entry) in found.items()]


def _path_of(entry: tarfile.TarInfo) -> PurePosixPath:
    name = entry.name.removesuffix("/") if entry.isdir() else entry.name
    if "//" in name or name.startswith("/") or any(part in ("", ".", "..") for part in name.split("/")):
        raise ArchiveInvalid(f"{name[:80]!r}: no path inside the folder")
    path = PurePosixPath(name)
    check_name(path)
    return path
