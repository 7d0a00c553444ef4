"""A failure at each durable operation of a run of 30 views, of every kind a disk knows (SDBFT.md 5)."""

from __future__ import annotations

import random
from typing import Final

from consensus.simulation.cluster import Cluster
from consensus.simulation.disk import Fault
from consensus.simulation.oracle import Violation

__all__ = ["CATCH_UP_MS", "VIEWS", "operations", "run_crash_point"]

VIEWS: Final = 30
CATCH_UP_MS: Final = 30_000
"""Virtual time in which the failed node is level with the others again."""
RESTART_MS: Final = 40
LIVE_BLOCKS: Final = 4
_SEED: Final = 1


def _cluster() -> Cluster:
    cluster = Cluster(_SEED, (1, 1, 1, 1), frozenset(range(4)))
    cluster.network.latency_ms_max = 8
    cluster.network.loss = 0.02
    return cluster


def operations() -> int:
    """Return how many durable operations a node does in the run without failures."""
    cluster = _cluster()
    cluster.start_all()
    while cluster.nodes[0].entered <= VIEWS:
        cluster.run(cluster.now_ms + 20)
    return cluster.nodes[0].durable_operations


def run_crash_point(operation: int, fault: Fault) -> int:
    """Fail one node at its ``operation``-th durable operation; return how long it was behind, in virtual ms.

    The node restarts on its disk. A guard with a changed bit must refuse, so that the node only follows from then
    on; everything else votes again. Raises Violation.
    """
    cluster = _cluster()
    victim = cluster.nodes[0]
    victim.fault_at, victim.fault = operation, fault
    victim.restart_after_ms = RESTART_MS
    cluster.rng = random.Random(operation * len(Fault) + list(Fault).index(fault))
    incarnation = 1
    cluster.start_all()
    oracle = cluster.oracle
    while victim.incarnation <= incarnation:
        if cluster.now_ms > CATCH_UP_MS:
            raise Violation("the failure never came")
        cluster.run(cluster.now_ms + 5)
    goal, failed_ms = oracle.height_max + LIVE_BLOCKS, cluster.now_ms
    everybody = range(len(cluster.nodes))
    if not cluster.run(failed_ms + CATCH_UP_MS, lambda: min(map(oracle.height, everybody)) >= goal):
        heights = [oracle.height(number) for number in everybody]
        raise Violation(f"{fault.value} at operation {operation}: heights {heights}, goal {goal}")
    if fault is Fault.GUARD_FLIP and victim.refused is None:
        raise Violation(f"{fault.value} at operation {operation}: the guard did not notice")
    if fault is not Fault.GUARD_FLIP and (victim.refused is not None or victim.replica is None):
        raise Violation(f"{fault.value} at operation {operation}: the node does not vote again: {victim.refused}")
    return cluster.now_ms - failed_ms
