"""HTTP as bytes: what no client library would send, and answers read to the letter."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import trio

from tests.rpc.harness import Gateway


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Wire:
    """One connection."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._buffer = b""

    @classmethod
    async def open(cls, it: Gateway) -> Wire:
        return cls(await trio.open_tcp_stream("127.0.0.1", it.port))

    async def __aenter__(self) -> Wire:
        return self

    async def __aexit__(self, *_: object) -> None:
        await trio.aclose_forcefully(self.stream)

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def _more(self) -> None:
        part = await self.stream.receive_some(65536)
        if not part:
            raise EOFError
        self._buffer += part

    async def answer(self) -> Answer:
        """Return the next answer. Raises EOFError when the connection ends instead."""
        with trio.fail_after(120):
            while b"\r\n\r\n" not in self._buffer:
                await self._more()
            head, self._buffer = self._buffer.split(b"\r\n\r\n", 1)
            first, *lines = head.decode().split("\r\n")
            headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
            size = int(headers["content-length"]) if "content-length" in headers else 0
            while len(self._buffer) < size:
                await self._more()
            body, self._buffer = self._buffer[:size], self._buffer[size:]
            return Answer(int(first.split()[1]), headers, body)

    async def is_closed(self) -> bool:
        """Wait for the other side to close; False for an answer instead."""
        with trio.fail_after(120):
            try:
                await self._more()
            except (EOFError, trio.BrokenResourceError):
                return True
        return False


def call(method: str, *params: Any, identifier: Any = 1) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": identifier, "method": method, "params": list(params)}).encode()


def post(body: bytes, *headers: str, version: str = "1.1", length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    lines = "".join(f"{line}\r\n" for line in ("host: localhost", f"content-length: {size}", *headers))
    return f"POST / HTTP/{version}\r\n{lines}\r\n".encode() + body


def chunked(*pieces: bytes) -> bytes:
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (*pieces, b""))
    return b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n" + body
