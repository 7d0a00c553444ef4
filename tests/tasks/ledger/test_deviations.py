"""Among honest ones, who does not do as it should gains nothing by it, and costs the others little and so much."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Final, NamedTuple

import pytest

from billing.escrow import Pool, Vault
from billing.prices import work_price
from state.view import Overlay
from state.view.accounts import balance_of
from tasks.ledger import queries
from tasks.ledger.audits import allowance
from tasks.ledger.lifecycle import ENDED, WindowPhase
from tasks.ledger.queries import Action
from tasks.ledger.records import load_window
from tasks.ledger.registry import NodeRole, load_node, require_node
from tasks.ledger.reputation import doubts_of
from tasks.ledger.settlement import delivery_fees, juror_fee
from tasks.ledger.transitions import DEMAND_RESULT, UPDATE_NODE, node_payload
from tests.tasks.world import HONEST, QUICK, REQUESTER, WORTH, Manners, World, spec

PARAMETERS: Final = replace(QUICK, check_fee_min=1, samples=4, verifiers=1, new_windows=0, bond_release_ms=200_000)
WORK, CHECK = NodeRole.COMPUTE, NodeRole.VERIFY
TASKS: Final = 3
WORKERS: Final = 3
VERIFIERS: Final = 8


class Outcome(NamedTuple):
    """What a history did to whom, beyond what it began with."""

    deviant: int
    workers: tuple[int, ...]
    verifiers: tuple[int, ...]
    requester: int
    price: int
    settled: int
    doubts: int
    argued: int
    fee: int
    """Of one juror, at most."""


def wealth(world: World, address: bytes) -> int:
    """What is an account's, free or locked in a bond."""
    node = load_node(world.state, address)
    return balance_of(world.state, address) + (node.bond if node else 0)


def play(worker: Manners, verifier: Manners, seed: int, *, samples: int = 4) -> Outcome:
    """Let a market do some tasks in which one machine, a worker or a verifier, has manners of its own."""
    world = World(parameters=replace(PARAMETERS, samples=samples), seed=seed)
    # The first of each kind is the one that may deviate: the worker that ranks first, the verifier drawn most.
    workers = [world.add_machine(1, roles=WORK, manners=worker, price=WORTH // 4000)]
    workers += [world.add_machine(at + 1, roles=WORK, price=WORTH // 2000) for at in range(1, WORKERS)]
    verifiers = [
        world.add_machine(at + 101, roles=CHECK, manners=verifier if at == 0 else HONEST)
        for at in range(VERIFIERS)
    ]
    profile = require_node(world.state, verifiers[0]).profile
    assert world.send(verifiers[0], UPDATE_NODE, node_payload(profile, 5 * PARAMETERS.node_bond_min)) is None
    before = {address: wealth(world, address) for address in (*workers, *verifiers, REQUESTER)}
    job, tasks, settled = spec(match_ms=3_600_000), list[bytes](), 0
    argued = 0
    deviant = workers[0] if worker is not HONEST else verifiers[0]
    for _ in range(TASKS):
        tasks.append(world.create(job))
        record = world.run(tasks[-1], until=lambda task: task.phase in ENDED, blocks=800)
        argued += sum(  # later the records of its disputes are deleted
            bool(window.missed) or bool(queries.disputes(world.state, tasks[-1], window.number))
            for window in queries.task_windows(world.state, tasks[-1])
        )
        if worker.forgetful and record.worker == deviant:
            window = load_window(world.state, tasks[-1], record.final_windows - 1)
            fees = delivery_fees(window, world.parameters)
            assert world.send(REQUESTER, DEMAND_RESULT, [tasks[-1], fees]) is None
            world.run(
                tasks[-1],
                until=lambda task: (
                    load_window(world.state, task.id, task.final_windows - 1).phase == WindowPhase.LOST
                ),
            )
    world.machines = dict.fromkeys(world.machines, Manners(silent=frozenset(Action)))
    world.block(PARAMETERS.bond_release_ms)
    world.block()
    fee = 0
    for task in tasks:
        record = world.task(task)
        settled += record.final_windows == 3
        assert Vault.load(Overlay(world.state), task, lambda _event: None, 0).owners(Pool.BOND) == ()
        for window in queries.task_windows(world.state, task):
            fee = max(fee, juror_fee(window))
    change = {address: wealth(world, address) - before[address] for address in before}
    return Outcome(
        change[deviant],
        tuple(change[address] for address in workers if address != deviant),
        tuple(change[address] for address in verifiers if address != deviant),
        change[REQUESTER],
        TASKS * work_price(sum(job.window_units(at) for at in range(3)), job.max_price_per_tera_unit),
        settled, doubts_of(world.state, deviant), argued, fee,
    )  # fmt: skip


@cache
def honest(seed: int) -> Outcome:
    return play(HONEST, HONEST, seed)


SILENT: Final = tuple(Manners(silent=frozenset({action})) for action in Action if action != Action.METER)
OF_WORKERS: Final = {
    "lies": Manners(lies=True), "picky": Manners(picky=True), "forgetful": Manners(forgetful=True),
    "lies and never plays": Manners(lies=True, silent=frozenset({Action.PLAY})),
    "never accepts": SILENT[0], "never starts": SILENT[1], "never computes": SILENT[2], "never opens": SILENT[3],
}  # fmt: skip
OF_VERIFIERS: Final = {
    "lies": Manners(lies=True), "blind": Manners(blind=True), "never seals": SILENT[4],
    "lies and never plays": Manners(lies=True, silent=frozenset({Action.PLAY})),
    "never reveals": SILENT[5],
}  # fmt: skip


def check_the_others(outcome: Outcome) -> None:
    """Nobody honest loses what it had, and the requester gets what it pays for."""
    jury = PARAMETERS.jury * outcome.fee
    assert min(*outcome.workers, *outcome.verifiers) >= -jury
    assert outcome.settled == TASKS
    checks = allowance(outcome.price, 4, PARAMETERS)  # windows of four segments
    budget = outcome.price * (10_000 + PARAMETERS.fee_bps) // 10_000 + checks
    assert -budget - outcome.argued * jury <= outcome.requester < 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1))
@pytest.mark.parametrize("name", OF_WORKERS)
def test_a_worker_gains_nothing_by_not_doing_as_it_should(name: str, seed: int) -> None:
    outcome = play(OF_WORKERS[name], HONEST, seed)
    check_the_others(outcome)
    if name == "forgetful":  # it does the work, and has less for it than it might have had
        assert 0 < outcome.deviant < honest(seed).workers[0]
    elif name == "picky":  # it pays juries for all that it did not serve at first
        assert outcome.deviant < honest(seed).workers[0]
    else:
        assert outcome.deviant <= 0


@pytest.mark.parametrize("seed", range(1))
@pytest.mark.parametrize("name", OF_VERIFIERS)
def test_a_verifier_gains_nothing_by_not_doing_as_it_should(name: str, seed: int) -> None:
    outcome = play(HONEST, OF_VERIFIERS[name], seed)
    check_the_others(outcome)
    assert outcome.deviant < 0 < honest(seed).deviant
    if name == "blind":
        assert outcome.doubts > 0


@pytest.mark.parametrize("verifier", [Manners(blind=True), Manners(lies=True)])
@pytest.mark.parametrize("samples", [1, 4])
def test_false_alarms_cost_who_raises_them_more_than_all_others(verifier: Manners, samples: int) -> None:
    outcome, calm = (play(HONEST, manners, 5, samples=samples) for manners in (verifier, HONEST))
    assert outcome.argued > 1
    # Not even a part of their pay; who wins a game gets something for its costs.
    assert all(now >= then for now, then in zip(outcome.workers, calm.workers, strict=True))
    assert (outcome.workers != calm.workers) == verifier.lies
    harm = max(0, calm.requester - outcome.requester)
    assert harm <= PARAMETERS.jury * outcome.fee  # that of the first, where neither side has a record
    assert harm < calm.deviant - outcome.deviant
