"""Tasks run window by window, resumed after any end, and segments re-run by somebody else."""

from __future__ import annotations

import os
import signal
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from state.primitives.merkle import merkle_root
from tasks.engines.arrays import NumpyArrays
from tasks.engines.state import TrainingState
from tasks.engines.training import Trainer
from tasks.executor.errors import JobFailed, JobGivenUp
from tasks.executor.failure_count import ENDS_MAX, ENDS_WITHIN_S, JOBS_MAX, Ends, JobEnd
from tasks.executor.job import ChildFrame, Finished, Hello, Job, Order, Segment, SegmentRecord, encode_frame
from tasks.executor.journal import Journal
from tasks.executor.results import WindowResult, make_leaves, make_window_proof, segment_salts
from tasks.executor.service import Executor, ExecutorOptions
from tasks.executor.supervisor import Capabilities, Listener, MoveSource, ProcessOptions
from tasks.proofs import Code, Finding, check_leaves, check_opening, encode_leaf, make_opening
from tasks.spec import classifier_of, classifier_plan
from tests.tasks.executor.helpers import BLOB, DATA, TASK, impostor, job_processes, make_spec

SPEC = make_spec()
PLAN = classifier_plan(SPEC)
SECRET = b"\x22" * 32
NEEDS_TORCH = pytest.mark.skipif(
    find_spec("torch") is None,
    reason="torch (extra ml) IS NOT INSTALLED: THAT ITS VERDICTS AGREE WITH NUMPY'S WAS NOT CHECKED",
)
OPTIONS = ExecutorOptions(process=ProcessOptions(engine="numpy"))


class Windows:
    """Collects windows; ``stop_after`` ends the run from inside, as a node that goes down does."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.found: list[WindowResult] = []
        self.scope = trio.CancelScope()
        self._stop_after = stop_after

    async def __call__(self, window: WindowResult) -> None:
        # What the journal has is gone once the window counts as handed on.
        states = [window.load_state(number) for number in range(len(window.segments) + 1)]
        self.found.append(replace(window, load_state=states.__getitem__))
        if len(self.found) == self._stop_after:
            self.scope.cancel()
            await trio.lowlevel.checkpoint()


def roots(windows: list[WindowResult]) -> list[tuple[int, bytes, bytes, bytes, int]]:
    return [
        (s.step_to, s.state_root_before, s.state_root_after, s.work_digest, s.loss_bits)
        for window in windows
        for s in window.segments
    ]


def segment_of(window: WindowResult, number: int) -> Segment:
    """A segment as the process told it."""
    return Segment(**asdict(window.segments[number]), state=window.load_state(number + 1))


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> list[WindowResult]:
    """The windows of the job run without interruption."""
    windows = Windows()
    executor = Executor(OPTIONS, tmp_path_factory.mktemp("journal"))
    result = trio.run(executor.run_task, TASK, SPEC, BLOB, windows)
    assert result.state_root == windows.found[-1].segments[-1].state_root_after
    assert result.accuracy == windows.found[-1].accuracy
    return windows.found


def test_windows_chain_and_carry_what_their_proofs_need(done: list[WindowResult]) -> None:
    assert [(w.window, w.step_from, w.step_to, len(w.segments)) for w in done] == [(0, 0, 20, 4), (1, 20, 40, 4)]
    assert done[0].segments[0].state_root_before == SPEC.init_root
    assert done[0].accuracy is None
    assert done[1].accuracy is not None
    for window in done:
        assert window.compute_ms > 0
        assert window.device == "cpu:numpy"
        for number, segment in enumerate(window.segments):
            before = TrainingState.decode(window.load_state(number), PLAN)
            assert (before.step, before.root(PLAN)) == (segment.step_from, segment.state_root_before)
    assert done[1].load_state(0) == done[0].load_state(4)


def test_a_windows_proof_holds(done: list[WindowResult]) -> None:
    salts = segment_salts(SECRET, TASK, 1, 4)
    assert len(set(salts)) == 4
    leaves = make_leaves(done[1], salts, [bytes([at]) * 32 for at in range(4)])
    proof = make_window_proof(TASK, done[1], leaves, leaves_blob=b"l" * 32, output_blob=b"o" * 32)
    check_leaves(SPEC, proof, leaves)
    assert proof.segment_root == merkle_root([encode_leaf(leaf) for leaf in leaves])
    opening = make_opening(leaves, 2, done[1].segments[2].work_digest, salts[2])
    assert check_opening(proof, opening)
    assert not check_opening(proof, opening._replace(work_digest=done[1].segments[1].work_digest))


async def test_a_job_that_was_cut_off_goes_on_to_the_same_roots(tmp_path: Path, done: list[WindowResult]) -> None:
    before, after = Windows(stop_after=1), Windows()
    with before.scope:
        await Executor(OPTIONS, tmp_path).run_task(TASK, SPEC, BLOB, before)
    restarted = Executor(OPTIONS, tmp_path)
    (entry,) = await restarted.unfinished()
    assert (entry.task, entry.job) == (TASK, Job.of(SPEC))
    assert entry.step >= 20
    await restarted.run_task(TASK, SPEC, BLOB, after)
    # The first window was being handed on when the run was cut off, so it comes again.
    assert roots(after.found) == roots(done)
    assert roots(before.found) == roots(done[:1])
    await restarted.forget(TASK)
    assert await restarted.unfinished() == ()


async def test_a_window_that_was_handed_on_does_not_come_again(tmp_path: Path, done: list[WindowResult]) -> None:
    before, after = Windows(stop_after=2), Windows()
    with before.scope:
        await Executor(OPTIONS, tmp_path).run_task(TASK, SPEC, BLOB, before)
    result = await Executor(OPTIONS, tmp_path).run_task(TASK, SPEC, BLOB, after)
    assert roots(after.found) == roots(done[1:])
    assert [after.found[0].load_state(n) for n in range(5)] == [done[1].load_state(n) for n in range(5)]
    assert result.accuracy == done[1].accuracy
    again = Windows()
    assert (await Executor(OPTIONS, tmp_path).run_task(TASK, SPEC, BLOB, again)).state_root == result.state_root
    assert again.found == []


class Dying:
    """A backend whose every process makes one segment, if there is one left, and is killed."""

    def __init__(self, segments: list[Segment]) -> None:
        self._left = segments

    def pause(self) -> AbstractContextManager[None]:
        return nullcontext()

    async def probe(self) -> Capabilities:
        return Capabilities("cpu:numpy", frozenset())

    async def end_leftovers(self) -> int:
        return 0

    async def run(self, _order: Order, listener: Listener, more: MoveSource | None = None) -> None:
        await listener(Hello("cpu:numpy", frozenset()))
        if self._left:
            await listener(self._left.pop(0))
        raise JobFailed(reason="died", text="exit status -9 (SIGKILL)")


async def test_a_job_whose_process_is_killed_again_and_again_is_given_up(
    tmp_path: Path, done: list[WindowResult]
) -> None:
    """Most starts make a segment, so they are not fruitless; each end is told once and counted."""
    told: list[JobEnd] = []
    backend = Dying([segment_of(window, number) for window in done for number in range(4)][:-1])
    executor = Executor(OPTIONS, tmp_path, backend, on_end=told.append)
    with pytest.raises(JobGivenUp, match="9 times") as raised:
        await executor.run_task(TASK, SPEC, BLOB, Windows())
    assert [end.times for end in told] == list(range(1, ENDS_MAX + 2))
    assert {(end.task, end.code, end.is_check) for end in told} == {(TASK, "died", False)}
    assert all("SIGKILL" in end.text for end in told) and "SIGKILL" in str(raised.value)
    assert [end.is_last for end in told] == [False] * ENDS_MAX + [True]
    with pytest.raises(JobGivenUp):  # it stays given up when it is tried once more
        await executor.run_task(TASK, SPEC, BLOB, Windows())
    assert len(told) == ENDS_MAX + 2


async def test_a_check_whose_process_is_killed_again_and_again_is_given_up(
    tmp_path: Path, done: list[WindowResult]
) -> None:
    told: list[JobEnd] = []
    executor = Executor(OPTIONS, tmp_path, Dying([]), on_end=told.append)
    leaf = make_leaves(done[1], segment_salts(SECRET, TASK, 1, 4), [bytes(32)] * 4)[2]
    for given_up in (False, False, True):
        with pytest.raises(JobGivenUp if given_up else JobFailed):
            await executor.verify_segment(TASK, SPEC, BLOB, leaf, done[1].load_state(2))
    assert [(end.times, end.is_check) for end in told] == [(count, True) for count in range(1, ENDS_MAX + 2)]


def test_ends_of_long_ago_do_not_count() -> None:
    ends = Ends()
    assert [ends.note("job", time) for time in (0.0, 1.0, ENDS_WITHIN_S, ENDS_WITHIN_S + 2)] == [1, 2, 2, 2]
    for job in range(2 * JOBS_MAX):
        assert ends.note(job, 0.0) == 1
    assert len(ends._times) == JOBS_MAX
    assert ends.note(2 * JOBS_MAX - 1, 0.0) == 2
    ends.forget(2 * JOBS_MAX - 1)
    assert ends.note(2 * JOBS_MAX - 1, 0.0) == 1


async def test_a_trial_whose_process_is_killed_is_tried_again(tmp_path: Path) -> None:
    """That a process died says nothing of the job: the task would be turned down for it."""
    marker = tmp_path / "died"
    program = impostor(
        tmp_path,
        "from tasks.executor.child import main",
        f"if not os.path.exists({str(marker)!r}):",
        f"    open({str(marker)!r}, 'w').close(); os.kill(os.getpid(), 9)",
        "main(sys.argv[6:])",
    )
    told: list[JobEnd] = []
    options = ExecutorOptions(process=ProcessOptions(python=program, engine="numpy"))
    executor = Executor(options, tmp_path / "journal", on_end=told.append)
    assert await executor.try_task(TASK, SPEC, BLOB) > 0
    assert [(end.code, end.times) for end in told] == [("died", 1)]


@pytest.mark.slow
async def test_a_killed_process_is_started_again_from_the_last_segment(
    tmp_path: Path, done: list[WindowResult]
) -> None:
    spec = make_spec(total=1600, segment=200, window=800)
    expected, windows, killed = Windows(), Windows(), []
    await Executor(OPTIONS, tmp_path / "whole").run_task(TASK, spec, BLOB, expected)
    executor = Executor(OPTIONS, tmp_path / "killed")
    async with trio.open_nursery() as nursery:

        async def kill() -> None:
            while executor.status.get(TASK) is None or executor.status[TASK].step < 250:  # noqa: ASYNC110 - of a process
                await trio.sleep(0.005)
            killed.extend(job_processes())
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
            while executor.status[TASK].starts < 2:  # noqa: ASYNC110 - of a process
                await trio.sleep(0.005)
            assert executor.status[TASK].total_steps == 1600
            assert executor.status[TASK].ends == 1 and "SIGKILL" in executor.status[TASK].last_end

        nursery.start_soon(kill)
        await executor.run_task(TASK, spec, BLOB, windows)
    assert len(killed) == 1
    assert roots(windows.found) == roots(expected.found)


async def test_a_new_worker_goes_on_from_anothers_window(tmp_path: Path, done: list[WindowResult]) -> None:
    windows = Windows()
    await Executor(OPTIONS, tmp_path).run_task(TASK, SPEC, BLOB, windows, start=done[0].load_state(4))
    assert roots(windows.found) == roots(done[1:])
    assert [windows.found[0].load_state(n) for n in range(5)] == [done[1].load_state(n) for n in range(5)]


async def test_a_job_whose_numbers_fail_is_not_started_again(tmp_path: Path) -> None:
    wrong = make_spec()
    wrong = wrong.changed(dataset=wrong.dataset._replace(root=bytes(32)))
    executor = Executor(OPTIONS, tmp_path)
    with pytest.raises(JobFailed) as raised:
        await executor.run_task(TASK, wrong, BLOB, Windows())
    assert raised.value.reason == "dataset_invalid"
    with pytest.raises(JobFailed) as raised:
        await executor.run_task(TASK, SPEC._replace(init_root=bytes(32)), BLOB, Windows())
    assert raised.value.reason == "state_invalid"
    fewer = SPEC.changed(dataset=classifier_of(SPEC).dataset._replace(samples=69))
    with pytest.raises(JobFailed) as raised:
        await executor.run_task(TASK, fewer, BLOB, Windows())
    assert raised.value.reason == "dataset_invalid"


async def test_a_process_that_keeps_dying_is_given_up(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    program = impostor(tmp_path, f"open({str(starts)!r}, 'a').write('x')", "sys.exit(1)")
    options = ExecutorOptions(process=ProcessOptions(python=program), restarts_max=2)
    with pytest.raises(JobFailed, match="died"):
        await Executor(options, tmp_path / "journal").run_task(TASK, SPEC, BLOB, Windows())
    assert starts.read_text(encoding="ascii") == "xxx"


@pytest.mark.parametrize("lie", ["another segment", "another state", "another root", "finished"])
async def test_a_process_that_lies_about_its_state_is_refused(
    tmp_path: Path, done: list[WindowResult], lie: str
) -> None:
    honest = segment_of(done[0], 0)
    told: ChildFrame
    match lie:
        case "another segment":
            told = replace(honest, step_from=5, step_to=10)
        case "another state":
            told = replace(honest, state=done[0].load_state(0))
        case "another root":
            told = replace(honest, state_root_after=bytes(32))
        case _:
            told = Finished(1, 1)
    program = impostor(
        tmp_path,
        "from tasks.executor.job import *",
        "job.sendall(encode_frame(Hello('cpu', frozenset())))",
        f"job.sendall({encode_frame(told)!r})",
        "time.sleep(30)",
    )
    options = ExecutorOptions(process=ProcessOptions(python=program), restarts_max=0)
    with pytest.raises(JobFailed) as raised:
        await Executor(options, tmp_path / "journal").run_task(TASK, SPEC, BLOB, Windows())
    assert raised.value.reason == "bad_frame"
    (entry,) = await Executor(options, tmp_path / "journal").unfinished()
    assert entry.step == 0


@pytest.mark.parametrize("engine", ["numpy", pytest.param("torch", marks=[pytest.mark.slow, NEEDS_TORCH])])
async def test_an_honest_segment_is_confirmed(tmp_path: Path, done: list[WindowResult], engine: str) -> None:
    """From the state blob alone, another machine finds the record of the worker, which ran NumPy."""
    leaves = make_leaves(done[1], segment_salts(SECRET, TASK, 1, 4), [bytes(32)] * 4)
    executor = Executor(ExecutorOptions(process=ProcessOptions(engine=engine)), tmp_path)
    found = await executor.verify_segment(TASK, SPEC, BLOB, leaves[2], done[1].load_state(2))
    assert found.ok
    segment = done[1].segments[2]
    assert found.finding == Finding(
        2, Code.COMPUTED, segment.work_digest, segment.state_root_after, segment.loss_bits
    )


@pytest.mark.parametrize("cheat", ["skipped step", "other rate", "other data", "one weight", "made-up loss"])
async def test_a_cheat_is_found(tmp_path: Path, done: list[WindowResult], cheat: str) -> None:
    """The worker did something else, and made a leaf of what came out."""
    honest, state = done[1].segments[0], TrainingState.decode(done[1].load_state(0), classifier_plan(SPEC))
    plan, data = classifier_plan(SPEC), DATA
    match cheat:
        case "skipped step":
            trainer = Trainer(plan, data, NumpyArrays(), replace(state, step=state.step + 1))
            found = trainer.run_segment(4)
        case "other rate":
            cheating = replace(plan, learning_rate_nano=plan.learning_rate_nano + 1)
            found = Trainer(cheating, data, NumpyArrays(), state).run_segment(5)
        case "other data":
            other = replace(data, features=bytes(b ^ 1 for b in data.features))
            found = Trainer(plan, other, NumpyArrays(), state).run_segment(5)
        case "one weight":
            trainer = Trainer(plan, data, NumpyArrays(), state)

            def meddle(step: int) -> None:
                if step == state.step + 3:
                    trainer._state["parameter/1/weight"][2, 5] += 2.0**-20

            found = trainer.run_segment(5, meddle)
        case _:
            found = Trainer(plan, data, NumpyArrays(), state).run_segment(5)
            found = replace(found, loss_bits=found.loss_bits - 1)
    told = SegmentRecord(
        honest.step_from, honest.step_to, honest.state_root_before, found.state_root,
        found.work_digest, found.loss_bits, 1,
    )  # fmt: skip
    window = replace(done[1], segments=(told, *done[1].segments[1:]))
    leaf = make_leaves(window, segment_salts(SECRET, TASK, 1, 4), [bytes(32)] * 4)[0]
    verdict = await Executor(OPTIONS, tmp_path).verify_segment(TASK, SPEC, BLOB, leaf, done[1].load_state(0))
    assert not verdict.ok
    assert verdict.code is Code.COMPUTED
    assert ("loss_bits" if cheat == "made-up loss" else "state_root_after") in verdict.mismatches
    assert verdict.state_root_after == honest.state_root_after


async def test_a_state_that_is_not_the_leafs_is_unavailable(tmp_path: Path, done: list[WindowResult]) -> None:
    leaf = make_leaves(done[0], segment_salts(SECRET, TASK, 0, 4), [bytes(32)] * 4)[1]
    executor = Executor(OPTIONS, tmp_path)
    for state in (b"", b"garbage", done[0].load_state(2), done[0].load_state(1)[:-1]):
        verdict = await executor.verify_segment(TASK, SPEC, BLOB, leaf, state)
        assert not verdict.ok
        assert verdict.code is Code.UNAVAILABLE
    stretched = leaf._replace(step_to=leaf.step_to + 5)
    assert (
        await executor.verify_segment(TASK, SPEC, BLOB, stretched, done[0].load_state(1))
    ).code is Code.UNAVAILABLE


def test_the_journal_survives_damage(tmp_path: Path, done: list[WindowResult]) -> None:
    """What is damaged counts as not written, and so does all that stands on it."""
    job = Job.of(SPEC)
    record = Journal(tmp_path).open(TASK, job, None)
    for number in range(4):
        record.append(segment_of(done[0], number))
    files = sorted((tmp_path / TASK.hex()).glob("segment-*"))
    assert len(files) == 4
    damaged = bytearray(files[2].read_bytes())
    damaged[100] ^= 1
    files[2].write_bytes(damaged)
    found = Journal(tmp_path).open(TASK, job, None)
    assert found.step == 10
    assert found.segments == list(done[0].segments[:2])
    assert not files[3].exists()
    files[0].write_bytes(b"")
    assert Journal(tmp_path).open(TASK, job, None).step == 0
    (tmp_path / TASK.hex() / "order").write_bytes(b"torn")
    assert Journal(tmp_path).entries() == ()
    assert Journal(tmp_path).open(TASK, job, None).step == 0


@pytest.mark.slow
@given(st.data())
@settings(max_examples=120, deadline=None)
def test_a_journal_torn_at_any_byte_goes_on_from_a_state_that_was(
    done: list[WindowResult], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whatever a crash or a disk did to one of its files, what is taken up are segments that were done."""
    job, root = Job.of(SPEC), tmp_path_factory.mktemp("torn")
    record = Journal(root).open(TASK, job, None)
    for window in done:
        for number in range(4):
            record.append(segment_of(window, number))
    if data.draw(st.booleans(), "a window was handed on"):
        record.mark_delivered(1)
    path = data.draw(st.sampled_from(sorted((root / TASK.hex()).iterdir())), "file")
    content = path.read_bytes()
    at = data.draw(st.integers(0, len(content) - 1), "at")
    flipped = bytes((content[at] ^ data.draw(st.integers(1, 255), "bits"),))
    torn = {
        "cut": content[:at],
        "zeros": content[:at] + bytes(len(content) - at),
        "flipped": content[:at] + flipped + content[at + 1 :],
        "gone": None,
    }[data.draw(st.sampled_from(("cut", "zeros", "flipped", "gone")), "how")]
    path.unlink()
    if torn is not None:
        path.write_bytes(torn)
    entries = Journal(root).entries()
    again = Journal(root).open(TASK, job, None)
    assert [entry.step for entry in entries] in ([], [again.step])
    known = {segment.step_to: segment for window in done for segment in window.segments}
    state = again.load_state()
    if state is None:
        assert (again.step, again.segments, again.delivered) == (0, [], 0)
    else:
        found = TrainingState.decode(state, job.plan)
        assert (found.step, found.root(job.plan)) == (again.step, known[again.step].state_root_after)
    assert [known[segment.step_to] for segment in again.segments] == again.segments


def test_what_no_job_can_be_read_from_does_not_fill_the_disk(tmp_path: Path) -> None:
    job = Job.of(SPEC)
    for number in range(3):
        Journal(tmp_path).open(bytes([number]) * 32, job, None)
    (tmp_path / (b"\x01" * 32).hex() / "order").write_bytes(b"torn")
    (tmp_path / (b"\x02" * 32).hex() / "order").unlink()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "of its owner").write_text("kept")
    [entry] = trio.run(Executor(OPTIONS, tmp_path).unfinished)
    assert entry.task == bytes(32)
    assert {path.name for path in tmp_path.iterdir()} == {bytes(32).hex(), "notes"}


def test_the_journal_keeps_only_what_is_still_needed(tmp_path: Path, done: list[WindowResult]) -> None:
    job = Job.of(SPEC)
    record = Journal(tmp_path).open(TASK, job, None)
    for segment in (*(segment_of(done[0], number) for number in range(4)), segment_of(done[1], 0)):
        record.append(segment)
    record.mark_delivered(1)
    found = Journal(tmp_path).open(TASK, job, None)
    assert [s.step_from for s in found.segments] == [15, 20]
    assert (found.delivered, found.step) == (1, 25)
    # Without the segment before the open window its first state is unknown: only a new start helps.
    for path in (tmp_path / TASK.hex()).glob("segment-*"):
        path.unlink()
    found = Journal(tmp_path).open(TASK, job, done[0].load_state(4))
    assert (found.delivered, found.step, found.load_state()) == (0, 20, done[0].load_state(4))


def test_a_journal_of_another_job_is_not_used(tmp_path: Path, done: list[WindowResult]) -> None:
    record = Journal(tmp_path).open(TASK, Job.of(SPEC), None)
    record.append(segment_of(done[0], 0))
    assert Journal(tmp_path).open(TASK, Job.of(make_spec(rate=1)), None).step == 0


async def test_a_trial_is_the_jobs_beginning_and_not_lost(tmp_path: Path, done: list[WindowResult]) -> None:
    executor, windows = Executor(OPTIONS, tmp_path), Windows()
    assert await executor.try_task(TASK, SPEC, BLOB) > 0
    (entry,) = await executor.unfinished()
    assert (entry.step, executor.status) == (5, {})
    assert await executor.try_task(TASK, SPEC, BLOB) > 0  # found done
    await executor.run_task(TASK, SPEC, BLOB, windows)
    assert roots(windows.found) == roots(done)


async def test_a_trial_shows_a_start_that_is_not_the_jobs(tmp_path: Path, done: list[WindowResult]) -> None:
    wrong = SPEC._replace(init_root=bytes(32))
    with pytest.raises(JobFailed) as raised:
        await Executor(OPTIONS, tmp_path).try_task(TASK, wrong, BLOB)
    assert raised.value.reason == "state_invalid"


async def test_work_that_stands_on_a_void_state_is_dropped(tmp_path: Path, done: list[WindowResult]) -> None:
    """The window before this worker's was voided, another worker repeated it, and this worker is matched again."""
    start, state = done[0].load_state(4), TrainingState.decode(done[0].load_state(4), classifier_plan(SPEC))
    name = sorted(state.tensors)[-1]
    void = replace(state, tensors={**state.tensors, name: bytes(len(state.tensors[name]))}).encode()
    executor, first, again = Executor(OPTIONS, tmp_path), Windows(stop_after=1), Windows()
    with first.scope:
        await executor.run_task(TASK, SPEC, BLOB, first, start=void)
    assert await executor.resumes(TASK, SPEC, 1, first.found[0].segments[0].state_root_before)
    assert not await executor.resumes(TASK, SPEC, 1, done[0].segments[-1].state_root_after)
    await executor.run_task(TASK, SPEC, BLOB, again, start=start)
    assert roots(again.found) == roots(done[1:])


def test_a_journal_goes_on_where_the_chain_stands_and_nowhere_else(
    tmp_path: Path, done: list[WindowResult]
) -> None:
    job, journal = Job.of(SPEC), Journal(tmp_path)
    root = done[0].segments[-1].state_root_after
    assert not journal.resumes(TASK, job, 0, SPEC.init_root)

    def stands(delivered: int, windows: int, at: bytes) -> bool:
        """Write a window and a segment down, hand ``delivered`` windows on, and ask."""
        record = journal.open(TASK, job, None)
        for segment in (*(segment_of(done[0], number) for number in range(4)), segment_of(done[1], 0)):
            record.append(segment)
        if delivered:
            record.mark_delivered(delivered)
        found = journal.resumes(TASK, job, windows, at)
        assert bool(journal.entries()) == found, "what does not go on is removed"
        journal.forget(TASK)
        return found

    assert stands(0, 0, SPEC.init_root)
    assert stands(0, 1, root)  # handed on, but not noted before the node ended
    assert stands(1, 1, root)
    assert not stands(1, 0, SPEC.init_root)  # the first window was voided
    assert not stands(1, 1, b"?" * 32)
    assert not stands(1, 2, root)


def test_states_stay_on_the_disk(tmp_path: Path, done: list[WindowResult]) -> None:
    """Whatever the states of a window sum up to, the node's memory holds their roots only."""
    record = Journal(tmp_path).open(TASK, Job.of(SPEC), None)
    for number in range(4):
        record.append(segment_of(done[0], number))
    for found in (record, Journal(tmp_path).open(TASK, Job.of(SPEC), None)):
        assert found.segments == list(done[0].segments)
        assert {type(segment) for segment in found.segments} == {SegmentRecord}
        assert found.load_state_after(found.segments[2]) == done[0].load_state(3)
