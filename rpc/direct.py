"""JSON-RPC over HTTP without ASGI between: a request that is a plain ``POST /`` is answered where it was parsed.

Most answers are at hand, so they leave in the very call that brought the question, and no task, scope or event is
made for them. Everything else (upgrades, other paths, HTTP/1.0, ``Expect``) goes the usual way through ASGI.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, Final, Protocol

from uvicorn.protocols.http.flow_control import FlowControl

from rpc.dispatch import Caller, start

__all__ = ["BODY_DEADLINE_S", "CHUNK_BYTES", "SEND_DEADLINE_S", "DirectRequest", "Port"]

BODY_DEADLINE_S: Final = 20.0
SEND_DEADLINE_S: Final = 30.0
CHUNK_BYTES: Final = 256 * 1024
"""Answers are handed to the transport in pieces, so that a slow reader keeps little of them in memory."""
BURST_MAX: Final = 16
"""Requests that came in one piece and are answered before other connections have their turn."""
_STATUS: Final = b"HTTP/1.1 200 OK\r\n"
_CLOSE: Final = b"connection: close\r\n"


class Port(Protocol):
    """What answers: the application, as far as plain requests need it."""

    @property
    def body_bytes_max(self) -> int:
        """Longest body that is read."""
        ...

    def admit(self, headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
        """Return the head of the answer to a request with ``headers``; None where it is to be refused."""
        ...

    def answer(self, body: bytes, caller: Caller) -> Coroutine[Any, Any, bytes | None]:
        """Return the answer to a body; None where there is nothing to say."""
        ...

    def refuse_body(self) -> bytes:
        """Return the answer to a body that is too long."""
        ...


class Connection(Protocol):
    """The connection of a request, as far as its answer needs it."""

    transport: asyncio.Transport
    flow: FlowControl
    burst: int
    """Requests answered at once since the loop's turn began."""

    def on_response_complete(self) -> None:
        """Go on with the next request."""
        ...


class DirectRequest:
    """A request and its answer; stands where uvicorn keeps its cycle of a request."""

    __slots__ = (
        "_caller", "_connection", "_head", "_port", "body", "default_headers", "disconnected", "is_first",
        "is_too_long", "keep_alive", "message_event", "more_body", "response_complete", "task",
    )  # fmt: skip

    def __init__(
        self, port: Port, connection: Connection, caller: Caller, head: bytes, *, keep_alive: bool, is_first: bool
    ) -> None:
        self._port = port
        self._connection = connection
        self._caller = caller
        self._head = head
        self.keep_alive = keep_alive
        self.is_first = is_first
        """No earlier request of the connection is waiting for its answer."""
        self.body = b""
        self.is_too_long = False
        self.more_body = True
        self.disconnected = False
        self.response_complete = False
        self.message_event = _NO_EVENT if is_first else asyncio.Event()
        self.task: asyncio.Task[Any] | None = None
        """What is to be cancelled when the client leaves."""

    @property
    def awaits_body(self) -> bool:
        """Whether the client is the one to go on."""
        return self.is_first and self.more_body

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        if self.is_too_long or self.response_complete:
            return
        if len(self.body) + len(body) > self._port.body_bytes_max:
            self.is_too_long, self.body, self.keep_alive = True, b"", False  # the rest is not read
            self.on_end()
        else:
            self.body = self.body + body if self.body else body

    def on_end(self) -> None:
        """Answer now that the body is whole, if it is this request's turn."""
        if not self.more_body:
            return
        self.more_body = False
        self.message_event.set()
        if not self.is_first:
            return  # ``run_asgi`` is called when it is
        self._connection.burst += 1
        if self._connection.burst > BURST_MAX:
            self.task = asyncio.ensure_future(self.run_asgi(None))
            return
        answer = start(self._answer())
        if isinstance(answer, asyncio.Task):
            self.task = answer
            answer.add_done_callback(self._answered)
        else:
            self._respond(answer)

    async def run_asgi(self, _application: Any) -> None:
        """Answer after the requests before this one, on behalf of the connection's pipeline."""
        self.task = asyncio.current_task()
        while self.more_body and not self.disconnected:
            self.message_event.clear()
            await self.message_event.wait()
        if not self.disconnected:
            await self._send(await self._answer() or b"")

    async def _answer(self) -> bytes | None:
        if self.is_too_long:
            return self._port.refuse_body()
        return await self._port.answer(self.body, self._caller)

    def _respond(self, answer: bytes | None) -> None:
        body = answer or b""
        if len(body) > CHUNK_BYTES or self._connection.flow.write_paused:
            self.task = asyncio.ensure_future(self._send(body))
            return
        self._connection.transport.write(self._start(body) + body)
        self._finish()

    def _answered(self, answer: asyncio.Task[bytes | None]) -> None:
        if not answer.cancelled() and not self.disconnected:
            self._respond(answer.result())

    async def _send(self, body: bytes) -> None:
        flow, transport = self._connection.flow, self._connection.transport
        try:
            async with asyncio.timeout(SEND_DEADLINE_S):
                await flow.drain()
                first = body[:CHUNK_BYTES]
                transport.write(self._start(body) + first)
                for at in range(CHUNK_BYTES, len(body), CHUNK_BYTES):
                    await flow.drain()
                    if self.disconnected:
                        return
                    transport.write(body[at : at + CHUNK_BYTES])
        except TimeoutError:
            transport.abort()
            return
        self._finish()

    def _start(self, body: bytes) -> bytes:
        end = b"" if self.keep_alive else _CLOSE
        return b"%s%s%scontent-length: %d\r\n\r\n" % (_STATUS, self._head, end, len(body))

    def _finish(self) -> None:
        self.response_complete = True
        if not self.keep_alive:
            self._connection.transport.close()
        self._connection.on_response_complete()


class _NoEvent(asyncio.Event):
    """Stands for the event of a request that nobody waits for."""

    def set(self) -> None:
        """Wake nobody."""


_NO_EVENT: Final = _NoEvent()
