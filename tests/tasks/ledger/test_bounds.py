"""Attacks that make a record or a block larger than it may be, carried out with signed transactions."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from billing import escrow
from state.primitives.errors import RecordDamaged
from tasks.ledger.lifecycle import Phase, Reason
from tasks.ledger.registry import NodeRole
from tasks.ledger.transitions import GIVE_UP_TASK, RESUME_TASK
from tests.tasks.queued import QueuedWorld
from tests.tasks.world import QUICK, WORTH, spec

WORK, CHECK = NodeRole.COMPUTE, NodeRole.VERIFY
OWNERS: Final = 24


def relay_of_workers(world: QueuedWorld, workers: int) -> bytes:
    """Have each of ``workers`` machines run one window of a task and leave it; returns the task."""
    for at in range(workers):
        world.sign_up(f"worker {at}", roles=WORK, price=WORTH // 2000 + at)
    for at in range(4):
        world.sign_up(f"verifier {at}", roles=CHECK)
    world.block()
    task = world.post(spec(total=20 * workers, match_ms=3_600_000))
    world.block()
    for window in range(workers - 1):
        while world.task(task).next_window == window:
            if world.task(task).phase == Phase.PAUSED:
                world.send(world.requester, RESUME_TASK, [task])
            world.act()
            world.block()
        world.send(world.task(task).worker, GIVE_UP_TASK, [task, int(Reason.WORKER_LEFT)])
        world.block()
    return task


@pytest.mark.xfail(strict=True, raises=RecordDamaged)
def test_a1_a_task_of_many_workers_in_turn_does_not_halt_the_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker leaves a hold behind until the task ends: the record of all of them must not grow with them."""
    monkeypatch.setattr(escrow, "RECORD_LIMIT_BYTES", 512)
    world = QueuedWorld(parameters=replace(QUICK, attempts_max=4, cool_down_ms=0, decline_ms=0))
    task = relay_of_workers(world, OWNERS)
    while world.task(task).phase != Phase.SETTLED:
        world.act()
        world.block()
    for _ in range(40):
        world.block()
    assert escrow.escrow_totals(world.state, task).locked == 0
