"""A failure at each durable operation of a whole node: guard, journal, and the commits of its database.

Stakes are unequal, the committee changes with the epochs: one joins, one leaves, the failing one rotates its key.
"""

from __future__ import annotations

from typing import Final

from consensus.simulation.cluster import Cluster
from consensus.simulation.crash_points import Course
from node.simulation.world import STAKE, WholeWorld

__all__ = ["WHOLE"]

FOUNDERS: Final = (3, 3, 2, 2, 1)
EPOCH_BLOCKS: Final = 4
HEIGHT: Final = 18
"""A registration gets its seat in the third epoch after it. By this height the new keys have voted too."""
_SEED: Final = 1
_LEAVES: Final = 4
_JOINS: Final = 5


def _whole(cluster_type: type[Cluster]) -> Cluster:
    world = WholeWorld(FOUNDERS, spare=1, epoch_blocks=EPOCH_BLOCKS, downtime_blocks_min=10**6)
    cluster = cluster_type(_SEED, world, frozenset(range(world.accounts)))
    cluster.network.latency_ms_max = 8
    cluster.network.loss = 0.02
    cluster.call_at(5, lambda: world.stake(0, 0, new_key=True))
    cluster.call_at(10, lambda: world.stake(_JOINS, STAKE))
    cluster.call_at(15, lambda: world.unstake(_LEAVES, world.staked(_LEAVES)))
    return cluster


WHOLE: Final = Course(_whole, lambda cluster: cluster.oracle.height(0) >= HEIGHT, live_blocks=EPOCH_BLOCKS + 1)
