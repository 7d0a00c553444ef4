"""N16: a worker hands its outputs to no custodian, is paid for all windows, and sells the result (market.md R58).

Here too few machines can be drawn to void a window; with more of them R90 does that (``test_unkept``). Its bond is
that of twelve windows at most where a task may have thousands. So it asked for more than its bond, and a requester
without the result paid that.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from billing.escrow import Movement, Pool, Purpose
from billing.prices import share
from tasks.ledger.custody_records import CustodyPhase, find_custody, load_custody
from tasks.ledger.lifecycle import Phase
from tasks.ledger.records import load_window
from tasks.ledger.transitions import CANCEL_TASK
from tests.tasks.keepers import KEPT, KeptWorld
from tests.tasks.ledger.test_custody import lines, until
from tests.tasks.signed import CHECK, WORK
from tests.tasks.world import REQUESTER, WORTH, spec

WINDOWS: Final = 20
LONG: Final = replace(KEPT, custody_misses_per_day=8)


def market(
    *, hands_over: bool, keepers: int = 3, windows: int = WINDOWS, misses: int = 8
) -> tuple[KeptWorld, bytes, bytes]:  # fmt: skip
    world = KeptWorld(parameters=replace(LONG, custody_misses_per_day=misses))
    world.hands_over = hands_over
    worker = world.add_machine(1, roles=WORK, price=WORTH)
    world.add_machine(2, roles=CHECK)
    for at in range(keepers):
        world.add_keeper(10 + at)
    return world, worker, world.create(spec(total=20 * windows, price=WORTH))


def price(world: KeptWorld, task: bytes, windows: int) -> int:
    return sum(load_window(world.state, task, number).charge for number in range(windows))


def paid(world: KeptWorld, task: bytes, purpose: Purpose, worker: bytes) -> int:
    return sum(line.amount for line in lines(world, task, purpose) if line.party == worker)


def deny(world: KeptWorld, worker: bytes, task: bytes, window: int) -> int:
    """Have the worker leave a demand unanswered, and return what is burned for that."""
    world.unanswering = {worker}
    assert world.demand(task, window, worker) is None
    for _ in range(40):
        world.block()
    burned = lines(world, task, Purpose.CUSTODY_LOST)
    assert {line.movement for line in burned} == {Movement.BURNED}
    return sum(line.amount for line in burned)


def test_n16_who_alone_keeps_the_result_of_a_long_task_loses_what_it_was_worth() -> None:
    world, worker, task = market(hands_over=False)
    world.run_to(task, Phase.SETTLED)
    last = load_custody(world.state, task, WINDOWS - 1)
    assert [holder.address for holder in last.holders] == [worker]
    (bond,) = (line.amount for line in lines(world, task, Purpose.WORKER_BOND))
    assert bond < price(world, task, WINDOWS)
    lost = deny(world, worker, task, WINDOWS - 1)
    assert lost >= price(world, task, WINDOWS), "the result cost so much, and is sold for that at least"
    assert lost == bond + price(world, task, WINDOWS)
    assert paid(world, task, Purpose.WINDOW_PAY, worker) == 0
    assert not lines(world, task, Purpose.HOLD_RELEASE)


def test_a_worker_whose_custodians_sign_is_paid_as_ever() -> None:
    world, worker, task = market(hands_over=True, windows=3)
    world.run_to(task, Phase.SETTLED)
    whole = price(world, task, 3)
    assert paid(world, task, Purpose.WINDOW_HOLD, worker) == share(whole, LONG.hold_bps)
    assert paid(world, task, Purpose.HOLD_RELEASE, worker) == share(whole, LONG.hold_bps)


def test_where_nobody_can_be_drawn_a_worker_is_paid_as_ever() -> None:
    world, worker, task = market(hands_over=True, keepers=0, windows=3)
    world.run_to(task, Phase.SETTLED)
    assert load_custody(world.state, task, 2).drawn == 0
    assert paid(world, task, Purpose.HOLD_RELEASE, worker) == share(price(world, task, 3), LONG.hold_bps)


@pytest.mark.parametrize("ends", ["its requester", "time"])
def test_what_is_held_of_a_lone_keeper_is_paid_when_the_custody_of_the_result_ends(ends: str) -> None:
    world, worker, task = market(hands_over=False, windows=3)
    world.run_to(task, Phase.SETTLED)
    for _ in range(3):
        world.block()
    whole = price(world, task, 3)
    assert paid(world, task, Purpose.WINDOW_HOLD, worker) == whole
    assert paid(world, task, Purpose.HOLD_RELEASE, worker) == 0
    if ends == "time":
        world.block(LONG.custody_ms)
    else:
        assert world.end(task, 2) is None
    for _ in range(3):
        world.block()
    assert find_custody(world.state, task, 2) is None
    assert paid(world, task, Purpose.HOLD_RELEASE, worker) == whole
    assert (ends == "time") == (find_custody(world.state, task, 1) is None)


def test_a_later_output_in_other_hands_frees_what_is_held_at_the_end_of_the_task() -> None:
    world, worker, task = market(hands_over=False, windows=6, misses=64)
    world.run(task, until=lambda record: record.final_windows == 1, blocks=100)
    world.hands_over = True
    world.run_to(task, Phase.SETTLED)
    assert any(holder.bond for holder in load_custody(world.state, task, 5).holders)
    for _ in range(3):
        world.block()
    assert paid(world, task, Purpose.WINDOW_HOLD, worker) > share(price(world, task, 6), LONG.hold_bps)
    assert paid(world, task, Purpose.HOLD_RELEASE, worker) == paid(world, task, Purpose.WINDOW_HOLD, worker)


def test_a_cancelled_task_keeps_what_is_held_of_who_alone_keeps_its_last_output() -> None:
    world, worker, task = market(hands_over=False, windows=6)
    world.run(task, until=lambda record: record.next_window == 2)
    assert world.send(REQUESTER, CANCEL_TASK, [task]) is None
    world.run_to(task, Phase.CANCELLED)
    last = world.task(task).final_windows - 1
    until(world, task, last, lambda record: record.phase is CustodyPhase.KEPT)
    held = paid(world, task, Purpose.WINDOW_HOLD, worker)
    assert held == price(world, task, last + 1)
    assert paid(world, task, Purpose.HOLD_RELEASE, worker) == 0
    assert deny(world, worker, task, last) >= held
    assert not [line for line in lines(world, task, Purpose.HOLD_RELEASE) if line.pool == Pool.HOLD]
