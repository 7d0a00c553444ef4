from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import pytest

from billing.errors import EscrowUnknown
from billing.escrow import Movement
from state.view import Reader
from tasks.errors import TaskUnknown
from tasks.ledger import queries
from tasks.ledger.lifecycle import Phase
from tasks.ledger.records import TaskRecord
from tasks.ledger.registry import bond_id
from tasks.ledger.settlement import check_budget
from tests.tasks.world import REQUESTER, World, spec

Item = TypeVar("Item")
Subject = TypeVar("Subject")


def of(
    ask: Callable[[Reader, Subject, bytes | None, int], queries.Page[TaskRecord]],
    state: Reader,
    subject: Subject,
    cursor: bytes | None,
) -> queries.Page[TaskRecord]:
    return ask(state, subject, cursor, 3)


def test_lists_page_through_everything_once() -> None:
    world = World()
    machines = [world.add_machine(at) for at in range(1, 8)]
    tasks = []
    for _ in range(7):
        tasks.append(world.create(spec()))
        world.block()
        world.act()

    def walk(page_of: Callable[[bytes | None], queries.Page[Item]]) -> list[Item]:
        cursor: bytes | None = None
        found: list[Item] = []
        while True:
            page = page_of(cursor)
            assert len(page.items) <= 3
            found += page.items
            cursor = page.next_cursor
            if cursor is None:
                return found

    mine = walk(lambda cursor: queries.tasks_by_requester(world.state, REQUESTER, cursor, 3))
    assert [task.id for task in mine] == tasks
    by_phase = [
        task.id for phase in Phase for task in walk(partial(of, queries.tasks_by_phase, world.state, phase))
    ]
    assert sorted(by_phase) == sorted(tasks)
    by_worker = {
        task.id
        for machine in machines
        for task in walk(partial(of, queries.tasks_by_worker, world.state, machine))
    }
    assert by_worker == {task for task in tasks if world.task(task).assigned_ms}
    nodes = walk(lambda cursor: queries.list_nodes(world.state, cursor, 3))
    assert [node.address for node in nodes] == sorted(machines)
    assert queries.tasks_by_requester(world.state, b"?" * 20, None, 3) == ((), None)


def test_a_bill_sums_exactly_at_every_moment() -> None:
    world = World()
    for at in range(1, 4):
        world.add_machine(at)
    task = world.create()
    while world.task(task).phase != Phase.SETTLED:
        world.act()
        world.block()
        bill = queries.bill(world.state, task)
        sums = {
            movement: sum(line.amount for line in bill.lines if line.movement == movement) for movement in Movement
        }
        totals = bill.totals
        assert sums[Movement.LOCKED] == totals.deposited
        assert (sums[Movement.PAID], sums[Movement.REFUNDED]) == (totals.paid, totals.refunded)
        assert sums[Movement.BURNED] == totals.burned
        assert totals.deposited == totals.locked + totals.paid + totals.refunded + totals.burned
        assert [line.number for line in bill.lines] == list(range(len(bill.lines)))
    assert queries.bill(world.state, bond_id(bytes([1]) * 20)).totals.locked == world.parameters.node_bond_min


def test_a_quote_is_what_creating_locks() -> None:
    world = World()
    task = world.create()
    assert queries.quote(spec(), world.parameters).total == queries.bill(world.state, task).totals.locked
    budget = queries.quote(spec(), world.parameters)
    checks = sum(check_budget(spec(), number, world.parameters) for number in range(spec().windows))
    assert (budget.verification, budget.fee) == (checks, budget.price * 2 // 100)


def test_what_is_unknown_says_so() -> None:
    world = World()
    for ask in (queries.find_task, queries.task_spec, queries.task_windows):
        with pytest.raises(TaskUnknown):
            ask(world.state, b"?" * 32)
    with pytest.raises(EscrowUnknown):
        queries.bill(world.state, b"?" * 32)
    assert queries.find_node(world.state, b"?" * 20) is None
    assert queries.work_duties(world.state, b"?" * 20, world.parameters) == []
    assert queries.verification_duties(world.state, b"?" * 20) == []
