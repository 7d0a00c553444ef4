"""What requesters refuse of containers: who bears what, on both sides (R137 to R139)."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from billing.escrow import Movement, Purpose, bill_lines, escrow_totals
from billing.prices import TERA
from state.view.accounts import balance_of
from tasks.kinds.container import ExitKind, Metering, Mount, MountForm, Storage
from tasks.ledger.checkpoint_records import Checkpoints, load_checkpoints
from tasks.ledger.checkpoint_transitions import CHECKPOINT_TASK, MISS_CHECKPOINT
from tasks.ledger.lifecycle import ENDED, Phase, Reason
from tasks.ledger.refusals import all_of_machine
from tasks.ledger.registry import require_node
from tasks.ledger.transitions import ACCEPT_TASK, CANCEL_TASK, GIVE_UP_TASK, START_TASK
from tasks.spec import JobSpec
from tests.tasks.containers import (
    PRICE,
    STORED,
    block_until,
    container,
    finish,
    host,
    meter,
    metered,
    miss,
    part,
    second_price,
    started,
    store,
)
from tests.tasks.world import REQUESTER, World

SECOND: Final = second_price(PRICE // 2) // TERA
EVERY_S: Final = STORED.every_s
TICK_S: Final = 10
SMALL: Final = part().storage
LARGE: Final = Storage((Mount("/data", b"d" * 32, 1 << 30, MountForm.FOLDER),), "/output", 1 << 30, 1024)
"""A mount that takes some time to fetch."""
FALSE: Final = b"f" * 32


def job(*, retries: int = 8, storage: Storage = SMALL) -> JobSpec:
    return container(
        ticks=60, tick_s=TICK_S, checkpoint=STORED, metering=Metering("reserved", 300, retries), storage=storage
    )


def stored(world: World, task: bytes) -> Checkpoints:
    return load_checkpoints(world.state, task)


def latest(world: World, task: bytes) -> bytes:
    found = stored(world, task).latest
    return b"" if found is None else found.blob


def author(world: World, task: bytes) -> bytes:
    """What names all of the machine that has stored last, or of the last machine if none has."""
    found = stored(world, task)
    return all_of_machine(found.last if found.latest is None else found.latest.worker)


def paid_of(world: World, task: bytes, worker: bytes, *purposes: Purpose) -> int:
    return sum(
        line.amount for line in bill_lines(world.state, task)
        if line.purpose in (purposes or (Purpose.METERED, Purpose.DISK))
        and (line.party, line.movement) == (worker, Movement.PAID)
    )  # fmt: skip


def burned_of(world: World, task: bytes, purpose: Purpose = Purpose.HOLD_FORFEIT) -> int:
    return sum(
        line.amount for line in bill_lines(world.state, task)
        if (line.purpose, line.movement) == (purpose, Movement.BURNED)
    )  # fmt: skip


def refuse(world: World, task: bytes, name: bytes = b"c" * 32) -> str | None:
    return world.send(REQUESTER, MISS_CHECKPOINT, [task, name])


def leave(world: World, worker: bytes, task: bytes) -> str | None:
    return world.send(worker, GIVE_UP_TASK, [task, int(Reason.WORKER_LEFT)])


def run_for(world: World, seconds: int) -> None:
    block_until(world, 1_000 * seconds)


def store_after(world: World, worker: bytes, task: bytes, name: bytes, seconds: int = EVERY_S) -> None:
    """Run for some seconds more, and name a checkpoint of all of them."""
    run_for(world, seconds)
    up_s = (world.time_ms - metered(world, task).began_ms) // 1000
    covered_s = stored(world, task).covered_s
    assert store(world, worker, task, min(up_s, covered_s + seconds), name) is None


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


def next_machine(world: World, task: bytes) -> bytes:
    worker = accepted(world, task)
    assert world.send(worker, START_TASK, [task, b"m" * 32]) is None
    return worker


def until_late(world: World, worker: bytes, task: bytes) -> None:
    """Meter until the next checkpoint is late."""
    while True:
        run_for(world, TICK_S)
        own, up_s = metered(world, task).own_seconds, (world.time_ms - metered(world, task).began_ms) // 1000
        assert meter(world, worker, task, own + TICK_S) is None
        if up_s >= stored(world, task).covered_s + EVERY_S + TICK_S:
            return


@settings(max_examples=8, deadline=None)
@given(stores=st.integers(1, 3), idle_s=st.integers(0, EVERY_S))
def test_n62_a_machine_that_stores_no_work_is_not_paid_for_what_waits(stores: int, idle_s: int) -> None:
    """It names checkpoints that hold nothing; its requester opens the last one and refuses it."""
    world = World()
    host(world, 1, price=PRICE // 4)
    task, worker = started(world, job())
    for at in range(stores):
        store_after(world, worker, task, bytes([at + 1]) * 32)
    run_for(world, idle_s)
    before = require_node(world.state, worker)
    host(world, 2)
    assert refuse(world, task, bytes([stores]) * 32) is None
    due = (stores - 1) * EVERY_S  # intervals that another checkpoint followed
    assert paid_of(world, task, worker) == due * SECOND // 2
    waited = metered(world, task).seconds - due
    record, after = world.task(task), require_node(world.state, worker)
    prepared = burned_of(world, task) - waited * SECOND // 2
    assert (prepared > 0) == (stores == 1), "the preparation waits for the second checkpoint"
    assert (record.reason, record.worker, worker in record.excluded) == (Reason.CHECKPOINT_REFUSED, b"", True)
    assert (after.failures, after.bad, after.backing) == (before.failures, before.bad, before.backing)
    assert next_machine(world, task) != worker  # it goes on from the checkpoint before
    assert latest(world, task) == (bytes([stores - 1]) * 32 if stores > 1 else b"")


def test_n62_a_machine_that_stores_nothing_is_refused_once_its_checkpoint_is_late() -> None:
    world = World()
    host(world, 1)
    task, worker = started(world, job())
    until_late(world, worker, task)
    assert refuse(world, task, bytes(32)) is None
    assert paid_of(world, task, worker, Purpose.METERED, Purpose.PREPARATION) == 0
    assert world.task(task).reason == Reason.CHECKPOINT_REFUSED


@pytest.mark.parametrize("name", [bytes(32), None], ids=["nothing stored", "machine"])
def test_n63_a_refusal_right_after_the_start_is_none(name: bytes | None) -> None:
    """It would take from a machine what it has fetched, for gas and a second. A stop is possible, and pays."""
    world = World()
    host(world, 1)
    task, worker = started(world, job())
    run_for(world, EVERY_S)
    assert meter(world, worker, task, 6 * TICK_S) is None
    assert refuse(world, task, name or all_of_machine(worker)) == "meter_mismatch"
    assert world.task(task).worker == worker


@pytest.mark.parametrize("way", ["latest", "machine", "late"])
def test_n63_what_a_refusal_takes_from_a_machine_it_takes_from_its_requester_too(way: str) -> None:
    """A requester that stops its container pays what waits; one that refuses burns as much, and the fee."""
    costs, gains = [], []
    for refuses in (False, True):
        world = World()
        worker = host(world, 1)
        before, had = balance_of(world.state, REQUESTER), balance_of(world.state, worker)
        task, worker = started(world, job(retries=0, storage=LARGE))
        if way == "late":
            until_late(world, worker, task)
        else:
            store_after(world, worker, task, b"a" * 32)
        if refuses:
            name = {"latest": b"a" * 32, "machine": all_of_machine(worker), "late": bytes(32)}[way]
            assert refuse(world, task, name) is None
            assert world.task(task).reason == Reason.CHECKPOINT_REFUSED
        else:
            assert world.send(REQUESTER, CANCEL_TASK, [task]) is None
            up_s = (world.time_ms - metered(world, task).began_ms) // 1000
            seconds = min(up_s, metered(world, task).own_seconds + TICK_S)
            assert finish(world, worker, task, seconds, ExitKind.STOPPED) in (None, "meter_ahead")
        run_for(world, EVERY_S + 310)
        assert world.task(task).phase in ENDED and escrow_totals(world.state, task).locked == 0
        costs.append(before - balance_of(world.state, REQUESTER))
        gains.append(balance_of(world.state, worker) - had)
    assert costs[1] >= costs[0] - 12 * SECOND, "gas, rounding, and the seconds of a block or two"
    assert gains[1] <= 0 < gains[0] <= costs[1]


def test_n71_a_machine_that_names_a_false_checkpoint_and_leaves_at_once_is_refused_all_the_same() -> None:
    world = World()
    for at in range(2):
        host(world, at + 1)
    task, first = started(world, job())
    store_after(world, first, task, b"a" * 32)
    store_after(world, first, task, FALSE)
    assert leave(world, first, task) is None
    assert refuse(world, task, FALSE) is None, "nobody runs it now"
    assert latest(world, task) == b"a" * 32
    second = next_machine(world, task)
    store_after(world, second, task, b"b" * 32)
    assert abs(paid_of(world, task, first) - EVERY_S * SECOND) <= EVERY_S
    assert abs(burned_of(world, task) - EVERY_S * SECOND) <= EVERY_S


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.SETTLED])
def test_n71_a_false_checkpoint_is_refused_while_the_next_machine_has_stored_nothing(phase: Phase) -> None:
    """The next machine is paid for what it did, and may come back."""
    world = World()
    for at in range(2):
        host(world, at + 1)
    task, first = started(world, job())
    store_after(world, first, task, b"a" * 32)
    store_after(world, first, task, FALSE)
    assert leave(world, first, task) is None
    second = next_machine(world, task)
    run_for(world, 30)
    assert meter(world, second, task, 30) is None
    assert paid_of(world, task, first) <= EVERY_S * SECOND
    if phase == Phase.SETTLED:
        assert finish(world, second, task, 30) is None
    assert world.task(task).phase == phase
    assert refuse(world, task, FALSE) is None
    run_for(world, 0 if phase == Phase.RUNNING else EVERY_S + 5)
    assert paid_of(world, task, first) <= EVERY_S * SECOND
    assert paid_of(world, task, second) >= 30 * SECOND
    if phase == Phase.RUNNING:
        assert second not in world.task(task).excluded and latest(world, task) == b"a" * 32
        assert next_machine(world, task) == second


@pytest.mark.parametrize("phase", [Phase.DEGRADED, Phase.RUNNING])
def test_n71_a_refused_checkpoint_is_never_gone_on_from_again(phase: Phase) -> None:
    """It is all that was stored: the next machine begins from nothing, also if the last run began with it."""
    world = World()
    for at in range(2):
        host(world, at + 1)
    task, first = started(world, job())
    store_after(world, first, task, FALSE)
    assert leave(world, first, task) is None
    second = next_machine(world, task)
    assert stored(world, task).base == stored(world, task).latest
    if phase == Phase.DEGRADED:
        assert leave(world, second, task) is None
        host(world, 3)
    assert world.task(task).phase == phase
    assert refuse(world, task, FALSE) is None
    assert stored(world, task).wanted is None
    next_machine(world, task)
    assert latest(world, task) == b"" and stored(world, task).base is None


@pytest.mark.parametrize("phase", [Phase.DEGRADED, Phase.RUNNING, Phase.SETTLED])
@pytest.mark.parametrize("has_before", [False, True])
def test_n71_who_says_that_nothing_can_be_stored_and_leaves_at_once_is_refused_by_its_address(
    has_before: bool, phase: Phase
) -> None:
    """Such a checkpoint has no name, or that of the good one before. That one is another machine's, and stays."""
    world = World()
    for at in range(3):
        host(world, at + 1)
    task, worker = started(world, job())
    if has_before:
        store_after(world, worker, task, b"a" * 32)
        assert leave(world, worker, task) is None
        worker = next_machine(world, task)
    run_for(world, EVERY_S)
    assert world.send(worker, CHECKPOINT_TASK, [task, EVERY_S, b"", 0]) is None
    assert leave(world, worker, task) is None
    waited, second = stored(world, task).waits, b""
    assert waited >= EVERY_S * SECOND
    if phase != Phase.DEGRADED:
        second = next_machine(world, task)
        run_for(world, TICK_S)
        assert meter(world, second, task, TICK_S) is None
    if phase == Phase.SETTLED:
        assert finish(world, second, task, TICK_S) is None
    assert world.task(task).phase == phase
    assert refuse(world, task, all_of_machine(worker)) is None
    assert burned_of(world, task) == waited
    assert latest(world, task) == (b"a" * 32 if has_before else b"")
    run_for(world, EVERY_S + 5)
    assert paid_of(world, task, worker, Purpose.METERED, Purpose.PREPARATION) == 0
    assert paid_of(world, task, second) == (TICK_S * SECOND if second else 0)


def test_n72_who_fetches_nothing_and_leaves_earns_no_preparation() -> None:
    world = World()
    for at in range(2):
        host(world, at + 1)
    task, first = started(world, job(storage=LARGE))
    run_for(world, TICK_S)
    assert meter(world, first, task, TICK_S) is None
    assert leave(world, first, task) is None
    assert paid_of(world, task, first, Purpose.METERED, Purpose.PREPARATION) == 0
    second = next_machine(world, task)  # it earns it, with the checkpoint after its first
    for at in (1, 2):
        assert paid_of(world, task, second, Purpose.PREPARATION) == 0
        store_after(world, second, task, bytes([at]) * 32)
    assert paid_of(world, task, second, Purpose.PREPARATION) > 100 * SECOND


def test_n73_two_false_checkpoints_lose_nothing_of_what_another_machine_has_stored() -> None:
    world = World()
    for at in range(3):
        host(world, at + 1)
    task, first = started(world, job())
    store_after(world, first, task, b"a" * 32)
    assert leave(world, first, task) is None
    second = next_machine(world, task)
    for at in (1, 2, 3):
        store_after(world, second, task, bytes([at]) * 32)
    assert refuse(world, task, all_of_machine(second)) is None
    assert latest(world, task) == b"a" * 32 and stored(world, task).before is None
    third = next_machine(world, task)
    assert third not in (first, second) and stored(world, task).base == stored(world, task).latest


def test_n73_a_false_checkpoint_that_was_named_twice_is_gone_with_its_refusal() -> None:
    world = World()
    for at in range(2):
        host(world, at + 1)
    task, first = started(world, job())
    store_after(world, first, task, b"a" * 32)
    assert leave(world, first, task) is None
    second = next_machine(world, task)
    for _ in range(2):
        store_after(world, second, task, FALSE)
    assert refuse(world, task, FALSE) is None
    assert latest(world, task) == b"a" * 32 and stored(world, task).before is None


def test_n73_a_checkpoint_that_cannot_be_had_leads_to_the_one_that_the_run_began_with() -> None:
    world = World()
    for at in range(7):
        host(world, at + 1)
    task, first = started(world, job())
    store_after(world, first, task, b"a" * 32)
    assert leave(world, first, task) is None
    second = next_machine(world, task)
    for at in (1, 2, 3):
        store_after(world, second, task, bytes([at]) * 32)
    assert leave(world, second, task) is None
    for at in (3, 3, 2, 2):
        assert miss(world, accepted(world, task), task, bytes([at]) * 32) is None
    next_machine(world, task)
    assert latest(world, task) == b"a" * 32


@pytest.mark.parametrize("stores", [0, 2])
def test_n74_a_false_output_of_the_last_interval_is_not_paid(stores: int) -> None:
    world = World()
    host(world, 1)
    before = balance_of(world.state, REQUESTER)
    task, worker = started(world, job())
    for at in range(stores):
        store_after(world, worker, task, bytes([at + 1]) * 32)
    run_for(world, 30)
    assert finish(world, worker, task, stores * EVERY_S + 30) is None
    assert world.task(task).phase == Phase.SETTLED, "its output is there at once, and so is what is left"
    due = max(0, stores - 1) * EVERY_S
    name = bytes([stores]) * 32 if stores else bytes(32)
    assert refuse(world, task, name) is None
    assert world.task(task).phase == Phase.SETTLED
    run_for(world, EVERY_S + 5)
    assert paid_of(world, task, worker) == due * SECOND
    assert escrow_totals(world.state, task).locked == 0
    assert refuse(world, task, name) == "meter_mismatch"
    spent = before - balance_of(world.state, REQUESTER)
    assert spent >= (stores * EVERY_S + 30) * SECOND, "who refuses saves nothing"


def test_n74_what_no_checkpoint_holds_is_refused_alone() -> None:
    world = World()
    host(world, 1)
    task, worker = started(world, job())
    for at in (1, 2):
        store_after(world, worker, task, bytes([at]) * 32)
    run_for(world, 30)
    assert finish(world, worker, task, 2 * EVERY_S + 30) is None
    assert refuse(world, task, bytes(32)) is None
    run_for(world, EVERY_S + 5)
    assert paid_of(world, task, worker) == 2 * EVERY_S * SECOND
    assert burned_of(world, task) == 30 * SECOND


def test_only_what_was_stored_last_is_refused_and_only_by_the_requester() -> None:
    world = World()
    host(world, 1)
    task, worker = started(world, job())
    store_after(world, worker, task, b"c" * 32)
    for name in (b"x" * 32, bytes(32), all_of_machine(b"x" * 20)):
        assert refuse(world, task, name) == "meter_mismatch"
    assert miss(world, worker, task) == "wrong_phase"
    assert world.send(b"z" * 20, MISS_CHECKPOINT, [task, b"c" * 32]) == "not_yours"
    assert world.send(REQUESTER, CANCEL_TASK, [task]) is None
    assert refuse(world, task) == "wrong_phase"  # once it has ended
    host(world, 2)
    other, _ = started(world)
    assert refuse(world, other, bytes(32)) == "meter_mismatch"  # nothing waits for a checkpoint there


def test_n62_who_names_a_checkpoint_in_each_block_is_refused_by_name() -> None:
    world = World()
    host(world, 1)
    task, worker = started(world, job())
    store_after(world, worker, task, b"a" * 32)
    store_after(world, worker, task, b"b" * 32, 2)
    assert refuse(world, task, b"a" * 32) == "meter_mismatch"
    assert refuse(world, task, all_of_machine(b"x" * 20)) == "meter_mismatch"
    assert refuse(world, task, all_of_machine(worker)) is None
    assert world.task(task).reason == Reason.CHECKPOINT_REFUSED
    assert stored(world, task).latest is None and paid_of(world, task, worker) == 0


@pytest.mark.parametrize("phase", [Phase.DEGRADED, Phase.PAUSED])
@pytest.mark.parametrize("has_before", [False, True])
def test_what_is_refused_already_is_not_refused_again_by_address(has_before: bool, phase: Phase) -> None:
    world = World()
    host(world, 1)
    task, worker = started(world, job())
    if has_before:
        store_after(world, worker, task, b"a" * 32)
    store_after(world, worker, task, FALSE)
    assert refuse(world, task, all_of_machine(worker)) is None
    assert stored(world, task).latest is None
    if phase == Phase.PAUSED:
        while world.task(task).phase != Phase.PAUSED:
            world.block(60_000)
    assert world.task(task).phase == phase
    burned = burned_of(world, task)
    for name in (all_of_machine(worker), FALSE, bytes(32)):
        assert refuse(world, task, name) == "meter_mismatch"
    assert burned_of(world, task) == burned


STEP = st.tuples(
    st.sampled_from(["store", "same", "empty", "leave", "end", "refuse", "zero", "machine", "base"]),
    st.integers(1, 80),
)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.lists(STEP, max_size=9))
def test_whatever_both_sides_do_all_money_is_accounted_for(steps: list[tuple[str, int]]) -> None:
    world = World()
    for at in range(10):
        host(world, at + 1)
    before = balance_of(world.state, REQUESTER)
    task, _ = started(world, job(storage=LARGE))
    for at, (does, seconds) in enumerate(steps):
        if world.task(task).phase not in ENDED and world.task(task).phase != Phase.RUNNING:
            if does in ("refuse", "machine"):
                refuse(world, task, author(world, task) if does == "machine" else latest(world, task) or bytes(32))
            next_machine(world, task)
        run_for(world, seconds)
        worker, own = world.task(task).worker, metered(world, task).own_seconds
        match does:
            case "store" | "same":
                store(
                    world, worker, task, own + seconds // 2 + 1, FALSE if does == "same" else bytes([at + 1]) * 32
                )
            case "empty":
                world.send(worker, CHECKPOINT_TASK, [task, own + seconds // 2 + 1, b"", 0])
            case "leave":
                leave(world, worker, task)
            case "end":
                finish(world, worker, task, own)
            case "machine":
                refuse(world, task, author(world, task))
            case "zero":
                refuse(world, task, bytes(32))
            case _:
                refuse(world, task, latest(world, task) or bytes(32))
        assert escrow_totals(world.state, task).locked >= stored(world, task).waits >= 0
    if world.task(task).phase not in ENDED:
        world.send(REQUESTER, CANCEL_TASK, [task])
    block_until(world, 400_000 + 1_000 * EVERY_S)
    assert world.task(task).phase in ENDED
    assert (stored(world, task).waits, escrow_totals(world.state, task).locked) == (0, 0)
    spent = before - balance_of(world.state, REQUESTER)
    totals = escrow_totals(world.state, task)
    assert totals.paid + totals.burned <= spent
    machines = {run.worker for run in stored(world, task).runs}
    assert sum(paid_of(world, task, machine) for machine in machines) == metered(world, task).paid
