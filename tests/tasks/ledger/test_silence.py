"""What silence costs a worker, and how busy one is that says everything in time (market.md 7.4, 8.2)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from tasks.ledger import queries
from tasks.ledger.lifecycle import Phase, WindowPhase
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.queries import Action
from tasks.ledger.records import load_window
from tasks.ledger.registry import NodeRole
from tests.tasks.queued import QueuedWorld
from tests.tasks.world import DKB, HONEST, QUICK, Manners, World, spec

WORK, CHECK = NodeRole.COMPUTE, NodeRole.VERIFY
SLOW: Final = QUICK
CUT: Final = Manners(silent=frozenset(Action))


@pytest.mark.xfail(strict=True, raises=AssertionError)
def test_a6_a_line_that_is_cut_for_a_moment_at_an_opening_voids_nothing() -> None:
    world = QueuedWorld(parameters=replace(SLOW, window_grace_ms=600_000))
    worker = world.sign_up("worker", roles=WORK)
    for at in range(3):
        world.sign_up(f"verifier {at}", roles=CHECK)
    task = world.post()
    world.run(
        task,
        until=lambda record: any(
            load_window(world.state, task, number).phase == WindowPhase.OPENING for number in record.open_windows
        ),
    )
    world.machines[worker] = CUT
    opening = world.task(task).final_windows
    while load_window(world.state, task, opening).phase != WindowPhase.OPENING:
        world.act()
        world.block()
    world.block(world.parameters.reveal_ms + 1_000)
    world.machines[worker] = HONEST
    assert world.run_to(task, Phase.SETTLED).worker == worker


class Paced(World):
    """The books are checked at each 50th block alone."""

    def check_money(self) -> None:
        if self.height % 50 == 0:
            super().check_money()


@pytest.mark.xfail(strict=True, raises=AssertionError)
def test_a11_a_worker_with_windows_of_13_seconds_is_busy() -> None:
    world = Paced(parameters=replace(TaskParameters(), new_windows=0))
    segment = 13_000 // spec().step_ms // 4
    job = spec(total=4 * segment * 200, segment=segment, window=4 * segment, match_ms=3_600_000)
    price = 13 * DKB * 4 // 36_000 * 10**12 // job.window_units(0)  # 0.4 DKB an hour
    worker = world.add_machine(1, roles=WORK, price=price, rate=job.window_units(0) // 13)
    for at in range(4):
        world.add_machine(at + 2, roles=CHECK)
    task = world.create(job._replace(max_price_per_tera_unit=price * 11 // 10))
    world.machines[worker] = Manners(silent=frozenset({Action.COMPUTE}))
    world.run_to(task, Phase.RUNNING)
    began_ms, busy_s, left_s, seconds = world.time_ms, 0, 13, 1_000
    while world.time_ms < began_ms + 1_000 * seconds:
        world.act()
        duties = [
            duty
            for duty in queries.work_duties(world.state, worker, world.parameters)
            if duty.action == Action.COMPUTE and not duty.blocked
        ]
        if duties:
            busy_s, left_s = busy_s + 1, left_s - 1
            if not left_s:
                world.work(worker, duties[0], HONEST)
                left_s = 13
        world.block()
    assert busy_s >= seconds * 95 // 100
