"""Control groups (cgroups, versions 1 and 2) of job processes: bounded memory, bounded number of threads.

A look at a job's memory once a second is too late for one that takes all of it in between: the kernel then ends
whatever it likes, a validator of the same machine, say. In a group of its own only the job is ended.

A group is made below the group of this very process, where the system lets it. With version 2 that takes a group
that was delegated to the node (systemd: ``Delegate=``); such a group may have either processes or controllers, so
the node itself moves into a group ``node`` inside. Sources: Linux, Documentation/admin-guide/cgroup-v2.rst and
cgroup-v1/memory.rst; systemd, "Control Group APIs and Delegation".
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["ControlGroups", "JobGroup", "Placed", "open_groups", "placed"]

PROCESSES_MAX: Final = 4_096
"""Processes and threads of one job: torch starts some for each core."""
REMOVE_S: Final = 2.0
"""How long the end of the processes of a group is waited for."""
_POLL_S: Final = 0.01
_OWN_NAME: Final = "node"
_JOB_NAME: Final = re.compile(r"dekube-job-([0-9]+)-([0-9a-f]{8})-[0-9]+")
_NEEDED: Final = ("memory", "pids")
_TEXT_BYTES_MAX: Final = 1 << 20
_DELEGATED: Final = ("user.delegate", "trusted.delegate")
"""Attributes by which systemd marks a group that its unit may divide."""
_numbers = itertools.count()
_life: Final = os.urandom(4).hex()
"""Tells this process from an earlier one with the same number, as nodes in containers have."""


class Placed(NamedTuple):
    """Where a process is in one hierarchy of groups."""

    controllers: frozenset[str]
    """Empty for version 2, where each group has a file that says so."""
    folder: Path
    top: Path
    """Where the hierarchy is mounted: the process sees nothing above it."""


def placed(groups: str, mounts: str) -> list[Placed]:
    """Return where a process is, from its ``cgroup`` and ``mountinfo`` in /proc.

    Hierarchies are left out where it does not see its own group.
    """
    found: list[tuple[str, frozenset[str], str, Path]] = []
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(" "), after.split(" ")
        if len(fields) < 6 or len(kinds) < 3 or kinds[0] not in ("cgroup", "cgroup2"):
            continue
        names = frozenset(kinds[-1].split(",")) if kinds[0] == "cgroup" else frozenset[str]()
        found.append((kinds[0], names, _plain(fields[3]), Path(_plain(fields[4]))))
    places = []
    for line in groups.splitlines():
        number, _, rest = line.partition(":")
        listed, _, path = rest.partition(":")
        names = frozenset(listed.split(",")) if listed else frozenset[str]()
        kind = "cgroup2" if number == "0" and not listed else "cgroup"
        for other, controllers, root, top in found:
            inner = _below(path, root)
            if other == kind and inner is not None and names <= controllers | {""}:
                places.append(Placed(names, top / inner, top))
                break
    return places


def _plain(text: str) -> str:
    """Undo the escapes of mountinfo."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _below(path: str, root: str) -> str | None:
    """Return ``path`` from ``root``; None if it is not inside."""
    inner = os.path.relpath(path, root)
    return None if ".." in path.split("/") or inner.split("/")[0] == ".." else inner


class JobGroup:
    """The groups of one job, one in each hierarchy. Methods block for a moment."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders

    def add(self, pid: int) -> None:
        """Put a process, with what it starts later, into the group. Raises OSError."""
        for folder in self._folders:
            _write(folder / "cgroup.procs", str(pid))

    def memory_kills(self) -> int:
        """How many processes the kernel ended because the group had no memory left."""
        count = 0
        for folder in self._folders:
            for name in ("memory.events", "memory.oom_control"):
                with suppress(OSError):
                    words = _read(folder / name).split()
                    if "oom_kill" in words[:-1]:
                        count += int(words[words.index("oom_kill") + 1])
        return count

    def remove(self) -> bool:
        """End what is left in the group and remove it; return whether it is gone."""
        gone = [_remove(folder) for folder in self._folders]
        return all(gone)


class ControlGroups:
    """Makes a group for each job, below ``parents``, one in each hierarchy."""

    def __init__(self, parents: Sequence[Path]) -> None:
        self._parents = parents

    def make(self, memory_bytes: int) -> JobGroup:
        """Return a new group. Raises OSError if it, or its bound on memory, cannot be made."""
        name = f"dekube-job-{os.getpid()}-{_life}-{next(_numbers)}"
        folders: list[Path] = []
        try:
            for parent in self._parents:
                folder = parent / name
                folder.mkdir()
                folders.append(folder)
                _bound(folder, memory_bytes)
        except OSError:
            JobGroup(folders).remove()
            raise
        return JobGroup(folders)

    def remove_leftovers(self) -> int:
        """Remove groups of nodes that run no more; return how many. What runs in them is ended."""
        count = 0
        for parent in self._parents:
            with suppress(OSError):
                for folder in parent.iterdir():
                    found = _JOB_NAME.fullmatch(folder.name)
                    if found is None or found[2] == _life:
                        continue
                    if int(found[1]) == os.getpid() or not Path("/proc", found[1]).exists():
                        count += _remove(folder)
        return count


def open_groups(process: str = "self") -> ControlGroups | None:
    """Return groups for the jobs of this process; None if the system does not let it bound their memory."""
    try:
        places = placed(_read(Path(f"/proc/{process}/cgroup")), _read(Path(f"/proc/{process}/mountinfo")))
    except (OSError, ValueError):
        return None
    parents: dict[str, Path] = {}
    for place in places:
        if place.controllers:
            usable = place.controllers.intersection(_NEEDED)
            parent = place.folder if os.access(place.folder, os.W_OK) else None
        else:
            usable, parent = _unified(place)
        if parent is not None:
            parents |= dict.fromkeys(sorted(usable - parents.keys()), parent)
    if "memory" not in parents:
        return None
    return ControlGroups(list(dict.fromkeys(parents.values())))


def _unified(place: Placed, needed: Sequence[str] = _NEEDED) -> tuple[frozenset[str], Path | None]:
    """Return the controllers that groups of jobs can have with version 2, and the folder for these."""
    nothing = frozenset[str](), None
    for parent in _delegated(place):
        try:
            there = frozenset(_read(parent / "cgroup.controllers").split()).intersection(needed)
            if not there:
                return nothing
            _divide(parent, " ".join(f"+{name}" for name in sorted(there)))
        except OSError:
            continue
        return there, parent
    return nothing


def _delegated(place: Placed) -> Iterator[Path]:
    """Return groups that this process may divide: its own, or the one above if it is in a subgroup for itself."""
    if place.folder != place.top and place.folder.name == _OWN_NAME and _is_delegated(place.folder.parent):
        yield place.folder.parent
    if place.folder == place.top or _is_delegated(place.folder):
        yield place.folder


def _is_delegated(folder: Path) -> bool:
    for name in _DELEGATED:
        with suppress(OSError):
            if os.getxattr(folder, name) == b"1":
                return True
    return False


def _divide(folder: Path, controllers: str) -> None:
    """Give groups inside a group controllers. One that does so has no processes itself: they move inside too."""
    try:
        _write(folder / "cgroup.subtree_control", controllers)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        inside = folder / _OWN_NAME
        inside.mkdir(exist_ok=True)
        for pid in _read(folder / "cgroup.procs").split():
            with suppress(ProcessLookupError):
                _write(inside / "cgroup.procs", pid)
        _write(folder / "cgroup.subtree_control", controllers)


def _bound(folder: Path, memory_bytes: int) -> None:
    """Write the bounds of a group: on memory it must have one if it can, others where there are files for them."""
    bounds: Mapping[str, int] = {
        "memory.max": memory_bytes,
        "memory.swap.max": 0,
        "memory.oom.group": 1,
        "memory.limit_in_bytes": memory_bytes,
        "memory.memsw.limit_in_bytes": memory_bytes,
        "pids.max": PROCESSES_MAX,
    }
    for name, value in bounds.items():
        if (folder / name).exists():
            _write(folder / name, str(value))


def _remove(folder: Path) -> bool:
    """End the processes of a group, and remove it. Tell whether it is gone."""
    deadline = time.monotonic() + REMOVE_S
    while True:
        try:
            folder.rmdir()
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                return False
        else:
            return True
        with suppress(OSError):
            for pid in _read(folder / "cgroup.procs").split():
                with suppress(OSError):
                    os.kill(int(pid), signal.SIGKILL)
        time.sleep(_POLL_S)


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_TEXT_BYTES_MAX).decode()


def _write(path: Path, text: str) -> None:
    with path.open("w", encoding="ascii") as file:
        file.write(text)
