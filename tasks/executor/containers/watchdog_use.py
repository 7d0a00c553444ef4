"""How others use this machine: its desktop, its cards, its cores. The machine's programs are asked.

What cannot be told is None, and has no effect. None of it is ever a report.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from tasks.executor.containers.watchdog import Use

__all__ = ["CardUse", "OthersOnMachine", "is_job", "read_process_table"]

PROGRAM_S: Final = 10
OUTPUT_CHARS: Final = 1 << 20
SESSIONS_MAX: Final = 32
DESKTOPS: Final = frozenset({"x11", "wayland", "mir"})
PROC: Final = Path("/proc")
USER_SLICES: Final = (
    (Path("/sys/fs/cgroup/user.slice/cpu.stat"), "usage_usec", 10**6),
    (Path("/sys/fs/cgroup/cpuacct/user.slice/cpuacct.usage"), "", 10**9),
)
"""Where the second and the first version of control groups tell the processor time of all who are logged in."""


class CardUse(NamedTuple):
    """What a process uses of a card: parts of its time in thousandths, and memory."""

    process: int
    permille: int
    memory_mib: int


def read_process_table(text: str) -> Iterator[CardUse]:
    """Read the table of ``nvidia-smi pmon``, whose columns differ by version; rows that are none are left out."""
    columns: list[str] = []
    for line in text[:OUTPUT_CHARS].splitlines():
        if line.startswith("#"):
            columns = columns or line.lstrip("# ").split()
            continue
        row = dict(zip(columns, line.split(), strict=False))
        if row.get("pid", "").isdecimal():
            yield CardUse(int(row["pid"]), 10 * _number(row.get("sm")), _number(row.get("fb")))


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0


class OthersOnMachine:
    """Looks at the use by others, again and again. ``is_own`` tells whether a process is a job of this node."""

    def __init__(
        self, is_own: Callable[[int], bool], user_slices: tuple[tuple[Path, str, int], ...] = USER_SLICES
    ) -> None:
        self._is_own, self._user_slices = is_own, user_slices
        self._load: tuple[float, float] | None = None

    def look(self) -> Use:
        """Return the use since the last look; blocks for a second where cards are asked."""
        permille, memory = self._cards()
        return Use(_desktop(), permille, memory, self._user_load())

    def _cards(self) -> tuple[int | None, int | None]:
        text = _told("nvidia-smi", "pmon", "-c", "1", "-s", "um")
        if text is None:
            return None, None
        others = [use for use in read_process_table(text) if not self._is_own(use.process)]
        return sum(use.permille for use in others), sum(use.memory_mib for use in others)

    def _user_load(self) -> int | None:
        """Return the part of all cores that who is logged in has used since the last look, in thousandths."""
        used_s = next((found for found in map(_used_s, self._user_slices) if found is not None), None)
        if used_s is None:
            return None
        before, now_s = self._load, time.monotonic()
        self._load = used_s, now_s
        if before is None or now_s <= before[1]:
            return None
        cores = os.cpu_count() or 1
        return max(0, round(1000 * (used_s - before[0]) / (cores * (now_s - before[1]))))


def _used_s(place: tuple[Path, str, int]) -> float | None:
    path, name, unit = place
    with suppress(OSError, ValueError):
        text = path.read_text()
        if not name:
            return int(text) / unit
        for line in text.splitlines():
            found, _, value = line.partition(" ")
            if found == name:
                return int(value) / unit
    return None


def _desktop() -> bool | None:
    """Tell whether somebody sits at this machine: an active local session with windows that is not idle."""
    listed = _told("loginctl", "list-sessions", "--no-legend")
    if listed is None:
        return None
    for line in listed.splitlines()[:SESSIONS_MAX]:
        if not line.split():
            continue
        told = _told(
            "loginctl", "show-session", line.split()[0], "-p", "Type", "-p", "Active", "-p", "IdleHint", "-p",
            "Remote", "-p", "Class",
        )  # fmt: skip
        found = dict(part.partition("=")[::2] for part in (told or "").splitlines())
        if (
            found.get("Type") in DESKTOPS and found.get("Class") == "user" and found.get("Active") == "yes"
            and found.get("IdleHint") != "yes" and found.get("Remote") != "yes"
        ):  # fmt: skip
            return True
    return False


def _told(program: str, *arguments: str) -> str | None:
    """Return what a program of the machine prints, None without an answer."""
    if shutil.which(program) is None:
        return None
    try:
        done = subprocess.run(
            [program, *arguments], capture_output=True, text=True, errors="replace", timeout=PROGRAM_S,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None


def is_job(process: int, containers: frozenset[str], node: int, proc: Path = PROC) -> bool:
    """Tell whether a process is in a container with one of these namespaces, or descends from the node."""
    with suppress(OSError):
        if os.readlink(proc / str(process) / "ns" / "pid") in containers:
            return True
    with suppress(OSError, ValueError):
        for _ in range(64):
            if process == node:
                return True
            if process <= 1:
                return False
            stat = (proc / str(process) / "stat").read_text(errors="replace")
            process = int(stat.rpartition(")")[2].split()[1])
    return False
