"""A run of a segment: cheap while it runs, and the same records however they are asked for."""

from __future__ import annotations

import tracemalloc
from functools import cache
from random import Random
from typing import Any

import pytest

from tasks.dispute import running
from tasks.dispute.commitments import start_record
from tasks.dispute.contents import KEPT_BYTES, SMALL_BYTES, TraceContents
from tasks.dispute.running import KEPT_STATES_MAX, SegmentRun
from tasks.programs.tensors import TensorType, tensor_root
from tests.tasks.dispute.liars import Job
from tests.tasks.engines.helpers import SEED
from tests.tasks.programs.engines import engine
from tests.tasks.programs.models import contents_of, first_state
from tests.tasks.programs.test_classifier import DATA, extreme_state, program_for

ARRAYS = engine("numpy")
STEPS = 37
PROGRAM = program_for(DATA, (DATA.columns, 8, DATA.classes), "relu", 7)


def run(steps: int = STEPS, **options: Any) -> SegmentRun:
    return SegmentRun(
        PROGRAM, ARRAYS, seed=SEED, state=first_state(PROGRAM), data=contents_of(DATA), step_from=5, steps=steps,
        **options,
    )  # fmt: skip


@cache
def plain() -> SegmentRun:
    return run()


def test_each_trace_leads_from_one_record_to_the_next() -> None:
    segment = run()
    records = [segment.record(place) for place in range(STEPS + 1)]
    assert records[0] == start_record(segment.trace(0).before_tree.root)
    for place in range(STEPS):
        trace = segment.trace(place)
        assert trace.before_tree.root == records[place].state_root
        assert trace.record(records[place]) == records[place + 1]
    assert records[-1] == segment.end_record


@pytest.mark.slow
def test_a_trace_takes_little_more_memory_than_its_tensors() -> None:
    """Who plays a dispute about a large step needs room for its tensors, not for their trees and arrays."""
    program = program_for(DATA, (DATA.columns, 512, 256, DATA.classes), "silu", 32)
    segment = SegmentRun(
        program, ARRAYS, seed=SEED, state=first_state(program), data=contents_of(DATA), step_from=5, steps=1
    )
    tracemalloc.start()
    trace = segment.trace(0)
    assert trace.record(segment.record(0)) == segment.record(1)
    for tensor in range(len(program.types)):
        assert trace.tree(tensor).root == trace.root(tensor)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.5 * sum(map(len, trace.contents))


def test_contents_that_are_computed_again_are_those_that_are_kept() -> None:
    program = program_for(DATA, (DATA.columns, 64, DATA.classes), "relu", 32)
    kept, computed = (
        SegmentRun(
            program, ARRAYS, seed=SEED, state=first_state(program), data=contents_of(DATA), step_from=5, steps=1,
            kept_bytes=kept_bytes,
        ).trace(0)
        for kept_bytes in (KEPT_BYTES, 20_000)
    )  # fmt: skip
    large = [number for number, content in enumerate(kept.contents) if len(content) > SMALL_BYTES]
    assert len(large) > 10
    assert (computed.trace_tree.root, computed.after_tree.root) == (kept.trace_tree.root, kept.after_tree.root)
    Random(5).shuffle(large)
    for number in large:
        assert computed.contents[number] == kept.contents[number]
        assert computed.tree(number).root == kept.root(number)
        assert isinstance(computed.contents, TraceContents)
    assert list(computed.contents) == list(kept.contents)
    assert computed.contents[2:9] == kept.contents[2:9]
    assert computed.contents[-1] == kept.contents[-1]


def test_a_trace_that_keeps_little_takes_little_memory() -> None:
    program = program_for(DATA, (DATA.columns, 64, 64, 64, DATA.classes), "silu", 16)
    state = first_state(program)
    segment = SegmentRun(
        program, ARRAYS, seed=SEED, state=state, data=contents_of(DATA), step_from=5, steps=1, kept_bytes=0
    )
    tracemalloc.start()
    trace = segment.trace(0)
    assert trace.record(segment.record(0)) == segment.record(1)
    largest = max(range(len(program.types)), key=lambda number: program.types[number].size_bytes)
    assert trace.tree(largest).root == trace.root(largest)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 0.5 * sum(kind.size_bytes for kind in program.types)


@pytest.mark.slow
@pytest.mark.parametrize("kept", [1, 2, 16, 100])
def test_records_do_not_depend_on_the_order_of_questions_nor_on_what_is_kept(kept: int) -> None:
    segment = run(kept_states=kept)
    places = [*range(STEPS + 1)] * 2
    Random(kept).shuffle(places)
    for place in places:
        assert segment.record(place) == plain().record(place), place
        if place < STEPS:
            assert segment.trace(place).trace_tree.root == plain().trace(place).trace_tree.root


@pytest.mark.parametrize("steps", [1, 2, 15, 16, 17, 33, STEPS])
def test_a_segment_has_the_records_of_a_longer_one(steps: int) -> None:
    assert run(steps).end_record == plain().record(steps)


def test_a_step_hashes_its_probe_and_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[TensorType] = []

    def watched(kind: TensorType, content: bytes) -> bytes:
        hashed.append(kind)
        return tensor_root(kind, content)

    monkeypatch.setattr(running, "tensor_root", watched)
    segment = run()
    assert hashed == [PROGRAM.types[PROGRAM.probe]] * STEPS
    hashed.clear()
    assert segment.end_record == segment.end_record
    assert len(hashed) == len(PROGRAM.stores)


def test_states_are_kept_at_the_places_that_a_game_asks_for_first() -> None:
    steps = 200
    segment = run(steps)
    assert len(segment._kept) == KEPT_STATES_MAX
    done: list[int] = []
    step = segment._step

    def watched(place: int, state: Any) -> Any:
        done.append(place)
        return step(place, state)

    vars(segment)["_step"] = watched
    for place in range(0, steps + 1, 13):
        segment.record(place)
    assert done == []
    for place in range(40, 52):
        segment.record(place)
    assert done == list(range(39, 51))  # the steps of one part, each once


def test_progress_is_heard_after_each_step_and_ends_a_run() -> None:
    heard: list[int] = []
    run(5, on_step=heard.append)
    assert heard == [1, 2, 3, 4, 5]

    class Stopped(Exception):
        pass

    def stop(done: int) -> None:
        if done == 3:
            raise Stopped

    with pytest.raises(Stopped):
        run(5, on_step=stop)


def test_the_end_of_a_run_starts_the_next() -> None:
    first = run(20)
    state = {name: first.end[name] for name in PROGRAM.stores}
    rest = SegmentRun(
        PROGRAM, ARRAYS, seed=SEED, state=state, data=contents_of(DATA), step_from=25, steps=STEPS - 20
    )
    assert rest.record(0).state_root == first.end_record.state_root
    assert rest.end_record.state_root == plain().end_record.state_root
    assert rest.end == plain().end


def test_after_a_diverged_step_all_records_follow_from_the_secret() -> None:
    program = program_for(DATA, (12, 8, 8, 4), "relu", 10)
    job = Job(program, SEED, extreme_state(program, b"large", (39, 99, 99)), contents_of(DATA), 0, 3)

    def diverged(secret: bytes) -> SegmentRun:
        return SegmentRun(
            program, ARRAYS, seed=job.seed, state=job.state, data=job.data, step_from=0, steps=3, secret=secret
        )

    one, other = diverged(b"1"), diverged(b"2")
    assert one.record(0) == other.record(0)
    assert len({one.record(place) for place in (1, 2, 3)}) == 1
    assert one.end_record == one.record(3)
    assert one.end_record.state_root != other.end_record.state_root
    assert one.end_record.work_digest != other.end_record.work_digest
