"""Warnings before an upgrade: a node that does not know the next version reports it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from node.daemon.upgrades import LOOK_BLOCKS, PendingUpgrade, UpgradeWatch, pending_upgrade
from state.transition.epochs import last_height, load_tally
from tests.state.transition.test_epochs import BLOCKS, FOUNDERS, World

EPOCHS = 7


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sets(st.integers(0, 3), max_size=1), min_size=EPOCHS, max_size=EPOCHS))
def test_it_is_said_to_be_scheduled_in_the_epoch_before_it_holds_and_in_no_other(old: list[set[int]]) -> None:
    world = World(versions=(1, 2))
    said: dict[int, int | None] = {}
    for number in range(EPOCHS * BLOCKS):
        if world.epoch.version == 2:
            break
        world.signals = {FOUNDERS[one].address: 1 for one in old[number // BLOCKS]}
        world.mint()
        pending = pending_upgrade(world.state, world.height, world.runtime.chain, 1)
        said[world.height] = None if pending is None else pending.last_height
    holds = world.epoch.version == 2
    last = world.height
    for height, scheduled in said.items():
        assert scheduled == (last if holds and height > last - BLOCKS else None)
    assert holds == (set() in old[: EPOCHS - 1])


def test_a_third_of_the_weight_may_be_faulty_and_is_not_believed() -> None:
    world = World(versions=(1, 2))
    world.signals = {key.address: 1 for key in FOUNDERS[1:]}  # one of four signals
    world.finish()
    assert load_tally(world.state, 0).signals.count(2) == 1  # type: ignore[union-attr]
    assert pending_upgrade(world.state, world.height, world.runtime.chain, 1) is None
    world.signals = {key.address: 1 for key in FOUNDERS[2:]}
    world.finish()
    for _ in range(BLOCKS):
        assert pending_upgrade(world.state, world.height, world.runtime.chain, 1) == PendingUpgrade(2, 50, None)
        world.mint()
    assert pending_upgrade(world.state, world.height, world.runtime.chain, 2) is None


def test_the_owner_hears_once_an_epoch_and_when_it_is_scheduled() -> None:
    world = World(versions=(1, 2), epoch_blocks=4 * LOOK_BLOCKS, unbonding_ms=10**6)
    world.signals = {FOUNDERS[0].address: 1}
    watch = UpgradeWatch(world.state, world.runtime.chain, 1)
    assert watch.note(world.height) is False
    heard = []
    for epoch in range(4):
        if epoch == 1:
            world.signals = {}
        while world.height < last_height(epoch, world.runtime.chain):
            world.mint()
            if watch.note(world.height):
                assert watch.pending is not None
                heard.append((epoch, watch.pending.percent, watch.pending.last_height))
        if world.runtime.epoch_at(world.state, world.height + 1).version == 2:
            break
    assert heard == [(0, 75, None), (1, 75, None), (2, 100, last_height(2, world.runtime.chain))]
