"""Cheap machines that take a task and leave it do not hand it to a dear one (market.md R52)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from tasks.ledger import calls
from tasks.ledger.lifecycle import Reason
from tasks.ledger.queries import Action
from tasks.ledger.registry import NodeRole
from tasks.ledger.transitions import GIVE_UP_TASK
from tests.tasks.world import QUICK, WORTH, Manners, World, spec

WORK: Final = NodeRole.COMPUTE
IDLE: Final = Manners(silent=frozenset(Action))
CALLS: Final = replace(QUICK, call_ms=0, order_blocks=0, match_retry_ms=1_000, match_retry_ms_max=1_000)
USUAL: Final = WORTH // 2000
DEAR: Final = 50
OFFERED: Final = 24


def takers(dear_price: int, *, decoys: int = 2, usual: int = 4, seeds: int = OFFERED) -> list[int]:
    """Return who has a task after ``decoys`` have taken and left it, in worlds that differ by their beacons."""
    found = []
    for seed in range(seeds):
        world = World(parameters=CALLS, seed=seed)
        world.add_machine(99, roles=NodeRole.VERIFY)
        for at in range(decoys):
            world.add_machine(at + 1, roles=WORK, price=1, manners=IDLE)
        for at in range(usual):
            world.add_machine(at + 20, roles=WORK, price=USUAL, manners=IDLE)
        world.add_machine(DEAR, roles=WORK, price=dear_price, manners=IDLE)
        task = world.create(spec(price=4 * USUAL))
        for _ in range(decoys):
            give_up(world, task)
        found.append(worker_of(world, task)[0])
    return found


def worker_of(world: World, task: bytes) -> bytes:
    for _ in range(100):
        if worker := world.task(task).worker:
            return worker
        world.block()
    raise AssertionError("nobody was matched")


def give_up(world: World, task: bytes) -> None:
    worker = worker_of(world, task)
    assert worker[0] < 20 and world.send(worker, GIVE_UP_TASK, [task, int(Reason.JOB_UNFIT)]) is None


def test_a_dear_machine_has_no_task_that_its_cheap_ones_have_left(monkeypatch: pytest.MonkeyPatch) -> None:
    assert DEAR not in takers(2 * USUAL)
    assert DEAR in takers(5 * USUAL // 4), "who asks a quarter more than the middle is not dear"
    monkeypatch.setattr(calls, "BOUNDED_DRAWS", 0)
    assert DEAR in takers(2 * USUAL), "without the rule it is drawn like all others"


def test_machines_that_ask_much_have_it_where_no_others_are_left() -> None:
    assert set(takers(3 * USUAL, usual=0, seeds=3)) == {DEAR}


def test_where_most_weights_are_decoys_the_others_are_drawn_after_some_offers() -> None:
    world = World(parameters=CALLS)
    world.add_machine(99, roles=NodeRole.VERIFY)
    for at in range(19):
        world.add_machine(at + 1, roles=WORK, price=1, manners=IDLE)
    world.add_machine(DEAR, roles=WORK, price=USUAL, manners=IDLE)
    task, offers = world.create(spec(match_ms=3_600_000)), 0
    while worker_of(world, task)[0] != DEAR:
        give_up(world, task)
        offers += 1
    assert offers >= CALLS.offers_ranked + calls.BOUNDED_DRAWS
