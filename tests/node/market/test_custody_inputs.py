"""Nodes keep inputs: custodians fetch, sign, restart, and serve a worker when the requester is away."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.lowlevel

from node.market.inputs import Inputs
from node.market.keeper import Keeper, NoFundsToKeep, NoRoomToKeep
from p2p.blob.store import BlobStore
from state.primitives.codec import Value
from state.primitives.genesis import read_parameters
from state.view.accounts import balance_of
from tasks.custody.keys import KeyCommitments, derive_key, input_key_name, public_key_root
from tasks.custody.sealed import public_input, seal_input, task_key_of
from tasks.ledger.custody import custody_budget, demand_price, demand_stake
from tasks.ledger.custody_inputs import input_budget
from tasks.ledger.custody_queries import CustodyAction, custody_duties, input_holders
from tasks.ledger.custody_records import INPUT_WINDOW, CustodyPhase, CustodyRecord, DemandKind, find_custody
from tasks.ledger.custody_transitions import (
    ANSWER_DEMAND,
    ASK_CUSTODY,
    DEMAND_CUSTODY,
    KEEP_INPUT,
    TAKE_CUSTODY,
)
from tasks.ledger.lifecycle import Phase
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.transitions import CREATE_TASK, task_id_of
from tasks.spec import encode_spec
from tests.node.market.test_custody import CUSTODY
from tests.node.market.test_duties import Market
from tests.node.world import Machine, World, world_with
from tests.p2p.helpers import account
from tests.tasks.executor.helpers import BLOB, make_spec

SECRET = account(9).secret
KEEPERS = (3, 4, 5)


class InputMarket(Market):
    """A market whose requester is the last machine. ``lies``: its commitment is to other bytes than it serves."""

    def __init__(self, world: World, *machines: Machine, is_private: bool = True, lies: bool = False) -> None:
        super().__init__(world, *machines)
        self.is_private, self.lies = is_private, lies
        self.parameters = read_parameters(TaskParameters, "tasks", world.runtime.genesis)

    @property
    def requester(self) -> Machine:
        return self.machines[-1]

    @property
    def kept(self) -> CustodyRecord | None:
        return find_custody(self.world.store, self.task, INPUT_WINDOW)

    async def send(self, kind: int, payload: list[Value]) -> None:
        async with trio.open_nursery() as sending:
            sending.start_soon(self.requester.wallet.send, kind, payload)
            await self.world.mint_until(lambda: not sending.child_tasks)

    async def join(self, nursery: trio.Nursery, *machines: Machine) -> None:
        """Start networks and put the machines into the registry."""
        for machine in machines:
            await nursery.start(machine.network.run)
        async with trio.open_nursery() as registering:
            for machine in machines:
                registering.start_soon(machine.register)
            await self.world.mint_until(lambda: not registering.child_tasks)

    async def begin(self, own: trio.Nursery) -> None:
        """Post the task, and ask for custody of its outputs and its input."""
        await own.start(self.requester.network.run)
        spec, inputs = make_spec(10, 10, 10), int(self.is_private)
        key, content = task_key_of(SECRET, spec), BLOB[:-1] + bytes([BLOB[-1] ^ self.lies])
        if self.is_private:
            sealed = seal_input(derive_key(key, input_key_name(0)), spec.dataset.root, BLOB)
            root, blob = KeyCommitments(key, 1, spec.windows).root, sealed.blob
            commitment = seal_input(derive_key(key, input_key_name(0)), spec.dataset.root, content).commitment
        else:
            root, blob = public_key_root(spec.windows), BLOB
            commitment = public_input(spec.dataset.root, content).commitment
        self.blob = blobs_of(self.requester).add(blob)
        blobs_of(self.requester).pin(self.blob)
        spec = spec.changed(dataset=spec.dataset._replace(blob=self.blob))
        self.task = task_id_of(self.requester.wallet.address, 0)
        await self.send(CREATE_TASK, [encode_spec(spec)])
        await self.send(ASK_CUSTODY, [self.task, root, inputs, custody_budget(spec, self.parameters)])
        await self.send(KEEP_INPUT, [self.task, *commitment, input_budget(spec, self.parameters)])

    async def demand(self, holder: bytes) -> None:
        record = self.kept
        assert record is not None
        price = max(demand_price(record, kind, 10**9, self.parameters) for kind in DemandKind)
        price += demand_stake(record.bond, DemandKind.DELIVERY, self.parameters)
        await self.send(DEMAND_CUSTODY, [self.task, INPUT_WINDOW, holder, price])
        await self.world.mint_until(lambda: self.kept is not None and self.kept.demand is None)


def blobs_of(machine: Machine) -> BlobStore:
    assert machine.network.blobs is not None
    return machine.network.blobs


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return world_with(tmp_path, monkeypatch, CUSTODY)


@pytest.mark.slow
@pytest.mark.parametrize("is_private", [True, False], ids=["private", "public"])
async def test_custodians_that_restart_serve_a_worker_when_the_requester_is_away(
    world: World, is_private: bool
) -> None:
    worker, verifier = Machine(world, 1, "compute"), Machine(world, 2, "verify")
    requester = Machine(world, 9, "relay")
    keepers = [Machine(world, number, "storage") for number in KEEPERS]
    market = InputMarket(world, worker, verifier, *keepers, requester, is_private=is_private)
    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as own:
            await market.join(nursery, *keepers, verifier)
            await market.begin(own)
            await own.start(requester.run)
            await world.mint_until(lambda: market.kept is not None and market.kept.pending != ())
            for _ in range(2):  # drawn, and as it fetches or signs: what is asked stands on chain
                for keeper in keepers:
                    keeper.stop()
                    await nursery.start(keeper.run)
                await trio.lowlevel.checkpoint()
            await world.mint_until(lambda: market.kept is not None and market.kept.phase is CustodyPhase.KEPT)
            signed = input_holders(world.store, market.task)
            holders = [keeper for keeper in keepers if keeper.wallet.address in signed]
            assert len(holders) == 2
            await market.demand(holders[0].wallet.address)  # a chunk
            await market.demand(holders[0].wallet.address)  # a delivery to the third
            assert market.kept is not None and sorted(holder.asked for holder in market.kept.holders) == [0, 2]
            if is_private:
                assert requester.duties is not None
                await requester.duties.shares.share_out(market.task, 2, 3)
            own.cancel_scope.cancel()
        for machine in (requester, *(keeper for keeper in keepers if keeper not in holders)):
            blobs_of(machine).remove(market.blob)
        for keeper in holders:
            keeper.stop()
            await nursery.start(keeper.run)
        await market.join(nursery, worker)
        for machine in (worker, verifier):
            await nursery.start(machine.run)
        await world.mint_until(lambda: market.record.phase == Phase.SETTLED, timeout_s=120)
        await world.mint_until(lambda: market.kept is None)  # it ends with the task
        await world.mint_until(lambda: not any(blobs_of(keeper).is_complete(market.blob) for keeper in holders))
        nursery.cancel_scope.cancel()
    world.store.close()


@pytest.mark.parametrize("is_private", [True, False], ids=["private", "public"])
async def test_nobody_signs_for_other_bytes_than_those_on_chain(world: World, is_private: bool) -> None:
    keepers = [Machine(world, number, "storage") for number in KEEPERS[:2]]
    requester = Machine(world, 9, "relay")
    market = InputMarket(world, *keepers, requester, is_private=is_private, lies=True)
    async with trio.open_nursery() as nursery:
        await market.join(nursery, *keepers)
        await market.begin(nursery)
        await world.mint_until(lambda: bool(custody_duties(world.store, keepers[0].wallet.address)))
        for keeper in keepers:
            await nursery.start(keeper.run)
        for keeper in keepers:
            duties = keeper.duties
            assert duties is not None
            await world.mint_until(lambda duties=duties: "input_unavailable" in str(duties.troubles()))  # type: ignore[misc]
        assert market.kept is not None and not market.kept.holders
        nursery.cancel_scope.cancel()
    world.store.close()


async def test_a_machine_signs_for_no_more_than_it_has_room_for_also_at_once(world: World) -> None:
    keepers = [Machine(world, number, "storage") for number in KEEPERS[:2]]
    requester = Machine(world, 9, "relay")
    market = InputMarket(world, *keepers, requester)
    async with trio.open_nursery() as nursery:
        await market.join(nursery, *keepers)
        await market.begin(nursery)
        address = keepers[0].wallet.address
        await world.mint_until(lambda: bool(custody_duties(world.store, address)))
        [duty] = custody_duties(world.store, address)
        assert duty.action is CustodyAction.SIGN and duty.window == INPUT_WINDOW
        size = blobs_of(requester).manifest(market.blob)
        assert size is not None
        others = 0
        keeper = Keeper(
            world.ledger, keepers[0].wallet, Inputs(keepers[0].network, address), blobs_of(keepers[0]),
            bytes_max=size.size_bytes, others=lambda: others,
        )  # fmt: skip
        with keeper.room_for((duty.task, duty.window)):
            assert keeper.room_bytes == 0, "what is being fetched takes its room"
        assert keeper.room_bytes == size.size_bytes
        others = 1
        with pytest.raises(NoRoomToKeep):
            await keeper.perform(duty)
        others = 0
        left = balance_of(world.store, address) - keepers[0].wallet.cost_of(TAKE_CUSTODY, ANSWER_DEMAND)
        with pytest.raises(NoFundsToKeep):  # it signed, could not pay for its answers, and lost the bond
            await keeper.perform(duty._replace(bond=left))
        assert keeper.room_bytes == size.size_bytes
        nursery.cancel_scope.cancel()
    world.store.close()
