"""The durable record of running jobs: a restarted node goes on from the last whole segment.

One directory a task. Each file is a checksum and canonical CBOR, written beside and renamed into place after it is
on disk, so a crash leaves the old file or the new one. What is damaged all the same counts as not written.
Blocking; callers use a thread.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Final

from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError, StoreError
from state.primitives.hashing import HASH_BYTES, digest
from tasks.engine.errors import StateInvalid, UnsupportedJob
from tasks.engine.state import TrainingState
from tasks.executor.job import Job, Segment, child_frame_limit

__all__ = ["Journal", "JournalEntry", "TaskJournal"]

_ORDER: Final = "order"
_START: Final = "start"
_DELIVERED: Final = "delivered"
_SEGMENT_PREFIX: Final = "segment-"


@dataclass(frozen=True)
class JournalEntry:
    """A task found in the journal: its job and the step after which it goes on."""

    task: bytes
    job: Job
    step: int


class Journal:
    """The records of all tasks under one directory. Raises StoreError where the disk fails."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def entries(self) -> tuple[JournalEntry, ...]:
        """Return the tasks that were running when the node stopped, by task id."""
        found: list[JournalEntry] = []
        for directory in sorted(self._root.iterdir()) if self._root.is_dir() else ():
            with suppress(ValueError, DecodeError, UnsupportedJob, OSError):
                task = bytes.fromhex(directory.name)
                job = Job.decode(_read(directory / _ORDER, 1 << 16))
                record = TaskJournal(directory, job)
                found.append(JournalEntry(task, job, record.step))
        return tuple(found)

    def open(self, task: bytes, job: Job, start: bytes | None) -> TaskJournal:
        """Return the record of ``task``; a new one that starts at state ``start`` if there is none of this job."""
        directory = self._root / task.hex()
        try:
            with suppress(DecodeError, FileNotFoundError):
                if _read(directory / _ORDER, 1 << 16) == job.encode():
                    record = TaskJournal(directory, job)
                    if record.usable:
                        return record
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True, mode=0o700)
            if start is not None:
                _write(directory / _START, start)
            _write(directory / _ORDER, job.encode())
            return TaskJournal(directory, job)
        except OSError as error:
            raise StoreError(f"the journal of jobs: {error}") from error

    def forget(self, task: bytes) -> None:
        """Remove the record of ``task``."""
        shutil.rmtree(self._root / task.hex(), ignore_errors=True)


class TaskJournal:
    """The record of one task: the segments that are done and how many windows were handed on."""

    def __init__(self, directory: Path, job: Job) -> None:
        self._directory, self._job = directory, job
        self.delivered = self._load_delivered()
        self.start = self._load_start()
        self._start_step = 0 if self.start is None else TrainingState.decode(self.start, job.plan).step
        self.segments = self._load_segments()

    @property
    def usable(self) -> bool:
        """Whether a job can go on from here: it has a state to start from."""
        return bool(self.segments) or self.delivered == 0

    @property
    def step(self) -> int:
        """Steps done."""
        return self.segments[-1].step_to if self.segments else self._start_step

    @property
    def state(self) -> bytes | None:
        """The state to go on from; None for the job's own beginning."""
        return self.segments[-1].state if self.segments else self.start

    def append(self, segment: Segment) -> None:
        """Write a segment down; when this returns it is on disk."""
        try:
            _write(self._segment_path(segment), encode(astuple(segment)))
        except OSError as error:
            raise StoreError(f"the journal of jobs: {error}") from error
        self.segments.append(segment)

    def mark_delivered(self, windows: int) -> None:
        """Note that ``windows`` windows were handed on, and drop what only they needed."""
        try:
            _write(self._directory / _DELIVERED, encode(windows))
            self.delivered = windows
            boundary = min(windows * self._job.window_steps, self._job.total_steps)
            done = [s for s in self.segments if s.step_to < boundary]  # the one that ends there starts the next
            for segment in done:
                self._segment_path(segment).unlink(missing_ok=True)
            self.segments = self.segments[len(done) :]
        except OSError as error:
            raise StoreError(f"the journal of jobs: {error}") from error

    def _segment_path(self, segment: Segment) -> Path:
        return self._directory / f"{_SEGMENT_PREFIX}{segment.step_from:016d}"

    def _load_delivered(self) -> int:
        with suppress(DecodeError, FileNotFoundError):
            value = decode(_read(self._directory / _DELIVERED, 64), limit_bytes=64)
            if type(value) is int and 0 <= value <= self._job.windows:
                return value
        return 0

    def _load_start(self) -> bytes | None:
        with suppress(DecodeError, FileNotFoundError, StateInvalid):
            start = _read(self._directory / _START, self._job.plan.state_limit_bytes)
            if TrainingState.decode(start, self._job.plan).step <= self._job.total_steps:
                return start
        return None

    def _load_segments(self) -> list[Segment]:
        """Return the longest whole chain of segments; what follows a gap or a damaged file is removed."""
        chain: list[Segment] = []
        broken = False
        for path in sorted(self._directory.glob(f"{_SEGMENT_PREFIX}*")):
            segment = None if broken else self._load_segment(path)
            if segment is None or not self._follows(chain, segment):
                broken = True
                path.unlink(missing_ok=True)
            else:
                chain.append(segment)
        return chain

    def _follows(self, chain: list[Segment], segment: Segment) -> bool:
        """Tell whether a segment continues the chain, or may be its first: at the start, or handed on already."""
        if chain:
            last = chain[-1]
            return (segment.step_from, segment.state_root_before) == (last.step_to, last.state_root_after)
        return segment.step_from == self._start_step or segment.step_to <= self.delivered * self._job.window_steps

    def _load_segment(self, path: Path) -> Segment | None:
        plan = self._job.plan
        try:
            body = _read(path, child_frame_limit(plan))
            match decode(body, limit_bytes=child_frame_limit(plan)):
                case [
                    int(step_from), int(step_to), bytes(before), bytes(after), bytes(batch_root),
                    bytes(probe_root), int(loss_bits), int(compute_ms), bytes(state),
                ] if 0 <= step_from < step_to <= self._job.total_steps:  # fmt: skip
                    segment = Segment(
                        step_from, step_to, before, after, batch_root, probe_root, loss_bits, compute_ms, state
                    )
                case _:
                    return None
            found = TrainingState.decode(segment.state, plan)
        except (DecodeError, StateInvalid, OSError):
            return None
        return segment if (found.step, found.root(plan)) == (segment.step_to, segment.state_root_after) else None


def _write(path: Path, body: bytes) -> None:
    """Put a checksum and ``body`` at ``path``, wholly or not at all, and onto the disk."""
    beside = path.with_name(f".{path.name}")
    with open(beside, "wb") as file:
        file.write(digest(b"job-journal", body) + body)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _read(path: Path, limit_bytes: int) -> bytes:
    with open(path, "rb") as file:
        data = file.read(HASH_BYTES + limit_bytes + 1)
    body = data[HASH_BYTES:]
    if len(body) > limit_bytes or digest(b"job-journal", body) != data[:HASH_BYTES]:
        raise DecodeError(f"{path.name} is damaged")
    return body
