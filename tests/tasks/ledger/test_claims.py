"""Claims that end a task: what is proven is paid and ends it, what is not changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from billing.escrow import Purpose, escrow_totals
from billing.prices import work_price
from state.view.accounts import balance_of
from tasks.claims import Fault, claim_to_value
from tasks.ledger import queries
from tasks.ledger.claim_transitions import CLAIM_INPUT
from tasks.ledger.claims import load_claim
from tasks.ledger.lifecycle import Phase, Reason
from tasks.ledger.queries import Action
from tasks.ledger.registry import require_node
from tasks.ledger.reputation import reputation_milli
from tasks.ledger.settlement import preparation_units
from tests.tasks.keepers import KEPT, KeptWorld
from tests.tasks.strays import STRAY, claim_against, crooked_job, stray_job
from tests.tasks.world import HONEST, QUICK, REQUESTER, WORTH, Manners, World, spec

IDLE = Manners(silent=frozenset({Action.START, Action.COMPUTE}))


def market(*manners: Manners, count: int = 2) -> World:
    world = World(replace(QUICK, decline_ms=60_000))
    for name in range(1, count + 1):
        world.add_machine(name, manners=manners[0] if manners else IDLE)
    return world


def amounts(world: World, task: bytes, purpose: Purpose, *, party: bytes) -> list[int]:
    lines = queries.bill(world.state, task).lines
    return [line.amount for line in lines if line.purpose == purpose and line.party == party]


def test_a_worker_that_proves_its_data_set_to_be_a_stray_file_is_paid_and_nothing_is_held_against_it() -> None:
    """A13: a decline put the machine into a pause and the task to the next machine, which found the same."""
    world = market()
    job = stray_job()
    task = world.create(job)
    worker = world.run_to(task, Phase.PREPARING).worker
    before, money = require_node(world.state, worker), balance_of(world.state, worker)
    claim = claim_against(task, job)
    assert claim.fault is Fault.SIZE
    assert world.send(worker, CLAIM_INPUT, [claim_to_value(claim)]) is None
    record = world.task(task)
    assert (record.phase, record.reason, record.attempts, record.worker) == (
        Phase.FAILED, Reason.INPUT_INVALID, 0, b"",
    )  # fmt: skip
    node = require_node(world.state, worker)
    price = node.profile.price_per_tera_unit
    paid = amounts(world, task, Purpose.PREPARATION, party=worker)
    assert paid == [work_price(preparation_units(job, world.parameters), price)] and paid[0] > 0
    assert (node.match_from_ms, node.cool_down_until_ms, node.declines, node.bad, node.bond) == (
        before.match_from_ms, before.cool_down_until_ms, 0, 0, before.bond,
    )  # fmt: skip
    assert (node.busy_slots, reputation_milli(node)) == (0, reputation_milli(before))
    told = load_claim(world.state, task)
    assert told is not None and (told.reason, told.fault, told.size) == (
        Reason.INPUT_INVALID, Fault.SIZE, len(STRAY),
    )  # fmt: skip
    for _ in range(3):
        world.block(world.parameters.bond_release_ms)
    assert escrow_totals(world.state, task).locked == 0
    gas = sum(amounts(world, task, Purpose.CLAIM_GAS, party=worker))
    bond = sum(amounts(world, task, Purpose.BOND_RETURN, party=worker))
    assert balance_of(world.state, worker) == money + paid[0] + gas + bond
    # At once it takes the next job.
    again = world.create()
    assert world.run_to(again, Phase.ASSIGNED).phase == Phase.ASSIGNED


def test_a_data_set_that_is_not_under_its_root_is_proven_by_its_tops() -> None:
    world = market()
    job, content = crooked_job()
    task = world.create(job)
    worker = world.run_to(task, Phase.PREPARING).worker
    claim = claim_against(task, job, content)
    assert claim.fault is Fault.ROOT
    assert world.send(worker, CLAIM_INPUT, [claim_to_value(claim)]) is None
    assert world.task(task).reason == Reason.INPUT_INVALID


def test_what_proves_nothing_changes_nothing() -> None:
    world = market()
    job = stray_job()
    task, sound = world.create(job), world.create()
    for one in (task, sound):
        world.run_to(one, Phase.PREPARING)
    worker, other = world.task(task).worker, world.task(sound).worker
    claim = claim_against(task, job)
    assert world.send(other, CLAIM_INPUT, [claim_to_value(claim)]) == "not_yours"
    assert world.send(REQUESTER, CLAIM_INPUT, [claim_to_value(claim)]) == "not_yours"
    against = claim_to_value(claim._replace(task=sound))
    assert world.send(other, CLAIM_INPUT, [against]) == "claim_unproven"
    assert world.send(worker, CLAIM_INPUT, [claim_to_value(claim._replace(size=5))]) == "claim_unproven"
    assert [world.task(one).phase for one in (task, sound)] == [Phase.PREPARING] * 2
    assert load_claim(world.state, sound) is None
    assert world.send(worker, CLAIM_INPUT, [claim_to_value(claim)]) is None
    assert world.send(worker, CLAIM_INPUT, [claim_to_value(claim)]) == "not_yours"


def test_nobody_claims_before_it_has_accepted() -> None:
    world = market(Manners(silent=frozenset({Action.ACCEPT})))
    job = stray_job()
    task = world.create(job)
    worker = world.run_to(task, Phase.ASSIGNED).worker
    claim = claim_against(task, job)
    assert world.send(worker, CLAIM_INPUT, [claim_to_value(claim)]) == "wrong_phase"


@pytest.mark.parametrize("windows", [1, 3])
def test_who_proves_the_first_window_is_paid_for_the_preparation_once(windows: int) -> None:
    world = market(HONEST, count=3)
    job = spec(total=20 * windows)
    task = world.create(job)
    world.run_to(task, Phase.SETTLED)
    worker = next(
        line.party for line in queries.bill(world.state, task).lines if line.purpose == Purpose.WINDOW_PAY
    )
    price = require_node(world.state, worker).profile.price_per_tera_unit
    (paid,) = amounts(world, task, Purpose.PREPARATION, party=worker)
    exact = work_price(preparation_units(job, world.parameters), price)
    assert 0 <= exact - paid <= 1 + exact // job.window_units(0)


def test_a_second_worker_is_not_paid_for_preparing_what_the_first_has_begun() -> None:
    """Its requester could have a friend earn it by a cancellation."""
    world = market(HONEST, count=3)
    task = world.create(spec(price=WORTH // 1000))
    first = world.run(task, until=lambda record: record.next_window == 1).worker
    for address in world.machines:
        world.machines[address] = Manners(silent=frozenset({Action.START, Action.COMPUTE}))
    from tasks.ledger.transitions import CANCEL_TASK, GIVE_UP_TASK

    assert world.send(first, GIVE_UP_TASK, [task, int(Reason.WORKER_LEFT)]) is None
    second = world.run_to(task, Phase.PREPARING).worker
    assert second != first
    assert world.send(REQUESTER, CANCEL_TASK, [task]) is None
    world.run_to(task, Phase.CANCELLED)
    assert amounts(world, task, Purpose.PREPARATION, party=second) == []
    assert len(amounts(world, task, Purpose.PREPARATION, party=first)) == 1


@pytest.mark.parametrize("proven", [1, 2])
def test_gas_of_a_claim_is_not_paid_out_of_the_price_of_windows_that_are_open(
    proven: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a high base fee the claim took all, and the deadline that made the window final raised an error."""
    world = market(HONEST, count=3)
    job = stray_job()
    task = world.create(job)
    worker = world.run(task, until=lambda record: record.next_window == proven).worker
    block = world.context()._replace(base_fee=10**15)
    monkeypatch.setattr(world, "context", lambda: block)
    assert world.send(worker, CLAIM_INPUT, [claim_to_value(claim_against(task, job))]) is None
    monkeypatch.undo()
    record = world.run_to(task, Phase.FAILED)
    assert (record.reason, record.final_windows) == (Reason.INPUT_INVALID, proven)
    assert len(amounts(world, task, Purpose.WINDOW_PAY, party=worker)) == proven
    for _ in range(3):
        world.block(world.parameters.bond_release_ms)
    assert escrow_totals(world.state, task).locked == 0


def test_nobody_claims_about_the_cipher_of_an_input_that_has_a_key() -> None:
    """The blob of a private data set never has the bytes that the job fixes: each worker could end the task."""
    world = KeptWorld(parameters=KEPT)
    for name in (1, 2):
        world.add_machine(name, manners=IDLE)
    job = stray_job()
    task = world.create(job)
    worker = world.run_to(task, Phase.PREPARING).worker
    assert world.send(worker, CLAIM_INPUT, [claim_to_value(claim_against(task, job))]) == "custody_refused"
    assert world.task(task).phase == Phase.PREPARING
