"""Containers on the ledger: seconds are paid as the chain's time allows, and nothing else counts (R93 to R97)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from billing.escrow import Purpose, bill_lines, escrow_totals
from billing.prices import TERA, share_up, work_price
from state.primitives.errors import DecodeError
from state.view.accounts import balance_of
from tasks.kinds.container import ExitKind, Metering
from tasks.ledger.lifecycle import Phase, Reason
from tasks.ledger.meter_records import METER_LIMIT_BYTES, MeterRecord, load_meter, save_meter
from tasks.ledger.metering_transitions import FINISH_TASK, METER_TASK, finish_values
from tasks.ledger.queries import Action, work_duties
from tasks.ledger.registry import NodeRole, require_node
from tasks.ledger.screening import look_out
from tasks.ledger.settlement import budget_of
from tasks.ledger.transitions import (
    ACCEPT_TASK,
    CANCEL_TASK,
    DEMAND_RESULT,
    GIVE_UP_TASK,
    START_TASK,
    SUBMIT_WINDOW,
)
from tasks.proofs import window_proof_to_value
from tasks.spec import DISK_UNITS, decode_spec, encode_spec
from tests.tasks.containers import (
    PRICE,
    TICK_S,
    block_until,
    container,
    end,
    finish,
    host,
    meter,
    metered,
    second_price,
    started,
)
from tests.tasks.world import QUICK, REQUESTER, World, leaves_of, proof_of, spec

TICK_MS: Final = 1000 * TICK_S
ASK: Final = PRICE // 2


def paid(world: World, task: bytes, purpose: Purpose) -> int:
    return sum(line.amount for line in bill_lines(world.state, task) if line.purpose == purpose)


def test_ticks_are_paid_at_once_and_the_rest_returns() -> None:
    world = World()
    host(world, 1)
    before = balance_of(world.state, REQUESTER)
    task, worker = started(world)
    assert world.task(task).phase == Phase.RUNNING
    block_until(world, TICK_MS)
    earned = balance_of(world.state, worker)
    assert meter(world, worker, task, TICK_S) is None
    mounts = work_price((1 << 20) * QUICK.fetch_units_per_byte, ASK)
    tick = TICK_S * second_price(ASK) // TERA
    assert balance_of(world.state, worker) - earned == tick + mounts  # nothing is held
    block_until(world, 2 * TICK_MS + 7_000)
    assert meter(world, worker, task, 3 * TICK_S) is None
    assert finish(world, worker, task, 3 * TICK_S + 7) is None
    record = world.task(task)
    assert (record.phase, record.reason) == (Phase.SETTLED, Reason.CONTAINER_EXITED)
    price = metered(world, task).paid
    assert abs(price - (3 * TICK_S + 7) * second_price(ASK) // TERA) <= 3
    disk = paid(world, task, Purpose.DISK)
    assert paid(world, task, Purpose.METERED) + disk == price
    assert abs(disk - (3 * TICK_S + 7) * 1024 * DISK_UNITS * ASK // TERA) <= 3  # a line of its own
    fee = sum(
        line.amount for line in bill_lines(world.state, task)
        if line.purpose == Purpose.PROTOCOL_FEE and line.movement.name == "BURNED"
    )  # fmt: skip
    assert price * QUICK.fee_bps // 10_000 - 3 <= fee <= price * QUICK.fee_bps // 10_000
    assert before - balance_of(world.state, REQUESTER) == price + mounts + fee
    assert escrow_totals(world.state, task).locked == 0
    assert require_node(world.state, worker).busy_slots == 0
    made = metered(world, task).end
    assert made is not None and made == end()._replace(worker=worker)


def test_the_budget_is_time_at_the_highest_price_and_no_check() -> None:
    job = container()
    budget = budget_of(job, QUICK)
    assert budget.price == 10 * -(-TICK_S * second_price(PRICE) // TERA)
    assert (budget.verification, budget.fee) == (0, share_up(budget.price, QUICK.fee_bps))


def test_a_gpu_second_counts_the_gpus_and_not_the_cores() -> None:
    two, four = container(gpus=2), container()  # 2 GPUs against 4 cores
    assert (two.step_units - two.disk_units) * 2 == four.step_units - four.disk_units


def test_n31_a_meter_never_runs_ahead_of_the_chain_or_back() -> None:
    world = World()
    host(world, 1)
    task, worker = started(world)
    block_until(world, TICK_MS - 1_000)
    assert meter(world, worker, task, TICK_S) == "meter_ahead"
    assert finish(world, worker, task, TICK_S) == "meter_ahead"
    world.block(1_000)
    assert meter(world, worker, task, TICK_S - 1) == "meter_mismatch"
    assert meter(world, worker, task, TICK_S) is None
    assert meter(world, worker, task, TICK_S) == "meter_mismatch"
    assert meter(world, worker, task, 2 * TICK_S) == "meter_ahead"
    assert finish(world, worker, task, TICK_S - 1) == "meter_mismatch"
    assert meter(world, b"x" * 20, task, 2 * TICK_S) == "not_yours"
    assert finish(world, b"x" * 20, task, TICK_S) == "not_yours"


def test_n31_time_for_which_the_chain_stood_still_is_not_paid() -> None:
    world = World(steady_interval_ms_max=10_000)
    host(world, 1)
    task, worker = started(world)
    world.block(3_600_000)  # an hour without a block counts as ten seconds
    assert meter(world, worker, task, TICK_S) == "meter_ahead"


def test_n30_a_requester_that_stops_pays_at_most_one_tick_more() -> None:
    world = World()
    host(world, 1)
    task, worker = started(world, container(metering=Metering("reserved", 600, 1)))
    block_until(world, TICK_MS)
    assert meter(world, worker, task, TICK_S) is None
    block_until(world, 5 * TICK_MS)  # the machine is silent, the requester stops
    assert world.send(REQUESTER, CANCEL_TASK, [task]) is None
    assert world.task(task).phase == Phase.RUNNING
    assert world.send(REQUESTER, CANCEL_TASK, [task]) == "wrong_phase"
    assert meter(world, worker, task, 2 * TICK_S) == "meter_mismatch"
    assert finish(world, worker, task, 3 * TICK_S, ExitKind.STOPPED) == "meter_ahead"
    assert finish(world, worker, task, 2 * TICK_S, ExitKind.STOPPED) is None
    assert (world.task(task).phase, world.task(task).reason) == (Phase.CANCELLED, Reason.REQUESTER_CANCELLED)
    assert metered(world, task).seconds == 2 * TICK_S
    assert paid(world, task, Purpose.KILL_FEE) == 0
    assert escrow_totals(world.state, task).locked == 0


def test_a_stopped_container_whose_machine_says_nothing_more_ends_after_the_grace() -> None:
    world = World()
    host(world, 1)
    task, worker = started(world, container(metering=Metering("reserved", 30, 1)))
    block_until(world, 30_000)
    assert world.send(REQUESTER, CANCEL_TASK, [task]) is None
    block_until(world, 40_000)
    assert world.task(task).phase == Phase.CANCELLED
    assert metered(world, task).seconds == 0
    assert require_node(world.state, worker).match_from_ms <= world.time_ms  # no pause: it ended as it was to


def test_only_a_container_that_was_to_stop_was_stopped() -> None:
    world = World()
    host(world, 1)
    task, worker = started(world)
    block_until(world, 10_000)
    assert finish(world, worker, task, 10, ExitKind.STOPPED) == "meter_mismatch"
    assert finish(world, worker, task, 10, ExitKind.SIGNALLED, 9) is None
    assert world.task(task).phase == Phase.FAILED


def test_its_time_is_used_up_with_its_last_tick() -> None:
    world = World()
    host(world, 1)
    task, worker = started(world, container(ticks=2))
    block_until(world, 2 * TICK_MS)
    assert meter(world, worker, task, 3 * TICK_S) == "meter_ahead"
    assert meter(world, worker, task, 2 * TICK_S) is None
    assert metered(world, task).stop_ms
    block_until(world, 10_000)
    assert finish(world, worker, task, 2 * TICK_S + 5, ExitKind.STOPPED) == "meter_ahead"
    assert finish(world, worker, task, 2 * TICK_S, ExitKind.STOPPED) is None
    assert (world.task(task).phase, world.task(task).reason) == (Phase.FAILED, Reason.TIME_USED_UP)


def test_n34_a_silent_machine_is_replaced_without_a_mark_as_often_as_the_job_says() -> None:
    world = World()
    for at in range(4):
        host(world, at + 1)
    task, first = started(world, container(metering=Metering("reserved", 30, 1)))
    block_until(world, TICK_MS)
    assert meter(world, first, task, TICK_S) is None
    before = require_node(world.state, first)
    block_until(world, TICK_MS + 31_000)
    record = world.task(task)
    assert record.worker != first and record.phase in (Phase.DEGRADED, Phase.ASSIGNED)
    after = require_node(world.state, first)
    assert (after.failures, after.bad, after.good, after.proved) == (before.failures, 0, 0, 0)
    assert after.backing == before.backing
    assert after.match_from_ms > world.time_ms  # a pause
    for _ in range(20):
        if world.task(task).worker:
            break
        world.block()
    second = world.task(task).worker
    assert second not in (first, b"")
    assert world.send(second, ACCEPT_TASK, [task, 0]) is None
    assert world.send(second, START_TASK, [task, b"m" * 32]) is None
    assert metered(world, task).own_seconds == 0  # it begins again, and its seconds count from its own start
    assert meter(world, second, task, TICK_S) == "meter_ahead"
    assert world.send(second, GIVE_UP_TASK, [task, int(Reason.WORKER_LEFT)]) is None
    assert (world.task(task).phase, world.task(task).reason) == (Phase.FAILED, Reason.WORKER_LEFT)
    assert escrow_totals(world.state, task).locked == 0


def test_all_machines_together_are_paid_for_the_time_of_the_task_at_most() -> None:
    world = World()
    for at in range(3):
        host(world, at + 1)
    task, first = started(world, container(ticks=2, metering=Metering("reserved", 30, 1)))
    block_until(world, TICK_MS)
    assert meter(world, first, task, TICK_S) is None
    block_until(world, TICK_MS + 35_000)
    while not world.task(task).worker:
        world.block()
    second = world.task(task).worker
    assert world.send(second, ACCEPT_TASK, [task, 0]) is None
    assert world.send(second, START_TASK, [task, b"m" * 32]) is None
    block_until(world, TICK_MS + 20_000)
    assert finish(world, second, task, TICK_S + 10) == "meter_mismatch"
    assert finish(world, second, task, TICK_S) is None
    assert metered(world, task).seconds == 2 * TICK_S


def test_only_machines_whose_owners_take_containers_and_have_the_cores_are_matched() -> None:
    world = World()
    world.add_machine(1, roles=NodeRole.COMPUTE | NodeRole.VERIFY, price=1)
    task = world.create(container())
    big = world.create(container(cores=65))
    block_until(world, 5_000)
    assert not world.task(task).worker
    taker = host(world, 2)
    for _ in range(4):
        world.block()
    assert world.task(task).worker == taker
    assert not world.task(big).worker


def test_a_machine_that_takes_containers_alone_is_matched_with_nothing_else() -> None:
    world = World()
    alone = host(
        world, 1, roles=NodeRole.COMPUTE | NodeRole.CONTAINER | NodeRole.ONLY_CONTAINERS, price=1, slots=4
    )
    other = world.create(spec())
    task = world.create(container())
    block_until(world, 5_000)
    assert world.task(task).worker == alone
    assert not world.task(other).worker, "what it offers is not a machine that runs other jobs"
    assert look_out(world.state, spec(), world.time_ms, world.parameters).capable == 0
    taker = world.add_machine(2, roles=NodeRole.COMPUTE | NodeRole.VERIFY)
    for name in (3, 4, 5):
        world.add_machine(name, roles=NodeRole.VERIFY)
    assert look_out(world.state, spec(), world.time_ms, world.parameters).capable == 1
    again = world.create(spec())
    for _ in range(4):
        world.block()
    assert world.task(again).worker == taker


def test_a_slow_job_does_not_have_a_fast_machine() -> None:
    world = World()
    host(world, 1, rate=12 * 10**9 + 1)
    task = world.create(container())
    block_until(world, 5_000)
    assert not world.task(task).worker
    taker = host(world, 2, rate=12 * 10**9)
    for _ in range(4):
        world.block()
    assert world.task(task).worker == taker


def test_a_container_needs_nobody_who_checks_it_and_no_bond() -> None:
    world = World()
    worker = host(world, 1)
    before = balance_of(world.state, worker)
    started(world)
    assert balance_of(world.state, worker) == before


def test_n33_an_image_that_nobody_can_pull_costs_no_machine_anything() -> None:
    world = World(replace(QUICK, decline_ms=10_000))
    for at in range(4):
        host(world, at + 1)
    task = world.create(container(match_ms=12 * 3_600_000))
    complained = []
    for _ in range(3):
        while not world.task(task).worker:
            world.block()
        worker = world.task(task).worker
        complained.append(worker)
        assert world.send(worker, ACCEPT_TASK, [task, 0]) is None
        assert world.send(worker, GIVE_UP_TASK, [task, int(Reason.INPUT_UNAVAILABLE)]) is None
    assert world.task(task).match_at_ms - world.time_ms == QUICK.complaints_wait_ms
    for machine in complained:
        node = require_node(world.state, machine)
        assert (node.declines, node.failures, node.backing) == (0, 0, QUICK.node_bond_min)
        assert node.match_from_ms <= world.time_ms
    block_until(world, QUICK.complaints_wait_ms + 2_000)
    honest = world.task(task).worker
    assert honest and honest not in complained
    world.send(honest, ACCEPT_TASK, [task, 0])
    world.send(honest, START_TASK, [task, b"m" * 32])
    block_until(world, TICK_MS)
    assert meter(world, honest, task, TICK_S) is None
    # Who meters has proven nothing: who could not have the image is not refuted by it.
    assert all(require_node(world.state, machine).declines == 0 for machine in complained)


def test_n33_a_machine_that_prepares_for_too_long_pauses_and_has_no_mark() -> None:
    world = World()
    host(world, 1)
    task = world.create(container())
    block_until(world, 2_000)
    worker = world.task(task).worker
    assert world.send(worker, ACCEPT_TASK, [task, 0]) is None
    block_until(world, QUICK.prepare_ms + 2_000)
    node = require_node(world.state, worker)
    assert (node.failures, node.bad, node.backing) == (0, 0, QUICK.node_bond_min)
    assert world.task(task).worker == b""


def test_a_requester_that_cancels_a_prepared_container_pays_the_mounts_and_a_minute() -> None:
    world = World()
    worker = host(world, 1)
    task = world.create(container(tick_s=600))
    block_until(world, 2_000)
    assert world.send(worker, ACCEPT_TASK, [task, 0]) is None
    before = balance_of(world.state, worker)
    assert world.send(REQUESTER, CANCEL_TASK, [task]) is None
    due = 60 * second_price(ASK) // TERA + work_price((1 << 20) * QUICK.fetch_units_per_byte, ASK)
    assert balance_of(world.state, worker) - before == due
    assert world.task(task).phase == Phase.CANCELLED


def test_n32_wash_trading_seconds_earns_no_reputation_and_burns_the_fee() -> None:
    world = World()
    worker = host(world, 1)
    node = require_node(world.state, worker)
    for _ in range(3):
        task, _ = started(world)
        block_until(world, 5 * TICK_MS)
        assert finish(world, worker, task, 5 * TICK_S) is None
    after = require_node(world.state, worker)
    assert (after.good, after.proved, after.valid_streak) == (node.good, node.proved, node.valid_streak)
    assert after.bad == 0


def test_nothing_of_a_container_can_be_proven_or_claimed() -> None:
    world = World()
    host(world, 1)
    task, worker = started(world)
    job = spec()
    proof = proof_of(job, task, 0, leaves_of(job, 0, b"i" * 32))
    assert world.send(worker, SUBMIT_WINDOW, [window_proof_to_value(proof)]) == "kind_mismatch"
    assert world.send(REQUESTER, DEMAND_RESULT, [task, 1]) is not None
    kinds = {rule.name: kind for kind, rule in world.rules.items()}
    assert world.send(REQUESTER, kinds["ask_custody"], [task, b"k" * 32, 0, 1]) == "kind_mismatch"
    assert world.send(worker, kinds["seal_challenge"], [task, 0, b"s" * 32, 1]) == "kind_mismatch"


def test_no_seconds_of_a_proven_task_are_metered() -> None:
    world = World()
    for at in range(3):
        world.add_machine(at + 1)
    task = world.create()
    while world.task(task).phase != Phase.RUNNING:
        world.act()
        world.block()
    worker = world.task(task).worker
    assert meter(world, worker, task, TICK_S) == "kind_mismatch"
    assert finish(world, worker, task, TICK_S) == "kind_mismatch"


def test_the_worker_is_told_what_to_do() -> None:
    world = World()
    worker = host(world, 1)
    task = world.create(container())
    block_until(world, 2_000)
    asked = [work_duties(world.state, worker, QUICK)]
    world.send(worker, ACCEPT_TASK, [task, 0])
    asked.append(work_duties(world.state, worker, QUICK))
    world.send(worker, START_TASK, [task, b"m" * 32])
    asked.append(work_duties(world.state, worker, QUICK))
    assert [[duty.action for duty in duties] for duties in asked] == [
        [Action.ACCEPT], [Action.START], [Action.METER]
    ]  # fmt: skip
    assert all(duty.bond == 0 for duties in asked for duty in duties)
    world.block(1_000)
    assert finish(world, worker, task, 1) is None
    assert work_duties(world.state, worker, QUICK) == []


@pytest.mark.parametrize(
    "payload",
    [
        [b"t" * 32, -1], [b"t" * 31, 1], [b"t" * 32, 1 << 32], [b"t" * 32, b"1"], [b"t" * 32],
    ],
)  # fmt: skip
def test_a_malformed_meter_is_refused(payload: list[object]) -> None:
    with pytest.raises(Exception, match="expected"):
        World().rules[METER_TASK].decode(payload)


@pytest.mark.parametrize(
    "ended",
    [
        [0, 0, b"", 0, b"", 0], [8, 0, b"", 0, b"", 0], [1, 256, b"", 0, b"", 0], [3, 1, b"", 0, b"", 0],
        [1, 0, b"o" * 32, 0, b"", 0], [1, 0, b"", 5, b"", 0], [1, 0, b"", 0, b"l" * 32, (1 << 20) + 1],
        [1, 0, b"o" * 32, (1 << 32) + 1, b"", 0], [1, 0, b"", 0, b""],
    ],
)  # fmt: skip
def test_a_malformed_end_is_refused(ended: list[object]) -> None:
    with pytest.raises(Exception, match="expected"):
        World().rules[FINISH_TASK].decode([b"t" * 32, 1, ended])


def test_the_meter_s_record_is_bounded() -> None:
    world = World()
    big = (1 << 62) - 1
    made = end(ExitKind.EXITED, 255)._replace(output_bytes=big, logs_bytes=big, worker=b"w" * 20)
    record = MeterRecord(big, (1 << 126) - 1, big, big, big, made)
    save_meter(world.state, b"t" * 32, record)
    assert load_meter(world.state, b"t" * 32) == record
    key, data = next((key, data) for key, data in world.state.changes.items() if key[1:33] == b"t" * 32)
    assert data is not None and len(data) <= METER_LIMIT_BYTES and key[33:] == b"\x04"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 90_000), st.integers(0, 700), st.booleans()), max_size=12), st.booleans())
def test_whatever_a_machine_meters_its_pay_is_chain_time_at_its_price(
    steps: list[tuple[int, int, bool]], ends: bool
) -> None:
    world = World()
    host(world, 1)
    task, worker = started(world, container(metering=Metering("reserved", 3_600, 0)))
    begun, before = world.time_ms, balance_of(world.state, worker)
    mounts = work_price((1 << 20) * QUICK.fetch_units_per_byte, ASK)
    for wait_ms, seconds, stops in steps:
        world.block(max(1, wait_ms))
        if world.task(task).phase != Phase.RUNNING:
            break
        if stops:
            world.send(REQUESTER, CANCEL_TASK, [task])
        meter(world, worker, task, seconds)
        passed_s = (world.time_ms - begun) // 1000
        found = metered(world, task)
        assert found.own_seconds == found.seconds <= min(passed_s, 600)
        assert found.paid <= found.seconds * second_price(ASK) // TERA
        assert balance_of(world.state, worker) - before == found.paid + (mounts if found.seconds else 0)
    if ends and world.task(task).phase == Phase.RUNNING:
        at = metered(world, task)
        if finish(world, worker, task, at.own_seconds) is None:
            assert escrow_totals(world.state, task).locked == 0
    world.block()
    assert finish_values(task, 1, end())[0] == task


def test_n43_an_idle_end_needs_its_meter_and_pays_whole_ticks_alone() -> None:
    world = World()
    host(world, 1)
    task, worker = started(world)
    block_until(world, TICK_MS)
    assert finish(world, worker, task, TICK_S, ExitKind.IDLE) == "meter_mismatch"  # it may stand still
    assert finish(world, worker, task, TICK_S) is None
    task, worker = started(world, container(metering=Metering("progress", 300, 1, 2 * TICK_S, "step=")))
    block_until(world, 3 * TICK_MS)
    assert meter(world, worker, task, TICK_S) is None
    assert finish(world, worker, task, TICK_S + 1, ExitKind.IDLE) == "meter_mismatch"
    assert finish(world, worker, task, 4 * TICK_S, ExitKind.IDLE) == "meter_ahead"
    assert finish(world, worker, task, 2 * TICK_S, ExitKind.IDLE) is None
    assert (world.task(task).phase, world.task(task).reason) == (Phase.FAILED, Reason.CONTAINER_EXITED)
    found = metered(world, task)
    assert found.seconds == 2 * TICK_S and found.end is not None and found.end.kind is ExitKind.IDLE


@pytest.mark.parametrize(
    "metering",
    [
        Metering("reserved", 300, 1, TICK_S), Metering("reserved", 300, 1, 0, "step"),
        Metering("progress", 300, 1),
        Metering("progress", 300, 1, TICK_S + 1), Metering("progress", 300, 1, 86_460),
        Metering("progress", 300, 1, TICK_S, "x" * 65), Metering("progress", 300, 1, TICK_S, "a\nb"),
        Metering("progress", 300, 1, TICK_S, "step 1"), Metering("other", 300, 1),
    ],
)  # fmt: skip
def test_a_meter_that_no_machine_can_follow_is_refused(metering: Metering) -> None:
    with pytest.raises(DecodeError):
        decode_spec(encode_spec(container(metering=metering)))
    good = container(metering=Metering("progress", 300, 1, TICK_S, "step="))
    assert decode_spec(encode_spec(good)) == good
