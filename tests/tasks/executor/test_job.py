"""Frames between supervisor and process: strict, bounded, only typed errors."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.primitives.codec import encode
from state.primitives.errors import DecodeError
from tasks.dispute.commitments import StepRecord
from tasks.dispute.game import Side
from tasks.engines.errors import UnsupportedJob
from tasks.executor.child import warm_up_plan
from tasks.executor.job import (
    Cancel,
    ChildFrame,
    Failed,
    Finished,
    FrameReader,
    Hello,
    Job,
    Progress,
    Segment,
    child_frame_limit,
    decode_child_frame,
    decode_parent_frame,
    encode_frame,
    frame,
)
from tasks.executor.playing import MoreMoves, Play, Played
from tasks.programs.classifier import ACTIVATIONS
from tests.tasks.executor.helpers import make_order, make_spec

JOB = Job.of(make_spec())
LIMIT = child_frame_limit(JOB.plan)
ROOT = bytes(32)
SEGMENT = Segment(0, 5, ROOT, ROOT, ROOT, 2**64 - 1, 7, b"state")
FRAMES: list[ChildFrame] = [
    Hello("cpu:numpy", frozenset({"network", "user"})),
    Progress(3),
    SEGMENT,
    Finished(9, 10),
    Failed("diverged", "at step 3"),
    Played(b"a move"),
]


@pytest.mark.parametrize("message", FRAMES, ids=lambda message: type(message).__name__)
def test_a_frame_of_the_process_comes_back_as_it_was(message: ChildFrame) -> None:
    (body,) = FrameReader(1 << 16).feed(encode_frame(message))
    assert decode_child_frame(body, LIMIT) == message


def test_a_frame_to_the_process_comes_back_as_it_was() -> None:
    order = make_order()
    record = StepRecord(ROOT, ROOT, 7)
    play = Play(make_spec(), b"data", b"state", ROOT, 5, 5, Side.ACCUSED, record, None, (b"one", b"two"))
    for message in (
        order, replace(order, state=b"state", evaluate=False), Cancel(), MoreMoves((b"a", b"b")), play,
        replace(play, side=Side.CHALLENGER, secret=ROOT, moves=()),
    ):  # fmt: skip
        assert decode_parent_frame(encode_frame(message)[4:]) == message


def test_a_job_comes_back_as_it_was() -> None:
    assert Job.decode(JOB.encode()) == JOB
    assert (JOB.segments, JOB.windows) == (8, 2)
    assert (JOB.window_of(19), JOB.window_of(20), JOB.segment_end(35)) == (0, 1, 40)


@pytest.mark.parametrize("steps", [(0, 1, 1), (10, 3, 2), (10, 20, 20), (10, 3, 10), (2**40, 1, 1)])
def test_jobs_with_impossible_steps_are_refused(steps: tuple[int, int, int]) -> None:
    total, segment, window = steps
    with pytest.raises(UnsupportedJob):
        replace(JOB, total_steps=total, segment_steps=segment, window_steps=window)


@given(st.binary(max_size=200), st.sampled_from(FRAMES), st.integers(0), st.integers(1, 255))
def test_any_bytes_are_a_frame_or_a_typed_error(data: bytes, message: ChildFrame, at: int, value: int) -> None:
    changed = bytearray(encode_frame(message)[4:])
    changed[at % len(changed)] ^= value
    for body in (data, bytes(changed)):
        try:
            decode_child_frame(body, LIMIT)
        except DecodeError:
            pass
        try:
            decode_parent_frame(body)
        except (DecodeError, UnsupportedJob):
            pass


@pytest.mark.parametrize(
    "value",
    [
        [2, -1], [2, 2**40], [1, "x" * 65, []], [1, "cpu", ["x"] * 17], [4, 3, 2], [5, "r", "x" * 500], [6], 7,
        [3, 5, 5, ROOT, ROOT, ROOT, ROOT, 0, 0, b""], [3, 0, 5, ROOT, ROOT, ROOT, b"", 0, 0, b""],
        [3, 0, 5, ROOT, ROOT, ROOT, ROOT, 2**64, 0, b""], [3, 0, 5, ROOT, ROOT, ROOT, ROOT, 0, -1, b""],
    ],
    ids=str,
)  # fmt: skip
def test_frames_out_of_range_are_refused(value: object) -> None:
    with pytest.raises(DecodeError):
        decode_child_frame(encode(value), LIMIT)  # type: ignore[arg-type]


@given(st.lists(st.binary(max_size=50), max_size=6), st.integers(1, 9))
def test_frames_are_cut_wherever_the_stream_was(bodies: list[bytes], size: int) -> None:
    stream, reader, found = b"".join(map(frame, bodies)), FrameReader(50), []
    for at in range(0, len(stream), size):
        found += reader.feed(stream[at : at + size])
    assert found == bodies


def test_an_oversized_frame_is_refused_by_its_header_alone() -> None:
    with pytest.raises(DecodeError):
        FrameReader(50).feed((51).to_bytes(4, "big"))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_warm_up_runs_every_operator_of_a_job(activation: str) -> None:
    """The process reads no file once it is shut in: a kernel that loads something must have run before."""
    warm = warm_up_plan()
    run = {call.operator for call in warm.program.calls}
    assert {
        call.operator for call in replace(warm, activation=activation, weight_decay_nano=0).program.calls
    } <= run
