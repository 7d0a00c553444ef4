"""What one connection may keep for itself or leave behind: nothing uncounted, and nothing for ever."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop
from uvicorn.config import Config
from uvicorn.server import ServerState

from rpc.gateway.connections import ConnectionLimiter, ConnectionOptions
from rpc.gateway.dispatch import Caller
from rpc.gateway.fast_path import BODY_DEADLINE_S, PIECE_BYTES_MIN, PIECES_FREE
from rpc.gateway.http_protocol import HEADERS_LIMIT_BYTES, PIPELINE_MAX
from rpc.gateway.limits import caller_key
from rpc.gateway.protocols import make_protocols
from tests.rpc.gateway.test_floods import BINARY, UPGRADE, frame
from tests.rpc.gateway.test_heads import BODY, GET, TURNS, Echo, Loop, Pipe, answers_at_once, asgi
from tests.rpc.gateway.test_unread import LARGE, application, served, until
from tests.rpc.raw import chunked, post

KIB = 1024
PING, PONG = b"\x89\x04", 10
PLAIN = b"POST / "
both_ways = pytest.mark.parametrize("way", [(PLAIN, PLAIN), (PLAIN, b"POST /?a ")], ids=["short way", "asgi"])


class Slow(Echo):
    """Answers some requests when the test says so."""

    body_bytes_max = 1024 * KIB

    def __init__(self, doors: ConnectionLimiter) -> None:
        self.memory_quota = doors.memory_quota
        self.waiting: list[asyncio.Future[bytes]] = []

    def answer(self, body: bytes | bytearray, caller: Caller) -> Coroutine[Any, Any, bytes | None]:
        return self._wait() if body.startswith(b"wait") else super().answer(body, caller)

    async def _wait(self) -> bytes:
        self.waiting.append(asyncio.get_running_loop().create_future())
        return await self.waiting[-1]


class Connection:
    """One connection, on a clock that is moved by hand."""

    def __init__(self, application: Any = asgi, *, is_socket: bool = False) -> None:
        self.loop, self.pipe = Loop(), Pipe()
        self.doors = ConnectionLimiter(ConnectionOptions())
        self.port = Slow(self.doors)
        protocol: Any = make_protocols(self.doors, self.port)[is_socket]
        config = Config(application, log_config=None, lifespan="off")
        if is_socket:
            assert self.doors.acquire(caller_key("127.0.0.1")), "as the protocol does that hands over"
        self.protocol = protocol(config, ServerState(), {}, self.loop)
        self.protocol.connection_made(self.pipe)

    async def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            if not self.pipe.ended:
                self.protocol.data_received(piece)
                await self.turns()

    async def turns(self) -> None:
        for _ in range(TURNS):
            await asyncio.sleep(0)

    async def end(self) -> None:
        self.pipe.ended = True
        self.protocol.connection_lost(None)
        await self.turns()
        assert (self.doors.open, self.doors.memory_quota.bytes, self.doors.unsent) == (0, 0, set())


def run(scenario: Callable[[], Any]) -> None:
    asyncio.run(scenario())


# Lines without end


def pieces(first: bytes, rest: bytes, size: int) -> list[bytes]:
    return [first, *(rest * KIB for _ in range(size // KIB))]


ENDLESS = [
    pytest.param(chunked(BODY)[:-2] + b"x: ", id="trailer"),
    pytest.param(chunked(BODY)[:-2] + b"x", id="name of a trailer"),
    pytest.param(chunked(BODY)[:-5] + b"0;x=", id="extension of the last chunk"),
    pytest.param(chunked(BODY)[:-5] + b"5;x=", id="extension of a chunk"),
]


@both_ways
@pytest.mark.parametrize("first", ENDLESS)
def test_no_line_between_or_behind_the_pieces_of_a_body_is_endless(first: bytes, way: tuple[bytes, bytes]) -> None:
    async def main() -> None:
        one = Connection()
        await one.send(*pieces(first.replace(*way), b"a", HEADERS_LIMIT_BYTES))
        assert not one.pipe.ended
        await one.send(b"a" * KIB)
        assert one.pipe.ended
        await one.end()

    run(main)


@both_ways
def test_what_is_bounded_is_that_and_no_body(way: tuple[bytes, bytes]) -> None:
    async def main() -> None:
        one, large = Connection(), bytes(4 * HEADERS_LIMIT_BYTES)
        await one.send(
            *pieces((chunked(BODY)[:-2] + b"x: ").replace(*way), b"a", HEADERS_LIMIT_BYTES // 2), b"\r\n\r\n"
        )
        assert one.pipe.sent.count(BODY) == 1
        body = chunked(*[bytes(KIB)] * 400).replace(*way)
        await one.send(*(body[at : at + 700] for at in range(0, len(body), 700)))
        assert one.pipe.sent.count(b"HTTP/1.1 200 OK") == 2
        # Of a piece that holds the end of one request and the begin of another nobody knows how much is whose.
        other = post(BODY, "x: y").replace(*way)
        for cut in (10, len(other) - 20, len(other) - len(BODY), len(other) - 1):
            await one.send(post(large)[:100].replace(*way), post(large)[100:] + other[:cut], other[cut:])
            await one.send(post(large).replace(*way) + other[:cut], other[cut:])
        assert one.pipe.sent.count(b"HTTP/1.1 200 OK") == 18
        assert not one.pipe.ended
        await one.end()

    run(main)


@both_ways
@pytest.mark.parametrize("answers", [asgi, answers_at_once], ids=["reads", "answers at once"])
def test_a_body_has_no_more_pieces_than_its_length_allows(answers: Any, way: tuple[bytes, bytes]) -> None:
    async def main() -> None:
        one = Connection(answers)
        small = chunked(*[b" "] * (2 * PIECES_FREE)).replace(*way)
        await one.send(*(small[at : at + KIB] for at in range(0, len(small), KIB)))
        assert one.pipe.ended or b"invalid_request" in one.pipe.sent
        await one.end()
        one = Connection(answers)
        larger = chunked(*[bytes(PIECE_BYTES_MIN)] * (4 * PIECES_FREE)).replace(*way)
        for _ in range(2):  # each has its own
            await one.send(*(larger[at : at + 8 * KIB] for at in range(0, len(larger), 8 * KIB)))
        assert not one.pipe.ended and one.pipe.sent.count(b"HTTP/1.1 200 OK") == 2
        await one.end()

    run(main)


# Who leaves


WAITING = post(b"wait" + bytes(200 * KIB))
PART = b"POST / HTTP/1.1\r\nho"
BEHIND = [
    pytest.param(post(BODY), 0.0, id="left"),
    pytest.param(GET, 0.0, id="left behind asgi"),
    pytest.param(GET + post(BODY), 0.0, id="left behind both"),
    pytest.param(post(BODY) + GET, 0.0, id="left behind both the other way"),
    pytest.param(post(BODY) + PART, ConnectionOptions().first_request_s, id="deadline of a head"),
    pytest.param(post(BODY) * (PIPELINE_MAX + 1), 0.0, id="too many"),
    pytest.param(post(BODY) + b"\0", 0.0, id="garbage"),
    pytest.param(post(BODY) + UPGRADE, 0.0, id="upgrade"),
]


@pytest.mark.parametrize("is_answered", [False, True])
@pytest.mark.parametrize(("behind", "ends_s"), BEHIND)
def test_a_request_with_others_behind_it_is_forgotten_with_its_connection(
    behind: bytes, ends_s: float, is_answered: bool
) -> None:
    async def main() -> None:
        one = Connection()
        await one.send(WAITING)
        first = one.protocol.cycle
        assert one.doors.memory_quota.bytes > 200 * KIB
        await one.send(behind)
        [answer] = one.port.waiting
        one.loop.move(ends_s + 0.1)
        told = one.pipe.sent
        one.pipe.ended = True
        if is_answered:  # before it is said that the connection is lost
            answer.set_result(b"late")
            await one.turns()
        await one.end()
        assert first.disconnected and (is_answered or answer.cancelled())
        assert first.body == b"" and one.pipe.sent == told

    run(main)


def test_so_is_one_that_asgi_answers() -> None:
    async def main() -> None:
        left = []

        async def receipt_waiters(_scope: Any, receive: Any, _send: Any) -> None:
            while (message := await receive())["type"] == "http.request":
                pass
            left.append(message["type"])

        for behind in (GET, post(BODY), post(BODY) + GET):
            one = Connection(receipt_waiters)
            await one.send(GET + behind)
            await one.end()
            assert left.pop() == "http.disconnect" and not left

    run(main)


# Upgrades


@pytest.mark.parametrize("count", [1, 3, 400])
@pytest.mark.parametrize("before", [post(BODY), GET], ids=["short way", "asgi"])
def test_no_websocket_opens_behind_a_request_that_is_not_answered(before: bytes, count: int) -> None:
    async def main() -> None:
        doors = ConnectionLimiter(ConnectionOptions())
        async with asyncio.timeout(30), served(doors, asgi, []) as place:
            reader, writer = await asyncio.open_connection(*place)
            writer.write(before * count + UPGRADE)
            told = await reader.read()
            assert b" 101 " not in told and b"HTTP/1.1 400 " in told
            writer.close()
            await until(lambda: not doors.open)
            assert doors.memory_quota.bytes == 0

    uvloop.run(main())


def test_behind_one_that_is_answered_it_does() -> None:
    async def main() -> None:
        doors = ConnectionLimiter(ConnectionOptions())
        async with asyncio.timeout(30), served(doors, application, []) as place:
            reader, writer = await asyncio.open_connection(*place)
            writer.write(post(b"{}") + UPGRADE)
            head = await reader.readuntil(b"<{}>")
            assert head.startswith(b"HTTP/1.1 200 ")
            assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
            writer.close()
            await until(lambda: not doors.open)

    uvloop.run(main())


def test_answers_that_are_not_read_are_counted_beyond_the_upgrade_and_not_for_ever() -> None:
    async def main() -> None:
        doors, opened = ConnectionLimiter(ConnectionOptions()), asyncio.Event()

        async def noting(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "websocket":
                opened.set()
            await application(scope, receive, send)

        async with asyncio.timeout(30), served(doors, noting, []) as place:
            client = socket.create_connection(place)
            client.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
            await until(lambda: doors.memory_quota.bytes > 0)
            client.sendall(UPGRADE)
            await opened.wait()
            await asyncio.sleep(0)
            assert LARGE // 2 < doors.memory_quota.bytes <= LARGE, "and nothing is written before it is read"
            client.close()
            await until(lambda: not doors.open)
            assert doors.memory_quota.bytes == 0

    uvloop.run(main())


# WebSockets


class Busy:
    """An application that is done with a message when the test says so, and counts them."""

    def __init__(self) -> None:
        self.count = 0
        self.may_go_on = asyncio.Event()

    async def __call__(self, _scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept"})
        while (await receive())["type"] != "websocket.disconnect":
            self.count += 1
            await self.may_go_on.wait()


async def opened(busy: Busy) -> Connection:
    one = Connection(busy, is_socket=True)
    await one.send(UPGRADE)
    assert b" 101 " in one.pipe.sent
    return one


def pinged(one: Connection) -> bytes:
    """Return what the last of the pings carries."""
    return one.pipe.sent[one.pipe.sent.rindex(PING) + 2 :][:4]


INTERVAL_S = 20
"""Of uvicorn: between pings, and for the answer."""


def test_who_is_not_read_is_not_thrown_out_for_a_pong_that_is_not_seen() -> None:
    async def main() -> None:
        busy = Busy()
        one = await opened(busy)
        await one.send(frame(BINARY, b"1") + frame(BINARY, b"2"))
        assert busy.count == 1 and one.protocol.read_paused
        for turn in range(1, 11):
            one.loop.move(INTERVAL_S * (2 * turn - 1))
            assert one.pipe.sent.count(PING) == turn
            await one.send(frame(PONG, pinged(one)))
        one.loop.move(INTERVAL_S * 20 + 1)
        assert not one.pipe.ended
        busy.may_go_on.set()
        await one.turns()
        assert busy.count == 2
        for turn in (21, 22):  # it is read again, and answers
            one.loop.move(INTERVAL_S * turn + 1)
            await one.send(frame(PONG, pinged(one)))
        one.loop.move(INTERVAL_S * 24 - 0.1)
        assert not one.pipe.ended
        one.loop.move(INTERVAL_S * 24)
        assert one.pipe.ended and b"keepalive ping timeout" in one.pipe.sent
        await one.end()

    run(main)


def test_who_was_read_again_just_now_is_asked_once_more() -> None:
    async def main() -> None:
        busy = Busy()
        one = await opened(busy)
        await one.send(frame(BINARY, b"1") + frame(BINARY, b"2"))
        one.loop.move(2 * INTERVAL_S - 1)
        busy.may_go_on.set()
        await one.turns()
        one.loop.move(2 * INTERVAL_S + 1)
        assert not one.pipe.ended, "its pong may be under way"
        one.loop.move(4 * INTERVAL_S)
        assert one.pipe.ended and b"keepalive ping timeout" in one.pipe.sent
        await one.end()

    run(main)


def test_who_says_nothing_is_thrown_out_after_one_ping() -> None:
    async def main() -> None:
        one = await opened(Busy())
        one.loop.move(2 * INTERVAL_S - 0.1)
        assert not one.pipe.ended
        one.loop.move(2 * INTERVAL_S)
        assert one.pipe.ended
        await one.end()

    run(main)


MESSAGE = frame(BINARY, bytes(40 * KIB))
HALF = len(MESSAGE) // 2


def test_each_message_has_a_deadline_of_its_own() -> None:
    async def main() -> None:
        busy = Busy()
        busy.may_go_on.set()
        one = await opened(busy)
        one.protocol.stop_keepalive()
        await one.send(MESSAGE[:HALF])
        step_s = BODY_DEADLINE_S / 2
        for turn in range(1, 11):  # always a part of the next one behind the one that is whole
            one.loop.move(turn * step_s)
            await one.send(MESSAGE[HALF:] + MESSAGE[:HALF])
            assert busy.count == turn
        assert not one.pipe.ended
        one.loop.move(12 * step_s - 0.1)
        await one.send(b"\0")
        assert not one.pipe.ended
        one.loop.move(12 * step_s)
        assert one.pipe.ended, "the last one is never whole"
        await one.end()

    run(main)


def test_it_begins_when_the_message_is_read() -> None:
    async def main() -> None:
        busy = Busy()
        one = await opened(busy)
        one.protocol.stop_keepalive()
        await one.send(MESSAGE + frame(BINARY, bytes(KIB // 2)) + MESSAGE[:HALF])
        one.loop.move(10 * BODY_DEADLINE_S)
        assert not one.pipe.ended and busy.count == 1
        busy.may_go_on.set()
        await one.turns()
        assert busy.count == 2
        one.loop.move(11 * BODY_DEADLINE_S - 0.1)
        assert not one.pipe.ended
        one.loop.move(11 * BODY_DEADLINE_S)
        assert one.pipe.ended
        await one.end()

    run(main)
