"""Scenarios from one number: who is faulty, what the network does, when power fails; then it heals."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from consensus.core import UNEXECUTED_MAX, Core
from consensus.guard import Guard
from consensus.simulation.adversary import Adversary
from consensus.simulation.cluster import Cluster, sim_parameters
from consensus.simulation.oracle import Violation
from consensus.wire import BLOCKS_MAX

__all__ = ["HEAL_LIMIT_MS", "KINDS", "Outcome", "run_scenario"]

KINDS: Final = (
    "calm",
    "crash",
    "blackout",
    "partition",
    "twins",
    "adversary",
    "adversary_partition",
    "twins_crash",
)
LIVE_BLOCKS: Final = 5
HEAL_LIMIT_MS: Final = 20_000
"""Virtual time within which five more blocks are final on every honest node after the network has healed."""
CHAOS_MS: Final = 2_500
REAL_CRYPTO_EACH: Final = 40
"""One seed in so many signs with BIP340."""


class Outcome(NamedTuple):
    """What a run came to; equal for equal seeds."""

    kind: str
    events: int
    trace: int
    height: int
    recovery_ms: int
    view: int


class _Plan(NamedTuple):
    weights: tuple[int, ...]
    faulty: frozenset[int]


def _plan(rng: random.Random, kind: str) -> _Plan:
    size = rng.choice((4, 4, 4, 7, 10)) if kind != "twins" else rng.choice((4, 4, 7))
    weights = tuple([1] * size) if rng.random() < 0.5 else tuple(rng.randrange(1, 11) for _ in range(size))
    faulty: set[int] = set()
    if kind.startswith(("twins", "adversary")):
        seats = list(range(size))
        rng.shuffle(seats)
        for seat in seats:
            if 3 * (sum(weights[other] for other in faulty) + weights[seat]) < sum(weights):
                faulty.add(seat)
            if len(faulty) >= 2:
                break
    return _Plan(weights, frozenset(faulty))


def run_scenario(
    seed: int,
    *,
    kind: str | None = None,
    core_type: type[Core] = Core,
    guard_type: type[Guard] = Guard,
    mutate: Callable[[Cluster], None] | None = None,
) -> Outcome:
    """Run one scenario. Raises Violation when an invariant breaks or the healed network does not live on.

    ``core_type``, ``guard_type`` and ``mutate`` put a seeded bug in: the tests of this test.
    """
    rng = random.Random(seed)
    kind = KINDS[rng.randrange(len(KINDS))] if kind is None else kind
    plan = _plan(rng, kind)
    honest = frozenset(range(len(plan.weights))) - plan.faulty
    cluster_type = type("C", (Cluster,), {"core_type": core_type, "guard_type": guard_type})
    cluster: Cluster = cluster_type(
        seed,
        plan.weights,
        honest,
        twins=len(plan.faulty) if kind.startswith("twins") else 0,
        is_real_crypto=seed % REAL_CRYPTO_EACH == 0,
        parameters=sim_parameters(idle_ms=rng.choice((0, 0, 0, 300))),
    )
    if mutate is not None:
        mutate(cluster)
    for node in cluster.nodes:
        node.clock_permille = rng.randrange(900, 1101)
    network = cluster.network
    network.latency_ms_max = rng.choice((10, 30, 30, 120, 400))
    network.loss = rng.choice((0.0, 0.05, 0.1, 0.3)) if kind != "calm" else 0.0
    network.duplication = rng.choice((0.0, 0.05, 0.2))
    if kind.startswith("adversary"):
        for seat in sorted(plan.faulty):
            Adversary(cluster, seat, rate=rng.choice((0.02, 0.1, 0.3)))
    cluster.start_all()
    if kind.endswith("partition") or kind == "twins":
        _partitions(cluster, rng)
    if kind.endswith("crash") or kind == "blackout":
        _crashes(cluster, rng, is_whole=kind == "blackout")
    if kind in ("calm", "crash") and rng.random() < 0.5:
        _mempools(cluster, rng)
    cluster.run(CHAOS_MS)

    # The network heals: every honest node must soon finalise more than anybody had before.
    network.loss = network.duplication = 0.0
    network.blocked = None
    network.latency_ms_max = min(network.latency_ms_max, 30)
    for node in cluster.nodes:
        node.crash_at_operation = -1
        if node.replica is None and node.halted is None:
            cluster.start(node)
    goal = cluster.oracle.height_max + LIVE_BLOCKS
    numbers = [node.number for node in cluster.nodes if node.honest]
    healed_ms = cluster.now_ms
    oracle = cluster.oracle

    def is_done() -> bool:
        return all(oracle.height(number) >= goal for number in numbers)

    if not cluster.run(healed_ms + HEAL_LIMIT_MS, is_done):
        heights = [oracle.height(number) for number in numbers]
        raise Violation(
            f"{kind}: no {LIVE_BLOCKS} blocks in {HEAL_LIMIT_MS} ms after the heal: {heights}, goal {goal}"
        )
    _check_memory(cluster)
    view = max(node.entered for node in cluster.nodes)
    return Outcome(kind, cluster.events, cluster.trace, oracle.height_max, cluster.now_ms - healed_ms, view)


def _partitions(cluster: Cluster, rng: random.Random) -> None:
    """Splits, one-way links, rings and isolated nodes, one after the other; a twin may be on the other side."""
    count = len(cluster.nodes)
    network = cluster.network

    def split(sides: tuple[int, ...], is_one_way: bool) -> None:
        if is_one_way:
            network.blocked = lambda source, target: sides[source] < sides[target]
        else:
            network.blocked = lambda source, target: sides[source] != sides[target]

    def ring() -> None:
        network.blocked = lambda source, target: (source - target) % count not in (1, count - 1)

    def heal() -> None:
        network.blocked = None

    at_ms = rng.randrange(0, 500)
    while at_ms < CHAOS_MS:
        choice = rng.random()
        if choice < 0.65:
            sides = tuple(rng.randrange(2) for _ in range(count))
            cluster.call_at(at_ms, partial(split, sides, rng.random() < 0.25))
        elif choice < 0.75:
            cluster.call_at(at_ms, ring)
        else:
            cluster.call_at(at_ms, heal)
        at_ms += rng.randrange(100, 900)


def _crashes(cluster: Cluster, rng: random.Random, *, is_whole: bool) -> None:
    """Power cuts inside durable operations and between events; ``is_whole`` also cuts everybody at once."""

    def arm(number: int) -> None:
        node = cluster.nodes[number]
        node.is_torn_next = rng.random() < 0.6
        node.restart_after_ms = rng.randrange(1, 600)
        node.crash_at_operation = node.durable_operations + rng.randrange(1, 12)

    def all_at_once() -> None:
        for node in cluster.nodes:
            node.is_torn_next = rng.random() < 0.6
            cluster.crash(node, rng.randrange(1, 300))

    for _ in range(rng.randrange(1, 8)):
        number = rng.randrange(len(cluster.nodes))
        cluster.call_at(rng.randrange(1, CHAOS_MS), partial(arm, number))
    if is_whole:
        for _ in range(rng.randrange(1, 4)):
            cluster.call_at(rng.randrange(100, CHAOS_MS), all_at_once)


def _mempools(cluster: Cluster, rng: random.Random) -> None:
    for node in cluster.nodes:
        for _ in range(4):
            call = partial(cluster.tell_mempool, node.number, rng.random() < 0.6)
            cluster.call_at(rng.randrange(1, CHAOS_MS), call)


def _check_memory(cluster: Cluster) -> None:
    """R8: what a replica keeps is bounded whatever it was sent."""
    for node in cluster.nodes:
        if node.replica is not None:
            sizes = node.replica.sizes()
            synced = UNEXECUTED_MAX + BLOCKS_MAX  # windows of final blocks on their way to execution
            limits = {"votes": 260, "proposals": 3, "headers": synced + 60, "fetching": 64, "blocks": synced + 80}
            for name, limit in limits.items():
                if sizes[name] > limit:
                    raise Violation(f"node {node.number} keeps {sizes[name]} {name}")
