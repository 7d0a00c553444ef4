"""Both clients at gateways that take nothing, end at once or never end: each effect keeps its time."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest
import trio
import trio.testing
from websockets.http11 import Request
from websockets.server import ServerProtocol

from rpc.client import AsyncClient, Client, ClientOptions, aio, sync
from rpc.client.core import ANSWER_BYTES_PER_S_MIN, Fetch, Post
from rpc.client.errors import GatewayUnreachable
from tests.rpc.client.test_hostile import TIMEOUT_S, dripping, flow, response
from tests.rpc.client.test_websocket import connected

CALM_S = 1_000.0
"""After so long a test is over that would not end."""
Main = Callable[[], Awaitable[None]]


def in_virtual_time(main: Main) -> None:
    async def limited() -> None:
        with trio.fail_after(CALM_S):
            await main()

    trio.run(limited, clock=trio.testing.MockClock(autojump_threshold=0))


def pinging() -> tuple[Any, bytes]:
    """Return a conversation and what a gateway asks it to answer."""
    conversation, server = connected()
    server.send_ping(b"there?")
    return conversation, b"".join(server.data_to_send())


class Deaf:
    """A connection to a gateway that speaks after three seconds, and takes a byte a second or none."""

    def __init__(self, says: bytes = b"", taken_bytes: int = 0) -> None:
        self.says = says
        self.taken_bytes = taken_bytes
        self.now_s = 0.0
        self.timeout_s = TIMEOUT_S

    def settimeout(self, seconds: float) -> None:
        self.timeout_s = seconds

    def recv(self, _size: int) -> bytes:
        self.now_s += 3
        return self.says

    def send(self, data: bytes) -> int:
        if not self.taken_bytes:
            self.now_s += self.timeout_s
            raise TimeoutError("timed out")
        self.now_s += 1
        return self.taken_bytes

    def sendall(self, data: bytes) -> None:
        self.now_s += self.timeout_s
        raise TimeoutError("timed out")

    def close(self) -> None: ...


class DeafStream:
    """The same, of the asynchronous client."""

    def __init__(self, says: bytes = b"") -> None:
        self.says = says

    async def receive(self, _size: int) -> bytes:
        await anyio.sleep(3)
        return self.says

    async def send(self, _data: bytes) -> None:
        await anyio.sleep_forever()

    async def aclose(self) -> None:
        await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("taken_bytes", [0, 1])
def test_what_is_not_taken_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch, taken_bytes: int) -> None:
    conversation, says = pinging()
    deaf = Deaf(says, taken_bytes)
    monkeypatch.setattr(time, "monotonic", lambda: deaf.now_s)
    monkeypatch.setattr(socket, "create_connection", lambda *_: deaf)
    attempts: list[Callable[[sync._Socket], object]] = [
        lambda heard: heard.send(b"question", 4),
        lambda heard: heard.receive(4),  # an answer to the ping
        lambda heard: heard.dial("ws://gateway:8545/", 4),
    ]
    for do in attempts:
        heard = sync._Socket()
        heard._socket, heard._conversation = deaf, conversation  # type: ignore[assignment]
        deaf.now_s, deaf.timeout_s = 0.0, TIMEOUT_S
        with pytest.raises(GatewayUnreachable):
            do(heard)
        assert deaf.now_s == pytest.approx(4)


def test_what_is_not_taken_is_given_up_in_time_by_the_other_client(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect(*_: Any, **__: Any) -> DeafStream:
        return DeafStream()

    monkeypatch.setattr(anyio, "connect_tcp", connect)

    async def main() -> None:
        conversation, says = pinging()
        attempts: list[Callable[[aio._Socket], Awaitable[object]]] = [
            lambda heard: heard.send(b"question", 4),
            lambda heard: heard.receive(4),  # cut off within the answer to the ping: not to be told more
            lambda heard: heard.dial("ws://gateway:8545/", 4),
        ]
        for do in attempts:
            heard = aio._Socket()
            heard._stream, heard._conversation = DeafStream(says), conversation  # type: ignore[assignment]
            start = trio.current_time()
            with pytest.raises(GatewayUnreachable, match=r"\w$"):
                await do(heard)
            assert trio.current_time() - start == pytest.approx(4)

    in_virtual_time(main)


def test_silence_is_no_failure() -> None:
    async def main() -> None:
        heard = aio._Socket()
        heard._stream, heard._conversation = DeafStream(), connected()[0]  # type: ignore[assignment]
        assert await heard.receive(2) is None

    in_virtual_time(main)


@contextmanager
def ending() -> Iterator[str]:
    """A gateway that shakes hands, says something, takes its leave and ends, all in one piece."""

    def serve() -> None:
        for _ in range(2):
            connection, _ = listening.accept()
            with connection:
                server = ServerProtocol()
                server.receive_data(connection.recv(65536))
                [request] = server.events_received()
                assert isinstance(request, Request)
                server.send_response(server.accept(request))
                server.send_text(b"unasked")
                server.send_close(1000, "enough")
                connection.sendall(b"".join(server.data_to_send()))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"ws://127.0.0.1:{listening.getsockname()[1]}/"
        thread.join()


def test_a_gateway_that_ends_at_once_is_left_at_once() -> None:
    async def main() -> None:
        with pytest.raises(GatewayUnreachable, match="1000 enough"):
            await aio._Socket().dial(url, 1)

    with ending() as url:
        with sync._Socket() as heard, pytest.raises(GatewayUnreachable, match="1000 enough"):
            heard.dial(url, 1)
        trio.run(main)


# Answers


def test_an_answer_that_is_long_has_no_more_than_the_whole_time(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 200 * ANSWER_BYTES_PER_S_MIN
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size
    slow_response, slow = response(monkeypatch, head + bytes(size), ANSWER_BYTES_PER_S_MIN)
    slow_response.close()
    came = sync._Response(slow, method="POST", limit_bytes=2**30, deadline=20.0)  # type: ignore[arg-type]
    with pytest.raises(TimeoutError):
        came.begin()
        came.read()
    assert slow.now_s == pytest.approx(20, abs=1)
    assert max(slow.timeouts) <= 20


@contextmanager
def flowing() -> Iterator[str]:
    """A gateway whose one answer comes at the pace that is asked of it, twentyfold, and without end."""

    def serve() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(65536)
            try:
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 60000000\r\n\r\n")
                for _ in range(60):
                    connection.sendall(b" " * ANSWER_BYTES_PER_S_MIN)
                    time.sleep(0.05)
            except OSError:
                pass

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        thread.join()


def test_a_call_has_no_more_than_the_whole_time() -> None:
    for effect in (
        lambda url: Post(url, b"{}", 0.3, whole_s=0.3),
        lambda url: Fetch("POST", url, TIMEOUT_S, b"{}", whole_s=0.3),
    ):
        with flowing() as url, Client(url) as client, sync._Socket() as heard:
            start = time.monotonic()
            _, error = client._do(effect(url), heard)
            assert isinstance(error, GatewayUnreachable)
            assert 0.2 < time.monotonic() - start < 2.5


def test_a_call_that_has_no_time_left_is_not_begun() -> None:
    with Client("http://127.0.0.1:1") as client, sync._Socket() as heard:
        _, error = client._do(Post("http://127.0.0.1:1/", b"{}", 1, whole_s=0), heard)
    assert isinstance(error, GatewayUnreachable)
    assert "the time is over" in str(error)


def test_a_call_of_the_other_client_has_no_more_than_the_whole_time() -> None:
    async def main() -> None:
        for effect in (
            Post("http://gateway/", b"{}", TIMEOUT_S, whole_s=30),
            Fetch("POST", "http://gateway/", 20, b"{}", whole_s=30),
        ):
            start = trio.current_time()
            async with dripping(flow) as client:
                _, error = await client._do(effect, aio._Socket())
            assert isinstance(error, GatewayUnreachable)
            assert trio.current_time() - start == pytest.approx(30)

    in_virtual_time(main)


# Names


@pytest.mark.parametrize("url", ["http://xn--zzzz/", "http://xn--a/"])
def test_a_name_that_is_none_is_a_gateway_that_is_not_there(url: str) -> None:
    async def main() -> None:
        async with AsyncClient(url, options=ClientOptions(rounds=1)) as client:
            with pytest.raises(GatewayUnreachable):
                await client.call("dekube_head")

    trio.run(main)


def test_a_name_that_is_none_is_not_dialled() -> None:
    async def main() -> None:
        with pytest.raises(GatewayUnreachable):
            await aio._Socket().dial("ws://a\u200d:80/", 1)

    trio.run(main)


def test_an_answer_that_leads_to_a_name_that_is_none_is_none() -> None:
    async def nothing() -> AsyncIterator[bytes]:
        yield b""

    async def handle(_request: httpx.Request) -> httpx.Response:
        return httpx.Response(301, headers={"location": "http://xn--zzzz/"})

    async def main() -> None:
        async with dripping(nothing) as client:
            client._http = httpx.AsyncClient(transport=httpx.MockTransport(handle))
            with pytest.raises(GatewayUnreachable):
                await client.call("dekube_head")

    trio.run(main)
