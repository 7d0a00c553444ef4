"""The relay's HTTP endpoints for monitoring: /metrics and /healthz, one request per connection."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final, Protocol, cast

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from relay.payment.accounts import PayerAccounts
from relay.protocol.limits import HostTable
from relay.server.circuits import CarriedCircuits
from relay.server.core import RelayCore
from relay.server.fanout_daemon import FanoutServer
from relay.server.next_hop import NextHopLinks

__all__ = ["HttpAnswerer", "registry_of"]

HTTP_REQUEST_BYTES_MAX: Final = 8_192
HTTP_TIMEOUT_S: Final = 5
HTTP_CONNECTIONS_MAX: Final = 64


class RelayMetricsSource(Protocol):
    """The parts of the daemon whose counts are exported."""

    core: RelayCore
    accounts: PayerAccounts
    circuits: CarriedCircuits
    fanout: FanoutServer
    links: NextHopLinks
    hosts: HostTable
    drops: Counter[str]
    has_bbr: bool

    @property
    def connections(self) -> int:
        """All connections of clients."""
        ...

    @property
    def half_open(self) -> int:
        """Connections that have not finished their handshake or shown their token."""
        ...


def registry_of(daemon: RelayMetricsSource, collectors: Iterable[Any]) -> CollectorRegistry:
    """Return the registry of a daemon's counts and of the ``collectors`` of its process."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(cast(Any, _Collector(daemon)))
    for collector in collectors:
        registry.register(collector)
    return registry


class HttpAnswerer(asyncio.Protocol):
    """One HTTP connection: it answers one GET or HEAD of /metrics or /healthz."""

    def __init__(self, registry: CollectorRegistry, others: set[HttpAnswerer] | None = None) -> None:
        self._registry = registry
        self._others = set() if others is None else others
        """All open connections of the same listener."""
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the request and until the answer is read, with one time limit for both."""
        self._transport = cast(asyncio.Transport, transport)
        self._timer = asyncio.get_running_loop().call_later(HTTP_TIMEOUT_S, self._reset)
        if len(self._others) >= HTTP_CONNECTIONS_MAX:
            self._transport.abort()
        self._others.add(self)
        # Unsent bytes that the kernel holds after the close are discarded after the same time.
        with contextlib.suppress(OSError):
            sock = transport.get_extra_info("socket")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1_000 * HTTP_TIMEOUT_S)

    def _reset(self) -> None:
        with contextlib.suppress(OSError):
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Answer the request when it is complete."""
        self._buffer += data
        if len(self._buffer) > HTTP_REQUEST_BYTES_MAX:
            self._transport.abort()
        elif b"\r\n\r\n" in self._buffer and not self._transport.is_closing():
            method, _, rest = self._buffer.split(b"\r\n", 1)[0].partition(b" ")
            is_head = method == b"HEAD"
            match method, rest.split(b" ")[0].partition(b"?")[0]:
                case b"GET" | b"HEAD", b"/metrics":
                    self._answer("200 OK", generate_latest(self._registry), is_head=is_head)
                case b"GET" | b"HEAD", b"/healthz":
                    self._answer("200 OK", b"ok\n", is_head=is_head)
                case _:
                    self._answer("404 Not Found", b"/metrics or /healthz\n", is_head=is_head)

    def _answer(self, status: str, body: bytes, *, is_head: bool) -> None:
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self._transport.write(head.encode() + (b"" if is_head else body))
        self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        """Forget the connection."""
        self._timer.cancel()
        self._others.discard(self)


class _Collector:
    """Reads the daemon's counts at each request for metrics."""

    def __init__(self, daemon: RelayMetricsSource) -> None:
        self._daemon = daemon

    def collect(self) -> Iterable[Metric]:
        daemon, core, accounts = self._daemon, self._daemon.core, self._daemon.accounts
        carried = daemon.circuits.count_bytes()  # first: what is unpaid follows from it
        for name, text, value in (
            ("reservations", "Clients that can be reached through this relay", core.reservations),
            ("circuits", "Running circuits", core.circuits),
            ("pending_circuits", "Circuits that wait for a data connection", core.pending),
            ("control_connections", "Control connections", core.controls),
            ("connections", "Connections of clients", daemon.connections),
            ("parked_connections", "Data connections parked for the next circuit", core.parked),
            ("fanout_connections", "Connections for fan-out", daemon.fanout.core.connections),
            ("next_hop_links", "Links to other relays", len(daemon.links.known)),
            ("unpaid_bytes", "Bytes that payers owe beyond the free tier", accounts.meter.unpaid_bytes),
            ("known_payers", "Payers remembered", len(accounts.credit)),
            (
                "unfunded_bytes",
                "Bytes carried today for payers without funds on the chain",
                accounts.credit.unfunded.size_bytes,
            ),
            (
                "load_percent",
                "Load of the relay: the higher of its reservations and circuits, in percent of the limit",
                core.load_percent,
            ),
            ("half_open", "Connections with an unfinished handshake", daemon.half_open),
            ("hosts", "Hosts remembered", len(daemon.hosts)),
            ("bbr", "Whether the last connection uses BBR congestion control", int(daemon.has_bbr)),
        ):
            yield GaugeMetricFamily(f"dekube_relay_{name}", text, value=value)
        yield CounterMetricFamily("dekube_relay_circuits", "Circuits joined", value=daemon.circuits.circuits_total)
        yield CounterMetricFamily("dekube_relay_bytes", "Bytes carried", value=carried)
        yield CounterMetricFamily("dekube_relay_receipts", "Receipts accepted", value=accounts.receipts_total)
        yield CounterMetricFamily(
            "dekube_relay_settled_receipts", "Receipts settled on the chain", value=accounts.settled_total
        )
        fanout = CounterMetricFamily(
            "dekube_relay_fanout", "Pieces and bytes of fan-out, by outcome", labels=["what"]
        )
        for what, count in sorted(daemon.fanout.core.counters.items()):
            fanout.add_metric([what], count)
        yield fanout
        refusals = CounterMetricFamily("dekube_relay_refusals", "Requests refused", labels=["reason"])
        for refusal, count in core.refusals.items():
            refusals.add_metric([refusal.label], count)
        yield refusals
        drops = CounterMetricFamily("dekube_relay_drops", "Connections closed by the relay", labels=["reason"])
        for reason, count in sorted(daemon.drops.items()):
            drops.add_metric([reason], count)
        yield drops
