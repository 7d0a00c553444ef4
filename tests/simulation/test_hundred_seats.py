"""A committee of a hundred seats, the most that all sit (3.9): it goes on, and heals as a small one does."""

from __future__ import annotations

import pytest

from consensus.simulation.cluster import Cluster, sim_parameters
from consensus.simulation.heal import Break, run_break
from consensus.simulation.worlds import HashWorld

SEATS = 100


def hundred(weights: tuple[int, ...], *, seed: int, silent: frozenset[int] = frozenset()) -> Cluster:
    world = HashWorld(weights, is_real_crypto=False, epoch_blocks=0, members_of=None)
    honest = frozenset(range(SEATS)) - silent
    cluster = Cluster(seed, world, honest, twins=0, parameters=sim_parameters(idle_ms=0), may_fork=False)
    for node in cluster.nodes:
        if node.number in honest:
            cluster.start(node)
    return cluster


def test_all_seats_agree_on_a_block_in_each_few_latencies() -> None:
    cluster = hundred((1,) * SEATS, seed=1)
    cluster.network.latency_ms_max = 80
    cluster.run(1_000)
    assert cluster.oracle.height_max >= 5


def test_a_third_of_the_weight_is_silent() -> None:
    """Each third leader costs its time-out, until those that are silent are skipped."""
    cluster = hundred((1,) * SEATS, seed=2, silent=frozenset(range(0, 99, 3)))
    cluster.network.latency_ms_max = 80
    assert cluster.run(20_000, lambda: cluster.oracle.height_max >= 12)


@pytest.mark.parametrize("kind", ["split", "isolated leader", "loss"])
def test_progress_comes_as_soon_after_the_heal_as_in_a_small_committee(kind: str) -> None:
    sides = tuple(seat % 2 == 0 for seat in range(SEATS))
    run_break(Break(kind, SEATS, sides))
