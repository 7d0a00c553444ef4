"""Power fails at each durable operation of a run of 30 views: always a restart, never a contradiction."""

from __future__ import annotations

import random

import pytest

from consensus.simulation.cluster import Cluster

VIEWS = 30
RESTART_MS = 40


def cluster_of(seed: int) -> Cluster:
    cluster = Cluster(seed, (1, 1, 1, 1), frozenset(range(4)))
    cluster.network.latency_ms_max = 8
    cluster.network.loss = 0.02
    return cluster


def operations_of_the_victim() -> int:
    cluster = cluster_of(1)
    cluster.start_all()
    while cluster.nodes[0].entered <= VIEWS:
        cluster.run(cluster.now_ms + 20)
    return cluster.nodes[0].durable_operations


def run_with_crash(at_operation: int, *, is_torn: bool) -> None:
    cluster = cluster_of(1)
    victim = cluster.nodes[0]
    victim.crash_at_operation = at_operation
    victim.is_torn_next = is_torn
    victim.restart_after_ms = RESTART_MS
    cluster.rng = random.Random(at_operation * 2 + is_torn)
    cluster.start_all()
    oracle = cluster.oracle

    while victim.durable_operations < at_operation:
        assert cluster.now_ms < 30_000, "the crash never came"
        cluster.run(cluster.now_ms + 10)
    goal, crashed_ms = oracle.height_max + 4, cluster.now_ms
    while min(oracle.height(n) for n in range(4)) < goal:
        heights = [oracle.height(n) for n in range(4)]
        assert cluster.now_ms < crashed_ms + 10_000, f"crash at operation {at_operation}: heights {heights}"
        cluster.run(cluster.now_ms + 20)


@pytest.mark.parametrize("part", range(4))
def test_a_crash_at_each_durable_operation(part: int) -> None:
    count = operations_of_the_victim()
    assert count > 4 * VIEWS, "a view has several durable operations"
    for at_operation in range(1 + part, count + 1, 4):
        for is_torn in (False, True):
            run_with_crash(at_operation, is_torn=is_torn)


@pytest.mark.parametrize("seed", range(12))
def test_the_whole_committee_loses_power_again_and_again(seed: int) -> None:
    cluster = cluster_of(100 + seed)
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
