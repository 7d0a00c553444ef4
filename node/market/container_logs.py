"""Logs of containers for those who may read them: live from the engine, and for a day after the end from a file.

A mask for secrets has one place, ``shown``: it sees the whole log of an engine, live and before it is kept. A log
that must be masked is shown to nobody while its mask is not here: before a restarted node has opened the secrets
again, and after it has forgotten them.
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

Mask = Callable[[tuple[LogEntry, ...]], tuple[LogEntry, ...]]
"""Takes the entries of a whole log and returns as many, with what may be shown of each."""


class ContainerLogs:
    """Reads logs on one back end. ``folder`` has those of containers that have ended.

    ``has_secrets`` tells whether the log of a task must be masked. It reads the chain's state, so it blocks.
    """

    def __init__(self, backend: ContainerBackend, folder: Path, has_secrets: Callable[[bytes], bool]) -> None:
        self._backend, self._folder, self._has_secrets = backend, folder, has_secrets
        self._readers = trio.CapacityLimiter(READERS_MAX)
        self.masks: dict[bytes, Mask] = {}
        """What hides parts of a task's log; set before its container starts or is taken up."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def shown(self, task: bytes, entries: tuple[LogEntry, ...]) -> tuple[LogEntry, ...]:
        """Return what may be shown of entries: the one place where a log is filtered. Blocking."""
        mask = self.masks.get(task)
        if mask is not None:
            return mask(entries)
        return () if self._has_secrets(task) else entries

    async def read(self, task: bytes, after: LogPlace, limit_bytes: int) -> LogPart:
        """Return what a container wrote after a place. Raises EngineUnavailable, EngineError."""
        kept = await trio.to_thread.run_sync(self._load, task)
        if kept is not None:
            return select_entries(kept, after, limit_bytes)
        async with self._readers:
            is_masked = task in self.masks
            if not is_masked and await trio.to_thread.run_sync(self._has_secrets, task):
                return LogPart((), after)
            if not is_masked:
                return await self._backend.log(task, after, limit_bytes)
            # What is to be hidden may lie over two entries, so over two parts: a mask sees the whole log.
            whole = await self._backend.log(task, LogPlace(), KEPT_BYTES_MAX)
            entries = await trio.to_thread.run_sync(self.shown, task, whole.entries)
        return select_entries(entries, after, limit_bytes)

    async def keep(self, task: bytes) -> None:
        """Keep the log of a container that has ended, before it is removed."""
        part = await self._backend.log(task, LogPlace(), KEPT_BYTES_MAX)
        data = pack_entries(await trio.to_thread.run_sync(self.shown, task, part.entries))
        await trio.to_thread.run_sync(write_durably, self._folder / task.hex(), data)

    def _load(self, task: bytes) -> tuple[LogEntry, ...] | None:
        try:
            return unpack_entries((self._folder / task.hex()).read_bytes())
        except FileNotFoundError:
            return None
        except DecodeError:  # damaged on the disk
            return ()

    def forget(self, task: bytes) -> None:
        """Forget the log of an earlier run of a task, as it begins again. Blocking."""
        (self._folder / task.hex()).unlink(missing_ok=True)

    def tidy(self, is_known: Callable[[bytes], bool]) -> None:
        """Remove the logs of tasks that are not known any more, and files that were half written."""
        for path in self._folder.iterdir():
            if not _NAME.fullmatch(path.name) or not is_known(bytes.fromhex(path.name)):
                with suppress(OSError):
                    path.unlink()
