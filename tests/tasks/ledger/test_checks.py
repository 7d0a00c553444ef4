"""What a check costs and may take: its least fee, its time, and verdicts on what could not be fetched."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.escrow import Movement, Pool, Purpose
from state.view.accounts import balance_of, debit
from tasks.ledger import queries
from tasks.ledger.lifecycle import Phase, Reason, WindowPhase
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.records import load_window
from tasks.ledger.registry import NodeRole
from tasks.ledger.seats import seal_time
from tasks.ledger.settlement import budget_of
from tasks.ledger.transitions import CREATE_TASK
from tasks.spec import Model, encode_spec
from tests.tasks.world import DKB, HONEST, QUICK, REQUESTER, Manners, World, spec

CHECK, WORK = NodeRole.VERIFY, NodeRole.COMPUTE
BLIND: Final = Manners(blind=True)
LEAST: Final = 5 * 10**14
NEWCOMERS: Final = replace(QUICK, verifiers_sure=3, new_windows=1_000, check_fee_min=LEAST)


# The least fee


@pytest.mark.parametrize("price", [1, 10**9, 10**14, 10**17])
def test_every_verifier_of_a_window_gets_the_least_fee_however_cheap_the_work_is(price: int) -> None:
    world = World(parameters=NEWCOMERS)
    world.add_machine(1, roles=WORK, price=price)
    for name in range(100, 105):
        world.add_machine(name, roles=CHECK)
    task = world.create(spec(price=price))
    world.run_to(task, Phase.SETTLED)
    lines = [line for line in queries.bill(world.state, task).lines if line.movement == Movement.PAID]
    for number in range(3):
        window = load_window(world.state, task, number)
        assert window.verifiers
        for seat in window.verifiers:
            fee = sum(
                line.amount for line in lines
                if line.party == seat.address and line.purpose == Purpose.VERIFIER_FEE and line.subject == number
            )  # fmt: skip
            assert fee >= LEAST
        taken = sum(
            line.amount for line in lines
            if line.subject == number and line.pool == Pool.PRICE and line.purpose != Purpose.PREPARATION
        )  # fmt: skip
        assert window.charge * 8 // 10 <= taken <= window.charge  # a fifth is held; the least fee costs it nothing


def test_who_cannot_lock_the_least_fees_creates_nothing() -> None:
    world = World(parameters=NEWCOMERS)
    job = spec(price=1)
    budget = budget_of(job, NEWCOMERS)
    assert budget.verification >= 3 * 3 * LEAST > 1_000_000 * budget.price
    debit(world.state, REQUESTER, balance_of(world.state, REQUESTER) - budget.total + 1)
    world.issued -= 1_000_000 * DKB - budget.total + 1
    assert world.send(REQUESTER, CREATE_TASK, [encode_spec(job)]) == "insufficient_funds"
    world.fund(REQUESTER, 1)
    world.create(job)
    assert balance_of(world.state, REQUESTER) == 0


# The time


@given(
    st.lists(st.integers(2, 512), min_size=2, max_size=5), st.integers(1, 16), st.integers(1, 1 << 24),
)  # fmt: skip
def test_a_verifier_has_time_to_fetch_its_states_over_the_slowest_line(
    widths: list[int], segments: int, bytes_per_s: int
) -> None:
    parameters = TaskParameters(seal_bytes_per_s=bytes_per_s)
    job = spec().changed(model=Model("mlp", (*widths, 10), "relu"))
    time = seal_time(job, segments, parameters)
    states = (segments + 1) * 12 * job.plan().parameters
    assert (time.fetch_ms + 1) * bytes_per_s >= 1000 * states
    steps = segments * job.schedule.segment_steps
    assert time.run_ms >= max(parameters.seal_ms_min, steps * job.step_ms)


def test_the_deadline_of_the_seals_has_room_for_the_states() -> None:
    parameters = replace(QUICK, seal_bytes_per_s=1024)
    world = World(parameters=parameters)
    world.add_machine(1, roles=WORK)
    world.add_machine(100, roles=CHECK, manners=Manners(silent=frozenset(queries.Action)))
    task = world.create()
    world.run(
        task, until=lambda task: task.next_window > 0 and (
            load_window(world.state, task.id, 0).phase == WindowPhase.SEALING
        )
    )  # fmt: skip
    window = load_window(world.state, task, 0)
    states = (len(window.sampled) + 1) * spec().plan().state_limit_bytes
    assert window.deadline_ms - world.time_ms >= 1000 * states // 1024 - 1_000


# What could not be fetched


def bad_of(world: World, address: bytes) -> int:
    node = queries.find_node(world.state, address)
    assert node is not None
    return node.bad


def paid_for(world: World, task: bytes) -> set[bytes]:
    return {line.party for line in queries.bill(world.state, task).lines if line.movement == Movement.PAID}


def drawn(*manners: Manners) -> tuple[World, bytes, bytes, list[bytes]]:
    """An honest worker's window that waits for verdicts of verifiers of these manners; no others are there yet."""
    world = World(parameters=replace(QUICK, verifiers=len(manners)))
    worker = world.add_machine(1, roles=WORK)
    verifiers = [world.add_machine(100 + at, roles=CHECK, manners=each) for at, each in enumerate(manners)]
    task = world.create()
    world.run(task, until=lambda task: task.next_window == 1)
    for _ in range(QUICK.draw_blocks + 1):
        world.block()
    assert {seat.address for seat in load_window(world.state, task, 0).verifiers} == set(verifiers)
    return world, task, worker, verifiers


def test_a_verifier_that_alone_could_not_fetch_earns_nothing_and_is_not_blamed() -> None:
    world, task, worker, verifiers = drawn(BLIND)
    for name in range(110, 115):
        world.add_machine(name, roles=CHECK)
    world.run_to(task, Phase.SETTLED)
    assert load_window(world.state, task, 0).missed
    assert [bad_of(world, address) for address in (worker, *verifiers)] == [0, 0]
    assert verifiers[0] not in paid_for(world, task)


def test_a_result_that_no_juror_can_fetch_is_not_paid_and_is_no_mark_against_who_could() -> None:
    world, task, worker, verifiers = drawn(BLIND, HONEST)
    for name in range(110, 115):
        world.add_machine(name, roles=CHECK, manners=BLIND)
    world.run(task, until=lambda task: task.reason == Reason.NOT_SERVED)
    assert load_window(world.state, task, 0).phase == WindowPhase.VOID
    assert worker not in paid_for(world, task) and verifiers[0] in paid_for(world, task)
    assert [bad_of(world, address) for address in (worker, *verifiers)] == [1, 0, 0]
