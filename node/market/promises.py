"""What a worker or verifier must remember across a restart: its published windows and its sealed verdicts. See
market.md 10.

Each has its own file, written before the promise is on chain and removed when the chain no longer requires it. The
blobs of a published window are pinned while somebody may request them. Data set and model of a task are pinned
while the task is this worker's or windows of it are open. Blocking; the files are small.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from p2p.blob.store import BlobStore
from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES
from state.view import Reader
from tasks.errors import TaskUnknown, WindowUnknown
from tasks.ledger.lifecycle import ENDED, WindowPhase
from tasks.ledger.records import (
    TaskRecord,
    WindowRecord,
    by_duty_key,
    by_verifier_key,
    load_spec,
    load_task,
    load_window,
)
from tasks.proofs import Break, Finding, break_from_value, break_to_value, findings_from_value, findings_to_value
from tasks.spec import JobSpec

__all__ = ["Found", "Promises", "Published", "VerdictKey", "decode_published", "needed_blobs", "write_durably"]

PROMISE_LIMIT_BYTES: Final = 256 * 1024
_NAME: Final = re.compile(r"([0-9a-f]{64})-([0-9]{1,10})-(window|verdict|verdict-jury)")


class Published(NamedTuple):
    """A window that is stored as blobs: the work digests that open its commitments, and the blobs' names."""

    digests: tuple[bytes, ...]
    states: tuple[bytes, ...]
    leaves: bytes
    output: bytes

    @property
    def blobs(self) -> frozenset[bytes]:
        """All its blobs."""
        return frozenset((*self.states, self.leaves, self.output))


class VerdictKey(NamedTuple):
    """Identifies a verdict of this node on a window, as a verifier or as a juror."""

    task: bytes
    window: int
    is_jury: bool


class Found(NamedTuple):
    """What a verifier found of a window; ``shown`` proves that its leaves do not fit, if that is what it found."""

    findings: tuple[Finding, ...]
    shown: Break | None = None


def decode_published(data: bytes) -> Published:
    """Read the record of a published window. Raises DecodeError."""
    match decode(data, limit_bytes=PROMISE_LIMIT_BYTES):
        case [list(digests), list(states), bytes(leaves), bytes(output)] if all(
            type(item) is bytes and len(item) == HASH_BYTES for item in (*digests, *states, leaves, output)
        ):
            return Published(tuple(digests), tuple(states), leaves, output)
        case _:
            raise DecodeError("not the record of a published window")


def needed_blobs(
    published: Published, number: int, task: TaskRecord | None, window: WindowRecord | None, worker: bytes
) -> frozenset[bytes]:
    """Return the blobs of ``worker``'s published window that others may still request, by the chain's records.

    ``task`` is None if the chain does not have it, ``window`` if it has no proof of that number.
    """
    nothing: frozenset[bytes] = frozenset()
    if task is None:
        return nothing
    if task.phase in ENDED:  # its requester fetches the result as long as the worker's bond stays
        is_last = window is not None and number + 1 == task.final_windows
        is_ours = window is not None and window.proof.leaves_blob == published.leaves
        return frozenset({published.output}) if task.deadline_ms and is_last and is_ours else nothing
    if window is None or number >= task.next_window:  # not on chain yet, or to be done again
        return published.blobs if task.worker == worker else nothing
    if window.proof.leaves_blob != published.leaves:  # done again by somebody else
        return nothing
    if window.phase != WindowPhase.FINAL:
        return published.blobs
    # The next worker starts from the last state, and in the end the requester fetches it.
    return frozenset({published.output}) if number + 1 >= task.final_windows else nothing


class Promises:
    """The files in one directory, and the pins in ``blobs`` of the blobs that they name."""

    def __init__(self, root: Path, blobs: BlobStore, worker: bytes) -> None:
        self._root, self._blobs, self._worker = root, blobs, worker
        self._published: dict[tuple[bytes, int], Published] = {}
        self._verdicts: set[VerdictKey] = set()
        self._inputs: dict[bytes, frozenset[bytes]] = {}
        """The pinned inputs of tasks."""
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in root.iterdir():
            self._take_up(path)

    def publish(self, task: bytes, window: int, published: Published) -> None:
        """Record a window with stored blobs. They stay until the chain no longer requires them."""
        before = self._published.get((task, window))
        self._published[task, window] = published  # before its pins: ``tidy`` may look at any moment
        for name in published.blobs:
            self._blobs.pin(name)
        if before is not None:
            self._unpin(before.blobs)
        value = encode([list(published.digests), list(published.states), published.leaves, published.output])
        write_durably(self._window_path(task, window), value)

    def abandon(self, names: Iterable[bytes]) -> None:
        """Unpin the blobs of a window that was not published."""
        self._unpin(names)

    def published(self, task: bytes, window: int) -> Published | None:
        """Return the record of a window that this node published."""
        return self._published.get((task, window))

    def keep_inputs(self, task: bytes, spec: JobSpec) -> None:
        """Pin the inputs of this worker's task: apart from the requester, nobody else may have them."""
        self._inputs[task] = frozenset(given.blob for given in spec.inputs())
        for blob in self._inputs[task]:
            self._blobs.pin(blob)

    def blobs_of(self, tasks: Collection[bytes]) -> frozenset[bytes]:
        """Return the pinned blobs of these tasks."""
        windows = (published.blobs for (task, _), published in list(self._published.items()) if task in tasks)
        inputs = (blobs for task, blobs in list(self._inputs.items()) if task in tasks)
        return frozenset[bytes]().union(*inputs, *windows)

    def seal(self, key: VerdictKey, height: int, found: Found) -> None:
        """Record what a sealed verdict hides. ``height`` distinguishes draws for the same window."""
        shown = [] if found.shown is None else break_to_value(found.shown)
        write_durably(self._verdict_path(key), encode([height, findings_to_value(found.findings), shown]))
        self._verdicts.add(key)

    def sealed(self, key: VerdictKey, height: int) -> Found:
        """Return what was sealed in the draw of ``height``. Raises OSError, DecodeError."""
        match decode(self._verdict_path(key).read_bytes(), limit_bytes=PROMISE_LIMIT_BYTES):
            case [int(of), list(findings), list(shown)] if of == height:
                return Found(findings_from_value(findings), break_from_value(shown) if shown else None)
            case _:
                raise DecodeError("not the verdict of this draw")

    def tidy(self, state: Reader) -> None:
        """Remove the records that the chain, with the newest final state ``state``, no longer requires."""
        for key in [key for key in self._verdicts if not self._is_owed(state, key)]:
            self._verdict_path(key).unlink(missing_ok=True)
            self._verdicts.discard(key)
        windows = list(self._published.items())
        needed = [
            needed_blobs(published, number, *_records(state, task, number), self._worker)
            for (task, number), published in windows
        ]
        # The state between two windows belongs to both.
        kept = frozenset[bytes]().union(*needed)
        for ((task, number), published), wanted in zip(windows, needed, strict=True):
            if not wanted:
                del self._published[task, number]
                self._window_path(task, number).unlink(missing_ok=True)
            for name in published.blobs - kept:
                self._blobs.unpin(name)
        self._tidy_inputs(state)

    def _tidy_inputs(self, state: Reader) -> None:
        for task in {task for task, _ in self._published} - self._inputs.keys():
            if self._has_duty(state, task):  # the window is of an earlier run of the node
                self.keep_inputs(task, load_spec(state, task))
        for task, blobs in list(self._inputs.items()):
            if not self._has_duty(state, task):
                del self._inputs[task]
                self._unpin(blobs)

    def _has_duty(self, state: Reader, task: bytes) -> bool:
        return state.get(by_duty_key(self._worker, task)) is not None

    def _is_owed(self, state: Reader, key: VerdictKey) -> bool:
        return state.get(by_verifier_key(self._worker, key.task, key.window)) is not None

    def _unpin(self, names: Iterable[bytes]) -> None:
        """Unpin blobs that belong to no known window and are an input of no task."""
        windows = (published.blobs for published in list(self._published.values()))
        for name in set(names).difference(*list(self._inputs.values()), *windows):
            self._blobs.unpin(name)

    def _take_up(self, path: Path) -> None:
        match = _NAME.fullmatch(path.name)
        if match is None:  # half written when the node stopped
            path.unlink(missing_ok=True)
            return
        task, window, kind = bytes.fromhex(match[1]), int(match[2]), match[3]
        if kind != "window":
            self._verdicts.add(VerdictKey(task, window, kind == "verdict-jury"))
            return
        try:
            published = decode_published(path.read_bytes())
        except (OSError, DecodeError):
            path.unlink(missing_ok=True)
            return
        self._published[task, window] = published
        for name in published.blobs:
            self._blobs.pin(name)

    def _window_path(self, task: bytes, window: int) -> Path:
        return self._root / f"{task.hex()}-{window}-window"

    def _verdict_path(self, key: VerdictKey) -> Path:
        return self._root / f"{key.task.hex()}-{key.window}-verdict{'-jury' if key.is_jury else ''}"


def _records(state: Reader, task_id: bytes, number: int) -> tuple[TaskRecord | None, WindowRecord | None]:
    try:
        task = load_task(state, task_id)
    except TaskUnknown:
        return None, None
    try:
        return task, load_window(state, task_id, number)
    except WindowUnknown:
        return task, None


def write_durably(path: Path, data: bytes) -> None:
    """Write a file atomically and durably."""
    temporary = path.with_name(path.name + ".new")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
