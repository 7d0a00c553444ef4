"""A machine that is off is offered nothing and drawn for nothing, and what it said long ago counts for nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from state.primitives.codec import Value
from state.view.accounts import balance_of
from tasks.ledger.lifecycle import Phase
from tasks.ledger.matching import has_slot
from tasks.ledger.parameters import MINUTE_MS, TaskParameters
from tasks.ledger.queries import Action
from tasks.ledger.records import load_window
from tasks.ledger.registry import NodeRole, is_available, is_present, require_node
from tasks.ledger.transitions import (
    HEARTBEAT,
    REGISTER_NODE,
    RETIRE_NODE,
    SUSPEND_NODE,
    UPDATE_NODE,
    node_payload,
)
from tests.tasks.ledger.test_weights import calls_of
from tests.tasks.signed import FEE, KEYS, SignedWorld
from tests.tasks.world import QUICK, Manners, World

PRESENCE_MS: Final = 60_000
BRIEF: Final = replace(QUICK, presence_ms=PRESENCE_MS)
WORK, CHECK = NodeRole.COMPUTE, NodeRole.VERIFY


def renew(world: World, address: bytes) -> str | None:
    return world.send(address, UPDATE_NODE, node_payload(require_node(world.state, address).profile, 0))


def test_by_default_ten_minutes_of_silence_are_too_many() -> None:
    assert TaskParameters().presence_ms == 10 * MINUTE_MS


def test_a_machine_that_was_not_seen_is_neither_offered_nor_drawn_until_it_acts() -> None:
    world = World(BRIEF)
    off, worker, checker = (
        world.add_machine(1, price=1), world.add_machine(2, roles=WORK), world.add_machine(3, roles=CHECK),
    )  # fmt: skip
    world.block(PRESENCE_MS // 2)
    for address in (worker, checker):
        assert world.send(address, HEARTBEAT, []) is None
    world.block(PRESENCE_MS // 2 + 1)
    assert not is_available(require_node(world.state, off), world.time_ms, BRIEF)
    task = world.create()
    assert world.run_to(task, Phase.SETTLED).worker == worker, "the machine that is off is the cheapest"
    for number in range(3):
        assert [seat.address for seat in load_window(world.state, task, number).verifiers] == [checker]
    world.machines[off] = Manners(silent=frozenset(Action))
    assert world.send(off, HEARTBEAT, []) is None
    assert world.run_to(world.create(), Phase.ASSIGNED).worker == off


def test_a_task_that_waits_is_offered_to_a_machine_that_comes_back() -> None:
    world = World(BRIEF)
    worker, checker = world.add_machine(1, roles=WORK), world.add_machine(2, roles=CHECK)
    world.block(PRESENCE_MS + 1)
    assert renew(world, checker) is None
    task = world.create()
    world.block()
    assert world.task(task).phase == Phase.MATCHING and world.task(task).parked
    assert world.send(worker, HEARTBEAT, []) is None
    for _ in range(3):
        world.block()
    assert world.task(task).phase == Phase.MATCHING, "a heartbeat is too cheap for a look at parked tasks"
    assert renew(world, worker) is None
    assert world.run_to(task, Phase.ASSIGNED).worker == worker


def test_after_a_chain_has_stood_still_all_come_back_for_little() -> None:
    """Who pays for more room in the first blocks shall not be the only one that is drawn."""
    world = World(BRIEF)
    nodes = [world.add_machine(at) for at in range(1, 12)]
    world.block(100 * PRESENCE_MS)
    assert not any(is_available(require_node(world.state, node), world.time_ms, BRIEF) for node in nodes)
    for node in nodes:
        assert world.send(node, HEARTBEAT, []) is None
    assert all(is_available(require_node(world.state, node), world.time_ms, BRIEF) for node in nodes)
    assert 20 * world.rules[HEARTBEAT].gas < world.rules[UPDATE_NODE].gas


def test_every_act_of_a_machine_shows_that_it_is_on() -> None:
    """A worker and a verifier with something to do need no heartbeat."""
    world = World(BRIEF)
    machines = [world.add_machine(1, roles=WORK), world.add_machine(2, roles=CHECK)]
    for _ in range(4):
        world.run_to(world.create(), Phase.SETTLED)
        world.block(PRESENCE_MS // 2)
        assert all(is_present(require_node(world.state, node), world.time_ms, BRIEF) for node in machines)
    assert world.time_ms > require_node(world.state, machines[0]).renewed_ms + 2 * PRESENCE_MS


def test_a_rate_that_was_said_too_long_ago_is_not_matched_by_but_its_machine_still_checks() -> None:
    parameters = replace(QUICK, registration_valid_ms=100_000)
    world = World(parameters)
    node = world.add_machine(1)
    for _ in range(3):
        world.block(50_000)
        assert world.send(node, HEARTBEAT, []) is None
    record = require_node(world.state, node)
    assert is_available(record, world.time_ms, parameters) and not has_slot(record, world.time_ms, parameters)
    assert renew(world, node) is None
    assert has_slot(require_node(world.state, node), world.time_ms, parameters)


@pytest.mark.parametrize(("kind", "reason"), [(SUSPEND_NODE, "wrong_phase"), (RETIRE_NODE, "wrong_phase")])
def test_a_machine_that_is_not_on_the_market_has_no_heartbeat(kind: int, reason: str) -> None:
    """It would put off the return of a retiring machine's bond for ever."""
    world = World(BRIEF)
    node = world.add_machine(1)
    assert world.send(b"x" * 20, HEARTBEAT, []) == "node_unknown"
    assert world.send(node, kind, []) is None
    before = require_node(world.state, node)
    world.block()
    assert world.send(node, HEARTBEAT, []) == reason
    assert require_node(world.state, node) == before


def test_a_heartbeat_changes_one_record_of_its_machine_and_wakes_nobody() -> None:
    world = World(BRIEF)
    nodes = [world.add_machine(at) for at in range(1, 30)]
    for _ in range(3):
        world.create()
    world.block()
    world.time_ms += PRESENCE_MS // 2
    before = dict(world.state.changes)
    calls = calls_of(lambda: world.send(nodes[0], HEARTBEAT, []))
    changed = {key for key, value in world.state.changes.items() if before.get(key) != value}
    assert len(changed) == 1 and nodes[0] in next(iter(changed))
    record = require_node(world.state, nodes[0])
    assert (record.seen_ms, record.renewed_ms < record.seen_ms) == (world.time_ms, True)
    assert calls < 240


def test_a_day_of_heartbeats_costs_little() -> None:
    world = SignedWorld(BRIEF)
    key = KEYS[1]
    payload: list[Value] = node_payload(world.profile(key), QUICK.node_bond_min)
    assert world.send(key.address, REGISTER_NODE, payload) is None
    had = balance_of(world.state, key.address)
    assert world.send(key.address, HEARTBEAT, []) is None
    cost = had - balance_of(world.state, key.address)
    assert 0 < cost <= 60_000 * FEE
    assert 5 * world.runtime.rules[UPDATE_NODE].gas > 216 * 60_000, "one every 400 s"
