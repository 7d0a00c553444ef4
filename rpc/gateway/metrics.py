"""Metrics of the gateway, in the format of Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily

from rpc.gateway.connections import ConnectionLimiter
from rpc.gateway.node.client import NodeClient
from rpc.process.log_output import LogCollector

__all__ = ["Metrics"]


class Metrics:
    """Counters of the gateway; methods and reasons are bounded sets, so are the labels."""

    def __init__(self, node: NodeClient, limiter: ConnectionLimiter) -> None:
        self.registry = CollectorRegistry()
        self._counts: Counter[tuple[str, str]] = Counter()
        self.websockets = Gauge("dekube_rpc_websockets", "Open WebSocket connections", registry=self.registry)
        connections = Gauge("dekube_rpc_connections", "Open connections", registry=self.registry)
        connections.set_function(lambda: limiter.open)
        connected = Gauge("dekube_rpc_node_connected", "1 while the node answers", registry=self.registry)
        connected.set_function(lambda: float(node.is_connected))
        held = Gauge("dekube_rpc_held_bytes", "Bodies not whole and answers not read", registry=self.registry)
        held.set_function(lambda: limiter.memory_quota.bytes)
        self.registry.register(self)
        self.registry.register(LogCollector())

    def observe(self, method: str, outcome: str) -> None:
        """Count a request: a number of our own, which costs a tenth of the library's counter."""
        self._counts[method, outcome] += 1

    def collect(self) -> Iterable[CounterMetricFamily]:
        """Return the counts as the library shows them."""
        family = CounterMetricFamily("dekube_rpc_requests", "JSON-RPC requests", labels=("method", "outcome"))
        for (method, outcome), count in self._counts.items():
            family.add_metric((method or "none", outcome), count)
        return (family,)

    def expose(self) -> bytes:
        """Return the text of Prometheus."""
        return generate_latest(self.registry)
