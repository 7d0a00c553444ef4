"""Attacks on what is paid for work: a worker's clock, and the speed that it claims."""

from __future__ import annotations

from typing import Final

import pytest

from billing.escrow import Purpose
from tasks.ledger import queries
from tasks.ledger.lifecycle import Phase
from tasks.ledger.queries import Action
from tasks.ledger.records import load_window
from tasks.ledger.registry import NodeRole
from tasks.ledger.transitions import SUBMIT_WINDOW
from tasks.proofs import window_proof_to_value
from tests.tasks.world import DKB, Manners, World, leaves_of, proof_of, spec

WORK, CHECK = NodeRole.COMPUTE, NodeRole.VERIFY
HAND_MADE: Final = Manners(silent=frozenset({Action.COMPUTE}))
"""Does everything of itself but to prove its windows."""


def window_price(*, metered_ms: int, waits_ms: int) -> int:
    """What a window costs if its worker waits ``waits_ms`` before the proof and meters ``metered_ms``."""
    world = World()
    job = spec(total=20)
    worker = world.add_machine(1, roles=WORK, manners=HAND_MADE)
    world.add_machine(2, roles=CHECK)
    task = world.create(job)
    world.run_to(task, Phase.RUNNING)
    world.block(waits_ms)
    leaves = leaves_of(job, 0, job.init_root)
    world.published[task, 0] = leaves
    proof = proof_of(job, task, 0, leaves, gpu_ms=metered_ms)
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


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="the worker's own clock is the meter")
def test_a5_a_worker_that_waits_and_meters_more_time_is_paid_no_more() -> None:
    honest = window_price(metered_ms=13, waits_ms=1_000)
    idle = window_price(metered_ms=2_028, waits_ms=15_000)
    assert idle == honest, f"{idle / honest:.1f} times the honest pay"


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="claimed speed wins the ranking")
def test_a8_a_claimed_speed_wins_no_task_from_a_cheaper_machine() -> None:
    world = World()
    honest = world.add_machine(1, roles=WORK, price=DKB // 2500, score=100)
    boaster = world.add_machine(2, roles=WORK, price=DKB // 2500 * 18 // 10, score=2**39)
    world.add_machine(3, roles=CHECK)
    took = []
    for _ in range(12):
        task = world.create(spec(total=20))
        took.append(world.run_to(task, Phase.ASSIGNED).worker)
        world.run_to(task, Phase.SETTLED)
    assert took == [honest] * 12, f"{took.count(boaster)} of 12 tasks at 1.8 times the price"
