"""Attacks on the market's rules that cost nothing but gas: none of them may work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from billing.escrow import Line, Movement, Pool, Purpose, escrow_totals
from billing.prices import share, work_price
from tasks.ledger import queries
from tasks.ledger.audits import bond_floor
from tasks.ledger.lifecycle import ENDED, Phase, Reason
from tasks.ledger.parameters import HOUR_MS, MINUTE_MS, TaskParameters
from tasks.ledger.queries import Action
from tasks.ledger.records import load_window
from tasks.ledger.registry import NodeRecord, NodeRole, require_node
from tasks.ledger.reputation import is_new, reputation_milli
from tasks.ledger.serving import ENLARGED_JURY
from tasks.ledger.settlement import bond_at
from tasks.ledger.transitions import ACCEPT_TASK, GIVE_UP_TASK, RESUME_TASK, START_TASK
from tasks.spec import RATE_MAX
from tests.tasks.world import DKB, HONEST, QUICK, REQUESTER, WORTH, Manners, World, spec

DAY_MS: Final = 24 * HOUR_MS
WORK, CHECK = NodeRole.COMPUTE, NodeRole.VERIFY
IDLE: Final = Manners(silent=frozenset(Action))
SLOW: Final = TaskParameters(
    presence_ms=30 * DAY_MS, registration_valid_ms=30 * DAY_MS, call_ms=0, order_blocks=0, draw_blocks=2,
    audit_bps=10_000,
)  # fmt: skip
"""The defaults, but for machines of tests that do nothing for days, and calls in each block."""


def node_of(world: World, address: bytes) -> NodeRecord:
    return require_node(world.state, address)


def bill(world: World, task: bytes) -> tuple[Line, ...]:
    return queries.bill(world.state, task).lines


# Machines that take turns in keeping a task from all others

Way = Callable[[World, bytes, bytes], None]


def give_up(world: World, task: bytes, worker: bytes) -> None:
    assert world.send(worker, GIVE_UP_TASK, [task, int(Reason.WORKER_LEFT)]) is None


def accept(world: World, task: bytes, worker: bytes) -> None:
    duty = next(duty for duty in queries.work_duties(world.state, worker, world.parameters) if duty.task == task)
    assert world.send(worker, ACCEPT_TASK, [task, duty.bond]) is None


def let_pass(world: World, task: bytes, _worker: bytes) -> None:
    world.block(world.task(task).deadline_ms - world.time_ms)


def keep(world: World, task: bytes, worker: bytes) -> None:
    """Hold on to it as long as that costs nothing."""
    world.block(world.parameters.accept_ms - 1_000)
    accept(world, task, worker)
    world.block(world.parameters.prepare_ms - 1_000)
    give_up(world, task, worker)


def start_and_leave(world: World, task: bytes, worker: bytes) -> None:
    accept(world, task, worker)
    assert world.send(worker, START_TASK, [task, b"m" * 32]) is None
    give_up(world, task, worker)


def crowd(sybils: int, honest: int = 20) -> tuple[World, set[bytes], set[bytes]]:
    """A market where ``sybils`` machines that ask for nothing, and claim any speed, outrank all others."""
    world = World(parameters=SLOW)
    good = {world.add_machine(at + 1, price=WORTH // 2000, rate=10**10) for at in range(honest)}
    bad = {
        world.add_machine(at + 30, roles=WORK, price=1, rate=RATE_MAX, manners=IDLE) for at in range(sybils)
    }  # fmt: skip
    world.block()
    return world, good, bad


@pytest.mark.slow
@pytest.mark.parametrize("sybils", [16, 200])
@pytest.mark.parametrize("way", [give_up, let_pass, keep, start_and_leave])
def test_machines_that_only_take_turns_do_not_keep_a_task_from_honest_ones(way: Way, sybils: int) -> None:
    world, good, bad = crowd(sybils)
    task = world.create(spec(match_ms=DAY_MS))
    began_ms, offers = world.time_ms, 0
    while world.task(task).worker not in good:
        record = world.task(task)
        assert record.phase not in ENDED
        if record.phase == Phase.PAUSED:
            assert world.send(REQUESTER, RESUME_TASK, [task]) is None
        elif record.worker in bad:
            offers += 1
            way(world, task, record.worker)
        world.block(10_000)
    assert offers <= 3 * (sybils + 20) // 20 + SLOW.offers_ranked
    assert world.time_ms - began_ms < DAY_MS // 2
    record = world.task(task)
    assert len(record.excluded) == len(set(record.excluded)) <= SLOW.excluded_max
    if way != start_and_leave:
        assert (record.attempts, record.started_ms) == (0, 0)
        assert all(node_of(world, worker).bad == 0 for worker in bad)


def test_who_starts_and_leaves_loses_a_part_of_what_the_task_is_worth_however_little_it_asks() -> None:
    world, _, bad = crowd(1, honest=2)
    job = spec(total=100)
    task = world.create(job)
    world.block()
    (worker,) = bad
    assert world.task(task).worker == worker
    start_and_leave(world, task, worker)
    window = work_price(job.window_units(0), job.max_price_per_tera_unit)
    (fine,) = [line.amount for line in bill(world, task) if line.purpose == Purpose.WORKER_FINE]
    assert fine == window // 4 // 4, "a quarter of its worth, which is a quarter of the highest price"
    assert (world.task(task).attempts, node_of(world, worker).bad) == (1, 1)


def test_a_task_whose_workers_all_left_waits_for_its_requester_who_may_go_on() -> None:
    parameters = replace(SLOW, attempts_max=2)
    world = World(parameters=parameters)
    for at in range(3):
        world.add_machine(at + 1, roles=WORK, manners=IDLE)
    world.add_machine(9, roles=CHECK)
    task = world.create(spec(match_ms=DAY_MS))
    for _ in range(2):
        world.block(MINUTE_MS)
        start_and_leave(world, task, world.task(task).worker)
    record = world.task(task)
    assert (record.phase, record.reason, record.attempts) == (Phase.PAUSED, Reason.ATTEMPTS_EXHAUSTED, 2)
    assert world.send(REQUESTER, RESUME_TASK, [task]) is None
    world.machines = dict.fromkeys(world.machines, HONEST)
    assert world.run_to(task, Phase.RUNNING).attempts == 1


def test_a_search_for_a_replacement_ends_however_many_keep_the_task_meanwhile() -> None:
    parameters = replace(SLOW, replace_ms_max=HOUR_MS)
    world = World(parameters=parameters)
    for at in range(30):
        world.add_machine(at + 1, manners=IDLE)
    task = world.create(spec(match_ms=DAY_MS))
    world.block()
    start_and_leave(world, task, world.task(task).worker)
    began_ms = world.time_ms
    while world.task(task).phase != Phase.PAUSED:
        world.block(5_000)
        if world.task(task).worker:
            keep(world, task, world.task(task).worker)
    assert world.time_ms - began_ms < HOUR_MS + parameters.accept_ms + parameters.prepare_ms + 10_000


def test_declining_bars_from_work_for_a_moment_and_never_from_checking() -> None:
    world = World(parameters=SLOW)
    first, second = world.add_machine(1, manners=IDLE), world.add_machine(2, manners=IDLE)
    tasks = [world.create(spec(match_ms=DAY_MS)) for _ in range(2)]
    world.block()
    assert {world.task(task).worker for task in tasks} == {first, second}
    mine, other = sorted(tasks, key=lambda task: world.task(task).worker != first)
    give_up(world, mine, first)
    node = node_of(world, first)
    assert (node.bad, node.failures, node.cool_down_until_ms, node.declines) == (0, 0, 0, 1)
    assert 0 < node.match_from_ms - world.time_ms <= 15_000
    # While it pauses it is drawn to check what the other does.
    world.machines = {first: Manners(silent=frozenset({Action.ACCEPT})), second: HONEST}
    world.run(other, until=lambda task: task.next_window == 1)
    for _ in range(SLOW.draw_blocks + 1):
        world.block()
    assert [seat.address for seat in load_window(world.state, other, 0).verifiers] == [first]
    # The task that it declined does not come back to it; others do, soon.
    third = world.create(spec(match_ms=DAY_MS))
    for _ in range(20):
        world.block()
    assert world.task(third).worker == first and world.task(mine).worker != first


# A worker that proves garbage to use up what the requester put down for checks


def pool(world: World, task: bytes) -> int:
    """What the verification pool holds, by the bill."""
    changes = {Movement.LOCKED: 1, Movement.PAID: -1, Movement.REFUNDED: -1, Movement.BURNED: -1}
    return sum(
        changes.get(line.movement, 0) * line.amount for line in bill(world, task) if line.pool == Pool.VERIFICATION
    )


@pytest.mark.slow
@given(
    verifiers=st.integers(1, 3), fee_min=st.sampled_from((0, 10**12, 10**15)), price=st.integers(1, WORTH // 1000),
    windows=st.integers(1, 4), open_max=st.integers(1, 3), silent=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_checks_of_rejected_windows_are_paid_by_their_worker_and_nothing_else_is_taken(
    verifiers: int, fee_min: int, price: int, windows: int, open_max: int, silent: bool, seed: int
) -> None:
    parameters = replace(
        QUICK,
        verifiers=verifiers,
        verifiers_sure=verifiers,
        check_fee_min=fee_min,
        open_windows_max=open_max,
        opening_fine_bps=0,
    )
    world = World(parameters=parameters, seed=seed)
    manners = Manners(silent=frozenset({Action.OPEN})) if silent else HONEST
    cheat = world.add_machine(1, roles=WORK, manners=manners, price=price)
    for at in range(20):  # nobody can fetch what it made
        world.add_machine(at + 100, roles=CHECK, manners=HONEST if silent else Manners(blind=True))
    task = world.create(spec(total=20 * windows, match_ms=3_600_000))
    before = pool(world, task)
    world.run(task, until=lambda task: task.reason in (Reason.NOT_SERVED, Reason.NOT_OPENED))
    world.block()
    lines = bill(world, task)
    fees = [line for line in lines if line.purpose in (Purpose.VERIFIER_FEE, Purpose.JUROR_FEE)]
    assert fees or not fee_min
    assert {line.pool for line in fees} <= {Pool.BOND}
    assert pool(world, task) == before
    bonds = [line for line in lines if line.party == cheat and line.movement == Movement.LOCKED]
    ends = (Purpose.BOND_RETURN, Purpose.NOT_SERVED)
    rest = [line for line in lines if line.purpose in ends and line.pool == Pool.BOND]
    assert all((line.purpose == Purpose.BOND_RETURN) == silent for line in rest) and len(rest) <= 1
    left = sum(line.amount for line in rest)
    assert sum(line.amount for line in bonds) == left + sum(line.amount for line in fees)
    fee = load_window(world.state, task, 0).fee
    each = parameters.verifiers * fee * min(windows, open_max)
    assert sum(line.amount for line in fees) <= each + ENLARGED_JURY * fee
    totals = escrow_totals(world.state, task)
    assert totals.deposited == totals.locked + totals.paid + totals.refunded + totals.burned


@given(
    price=st.integers(1, WORTH), own=st.integers(1, WORTH), window=st.integers(0, 2), fee_min=st.integers(0, DKB)
)  # fmt: skip
def test_a_bond_covers_the_checks_and_what_the_work_is_worth_to_its_requester(
    price: int, own: int, window: int, fee_min: int
) -> None:
    parameters = replace(TaskParameters(), check_fee_min=fee_min)
    job = spec(price=price)
    bond = bond_at(job, min(own, price), window, parameters)
    worth = work_price(sum(job.window_units(at) for at in range(window, job.windows)), price)
    assert bond >= worth // 2
    floor = bond_floor(7, is_new=True, parameters=parameters)
    assert bond_at(job, min(own, price), window, parameters, floor=floor) >= 3_000 * fee_min
    assert bond >= bond_at(job, 1, window, parameters)


# A worker that pays itself for a reputation


def farm(world: World, tasks: int, price: int) -> tuple[bytes, list[bytes]]:
    """Settle ``tasks`` of three windows each between a requester, a worker and verifiers of one owner."""
    worker = world.add_machine(1, roles=WORK, price=price, rate=RATE_MAX)
    for at in range(3):
        world.add_machine(at + 2, roles=CHECK)
    made = []
    for _ in range(tasks):
        made.append(world.create(spec(price=price)))
        world.run_to(made[-1], Phase.SETTLED)
    return worker, made


def test_windows_that_cost_nothing_make_no_reputation() -> None:
    world = World(parameters=replace(QUICK, new_windows=10, reputation_charge_min=10**17))
    worker, _ = farm(world, 4, 1)
    for address in world.machines:
        node = node_of(world, address)
        assert (node.good, node.valid_streak, reputation_milli(node)) == (0, 0, 500)
    assert is_new(node_of(world, worker), 1, world.parameters)


@pytest.mark.parametrize("price", [WORTH // 100, WORTH])
def test_a_reputation_costs_a_share_of_what_can_be_gained_by_it(price: int) -> None:
    parameters = replace(QUICK, new_windows=10, reputation_charge_min=DKB // 100)
    world = World(parameters=parameters)
    worker, made = farm(world, 4, price)
    node = node_of(world, worker)
    charges = [load_window(world.state, task, number).charge for task in made for number in range(3)]
    burned = sum(line.amount for task in made for line in bill(world, task) if line.movement == Movement.BURNED)
    counted = [charge for charge in charges if charge >= DKB // 100]
    assert (node.good, node.proved) == (len(counted), sum(charges))
    assert counted and burned == sum(share(charge, parameters.fee_bps) for charge in charges)
    # Whatever the price of a window that only one verifier would check: a fifth of it was burned for that.
    worth = work_price(spec().window_units(0), price)
    trusted = max(charge for charge in range(0, 20 * worth, worth // 10) if not is_new(node, charge, parameters))
    assert trusted * 19 // 100 <= burned
    assert is_new(node, trusted + worth // 5, parameters)


def test_a_fault_ends_a_record_and_work_for_less_starts_none() -> None:
    world = World(parameters=replace(QUICK, new_windows=2, reputation_charge_min=1, verifiers_sure=3))
    worker, _ = farm(world, 1, WORTH // 1000)
    assert not is_new(node_of(world, worker), DKB // 1000, world.parameters)
    task = world.create(spec(price=WORTH // 1000))
    world.run_to(task, Phase.RUNNING)
    give_up(world, task, worker)
    node = node_of(world, worker)
    assert (node.proved, node.valid_streak, node.bad) == (0, 0, 1)
    assert is_new(node, 1, world.parameters)
