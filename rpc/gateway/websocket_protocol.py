"""WebSocket connections of the gateway: limits of connections, deadlines, and who is charged behind a proxy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState
from websockets.http11 import Request

from rpc.gateway.connections import ConnectionLimiter, host_of
from rpc.gateway.fast_path import RequestHandler
from rpc.gateway.limits import caller_key
from rpc.gateway.unsent_bytes import UnsentBytes, reset
from rpc.gateway.websocket import CLOSE_GRACE_S, BoundedWebSocket

__all__ = ["WebSocketProtocol"]


class WebSocketProtocol(BoundedWebSocket):
    """One WebSocket connection, counted by the limiter of connections."""

    _caller = ""
    _unread: UnsentBytes
    _opening: asyncio.TimerHandle
    """When a request that opens nothing, as one that is no GET, ends the connection."""

    def __init__(
        self,
        limiter: ConnectionLimiter,
        handler: RequestHandler,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._limiter, self._handler = limiter, handler
        # What is of the HTTP protocol that hands over goes with it: it holds all that it has read.
        state = {name: value for name, value in app_state.items() if name != "is_disconnected"}
        self._when_lost: list[Callable[[], None]] = []
        state |= {"drop": self.drop, "when_lost": self._when_lost.append}
        super().__init__(config, server_state, state, _loop)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection over from the HTTP protocol, which has counted it."""
        self._caller = caller_key(host_of(transport))
        self.hold_for(self._limiter.memory_quota, self._caller)
        self._opening = self.loop.call_later(self._limiter.options.first_request_s, reset, transport)
        self._unread = UnsentBytes(transport, self._unsent)  # type: ignore[arg-type]
        self._limiter.unsent.add(self._unread)
        super().connection_made(transport)

    def start_keepalive(self) -> None:
        """Start to send pings; the opening handshake is complete."""
        self._opening.cancel()  # it is open; from here on pings find out who is gone
        super().start_keepalive()

    def pause_writing(self) -> None:
        """Stop writing: the client does not read fast enough."""
        super().pause_writing()
        self._unread.paused()

    def resume_writing(self) -> None:
        """Write again: the client has read."""
        self._unread.resumed()
        super().resume_writing()

    def charge(self, units: int) -> float:
        """Take ``units`` from the client's budget; return 0 or the seconds to wait."""
        return self._handler.charge(self._caller, units)

    def handle_connect(self, event: Request) -> None:
        """Accept the opening request; behind a trusted proxy, count the connection for the proxy's client."""
        if self._limiter.proxies.include(host_of(self.transport)):
            said = [value for name, value in event.headers.raw_items() if name.lower() == "x-forwarded-for"] or [
                ""
            ]
            host = self._limiter.proxies.client_of(said[-1].encode("utf-8", "surrogateescape"))
            if host is not None:
                client = caller_key(host)
                if not self._limiter.transfer_connection(self._caller, client):
                    reset(self.transport)
                    return
                self._caller, self.client = client, (host, 0)
                self.hold_for(self._limiter.memory_quota, client)
                self._unread.held = self._unsent
        super().handle_connect(event)

    def connection_lost(self, exc: Exception | None) -> None:
        """Count the connection out and tell the application."""
        self._opening.cancel()
        self._limiter.unsent.discard(self._unread)
        self._limiter.release(self._caller)
        for let_go in self._when_lost:
            let_go()
        self._when_lost.clear()
        super().connection_lost(exc)

    def drop(self, code: int, reason: str) -> None:
        """Say why behind what is still being sent, and end the connection soon, read or not."""
        if self.close_sent or self.transport.is_closing():
            return
        self.conn.send_close(code, reason)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.close_timer = self.loop.call_later(CLOSE_GRACE_S, reset, self.transport)
        if self.read_paused:  # to see the client's own close
            self.read_paused = False
            self.transport.resume_reading()
