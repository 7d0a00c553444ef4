"""A program of the helper container: copies the folder of checkpoints while the requester's container may write.

The Python of the helper's image runs this file alone (3.9 or newer), so it imports nothing of this project. A pod
gets its text.

``snapshot ROOM WIPES`` copies the folder to another one of the pod until nothing has changed from the first look
to the last, and writes the copy as a tar archive. Each pass copies only what has changed since the last one. So a
large folder with a small file that changes each second comes to rest. ``rest NAME OFFSET`` writes the archive of
that copy from an offset on. Empty lines come first, as signs of life, then a line with the name of the copy.

``gone SECONDS`` waits until the requester's container has no process left, and ends with STILL_THERE if one is.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
import tarfile
import time
from collections.abc import Iterator

ROOT = "/dekube/disk"
FOLDER = "checkpoint"
COPY = "/dekube/copy"
INDEX = "index-"
UNFINISHED = ".tmp"
FILES_MAX = (1 << 16) + 1
DEPTH_MAX = 64
READ_BYTES = 256 << 10
BLOCK_BYTES = 4_096
ENTRY_BYTES = 512
NAMES_BYTES_MAX = 32 << 20
"""Of the names of all files, as they are listed: a folder with longer ones is too large."""
PASSES_MIN = 3
PASSES_S = 20.0
"""How long a folder that changes is copied again."""
TICK_S = 0.02
"""The clock of a file system moves in steps; a file that is written in the same step again looks the same."""
STILL_THERE = 3
CHANGED = 4
TOO_LARGE = 5
NO_COPY = 6
LOOK_S = 0.2
ALIVE_S = 5.0


class Alive:
    """Writes an empty line now and then: a stream on which nothing moves would count as broken."""

    def __init__(self, target: int) -> None:
        self.target, self.at = target, time.monotonic()

    def sign(self) -> None:
        """Write a line if the last one is old."""
        if time.monotonic() > self.at + ALIVE_S:
            os.write(self.target, b"\n")
            self.at = time.monotonic()


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


def mark(found: os.stat_result) -> str:
    """Return the name of a file's copy: it changes with each write, and with each other file of that name."""
    return f"{found.st_ino}-{found.st_size}-{found.st_mtime_ns}-{found.st_ctime_ns}"


def look(root: str, alive: Alive) -> tuple[str, set[str], int]:
    """Return the hash of all that the folder holds, the marks of its files, and what it takes on a disk."""
    total, marks, room, names = hashlib.sha256(), set(), 0, 0
    for name, found in members(root):
        alive.sign()
        names += len(json.dumps(name))
        if stat.S_ISREG(found.st_mode):
            marks.add(mark(found))
            room += -(-found.st_size // BLOCK_BYTES) * BLOCK_BYTES
        room += ENTRY_BYTES
        said = mark(found) if not stat.S_ISDIR(found.st_mode) else ""
        total.update(repr((name, said, found.st_ino, found.st_mode)).encode())
    return total.hexdigest(), marks, room if names <= NAMES_BYTES_MAX else sys.maxsize


def snapshot(root: str, copy: str, room_max: int, target: int, wipes: bool) -> int:
    """Copy the folder as it was at one moment and write its archive; return the exit code."""
    alive, until, passes = Alive(target), time.monotonic() + PASSES_S, 0
    for old in os.listdir(copy):  # what is written through a map of memory may change without a mark
        forget(os.path.join(copy, old), wipes)
    while passes < PASSES_MIN or time.monotonic() < until:
        passes += 1
        state, marks, room = look(root, alive)
        if room > room_max:
            if look(root, alive)[0] == state:
                return TOO_LARGE
            continue
        for old in set(os.listdir(copy)) - marks:
            forget(os.path.join(copy, old), wipes)
        time.sleep(TICK_S)
        name = os.urandom(8).hex()
        is_whole = copy_changed(root, copy, INDEX + name, marks, alive)
        if is_whole and look(root, alive)[0] == state:
            return rest(copy, name, 0, target)
    return CHANGED


def copy_changed(root: str, copy: str, index: str, marks: set[str], alive: Alive) -> bool:
    """Copy the files that no earlier pass has copied, and list all; tell whether they are those of ``marks``."""
    with open(os.path.join(copy, index), "w", encoding="utf-8") as listed:
        for name, found in members(root):
            kind, said = "left out", ""
            if stat.S_ISDIR(found.st_mode):
                kind = "folder"
            elif stat.S_ISREG(found.st_mode):
                kind, said = ("program" if found.st_mode & 0o100 else "file"), mark(found)
                if said not in marks:
                    return False
                if not os.path.exists(os.path.join(copy, said)) and not copy_file(root, name, copy, said, alive):
                    return False
            listed.write(json.dumps([name, kind, said]) + "\n")
    return True


def copy_file(root: str, name: str, copy: str, said: str, alive: Alive) -> bool:
    """Copy one file; tell whether it is the one that was seen."""
    new = os.path.join(copy, "part")
    try:
        handle = os.open(os.path.join(root, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:  # gone, or another thing
        return False
    with os.fdopen(handle, "rb", buffering=0) as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or mark(found) != said:
            return False
        left = found.st_size
        with open(new, "wb", buffering=0) as written:
            while left:
                data = file.read(min(READ_BYTES, left))
                if not data:
                    return False
                written.write(data)
                left -= len(data)
                alive.sign()
    os.rename(new, os.path.join(copy, said))
    return True


def forget(path: str, wipes: bool) -> None:
    """Remove a copy that is no longer needed; that of a private container is overwritten."""
    try:
        if wipes:
            with open(path, "r+b", buffering=0) as file:
                left = os.fstat(file.fileno()).st_size
                while left > 0:
                    left -= file.write(bytes(min(READ_BYTES, left)))
                os.fsync(file.fileno())
        os.unlink(path)
    except FileNotFoundError:
        return


class Tail:
    """Writes what comes after the first ``skipped`` bytes to a descriptor, behind the name of the copy."""

    def __init__(self, target: int, name: str, skipped: int) -> None:
        self.target, self.head, self.skipped = target, name.encode() + b"\n", skipped
        self.alive = Alive(target)

    def write(self, data: bytes) -> int:
        """Write bytes."""
        rest = memoryview(data)[self.skipped :]
        self.skipped -= len(data) - len(rest)
        if not rest:
            self.alive.sign()
            return len(data)
        self.put(self.head)
        self.head = b""
        self.put(rest)
        return len(data)

    def put(self, data: bytes | memoryview) -> None:
        """Write all of it."""
        while data:
            data = data[os.write(self.target, data) :]


def rest(copy: str, name: str, offset: int, target: int) -> int:
    """Write the archive of a copy from an offset on; return 0, or NO_COPY where it is gone."""
    tail = Tail(target, name, offset)
    try:
        with (
            open(os.path.join(copy, INDEX + name), encoding="utf-8") as listed,
            tarfile.open(
                fileobj=tail,
                mode="w|",
                format=tarfile.GNU_FORMAT,
                bufsize=READ_BYTES,  # type: ignore[call-overload]
            ) as packed,
        ):
            top = tarfile.TarInfo(FOLDER)
            top.type, top.mode = tarfile.DIRTYPE, 0o755
            packed.addfile(top)
            for line in listed:
                add(packed, copy, *json.loads(line))
    except (OSError, ValueError, TypeError):  # damaged by somebody, or replaced by a later copy
        return NO_COPY
    tail.put(tail.head)
    return 0


def add(packed: tarfile.TarFile, copy: str, name: str, kind: str, said: str) -> None:
    """Add one file or folder. Raises OSError where its copy is gone."""
    entry = tarfile.TarInfo(FOLDER + "/" + name)
    entry.mode = 0o644 if kind == "file" else 0o755
    if kind == "folder":
        entry.type = tarfile.DIRTYPE
        packed.addfile(entry)
    elif kind in ("file", "program"):
        handle = os.open(os.path.join(copy, os.path.basename(said)), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            entry.size = os.fstat(handle).st_size
            packed.addfile(entry, file)
    else:
        entry.type = tarfile.SYMTYPE  # told as left out; where it points to is nobody's matter
        entry.linkname = "left-out"
        packed.addfile(entry)


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
    if words[0] == "snapshot":
        return snapshot(os.path.join(ROOT, FOLDER), COPY, int(words[1]), 1, words[2] == "1")
    if words[0] == "rest":
        return rest(COPY, os.path.basename(words[1]), int(words[2]), 1)
    until = time.monotonic() + float(words[1])
    while has_others():
        os.write(1, b"\n")
        if time.monotonic() > until:
            return STILL_THERE
        time.sleep(LOOK_S)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
