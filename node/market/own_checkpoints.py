"""Checkpoints of this node's own containers: brought here as soon as their machines name them.

A machine that its owner takes back may be off in the next moment. So a checkpoint that lies with it alone is worth
little. The next machine asks the requester's node for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Final, NamedTuple

import trio

from node.market.inputs import Inputs, Supply
from p2p.blob.store import BlobStore
from state.view import Reader
from tasks.ledger.checkpoint_records import Stored, load_checkpoints
from tasks.ledger.records import load_task

__all__ = ["OwnCheckpoints", "WantedCheckpoint"]

PIN: Final = "own checkpoint"
FETCH_S: Final = 600.0
"""Time that a fetch may take before it is tried again; a newer checkpoint replaces it then."""


class WantedCheckpoint(NamedTuple):
    """A checkpoint of a task that is not here yet."""

    task: bytes
    stored: Stored


class OwnCheckpoints:
    """Pins the last checkpoints of the account's open tasks; ``open_tasks`` names these."""

    def __init__(
        self, state: Reader, blobs: BlobStore, inputs: Inputs, open_tasks: Callable[[], Collection[bytes]]
    ) -> None:
        self._state, self._blobs, self._inputs, self._open_tasks = state, blobs, inputs, open_tasks
        self._pinned: set[bytes] = set()

    def look(self) -> list[WantedCheckpoint]:
        """Pin what is wanted, let go of the rest, and return what has to be fetched: the latest of each task."""
        wanted: set[bytes] = set()
        missing: list[WantedCheckpoint] = []
        for task in self._open_tasks():
            if not load_task(self._state, task).is_metered:
                continue
            found = load_checkpoints(self._state, task)
            kept = [one for one in (found.latest, found.before) if one is not None and one.blob]
            wanted |= {one.blob for one in kept}
            if kept and not self._blobs.is_complete(kept[0].blob):
                missing.append(WantedCheckpoint(task, kept[0]))
        for blob in wanted - self._pinned:
            self._blobs.pin(blob, PIN)
        for blob in self._pinned - wanted:
            self._blobs.unpin(blob, PIN)
            self._blobs.discard(blob)
        self._pinned = wanted
        return missing

    async def fetch(self, wanted: WantedCheckpoint) -> None:
        """Bring a checkpoint here. Raises InputUnavailable."""
        stored = wanted.stored
        supply = Supply(partial(self._inputs.peers, stored.worker), trio.current_time() + FETCH_S)
        await self._inputs.obtain(stored.blob, supply, stored.size_bytes)
