"""Values between node and gateway: what is written is read back, and what is not of the type is refused."""

from __future__ import annotations

import inspect
from typing import Annotated, Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpc.backend.store_view import StoreView
from rpc.protocol.requests import REQUESTS, ChainRequests, PoolRequests, handler_of
from rpc.protocol.wire_types import Encoded, Length, Range, codec_of, read_record, record_value
from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError


class Inner(NamedTuple):
    number: int
    name: str


class Outer(NamedTuple):
    key: bytes
    inner: tuple[Inner, ...]
    pairs: tuple[tuple[str, int], ...]
    maybe: bytes | None
    is_so: bool
    rows: list[tuple[int, int]]


NUMBERS = st.integers(-(2**64), 2**64)
OUTER = st.builds(
    Outer,
    st.binary(),
    st.lists(st.builds(Inner, NUMBERS, st.text())).map(tuple),
    st.lists(st.tuples(st.text(), NUMBERS)).map(tuple),
    st.none() | st.binary(),
    st.booleans(),
    st.lists(st.tuples(NUMBERS, NUMBERS)),
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | NUMBERS | st.binary(max_size=4) | st.text(max_size=4), lambda inner: st.lists(inner, max_size=7)
)


@given(OUTER)
def test_a_record_is_read_as_it_was_written(record: Outer) -> None:
    sent = encode(record_value(record))
    assert read_record(Outer, decode(sent, limit_bytes=len(sent), limit_items=len(sent))) == record


@given(VALUES)
def test_any_other_value_is_read_as_what_it_says_or_refused(value: Any) -> None:
    try:
        record = read_record(Outer, value)
    except DecodeError:
        return
    assert record_value(record) == value


@pytest.mark.parametrize(
    ("hint", "good", "bad"),
    [
        (Annotated[int, Range(1, 3)], [1, 2], [0, 3, None, True, b"", "1"]),
        (Annotated[bytes, Length(1, 2)], [b"a", b"ab"], [b"", b"abc", "a", None]),
        (Annotated[list[bytes], Length(1, 2)], [[b""], [b"", b""]], [[], [b""] * 3, [1], b""]),
        (Annotated[list[Any], Encoded(9)], [], [b"", b"\x01", b"\x81", bytes(10), [], 1]),
        (tuple[int, str], [], [[], [1], ["a", 1], [1, "a", 1], None]),
        (bool, [], [2, -1, None, b""]),
    ],
)
def test_bounds_are_kept(hint: Any, good: list[Any], bad: list[Any]) -> None:
    codec = codec_of(hint)
    assert [codec.read(value) for value in good] == good
    for value in bad:
        with pytest.raises(DecodeError):
            codec.read(value)


@pytest.mark.parametrize("hint", [float, dict, dict[str, int], set[int], Any])
def test_a_type_that_cannot_be_sent_is_refused_where_it_is_declared(hint: Any) -> None:
    with pytest.raises(TypeError):
        codec_of(hint)


def test_every_request_has_positional_arguments_and_its_view_answers_it() -> None:
    assert len({request.name for request in REQUESTS.values()}) == len(REQUESTS) > 30
    for function, request in REQUESTS.items():
        _, *parameters = inspect.signature(function).parameters.values()
        assert all(one.kind is inspect.Parameter.POSITIONAL_ONLY for one in parameters), request.name
        assert all(one.default is inspect.Parameter.empty for one in parameters), request.name
        if request.answered_by in (ChainRequests, PoolRequests):
            assert callable(getattr(StoreView, request.name))


@pytest.mark.slow
@given(st.lists(VALUES, max_size=4))
def test_arguments_of_a_request_are_as_declared_or_an_error_says_what_was_expected(params: list[Any]) -> None:
    def history(address: bytes, before: tuple[int, int] | None, limit: int) -> list[tuple[int, int]]:
        assert type(address) is bytes and 0 < limit <= 256
        return [(limit, 0)] if before is None else [before]

    handle = handler_of(REQUESTS[ChainRequests.history], history)
    assert handle([b"a", [1, 2], 3]) == [[1, 2]]
    try:
        handle(params)
    except DecodeError as error:
        assert "history: expected address, before, limit" in str(error)
