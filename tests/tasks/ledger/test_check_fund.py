"""The check fund under attack: what is put down, and who bears it where windows are void (market.md R31)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

import pytest

from tasks.ledger.check_fund import fund_balance
from tasks.ledger.lifecycle import Reason
from tasks.ledger.queries import Action
from tasks.ledger.records import TaskRecord
from tasks.ledger.registry import NodeRole
from tasks.ledger.transitions import GIVE_UP_TASK
from tests.tasks.world import DKB, QUICK, WORTH, Manners, World, spec

CHECK, WORK = NodeRole.VERIFY, NodeRole.COMPUTE
LONG: Final = replace(QUICK, open_windows_max=64, opening_extra_ms=600_000, check_fund_float=1_000 * DKB)
WORKERS: Final = 9
LIMIT: Final = WORTH // 100


def is_proved(windows: int, record: TaskRecord) -> bool:
    return record.next_window >= windows


@pytest.mark.nightly
def test_windows_that_stand_on_a_silent_workers_cost_the_fund_nothing_when_they_are_void() -> None:
    """The first worker never opens its window. Its friends prove others on it, which are checked and then void."""
    world = World(parameters=LONG)
    for name in range(100, 130):
        world.add_machine(name, roles=CHECK)
    silent = Manners(silent=frozenset({Action.OPEN}))
    world.add_machine(1, roles=WORK, rate=1, price=1, manners=silent)
    task = world.create(spec(total=800, segment=20, price=LIMIT))
    for number in range(WORKERS):
        done = world.task(task).next_window + (3 if number else 1)
        world.run(task, until=partial(is_proved, done))
        world.add_machine(2 + number, roles=WORK, rate=1, price=LIMIT)
        assert world.send(world.task(task).worker, GIVE_UP_TASK, [task, int(Reason.JOB_UNFIT)]) is None
    top = world.task(task).next_window
    world.run(task, until=lambda record: record.next_window < top - 5, blocks=800)
    assert fund_balance(world.state) >= 1_000 * DKB
