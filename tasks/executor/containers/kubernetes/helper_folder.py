"""A program of the helper container: reads the folder of checkpoints while the requester's container may write.

The Python of the helper's image runs this file alone (3.9 or newer), so it imports nothing of this project. A pod
gets its text. ``state`` tells the hash of what the folder holds: where two differ, something was written.
``archive OFFSET`` writes the folder as a tar archive from an offset on, always the same bytes for the same state.
``gone SECONDS`` waits until the requester's container has no process left, and ends with code 3 if it still has.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import tarfile
import time
from collections.abc import Iterator

ROOT = "/dekube/disk"
FOLDER = "checkpoint"
UNFINISHED = ".tmp"
FILES_MAX = (1 << 16) + 1
DEPTH_MAX = 64
READ_BYTES = 256 << 10
CHANGED = 4
LOOK_S = 0.2


def members(root: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield name and state of the plain files and folders below ``root``, in one order; no link is followed."""
    count = 0
    for where, folders, files, handle in os.fwalk(root, follow_symlinks=False):
        inner = os.path.relpath(where, root)
        if inner.count("/") >= DEPTH_MAX:
            folders.clear()
        folders.sort()
        for name in sorted([*folders, *files]):
            if name.endswith(UNFINISHED):
                continue
            try:
                found = os.stat(name, dir_fd=handle, follow_symlinks=False)
            except FileNotFoundError:  # renamed meanwhile: the next look sees it
                continue
            count += 1
            if count > FILES_MAX:
                return
            yield os.path.normpath(os.path.join(inner, name)), found


def state_of(root: str) -> str:
    """Return the hash of names, sizes, times and numbers of the finished files, links among them."""
    total = hashlib.sha256()
    for name, found in members(root):
        is_folder = stat.S_ISDIR(found.st_mode)
        size, time_ns = (0, 0) if is_folder else (found.st_size, found.st_mtime_ns)
        total.update(repr((name, size, time_ns, found.st_ino, found.st_mode)).encode())
    return total.hexdigest()


class Tail:
    """Writes what comes after the first ``skipped`` bytes to a descriptor."""

    def __init__(self, target: int, skipped: int) -> None:
        self.target, self.skipped = target, skipped

    def write(self, data: bytes) -> int:
        """Write bytes."""
        rest = memoryview(data)[self.skipped :]
        self.skipped -= len(data) - len(rest)
        while rest:
            rest = rest[os.write(self.target, rest) :]
        return len(data)


def archive(root: str, target: int, offset: int) -> int:
    """Write the archive of a folder; return 0, or CHANGED where a file changed on the way."""
    tail = Tail(target, offset)
    with tarfile.open(fileobj=tail, mode="w|", format=tarfile.GNU_FORMAT, bufsize=READ_BYTES) as packed:  # type: ignore[call-overload]
        top = tarfile.TarInfo(FOLDER)
        top.type, top.mode = tarfile.DIRTYPE, 0o755
        packed.addfile(top)
        for name, found in members(root):
            entry = tarfile.TarInfo(FOLDER + "/" + name)
            entry.mode = 0o755 if stat.S_ISDIR(found.st_mode) or found.st_mode & 0o100 else 0o644
            if stat.S_ISDIR(found.st_mode):
                entry.type = tarfile.DIRTYPE
                packed.addfile(entry)
            elif stat.S_ISREG(found.st_mode):
                entry.size = found.st_size
                try:
                    handle = os.open(os.path.join(root, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                    with os.fdopen(handle, "rb") as file:
                        packed.addfile(entry, file)
                except OSError:  # gone, another thing, or shorter than it was
                    return CHANGED
            else:
                entry.type = tarfile.SYMTYPE  # told as left out; where it points to is nobody's matter
                entry.linkname = "left-out"
                packed.addfile(entry)
    return 0


def has_others() -> bool:
    """Whether a process of the pod has another root folder than this one, and is not the pod's first."""
    own = os.stat("/proc/self/root/")
    for name in os.listdir("/proc"):
        if not name.isdigit() or name == "1":
            continue
        try:
            found = os.stat(f"/proc/{name}/root/")
        except OSError:  # it has just ended, or waits for its parent to notice
            continue
        if (found.st_dev, found.st_ino) != (own.st_dev, own.st_ino):
            return True
    return False


def main(words: list[str]) -> int:
    """Do what the words say; return the exit code."""
    root = os.path.join(ROOT, FOLDER)
    if words[0] == "state":
        print(state_of(root))
        return 0
    if words[0] == "archive":
        return archive(root, 1, int(words[1]))
    until = time.monotonic() + float(words[1])
    while has_others():
        os.write(1, b"\n")  # a stream on which nothing moves would count as broken
        if time.monotonic() > until:
            return 3
        time.sleep(LOOK_S)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
