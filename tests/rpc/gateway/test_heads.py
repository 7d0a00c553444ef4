"""A head that was parsed before is not parsed again: nobody can tell, however a stream is cut."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, MutableMapping, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from rpc.gateway import connections, http_protocol
from rpc.gateway.dispatch import Caller, PendingAnswer, start
from rpc.gateway.fast_path import BODY_DEADLINE_S
from rpc.gateway.memory_quota import MemoryQuota
from rpc.gateway.protocols import make_protocols
from rpc.protocol.errors import RpcError
from tests.rpc.raw import chunked, post

BODY = b'{"one":1}'
TURNS = 60
"""More than the longest stream takes."""
GET = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"
REQUESTS = (
    post(BODY),
    post(BODY, "origin: x"),
    post(b"{}"),
    post(b"\r\n\r\n" + BODY),
    post(b""),
    post(BODY, length=len(BODY) - 1),  # the last byte begins the next request
    post(BODY, length=len(BODY) + 1),  # the first byte of the next request ends this one
    post(BODY, "refuse: me"),
    post(BODY, "connection: close"),
    post(BODY, version="1.0"),
    post(b"", "content-length: 9"),
    post(BODY, "transfer-encoding: chunked"),
    post(BODY, "expect: 100-continue"),
    post(BODY).replace(b"content-length: 9", b"content-length: 09"),
    post(BODY).replace(b"content-length: 9", b"Content-Length:9"),
    post(BODY).replace(b"\r\n", b"\n"),
    post(BODY).replace(b"host: localhost\r\n", b""),
    b"\r\n\r\n" + post(BODY),
    chunked(BODY),
    chunked(BODY[:4], BODY[4:]),
    GET,
    b"\r\n",
    b"P",
    b"\0",
)


class Echo:
    """Answers with the body, at once or after a turn of the loop."""

    memory_quota = MemoryQuota()
    body_bytes_max = 1_000

    def admit(self, headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
        found = dict(headers)
        if b"refuse" in found:
            return None
        return b"vary: %s\r\n" % found.get(b"origin", b"-")

    def answer(self, body: bytes | bytearray, caller: Caller) -> Coroutine[Any, Any, bytes | None]:
        async def answer() -> bytes:
            if len(body) > 5:
                await asyncio.sleep(0)
            return b"<%s>" % body

        return answer()

    def begin(self, body: bytes | bytearray, caller: Caller) -> bytes | PendingAnswer | None:
        return start(self.answer(body, caller))

    def charge(self, caller: str, units: int) -> float:
        return 0.0

    def refuse(self, error: RpcError, _body: bytes | bytearray = b"") -> bytes:
        return error.reason.encode()


async def asgi(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
    body = b""
    while (message := await receive())["type"] == "http.request":
        body += message["body"]
        if not message["more_body"]:
            break
    headers = [(b"content-length", b"%d" % (len(body) + 2))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"(%s)" % body})


class Pipe(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.sent = b""
        self.ended = False

    def write(self, data: Any) -> None:
        assert not self.ended
        self.sent += data

    def is_closing(self) -> bool:
        return self.ended

    def close(self) -> None:
        self.ended = True

    abort = close

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading

    def get_write_buffer_size(self) -> int:
        return 0


def make(options: connections.ConnectionOptions | None = None) -> type[asyncio.Protocol]:
    return make_protocols(connections.ConnectionLimiter(options or connections.ConnectionOptions()), Echo())[0]


async def transcript(protocol: type[Any], pieces: Sequence[bytes]) -> tuple[bytes, bool]:
    """Return what a client that sends ``pieces`` is told, and whether it is thrown out."""
    config = Config(asgi, log_config=None, lifespan="off")
    pipe = Pipe()
    http = protocol(config, ServerState(), {}, asyncio.get_running_loop())
    http.connection_made(pipe)
    for piece in pieces:
        if pipe.ended:
            break
        http.data_received(piece)
        for _ in range(len(piece) % 8):  # several may come before the first is answered
            await asyncio.sleep(0)
    for _ in range(TURNS):
        await asyncio.sleep(0)
    ended = pipe.ended
    pipe.ended = True
    http.connection_lost(None)
    return pipe.sent, ended


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    ends = [*sorted({at for at in places if 0 < at < len(data)}), len(data)]
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


WARM = make()


@pytest.mark.slow
@settings(max_examples=150)
@given(st.lists(st.sampled_from(REQUESTS), min_size=1, max_size=6), st.data())
def test_a_kept_head_changes_nothing(requests: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(requests)
    between = [sum(map(len, requests[:at])) for at in range(len(requests))]
    places = data.draw(st.sets(st.sampled_from(between) | st.integers(0, len(stream)), max_size=8))

    async def main() -> None:
        cold = make()
        for request in REQUESTS:
            await transcript(WARM, [request])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(http_protocol, "HEAD_KEPT_BYTES_MAX", 0)
            expected = await transcript(cold, cut(stream, places))
        assert await transcript(WARM, cut(stream, places)) == expected

    asyncio.run(main())


def test_a_request_is_parsed_only_once_if_its_head_came_before(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = 0
    begin = HttpToolsProtocol.on_header

    def count(self: Any, name: bytes, value: bytes) -> None:
        nonlocal parsed
        parsed += name == b"host"
        begin(self, name, value)

    monkeypatch.setattr(HttpToolsProtocol, "on_header", count)

    async def main() -> None:
        protocol = make()
        told = [await transcript(protocol, [post(BODY)]) for _ in range(3)]
        assert told[0] == told[1] == told[2]
        assert parsed == 1
        for request, count_after in (
            (post(BODY + b" "), 2),  # another length is another head
            (post(BODY, "x: " + "y" * http_protocol.HEAD_KEPT_BYTES_MAX), 3),
            (post(BODY, "x: " + "y" * http_protocol.HEAD_KEPT_BYTES_MAX), 4),
            (post(BODY) + post(BODY), 6),  # two in one piece
            (post(BODY), 6),
        ):
            await transcript(protocol, [request])
            assert parsed == count_after
        for number in range(http_protocol.HEADS_KEPT):
            await transcript(protocol, [post(BODY, f"x: {number}")])
        before = parsed
        await transcript(protocol, [post(BODY)])
        assert parsed == before + 1, "the oldest makes room"
        behind_proxy = make(connections.ConnectionOptions(trusted_proxies=("127.0.0.0/8",)))
        for _ in range(2):
            await transcript(behind_proxy, [post(BODY)])
        assert parsed == before + 3, "each request of a proxy is of another client"

    asyncio.run(main())


def test_wherever_a_stream_is_cut_the_parser_sees_what_it_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = post(BODY) + post(BODY)

    async def main() -> None:
        warm, cold = make(), make()
        await transcript(warm, [post(BODY)])
        found = [await transcript(warm, [stream[:at], stream[at:]]) for at in range(1, len(stream))]
        monkeypatch.setattr(http_protocol, "HEAD_KEPT_BYTES_MAX", 0)
        assert found == [await transcript(cold, [stream[:at], stream[at:]]) for at in range(1, len(stream))]

    asyncio.run(main())


class Loop:
    """A loop whose clock is moved by hand."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.now_s = 0.0
        self._due: list[tuple[float, Any, asyncio.Handle]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, call: Any, *arguments: Any) -> asyncio.Handle:
        handle = asyncio.Handle(call, arguments, self._loop)
        self._due.append((self.now_s + delay_s, partial(call, *arguments), handle))
        return handle

    def move(self, now_s: float) -> None:
        while self._due and (first := min(self._due, key=lambda item: item[0]))[0] <= now_s:
            self._due.remove(first)
            self.now_s, call, handle = first
            if not handle.cancelled():
                call()
        self.now_s = now_s


async def answers_at_once(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1")]})
    await send({"type": "http.response.body", "body": b"x"})


IDLE_S = 5
LONG = b"GET /docs HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n"


@pytest.mark.parametrize(
    ("pieces", "ends_s"),
    [
        ([post(BODY)], IDLE_S),
        ([post(BODY), b"\r\n"], IDLE_S),
        ([post(BODY), b"\r\n", b"\r\n\r\n"], IDLE_S),
        ([post(BODY), post(BODY)], 4 + IDLE_S),
        ([post(b"{}")[:-1], post(b"{}")[-1:]], 4 + IDLE_S),
        ([LONG, b"y" * 100], IDLE_S),
        ([GET], IDLE_S),
        ([LONG], IDLE_S),
        ([LONG, b"y"], 4 + BODY_DEADLINE_S),  # of a body that nobody waits for
        ([LONG, b"y", b"y"], 4 + BODY_DEADLINE_S),
        ([LONG, b"y" * 100, GET], 4 + IDLE_S),
        ([post(BODY) + post(BODY)[:-3]], BODY_DEADLINE_S),  # a body behind another request is not whole
        ([GET + post(BODY)[:-3]], BODY_DEADLINE_S),
        ([GET + post(BODY)[:-3], post(BODY)[-3:]], 4 + IDLE_S),
    ],
)
def test_no_bytes_but_requests_keep_an_idle_connection(pieces: list[bytes], ends_s: float) -> None:
    """The first piece comes at once, the others after four seconds."""

    async def main() -> None:
        loop, pipe = Loop(), Pipe()
        config = Config(answers_at_once, log_config=None, lifespan="off", timeout_keep_alive=IDLE_S)
        http: Any = make()(config, ServerState(), {}, loop)  # type: ignore[call-arg]
        http.connection_made(pipe)
        for at, piece in enumerate(pieces):
            loop.move(4.0 if at else 0.0)
            http.data_received(piece)
            for _ in range(TURNS):
                await asyncio.sleep(0)
        loop.move(ends_s - 0.1)
        assert not pipe.ended
        loop.move(ends_s + 0.1)
        assert pipe.ended

    asyncio.run(main())
