"""What a container left in its output folder: from the engine's archive to a deterministic tar of plain files."""

from __future__ import annotations

import os
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from tasks.executor.containers.errors import BadOutputs
from tasks.kinds.disk_room import disk_bytes

__all__ = [
    "ARCHIVE_SPARE_BYTES",
    "FILES_MAX",
    "Outputs",
    "archive_limit",
    "is_unfinished",
    "pack_file",
    "pack_outputs",
]

FILES_MAX: Final = 1 << 16
PATH_BYTES_MAX: Final = 4_096
NAME_BYTES_MAX: Final = 255
_DEVICE_NAMES: Final = frozenset({"con", "prn", "aux", "nul"})
DEPTH_MAX: Final = 64
UNFINISHED: Final = ".tmp"
"""The end of names of files in a checkpoint that are still written."""
ARCHIVE_SPARE_BYTES: Final = FILES_MAX * 1_024
"""Bytes of an archive beside the contents of its files: a header and padding for each."""
_FILE_MODE: Final = 0o644
_EXECUTABLE_MODE: Final = 0o755


@dataclass(frozen=True)
class Outputs:
    """What was kept, and what was left out: links, devices, pipes, and names that some machines refuse."""

    files: int
    size_bytes: int
    left_out: tuple[str, ...] = ()
    left_out_count: int = 0


def archive_limit(output_bytes: int) -> int:
    """Return the size that no archive of permitted outputs exceeds."""
    return output_bytes + ARCHIVE_SPARE_BYTES


def pack_outputs(
    archive: IO[bytes], packed: IO[bytes], output_bytes: int, *, leaves_unfinished: bool = False,
    disk_limit_bytes: int | None = None,
) -> Outputs:  # fmt: skip
    """Write the plain files and folders of ``archive`` to ``packed``, at most ``output_bytes`` with headers.

    Names are sorted; owner, times and modes say nothing of the machine. Every name is relative and without dots. A
    symbolic link is left out, for it could name a file of the machine that unpacks; each name of a file with
    several is a file of its own, and holes are zeros. ``leaves_unfinished``: files that are
    still written are left out too, by their names (``UNFINISHED``). What is to be restored takes
    ``disk_limit_bytes`` of a disk at most, on each machine. Raises BadOutputs.
    """
    try:
        with tarfile.open(fileobj=archive, mode="r:") as source:
            members, left_out = _plain_members(source, output_bytes, leaves_unfinished=leaves_unfinished)
            needed = disk_bytes(member.size if member.isreg() else 1 for member in members.values())
            if disk_limit_bytes is not None and needed > disk_limit_bytes:
                raise BadOutputs(f"{needed} bytes on the disk that restores it, at most {disk_limit_bytes}")
            counted = _Counted(packed, output_bytes)
            with tarfile.open(fileobj=counted, mode="w", format=tarfile.PAX_FORMAT) as target:  # type: ignore[call-overload]
                for name in sorted(members):
                    target.addfile(_clean(name, members[name]), source.extractfile(members[name]))
    except (tarfile.TarError, UnicodeError, ValueError, EOFError, OverflowError) as error:
        raise BadOutputs(f"not an archive: {error}") from None
    files = sum(member.isreg() for member in members.values())
    return Outputs(files, counted.written, tuple(left_out[:16]), len(left_out))


def pack_file(
    archive: IO[bytes], packed: Path, output_bytes: int, *, leaves_unfinished: bool = False,
    disk_limit_bytes: int | None = None,
) -> Outputs:  # fmt: skip
    """Write the tar to a path that only this user may read (``pack_outputs``); it is removed if that fails."""
    with open(os.open(packed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        try:
            return pack_outputs(
                archive, file, output_bytes, leaves_unfinished=leaves_unfinished, disk_limit_bytes=disk_limit_bytes
            )
        except BadOutputs:
            packed.unlink()
            raise


def _plain_members(
    source: tarfile.TarFile, output_bytes: int, *, leaves_unfinished: bool
) -> tuple[dict[str, tarfile.TarInfo], list[str]]:
    """Return the members to keep by clean name, and the names of the others. Raises BadOutputs."""
    members: dict[str, tarfile.TarInfo] = {}
    left_out: list[str] = []
    files: dict[str, tarfile.TarInfo] = {}
    size = 0
    for count, member in enumerate(source):
        if count >= FILES_MAX:
            raise BadOutputs(f"more than {FILES_MAX} files")
        inner = _inner_name(member.name)
        if not inner:
            continue  # the folder itself
        if member.islnk():  # one more name of a file that came before: it becomes a file of its own
            member = files.get(member.linkname, member)
        elif member.isreg():
            files[member.name] = member
        if not (member.isreg() or member.isdir()) or member.sparse or not _is_portable(inner):
            left_out.append(inner)
            continue
        if leaves_unfinished and is_unfinished(inner):
            left_out.append(inner)
            continue
        if inner in members:
            raise BadOutputs(f"{inner[:80]!r} occurs twice")
        size += member.size
        if size > output_bytes:
            raise BadOutputs(f"more than {output_bytes} bytes")
        members[inner] = member
    for name in list(members):
        parents = name.split("/")[:-1]
        for depth in range(1, len(parents) + 1):
            above = members.get("/".join(parents[:depth]))
            if above is None or not above.isdir():  # of a folder that was left out
                left_out.append(name)
                del members[name]
                break
    return members, left_out


def is_unfinished(name: str) -> bool:
    """Whether a file is still written, as its name says: a program renames it when it is whole."""
    return name.endswith(UNFINISHED)


def _inner_name(name: str) -> str:
    """Return the name without the first folder, which the engine adds. Raises BadOutputs."""
    parts = name.rstrip("/").split("/")
    if name.startswith("/") or {"", ".", ".."} & set(parts) or len(parts) > DEPTH_MAX or "\0" in name:
        raise BadOutputs(f"{name[:80]!r} is not a path inside the folder")
    inner = "/".join(parts[1:])
    if len(inner.encode("utf-8", "surrogateescape")) > PATH_BYTES_MAX:
        raise BadOutputs("a path is too long")
    return inner


def _is_portable(name: str) -> bool:
    """Whether every machine can have a file of this name."""
    return (
        name.isprintable() and not {":", "\\"} & set(name)
        and all(len(part.encode()) <= NAME_BYTES_MAX for part in name.split("/"))
        and not any(part.partition(".")[0].lower() in _DEVICE_NAMES for part in name.split("/"))
    )  # fmt: skip


def _clean(name: str, member: tarfile.TarInfo) -> tarfile.TarInfo:
    clean = tarfile.TarInfo(name)
    clean.size = member.size if member.isreg() else 0
    clean.type = tarfile.REGTYPE if member.isreg() else tarfile.DIRTYPE
    clean.mode = _EXECUTABLE_MODE if member.isdir() or member.mode & 0o111 else _FILE_MODE
    return clean


class _Counted:
    """A file that refuses to grow beyond a limit."""

    def __init__(self, file: IO[bytes], limit: int) -> None:
        self._file, self._limit, self.written = file, limit, 0

    def write(self, data: bytes) -> int:
        self.written += len(data)
        if self.written > self._limit:
            raise BadOutputs(f"more than {self._limit} bytes")
        return self._file.write(data)

    def tell(self) -> int:
        return self.written

    def flush(self) -> None:
        self._file.flush()
