"""Snapshots on a node's disk: made at the ends of epochs, proven, bounded in number, never served when damaged."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from consensus.light import LightClient, Proven, decode_epoch_record
from node.sync.messages import decode_manifest
from node.sync.service import trust_root
from node.sync.snapshot_keeper import SnapshotKeeper
from state.primitives.blocks import header_hash
from state.store import StoreUnavailable
from state.trie import decode_range, entry_of, verify_range
from tests.node.sync.world import EPOCH_BLOCKS, GENESIS, HISTORY_HEIGHTS, NOW_MS, World, state_of


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.store.close()


def follow(world: World) -> LightClient:
    light = LightClient(*trust_root(GENESIS, (1,)))
    for record in world.store.epoch_records(0, limit_bytes=1 << 20):
        assert light.follow(decode_epoch_record(record), NOW_MS) is None
    return light


def keeper_of(world: World, kept: int = 3) -> SnapshotKeeper:
    return SnapshotKeeper(world.store, world.path / "snapshots", kept=kept, piece_bytes=1_000)


def test_a_snapshot_proves_itself_to_who_follows_the_epochs(world: World) -> None:
    keeper = keeper_of(world)
    world.mint(EPOCH_BLOCKS, accounts=10)
    assert keeper.due() is None  # the header that has the state's root is not there yet
    state = state_of(world.store)
    world.mint_pair()
    assert keeper.due() == EPOCH_BLOCKS
    offer = keeper.make(EPOCH_BLOCKS)
    assert offer is not None
    assert keeper.offers() == [offer]
    assert keeper.due() is None
    raw = keeper.manifest(EPOCH_BLOCKS)
    assert raw is not None
    manifest = decode_manifest(raw)
    assert (manifest.height, manifest.plan_hash, len(manifest.starts)) == offer
    assert len(manifest.headers) == 2  # the second of the pair is the one with the certificate
    light = follow(world)
    assert light.boundaries[0] == header_hash(manifest.boundary) == manifest.headers[0].parent_hash
    proven = light.verify_headers(manifest.headers, manifest.certificate, NOW_MS)
    assert isinstance(proven, tuple) and isinstance(proven[0], Proven)
    found: dict[bytes, bytes] = {}
    for number, (start, stop) in enumerate(manifest.ranges()):
        piece = keeper.piece(EPOCH_BLOCKS, number)
        assert piece is not None
        content = decode_range(piece)
        entries = [entry_of(*item) for item in content.items]
        verify_range(manifest.state_root, start, stop, entries, content.nodes)
        found |= dict(content.items)
    assert found == state
    assert keeper.piece(EPOCH_BLOCKS, len(manifest.starts)) is None
    assert keeper.piece(99, 0) is keeper.manifest(99) is None


def test_the_newest_few_are_kept_also_over_a_restart(world: World) -> None:
    keeper = keeper_of(world)
    for _ in range(5):
        world.mint(EPOCH_BLOCKS)
        height = keeper.due()
        if height is not None:
            keeper.make(height)
    heights = [offer.height for offer in keeper.offers()]
    assert heights == [4 * EPOCH_BLOCKS, 3 * EPOCH_BLOCKS, 2 * EPOCH_BLOCKS]
    (world.path / "snapshots" / "40.new").mkdir()
    (world.path / "snapshots" / "16" / "manifest").write_bytes(b"damaged")
    again = keeper_of(world, kept=2)
    assert [offer.height for offer in again.offers()] == heights[1:]
    assert {path.name for path in (world.path / "snapshots").iterdir()} == {"8", "12"}
    assert again.due() == 4 * EPOCH_BLOCKS
    assert keeper_of(world, kept=0).offers() == []
    assert keeper_of(world, kept=0).due() is None


def test_a_boundary_that_is_too_old_is_left_out(world: World) -> None:
    keeper = keeper_of(world)
    world.mint(EPOCH_BLOCKS + 1)
    for _ in range(HISTORY_HEIGHTS):
        world.mint()
        assert keeper.due() is None or keeper.due() > world.store.oldest_state - 1  # type: ignore[operator]


def test_a_damaged_piece_is_never_served(world: World) -> None:
    keeper = keeper_of(world)
    world.mint(EPOCH_BLOCKS + 1)
    keeper.make(EPOCH_BLOCKS)
    path = world.path / "snapshots" / "4" / "0"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert keeper.piece(EPOCH_BLOCKS, 0) is None
    assert keeper.offers() == []
    keeper.make(EPOCH_BLOCKS)
    assert keeper.piece(EPOCH_BLOCKS, 0) is not None
    shutil.rmtree(path.parent)
    assert keeper.manifest(EPOCH_BLOCKS) is None
    assert keeper.offers() == []


def test_of_another_chain_or_a_rolled_back_height_nothing_is_offered(world: World, tmp_path: Path) -> None:
    keeper = keeper_of(world)
    world.mint(EPOCH_BLOCKS + 1)
    keeper.make(EPOCH_BLOCKS)
    world.store.rollback(2)
    assert keeper_of(world).offers() == []


def test_a_full_disk_and_the_end_of_the_node_leave_nothing_half_made(world: World) -> None:
    keeper = keeper_of(world)
    world.mint(EPOCH_BLOCKS + 1)
    (world.path / "snapshots").write_bytes(b"in the way")
    with pytest.raises(StoreUnavailable):
        keeper.make(EPOCH_BLOCKS)
    (world.path / "snapshots").unlink()
    keeper.stop()
    assert keeper.make(EPOCH_BLOCKS) is None
    assert list((world.path / "snapshots").iterdir()) == []


def test_what_is_offered_can_be_asked_while_snapshots_come_and_go(world: World) -> None:
    keeper = keeper_of(world)
    world.mint(EPOCH_BLOCKS + 1)
    offer = keeper.make(EPOCH_BLOCKS)
    assert offer is not None
    known = keeper._known[EPOCH_BLOCKS]
    is_over = False

    def come_and_go() -> None:
        while not is_over:
            for height in range(100, 104):
                keeper._known[height] = known
            for height in range(100, 104):
                keeper._drop(height)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        for _ in range(5_000):
            assert offer in keeper.offers()
    finally:
        is_over = True
        thread.join()
        sys.setswitchinterval(interval)
