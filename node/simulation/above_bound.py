"""Whole nodes above the bound: more than a third of the weight lies, chains may fork, and what follows on each.

Nothing can promise one chain there. What stays promised: honest seats are never shown to lie, proofs of who did
get into each chain that goes on, the liars lose what the rules say and their seats, who brought a proof is paid,
and the honest go on without them once people have agreed on a chain and the liars are out.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from typing import Final, NamedTuple

from consensus.simulation.adversary import Adversary
from consensus.simulation.cluster import SimulatedNode, sim_parameters
from consensus.simulation.oracle import Violation
from consensus.simulation.scenarios import cut_network, fork_network
from node.simulation.operators import (
    EVER_MS,
    LIMIT_MS,
    LIVE_BLOCKS,
    ForkingCluster,
    carry_proofs,
    decide,
    honest_of,
    machine_of,
    settle,
    sides_of,
    tallest,
    waits_for_proofs,
)
from node.simulation.penalties import dues
from node.simulation.world import BALANCE, WholeMachine, WholeWorld
from state.transition.jail import FOREVER, load_jail
from state.transition.slashing import SlashRecord, load_slash
from state.transition.staking import load_stake
from state.view.accounts import balance_of

__all__ = ["ABOVE_KINDS", "AboveOutcome", "run_above"]

ABOVE_KINDS: Final = ("fork", "fork", "apart", "apart", "twins", "adversary")
"""Two sides that meet; two that never do and only hear of the other's certificates; twins among all; liars who act
as they like, and are stopped."""
CHAOS_MS: Final = {4: 1_100, 7: 800}
MEET_MS: Final = 700
APART_MS: Final = 20_000
HONEST_MIN: Final = 99
"""Per cent of its stake that an honest account keeps: who is cut off may be taken for absent and pay a little."""


class AboveOutcome(NamedTuple):
    """What a run came to; equal for equal seeds."""

    kind: str
    events: int
    trace: int
    is_forked: bool
    punished_apart: int
    """Branches that have each punished the liars, before people agreed on one."""
    liars: int
    slashed: int
    epochs: int
    recovery_ms: int
    stands_still: bool = False
    """The chain that was agreed on cannot go on: what was signed on another leads all past a view of it."""


def run_above(seed: int, *, kind: str | None = None) -> AboveOutcome:
    """Run one scenario. Raises Violation when a promise is broken that holds however many lie."""
    rng = random.Random(seed)
    drawn = rng.choice(ABOVE_KINDS)
    kind = drawn if kind is None else kind
    size = rng.choice((4, 4, 7))
    founders = [rng.choice((1, 1, 2, 3)) for _ in range(size)]
    epoch_blocks = rng.randrange(5, 8)
    faulty = _draw_faulty(rng, founders)
    world = WholeWorld(founders, spare=1, epoch_blocks=epoch_blocks, downtime_blocks_min=10**6)
    honest = frozenset(range(world.accounts)) - faulty
    cluster = ForkingCluster(seed, world, honest, 0 if kind == "adversary" else len(faulty), sim_parameters())
    cluster.network.latency_ms_max = rng.choice((10, 30))
    cluster.network.loss = rng.choice((0.0, 0.0, 0.05))
    for node in cluster.nodes:
        node.clock_permille = rng.randrange(950, 1051)
    if kind == "adversary":
        for account in sorted(faulty):
            Adversary(cluster, account, rate=rng.choice((0.05, 0.2)))
    cluster.start_all()
    chaos_ms = CHAOS_MS[size]
    if kind in ("fork", "apart"):
        weights = tuple([0 if account >= size else founders[account] for account in range(world.accounts)])
        fork_network(cluster, rng, weights, faulty)
    elif kind == "adversary":
        cut_network(cluster, rng, chaos_ms)
    stakers = sorted(honest - {world.accounts - 1})
    for _ in range(3):  # a rotated key must neither hide a liar nor betray an honest one
        account = rng.choice(stakers)
        cluster.call_at(rng.randrange(1, chaos_ms), partial(world.stake, account, 0, new_key=True))
    cluster.run(chaos_ms)
    return _aftermath(cluster, world, kind, faulty)


def _draw_faulty(rng: random.Random, founders: Sequence[int]) -> frozenset[int]:
    """The fewest accounts, in a drawn order, with more than a third of the weight, and less than two thirds."""
    epoch_view = WholeWorld(founders).machine(0, rng).epoch_view(0)
    assert epoch_view is not None
    weights = {seat.address: seat.weight for seat in epoch_view.committee.seats}
    world = WholeWorld(founders)
    held = [weights[world.address(account)] for account in range(len(founders))]
    order, faulty = list(range(len(founders))), set[int]()
    rng.shuffle(order)
    for account in order:
        have = sum(held[other] for other in faulty)
        if 3 * have <= sum(held) and 3 * (have + held[account]) < 2 * sum(held):
            faulty.add(account)
    return frozenset(faulty)


def _aftermath(cluster: ForkingCluster, world: WholeWorld, kind: str, faulty: frozenset[int]) -> AboveOutcome:
    branches, network = cluster.branches, cluster.network
    network.loss = 0.0
    healed_ms, punished = cluster.now_ms, 0
    if kind == "apart" and branches.forks:
        sides = sides_of(cluster)
        carry_proofs(cluster, sides)
        # Each for itself: one that has lost too many cannot go on, neither with a proof nor without.
        before = [branches.height(tallest(cluster, side).number) for side in sides]
        cluster.run(cluster.now_ms + APART_MS, lambda: not any(waits_for_proofs(side) for side in sides))
        for height, side in zip(before, sides, strict=True):
            if not waits_for_proofs(side):
                punished += 1
                _check_branch(world, side, True, faulty)
            elif branches.height(tallest(cluster, side).number) > height + 1:
                raise Violation("a branch goes on without the proofs that wait there")
    network.blocked = None
    cluster.run(cluster.now_ms + MEET_MS)
    if branches.forks or kind == "adversary" or any(node.halted for node in honest_of(cluster.nodes)):
        decide(cluster)
    goes_on = settle(cluster)
    recovery_ms = cluster.now_ms - healed_ms
    if not goes_on:
        liars, epochs = len(branches.liars), branches.epoch_max + 1
        forked = bool(branches.forks)
        return AboveOutcome(
            kind, cluster.events, cluster.trace, forked, punished, liars, 0, epochs, 0, stands_still=True
        )
    slashed = _check_branch(world, cluster.nodes, bool(branches.forks), faulty)
    _without_the_slashed(cluster)
    _check_branch(world, cluster.nodes, bool(branches.forks), faulty)
    return AboveOutcome(
        kind,
        cluster.events,
        cluster.trace,
        bool(branches.forks),
        punished,
        len(branches.liars),
        slashed,
        branches.epoch_max + 1,
        recovery_ms,
    )


def _slashed(machine: WholeMachine, world: WholeWorld) -> dict[int, SlashRecord]:
    records = {account: load_slash(machine.store, world.address(account)) for account in range(world.accounts)}
    return {account: record for account, record in records.items() if record is not None}


def _check_branch(
    world: WholeWorld, side: Sequence[SimulatedNode], is_forked: bool, faulty: frozenset[int]
) -> int:
    """Check who has lost what on a branch, and who was paid. Raises Violation; returns how many were slashed."""
    for node in honest_of(side):
        machine = machine_of(node)
        store, slashed = machine.store, _slashed(machine, world)
        out = {
            account
            for account in range(world.accounts)
            if (jail := load_jail(store, world.address(account))) is not None and jail.until_epoch == FOREVER
        }
        if out != set(slashed) or not out <= faulty:
            raise Violation(f"out for ever are {sorted(out)}, slashed {sorted(slashed)}, of {sorted(faulty)}")
        due = dues(machine, world)
        if {account: record.epoch for account, record in slashed.items()} != {
            account: fault.epoch for account, fault in due.items()
        }:
            raise Violation(f"slashed are {sorted(slashed)}, but the blocks prove the faults of {sorted(due)}")
        share = sum((fault.share for fault in due.values()), Fraction(0))
        if is_forked and 3 * share <= 1:
            raise Violation(f"the chain forked, and who is slashed held {float(share):.2f} of the weight")
        paid: dict[bytes, int] = {}
        for account, record in slashed.items():
            stake = load_stake(store, world.address(account))
            left, rate = stake.amount if stake is not None else 0, due[account].rate
            # Shares are rounded up in parts of a thousand million.
            if (
                abs(left - record.base * (1 - rate)) > record.base * 100 // 10**9
                or left + record.taken != record.base
            ):
                raise Violation(
                    f"{left} of {record.base} are left to account {account} at a rate of {float(rate)}"
                )
            is_own = record.reporter == world.address(account)
            if record.rewarded != (0 if is_own else record.taken // 20):
                raise Violation(f"{record.rewarded} were paid for {record.taken}")
            paid[record.reporter] = paid.get(record.reporter, 0) + record.rewarded
        for reporter, amount in paid.items():
            if balance_of(store, reporter) < BALANCE // 2 + amount:
                raise Violation("a reporter was not paid")
        for account in set(range(world.founders)) - faulty:
            stake = load_stake(store, world.address(account))
            left = stake.amount if stake is not None else 0
            if left * 100 < world.staked(account) * HONEST_MIN:
                raise Violation(f"{left} of the stake of the honest account {account} are left")
    return len(slashed)


def _without_the_slashed(cluster: ForkingCluster) -> None:
    """Run until no slashed account has a seat; then the others go on without any of them. Raises Violation."""
    honest, branches, world = honest_of(cluster.nodes), cluster.branches, cluster.world
    assert isinstance(world, WholeWorld)
    slashed = {world.address(account) for account in _slashed(machine_of(honest[0]), world)}

    def are_out() -> bool:
        for node in honest:
            epoch_view = node.machine.epoch_view(node.epoch)
            assert epoch_view is not None
            if any(epoch_view.committee.seat_of(address) is not None for address in slashed):
                return False
        return True

    if not are_out() and not cluster.run(cluster.now_ms + LIMIT_MS, are_out):
        raise Violation("the slashed still have seats")
    for node in cluster.nodes:
        if node.address in slashed:
            cluster.crash(node, EVER_MS)
    goal = max(branches.height(node.number) for node in honest) + LIVE_BLOCKS
    if not cluster.run(
        cluster.now_ms + LIMIT_MS, lambda: all(branches.height(node.number) >= goal for node in honest)
    ):
        raise Violation("the honest do not go on without the slashed")
