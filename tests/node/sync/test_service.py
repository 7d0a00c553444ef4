"""A fresh node syncs the state from running peers over their encrypted channels, and goes on with their blocks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from node.home.config import Checkpoint, parse_checkpoint
from node.sync import server as serving
from node.sync.core import NOTHING_MS, NoSnapshots
from node.sync.messages import CHUNK, MANIFEST, OFFERS, RECORDS, encode_asked
from node.sync.server import SyncServer
from node.sync.service import StateSync, is_fresh, sync_first, sync_path, trust_root
from node.sync.snapshot_keeper import SnapshotKeeper
from p2p.base.errors import RequestRefused
from p2p.secure.frame import TrafficClass
from p2p.service import Network, NetworkConfig
from state.primitives.blocks import encode_block
from state.primitives.errors import ConfigError, DekubeError
from state.store import Pruned, Restore, StoreDamaged, StoreLocked, Tip
from state.transition.runtime import Runtime
from tests.node.sync.world import EPOCH_BLOCKS, GENESIS, NOW_MS, World, open_store, state_of
from tests.p2p.helpers import NOW_MS as NETWORK_MS
from tests.p2p.helpers import identity
from tests.p2p.test_service import Wires, memory_endpoint, running

CLIENT = 9


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "source")
    made.mint(EPOCH_BLOCKS, accounts=30)
    made.mint(EPOCH_BLOCKS, accounts=5)
    yield made
    made.store.close()


def network_of(number: int, wires: Wires, *others: int) -> Network:
    return Network(
        NetworkConfig(
            bootstrap=tuple(f"0x{identity(other).address.hex()}@{memory_endpoint(other)}" for other in others)
        ),
        identity(number),
        dialers={"relay": wires},
        now_ms=lambda: NETWORK_MS,
    )


def keeper_of(world: World, number: int) -> SnapshotKeeper:
    return SnapshotKeeper(world.store, world.path / f"snapshots {number}", piece_bytes=1_000)


def sync_of(place: Path, network: Network, results: Counter[str], **options: object) -> StateSync:
    root, trust = trust_root(GENESIS, (1,))
    # A clock that goes: who is told that a server is busy asks again a second later.
    began_s = time.monotonic()
    return StateSync(
        place, GENESIS, network, root, trust, wall_ms=lambda: NOW_MS + int(1000 * (time.monotonic() - began_s)),
        count=lambda result: results.update([result]), **options,  # type: ignore[arg-type]
    )  # fmt: skip


async def serve(world: World, number: int, network: Network, nursery: trio.Nursery) -> SyncServer:
    keeper = keeper_of(world, number)
    server = SyncServer(world.store, keeper, network)
    await nursery.start(server.run)
    if world.store.tip.height == 2 * EPOCH_BLOCKS:
        world.mint()
        server.on_commit()
    with trio.fail_after(120):
        while not keeper.offers() or keeper.offers()[0].height < 2 * EPOCH_BLOCKS:  # noqa: ASYNC110  it is made in a thread
            await trio.sleep(0.01)
    return server


async def test_a_fresh_node_syncs_and_follows(world: World, tmp_path: Path) -> None:
    wires, results = Wires(), Counter[str]()
    networks = [network_of(number, wires) for number in range(2)]
    client = network_of(CLIENT, wires, 0, 1)
    place = tmp_path / "fresh" / "chain"
    state = state_of(world.store)
    target = world.store.tip
    async with running(*networks, client, wires=wires), trio.open_nursery() as nursery:
        for number, network in enumerate(networks):
            await serve(world, number, network, nursery)
        with trio.fail_after(120):
            sync = sync_of(place, client, results)
            assert sync.progress() is None
            tip = await sync.run()
        progress = sync.progress()
        assert max(client._peers[network.identity.address].usefulness.periods for network in networks) >= 1
        nursery.cancel_scope.cancel()
    assert progress is not None
    assert (tip.height, tip.block_hash) == (target.height, target.block_hash)
    assert progress.pieces == progress.pieces_done == results["taken"] > 3 and not results["false"]
    assert not sync_path(place).exists() and not is_fresh(place)
    runtime = Runtime(GENESIS)
    with open_store(place, runtime) as store:
        assert state_of(store) == state
        assert store.tip == tip
        for height in range(tip.height + 1, world.store.tip.height + 1):  # block sync goes on from there
            follow(world, store, height)
        assert store.tip == world.store.tip
        assert store.verify() > 0
        with pytest.raises(Pruned):
            store.block(tip.height)


async def test_a_database_that_was_left_behind_is_the_root_of_the_next_one(world: World, tmp_path: Path) -> None:
    """A node that was off: trust begins at its own newest boundary, and nothing below its newest block is used."""
    place = tmp_path / "away" / "chain"
    away = World(place.parent)
    for height in range(1, EPOCH_BLOCKS + 2):
        follow(world, away.store, height)
    own, boundary = away.store.tip, away.store.height(EPOCH_BLOCKS)
    assert boundary is not None
    away.store.close()
    wires, results = Wires(), Counter[str]()
    server, client = network_of(0, wires), network_of(CLIENT, wires, 0)
    async with running(server, client, wires=wires), trio.open_nursery() as nursery:
        await serve(world, 0, server, nursery)
        target = world.store.height(2 * EPOCH_BLOCKS)
        assert target is not None
        root = Checkpoint(EPOCH_BLOCKS, boundary.block_hash)
        with trio.fail_after(120):
            with pytest.raises(NoSnapshots):  # a chain that stood still: the state would be an older one
                await sync_of(place, client, results, checkpoint=root, above=target.height, nothing_ms=2_000).run()
            tip = await sync_of(place, client, results, checkpoint=root, above=own.height).run()
        nursery.cancel_scope.cancel()
    assert (tip.height, tip.block_hash) == (target.height, target.block_hash)
    with (
        open_store(place, Runtime(GENESIS)) as store,
        open_store(place.with_name("chain.old-1"), Runtime(GENESIS)) as old,
    ):
        assert (store.tip, old.tip) == (tip, own)


def follow(world: World, store: object, height: int) -> None:
    """Execute a block of the source over the synced state."""
    from node.chain.block_tree import Chain, decode_body
    from state.primitives.blocks import decode_block
    from state.primitives.keys import recover_addresses
    from state.store import Store

    assert isinstance(store, Store)
    raw, certificate = world.store.block(height), world.store.certificate(height)
    assert raw is not None and certificate is not None
    block = decode_block(raw)
    assert encode_block(block) == raw
    chain = Chain(store, Runtime(GENESIS))
    body = decode_body(chain.runtime, block.transactions)
    transactions = body.resolve(recover_addresses(body.batch))
    chain.check(block, transactions, now_ms=None)
    chain.execute(block, transactions, raw=raw)
    chain.commit(block.hash, certificate)


async def test_a_sync_that_was_cut_off_goes_on(world: World, tmp_path: Path) -> None:
    wires, results = Wires(), Counter[str]()
    server_network, client = network_of(0, wires), network_of(CLIENT, wires, 0)
    place = tmp_path / "fresh" / "chain"
    async with running(server_network, client, wires=wires), trio.open_nursery() as nursery:
        await serve(world, 0, server_network, nursery)
        while results["taken"] < 2:
            with trio.move_on_after(30) as scope:
                sync = sync_of(place, client, results)
                sync._count = lambda result: (results.update([result]), scope.cancel())  # type: ignore[assignment]
                await sync.run()
        assert is_fresh(place) and sync_path(place).exists()
        with pytest.raises(StoreDamaged):
            open_store(sync_path(place), Runtime(GENESIS))
        before = results["taken"]
        again = sync_of(place, client, results)
        with trio.fail_after(120):
            await again.run()
        progress = again.progress()
        assert progress is not None
        assert results["taken"] - before < progress.pieces
        nursery.cancel_scope.cancel()
    with open_store(place, Runtime(GENESIS)) as store:
        store.verify()


async def test_who_found_no_snapshot_asks_the_same_peers_again(world: World, tmp_path: Path) -> None:
    wires, results = Wires(), Counter[str]()
    server_network, client = network_of(0, wires), network_of(CLIENT, wires, 0)
    sync = sync_of(tmp_path / "fresh" / "chain", client, results, nothing_ms=0)
    async with running(server_network, client, wires=wires), trio.open_nursery() as nursery:
        with trio.fail_after(60):
            while not list(client.peers()):  # noqa: ASYNC110  it is dialled meanwhile
                await trio.sleep(0.01)
        with pytest.raises(NoSnapshots):
            await sync.run()
        await serve(world, 0, server_network, nursery)
        sync._nothing_ms = NOTHING_MS
        with trio.fail_after(NOTHING_MS / 2_000):
            assert (await sync.run()).height == 2 * EPOCH_BLOCKS
        nursery.cancel_scope.cancel()


async def test_what_a_crash_left_unreadable_is_begun_anew(world: World, tmp_path: Path) -> None:
    wires, results = Wires(), Counter[str]()
    server_network, client = network_of(0, wires), network_of(CLIENT, wires, 0)
    place = tmp_path / "fresh" / "chain"
    Restore.open(sync_path(place), GENESIS).close()
    (sync_path(place) / "CURRENT").write_bytes(b"")
    async with running(server_network, client, wires=wires), trio.open_nursery() as nursery:
        await serve(world, 0, server_network, nursery)
        with trio.fail_after(120):
            assert (await sync_of(place, client, results).run()).height == 2 * EPOCH_BLOCKS
        nursery.cancel_scope.cancel()


async def test_one_sync_at_a_time_and_never_over_a_database(world: World, tmp_path: Path) -> None:
    wires = Wires()
    client = network_of(CLIENT, wires)
    held = Restore.open(sync_path(tmp_path / "chain"), GENESIS)
    with pytest.raises(StoreLocked):
        await sync_of(tmp_path / "chain", client, Counter()).run()
    held.close()
    checkpoint = parse_checkpoint("3:" + "ab" * 32)
    with pytest.raises(ConfigError):
        await sync_of(tmp_path / "chain", client, Counter(), checkpoint=checkpoint).run()


async def test_a_database_that_is_there_makes_room_when_the_state_is_whole(world: World, tmp_path: Path) -> None:
    wires, results = Wires(), Counter[str]()
    server_network, client = network_of(0, wires), network_of(CLIENT, wires, 0)
    place = tmp_path / "kept" / "chain"
    open_store(place, Runtime(GENESIS)).close()
    async with running(server_network, client, wires=wires), trio.open_nursery() as nursery:
        await serve(world, 0, server_network, nursery)
        with trio.fail_after(120):
            assert (await sync_of(place, client, results).run()).height == 2 * EPOCH_BLOCKS
        nursery.cancel_scope.cancel()
    with open_store(place, Runtime(GENESIS)) as store:
        assert store.tip.height == 2 * EPOCH_BLOCKS
    with open_store(place.with_name("chain.old-1"), Runtime(GENESIS)) as store:
        assert store.tip.height == 0


class Never(StateSync):
    """Finds no snapshot a number of times."""

    def __init__(self) -> None:
        self.left = 2

    async def run(self) -> Tip:
        if self.left:
            self.left -= 1
            raise NoSnapshots("nobody has one")
        return Tip(4, bytes(32), bytes(32), bytes(32), 1, 1, b"")


async def test_without_snapshots_it_waits_or_leaves_it(autojump_clock: object) -> None:
    assert await sync_first(Never(), may_give_up=True) is None
    patient = await sync_first(Never(), may_give_up=False)
    assert patient is not None and patient.height == 4


async def test_requests_are_bounded_by_rate_and_refused_by_code(world: World) -> None:
    wires = Wires()
    server_network, client = network_of(0, wires), network_of(CLIENT, wires, 0)
    address = server_network.identity.address
    async with running(server_network, client, wires=wires), trio.open_nursery() as nursery:
        await serve(world, 0, server_network, nursery)

        async def code(method: str, body: bytes) -> str:
            try:
                await client.request(address, method, body, timeout_s=10, limit_bytes=4 << 20)
            except RequestRefused as error:
                return str(error)
            return ""

        assert await code(OFFERS, b"") == ""
        for method, body in (
            (RECORDS, b"garbage"), (MANIFEST, encode_asked(1, 2)), (CHUNK, encode_asked(1)), (CHUNK, b""),
        ):  # fmt: skip
            assert await code(method, body) == "decode_error"
        assert await code(MANIFEST, encode_asked(3)) == "snapshot_unknown"
        assert await code(CHUNK, encode_asked(2 * EPOCH_BLOCKS, 10**6)) == "snapshot_unknown"
        codes = [await code(CHUNK, encode_asked(2 * EPOCH_BLOCKS, 0)) for _ in range(40)]
        assert codes[: int(serving.PIECES_OF_ONE_BURST) - 2] == [""] * (int(serving.PIECES_OF_ONE_BURST) - 2)
        assert "busy" in codes
        assert "busy" in [await code(OFFERS, b"") for _ in range(60)]
        nursery.cancel_scope.cancel()


async def test_many_identities_together_get_no_more_than_all_may(world: World, autojump_clock: object) -> None:
    """Each page of records is half a megabyte from the disk, and an identity costs nothing."""
    handlers: dict[str, serving.Handler] = {}

    class Registry:
        def on_request(
            self, method: str, handler: serving.Handler, *, cls: TrafficClass = TrafficClass.REQUEST
        ) -> None:
            handlers[method] = handler

    SyncServer(world.store, keeper_of(world, 0), Registry())

    async def answered() -> int:
        count = 0
        for number in range(1_000):
            try:
                await handlers[RECORDS](number.to_bytes(20, "big"), encode_asked(0))
                count += 1
            except DekubeError as error:
                assert error.code == "busy"
        return count

    assert await answered() == serving.SMALL_BURST
    await trio.sleep(1.001)
    assert await answered() == serving.SMALL_PER_S
