"""An output without a custodian makes no window final: it is void, and another worker goes on (market.md R90)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from billing.escrow import Movement, Pool, Purpose
from state.view.accounts import balance_of, debit
from tasks.ledger.check_fund import fund_balance
from tasks.ledger.custody import CUSTODIAN_DRAWN, CUSTODY_UNKEPT, waits_unkept
from tasks.ledger.custody_records import DRAWN_MAX, TRIED_MAX, CustodyPhase, load_custody
from tasks.ledger.lifecycle import Phase, Reason, WindowPhase
from tasks.ledger.open_task import Case, Scope
from tasks.ledger.queries import Action
from tasks.ledger.records import load_window
from tasks.ledger.registry import require_node
from tests.tasks.keepers import KEPT, KeptWorld
from tests.tasks.ledger.test_custody import lines, until
from tests.tasks.signed import CHECK, WORK
from tests.tasks.world import HONEST, WORTH, Manners, spec

KEEPERS: Final = TRIED_MAX + 1


def market(*, keepers: int = KEEPERS, windows: int = 3, misses: int = 8) -> tuple[KeptWorld, bytes, bytes]:
    """A world with a cheap worker that hands its outputs to nobody, an honest one, and a task."""
    world = KeptWorld(
        parameters=replace(KEPT, custody_misses_per_day=misses, seal_ms_min=60_000, window_grace_ms=60_000)
    )
    hoarder = world.add_machine(1, roles=WORK, price=WORTH // 2)
    world.add_machine(2, roles=CHECK)
    world.add_machine(3, roles=WORK, price=WORTH)
    for at in range(keepers):
        world.add_keeper(10 + at)
    world.hoarders = {hoarder}
    return world, hoarder, world.create(spec(total=20 * windows, price=WORTH))


def workers(world: KeptWorld, task: bytes) -> list[bytes]:
    return [load_window(world.state, task, at).worker for at in range(world.task(task).final_windows)]


def got(world: KeptWorld, task: bytes, worker: bytes, *purposes: Purpose) -> int:
    return sum(
        line.amount
        for purpose in purposes
        for line in lines(world, task, purpose)
        if line.party == worker and line.movement in (Movement.PAID, Movement.HELD)
    )


def test_n16_an_output_that_no_custodian_has_is_paid_to_nobody_and_another_worker_goes_on() -> None:
    world, hoarder, task = market()
    before = balance_of(world.state, hoarder)
    world.run(task, until=lambda record: hoarder in record.excluded)
    window = load_window(world.state, task, 0)
    assert (window.phase, window.reason, window.worker) == (WindowPhase.VOID, Reason.NOT_KEPT, hoarder)
    assert [event for event in world.events if event.topics[0] == CUSTODY_UNKEPT.topic]
    world.run_to(task, Phase.SETTLED)
    assert workers(world, task) == [b"\x03" * 20] * 3
    assert got(world, task, hoarder, Purpose.WINDOW_PAY, Purpose.WINDOW_HOLD, Purpose.HOLD_RELEASE) == 0
    node = require_node(world.state, hoarder)
    assert (node.bad, node.bond) == (0, KEPT.node_bond_min), "nobody can tell whose fault it was"
    checks = sum(
        line.amount for line in lines(world, task, Purpose.VERIFIER_FEE) if line.pool == Pool.BOND
    )  # fmt: skip
    assert 0 < checks == before - balance_of(world.state, hoarder), "what was checked in vain, and nothing else"


def test_a_window_that_others_keep_stays_final_and_the_next_worker_goes_on_from_it() -> None:
    world, hoarder, task = market(windows=6)
    world.hoarders = set()
    world.run(task, until=lambda record: record.final_windows == 1)
    world.hoarders = {hoarder}
    world.run_to(task, Phase.SETTLED)
    assert workers(world, task)[0] == hoarder and workers(world, task)[-1] == b"\x03" * 20
    kept = [load_custody(world.state, task, at).holders for at in range(6)]
    assert all(any(holder.bond for holder in holders) for holders in kept)


def test_the_check_fund_bears_nothing_that_a_requester_and_its_worker_can_repeat() -> None:
    world, hoarder, task = market(windows=6)
    before = fund_balance(world.state)
    world.run(task, until=lambda record: hoarder in record.excluded)
    assert lines(world, task, Purpose.VERIFIER_FEE)
    assert fund_balance(world.state) == before


@pytest.mark.parametrize("poor", [0, TRIED_MAX - DRAWN_MAX, KEEPERS])
def test_machines_without_the_bond_have_refused_nothing(poor: int) -> None:
    """Where nobody could have signed the worker keeps the output, and its pay is held (R58)."""
    world, hoarder, task = market()
    for at in range(poor):
        keeper = bytes([10 + at]) * 20
        debit(world.state, keeper, (left := balance_of(world.state, keeper)))
        world.issued -= left
    done = (CustodyPhase.KEPT, CustodyPhase.UNKEPT)
    world.run(task, until=lambda record: record.next_window > 0)
    record = until(world, task, 0, lambda record: record.phase in done)
    drawn_poor = sum(bytes([10 + at]) * 20 in record.used for at in range(poor))
    assert record.tried == record.drawn - drawn_poor
    is_refused = record.tried >= DRAWN_MAX
    assert is_refused == (poor < KEEPERS) == (record.phase is CustodyPhase.UNKEPT)
    assert [holder.address for holder in record.holders] == ([] if is_refused else [hoarder])


def test_a_worker_with_too_many_misses_is_not_drawn_for_and_loses_the_window_at_once() -> None:
    world, hoarder, task = market(misses=2)
    world.run_to(task, Phase.SETTLED)
    again = world.create(spec(total=60, price=WORTH))
    world.run(again, until=lambda record: record.next_window > 0)
    record = until(world, again, 0, lambda record: record.phase is CustodyPhase.UNKEPT)
    drawn = [event for event in world.events if event.topics[0] == CUSTODIAN_DRAWN.topic]
    assert (record.tried, record.pending) == (TRIED_MAX, ())
    assert not [event for event in drawn if event.topics[1] == again]
    world.run_to(again, Phase.SETTLED)
    assert hoarder in world.task(again).excluded


def test_a_forged_window_is_not_void_with_an_unkept_one_before_its_lie_is_proven() -> None:
    """Else a liar keeps the output before, hands it over if nobody checks, and loses nothing if somebody does."""
    world, liar, task = market()
    world.run(task, until=lambda record: record.next_window == 1)
    world.machines[liar] = Manners(lies=True, silent=frozenset({Action.COMPUTE}))
    until(world, task, 0, lambda record: record.tried == TRIED_MAX)
    checker = b"\x02" * 20
    world.machines[liar], world.machines[checker] = Manners(lies=True), Manners(silent=frozenset({Action.SEAL}))
    record = until(world, task, 0, lambda record: record.phase is CustodyPhase.UNKEPT)
    for _ in range(3):
        world.block()
    assert (load_window(world.state, task, 0).ripe, load_window(world.state, task, 1).phase) == (
        1, WindowPhase.SEALING,
    )  # fmt: skip
    case = Case.load(Scope(world.state, world.context(), world.events.append, world.parameters), task)
    assert waits_unkept(case, record)
    assert not waits_unkept(case, record._replace(until_ms=case.now)), "but not for ever"
    world.machines[checker] = HONEST
    world.run(task, until=lambda record: liar in record.excluded)
    assert [load_window(world.state, task, at).reason for at in range(2)] == [Reason.LIE_PROVEN] * 2
    proven = [line for line in lines(world, task, Purpose.LIE_PROVEN) if line.pool == Pool.BOND]
    (bond, *_) = (line.amount for line in lines(world, task, Purpose.WORKER_BOND))
    returned = [line for line in lines(world, task, Purpose.BOND_RETURN) if line.party == liar]
    assert sum(line.amount for line in proven) > bond // 4 and not returned
    assert require_node(world.state, liar).bad == 1


# Results (R91)


@pytest.mark.parametrize("friends", [1, 2, 3])
def test_n16_a_result_that_only_friends_of_its_worker_keep_is_not_final(friends: int) -> None:
    """One friend among eight drawn machines was enough to be paid, and to sell the result."""
    world, hoarder, task = market(windows=6)
    world.hoarders = set()
    world.run(task, until=lambda record: record.next_window == 5)
    others = set(world.machines) - {bytes([10 + at]) * 20 for at in range(friends)}
    world.unsigning = others
    world.run(task, until=lambda record: hoarder in record.excluded)
    assert load_window(world.state, task, 5).reason is Reason.NOT_KEPT
    world.unsigning = set()
    world.run_to(task, Phase.SETTLED)
    assert workers(world, task) == [hoarder] * 5 + [b"\x03" * 20]


@pytest.mark.parametrize("silent", [1, 2, 3])
def test_for_each_machine_that_did_not_sign_for_a_result_one_more_does(silent: int) -> None:
    world, worker, task = market(windows=2)
    world.hoarders = set()
    world.unsigning = {bytes([10 + at]) * 20 for at in range(silent)}
    for seed in range(8):
        world.seed = seed
        world.run_to(task, Phase.SETTLED)
        record = load_custody(world.state, task, 1)
        signed = [holder for holder in record.holders if holder.bond]
        assert len(signed) == KEPT.custody_copies + record.refused == record.tried - record.refused
        assert (record.holder(worker) is not None) == (record.refused > 0)
        task = world.create(spec(total=40, price=WORTH))


def test_many_custodians_of_a_result_share_what_is_locked_for_it() -> None:
    world, _, task = market(windows=1)
    world.hoarders = set()
    world.unsigning = {bytes([10 + at]) * 20 for at in range(4)}
    for seed in range(20):
        world.seed = seed
        world.run_to(task, Phase.SETTLED)
        record = load_custody(world.state, task, 0)
        world.block(KEPT.custody_ms)
        for _ in range(3):
            world.keep()
            world.block()
        paid = [line.amount for line in lines(world, task, Purpose.CUSTODY_PAY)]
        assert len(paid) == len([holder for holder in record.holders if holder.bond])
        assert len(set(paid)) == 1 and sum(paid) <= record.reserve
        if len(paid) > KEPT.custody_copies + 1:
            return
        task = world.create(spec(total=20, price=WORTH))
    raise AssertionError("nobody refused")
