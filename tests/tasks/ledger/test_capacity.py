"""Verifiers are drawn for what they have time for, may decline, and no load takes their bonds: signed acts."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from tasks.ledger import queries
from tasks.ledger.lifecycle import ENDED, Phase
from tasks.ledger.queries import Action, CheckDuty
from tasks.ledger.registry import require_node
from tests.tasks.signed import CHECK, KEYS, WORK, SignedWorld
from tests.tasks.world import HONEST, QUICK, spec

PARAMETERS: Final = replace(
    QUICK, seal_slack=3, reveal_ms=60_000, draw_retry_ms=20_000, accept_ms=60_000, prepare_ms=60_000
)
CHECK_MS: Final = 200_000
"""What one core takes for the two segments of a window of ``JUNK``."""
JUNK: Final = spec(total=2_000, segment=1_000, window=2_000, match_ms=3_600_000)


class SlowVerifiers:
    """Honest machines that re-run one segment after the other, on one core each."""

    def __init__(self, world: SignedWorld, machines: list[bytes]) -> None:
        self.world, self.machines = world, machines
        self.free_ms = dict.fromkeys(machines, 0)
        self.done_ms: dict[tuple[bytes, bytes], int] = {}

    def act(self) -> None:
        for machine in self.machines:
            for duty in queries.verification_duties(self.world.state, machine):
                if duty.action == Action.REVEAL or self._is_done(machine, duty):
                    self.world.check(machine, duty, HONEST)

    def _is_done(self, machine: bytes, duty: CheckDuty) -> bool:
        if (machine, duty.task) not in self.done_ms:
            self.free_ms[machine] = max(self.world.time_ms, self.free_ms[machine]) + CHECK_MS
            self.done_ms[machine, duty.task] = self.free_ms[machine]
        return self.done_ms[machine, duty.task] <= self.world.time_ms


@pytest.mark.xfail(strict=True, reason="machines are drawn for more than they can check in time")
def test_a3_windows_near_the_segment_bound_cost_honest_verifiers_nothing() -> None:
    """Twelve windows at once for two verifiers, each of which can check three in the time to seal."""
    world = SignedWorld(PARAMETERS)
    worker = world.join(KEYS[1], world.profile(KEYS[1], roles=WORK, slots=16))
    machines = [world.join(key, world.profile(key, roles=CHECK)) for key in KEYS[2:4]]
    verifiers = SlowVerifiers(world, machines)
    tasks = [world.create(JUNK) for _ in range(12)]
    for _ in range(400):
        world.block(20_000)
        for duty in queries.work_duties(world.state, worker, PARAMETERS):
            world.work(worker, duty, HONEST)
        verifiers.act()
        if all(world.task(task).phase in ENDED for task in tasks):
            break
    nodes = [require_node(world.state, machine) for machine in machines]
    assert [node.bad for node in nodes] == [0, 0], "an honest verifier was drawn for more than it can do"
    assert all(node.bond >= PARAMETERS.node_bond_min for node in nodes)
    assert {world.task(task).phase for task in tasks} == {Phase.SETTLED}, "and every window is checked"
