"""Links of speed trials in a real process, and jobs that stand still meanwhile."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
import trio

from state.primitives.errors import DecodeError
from tasks.engines.arrays import NumpyArrays
from tasks.engines.trial_runs import LinkRunner
from tasks.executor.job import (
    ChildFrame,
    Segment,
    decode_child_frame,
    decode_parent_frame,
    encode_frame,
)
from tasks.executor.linking import RESULTS_MAX, Links, RunLinks
from tasks.executor.pauses import Pauses
from tasks.executor.service import Executor, ExecutorOptions
from tasks.executor.supervisor import ProcessBackend, ProcessOptions
from tasks.trials import first_state, next_state
from tests.tasks.executor.helpers import TASK, endless_order, job_processes, make_order

SEED: Final = b"\x07" * 32
WIDTH: Final = 64
OPTIONS: Final = ProcessOptions(engine="numpy")


def order(
    befores: tuple[bytes, ...], *, seed: bytes = SEED, width: int = WIDTH, is_chain: bool = True
) -> RunLinks:
    return RunLinks(seed, width, befores, is_chain)


def states_of_jobs() -> list[str]:
    """Return what the kernel says of the processes of jobs: T is stopped."""
    return [Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] for pid in job_processes()]


async def wait_until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 - of another process
        await trio.sleep(0.05)


async def chain_of(executor: Executor, links: int) -> list[bytes]:
    """Run a chain until it has so many links, and return its results."""
    found: list[bytes] = []
    with trio.fail_after(60), trio.CancelScope() as scope:

        async def hear(results: tuple[bytes, ...]) -> None:
            found.extend(results)
            if len(found) >= links:
                scope.cancel()

        await executor.run_chain(SEED, WIDTH, first_state(SEED), hear)
    return found[:links]


async def test_a_chain_of_a_process_is_what_a_verifier_computes(tmp_path: Path) -> None:
    executor = Executor(ExecutorOptions(process=OPTIONS), tmp_path)
    results = await chain_of(executor, 5)
    runner, state, states = LinkRunner(SEED, WIDTH, NumpyArrays()), first_state(SEED), list[bytes]()
    for result in results:
        assert runner.result(state) == result
        states.append(state)
        state = next_state(state, result)
    assert await executor.check_links(SEED, WIDTH, tuple(states[1:4])) == tuple(results[1:4])
    assert job_processes() == []


async def test_jobs_stand_still_while_a_chain_runs_and_their_time_does_not_count(tmp_path: Path) -> None:
    """The processes are stopped by the kernel: a device has nothing else to do."""
    backend = ProcessBackend(OPTIONS, tmp_path / "scratch")
    executor = Executor(ExecutorOptions(process=OPTIONS), tmp_path, backend)
    segments: list[Segment] = []
    began = trio.Event()

    async def hear_job(message: ChildFrame) -> None:
        began.set()
        if isinstance(message, Segment):
            segments.append(message)

    stopped = trio.CancelScope()

    async def hear_chain(_results: tuple[bytes, ...]) -> None:
        if "T" in states_of_jobs():
            stopped.cancel()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(backend.run, endless_order(), hear_job)
            await began.wait()
            with stopped:
                await executor.run_chain(SEED, WIDTH, first_state(SEED), hear_chain)
            await wait_until(lambda: set(states_of_jobs()) in ({"R"}, {"S"}))
            nursery.cancel_scope.cancel()
        with backend.pause():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(backend.run, make_order(20), hear_job)
                await trio.sleep(1.5)
                assert segments == [], "one that starts meanwhile stands still too"
                nursery.cancel_scope.cancel()
    assert job_processes() == []


async def test_a_segment_is_metered_without_its_pauses(tmp_path: Path) -> None:
    backend = ProcessBackend(OPTIONS, tmp_path / "scratch")
    times: list[int] = []
    ready = trio.Event()

    async def hear(message: ChildFrame) -> None:
        ready.set()
        if isinstance(message, Segment):
            times.append(message.compute_ms)

    async def pause() -> None:
        await ready.wait()
        with backend.pause():
            await trio.sleep(2)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pause)
            began = trio.current_time()
            await backend.run(make_order(400), hear)
    assert times and sum(times) / 1000 < trio.current_time() - began - 1.9


async def test_what_joins_while_others_stand_still_does_too_and_all_go_on_once() -> None:
    class Process:
        def __init__(self) -> None:
            self.got: list[int] = []

        def signal(self, number: int) -> None:
            self.got.append(number)

    pauses, first, late = Pauses(), Process(), Process()
    with pauses.joined(first):
        with pauses.hold(), pauses.hold(), pauses.joined(late):
            assert first.got == late.got == [signal.SIGSTOP] and pauses.is_held
        assert first.got == [signal.SIGSTOP, signal.SIGCONT] and not pauses.is_held


@pytest.mark.parametrize("message", [order((SEED,)), RunLinks(SEED, 2048, (SEED,) * 8, False)])
def test_orders_survive_their_encoding(message: RunLinks) -> None:
    assert decode_parent_frame(encode_frame(message)[4:]) == message


def test_results_survive_their_encoding_and_others_are_refused() -> None:
    message = Links((SEED,) * RESULTS_MAX)
    assert decode_child_frame(encode_frame(message)[4:], 4096) == message
    for bad in (Links((SEED,) * (RESULTS_MAX + 1)), Links((b"x",)), Links(())):
        with pytest.raises(DecodeError):
            decode_child_frame(encode_frame(bad)[4:], 1 << 16)
    for bad_order in (
        order((SEED,), width=65),
        order((SEED,) * 2),
        order((SEED,), seed=TASK[:3]),
        order((), is_chain=False),
        order((SEED,) * 9, is_chain=False),
        order((b"",), is_chain=False),
    ):
        with pytest.raises(DecodeError):
            decode_parent_frame(encode_frame(bad_order)[4:])
