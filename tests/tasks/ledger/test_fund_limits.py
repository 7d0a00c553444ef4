"""What bounds the check fund: windows that wait, dear gas, an empty fund, juries (market.md R31)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.escrow import Movement, Pool, Purpose, Vault
from state.transition.rules import BlockContext
from state.view import EMPTY, Overlay
from state.view.accounts import balance_of, burn, credit, debit
from tasks.ledger import queries
from tasks.ledger.audits import (
    CHECK_GAS,
    SURE,
    Audit,
    audit_of,
    audit_paid_for,
    average_cost,
    bond_floor,
    check_fee,
    contribution,
    gas_paid_for,
    gas_price_of,
    samples_of,
)
from tasks.ledger.check_fund import FUND_ADDRESS, KEPT_PARTS, TASK_PARTS, bears, fund_balance
from tasks.ledger.deadlines import (
    WINDOW_SLOTS,
    Draw,
    Due,
    draws_due,
    due_before,
    schedule,
    schedule_draw,
    waits_due,
)
from tasks.ledger.draws import LOTS_PER_BLOCK
from tasks.ledger.lifecycle import Phase, Reason, WindowPhase
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.queries import Action, WorkDuty
from tasks.ledger.records import load_window, save_window
from tasks.ledger.registry import NodeRole, grown, require_node, save_node, stake_as_of
from tasks.ledger.transitions import UPDATE_NODE, node_payload
from tasks.ledger.window_draws import GAS_WAITS_MAX, WAIT_DOUBLINGS_MAX
from tests.tasks.ledger.test_verification import market
from tests.tasks.world import DKB, HONEST, QUICK, WORTH, Manners, World, spec

CHECK, WORK = NodeRole.VERIFY, NodeRole.COMPUTE
P: Final = TaskParameters()
LIMIT: Final = WORTH // 100
FAR: Final = 1 << 40


# What the fund puts down


@given(st.integers(0, 200), st.integers(0, 60), st.integers(0, 60), st.booleans())
def test_windows_that_wait_hold_a_quarter_of_the_float_a_task_and_leave_half_of_it(
    balance: int, held: int, amount: int, is_first: bool
) -> None:
    state = Overlay(EMPTY)
    credit(state, FUND_ADDRESS, balance * DKB + held * DKB)
    vault = Vault.create(state, b"e" * 32, b"p" * 20, lambda _event: None, 1)
    vault.lock(Pool.CHECK, FUND_ADDRESS, held * DKB, Purpose.CHECK)
    whole = P.check_fund_float // DKB
    expected = amount <= balance
    if not is_first:
        expected &= balance - amount >= whole // KEPT_PARTS and held + amount <= whole // TASK_PARTS
    assert bears(state, vault, amount * DKB, P, is_first=is_first) == expected


@dataclass
class Late(World):
    """The worker opens window 0 only once it is told to, and gas costs what the test says."""

    may_open: bool = False
    base_fee: int = 1

    def context(self) -> BlockContext:
        return super().context()._replace(base_fee=self.base_fee)

    def work(self, address: bytes, duty: WorkDuty, manners: Manners) -> None:
        if duty.action == Action.OPEN and duty.window == 0 and not self.may_open:
            return
        super().work(address, duty, manners)


def held(world: World, task: bytes, pool: Pool = Pool.CHECK) -> int:
    return Vault.load(world.state, task, world.events.append, 0).total(pool)


def step(world: World) -> None:
    world.act()
    world.block()


@pytest.mark.slow
def test_a_late_opening_keeps_a_part_of_the_fund_for_a_while_and_only_its_own_check_for_longer() -> None:
    """A window's check costs some 0.066 DKB. Of a float of 1 DKB three that wait are drawn at a time, not 30."""
    parameters = replace(
        QUICK, open_windows_max=32, opening_extra_ms=1_000_000, check_fund_float=DKB, final_ms=3_000
    )
    world = Late(parameters=parameters)
    for name in range(100, 130):
        world.add_machine(name, roles=CHECK)
    world.add_machine(1, roles=WORK, rate=1, price=LIMIT)
    task = world.create(spec(total=600, segment=20, price=LIMIT))
    world.run(task, until=lambda record: record.next_window >= 29)
    for _ in range(600):
        step(world)
        first = load_window(world.state, task, 0)
        assert held(world, task) - first.reserve <= DKB // TASK_PARTS
        assert fund_balance(world.state) >= DKB // KEPT_PARTS
    first = load_window(world.state, task, 0)
    assert (first.phase, first.reason) == (WindowPhase.OPENING, Reason.OPENING_LATE)
    ripe = [load_window(world.state, task, number) for number in range(1, 29)]
    assert sum(window.ripe for window in ripe) > 6, "they are checked all the same, some at a time"
    assert held(world, task) == first.reserve + sum(window.reserve for window in ripe if not window.ripe)
    world.may_open = True
    world.run_to(task, Phase.SETTLED, blocks=4_000)
    assert held(world, task) == 0
    paid = Counter(
        line.subject for line in queries.bill(world.state, task).lines
        if line.purpose == Purpose.VERIFIER_FEE and line.movement == Movement.PAID
    )  # fmt: skip
    assert paid == dict.fromkeys(range(30), 1)
    fees = {line.amount for line in queries.bill(world.state, task).lines if line.purpose == Purpose.VERIFIER_FEE}
    assert fees == {first.fee}


def empty(world: World) -> int:
    """Take what the fund has."""
    amount = balance_of(world.state, FUND_ADDRESS)
    debit(world.state, FUND_ADDRESS, amount)
    burn(world.state, amount)
    return amount


def test_with_an_empty_fund_a_draw_waits_ever_longer_and_comes_when_there_is_money() -> None:
    world, _worker, _ = market(HONEST, [HONEST] * 3)
    task = world.create(spec(total=20))
    world.run(task, until=lambda record: record.next_window == 1)
    proved = world.height
    amount, looked = empty(world), list[int]()
    while world.height < proved + 3 * QUICK.draw_blocks << WAIT_DOUBLINGS_MAX:
        before = waits_due(world.state, FAR, 9)
        step(world)
        after = waits_due(world.state, FAR, 9)
        assert len(after) <= 1
        if after != before:
            looked.append(after[0].height - world.height + 1)
        window = load_window(world.state, task, 0)
        assert (window.phase, window.verifiers, window.deadline_ms) == (WindowPhase.PROVED, (), 0)
    assert looked[: WAIT_DOUBLINGS_MAX + 2] == [
        QUICK.draw_blocks << min(at, WAIT_DOUBLINGS_MAX) for at in range(WAIT_DOUBLINGS_MAX + 2)
    ]
    world.fund(FUND_ADDRESS, amount)
    assert world.run_to(task, Phase.SETTLED).final_windows == 1


def test_a_final_window_waits_for_its_verifiers_pay_and_is_not_stuck() -> None:
    world = Late(parameters=replace(QUICK, opening_extra_ms=100_000, open_windows_max=3, final_ms=1_000))
    for name in range(100, 106):
        world.add_machine(name, roles=CHECK)
    world.add_machine(1, roles=WORK)
    task = world.create(spec(total=40))
    world.run(task, until=lambda record: record.next_window == 2 and bool(load_window(world.state, task, 1).ripe))
    assert load_window(world.state, task, 1).reserve == 0
    for number in range(2):  # so that what the first one pays is not enough for the second
        save_window(world.state, load_window(world.state, task, number)._replace(due=0))
    amount = empty(world)
    world.may_open = True
    world.run(task, until=lambda record: record.final_windows == 1)
    for _ in range(20):
        step(world)
    assert world.task(task).final_windows == 1
    world.fund(FUND_ADDRESS, amount)
    world.run_to(task, Phase.SETTLED)


# Queues


def test_as_many_draws_as_wait_delay_no_deadline_and_no_other_draw() -> None:
    world, _worker, _ = market(HONEST, [HONEST] * 3)
    task = world.create(spec(total=20))
    world.run(task, until=lambda record: record.next_window == 1)
    for number in range(1_000):
        schedule_draw(world.state, Draw(1, task, 7 + number, 1))
    due = Due(world.time_ms, bytes(12) + b"n" * 20, (1 << 32) - 6)
    schedule(world.state, due)
    height = world.height + QUICK.draw_blocks
    while world.height <= height:
        before = len(waits_due(world.state, FAR, 2_000))
        step(world)
        assert 0 < before - len(waits_due(world.state, FAR, 2_000)) <= QUICK.deadlines_per_block // 8
        assert due not in due_before(world.state, FAR, 100)
    assert load_window(world.state, task, 0).phase == WindowPhase.SEALING


@pytest.mark.parametrize("limit", [2, 3, 8, 256])
def test_draws_that_wait_leave_a_deadline_in_each_block_however_few_it_has(limit: int) -> None:
    world = World(parameters=replace(QUICK, deadlines_per_block=limit))
    task = world.create()
    for number in range(1, 600):
        schedule_draw(world.state, Draw(1, task, number, 1))
        schedule_draw(world.state, Draw(1, task, WINDOW_SLOTS + number))  # of custody, which count
    dues = [Due(world.time_ms, bytes(12) + bytes([at]) * 20, (1 << 32) - 6) for at in range(2)]
    for due in dues:
        schedule(world.state, due)
    for left in (1, 0):
        world.block()
        still = due_before(world.state, world.time_ms, 1_000)
        assert sum(due in still for due in dues) <= left


def backlog(parameters: TaskParameters, tasks: int) -> tuple[World, list[bytes]]:
    """Have so many tasks prove a window in one block."""
    world = World(parameters=parameters)
    for name in range(1, tasks + 1):
        world.add_machine(name, roles=WORK)
    for name in range(100, 100 + 3 * tasks):
        world.add_machine(name, roles=CHECK)
    made = [world.create(spec(total=20)) for _ in range(tasks)]
    while not all(world.task(task).next_window for task in made):
        step(world)
    assert len(draws_due(world.state, FAR, 100)) == tasks
    return world, made


def waiting(world: World, tasks: list[bytes]) -> int:
    return sum(load_window(world.state, task, 0).phase == WindowPhase.PROVED for task in tasks)


def test_a_backlog_of_draws_is_worked_off_in_order_and_leaves_room_for_deadlines() -> None:
    world, tasks = backlog(replace(QUICK, deadlines_per_block=4), 8)
    left = []
    while waiting(world, tasks):
        world.block()
        left.append(waiting(world, tasks))
    assert left[-3:] == [5, 2, 0]
    for task in tasks:
        world.run_to(task, Phase.SETTLED, blocks=2_000)


def test_lots_that_pass_windows_over_take_no_room_of_draws() -> None:
    world, tasks = backlog(replace(QUICK, deadlines_per_block=4), 8)
    for task in tasks[1:]:
        save_window(world.state, load_window(world.state, task, 0)._replace(chance=0))
    left = []
    while waiting(world, tasks):
        world.block()
        left.append(waiting(world, tasks))
    assert left[-1] == 0 and set(left[:-1]) <= {8}
    phases = Counter(load_window(world.state, task, 0).phase for task in tasks)
    assert phases == {WindowPhase.ACCEPTED: 7, WindowPhase.SEALING: 1}


def test_a_block_has_as_many_lots_as_the_gas_target_has_proofs() -> None:
    world = World()
    proofs = world.context().chain.block_gas_target // next(
        rule.gas for rule in world.rules.values() if rule.name == "submit_window"
    )
    assert proofs <= LOTS_PER_BLOCK


# Gas


AUDITS: Final = st.builds(Audit, st.integers(1, SURE), st.integers(1, 8))


@given(AUDITS, st.integers(0, 10**20), st.integers(1, 10**12), st.integers(1, 10**15), st.integers(0, 10**22))
def test_gas_of_checks_is_paid_at_the_proof_as_far_as_the_window_bears_it(
    audit: Audit, fee: int, matched: int, base_fee: int, most: int
) -> None:
    price = gas_paid_for(audit, fee, matched, base_fee, most)
    least = gas_price_of(matched)
    assert least <= price <= max(least, base_fee)

    def due(gas_price: int) -> int:
        return contribution(average_cost(audit, fee + CHECK_GAS * (gas_price - least)), is_below=True)

    assert price == least or due(price) <= most + 3  # each of two roundings
    assert price >= base_fee or due(price + 2) > most - 4


def dear(base_fee: int) -> tuple[Late, bytes]:
    """A window that was proved as usual; then gas costs ``base_fee``."""
    world = Late(parameters=QUICK, may_open=True)
    for name in range(100, 104):
        world.add_machine(name, roles=CHECK)
    world.add_machine(1, roles=WORK)
    task = world.create(spec(total=20))
    world.run(task, until=lambda record: record.next_window == 1)
    world.base_fee = base_fee
    return world, task


def test_a_draw_is_put_off_while_gas_is_dearer_than_its_window_pays() -> None:
    world, task = dear(5)
    for _ in range(6 * QUICK.draw_blocks):
        step(world)
        assert load_window(world.state, task, 0).phase == WindowPhase.PROVED
    world.base_fee = 4
    fee = load_window(world.state, task, 0).fee
    world.run_to(task, Phase.SETTLED)
    assert load_window(world.state, task, 0).fee == fee


def test_where_gas_stays_dear_the_fund_bears_it_after_some_draws_that_were_put_off() -> None:
    world, task = dear(1_000)
    height, fee = world.height, load_window(world.state, task, 0).fee
    world.run(task, until=lambda _: bool(load_window(world.state, task, 0).verifiers), blocks=1_000)
    assert world.height - height >= QUICK.draw_blocks << GAS_WAITS_MAX
    window = load_window(world.state, task, 0)
    assert (window.fee, window.gas_price) == (fee + CHECK_GAS * 996, 1_000)
    world.run_to(task, Phase.SETTLED)


def test_a_window_pays_the_gas_of_its_proof_into_the_fund() -> None:
    world, task = dear(1)
    usual = load_window(world.state, task, 0)
    world = Late(parameters=QUICK, may_open=True)
    for name in range(100, 104):
        world.add_machine(name, roles=CHECK)
    world.add_machine(1, roles=WORK)
    task = world.create(spec(total=20))
    world.run_to(task, Phase.RUNNING)
    world.base_fee = 1_000
    world.run(task, until=lambda record: record.next_window == 1)
    window = load_window(world.state, task, 0)
    assert window.fee - usual.fee == 996 * CHECK_GAS
    assert window.due - usual.due == 996 * CHECK_GAS
    record = world.run_to(task, Phase.SETTLED)
    assert record.base_fee == 1


# New workers


@given(
    st.integers(10**12, 10**21), st.integers(1, 256), st.integers(1, 10**11), st.integers(75, 10_000),
)  # fmt: skip
def test_a_worker_that_became_new_is_audited_more_often_as_far_as_the_window_pays(
    price: int, segments: int, base_fee: int, percent: int
) -> None:
    bond = max(bond_floor(base_fee, is_new=False, parameters=P), 4 * price) * percent // 100
    usual, raised = (audit_of(price, bond, is_new=new, parameters=P) for new in (False, True))

    def fee(audit: Audit) -> int:
        return check_fee(base_fee, price * samples_of(segments, audit.verifiers, P) // segments, P)

    most = price * 8 // 100
    audit = audit_paid_for(usual, raised, (fee(usual), fee(raised)), most)
    assert usual.chance <= audit.chance <= raised.chance
    assert audit.verifiers in (usual.verifiers, raised.verifiers)
    if audit.chance > usual.chance:
        assert contribution(average_cost(audit, fee(audit)), is_below=True) <= most + 2


def test_a_worker_is_new_at_the_price_that_it_is_paid() -> None:
    """Two tasks want one machine: who gets it pays what the other would have paid, more than the ask."""
    parameters = replace(QUICK, new_windows=10, slots_max=1)
    world = World(parameters=parameters)
    for name in range(100, 104):
        world.add_machine(name, roles=CHECK)
    ask = WORTH // 10_000
    worker = world.add_machine(1, roles=WORK, price=ask)
    units = spec().window_units(0)
    node = require_node(world.state, worker)
    save_node(world.state, node._replace(proved=20 * units * ask // 10**12))  # of 20 windows at the ask
    tasks = [world.create(spec(price=price)) for price in (WORTH // 1_000, WORTH // 1_200)]
    world.run(tasks[0], until=lambda record: record.phase == Phase.ASSIGNED)
    record = world.task(tasks[0])
    assert record.price_per_tera_unit == WORTH // 1_200
    assert record.is_new == 1
    world.run(tasks[0], until=lambda record: record.next_window == 1)
    floor = bond_floor(record.base_fee, is_new=True, parameters=parameters)
    assert held(world, tasks[0], Pool.BOND) >= floor


def test_who_asks_nearly_nothing_is_audited_as_for_a_quarter_of_the_limit() -> None:
    """The fund is paid for that too, out of what the requester locked for checks at its limit."""
    world = World(parameters=QUICK)
    for name in range(100, 104):
        world.add_machine(name, roles=CHECK)
    world.add_machine(1, roles=WORK, price=1)
    task = world.create(spec())
    world.run(task, until=lambda record: record.next_window == 1)
    window, bond = load_window(world.state, task, 0), held(world, task, Pool.BOND)
    worth = -(-spec().window_units(0) * spec().max_price_per_tera_unit // 10**12 // 4)
    assert worth > 1000 * window.charge
    audit = audit_of(worth, bond, is_new=True, parameters=QUICK)
    assert window.due == average_cost(audit, window.fee) > 0
    world.run_to(task, Phase.SETTLED, blocks=2_000)
    paid = sum(line.amount for line in queries.bill(world.state, task).lines if line.purpose == Purpose.CHECK_FUND)
    assert paid >= 2 * window.due


# Bonds


def test_a_worker_that_lost_a_quarter_of_its_floor_proves_no_more() -> None:
    world, worker, _ = market(HONEST, [HONEST] * 3)
    task = world.create(spec(total=400))
    world.run(task, until=lambda record: record.final_windows == 1)
    floor = bond_floor(1, is_new=False, parameters=QUICK)
    vault = Vault.load(world.state, task, world.events.append, world.height)
    vault.burn(Pool.BOND, held(world, task, Pool.BOND) - floor * 3 // 4 + 1, Purpose.WORKER_FINE, owner=worker)
    proved = world.task(task).next_window
    record = world.run(task, until=lambda record: record.worker not in (worker, b""), blocks=400)
    assert record.next_window <= proved and worker in record.excluded
    world.run_to(task, Phase.SETTLED, blocks=2_000)


def test_a_bond_that_comes_between_proof_and_draw_counts_for_nothing_in_that_draw() -> None:
    for seed in range(12):
        world = World(parameters=replace(QUICK, draw_blocks=8), seed=seed)
        early = world.add_machine(100, roles=CHECK)
        world.add_machine(1, roles=WORK)
        while world.height % 8 < 1 or world.height < 8:
            world.block()
        task = world.create(spec(total=20))
        world.run(task, until=lambda record: record.next_window == 1)
        late = world.add_machine(101, roles=CHECK)
        world.fund(late, 10**6 * DKB)
        profile = require_node(world.state, late).profile
        assert world.send(late, UPDATE_NODE, node_payload(profile, 10**6 * DKB)) is None
        while not load_window(world.state, task, 0).verifiers:
            step(world)
        assert [seat.address for seat in load_window(world.state, task, 0).verifiers] == [early]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(0, 300), st.integers(0, 300))
def test_what_counts_in_a_draw_was_there_an_epoch_before_it(steps: list[int], proved: int, later: int) -> None:
    """Also where a draw was put off, and the bond grew in three epochs since the proof."""
    parameters = replace(QUICK, draw_blocks=8)
    world = World(parameters=parameters)
    node = require_node(world.state, world.add_machine(1, roles=CHECK))
    node = node._replace(stake_epoch=0, stake_at=0, stake_before=0)
    height, was = 1, {0: 0, 1: node.backing}
    for blocks in steps:
        height += blocks
        node = grown(node, node.backing, height, parameters)._replace(bond=node.bond + DKB)
        was[height] = node.backing
    drawn = height + later
    begin = 8 * (drawn // 8 - 1)
    counted = stake_as_of(node, min(proved, drawn - 8), parameters)
    assert counted <= max((backing for at, backing in was.items() if at < max(1, begin)), default=0)


# Juries


def test_a_jury_without_blame_costs_the_requester_nothing() -> None:
    """The verifier says that it could not fetch what the jury can; neither side was in an argument before."""
    world, _worker, verifiers = market(HONEST, [Manners(blind=True)] + [HONEST] * 6)
    blind = verifiers[0]
    task = world.create(spec(total=20))
    world.run(task, until=lambda record: record.next_window == 1)
    world.run(task, until=lambda _: bool(load_window(world.state, task, 0).verifiers))
    (seat,) = load_window(world.state, task, 0).verifiers
    world.machines[blind], world.machines[seat.address] = HONEST, Manners(blind=True)
    world.run(task, until=lambda _: load_window(world.state, task, 0).phase == WindowPhase.JURY_SEALING)
    window = load_window(world.state, task, 0)
    fee = window.fee // len(window.sampled) * len(window.sampled)
    assert window.reserve == window.fee + 3 * fee  # it runs all that was missed
    for address in verifiers:
        world.machines[address] = HONEST
    world.run_to(task, Phase.SETTLED)
    jurors = [line for line in queries.bill(world.state, task).lines if line.purpose == Purpose.JUROR_FEE]
    assert len(jurors) == 3 and {line.pool for line in jurors} == {Pool.CHECK}
    assert {line.amount for line in jurors} == {fee}
