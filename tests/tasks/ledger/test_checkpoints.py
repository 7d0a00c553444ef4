"""Checkpoints of containers and machines that leave: who is paid, who bears what is lost (R103 to R106)."""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from billing.escrow import Movement, Purpose, bill_lines, escrow_totals
from billing.prices import TERA
from state.primitives.errors import DecodeError
from state.view.accounts import balance_of
from tasks.kinds.container import Checkpoint, Metering, check_container
from tasks.ledger.checkpoint_records import (
    CHECKPOINTS_LIMIT_BYTES,
    DOUBTERS_MAX,
    RUNS_KEPT,
    WORDS_NEEDED,
    Checkpoints,
    Run,
    Stored,
    load_checkpoints,
    save_checkpoints,
)
from tasks.ledger.checkpoint_transitions import CHECKPOINT_TASK, MISS_CHECKPOINT
from tasks.ledger.checkpoints import LEAVE_FINE_S_MAX
from tasks.ledger.lifecycle import ENDED, Phase, Reason
from tasks.ledger.registry import profile_from_value, profile_to_value, require_node
from tasks.ledger.transitions import (
    ACCEPT_TASK,
    CANCEL_TASK,
    GIVE_UP_TASK,
    START_TASK,
    UPDATE_NODE,
    node_payload,
)
from tasks.spec import JobSpec, container_of
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
    second_price,
    started,
    store,
)
from tests.tasks.world import QUICK, REQUESTER, World

SECOND: Final = second_price(PRICE // 2) // TERA
CHEAP: Final = PRICE // 2_000
EVERY_S: Final = STORED.every_s


def job(*, ticks: int = 60, tick_s: int = 10, retries: int = 8, **changes: object) -> JobSpec:
    return container(
        ticks=ticks, tick_s=tick_s, checkpoint=changes.pop("checkpoint", STORED),
        metering=Metering("reserved", 300, retries), **changes,  # type: ignore[arg-type]
    )  # fmt: skip


def stored(world: World, task: bytes) -> Checkpoints:
    return load_checkpoints(world.state, task)


def paid_of(world: World, task: bytes, worker: bytes, purpose: Purpose = Purpose.METERED) -> int:
    return sum(
        line.amount for line in bill_lines(world.state, task)
        if line.purpose in (purpose, *([Purpose.DISK] if purpose is Purpose.METERED else ()))
        and (line.party, line.movement) == (worker, Movement.PAID)
    )  # fmt: skip


def leave(world: World, worker: bytes, task: bytes) -> str | None:
    return world.send(worker, GIVE_UP_TASK, [task, int(Reason.WORKER_LEFT)])


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


def next_machine(world: World, task: bytes, *missed: bytes) -> bytes:
    """Have another machine start, after two each could not have the ``missed`` checkpoints."""
    for name in missed:
        for _ in range(WORDS_NEEDED):
            assert miss(world, accepted(world, task), task, name) is None
    worker = accepted(world, task)
    assert world.send(worker, START_TASK, [task, b"m" * 32]) is None
    return worker


def run_for(world: World, seconds: int) -> None:
    block_until(world, 1_000 * seconds)


def test_three_owners_leave_in_turn_and_the_requester_pays_each_second_once() -> None:
    world = World()
    for at in range(4):
        host(world, at + 1)
    before = balance_of(world.state, REQUESTER)
    task, worker = started(world, job())
    machines = [worker]
    for at in range(3):
        run_for(world, 100)
        assert store(world, worker, task, 90, bytes([at + 1]) * 32) is None
        run_for(world, 20)
        assert meter(world, worker, task, 110) is None
        assert leave(world, worker, task) is None
        found = stored(world, task)
        assert found.latest == Stored(bytes([at + 1]) * 32, 10_240, 90 * (at + 1), worker)
        assert metered(world, task).seconds == 90 * (at + 1)  # 20 seconds are gone, and are not paid
        worker = next_machine(world, task)
        machines.append(worker)
    assert len(set(machines)) == 4
    run_for(world, 40)
    assert finish(world, worker, task, 40) is None
    assert world.task(task).phase == Phase.SETTLED
    assert metered(world, task).seconds == 3 * 90 + 40
    run_for(world, EVERY_S + 5)
    assert stored(world, task).runs == (*(Run(one, 110, 20) for one in machines[:3]), Run(worker, 40, 0))
    for one in machines[:3]:
        assert abs(paid_of(world, task, one) - 90 * SECOND) <= 90
    assert abs(paid_of(world, task, worker) - 40 * SECOND) <= 40
    price = metered(world, task).paid
    fee = sum(
        line.amount for line in bill_lines(world.state, task)
        if (line.purpose, line.movement) == (Purpose.PROTOCOL_FEE, Movement.BURNED)
    )  # fmt: skip
    prepared = sum(paid_of(world, task, one, Purpose.PREPARATION) for one in machines)
    assert before - balance_of(world.state, REQUESTER) == price + fee + prepared
    assert abs(price - 310 * SECOND) <= 310 and abs(fee - price * QUICK.fee_bps // 10_000) <= 8
    assert escrow_totals(world.state, task).locked == 0
    assert all(require_node(world.state, one).backing == QUICK.node_bond_min for one in machines)


def test_pay_waits_for_the_checkpoint_after_and_is_due_some_time_after_the_end() -> None:
    world = World()
    host(world, 1)
    task, worker = started(world, job())
    before = balance_of(world.state, worker)
    run_for(world, 60)
    assert meter(world, worker, task, 60) is None
    assert store(world, worker, task, 60) is None
    assert balance_of(world.state, worker) == before  # nobody has shown that it can be had
    run_for(world, 70)
    assert store(world, worker, task, 125, b"d" * 32) is None
    prepared = paid_of(world, task, worker, Purpose.PREPARATION)
    assert prepared > 0
    assert abs(balance_of(world.state, worker) - before - prepared - 60 * SECOND) <= 60
    run_for(world, 5)
    assert finish(world, worker, task, 130) is None
    assert world.task(task).phase == Phase.SETTLED
    assert abs(balance_of(world.state, worker) - before - prepared - 60 * SECOND) <= 60
    run_for(world, EVERY_S + 5)
    assert escrow_totals(world.state, task).locked == 0
    assert abs(balance_of(world.state, worker) - before - prepared - 130 * SECOND) <= 130


def test_a_checkpoint_that_was_read_before_the_last_tick_covers_no_more_than_it_holds() -> None:
    world = World()
    for at in range(2):
        host(world, at + 1)
    task, worker = started(world, job())
    run_for(world, 100)
    assert meter(world, worker, task, 100) is None
    assert store(world, worker, task, 63) is None
    assert leave(world, worker, task) is None
    assert metered(world, task).seconds == 63
    assert store(world, worker, task, 70) == "not_yours"
    second = next_machine(world, task)
    assert paid_of(world, task, worker) == 0  # until the second machine stores, the first may be refused
    run_for(world, EVERY_S)
    assert store(world, second, task, EVERY_S) is None
    assert abs(paid_of(world, task, worker) - 63 * SECOND) <= 63
    assert stored(world, task).wanted is not None
    assert second != worker


def test_n39_a_checkpoint_that_nobody_serves_costs_its_machine_the_last_interval() -> None:
    world = World()
    for at in range(4):
        host(world, at + 1)
    task, first = started(world, job())
    run_for(world, 200)
    assert store(world, first, task, 100, b"a" * 32) is None
    assert store(world, first, task, 190, b"b" * 32) is None
    assert leave(world, first, task) is None
    second = next_machine(world, task, b"b" * 32)
    assert abs(paid_of(world, task, first) - 100 * SECOND) <= 100
    assert metered(world, task).seconds == 100  # the others are done again, and were not paid
    found = stored(world, task)
    assert found.latest is not None and found.latest.blob == b"a" * 32 and found.before is None
    assert found.runs == (Run(first, 190, 90), Run(second, 0, 0))
    run_for(world, 10)
    assert finish(world, second, task, 10) is None
    assert paid_of(world, task, first) <= 100 * SECOND + 100


def test_n39_a_machine_that_names_garbage_in_a_row_has_an_interval_at_stake_all_the_same() -> None:
    world = World()
    for at in range(6):
        host(world, at + 1)
    task, first = started(world, job())
    run_for(world, 200)
    assert store(world, first, task, 100, b"a" * 32) is None
    for seconds in range(160, 190, 5):
        assert store(world, first, task, seconds, bytes([seconds]) * 32) is None
    found = stored(world, task)
    assert found.before is not None and found.latest is not None
    assert found.latest.seconds - found.before.seconds >= EVERY_S
    assert found.closing_s >= EVERY_S
    assert leave(world, first, task) is None
    assert miss(world, first, task) == "not_yours"
    next_machine(world, task, found.latest.blob, found.before.blob)
    assert stored(world, task).latest is None
    assert metered(world, task).seconds == found.before.seconds  # that was paid before


def test_only_the_machine_that_prepares_misses_and_only_what_it_would_begin_with() -> None:
    world = World()
    for at in range(3):
        host(world, at + 1)
    task, first = started(world, job())
    assert miss(world, first, task) == "wrong_phase"
    run_for(world, 70)
    assert store(world, first, task, 70) is None
    assert leave(world, first, task) is None
    while not world.task(task).worker:
        world.block()
    second = world.task(task).worker
    assert miss(world, second, task) == "wrong_phase"
    assert world.send(second, ACCEPT_TASK, [task, 0]) is None
    assert miss(world, second, task, b"z" * 32) == "meter_mismatch"
    assert miss(world, second, task) is None
    # It says so and has left: nothing came of it, and the next machine may have it.
    assert miss(world, second, task) == "not_yours"
    third = next_machine(world, task)
    assert third not in (first, second)
    assert stored(world, task).wanted is not None
    run_for(world, EVERY_S)
    assert finish(world, third, task, EVERY_S) is None
    run_for(world, EVERY_S + 5)
    assert abs(paid_of(world, task, first) - 70 * SECOND) <= 70
    found = stored(world, task)
    assert found.latest is not None and found.latest.blob == b"c" * 32


def test_n40_a_folder_that_cannot_be_stored_costs_its_machine_nothing() -> None:
    """The requester's program fills it above its bound: the last one that could be stored counts."""
    world = World()
    for at in range(2):
        host(world, at + 1)
    task, first = started(world, job())
    run_for(world, 200)
    assert store(world, first, task, 70, b"a" * 32) is None
    assert store(world, first, task, 190, b"") is None
    assert leave(world, first, task) is None
    found = stored(world, task)
    assert found.latest == Stored(b"a" * 32, 10_240, 190, first)
    second = next_machine(world, task)
    run_for(world, EVERY_S)
    assert store(world, second, task, EVERY_S, b"d" * 32) is None
    assert abs(paid_of(world, task, first) - 190 * SECOND) <= 190


def test_a_task_that_ends_without_another_machine_pays_what_is_stored() -> None:
    world = World()
    host(world, 1)
    task, worker = started(world, job())
    run_for(world, 100)
    assert store(world, worker, task, 80) is None
    assert meter(world, worker, task, 100) is None
    assert leave(world, worker, task) is None
    assert world.send(REQUESTER, CANCEL_TASK, [task]) is None
    block_until(world, 10_000)
    assert world.task(task).phase == Phase.CANCELLED
    block_until(world, 1_000 * EVERY_S)
    assert abs(paid_of(world, task, worker) - 80 * SECOND) <= 80
    assert escrow_totals(world.state, task).locked == 0


def test_a_requester_that_stops_pays_what_was_metered_also_where_the_machine_is_silent() -> None:
    world = World()
    host(world, 1)
    task, worker = started(world, job())
    run_for(world, 60)
    assert meter(world, worker, task, 60) is None
    assert world.send(REQUESTER, CANCEL_TASK, [task]) is None
    assert store(world, worker, task, 60) == "meter_mismatch"
    block_until(world, 310_000)
    assert world.task(task).phase == Phase.CANCELLED
    block_until(world, 1_000 * EVERY_S)
    assert abs(paid_of(world, task, worker) - 60 * SECOND) <= 60


def test_an_interruptible_machine_leaves_for_nothing_once_it_has_stored() -> None:
    world = World()
    host(world, 1)
    task, worker = started(world, job())
    run_for(world, 70)
    assert store(world, worker, task, 70) is None
    assert leave(world, worker, task) is None
    node = require_node(world.state, worker)
    assert (node.declines, node.backing) == (0, QUICK.node_bond_min)
    assert node.match_from_ms <= world.time_ms


def some_blocks(world: World) -> None:
    for _ in range(6):
        world.block()


def until(world: World, worker: bytes, until_ms: int) -> str | None:
    profile = require_node(world.state, worker).profile._replace(until_ms=until_ms)
    return world.send(worker, UPDATE_NODE, node_payload(profile, 0))


def test_a_job_that_nobody_may_leave_waits_for_a_machine_that_stays() -> None:
    world = World()
    first, second = host(world, 1), host(world, 2)
    task = world.create(job(allows=0))
    some_blocks(world)
    assert not world.task(task).worker
    assert until(world, first, world.time_ms + 60_000) is None  # not long enough
    some_blocks(world)
    assert not world.task(task).worker
    assert until(world, second, world.time_ms + 1_000 * 600 + QUICK.prepare_ms + QUICK.accept_ms + 60_000) is None
    some_blocks(world)
    assert world.task(task).worker == second


def test_who_leaves_before_the_time_that_it_has_offered_pays_a_bounded_fine() -> None:
    world = World()
    worker = host(world, 1, price=CHEAP)
    assert until(world, worker, world.time_ms + 3_600_000) is None
    task, worker = started(world, job())
    assert until(world, worker, 0) is None  # too late: what it had offered counts
    run_for(world, 100)
    assert store(world, worker, task, 100) is None
    before = require_node(world.state, worker).backing
    assert leave(world, worker, task) is None
    burned = before - require_node(world.state, worker).backing
    assert 0 < burned == (600 - 100) * second_price(CHEAP) // TERA
    assert burned <= LEAVE_FINE_S_MAX * SECOND


def test_a_machine_that_has_stayed_until_its_time_leaves_for_nothing() -> None:
    world = World()
    worker = host(world, 1)
    assert until(world, worker, world.time_ms + 60_000) is None
    task, worker = started(world, job())
    run_for(world, 100)
    assert store(world, worker, task, 100) is None
    assert leave(world, worker, task) is None
    assert require_node(world.state, worker).backing == QUICK.node_bond_min


def test_silence_before_the_offered_time_costs_what_leaving_costs() -> None:
    world = World()
    worker = host(world, 1, price=CHEAP)
    assert until(world, worker, world.time_ms + 86_400_000) is None
    task, worker = started(world, job())
    block_until(world, 320_000)
    assert world.task(task).worker != worker
    fine = 600 * second_price(CHEAP) // TERA
    assert QUICK.node_bond_min - require_node(world.state, worker).backing == fine


def test_a_profile_without_a_time_is_encoded_as_before() -> None:
    world = World()
    profile = require_node(world.state, host(world, 1)).profile
    value = profile_to_value(profile)
    assert isinstance(value, list) and len(value) == 13
    assert profile_from_value(value) == profile
    longer = profile_to_value(profile._replace(until_ms=5))
    assert isinstance(longer, list) and profile_from_value(longer).until_ms == 5
    for bad in (0, -1, 1 << 53, b"5"):
        with pytest.raises(DecodeError):
            profile_from_value([*value, bad])


@pytest.mark.parametrize(
    "payload",
    [
        [b"t" * 32, 0, b"c" * 32, 5], [b"t" * 32, 1, b"", 5], [b"t" * 32, 1, b"c" * 32, 0], [b"t" * 31, 1, b"", 0],
        [b"t" * 32, 1, b"c" * 32, (1 << 32) + 1], [b"t" * 32, 1 << 32, b"", 0], [b"t" * 32, 1, b""],
    ],
)  # fmt: skip
def test_a_malformed_checkpoint_is_refused(payload: list[object]) -> None:
    with pytest.raises(DecodeError, match="expected"):
        World().rules[CHECKPOINT_TASK].decode(payload)


@pytest.mark.parametrize("payload", [[b"t" * 32], [b"t" * 32, b""], [b"t" * 32, 5], [b"t" * 32, b"c" * 31]])
def test_a_malformed_miss_is_refused(payload: list[object]) -> None:
    with pytest.raises(DecodeError, match="expected"):
        World().rules[MISS_CHECKPOINT].decode(payload)


def test_a_container_without_a_checkpoint_has_none_to_name() -> None:
    world = World()
    host(world, 1)
    task, worker = started(world)
    run_for(world, 100)
    assert store(world, worker, task, 100) == "meter_mismatch"
    assert metered(world, task).seconds == 0


def test_a_checkpoint_above_its_bound_or_of_stored_seconds_is_refused() -> None:
    world = World()
    host(world, 1)
    task, worker = started(world, job(checkpoint=Checkpoint("/state", 60, 10_000)))
    run_for(world, 100)
    assert store(world, worker, task, 100) == "meter_mismatch"
    assert store(world, worker, task, 101, b"") == "meter_ahead"
    assert store(world, worker, task, 100, b"") is None
    assert store(world, worker, task, 100, b"") == "meter_mismatch"


def test_the_record_of_checkpoints_is_bounded() -> None:
    world = World()
    big = (1 << 62) - 1
    one = Stored(b"c" * 32, big, big, b"w" * 20)
    runs = tuple(Run(b"w" * 20, big, big) for _ in range(RUNS_KEPT + 5))
    record = Checkpoints(
        big, one, one, one, big, (1 << 126) - 1, big, (1 << 126) - 1, (1 << 126) - 1, big, 2,
        1, (b"w" * 20,) * DOUBTERS_MAX, 7, runs,
    )  # fmt: skip
    save_checkpoints(world.state, b"t" * 32, record)
    found = load_checkpoints(world.state, b"t" * 32)
    assert found == record._replace(gone=12, runs=runs[5:])
    key, data = next((key, data) for key, data in world.state.changes.items() if key[1:33] == b"t" * 32)
    assert data is not None and len(data) <= CHECKPOINTS_LIMIT_BYTES and key[33:] == b"\x05"


STEP = st.tuples(
    st.sampled_from(["meter", "store", "empty", "leave", "silent", "cancel", "miss"]), st.integers(1, 70),
    st.integers(0, 2),
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.lists(STEP, max_size=14))
def test_n41_whatever_machines_do_no_second_is_paid_twice(steps: list[tuple[str, int, int]]) -> None:
    """Machines of friends, too: they swap, miss, store garbage, leave. Each second is paid once at most."""
    world = World()
    for at in range(5):
        host(world, at + 1)
    before = balance_of(world.state, REQUESTER)
    spec = job(ticks=30, retries=8)
    task, _ = started(world, spec)
    for at, (does, seconds, missed) in enumerate(steps):
        record = world.task(task)
        if record.phase in ENDED:
            break
        if record.phase != Phase.RUNNING:
            if record.phase not in (Phase.DEGRADED, Phase.ASSIGNED):
                break
            for _ in range(30):
                if world.task(task).worker:
                    break
                world.block()
            worker = world.task(task).worker
            if not worker:
                break
            world.send(worker, ACCEPT_TASK, [task, 0])
            for _ in range(missed):
                wanted = stored(world, task).wanted
                if wanted is not None and wanted.blob:
                    assert miss(world, worker, task, wanted.blob) is None
                    worker = accepted(world, task)
            assert world.send(worker, START_TASK, [task, b"m" * 32]) is None
        worker = world.task(task).worker
        run_for(world, seconds)
        own = metered(world, task).own_seconds
        match does:
            case "meter":
                meter(world, worker, task, own + 10)
            case "store" | "empty":
                store(
                    world, worker, task, max(1, own + seconds - 15), bytes([at]) * 32 if does == "store" else b""
                )
            case "leave":
                leave(world, worker, task)
            case "silent":
                block_until(world, 320_000)
            case _:
                world.send(REQUESTER, CANCEL_TASK, [task])
        found, counted = stored(world, task), metered(world, task)
        assert 0 <= counted.seconds <= 300
        assert counted.seconds == sum(run.seconds - run.lost for run in found.runs)
        held = escrow_totals(world.state, task).locked
        assert held >= found.waits
        assert found.prepared >= 0 and found.closing_s >= 0 and found.closing >= 0 and found.open >= 0
    if world.task(task).phase == Phase.RUNNING:
        worker, own = world.task(task).worker, metered(world, task).own_seconds
        assert finish(world, worker, task, own) is None or world.task(task).ending
    spent = before - balance_of(world.state, REQUESTER)
    assert spent >= 0
    if world.task(task).phase in ENDED:
        block_until(world, 1_000 * EVERY_S + 5_000)
        found, counted = stored(world, task), metered(world, task)
        assert found.waits == 0
        assert escrow_totals(world.state, task).locked == 0
        paid = sum(paid_of(world, task, run.worker) for run in {run.worker: run for run in found.runs}.values())
        assert paid == counted.paid <= counted.seconds * SECOND + counted.seconds


def again(*, retries: int = 8, **changes: object) -> JobSpec:
    more: Any = {"checkpoint": STORED} | changes
    return container(ticks=60, tick_s=10, metering=Metering("reserved", 300, retries, again=(75, 99)), **more)


def test_an_exit_code_of_the_list_has_another_machine_go_on_from_the_checkpoint() -> None:
    world = World()
    for at in range(2):
        assert until(world, host(world, at + 1), world.time_ms + 10**7) is None
    task, first = started(world, again())
    bond = require_node(world.state, first).backing
    run_for(world, 100)
    assert store(world, first, task, 90, b"c" * 32) is None
    run_for(world, 20)
    assert finish(world, first, task, 110, code=75) is None
    record = world.task(task)
    assert record.phase in (Phase.DEGRADED, Phase.ASSIGNED) and record.worker != first
    node = require_node(world.state, first)
    assert (node.backing, node.failures) == (bond, 0) and node.match_from_ms <= world.time_ms  # no fine, no pause
    assert metered(world, task).end is None and metered(world, task).seconds == 90
    second = next_machine(world, task)
    run_for(world, 40)
    assert finish(world, second, task, 40, code=3) is None  # no code of the list
    assert (world.task(task).phase, world.task(task).reason) == (Phase.FAILED, Reason.CONTAINER_EXITED)
    assert stored(world, task).runs == (Run(first, 110, 20), Run(second, 40, 0))
    run_for(world, EVERY_S + 5)
    assert abs(paid_of(world, task, first) - 90 * SECOND) <= 90
    assert escrow_totals(world.state, task).locked == 0


def test_without_a_checkpoint_all_seconds_are_paid_and_retries_have_an_end() -> None:
    world = World()
    for at in range(3):
        host(world, at + 1)
    task, worker = started(world, again(retries=1, checkpoint=None))
    run_for(world, 30)
    assert finish(world, worker, task, 25, code=99) is None
    assert metered(world, task).seconds == 25
    other = next_machine(world, task)
    assert other != worker
    run_for(world, 30)
    assert finish(world, other, task, 20, code=99) is None
    assert (world.task(task).phase, world.task(task).reason) == (Phase.FAILED, Reason.CONTAINER_EXITED)
    assert metered(world, task).seconds == 45


def test_a_container_that_is_to_stop_goes_on_nowhere() -> None:
    world = World()
    for at in range(2):
        host(world, at + 1)
    task, worker = started(world, again())
    run_for(world, 20)
    assert world.send(REQUESTER, CANCEL_TASK, [task]) is None
    assert finish(world, worker, task, 10, code=75) is None
    assert world.task(task).phase == Phase.CANCELLED
    short = container(ticks=2, tick_s=10, metering=Metering("reserved", 300, 8, again=(75,)))
    used_up, worker = started(world, short)
    run_for(world, 30)
    assert finish(world, worker, used_up, 20, code=75) is None
    assert (world.task(used_up).phase, metered(world, used_up).seconds) == (Phase.FAILED, 20)


@pytest.mark.parametrize(
    "metering",
    [
        Metering("reserved", 300, 8, again=(0,)), Metering("reserved", 300, 8, again=(256,)),
        Metering("reserved", 300, 8, again=(9, 8)), Metering("reserved", 300, 8, again=(8, 8)),
        Metering("reserved", 300, 8, again=tuple(range(1, 18))), Metering("reserved", 300, 0, again=(75,)),
    ],
    ids=["code 0", "too large", "order", "twice", "too many", "no retries"],
)  # fmt: skip
def test_lists_of_codes_that_are_refused(metering: Metering) -> None:
    with pytest.raises(DecodeError, match=r"metering\.again"):
        check_container(container_of(container(metering=metering)))
