"""A node that drains: nothing new is assigned to it, what it has promised is done, then it is empty."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
import trio
import trio.testing

import node.market.duties
import node.market.inputs
import node.process.gateway_process
from node.home.options import LogOptions, RegistryOptions, RpcOptions
from node.process.children import Child
from node.process.drain import Drain, RemainingWork
from node.process.gateway_process import GatewayProcess, keep_gateway
from tasks.ledger.lifecycle import Phase
from tasks.ledger.registry import NodeStatus, load_node
from tasks.ledger.transitions import RETIRE_NODE
from tests.node.market.test_duties import Market
from tests.node.world import Machine, World
from tests.tasks.executor.helpers import make_spec


@pytest.mark.parametrize("field", RemainingWork._fields)
def test_a_node_is_empty_when_nothing_at_all_is_under_way(field: str) -> None:
    nothing = RemainingWork(is_offered=False, tasks=0, checks=0, running=0, transactions=0, is_serving=False)
    assert nothing.is_empty
    values: Any = {field: 1}
    assert not nothing._replace(**values).is_empty
    drain = Drain()
    assert not drain.describe(nothing)["empty"], "it was not asked to be"
    drain.switch(on=True, stops_when_empty=True)
    assert drain.describe(nothing)["empty"]
    drain.switch(on=False, stops_when_empty=True)
    assert not drain.stops_when_empty


@pytest.mark.slow
async def test_a_worker_finishes_its_task_takes_no_other_and_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node.market.duties, "RETRY_S", 0.3)
    monkeypatch.setattr(node.market.inputs, "FETCH_PAUSE_S", 0.1)
    world = World(tmp_path)
    worker, verifier = Machine(world, 1, "compute"), Machine(world, 2, "verify")
    market = Market(world, worker, verifier)

    def status() -> NodeStatus | None:
        found = load_node(world.store, worker.wallet.address)
        return None if found is None else found.status

    async with trio.open_nursery() as nursery:
        await market.start(nursery, make_spec(20, 5, 10))
        await nursery.start(worker.run)
        await nursery.start(verifier.run)
        duties, draining = worker.duties, Drain()
        assert duties is not None
        await world.mint_until(lambda: market.record.phase == Phase.RUNNING)
        assert duties.under_way()[0] == 1
        draining.switch(on=True)
        duties.is_draining = lambda: draining.is_on
        await world.mint_until(lambda: status() is NodeStatus.SUSPENDED)
        assert not duties.is_offered
        await world.mint_until(lambda: market.record.phase == Phase.SETTLED, timeout_s=120)
        await world.mint_until(lambda: duties.under_way() == (0, 0, 0))
        bond = load_node(world.store, worker.wallet.address)

        # A start ends it, whatever the options say of registering.
        worker.stop()
        worker.options = replace(worker.options, registry=RegistryOptions(auto_register=False))
        await nursery.start(worker.run)
        await world.mint_until(lambda: status() is NodeStatus.ACTIVE)
        assert worker.duties is not None and worker.duties.is_offered
        again = load_node(world.store, worker.wallet.address)
        assert bond is not None and again is not None
        assert again.bond == bond.bond
        nursery.cancel_scope.cancel()
    world.store.close()


async def test_a_node_that_ends_in_order_is_offered_nothing_until_it_is_back(tmp_path: Path) -> None:
    world = World(tmp_path)
    worker = Machine(world, 1, "compute", alone=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.keep_minting)
        await worker.register()
        await nursery.start(worker.run)
        duties = worker.duties
        assert duties is not None and duties.is_offered
        await duties.leave()
        found = load_node(world.store, worker.wallet.address)
        assert found is not None and found.status is NodeStatus.SUSPENDED
        height = world.store.tip.height
        await world.ledger.wait_head(height + 5)
        assert not duties.is_offered, "it does not return by itself while it ends"
        worker.stop()
        await nursery.start(worker.run)
        with trio.fail_after(60):
            while not worker.duties.is_offered:  # noqa: ASYNC110 - of a chain
                await trio.sleep(0.02)
        nursery.cancel_scope.cancel()
    world.store.close()


async def test_a_node_ends_soon_where_no_block_tells_that_it_goes(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    worker = Machine(world, 1, "compute", alone=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.register)
        await trio.testing.wait_all_tasks_blocked()
        world.mint()
        await trio.testing.wait_all_tasks_blocked()
        await nursery.start(worker.run)
        assert worker.duties is not None and worker.duties.is_offered
        began = trio.current_time()
        with structlog.testing.capture_logs() as logs:
            await worker.duties.leave()
        assert trio.current_time() - began < node.market.duties.LEAVE_QUIET_S + 1
        assert any("before its machine's suspension" in line["event"] for line in logs)
        nursery.cancel_scope.cancel()
    world.store.close()


async def test_an_owner_who_retires_a_machine_is_not_overruled(tmp_path: Path) -> None:
    world = World(tmp_path)
    worker = Machine(world, 1, "compute", alone=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.keep_minting)
        await worker.register()
        await worker.wallet.send(RETIRE_NODE, [])
        await nursery.start(worker.run)
        height = world.store.tip.height
        await world.ledger.wait_head(height + 5)
        found = load_node(world.store, worker.wallet.address)
        assert found is not None and found.status is NodeStatus.RETIRING
        nursery.cancel_scope.cancel()
    world.store.close()


async def test_the_gateway_ends_in_order_and_starts_again(
    monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery, tmp_path: Path
) -> None:
    children: list[Child] = []

    def start(_document: str) -> Child:
        children.append(Child(["sleep", "600"]))
        return children[-1]

    async def wait(count: int, *, is_running: bool) -> None:
        while True:
            if len(children) == count and gateway.is_running == is_running:
                return
            await trio.sleep(0.01)

    monkeypatch.setattr(node.process.gateway_process, "_start", start)
    monkeypatch.setattr(node.process.gateway_process, "DELAY_S_MIN", 0.01)
    drain, gateway = Drain(), GatewayProcess()
    nursery.start_soon(keep_gateway, RpcOptions(), tmp_path / "s", LogOptions(), drain, gateway)
    with trio.fail_after(120):
        await wait(1, is_running=True)
        drain.switch(on=True)
        await wait(1, is_running=False)
        assert children[0].returncode == -signal.SIGTERM
        drain.switch(on=False)
        await wait(2, is_running=True)
        os.kill(children[1].pid, signal.SIGKILL)
        await wait(3, is_running=True)
    nursery.cancel_scope.cancel()
