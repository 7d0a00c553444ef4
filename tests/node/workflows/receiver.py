"""A receiver of webhooks: an HTTP server of this machine that notes what comes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import cast

__all__ = ["Receiver", "receiving"]


class Receiver(HTTPServer):
    """Notes what comes and answers with ``statuses`` in turn, the last one from then on."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.received: list[tuple[dict[str, str], bytes]] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/ended?token=hidden"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server = cast(Receiver, self.server)
        body = self.rfile.read(int(self.headers["content-length"]))
        server.received.append((dict(self.headers), body))
        status = server.statuses.pop(0) if len(server.statuses) > 1 else server.statuses[0]
        self.send_response(status)
        if status == 302:
            self.send_header("location", "/elsewhere")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def receiving(*statuses: int) -> Iterator[Receiver]:
    """Serve a receiver of messages, in a thread."""
    server = Receiver(*statuses)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
