"""Groups over the real rules: how they are posted, matched, run, repaired and ended (market.md 5.6)."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from billing.escrow import Movement, Purpose, escrow_totals
from state.primitives.codec import encode
from state.view.accounts import balance_of
from tasks.ledger import queries
from tasks.ledger.bands import rate_top
from tasks.ledger.custody import custody_budget
from tasks.ledger.custody_records import find_terms
from tasks.ledger.custody_transitions import ASK_CUSTODY
from tasks.ledger.group_records import (
    GROUP_HISTORY_MAX,
    GROUP_LIMIT_BYTES,
    GroupPhase,
    holders_of,
    load_group,
    seat_spec,
    seat_task,
)
from tasks.ledger.group_transitions import ADD_SEATS, CANCEL_GROUP, CREATE_GROUP
from tasks.ledger.groups import SEATS_LOOKED_MAX, spare_budget
from tasks.ledger.lifecycle import ENDED, Phase, Reason
from tasks.ledger.open_task import Case, Scope
from tasks.ledger.queries import Action
from tasks.ledger.records import TASK_LIMIT_BYTES, load_spec, load_task
from tasks.ledger.settlement import budget_of
from tasks.ledger.transitions import (
    CANCEL_TASK,
    GIVE_UP_TASK,
    POKE,
    RESUME_TASK,
    RETIRE_NODE,
    SUSPEND_NODE,
    TOP_UP_TASK,
)
from tasks.spec import encode_spec
from tests.tasks.groups import DAY_MS, add_rest, create, root_of, run, seat, seats
from tests.tasks.world import DKB, HONEST, QUICK, REQUESTER, WORTH, Manners, World, spec

LONG = spec(total=200, match_ms=DAY_MS)
"""Ten windows: its members still work when the first is final."""
IDLE = Manners(silent=frozenset(Action))


def market(machines: int, **parameters: int) -> World:
    """Return a market with machines of one speed, and two verifiers that take no work."""
    world = World(replace(QUICK, **parameters))
    for at in range(machines):
        world.add_machine(1 + at)
    for name in (200, 201):
        world.add_machine(name, price=WORTH)
    return world


def lines(world: World, task: bytes) -> Counter[Purpose]:
    return Counter(line.purpose for line in queries.bill(world.state, task).lines)


def worked(world: World, task: bytes) -> int:
    """What the workers of a task were paid."""
    purposes = (Purpose.WINDOW_PAY, Purpose.HOLD_RELEASE, Purpose.PREPARATION)
    paid = [line for line in queries.bill(world.state, task).lines if line.movement == Movement.PAID]
    return sum(line.amount for line in paid if line.purpose in purposes)


def test_a_group_is_matched_run_and_paid_as_its_members_are() -> None:
    world = market(3)
    group = create(world, 3)
    record = run(world, group)
    assert record.phase is GroupPhase.ENDED
    assert (record.ended, record.final, record.lost, record.paused) == (3, 9, 0, 0)
    tasks = seats(world, group)
    assert {task.phase for task in tasks} == {Phase.SETTLED}
    assert len({task.worker for task in tasks}) == 3
    assert len({task.final_root for task in tasks}) == 3, "each member's output is another one"
    assert [change.phase for change in record.history] == [
        GroupPhase.MATCHING, GroupPhase.RUNNING, GroupPhase.ENDED,
    ]  # fmt: skip
    assert holders_of(world.state, group) == {}
    alone = World(QUICK)  # pay is what it is without a group
    for name in (1, 200, 201):
        alone.add_machine(name, price=WORTH if name > 1 else WORTH // 2000)
    single = alone.create(spec(match_ms=DAY_MS))
    alone.run_to(single, Phase.SETTLED)
    assert {worked(world, task.id) for task in tasks} == {worked(alone, single)}


def test_a_group_of_one_is_a_task() -> None:
    world = market(1)
    group = create(world, 1)
    run(world, group)
    assert seat(world, group, 0).phase == Phase.SETTLED
    assert load_spec(world.state, seat_task(group, 0)) == spec(match_ms=DAY_MS)


def test_each_seat_has_a_job_of_its_own() -> None:
    world = market(3)
    group = create(world, 3, 1)
    jobs = [load_spec(world.state, seat_task(group, number)) for number in range(4)]
    assert len({job.seed for job in jobs[:3]}) == 3
    assert [job.init_root for job in jobs[1:3]] == [root_of(1), root_of(2)]
    assert jobs[3] == jobs[0] == spec(match_ms=DAY_MS)
    for number, job in enumerate(jobs[:3]):
        assert job == seat_spec(jobs[0], number, root_of(number) if number else b"")
        assert job._replace(seed=b"", init_root=b"") == jobs[0]._replace(seed=b"", init_root=b"")


def test_a_group_is_no_bid_before_it_is_whole_nor_without_all_its_machines() -> None:
    world = market(3)
    job = spec(match_ms=DAY_MS)
    assert world.send(REQUESTER, CREATE_GROUP, [encode_spec(job), 4, 0]) is None
    group = max(key[1:33] for key, _ in world.state.scan(b"\x28", b"\x29", 10))
    for _ in range(5):
        world.block()
    assert {task.phase for task in seats(world, group)} == {Phase.MATCHING}
    assert add_rest(world, group, job, 4, 0) is None
    for _ in range(5):
        world.block()
    assert load_group(world.state, group).phase is GroupPhase.MATCHING
    free = [queries.find_node(world.state, bytes([name]) * 20) for name in (1, 2, 3)]
    assert [node.busy_slots for node in free if node is not None] == [0, 0, 0], "nothing is kept for it"
    world.add_machine(4)
    assert run(world, group).ended == 4


def test_what_is_not_a_group_is_refused() -> None:
    world = market(2)
    job = spec()
    group = create(world, 2)
    due = budget_of(job, QUICK).total
    other = bytes([1]) * 20
    assert world.send(REQUESTER, ADD_SEATS, [group, [root_of(1)], due]) == "wrong_phase"
    assert world.send(REQUESTER, ADD_SEATS, [b"g" * 32, [root_of(1)], due]) == "group_unknown"
    assert world.send(other, CANCEL_GROUP, [group]) == "not_yours"
    assert world.send(REQUESTER, CANCEL_GROUP, [b"g" * 32]) == "group_unknown"
    assert world.send(REQUESTER, CANCEL_TASK, [seat_task(group, 0)]) == "wrong_phase"
    assert world.send(REQUESTER, CANCEL_TASK, [seat_task(group, 1)]) == "wrong_phase"
    assert world.send(REQUESTER, CREATE_GROUP, [encode_spec(job), 3, 1]) is None
    part = max(
        (
            load_group(world.state, key[1:33])
            for key, _ in world.state.scan(b"\x28", b"\x29", 100)
            if len(key) == 33
        ),
        key=lambda record: record.created_height * 100 + record.members,
    ).id
    assert world.send(other, ADD_SEATS, [part, [root_of(1)], due]) == "not_yours"
    assert world.send(REQUESTER, ADD_SEATS, [part, [root_of(1)], due - 1]) == "payment_missing"
    assert world.send(REQUESTER, ADD_SEATS, [part, [b""], due]) == "seats_mismatch"
    assert world.send(REQUESTER, ADD_SEATS, [part, [root_of(1), root_of(2), root_of(3)], due]) == "seats_mismatch"
    assert world.send(REQUESTER, ADD_SEATS, [part, [root_of(1), root_of(2), b"", b""], due]) == "seats_mismatch"
    few = World(replace(QUICK, group_members_max=0))
    assert few.send(REQUESTER, CREATE_GROUP, [encode_spec(job), 1, 0]) == "groups_off"


@pytest.mark.parametrize("members", [1, 3])
def test_a_group_that_nobody_takes_expires_with_all_its_seats_and_costs_nothing(members: int) -> None:
    world = World(QUICK)
    before = balance_of(world.state, REQUESTER)
    group = create(world, members, 1, job=spec(match_ms=20_000))
    record = run(world, group)
    for _ in range(5):
        world.block()
    assert record.reason is Reason.NO_MATCH
    assert {task.phase for task in seats(world, group)} == {Phase.EXPIRED}
    assert balance_of(world.state, REQUESTER) == before


def test_a_cancelled_group_ends_all_its_seats_in_steps() -> None:
    world = market(0)
    before = balance_of(world.state, REQUESTER)
    group = create(world, 20, 3)
    assert world.send(REQUESTER, CANCEL_GROUP, [group]) is None
    assert world.send(REQUESTER, CANCEL_GROUP, [group]) == "wrong_phase"
    for left in (14, 6, 0):
        world.block()
        assert sum(task.phase not in ENDED for task in seats(world, group)) == left
    assert balance_of(world.state, REQUESTER) == before


def test_a_step_of_a_group_that_ends_reads_few_seats_whether_they_can_end_or_not() -> None:
    """A step read all 72 seats, each a task with its specification; a block has 256 such steps."""
    world = market(0)
    group = create(world, 56, 7)
    assert world.send(REQUESTER, CANCEL_GROUP, [group]) is None
    read: list[bytes] = []
    load = Case.load

    def counted(scope: Scope, task: bytes) -> Case:
        read.append(task)
        return load(scope, task)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Case, "load", counted)
        for _ in range(20):
            read.clear()
            world.block()
            assert len(read) <= SEATS_LOOKED_MAX
    assert not read
    assert all(task.phase in ENDED for task in seats(world, group))


def test_a_cancelled_group_that_runs_pays_for_the_windows_under_way() -> None:
    world = market(3)
    group = create(world, 3)
    run(world, group, until=lambda record: record.final > 0)
    assert world.send(REQUESTER, CANCEL_GROUP, [group]) is None
    assert world.send(REQUESTER, CANCEL_GROUP, [group]) == "wrong_phase"
    record = run(world, group)
    assert record.phase is GroupPhase.ENDED
    for task in seats(world, group):
        assert task.phase in (Phase.CANCELLED, Phase.SETTLED)
        assert lines(world, task.id)[Purpose.WINDOW_PAY] >= 1


@pytest.mark.parametrize("attempts", [1, 16])
def test_a_member_of_a_cancelled_group_that_fails_in_its_last_window_ends(attempts: int) -> None:
    """It looks for no other machine, and after its last try it does not wait for its requester."""
    world = market(3, attempts_max=attempts)
    group = create(world, 1, job=LONG)
    run(world, group, until=lambda _: seat(world, group, 0).next_window == 9)
    assert world.send(REQUESTER, CANCEL_GROUP, [group]) is None
    world.block()
    task = seat(world, group, 0)
    assert (task.phase, task.ending) == (Phase.RUNNING, 0)
    world.machines[task.worker] = IDLE
    assert world.send(task.worker, GIVE_UP_TASK, [task.id, int(Reason.WORKER_LEFT)]) is None
    run(world, group)
    task = seat(world, group, 0)
    assert (task.phase, task.reason) == (Phase.CANCELLED, Reason.REQUESTER_CANCELLED)
    assert task.changed_ms - load_group(world.state, group).created_ms < world.parameters.pause_ms


def test_a_lost_member_is_replaced_by_a_spare_and_the_others_go_on() -> None:
    world = market(4)
    group = create(world, 3, 1, job=LONG)
    run(world, group, until=lambda record: record.standby == 1 and record.final > 0)
    spare, lost = seat(world, group, 3), seat(world, group, 1)
    world.machines[lost.worker] = IDLE
    assert world.send(lost.worker, GIVE_UP_TASK, [lost.id, int(Reason.WORKER_LEFT)]) is None
    world.block()
    called = seat(world, group, 1)
    assert (called.phase, called.worker) == (Phase.ASSIGNED, spare.worker)
    assert called.price_per_tera_unit == spare.price_per_tera_unit
    assert (seat(world, group, 3).phase, seat(world, group, 3).reason) == (Phase.CANCELLED, Reason.SPARE_CALLED)
    record = run(world, group)
    assert {seat(world, group, number).phase for number in range(3)} == {Phase.SETTLED}
    assert record.final == 30
    assert lines(world, called.id)[Purpose.STANDBY] == 1
    assert holders_of(world.state, group) == {}


def test_a_spare_that_is_called_and_does_not_start_loses_what_it_had_earned() -> None:
    world = market(4)
    group = create(world, 3, 1, job=LONG)
    run(world, group, until=lambda record: record.standby == 1 and record.final > 0)
    spare, lost = seat(world, group, 3), seat(world, group, 1)
    before = balance_of(world.state, spare.worker)
    bond = spare_bond = escrow_totals(world.state, spare.id).locked
    assert bond == spare_bond
    for machine in (spare.worker, lost.worker):
        world.machines[machine] = IDLE
    assert world.send(lost.worker, GIVE_UP_TASK, [lost.id, int(Reason.WORKER_LEFT)]) is None
    world.block()
    assert seat(world, group, 1).worker == spare.worker
    assert world.send(spare.worker, GIVE_UP_TASK, [lost.id, int(Reason.WORKER_LEFT)]) is None
    assert lines(world, lost.id)[Purpose.HOLD_FORFEIT] == 1
    assert balance_of(world.state, spare.worker) <= before + escrow_totals(world.state, spare.id).refunded
    earned = sum(
        line.amount for line in queries.bill(world.state, spare.id).lines
        if line.purpose in (Purpose.STANDBY, Purpose.PREPARATION) and line.party == spare.worker
    )  # fmt: skip
    assert earned == 0


def test_spares_that_are_not_called_are_paid_for_windows_and_not_for_their_word_that_they_have_prepared() -> None:
    world = market(4)
    group = create(world, 3, 1, job=LONG)
    run(world, group)
    for _ in range(3):
        world.block()
    spare = seat(world, group, 3)
    assert (spare.phase, spare.reason) == (Phase.CANCELLED, Reason.GROUP_ENDED)
    paid = [line for line in queries.bill(world.state, spare.id).lines if line.purpose == Purpose.STANDBY]
    budget = spare_budget(LONG, QUICK)
    assert len(paid) == 1
    assert 0 < paid[0].amount <= budget.total
    windows = 30 - spare.own_from
    price = LONG.window_units(0) * windows * spare.price_per_tera_unit // 10**12
    assert paid[0].amount == price * QUICK.group_standby_bps // 10_000 // 3


def test_a_spare_that_leaves_is_not_replaced_and_earns_nothing() -> None:
    world = market(4)
    group = create(world, 3, 1, job=LONG)
    run(world, group, until=lambda record: record.standby == 1)
    spare = seat(world, group, 3)
    assert world.send(spare.worker, GIVE_UP_TASK, [spare.id, int(Reason.WORKER_LEFT)]) is None
    assert seat(world, group, 3).phase == Phase.CANCELLED
    assert lines(world, spare.id)[Purpose.STANDBY] == 0
    assert run(world, group).final == 30


def test_without_a_spare_a_lost_seat_looks_alone_in_the_band_of_its_group() -> None:
    world = market(3)
    group = create(world, 3, job=LONG)
    run(world, group, until=lambda record: record.final > 0)
    band = load_group(world.state, group).band
    slow = world.add_machine(30, rate=band * 86 // 100, price=1)
    fast = world.add_machine(31, rate=rate_top(band) + 1, price=1)
    lost = seat(world, group, 1)
    assert world.send(lost.worker, GIVE_UP_TASK, [lost.id, int(Reason.WORKER_LEFT)]) is None
    for _ in range(8):
        world.block()
    assert seat(world, group, 1).phase == Phase.DEGRADED, "neither too slow nor too fast, nor one that has a seat"
    assert load_group(world.state, group).lost == 1
    fitting = world.add_machine(32, rate=rate_top(band))
    world.run(lost.id, until=lambda task: task.worker == fitting)
    assert run(world, group).final == 30
    assert {slow, fast}.isdisjoint(task.worker for task in seats(world, group))


def test_a_group_pauses_for_the_seat_that_nobody_takes_and_the_others_end() -> None:
    world = market(3)
    group = create(world, 3, job=LONG)
    run(world, group, until=lambda record: record.final > 0)
    lost = seat(world, group, 1)
    assert world.send(lost.worker, GIVE_UP_TASK, [lost.id, int(Reason.WORKER_LEFT)]) is None
    record = run(world, group, until=lambda record: record.phase is GroupPhase.PAUSED)
    assert record.reason is Reason.NO_REPLACEMENT
    world.run_to(seat_task(group, 0), Phase.SETTLED)
    world.run_to(seat_task(group, 2), Phase.SETTLED)
    assert world.send(REQUESTER, RESUME_TASK, [lost.id]) is None
    assert load_group(world.state, group).phase is GroupPhase.RUNNING
    world.add_machine(40)
    assert run(world, group).final == 30


def test_a_liar_loses_its_seat_alone() -> None:
    world = market(4)
    world.machines[bytes([2]) * 20] = Manners(lies=True)
    group = create(world, 3, job=LONG)
    record = run(world, group)
    assert record.final == 30
    assert {seat(world, group, number).phase for number in range(3)} == {Phase.SETTLED}
    assert bytes([2]) * 20 not in {seat(world, group, number).worker for number in range(3)}


def test_records_are_bounded() -> None:
    world = market(0)
    group = load_group(world.state, create(world, 64, 8))
    change = group.history[0]._replace(height=2**63, time_ms=2**63)
    numbers = [name for name, value in zip(group._fields, group, strict=True) if type(value) is int]
    fields: dict[str, Any] = dict.fromkeys(numbers, 2**63)
    most = group._replace(**fields, history=(change,) * GROUP_HISTORY_MAX)
    assert len(encode([*most[:-1], [list(each) for each in most.history]])) < GROUP_LIMIT_BYTES
    task = load_task(world.state, seat_task(group.id, 63))
    big = task._replace(excluded=tuple(bytes([at]) * 20 for at in range(128)), complaints=(b"m" * 20,) * 8)
    assert len(encode([list(item) if isinstance(item, tuple) else item for item in big])) < TASK_LIMIT_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_money_is_kept_and_each_group_ends_whatever_machines_and_requesters_do(seed: int) -> None:
    chance = random.Random(seed)
    world = market(6, replace_ms_max=120_000)
    for name in range(1, 7):
        manners = [
            HONEST,
            HONEST,
            HONEST,
            Manners(lies=True),
            Manners(silent=frozenset({chance.choice(list(Action))})),
        ]
        world.machines[bytes([name]) * 20] = chance.choice(manners)
    created = [create(world, chance.randrange(1, 5), chance.randrange(2)) for _ in range(2)]
    for _ in range(60):
        group = chance.choice(created)
        tasks = seats(world, group)
        task, actor = chance.choice(tasks), bytes([chance.randrange(1, 7)]) * 20
        reasons = (Reason.INPUT_UNAVAILABLE, Reason.WORKER_LEFT, Reason.JOB_UNFIT)
        match chance.randrange(14):
            case 0:
                world.send(REQUESTER, CANCEL_TASK, [task.id])
            case 1:
                world.send(task.worker or actor, GIVE_UP_TASK, [task.id, int(chance.choice(reasons))])
            case 2:
                world.send(REQUESTER, RESUME_TASK, [task.id])
            case 3:
                world.send(actor, chance.choice([SUSPEND_NODE, RETIRE_NODE]), [])
            case 4:
                world.send(REQUESTER, TOP_UP_TASK, [task.id, DKB])
            case 5:
                world.send(actor, POKE, [task.id])
            case 6 if chance.randrange(4) == 0:
                world.send(REQUESTER, CANCEL_GROUP, [group])
        world.block(chance.choice((500, 1_000, 1_000, 3_000, 9_000, 40_000)))
        world.act()
        for each in created:
            check_counts(world, each)
    for machine in world.machines:
        world.machines[machine] = IDLE
    for _ in range(60):
        world.block(600_000)
    for group in created:
        record = load_group(world.state, group)
        assert record.phase is GroupPhase.ENDED
        assert record.due_ms == 0
        assert holders_of(world.state, group) == {}
        for task in seats(world, group):
            assert task.phase in ENDED, task
            assert escrow_totals(world.state, task.id).locked == 0
    for machine in world.machines:
        node = queries.find_node(world.state, machine)
        assert node is None or node.busy_slots == 0


def check_counts(world: World, group: bytes) -> None:
    """The counts of a group are what its seats are."""
    record, tasks = load_group(world.state, group), seats(world, group)
    members, spares = tasks[: record.members], tasks[record.members :]
    phases = Counter(task.phase for task in members)
    assert (record.lost, record.paused) == (phases[Phase.DEGRADED], phases[Phase.PAUSED])
    assert record.ended == sum(task.phase in ENDED for task in members)
    assert record.standby == sum(task.phase == Phase.STANDBY for task in spares)
    assert record.final == sum(task.final_windows for task in members)
    holding = {task.worker: number for number, task in enumerate(tasks) if task.worker and task.phase not in ENDED}
    assert holders_of(world.state, group) == holding
    working = [task.worker for task in tasks if task.worker and task.phase not in ENDED]
    assert len(working) == len(set(working)), "a machine has one seat of a group"


def test_custody_of_a_group_is_asked_for_each_seat_and_costs_nothing_for_a_spare() -> None:
    world = market(3, custody_copies=2)
    before = balance_of(world.state, REQUESTER)
    group = create(world, 2, 1)
    due = custody_budget(spec(), world.parameters)

    def ask(number: int, amount: int) -> str | None:
        return world.send(REQUESTER, ASK_CUSTODY, [seat_task(group, number), b"k" * 32, 1, amount])

    assert ask(2, due) == "payment_missing"
    assert [ask(number, 0 if number == 2 else due) for number in range(3)] == [None] * 3
    assert ask(2, 0) == "wrong_phase"
    run(world, group, until=lambda record: record.phase is GroupPhase.RUNNING)
    for number in range(3):
        terms = find_terms(world.state, seat_task(group, number))
        assert terms is not None and terms.each == (0 if number == 2 else due // 3)
    assert world.send(REQUESTER, CANCEL_GROUP, [group]) is None
    run(world, group)
    for _ in range(10):
        world.block(60_000)
    locked = [escrow_totals(world.state, seat_task(group, number)).locked for number in range(3)]
    assert locked == [0, 0, 0] and balance_of(world.state, REQUESTER) < before
