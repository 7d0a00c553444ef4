"""Checkpoints of containers on their machine: stored while one runs and as it leaves, restored before a start.

What is stored is a blob like an output (R103), sealed if the container is private (R127). This machine serves it
for a day after it has left the task. The requester's node brings it to itself as soon as it is named. So do the
machines that keep the task (``node.market.container_copies``): it outlives this machine.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import structlog
import trio

from node.chain.ledger import NodeLedger
from node.market.cancellation import DAMAGE
from node.market.container_seals import ContainerSeals, RunKey
from node.market.inputs import Inputs, InputUnavailable, Supply
from node.market.promises import write_durably
from node.market.wallet import Wallet
from p2p.blob.store import BlobStore
from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError, DekubeError, StoreError
from state.primitives.hashing import HASH_BYTES
from tasks.custody.errors import StreamInvalid
from tasks.executor.containers.backend import ContainerBackend
from tasks.executor.containers.errors import BadOutputs
from tasks.executor.containers.request import RESTORED, ContainerRequest
from tasks.kinds.folders import ArchiveInvalid, unpack
from tasks.ledger.checkpoint_records import Stored, load_checkpoints
from tasks.ledger.checkpoint_transitions import CHECKPOINT_TASK, MISS_CHECKPOINT
from tasks.ledger.records import load_spec, load_task
from tasks.spec import JobSpec, container_of

__all__ = [
    "CheckpointMissed",
    "CheckpointNote",
    "ContainerCheckpoints",
    "decode_checkpoint_note",
    "encode_checkpoint_note",
]

_log = structlog.get_logger("containers")

NOTE_LIMIT_BYTES: Final = 256
BLOBS_KEPT: Final = 4
"""A new checkpoint, and the three that the chain knows of a task until the new one is named."""
KEPT_MS: Final = 24 * 3_600_000
"""How long after the last word about a task its checkpoints are kept, for the next machine."""
FETCH_TRIES: Final = 4
"""Fetches of a checkpoint without progress in a row; after that the one before is tried."""
LAST_S_MIN: Final = 30.0
"""Time that a last checkpoint has at least."""
PIN: Final = "checkpoint"
_NAME: Final = re.compile(r"[0-9a-f]{64}")


class CheckpointNote(NamedTuple):
    """The last checkpoints of a task, the newest first, at ``time_ms`` of the chain's time.

    ``is_leaving``: its container was told to end because this machine leaves, not because it was done.
    """

    time_ms: int
    is_leaving: bool
    blobs: tuple[bytes, ...]


def encode_checkpoint_note(note: CheckpointNote) -> bytes:
    """Return a note as bytes."""
    return encode([note.time_ms, int(note.is_leaving), list(note.blobs)])


def decode_checkpoint_note(data: bytes) -> CheckpointNote:
    """Read a note. Raises DecodeError."""
    match decode(data, limit_bytes=NOTE_LIMIT_BYTES):
        case [int(time_ms), (0 | 1) as leaving, list(blobs)] if (
            time_ms >= 0 and len(blobs) <= BLOBS_KEPT
            and all(type(blob) is bytes and len(blob) == HASH_BYTES for blob in blobs)
        ):  # fmt: skip
            return CheckpointNote(time_ms, leaving == 1, tuple(blobs))
        case _:
            raise DecodeError("not the note of a checkpoint")


class CheckpointMissed(Exception):
    """The chain was told that the checkpoint cannot be had: this machine has left the task (R156)."""


class ContainerCheckpoints:
    """Stores and restores; what it keeps is noted in one small file a task."""

    def __init__(
        self, ledger: NodeLedger, wallet: Wallet, inputs: Inputs, blobs: BlobStore, backend: ContainerBackend,
        folder: Path, seals: ContainerSeals,
    ) -> None:  # fmt: skip
        self._ledger, self._wallet, self._inputs = ledger, wallet, inputs
        self._blobs, self._backend, self._folder = blobs, backend, folder
        self._seals = seals
        self._notes: dict[bytes, CheckpointNote] = {}
        self.counting = trio.Lock()
        """Held from reading how many seconds are counted to counting more: two at once would contradict."""
        self.stored = 0
        """Checkpoints that were named since the start of the node, ..."""
        self.restored = 0
        """... and those with which a container began."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in folder.iterdir():
            self._take_up(path)

    # Notes

    def _take_up(self, path: Path) -> None:
        if not _NAME.fullmatch(path.name):
            path.unlink(missing_ok=True)  # half written when the node stopped
            return
        try:
            note = decode_checkpoint_note(path.read_bytes())
        except (OSError, DecodeError):
            path.unlink(missing_ok=True)
            return
        self._notes[bytes.fromhex(path.name)] = note
        for blob in note.blobs:
            self._blobs.pin(blob, PIN)

    def _put(self, task: bytes, note: CheckpointNote) -> None:
        for blob in note.blobs:
            self._blobs.pin(blob, PIN)
        before = self._notes.get(task)
        self._notes[task] = note
        write_durably(self._folder / task.hex(), encode_checkpoint_note(note))
        self._let_go(() if before is None else before.blobs)

    def _let_go(self, blobs: tuple[bytes, ...]) -> None:
        for blob in set(blobs).difference(*(note.blobs for note in self._notes.values())):
            self._blobs.unpin(blob, PIN)

    def tidy(self, now_ms: int, needed: frozenset[bytes]) -> None:
        """Forget tasks that are not ``needed``, a day after the last word about them."""
        for task, note in list(self._notes.items()):
            if task not in needed and now_ms >= note.time_ms + KEPT_MS:
                del self._notes[task]
                (self._folder / task.hex()).unlink(missing_ok=True)
                self._let_go(note.blobs)

    def is_leaving(self, task: bytes) -> bool:
        """Tell whether a task's container was told to end because this machine leaves."""
        note = self._notes.get(task)
        return note is not None and note.is_leaving

    def note_leaving(self, task: bytes) -> None:
        """Note that a task's container is told to end because this machine leaves. Blocking."""
        note = self._notes.get(task)
        blobs = () if note is None else note.blobs
        self._put(task, CheckpointNote(self._ledger.head().steady_ms, True, blobs))

    # Storing

    async def keep(
        self, task: bytes, spec: JobSpec, request: ContainerRequest, seconds: Callable[[], int]
    ) -> None:
        """Store a checkpoint again and again, until cancelled. One that fails is tried with the next one."""
        plan = container_of(spec).checkpoint
        if plan is None:
            await trio.sleep_forever()
            return
        while True:
            await trio.sleep(plan.every_s)
            try:
                await self.store(task, request, seconds)
            except DAMAGE:
                raise
            except (DekubeError, OSError) as error:
                _log.warning("a checkpoint could not be stored", task=task, error=str(error))

    async def store(self, task: bytes, request: ContainerRequest, seconds: Callable[[], int]) -> None:
        """Store the folder as it is now, and name it on chain with the seconds that it holds.

        Raises FolderChanges, and what the engine, the disk and the chain raise.
        """
        held_s = seconds()  # before it is read: what comes later may be in it, but need not
        if held_s <= load_checkpoints(self._ledger.store, task).covered_s:
            return
        packed = self._folder.parent / f"{task.hex()[:32]}.checkpoint"
        blob, size = b"", 0
        try:
            await self._backend.snapshot(task, request, str(packed))
            blob, size = await self._seal(task, packed)
        except BadOutputs as error:  # its requester's program has made it too large: that is not our loss
            _log.warning("a folder cannot be stored", task=task, error=str(error))
        finally:
            packed.unlink(missing_ok=True)
        if blob:
            await trio.to_thread.run_sync(self._put, task, self._note(task, blob))
            if not self._blobs.is_complete(blob):  # something else took its room before it was pinned
                raise StoreError("the blob of a checkpoint was evicted before it was named")
        async with self.counting:
            await self._wallet.send(CHECKPOINT_TASK, [task, held_s, blob, size])
        self.stored += 1
        _log.info("a checkpoint was stored", task=task, bytes=size, seconds=held_s)

    async def store_last(
        self, task: bytes, request: ContainerRequest, seconds: Callable[[], int], ended_s: int
    ) -> None:
        """Store the folder of a container that ended after ``ended_s``, in the time that its task has left.

        The chain pays no second that its blocks have not seen. So a last checkpoint waits for one which has seen
        more than the checkpoint before. Raises as ``store``.
        """
        record = load_task(self._ledger.store, task)
        left_s = max(0, record.deadline_ms - self._ledger.head().steady_ms) / 1000
        with trio.move_on_after(max(LAST_S_MIN, left_s)) as waiting:  # after that the chain has another machine
            while seconds() <= load_checkpoints(self._ledger.store, task).covered_s < ended_s:
                await self._ledger.wait_head(self._ledger.head().height)
            await self.store(task, request, seconds)
        if waiting.cancelled_caught:
            _log.warning("the last checkpoint was not stored in time", task=task)

    def _note(self, task: bytes, blob: bytes) -> CheckpointNote:
        """Return the note with a new checkpoint: those that the chain knows stay, for the next machine."""
        found = load_checkpoints(self._ledger.store, task)
        known = [one.blob for one in (found.latest, found.before, found.base) if one is not None and one.blob]
        kept = [one for one in dict.fromkeys((blob, *known)) if self._blobs.is_complete(one)]
        return CheckpointNote(self._ledger.head().steady_ms, self.is_leaving(task), tuple(kept))

    async def _seal(self, task: bytes, packed: Path) -> tuple[bytes, int]:
        """Make the blob of a packed folder, sealed for the next machine of a private task; return name and size.

        Raises InputUnavailable where another machine has the task by now.
        """
        key = await self._seals.checkpoint_key(task, container_of(load_spec(self._ledger.store, task)))

        def make() -> tuple[bytes, int]:
            if key is not None:
                key.seal(packed)
            return self._blobs.add_file(packed), packed.stat().st_size

        return await trio.to_thread.run_sync(make)

    # Restoring

    def is_restored(self, task: bytes) -> bool:
        """Tell whether a checkpoint lies ready for the start of a task's container, or has been put into it."""
        return (self._backend.folder(task) / RESTORED).is_dir()

    def size_bytes(self, task: bytes) -> int:
        """Return the bytes of the checkpoint that a task's container begins with, 0 without one."""
        wanted = load_checkpoints(self._ledger.store, task).wanted
        return 0 if wanted is None else wanted.size_bytes

    async def bring(self, task: bytes, *, may_miss: bool) -> None:
        """Fetch and unpack the checkpoint that a container begins with.

        Of one that nobody serves, or that is no folder which fits its disk (R149), the chain is told where that is
        possible: this machine leaves the task, and another one tries (R156). That raises CheckpointMissed. Raises
        InputUnavailable, and OSError where this machine has no room for it.
        """
        place = self._backend.folder(task) / RESTORED
        # It has its name when it is whole: a node that is killed meanwhile must not start with half of it.
        made = place.with_name(f"{RESTORED}.new")
        for folder in (place, made):
            await trio.to_thread.run_sync(partial(shutil.rmtree, folder, ignore_errors=True))
        wanted = load_checkpoints(self._ledger.store, task).wanted
        if wanted is None or not wanted.blob:
            return
        part = container_of(load_spec(self._ledger.store, task))
        key = await self._seals.checkpoint_key(task, part)  # without it any checkpoint would seem broken
        try:
            await self._fetch(task, wanted)
            await trio.to_thread.run_sync(self._open, wanted, made, key, part.storage.disk_mib << 20)
            await trio.to_thread.run_sync(made.rename, place)
        except (InputUnavailable, ArchiveInvalid, StreamInvalid) as error:
            if not may_miss:
                raise InputUnavailable(f"the checkpoint: {error}") from None
            await self._miss(task, wanted.blob, str(error))
            raise CheckpointMissed(str(error)) from None
        self.restored += 1

    async def miss_late(self, task: bytes) -> bool:
        """Tell the chain that a checkpoint did not come in time; return whether that was what was waited for."""
        wanted = load_checkpoints(self._ledger.store, task).wanted
        if wanted is None or not wanted.blob or self.is_restored(task):
            return False
        await self._miss(task, wanted.blob, "not here in time")
        return True

    async def _miss(self, task: bytes, blob: bytes, why: str) -> None:
        _log.warning("a checkpoint cannot be had", task=task, blob=blob, error=why)
        await self._wallet.send(MISS_CHECKPOINT, [task, blob])

    async def _fetch(self, task: bytes, wanted: Stored) -> None:
        requester = load_task(self._ledger.store, task).requester
        supply = Supply(
            lambda: self._inputs.peers(wanted.worker, requester, *self._inputs.keepers(task)), tries=FETCH_TRIES
        )
        await self._inputs.obtain(wanted.blob, supply, wanted.size_bytes)
        if not await trio.to_thread.run_sync(self._blobs.is_whole, wanted.blob):  # a drive has damaged it here
            await self._inputs.obtain(wanted.blob, supply, wanted.size_bytes)

    def _open(self, wanted: Stored, place: Path, key: RunKey | None, disk_limit_bytes: int) -> None:
        """Unpack a checkpoint. Raises StreamInvalid, ArchiveInvalid, OSError."""
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if key is not None:
            key.open(self._blobs.path(wanted.blob), place, wanted.size_bytes, disk_limit_bytes)
            return
        with self._blobs.path(wanted.blob).open("rb") as file:
            unpack(file, place, limit_bytes=wanted.size_bytes, disk_limit_bytes=disk_limit_bytes)
