"""What a machine removes of containers that are not its own any more: private ones are overwritten (R101)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

import trio

from state.view import Reader
from tasks.errors import TaskUnknown
from tasks.executor.containers.backend import ContainerBackend
from tasks.kinds.container import ContainerPart
from tasks.ledger.records import load_spec
from tasks.spec import container_of

__all__ = ["clear_folder", "has_secrets", "remove_container", "remove_packed", "wait_left_over", "wipe_private"]

LOOK_S: Final = 5.0
"""Between two looks for folders that nothing needs."""


def _part_of(state: Reader, task: bytes) -> ContainerPart | None:
    try:
        return container_of(load_spec(state, task))
    except TaskUnknown:  # of a state that never became final
        return None


def has_secrets(state: Reader, task: bytes) -> bool:
    """Tell whether the log of a container must be masked; also of one that the chain does not know any more."""
    part = _part_of(state, task)
    return part is None or (part.sealed is not None and bool(part.sealed.size_bytes))


async def remove_container(backend: ContainerBackend, task: bytes, part: ContainerPart) -> None:
    """Remove a container, and its image if the login of this task has brought it; wipe a private one."""
    if part.is_private:
        await backend.wipe(task)
    else:
        await backend.remove(task)


async def clear_folder(backend: ContainerBackend, task: bytes, part: ContainerPart) -> None:
    """Remove what an earlier life of the node has prepared for a container that did not begin."""
    if part.is_private and backend.folder(task).exists():
        await backend.wipe(task)
    await backend.clear(task)


async def wipe_private(backend: ContainerBackend, state: Reader, tasks: Collection[bytes]) -> None:
    """Wipe private containers of ``tasks`` that a node which went down has left; a sweep removes all others."""
    for task in tasks:
        part = _part_of(state, task)
        if part is not None and part.is_private and backend.folder(task).exists():
            await backend.wipe(task)


async def wait_left_over(
    told: trio.Event, backend: ContainerBackend, done: Callable[[], Collection[bytes]]
) -> None:
    """Wait until something is left to remove: that was ``told``, or a task of ``done`` has a folder still.

    A node that starts again may learn only as it catches up that a task is not its own any more.
    """
    while not told.is_set():
        with trio.move_on_after(LOOK_S):
            await told.wait()
        if any(backend.folder(task).exists() for task in done()):
            return


def remove_packed(folder: Path, needed: frozenset[bytes]) -> None:
    """Remove packed outputs and checkpoints that a killed node has left: those of private tasks are plain."""
    names = {task.hex()[:32] for task in needed}
    for path in (*folder.glob("*.tar*"), *folder.glob("*.checkpoint*")):
        if path.is_file() and path.name.partition(".")[0] not in names:
            path.unlink(missing_ok=True)
