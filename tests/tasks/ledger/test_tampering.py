"""Reports of machines about themselves (market.md R110 to R112), and what nobody else can do with them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state.primitives.errors import DecodeError
from tasks.ledger.lifecycle import ENDED, Phase, Reason
from tasks.ledger.registry import NodeStatus, load_node, require_node
from tasks.ledger.tampering import (
    DOUBLINGS_MAX,
    REPORT_TAMPERING,
    SUSPENDED_MS,
    TamperSign,
    load_tamper,
    report_values,
    suspended_for_ms,
)
from tasks.ledger.transitions import (
    CANCEL_TASK,
    HEARTBEAT,
    REGISTER_NODE,
    RETIRE_NODE,
    UPDATE_NODE,
    node_payload,
)
from tests.tasks.containers import TICK_S, block_until, container, host, meter, metered, started
from tests.tasks.world import QUICK, REQUESTER, World


def report(world: World, sender: bytes, task: bytes, sign: TamperSign = TamperSign.EXEC) -> str | None:
    return world.send(sender, REPORT_TAMPERING, report_values(task, sign))


def renew(world: World, machine: bytes) -> str | None:
    return world.send(machine, UPDATE_NODE, node_payload(require_node(world.state, machine).profile, 0))


def test_a_report_moves_the_task_on_and_suspends_its_sender_for_a_day() -> None:
    world = World()
    host(world, 1)
    task, worker = started(world, container(ticks=3))
    block_until(world, 1_000 * TICK_S)
    assert meter(world, worker, task, TICK_S) is None
    before, paid = require_node(world.state, worker), metered(world, task).paid
    block_until(world, 1_000 * TICK_S // 2)
    assert report(world, worker, task, TamperSign.TRACER) is None
    node, found = require_node(world.state, worker), load_tamper(world.state, worker)
    assert found is not None
    assert (found.sign, found.task, found.reports) == (TamperSign.TRACER, task, 1)
    assert found.until_ms == found.reported_ms + SUSPENDED_MS
    assert node.status is NodeStatus.SUSPENDED
    assert (node.bond, node.good, node.bad, node.proved, node.failures) == (
        before.bond, before.good, before.bad, before.proved, before.failures,
    ), "a report costs nothing"  # fmt: skip
    assert metered(world, task).paid == paid, "seconds after the last meter are not paid"
    record = world.task(task)
    assert record.worker != worker and worker in record.excluded and record.reason == Reason.TAMPERED
    other = host(world, 2)
    for _ in range(20):
        if world.task(task).worker:
            break
        world.block()
    assert world.task(task).worker == other, "the next machine goes on"

    assert renew(world, worker) == "machine_tampered"
    assert world.send(worker, HEARTBEAT, []) == "wrong_phase"
    world.block(SUSPENDED_MS)
    assert renew(world, worker) is None
    assert require_node(world.state, worker).status is NodeStatus.ACTIVE


def test_later_reports_suspend_longer_and_never_shorten_one() -> None:
    assert [suspended_for_ms(n) // SUSPENDED_MS for n in (1, 2, 3, 5, 6, 99)] == [1, 2, 4, 16, 16, 16]
    world = World()
    host(world, 1)
    task, worker = started(world)
    untils = []
    for sign in TamperSign:
        assert report(world, worker, task, sign) is None, "a task that it has lost can be reported too"
        found = load_tamper(world.state, worker)
        assert found is not None
        untils.append(found.until_ms)
    assert untils == sorted(untils) and len(set(untils)) == DOUBLINGS_MAX + 1


def test_a_key_does_not_come_back_early_by_retiring() -> None:
    world = World()
    host(world, 1)
    task, worker = started(world, container(ticks=3))
    profile = require_node(world.state, worker).profile
    assert report(world, worker, task) is None
    assert world.send(worker, RETIRE_NODE, []) is None
    for _ in range(10):
        world.block(QUICK.retire_ms // 4)
    found = load_tamper(world.state, worker)
    assert found is not None
    assert load_node(world.state, worker) is None, "it has retired"
    while world.time_ms < found.until_ms - 60_000:
        assert world.send(worker, REGISTER_NODE, node_payload(profile, QUICK.node_bond_min)) == "machine_tampered"
        world.block(SUSPENDED_MS // 3)
    world.block(SUSPENDED_MS)
    assert world.send(worker, REGISTER_NODE, node_payload(profile, QUICK.node_bond_min)) is None


def test_a_report_of_a_retiring_machine_leaves_it_retiring() -> None:
    world = World()
    host(world, 1)
    task, worker = started(world)
    assert world.send(worker, RETIRE_NODE, []) is None
    assert report(world, worker, task) is None
    assert require_node(world.state, worker).status is NodeStatus.RETIRING


def test_a_report_of_a_cancelled_container_ends_its_task() -> None:
    world = World()
    host(world, 1)
    task, worker = started(world)
    block_until(world, 5_000)
    assert world.send(REQUESTER, CANCEL_TASK, [task]) is None
    assert world.task(task).phase is Phase.RUNNING
    assert report(world, worker, task) is None
    assert world.task(task).phase is Phase.CANCELLED


@settings(max_examples=30, deadline=None)
@given(signs=st.lists(st.sampled_from(TamperSign), min_size=1, max_size=4), after_s=st.integers(0, 200))
def test_n44_words_of_others_suspend_no_machine(signs: list[TamperSign], after_s: int) -> None:
    """Rivals, friends of theirs and the requester say it in their own name; the chain takes none of it."""
    world = World()
    rivals = [host(world, number) for number in (2, 3)]
    worker = host(world, 1)
    task, worker = started(world, container(ticks=100))
    others = [*(address for address in (*rivals, host(world, 4)) if address != worker), REQUESTER, b"s" * 20]
    block_until(world, 1_000 * after_s)
    before, record = require_node(world.state, worker), world.task(task)
    for sign in signs:
        for sender in others:
            assert report(world, sender, task, sign) == "not_yours"
    assert require_node(world.state, worker) == before and load_tamper(world.state, worker) is None
    assert world.task(task) == record
    assert all(load_tamper(world.state, sender) is None for sender in others)
    assert report(world, worker, b"\x07" * 32) == "task_unknown"


@settings(max_examples=15, deadline=None)
@given(sign=st.sampled_from(TamperSign), says_nothing=st.booleans())
def test_n45_a_machine_that_reports_loses_no_money_and_one_that_does_not_is_not_stopped(
    sign: TamperSign, says_nothing: bool
) -> None:
    """The chain sees no difference: what can be had is that an unchanged node has no reason to be silent."""
    world = World()
    host(world, 1)
    task, worker = started(world, container(ticks=3))
    block_until(world, 1_000 * TICK_S)
    assert meter(world, worker, task, TICK_S) is None
    bond, paid = require_node(world.state, worker).bond, metered(world, task).paid
    if not says_nothing:
        assert report(world, worker, task, sign) is None
    block_until(world, 5_000)
    node = require_node(world.state, worker)
    assert (node.bond, metered(world, task).paid) == (bond, paid) and paid > 0
    assert (node.status is NodeStatus.SUSPENDED) is not says_nothing
    assert world.task(task).phase not in ENDED or not says_nothing


@pytest.mark.parametrize(
    "payload",
    [
        [],
        [b"t" * 32],
        [b"t" * 31, 1],
        [b"t" * 32, 0],
        [b"t" * 32, 9],
        [b"t" * 32, "1"],
        [1, 1],
        [b"t" * 32, 1, 1],
    ],
)
def test_other_payloads_are_refused(payload: list[object]) -> None:
    with pytest.raises(DecodeError):
        World().rules[REPORT_TAMPERING].decode(payload)
