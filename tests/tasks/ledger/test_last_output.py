"""The bond of the last output of a task is that of all of its windows (market.md R54)."""

from __future__ import annotations

from state.view.accounts import balance_of, credit, debit
from tasks.ledger.custody_records import CustodyPhase, load_custody
from tasks.ledger.lifecycle import Phase
from tasks.ledger.records import load_window
from tasks.ledger.transitions import CANCEL_TASK
from tests.tasks.keepers import KEPT
from tests.tasks.ledger.test_custody import market, until
from tests.tasks.world import REQUESTER

LAST = 2
COUNTS = bytes([0x2A]) + b"M"
"""Hand-overs of a day by machine."""


def charges(world: object, task: bytes, windows: int) -> list[int]:
    return [load_window(world.state, task, number).charge for number in range(windows)]  # type: ignore[attr-defined]


def test_custodians_of_the_last_output_lock_the_price_of_the_task_and_others_that_of_a_window() -> None:
    world, _, task = market()
    world.run_to(task, Phase.SETTLED)
    prices = charges(world, task, 3)
    bonds = [load_custody(world.state, task, number).bond for number in range(3)]
    assert bonds == [prices[0], prices[1], sum(prices)]
    kept = load_custody(world.state, task, LAST)
    assert [holder.bond for holder in kept.holders] == [sum(prices)] * KEPT.custody_copies


def test_the_last_window_of_a_cancelled_task_is_its_last_output() -> None:
    world, _, task = market()
    world.run(task, until=lambda record: record.phase == Phase.RUNNING and record.next_window == 1)
    assert world.send(REQUESTER, CANCEL_TASK, [task]) is None
    world.run(task, until=lambda record: record.next_window == 2)
    assert load_custody(world.state, task, 1).bond == sum(charges(world, task, 2))


def test_machines_without_the_bond_leave_without_blame_and_the_worker_keeps_the_output() -> None:
    world, worker, task = market()
    keepers = [bytes([10 + at]) * 20 for at in range(5)]
    world.run(task, until=lambda record: record.next_window == LAST + 1)
    until(world, task, LAST - 1, lambda record: record.phase is CustodyPhase.KEPT)
    bond = load_custody(world.state, task, LAST).bond
    for keeper in keepers:
        spare = balance_of(world.state, keeper) - (bond - 1)
        debit(world.state, keeper, spare)
        credit(world.state, b"\x66" * 20, spare)
    before = [world.state.get(COUNTS + machine) for machine in (*keepers, worker)]
    assert any(before)
    kept = until(world, task, LAST, lambda record: record.phase is CustodyPhase.KEPT, blocks=300)
    assert [holder.address for holder in kept.holders] == [worker] and (kept.drawn, kept.tried) == (5, 0)
    assert [world.state.get(COUNTS + machine) for machine in (*keepers, worker)] == before
    world.run_to(task, Phase.SETTLED)
