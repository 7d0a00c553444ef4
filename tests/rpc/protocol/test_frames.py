from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpc.protocol.errors import Pruned
from rpc.protocol.frames import (
    REQUEST_LIMIT_BYTES,
    Answer,
    Failure,
    FrameBuffer,
    Push,
    Request,
    Unreadable,
    encode_answer,
    encode_failure,
    encode_push,
    encode_request,
    read_answer,
    read_request,
)
from rpc.protocol.records import Peer
from rpc.protocol.wire_types import read_record, record_value
from state.primitives.codec import Value, encode
from state.primitives.errors import DecodeError
from state.primitives.heads import Head

VALUES = st.recursive(
    st.none() | st.integers(-(2**64), 2**64) | st.binary(max_size=64) | st.text(max_size=16),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=8,
)


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(1, 2**40), st.text(max_size=20), st.lists(VALUES, max_size=3))), st.data())
def test_requests_survive_any_cut_of_the_stream(
    requests: list[tuple[int, str, list[Value]]], data: st.DataObject
) -> None:
    stream = b"".join(encode_request(*request) for request in requests)
    buffer = FrameBuffer(REQUEST_LIMIT_BYTES)
    values = []
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        values += buffer.feed(stream[:cut])
        stream = stream[cut:]
    assert [read_request(value) for value in values] == [Request(*request) for request in requests]


@given(st.binary(max_size=200))
def test_any_bytes_give_values_or_a_decode_error(data: bytes) -> None:
    for stream in (data, len(data).to_bytes(4, "big") + data):
        try:
            for value in FrameBuffer(1024).feed(stream):
                for read in (read_request, read_answer):
                    try:
                        read(value)
                    except DecodeError:
                        pass
        except DecodeError:
            pass


@given(VALUES)
def test_any_value_is_read_or_refused(value: object) -> None:
    for kind in (read_request, read_answer, lambda item: read_record(Head, item)):
        try:
            kind(value)
        except DecodeError:
            pass


@given(st.integers(1, 2**53 - 1), st.integers(16, 40))
def test_of_a_frame_nested_too_deep_the_number_is_read(identifier: int, depth: int) -> None:
    value: Value = None
    for _ in range(depth):
        value = [value]
    [found] = FrameBuffer(4096).feed(encode_request(identifier, "hash", [value]))
    assert isinstance(found, Unreadable) and found.identifier == identifier
    failure = read_answer(found)
    assert isinstance(failure, Failure) and failure.identifier == identifier
    with pytest.raises(DecodeError):
        read_request(found)


def test_a_frame_over_the_limit_is_refused_before_it_arrives() -> None:
    with pytest.raises(DecodeError):
        FrameBuffer(100).feed((101).to_bytes(4, "big"))


def test_answers_failures_and_pushes_are_told_apart() -> None:
    buffer = FrameBuffer(1024)
    stream = (
        encode_answer(5, [1, b"x"]) + encode_failure(6, Pruned(height=3, oldest_height=9)) + encode_push("head", 7)
    )
    answer, failure, push = [read_answer(value) for value in buffer.feed(stream)]
    assert answer == Answer(5, [1, b"x"])
    assert failure == Failure(
        6, "pruned", "height 3 is pruned, the oldest is 9", (("height", 3), ("oldest_height", 9))
    )
    assert push == Push("head", 7)


def test_a_push_cannot_pass_for_an_answer() -> None:
    with pytest.raises(DecodeError):
        read_answer([0, None, 1])
    with pytest.raises(DecodeError):
        read_request([0, "head", []])


def test_records_cross_the_socket() -> None:
    peer = Peer(b"\1" * 20, "tcp:h:1", 0, "relay", ("compute", "verify"), 5, "v")
    [value] = FrameBuffer(1024).feed(encode_answer(1, record_value(peer)))
    assert read_record(Peer, value[2]) == peer
    with pytest.raises(DecodeError):
        read_record(Peer, [b"\1" * 20])
    assert encode(record_value(peer))
