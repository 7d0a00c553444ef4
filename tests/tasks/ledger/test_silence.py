"""What silence costs a worker, and how busy one is that says everything in time (market.md 7.4, 8.2)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from billing.escrow import Pool, Purpose, Vault, check_escrows
from billing.prices import share
from state.primitives.codec import Value
from state.view.accounts import balance_of, debit
from tasks.ledger import queries
from tasks.ledger.lifecycle import NEXT_PHASE, Event, Phase, Reason, WindowPhase
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.queries import Action
from tasks.ledger.records import TaskRecord, load_window
from tasks.ledger.registry import NodeRole
from tasks.ledger.settlement import bond_at, final_ms_of, may_open, open_windows_of, windows_covered
from tasks.ledger.transitions import (
    ACCEPT_TASK,
    CANCEL_TASK,
    GIVE_UP_TASK,
    HEARTBEAT,
    RESUME_TASK,
    START_TASK,
    TOP_UP_TASK,
)
from tests.tasks.queued import QueuedWorld
from tests.tasks.world import DKB, HONEST, QUICK, REQUESTER, WORTH, Manners, World, spec

WORK, CHECK = NodeRole.COMPUTE, NodeRole.VERIFY
SLOW: Final = replace(QUICK, open_windows_max=3)
CUT: Final = Manners(silent=frozenset(Action))


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


def late_with_the_second_window(world: World) -> tuple[bytes, bytes]:
    """Have a worker that has proved a window be late with the next one; returns task and worker."""
    workers = [world.add_machine(at + 1, roles=WORK) for at in range(2)]
    for at in range(3):
        world.add_machine(at + 4, roles=CHECK)
    task = world.create(spec(total=80, match_ms=3_600_000))
    worker = world.run(task, until=lambda record: record.next_window == 1).worker
    assert worker in workers
    world.machines[worker] = Manners(silent=frozenset({Action.COMPUTE}))
    world.run(task, until=lambda record: record.reason == Reason.WINDOW_LATE)
    return task, worker


def test_a_late_window_within_its_extension_counts_and_costs_a_small_fine() -> None:
    world = World(parameters=replace(SLOW, window_extra_ms=600_000))
    task, worker = late_with_the_second_window(world)
    record = world.task(task)
    assert (record.phase, record.worker) == (Phase.RUNNING, worker)
    window = load_window(world.state, task, 0)
    assert fines(world, task) == [share(window.charge, world.parameters.opening_fine_bps)]
    world.machines[worker] = HONEST
    record = world.run_to(task, Phase.SETTLED)
    assert (record.worker, record.final_windows, len(fines(world, task))) == (worker, 4, 1)


def test_the_extension_of_a_window_is_the_only_one_of_a_worker_in_a_task() -> None:
    world = World(parameters=replace(SLOW, window_extra_ms=600_000))
    task, worker = late_with_the_second_window(world)
    world.machines[worker] = HONEST
    world.run(task, until=lambda record: record.next_window == 2)
    world.machines[worker] = Manners(silent=frozenset({Action.COMPUTE}))
    record = world.run(task, until=lambda record: record.phase == Phase.DEGRADED)
    assert record.reason == Reason.WINDOW_TIMEOUT and worker in record.excluded
    charge = load_window(world.state, task, 0).charge
    assert fines(world, task) == [
        share(charge, world.parameters.opening_fine_bps), share(charge, world.parameters.late_fine_bps),
    ]  # fmt: skip
    assert world.run_to(task, Phase.SETTLED).worker != worker


def test_nothing_that_is_sent_gives_a_worker_another_extension() -> None:
    """An extension is known by the reason of RUNNING, so nothing may change that but the end of the phase."""
    within = {event for (phase, event), after in NEXT_PHASE.items() if phase == after == Phase.RUNNING}
    assert within == {Event.EXTEND}
    world = World(parameters=replace(SLOW, window_extra_ms=600_000, window_grace_ms=60_000))
    task, worker = late_with_the_second_window(world)
    other = next(machine for machine in sorted(world.machines) if machine != worker)

    def assert_unmoved() -> None:
        before = world.task(task)
        assert (before.phase, before.reason) == (Phase.RUNNING, Reason.WINDOW_LATE)
        assert before.deadline_ms > world.time_ms
        sent: list[tuple[bytes, int, list[Value], str | None]] = [
            (REQUESTER, TOP_UP_TASK, [task, DKB], None),
            (worker, HEARTBEAT, [], None),
            (REQUESTER, RESUME_TASK, [task], "wrong_phase"),
            (worker, RESUME_TASK, [task], "not_yours"),
            (worker, ACCEPT_TASK, [task, 0], "wrong_phase"),
            (worker, START_TASK, [task, b"m" * 32], "wrong_phase"),
            (other, GIVE_UP_TASK, [task, int(Reason.WORKER_LEFT)], "not_yours"),
        ]
        for sender, kind, payload, code in sent:
            assert world.send(sender, kind, payload) == code, hex(kind)
            after = world.task(task)
            assert (after.phase, after.reason, after.deadline_ms, after.worker) == (
                Phase.RUNNING, Reason.WINDOW_LATE, before.deadline_ms, worker,
            )  # fmt: skip

    assert_unmoved()
    world.machines[worker] = HONEST
    world.run(task, until=lambda record: record.next_window == 2)
    assert_unmoved()
    world.machines[worker] = Manners(silent=frozenset({Action.COMPUTE}))
    world.run(task, until=lambda record: record.final_windows == 2)  # accepted, and paid
    assert_unmoved()
    record = world.run(task, until=lambda record: record.phase != Phase.RUNNING)
    assert record.reason == Reason.WINDOW_TIMEOUT and worker in record.excluded
    reasons = [entry.reason for entry in queries.task_history(world.state, task)]
    assert reasons.count(Reason.WINDOW_LATE) == 1


def test_a_task_that_is_cancelled_within_an_extension_does_not_prolong_it() -> None:
    world = World(parameters=replace(SLOW, window_extra_ms=60_000))
    task, _ = late_with_the_second_window(world)
    due_ms = world.task(task).deadline_ms
    assert world.send(REQUESTER, CANCEL_TASK, [task]) is None
    record = world.task(task)
    assert (record.reason, record.deadline_ms) == (Reason.WINDOW_LATE, due_ms)
    world.run_to(task, Phase.CANCELLED)
    reasons = [entry.reason for entry in queries.task_history(world.state, task)]
    assert reasons.count(Reason.WINDOW_LATE) == 1 and reasons[-1] != Reason.WINDOW_LATE


def test_without_an_extension_the_first_late_window_loses_the_task() -> None:
    world = World(parameters=SLOW)
    worker = world.add_machine(1, roles=WORK, manners=Manners(silent=frozenset({Action.COMPUTE})))
    world.add_machine(2, roles=CHECK)
    task = world.create()
    record = world.run(task, until=lambda record: record.phase == Phase.DEGRADED)
    assert record.reason == Reason.WINDOW_TIMEOUT and worker in record.excluded


def test_a_lost_task_is_drawn_for_among_the_lower_asks() -> None:
    """Whoever cuts the line of a worker and asks the least has its share of such tasks, and not all of them."""
    lowest, dear = 2_000, 3_001
    successors = []
    for seed in range(12):
        world = World(parameters=SLOW, seed=seed)
        first = world.add_machine(
            1, roles=WORK, price=lowest - 1, manners=Manners(silent=frozenset({Action.COMPUTE}))
        )
        for at, price in enumerate((lowest, lowest + 1, lowest + 2, lowest + 3, dear)):
            world.add_machine(at + 2, roles=WORK, price=price)
        world.add_machine(9, roles=CHECK)
        task = world.create(spec(price=4_000))
        world.run(task, until=lambda record: record.phase == Phase.DEGRADED)
        record = world.run(task, until=lambda record: record.phase == Phase.ASSIGNED)
        assert first in record.excluded
        successors.append(record.price_per_tera_unit)
    assert len(set(successors)) > 2 and max(successors) < dear and successors.count(lowest) < 8


def test_a_dear_machine_takes_a_lost_task_where_no_other_can() -> None:
    world = World(parameters=SLOW)
    world.add_machine(1, roles=WORK, price=1_000, manners=Manners(silent=frozenset({Action.COMPUTE})))
    dear = world.add_machine(2, roles=WORK, price=4_000)
    idle = world.add_machine(3, roles=WORK, price=1_001)
    world.add_machine(9, roles=CHECK)
    task = world.create(spec(price=4_000))
    world.run(task, until=lambda record: record.phase == Phase.RUNNING)
    spent = balance_of(world.state, idle)
    debit(world.state, idle, spent)
    world.issued -= spent
    assert world.run(task, until=lambda record: record.worker == dear).phase == Phase.ASSIGNED


def silent_at_the_second_opening(world: World) -> tuple[bytes, bytes]:
    """Have a worker whose first window is final say nothing more at its next opening; returns task and worker."""
    worker = world.add_machine(1, roles=WORK)
    for at in range(3):
        world.add_machine(at + 2, roles=CHECK)
    task = world.create(spec(total=80, match_ms=3_600_000))
    world.run(task, until=lambda record: record.final_windows >= 1)
    world.machines[worker] = Manners(silent=frozenset({Action.OPEN}))

    def is_late(record: TaskRecord) -> bool:
        return any(
            load_window(world.state, task, number).reason == Reason.OPENING_LATE for number in record.open_windows
        )

    world.run(task, until=is_late)
    return task, worker


def fines(world: World, task: bytes) -> list[int]:
    return [line.amount for line in queries.bill(world.state, task).lines if line.purpose == Purpose.WORKER_FINE]


def test_one_extension_costs_a_share_of_the_windows_price_and_is_the_only_one() -> None:
    world = World(parameters=replace(SLOW, window_grace_ms=600_000, opening_fine_bps=500))
    task, worker = silent_at_the_second_opening(world)
    number = world.task(task).final_windows
    window = load_window(world.state, task, number)
    assert fines(world, task) == [share(window.charge, 500)]
    assert window.deadline_ms > world.time_ms
    held = Vault.load(world.state, task, lambda _event: None, 0).held(Pool.HOLD, worker)
    assert held > 0
    world.run(task, until=lambda record: record.reason == Reason.NOT_OPENED)
    # Nothing that was verified is taken: the first window stays paid, what was held of it too.
    assert load_window(world.state, task, 0).phase == WindowPhase.FINAL
    assert Vault.load(world.state, task, lambda _event: None, 0).held(Pool.HOLD, worker) == held
    assert worker in world.task(task).excluded
    assert load_window(world.state, task, number).phase == WindowPhase.VOID
    purposes = [line.purpose for line in queries.bill(world.state, task).lines]
    assert Purpose.HOLD_FORFEIT not in purposes


def test_a_late_opening_within_the_extension_counts() -> None:
    world = World(parameters=replace(SLOW, window_grace_ms=600_000))
    task, worker = silent_at_the_second_opening(world)
    world.machines[worker] = HONEST
    record = world.run_to(task, Phase.SETTLED)
    assert (record.worker, record.final_windows, len(fines(world, task))) == (worker, 4, 1)


@settings(max_examples=50, deadline=None)
@given(
    price=st.integers(1, WORTH), own=st.integers(1, WORTH), windows=st.integers(1, 100),
    rate=st.integers(0, 10**12), final_value=st.integers(1, DKB),
)  # fmt: skip
def test_a_bond_covers_the_windows_that_it_is_for(
    price: int, own: int, windows: int, rate: int, final_value: int
) -> None:
    parameters = replace(TaskParameters(), final_value=final_value)
    job = spec(total=20 * windows, price=price)
    own = min(own, price)
    covered = min(windows, windows_covered(job, rate, parameters))
    assert min(windows, 3) <= covered <= parameters.open_windows_max
    bond = bond_at(job, own, 0, parameters, rate)
    charge = job.window_units(0) * own // 10**12
    record = TaskRecord(**{**dict.fromkeys(TaskRecord._fields, 0), "rate": rate})  # type: ignore[arg-type]
    for count in range(covered):
        record = record._replace(next_window=count, open_charge=count * charge)
        assert may_open(record, job, charge, bond, parameters)
    # However many are open, their price is covered twice.
    record = record._replace(next_window=2, open_charge=bond + 1)
    assert not may_open(record, job, charge, bond, parameters)
    most = open_windows_of(job, rate, parameters)
    assert covered <= most <= parameters.open_windows_max
    assert not may_open(record._replace(next_window=most, open_charge=0), job, 0, DKB, parameters)


@given(value=st.integers(0, 1 << 90))
def test_finality_grows_with_what_is_at_stake_within_its_bounds(value: int) -> None:
    parameters = TaskParameters()
    time_ms = final_ms_of(value, parameters)
    assert parameters.final_ms_min <= time_ms <= parameters.final_ms
    assert final_ms_of(value + 1, parameters) >= time_ms
    assert (time_ms == parameters.final_ms) == (
        value >= parameters.final_value
    ) or value > parameters.final_value // 2


class Paced(World):
    """The books are checked at each 50th block alone."""

    def check_money(self) -> None:
        if self.height % 50 == 0:
            check_escrows(self.state)
            super().check_money()


@pytest.mark.slow
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
