"""Copies of what containers make, at nodes that stay when a machine goes: checkpoints and results (R103, R128).

A machine that its owner takes back may be off in the next moment. So a checkpoint that lies with it alone is worth
little. The requester's node brings the last ones to itself as soon as they are named. A machine that keeps a task
for a requester who is away does so too, and keeps the output and the log after the end. The next machine and the
requester ask either. What belongs to a private container is a cipher that only they can open.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, NamedTuple

import trio

from node.market.inputs import Inputs, Supply
from p2p.blob.store import BlobStore
from state.primitives.errors import DekubeError
from state.view import Reader
from tasks.ledger.checkpoint_records import load_checkpoints
from tasks.ledger.lifecycle import ENDED
from tasks.ledger.meter_records import load_meter
from tasks.ledger.records import load_task

__all__ = ["KEPT_MS", "ContainerCopies", "Copy", "NoRoomForCopy", "copies_of"]

FETCH_S: Final = 600.0
"""Time that a fetch may take before it is tried again; a newer checkpoint replaces it then."""
KEPT_MS: Final = 7 * 24 * 3_600_000
"""How long after the end of a container a machine that keeps its task keeps output and log."""


class NoRoomForCopy(DekubeError):
    """A copy that this machine does not make: what it keeps for others is bounded."""

    code = "no_room_for_copy"


class Copy(NamedTuple):
    """A blob of a container that is to be kept, its bytes, and the machine that has made it."""

    task: bytes
    blob: bytes
    size_bytes: int
    worker: bytes


def copies_of(state: Reader, task: bytes, now_ms: int) -> list[Copy]:
    """Return what is to be kept of a container: its last two checkpoints, the latest first, and the one that its
    run began with; later its results.
    """
    record = load_task(state, task)
    if not record.is_metered:
        return []
    if record.phase not in ENDED:
        found = load_checkpoints(state, task)
        return [
            Copy(task, one.blob, one.size_bytes, one.worker)
            for one in dict.fromkeys((found.latest, found.before, found.base)) if one is not None and one.blob
        ]  # fmt: skip
    end = load_meter(state, task).end
    if end is None or now_ms >= record.changed_ms + KEPT_MS:
        return []
    made = ((end.output, end.output_bytes), (end.logs, end.logs_bytes))
    return [Copy(task, blob, size_bytes, end.worker) for blob, size_bytes in made if blob]


class ContainerCopies:
    """Keeps copies for ``tasks``, pinned under ``purpose``. ``room`` bounds them: bytes that are free for more.

    Of the checkpoints of a task the latest one is fetched; the one before is kept if it is here.
    """

    def __init__(
        self, state: Reader, blobs: BlobStore, inputs: Inputs, tasks: Callable[[], Collection[bytes]],
        now_ms: Callable[[], int], *, purpose: str, room: Callable[[], int] | None = None,
    ) -> None:  # fmt: skip
        self._state, self._blobs, self._inputs, self._tasks = state, blobs, inputs, tasks
        self._now_ms, self._purpose, self._room = now_ms, purpose, room
        self._pinned: set[bytes] = set()
        self._arriving: dict[tuple[bytes, bytes], int] = {}
        """Bytes of blobs that are on their way, by task and name: they take room before a piece is here."""

    @property
    def arriving(self) -> dict[bytes, int]:
        """What is on its way, with its bytes."""
        return {blob: size_bytes for (_, blob), size_bytes in self._arriving.items()}

    @contextmanager
    def room_for(self, task: bytes, blob: bytes, size_bytes: int) -> Iterator[None]:
        """Have room for a blob of a task while it is fetched."""
        self._arriving[task, blob] = size_bytes
        try:
            yield
        finally:
            del self._arriving[task, blob]

    @property
    def pinned(self) -> frozenset[bytes]:
        """The blobs that are kept, or are to be."""
        return frozenset(self._pinned)

    def look(self) -> list[Copy]:
        """Pin what is wanted, let go of the rest, and return what has to be fetched."""
        wanted: set[bytes] = set()
        missing: list[Copy] = []
        for task in self._tasks():
            found = copies_of(self._state, task, self._now_ms())
            wanted |= {one.blob for one in found}
            is_open = load_task(self._state, task).phase not in ENDED
            needed = found[:1] if is_open else found
            missing += [one for one in needed if not self._blobs.is_complete(one.blob)]
        for blob in wanted - self._pinned:
            self._blobs.pin(blob, self._purpose)
        for blob in self._pinned - wanted:
            self._blobs.unpin(blob, self._purpose)
            self._blobs.discard(blob)
        self._pinned = wanted
        return missing

    async def fetch(self, wanted: Copy) -> None:
        """Bring a copy here. Raises InputUnavailable, NoRoomForCopy."""
        begun = self._blobs.manifest(wanted.blob) if wanted.blob in self._pinned else None
        needed = wanted.size_bytes - (0 if begun is None else begun.size_bytes)  # a begun one has its room already
        if self._room is not None and needed > self._room():
            raise NoRoomForCopy(f"{wanted.size_bytes} bytes are more than this machine may still keep for others")
        keepers = self._inputs.keepers(wanted.task)
        supply = Supply(partial(self._inputs.peers, wanted.worker, *keepers), trio.current_time() + FETCH_S)
        with self.room_for(wanted.task, wanted.blob, wanted.size_bytes):
            await self._inputs.obtain(wanted.blob, supply, wanted.size_bytes)
