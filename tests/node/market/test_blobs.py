"""What a gateway's node fetches from others: what tasks on chain name, from those who have it, and no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import node.market.blobs
import node.market.duties
import node.market.inputs
import p2p.blob.transfer
from node.home.options import UploadOptions
from node.market.blobs import RANGES_MAX, GatewayBlobs, missing_ranges
from node.market.inputs import inputs_limit
from p2p.base.errors import BlobUnavailable
from rpc.protocol.requests import REQUESTS, BlobRequests, handler_of
from state.primitives.errors import DecodeError, DekubeError
from state.primitives.manifests import PIECE_BYTES, Manifest
from tasks.custody.sealed import sealed_size
from tasks.engines.datasets import DATASET_BLOB_BYTES_MAX
from tasks.ledger.lifecycle import ENDED, Phase
from tasks.ledger.records import load_spec
from tasks.ledger.screening import read_dataset_facts
from tests.node.market.test_duties import REQUESTER, Market
from tests.node.world import Machine, World
from tests.p2p.helpers import account
from tests.tasks.executor.helpers import BLOB, make_spec


async def come(blobs: GatewayBlobs, *params: Any) -> Any:
    """Ask for a blob until it is here; return its manifest."""
    with trio.fail_after(120):
        while True:
            found = blobs.blob_fetch(*params)
            if found.state == "complete":
                return Manifest.decode(found.manifest)
            await trio.sleep(0.02)


def refused(blobs: GatewayBlobs, *params: Any) -> str:
    with pytest.raises(DekubeError) as failed:
        blobs.blob_fetch(*params)
    return failed.value.code


@pytest.mark.slow
async def test_results_and_data_sets_come_from_the_network_by_the_task_that_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node.market.duties, "RETRY_S", 0.3)
    monkeypatch.setattr(node.market.inputs, "FETCH_PAUSE_S", 0.1)
    monkeypatch.setattr(p2p.blob.transfer, "_MANIFEST_S", 1.0)  # the requester has no machine: it never answers
    world = World(tmp_path)
    worker, verifier = Machine(world, 1, "compute"), Machine(world, 2, "verify")
    server = Machine(world, 3, "verify")
    market = Market(world, worker, verifier)
    async with trio.open_nursery() as nursery:
        await market.start(nursery, make_spec(10, 10, 10))
        await nursery.start(server.network.run)
        for machine in (worker, verifier):
            await nursery.start(machine.run)
        await world.mint_until(lambda: market.record.phase == Phase.SETTLED, timeout_s=120)

        options = UploadOptions(enabled=True, keep_s=10)
        now_ms = [10**12]
        blobs = GatewayBlobs(
            server.network, world.store, options, tmp_path / "uploads", server.wallet.address,
            now_ms=lambda: now_ms[0],
        )  # fmt: skip
        nursery.start_soon(blobs.run)
        await trio.testing.wait_all_tasks_blocked()
        window = market.window(0)
        assert window is not None
        output, task = window.proof.output_blob, market.task
        assert refused(blobs, output, None, None) == "blob_unavailable"
        assert refused(blobs, output, task, None) == "blob_unavailable", "the window is what names it"
        assert refused(blobs, output, task, 1) == "blob_unavailable"
        assert refused(blobs, output, b"?" * 32, 0) == "task_unknown"
        assert refused(blobs, b"?" * 32, task, 0) == "blob_unavailable"
        assert server.network.blobs is not None
        assert server.network.blobs.used_bytes == 0

        with trio.fail_after(120):
            await server.network.wait_peers(2)
        found = await come(blobs, output, task, 0)
        assert found.blob_id == output
        piece = blobs.blob_piece(output, 0)
        assert isinstance(piece, bytes) and len(piece) == found.size_bytes
        dataset = (await come(blobs, market_dataset(world, task), task, None)).blob_id
        assert blobs.blob_piece(dataset, 0) == BLOB[:PIECE_BYTES]

        # Where it is gone everywhere, that is said, and not tried again at once.
        for machine in (worker, verifier, server):
            assert machine.network.blobs is not None
            machine.network.blobs.remove(output)
        with pytest.raises(BlobUnavailable):
            await come(blobs, output, task, 0)
        monkeypatch.setattr(server.network, "fetch_blob", None)
        assert refused(blobs, output, task, 0) == "blob_unavailable"
        nursery.cancel_scope.cancel()
    world.store.close()


def market_dataset(world: World, task: bytes) -> bytes:
    return load_spec(world.store, task).dataset.blob


async def test_an_upload_stays_as_long_as_a_task_of_its_account_names_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    server = Machine(world, 1, "compute", alone=True)
    market = Market(world, server)
    async with trio.open_nursery() as nursery:
        await market.start(nursery, make_spec(10, 10, 10))
        store = server.network.blobs
        assert store is not None
        now_ms = [10**12]
        blobs = GatewayBlobs(
            server.network, world.store, UploadOptions(enabled=True, keep_s=10), tmp_path / "uploads",
            server.wallet.address, now_ms=lambda: now_ms[0],
        )  # fmt: skip
        named = market_dataset(world, market.task)
        manifest = store.manifest(named)
        assert manifest is not None
        store.unpin(named)
        for number in (REQUESTER, 5):
            blobs.upload_begin(manifest.encode(), account(number).address, "1")
        for _ in range(5):
            now_ms[0] += 10_000
            await trio.to_thread.run_sync(blobs.sweep)
            assert store.is_complete(named)
        assert [upload.account for upload in blobs._book.uploads] == [account(REQUESTER).address]
        await world.mint_until(lambda: market.record.phase in ENDED, timeout_s=120)
        now_ms[0] += 10_000
        await trio.to_thread.run_sync(blobs.sweep)
        assert not blobs._book.uploads
        assert store.manifest(named) is None
        nursery.cancel_scope.cancel()
    world.store.close()


def test_the_largest_private_data_set_is_within_the_limit() -> None:
    """A cipher has the hashes of its chunks after it, and the plain limit alone refused it."""
    assert inputs_limit(make_spec()) >= sealed_size(DATASET_BLOB_BYTES_MAX)


def test_gaps_are_named_as_runs_and_not_more_than_fit() -> None:
    assert missing_ranges([]) == []
    assert missing_ranges([0, 1, 2, 5, 7, 8]) == [(0, 3), (5, 1), (7, 2)]
    many = missing_ranges(list(range(0, 10_000, 2)))
    assert len(many) == RANGES_MAX


async def test_a_node_says_what_a_blob_is_as_a_data_set_and_reads_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    server = Machine(world, 3, "verify", alone=True)
    store = server.network.blobs
    assert store is not None
    blobs = GatewayBlobs(server.network, world.store, UploadOptions(), tmp_path / "uploads", server.wallet.address)
    ask = blobs.dataset_facts
    assert ask(b"?" * 32) is None
    right, wrong = store.add(BLOB), store.add(b"a,b\n1,2\n")
    assert ask(right) == read_dataset_facts(BLOB)
    assert ask(wrong) == read_dataset_facts(b"a,b\n1,2\n")
    reads: list[bytes] = []
    monkeypatch.setattr(store, "read", reads.append)
    assert ask(right) == read_dataset_facts(BLOB) and not reads
    monkeypatch.setattr(node.market.blobs, "DATASET_BLOB_BYTES_MAX", 10)
    large = store.add(b"x" * 11)
    assert ask(large) == (11, 0, 0, 0, 0, 0, b"", "too large") and not reads
    answer = handler_of(REQUESTS[BlobRequests.dataset_facts], ask)
    for params in ([], [b"short"], ["0x"], [right, 1]):
        with pytest.raises(DecodeError):
            answer(params)
    world.store.close()
