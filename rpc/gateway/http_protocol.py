"""HTTP connections of the gateway: uvicorn's protocol with bounds and with a fast path for plain requests.

Added to uvicorn: the limit of connections, a deadline for each request, a bound of what waits in memory, and
``drop``, which ends a connection even if its client does not read. The application finds ``drop`` and
``is_disconnected`` in the ``state`` of its scope. This module uses private attributes of uvicorn and httptools, so
pyproject.toml caps their versions (docs/decisions/0001-dependencies.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from httptools import HttpParserError, HttpParserUpgrade
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from rpc.gateway.connections import ConnectionLimiter, host_of
from rpc.gateway.dispatch import Caller
from rpc.gateway.fast_path import BODY_DEADLINE_S, PIECE_BYTES_MIN, PIECES_FREE, DirectRequest, RequestHandler
from rpc.gateway.http_upgrade import head_without_upgrade, new_parser
from rpc.gateway.limits import caller_key
from rpc.gateway.memory_quota import HeldBytes
from rpc.gateway.unsent_bytes import UnsentBytes, reset

__all__ = ["HttpProtocol", "SharedState"]

HEADERS_LIMIT_BYTES: Final = 64 * 1024
"""Bytes of a request without its body: the head, chunk headers and trailers."""
LINGER_S: Final = 5.0
"""Time in which a client whose body is refused may send the rest, which is dropped, and read the error."""
LINGER_IDLE_S: Final = 1.0
"""The connection is closed earlier if nothing arrives for this long."""
LINGER_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes of such a body that are dropped before the connection is closed."""
TRAILERS_MAX: Final = 64
PIPELINE_MAX: Final = 1_024
"""Pipelined requests of one connection that wait for earlier answers."""
PIPELINED_BYTES: Final = 1_024
"""Memory of a pipelined request beside its bytes."""
HEADS_KEPT: Final = 512
"""Heads of plain requests that need not be parsed again: those of one client differ in their length only."""
HEAD_KEPT_BYTES_MAX: Final = 1_024
_HEAD_END: Final = b"\r\n\r\n"
_LENGTHS: Final = (b"content-length", b"transfer-encoding")


class DefaultHeaderLines:
    """Encodes the headers that every answer has; uvicorn makes a new list each second."""

    def __init__(self) -> None:
        self._of: list[tuple[bytes, bytes]] = []
        self._lines = b""

    def lines(self, headers: list[tuple[bytes, bytes]]) -> bytes:
        if headers is not self._of:
            self._of, self._lines = headers, b"".join(b"%s: %s\r\n" % header for header in headers)
        return self._lines


class _LingeringTransport:
    """The transport of an ASGI request whose body is incomplete: its ``close`` lingers."""

    def __init__(self, transport: asyncio.Transport, linger: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = linger


class _Refused(Exception):
    """Ends the parsing of bytes that are not answered: those after a refused body, and CONNECT tunnels."""


class SharedState:
    """What all connections of one server share."""

    __slots__ = ("default_lines", "handler", "known_heads", "limiter")

    def __init__(self, limiter: ConnectionLimiter, handler: RequestHandler) -> None:
        self.limiter = limiter
        self.handler = handler
        self.default_lines = DefaultHeaderLines()
        self.known_heads: dict[bytes, tuple[int, bytes]] = {}
        """Heads of plain requests, from the first byte to the empty line, each with the length of the body and
        the head of our answer.

        The parser has found exactly one request with this head before. The same bytes give the same result, so
        what follows such a head on any connection is a body of that length.
        """


class HttpProtocol(HttpToolsProtocol):
    """One HTTP/1.1 connection: uvicorn's protocol with bounds, and a fast path for plain JSON-RPC requests."""

    _caller: str | None = None
    _deadline: asyncio.TimerHandle | None = None
    _in_headers = False
    _trailers = 0
    _lingers = False
    """A body was refused and the answer is written; all further bytes are dropped."""
    _linger_until = 0.0
    _linger_timer: asyncio.TimerHandle | None = None
    _dropped_bytes = 0
    _dropped_at = 0.0
    """When the last dropped bytes arrived."""
    _answering: Any = None
    """The request being answered, if others are pipelined behind it or it was pipelined itself."""
    _header_bytes = 0
    """Bytes of a request since its start or since the last part of its body."""
    _brought_body = False
    _pieces = 0
    """Parts of the body of an ASGI request."""
    _piece_bytes = 0
    _asker: Caller | None = None
    _is_proxy = False
    _waiting: HeldBytes
    """Memory of pipelined requests."""
    _unsent: HeldBytes
    """Memory of unsent answers."""
    _idle_since: float | None = None
    """Since when the connection is idle; None while the client waits for an answer."""
    _unread: UnsentBytes | None = None
    _idle_timer: asyncio.TimerHandle | None = None
    burst = 0
    _direct: DirectRequest | None = None
    """The request that is being read, if it takes the fast path."""
    _begun = 0
    """Requests that began in the bytes being read."""
    _is_between = True
    """Whether the parser is between two requests."""
    _offers = False
    """The request offers an upgrade that is ignored; it is parsed again without the offer."""
    _head: bytes | None = None
    """The head of the answer to the last request in these bytes, if it takes the fast path."""

    def __init__(
        self,
        shared: SharedState,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        # Bound here, not read through ``shared``: these are used for every request.
        self._limiter, self._handler = shared.limiter, shared.handler
        self._known_heads, self._default_lines = shared.known_heads, shared.default_lines
        state = {**app_state, "drop": self.drop, "is_disconnected": self.is_disconnected}
        super().__init__(config, server_state, state, _loop)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection, or abort it if there are too many."""
        super().connection_made(transport)
        host = host_of(transport)
        caller = caller_key(host)
        self._is_proxy = self._limiter.proxies.include(host)
        if not self._limiter.acquire(caller, is_proxy=self._is_proxy):
            transport.abort()
            return
        self._caller = caller
        self._asker = Caller(caller)
        self._waiting, self._unsent = (
            HeldBytes(self._limiter.memory_quota, caller),
            HeldBytes(self._limiter.memory_quota, caller),
        )
        self._unread = UnsentBytes(transport, self._unsent)
        self._limiter.unsent.add(self._unread)
        self._deadline = self.loop.call_later(self._limiter.options.first_request_s, reset, transport)

    def linger(self) -> None:
        """Close as soon as the client has read the answer, or after a time; drop what arrives until then.

        If the socket were closed with unread bytes, the kernel would reset it, and the client would not see the
        answer.
        """
        if self._lingers or self.transport.is_closing():
            return
        self._lingers = True
        while self.pipeline:
            self._forget(self.pipeline.pop()[0])
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._dropped_at = self.loop.time()
        self._linger_until = self._dropped_at + LINGER_S
        self._linger_timer = self.loop.call_later(LINGER_IDLE_S, self._look_lingering)

    def _drop_rest(self, size: int) -> None:
        self._dropped_bytes += size
        self._dropped_at = self.loop.time()
        if self._dropped_bytes > LINGER_BYTES_MAX:
            self.transport.close()

    def _look_lingering(self) -> None:
        now = self.loop.time()
        until = min(self._linger_until, self._dropped_at + LINGER_IDLE_S)
        if now >= until:
            self.transport.close()
        else:
            self._linger_timer = self.loop.call_later(until - now, self._look_lingering)

    def _forget(self, request: Any) -> None:
        """Cancel a request whose client is gone."""
        request.disconnected = True  # or it would write to what is closed
        request.message_event.set()
        if isinstance(request, DirectRequest):
            request.let_go()
            if request.task is not None:
                request.task.cancel()
        else:
            request.body = bytearray()

    def send_400_response(self, msg: str) -> None:
        """Answer that the request is not HTTP, unless an answer was sent already."""
        if not self._lingers and not self.transport.is_closing():  # the answer is written already
            super().send_400_response(msg)

    def on_message_begin(self) -> None:
        """Begin a request (parser callback)."""
        if self._lingers:
            raise _Refused
        self._in_headers, self._header_bytes, self._trailers, self._brought_body = True, 0, 0, False
        self._begun += 1
        self._is_between = False
        self._idle_since = None  # it may have arrived together with a request that is answered already
        self.url, self.expect_100_continue, self.headers = b"", False, []

    def data_received(self, data: bytes) -> None:
        """Read what the client sent."""
        if self._lingers:
            self._drop_rest(len(data))
            return
        self.burst = 0
        was_between = self._is_between
        begins = was_between and not self._is_proxy and self._asker is not None
        if begins and (self.cycle is None or self.cycle.response_complete):
            end = data.find(_HEAD_END, 0, HEAD_KEPT_BYTES_MAX) + len(_HEAD_END)
            known = self._known_heads.get(data[:end])
            if known is not None and len(data) - end == known[0]:
                self._take_known(known[1], data[end:])
                return
        self._begun, self._head = 0, None
        idle_since = self._idle_since
        self._parse(data)
        if not self._begun and self._is_between and self._idle_since is None:
            self._idle_since = idle_since  # empty lines are no request, so the idle time goes on
        if begins and self._begun == 1 and self._is_between and self._head is not None:
            self._keep_head(data, self._head)
        if self.pipeline and not self._waiting.resize(len(data) + PIPELINED_BYTES * len(self.pipeline)):
            reset(self.transport)
        if not self._is_between:  # the request is incomplete, which is rare
            self._await_rest(len(data), is_of_one=self._begun + (not was_between) == 1)

    def _await_rest(self, size: int, *, is_of_one: bool) -> None:
        """Bound the bytes and the time of an incomplete request; ``is_of_one``: all bytes belong to it.

        The parser copies an incomplete line whenever more arrives, so a line without an end costs the
        square of its length.
        """
        if self._brought_body or not is_of_one:
            self._header_bytes, self._brought_body = 0, False
        else:
            self._header_bytes += size
        if self._header_bytes > HEADERS_LIMIT_BYTES:
            reset(self.transport)
        elif self._deadline is None and (self._in_headers or self._awaits_body()):
            time_s = self._limiter.options.first_request_s if self._in_headers else BODY_DEADLINE_S
            self._deadline = self.loop.call_later(time_s, reset, self.transport)

    def _parse(self, data: bytes) -> None:
        """Parse as uvicorn does, but ignore offers of protocols other than WebSocket."""
        self._unset_keepalive_if_required()
        try:
            while True:
                try:
                    self.parser.feed_data(data)
                except HttpParserUpgrade as upgrade:
                    if not self._offers:
                        self.handle_websocket_upgrade()
                        return
                    self._offers = False
                    version = self.parser.get_http_version()
                    head = head_without_upgrade(self.parser.get_method(), self.url, version, self.headers)
                    self.parser = new_parser(self)
                    self.parser.feed_data(head)
                    data = data[upgrade.args[0] :]
                else:
                    return
        except HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def _awaits_body(self) -> bool:
        """Return whether the rest of a body is missing that has no deadline yet."""
        if self._direct is not None:
            return self._direct.awaits_body
        # Of a request that was answered before its end; what comes of it has ended the wait for the next one.
        return self.cycle is not None and self.cycle.response_complete

    def _take_known(self, head: bytes, body: bytes) -> None:
        """Answer a plain request whose head is known."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._idle_since = None
        assert self._asker is not None
        head += self._default_lines.lines(self.server_state.default_headers)
        request = DirectRequest(self._handler, self, self._asker, head, keep_alive=True, is_first=True)
        self.cycle = request  # type: ignore[assignment]
        request.on_complete_body(body)

    def _keep_head(self, data: bytes, answer: bytes) -> None:
        """Remember the head of a plain request that arrived alone and complete, and the head of its answer."""
        end = data.find(_HEAD_END, 0, HEAD_KEPT_BYTES_MAX) + len(_HEAD_END)
        length = len(data) - end
        lengths = [value for name, value in self.headers if name in _LENGTHS]
        if end > len(_HEAD_END) and length and lengths == [b"%d" % length]:
            while len(self._known_heads) >= HEADS_KEPT:
                del self._known_heads[next(iter(self._known_heads))]
            self._known_heads[data[:end]] = length, answer

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header; count trailers, which are not stored (parser callback)."""
        if self._in_headers:
            super().on_header(name, value)
        else:  # trailers of a chunked body: counted, not stored
            self._trailers += 1
            if self._trailers == TRAILERS_MAX:
                reset(self.transport)

    def on_headers_complete(self) -> None:
        """Choose the fast path or ASGI for the request (parser callback)."""
        self._in_headers = False
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self.parser.should_upgrade() and not self._should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise _Refused
            self._offers = True
            return
        if self._is_proxy:
            self._find_client()
        self._direct = self._begin_direct()
        if self._direct is None:
            url, expects, headers = self.url, self.expect_100_continue, self.headers
            super().on_message_begin()  # builds the ASGI scope, which the fast path does not need
            self.url, self.expect_100_continue = url, expects
            self.headers += headers
            self._pieces = self._piece_bytes = 0
            before = self.cycle
            if not self.pipeline:
                self._answering = before
            super().on_headers_complete()
            if self.cycle is not before:  # it is no upgrade
                self.cycle.transport = _LingeringTransport(self.transport, self.linger)  # type: ignore[assignment]

    def _find_client(self) -> None:
        """Find the client behind the proxy: each request of a connection may be of another client."""
        said = b""
        for name, value in self.headers:
            if name == b"x-forwarded-for":
                said = value
        host = self._limiter.proxies.client_of(said) or host_of(self.transport)
        self.client = (host, 0)
        self._asker = Caller(caller_key(host))
        self._waiting.transfer_to(self._asker.key)
        self._unsent.transfer_to(self._asker.key)

    def _begin_direct(self) -> DirectRequest | None:
        """Begin a request on the fast path; return None for one that has to go through ASGI."""
        parser = self.parser
        if (
            self.url != b"/"
            or parser.get_method() != b"POST"
            or parser.get_http_version() != "1.1"
            or parser.should_upgrade()
            or self.expect_100_continue
            or self._asker is None
        ):
            return None
        head = self._handler.admit(self.headers)
        if head is None:
            return None
        keep_alive = parser.should_keep_alive()
        self._head = head if keep_alive else None
        head += self._default_lines.lines(self.server_state.default_headers)
        before = self.cycle
        request = DirectRequest(
            self._handler,
            self,
            self._asker,
            head,
            keep_alive=keep_alive,
            is_first=before is None or before.response_complete,
        )
        self.cycle = request  # type: ignore[assignment]
        if not request.is_first:
            if not self.pipeline:
                self._answering = before
            elif len(self.pipeline) >= PIPELINE_MAX:
                reset(self.transport)
            self.flow.pause_reading()
            self.pipeline.appendleft((request, self.app))  # type: ignore[arg-type]
        return request

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body (parser callback)."""
        self._brought_body = True
        if self._direct is None:
            self._pieces += 1
            self._piece_bytes += len(body)
            if self._pieces > PIECES_FREE + self._piece_bytes // PIECE_BYTES_MIN:
                reset(self.transport)
                raise _Refused
            super().on_body(body)
            if not self._waiting.resize(len(self.cycle.body)):
                reset(self.transport)
        else:
            self._direct.on_body(body)

    def on_message_complete(self) -> None:
        """Finish reading a request (parser callback)."""
        if self._offers:
            return
        self._is_between = True
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._direct is None:
            super().on_message_complete()
            if isinstance(self.cycle, RequestResponseCycle):
                self.cycle.transport = self.transport
            return
        direct, self._direct = self._direct, None
        direct.on_end()

    def on_response_complete(self) -> None:
        """Begin the next pipelined request, or start to count idle time."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self.pipeline:
            request, application = self.pipeline.pop()
            self._answering = request
            if self._deadline is None and type(self._answering) is DirectRequest and self._answering.more_body:
                self._deadline = self.loop.call_later(BODY_DEADLINE_S, reset, self.transport)
            self._start_asgi_task(request, application)
            return
        if self._waiting.counted:
            self._waiting.resize(0)
        if self.cycle.body and self.cycle.response_complete:
            self.cycle.body = bytearray()  # of a request without a body, like GET: nobody has read it
        self._idle_since = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._look_idle)

    def _unset_keepalive_if_required(self) -> None:
        self._idle_since = None  # the timer stays: a new one for each request would be a tenth of its cost

    def _look_idle(self) -> None:
        self._idle_timer = None
        if self._idle_since is None or self._lingers:
            return  # the next answer sets another
        left_s = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left_s > 0:
            self._idle_timer = self.loop.call_later(left_s, self._look_idle)
        else:
            self.timeout_keep_alive_handler()

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over to the WebSocket protocol."""
        if self.pipeline or (self.cycle is not None and not self.cycle.response_complete):
            self.send_400_response(
                "A WebSocket cannot open before earlier requests of the connection are answered."
            )
            return
        self._caller = None  # the WebSocket protocol counts the connection out
        self._limiter.unsent.discard(self._unread)  # and looks after it
        self._let_go()
        super().handle_websocket_upgrade()
        if self.flow.write_paused:  # answers that are not read
            self.transport.get_protocol().pause_writing()

    def _let_go(self) -> None:
        """Cancel timers and release counted memory."""
        for timer in (self._deadline, self._idle_timer, self._linger_timer):
            if timer is not None:
                timer.cancel()
        if self._asker is not None:
            self._waiting.resize(0)
            self._unsent.resize(0)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel what still runs for the connection, and count it out."""
        if self._caller is not None:
            self._limiter.release(self._caller)
            self._caller = None
            self._limiter.unsent.discard(self._unread)
        for request in (self.cycle, self._answering, *(waiting for waiting, _ in self.pipeline)):
            if request is not None and not request.response_complete:
                self._forget(request)
        self._let_go()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Stop writing: the client does not read fast enough."""
        super().pause_writing()
        if self._unread is not None:
            self._unread.paused()

    def resume_writing(self) -> None:
        """Write again: the client has read."""
        if self._unread is not None:
            self._unread.resumed()
        super().resume_writing()

    def drop(self) -> None:
        """End the connection without waiting for the client; a client that reads gets what was written."""
        if self.flow.write_paused:
            reset(self.transport)
        else:
            self.transport.abort()

    def is_disconnected(self) -> bool:
        """Return whether the connection is closed. What is sent then is lost without an error."""
        return self.transport.is_closing()
