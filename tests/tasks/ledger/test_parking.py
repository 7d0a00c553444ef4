"""Tasks that nobody takes, by the thousand: they delay no other task (market.md R13)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state.view import EMPTY, Overlay, Table
from state.view.accounts import balance_of
from tasks.ledger.deadlines import FIRST_MATCH_SLOT, Due, cancel, matches_due, schedule
from tasks.ledger.lifecycle import Phase, Reason
from tasks.ledger.parking import LOOKS_MAX, parked_for
from tasks.ledger.progress import WAKES_MAX
from tasks.ledger.registry import Gpu, NodeProfile, NodeRole, is_limited, require_node
from tasks.ledger.settlement import bond_at
from tasks.ledger.transitions import GIVE_UP_TASK, REGISTER_NODE, UPDATE_NODE, node_payload
from tasks.spec import Requirements
from tests.tasks.queued import QueuedWorld
from tests.tasks.signed import KEYS, SignedWorld
from tests.tasks.world import DKB, QUICK, WORTH, World, spec

WORK, CHECK = NodeRole.COMPUTE, NodeRole.VERIFY
FEW: Final = replace(QUICK, bids_per_call=4)
"""An eighth of the searches of a block, so that 450 tasks stand for 3,600."""
JUNK: Final = 450
PARKED, PARKED_END = bytes([Table.PARKED]), bytes([Table.PARKED + 1])


def pour(world: QueuedWorld) -> None:
    """Post tasks that offer next to nothing, as many as blocks have room for."""
    attacker = world.key("attacker", 10_000 * DKB)
    for at in range(JUNK):
        world.post(spec(price=1, match_ms=86_400_000), attacker)
        if at % 16 == 15:
            world.block()
    world.block()


def flooded(world: QueuedWorld) -> bytes:
    """Fill a market without machines with tasks that offer next to nothing; returns an honest one among them."""
    for at in range(2):
        world.sign_up(f"verifier {at}", roles=CHECK)
    pour(world)
    honest = world.post(spec(match_ms=86_400_000))
    for _ in range(40):
        world.block()
    assert world.task(honest).phase == Phase.MATCHING
    return honest


def test_a7_a_machine_that_appears_gets_the_task_that_it_admits_among_3600_others() -> None:
    world = QueuedWorld(parameters=FEW)
    honest = flooded(world)
    worker = world.sign_up("worker", roles=WORK)
    for _ in range(2):
        world.block()
    assert world.task(honest).worker == worker


def test_n14_an_edit_of_the_registry_a_minute_wakes_eight_and_delays_no_other_machine() -> None:
    """A machine with many slots asks for next to nothing, and takes eight of the parked tasks at each edit."""
    world = QueuedWorld(parameters=FEW)
    honest = flooded(world)
    cheap = world.sign_up("cheap", roles=WORK, price=WORTH // 2000, slots=16)
    world.block()
    world.block()
    assert world.task(honest).worker == cheap
    second = world.post(spec(match_ms=86_400_000, gpus=1))
    world.block()
    profile = require_node(world.state, cheap).profile
    for _ in range(3):
        before = parked(world)
        world.send(cheap, UPDATE_NODE, node_payload(profile._replace(price_per_tera_unit=1), 0))
        world.block()
        assert len(before - parked(world)) <= WAKES_MAX
    assert world.task(second).phase == Phase.MATCHING
    world.sign_up("worker", roles=WORK, gpus=1, slots=2)  # the first task, which its machine left, comes too
    world.block()
    world.block()
    assert world.task(second).worker


def parked(world: World) -> set[bytes]:
    """The places of parked tasks; each is the one that its task's record names."""
    keys = {key for key, _ in world.state.scan(PARKED, PARKED_END, 100_000)}
    assert len({key[-32:] for key in keys}) == len(keys)
    for key in keys:
        record = world.task(key[-32:])
        assert record.phase in (Phase.MATCHING, Phase.DEGRADED) and record.parked == key[4]
    return keys


def waiting(count: int = 1, **job: int) -> tuple[World, bytes, list[bytes]]:
    """A market of one verifier and one machine, whose slot is taken, and tasks that wait for it."""
    world = World(parameters=replace(QUICK, bids_per_call=4))
    world.add_machine(9, roles=CHECK)
    worker = world.add_machine(1, roles=WORK)
    first = world.create()
    world.run_to(first, Phase.RUNNING)
    tasks = [world.create(spec(match_ms=3_600_000, **job)) for _ in range(count)]
    for _ in range(20):
        world.block()
    assert parked(world) and all(world.task(task).match_at_ms == 0 for task in tasks)
    return world, worker, tasks


def blocks_until(world: World, holds: Callable[[], bool], most: int = 100) -> int:
    for count in range(most):
        if holds():
            return count
        world.block()
    raise AssertionError(f"not within {most} blocks")


def test_a_free_slot_wakes_a_task() -> None:
    world, worker, (task,) = waiting()
    world.run(task, until=lambda _: not require_node(world.state, worker).busy_slots, blocks=60)
    assert blocks_until(world, lambda: world.task(task).worker == worker) <= 2
    assert not parked(world)


def test_a_lower_price_wakes_a_task_and_the_same_price_does_not() -> None:
    world = World()
    world.add_machine(9, roles=CHECK)
    worker = world.add_machine(1, roles=WORK, price=WORTH // 100)
    task = world.create(spec(match_ms=3_600_000))
    world.block()
    profile = require_node(world.state, worker).profile
    for price, expected in ((WORTH // 100, b""), (WORTH // 1000, worker)):
        payload = node_payload(profile._replace(price_per_tera_unit=price), 0)
        assert world.send(worker, UPDATE_NODE, payload) is None
        for _ in range(2):
            world.block()
        assert world.task(task).worker == expected


@pytest.mark.parametrize("leave", [Phase.ASSIGNED, Phase.RUNNING])
def test_the_end_of_a_pause_wakes_a_task(leave: Phase) -> None:
    world = World()
    world.add_machine(9, roles=CHECK)
    worker = world.add_machine(1, roles=WORK)
    first = world.create(spec(match_ms=3_600_000))
    world.run_to(first, leave)
    assert world.send(worker, GIVE_UP_TASK, [first, int(Reason.WORKER_LEFT)]) is None
    second = world.create(spec(match_ms=3_600_000))
    world.block()
    node = require_node(world.state, worker)
    until_ms = max(node.match_from_ms, node.cool_down_until_ms)
    assert world.time_ms < until_ms and not world.task(second).worker
    world.time_ms = until_ms
    assert blocks_until(world, lambda: world.task(second).worker == worker) <= 2
    assert not world.task(first).worker  # it is not offered the task that it left


def test_a_woken_task_whose_machine_nobody_could_check_searches_again() -> None:
    """A verifier that registers wakes nobody: the task looks again by itself, as after a search of its own."""
    world = SignedWorld()
    task = world.create(spec(match_ms=3_600_000))
    world.block()
    assert world.task(task).parked and not world.task(task).match_at_ms
    worker = world.join(KEYS[1], world.profile(KEYS[1], roles=WORK))
    world.block()
    world.join(KEYS[2], world.profile(KEYS[2], roles=CHECK))
    assert blocks_until(world, lambda: world.task(task).worker == worker) <= 10
    assert not parked(world)


@pytest.mark.parametrize("reason", ["requires more", "bond"])
def test_tasks_that_a_machine_cannot_take_hide_no_other_for_long(reason: str) -> None:
    """As many as a look reads, of the class of an honest task and at a higher price; a look passes some over."""
    world = SignedWorld()
    world.join(KEYS[1], world.profile(KEYS[1], roles=CHECK))
    needs = Requirements(0, 40_000, 0)
    junk = spec(price=WORTH // 4, match_ms=3_600_000)._replace(
        requirements=needs._replace(memory_mib=65_000) if reason == "requires more" else needs
    )
    for _ in range(LOOKS_MAX):
        world.create(junk)
    honest = world.create(spec(match_ms=3_600_000)._replace(requirements=needs))
    world.block()
    assert world.task(honest).parked and not world.task(honest).match_at_ms
    worker = KEYS[2].address
    profile = world.profile(KEYS[2], roles=WORK)
    free = bond_at(junk, profile.price_per_tera_unit, 0, QUICK, profile.rate) // 2
    bond = balance_of(world.state, worker) - free if reason == "bond" else QUICK.node_bond_min
    assert world.send(worker, REGISTER_NODE, node_payload(profile, bond)) is None
    assert world.task(honest).phase == Phase.MATCHING
    assert world.send(worker, UPDATE_NODE, node_payload(profile, 0)) is None
    world.block()
    assert world.task(honest).worker == worker, "the first look passed some over"
    parked(world)


def test_a_parked_task_still_expires() -> None:
    world, _, (task,) = waiting()
    world.machines.clear()
    world.time_ms += 3_600_000
    world.block()
    assert world.task(task).phase == Phase.EXPIRED
    assert not parked(world)


def test_of_the_tasks_that_a_machine_admits_the_highest_price_comes_first() -> None:
    world = World()
    world.add_machine(9, roles=CHECK)
    tasks = {price: world.create(spec(price=price, match_ms=3_600_000)) for price in (10, 30, 20, 40)}
    world.block()
    worker = world.add_machine(1, roles=WORK, price=15, slots=2)
    world.block()
    world.block()
    assert [price for price, task in tasks.items() if world.task(task).worker == worker] == [30, 40]


def test_many_new_tasks_of_small_budgets_delay_no_larger_one() -> None:
    world = QueuedWorld(parameters=FEW)
    for at in range(2):
        world.sign_up(f"verifier {at}", roles=CHECK)
    worker = world.sign_up("worker", roles=WORK)
    world.block()
    pour(world)
    honest = world.post()
    world.block()
    world.block()
    assert world.task(honest).worker == worker


def test_first_looks_are_shared_by_budget_and_none_is_left_out() -> None:
    state = Overlay(EMPTY)
    dues = [
        Due(1_000 + at, rank.to_bytes(32, "big"), FIRST_MATCH_SLOT, rank)
        for rank in (3, 9, 20)
        for at in range(20)
    ]
    for due in dues:
        schedule(state, due)
    looks = matches_due(state, 2_000, 16)
    assert Counter(due.rank for due in looks) == {20: 10, 9: 4, 3: 2}
    assert looks[0].time_ms == 1_000
    taken = set[Due]()
    while looks := matches_due(state, 2_000, 16):
        for due in looks:
            cancel(state, due)
        taken |= set(looks)
    assert taken == set(dues)
    schedule(state, dues[0])
    assert matches_due(state, 999, 16) == []


SIZES: Final = st.sampled_from((0, 1, 15, 16, 17, 1_000, 64_000, 1 << 20))


@settings(max_examples=60, deadline=None)
@given(
    machine=st.tuples(st.integers(0, 16), SIZES, SIZES, st.integers(1, 40)),
    jobs=st.lists(st.tuples(st.integers(0, 16), SIZES, SIZES, st.integers(1, 40)), max_size=30),
    seed=st.binary(min_size=4, max_size=4),
)  # fmt: skip
def test_a_machine_finds_every_task_that_it_admits(
    machine: tuple[int, int, int, int], jobs: list[tuple[int, int, int, int]], seed: bytes
) -> None:
    world = World(parameters=replace(QUICK, trial_ms=10_000))  # else no job may require a rate
    admitted = set()
    gpus, memory, speed, price = machine
    profile = NodeProfile(
        b"m" * 20, WORK, (Gpu("card", 1),) * gpus, 64, memory, 256, price, speed, 1, 0, (), "test"
    )
    is_multiple = not is_limited(profile)
    for needs in jobs:
        job = spec(price=needs[3], gpus=needs[0])
        task = world.create(
            job._replace(requirements=job.requirements._replace(memory_mib=needs[1], rate_min=needs[2]))
        )
        fits = all(need <= has for need, has in zip(needs[:3], machine, strict=False)) and needs[3] >= price
        if fits and (needs[0] <= 1 or is_multiple):
            admitted.add(task)
    for _ in range(8):
        world.block()
    found = list(parked_for(world.state, profile, seed))
    assert admitted <= set(found) and len(found) == len(set(found))
