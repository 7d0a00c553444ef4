"""Tasks that nobody takes, by the thousand: they delay no other task (market.md R13)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from tasks.ledger.lifecycle import Phase
from tasks.ledger.registry import NodeRole, require_node
from tasks.ledger.transitions import UPDATE_NODE, node_payload
from tests.tasks.queued import QueuedWorld
from tests.tasks.world import DKB, QUICK, spec

WORK, CHECK = NodeRole.COMPUTE, NodeRole.VERIFY
FEW: Final = replace(QUICK, matches_per_block=4)
"""An eighth of the searches of a block, so that 450 tasks stand for 3,600."""
JUNK: Final = 450


def flooded(world: QueuedWorld) -> bytes:
    """Fill a market without machines with tasks that offer next to nothing; returns an honest one among them."""
    for at in range(2):
        world.sign_up(f"verifier {at}", roles=CHECK)
    attacker = world.key("attacker", 10_000 * DKB)
    for _ in range(JUNK):
        world.post(spec(price=1, match_ms=86_400_000), attacker)
    honest = world.post(spec(match_ms=86_400_000))
    for _ in range(40):
        world.block()
    assert world.task(honest).phase == Phase.MATCHING
    return honest


@pytest.mark.xfail(strict=True, raises=AssertionError)
def test_a7_a_machine_that_appears_gets_the_task_that_it_admits_among_3600_others() -> None:
    world = QueuedWorld(parameters=FEW)
    honest = flooded(world)
    worker = world.sign_up("worker", roles=WORK)
    for _ in range(2):
        world.block()
    assert world.task(honest).worker == worker


@pytest.mark.xfail(strict=True, raises=AssertionError)
def test_n14_an_edit_of_the_registry_a_minute_does_not_keep_others_waiting() -> None:
    """A machine whose price all the parked tasks can pay, but that has no slot, is edited again and again."""
    world = QueuedWorld(parameters=FEW)
    honest = flooded(world)
    cheap = world.sign_up("cheap", roles=WORK, price=1, memory_mib=1)
    for _ in range(3):
        world.block()
    worker = world.sign_up("worker", roles=WORK)
    for _ in range(2):
        profile = require_node(world.state, cheap).profile
        world.send(cheap, UPDATE_NODE, node_payload(profile, 0))
        world.block()
    assert honest and world.task(honest).worker in (worker, cheap)
