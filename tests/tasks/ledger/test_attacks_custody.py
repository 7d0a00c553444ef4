"""Attacks on results, by the names of their findings: what each costs where results are in custody.

Each is played on a chain without custody too, where it is free: the rule is what stops it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Final

import pytest

from billing.escrow import Movement, Pool, Purpose
from billing.prices import share, share_up
from state.view.accounts import balance_of
from tasks.ledger import custody_records, queries
from tasks.ledger.custody_queries import CustodyAction, custody_duties, outputs_kept
from tasks.ledger.custody_records import (
    CustodyPhase,
    count_hand_over,
    custody_count,
    find_custody,
    load_custody,
)
from tasks.ledger.lifecycle import Phase, Reason, WindowPhase
from tasks.ledger.parameters import DAY_MS
from tasks.ledger.records import Asked, by_custodian_key, load_window
from tasks.ledger.registry import require_node
from tasks.ledger.seats import is_checked
from tasks.ledger.transitions import DEMAND_RESULT, GIVE_UP_TASK
from tests.tasks.keepers import KEPT, KeptWorld
from tests.tasks.ledger.test_custody import lines, market, settled, until
from tests.tasks.signed import CHECK, WORK
from tests.tasks.world import DKB, QUICK, REQUESTER, Manners, World, spec

PROVER: Final = b"\x55" * 20


@pytest.mark.parametrize("has_custody", [False, True])
def test_n3_a_result_in_none_of_four_hands_is_not_sold_with_the_bond_back(has_custody: bool) -> None:
    """The worker hands its outputs to nobody, and asks its requester for more once it is paid."""
    world = KeptWorld(parameters=KEPT if has_custody else QUICK)
    world.hands_over = False
    worker = world.add_machine(1, roles=WORK, manners=Manners(forgetful=True))
    world.add_machine(2, roles=CHECK)
    for at in range(3):
        world.add_keeper(10 + at)
    task = world.create() if has_custody else World.create(world)
    world.run_to(task, Phase.SETTLED)
    bond = lines(world, task, Purpose.WORKER_BOND)[0].amount
    if has_custody:
        world.unanswering = {worker}
        assert world.demand(task, 2, worker) is None
    for _ in range(40):
        world.block()
    returned = [line for line in lines(world, task, Purpose.BOND_RETURN) if line.pool == Pool.BOND]
    if not has_custody:
        assert [line.amount for line in returned] == [bond], "it has its pay and its bond"
        return
    burned = lines(world, task, Purpose.CUSTODY_LOST)
    assert {line.movement for line in burned} == {Movement.BURNED} and not returned
    held = sum(line.amount for line in lines(world, task, Purpose.WINDOW_HOLD))
    assert sum(line.amount for line in burned) == bond + held, "its bond, and its pay (R58)"
    assert require_node(world.state, worker).bad == 1


@pytest.mark.parametrize("manner", ["garbage", "other"])
def test_n3_random_bytes_in_custody_are_a_proven_lie_in_one_move(manner: str) -> None:
    """Custodians cannot read what they keep; whoever has the key shows that it is not the output."""
    world, worker, task = market(manner=manner)
    world.run(task, until=lambda record: record.next_window == 2)
    until(world, task, 0, lambda record: record.phase is CustodyPhase.KEPT)
    bond = lines(world, task, Purpose.WORKER_BOND)[0].amount
    world.fund(PROVER, DKB)
    reveal = world.reveal if manner == "garbage" else world.mismatch
    assert reveal(task, 0, 0, PROVER) is None
    assert reveal(task, 0, 0, PROVER) == "custody_refused", "once"
    world.block()
    record = world.task(task)
    assert worker in record.excluded and record.worker != worker
    assert record.next_window == record.final_windows, "its windows that are not final are void"
    shared = lines(world, task, Purpose.LIE_PROVEN)
    custody = [line for line in lines(world, task, Purpose.CUSTODY_PAY) if line.movement == Movement.HELD]
    assert sum(line.amount for line in (*shared, *custody)) == bond
    mine = sum(line.amount for line in shared if line.party == PROVER)
    assert share(bond, 1_000) <= mine < share(bond, 1_001) + 1
    assert sum(line.amount for line in shared if line.movement == Movement.BURNED) >= share(bond, 2_000)
    assert require_node(world.state, worker).bad == 1


def test_n3_garbage_is_a_lie_also_after_the_window_is_final_and_the_task_has_ended() -> None:
    world, worker, task = settled(manner="garbage")
    bond = lines(world, task, Purpose.WORKER_BOND)[0].amount
    world.fund(PROVER, DKB)
    assert world.reveal(task, 1, 1, PROVER) is None
    assert world.end(task, 1) == "wrong_phase", "the requester ends nothing that is proven"
    world.block()
    assert sum(line.amount for line in lines(world, task, Purpose.LIE_PROVEN)) == bond
    assert load_window(world.state, task, 1).phase == WindowPhase.FINAL
    assert world.task(task).phase == Phase.SETTLED
    for _ in range(30):
        world.block(60_000)
    assert not [line for line in lines(world, task, Purpose.BOND_RETURN) if line.party == worker]


def test_n3_a_second_proof_against_the_same_worker_takes_nothing_more() -> None:
    world, _, task = settled(manner="garbage")
    world.fund(PROVER, DKB)
    assert world.reveal(task, 0, 0, PROVER) is None
    world.block()
    before = lines(world, task, Purpose.LIE_PROVEN)
    assert world.reveal(task, 1, 0, PROVER) is None
    world.block()
    assert lines(world, task, Purpose.LIE_PROVEN) == before


@pytest.mark.parametrize("window", [0, 2])
def test_n3_an_honest_output_cannot_be_called_garbage(window: int) -> None:
    world, worker, task = settled()
    for chunk in range(2):
        assert world.reveal(task, window, chunk, PROVER) == "chunk_invalid"
        assert world.reveal(task, window, chunk, PROVER, key=b"x" * 32) == "key_invalid"
        assert world.mismatch(task, window, chunk, PROVER) == "chunk_invalid"
    world.block()
    assert require_node(world.state, worker).bad == 0


def test_n3_a_liar_saves_nothing_by_proving_its_own_garbage_itself() -> None:
    world, worker, task = settled(manner="garbage")
    bond = lines(world, task, Purpose.WORKER_BOND)[0].amount
    assert world.reveal(task, 0, 0, worker) is None
    world.block()
    shared = lines(world, task, Purpose.LIE_PROVEN)
    back = [line.amount for line in shared if line.party == worker and line.movement == Movement.PAID]
    assert 0 < sum(back) <= share(bond, 1_001)


def test_n15_a_custodian_that_answers_by_chunks_alone_delivers_the_whole_or_loses_its_bond() -> None:
    world, _, task = settled(keepers=8)
    holder = world.holders(task, 2)[0]
    assert world.demand(task, 2, holder) is None
    until(world, task, 2, lambda record: record.demand is None)
    assert world.demand(task, 2, holder) is None
    world.unsigning = set(world.machines)  # it gives the blob to no receiver
    until(world, task, 2, lambda record: record.demand is None)
    (burned,) = [line for line in lines(world, task, Purpose.CUSTODY_LOST) if line.party == holder]
    assert burned.movement == Movement.BURNED


@pytest.mark.parametrize("has_custody", [False, True])
def test_a4_machines_of_a_requester_do_not_call_a_result_unavailable(has_custody: bool) -> None:
    """All who could be drawn are its friends and find nothing; without custody the honest worker pays for it."""
    world = KeptWorld(parameters=KEPT if has_custody else QUICK)
    worker = world.add_machine(1, roles=WORK)
    verifier = world.add_machine(2, roles=CHECK)
    for at in range(4):
        world.add_machine(20 + at, roles=CHECK)
    task = world.create() if has_custody else World.create(world)
    world.run_to(task, Phase.SETTLED)
    for machine in (verifier, *(bytes([20 + at]) * 20 for at in range(4))):
        world.machines[machine] = Manners(blind=True)
    refusal = world.send(REQUESTER, DEMAND_RESULT, [task, DKB])
    for _ in range(60):
        world.block()
        world.act()
    lost = lines(world, task, Purpose.RESULT_LOST)
    assert (refusal == "wrong_phase", bool(lost)) == (has_custody, not has_custody)
    assert require_node(world.state, worker).bad == (not has_custody)


def test_a_custodian_whose_window_is_void_has_its_bond_back_and_its_gas() -> None:
    world, _, task = market(manner="garbage")
    world.run(task, until=lambda record: record.next_window == 2)
    until(world, task, 1, lambda record: record.phase is CustodyPhase.KEPT)
    holders = world.holders(task, 1)
    assert world.reveal(task, 0, 0, PROVER) is None
    world.block()
    world.block()
    assert world.phase(task, 1) is None
    back = {line.party for line in lines(world, task, Purpose.BOND_RETURN) if line.pool == Pool.CUSTODY}
    assert back >= set(holders)


def test_n3_proofs_about_all_its_windows_in_one_block_take_the_bond_once() -> None:
    world, worker, task = market(manner="garbage")
    world.run(task, until=lambda record: record.next_window == 3)
    until(world, task, 2, lambda record: record.phase is CustodyPhase.KEPT)
    for window in range(3):
        assert world.reveal(task, window, 0, PROVER) is None
    world.block()
    world.block()
    assert custody_count(world.state, task, worker) == 0
    bond = lines(world, task, Purpose.WORKER_BOND)[0].amount
    taken = [
        line for line in queries.bill(world.state, task).lines
        if (line.pool == Pool.BOND and line.movement != Movement.LOCKED)
        or (line.purpose == Purpose.CUSTODY_PAY and line.movement == Movement.HELD)
    ]  # fmt: skip
    assert sum(line.amount for line in taken) == bond
    assert not [line for line in taken if line.purpose == Purpose.BOND_RETURN]
    assert worker in world.task(task).excluded


def test_n3_a_liar_that_left_and_has_nothing_else_open_does_not_get_its_bond_first() -> None:
    """The proof ends the last custody of a worker that runs the task no more: that would release its bond."""
    world, worker, task = market(manner="garbage")
    world.run(task, until=lambda record: record.next_window == 1)
    assert world.send(worker, GIVE_UP_TASK, [task, int(Reason.WORKER_LEFT)]) is None
    world.run(task, until=lambda record: record.final_windows == 1)
    before = balance_of(world.state, worker)
    assert world.reveal(task, 0, 0, PROVER) is None
    world.block()
    assert balance_of(world.state, worker) == before
    assert sum(line.amount for line in lines(world, task, Purpose.LIE_PROVEN)) > 0


def test_the_leader_of_the_block_of_a_draw_does_not_choose_custodians_by_what_it_puts_into_the_block() -> None:
    """A count that changes in the block would change who can be drawn, by a beacon that its leader knows."""
    drawn: list[tuple[bytes, ...]] = []
    for is_moved in (False, True):
        world, _, task = market(parameters=replace(KEPT, custody_misses_per_day=1))
        world.run(task, until=lambda record: record.next_window > 0)
        for _ in range(5):
            record = load_custody(world.state, task, 0)
            if record.phase is not CustodyPhase.DRAWING:
                break
            is_draw = world.height >= record.height + KEPT.draw_blocks
            if is_draw and is_moved:
                for keeper in drawn[0]:
                    count_hand_over(world.state, keeper, world.time_ms // DAY_MS, is_done=False)
            world.block()
        drawn.append(load_custody(world.state, task, 0).pending)
    assert drawn[0] == drawn[1] and len(drawn[0]) == 2


@pytest.mark.slow
def test_a_worker_does_not_choose_its_custodians_by_whom_it_hands_over_to() -> None:
    """With a third of the storage bonds it handed over to friends alone: two of four drawn are, in 4 of 10 cases.

    Where anybody who was drawn did not sign the worker answers too, with its bond for the task. So what is left is
    that both of the first two drawn are its friends, in 1 of 9 cases or less.
    """
    outcomes = Counter[bool]()
    for seed in range(30):
        world, worker, task = market(keepers=9, seed=seed, parameters=replace(KEPT, custody_misses_per_day=1_000))
        friends = {bytes([10 + at]) * 20 for at in (0, 1, 2)}
        world.unsigning = set(world.machines) - friends
        world.run(task, until=lambda record: record.final_windows > 1)  # of the result more have to sign (R91)
        outcomes.update(worker in world.holders(task, window) for window in range(2))
    assert outcomes.total() == 60 and outcomes[False] < 13
    assert outcomes[False] > 2, "or nothing was tried"


@pytest.mark.parametrize("is_worker", [False, True])
def test_three_receivers_of_a_requester_burn_no_bond_for_nothing(is_worker: bool) -> None:
    """Their silence is no proof: it cost its custodian the bond and its requester the gas of a demand."""
    world, worker, task = settled(keepers=8)
    if is_worker:
        world, worker, task = settled(keepers=0)
        for at in range(8):
            world.add_keeper(40 + at)
        for _ in range(KEPT.draw_blocks):
            world.block()
    holder = world.holders(task, 2)[0]
    assert (holder == worker) == is_worker
    record = load_custody(world.state, task, 2)
    assert world.demand(task, 2, holder) is None
    until(world, task, 2, lambda record: record.demand is None)
    before = balance_of(world.state, REQUESTER)
    assert world.demand(task, 2, holder) is None
    world.unsigning = set(world.machines)
    for _ in range(40):
        world.block()
        if (now := find_custody(world.state, task, 2)) is None or now.demand is None:
            break
    stake = share_up(record.bond, KEPT.custody_stake_bps)
    assert stake > 0
    burned = [line for line in lines(world, task, Purpose.CUSTODY_LOST) if line.movement == Movement.BURNED]
    assert {line.party for line in burned} == {holder, REQUESTER}
    assert [line.amount for line in burned if line.party == REQUESTER] == [stake]
    back = [line for line in lines(world, task, Purpose.UNSPENT) if line.party == REQUESTER and line.subject == 2]
    assert before - balance_of(world.state, REQUESTER) <= stake and back


def test_a_stake_of_a_delivery_returns_with_its_receipt() -> None:
    world, _, task = settled(keepers=6)
    holder = world.holders(task, 2)[0]
    assert world.demand(task, 2, holder) is None
    until(world, task, 2, lambda record: record.demand is None)
    before = balance_of(world.state, REQUESTER)
    assert world.demand(task, 2, holder) is None
    record = load_custody(world.state, task, 2)
    stake = share_up(record.bond, KEPT.custody_stake_bps)
    assert record.demand is not None and record.demand.stake == stake
    assert before - balance_of(world.state, REQUESTER) == record.demand.amount + stake
    until(world, task, 2, lambda record: record.demand is None)
    assert before - balance_of(world.state, REQUESTER) == record.demand.amount
    assert not lines(world, task, Purpose.CUSTODY_LOST)


def test_outputs_that_wait_for_their_draws_take_no_deadlines_from_others() -> None:
    """Each asked for a deadline in every block until its draw: a few windows delayed all that was due."""
    world, _, task = market(parameters=replace(KEPT, draw_blocks=60, deadlines_per_block=2))
    tasks = [task]
    for at in range(3):
        world.add_machine(3 + at, roles=WORK)
        tasks.append(world.create())
    for one in tasks:
        world.run(one, until=lambda record: record.next_window == 3)
    late = World.create(world, spec(price=1, match_ms=5_000))  # nobody works for so little
    for _ in range(6):
        world.block()
    assert all(load_custody(world.state, one, 2).phase is CustodyPhase.DRAWING for one in tasks)
    assert world.task(late).phase == Phase.EXPIRED


def test_a_demand_is_not_hidden_by_how_much_a_custodian_keeps() -> None:
    """Whoever has a machine keep thousands of small outputs, and then demands another one, burned its bond."""
    world, _, task = settled()
    holder = world.holders(task, 2)[0]
    for at in range(5_000):
        world.state.put(by_custodian_key(holder, Asked.KEPT, at.to_bytes(32, "big"), 0), b"\x01")
    world.unanswering = {holder}
    assert world.demand(task, 2, holder) is None
    until(world, task, 2, lambda record: record.demand is not None and record.demand.is_drawn)
    (duty,) = custody_duties(world.state, holder)
    assert (duty.action, duty.task, duty.window) == (CustodyAction.ANSWER, task, 2)
    kept = outputs_kept(world.state, holder)
    assert len(kept) >= 5_001 and (task, 2) in kept


def test_a_lie_in_a_final_window_pays_nobody_whose_window_stands() -> None:
    """Workers whose windows a lie voids are paid for them out of its bond. This one's is paid by the requester."""
    world, _, task = market(manner="garbage")
    world.run(task, until=lambda record: record.next_window == 1)
    liar = world.task(task).worker
    world.manner = "right"
    assert world.send(liar, GIVE_UP_TASK, [task, int(Reason.WORKER_LEFT)]) is None
    successor = world.add_machine(3, roles=WORK)

    def stands(_: object) -> bool:
        record = world.task(task)
        return (
            record.final_windows == 1 and record.next_window > 1 and is_checked(load_window(world.state, task, 1))
        )

    world.run(task, until=stands)
    assert load_window(world.state, task, 1).worker == successor
    assert world.reveal(task, 0, 0, PROVER) is None
    world.block()
    shared = lines(world, task, Purpose.LIE_PROVEN)
    assert shared and successor not in {line.party for line in shared}


def test_a_receipt_for_a_delivery_counts_as_one_for_both_sides() -> None:
    """Missed deliveries counted against a custodian, and those that it made did not count for it."""
    world, _, task = settled()
    holder = world.holders(task, 2)[0]
    assert world.demand(task, 2, holder) is None
    until(world, task, 2, lambda record: record.demand is None)
    assert world.demand(task, 2, holder) is None
    world.unsigning = set(world.machines)
    record = until(world, task, 2, lambda one: one.demand is not None and bool(one.demand.receiver))
    assert record.demand is not None
    sides, day = (holder, record.demand.receiver), world.time_ms // DAY_MS
    before = [custody_records._hand_overs(world.state, side, day) for side in sides]
    world.unsigning = set()
    world.keep()
    assert [custody_records._hand_overs(world.state, side, day) for side in sides] == [
        (missed, done + 1) for missed, done in before
    ]
