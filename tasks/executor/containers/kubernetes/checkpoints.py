"""Checkpoints of a container in a pod: read while it runs or while the cluster takes its pod away.

One command does it all. The helper copies the folder within the pod until a copy is of one moment, and sends it.
So neither the way to the cluster nor its load decides whether a program that writes often gets anything stored. A
stream that breaks goes on at the missing byte of the same copy.
"""

from __future__ import annotations

import re
from contextlib import aclosing, suppress
from typing import IO, Final

import trio

from tasks.executor.containers.errors import BadOutputs, EngineError, EngineUnavailable, FolderChanges
from tasks.executor.containers.kubernetes import helper_folder
from tasks.executor.containers.kubernetes.api import ClusterApi
from tasks.executor.containers.kubernetes.data_path import AGAIN_S
from tasks.executor.containers.kubernetes.exec_stream import answer_to, run_command
from tasks.executor.containers.kubernetes.manifests import HELPER
from tasks.executor.containers.kubernetes.scripts import agent_script, folder_command, stop_all
from tasks.executor.containers.outputs import archive_limit

__all__ = ["fetch_checkpoint", "let_go"]

COPIES_MAX: Final = 3
"""Copies that are begun where one is gone before it has been sent: somebody in the pod removed it."""
NAME_CHARS: Final = 16
SIGNS_MAX: Final = 1_000
"""Signs of life while a folder is copied: one in 5 s."""
NOTICE_S: Final = 60
"""How long a container may write after its cluster told it to end; the rest of the pod's time is for reading."""
KILL_S: Final = 5
_NAME: Final = re.compile(rb"[0-9a-f]{16}")


async def fetch_checkpoint(
    api: ClusterApi, pod: str, file: IO[bytes], limit: int, room: int, patience_s: float, *, wipes: bool
) -> None:  # fmt: skip
    """Write the archive of the folder to ``file`` as it was at one moment, without files that are still written.

    The helper overwrites its copy where it ``wipes``. Raises FolderChanges, BadOutputs for more than ``limit``
    bytes or a folder that takes more than ``room`` on a disk, EngineError for a pod that is gone, and
    EngineUnavailable where the API server has been away for ``patience_s``.
    """
    snapshot = ("snapshot", str(room), "1" if wipes else "0")
    for _ in range(COPIES_MAX):
        file.seek(0)
        file.truncate()
        reader = _Reader(file, archive_limit(limit))
        heard_at = trio.current_time()
        while True:
            words = ("rest", reader.name, str(reader.size)) if reader.name else snapshot
            try:
                async with (
                    run_command(api, pod, HELPER, folder_command(*words)) as command,
                    aclosing(command.output()) as output,  # type: ignore[type-var]
                ):
                    reader.begin()
                    async for data in output:
                        heard_at = trio.current_time()
                        await trio.to_thread.run_sync(reader.feed, data)
                break
            except EngineUnavailable:
                if trio.current_time() - heard_at > patience_s:
                    raise
                await trio.sleep(AGAIN_S)
        match command.code:
            case 0 if reader.name:
                return
            case helper_folder.CHANGED:
                raise FolderChanges(f"it changed while it was copied, for {helper_folder.PASSES_S:.0f} s")
            case helper_folder.TOO_LARGE:
                raise BadOutputs(f"it takes more than {room} bytes")
            case helper_folder.NO_COPY:
                continue
            case _:
                told = command.told.decode("utf-8", "replace")[:200]
                raise BadOutputs(f"the folder cannot be read (code {command.code}) {told}".rstrip())
    raise FolderChanges(f"its copy was gone {COPIES_MAX} times")


class _Reader:
    """Takes what the helper writes: empty lines, a line with the name of the copy, and the archive."""

    def __init__(self, file: IO[bytes], limit: int) -> None:
        self._file, self._limit = file, limit
        self.name, self.size, self._signs = "", 0, 0
        self._head: bytearray | None = None

    def begin(self) -> None:
        """Expect the lines again: a command begins."""
        self._head = bytearray()

    def feed(self, data: bytes) -> None:
        """Take bytes. Raises BadOutputs for a helper that says something else, or too much."""
        if self._head is not None:
            self._head += data
            self._signs += len(self._head) - len(self._head.lstrip(b"\n"))
            if self._signs > SIGNS_MAX:
                raise BadOutputs("the helper copies the folder without end")
            line, end, rest = bytes(self._head.lstrip(b"\n")).partition(b"\n")
            if len(line) > NAME_CHARS or (end and not _NAME.fullmatch(line)):
                raise BadOutputs("the helper does not tell which copy of the folder it sends")
            if not end:
                self._head = bytearray(line)
                return
            name = line.decode()
            if self.name and name != self.name:
                raise BadOutputs("the helper sends the rest of another copy")
            self.name, self._head, data = name, None, rest
            self._signs = 0
        self.size += len(data)
        if self.size > self._limit:
            raise BadOutputs(f"an archive of more than {self._limit} bytes")
        self._file.write(data)


async def let_go(api: ClusterApi, pod: str) -> float:
    """Wait until a container has ended that its cluster takes away; return the seconds.

    The kubelet has sent it SIGTERM, and says nothing of it before its whole pod is over. What still runs after
    NOTICE_S is killed. The helper stays, and hands the last checkpoint over. Of a pod that is gone earlier the
    checkpoint before counts.
    """
    began = trio.current_time()
    with suppress(EngineError, EngineUnavailable):
        code, _ = await answer_to(api, pod, HELPER, folder_command("gone", str(NOTICE_S)))
        if code == helper_folder.STILL_THERE:
            await answer_to(api, pod, HELPER, agent_script(stop_all("KILL")))
            await answer_to(api, pod, HELPER, folder_command("gone", str(KILL_S)))
    return trio.current_time() - began
