"""A result that was paid for can be had as long as its worker's bond is there, or the worker pays for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from billing.escrow import Line, Movement, Pool, Purpose, escrow_totals
from state.view.accounts import balance_of
from tasks.ledger import queries
from tasks.ledger.lifecycle import Phase, Reason, WindowPhase
from tasks.ledger.queries import Action
from tasks.ledger.records import WindowRecord, load_window
from tasks.ledger.registry import NodeRole, require_node
from tasks.ledger.settlement import delivery_fees, juror_fee
from tasks.ledger.transitions import DEMAND_RESULT, POKE
from tests.tasks.world import DKB, HONEST, QUICK, REQUESTER, WORTH, Manners, World, spec

PARAMETERS = replace(QUICK, bond_release_ms=200_000)


def settled(worker: Manners = HONEST, others: Manners = HONEST, count: int = 6) -> tuple[World, bytes, bytes]:
    """A market with a settled task: the world, the task, its worker."""
    world = World(parameters=PARAMETERS)
    author = world.add_machine(1, roles=NodeRole.COMPUTE, manners=worker)
    for at in range(count):
        world.add_machine(at + 100, roles=NodeRole.VERIFY)
    task = world.create(spec(price=WORTH))
    world.run_to(task, Phase.SETTLED)
    for address in world.machines:
        world.machines[address] = worker if address == author else others
    return world, task, author


def result(world: World, task: bytes) -> WindowRecord:
    return load_window(world.state, task, world.task(task).final_windows - 1)


def due(world: World, task: bytes) -> int:
    return delivery_fees(result(world, task), world.parameters)


def demand(world: World, task: bytes, more: int = 0) -> int:
    """Demand the result and let the market judge; returns what that took from the requester."""
    before = balance_of(world.state, REQUESTER)
    assert world.send(REQUESTER, DEMAND_RESULT, [task, due(world, task) + more]) is None
    for _ in range(100):
        world.block()
        world.act()
        if result(world, task).phase in (WindowPhase.FINAL, WindowPhase.LOST):
            break
    return before - balance_of(world.state, REQUESTER)


def lines_since(world: World, task: bytes, purpose: Purpose) -> list[Line]:
    demanded = [line.purpose for line in queries.bill(world.state, task).lines].index(Purpose.DEMAND)
    return [line for line in queries.bill(world.state, task).lines[demanded:] if line.purpose == purpose]


def test_a_result_that_can_be_had_costs_who_says_otherwise_the_jurors_fees_and_nobody_else() -> None:
    world, task, worker = settled()
    locked = escrow_totals(world.state, task).locked
    fees = due(world, task)
    assert demand(world, task, more=DKB) == fees
    window = result(world, task)
    assert (window.phase, window.reason) == (WindowPhase.FINAL, Reason.RESULT_DELIVERED)
    assert sum(line.amount for line in lines_since(world, task, Purpose.JUROR_FEE)) == fees
    assert escrow_totals(world.state, task).locked == locked
    assert require_node(world.state, worker).bad == 0
    world.block(PARAMETERS.bond_release_ms)
    world.block()
    assert escrow_totals(world.state, task).locked == 0
    assert all(queries.verification_duties(world.state, machine) == [] for machine in world.machines)


def test_a_worker_that_does_not_keep_the_result_pays_the_jurors_and_its_last_windows_price() -> None:
    world, task, worker = settled(Manners(forgetful=True))
    window = result(world, task)
    assert demand(world, task) == -window.charge
    window = result(world, task)
    assert (window.phase, window.reason) == (WindowPhase.LOST, Reason.RESULT_LOST)
    fees = lines_since(world, task, Purpose.JUROR_FEE)
    assert {line.pool for line in fees} == {Pool.BOND}
    assert sum(line.amount for line in fees) == PARAMETERS.jury * juror_fee(window) < window.charge
    assert require_node(world.state, worker).bad == 1
    assert world.send(REQUESTER, DEMAND_RESULT, [task, due(world, task)]) == "wrong_phase"  # once
    world.block(PARAMETERS.bond_release_ms)
    world.block()
    totals = escrow_totals(world.state, task)
    assert totals.locked == 0
    bonds = [line for line in queries.bill(world.state, task).lines if line.pool == Pool.BOND]
    put_down = sum(line.amount for line in bonds if line.movement == Movement.LOCKED)
    (returned,) = [line.amount for line in bonds if line.purpose == Purpose.BOND_RETURN]
    assert put_down - returned == window.charge + sum(line.amount for line in fees)


@pytest.mark.parametrize(
    "others", [Manners(silent=frozenset({Action.SEAL})), Manners(silent=frozenset({Action.REVEAL}))]
)
def test_where_nobody_tries_it_everything_stays_as_it_was(others: Manners) -> None:
    world, task, worker = settled(others=others)
    assert demand(world, task) == 0
    window = result(world, task)
    assert (window.phase, window.reason) == (WindowPhase.FINAL, Reason.DISPUTE_UNRESOLVED)
    assert require_node(world.state, worker).bad == 0
    world.block(PARAMETERS.bond_release_ms)
    world.block()
    assert escrow_totals(world.state, task).locked == 0


def test_who_says_that_it_had_another_result_decides_nothing() -> None:
    world, task, worker = settled(others=Manners(lies=True))
    assert demand(world, task) == 0
    assert result(world, task).reason == Reason.DISPUTE_UNRESOLVED
    assert require_node(world.state, worker).bad == 0


def test_a_lazy_juror_cannot_have_the_digest_and_is_not_paid() -> None:
    world, task, worker = settled(count=3)
    *diligent, lazy = set(world.machines) - {worker}
    world.machines[lazy] = Manners(lies=True)
    demand(world, task)
    assert {line.party for line in lines_since(world, task, Purpose.JUROR_FEE)} == set(diligent)


def test_demands_are_the_requesters_and_in_time() -> None:
    world, task, _ = settled()
    fees = due(world, task)
    assert world.send(b"x" * 20, DEMAND_RESULT, [task, fees]) == "not_yours"
    assert world.send(REQUESTER, DEMAND_RESULT, [task, fees - 1]) == "payment_missing"
    assert world.send(REQUESTER, DEMAND_RESULT, [task, fees]) is None
    assert world.send(REQUESTER, DEMAND_RESULT, [task, fees]) == "wrong_phase"
    running = world.create()
    world.run_to(running, Phase.RUNNING)
    assert world.send(REQUESTER, DEMAND_RESULT, [running, fees]) == "wrong_phase"


def test_demands_keep_a_bond_no_longer_than_the_last_that_came_in_time() -> None:
    world, task, _ = settled()
    ended_ms = world.task(task).changed_ms
    count = 0
    while world.task(task).deadline_ms:
        if world.send(REQUESTER, DEMAND_RESULT, [task, due(world, task)]) is None:
            count += 1
            assert world.time_ms <= ended_ms + PARAMETERS.bond_release_ms
        world.block(10_000)
        world.act()
    assert count > 1
    assert world.time_ms <= ended_ms + PARAMETERS.bond_release_ms + 200_000
    assert escrow_totals(world.state, task).locked == 0
    assert result(world, task).phase == WindowPhase.FINAL


def test_anybody_may_poke_a_demand_that_waits() -> None:
    world, task, _ = settled()
    assert world.send(REQUESTER, DEMAND_RESULT, [task, due(world, task)]) is None
    for _ in range(PARAMETERS.draw_blocks + 1):
        assert result(world, task).phase == WindowPhase.DEMANDED
        world.block()
    window = result(world, task)
    assert window.phase == WindowPhase.DELIVERY_SEALING
    world.time_ms = window.deadline_ms
    assert world.send(b"x" * 20, POKE, [task]) is None
    assert result(world, task).phase == WindowPhase.DEMANDED
