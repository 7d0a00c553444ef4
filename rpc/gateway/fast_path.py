"""The fast path of JSON-RPC over HTTP: a plain ``POST /`` is answered without ASGI.

Most answers are computed without waiting, so they are written in the same call that parsed the request, without a
task, a scope or an event. All other requests (upgrades, other paths, HTTP/1.0, ``Expect``) go through ASGI.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, Final, Protocol

from uvicorn.protocols.http.flow_control import FlowControl

from rpc.gateway.dispatch import FIRST_CALL_BYTES, Caller, PendingAnswer, start
from rpc.gateway.memory_quota import MEMORY_EXCEEDED, UNCOUNTED_BYTES_MAX, HeldBytes, MemoryQuota
from rpc.gateway.unsent_bytes import SEND_DEADLINE_S, reset
from rpc.protocol.errors import RpcError

__all__ = [
    "BODY_DEADLINE_S",
    "CHUNK_BYTES",
    "PIECES_FREE",
    "PIECE_BYTES_MIN",
    "RETRY_S",
    "SEND_DEADLINE_S",
    "DirectRequest",
    "RequestHandler",
]

BODY_DEADLINE_S: Final = 20.0
RETRY_S: Final = 1
CHUNK_BYTES: Final = 256 * 1024
"""Answers are written in parts of this size, so that a slow reader keeps little in the transport's buffer."""
PIECES_FREE: Final = 1_024
PIECE_BYTES_MIN: Final = 64
"""A body may arrive in ``PIECES_FREE`` parts and one more for each so many bytes: each part costs a call."""
BURST_MAX: Final = 16
"""Pipelined requests that are answered before other connections are served."""
_STATUS: Final = b"HTTP/1.1 200 OK\r\n"
_CLOSE: Final = b"connection: close\r\n"


class RequestHandler(Protocol):
    """What the fast path needs of the application."""

    @property
    def memory_quota(self) -> MemoryQuota:
        """The quota that counts bodies and answers in memory."""
        ...

    @property
    def body_bytes_max(self) -> int:
        """Longest body that is read."""
        ...

    def admit(self, headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
        """Return the head of the answer to a request with ``headers``; None if ASGI has to refuse it."""
        ...

    def answer(self, body: bytes | bytearray, caller: Caller) -> Coroutine[Any, Any, bytes | None]:
        """Return the answer to a body; None for notifications."""
        ...

    def begin(self, body: bytes | bytearray, caller: Caller) -> bytes | PendingAnswer | None:
        """Return the same without waiting, or a pending answer."""
        ...

    def charge(self, caller: str, units: int) -> float:
        """Take ``units`` from a caller's budget and return 0, or the seconds until that is possible."""
        ...

    def refuse(self, error: RpcError, body: bytes | bytearray = b"") -> bytes:
        """Return the error for a body that is not read, or for an answer that cannot be sent.

        ``body`` is the beginning of either; the request's identifier is looked for in it.
        """
        ...


class Connection(Protocol):
    """What a request needs of its connection."""

    transport: asyncio.Transport
    flow: FlowControl
    burst: int
    """Requests answered without waiting in this turn of the event loop."""

    def on_response_complete(self) -> None:
        """Go on with the next request."""
        ...

    def linger(self) -> None:
        """Close as soon as the client has read the answer, or after a time; drop what arrives until then."""
        ...


class DirectRequest:
    """A request on the fast path. It takes the place of uvicorn's RequestResponseCycle."""

    __slots__ = (
        "_began", "_caller", "_connection", "_head", "_held", "_pieces", "_port", "_refusal", "body",
        "default_headers", "disconnected", "is_first", "keep_alive", "message_event", "more_body",
        "response_complete", "task",
    )  # fmt: skip

    def __init__(
        self,
        port: RequestHandler,
        connection: Connection,
        caller: Caller,
        head: bytes,
        *,
        keep_alive: bool,
        is_first: bool,
    ) -> None:
        self._port = port
        self._connection = connection
        self._caller = caller
        self._head = head
        self.keep_alive = keep_alive
        self.is_first = is_first
        """Whether no earlier request of the connection waits for its answer."""
        self.body: bytes | bytearray = b""
        self._pieces = 0
        self._refusal: RpcError | None = None
        self._began = b""
        """The beginning of a refused body."""
        self._held: HeldBytes | None = None
        self.more_body = True
        self.disconnected = False
        self.response_complete = False
        self.message_event = _NO_EVENT if is_first else asyncio.Event()
        self.task: asyncio.Task[Any] | PendingAnswer | None = None
        """What is cancelled when the client disconnects."""

    @property
    def awaits_body(self) -> bool:
        """Whether the rest of the body is missing."""
        return self.is_first and self.more_body

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        if self._refusal is not None or self.response_complete:
            return
        whole, limit = self.body, self._port.body_bytes_max
        size = len(whole) + len(body)
        self._pieces += 1
        if size > limit:
            self._refuse(body, RpcError("invalid_request", "request too large", limit=limit))
        elif self._pieces > PIECES_FREE + size // PIECE_BYTES_MIN:
            self._refuse(body, RpcError("invalid_request", "invalid request: the body arrived in too many parts"))
        elif size > UNCOUNTED_BYTES_MAX and not self._hold(size):
            self._refuse(body, RpcError("limit_exceeded", MEMORY_EXCEEDED, retry_after_s=RETRY_S))
        elif not whole:
            self.body = body
        elif type(whole) is bytearray:
            whole += body
        else:
            self.body = bytearray(whole) + body

    def _refuse(self, piece: bytes, error: RpcError) -> None:
        self._began = bytes(self.body[:FIRST_CALL_BYTES] or piece[:FIRST_CALL_BYTES])
        self._refusal, self.body, self.keep_alive = error, b"", False  # the rest is not read
        self.on_end()

    def _hold(self, size: int) -> bool:
        if self._held is None:
            self._held = HeldBytes(self._port.memory_quota, self._caller.key)
        return self._held.resize(size)

    def let_go(self) -> None:
        """Release the body: it is answered, or the client is gone."""
        self.body = b""
        if self._held is not None:
            self._held.resize(0)

    def on_complete_body(self, body: bytes) -> None:
        """Answer a body that arrived together with its head, and nothing else."""
        if len(body) > UNCOUNTED_BYTES_MAX:
            self.on_body(body)
            self.on_end()
            return
        self.more_body = False
        answer = self._port.begin(body, self._caller)
        if isinstance(answer, PendingAnswer):
            self.task = answer
            answer.then(self._answered)
        else:
            self._respond(answer)

    def on_end(self) -> None:
        """Answer the complete body, unless earlier requests of the connection wait."""
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
        answer = self._port.begin(self.body, self._caller) if self._refusal is None else start(self._answer())
        if isinstance(answer, PendingAnswer):
            self.task = answer
            answer.then(self._answered)
        else:
            self._respond(answer)

    async def run_asgi(self, _application: Any) -> None:
        """Answer after the earlier requests; called by uvicorn's pipeline."""
        self.task = asyncio.current_task()
        try:
            while self.more_body and not self.disconnected:
                self.message_event.clear()
                await self.message_event.wait()
            if not self.disconnected:
                await self._send(await self._answer() or b"")
        finally:
            self.let_go()  # the connection may be gone, and knows only of those that are in its line

    async def _answer(self) -> bytes | None:
        if self._refusal is not None:
            return self._port.refuse(self._refusal, self._began)
        return await self._port.answer(self.body, self._caller)

    def _respond(self, answer: bytes | None) -> None:
        body = answer or b""
        if len(body) > CHUNK_BYTES or self._connection.flow.write_paused:
            self.task = asyncio.ensure_future(self._send(body))
            return
        self._connection.transport.write(self._start(len(body), body))
        self._finish()

    def _answered(self, done: PendingAnswer) -> None:
        if done.is_cancelled or self.disconnected or self._connection.transport.is_closing():
            self.let_go()
        else:
            self._respond(done.answer)

    async def _send(self, body: bytes) -> None:
        self.body = b""
        if not self._hold(len(body)):
            body = self._port.refuse(RpcError("limit_exceeded", MEMORY_EXCEEDED, retry_after_s=RETRY_S), body)
        flow, transport = self._connection.flow, self._connection.transport
        try:
            async with asyncio.timeout(SEND_DEADLINE_S):
                await flow.drain()
                if self.disconnected:
                    return
                first = body[:CHUNK_BYTES]
                transport.write(self._start(len(body), first))
                for at in range(CHUNK_BYTES, len(body), CHUNK_BYTES):
                    await flow.drain()
                    if self.disconnected:
                        return
                    transport.write(body[at : at + CHUNK_BYTES])
        except TimeoutError:
            reset(transport)
            return
        finally:
            self.let_go()
        self._finish()

    def _start(self, size: int, first: bytes) -> bytes:
        """Return the head of an answer of ``size`` bytes and the ``first`` of them."""
        end = b"" if self.keep_alive else _CLOSE
        return b"%s%s%scontent-length: %d\r\n\r\n%s" % (_STATUS, self._head, end, size, first)

    def _finish(self) -> None:
        self.response_complete = True
        self.body = b""
        if self._held is not None:
            self._held.resize(0)
        if self._refusal is not None:
            self._connection.linger()
        elif not self.keep_alive:
            self._connection.transport.close()
        self._connection.on_response_complete()


class _NoEvent(asyncio.Event):
    """Replaces the event of a request that nobody waits for."""

    def set(self) -> None:
        """Wake nobody."""


_NO_EVENT: Final = _NoEvent()
