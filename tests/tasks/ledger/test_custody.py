"""Results in custody: draws, receipts, demands, pay, the end; and what a window waits for (market.md R35-R41)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest

from billing.escrow import Line, Movement, Pool, Purpose, escrow_totals
from state.view.accounts import balance_of
from tasks.ledger import queries
from tasks.ledger.custody import CUSTODIAN_DRAWN, custody_budget
from tasks.ledger.custody_records import CustodyPhase, CustodyRecord, DemandKind, find_terms, load_custody
from tasks.ledger.custody_transitions import ASK_CUSTODY, RECEIVE_CUSTODY, TAKE_CUSTODY
from tasks.ledger.lifecycle import ENDED, Phase, Reason, WindowPhase
from tasks.ledger.records import Asked, by_custodian_key, load_window
from tasks.ledger.registry import bond_vault, require_node, save_node
from tasks.ledger.transitions import CANCEL_TASK, DEMAND_RESULT, GIVE_UP_TASK, RETIRE_NODE, SUBMIT_WINDOW
from tasks.proofs import window_proof_to_value
from tests.tasks.keepers import INPUTS, KEEP, KEPT, KeptWorld
from tests.tasks.signed import CHECK, WORK
from tests.tasks.world import DKB, QUICK, REQUESTER, Manners, World, leaves_of, proof_of, spec

STRANGER: Final = b"\x77" * 20


def market(*, keepers: int = 5, parameters: object = KEPT, **how: object) -> tuple[KeptWorld, bytes, bytes]:
    """A world with a worker, a verifier and keepers, and a task of three windows in it."""
    world = KeptWorld(parameters=parameters, **how)  # type: ignore[arg-type]
    worker = world.add_machine(1, roles=WORK)
    world.add_machine(2, roles=CHECK)
    for at in range(keepers):
        world.add_keeper(10 + at)
    return world, worker, world.create()


def settled(**how: object) -> tuple[KeptWorld, bytes, bytes]:
    world, worker, task = market(**how)  # type: ignore[arg-type]
    world.run_to(task, Phase.SETTLED)
    return world, worker, task


def until(
    world: KeptWorld, task: bytes, window: int, holds: Callable[[CustodyRecord], bool], blocks: int = 60
) -> CustodyRecord:
    for _ in range(blocks):
        record = load_custody(world.state, task, window)
        if holds(record):
            return record
        world.block()
        world.act()
    raise AssertionError(load_custody(world.state, task, window))


def lines(world: World, task: bytes, purpose: Purpose) -> list[Line]:
    return [line for line in queries.bill(world.state, task).lines if line.purpose == purpose]


def pass_days(world: KeptWorld, blocks: int = 30) -> None:
    for _ in range(blocks):
        world.block(60_000)
        world.keep()


# Terms


def test_a_chain_without_custody_takes_no_terms_and_no_commitments() -> None:
    world = KeptWorld(parameters=QUICK)
    worker = world.add_machine(1, roles=WORK)
    world.add_machine(2, roles=CHECK)
    task = World.create(world)
    assert world.ask(task) == "custody_off"
    world.run(task, until=lambda record: record.phase == Phase.RUNNING)
    leaves = leaves_of(spec(), 0, world.task(task).state_root)
    proof = proof_of(spec(), task, 0, leaves)
    committed = proof._replace(custody=(29_162, b"p" * 32, b"c" * 32))
    assert world.send(worker, SUBMIT_WINDOW, [window_proof_to_value(committed)]) == "proof_mismatch"
    assert world.send(worker, SUBMIT_WINDOW, [window_proof_to_value(proof)]) is None


def test_terms_are_asked_once_by_the_requester_for_the_whole_budget_and_before_there_is_a_worker() -> None:
    world = KeptWorld()
    task = World.create(world)
    due = custody_budget(spec(), KEPT)
    assert world.send(STRANGER, ASK_CUSTODY, [task, b"k" * 32, INPUTS, due]) == "not_yours"
    for amount in (0, due - 1, due + 1):
        assert world.send(REQUESTER, ASK_CUSTODY, [task, b"k" * 32, INPUTS, amount]) == "payment_missing"
    assert world.ask(task) is None
    assert world.ask(task) == "wrong_phase"
    world.add_machine(1, roles=WORK)
    world.add_machine(2, roles=CHECK)
    late = World.create(world)
    world.run(late, until=lambda record: bool(record.worker))
    assert world.ask(late) == "wrong_phase"


def test_a_task_that_ends_without_a_window_gets_all_of_it_back() -> None:
    world = KeptWorld()
    before = balance_of(world.state, REQUESTER)
    task = world.create()
    assert world.send(REQUESTER, CANCEL_TASK, [task]) is None
    for _ in range(5):
        world.block(60_000)
    assert world.task(task).phase in ENDED and balance_of(world.state, REQUESTER) == before


def test_a_proof_without_a_commitment_or_with_another_size_is_refused() -> None:
    world, worker, task = market()
    world.run(task, until=lambda record: record.phase == Phase.RUNNING)
    proof = world.proof(spec(), proof_of(spec(), task, 0, leaves_of(spec(), 0, world.task(task).state_root)))
    assert proof.custody
    size, *roots = proof.custody
    for custody in ((), (size + 1, *roots), (size - 1, *roots)):
        wrong = window_proof_to_value(proof._replace(custody=custody))  # type: ignore[arg-type]
        assert world.send(worker, SUBMIT_WINDOW, [wrong]) == "proof_mismatch"


# Receipts


def test_a_window_is_final_when_two_machines_have_signed() -> None:
    world, worker, task = market()
    world.unsigning = set(world.machines)
    world.run(task, until=lambda record: record.next_window > 0)
    for _ in range(9):
        world.block()
        world.act()
    window = load_window(world.state, task, 0)
    assert (window.phase, window.ripe) == (WindowPhase.ACCEPTED, 1)
    assert lines(world, task, Purpose.WINDOW_PAY) == []
    world.unsigning = set()
    record = until(world, task, 0, lambda record: record.phase is CustodyPhase.KEPT)
    *drawn, last = record.holders
    assert len(drawn) == 2 and all(holder.bond == record.bond for holder in drawn)
    assert (last.address, last.bond) == (worker, 0), "for who did not sign at first the worker answers too"
    world.run(task, until=lambda record: record.final_windows > 0, blocks=3)
    assert [line.subject for line in lines(world, task, Purpose.WINDOW_PAY)] == [0]


def test_where_three_machines_can_be_drawn_and_none_signs_the_worker_keeps_its_output_itself() -> None:
    world, worker, task = market(keepers=3)
    world.unsigning = set(world.machines)
    world.run(task, until=lambda record: record.next_window > 0)
    record = until(world, task, 0, lambda record: record.phase is CustodyPhase.KEPT)
    assert record.drawn == 3 and [holder.address for holder in record.holders] == [worker]
    assert record.holders[0].bond == 0
    for keeper in world.machines:
        node = require_node(world.state, keeper)
        assert (node.bad, node.bond) == (0, KEPT.node_bond_min), "no side is blamed"


def test_without_storage_machines_the_worker_keeps_its_output_at_once() -> None:
    world, worker, task = settled(keepers=0)
    assert [world.holders(task, window) for window in range(3)] == [[worker]] * 3


def test_one_receipt_and_the_worker_keep_it_where_nobody_else_can_be_drawn() -> None:
    world, worker, task = settled(keepers=1)
    assert world.holders(task, 0) == [b"\x0a" * 20, worker]


def test_nobody_keeps_an_output_who_belongs_to_its_worker_or_requester() -> None:
    world = KeptWorld()
    worker = world.add_machine(1, roles=WORK)
    world.add_machine(2, roles=CHECK)
    world.add_machine(3, roles=WORK | CHECK | KEEP, operator=worker)
    world.add_machine(4, roles=KEEP, operator=REQUESTER)
    task = world.create()
    world.run_to(task, Phase.SETTLED)
    assert {address for window in range(3) for address in world.holders(task, window)} == {worker}


@pytest.mark.parametrize("is_sponsor", [False, True])
def test_machines_of_one_owner_have_one_seat_of_an_output_in_all_its_draws(is_sponsor: bool) -> None:
    """Two custodians of one owner are one: it decides alone whether the output can be had."""
    world, _, task = market(keepers=0, parameters=replace(KEPT, custody_misses_per_day=100))
    owner = world.add_keeper(10)
    others = [world.add_keeper(20 + at) for at in range(2)]
    mine = [owner]
    for at in range(8):
        mine.append(world.add_machine(30 + at, roles=KEEP, operator=None if is_sponsor else owner))
        if is_sponsor:
            node = require_node(world.state, mine[-1])
            save_node(world.state, node._replace(sponsor=owner, sponsored=DKB))
            world.fund(owner, DKB)
            vault = bond_vault(world.state, mine[-1], world.events.append, world.height)
            vault.lock(Pool.BOND, owner, DKB, Purpose.SPONSOR_BOND, owner=owner)
    world.unsigning = {*mine[::2], others[0]}
    for seed in range(6):
        world.seed = seed
        world.run_to(task, Phase.SETTLED)
        drawn = [event for event in world.events if event.topics[0] == CUSTODIAN_DRAWN.topic]
        for window in range(3):
            place = (task, window.to_bytes(32, "big"))
            seats = [one.topics[2][-20:] for one in drawn if (one.topics[1], one.data[:32]) == place]
            assert seats and sum(seat in mine for seat in seats) <= 1
            assert sum(holder in mine for holder in world.holders(task, window)) <= 1
        task = world.create()


def test_a_receipt_is_of_a_drawn_machine_and_locks_its_bond_exactly() -> None:
    world, _, task = market()
    world.unsigning = set(world.machines)
    world.run(task, until=lambda record: record.next_window > 0)
    record = until(world, task, 0, lambda record: bool(record.pending))
    other = next(keeper for keeper in world.machines if keeper not in record.pending)
    assert world.send(other, TAKE_CUSTODY, [task, 0, record.bond]) == "not_yours"
    drawn = record.pending[0]
    for amount in (record.bond - 1, record.bond + 1):
        assert world.send(drawn, TAKE_CUSTODY, [task, 0, amount]) == "payment_missing"
    assert world.send(drawn, TAKE_CUSTODY, [task, 0, record.bond]) is None
    assert world.send(drawn, TAKE_CUSTODY, [task, 0, record.bond]) == "not_yours"
    assert world.send(drawn, TAKE_CUSTODY, [task, 9, record.bond]) == "custody_unknown"


def test_a_machine_whose_hand_overs_fail_more_often_than_not_is_drawn_no_more_that_day() -> None:
    parameters = replace(KEPT, custody_misses_per_day=2)
    world, _, task = market(keepers=3, parameters=parameters)
    silent = b"\x0a" * 20
    world.unsigning = {silent}
    tasks = [task]
    for _ in range(4):
        world.run_to(tasks[-1], Phase.SETTLED)
        tasks.append(world.create())
    drawn = [event for event in world.events if event.topics[0] == CUSTODIAN_DRAWN.topic]
    mine = [event for event in drawn if event.topics[2][-20:] == silent]
    assert len(mine) == 2


# Demands


def test_a_demanded_chunk_is_drawn_posted_and_paid() -> None:
    world, _, task = settled()
    holder = world.holders(task, 2)[0]
    before = balance_of(world.state, holder)
    assert world.demand(task, 2, holder) is None
    record = load_custody(world.state, task, 2)
    assert record.demand is not None and record.demand.kind is DemandKind.CHUNK
    price = record.demand.amount
    assert world.demand(task, 2, world.holders(task, 2)[1]) == "custody_refused", "one at a time"
    world.unanswering = {holder}
    record = until(world, task, 2, lambda record: record.demand is not None and record.demand.chunk >= 0)
    assert record.demand is not None
    right, wrong = record.demand.chunk, 1 - record.demand.chunk
    assert world.answer(task, 2, holder, wrong) == "custody_refused"
    assert world.answer(task, 2, world.holders(task, 2)[1], right) == "not_yours"
    assert world.answer(task, 2, holder, right) is None
    assert balance_of(world.state, holder) - before == price
    assert load_custody(world.state, task, 2).demand is None


def test_a_chunk_that_is_not_posted_costs_the_custodian_its_bond_and_gains_nobody_anything() -> None:
    world, _, task = settled()
    holder, other = world.holders(task, 2)
    bond = load_custody(world.state, task, 2).bond
    asker = balance_of(world.state, REQUESTER)
    world.unanswering = {holder}
    assert world.demand(task, 2, holder) is None
    until(world, task, 2, lambda record: record.demand is None)
    (burned,) = lines(world, task, Purpose.CUSTODY_LOST)
    assert (burned.movement, burned.amount, burned.party) == (Movement.BURNED, bond, holder)
    assert balance_of(world.state, REQUESTER) == asker, "a demand that brings nothing costs nothing but gas"
    assert world.holders(task, 2) == [other] and require_node(world.state, holder).bad == 1
    assert world.state.get(by_custodian_key(holder, Asked.KEPT, task, 2)) is None


def test_a_worker_that_keeps_its_output_itself_answers_with_its_bond_for_the_task() -> None:
    world, worker, task = settled(keepers=0)
    bond = lines(world, task, Purpose.WORKER_BOND)[0].amount
    world.unanswering = {worker}
    assert world.demand(task, 2, worker) is None
    for _ in range(20):
        world.block()
    (burned,) = lines(world, task, Purpose.CUSTODY_LOST)
    assert (burned.movement, burned.amount) == (Movement.BURNED, bond)
    assert world.phase(task, 2) is None


def test_the_second_demand_is_a_delivery_whose_receiver_is_paid_by_bytes() -> None:
    parameters = replace(KEPT, custody_delivery_price_per_gib=DKB)
    world, _, task = settled(parameters=parameters)
    holder = world.holders(task, 2)[0]
    assert world.demand(task, 2, holder) is None
    until(world, task, 2, lambda record: record.demand is None)
    assert world.demand(task, 2, holder) is None
    world.unsigning = set(world.machines)
    record = until(world, task, 2, lambda record: record.demand is not None and bool(record.demand.receiver))
    assert record.demand is not None and record.demand.kind is DemandKind.DELIVERY
    receiver = record.demand.receiver
    assert receiver not in world.holders(task, 2)
    assert world.send(holder, RECEIVE_CUSTODY, [task, 2]) == "not_yours"
    before = balance_of(world.state, receiver)
    assert world.send(receiver, RECEIVE_CUSTODY, [task, 2]) is None
    assert balance_of(world.state, receiver) - before == record.blob.size * DKB >> 30
    assert load_custody(world.state, task, 2).demand is None


@pytest.mark.parametrize("silent_receivers", [1, 3])
def test_a_failed_delivery_costs_the_pay_and_three_of_them_the_bond(silent_receivers: int) -> None:
    world, _, task = settled(keepers=8)
    holder = world.holders(task, 2)[0]
    assert world.demand(task, 2, holder) is None
    until(world, task, 2, lambda record: record.demand is None)
    assert world.demand(task, 2, holder) is None
    world.unsigning = set(world.machines)
    if silent_receivers == 1:
        until(world, task, 2, lambda record: record.demand is not None and record.demand.tries == 1)
        world.unsigning = set()
    until(world, task, 2, lambda record: record.demand is None)
    lost = lines(world, task, Purpose.CUSTODY_LOST)
    assert {line.party for line in lost} == ({holder, REQUESTER} if silent_receivers == 3 else set())
    assert world.end(task, 2) is None
    paid = {line.party for line in lines(world, task, Purpose.CUSTODY_PAY)}
    assert holder not in paid and len(paid) == 1


def test_demands_are_the_requesters_and_bounded_a_task() -> None:
    world, _, task = settled(parameters=replace(KEPT, custody_demands_max=2))
    first, second = world.holders(task, 2)
    assert world.demand(task, 2, first, sender=STRANGER) == "not_yours"
    assert world.demand(task, 2, STRANGER) == "custody_refused"
    for holder in (first, second):
        assert world.demand(task, 2, holder) is None
        until(world, task, 2, lambda record: record.demand is None)
    assert world.demand(task, 2, first) == "custody_refused"


def test_there_is_no_demanded_result_and_no_jury_about_it_on_a_chain_with_custody() -> None:
    world, _, task = settled()
    assert world.send(REQUESTER, DEMAND_RESULT, [task, DKB]) == "wrong_phase"


# Pay and the end


def test_custody_is_paid_by_bytes_and_time_up_to_what_was_locked() -> None:
    price = 10**6 * DKB
    parameters = replace(KEPT, custody_price_per_gib_hour=price)
    world, _, task = settled(parameters=parameters)
    terms = find_terms(world.state, task)
    record = load_custody(world.state, task, 0)
    assert terms is not None and 3 * terms.each == custody_budget(spec(), parameters)
    world.block(60_000)
    ended_ms = world.end_shown(task, 0)
    paid = [line for line in lines(world, task, Purpose.CUSTODY_PAY) if line.subject == 0]
    for line in paid:
        (holder,) = (one for one in record.holders if one.address == line.party)
        held_ms = ended_ms - holder.since_ms
        assert line.amount == record.blob.size * held_ms * price // (3_600_000 << 30)
        assert KEPT.custody_fee_min < line.amount <= terms.each // 2
    pass_days(world)
    whole = [line.amount for line in lines(world, task, Purpose.CUSTODY_PAY) if line.subject == 2]
    assert len(whole) == 2 and all(amount <= terms.each // 2 for amount in whole)


def test_custody_ends_by_the_requesters_word_after_the_window_is_final_or_after_its_time() -> None:
    world, _, task = market()
    world.run(task, until=lambda record: record.next_window > 0)
    until(world, task, 0, lambda record: record.phase is CustodyPhase.KEPT)
    if world.task(task).final_windows == 0:
        assert world.end(task, 0) == "wrong_phase"
    world.run_to(task, Phase.SETTLED)
    assert world.end(task, 0, sender=STRANGER) == "not_yours"
    world.end_shown(task, 0)
    assert world.end(task, 0) == "custody_unknown"
    assert world.phase(task, 1) is CustodyPhase.KEPT
    pass_days(world)
    assert [world.phase(task, window) for window in range(3)] == [None] * 3
    totals = escrow_totals(world.state, task)
    assert totals.locked == 0
    bonds = [line for line in lines(world, task, Purpose.BOND_RETURN) if line.pool == Pool.CUSTODY]
    assert len(bonds) == 6


def test_a_workers_bond_stays_until_its_outputs_are_in_custody_no_more() -> None:
    world, worker, task = settled()
    for _ in range(4):
        world.block(60_000)  # far beyond bond_release_ms
    assert not [line for line in lines(world, task, Purpose.BOND_RETURN) if line.pool == Pool.BOND]
    for window in range(3):
        world.end_shown(task, window)
    world.block(60_000)
    world.block(60_000)
    (back,) = [line for line in lines(world, task, Purpose.BOND_RETURN) if line.pool == Pool.BOND]
    assert back.party == worker


def test_a_bond_of_a_worker_that_left_returns_with_the_end_of_its_custody() -> None:
    world, worker, task = market()
    other = world.add_machine(3, roles=WORK)
    world.run(task, until=lambda record: record.next_window == 1)
    first = load_window(world.state, task, 0).worker
    assert world.send(first, GIVE_UP_TASK, [task, int(Reason.WORKER_LEFT)]) is None
    world.run_to(task, Phase.SETTLED)
    assert first in (worker, other)

    def returned() -> bool:
        back = lines(world, task, Purpose.BOND_RETURN)
        return any(line.party == first and line.pool == Pool.BOND for line in back)

    assert not returned()
    world.end_shown(task, 0)
    assert returned()


def test_a_custodian_does_not_retire_from_its_duties() -> None:
    world, _, task = settled(parameters=replace(KEPT, custody_ms=10**9))
    holder = world.holders(task, 0)[0]
    assert world.send(holder, RETIRE_NODE, []) is None
    for _ in range(5):
        world.block(60_000)
    assert queries.find_node(world.state, holder) is not None
    for window in range(3):
        world.end(task, window)
    for _ in range(5):
        world.block(60_000)
    assert queries.find_node(world.state, holder) is None


def test_a_void_window_leaves_its_custody_for_the_next_proof() -> None:
    world = KeptWorld()
    liar = world.add_machine(1, roles=WORK, manners=Manners(lies=True), price=1)
    world.add_machine(2, roles=CHECK)
    world.add_machine(3, roles=WORK)
    for at in range(4):
        world.add_keeper(10 + at)
    task = world.create()
    world.run(task, until=lambda record: liar in record.excluded)
    world.run_to(task, Phase.SETTLED)
    assert all(world.phase(task, window) is CustodyPhase.KEPT for window in range(3))
    pass_days(world)
    terms = find_terms(world.state, task)
    assert terms is not None and (terms.live, terms.reserved) == (0, 0)
    assert escrow_totals(world.state, task).locked == 0


@pytest.mark.parametrize("shown", [0, 2])
def test_who_makes_windows_void_pays_their_custodians_and_the_next_proofs_have_whole_reserves(shown: int) -> None:
    """They were paid of what the requester had locked for all proofs, and those of the result had nothing."""
    world, _, task = market(manner="garbage")
    world.run(task, until=lambda record: record.next_window == 3)
    until(world, task, 2, lambda record: record.phase is CustodyPhase.KEPT)
    signed = sum(len(world.holders(task, window)) for window in range(3))
    terms = find_terms(world.state, task)
    assert terms is not None and world.task(task).final_windows == 0
    assert world.reveal(task, shown, 0, STRANGER) is None
    world.manner = "right"
    world.add_machine(3, roles=WORK)
    world.run_to(task, Phase.SETTLED)
    void = [line for line in lines(world, task, Purpose.CUSTODY_PAY) if line.movement == Movement.HELD]
    assert sum(line.amount for line in void) == signed * KEPT.custody_fee_min, "out of the liar's bond"
    assert [load_custody(world.state, task, window).reserve for window in range(3)] == [terms.each] * 3
    paid = [line for line in lines(world, task, Purpose.CUSTODY_PAY) if line.movement == Movement.PAID]
    assert sum(line.amount for line in paid) == signed * KEPT.custody_fee_min
    pass_days(world)
    assert escrow_totals(world.state, task).locked == 0
