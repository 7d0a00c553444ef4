"""The durable record of running jobs: a restarted node goes on from the last whole segment.

One directory a task. Each file is a checksum and canonical CBOR, written beside and renamed into place after it is
on disk, so a crash leaves the old file or the new one. What is damaged all the same counts as not written. States
stay on the disk: one may have hundreds of megabytes, and a window two gigabytes. Blocking; callers use a thread.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError, StoreError
from state.primitives.hashing import HASH_BYTES, digest
from tasks.engines.errors import StateInvalid, UnsupportedJob
from tasks.engines.state import TrainingState
from tasks.executor.durable import write_durably
from tasks.executor.job import Job, Segment, SegmentRecord, child_frame_limit, segment_from, segment_to_value

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

    def sweep(self) -> None:
        """Remove records whose job is damaged or was never written."""
        for directory in sorted(self._root.iterdir()) if self._root.is_dir() else ():
            with suppress(ValueError, OSError):
                task = bytes.fromhex(directory.name)
                try:
                    Job.decode(_read(directory / _ORDER, 1 << 16))
                except (DecodeError, UnsupportedJob, FileNotFoundError):
                    self.forget(task)

    def open(self, task: bytes, job: Job, start: bytes | None) -> TaskJournal:
        """Return the record of ``task``; a new one that starts at state ``start`` if there is none of this job."""
        directory = self._root / task.hex()
        try:
            record = self._find(directory, job)
            if record is not None:
                if start is not None and record.load_start() is None:  # damaged: nothing but its giver can make it
                    _write(directory / _START, start)
                return record
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True, mode=0o700)
            if start is not None:
                _write(directory / _START, start)
            _write(directory / _ORDER, job.encode())
            return TaskJournal(directory, job)
        except OSError as error:
            raise StoreError(f"the journal of jobs: {error}") from error

    def resumes(self, task: bytes, job: Job, windows: int, root: bytes) -> bool:
        """Tell whether the record of ``task`` goes on where ``windows`` windows count and ended in state ``root``.

        One that does not stands on work that does not count any more, and is removed.
        """
        try:
            record = self._find(self._root / task.hex(), job)
        except OSError as error:
            raise StoreError(f"the journal of jobs: {error}") from error
        if record is not None and record.holds(windows, root):
            return True
        self.forget(task)
        return False

    def forget(self, task: bytes) -> None:
        """Remove the record of ``task``."""
        shutil.rmtree(self._root / task.hex(), ignore_errors=True)

    @staticmethod
    def _find(directory: Path, job: Job) -> TaskJournal | None:
        with suppress(DecodeError, FileNotFoundError):
            if _read(directory / _ORDER, 1 << 16) == job.encode():
                record = TaskJournal(directory, job)
                if record.usable:
                    return record
        return None


class TaskJournal:
    """The record of one task: the segments that are done and how many windows were handed on."""

    def __init__(self, directory: Path, job: Job) -> None:
        self._directory, self._job = directory, job
        self.delivered = self._load_delivered()
        self._start_step, self._start_root = self._check_start()
        self.segments = self._load_segments()

    @property
    def usable(self) -> bool:
        """Whether a job can go on from here: it has a state to start from."""
        return bool(self.segments) or self.delivered == 0

    @property
    def is_diverged(self) -> bool:
        """Whether the job diverges in the last segment: there is no further one."""
        return bool(self.segments) and self.segments[-1].diverged is not None

    @property
    def is_whole(self) -> bool:
        """Whether the last step is done, or the one with which the job ends early."""
        return self.step == self._job.total_steps or (bool(self.segments) and self.segments[-1].ended)

    @property
    def step(self) -> int:
        """Steps done."""
        return self.segments[-1].step_to if self.segments else self._start_step

    def holds(self, windows: int, root: bytes) -> bool:
        """Tell whether this stands on the state ``root`` after ``windows`` windows and handed on none beyond."""
        if self.delivered > windows:
            return False
        boundary = min(windows * self._job.window_steps, self._job.total_steps)
        if boundary == self._start_step:
            return root == self._start_root
        return any((done.step_to, done.state_root_after) == (boundary, root) for done in self.segments)

    def load_state(self) -> bytes | None:
        """Return the state to go on from; None for the job's own beginning."""
        return self.load_start() if not self.segments else self.load_state_after(self.segments[-1])

    def load_state_after(self, segment: SegmentRecord) -> bytes:
        """Return the encoded state after a segment of this record."""
        try:
            return self._read_segment(self._segment_path(segment)).state
        except (DecodeError, OSError) as error:
            raise StoreError(f"the journal of jobs: {error}") from error

    def load_state_before(self, segment: SegmentRecord) -> bytes | None:
        """Return the encoded state before a segment of this record; None for the job's own beginning."""
        at = self.segments.index(segment)
        return self.load_state_after(self.segments[at - 1]) if at else self.load_start()

    def load_start(self) -> bytes | None:
        """Return the state that the work started from; None for the job's own beginning."""
        with suppress(DecodeError, FileNotFoundError):
            return _read(self._directory / _START, self._job.plan.state_limit_bytes)
        return None

    def append(self, segment: Segment) -> None:
        """Write a segment down; when this returns it is on disk."""
        try:
            _write(self._segment_path(segment), encode(segment_to_value(segment)))
        except OSError as error:
            raise StoreError(f"the journal of jobs: {error}") from error
        self.segments.append(segment.record)

    def mark_delivered(self, windows: int) -> None:
        """Note that ``windows`` windows were handed on, and drop what only they needed."""
        try:
            _write(self._directory / _DELIVERED, encode(windows))
            self.delivered = windows
            boundary = min(windows * self._job.window_steps, self._job.total_steps)
            # The one that ends there starts the next. One that ends the job says that there is no next.
            done = [s for s in self.segments if s.step_to < boundary and not s.is_last]
            for segment in done:
                self._segment_path(segment).unlink(missing_ok=True)
            self.segments = self.segments[len(done) :]
        except OSError as error:
            raise StoreError(f"the journal of jobs: {error}") from error

    def _segment_path(self, segment: SegmentRecord) -> Path:
        return self._directory / f"{_SEGMENT_PREFIX}{segment.step_from:016d}"

    def _load_delivered(self) -> int:
        with suppress(DecodeError, FileNotFoundError):
            value = decode(_read(self._directory / _DELIVERED, 64), limit_bytes=64)
            if type(value) is int and 0 <= value <= self._job.windows:
                return value
        return 0

    def _check_start(self) -> tuple[int, bytes]:
        """Return step and root of the start; one that is damaged is removed and counts as none."""
        start = self.load_start()
        if start is not None:
            with suppress(StateInvalid):
                state = TrainingState.decode(start, self._job.plan)
                if state.step <= self._job.total_steps:
                    return state.step, state.root(self._job.plan)
        (self._directory / _START).unlink(missing_ok=True)
        return 0, self._job.init_root

    def _load_segments(self) -> list[SegmentRecord]:
        """Return the longest whole chain of segments; what follows a gap or a damaged file is removed."""
        chain: list[SegmentRecord] = []
        broken = False
        for path in sorted(self._directory.glob(f"{_SEGMENT_PREFIX}*")):
            segment = None if broken else self._load_segment(path)
            if segment is None or not self._follows(chain, segment):
                broken = True
                path.unlink(missing_ok=True)
            else:
                chain.append(segment)
        return chain

    def _follows(self, chain: list[SegmentRecord], segment: SegmentRecord) -> bool:
        """Tell whether a segment continues the chain, or may be its first: at the start, or handed on already."""
        if chain:
            last = chain[-1]
            return (segment.step_from, segment.state_root_before) == (last.step_to, last.state_root_after)
        return segment.step_from == self._start_step or segment.step_to <= self.delivered * self._job.window_steps

    def _load_segment(self, path: Path) -> SegmentRecord | None:
        plan = self._job.plan
        try:
            segment = self._read_segment(path)
            found = TrainingState.decode(segment.state, plan)
        except (DecodeError, StateInvalid, OSError):
            return None
        # That the state has its root was checked before it was written, and the checksum covers both: hashing the
        # states of a window again would take up to twenty seconds each time.
        return segment.record if found.step == segment.result_step else None

    def _read_segment(self, path: Path) -> Segment:
        limit_bytes = child_frame_limit(self._job.plan)
        match decode(_read(path, limit_bytes), limit_bytes=limit_bytes):
            case list(value) if (segment := segment_from(value)).step_to <= self._job.total_steps:
                return segment
            case _:
                raise DecodeError(f"{path.name} is not a segment")


def _write(path: Path, body: bytes) -> None:
    """Put a checksum and ``body`` at ``path``, wholly or not at all, and onto the disk."""
    write_durably(path, digest(b"job-journal", body), body)


def _read(path: Path, limit_bytes: int) -> bytes:
    with open(path, "rb") as file:
        checksum = file.read(HASH_BYTES)
        body = file.read(limit_bytes + 1)
    if len(body) > limit_bytes or digest(b"job-journal", body) != checksum:
        raise DecodeError(f"{path.name} is damaged")
    return body
