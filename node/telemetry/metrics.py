"""Prometheus metrics of a node, named in docs/operations.md; also /healthz and /readyz."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler
from typing import Any, Final, TypeVar

import structlog
import trio
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import make_wsgi_app
from prometheus_client.metrics_core import Metric

from consensus.metrics import METRICS
from node.process.bounded_http import BoundedServer, serving
from node.process.ports import listen_at
from node.telemetry.source import MetricsSource
from node.telemetry.vote_liveness import VoteLiveness
from rpc.process.log_output import LogCollector

__all__ = ["NodeMetrics", "serve_metrics"]

_log = structlog.get_logger("metrics")
_T = TypeVar("_T")

FAST_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
ROUND_BUCKETS: Final = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
REQUEST_TIMEOUT_S: Final = 5
CONNECTIONS_MAX: Final = 32
"""Concurrent connections at metrics.listen. Further ones are closed."""
CONNECTION_S_MAX: Final = 15.0
SEAT_HEARD: Final = "seat_last_vote_view"
"""Set at each vote of a seat; cleared when a new epoch begins."""


class NodeMetrics:
    """The registry and everything in it; the consensus service sets the ``sdbft_`` ones."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.vote_liveness = VoteLiveness()
        r = self.registry
        self._consensus: dict[str, Any] = {}
        self._source: MetricsSource | None = None
        self._loop: trio.lowlevel.TrioToken | None = None
        self._scraped: trio.Event | None = None
        r.register(self)  # first: what is read after it has answered is at least as new as wait_scrape says
        r.register(LogCollector())
        for name, (kind, labels) in METRICS.items():
            text = name.removesuffix("_total").replace("_", " ")
            if kind == "histogram":
                buckets = ROUND_BUCKETS if "latency" in name else FAST_BUCKETS
                self._consensus[name] = Histogram(f"sdbft_{name}", text, labels, buckets=buckets, registry=r)
            else:
                cls = Gauge if kind == "gauge" else Counter
                self._consensus[name] = cls(f"sdbft_{name}", text, labels, registry=r)

    # What the consensus service calls (consensus.metrics.Metrics).

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        """Add to a counter."""
        self._labelled(name, labels).inc(amount)

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        self._labelled(name, labels).set(value)
        if name == SEAT_HEARD:
            self.vote_liveness.note(labels["seat"], value)

    def observe(self, name: str, value: float) -> None:
        """Add to a histogram, in seconds."""
        self._consensus[name].observe(value)

    def clear(self, name: str) -> None:
        """Remove all values of a metric with labels."""
        self._consensus[name].clear()
        if name == SEAT_HEARD:
            self.vote_liveness.forget()

    def _labelled(self, name: str, labels: dict[str, str]) -> Any:
        metric = self._consensus[name]
        return metric.labels(**labels) if labels else metric

    # The node's own.

    async def wait_scrape(self) -> None:
        """Wait for the next scrape."""
        self._loop = trio.lowlevel.current_trio_token()
        self._scraped = trio.Event()
        await self._scraped.wait()

    def unwatch(self) -> None:
        """Stop reading the node's gauges: their source is about to be closed."""
        self._source = None

    def watch(self, source: MetricsSource) -> None:
        """Read the node's gauges at each scrape. Call this on the node's event loop."""
        self._source, self._loop = source, trio.lowlevel.current_trio_token()

    def collect(self) -> Iterable[Any]:
        """Return the gauges."""
        if self._loop is None:
            return []  # asked once when registered
        return self._on_loop(self._read_now)

    def _on_loop(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Called by a server thread: read the gauges on the event loop that owns them."""
        return trio.from_thread.run_sync(function, *arguments, trio_token=self._loop)

    def _read_now(self) -> Iterable[Metric]:
        if self._scraped is not None:
            self._scraped.set()
        return [] if self._source is None else self._source.families()

    def is_ready(self) -> bool:
        """Tell whether the node follows the chain."""
        return self._source is not None and self._on_loop(self._follows)

    def _follows(self) -> bool:
        return self._source is not None and self._source.is_following()


class _Server(BoundedServer):
    """Serves the metrics of one node."""

    def __init__(self, listener: socket.socket, metrics: NodeMetrics) -> None:
        self.metrics = metrics
        self.exposition = make_wsgi_app(metrics.registry)
        super().__init__(listener, _Handler, connections_max=CONNECTIONS_MAX, connection_s_max=CONNECTION_S_MAX)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log one line, except for a disconnected client or a stopping node."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError | trio.RunFinishedError | trio.Cancelled):
            _log.warning("a request at metrics.listen failed", error=repr(error))


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD."""

    timeout = REQUEST_TIMEOUT_S
    server: _Server
    server_version = "dekube"
    sys_version = ""

    def setup(self) -> None:
        """Reset a client's connection if it does not read, also after it was closed here."""
        super().setup()
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1_000 * REQUEST_TIMEOUT_S)

    def do_GET(self) -> None:
        """Answer a request."""
        path, _, query = self.path.partition("?")
        kind = "text/plain; charset=utf-8"
        match path:
            case "/metrics":
                status, headers, body = self._expose(query)
            case "/healthz":
                status, headers, body = 200, [("Content-Type", kind)], b"ok\n"
            case "/readyz":
                ready = self.server.metrics.is_ready()
                status, body = (200, b"ready\n") if ready else (503, b"syncing\n")
                headers = [("Content-Type", kind)]
            case _:
                status, headers, body = 404, [("Content-Type", kind)], b"not found\n"
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

    def _expose(self, query: str) -> tuple[int, list[tuple[str, str]], bytes]:
        """Return the library's answer in the requested format, compression and filter."""
        told: list[Any] = []
        environ = {
            "REQUEST_METHOD": "GET",
            "PATH_INFO": "/metrics",
            "QUERY_STRING": query,
            "HTTP_ACCEPT": self.headers.get("accept", ""),
            "HTTP_ACCEPT_ENCODING": self.headers.get("accept-encoding", ""),
        }
        body = b"".join(self.server.exposition(environ, lambda *said: told.extend(said)))
        return int(told[0].split()[0]), told[1], body

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: scrapes are frequent."""


async def serve_metrics(
    metrics: NodeMetrics, listen: str, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Answer /metrics, /healthz and /readyz at ``listen`` until cancelled.

    Raises ConfigError for a port in use. The library's server runs in threads of its own and only reads.
    """
    with serving([_Server(listener, metrics) for listener in listen_at("metrics.listen", listen)]):
        task_status.started()
        await trio.sleep_forever()
