"""What a gateway may do to its clients: keep them for a while, and no more."""

from __future__ import annotations

import http.client
import http.server
import io
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import httpx
import pytest
import trio
import trio.testing

from rpc.client import AsyncClient, Client, ClientOptions, sync
from rpc.client.core import ANSWER_BYTES_PER_S_MIN
from rpc.client.errors import AnswerMalformed, GatewayUnreachable
from tests.rpc.client.answers import at
from tests.rpc.client.test_websocket import connected, taken
from tests.rpc.client.world import World

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
TIMEOUT_S = 70.0


class Slow(io.RawIOBase):
    """Gives so many bytes at a time, each after a second of the clock that it moves."""

    def __init__(self, data: bytes, size: int) -> None:
        self._data = io.BytesIO(data)
        self._size = size
        self.now_s = 0.0
        self.timeouts: list[float] = []

    # A socket

    def makefile(self, _mode: str, *, buffering: int) -> Slow:
        assert not buffering
        return self

    def gettimeout(self) -> float:
        return TIMEOUT_S

    def settimeout(self, seconds: float) -> None:
        self.timeouts.append(seconds)

    # Its file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self.now_s += 1
        found = self._data.read(min(self._size, len(buffer)))
        buffer[: len(found)] = found
        return len(found)


def response(
    monkeypatch: pytest.MonkeyPatch, data: bytes, size: int, limit_bytes: int = 2**30
) -> tuple[http.client.HTTPResponse, Slow]:
    slow = Slow(data, size)
    monkeypatch.setattr(time, "monotonic", lambda: slow.now_s)
    return sync._Response(slow, method="POST", limit_bytes=limit_bytes), slow  # type: ignore[arg-type]


def test_an_answer_that_drips_is_given_up_in_its_head_and_in_its_body(monkeypatch: pytest.MonkeyPatch) -> None:
    for data in (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 90, HEAD[:-2].replace(b": 2", b": 900") + b"." * 900):
        came, slow = response(monkeypatch, data, 1)
        with pytest.raises(TimeoutError):
            came.begin()
            came.read()
        assert slow.now_s == pytest.approx(TIMEOUT_S, abs=1)
        assert slow.timeouts == sorted(slow.timeouts, reverse=True)


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 100 Continue\r\n\r\n" * 2_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n" + b"x: y\r\n" * 9_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1;" + b"x" * 60 + b"\r\n.\r\n" * 9_000,
    ],
    ids=["heads", "trailers", "chunks"],
)
def test_an_answer_without_end_is_given_up_however_fast_it_comes(
    monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    came, slow = response(monkeypatch, data, ANSWER_BYTES_PER_S_MIN * 100, 30_000)
    with pytest.raises((OSError, http.client.HTTPException)):
        came.begin()
        came.read(20_000)
    assert slow.now_s < TIMEOUT_S


def test_an_answer_that_is_long_has_the_time_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 200 * ANSWER_BYTES_PER_S_MIN
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size
    came, slow = response(monkeypatch, head + bytes(size), ANSWER_BYTES_PER_S_MIN)
    came.begin()
    assert len(came.read()) == size
    assert slow.now_s > 2 * TIMEOUT_S
    came.close()


def dripping(answer: Callable[[], AsyncIterator[bytes]], head_s: float = 0) -> AsyncClient:
    async def handle(_request: httpx.Request) -> httpx.Response:
        await anyio.sleep(head_s)
        return httpx.Response(200, content=answer())

    client = AsyncClient("http://gateway", options=ClientOptions(timeout_s=TIMEOUT_S, rounds=1))
    client._http = httpx.AsyncClient(transport=httpx.MockTransport(handle))
    return client


async def drip() -> AsyncIterator[bytes]:
    while True:
        await anyio.sleep(1)
        yield b" "


async def flow() -> AsyncIterator[bytes]:
    for _ in range(200):
        await anyio.sleep(1)
        yield b" " * ANSWER_BYTES_PER_S_MIN
    yield b'{"result": 7}'


@pytest.mark.parametrize("head_s", [0, 10**6])
def test_the_other_client_has_the_same_patience(head_s: float) -> None:
    async def main() -> None:
        start = trio.current_time()
        async with dripping(drip, head_s) as client:
            with pytest.raises(GatewayUnreachable, match="too slow"):
                await client.call("dekube_head")
        assert trio.current_time() - start == pytest.approx(TIMEOUT_S, abs=2)
        async with dripping(flow) as client:
            assert await client.call("dekube_head") == 7

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_parts_without_content_take_no_memory() -> None:
    client, server = connected()
    server.send_text(b"", fin=False)
    for _ in range(100_000):
        server.send_continuation(b"", fin=False)
    client.receive(b"".join(server.data_to_send()))
    assert client._parts.__sizeof__() < 1_000
    server.send_continuation(b"end", fin=True)
    client.receive(b"".join(server.data_to_send()))
    assert taken(client) == [b"end"]


def test_a_page_that_follows_itself_ends_the_list() -> None:
    asked = 0

    def answer(_method: str, _params: Any) -> Any:
        nonlocal asked
        asked += 1
        assert asked <= 2
        return {"at": at(1), "items": [1], "next": "again"}

    world = World(answer)
    with pytest.raises(AnswerMalformed):
        world.take(world.core.pages("dekube_getTasks"))


def test_the_client_reads_its_answers_so(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[float | None] = []

    class Response(sync._Response):
        def __init__(self, sock: Any, *args: Any, **options: Any) -> None:
            read.append(sock.gettimeout())
            super().__init__(sock, *args, **options)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            body = b'{"result": 7}'
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None: ...

    monkeypatch.setattr(sync, "_Response", Response)
    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with Client(f"http://127.0.0.1:{server.server_port}", timeout_s=TIMEOUT_S) as client:
            assert [client.call("dekube_head") for _ in range(2)] == [7, 7]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert read == [TIMEOUT_S, TIMEOUT_S], "each answer has its whole time"
