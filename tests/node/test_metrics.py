"""Metrics carry the names of the protocol's specification; health and readiness say what they are asked."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from node.metrics import NodeMetrics, serve_metrics
from state.primitives.errors import ConfigError

SPECIFIED = """epoch view finalized_height finalized_view_lag backoff_exponent notarization_latency_seconds
finalization_latency_seconds proposal_build_seconds block_execute_seconds vote_guard_fsync_seconds
view_timeouts_total nullifications_total votes_total seat_last_vote_view equivocations_total guard_refusals_total
certificates_total retransmits_total blocksync_lag_blocks state_divergence"""
LABELS = {"view_timeouts": ("reason",), "nullifications": ("leader",), "votes": ("kind", "result"),
          "seat_last_vote_view": ("seat",), "equivocations": ("type",), "guard_refusals": ("rule",),
          "certificates": ("kind", "source")}  # fmt: skip


def families(metrics: NodeMetrics) -> dict[str, Any]:
    text = generate_latest(metrics.registry).decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_the_names_and_labels_are_those_of_the_specification() -> None:
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


def fetch(url: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@pytest.fixture
def port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        found: int = probe.getsockname()[1]
        return found


async def test_health_readiness_and_metrics_are_served_and_nothing_else(port: int) -> None:
    metrics, syncing = NodeMetrics(), [True]
    get: Callable[[str], Any] = lambda path: trio.to_thread.run_sync(fetch, f"http://127.0.0.1:{port}{path}")  # noqa: E731
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_metrics, metrics, "127.0.0.1", port)
        assert await get("/healthz") == (200, b"ok\n")
        assert await get("/readyz") == (503, b"syncing\n"), "no node yet"
        assert (await get("/metrics"))[0] == 200
        assert (await get("/other"))[0] == 404
        view = SimpleNamespace(sync=lambda: SimpleNamespace(syncing=syncing[0]))
        metrics.watch(cast(Any, SimpleNamespace(view=view)))
        assert (await get("/readyz"))[0] == 503
        syncing[0] = False
        assert await get("/readyz") == (200, b"ready\n")
        with pytest.raises(ConfigError, match=str(port)):
            await serve_metrics(metrics, "127.0.0.1", port)
        nursery.cancel_scope.cancel()
