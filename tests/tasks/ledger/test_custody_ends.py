"""A custodian that keeps nothing: at the end of custody the beacon asks some of them for a chunk (R157)."""

from __future__ import annotations

import pytest

from billing.escrow import Movement, Purpose, bill_lines, escrow_totals
from tasks.custody import looks
from tasks.ledger import custody
from tasks.ledger.custody_queries import CustodyAction, custody_duties
from tasks.ledger.custody_records import (
    CustodyPhase,
    find_custody,
    find_terms,
    load_custody,
    save_custody,
    save_terms,
)
from tasks.ledger.registry import require_node
from tests.tasks.keepers import KEPT, KeptWorld
from tests.tasks.ledger.test_custody import lines, settled


def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every custody that ends be looked at; the beacon still draws whom and which chunk."""
    monkeypatch.setattr(looks, "LOOKS_MIN", 1)


def amounts(world: KeptWorld, task: bytes, purpose: Purpose, movement: Movement) -> list[int]:
    return [
        line.amount for line in bill_lines(world.state, task)
        if (line.purpose, line.movement) == (purpose, movement) and line.amount
    ]  # fmt: skip


def asked(world: KeptWorld, task: bytes, window: int) -> bytes:
    """End the custody of a window; return the custodian that is asked."""
    holders = world.holders(task, window)
    assert world.end(task, window) is None
    record = load_custody(world.state, task, window)
    assert record.phase is CustodyPhase.CLOSING and record.demand is not None
    assert record.demand.holder in holders
    return record.demand.holder


def test_n78_a_custodian_that_keeps_nothing_is_found_without_demands(monkeypatch: pytest.MonkeyPatch) -> None:
    """It signs, drops the output, and is paid as others are who have it: nobody demands it of this one."""
    always(monkeypatch)
    world, _, task = settled()
    holders = world.holders(task, 0)
    idle = asked(world, task, 0)
    other = next(address for address in holders if address != idle)
    bond = load_custody(world.state, task, 0).bond
    (duty,) = [duty for duty in custody_duties(world.state, idle) if duty.action is CustodyAction.ANSWER]
    assert duty.deadline_ms == world.time_ms + KEPT.custody_answer_ms
    failures = require_node(world.state, idle).failures
    world.unanswering.add(idle)
    world.block(KEPT.custody_answer_ms)
    world.block()
    assert find_custody(world.state, task, 0) is None
    assert amounts(world, task, Purpose.CUSTODY_LOST, Movement.BURNED) == [bond]
    assert require_node(world.state, idle).failures == failures + 1
    paid = [line.party for line in lines(world, task, Purpose.CUSTODY_PAY) if line.subject == 0]
    assert paid == [other]


def test_n79_a_requester_that_ends_all_at_once_asks_for_a_bounded_number_of_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A task of thousands of small windows: nobody can show so many chunks in the time for one."""
    always(monkeypatch)
    monkeypatch.setattr(custody, "LOOKS_AT_ONCE", 2)
    world, _, task = settled()
    for window in range(3):
        assert world.end(task, window) is None
    assert [world.phase(task, window) for window in range(3)] == [CustodyPhase.CLOSING, CustodyPhase.CLOSING, None]
    terms = find_terms(world.state, task)
    assert terms is not None and terms.looks == 2
    world.keep()
    world.block()
    terms = find_terms(world.state, task)
    assert terms is not None and terms.looks == terms.live == terms.reserved == 0


def test_who_has_the_output_answers_and_is_paid_for_that_too(monkeypatch: pytest.MonkeyPatch) -> None:
    always(monkeypatch)
    world, _, task = settled()
    world.block(300_000)  # so much of the reserve is left that it pays the answer
    keeper = asked(world, task, 0)
    assert world.end(task, 0) == "wrong_phase"
    record = load_custody(world.state, task, 0)
    assert record.demand is not None and record.demand.amount > 0
    assert world.answer(task, 0, keeper, record.demand.chunk) is None
    world.block()
    assert find_custody(world.state, task, 0) is None
    assert amounts(world, task, Purpose.CUSTODY_DEMAND, Movement.PAID) == [record.demand.amount]
    assert not amounts(world, task, Purpose.CUSTODY_LOST, Movement.BURNED)
    for window in range(1, world.task(task).final_windows):
        holder = asked(world, task, window)
        found = load_custody(world.state, task, window).demand
        assert found is not None and world.answer(task, window, holder, found.chunk) is None
    world.block()
    assert not any(amounts(world, task, Purpose.CUSTODY_LOST, Movement.BURNED))
    world.block(KEPT.bond_release_ms)
    world.block()
    assert escrow_totals(world.state, task).locked == 0


@pytest.mark.parametrize("reserve", [0, 1, KEPT.custody_fee_min, 2 * KEPT.custody_fee_min])
def test_an_answer_costs_no_more_than_a_small_reserve_has(monkeypatch: pytest.MonkeyPatch, reserve: int) -> None:
    """Void windows may have left less than the budget."""
    always(monkeypatch)
    world, _, task = settled()
    record, terms = load_custody(world.state, task, 0), find_terms(world.state, task)
    assert terms is not None
    save_terms(world.state, task, terms._replace(reserved=terms.reserved - record.reserve + reserve))
    save_custody(world.state, record._replace(reserve=reserve), world.time_ms)
    keeper = asked(world, task, 0)
    record = load_custody(world.state, task, 0)
    assert record.demand is not None and record.demand.amount == min(reserve, KEPT.custody_fee_min)
    assert world.answer(task, 0, keeper, record.demand.chunk) is None
    world.block()
    assert find_custody(world.state, task, 0) is None
    paid = sum(amounts(world, task, Purpose.CUSTODY_PAY, Movement.PAID))
    assert paid + record.demand.amount <= reserve


def test_a_demand_that_runs_as_custody_ends_returns_what_it_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    always(monkeypatch)
    world, _, task = settled()
    assert world.demand(task, 0, world.holders(task, 0)[0]) is None
    asked(world, task, 0)
    for window in range(1, 3):
        assert world.end(task, window) is None
    world.keep()
    world.block()
    terms = find_terms(world.state, task)
    assert terms is not None and (terms.reserved, terms.live, terms.looks) == (0, 0, 0)
    world.block(KEPT.bond_release_ms)
    world.block()
    assert escrow_totals(world.state, task).locked == 0


def test_custody_whose_time_is_over_is_looked_at_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    always(monkeypatch)
    world, _, task = settled()
    world.block(KEPT.custody_ms)
    world.block()
    record = find_custody(world.state, task, 0)
    assert record is not None and record.phase is CustodyPhase.CLOSING and record.demand is not None
    world.keep()
    world.block()
    assert find_custody(world.state, task, 0) is None


def test_a_worker_that_keeps_its_output_itself_is_asked_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no pay for that. Its bond answers to demands of the requester."""
    always(monkeypatch)
    world, _, task = settled(keepers=0)
    assert world.end(task, 0) is None
    assert find_custody(world.state, task, 0) is None


def test_the_chance_is_such_that_keeping_nothing_loses() -> None:
    """``chance * (pay + bond)`` is what a custodian without the output loses, and it saves its pay at most."""
    for count in (1, 2, 3):
        for pay in (1, 10, 1_000, 10**15):
            for bond in (pay, 3 * pay, 10**6 * pay):
                parts = sum(looks.is_looked_at(lot << 32, count, pay, bond) for lot in range(0, 1 << 32, 1 << 20))
                chance = parts / (1 << 12) / count
                assert chance * (pay + bond) >= pay * 0.99 or parts == 1 << 12
                assert chance >= 0.99 / looks.LOOKS_MIN or parts == 1 << 12
