"""Machines that say of a checkpoint that they cannot have it: two words count, and no machine's alone (R156)."""

from __future__ import annotations

from typing import Final

import pytest

from billing.escrow import Movement, Purpose, bill_lines
from billing.prices import TERA
from tasks.kinds.container import Metering
from tasks.ledger.checkpoint_records import Checkpoints, load_checkpoints
from tasks.ledger.lifecycle import Phase, Reason
from tasks.ledger.registry import require_node
from tasks.ledger.transitions import ACCEPT_TASK, GIVE_UP_TASK, START_TASK
from tasks.spec import JobSpec
from tests.tasks.containers import (
    PRICE,
    STORED,
    block_until,
    container,
    host,
    metered,
    miss,
    second_price,
    started,
    store,
)
from tests.tasks.world import QUICK, World

SECOND: Final = second_price(PRICE // 2) // TERA
EVERY_S: Final = STORED.every_s
FIRST, LAST = b"\1" * 32, b"\2" * 32


def job() -> JobSpec:
    return container(ticks=60, tick_s=10, checkpoint=STORED, metering=Metering("reserved", 300, 8))


def stored(world: World, task: bytes) -> Checkpoints:
    return load_checkpoints(world.state, task)


def left_behind(world: World) -> tuple[bytes, bytes]:
    """A machine stores two checkpoints and leaves; return the task and the machine."""
    task, worker = started(world, job())
    for name in (FIRST, LAST):
        block_until(world, 1_000 * EVERY_S)
        covered_s = stored(world, task).covered_s
        assert store(world, worker, task, covered_s + EVERY_S, name) is None
    assert world.send(worker, GIVE_UP_TASK, [task, int(Reason.WORKER_LEFT)]) is None
    return task, worker


def accepted(world: World, task: bytes) -> bytes:
    """Have the next machine accept; return it."""
    for _ in range(60):
        if world.task(task).worker:
            break
        world.block()
    worker = world.task(task).worker
    assert worker, "nobody was matched"
    assert world.send(worker, ACCEPT_TASK, [task, 0]) is None
    return worker


def start(world: World, worker: bytes, task: bytes) -> str | None:
    return world.send(worker, START_TASK, [task, b"m" * 32])


def paid_of(world: World, task: bytes, worker: bytes) -> int:
    return sum(
        line.amount for line in bill_lines(world.state, task)
        if line.purpose in (Purpose.METERED, Purpose.DISK)
        and (line.party, line.movement) == (worker, Movement.PAID)
    )  # fmt: skip


def hosts(count: int) -> World:
    world = World()
    for at in range(count):
        host(world, at + 1)
    return world


def test_n76_one_machine_alone_takes_no_interval_from_the_one_before() -> None:
    """It says that it cannot have a good checkpoint, to do its interval again and bill it."""
    world = hosts(3)
    task, first = left_behind(world)
    liar = accepted(world, task)
    assert miss(world, liar, task, LAST) is None
    record = world.task(task)
    assert (record.phase, record.worker, record.reason) == (Phase.DEGRADED, b"", Reason.CHECKPOINT_MISSED)
    assert start(world, liar, task) == "not_yours"
    other = accepted(world, task)
    assert other not in (first, liar), "another machine tries to have it"
    assert start(world, other, task) is None
    found = stored(world, task)
    assert found.base is not None and found.base.blob == LAST
    assert metered(world, task).seconds == 2 * EVERY_S, "no second is done again"
    block_until(world, 1_000 * EVERY_S)
    assert store(world, other, task, EVERY_S, b"\3" * 32) is None
    assert abs(paid_of(world, task, first) - 2 * EVERY_S * SECOND) <= 2 * EVERY_S


def test_n76_two_machines_in_turn_are_believed_and_both_leave() -> None:
    world = hosts(4)
    task, first = left_behind(world)
    said = [accepted(world, task)]
    assert miss(world, said[0], task, LAST) is None
    said.append(accepted(world, task))
    assert miss(world, said[1], task, LAST) is None
    assert start(world, said[1], task) == "not_yours", "who says so does not do the interval again"
    wanted = stored(world, task).wanted
    assert wanted is not None and wanted.blob == FIRST
    third = accepted(world, task)
    assert third not in (first, *said)
    assert start(world, third, task) is None
    assert metered(world, task).seconds == EVERY_S
    block_until(world, 1_000 * EVERY_S)
    assert store(world, third, task, EVERY_S, b"\3" * 32) is None
    assert abs(paid_of(world, task, first) - EVERY_S * SECOND) <= EVERY_S


def test_who_cannot_have_a_checkpoint_has_no_pause_and_may_come_back() -> None:
    world = hosts(3)
    task, first = left_behind(world)
    doubter = accepted(world, task)
    before = require_node(world.state, doubter)
    assert miss(world, doubter, task, LAST) is None
    after = require_node(world.state, doubter)
    assert (after.failures, after.bad, after.backing, after.declines) == (
        before.failures, before.bad, before.backing, before.declines,
    )  # fmt: skip
    assert after.cool_down_until_ms == before.cool_down_until_ms and after.busy_slots == 0
    other = accepted(world, task)
    assert start(world, other, task) is None
    assert set(world.task(task).excluded) == {first}, "the one that has left"
    block_until(world, 1_000 * EVERY_S)
    assert world.send(other, GIVE_UP_TASK, [task, int(Reason.WORKER_LEFT)]) is None
    again = accepted(world, task)
    assert again == doubter
    assert start(world, again, task) is None


def test_n77_the_same_machine_says_it_twice_only_where_no_other_comes() -> None:
    """Else a machine that is matched again would be two machines. Where it is alone it must be able to go on."""
    world = hosts(2)
    task, first = left_behind(world)
    lone = accepted(world, task)
    assert miss(world, lone, task, LAST) is None
    began_ms = world.time_ms
    while not world.task(task).worker:
        world.block()
        assert world.time_ms < began_ms + 2 * QUICK.replace_ms, "it may come back"
    assert world.time_ms >= began_ms + QUICK.replace_ms, "another machine had that long"
    assert accepted(world, task) == lone
    assert miss(world, lone, task, LAST) is None
    assert accepted(world, task) == lone
    assert start(world, lone, task) is None
    found = stored(world, task)
    assert found.base is not None and found.base.blob == FIRST
    assert abs(paid_of(world, task, first) - EVERY_S * SECOND) <= EVERY_S
    assert set(world.task(task).excluded) == {first}


def test_n77_a_machine_that_comes_late_has_its_say_before_the_first_one_again() -> None:
    world = hosts(2)
    task, _ = left_behind(world)
    lone = accepted(world, task)
    assert miss(world, lone, task, LAST) is None
    block_until(world, QUICK.replace_ms // 2)
    assert not world.task(task).worker
    third = host(world, 3)
    assert accepted(world, task) == third
    assert start(world, third, task) is None
    found = stored(world, task)
    assert found.base is not None and found.base.blob == LAST and found.missed == 0


@pytest.mark.parametrize("words", [6])
def test_machines_that_say_so_of_all_checkpoints_end_with_nothing_to_go_on_from(words: int) -> None:
    """A search lasts as long as there is something to say: each checkpoint has two words, and there are three."""
    world = hosts(2 + words)
    task, _ = left_behind(world)
    second = accepted(world, task)
    assert start(world, second, task) is None
    for name in (b"\3" * 32, b"\4" * 32):
        block_until(world, 1_000 * EVERY_S)
        assert store(world, second, task, stored(world, task).covered_s + EVERY_S, name) is None
    assert world.send(second, GIVE_UP_TASK, [task, int(Reason.WORKER_LEFT)]) is None
    for _ in range(words):
        worker, wanted = accepted(world, task), stored(world, task).wanted
        assert wanted is not None
        assert miss(world, worker, task, wanted.blob) is None
    last = accepted(world, task)
    assert stored(world, task).wanted is None
    assert miss(world, last, task, LAST) == "meter_mismatch"
    assert start(world, last, task) is None
    assert stored(world, task).base is None
