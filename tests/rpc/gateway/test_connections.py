"""Who sends a body that is refused may read why: the rest of it is dropped, within bounds of time and bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from uvicorn.config import Config
from uvicorn.server import ServerState

from rpc.gateway.connections import ConnectionLimiter, ConnectionOptions
from rpc.gateway.http_protocol import LINGER_BYTES_MAX, LINGER_IDLE_S, LINGER_S
from rpc.gateway.protocols import make_protocols
from tests.rpc.gateway.test_heads import BODY, TURNS, Echo, Loop, Pipe
from tests.rpc.raw import chunked, post

LONG = Echo.body_bytes_max + 1
SHORT_WAY = chunked(bytes(LONG))[:-5]
"""A body that is refused before its end."""
THROUGH_ASGI = post(b"", "refuse: me", length=LONG)
PART = bytes(65_536)


class HalfPipe(Pipe):
    """A transport whose writing end closes by itself."""

    half_closed = False

    def write(self, data: Any) -> None:
        assert not self.half_closed
        super().write(data)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.half_closed = True


async def refuses(_scope: Any, _receive: Any, send: Any) -> None:
    headers = [(b"content-length", b"2"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"no"})


class Connection:
    """One connection, on a clock that is moved by hand."""

    def __init__(self, application: Any = refuses) -> None:
        self.loop, self.pipe = Loop(), HalfPipe()
        self.doors = ConnectionLimiter(ConnectionOptions())
        protocol: Any = make_protocols(self.doors, Echo())[0]
        config = Config(application, log_config=None, lifespan="off", timeout_keep_alive=1)
        self.http = protocol(config, ServerState(), {}, self.loop)
        self.http.connection_made(self.pipe)

    async def send(self, data: bytes) -> None:
        self.http.data_received(data)
        for _ in range(TURNS):
            await asyncio.sleep(0)

    async def refused(self, request: bytes) -> None:
        await self.send(request)
        assert self.pipe.sent.count(b"HTTP/1.1 200 OK") == self.pipe.sent.count(b"connection: close\r\n") == 1
        assert self.pipe.half_closed
        assert not self.pipe.ended


def run(scenario: Callable[[], Any]) -> None:
    asyncio.run(scenario())


both_ways = pytest.mark.parametrize("request_", [SHORT_WAY, THROUGH_ASGI], ids=["short way", "asgi"])


@both_ways
def test_the_rest_of_a_refused_body_is_dropped_for_a_time(request_: bytes) -> None:
    async def main() -> None:
        one = Connection()
        await one.refused(request_)
        for step in range(10):
            one.loop.move(step * LINGER_S / 10)
            await one.send(PART)
            assert not one.pipe.ended
            assert one.doors.open == 1, "it counts"
            assert (bytes(one.http.cycle.body), one.doors.memory_quota.bytes) == (b"", 0), "nothing is kept"
        one.loop.move(LINGER_S + 0.1)
        assert one.pipe.ended, "however much comes"

    run(main)


@both_ways
def test_who_sends_no_more_of_it_is_not_waited_for(request_: bytes) -> None:
    async def main() -> None:
        one = Connection()
        await one.refused(request_)
        one.loop.move(LINGER_IDLE_S - 0.1)
        await one.send(PART)
        one.loop.move(2 * LINGER_IDLE_S - 0.2)
        assert not one.pipe.ended
        one.loop.move(2 * LINGER_IDLE_S)
        assert one.pipe.ended

    run(main)


@both_ways
def test_no_more_than_so_many_bytes_are_dropped(request_: bytes) -> None:
    async def main() -> None:
        one = Connection()
        await one.refused(request_)
        for _ in range(LINGER_BYTES_MAX // len(PART)):
            one.http.data_received(PART)
        assert not one.pipe.ended
        one.http.data_received(b"x")
        assert one.pipe.ended

    run(main)


@pytest.mark.parametrize("behind", [post(BODY), b"\0\0", post(BODY)[:30]], ids=["request", "garbage", "part"])
def test_what_stands_behind_it_is_not_answered(behind: bytes) -> None:
    async def main() -> None:
        one = Connection()
        await one.refused(SHORT_WAY + b"0\r\n\r\n" + behind)
        one = Connection()
        await one.refused(b"".join([chunked(bytes(LONG)), post(b"{}"), behind]))

    run(main)


def test_nor_is_what_stands_behind_it_in_the_line() -> None:
    async def main() -> None:
        one = Connection()
        await one.send(post(BODY) + chunked(bytes(LONG)) + post(b"{}") + post(b"", "refuse: me"))
        assert one.pipe.sent.count(b"HTTP/1.1 200 OK") == 2
        assert one.pipe.sent.endswith(b"invalid_request")
        assert one.pipe.half_closed
        assert not one.pipe.ended

    run(main)


def test_a_request_that_came_whole_ends_its_connection_at_once() -> None:
    async def main() -> None:
        for request in (post(b"x", "refuse: me"), post(BODY, "connection: close")):
            one = Connection()
            await one.send(request)
            assert b"connection: close" in one.pipe.sent
            assert one.pipe.ended
            assert not one.pipe.half_closed

    run(main)
