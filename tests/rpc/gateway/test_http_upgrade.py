"""Offers of other protocols are passed over: a request that makes one is answered as if it did not."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpc.gateway.http_upgrade import head_without_upgrade
from tests.rpc.gateway.test_heads import BODY, GET, cut, make, transcript
from tests.rpc.raw import chunked, post

OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
"""What a Java client sends with its first request."""
OTHERS = (
    OFFER,
    b"upgrade: TLS/1.0\r\nconnection: upgrade\r\n",
    b"Upgrade: websocket, h2c\r\nConnection: Upgrade\r\n",
    b"Connection: keep-alive, upgrade\r\nUpgrade: h2c\r\n",
    b"Connection: Upgrade\r\nConnection: keep-alive\r\nUpgrade: websocket\r\n",  # uvicorn hears the last one alone
)
INNER = post(b'{"inner":1}')
PLAIN = (
    post(BODY),
    post(INNER),  # a body that looks like a request
    post(b""),
    post(BODY, "refuse: me"),
    post(BODY, "expect: 100-continue"),
    post(BODY, version="1.0"),
    chunked(BODY[:4], BODY[4:]),
    chunked(INNER),
    GET,
)

ASKED = st.tuples(st.sampled_from(PLAIN), st.none() | st.sampled_from(OTHERS))


def offering(request: bytes, offer: bytes) -> bytes:
    line, rest = request.split(b"\r\n", 1)
    return line + b"\r\n" + offer + rest


@pytest.mark.slow
@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.sampled_from(PLAIN), st.none() | st.sampled_from(OTHERS)), min_size=1, max_size=5),
    st.data(),
)
def test_a_request_with_an_offer_is_answered_as_without(
    requests: list[tuple[bytes, bytes | None]], data: st.DataObject
) -> None:
    plain = [request for request, _ in requests]
    stream = b"".join(r if offer is None else offering(r, offer) for r, offer in requests)
    places = data.draw(st.sets(st.integers(0, len(stream)), max_size=8))

    async def main() -> None:
        told, ended = await transcript(make(), cut(stream, places))
        expected, expected_end = await transcript(make(), [b"".join(plain)])
        assert (told.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b""), ended) == (
            expected.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b""), expected_end,
        )  # fmt: skip

    asyncio.run(main())


def test_many_offers_in_one_piece_are_no_deep_matter() -> None:
    async def main() -> None:
        told, ended = await transcript(make(), [offering(post(BODY), OFFER) * 20])
        assert (told.count(b"HTTP/1.1 200"), ended) == (20, False)
        told, _ = await transcript(make(), [offering(GET, OFFER) * 5_000])
        assert b" 500 " not in told

    asyncio.run(main())


@pytest.mark.parametrize("target", [b"/", b"localhost:8545"])
def test_no_tunnel_is_opened(target: bytes) -> None:
    async def main() -> None:
        for offer in (b"", OFFER):
            request = offering(b"CONNECT %b HTTP/1.1\r\nhost: localhost\r\n\r\n" % target, offer)
            told, ended = await transcript(make(), [request + INNER])
            assert (told.count(b"HTTP/1.1"), ended) == (1, True)
            assert told.startswith(b"HTTP/1.1 400 ")

    asyncio.run(main())


def test_of_a_connection_header_all_else_stays() -> None:
    headers = [
        (b"host", b"a"),
        (b"connection", b"close, Upgrade,HTTP2-Settings"),
        (b"upgrade", b"h2c"),
        (b"x", b""),
    ]
    assert head_without_upgrade(b"POST", b"/a?b", "1.1", headers) == (
        b"POST /a?b HTTP/1.1\r\nhost: a\r\nconnection: close\r\nx: \r\n\r\n"
    )
    assert b"connection" not in head_without_upgrade(b"POST", b"/", "1.1", [(b"connection", b"upgrade")])
