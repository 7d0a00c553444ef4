"""Machines that cannot have the inputs of a task: it is set aside, and who was wrong pauses (market.md R53)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from billing.escrow import escrow_totals
from state.view.accounts import balance_of
from tasks.ledger.complaints import COMPLAINTS_MAX
from tasks.ledger.lifecycle import Phase, Reason
from tasks.ledger.parameters import MINUTE_MS
from tasks.ledger.queries import Action
from tasks.ledger.records import TaskRecord
from tasks.ledger.registry import NodeRole, require_node
from tasks.ledger.transitions import CANCEL_TASK, GIVE_UP_TASK, RESUME_TASK
from tests.tasks.world import HONEST, QUICK, REQUESTER, WORTH, Manners, World, spec

WORK: Final = NodeRole.COMPUTE
IDLE: Final = Manners(silent=frozenset(Action))
CALLS: Final = replace(QUICK, call_ms=0, order_blocks=0, decline_ms=10_000)
INPUTS: Final = Reason.INPUT_UNAVAILABLE


def market(machines: int, manners: Manners = IDLE) -> World:
    world = World(parameters=CALLS)
    world.add_machine(99, roles=NodeRole.VERIFY)
    for at in range(machines):
        world.add_machine(at + 1, roles=WORK, price=WORTH // 2000, manners=manners)
    return world


def matched(world: World, task: bytes) -> bytes:
    for _ in range(400):
        if worker := world.task(task).worker:
            return worker
        world.block()
    raise AssertionError("nobody was matched")


def say(world: World, task: bytes, reason: Reason = INPUTS) -> bytes:
    """Have the machine that the task is given to say that it cannot have the inputs."""
    worker = matched(world, task)
    assert world.send(worker, GIVE_UP_TASK, [task, int(reason)]) is None
    return worker


def wait_of(world: World, record: TaskRecord) -> int:
    return record.match_at_ms - world.time_ms


def declines(world: World, machine: bytes) -> tuple[int, bool]:
    node = require_node(world.state, machine)
    return node.declines, node.match_from_ms > world.time_ms


def test_n8_three_operators_set_a_task_aside_for_longer_each_time_and_no_machine_pauses() -> None:
    world = market(COMPLAINTS_MAX)
    task = world.create(spec(match_ms=12 * 3_600_000))
    machines, waits = [], []
    for _ in range(5):
        machines.append(say(world, task))
        waits.append(wait_of(world, world.task(task)) // MINUTE_MS)
        world.block(max(1_000, wait_of(world, world.task(task)) - 1_000))
    assert waits == [0, 0, 10, 20, 40]
    assert len(set(machines)) == 5
    assert all(declines(world, machine) == (0, False) for machine in machines)


def test_a_task_that_is_set_aside_ends_with_its_search_and_returns_everything() -> None:
    world = market(3)
    before = balance_of(world.state, REQUESTER)
    task = world.create(spec(match_ms=30 * MINUTE_MS))
    for _ in range(3):
        say(world, task)
    while world.task(task).phase == Phase.MATCHING:
        world.block(MINUTE_MS)
    assert world.task(task).phase == Phase.EXPIRED
    assert balance_of(world.state, REQUESTER) == before
    assert escrow_totals(world.state, task).locked == 0


def test_its_requester_goes_on_at_once_and_another_word_sets_it_aside_for_longer() -> None:
    world = market(5)
    task = world.create(spec(match_ms=12 * 3_600_000))
    assert world.send(REQUESTER, RESUME_TASK, [task]) == "wrong_phase"
    for _ in range(3):
        say(world, task)
    assert world.send(bytes([1]) * 20, RESUME_TASK, [task]) == "not_yours"
    assert world.send(REQUESTER, RESUME_TASK, [task]) is None
    assert world.send(REQUESTER, RESUME_TASK, [task]) == "wrong_phase"
    say(world, task)
    assert wait_of(world, world.task(task)) == 2 * CALLS.complaints_wait_ms
    assert world.send(REQUESTER, CANCEL_TASK, [task]) is None
    assert world.task(task).phase == Phase.CANCELLED


def test_machines_of_one_operator_have_one_word() -> None:
    world = market(2)
    for at in (11, 12, 13):
        world.add_machine(at, roles=WORK, price=1, operator=b"\x0b" * 20, manners=IDLE)
    task = world.create()
    for _ in range(4):
        say(world, task)
    assert wait_of(world, world.task(task)) < CALLS.complaints_wait_ms
    say(world, task)
    assert wait_of(world, world.task(task)) == CALLS.complaints_wait_ms


@pytest.mark.parametrize("reason", [INPUTS, Reason.JOB_UNFIT])
def test_whoever_another_operator_refutes_pauses_from_the_third_time_on(reason: Reason) -> None:
    world = market(1)
    liar = bytes([1]) * 20
    world.add_machine(50, roles=WORK, price=WORTH // 1000, manners=HONEST)
    found = []
    for _ in range(4):
        task = world.create()
        assert matched(world, task) == liar
        world.machines[liar] = replace(IDLE, silent=IDLE.silent - {Action.ACCEPT})
        world.run_to(task, Phase.PREPARING)
        assert say(world, task, reason) == liar
        world.machines[liar] = IDLE
        before = declines(world, liar)[1]
        world.run(task, until=lambda record: record.next_window > 0)
        assert not before and world.task(task).complaints == ()
        node = require_node(world.state, liar)
        found.append((node.declines, max(0, node.match_from_ms - world.time_ms) // 5_000))
        world.run_to(task, Phase.SETTLED)
        world.block(40_000)
    assert [count for count, _ in found] == [1, 2, 3, 4]
    assert found[0][1] == found[1][1] == 0 < found[2][1] < found[3][1]


def test_a_machine_of_the_same_operator_refutes_nobody() -> None:
    world = World(parameters=CALLS)
    world.add_machine(99, roles=NodeRole.VERIFY)
    world.add_machine(1, roles=WORK, price=1, operator=b"\x0b" * 20, manners=IDLE)
    world.add_machine(2, roles=WORK, price=2, operator=b"\x0b" * 20, manners=HONEST)
    task = world.create()
    assert say(world, task) == bytes([1]) * 20
    world.run(task, until=lambda record: record.next_window > 0)
    assert world.task(task).complaints == () and declines(world, bytes([1]) * 20) == (0, False)


def test_who_says_more_than_a_task_keeps_pauses_as_others_that_decline() -> None:
    world = market(COMPLAINTS_MAX + 1)
    task = world.create(spec(match_ms=24 * 3_600_000))
    for at in range(COMPLAINTS_MAX + 1):
        machine = say(world, task)
        assert declines(world, machine) == ((0, False) if at < COMPLAINTS_MAX else (1, True))
        assert world.send(REQUESTER, RESUME_TASK, [task]) == (None if at > 1 else "wrong_phase")
    assert len(world.task(task).complaints) == COMPLAINTS_MAX
