"""Metrics carry the names of the protocol's specification; health and readiness say what they are asked."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from consensus.halts import ConsensusHalted
from consensus.metrics import METRICS
from node.daemon.service import Node
from node.home.options import MetricsOptions, NodeOptions
from node.home.paths import Home
from node.telemetry.metrics import NodeMetrics, serve_metrics
from state.primitives.errors import ConfigError
from state.primitives.keys import SecretKey
from tests.node.home.test_create import GENESIS

SPECIFIED = """epoch view finalized_height finalized_view_lag backoff_exponent notarization_latency_seconds
finalization_latency_seconds proposal_build_seconds block_execute_seconds vote_guard_fsync_seconds
view_timeouts_total nullifications_total votes_total seat_last_vote_view equivocations_total guard_refusals_total
certificates_total retransmits_total blocksync_lag_blocks state_divergence late_votes_total
missing_weight_ratio evidence_pending statesync_chunks_total epoch_tail_misses_total
committee_lottery_weight_ratio"""
ADDED = {"messages_dropped_total", "signer_connected"}
LABELS = {"view_timeouts": ("reason",), "nullifications": ("leader",), "votes": ("kind", "result"),
          "seat_last_vote_view": ("seat",), "equivocations": ("type",), "guard_refusals": ("rule",),
          "certificates": ("kind", "source"), "late_votes": ("kind",), "statesync_chunks": ("result",),
          "epoch_tail_misses": ("seat",)}  # fmt: skip


def families(metrics: NodeMetrics) -> dict[str, Any]:
    text = generate_latest(metrics.registry).decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_the_names_and_labels_are_those_of_the_specification() -> None:
    assert set(METRICS) == {*SPECIFIED.split(), *ADDED}
    metrics = NodeMetrics()
    for name, labels in LABELS.items():
        known = dict.fromkeys(labels, "x")
        if name == "seat_last_vote_view":
            metrics.set(name, 5, **known)
        else:
            metrics.count(f"{name}_total", 1, **known)
    found = families(metrics)
    assert {f"sdbft_{name.removesuffix('_total')}" for name in SPECIFIED.split()} <= set(found)
    for name, labels in LABELS.items():
        assert set(found[f"sdbft_{name}"].samples[0].labels) >= set(labels)


def test_what_is_counted_set_and_observed_is_shown() -> None:
    metrics = NodeMetrics()
    metrics.count("retransmits_total", 3)
    metrics.set("view", 7)
    metrics.observe("finalization_latency_seconds", 0.3)
    found = families(metrics)
    assert next(s.value for s in found["sdbft_retransmits"].samples if s.name.endswith("_total")) == 3
    assert found["sdbft_view"].samples[0].value == 7
    samples = found["sdbft_finalization_latency_seconds"].samples
    assert next(s.value for s in samples if s.name.endswith("_count")) == 1


def test_what_is_cleared_is_shown_no_more() -> None:
    metrics = NodeMetrics()
    metrics.set("seat_last_vote_view", 5, seat="0x01")
    assert families(metrics)["sdbft_seat_last_vote_view"].samples
    metrics.clear("seat_last_vote_view")
    assert not families(metrics)["sdbft_seat_last_vote_view"].samples


def fetch(url: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        found: int = probe.getsockname()[1]
        return found


async def test_health_readiness_and_metrics_are_served_and_nothing_else(port: int) -> None:
    metrics, syncing = NodeMetrics(), [True]
    get: Callable[[str], Any] = lambda path: trio.to_thread.run_sync(fetch, f"http://127.0.0.1:{port}{path}")  # noqa: E731
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_metrics, metrics, f"127.0.0.1:{port}")
        assert await get("/healthz") == (200, b"ok\n")
        assert await get("/readyz") == (503, b"syncing\n"), "no node yet"
        assert (await get("/metrics"))[0] == 200
        assert (await get("/other"))[0] == 404
        metrics.watch(cast(Any, SimpleNamespace(is_following=lambda: not syncing[0])))
        assert (await get("/readyz"))[0] == 503
        syncing[0] = False
        assert await get("/readyz") == (200, b"ready\n")
        with pytest.raises(ConfigError, match=str(port)):
            await serve_metrics(metrics, f"127.0.0.1:{port}")
        nursery.cancel_scope.cancel()


def ask(port: int, request: bytes) -> bytes:
    """Return all that comes back."""
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def reset(port: int, request: bytes) -> None:
    """Ask, and leave by a reset."""
    connection = socket.create_connection(("127.0.0.1", port), 10)
    connection.sendall(request)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


async def test_load_balancers_are_answered_and_their_resets_leave_no_trace(
    port: int, capfd: pytest.CaptureFixture[str]
) -> None:
    metrics = NodeMetrics()
    for number in range(20_000):  # an answer of megabytes: it is still written when the reset comes
        metrics._consensus["votes_total"].labels(kind=str(number), result="x")

    def run() -> None:
        for path in ("/healthz", "/metrics?name[]=sdbft_view", "/readyz", "/other"):
            get = ask(port, f"GET {path} HTTP/1.0\r\n\r\n".encode())
            head, _, body = get.partition(b"\r\n\r\n")
            assert body and f"content-length: {len(body)}".encode() in head.lower(), path
            found = ask(port, f"HEAD {path} HTTP/1.0\r\n\r\n".encode())
            assert found.split(b"\r\n")[0] == head.split(b"\r\n")[0], path
            assert found.partition(b"\r\n\r\n")[2] == b""
            assert f"content-length: {len(body)}".encode() in found.lower()
        with capture_logs() as lines:
            for request in (b"", b"GET", b"GET /healthz HTTP/1.0\r\n\r\n", b"GET /metrics HTTP/1.1\r\n\r\n"):
                for _ in range(3):
                    reset(port, request)
            assert ask(port, b"GET /healthz HTTP/1.1\r\nhost: lb.example\r\n\r\n").endswith(b"ok\n")
        assert lines == []

    async with trio.open_nursery() as nursery:
        await nursery.start(serve_metrics, metrics, f"127.0.0.1:{port}")
        await trio.to_thread.run_sync(run)
        nursery.cancel_scope.cancel()
    told = capfd.readouterr()
    assert (told.out, told.err) == ("", "")


async def test_what_fails_at_the_metrics_is_one_line(port: int, capfd: pytest.CaptureFixture[str]) -> None:
    metrics = NodeMetrics()
    metrics.watch(cast(Any, SimpleNamespace()))
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_metrics, metrics, f"127.0.0.1:{port}")
        with capture_logs() as lines:
            assert await trio.to_thread.run_sync(ask, port, b"GET /readyz HTTP/1.0\r\n\r\n") == b""
        nursery.cancel_scope.cancel()
    assert ["AttributeError" in line["error"] for line in lines] == [True]
    assert capfd.readouterr().err == ""


async def test_connections_at_the_metrics_are_bounded_in_number_and_time(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.telemetry.metrics.CONNECTIONS_MAX", 2)
    monkeypatch.setattr("node.telemetry.metrics.CONNECTION_S_MAX", 0.2)

    def run() -> None:
        held = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(3)]
        assert [one.recv(1) for one in held] == [b""] * 3
        for one in held:
            one.close()
        ends = time.monotonic() + 60  # a thread frees its place a moment after its connection has ended
        while not (answer := ask(port, b"GET /healthz HTTP/1.0\r\n\r\n")) and time.monotonic() < ends:
            time.sleep(0.01)
        assert answer.endswith(b"ok\n")

    async with trio.open_nursery() as nursery:
        await nursery.start(serve_metrics, NodeMetrics(), f"127.0.0.1:{port}")
        await trio.to_thread.run_sync(run)
        nursery.cancel_scope.cancel()


class Diverging(Node):
    """A node that fetches a state, is told to go on, and then finds that its state is another one."""

    def __init__(self, home: Home, options: NodeOptions) -> None:
        super().__init__(home, options, GENESIS, SecretKey(b"k" * 32), ())
        self.goes_on = trio.Event()

    async def _run_parts(self, task_status: trio.TaskStatus[None]) -> None:
        self.setup.metrics.count("statesync_chunks_total", result="ok")
        task_status.started()
        await self.goes_on.wait()
        self.setup.metrics.set("state_divergence", 1)
        raise ConsensusHalted("state_divergence", "a test")


def shows(text: bytes, line: str) -> bool:
    return line in text.decode().splitlines()


async def test_metrics_are_there_from_the_start_and_until_a_divergence_was_seen(port: int, tmp_path: Path) -> None:
    options = NodeOptions(metrics=MetricsOptions(listen=f"127.0.0.1:{port}"))
    node = Diverging(Home(tmp_path), options)
    get: Callable[[str], Any] = lambda path: trio.to_thread.run_sync(fetch, f"http://127.0.0.1:{port}{path}")  # noqa: E731
    ended: list[ConsensusHalted] = []

    async def live(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with pytest.raises(ConsensusHalted) as caught:
            await node.run(task_status)
        ended.append(caught.value)

    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            await nursery.start(live)
            assert await get("/healthz") == (200, b"ok\n")
            assert (await get("/readyz"))[0] == 503
            assert shows((await get("/metrics"))[1], 'sdbft_statesync_chunks_total{result="ok"} 1.0')
            node.goes_on.set()
            seen = False
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                while not ended:  # also once more than it is seen: what was read too early is not counted
                    seen |= shows((await get("/metrics"))[1], "sdbft_state_divergence 1.0")
    assert seen
    assert [error.reason for error in ended] == ["state_divergence"]
