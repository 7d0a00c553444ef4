"""Checkpoints of a container in a pod: read while it runs or while the cluster takes its pod away.

The helper reads the folder, and tells its state before and after. Only a folder that did not change meanwhile is a
checkpoint. A stream that breaks goes on at the missing byte: a folder with the same state is the same archive.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import IO, Final

import trio

from tasks.executor.containers.errors import BadOutputs, EngineError, EngineUnavailable, FolderChanges
from tasks.executor.containers.kubernetes.api import ClusterApi
from tasks.executor.containers.kubernetes.data_path import AGAIN_S, read_archive
from tasks.executor.containers.kubernetes.exec_stream import answer_to
from tasks.executor.containers.kubernetes.manifests import HELPER
from tasks.executor.containers.kubernetes.scripts import agent_script, folder_command, stop_all
from tasks.executor.containers.outages import through_outage

__all__ = ["fetch_checkpoint", "let_go"]

SNAPSHOT_TRIES: Final = 3
NOTICE_S: Final = 60
"""How long a container may write after its cluster told it to end; the rest of the pod's time is for reading."""
KILL_S: Final = 5
_STILL_THERE: Final = 3
_STATE: Final = re.compile(rb"[0-9a-f]{64}")


async def fetch_checkpoint(api: ClusterApi, pod: str, file: IO[bytes], limit: int, patience_s: float) -> None:
    """Write the archive of the folder to ``file`` as it was at one moment, without files that are still written.

    Raises FolderChanges, BadOutputs for more than ``limit`` bytes, EngineError for a pod that is gone, and
    EngineUnavailable where the API server has been away for ``patience_s``.
    """
    for _ in range(SNAPSHOT_TRIES):
        before = await _state(api, pod, patience_s)
        file.seek(0)
        file.truncate()
        why: BadOutputs | None = None
        try:
            await read_archive(
                api, pod, file, limit, patience_s, lambda size: folder_command("archive", str(size))
            )
        except BadOutputs as error:  # or a file that became shorter, which the state tells
            why = error
        if before == await _state(api, pod, patience_s):
            if why is not None:
                raise why
            return
    raise FolderChanges(f"it changed each time that it was read, {SNAPSHOT_TRIES} times")


async def _state(api: ClusterApi, pod: str, patience_s: float) -> bytes:
    code, told = await through_outage(
        lambda: answer_to(api, pod, HELPER, folder_command("state")), patience_s, AGAIN_S
    )
    if code or not _STATE.fullmatch(told.strip()):
        raise EngineError(200, f"the helper does not tell the state of the folder (code {code})")
    return told.strip()


async def let_go(api: ClusterApi, pod: str) -> float:
    """Wait until a container has ended that its cluster takes away; return the seconds.

    The kubelet has sent it SIGTERM, and says nothing of it before its whole pod is over. What still runs after
    NOTICE_S is killed. The helper stays, and hands the last checkpoint over. Of a pod that is gone earlier the
    checkpoint before counts.
    """
    began = trio.current_time()
    with suppress(EngineError, EngineUnavailable):
        code, _ = await answer_to(api, pod, HELPER, folder_command("gone", str(NOTICE_S)))
        if code == _STILL_THERE:
            await answer_to(api, pod, HELPER, agent_script(stop_all("KILL")))
            await answer_to(api, pod, HELPER, folder_command("gone", str(KILL_S)))
    return trio.current_time() - began
