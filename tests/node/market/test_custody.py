"""Nodes play custody: a worker commits to its outputs, storage machines fetch, sign, answer and receive."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from billing.escrow import Purpose, bill_lines
from node.market.duties import DutyService
from state.primitives.genesis import read_parameters
from tasks.custody import looks
from tasks.custody.keys import public_key_root
from tasks.ledger.custody import custody_budget, demand_price, demand_stake
from tasks.ledger.custody_queries import outputs_kept
from tasks.ledger.custody_records import CustodyPhase, CustodyRecord, DemandKind, find_custody
from tasks.ledger.custody_transitions import ASK_CUSTODY, DEMAND_CUSTODY, END_CUSTODY
from tasks.ledger.lifecycle import Phase
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.transitions import CREATE_TASK, task_id_of
from tasks.spec import encode_spec
from tests.node.market.test_duties import REQUESTER, Market
from tests.node.world import Machine, World, world_with
from tests.p2p.helpers import account
from tests.tasks.executor.helpers import BLOB, make_spec

CUSTODY = {
    "tasks.custody_copies": 2, "tasks.custody_sign_ms": 3_000_000, "tasks.custody_answer_ms": 3_000_000,
    "tasks.custody_ms": 10**9,
}  # fmt: skip


class KeptMarket(Market):
    """A market whose task has custody with the key root that is given."""

    key_root: bytes | None = None

    async def begin(self, nursery: trio.Nursery) -> None:
        """Start the networks, post the task and ask for custody, then register the machines."""
        for machine in self.machines:
            await nursery.start(machine.network.run)
            assert machine.network.blobs is not None
            blob = machine.network.blobs.add(BLOB)
            machine.network.blobs.pin(blob)
        spec = make_spec(10, 10, 10)
        spec = spec.changed(dataset=spec.dataset._replace(blob=blob))
        self.parameters = read_parameters(TaskParameters, "tasks", self.world.runtime.genesis)
        self.task = task_id_of(account(REQUESTER).address, 0)
        self.wallet = self.world.wallet(REQUESTER)
        root = self.key_root or public_key_root(spec.windows)
        await self.send(CREATE_TASK, [encode_spec(spec)])
        await self.send(ASK_CUSTODY, [self.task, root, 0, custody_budget(spec, self.parameters)])
        async with trio.open_nursery() as registering:
            for machine in self.machines:
                registering.start_soon(machine.register)
            await self.world.mint_until(lambda: not registering.child_tasks)

    async def send(self, kind: int, payload: list) -> None:  # type: ignore[type-arg]
        async with trio.open_nursery() as sending:
            sending.start_soon(self.wallet.send, kind, payload)
            await self.world.mint_until(lambda: not sending.child_tasks)

    @property
    def custody(self) -> CustodyRecord:
        record = find_custody(self.world.store, self.task, 0)
        assert record is not None
        return record

    async def demand(self, holder: bytes) -> None:
        price = max(demand_price(self.custody, kind, 10**9, self.parameters) for kind in DemandKind)
        price += demand_stake(self.custody.bond, DemandKind.DELIVERY, self.parameters)
        await self.send(DEMAND_CUSTODY, [self.task, 0, holder, price])
        await self.world.mint_until(lambda: self.custody.demand is None)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return world_with(tmp_path, monkeypatch, CUSTODY)


@pytest.mark.slow
async def test_an_output_is_kept_demanded_delivered_and_paid(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(looks, "LOOKS_MIN", 1)  # the end of each custody is looked at (R157)
    worker, verifier = Machine(world, 1, "compute"), Machine(world, 2, "verify")
    keepers = [Machine(world, number, "storage") for number in (3, 4, 5)]
    market = KeptMarket(world, worker, verifier, *keepers)
    async with trio.open_nursery() as nursery:
        await market.begin(nursery)
        for machine in market.machines:
            await nursery.start(machine.run)
        await world.mint_until(lambda: market.record.phase == Phase.SETTLED, timeout_s=120)
        holders = [holder.address for holder in market.custody.holders]
        assert market.custody.phase is CustodyPhase.KEPT and len(holders) == 2
        assert set(holders) <= {keeper.wallet.address for keeper in keepers}
        window = market.window(0)
        assert window is not None
        for machine in (worker, verifier):  # custodians alone have it
            assert machine.network.blobs is not None
            machine.network.blobs.remove(window.proof.output_blob)
        for holder in holders:
            assert outputs_kept(world.store, holder) == [(market.task, 0)]
        await market.demand(holders[0])
        await market.demand(holders[0])
        assert [holder.asked for holder in market.custody.holders] == [2, 0]
        assert not any(holder.failed for holder in market.custody.holders)
        third = next(keeper for keeper in keepers if keeper.wallet.address not in holders)
        # A custodian that starts again keeps it from being evicted before it has caught up with the chain.
        one = next(keeper for keeper in keepers if keeper.wallet.address == holders[0])
        again = Machine(world, one.number, "storage", alone=True)
        DutyService(
            world.ledger, again.wallet, again.network, again.options, home=again.home,
            secret=account(one.number).secret, is_synced=lambda: False,
        )  # fmt: skip
        blobs = again.network.blobs
        assert blobs is not None and blobs.kept_bytes() > blobs.kept_bytes([window.proof.output_blob])
        assert third.network.blobs is not None and third.network.blobs.is_complete(window.proof.output_blob)
        await market.send(END_CUSTODY, [market.task, 0])
        await world.mint_until(lambda: find_custody(world.store, market.task, 0) is None)
        ends = [line for line in bill_lines(world.store, market.task) if line.purpose is Purpose.CUSTODY_PAY]
        lost = [line for line in bill_lines(world.store, market.task) if line.purpose is Purpose.CUSTODY_LOST]
        answers = [line for line in bill_lines(world.store, market.task) if line.purpose is Purpose.CUSTODY_DEMAND]
        assert {line.party for line in ends} == set(holders) and not lost
        assert answers[-1].party in holders and answers[-1].amount
        for keeper in keepers:
            assert keeper.network.blobs is not None
        nursery.cancel_scope.cancel()
    world.store.close()


@pytest.mark.slow
async def test_a_worker_keeps_its_output_itself_where_no_storage_machine_is(world: World) -> None:
    worker, verifier = Machine(world, 1, "compute"), Machine(world, 2, "verify")
    market = KeptMarket(world, worker, verifier)
    async with trio.open_nursery() as nursery:
        await market.begin(nursery)
        for machine in market.machines:
            await nursery.start(machine.run)
        await world.mint_until(lambda: market.record.phase == Phase.SETTLED, timeout_s=120)
        assert [holder.address for holder in market.custody.holders] == [worker.wallet.address]
        await market.demand(worker.wallet.address)
        assert [holder.asked for holder in market.custody.holders] == [1]
        nursery.cancel_scope.cancel()
    world.store.close()


async def test_a_worker_declines_a_task_whose_key_it_cannot_have(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.market.task_keys.ASK_SHARE", 0)  # this chain leaves hours to accept a task
    worker, verifier = Machine(world, 1, "compute"), Machine(world, 2, "verify")
    market = KeptMarket(world, worker, verifier)
    market.key_root = b"k" * 32
    async with trio.open_nursery() as nursery:
        await market.begin(nursery)
        for machine in market.machines:
            await nursery.start(machine.run)
        await world.mint_until(lambda: worker.wallet.address in market.record.excluded)
        assert worker.duties is not None and worker.duties.market_events["task_declined"] == 1
        nursery.cancel_scope.cancel()
    world.store.close()
