"""Containers under strategies: greedy machines, watching requesters and friends, with their parameters drawn.

What each of them gains or loses is bounded by what the rules say (market.md R94 to R96), whatever the parameters.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from billing.escrow import Movement, Purpose, bill_lines, escrow_totals
from billing.prices import TERA
from state.view.accounts import balance_of
from tasks.kinds.container import ExitKind, Metering
from tasks.ledger.lifecycle import ENDED, Phase
from tasks.ledger.registry import require_node
from tasks.ledger.transitions import ACCEPT_TASK, CANCEL_TASK, START_TASK
from tests.tasks.containers import (
    PRICE,
    block_until,
    container,
    finish,
    host,
    meter,
    metered,
    second_price,
    started,
)
from tests.tasks.world import QUICK, REQUESTER, World

BLOCK_MS = 1_000
SECOND = second_price(PRICE // 2)


def greedy(world: World, worker: bytes, task: bytes, tick_s: int, begun_ms: int) -> None:
    """Meter all whole ticks that have passed."""
    passed_s = (world.time_ms - begun_ms) // 1_000
    while metered(world, task).own_seconds + tick_s <= passed_s:
        assert meter(world, worker, task, metered(world, task).own_seconds + tick_s) is None


@settings(max_examples=25, deadline=None)
@given(
    tick_s=st.sampled_from([10, 30, 60]), watch_s=st.integers(1, 200), silent_s=st.integers(0, 100),
    runs_ahead=st.booleans(),
)  # fmt: skip
def test_n30_a_machine_that_runs_nothing_earns_until_its_requester_looks_and_a_tick_more(
    tick_s: int, watch_s: int, silent_s: int, runs_ahead: bool
) -> None:
    """The requester looks after ``watch_s`` and stops. The machine meters all that it can, or just before that."""
    world = World()
    worker = host(world, 1)
    task, worker = started(world, container(tick_s=tick_s, ticks=1_000, metering=Metering("reserved", 3_600, 0)))
    begun_ms = world.time_ms
    while world.time_ms - begun_ms < 1_000 * watch_s:
        if world.time_ms - begun_ms >= 1_000 * silent_s:
            greedy(world, worker, task, tick_s, begun_ms)
        world.block(BLOCK_MS)
    if runs_ahead:  # it sees the stop before it is in a block
        greedy(world, worker, task, tick_s, begun_ms)
    before = metered(world, task).seconds
    assert world.send(REQUESTER, CANCEL_TASK, [task]) is None
    allowed = min((world.time_ms - begun_ms) // 1_000, before + tick_s)
    for more in range(tick_s, 0, -1):  # the most that the chain takes
        if finish(world, worker, task, before + more, ExitKind.STOPPED) is None:
            break
    else:
        assert finish(world, worker, task, before, ExitKind.STOPPED) is None
    found = metered(world, task)
    assert found.seconds == allowed <= watch_s + tick_s
    assert found.seconds - before <= tick_s
    assert found.paid <= allowed * SECOND // TERA
    assert require_node(world.state, worker).backing == QUICK.node_bond_min  # and it loses nothing


@settings(max_examples=15, deadline=None)
@given(seconds=st.lists(st.integers(0, 300), min_size=1, max_size=4), code=st.integers(0, 2))
def test_n32_friends_that_trade_seconds_burn_the_fee_and_gain_nothing(seconds: list[int], code: int) -> None:
    """Requester and machine have one owner, whose money falls by the fee, and whose machine has no better name."""
    world = World()
    worker = host(world, 1)
    node = require_node(world.state, worker)
    own = balance_of(world.state, REQUESTER) + balance_of(world.state, worker)
    burned = 0
    for each in seconds:
        task, _ = started(world)
        block_until(world, 1_000 * each + 1)
        assert finish(world, worker, task, each, ExitKind.EXITED, code) is None
        burned += sum(
            line.amount for line in bill_lines(world.state, task)
            if (line.purpose, line.movement) == (Purpose.PROTOCOL_FEE, Movement.BURNED)
        )  # fmt: skip
        world.block()
    after = require_node(world.state, worker)
    assert balance_of(world.state, REQUESTER) + balance_of(world.state, worker) == own - burned
    assert burned >= sum(each * SECOND // TERA for each in seconds) * QUICK.fee_bps // 10_000 - len(seconds)
    assert (after.good, after.bad, after.proved, after.valid_streak, after.failures) == (
        node.good, node.bad, node.proved, node.valid_streak, node.failures,
    )  # fmt: skip


@settings(max_examples=10, deadline=None)
@given(machines=st.integers(1, 5), retries=st.integers(0, 3), metered_ticks=st.integers(0, 2))
def test_n34_machines_that_fall_silent_are_paid_for_what_they_metered_and_end_the_task_after_its_tries(
    machines: int, retries: int, metered_ticks: int
) -> None:
    world = World()
    for at in range(machines):
        host(world, at + 1)
    tick_s, grace_s = 10, 10
    job = container(tick_s=tick_s, ticks=100, metering=Metering("reserved", grace_s, retries))
    before = balance_of(world.state, REQUESTER)
    task = world.create(job)
    tries = 0
    for _ in range(2_000):
        record = world.task(task)
        if record.phase in ENDED:
            break
        if record.phase == Phase.ASSIGNED:
            tries += 1
            assert world.send(record.worker, ACCEPT_TASK, [task, 0]) is None
            assert world.send(record.worker, START_TASK, [task, b"m" * 32]) is None
            begun_ms = world.time_ms
            for tick in range(metered_ticks):
                block_until(world, begun_ms + 1_000 * tick_s * (tick + 1) - world.time_ms)
                assert meter(world, record.worker, task, tick_s * (tick + 1)) is None
        world.block(2_000)
    found = metered(world, task)
    assert world.task(task).phase in ENDED
    assert tries == min(machines, retries + 1)
    assert found.seconds == tries * metered_ticks * tick_s
    lost = before - balance_of(world.state, REQUESTER)
    assert (lost == 0) == (found.seconds == 0) and lost <= 2 * found.paid + 10**18
    assert escrow_totals(world.state, task).locked == 0
    for at in range(machines):
        node = require_node(world.state, bytes([at + 1]) * 20)
        assert (node.failures, node.bad, node.backing) == (0, 0, QUICK.node_bond_min)
