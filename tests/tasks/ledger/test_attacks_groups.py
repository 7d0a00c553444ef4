"""Attacks on groups, each with what it costs or brings (decision 0088); the whole life over the real Runtime."""

from __future__ import annotations

from dataclasses import replace

from billing.escrow import Movement, Purpose
from state.view.accounts import balance_of, nonce_of
from tasks.ledger import queries
from tasks.ledger.calls import MEMBERS_PER_CALL
from tasks.ledger.deadlines import GROUPS_PER_CALL
from tasks.ledger.group_records import GroupPhase, group_id_of, holders_of, load_group
from tasks.ledger.group_transitions import CANCEL_GROUP, CREATE_GROUP
from tasks.ledger.lifecycle import Phase, Reason
from tasks.ledger.transitions import GIVE_UP_TASK
from tasks.spec import Requirements, encode_spec
from tests.tasks.groups import DAY_MS, add_rest, create, run, seat, seats
from tests.tasks.ledger.test_groups import IDLE, LONG, market
from tests.tasks.signed import CHECK, KEYS, REQUESTER_KEY, WORK, SignedWorld
from tests.tasks.world import DKB, QUICK, REQUESTER, WORTH, World, spec


def test_a_group_lives_over_the_real_runtime() -> None:
    world = SignedWorld(QUICK)
    for key in KEYS[:4]:
        world.join(key, world.profile(key, roles=WORK | CHECK))
    sender, job = REQUESTER_KEY.address, LONG
    group = group_id_of(sender, nonce_of(world.state, sender))
    assert world.send(sender, CREATE_GROUP, [encode_spec(job), 2, 1]) is None
    assert add_rest(world, group, job, 2, 1, sender) is None
    run(world, group, until=lambda record: record.standby == 1 and record.final > 0)
    lost = seat(world, group, 1)
    assert world.send(lost.worker, GIVE_UP_TASK, [lost.id, int(Reason.WORKER_LEFT)]) is None
    record = run(world, group)
    assert (record.final, record.ended) == (20, 2)
    assert [seat(world, group, number).phase for number in range(3)] == [
        Phase.SETTLED, Phase.SETTLED, Phase.CANCELLED,
    ]  # fmt: skip
    assert lost.worker != seat(world, group, 1).worker


def test_a_withdrawn_group_pays_each_machine() -> None:
    world = market(5, order_blocks=2)
    before = balance_of(world.state, REQUESTER)
    group = create(world, 4, 1)
    world.block()
    assert world.send(REQUESTER, CANCEL_GROUP, [group]) is None
    for _ in range(8):
        world.block()
    assert load_group(world.state, group).phase is GroupPhase.ENDED
    job = spec(match_ms=DAY_MS)
    price = job.segment_units(0, 0) * (WORTH // 2000) // 10**12
    for task in seats(world, group):
        paid = [line for line in queries.bill(world.state, task.id).lines if line.movement == Movement.PAID]
        assert [(line.purpose, line.amount) for line in paid] == [(Purpose.KILL_FEE, price)]
    assert before - balance_of(world.state, REQUESTER) == 5 * price
    assert holders_of(world.state, group) == {}


def test_a_machine_that_lost_a_seat_holds_none_again() -> None:
    """Two members are lost; the machine of the first would do for the seat of the second."""
    world = market(3)
    group = create(world, 3, job=LONG)
    run(world, group, until=lambda record: record.final > 0)
    leaver, other = seat(world, group, 0), seat(world, group, 1)
    for task in (leaver, other):
        assert world.send(task.worker, GIVE_UP_TASK, [task.id, int(Reason.WORKER_LEFT)]) is None
    world.machines[leaver.worker] = world.machines[other.worker] = IDLE
    for _ in range(12):
        world.block()
        world.act()
    assert {seat(world, group, number).phase for number in range(2)} == {Phase.DEGRADED}
    assert load_group(world.state, group).barred == 2
    fines = [line for line in queries.bill(world.state, leaver.id).lines if line.purpose == Purpose.WORKER_FINE]
    assert len(fines) == 1


def test_a_machine_without_its_claimed_rate_is_not_in_the_band() -> None:
    """A rate that was measured counts: the claim of a slow machine puts it into no band of faster ones."""
    world = World(QUICK)
    for at in range(2):
        world.add_machine(1 + at, rate=10**10)
    world.add_machine(3, rate=10**10 * 80 // 100)  # as its trial left it (R49)
    for name in (200, 201):
        world.add_machine(name, price=WORTH)
    group = create(world, 3, job=spec(match_ms=DAY_MS, price=WORTH // 1500))
    for _ in range(6):
        world.block()
    assert load_group(world.state, group).phase is GroupPhase.MATCHING
    world.add_machine(4, rate=10**10 * 88 // 100)
    record = run(world, group)
    assert record.band == 10**10 * 88 // 100
    assert {task.worker[0] for task in seats(world, group)} == {1, 2, 4}


def test_spares_of_one_owner_count_once() -> None:
    owner = b"o" * 20
    world = World(QUICK)
    for at in range(11):
        world.add_machine(1 + at, operator=owner)
    world.add_machine(50)
    for name in (200, 201):
        world.add_machine(name, price=WORTH)
    job = spec(match_ms=DAY_MS, price=WORTH // 1500)
    many = create(world, 9, 2, job=job)
    for _ in range(4):
        world.block()
    assert load_group(world.state, many).phase is GroupPhase.RUNNING
    spares = [task.worker for task in seats(world, many)[9:]]
    assert bytes([50]) * 20 in spares
    lone = World(QUICK)
    for at in range(12):
        lone.add_machine(1 + at, operator=owner)
    for name in (200, 201):
        lone.add_machine(name, price=WORTH)
    group = create(lone, 9, 2, job=job)
    for _ in range(4):
        lone.block()
    assert load_group(lone.state, group).phase is GroupPhase.MATCHING, "one owner has no two spares"


def test_impossible_groups_leave_others_in_the_call() -> None:
    """More groups than a call takes wait for machines that do not exist; a task beside them is matched at once."""
    world = market(2)
    for _ in range(GROUPS_PER_CALL + 4):
        create(world, 3)
    task = world.create()
    world.block()
    assert world.task(task).phase == Phase.ASSIGNED
    assert world.task(task).price_per_tera_unit == WORTH // 2000, "and pays what it would without them"


def test_many_impossible_groups_delay_no_task_and_groups_have_a_place_beside_many_tasks() -> None:
    """Each group that a call did not take held one of its places: 300 of them delayed a task by eleven calls."""
    world = World(replace(QUICK, bids_per_call=16))
    world.add_machine(1)
    for name in (200, 201):
        world.add_machine(name, price=WORTH)
    impossible = spec(match_ms=DAY_MS)._replace(requirements=Requirements(16, 0, 0))
    for _ in range(40):
        create(world, 1, job=impossible)
    task = world.create()
    assert world.task(task).rank == seat(world, max(groups_of(world)), 0).rank
    world.block()
    assert world.task(task).phase == Phase.ASSIGNED, "forty groups were there before it"
    world.add_machine(2)
    for _ in range(40):
        world.create(impossible)
    group = create(world, 1)
    for _ in range(25):  # two groups in a call, those before it first
        world.block()
    assert load_group(world.state, group).phase is not GroupPhase.MATCHING


def groups_of(world: World) -> list[bytes]:
    return [key[1:] for key, _ in world.state.scan(b"\x28", b"\x29", 1_000) if len(key) == 33]


def test_a_call_takes_so_many_seats() -> None:
    world = World(replace(QUICK, asks_per_call=512))
    for at in range(130):
        world.add_machine(1 + at, slots=8)
    world.fund(REQUESTER, 10**6 * DKB)
    groups = [create(world, 64, 0) for _ in range(6)]
    world.block()
    matched = [load_group(world.state, group).phase is GroupPhase.RUNNING for group in groups]
    assert sum(matched) * 64 <= MEMBERS_PER_CALL
    assert sum(matched) == MEMBERS_PER_CALL // 64
    for _ in range(3):
        world.block()
    assert all(load_group(world.state, group).phase is GroupPhase.RUNNING for group in groups)
