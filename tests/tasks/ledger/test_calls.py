"""Calls of the market: who takes part, what is firm, what a match costs, and attacks on that (market.md 6.2)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from billing.escrow import Pool, Purpose, Vault, escrow_totals
from billing.prices import work_price
from state.primitives.errors import ConfigError
from state.view.accounts import balance_of
from tasks.ledger import block_end, queries
from tasks.ledger.calls import PRICES_KEPT, last_prices, was_put_off
from tasks.ledger.lifecycle import Phase, Reason
from tasks.ledger.matching import Checkers
from tasks.ledger.parameters import DAY_MS, TaskParameters
from tasks.ledger.parking import class_of
from tasks.ledger.queries import Action
from tasks.ledger.registry import NodeRecord, NodeRole, ask_in_force, require_node, save_node
from tasks.ledger.settlement import RELEASES_MAX, Bonds, bond_at
from tasks.ledger.transitions import (
    ACCEPT_TASK,
    CANCEL_TASK,
    CREATE_TASK,
    GIVE_UP_TASK,
    START_TASK,
    SUSPEND_NODE,
    UPDATE_NODE,
    node_payload,
    task_id_of,
)
from tasks.spec import JobSpec, encode_spec
from tests.tasks.ledger.test_weights import calls_of
from tests.tasks.world import DKB, QUICK, REQUESTER, WORTH, Manners, World, spec

WORK, CHECK = NodeRole.COMPUTE, NodeRole.VERIFY
IDLE: Final = Manners(silent=frozenset(Action))
CALLS: Final = replace(QUICK, call_ms=3_000, order_blocks=2, accept_ms=60_000)
ASK: Final = WORTH // 2000
CALL_BLOCKS: Final = 6
"""Blocks of a second until an order has been in a call."""


def market(asks: tuple[int, ...] = (ASK,), slots: int = 1) -> World:
    """A market with a machine for each of ``asks``, which has stood for long."""
    world = World(parameters=CALLS)
    world.add_machine(99, roles=CHECK)
    for at, price in enumerate(asks):
        world.add_machine(at + 1, roles=WORK, price=price, slots=slots, manners=IDLE)
    world.time_ms -= world.time_ms % CALLS.call_ms
    for _ in range(3):
        world.block()
    assert world.time_ms % CALLS.call_ms == 0
    return world


def job(price: int, *, match_ms: int = 3_600_000, memory_mib: int = 0) -> JobSpec:
    made = spec(price=price, match_ms=match_ms)
    return made._replace(requirements=made.requirements._replace(memory_mib=memory_mib))


def post(world: World, sender: bytes, made: JobSpec) -> bytes:
    if not balance_of(world.state, sender):
        world.fund(sender, 10_000 * DKB)
    nonce = world.nonces.get(sender, 0)
    assert world.send(sender, CREATE_TASK, [encode_spec(made)]) is None
    return task_id_of(sender, nonce)


def ask(world: World, name: int, price: int) -> str | None:
    address = bytes([name]) * 20
    profile = require_node(world.state, address).profile
    return world.send(address, UPDATE_NODE, node_payload(profile._replace(price_per_tera_unit=price), 0))


def blocks(world: World, count: int = CALL_BLOCKS) -> None:
    for _ in range(count):
        world.block()


# Who takes part


def test_an_order_takes_part_in_the_first_call_of_the_next_stretch_two_blocks_after_its_own() -> None:
    world = market()
    early, late = world.create(), b""
    for _ in range(10):
        height = world.height
        world.block()
        record = world.task(early)
        if record.worker:
            break
        if world.time_ms % CALLS.call_ms == 2_000 and not late:
            late = world.create(spec(price=WORTH // 900))
    assert height - record.created_height == 3  # blocks of a second, three in a stretch
    assert record.changed_ms // CALLS.call_ms == record.created_ms // CALLS.call_ms + 1
    assert world.task(late).phase == Phase.MATCHING, "the better bid came in the last two blocks"


def test_there_is_one_call_in_a_stretch_however_many_blocks_it_has() -> None:
    world = market()
    world.create()
    calls, before = [], b""
    for _ in range(40):
        world.create(job(1))
        world.block(250)
        last = world.state.get(b"\x25") or b""
        if last != before:
            calls.append((world.time_ms - 250) // CALLS.call_ms)
            before = last
    assert len(calls) >= 3 and len(calls) == len(set(calls))


def test_n13_a_price_that_changes_in_the_last_two_blocks_does_not_count_in_the_call() -> None:
    """A machine sees the book, and asks for all that the bid pays; or it lets the bid go to its other machine."""
    for changed in (WORTH // 1000, WORTH // 100):
        world = market()
        task = world.create()
        blocks(world, 2)
        assert ask(world, 1, changed) is None
        blocks(world, 2)
        record = world.task(task)
        assert (record.worker, record.price_per_tera_unit) == (b"\x01" * 20, ASK)


def test_the_price_in_force_is_that_of_two_blocks_ago_whatever_came_since() -> None:
    world = market((100,))
    node = b"\x01" * 20
    history = {0: 100}
    for at, price in enumerate((90, 120, 120, 80, 70, 300)):
        assert ask(world, 1, price + 1) is None and ask(world, 1, price) is None
        history[world.height] = price
        for back in range(3):
            height = world.height - back
            known = history[max(each for each in history if each <= height)]
            assert ask_in_force(require_node(world.state, node), height) == known
        blocks(world, 1 + at % 2)


def test_a_machine_that_registers_in_the_last_two_blocks_gets_the_task_in_the_next_call() -> None:
    world = market(())
    task = world.create()
    blocks(world, 2)
    worker = world.add_machine(1, roles=WORK, manners=IDLE)
    blocks(world, 2)
    assert world.task(task).phase == Phase.MATCHING
    blocks(world, 8)
    assert world.task(task).worker == worker


def test_a_bid_that_has_stood_is_withdrawn_only_after_the_call_and_pays_a_segment_if_it_was_matched() -> None:
    world = market()
    fresh = world.create(job(WORTH // 1000))
    assert world.send(REQUESTER, CANCEL_TASK, [fresh]) is None
    assert world.task(fresh).phase == Phase.CANCELLED, "in its own block it may still leave"
    before = balance_of(world.state, REQUESTER)
    firm, hopeless = world.create(), world.create(job(ASK - 1))
    blocks(world, 1)
    for task in (firm, hopeless):
        assert world.send(REQUESTER, CANCEL_TASK, [task]) is None
        assert world.task(task).phase == Phase.MATCHING
        assert world.send(REQUESTER, CANCEL_TASK, [task]) == "wrong_phase"
    blocks(world)
    assert world.task(firm).phase == world.task(hopeless).phase == Phase.CANCELLED
    paid = work_price(spec().segment_units(0, 0), ASK)
    assert balance_of(world.state, REQUESTER) == before - paid
    assert queries.find_node(world.state, b"\x01" * 20).busy_slots == 0  # type: ignore[union-attr]


def test_a_bid_that_a_machine_wakes_keeps_its_place_in_the_book() -> None:
    """It stood long enough for the call; woken in the last blocks before that it counted as new, and missed it."""
    world = market((50 * ASK,))
    world.parameters = replace(CALLS, asks_per_call=1)
    world.__post_init__()
    task = world.create(job(45 * ASK))
    while not world.task(task).parked:
        world.block()
    last_ms = CALLS.call_ms - 1_000
    while not (0 < world.task(task).match_at_ms <= world.time_ms and world.time_ms % CALLS.call_ms == last_ms):
        world.block()
    before = world.task(task)
    waker = world.add_machine(2, roles=WORK, price=40 * ASK, manners=IDLE)
    world.block()
    record = world.task(task)
    assert record.waker == waker
    assert (record.match_at_ms, record.bid_height) == (before.match_at_ms, before.bid_height)
    world.block()
    assert world.task(task).match_at_ms != before.match_at_ms, "the next call took it up"


@pytest.mark.slow
def test_a_block_with_many_deadlines_puts_its_call_off_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both in one block took the time of two; the next block has the call, whatever is due there."""
    monkeypatch.setattr(block_end, "CALL_EVENTS_MAX", 0)
    world = World(parameters=replace(QUICK, call_ms=0, order_blocks=0))
    world.add_machine(99, roles=CHECK)
    for at in range(6):
        world.add_machine(at + 1, roles=WORK, price=ASK)
    put_off, tasks = [], []
    for _ in range(80):
        tasks.append(world.create(spec(match_ms=600_000)))
        world.block()
        world.act()
        put_off.append(was_put_off(world.state, world.height))
    assert any(put_off)
    assert (True, True) not in list(pairwise(put_off)), "never twice in a row"
    assert sum(world.task(task).attempts > 0 for task in tasks) > 5, "tasks are matched all the same"


def test_draws_leave_deadlines_less_of_a_block_but_some_of_it_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_end, "EVENTS_PER_BLOCK_MAX", 400)
    monkeypatch.setattr(block_end, "CALL_EVENTS_MAX", 100)
    ended: dict[int, int] = {}
    for draws in (0, 20, 1000):
        world = market()
        tasks = [post(world, bytes([200 + at % 20]) * 20, job(ASK // 2, match_ms=60_000)) for at in range(200)]
        monkeypatch.setattr(block_end, "hold_draws", lambda _scope, _is_full, drawn=draws: drawn)
        world.time_ms += 120_000
        world.block()
        ended[draws] = sum(world.task(task).phase == Phase.EXPIRED for task in tasks)
    assert ended[0] > ended[20] > ended[1000] > 0


def test_a_withdrawn_task_that_cannot_pay_its_verifiers_ends_in_the_call() -> None:
    """It was paused, and ended when the pause was over."""
    world = market()
    task = world.create(job(2 * ASK))
    blocks(world)
    worker = world.task(task).worker
    duty = next(each for each in queries.work_duties(world.state, worker, CALLS) if each.task == task)
    assert world.send(worker, ACCEPT_TASK, [task, duty.bond]) is None
    assert world.send(worker, START_TASK, [task, bytes(32)]) is None
    assert world.send(worker, GIVE_UP_TASK, [task, int(Reason.WORKER_LEFT)]) is None
    vault = Vault.load(world.state, task, world.events.append, world.height)
    vault.refund(Pool.VERIFICATION, REQUESTER, vault.held(Pool.VERIFICATION), Purpose.UNSPENT)
    blocks(world, 2)
    assert world.task(task).phase == Phase.DEGRADED
    assert world.send(REQUESTER, CANCEL_TASK, [task]) is None
    blocks(world)
    assert world.task(task).phase == Phase.CANCELLED


def test_a_machine_that_computes_no_more_takes_no_task_that_it_woke() -> None:
    world = market(())
    task = world.create()
    blocks(world)
    assert world.task(task).parked
    waker = world.add_machine(2, roles=WORK, manners=IDLE)
    world.block()
    assert world.task(task).waker == waker
    profile = require_node(world.state, waker).profile
    assert world.send(waker, UPDATE_NODE, node_payload(profile._replace(roles=CHECK), 0)) is None
    blocks(world)
    assert world.task(task).phase == Phase.MATCHING


def test_a_withdrawn_bid_that_no_call_takes_up_leaves_all_the_same() -> None:
    world = market()
    world.parameters = replace(CALLS, call_ms=10**9)
    world.__post_init__()
    task = world.create()
    blocks(world, 2)
    assert world.send(REQUESTER, CANCEL_TASK, [task]) is None
    world.block(60_000)
    world.block()
    assert world.task(task).phase == Phase.CANCELLED


def test_a_call_that_ends_a_task_pays_no_holds_whose_events_could_exceed_those_of_a_block() -> None:
    """128 withdrawn tasks of 16 workers each gave 8,832 events in a block, of which 8,192 stop every node."""
    world = market()
    task = world.create()
    vault = Vault.load(world.state, task, world.events.append, world.height)
    workers = [bytes([at]) * 20 for at in range(100, 100 + RELEASES_MAX)]
    for worker in workers:
        vault.hold(Pool.PRICE, Pool.HOLD, 1, Purpose.WINDOW_HOLD, target_owner=worker)
    blocks(world, 1)
    assert world.send(REQUESTER, CANCEL_TASK, [task]) is None
    while world.task(task).phase == Phase.MATCHING:
        seen = len(world.events)
        world.block()
    assert world.task(task).phase == Phase.CANCELLED
    assert len(world.events) - seen < RELEASES_MAX
    assert not any(balance_of(world.state, worker) for worker in workers)
    blocks(world, 2)
    assert [balance_of(world.state, worker) for worker in workers] == [1] * RELEASES_MAX
    assert escrow_totals(world.state, task).locked == 0


def test_a_suspended_machine_is_not_in_the_call() -> None:
    world = market()
    task = world.create()
    blocks(world, 2)
    assert world.send(b"\x01" * 20, SUSPEND_NODE, []) is None
    blocks(world)
    assert world.task(task).phase == Phase.MATCHING


# Who could check a machine


def checked_by(verifiers: list[tuple[bytes, bytes]]) -> tuple[World, NodeRecord]:
    """A market whose only verifiers have these operators and sponsors."""
    world = World(parameters=CALLS)
    for at, (operator, sponsor) in enumerate(verifiers):
        node = require_node(world.state, world.add_machine(at + 1, roles=CHECK))
        node = node._replace(profile=node.profile._replace(operator=operator))
        save_node(world.state, node._replace(sponsor=sponsor, sponsored=1) if sponsor else node)
    return world, require_node(world.state, world.add_machine(200, roles=WORK))


def test_whether_anybody_could_check_a_machine_costs_the_same_whoever_shares_a_party() -> None:
    """With one party behind all verifiers each pair of a requester and an owner was a look at all of them."""
    count, many = 60, CALLS.candidates_max
    world, worker = checked_by([(b"O" * 20, b"")] * many)
    owners = [bytes([at]) * 20 for at in range(count)]
    workers = [worker._replace(address=owner, profile=worker.profile._replace(operator=owner)) for owner in owners]
    checkers = Checkers(world.state, b"seed" * 8, world.time_ms, CALLS)
    answers: list[bool] = []

    def ask_all() -> None:
        answers.extend(checkers.has(b"q" + owner[1:], node) for owner in owners for node in workers)

    assert calls_of(ask_all) < 4 * count * count + 100 * count
    assert all(answers) and len(answers) == count * count


PARTIES: Final = st.sampled_from([bytes([at]) * 20 for at in (1, 2, 3, 200, 210, 211, 212)])


@settings(max_examples=60, deadline=None)
@given(
    verifiers=st.lists(st.tuples(PARTIES, st.one_of(st.just(b""), PARTIES)), max_size=4), operator=PARTIES,
    requester=PARTIES,
)  # fmt: skip
def test_a_machine_has_a_checker_if_one_shares_no_party_with_it_or_the_requester(
    verifiers: list[tuple[bytes, bytes]], operator: bytes, requester: bytes
) -> None:
    world, worker = checked_by(verifiers)
    worker = worker._replace(profile=worker.profile._replace(operator=operator))
    node = queries.find_node(world.state, requester)
    barred = {requester, *worker.parties, *(() if node is None else node.parties)}
    others = [require_node(world.state, bytes([at + 1]) * 20) for at in range(len(verifiers))]
    expected = any(barred.isdisjoint(each.parties) for each in others)
    checkers = Checkers(world.state, b"seed" * 8, world.time_ms, CALLS)
    assert checkers.has(requester, worker) == checkers.has(requester, worker) == expected


def test_a_chain_whose_calls_have_too_many_pairs_is_refused() -> None:
    with pytest.raises(ConfigError, match="pairs"):
        replace(CALLS, bids_per_call=256, asks_per_call=1024)


# Bids that nobody can back


def test_bids_that_no_machine_can_back_keep_none_from_a_job_that_it_can() -> None:
    """They pay the most and come first; 16 of them put each machine out of the call, and end without a cost."""
    world = market()
    worker = bytes([1]) * 20
    small, large = job(2 * ASK), spec(total=100_000, segment=5, window=1_000, price=9 * ASK)
    rate = require_node(world.state, worker).profile.rate
    least, most = (bond_at(made, ASK, 0, CALLS, rate) for made in (small, large))
    free = (least + most) // 2
    assert rich(world, 1, balance_of(world.state, worker) - free) and least < free < most
    blocks(world, 3)
    for at in range(20):
        post(world, b"D" * 20, large._replace(max_price_per_tera_unit=9 * ASK + at))
    honest = world.create(small)
    blocks(world)
    assert world.task(honest).worker == worker


@given(
    windows=st.integers(1, 80), left=st.integers(0, 80), limit=st.integers(1, 10**20), part=st.integers(0, 1000),
    rate=st.integers(0, 1 << 50), open_max=st.integers(1, 64),
)  # fmt: skip
def test_no_bond_of_a_machine_is_below_the_least_that_a_call_skips_machines_by(
    windows: int, left: int, limit: int, part: int, rate: int, open_max: int
) -> None:
    parameters = replace(TaskParameters(), open_windows_max=open_max)
    made = spec(total=20 * windows - 7, segment=5, window=20, price=limit)
    bonds = Bonds(made, max(0, windows - left), parameters)
    price = max(1, limit * part // 1000)
    assert bonds.least <= bonds.at(price, rate, 0) <= bonds.at(limit, rate, 0)


# What a match costs


def prices(world: World, *tasks: bytes) -> list[int]:
    return [world.task(task).price_per_tera_unit for task in tasks]


def test_a_limit_is_never_the_price_by_itself() -> None:
    world = market((ASK, ASK + 10))
    low, high = world.create(), world.create(job(50 * WORTH // 1000))
    blocks(world)
    assert prices(world, high, low) == [ASK, ASK + 10]


def test_only_who_went_without_raises_a_price_and_the_record_of_calls_shows_it() -> None:
    world = market((ASK, ASK + 10))
    tasks = [world.create(job(WORTH // 1000 + at)) for at in range(3)]
    blocks(world)
    assert prices(world, *tasks) == [0, WORTH // 1000, WORTH // 1000]
    assert world.task(tasks[0]).parked
    (last,) = last_prices(world.state, class_of(spec()))
    assert last[1:] == (2, WORTH // 1000, WORTH // 1000, WORTH // 1000)
    assert last_prices(world.state, class_of(job(1, memory_mib=64_000))) == []


def test_the_prices_of_few_calls_are_kept() -> None:
    world = market()
    for _ in range(PRICES_KEPT + 3):
        task = world.create()
        blocks(world, 4)
        worker = world.task(task).worker
        if worker:
            assert world.send(REQUESTER, CANCEL_TASK, [task]) is None
        blocks(world, 1)
    kept = last_prices(world.state, class_of(spec()))
    assert len(kept) == PRICES_KEPT and kept == sorted(kept)


def test_a_slot_that_becomes_free_goes_to_the_highest_parked_bid_at_the_price_of_the_next() -> None:
    world = market()
    first = world.create(job(WORTH // 500))
    blocks(world)
    parked = [world.create(job(WORTH // 1000 + at)) for at in range(4)]
    blocks(world)
    assert all(world.task(task).parked == 1 for task in parked)
    assert world.send(REQUESTER, CANCEL_TASK, [first]) is None
    blocks(world, 8)
    assert prices(world, *parked) == [0, 0, 0, WORTH // 1000 + 2]
    assert [world.task(task).parked for task in parked[:3]] == [1, 1, 1], "who was outbid keeps its turn"


# Attacks on the price


def test_n13_a_sellers_own_bid_raises_no_price_where_another_machine_is_free() -> None:
    """It needs what only the seller's machine has, so no other machine takes it."""
    world = market((ASK, ASK + 10))
    strong = bytes([1]) * 20
    profile = require_node(world.state, strong).profile
    assert world.send(strong, UPDATE_NODE, node_payload(profile._replace(memory_mib=128_000), 0)) is None
    blocks(world, 3)
    victim = world.create(job(WORTH // 500))
    decoy = post(world, b"D" * 20, job(WORTH // 500 - 1, memory_mib=100_000))
    blocks(world)
    assert world.task(victim).worker == strong
    assert prices(world, victim, decoy) == [ASK + 10, 0]


def test_a_sellers_own_bid_that_wins_costs_it_a_segment_to_leave_and_its_slot() -> None:
    """Where all machines are taken such a bid can raise the price up to the limit of another, never above it."""
    world = market()
    victim = world.create(job(WORTH // 500))
    post(world, b"D" * 20, job(WORTH // 500 - 1))
    blocks(world)
    assert prices(world, victim) == [WORTH // 500 - 1]
    # One unit too high, and the seller has its own machine.
    world = market()
    victim = world.create(job(WORTH // 500))
    decoy = post(world, b"D" * 20, job(WORTH // 500 + 1))
    blocks(world)
    assert prices(world, victim, decoy) == [0, WORTH // 500]
    assert world.send(b"D" * 20, CANCEL_TASK, [decoy]) is None
    (paid,) = [line.amount for line in queries.bill(world.state, decoy).lines if line.purpose == Purpose.KILL_FEE]
    assert paid == work_price(spec().segment_units(0, 0), WORTH // 500)


def test_a8_claimed_speed_wins_no_task() -> None:
    world = market(())
    for name, price, rate in ((1, 9 * ASK // 5, 10**15), (2, ASK, 10**10)):
        world.add_machine(name, roles=WORK, price=price, rate=rate, slots=2, manners=IDLE)
    blocks(world, 3)
    tasks = [world.create(job(2 * ASK)) for _ in range(2)]
    blocks(world)
    assert {world.task(task).worker for task in tasks} == {b"\x02" * 20}


# Who does not start


def rich(world: World, name: int, extra: int) -> bytes:
    address = bytes([name]) * 20
    assert (
        world.send(address, UPDATE_NODE, node_payload(require_node(world.state, address).profile, extra)) is None
    )
    return address


@pytest.mark.parametrize("reason", [Reason.WORKER_LEFT, Reason.JOB_UNFIT])
def test_who_leaves_without_an_excuse_pays_a_growing_fine_and_whoever_has_one_pauses(reason: Reason) -> None:
    world = market()
    worker = rich(world, 1, 5 * DKB)
    bonds, pauses = [], []
    for _ in range(3):
        task = world.create()
        while not world.task(task).worker:
            world.block()
        assert world.send(worker, GIVE_UP_TASK, [task, int(reason)]) is None
        node = require_node(world.state, worker)
        bonds.append(node.bond)
        pauses.append(max(0, node.match_from_ms - world.time_ms))
        world.block(60_000)
    whole, fine = QUICK.node_bond_min + 5 * DKB, CALLS.decline_fine
    if reason == Reason.WORKER_LEFT:
        assert bonds == [whole - fine, whole - 3 * fine, whole - 7 * fine] and not any(pauses)
    else:
        assert bonds == [whole] * 3 and pauses == sorted(pauses) and pauses[0] > 0


def test_who_says_nothing_pays_and_pauses() -> None:
    world = market()
    worker = rich(world, 1, DKB)
    task = world.create()
    blocks(world)
    assert world.task(task).worker == worker
    world.block(CALLS.accept_ms)
    world.block()
    node = require_node(world.state, worker)
    assert node.bond == QUICK.node_bond_min + DKB - CALLS.decline_fine
    assert node.match_from_ms - world.time_ms > CALLS.accept_ms - 10_000


def test_fines_end_at_the_least_bond_and_at_what_a_day_may_cost_and_then_pauses_are_back() -> None:
    for extra, most in (
        (CALLS.decline_fine // 2, CALLS.decline_fine // 2),
        (50 * DKB, CALLS.late_fines_per_day_max),
    ):
        world = World(parameters=replace(CALLS, decline_doublings_max=8))
        world.time_ms -= world.time_ms % DAY_MS
        world.add_machine(99, roles=CHECK)
        world.add_machine(1, roles=WORK, manners=IDLE)
        worker = rich(world, 1, extra)
        for _ in range(6 if extra > DKB else 2):
            task = world.create()
            for _ in range(40):
                if world.task(task).worker:
                    break
                world.block(10_000)
            assert world.send(worker, GIVE_UP_TASK, [task, int(Reason.WORKER_LEFT)]) is None
        node = require_node(world.state, worker)
        assert QUICK.node_bond_min + extra - node.bond == most
        assert node.match_from_ms > world.time_ms


def test_a_machine_that_was_matched_beyond_its_money_declines_without_a_fine() -> None:
    world = market()
    worker = rich(world, 1, DKB)
    task = world.create(job(WORTH // 10))
    blocks(world)
    assert world.task(task).worker == worker
    world.send(worker, UPDATE_NODE, node_payload(require_node(world.state, worker).profile, 0))
    bond = require_node(world.state, worker).bond
    rest = balance_of(world.state, worker)
    assert world.send(worker, UPDATE_NODE, node_payload(require_node(world.state, worker).profile, rest)) is None
    assert world.send(worker, GIVE_UP_TASK, [task, int(Reason.WORKER_LEFT)]) is None
    assert require_node(world.state, worker).bond == bond + rest


def test_machines_of_several_slots_are_matched_with_what_their_money_backs() -> None:
    world = market((ASK,), slots=4)
    worker = bytes([1]) * 20
    tasks = [world.create(job(WORTH // 10)) for _ in range(4)]
    blocks(world)
    taken = [task for task in tasks if world.task(task).worker == worker]
    assert taken
    for task in taken:
        duty = next(each for each in queries.work_duties(world.state, worker, CALLS) if each.task == task)
        assert world.send(worker, ACCEPT_TASK, [task, duty.bond]) is None
