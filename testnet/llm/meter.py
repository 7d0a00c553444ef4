"""Processor time and memory of a network's processes, from /proc."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

import trio

__all__ = ["Meter", "Usage"]

LOOK_S: Final = 2.0
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_MEMORY: Final = re.compile(r"^Rss(?:Anon|Shmem):\s+(\d+) kB", re.MULTILINE)


class Usage(NamedTuple):
    """Seconds of processors and bytes of memory."""

    processor_s: float
    memory_bytes: int


class _Process(NamedTuple):
    parent: int
    ticks: int
    """Of itself and of the children that it has waited for."""


class Meter:
    """Looks at processes and all that they started, and keeps the largest memory of each and of all at once."""

    def __init__(self) -> None:
        self.peaks: dict[str, int] = {}
        self.peak_bytes = 0

    async def run(self, members: Iterable[tuple[str, int]]) -> None:
        """Look at members, by name and process number, until cancelled."""
        while True:
            self.look(members)
            await trio.sleep(LOOK_S)

    def look(self, members: Iterable[tuple[str, int]]) -> dict[str, Usage]:
        """Return what members use now, with all below them."""
        processes = _processes()
        children: dict[int, list[int]] = {}
        for number, process in processes.items():
            children.setdefault(process.parent, []).append(number)
        found = dict[str, Usage]()
        for name, number in members:
            tree, ticks, memory = [number], 0, 0
            while tree:
                one = tree.pop()
                if one in processes:
                    tree += children.get(one, [])
                    ticks += processes[one].ticks
                    memory += _memory_bytes(one)
            found[name] = Usage(ticks / _TICKS, memory)
            self.peaks[name] = max(memory, self.peaks.get(name, 0))
        self.peak_bytes = max(self.peak_bytes, sum(usage.memory_bytes for usage in found.values()))
        return found


def _processes() -> dict[int, _Process]:
    found = dict[int, _Process]()
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                rest = (path / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended meanwhile
                continue
            found[int(path.name)] = _Process(int(rest[1]), sum(map(int, rest[11:15])))
    return found


def _memory_bytes(process: int) -> int:
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    return sum(int(size) << 10 for size in _MEMORY.findall(status))
