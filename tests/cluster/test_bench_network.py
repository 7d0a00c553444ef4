from __future__ import annotations

from functools import partial

import pytest

from node.home.options import MempoolOptions, NodeOptions
from node.telemetry.cpu_accounting import STAGES
from testnet import bench_sync
from testnet.bench import run
from tests.cluster.ports import free_ports


@pytest.mark.cluster
def test_a_short_load_becomes_final_and_its_time_is_accounted_for() -> None:
    figures = run(seconds=6, rate=1_500, window=6_000, base_port=free_ports())
    assert figures["transactions_final"] >= 200
    assert figures["compact_proposals_sent"] > 0
    assert figures["compact_proposals_rebuilt"] + figures["compact_proposals_whole"] > 0
    assert figures["transactions_lost"] == 0
    assert 0 < figures["finality_ms_p50"] <= figures["finality_ms_p99"]
    shares = [figures[f"cpu_share_{stage}"] for stage in (*STAGES, "verify", "gateway")]
    assert sum(shares) == pytest.approx(1)
    assert all(figures[f"cpu_share_{stage}"] > 0 for stage in ("verify", "gateway", "admit", "execute", "commit"))


@pytest.mark.nightly
@pytest.mark.cluster
def test_more_than_the_pools_hold_is_refused_and_nothing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was refused is sent again and becomes final; the validators agree at the end, or ``run`` raises."""
    small = MempoolOptions(transactions_max=300)
    monkeypatch.setattr("testnet.plan.NodeOptions", partial(NodeOptions, mempool=small))
    figures = run(seconds=4, rate=3_000, window=50_000, base_port=free_ports())
    assert figures["refusals"] > 0
    assert figures["transactions_final"] > 300


@pytest.mark.nightly
@pytest.mark.cluster
def test_a_node_without_its_database_catches_up_in_every_way() -> None:
    """How fast is for the benchmark to say; here that all three come to the end."""
    figures = bench_sync.run(blocks=300, turns=1, base_port=free_ports())
    assert all(figures[f"{way}_blocks_per_s"] > 0 for way in ("plain", "seated", "repaired"))
