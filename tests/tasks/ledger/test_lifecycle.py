"""The tables are total, and each time-out and each way through them does what docs/tasks.md says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from billing.escrow import Movement, Pool, Purpose, Vault, escrow_totals
from billing.prices import share, work_price
from state.primitives.errors import DecodeError
from state.view import Overlay
from state.view.accounts import balance_of
from tasks.ledger import queries
from tasks.ledger.audits import contribution
from tasks.ledger.lifecycle import (
    ENDED,
    LIVE_WINDOW,
    NEXT_PHASE,
    NEXT_WINDOW_PHASE,
    TIMEOUTS,
    WINDOW_TIMEOUTS,
    Event,
    Phase,
    Reason,
    WindowEvent,
    WindowPhase,
    stage_of,
)
from tasks.ledger.queries import Action
from tasks.ledger.records import load_spec_bytes, load_window
from tasks.ledger.registry import NodeRole, require_node
from tasks.ledger.reputation import mark_success
from tasks.ledger.settlement import budget_of, preparation_units
from tasks.ledger.transitions import (
    ACCEPT_TASK,
    CANCEL_TASK,
    GIVE_UP_TASK,
    POKE,
    RESUME_TASK,
    START_TASK,
    TOP_UP_TASK,
)
from tasks.spec import spec_hash
from tests.tasks.world import DKB, HONEST, QUICK, REQUESTER, WORTH, Manners, World, spec


def amounts(world: World, task: bytes, purpose: Purpose) -> list[int]:
    return [line.amount for line in queries.bill(world.state, task).lines if line.purpose == purpose]


def reasons(world: World, task: bytes) -> list[Reason]:
    return [entry.reason for entry in queries.task_history(world.state, task)]


def market(*manners: Manners, parameters=QUICK, **options: object) -> tuple[World, list[bytes]]:  # type: ignore[no-untyped-def]
    world = World(parameters=parameters)
    machines = [world.add_machine(at + 1, manners=each) for at, each in enumerate(manners)]
    return world, machines


def held(world: World, task: bytes, pool: Pool, owner: bytes = bytes(20)) -> int:
    return Vault.load(world.state, task, lambda _event: None, 0).held(pool, owner)


# The tables


def test_every_phase_can_be_reached_and_left_and_ends_are_ends() -> None:
    assert set(NEXT_PHASE.values()) == set(Phase) - {Phase.CREATED}
    assert {phase for phase, _ in NEXT_PHASE} == set(Phase) - ENDED
    assert {event for _, event in NEXT_PHASE} == set(Event)
    assert set(NEXT_WINDOW_PHASE.values()) == set(WindowPhase)
    assert {phase for phase, _ in NEXT_WINDOW_PHASE} == set(WindowPhase) - {WindowPhase.VOID, WindowPhase.LOST}
    assert {event for _, event in NEXT_WINDOW_PHASE} == set(WindowEvent)


def test_every_phase_that_is_not_an_end_has_a_deadline_of_its_own_or_waits_for_others() -> None:
    waits_for_others = {Phase.OUTPUT, Phase.VERIFYING, Phase.STANDBY}
    assert set(TIMEOUTS) == set(Phase) - ENDED - waits_for_others - {Phase.CREATED}
    assert set(WINDOW_TIMEOUTS) == LIVE_WINDOW
    assert all((phase, event) in NEXT_PHASE for phase, event in TIMEOUTS.items())
    assert all((phase, event) in NEXT_WINDOW_PHASE for phase, event in WINDOW_TIMEOUTS.items())


def test_from_every_phase_an_end_can_be_reached() -> None:
    reaching = set(ENDED)
    while more := {phase for (phase, _), after in NEXT_PHASE.items() if after in reaching} - reaching:
        reaching |= more
    assert reaching == set(Phase)


def test_there_is_a_reason_for_everything_and_users_see_three_parts() -> None:
    assert len(Reason) >= 20
    assert {stage_of(phase) for phase in Phase} == {"create", "run", "output", "ended"}


# The way through


def test_an_honest_task_is_settled_and_its_bill_adds_up() -> None:
    world, _machines = market(HONEST, HONEST, HONEST)
    before = balance_of(world.state, REQUESTER)
    task = world.create()
    budget = budget_of(spec(), world.parameters)
    assert before - balance_of(world.state, REQUESTER) == budget.total == escrow_totals(world.state, task).locked
    record = world.run_to(task, Phase.SETTLED)
    assert reasons(world, task) == [
        Reason.CREATED, Reason.ADMITTED, Reason.MATCHED, Reason.ACCEPTED, Reason.STARTED,
        Reason.ALL_WINDOWS_PROVED, Reason.VERIFIERS_DRAWN, Reason.ALL_WINDOWS_FINAL,
    ]  # fmt: skip
    assert record.final_windows == 3
    charges = [load_window(world.state, task, number).charge for number in range(3)]
    pay, hold = amounts(world, task, Purpose.WINDOW_PAY), amounts(world, task, Purpose.WINDOW_HOLD)
    assert hold == [share(charge, 2000) for charge in charges]
    assert [a + b for a, b in zip(pay, hold, strict=True)] == charges
    assert amounts(world, task, Purpose.HOLD_RELEASE) == [sum(hold)]
    windows = [load_window(world.state, task, number) for number in range(3)]
    assert amounts(world, task, Purpose.VERIFIER_FEE) == [window.fee for window in windows]
    checks = amounts(world, task, Purpose.CHECK_FUND)
    assert checks == [contribution(window.due, is_below=True) for window in windows]
    burned = [line for line in queries.bill(world.state, task).lines if line.movement == Movement.BURNED]
    assert [line.amount for line in burned] == [share(charge, 200) for charge in charges]
    locked, prepared = amounts(world, task, Purpose.PREPARATION)
    assert locked == budget.preparation >= prepared > 0
    spent = prepared + sum(charges) + sum(checks) + sum(share(charge, 200) for charge in charges)
    assert before - balance_of(world.state, REQUESTER) == spent
    # Only the worker's bond is left, and goes back after its time.
    worker = record.worker
    assert escrow_totals(world.state, task).locked == held(world, task, Pool.BOND, worker) > 0
    world.block(world.parameters.bond_release_ms)
    world.block()
    assert escrow_totals(world.state, task).locked == 0
    assert balance_of(world.state, worker) == 1_000 * DKB - world.parameters.node_bond_min + prepared + sum(
        charges
    )


@given(
    total=st.integers(20, 90), price=st.integers(1, 10**22), asked=st.integers(1, 10**22), seed=st.integers(0, 9)
)  # fmt: skip
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_window_costs_its_units_and_what_rounding_leaves_is_the_requesters(
    total: int, price: int, asked: int, seed: int
) -> None:
    world = World(seed=seed)
    job, own = spec(total=total, price=price), min(asked, price)
    machines = [world.add_machine(at, price=own) for at in (1, 2)]
    before = balance_of(world.state, REQUESTER)
    task = world.create(job)
    locked = escrow_totals(world.state, task).deposited
    assert locked == budget_of(job, world.parameters).total == before - balance_of(world.state, REQUESTER)
    world.run_to(task, Phase.SETTLED)
    charges = [load_window(world.state, task, number).charge for number in range(job.windows)]
    assert charges == [job.window_units(number) * own // 10**12 for number in range(job.windows)]
    most = [-(-job.window_units(number) * price // 10**12) for number in range(job.windows)]
    assert sum(charges) <= budget_of(job, world.parameters).price == sum(most)
    world.block(world.parameters.bond_release_ms)
    world.block()
    lines = queries.bill(world.state, task).lines
    left = {pool: sum(line.amount for line in lines if (line.purpose, line.pool) == (Purpose.UNSPENT, pool))
            for pool in (Pool.PRICE, Pool.FEE)}  # fmt: skip
    paid = sum(line.amount for line in lines if line.movement == Movement.PAID and line.party in machines
               and line.pool in (Pool.PRICE, Pool.HOLD))  # fmt: skip
    assert paid + left[Pool.PRICE] == sum(most) + budget_of(job, world.parameters).preparation
    assert escrow_totals(world.state, task).locked == 0


def test_no_match_expires_with_a_full_refund() -> None:
    world, _ = market(HONEST)  # a worker, but nobody who could check it
    before = balance_of(world.state, REQUESTER)
    task = world.create()
    record = world.run_to(task, Phase.EXPIRED)
    assert record.reason == Reason.NO_MATCH
    assert record.changed_ms - record.created_ms <= spec().match_ms + 1_000
    assert balance_of(world.state, REQUESTER) == before


def test_a_worker_that_does_not_accept_pauses_and_another_is_matched() -> None:
    world, machines = market(*[Manners(silent=frozenset({Action.ACCEPT}))] * 2)
    task = world.create()
    record = world.run(task, until=lambda task: task.reason == Reason.ACCEPT_TIMEOUT)
    assert record.phase == Phase.MATCHING and record.worker == b""
    (lazy,) = record.excluded
    node = queries.find_node(world.state, lazy)
    assert node is not None and (node.bad, node.failures, node.declines) == (0, 0, 1)
    parameters = world.parameters
    assert node.match_from_ms == record.changed_ms + parameters.decline_ms + parameters.accept_ms
    world.machines = dict.fromkeys(machines, HONEST)
    assert world.run_to(task, Phase.SETTLED).worker != lazy


def test_a_worker_that_does_not_start_is_fined_and_not_matched_again() -> None:
    world, machines = market(*[Manners(silent=frozenset({Action.START}))] * 2, HONEST)
    task = world.create(spec(match_ms=600_000))
    record = world.run_to(task, Phase.SETTLED, Phase.EXPIRED)
    assert record.phase == Phase.SETTLED and record.worker == machines[2]
    for worker in record.excluded:
        assert worker in machines[:2]
    fines = amounts(world, task, Purpose.WORKER_FINE)
    window = work_price(spec().window_units(0), record.price_per_tera_unit)
    assert fines and set(fines) == {share(window, 2_500)}


def test_a_lost_worker_is_replaced_from_the_last_proved_state() -> None:
    world, _machines = market(HONEST, HONEST, HONEST)
    task = world.create()
    first = world.run(task, until=lambda task: task.next_window == 1).worker
    world.machines[first] = Manners(silent=frozenset({Action.COMPUTE}))
    record = world.run_to(task, Phase.DEGRADED)
    assert record.reason == Reason.WINDOW_TIMEOUT and first in record.excluded
    assert len(amounts(world, task, Purpose.WORKER_FINE)) == 1
    record = world.run_to(task, Phase.SETTLED)
    assert record.worker != first
    assert {load_window(world.state, task, number).worker for number in range(3)} == {first, record.worker}
    world.block(world.parameters.bond_release_ms)
    world.block()
    assert escrow_totals(world.state, task).locked == 0


def test_without_replacement_the_task_pauses_and_fails_after_its_grace() -> None:
    world, _ = market(Manners(silent=frozenset({Action.COMPUTE})), Manners(silent=frozenset({Action.COMPUTE})))
    task = world.create()
    record = world.run_to(task, Phase.PAUSED)
    assert record.reason == Reason.NO_REPLACEMENT
    record = world.run_to(task, Phase.FAILED)
    assert record.reason == Reason.GRACE_OVER
    assert escrow_totals(world.state, task).locked == 0


def test_a_paused_task_can_be_resumed() -> None:
    world, _ = market(Manners(silent=frozenset({Action.COMPUTE})), Manners(silent=frozenset({Action.COMPUTE})))
    task = world.create()
    world.run_to(task, Phase.PAUSED)
    world.add_machine(9)
    assert world.send(b"x" * 20, RESUME_TASK, [task]) == "not_yours"
    assert world.send(REQUESTER, RESUME_TASK, [task]) is None
    assert world.run_to(task, Phase.SETTLED).worker == bytes([9]) * 20


@pytest.mark.parametrize("reason", [Reason.JOB_UNFIT, Reason.INPUT_UNAVAILABLE])
def test_n20_a_machine_that_turned_a_task_down_has_it_again_if_no_other_is_left(reason: Reason) -> None:
    world, _ = market(Manners(silent=frozenset(Action)), Manners(silent=frozenset(Action)))
    task = world.create()
    late = world.run(task, until=lambda task: task.worker != b"").worker
    world.machines[late] = Manners(silent=frozenset({Action.COMPUTE}))
    world.run_to(task, Phase.DEGRADED)
    shy = world.run(task, until=lambda task: task.worker != b"").worker
    assert world.send(shy, GIVE_UP_TASK, [task, int(reason)]) is None
    record = world.run_to(task, Phase.PAUSED)
    assert (record.reason, set(record.excluded)) == (Reason.NO_REPLACEMENT, {late, shy})
    world.machines[shy] = HONEST
    mark_success(  # of another task
        world.state, late, WORTH, world.context().steady_ms, world.parameters, is_worker=False
    )
    assert require_node(world.state, late).failures == 0
    assert world.send(REQUESTER, RESUME_TASK, [task]) is None
    assert world.task(task).excluded == (late,), "who was late stays away, whatever it did elsewhere since"
    assert world.run_to(task, Phase.SETTLED).worker == shy


def test_a_task_that_cannot_pay_its_verifiers_waits_for_a_top_up() -> None:
    world, _ = market(HONEST, HONEST, HONEST)
    task = world.create()
    first = world.run(task, until=lambda task: task.phase == Phase.RUNNING).worker
    vault = Vault.load(world.state, task, world.events.append, world.height)
    vault.refund(Pool.VERIFICATION, REQUESTER, vault.held(Pool.VERIFICATION), Purpose.UNSPENT)
    world.machines[first] = Manners(silent=frozenset(Action))
    record = world.run_to(task, Phase.PAUSED)
    assert record.reason == Reason.FUNDS_LOW
    assert world.send(REQUESTER, TOP_UP_TASK, [task, budget_of(spec(), QUICK).verification]) is None
    assert world.send(REQUESTER, RESUME_TASK, [task]) is None
    world.run_to(task, Phase.SETTLED)


def test_a_task_pauses_after_as_many_workers_as_are_allowed_and_ends_if_nobody_resumes_it() -> None:
    world, _ = market(
        *[Manners(silent=frozenset({Action.COMPUTE}))] * 3, parameters=replace(QUICK, attempts_max=2)
    )
    task = world.create(spec(match_ms=3_600_000))
    record = world.run_to(task, Phase.PAUSED)
    assert (record.reason, record.attempts) == (Reason.ATTEMPTS_EXHAUSTED, 2)
    assert world.run_to(task, Phase.FAILED).reason == Reason.GRACE_OVER
    assert escrow_totals(world.state, task).locked == 0


# What requester and worker may do


def test_cancelling_costs_nothing_before_a_worker_is_found_and_a_segment_before_it_has_accepted() -> None:
    world, _ = market(HONEST, HONEST)
    before = balance_of(world.state, REQUESTER)
    searching, assigned = world.create(), b""
    assert world.send(REQUESTER, CANCEL_TASK, [searching]) is None
    assigned = world.create()
    world.block()
    assert world.task(assigned).phase == Phase.ASSIGNED
    assert world.send(REQUESTER, CANCEL_TASK, [assigned]) is None
    for task in (searching, assigned):
        assert world.task(task).phase == Phase.CANCELLED
        assert world.send(REQUESTER, CANCEL_TASK, [task]) == "wrong_phase"
    (paid,) = amounts(world, assigned, Purpose.KILL_FEE)
    assert paid == work_price(spec().segment_units(0, 0), WORTH // 2000) > 0
    assert amounts(world, searching, Purpose.KILL_FEE) == []
    assert balance_of(world.state, REQUESTER) == before - paid
    assert not any(node.busy_slots for node in queries.list_nodes(world.state, None, 10).items)


def test_cancelling_under_way_pays_the_window_in_progress_and_the_kill_fee() -> None:
    world, _ = market(HONEST, HONEST)
    task = world.create()
    world.run(task, until=lambda task: task.phase == Phase.RUNNING)
    assert world.send(b"x" * 20, CANCEL_TASK, [task]) == "not_yours"
    assert world.send(REQUESTER, CANCEL_TASK, [task]) is None
    assert world.send(REQUESTER, CANCEL_TASK, [task]) == "wrong_phase"
    record = world.run_to(task, Phase.CANCELLED)
    assert (record.final_windows, record.reason) == (1, Reason.REQUESTER_CANCELLED)
    budget = budget_of(spec(), world.parameters)
    charge = load_window(world.state, task, 0).charge
    locked, prepared = amounts(world, task, Purpose.PREPARATION)
    assert locked == budget.preparation and prepared > 0
    assert amounts(world, task, Purpose.KILL_FEE) == [share(budget.price - charge + locked - prepared, 100)]


@pytest.mark.parametrize("seconds", [0, 3, 9])
def test_cancelling_while_the_worker_prepares_pays_its_preparation_at_its_own_price(seconds: int) -> None:
    idle = Manners(silent=frozenset({Action.START}))
    world, _ = market(idle, idle)
    task = world.create()
    worker = world.run_to(task, Phase.PREPARING).worker
    world.block(1_000 * seconds)
    assert world.send(REQUESTER, CANCEL_TASK, [task]) is None
    assert world.task(task).phase == Phase.CANCELLED
    price = require_node(world.state, worker).profile.price_per_tera_unit
    paid = work_price(preparation_units(spec(), world.parameters), price)
    assert paid > work_price(spec().segment_units(0, 0), price)
    most = budget_of(spec(), world.parameters).preparation
    assert amounts(world, task, Purpose.PREPARATION) == [most, paid] and not amounts(world, task, Purpose.KILL_FEE)
    assert escrow_totals(world.state, task).locked == 0


def test_the_pay_for_preparing_leaves_what_open_windows_have_earned() -> None:
    # Two dear windows are proved and open, one step is left: no more than its price is paid for preparing.
    job = spec(total=41, price=WORTH // 2000)
    world, _ = market(HONEST, HONEST, HONEST, parameters=replace(QUICK, final_ms=60_000))
    task = world.create(job)
    first = world.run(task, until=lambda task: task.next_window == 2).worker
    assert world.send(first, GIVE_UP_TASK, [task, int(Reason.WORKER_LEFT)]) is None
    world.run_to(task, Phase.PREPARING)
    world.block(world.parameters.prepare_ms - 1_000)
    assert world.send(REQUESTER, CANCEL_TASK, [task]) is None
    record = world.run_to(task, Phase.CANCELLED)
    assert record.final_windows == 2
    assert amounts(world, task, Purpose.KILL_FEE) == [work_price(job.step_units, job.max_price_per_tera_unit)]
    world.block(world.parameters.bond_release_ms)
    assert escrow_totals(world.state, task).locked == 0


def test_a_hopeless_task_is_looked_at_ever_more_rarely_and_few_in_a_block() -> None:
    """There are more machines than one look sees, so that it is not sure that none fits."""
    world, _ = market(parameters=replace(QUICK, bids_per_call=2, asks_per_call=1))
    world.add_machine(9, price=WORTH)
    tasks = [world.create(spec(match_ms=3_600_000)) for _ in range(5)]
    looks: dict[bytes, int] = dict.fromkeys(tasks, 0)
    for _ in range(1_000):
        before = {task: world.task(task).match_at_ms for task in tasks}
        world.block()
        for task in tasks:
            looks[task] += world.task(task).match_at_ms != before[task]
    assert all(20 < count < 50 for count in looks.values())
    world.add_machine(1, slots=9), world.add_machine(2, slots=9)
    assigned = []
    for _ in range(80):
        world.act()
        world.block()
        assigned.append(sum(bool(world.task(task).assigned_ms) for task in tasks))
    assert assigned[-1] == 5


@pytest.mark.parametrize("phase", [Phase.ASSIGNED, Phase.PREPARING, Phase.RUNNING])
def test_a_worker_may_give_up_and_pays_only_once_it_runs(phase: Phase) -> None:
    world, _ = market(HONEST, HONEST, HONEST)
    task = world.create()
    worker = world.run_to(task, phase).worker
    assert world.send(b"x" * 20, GIVE_UP_TASK, [task, int(Reason.WORKER_LEFT)]) == "not_yours"
    assert world.send(worker, GIVE_UP_TASK, [task, int(Reason.WORKER_LEFT)]) is None
    assert worker in world.task(task).excluded
    assert bool(amounts(world, task, Purpose.WORKER_FINE)) == (phase == Phase.RUNNING)
    assert world.run_to(task, Phase.SETTLED).worker != worker


def test_a_word_that_the_job_diverges_is_no_reason_to_give_it_up() -> None:
    """Two machines that asked for little ended any task by it."""
    world, _ = market(HONEST, HONEST)
    task = world.create()
    worker = world.run_to(task, Phase.RUNNING).worker
    with pytest.raises(DecodeError):
        world.send(worker, GIVE_UP_TASK, [task, int(Reason.JOB_DIVERGED)])


def say_unfit(world: World, task: bytes, phase: Phase) -> bytes:
    """Have the task's worker say that the job is unfit; return who that was."""
    worker = world.run_to(task, phase).worker
    assert world.send(worker, GIVE_UP_TASK, [task, int(Reason.JOB_UNFIT)]) is None
    return worker


def test_what_is_said_against_a_job_stands_until_a_task_of_it_is_settled() -> None:
    world, _ = market(HONEST, HONEST, HONEST)
    task = world.create()
    job = spec_hash(load_spec_bytes(world.state, task))
    assert queries.report_on(world.state, job) is None
    say_unfit(world, task, Phase.PREPARING)
    second = say_unfit(world, task, Phase.PREPARING)
    told = queries.report_on(world.state, job)
    assert told is not None
    assert (told.reason, told.worker, told.task, told.times) == (Reason.JOB_UNFIT, second, task, 2)
    world.run_to(task, Phase.OUTPUT)
    assert queries.report_on(world.state, job) is not None
    world.run_to(task, Phase.SETTLED)
    assert queries.report_on(world.state, job) is None


def test_only_the_right_sender_at_the_right_time_with_the_right_bond() -> None:
    world, _ = market(HONEST, HONEST)
    task = world.create()
    world.block()
    worker = world.task(task).worker
    (duty,) = queries.work_duties(world.state, worker, world.parameters)
    assert world.send(worker, START_TASK, [task, b"m" * 32]) == "wrong_phase"
    assert world.send(b"x" * 20, ACCEPT_TASK, [task, duty.bond]) == "not_yours"
    assert world.send(worker, ACCEPT_TASK, [task, duty.bond - 1]) == "payment_missing"
    assert world.send(worker, ACCEPT_TASK, [b"?" * 32, duty.bond]) == "task_unknown"
    assert world.send(worker, ACCEPT_TASK, [task, duty.bond]) is None
    assert world.send(worker, ACCEPT_TASK, [task, 0]) == "wrong_phase"


def test_anybody_may_poke_what_is_due_and_nothing_else() -> None:
    world, _ = market(HONEST)
    task = world.create()
    world.block()
    assert world.send(b"x" * 20, POKE, [task]) == "nothing_due"
    world.time_ms += spec().match_ms
    assert world.send(b"x" * 20, POKE, [task]) is None
    assert world.task(task).phase == Phase.EXPIRED


def test_a_block_fires_no_more_than_its_share_and_the_rest_in_order_later() -> None:
    world, _ = market(HONEST, parameters=replace(QUICK, deadlines_per_block=3))
    tasks = [world.create(spec(match_ms=1_000 + at)) for at in range(8)]
    for _ in range(2):
        world.block(100)
    world.time_ms += 10_000
    ended = []
    for _ in range(20):
        world.block(100)
        ended.append(sum(world.task(task).phase == Phase.EXPIRED for task in tasks))
    assert ended[-1] == 8
    assert max(after - before for before, after in zip([0, *ended], ended, strict=False)) <= 3


def test_tasks_that_nobody_takes_delay_neither_new_ones_nor_deadlines() -> None:
    world, _ = market(parameters=replace(QUICK, bids_per_call=4, deadlines_per_block=8, asks_per_call=2))
    (
        world.add_machine(9, price=WORTH, roles=NodeRole.COMPUTE),
        world.add_machine(8, price=WORTH, roles=NodeRole.COMPUTE),
    )
    hopeless = [world.create(spec(price=1, match_ms=3_600_000)) for _ in range(100)]
    for _ in range(40):
        world.block()
    assert all(world.task(task).phase == Phase.MATCHING for task in hopeless)
    world.add_machine(1), world.add_machine(2)
    brief, taken = world.create(spec(price=1, match_ms=1_000)), world.create()
    for _ in range(3):
        world.block()
    assert world.task(taken).phase == Phase.ASSIGNED
    assert world.task(brief).phase == Phase.EXPIRED
    # Among new ones those that wait longest go first, and the others still have their turns.
    looked = [world.task(task).match_at_ms for task in hopeless]
    for _ in range(10):
        for _ in range(4):
            world.create(spec(price=1, match_ms=3_600_000))
        world.block()
    assert sum(world.task(task).match_at_ms != at for task, at in zip(hopeless, looked, strict=True)) >= 10


class Counted(Overlay):
    """Counts the reads."""

    reads = 0

    def get(self, key: bytes) -> bytes | None:
        self.reads += 1
        return super().get(key)


def test_a_search_costs_no_square_of_one_operators_machines() -> None:
    world = World()
    for name in range(1, 65):
        world.add_machine(name, operator=b"O" * 20)
    task = world.create()
    state = world.state = Counted(world.state)
    world.block()
    assert world.task(task).phase == Phase.MATCHING  # its own operator may not check a worker
    assert state.reads < 6 * 64
