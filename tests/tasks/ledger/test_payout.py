"""Earnings go where the key of a machine cannot reach: signed, in the real runtime."""

from __future__ import annotations

import pytest

from billing.escrow import Movement
from state.view.accounts import balance_of
from tasks.ledger import queries
from tasks.ledger.lifecycle import Phase
from tests.tasks.signed import CHECK, KEYS, WORK, SignedWorld


@pytest.mark.xfail(strict=True, reason="earnings go to the account of the machine's key")
def test_who_steals_the_key_of_a_machine_gets_none_of_its_earnings() -> None:
    world = SignedWorld()
    (worker, verifier, operator), others = KEYS[1:4], KEYS[4:6]
    world.join(worker, world.profile(worker, roles=WORK, operator=operator))
    world.join(verifier, world.profile(verifier, roles=CHECK, operator=others[0]))
    before = [balance_of(world.state, key.address) for key in (operator, others[0])]
    task = world.create()
    world.run_to(task, Phase.SETTLED)
    lines = queries.bill(world.state, task).lines
    paid_to = {line.party for line in lines if line.movement == Movement.PAID}
    assert not paid_to & {worker.address, verifier.address}, "the machine's own account was paid"
    after = [balance_of(world.state, key.address) for key in (operator, others[0])]
    assert all(late > early for early, late in zip(before, after, strict=True))
