"""Speed trials on nodes: real chains in processes, restarts in their middle, and trials of a machine at work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
import trio

import node.market.trials
from node.market.trial_chains import TrialChains, read_chain
from node.market.trials import stop_ms
from state.primitives.genesis import read_parameters
from tasks.ledger.lifecycle import Phase
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.registry import require_node
from tasks.ledger.trials import TrialPhase, TrialRecord, find_trial, measured_rate
from tasks.trials import first_state, next_state
from tests.node.market.test_duties import Market
from tests.node.world import Machine, World, world_with
from tests.tasks.executor.helpers import make_spec

PARAMETERS: Final = {
    "tasks.trial_ms": 500, "tasks.trial_slack_ms": 2_000, "tasks.trial_step_ms": 3_000_000,
    "tasks.trial_pause_ms": 1_000, "tasks.trial_valid_ms": 10**9, "tasks.trial_blocks": 1 << 40,
    "tasks.trial_first_ms": 0,
}  # fmt: skip
"""The chain's clock runs twelve times as fast as that of the machines. No round begins."""


SHARE: Final = node.market.trials.LOST_SHARE
JOB: Final = make_spec(10, 5, 10).changed(match_ms=3_600_000)


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a machine measures does not matter here: one that lost time to a busy processor computes no longer."""
    monkeypatch.setattr(node.market.trials, "LOST_SHARE", 0)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = world_with(tmp_path, monkeypatch, PARAMETERS)
    yield made
    made.store.close()


def trial_of(world: World, machine: Machine) -> TrialRecord:
    record = find_trial(world.store, machine.wallet.address)
    assert record is not None
    return record


def rate_of(world: World, machine: Machine) -> int | None:
    parameters = read_parameters(TaskParameters, "tasks", world.runtime.genesis)
    known = require_node(world.store, machine.wallet.address)
    return measured_rate(world.store, known, world.ledger.head().steady_ms, parameters)


@pytest.mark.slow
async def test_a_machine_is_tried_and_checked_and_then_gets_the_job_although_both_restart(world: World) -> None:
    """It restarts in the middle of its chain, and again when it has committed; the verifier before its answer."""
    worker, verifier = Machine(world, 1, "compute"), Machine(world, 2, "verify")
    market = Market(world, worker, verifier)
    folder = worker.home.jobs.parent / "trials"
    async with trio.open_nursery() as nursery:
        await market.start(nursery, JOB)
        assert trial_of(world, worker).phase is TrialPhase.RUNNING and rate_of(world, worker) is None
        seed = trial_of(world, worker).seed
        await nursery.start(worker.run)
        await world.mint_until(lambda: folder.is_dir() and any(path.stat().st_size for path in folder.iterdir()))
        worker.stop()
        half = TrialChains(folder).load(seed)
        assert len(half) > 1 and trial_of(world, worker).phase is TrialPhase.RUNNING
        await nursery.start(worker.run)
        await world.mint_until(lambda: trial_of(world, worker).phase is not TrialPhase.RUNNING)
        worker.stop()
        assert TrialChains(folder).load(seed)[: len(half)] == half
        await world.mint_until(lambda: trial_of(world, worker).phase is TrialPhase.SHOWING)
        assert market.record.phase == Phase.MATCHING, "without a rate it is matched with nothing"
        await nursery.start(worker.run)
        await nursery.start(verifier.run)
        await world.mint_until(lambda: trial_of(world, worker).phase is TrialPhase.JUDGING)
        verifier.stop()
        await nursery.start(verifier.run)
        await world.mint_until(lambda: market.record.phase == Phase.SETTLED, timeout_s=120)
        record = trial_of(world, worker)
        assert record.seed == seed and record.is_checked and rate_of(world, worker) == 1_000
        assert market.record.worker == worker.wallet.address
        assert verifier.duties is not None and verifier.duties.market_events["trial_checked"] == 1
        assert verifier.duties.market_events["trial_found_wrong"] == 0
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_machine_at_work_is_tried_again_and_again_and_its_job_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_with(tmp_path, monkeypatch, {**PARAMETERS, "tasks.trial_blocks": 60})
    worker, verifier = Machine(world, 1, "compute"), Machine(world, 2, "verify")
    market = Market(world, worker, verifier)
    async with trio.open_nursery() as nursery:
        await market.start(nursery, make_spec(40, 5, 10).changed(match_ms=3_600_000))
        for machine in market.machines:
            await nursery.start(machine.run)
        assert worker.duties is not None
        events = worker.duties.trials
        await world.mint_until(
            lambda: market.record.phase == Phase.SETTLED and events.committed >= 2, timeout_s=120
        )
        nursery.cancel_scope.cancel()
    record = require_node(world.store, worker.wallet.address)
    assert (record.bad, record.failures, market.record.worker) == (0, 0, worker.wallet.address)
    world.store.close()


async def test_a_machine_without_a_rate_asks_for_a_trial_when_it_may(world: World) -> None:
    worker = Machine(world, 1, "compute")
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.network.run)
        async with trio.open_nursery() as registering:
            registering.start_soon(worker.register)
            await world.mint_until(lambda: not registering.child_tasks)
        world.mint(after_ms=4_000_000)
        world.mint()
        missed = trial_of(world, worker)
        assert (missed.phase, missed.rate) == (TrialPhase.IDLE, 0)
        await nursery.start(worker.run)
        await world.mint_until(lambda: rate_of(world, worker) is not None)
        assert trial_of(world, worker).seed != missed.seed
        nursery.cancel_scope.cancel()


SEED: Final = b"\x05" * 32
RESULTS: Final = tuple(bytes([at]) * 32 for at in range(5))


def test_a_chain_on_disk_is_read_as_far_as_it_is_whole(tmp_path: Path) -> None:
    chains = TrialChains(tmp_path / "trials")
    assert chains.load(SEED) == [first_state(SEED)] and chains.idle_s(SEED, 1e12) == 0
    chains.append(SEED, RESULTS[:2])
    chains.append(SEED, RESULTS[2:])
    chains.flush(SEED)
    whole = chains.load(SEED)
    assert len(whole) == 6 and whole[-1] == next_state(whole[-2], RESULTS[-1])
    path = tmp_path / "trials" / SEED.hex()
    content = path.read_bytes()
    for cut in range(len(content)):
        path.write_bytes(content[:cut])
        assert chains.load(SEED) == whole[: 1 if cut < 74 else 3]
    for at in range(len(content)):
        changed = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        assert read_chain(SEED, changed)[0] in (whole[:1], whole[:3])
    chains.append(b"\x06" * 32, RESULTS)
    (tmp_path / "trials" / "notes").write_text("not a chain")
    chains.keep_only(SEED)
    assert {each.name for each in (tmp_path / "trials").iterdir()} == {SEED.hex(), "notes"}


def test_time_that_is_lost_before_the_first_link_does_not_decide_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts is the time beyond the slack: a third of it lost would be a third of the rate."""
    monkeypatch.setattr(node.market.trials, "LOST_SHARE", SHARE)
    parameters = replace(TaskParameters(), trial_ms=10_000)
    for lost_ms in range(0, 30_000, 500):
        stop = stop_ms(lost_ms, parameters)
        counted = max(parameters.trial_ms, stop + parameters.trial_slack_ms // 2 - parameters.trial_slack_ms)
        assert stop <= parameters.trial_ms + parameters.trial_step_ms * 2 // 3
        if lost_ms <= 7_000:
            assert (stop - lost_ms) / counted >= 0.83
