"""What an operator with many machines, or a machine with a past, may not do: signed, in the real runtime."""

from __future__ import annotations

from dataclasses import replace

from tasks.ledger.lifecycle import Phase, Reason
from tasks.ledger.records import load_window
from tasks.ledger.registry import NodeRole, load_node, require_node
from tasks.ledger.transitions import GIVE_UP_TASK, RETIRE_NODE
from tests.tasks.signed import CHECK, KEYS, REQUESTER_KEY, WORK, SignedWorld
from tests.tasks.world import QUICK, Manners


def test_a12_one_operator_has_one_seat_of_a_window_and_of_its_jury() -> None:
    """Eight of fourteen verifiers are one operator's; the others can fetch nothing, so a jury is drawn."""
    world = SignedWorld(replace(QUICK, verifiers=3, verifiers_sure=3))
    worker, operator, machines, others = KEYS[1], KEYS[2], KEYS[3:11], KEYS[11:17]
    world.join(worker, world.profile(worker, roles=WORK))
    for key in machines:
        world.join(key, world.profile(key, roles=CHECK, operator=operator))
    for key in others:
        world.join(key, world.profile(key, roles=CHECK), manners=Manners(blind=True))
    task = world.create()
    world.run(task, until=lambda record: record.next_window > 0 and load_window(world.state, task, 0).jurors != ())
    window = load_window(world.state, task, 0)
    for seats in (window.verifiers, window.jurors):
        operators = [require_node(world.state, seat.address).profile.operator for seat in seats]
        assert len(set(operators)) == len(operators), "one operator has several seats"
    both = [
        require_node(world.state, seat.address).profile.operator for seat in (*window.verifiers, *window.jurors)
    ]
    assert both.count(operator.address) <= 1, "an operator that checked a window judges it too"


def test_machines_of_the_requesters_operator_do_not_check_its_tasks() -> None:
    world = SignedWorld()
    worker, operator, machine = KEYS[1:4]
    world.join(worker, world.profile(worker, roles=WORK))
    world.join(REQUESTER_KEY, world.profile(REQUESTER_KEY, roles=NodeRole.RELAY, operator=operator))
    world.join(machine, world.profile(machine, roles=CHECK, operator=operator))
    task = world.create()
    assert world.run_to(task, Phase.EXPIRED).reason == Reason.NO_MATCH


def test_a12_a_record_outlives_retirement_and_a_new_registration() -> None:
    """A machine that left a task under way retires, takes its bond back, and registers again with the same key."""
    world = SignedWorld()
    worker, verifier = KEYS[1], KEYS[2]
    offer = world.profile(worker, roles=WORK)
    world.join(worker, offer)
    world.join(verifier, world.profile(verifier, roles=CHECK))
    task = world.create()
    world.run_to(task, Phase.RUNNING)
    assert world.send(worker.address, GIVE_UP_TASK, [task, int(Reason.WORKER_LEFT)]) is None
    marked = require_node(world.state, worker.address)
    assert (marked.bad, marked.failures) == (1, 1)
    assert world.send(worker.address, RETIRE_NODE, []) is None
    for _ in range(4):
        world.block(QUICK.retire_ms)
    assert load_node(world.state, worker.address) is None
    world.join(worker, offer)
    again = require_node(world.state, worker.address)
    assert (again.bad, again.failures) == (1, 1), "a failure is forgotten"
