"""How a running container is doing, in one line: for ``dekube task watch`` and ``show``."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from types import TracebackType
from typing import Final

from node.cli.session import Session
from rpc.client.results import Task
from rpc.protocol.task_views import TaskView
from state.primitives.errors import DekubeError
from tasks.kinds.container import KIND_CONTAINER

__all__ = ["live_lines", "told_view", "view_of"]

LOOK_S: Final = 3.0
REPEAT_LOOKS: Final = 10
"""Looks after which a line is said again although only time has passed."""
MIB: Final = 1 << 20


def view_of(session: Session, task: Task) -> TaskView | None:
    """Return what the machine of a container says of it; None if it says nothing, or not to this account.

    Only the node in --home signs for it: nobody is asked for a passphrase here.
    """
    control = session.control()
    if control is None or task.document["spec"]["kind"] != KIND_CONTAINER:
        return None
    with suppress(DekubeError), session.client() as client:
        return client.task_view(task.id, control=control)
    return None


def told_view(view: TaskView) -> str:
    """Return what a machine says of a container, in one line."""
    if view.stage == "pulling":
        here, known = view.pull
        return f"its image is pulled: {here // MIB} of {known // MIB} MiB" if known else "its image is pulled"
    if view.stage != "running":
        return {"inputs": "its inputs are fetched", "ended": "it has ended"}.get(view.stage, view.stage)
    parts = []
    if view.progress is not None:
        parts.append(f"{view.progress} of {view.total}" if view.total is not None else str(view.progress))
    if view.message:
        parts.append(view.message)
    parts += [f"{name} {value:.4g}" for name, value in view.metrics.items()]
    parts.append(f"{view.cpu_permille / 1000:.1f} cores, {view.memory_bytes // MIB} MiB")
    parts += [f"GPU {gpu.percent} %, {gpu.memory_mib} MiB" for gpu in view.gpus]
    return f"{view.up_s} s: {', '.join(parts)}"


def live_lines(session: Session, task: Task, tell: Callable[[str], None]) -> AbstractContextManager[object]:
    """Say how a container is doing while the context lasts; nothing for tasks of other kinds."""
    if session.control() is None or task.document["spec"]["kind"] != KIND_CONTAINER:
        return nullcontext()
    return _Lines(session, task, tell)


class _Lines:
    """A thread with a client of its own that asks the machine every few seconds."""

    def __init__(self, session: Session, task: Task, tell: Callable[[str], None]) -> None:
        self._session, self._task, self._tell = session, task, tell
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> _Lines:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(LOOK_S)

    def _run(self) -> None:
        said, looks = ("", -1), 0
        while not self._over.wait(LOOK_S):
            view = view_of(self._session, self._task)
            looks += 1
            if view is None:
                continue
            now = (view.stage, view.progress if view.progress is not None else view.pull[0] // MIB)
            if now != said or looks >= REPEAT_LOOKS:
                said, looks = now, 0
                self._tell(f"                  {told_view(view)}")
