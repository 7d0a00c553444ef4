"""A window that a verifier and a jury could not fetch: the worker answers by itself (market.md R50, R51)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog.testing
import trio

import node.market.duties
import node.market.inputs
from billing.escrow import Movement, Purpose, escrow_totals
from node.market.verifier import TaskVerifier
from tasks.ledger import queries
from tasks.ledger.lifecycle import Phase, WindowPhase
from tasks.ledger.registry import require_node
from tasks.proofs import Code
from tests.node.market.test_duties import Market
from tests.node.world import Machine, World, world_with
from tests.tasks.executor.helpers import make_spec

NOT_FETCHED = "a jury could not fetch a window, and more jurors were asked for; check that peers reach this node"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = world_with(tmp_path, monkeypatch, {"tasks.serve_ms": 3_000_000})
    yield made
    made.store.close()


@pytest.mark.slow
@pytest.mark.parametrize("restarts", [False, True], ids=["runs", "restarts"])
async def test_a_worker_that_no_peer_reached_asks_for_more_jurors_by_itself_and_keeps_its_bond(
    world: World, monkeypatch: pytest.MonkeyPatch, restarts: bool
) -> None:
    checkers = [Machine(world, number, "verify") for number in (1, 2, 3)]
    worker = Machine(world, 5, "compute")
    market = Market(world, worker, *checkers)
    market.unconnected.add(worker)

    def is_at(phase: WindowPhase, unserved: int) -> bool:
        window = market.window(0)
        return window is not None and (window.phase, window.unserved) == (phase, unserved)

    with structlog.testing.capture_logs() as lines:
        async with trio.open_nursery() as nursery:
            await market.start(nursery, make_spec(10, 10, 10))
            for machine in market.machines:
                await nursery.start(machine.run)
            # The verifier and the jury have found out and sealed it before the worker's line is back.
            with monkeypatch.context() as impatient:  # what comes later may seem not to on a loaded machine
                impatient.setattr(node.market.inputs, "FETCH_QUIET_S", 0.3)
                impatient.setattr(TaskVerifier, "_fetch_s", lambda *_: 0.5)
                await world.mint_until(lambda: is_at(WindowPhase.JURY_REVEALING, 0))
            if restarts:
                worker.stop()
                await world.mint_until(lambda: is_at(WindowPhase.DOUBTED, 1))
                for _ in range(3):
                    world.mint()
                assert is_at(WindowPhase.DOUBTED, 1)
            await nursery.start(worker.network.run)
            if restarts:
                await nursery.start(worker.run)
            await world.mint_until(lambda: market.record.phase == Phase.SETTLED, timeout_s=120)
            await world.mint_until(lambda: escrow_totals(world.store, market.task).locked == 0)
            nursery.cancel_scope.cancel()
    window = market.window(0)
    assert window is not None and window.phase == WindowPhase.FINAL
    seats = (*window.verifiers, *window.jurors)
    found = [finding.code for seat in seats for finding in seat.findings or ()]
    assert found[-2:] == [Code.UNAVAILABLE, Code.COMPUTED]  # the first juror, and the one that was asked for
    assert worker.duties is not None and worker.duties.market_events["window_not_fetched"] == 1
    told = [line for line in lines if line["event"] == NOT_FETCHED]
    assert [(line["log_level"], line["task"], line["window"]) for line in told] == [("warning", market.task, 0)]
    assert told[0]["segments"] == [0]
    burned = {
        line.purpose for line in queries.bill(world.store, market.task).lines if line.movement is Movement.BURNED
    }
    assert not burned & {Purpose.NOT_SERVED, Purpose.WORKER_FINE}
    assert Purpose.WINDOW_PAY in market.paid(worker)
    known = require_node(world.store, worker.wallet.address)
    assert (known.bad, known.failures) == (0, 0)
