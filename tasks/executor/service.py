"""The executor as the node uses it: run a task's job window by window, and re-run segments of others."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable, Container, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import trio

from state.primitives.hashing import ZERO_HASH
from tasks.engines.errors import StateInvalid
from tasks.engines.generating_plan import GeneratingPlan
from tasks.engines.state import TrainingState
from tasks.executor.errors import JobFailed, JobGivenUp, JobStalled
from tasks.executor.failure_count import ENDS_MAX, ENDS_WITHIN_S, Ends, JobEnd, code_of
from tasks.executor.job import ChildFrame, Failed, Finished, Hello, Job, Progress, Segment, SegmentRecord, Train
from tasks.executor.journal import Journal, JournalEntry, TaskJournal
from tasks.executor.linking import Links, RunLinks
from tasks.executor.players import Players
from tasks.executor.playing import Play, Played
from tasks.executor.results import TaskResult, Verdict, WindowResult
from tasks.executor.supervisor import Backend, Capabilities, ProcessBackend, ProcessOptions, ignore_start
from tasks.programs.generate import MADE
from tasks.proofs import Code, SegmentLeaf
from tasks.spec import JobSpec

__all__ = ["FINAL_REASONS", "Executor", "ExecutorOptions", "JobStatus"]

FINAL_REASONS: Final = frozenset({"diverged", "dataset_invalid", "state_invalid", "unsupported_job"})
"""Failures that the job's own numbers cause: they come again however often it is started."""

RETRIED_REASONS: Final = frozenset({"died", "job_stalled"})
"""Ends of a trial's process that say nothing of the job."""

OnWindow = Callable[[WindowResult], Awaitable[None]]
DRIVERS: Final = ("/dev/nvidiactl", "/dev/dxg")
"""Files of the drivers of cards. A machine with one of them is taken to run jobs with torch."""


@dataclass(frozen=True)
class ExecutorOptions:
    """What this node lends to jobs. ``restarts_max`` counts starts after the first that make no progress."""

    process: ProcessOptions = field(default_factory=ProcessOptions)
    jobs_max: int = 1
    verifications_max: int = 1
    restarts_max: int = 2


@dataclass(frozen=True)
class JobStatus:
    """Where a running job stands, for people and metrics."""

    step: int
    total_steps: int
    starts: int
    device: str
    ends: int = 0
    """Ends of its process within the last hour that nobody asked for, ..."""
    last_end: str = ""
    """... and what the last one was."""


def _ignore_end(_end: JobEnd) -> None:
    pass


class Executor:
    """Runs jobs on a backend, keeps the journal, and meters.

    ``on_end`` is told of each end of a process that nobody asked for, ``on_start`` what each process got.
    """

    def __init__(
        self, options: ExecutorOptions, journal_root: Path, backend: Backend | None = None, *,
        on_end: Callable[[JobEnd], None] = _ignore_end, on_start: Callable[[Capabilities], None] = ignore_start,
    ) -> None:  # fmt: skip
        self._on_end, self._ends = on_end, Ends()
        self._options, self._journal = options, Journal(journal_root)
        self._scratch = journal_root / ".scratch"
        self._backend = backend or ProcessBackend(options.process, self._scratch, on_start=on_start)
        self._jobs = trio.CapacityLimiter(options.jobs_max)
        self._verifications = trio.CapacityLimiter(options.verifications_max)
        self._link_checks = trio.CapacityLimiter(1)
        self._players = Players(self._backend)
        self._status: dict[bytes, JobStatus] = {}

    async def run_players(self) -> None:
        """Keep the processes of games until cancelled; ``play`` needs it."""
        await self._players.run()

    @property
    def status(self) -> Mapping[bytes, JobStatus]:
        """The jobs that run now, by task id."""
        return self._status

    @property
    def engine(self) -> str:
        """What its processes run jobs with: ``numpy`` or ``torch``."""
        name = self._options.process.engine
        if name == "auto":
            return "torch" if any(Path(driver).exists() for driver in DRIVERS) else "numpy"
        return name

    @property
    def restarts_max(self) -> int:
        """Starts after the first that make no progress."""
        return self._options.restarts_max

    async def run_process(self, order: Train, listener: Callable[[ChildFrame], Awaitable[None]]) -> None:
        """Run one process of a job. Raises what the backend raises."""
        await self._backend.run(order, listener)

    def show(self, task: bytes, status: JobStatus) -> None:
        """Note where a job stands."""
        self._status[task] = status

    async def probe(self) -> Capabilities:
        """Tell what jobs get on this machine: a device and isolation. Raises what running a job raises."""
        return await self._backend.probe()

    async def end_leftovers(self) -> int:
        """End the jobs that an earlier life of this node left running; return how many there were."""
        return await self._backend.end_leftovers()

    async def unfinished(self) -> tuple[JournalEntry, ...]:
        """Return the tasks that the journal knows: call ``run_task`` or ``forget`` for each after a restart."""
        if not self._status:  # what a node that was killed left behind
            await trio.to_thread.run_sync(partial(shutil.rmtree, self._scratch, ignore_errors=True))
            await trio.to_thread.run_sync(self._journal.sweep)
        return await trio.to_thread.run_sync(self._journal.entries)

    async def forget(self, task: bytes) -> None:
        """Drop the journal of a task that is settled, cancelled or somebody else's now."""
        self._ends.forget(task)
        await trio.to_thread.run_sync(self._journal.forget, task)

    async def resumes(self, task: bytes, spec: JobSpec, windows: int, root: bytes) -> bool:
        """Tell whether the journal has work on ``task`` from the state ``root`` after ``windows`` windows, or on.

        Work that stands on another state (windows before it were voided meanwhile) is dropped. Raises StoreError.
        """
        return await trio.to_thread.run_sync(self._journal.resumes, task, Job.of(spec), windows, root)

    async def try_task(
        self, task: bytes, spec: JobSpec, dataset: bytes, *, start: bytes | None = None, model: bytes = b""
    ) -> int:
        """Run the first segment of ``spec``, or find it done, and return the milliseconds that a step took here.

        The segment stays in the journal, so ``run_task`` goes on after it. Before a worker binds itself this shows
        what is wrong with a job: its data, its start, its numbers, its time. Raises what ``run_task`` raises.
        """
        job = Job.of(spec)
        async with self._jobs:
            record = await trio.to_thread.run_sync(self._journal.open, task, job, start)
            run = _Run(self, task, spec, record, _refuse_window, model)
            try:
                return await run.first_segment(dataset)
            finally:
                self._status.pop(task, None)

    async def run_task(
        self, task: bytes, spec: JobSpec, dataset: bytes, on_window: OnWindow, *, start: bytes | None = None,
        model: bytes = b"",
    ) -> TaskResult:  # fmt: skip
        """Run ``spec`` to its end, from the journal's last segment if it knows the task.

        ``start`` is the encoded state at the beginning of a window when another worker did the windows before it.
        ``on_window`` is called for each window in order; when it returns the window counts as handed on. It may be
        called again for the same window, with the same roots, after the node died or its disk lost the journal.
        Cancel the call to stop the job; its journal stays.
        Raises JobFailed (with the job's reason), JobStalled, JobGivenUp, IsolationMissing, EngineMissing,
        UnsupportedJob.
        """
        job = Job.of(spec)
        async with self._jobs:
            record = await trio.to_thread.run_sync(self._journal.open, task, job, start)
            try:
                return await _Run(self, task, spec, record, on_window, model).run(dataset)
            finally:
                self._status.pop(task, None)

    async def verify_segment(
        self, task: bytes, spec: JobSpec, dataset: bytes, leaf: SegmentLeaf, state: bytes, *, model: bytes = b"",
        claimed: bytes = b"",
    ) -> Verdict:  # fmt: skip
        """Re-run one segment from the state that its worker published, and compare (market.md 7.3).

        ``claimed`` may be the state that the worker claims after it: it saves time if it is, and never changes
        the verdict.

        Raises what ``run_task`` raises for faults of this machine; faults of the worker are verdicts.
        """
        job = Job.of(spec).to_the_end
        try:
            await trio.to_thread.run_sync(_check_start, job, leaf, state)
        except StateInvalid as error:
            return Verdict.unavailable(leaf.segment, str(error))
        guess = await trio.to_thread.run_sync(_guess_of, job, leaf, claimed)
        found: list[Segment] = []

        async def listen(message: ChildFrame) -> None:
            if isinstance(message, Segment):
                found.append(message)

        order = Train(job, dataset, state, leaf.step_to, evaluate=False, model=model, guess=guess)
        async with self._verifications:
            for attempt in range(self._options.restarts_max + 1):
                found.clear()
                try:
                    await self._backend.run(order, listen)
                    break
                except (JobFailed, JobStalled) as error:
                    if code_of(error) in FINAL_REASONS:
                        return Verdict.unavailable(leaf.segment, str(error))
                    self.note_end(task, error, segment=leaf.step_from)
                    if attempt == self._options.restarts_max:
                        raise
        if len(found) != 1:
            raise JobFailed(reason="bad_frame", text=f"{len(found)} segments where one was ordered")
        if found[0].step_to != leaf.step_to:  # an earlier step diverges, so the leaf's end cannot exist
            return Verdict(leaf.segment, Code.COMPUTED, ZERO_HASH, ZERO_HASH, 0, ("diverged",))
        return _compare(leaf, found[0])

    async def play(
        self, task: bytes, game: bytes, moves: tuple[bytes, ...], order: Callable[[], Awaitable[Play]]
    ) -> bytes:
        """Return the move that is due in a game about ``task`` after ``moves``; empty if nothing is to be said.

        ``order`` is asked for unless the game has a process. Raises what ``order`` and ``run_task`` raise, but
        never JobGivenUp: the clock of a game ends it.
        """
        try:
            return await self._players.move(game, moves, order)
        except (JobFailed, JobStalled) as error:
            if code_of(error) in RETRIED_REASONS:
                count = min(ENDS_MAX, self._ends.note((game, 0), trio.current_time()))
                self._on_end(JobEnd(task, code_of(error), str(error), count, is_check=True))
            raise

    async def run_chain(
        self, seed: bytes, width: int, before: bytes, on_results: Callable[[tuple[bytes, ...]], Awaitable[None]]
    ) -> None:
        """Run links of a speed trial from the state ``before`` on until cancelled; all jobs stand still meanwhile.

        They do from the moment on in which the process is ready. Raises JobFailed, JobStalled, IsolationMissing,
        EngineMissing.
        """
        with ExitStack() as stack:

            async def listen(message: ChildFrame) -> None:
                match message:
                    case Hello():
                        stack.enter_context(self._backend.pause())
                    case Links(results):
                        await on_results(results)
                    case _:
                        pass

            await self._backend.run(RunLinks(seed, width, (before,), is_chain=True), listen)

    async def check_links(self, seed: bytes, width: int, befores: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """Return the results of the links of a speed trial that begin with these states. Raises like run_chain."""
        found: list[bytes] = []

        async def listen(message: ChildFrame) -> None:
            if isinstance(message, Links):
                found.extend(message.results)

        async with self._link_checks:
            await self._backend.run(RunLinks(seed, width, befores, is_chain=False), listen)
        if len(found) != len(befores):
            raise JobFailed(reason="bad_frame", text=f"{len(found)} results of {len(befores)} links")
        return tuple(found)

    def forget_game(self, game: bytes) -> None:
        """End the process of a game, so that the next move begins with the whole segment."""
        self._players.forget(game)

    def keep_games(self, games: Container[bytes]) -> None:
        """End the processes of games that are not among ``games``."""
        for game in self._players.games:
            if game not in games:
                self._players.forget(game)

    def note_end(self, task: bytes, error: JobFailed | JobStalled, *, segment: int | None = None) -> JobEnd:
        """Count an end of a process and tell of it; of a check it is that of the segment from step ``segment``.

        Raises JobGivenUp when there were too many.
        """
        job = task if segment is None else (task, segment)
        count = self._ends.note(job, trio.current_time())
        end = JobEnd(task, code_of(error), str(error), count, segment is not None)
        self._on_end(end)
        if end.is_last:
            raise JobGivenUp(
                f"the job's process ended {count} times in {ENDS_WITHIN_S / 60:.0f} min, the last time: {error}"
            ) from error
        return end


async def _refuse_window(_result: WindowResult) -> None:
    raise AssertionError("a trial hands nothing on")


def _check_start(job: Job, leaf: SegmentLeaf, state: bytes) -> None:
    before = TrainingState.decode(state, job.plan)
    if (before.step, before.root(job.plan)) != (leaf.step_from, leaf.state_root_before):
        raise StateInvalid("the state is not the one the leaf names")
    if not leaf.step_from < leaf.step_to <= job.segment_end(leaf.step_from):
        raise StateInvalid("the leaf covers other steps than the job's segment")


def _guess_of(job: Job, leaf: SegmentLeaf, claimed: bytes) -> bytes:
    """Return the tokens of the state that a leaf claims, empty for another state or another kind of job."""
    if not claimed or not isinstance(job.plan, GeneratingPlan):
        return b""
    try:
        state = TrainingState.decode(claimed, job.plan)
    except StateInvalid:
        return b""
    is_claimed = (state.step, state.root(job.plan)) == (leaf.step_to, leaf.state_root_after)
    return state.tensors[MADE] if is_claimed else b""


def _compare(leaf: SegmentLeaf, found: Segment) -> Verdict:
    pairs = (
        ("state_root_after", leaf.state_root_after, found.state_root_after),
        ("loss_bits", leaf.loss_bits, found.loss_bits),
    )
    mismatches = tuple(name for name, claimed, computed in pairs if claimed != computed)
    return Verdict(
        leaf.segment, Code.COMPUTED, found.work_digest, found.state_root_after, found.loss_bits, mismatches
    )


class _Run:
    """One call of run_task: starts the job until it is through, hands windows on."""

    def __init__(
        self, executor: Executor, task: bytes, spec: JobSpec, record: TaskJournal, on_window: OnWindow,
        model: bytes,
    ) -> None:  # fmt: skip
        self._model = model
        self._executor, self._task, self._spec = executor, task, spec
        self._job, self._record, self._on_window = Job.of(spec), record, on_window
        self._device = ""
        self._starts = 0
        self._last_end: JobEnd | None = None
        self._accuracy: tuple[int, int] | None = None
        self._compute_ms = sum(segment.compute_ms for segment in record.segments)

    async def first_segment(self, dataset: bytes) -> int:
        record = self._record
        if not record.segments:

            async def listen(message: ChildFrame) -> None:
                if isinstance(message, Segment):
                    await trio.to_thread.run_sync(self._accept, message)

            state = await trio.to_thread.run_sync(record.load_state)
            end = self._job.segment_end(record.step)
            order = Train(self._job, dataset, state, end, evaluate=False, model=self._model)
            await self._try(order, listen)
        if not record.segments:
            raise JobFailed(reason="bad_frame", text="finished before its last step")
        done = record.segments[-1]
        return -(-done.compute_ms // (done.step_to - done.step_from))

    async def _try(self, order: Train, listener: Callable[[ChildFrame], Awaitable[None]]) -> None:
        """Run ``order``, again where its process died: that says nothing of the job."""
        left = self._executor.restarts_max
        while True:
            try:
                await self._executor.run_process(order, listener)
            except (JobFailed, JobStalled) as error:
                if code_of(error) not in RETRIED_REASONS:
                    raise
                self._executor.note_end(self._task, error)
                if not left or self._record.segments:
                    raise
                left -= 1
            else:
                return

    async def run(self, dataset: bytes) -> TaskResult:
        fruitless = 0
        await self._hand_on()
        while self._accuracy is None and not self._record.is_diverged:
            self._starts += 1
            stood_at = self._record.step
            state = await trio.to_thread.run_sync(self._record.load_state)
            order = Train(self._job, dataset, state, self._job.total_steps, evaluate=True, model=self._model)
            try:
                await self._executor.run_process(order, self._listen)
            except (JobFailed, JobStalled) as error:
                if isinstance(error, JobFailed) and error.reason in FINAL_REASONS:
                    raise
                self._last_end = self._executor.note_end(self._task, error)
                fruitless = fruitless + 1 if self._record.step == stood_at else 1
                if fruitless > self._executor.restarts_max:
                    raise
        await self._hand_on()
        last = self._record.segments[-1]
        return TaskResult(last.result_step, last.result_root, self._accuracy, self._compute_ms)

    async def _listen(self, message: ChildFrame) -> None:
        match message:
            case Hello(device, _):
                self._device = device
                self._note(self._record.step)
            case Progress(step):
                self._note(step)
            case Segment():
                await trio.to_thread.run_sync(self._accept, message)
                self._compute_ms += message.compute_ms
                self._note(message.step_to)
                if not self._record.is_whole:  # the last window waits for the test's answers
                    await self._hand_on()
            case Finished() if self._record.is_diverged:
                pass
            case Finished(right, samples):
                if not self._record.is_whole:
                    raise JobFailed(reason="bad_frame", text="finished before its last step")
                self._accuracy = (right, samples)
            case Failed() | Played() | Links():
                pass  # the backend raises it, or refuses it

    def _note(self, step: int) -> None:
        last = self._last_end
        self._executor.show(
            self._task,
            JobStatus(
                step, self._job.total_steps, self._starts, self._device,
                ends=0 if last is None else last.times, last_end="" if last is None else last.text,
            ),
        )  # fmt: skip

    def _accept(self, segment: Segment) -> None:
        """Check that a segment is the next one and holds the state it names, and write it down."""
        record, job = self._record, self._job
        root = record.segments[-1].state_root_after if record.segments else segment.state_root_before
        end = job.segment_end(record.step)
        if segment.is_last:
            end = min(end, segment.step_to)
        is_after = bool(record.segments) and record.segments[-1].is_last
        found = segment.step_from, segment.step_to, segment.state_root_before
        if is_after or found != (record.step, end, root):
            raise JobFailed(reason="bad_frame", text="not the next segment")
        try:
            state = TrainingState.decode(segment.state, job.plan)
        except StateInvalid as error:
            raise JobFailed(reason="bad_frame", text=str(error)) from None
        is_ended = segment.diverged is None and job.ends_at(state)
        if (state.step, state.root(job.plan), is_ended) != (
            segment.result_step, segment.result_root, segment.ended,
        ):  # fmt: skip
            raise JobFailed(reason="bad_frame", text="the state is not the one the segment names")
        record.append(segment)

    async def _hand_on(self) -> None:
        """Hand on the windows that are whole, each once."""
        for window, segments in _whole_windows(self._spec, self._record):
            last = segments[-1]
            is_last = last.ended or (last.step_to == self._job.total_steps and last.diverged is None)
            if is_last and self._accuracy is None:
                return
            accuracy = self._accuracy if is_last else None
            load_state = partial(_load_state, self._job, self._record, segments)
            result = WindowResult(window, segments, load_state, self._device, accuracy)
            await self._on_window(result)
            await trio.to_thread.run_sync(self._record.mark_delivered, window + 1)


def _whole_windows(spec: JobSpec, record: TaskJournal) -> list[tuple[int, tuple[SegmentRecord, ...]]]:
    """Return the windows, not yet handed on, of which every segment is written down."""
    by_window: dict[int, list[SegmentRecord]] = {}
    for segment in record.segments:
        by_window.setdefault(segment.step_from // spec.schedule.window_steps, []).append(segment)
    return [
        (window, tuple(segments))
        for window, segments in sorted(by_window.items())
        if window >= record.delivered and _is_whole(segments, *spec.window_range(window))
    ]


def _is_whole(segments: list[SegmentRecord], step_from: int, step_to: int) -> bool:
    """Tell whether segments are a window from its first step to its last, or to one that ends the job."""
    first, last = segments[0], segments[-1]
    return first.step_from == step_from and (last.step_to == step_to or last.is_last)


def _load_state(job: Job, record: TaskJournal, segments: tuple[SegmentRecord, ...], number: int) -> bytes:
    """Return the encoded state before segment ``number`` of a window; with their number, what the last leaves."""
    if number:
        return record.load_state_after(segments[number - 1])
    state = record.load_state_before(segments[0])
    if state is None:
        from tasks.executor.loading import beginning_of  # NumPy only where a job is run

        state = beginning_of(job.plan).encode()
    return state
