"""Logs of containers for those who may read them: live from the engine, and for a day after the end from a file.

Every byte passes through ``shown``, so that a mask for secrets has one place.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

from node.market.promises import write_durably
from state.primitives.errors import DecodeError
from tasks.executor.containers.backend import ContainerBackend
from tasks.executor.containers.log_entries import (
    LogEntry,
    LogPart,
    LogPlace,
    pack_entries,
    select_entries,
    unpack_entries,
)

__all__ = ["ContainerLogs", "Mask"]

KEPT_BYTES_MAX: Final = 8 << 20
"""An engine keeps two files of 1 MiB of each container."""
READERS_MAX: Final = 2
"""Logs that are read from the engine at the same time: it looks through all of a log for each."""
_NAME: Final = re.compile(r"[0-9a-f]{64}")

Mask = Callable[[bytes], bytes]
"""Takes the bytes of an entry and returns what may be shown of it."""


class ContainerLogs:
    """Reads logs on one back end. ``folder`` has those of containers that have ended."""

    def __init__(self, backend: ContainerBackend, folder: Path) -> None:
        self._backend, self._folder = backend, folder
        self._readers = trio.CapacityLimiter(READERS_MAX)
        self.masks: dict[bytes, Mask] = {}
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def shown(self, task: bytes, entries: tuple[LogEntry, ...]) -> tuple[LogEntry, ...]:
        """Return what may be shown of entries: the one place where a log is filtered."""
        mask = self.masks.get(task)
        if mask is None:
            return entries
        return tuple(entry._replace(text=mask(entry.text)) for entry in entries)

    async def read(self, task: bytes, after: LogPlace, limit_bytes: int) -> LogPart:
        """Return what a container wrote after a place. Raises EngineUnavailable, EngineError."""
        kept = await trio.to_thread.run_sync(self._load, task)
        if kept is not None:
            return select_entries(kept, after, limit_bytes)
        async with self._readers:
            part = await self._backend.log(task, after, limit_bytes)
        return part._replace(entries=self.shown(task, part.entries))

    async def keep(self, task: bytes) -> None:
        """Keep the log of a container that has ended, before it is removed."""
        part = await self._backend.log(task, LogPlace(), KEPT_BYTES_MAX)
        data = pack_entries(self.shown(task, part.entries))
        await trio.to_thread.run_sync(write_durably, self._folder / task.hex(), data)

    def _load(self, task: bytes) -> tuple[LogEntry, ...] | None:
        try:
            return unpack_entries((self._folder / task.hex()).read_bytes())
        except FileNotFoundError:
            return None
        except DecodeError:  # damaged on the disk
            return ()

    def tidy(self, is_known: Callable[[bytes], bool]) -> None:
        """Remove the logs of tasks that are not known any more, and files that were half written."""
        for path in self._folder.iterdir():
            if not _NAME.fullmatch(path.name) or not is_known(bytes.fromhex(path.name)):
                with suppress(OSError):
                    path.unlink()
