"""Connections at the door: how many, from whom, how long one may dawdle, and how one is thrown out.

uvicorn's protocols with four things added: a bound of connections for each address and in all, a deadline for the
first request, ``drop``, which ends a connection even when its client does not read, and a short way for plain
requests (``rpc.direct``). The application finds ``drop`` in the ``state`` of its scope.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from rpc.direct import BODY_DEADLINE_S, DirectRequest, Port
from rpc.dispatch import Caller
from rpc.limits import caller_key

__all__ = ["DoorOptions", "Doors", "make_protocols"]

HEADERS_LIMIT_BYTES: Final = 64 * 1024
CLOSE_GRACE_S: Final = 5.0
"""Time in which a client that is thrown out may still read why."""


@dataclass(frozen=True, slots=True)
class DoorOptions:
    """Bounds of connections."""

    connections_max: int = 16_384
    connections_per_address_max: int = 512
    """0: no limit, for a gateway behind a proxy."""
    first_request_s: float = 10.0
    """Time for the headers of a request, and for a new connection to send its first."""


class Doors:
    """Counts connections by address."""

    def __init__(self, options: DoorOptions) -> None:
        self.options = options
        self.open = 0
        self.refused = 0
        self._by_caller: dict[str, int] = {}

    def enter(self, caller: str) -> bool:
        """Count a connection in, or return False."""
        mine = self._by_caller.get(caller, 0)
        limit = self.options.connections_per_address_max
        if self.open >= self.options.connections_max or (limit and mine >= limit):
            self.refused += 1
            return False
        self._by_caller[caller] = mine + 1
        self.open += 1
        return True

    def leave(self, caller: str) -> None:
        """Count a connection out."""
        self.open -= 1
        left = self._by_caller[caller] - 1
        if left:
            self._by_caller[caller] = left
        else:
            del self._by_caller[caller]


def _caller_of(transport: asyncio.BaseTransport) -> str:
    peer = transport.get_extra_info("peername")
    return caller_key(str(peer[0])) if isinstance(peer, tuple) and peer else ""


class _Lines:
    """The lines of headers that every answer has; the list is another one each second."""

    def __init__(self) -> None:
        self._of: list[tuple[bytes, bytes]] = []
        self._lines = b""

    def lines(self, headers: list[tuple[bytes, bytes]]) -> bytes:
        if headers is not self._of:
            self._of, self._lines = headers, b"".join(b"%s: %s\r\n" % header for header in headers)
        return self._lines


def make_protocols(doors: Doors, port: Port) -> tuple[type[asyncio.Protocol], type[asyncio.Protocol]]:
    """Return the HTTP and the WebSocket protocol for uvicorn that pass through ``doors``; ``port`` answers."""

    usual = _Lines()

    class Http(HttpToolsProtocol):
        _caller: str | None = None
        _deadline: asyncio.TimerHandle | None = None
        _in_headers = False
        _header_bytes = 0
        _asker: Caller | None = None
        burst = 0
        _direct: DirectRequest | None = None
        """The request that is being read, where it goes the short way."""

        def __init__(
            self,
            config: Config,
            server_state: ServerState,
            app_state: dict[str, Any],
            _loop: asyncio.AbstractEventLoop | None = None,
        ) -> None:
            super().__init__(config, server_state, {**app_state, "drop": self.drop}, _loop)

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            caller = _caller_of(transport)
            if not doors.enter(caller):
                transport.abort()
                return
            self._caller = caller
            self._asker = Caller(caller)
            self._deadline = self.loop.call_later(doors.options.first_request_s, transport.abort)

        def on_message_begin(self) -> None:
            self._in_headers, self._header_bytes = True, 0
            super().on_message_begin()

        def data_received(self, data: bytes) -> None:
            self.burst = 0
            super().data_received(data)
            if self._in_headers:  # the end of the headers is not here yet, which is rare
                self._header_bytes += len(data)
                if self._header_bytes > HEADERS_LIMIT_BYTES:
                    self.transport.abort()
                elif self._deadline is None:
                    self._deadline = self.loop.call_later(doors.options.first_request_s, self.transport.abort)
            elif self._deadline is None and (found := self._direct) is not None and found.awaits_body:
                self._deadline = self.loop.call_later(BODY_DEADLINE_S, self.transport.abort)

        def on_headers_complete(self) -> None:
            self._in_headers = False
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None
            self._direct = self._begin_direct()
            if self._direct is None:
                super().on_headers_complete()

        def _begin_direct(self) -> DirectRequest | None:
            """Take the short way with a plain request."""
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
            head = port.admit(self.headers)
            if head is None:
                return None
            head += usual.lines(self.server_state.default_headers)
            before = self.cycle
            request = DirectRequest(
                port,
                self,
                self._asker,
                head,
                keep_alive=parser.should_keep_alive(),
                is_first=before is None or before.response_complete,
            )
            self.cycle = request  # type: ignore[assignment]
            if not request.is_first:
                self.flow.pause_reading()
                self.pipeline.appendleft((request, self.app))  # type: ignore[arg-type]
            return request

        def on_body(self, body: bytes) -> None:
            if self._direct is None:
                super().on_body(body)
            else:
                self._direct.on_body(body)

        def on_message_complete(self) -> None:
            if self._direct is None:
                super().on_message_complete()
                return
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None
            direct, self._direct = self._direct, None
            direct.on_end()

        def handle_websocket_upgrade(self) -> None:
            self._caller = None  # the WebSocket protocol counts the connection out
            super().handle_websocket_upgrade()

        def connection_lost(self, exc: Exception | None) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
            if self._caller is not None:
                doors.leave(self._caller)
                self._caller = None
            for request in (self.cycle, *(waiting for waiting, _ in self.pipeline)):
                if isinstance(request, DirectRequest) and not request.response_complete:
                    request.disconnected = True
                    if request.task is not None:
                        request.task.cancel()
            super().connection_lost(exc)

        def drop(self) -> None:
            """End the connection without waiting for the client."""
            self.transport.abort()

    class WebSocket(WebSocketsSansIOProtocol):
        _caller = ""

        def __init__(
            self,
            config: Config,
            server_state: ServerState,
            app_state: dict[str, Any],
            _loop: asyncio.AbstractEventLoop | None = None,
        ) -> None:
            super().__init__(config, server_state, {**app_state, "drop": self.drop}, _loop)

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self._caller = _caller_of(transport)
            super().connection_made(transport)

        def connection_lost(self, exc: Exception | None) -> None:
            doors.leave(self._caller)
            super().connection_lost(exc)

        def drop(self, code: int, reason: str) -> None:
            """Say why behind what is still being sent, and end the connection soon, read or not."""
            if self.close_sent or self.transport.is_closing():
                return
            self.conn.send_close(code, reason)
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
            self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
            self.close_timer = self.loop.call_later(CLOSE_GRACE_S, self.transport.abort)
            if self.read_paused:  # to see the client's own close
                self.read_paused = False
                self.transport.resume_reading()

    return Http, WebSocket
