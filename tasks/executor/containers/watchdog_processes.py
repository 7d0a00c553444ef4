"""Who is inside a container's namespaces, and who traces its processes: a look at /proc, of some milliseconds.

What a container does to itself is no sign: its own processes may trace one another. A process that entered the
namespaces has a parent outside of them, which no process of the container can bring about.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Final

from tasks.executor.containers.watchdog import Processes

__all__ = ["PROC", "look_at_processes", "sees_container"]

PROC: Final = Path("/proc")
LOOKED_MAX: Final = 65_536
FOUND_MAX: Final = 16
DEPTH_MAX: Final = 64
"""Ancestors of a process that are looked at."""
NAMESPACES: Final = ("pid", "mnt")
"""Those with which a process sees the job's memory or files."""


def sees_container(init: int, container: str, proc: Path = PROC) -> bool:
    """Tell whether ``init`` is the first process of the engine's container, as this node numbers processes."""
    try:
        return container in (proc / str(init) / "cgroup").read_text()
    except (OSError, UnicodeError):
        return False


def look_at_processes(init: int, proc: Path = PROC) -> Processes | None:
    """Look at every process of the machine; None where the container has ended, or this node may not look.

    ``init`` is the first process of the container. Each finding is read a second time: a process that ends
    meanwhile is none.
    """
    inside = _namespaces(proc, init)
    if None in inside:
        return None
    strangers: list[int] = []
    tracers: list[tuple[int, int]] = []
    for count, name in enumerate(os.listdir(proc)):
        if count >= LOOKED_MAX or len(strangers) + len(tracers) >= FOUND_MAX:
            break
        if not name.isdecimal() or int(name) == init:
            continue
        found = int(name)
        own = _namespaces(proc, found)
        if not any(one is not None and one == other for one, other in zip(own, inside, strict=True)):
            continue
        if _is_stranger(proc, found, inside):
            strangers.append(found)
        elif (tracer := _tracer_outside(proc, found, inside)) is not None:
            tracers.append((found, tracer))
    if (tracer := _tracer_outside(proc, init, inside)) is not None:
        tracers.append((init, tracer))
    return Processes(tuple(sorted(strangers)), tuple(sorted(tracers)))


def _namespaces(proc: Path, process: int) -> tuple[str | None, ...]:
    found: list[str | None] = []
    for name in NAMESPACES:
        try:
            found.append(os.readlink(f"{proc}/{process}/ns/{name}"))  # text: a Path costs ten times as much
        except OSError:
            found.append(None)
    return tuple(found)


def _status(proc: Path, process: int) -> dict[str, int]:
    """Return the parent and the tracer of a process; empty for one that has ended."""
    try:
        lines = (proc / str(process) / "status").read_text(errors="replace").splitlines()
    except OSError:
        return {}
    fields = (line.partition(":") for line in lines)
    return {
        name: int(value)
        for name, _, value in fields
        if name in ("PPid", "TracerPid") and value.strip().isdecimal()
    }


def _is_stranger(proc: Path, process: int, inside: tuple[str | None, ...]) -> bool:
    """Tell whether a process that shares a namespace with the container descends from none of its processes."""
    chain = [process]
    while len(chain) <= DEPTH_MAX:
        parent = _status(proc, chain[-1]).get("PPid")
        if parent is None:  # it has ended meanwhile
            return False
        if parent <= 1:
            break
        above = _namespaces(proc, parent)
        if None in above or above[0] == inside[0]:
            return False
        chain.append(parent)
    # As long as a process is a parent its number belongs to nobody else.
    is_same = all(_status(proc, child).get("PPid") == parent for child, parent in itertools.pairwise(chain))
    return is_same and None not in _namespaces(proc, process)


def _tracer_outside(proc: Path, process: int, inside: tuple[str | None, ...]) -> int | None:
    tracer = _status(proc, process).get("TracerPid", 0)
    if not tracer:
        return None
    found = _namespaces(proc, tracer)
    if None in found or found[0] == inside[0]:
        return None
    return tracer if _status(proc, process).get("TracerPid") == tracer else None
