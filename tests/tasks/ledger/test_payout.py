"""Earnings go where the key of a machine cannot reach: signed, in the real runtime."""

from __future__ import annotations

from billing.escrow import Movement, earnings_of
from state.primitives.keys import SecretKey
from state.view.accounts import balance_of
from tasks.ledger import queries
from tasks.ledger.lifecycle import Phase
from tasks.ledger.registration import payout_of
from tasks.ledger.registry import NodeProfile, load_node
from tasks.ledger.transitions import RETIRE_NODE, SET_PAYOUT, UPDATE_NODE, node_payload
from tests.tasks.signed import CHECK, KEYS, WORK, SignedWorld
from tests.tasks.world import QUICK


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


def test_only_the_account_that_is_paid_can_change_that_whatever_the_machines_key_does() -> None:
    world = SignedWorld()
    machine, operator, thief, safe = KEYS[1:5]
    own = world.profile(machine)

    def payout() -> bytes:
        return payout_of(world.state, machine.address)

    def set_by(key: SecretKey, to: bytes) -> str | None:
        return world.send(key.address, SET_PAYOUT, [machine.address, to])

    def update(profile: NodeProfile) -> str | None:
        return world.send(machine.address, UPDATE_NODE, node_payload(profile, 0))

    assert set_by(machine, machine.address) == "node_unknown"
    world.join(machine, own)
    assert payout() == machine.address
    assert set_by(operator, operator.address) == "not_yours"
    assert update(world.profile(machine, operator=operator)) is None
    assert payout() == operator.address, "the consent of the operator covers it"
    # With the machine's key alone: another operator, none, a direct change, a new registration.
    assert set_by(machine, thief.address) == "not_yours"
    for profile in (world.profile(machine, operator=thief), own):
        assert update(profile) is None
        assert payout() == operator.address
    assert set_by(thief, thief.address) == "not_yours"
    assert set_by(operator, safe.address) is None
    assert set_by(operator, operator.address) == "not_yours"
    assert world.send(machine.address, RETIRE_NODE, []) is None
    while load_node(world.state, machine.address) is not None:
        world.block(QUICK.retire_ms)
    assert payout() == safe.address
    world.join(machine, world.profile(machine, operator=thief))
    assert payout() == safe.address
    assert set_by(safe, machine.address) is None


def test_earnings_stay_those_of_the_machine() -> None:
    world = SignedWorld()
    worker, verifier, safe = KEYS[1:4]
    world.join(worker, world.profile(worker, roles=WORK))
    world.join(verifier, world.profile(verifier, roles=CHECK))
    for key in (worker, verifier):
        assert world.send(key.address, SET_PAYOUT, [key.address, safe.address]) is None
    before = balance_of(world.state, safe.address)
    world.run_to(world.create(), Phase.SETTLED)
    earned = [sum(earnings_of(world.state, key.address).values()) for key in (worker, verifier)]
    assert all(earned) and balance_of(world.state, safe.address) == before + sum(earned)
    assert earnings_of(world.state, safe.address) == {}
