"""Scenarios of whole nodes from one number: people join, leave and rotate keys while the network misbehaves."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, NamedTuple

from consensus.simulation.adversary import Adversary
from consensus.simulation.cluster import Cluster, sim_parameters
from consensus.simulation.oracle import Violation
from consensus.simulation.scenarios import Outcome, cut_network, fail_disks, heal
from node.simulation.world import COIN, STAKE, WholeMachine, WholeWorld
from state.transition.jail import FOREVER, load_jail
from state.transition.staking import list_stakes

__all__ = ["WHOLE_KINDS", "WholeOutcome", "run_whole"]

WHOLE_KINDS: Final = (
    *("calm", "crash", "blackout", "partition", "adversary", "adversary_partition", "adversary_crash"),
    *("twins", "twins_crash"),
)
CHAOS_MS: Final = {4: 2_000, 5: 2_000, 7: 1_500, 10: 1_000, 21: 600}
"""By the number of founders, because the events of a view grow with its square."""
LARGE_EACH: Final = 200
"""One seed in so many has 21 founders."""
VALIDATORS_MIN: Final = 4
"""People leave only while more than so many stay."""


class WholeOutcome(NamedTuple):
    """What a run came to; equal for equal seeds. The last five say what its state went through."""

    outcome: Outcome
    state_root: bytes
    joined: int
    left: int
    rotated: int
    jailed: int
    slashed: int


def run_whole(
    seed: int, *, kind: str | None = None, mutate: Callable[[Cluster], None] | None = None
) -> WholeOutcome:
    """Run one scenario of whole nodes. Raises Violation as ``run_scenario`` does."""
    rng = random.Random(seed)
    kind = WHOLE_KINDS[rng.randrange(len(WHOLE_KINDS))] if kind is None else kind
    has_faulty = "adversary" in kind or "twins" in kind
    size = rng.choice((5, 7, 7, 10) if has_faulty else (4, 4, 4, 5, 7, 10))
    if seed % LARGE_EACH == 0:
        size = 21
    founders = [rng.choice((1, 1, 2, 3)) for _ in range(size)]
    faulty: frozenset[int] = frozenset()
    if has_faulty:  # one of many equals: also when others leave it holds less than a third
        founders = [1] * size
        faulty = frozenset((rng.randrange(size),))
    interval_ms = rng.choice((0, 0, 0, 40))
    world = WholeWorld(
        founders,
        spare=rng.choice((1, 2)),
        epoch_blocks=rng.randrange(5, 9),
        downtime_blocks_min=10**6 if has_faulty else 4,
        # Fewer seats than stakers in some: anchors, and a lottery for the seats that are left. Of few seats one
        # ticket weighs so much that one who is faulty would hold more than a third by luck.
        validators_max=rng.choice((100, size - 1 if size >= (10 if has_faulty else 7) else 100)),
        block_interval_ms=interval_ms,
    )
    cluster = Cluster(
        seed,
        world,
        frozenset(range(world.accounts)) - faulty,
        twins=1 if "twins" in kind else 0,
        parameters=sim_parameters(
            idle_ms=rng.choice((0, 0, 0, 300)),
            block_interval_ms=interval_ms,
            doppelganger_ms=rng.choice((0, 0, 0, 150)),
        ),
    )
    if mutate is not None:
        mutate(cluster)
    network = cluster.network
    network.latency_ms_max = rng.choice((10, 30, 30, 120))
    network.loss = rng.choice((0.0, 0.05, 0.1, 0.3)) if kind != "calm" else 0.0
    network.duplication = rng.choice((0.0, 0.1))
    for node in cluster.nodes:
        node.clock_permille = rng.randrange(950, 1051)
    if "adversary" in kind:
        for account in sorted(faulty):
            Adversary(cluster, account, rate=rng.choice((0.05, 0.2)))
    cluster.start_all()
    chaos_ms = CHAOS_MS[size]
    if kind.endswith("partition") or kind == "twins":
        cut_network(cluster, rng, chaos_ms)
    if kind.endswith(("crash", "blackout")):
        fail_disks(cluster, rng, chaos_ms, is_whole=kind == "blackout")
    _people(cluster, world, rng, faulty, chaos_ms)
    cluster.run(chaos_ms)
    outcome = heal(cluster, kind)
    return _outcome(cluster, world, outcome, faulty)


def _people(
    cluster: Cluster, world: WholeWorld, rng: random.Random, faulty: frozenset[int], chaos_ms: int
) -> None:
    """Transfers, stakes, withdrawals and new keys at times of the run."""
    honest = [account for account in range(world.accounts) if account not in faulty]
    staked = {account for account in range(world.accounts) if account < world.founders}

    def act() -> None:
        account = rng.choice(honest)
        choice = rng.random()
        if choice < 0.35:
            world.transfer(account, rng.randrange(world.accounts), rng.randrange(1, 1_000))
        elif account not in staked:
            staked.add(account)
            world.stake(account, STAKE)
        elif choice < 0.6:
            world.stake(account, 0, new_key=True)
        elif choice < 0.75:
            world.stake(account, rng.randrange(1, 100) * COIN)
        elif len(staked) > VALIDATORS_MIN + len(faulty) and account < world.founders:
            staked.discard(account)
            world.unstake(account, world.staked(account))

    for _ in range(rng.randrange(4, 16)):
        cluster.call_at(rng.randrange(1, chaos_ms), act)


def _outcome(cluster: Cluster, world: WholeWorld, outcome: Outcome, faulty: frozenset[int]) -> WholeOutcome:
    machines = [node.machine for node in cluster.nodes if node.honest]
    best = max((m for m in machines if isinstance(m, WholeMachine)), key=lambda m: m.store.tip.height)
    founders = {world.address(account) for account in range(world.founders)}
    stakes = {address: record for address, record in list_stakes(best.store) if record.amount > 0}
    jails = {
        world.address(account): load_jail(best.store, world.address(account)) for account in range(world.accounts)
    }
    slashed = {address for address, jail in jails.items() if jail is not None and jail.until_epoch == FOREVER}
    if slashed - {world.address(account) for account in faulty}:
        raise Violation(f"an honest operator was slashed: {[address.hex() for address in slashed]}")
    best.store.verify()
    return WholeOutcome(
        outcome,
        best.store.tip.state_root,
        joined=len(stakes.keys() - founders),
        left=len(founders - stakes.keys()),
        rotated=sum(
            1
            for address, record in stakes.items()
            if record.vote_key != world.vote_secret(world.account_of(address), 0).vote_key
        ),
        jailed=sum(1 for jail in jails.values() if jail is not None and jail.until_epoch != FOREVER),
        slashed=len(slashed),
    )
