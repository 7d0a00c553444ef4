"""The standard library's threaded HTTP server, with bounds on its connections and on their duration."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["BoundedServer", "serving"]


class BoundedServer(ThreadingHTTPServer):
    """One thread for each connection. A connection above the bound is closed at once."""

    daemon_threads = True

    def __init__(
        self, listener: socket.socket, handler: type[BaseHTTPRequestHandler], *, connections_max: int,
        connection_s_max: float | None = None,
    ) -> None:  # fmt: skip
        """``connection_s_max``: a connection is closed after this time, even while bytes still arrive."""
        self._places = threading.BoundedSemaphore(connections_max)
        self._connection_s_max = connection_s_max
        super().__init__(listener.getsockname()[:2], handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in its own thread, or close it."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection."""
        end = None
        if self._connection_s_max is not None:
            end = threading.Timer(self._connection_s_max, _shut, (request,))
            end.daemon = True
            end.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            if end is not None:
                end.cancel()
            self._places.release()


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def serving(servers: Sequence[BoundedServer]) -> Iterator[None]:
    """Run servers in threads, and close them at the end."""
    for server in servers:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True).start()
    try:
        yield
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
