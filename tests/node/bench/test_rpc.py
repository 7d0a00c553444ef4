from __future__ import annotations

import pytest
import trio

from node.bench.rpc import run

pytestmark = pytest.mark.slow


async def test_a_tiny_run_gives_every_figure() -> None:
    figures = await trio.to_thread.run_sync(
        lambda: run(accounts=50, seconds=0.3, rate_per_s=100, websockets=20, network_seconds=0)
    )
    assert figures["cpu_us_per_eth_get_balance"] > 0
    assert figures["cpu_us_per_batch_of_100"] > 0
    assert figures["accept_cpu_us_per_transaction"] > 0
    assert figures["p99_ms_at_100_per_s"] >= figures["p50_ms_at_100_per_s"] > 0
    assert figures["gateway_peak_mib"] >= figures["idle_websockets_mib"] > 0


async def test_submissions_alone() -> None:
    figures = await trio.to_thread.run_sync(lambda: run(accounts=50, seconds=0.2, only_submit=1))
    assert all("submi" in name or "accept" in name for name in figures)
    assert figures["accept_cpu_us_per_ethereum_transaction"] > 0
    assert figures["submit_cpu_us_per_transaction"] > 0
    assert figures["accepted_per_s"] > 0
    assert figures["accept_recoveries_per_transaction"] > 0
