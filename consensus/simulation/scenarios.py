"""Scenarios from one number: who is faulty, what the network does, when power fails; then it heals."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from consensus.core.core import Core
from consensus.guard import Guard
from consensus.simulation.adversary import Adversary
from consensus.simulation.cluster import Cluster, sim_parameters
from consensus.simulation.disk import Fault
from consensus.simulation.oracle import Violation
from consensus.simulation.worlds import HashWorld, Member

__all__ = [
    "HEAL_LIMIT_MS",
    "KINDS",
    "Outcome",
    "changing_members",
    "cut_network",
    "draw_weights",
    "fail_disks",
    "fork_network",
    "heal",
    "run_scenario",
]

KINDS: Final = (
    "calm",
    "crash",
    "blackout",
    "partition",
    "twins",
    "adversary",
    "adversary_partition",
    "adversary_crash",
    "adversary_blackout",
    "twins_crash",
    "epochs",
    "epochs_crash",
    "epochs_blackout",
    "epochs_partition",
    "epochs_adversary",
    "epochs_adversary_partition",
    "epochs_adversary_crash",
    "above_f",
)
_DRAWN: Final = (
    *("calm", "crash", "blackout", "blackout", "partition", "twins", "twins_crash", "adversary"),
    *("adversary_partition", "adversary_partition", "adversary_crash", "adversary_blackout"),
    *("epochs", "epochs_crash", "epochs_blackout", "epochs_partition", "epochs_adversary"),
    *("epochs_adversary_partition", "epochs_adversary_crash", "above_f"),
)
"""Of each twenty seeds one has more faulty weight than the protocol bears, seven change the committee, and eight
have the mutating adversary, six of those together with a split network or failing disks."""
LIVE_BLOCKS: Final = 5
HEAL_LIMIT_MS: Final = 20_000
"""Virtual time within which five more blocks are final on every honest node after the network has healed."""
CHAOS_MS: Final = {4: 2_500, 7: 1_800, 10: 1_200, 21: 600}
"""By the size of the committee, because the events of a view grow with its square."""
ABOVE_MS: Final = 1_500
REAL_CRYPTO_EACH: Final = 40
"""One seed in so many signs with BIP340."""
LARGE: Final = 21
SYNCED_MAX: Final = 192
"""Final blocks that a replica may hold on their way to execution: two windows of 64, and one that arrives."""


class Outcome(NamedTuple):
    """What a run came to; equal for equal seeds."""

    kind: str
    events: int
    trace: int
    height: int
    recovery_ms: int
    view: int
    epochs: int = 1
    is_forked: bool = False


class _Plan(NamedTuple):
    weights: tuple[int, ...]
    faulty: frozenset[int]


def draw_weights(rng: random.Random, size: int) -> tuple[int, ...]:
    """Return weights: equal, mixed, or very unequal and capped as the selection of committees caps them.

    See consensus.md 10.2.
    """
    choice = rng.random()
    if choice < 0.4:
        return (1,) * size
    if choice < 0.8:
        return tuple([rng.randrange(1, 11) for _ in range(size)])
    weights = [int(1.0e4 * 3.0 ** -rng.randrange(8)) for _ in range(size)]
    for _ in range(20):
        cap = max(sum(weights) // 10, 12 * sum(weights) // (10 * size))
        weights = [min(weight, cap) for weight in weights]
    return tuple(weights)


def _plan(rng: random.Random, kind: str, seed: int) -> _Plan:
    if kind == "above_f":
        size = rng.choice((4, 4, 7))
    elif kind.startswith("twins"):
        size = rng.choice((4, 4, 7, 10))
    elif seed % 50 == 0:
        size = LARGE
    else:
        size = rng.choice((4, 4, 4, 4, 7, 7, 10))
    weights = draw_weights(rng, size)
    faulty: set[int] = set()
    seats = list(range(size))
    rng.shuffle(seats)
    total = sum(weights)
    if kind == "above_f":  # the fewest seats with more than a third, and less than two thirds
        for seat in seats:
            held = sum(weights[other] for other in faulty)
            if 3 * held <= total and 3 * (held + weights[seat]) < 2 * total:
                faulty.add(seat)
    elif "adversary" in kind or "twins" in kind:
        for seat in seats:
            if 3 * (sum(weights[other] for other in faulty) + weights[seat]) < total:
                faulty.add(seat)
            if len(faulty) >= 2:
                break
    return _Plan(weights, frozenset(faulty))


def changing_members(
    seed: int, weights: tuple[int, ...], faulty: frozenset[int]
) -> Callable[[int], tuple[Member, ...]]:
    """Return committees that change with each epoch from the second on: joins, leaves, weights, rotated keys.

    The faulty hold less than a third in each of them.
    """
    pool = len(weights)
    keys: dict[int, list[int]] = {0: [0] * pool, 1: [0] * pool}

    def keys_of(epoch: int) -> list[int]:
        if epoch not in keys:
            rng = random.Random(seed << 20 | epoch)
            keys[epoch] = [key + (rng.random() < 0.2) for key in keys_of(epoch - 1)]
        return keys[epoch]

    def members(epoch: int) -> tuple[Member, ...]:
        if epoch < 2:
            return tuple([Member(account, 0, weight) for account, weight in enumerate(weights)])
        rng = random.Random(seed << 21 | epoch)
        chosen = sorted(rng.sample(range(pool), rng.randrange(min(4, pool), pool + 1)))
        drawn = dict(zip(chosen, draw_weights(rng, len(chosen)), strict=True))
        for account in [account for account in chosen if account in faulty]:
            held = sum(weight for other, weight in drawn.items() if other in faulty)
            if 3 * held >= sum(drawn.values()):
                del drawn[account]
        order = list(drawn)
        rng.shuffle(order)
        return tuple([Member(account, keys_of(epoch)[account], drawn[account]) for account in order])

    return members


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
    drawn = _DRAWN[rng.randrange(len(_DRAWN))]
    kind = drawn if kind is None else kind
    plan = _plan(rng, kind, seed)
    cluster = _cluster(seed, rng, kind, plan, core_type, guard_type)
    if mutate is not None:
        mutate(cluster)
    for node in cluster.nodes:
        node.clock_permille = rng.randrange(900, 1101)
    network = cluster.network
    network.latency_ms_max = rng.choice((10, 30, 30, 120, 400))
    network.loss = rng.choice((0.0, 0.05, 0.1, 0.3)) if kind != "calm" else 0.0
    network.duplication = rng.choice((0.0, 0.05, 0.2))
    if "adversary" in kind or (kind == "above_f" and len(cluster.nodes) == len(plan.weights)):
        for account in sorted(plan.faulty):
            Adversary(cluster, account, rate=rng.choice((0.02, 0.1, 0.3)))
    cluster.start_all()
    chaos_ms = ABOVE_MS if kind == "above_f" else CHAOS_MS[len(plan.weights)]
    if kind.endswith("partition") or kind == "twins":
        cut_network(cluster, rng, chaos_ms)
    elif kind == "above_f":
        fork_network(cluster, rng, plan.weights, plan.faulty)
    if kind.endswith(("crash", "blackout")):
        fail_disks(cluster, rng, chaos_ms, is_whole=kind.endswith("blackout"))
    if kind in ("calm", "crash", "epochs") and rng.random() < 0.5:
        _mempools(cluster, rng, chaos_ms)
    cluster.run(chaos_ms)
    return heal(cluster, kind)


def _cluster(
    seed: int, rng: random.Random, kind: str, plan: _Plan, core_type: type[Core], guard_type: type[Guard]
) -> Cluster:
    honest = frozenset(range(len(plan.weights))) - plan.faulty
    is_twins = kind.startswith("twins") or (kind == "above_f" and rng.random() < 0.6)
    changes = kind.startswith("epochs")
    world = HashWorld(
        plan.weights,
        is_real_crypto=seed % REAL_CRYPTO_EACH == 0,
        epoch_blocks=rng.randrange(5, 9) if changes else 0,
        members_of=changing_members(seed, plan.weights, plan.faulty) if changes else None,
    )
    cluster = Cluster(
        seed,
        world,
        honest,
        twins=len(plan.faulty) if is_twins else 0,
        parameters=sim_parameters(idle_ms=rng.choice((0, 0, 0, 300))),
        may_fork=kind == "above_f",
    )
    cluster.core_type, cluster.guard_type = core_type, guard_type
    return cluster


def heal(cluster: Cluster, kind: str) -> Outcome:
    """The network heals: every honest node must soon finalise more than anybody had before."""
    network, oracle = cluster.network, cluster.oracle
    network.loss = network.duplication = 0.0
    network.blocked = None
    network.latency_ms_max = min(network.latency_ms_max, 30)
    for node in cluster.nodes:
        node.fault_at = -1
        if node.replica is None and node.halted is None:
            cluster.start(node)
    goal = oracle.height_max + LIVE_BLOCKS
    numbers = [node.number for node in cluster.nodes if node.honest]
    healed_ms = cluster.now_ms

    def is_done() -> bool:
        return all(oracle.height(number) >= goal for number in numbers)

    if oracle.may_fork:
        cluster.run(healed_ms + ABOVE_MS)
    elif not cluster.run(healed_ms + HEAL_LIMIT_MS, is_done):
        heights = [oracle.height(number) for number in numbers]
        raise Violation(
            f"{kind}: no {LIVE_BLOCKS} blocks in {HEAL_LIMIT_MS} ms after the heal: {heights}, goal {goal}"
        )
    _check_memory(cluster)
    return Outcome(
        kind,
        cluster.events,
        cluster.trace,
        oracle.height_max,
        cluster.now_ms - healed_ms,
        max(node.entered for node in cluster.nodes),
        oracle.epoch_max + 1,
        oracle.check_blame(),
    )


def cut_network(cluster: Cluster, rng: random.Random, chaos_ms: int) -> None:
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
    while at_ms < chaos_ms:
        choice = rng.random()
        if choice < 0.65:
            sides = tuple(rng.randrange(2) for _ in range(count))
            cluster.call_at(at_ms, partial(split, sides, rng.random() < 0.25))
        elif choice < 0.75:
            cluster.call_at(at_ms, ring)
        else:
            cluster.call_at(at_ms, heal)
        at_ms += rng.randrange(100, 900)


def fork_network(cluster: Cluster, rng: random.Random, weights: tuple[int, ...], faulty: frozenset[int]) -> None:
    """Two sides of honest nodes that never hear each other; faulty ones speak to both, a twin to its own alone."""
    network = cluster.network
    sides = [rng.randrange(2) for _ in cluster.nodes]
    held = [0, 0]
    for account in sorted(set(range(len(weights))) - faulty, key=lambda account: -weights[account]):
        sides[account] = 0 if held[0] <= held[1] else 1  # as even as can be: each side needs a quorum
        held[sides[account]] += weights[account]
    are_twins = len(cluster.nodes) > cluster.world.accounts
    for node in cluster.nodes[cluster.world.accounts :]:
        sides[node.number] = 1 - sides[node.account]

    def blocked(source: int, target: int) -> bool:
        if not are_twins and (source in faulty or target in faulty):
            return False
        return sides[source] != sides[target]

    def split() -> None:
        network.blocked = blocked

    cluster.call_at(rng.randrange(1, 400), split)


def fail_disks(cluster: Cluster, rng: random.Random, chaos_ms: int, *, is_whole: bool) -> None:
    """Failures inside durable operations and between events; ``is_whole`` also cuts everybody's power at once."""

    def arm(number: int) -> None:
        node = cluster.nodes[number]
        node.is_torn_next = rng.random() < 0.5
        node.fault = rng.choice((Fault.TAIL, Fault.TORN, Fault.JOURNAL_FLIP, Fault.FULL, Fault.SYNC_ERROR))
        node.restart_after_ms = rng.randrange(1, 600)
        node.fault_at = node.durable_operations + rng.randrange(1, 12)

    def all_at_once() -> None:
        for node in cluster.nodes:
            node.is_torn_next = rng.random() < 0.6
            cluster.crash(node, rng.randrange(1, 300))

    for _ in range(rng.randrange(1, 8)):
        number = rng.randrange(len(cluster.nodes))
        cluster.call_at(rng.randrange(1, chaos_ms), partial(arm, number))
    if is_whole:
        for _ in range(rng.randrange(1, 4)):
            cluster.call_at(rng.randrange(100, chaos_ms), all_at_once)


def _mempools(cluster: Cluster, rng: random.Random, chaos_ms: int) -> None:
    for node in cluster.nodes:
        for _ in range(4):
            call = partial(cluster.tell_mempool, node.number, rng.random() < 0.6)
            cluster.call_at(rng.randrange(1, chaos_ms), call)


def _check_memory(cluster: Cluster) -> None:
    """R8: what a replica keeps is bounded whatever it was sent."""
    for node in cluster.nodes:
        if node.replica is not None:
            sizes = node.replica.sizes()
            limits = {
                "votes": 260,
                "proposals": 3,
                "headers": SYNCED_MAX + 60,
                "fetching": 64,
                "blocks": SYNCED_MAX + 80,
            }
            for name, limit in limits.items():
                if sizes[name] > limit:
                    raise Violation(f"node {node.number} keeps {sizes[name]} {name}")
