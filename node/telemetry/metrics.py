"""Prometheus metrics of a node, as docs/operations.md names them; /healthz and /readyz beside."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final, TypeVar

import structlog
import trio
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import make_wsgi_app

from consensus.metrics import METRICS
from node.process.ports import listen_at
from node.telemetry.vote_liveness import Hearing
from rpc.process.log_output import LogCollector

if TYPE_CHECKING:
    from node.daemon.service import Node

__all__ = ["NodeMetrics", "serve_metrics"]

_log = structlog.get_logger("metrics")
_T = TypeVar("_T")

FAST_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
ROUND_BUCKETS: Final = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
REQUEST_TIMEOUT_S: Final = 5
CONNECTIONS_MAX: Final = 32
"""At metrics.listen at once; more are closed."""
CONNECTION_S_MAX: Final = 15.0
SEAT_HEARD: Final = "seat_last_vote_view"
"""Set at each vote of a seat, cleared when another epoch begins."""


class NodeMetrics:
    """The registry and everything in it; the consensus service sets the ``sdbft_`` ones."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.hearing = Hearing()
        r = self.registry
        self._consensus: dict[str, Any] = {}
        self._node: Node | None = None
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
            self.hearing.note(labels["seat"], value)

    def observe(self, name: str, value: float) -> None:
        """Add to a histogram, in seconds."""
        self._consensus[name].observe(value)

    def clear(self, name: str) -> None:
        """Forget every value of a metric with labels."""
        self._consensus[name].clear()
        if name == SEAT_HEARD:
            self.hearing.forget()

    def _labelled(self, name: str, labels: dict[str, str]) -> Any:
        metric = self._consensus[name]
        return metric.labels(**labels) if labels else metric

    # The node's own.

    async def wait_scrape(self) -> None:
        """Wait until somebody reads the metrics, from now on."""
        self._loop = trio.lowlevel.current_trio_token()
        self._scraped = trio.Event()
        await self._scraped.wait()

    def unwatch(self) -> None:
        """Show the node's own numbers no more: what they are read from is about to be closed."""
        self._node = None

    def watch(self, node: Node) -> None:
        """Take the node's own numbers at each scrape; call it on the event loop that runs the node."""
        self._node, self._loop = node, trio.lowlevel.current_trio_token()

    def collect(self) -> Iterable[Any]:
        """Return the numbers that are read rather than counted."""
        if self._loop is None:
            return []  # asked once when registered
        return self._on_loop(self._read_now)

    def _on_loop(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Call from a thread of the server: what is read belongs to the loop."""
        return trio.from_thread.run_sync(function, *arguments, trio_token=self._loop)

    def _read_now(self) -> list[Any]:
        if self._scraped is not None:
            self._scraped.set()
        return [] if self._node is None else self._read(self._node)

    def _read(self, node: Node) -> list[Any]:
        families: list[Any] = []
        head = node.ledger.head()
        for name, text, value in (
            ("dekube_block_height", "Height of the newest final block", head.height),
            ("dekube_block_time_seconds", "Chain time of the newest final block", head.time_ms / 1000),
            ("dekube_base_fee", "Base fee of the next block", head.base_fee_next),
            ("dekube_mempool_transactions", "Transactions in the mempool", len(node.ledger.mempool)),
            ("dekube_mempool_bytes", "Bytes of the mempool", node.ledger.mempool.size_bytes),
            ("dekube_peers", "Connected peers", len(node.network.peers())),
            ("dekube_relay_reservations", "Reservations at relays that stand", len(node.relays.reservations)),
            (
                "dekube_multicast_last_seconds",
                "How long the newest own block took to the last of its receivers",
                next((done.took_s for done in reversed(node.network.multicasts.finished)), 0.0),
            ),
            (
                "dekube_unknown_version_signalled_ratio",
                "Part of the committee's weight that signals a version of the protocol that is not known here",
                0.0 if (coming := node.upgrades.coming) is None else coming.percent / 100,
            ),
            (
                "dekube_last_known_height",
                "The last block before a version of the protocol holds that is not known here, 0 for none",
                0 if coming is None else coming.last_height or 0,
            ),
            (
                "dekube_clock_ahead_seconds",
                "How far this machine's clock is ahead of the validators', 0 while it is right or unknown",
                node.clocks.judge().own_ahead_ms / 1000,
            ),
            ("dekube_jobs_running", "Jobs of the executor that run", len(node.duties.jobs())),
            ("dekube_job_ends", "Job processes that ended by themselves since the start", node.duties.job_ends),
        ):
            families.append(GaugeMetricFamily(name, text, value=float(value)))
        network = node.network
        for name, text, value in (
            ("dekube_peer_lanes", "Bulk connections of all peers", sum(p.lanes for p in network.peers())),
            ("dekube_receive_bytes", "Memory of messages on their way in", network.memory.used_bytes),
        ):
            families.append(GaugeMetricFamily(name, text, value=float(value)))
        granted = GaugeMetricFamily(
            "dekube_congestion_control", "What the kernel granted on the sockets of the network", labels=["name"]
        )
        granted.add_metric([network.congestion_control or "unknown"], 1.0)
        families.append(granted)
        events = CounterMetricFamily("dekube_network_events", "Events of the network by name", labels=["event"])
        for event, count in node.network.counters.items():
            events.add_metric([event], count)
        stages = CounterMetricFamily(
            "dekube_stage_cpu_seconds", "CPU time of the node process by stage of its work", labels=["stage"]
        )
        for stage, seconds in node.stages.seconds().items():
            stages.add_metric([stage], seconds)
        return [*families, events, stages]

    def is_ready(self) -> bool:
        """Tell whether the node follows the chain."""
        return self._node is not None and self._on_loop(self._follows)

    def _follows(self) -> bool:
        return self._node is not None and not self._node.view.sync().syncing


class _Server(ThreadingHTTPServer):
    """A thread for each connection, of which there are few, each for a short time."""

    daemon_threads = True

    def __init__(self, listener: socket.socket, metrics: NodeMetrics) -> None:
        self.metrics = metrics
        self.exposition = make_wsgi_app(metrics.registry)
        self._places = threading.BoundedSemaphore(CONNECTIONS_MAX)
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        # Bytes that come or go one by one hold no place for long.
        end = threading.Timer(CONNECTION_S_MAX, _shut, (request,))
        end.daemon = True
        end.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            end.cancel()
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log one line; a client that leaves, a node that ends, are none."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError | trio.RunFinishedError | trio.Cancelled):
            _log.warning("a request at metrics.listen failed", error=repr(error))


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    """Answers GET, and HEAD with the same head."""

    timeout = REQUEST_TIMEOUT_S
    server: _Server
    server_version = "dekube"
    sys_version = ""

    def setup(self) -> None:
        """Let the kernel reset the connection of a client that does not read, also after it was closed here."""
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
        """Return what the library answers: in the format, compressed and filtered as the request asks."""
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
        """Say nothing: a scrape every few seconds is no event."""


async def serve_metrics(
    metrics: NodeMetrics, listen: str, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Answer /metrics, /healthz and /readyz at ``listen`` until cancelled. Raises ConfigError for a port in use.

    The library's server lives in threads of its own; it only reads.
    """
    servers = [_Server(listener, metrics) for listener in listen_at("metrics.listen", listen)]
    for server in servers:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True).start()
    try:
        task_status.started()
        await trio.sleep_forever()
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
