"""A requester's node keeps the data sets of its open tasks in its store, also after a restart."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from p2p.blob.store import BlobStore
from state.primitives.codec import Value
from tasks.ledger.lifecycle import Phase
from tasks.ledger.transitions import CREATE_TASK, task_id_of
from tasks.spec import encode_spec
from tests.node.market.test_duties import Market
from tests.node.world import Machine, World, world_with
from tests.tasks.executor.helpers import BLOB, make_spec

BUDGET_BYTES = 8 << 20


def blobs_of(machine: Machine) -> BlobStore:
    assert machine.network.blobs is not None
    return machine.network.blobs


def fill(blobs: BlobStore, letter: bytes) -> None:
    """Put more into a store than it may have: all that nothing protects is evicted."""
    blobs._budget_bytes = BUDGET_BYTES
    for number in range(4):
        blobs.add(letter * (BUDGET_BYTES // 4 + number))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return world_with(tmp_path, monkeypatch, {})


@pytest.mark.slow
async def test_a_requester_that_restarts_keeps_its_data_set_until_its_task_has_ended(world: World) -> None:
    """The pin ended with the process: other blobs pushed the data set out, and each worker declined the task."""
    worker, verifier = Machine(world, 1, "compute"), Machine(world, 2, "verify")
    before = Machine(world, 9, "relay")
    market = Market(world, worker, verifier)
    blob = blobs_of(before).add(BLOB)
    blobs_of(before).pin(blob)
    spec = make_spec(10, 10, 10)
    spec = spec.changed(dataset=spec.dataset._replace(blob=blob))
    market.task = task_id_of(before.wallet.address, 0)
    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as posting:
            payload: list[Value] = [encode_spec(spec)]
            posting.start_soon(before.wallet.send, CREATE_TASK, payload)
            await world.mint_until(lambda: not posting.child_tasks)
        again = Machine(world, 9, "relay")  # another process in the same folder
        await nursery.start(again.run)
        fill(blobs_of(again), b"a")
        assert blobs_of(again).is_complete(blob)
        for machine in (again, *market.machines):
            await nursery.start(machine.network.run)
        async with trio.open_nursery() as registering:
            for machine in market.machines:
                registering.start_soon(machine.register)
            await world.mint_until(lambda: not registering.child_tasks)
        for machine in market.machines:
            await nursery.start(machine.run)
        fill(blobs_of(again), b"b")
        await world.mint_until(lambda: market.record.phase == Phase.SETTLED, timeout_s=120)
        await trio.sleep(0.5)
        fill(blobs_of(again), b"c")
        assert not blobs_of(again).is_complete(blob), "nobody needs it any more"
        nursery.cancel_scope.cancel()
    world.store.close()
