"""Inputs of this node's own tasks: they stay in its store until the task has ended, also after a restart.

A worker fetches the data set from its requester's node, unless machines keep it in custody. Pins of the store end
with the process. So the pins follow from the chain: the account's tasks that have not ended name the blobs.
"""

from __future__ import annotations

from typing import Final

from p2p.blob.store import BlobStore
from state.primitives.errors import DekubeError
from state.view import Reader
from tasks.ledger.lifecycle import ENDED
from tasks.ledger.queries import own_tasks
from tasks.ledger.records import load_spec, load_task
from tasks.spec import ContainerPart, JobSpec

__all__ = ["OwnInputs"]

PIN: Final = "own task"
PAGE: Final = 100
PAGES_AT_ONCE_MAX: Final = 10
"""Pages of the account's tasks that are read at a time; the next look goes on."""
TASKS_MAX: Final = 4_096
"""Tasks that have not ended whose inputs are pinned, the oldest ones first; others follow as these end."""


class OwnInputs:
    """Pins the inputs of the tasks of ``requester`` that have not ended. Blocking; a look at the chain's state."""

    def __init__(self, state: Reader, blobs: BlobStore, requester: bytes) -> None:
        self._state, self._blobs, self._requester = state, blobs, requester
        self._open: dict[bytes, tuple[bytes, ...]] = {}
        """Blobs of the tasks that have not ended."""
        self._after: bytes | None = None
        """Place of the last task that was read."""

    @property
    def open_tasks(self) -> frozenset[bytes]:
        """The account's tasks that have not ended, as far as they were read."""
        return frozenset(self._open)

    def tidy(self) -> None:
        """Pin the inputs of new tasks; unpin those of tasks that have ended."""
        before = self._names()
        for task in list(self._open):
            if self._has_ended(task):
                del self._open[task]
        for _ in range(PAGES_AT_ONCE_MAX):
            if len(self._open) >= TASKS_MAX:
                break
            found, self._after = own_tasks(self._state, self._requester, self._after, PAGE)
            for task in found:
                if not self._has_ended(task):
                    self._open[task] = _blobs_of(load_spec(self._state, task))
            if len(found) < PAGE:
                break
        after = self._names()
        for name in after - before:
            self._blobs.pin(name, PIN)
        for name in before - after:
            self._blobs.unpin(name, PIN)

    def _names(self) -> set[bytes]:
        return {name for blobs in self._open.values() for name in blobs}

    def _has_ended(self, task: bytes) -> bool:
        try:
            return load_task(self._state, task).phase in ENDED
        except DekubeError:  # another chain's state, after this one was set back
            return True


def _blobs_of(spec: JobSpec) -> tuple[bytes, ...]:
    """Return the blobs that the machine of a task fetches."""
    if isinstance(spec.part, ContainerPart):
        return tuple(name for name, _ in spec.part.blobs)
    return tuple(item.blob for item in spec.inputs())
