"""Attacks on what is paid for work: a worker's clock, and the speed that it claims."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from billing.escrow import Purpose
from state.primitives.errors import ConfigError
from tasks.kinds.classifier import ClassifierPart, Model
from tasks.ledger import queries
from tasks.ledger.lifecycle import Phase, Reason
from tasks.ledger.parameters import WINDOW_SLACK_MIN
from tasks.ledger.progress import window_span_ms
from tasks.ledger.queries import Action
from tasks.ledger.records import load_window
from tasks.ledger.registry import NodeRole, require_node
from tasks.ledger.transitions import SUBMIT_WINDOW, UPDATE_NODE, node_payload
from tasks.programs.operators.rules import UNITS
from tasks.proofs import window_proof_to_value
from tasks.spec import RATE_MAX, Requirements
from tests.tasks.ledger.test_trials import LINKS, RATE, TRIALS, Trialists
from tests.tasks.world import QUICK, WORTH, Manners, World, leaves_of, proof_of, spec

WORK, CHECK = NodeRole.COMPUTE, NodeRole.VERIFY
HAND_MADE: Final = Manners(silent=frozenset({Action.COMPUTE}))
"""Does everything of itself but to prove its windows."""


def window_price(*, waits_ms: int, rate: int) -> int:
    """What a window costs whose worker claims ``rate`` and waits ``waits_ms`` before it proves it."""
    world = World()
    job = spec(total=20)
    worker = world.add_machine(1, roles=WORK, manners=HAND_MADE, rate=rate)
    world.add_machine(2, roles=CHECK)
    task = world.create(job)
    world.run_to(task, Phase.RUNNING)
    world.block(waits_ms)
    leaves = leaves_of(job, 0, job.init_root)
    world.published[task, 0] = leaves
    proof = proof_of(job, task, 0, leaves)
    assert world.send(worker, SUBMIT_WINDOW, [window_proof_to_value(proof)]) is None
    world.run_to(task, Phase.SETTLED)
    pay = [
        line.amount
        for line in queries.bill(world.state, task).lines
        if line.party == worker and line.purpose in (Purpose.WINDOW_PAY, Purpose.HOLD_RELEASE)
    ]
    charge = load_window(world.state, task, 0).charge
    assert sum(pay) == charge
    return charge


@pytest.mark.parametrize("rate", [0, 1, 10**10, RATE_MAX])
def test_a5_a_worker_that_waits_and_meters_more_time_is_paid_no_more(rate: int) -> None:
    honest = window_price(waits_ms=1_000, rate=10**10)
    idle = window_price(waits_ms=15_000, rate=rate)
    assert idle == honest == spec(total=20).window_units(0) * (WORTH // 2000) // 10**12


def test_n7_a_job_of_a_million_tiny_steps_is_paid_and_has_time_for_each_of_its_calls() -> None:
    """Nearly nothing is multiplied in it: without a fixed part for a call it would have no units and no time."""
    job = spec(total=1_000_000, segment=1_000, window=100_000)
    assert isinstance(job.part, ClassifierPart)
    tiny = job._replace(part=job.part._replace(model=Model("mlp", (1, 2), "relu"), batch=1))
    calls, products = len(tiny.program().calls), 2 * 2 * 3
    assert tiny.step_units >= calls * min(cost.call for cost in UNITS.values()) > 10_000 * products
    needed_ms = tiny.window_units(0) * 1_000 // 10**10
    assert window_span_ms(tiny, 0, 10**10, replace(QUICK, window_slack=3)) >= 3 * needed_ms > 100_000


def test_no_chain_has_deadlines_below_the_time_of_the_slowest_program() -> None:
    """The search for programs and operators (`bench programs`, `bench operators`) has this as its goal (R161)."""
    with pytest.raises(ConfigError, match="window_slack"):
        replace(QUICK, window_slack=WINDOW_SLACK_MIN - 1)
    shortest = replace(QUICK, window_slack=WINDOW_SLACK_MIN, window_grace_ms=0)
    for rate in (10**10, RATE_MAX):
        assert window_span_ms(spec(), 0, rate, shortest) * rate >= 3 * 1_000 * spec().window_units(0)


def test_a8_a_claimed_speed_wins_no_task_from_a_cheaper_machine() -> None:
    world = World()
    honest = world.add_machine(1, roles=WORK, price=WORTH // 2500, rate=10**10)
    boaster = world.add_machine(2, roles=WORK, price=WORTH // 2500 * 18 // 10, rate=RATE_MAX)
    world.add_machine(3, roles=CHECK)
    took = []
    for _ in range(12):
        task = world.create(spec(total=20))
        took.append(world.run_to(task, Phase.ASSIGNED).worker)
        world.run_to(task, Phase.SETTLED)
    assert took == [honest] * 12, f"{took.count(boaster)} of 12 tasks at 1.8 times the price"


def test_a_claimed_rate_shortens_the_deadline_and_a_low_one_lengthens_it_only_to_a_slow_cores_time() -> None:
    job = spec()
    slow_ms = 20 * job.step_ms
    parameters = replace(QUICK, window_slack=3)
    spans = {rate: window_span_ms(job, 0, rate, parameters) for rate in (0, 1, 10**9, 10**10, RATE_MAX)}
    assert spans[0] == spans[1] == spans[10**9] == 3 * slow_ms + QUICK.window_grace_ms, (
        "a slow core's time at most"
    )
    assert spans[10**10] == 3 * -(-job.window_units(0) // 10**7) + QUICK.window_grace_ms < spans[0]
    assert spans[RATE_MAX] == 3 + QUICK.window_grace_ms
    asks = job._replace(requirements=Requirements(0, 0, 10**10))
    assert {window_span_ms(asks, 0, rate, parameters) for rate in (0, 1, 10**10)} == {spans[10**10]}


@pytest.mark.parametrize("is_boaster", [False, True])
def test_a_boaster_is_late_where_an_honest_machine_is_not(is_boaster: bool) -> None:
    """Both need a slow core's time for a window, and one of them claims more."""
    job = spec(total=4_000, segment=200, window=4_000)
    took_ms = 4_000 * job.step_ms
    world = World(parameters=replace(QUICK, window_grace_ms=0, window_slack=3))
    world.add_machine(1, roles=WORK, manners=HAND_MADE, rate=10**11 if is_boaster else 10**9)
    world.add_machine(2, roles=CHECK)
    task = world.create(job)
    world.run_to(task, Phase.RUNNING)
    world.block(took_ms)
    world.block()
    record = world.task(task)
    expected = (Phase.DEGRADED, Reason.WINDOW_TIMEOUT) if is_boaster else (Phase.RUNNING, Reason.STARTED)
    assert (record.phase, record.reason) == expected


def test_a_rate_that_rises_after_the_match_changes_no_deadline() -> None:
    world = World()
    worker = world.add_machine(1, roles=WORK, manners=HAND_MADE, rate=10**9)
    world.add_machine(2, roles=CHECK)
    task = world.create()
    world.run_to(task, Phase.ASSIGNED)
    profile = require_node(world.state, worker).profile
    assert world.send(worker, UPDATE_NODE, node_payload(profile._replace(rate=RATE_MAX), 0)) is None
    world.run_to(task, Phase.RUNNING)
    record = world.task(task)
    assert record.rate == 10**9
    assert record.deadline_ms - world.time_ms == window_span_ms(spec(), 0, 10**9, QUICK)


def test_a_job_takes_no_machine_below_its_least_rate() -> None:
    world = World(parameters=TRIALS)
    slow = world.add_machine(1, roles=WORK, price=1, rate=RATE)
    fit = world.add_machine(2, roles=WORK, rate=RATE)
    world.add_machine(3, roles=CHECK)
    trialists = Trialists(world, links={slow: LINKS // 2})
    while not all(trialists.trial(machine).rate for machine in (slow, fit)):
        world.block()
        for machine in (slow, fit):
            trialists.act(machine)
    least = trialists.trial(fit).rate
    assert trialists.trial(slow).rate < least <= RATE, "both claim it"
    task = world.create(spec()._replace(requirements=Requirements(0, 0, least)))
    assert world.run_to(task, Phase.ASSIGNED).worker == fit
