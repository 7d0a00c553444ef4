"""A failure at each durable operation of a run of 30 views: always a restart, never a contradiction."""

from __future__ import annotations

import random

import pytest

from consensus.simulation.cluster import Cluster
from consensus.simulation.crash_points import VIEWS, operations, run_crash_point
from consensus.simulation.disk import Fault

PARTS = 3


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("fault", Fault)
def test_a_failure_at_each_durable_operation(fault: Fault, part: int) -> None:
    count = operations()
    assert count > 4 * VIEWS, "a view has several durable operations"
    for operation in range(1 + part, count + 1, PARTS):
        run_crash_point(operation, fault)


@pytest.mark.parametrize("seed", range(12))
def test_the_whole_committee_loses_power_again_and_again(seed: int) -> None:
    cluster = Cluster(100 + seed, (1, 1, 1, 1), frozenset(range(4)))
    cluster.network.latency_ms_max = 8
    cluster.network.loss = 0.02
    rng = random.Random(seed)
    cluster.start_all()
    for _ in range(8):
        cluster.run(cluster.now_ms + rng.randrange(20, 200))
        for node in cluster.nodes:
            node.is_torn_next = rng.random() < 0.5
            cluster.crash(node, 10)
    height = cluster.oracle.height_max
    cluster.run(cluster.now_ms + 20_000, lambda: min(cluster.oracle.height(n) for n in range(4)) > height + 5)
    assert min(cluster.oracle.height(n) for n in range(4)) > height + 5
