"""The beginning of a node without a database, as its options say; its owner can watch and stop it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from node.home.options import HistoryOptions, NodeOptions, SyncOptions
from node.home.paths import Home
from node.process.control import ask_node
from node.sync.database import open_chain, store_options
from node.sync.initial_sync import run_state_sync
from node.sync.server import SyncServer
from node.sync.snapshot_keeper import SnapshotKeeper
from p2p.service import Network
from state.store import StoreOptions
from state.transition.runtime import Runtime
from tests.node.sync.test_service import CLIENT, network_of
from tests.node.sync.world import EPOCH_BLOCKS, GENESIS, World, state_of
from tests.p2p.test_service import Wires, running

RUNTIME = Runtime(GENESIS)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "source")
    made.mint(EPOCH_BLOCKS, accounts=20)
    yield made
    made.store.close()


class Begin:
    """What a node does at its start."""

    def __init__(self, tmp_path: Path, options: NodeOptions, client: Network) -> None:
        self.home = Home(tmp_path / "node")
        (self.home.root / "run").mkdir(parents=True)
        self.options = options
        self.client = client
        self.results = Counter[str]()
        self.stopped = trio.Event()

    async def run(self) -> bool:
        return await run_state_sync(
            self.home, self.options, RUNTIME, address=b"a" * 20, sought=["x"],
            make_network=lambda: self.client, wait_stop=self.stopped.wait, stop=self.stopped.set,
            count=lambda result: self.results.update([result]),
        )  # fmt: skip


async def test_a_node_begins_with_the_state_and_then_opens_it(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.sync.database._wall_ms", lambda: GENESIS.time_ms + 60_000)
    wires = Wires()
    server_network, client = network_of(0, wires), network_of(CLIENT, wires, 0)
    wires.networks[client.identity.address] = client
    state = state_of(world.store)
    world.mint()
    keeper = SnapshotKeeper(world.store, tmp_path / "snapshots")
    keeper.make(EPOCH_BLOCKS)
    SyncServer(world.store, keeper, server_network)
    begin = Begin(tmp_path, NodeOptions(), client)
    async with running(server_network, wires=wires):
        with trio.fail_after(120):
            assert await begin.run()
        assert begin.results == {"taken": 1}
        assert not begin.home.control.exists()
        with open_chain(begin.home, begin.options, RUNTIME) as store:
            assert (store.tip.height, state_of(store)) == (EPOCH_BLOCKS, state)
        assert await begin.run()  # there is a database now
        assert begin.results == {"taken": 1}


async def test_its_owner_sees_and_stops_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.sync.database._wall_ms", lambda: GENESIS.time_ms + 60_000)
    options = NodeOptions(sync=SyncOptions(mode="state"))
    begin = Begin(tmp_path, options, network_of(CLIENT, Wires()))
    ended: list[bool] = []

    async def ask(verb: str) -> Any:
        return await trio.to_thread.run_sync(lambda: ask_node(begin.home.control, verb, timeout_s=10))

    async with trio.open_nursery() as nursery:

        async def run() -> None:
            ended.append(await begin.run())

        nursery.start_soon(run)
        with trio.fail_after(120):
            while not begin.home.control.exists():  # noqa: ASYNC110  made by the control server
                await trio.sleep(0.01)
            status = await ask("status")
            assert status["syncing"] and status["chain"] == GENESIS.name
            assert status["state_sync"] is None or status["state_sync"]["stage"] == "looking for snapshots"
            await ask("stop")
    assert ended == [False]


@pytest.mark.parametrize(
    "options",
    [NodeOptions(sync=SyncOptions(mode="blocks")), NodeOptions(store=HistoryOptions(profile="archive"))],
)
async def test_who_wants_the_blocks_does_without(
    tmp_path: Path, options: NodeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.sync.database._wall_ms", lambda: GENESIS.time_ms + 60_000)
    begin = Begin(tmp_path, options, network_of(CLIENT, Wires()))
    assert await begin.run()
    with open_chain(begin.home, options, RUNTIME) as store:
        assert store.tip.height == 0


def test_what_the_profiles_keep() -> None:
    def kept(profile: str, epochs: int = 1_000) -> int:
        return store_options(
            NodeOptions(store=HistoryOptions(profile=profile, epochs=epochs)), GENESIS
        ).block_heights  # fmt: skip

    assert kept("archive") == StoreOptions().block_heights == 0
    assert kept("full") == 1_000 * EPOCH_BLOCKS
    assert kept("full", 1) == kept("light") == 1_024
