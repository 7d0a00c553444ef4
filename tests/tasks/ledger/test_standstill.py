"""A chain that stands still for minutes costs no honest machine a game, a window or a bond (chain.md R10)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from billing.escrow import Purpose
from state.primitives.errors import RecordDamaged
from state.primitives.genesis import ChainParameters
from state.transition.steady import save_steady_time, steady_time, stood_still_ms
from state.view import EMPTY, Overlay, Table
from tasks.ledger import queries
from tasks.ledger.disputes import DisputeEnding
from tasks.ledger.lifecycle import Phase, Reason
from tasks.ledger.registry import NodeRole, require_node
from tests.tasks.keepers import KEEP, KEPT, KeptWorld
from tests.tasks.world import HONEST, QUICK, WORTH, Manners, World, spec

GAP_MS: Final = 20 * 60_000
"""Longer than any time that ``QUICK`` sets anybody."""
STEADY, JUMPS = 1_000, 1 << 40
"""Bounds of a step of the steady time: a chain that has one, and one whose deadlines follow chain time."""
FINES: Final = (Purpose.WORKER_FINE, Purpose.VERIFIER_FINE, Purpose.HOLD_FORFEIT)
WORK, CHECK = NodeRole.COMPUTE, NodeRole.VERIFY


@dataclass
class Stopping(World):
    """A chain on which no block comes for 20 minutes, once in ``every`` blocks; the next one is empty."""

    every: int = 4
    first: int = 0

    def block(self, milliseconds: int = 1_000) -> None:
        if self.height % self.every == self.first:
            super().block(GAP_MS)
        super().block(milliseconds)


@dataclass
class StoppingKeepers(Stopping, KeptWorld):
    """The same with custody."""


def test_steady_time_is_chain_time_less_what_is_above_the_bound_of_each_step() -> None:
    chain, state = ChainParameters(steady_interval_ms_max=10_000), Overlay(EMPTY)
    assert stood_still_ms(state) == 0
    steady = [steady_time(state, 500, chain)]
    save_steady_time(state, 500, steady[0])
    for time_ms in (1_500, 11_500, 21_501, 1_000_000, 1_000_001):
        steady.append(steady_time(state, time_ms, chain))
        save_steady_time(state, time_ms, steady[-1])
    assert steady == [500, 1_500, 11_500, 21_500, 31_500, 31_501]
    assert stood_still_ms(state) == 1_000_001 - 31_501


@settings(max_examples=200, deadline=None)
@given(steps=st.lists(st.integers(0, 1 << 44), max_size=20), bound=st.integers(1, 1 << 44))
def test_steady_time_never_goes_back_and_never_above_chain_time(steps: list[int], bound: int) -> None:
    chain, state, time_ms, last = ChainParameters(steady_interval_ms_max=bound), Overlay(EMPTY), 0, 0
    for step in steps:
        time_ms += step
        steady = steady_time(state, time_ms, chain)
        assert last <= steady <= time_ms and (steady - last <= bound or last == 0)
        save_steady_time(state, time_ms, steady)
        assert stood_still_ms(state) == time_ms - steady
        last = steady


@pytest.mark.parametrize("record", [b"", bytes(15), bytes(17), bytes(15) + b"\x01"])
def test_a_damaged_record_of_the_steady_time_ends_the_node(record: bytes) -> None:
    state = Overlay(EMPTY)
    state.put(bytes([Table.CHAIN]) + b"steady-time", record)
    with pytest.raises(RecordDamaged):
        steady_time(state, 1, ChainParameters())


def market(world: World, *verifiers: Manners, keepers: int = 0) -> tuple[bytes, list[bytes], bytes]:
    worker = world.add_machine(1, roles=WORK, price=WORTH // 10_000)
    checking = [world.add_machine(100 + at, roles=CHECK, manners=each) for at, each in enumerate(verifiers)]
    keeping = [world.add_machine(50 + at, roles=KEEP) for at in range(keepers)]
    return worker, [*checking, *keeping], world.create(spec(total=60, match_ms=3_600_000))


def harm(world: World, task: bytes, machines: list[bytes]) -> list[object]:
    """Return what honest machines lost: fines in the bill of a task, bonds of machines, marks in their records."""
    bill = queries.bill(world.state, task).lines
    bad: list[object] = [line for line in bill if line.purpose in FINES]
    for machine in machines:
        node = require_node(world.state, machine)
        bad += [node.bad] if node.bad or node.failures else []
        bad += [node.bond] if node.bond != world.parameters.node_bond_min else []
    return bad


@pytest.mark.parametrize("first", range(4))
def test_no_honest_machine_is_fined_because_blocks_did_not_come(first: int) -> None:
    """Acceptance, preparation, windows, seals, reveals, openings: each comes after a stop for one of the three."""
    world = Stopping(steady_interval_ms_max=STEADY, first=first)
    worker, others, task = market(world, HONEST, HONEST, HONEST)
    record = world.run_to(task, Phase.SETTLED, Phase.FAILED, Phase.PAUSED)
    assert (record.phase, record.worker, record.attempts) == (Phase.SETTLED, worker, 1)
    assert harm(world, task, [worker, *others]) == []
    assert world.time_ms - world.context().steady_ms >= 3 * GAP_MS - 10 * STEADY


def test_they_would_be_if_deadlines_followed_chain_time() -> None:
    """The power of the tests here: the same market, whose steady time follows the jumps."""
    lost = []
    for first in range(4):
        world = Stopping(steady_interval_ms_max=JUMPS, first=first)
        worker, others, task = market(world, HONEST, HONEST, HONEST)
        try:
            world.run_to(task, Phase.SETTLED, Phase.FAILED, Phase.PAUSED)
        except AssertionError:
            pass  # nobody takes it any more
        lost += harm(world, task, [worker, *others]) + [
            entry.reason
            for entry in queries.task_history(world.state, task)
            if entry.reason in (Reason.ACCEPT_TIMEOUT, Reason.WINDOW_TIMEOUT)
        ]
    assert lost


@pytest.mark.parametrize("first", range(4))
def test_no_clock_of_a_game_runs_while_the_chain_stands_still(first: int) -> None:
    world = Stopping(
        steady_interval_ms_max=STEADY,
        first=first,
        parameters=replace(QUICK, verifiers=2, verifiers_sure=2, dispute_move_ms=3_000, dispute_side_ms=40_000),
    )
    worker, (liar, honest), task = market(world, Manners(lies=True), HONEST)
    world.run(task, until=lambda record: bool(queries.disputes(world.state, task, 0)))
    record = world.run_to(task, Phase.SETTLED, Phase.FAILED, Phase.PAUSED)
    assert (record.phase, record.worker) == (Phase.SETTLED, worker)
    paid = {line.purpose for line in queries.bill(world.state, task).lines}
    assert not paid & {Purpose.WORKER_FINE, Purpose.DISPUTE_RESUMED}
    ended = {dispute.ending for dispute in queries.disputes(world.state, task, 0)}
    assert ended <= {DisputeEnding.ELEMENT_RIGHT, DisputeEnding.CHALLENGER_INCONSISTENT}
    assert require_node(world.state, honest).bad == 0 < require_node(world.state, liar).bad


@pytest.mark.parametrize("first", range(4))
def test_no_custodian_is_replaced_because_blocks_did_not_come(first: int) -> None:
    world = StoppingKeepers(steady_interval_ms_max=STEADY, first=first, parameters=KEPT)
    worker, others, task = market(world, HONEST, HONEST, HONEST, keepers=3)
    record = world.run_to(task, Phase.SETTLED, Phase.FAILED, Phase.PAUSED)
    assert (record.phase, record.worker) == (Phase.SETTLED, worker)
    assert harm(world, task, [worker, *others]) == []
