"""A chain in one process that makes blocks when it is told to, and nodes that do their duties on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
import trio

import node.market.duties
import node.market.inputs
from node.chain.block_tree import Chain, Executed
from node.chain.ledger import NodeLedger
from node.chain.mempool import MempoolOptions
from node.chain.runtime import make_runtime
from node.home.options import ExecutorOptions, NodeOptions, RegistryOptions
from node.home.paths import Home
from node.market.duties import DutyService
from node.market.machine import describe_machine
from node.market.wallet import Wallet
from p2p.base.limits import NetworkLimits
from p2p.service import Network, NetworkConfig
from state.primitives.blocks import encode_block
from state.primitives.genesis import Genesis, GenesisValidator
from state.primitives.keys import SecretKey
from state.primitives.votes import VoteKey
from state.primitives.vrf import vrf_key_of
from state.store import Store
from state.transition.calls import SYSTEM_PREFIX
from state.transition.epochs import epoch_of
from state.view import Table
from tasks.executor.containers.disks import ContainerDisk
from tasks.ledger.transitions import REGISTER_NODE, node_payload
from tests.p2p.helpers import NOW_MS, account, identity
from tests.p2p.test_service import Wires, memory_endpoint

COIN: Final = 10**18
START_MS: Final = 1_700_000_000_000
VALIDATOR: Final = SecretKey(b"v" * 32)
BLOCK_MS: Final = 250
PACE_S: Final = 0.02
PARAMETERS: Final = {
    "chain.steady_interval_ms_max": 10**12,
    "tasks.accept_ms": 3_000_000, "tasks.prepare_ms": 3_000_000, "tasks.window_grace_ms": 3_000_000,
    "tasks.replace_ms": 3_000_000, "tasks.seal_ms_min": 3_000_000, "tasks.reveal_ms": 3_000_000,
    "tasks.serve_ms": 20_000,
    "tasks.presence_ms": 10**9, "tasks.registration_valid_ms": 10**12, "tasks.final_ms": 1_000,
    "tasks.call_ms": 0, "tasks.order_blocks": 0, "tasks.draw_blocks": 2, "tasks.audit_bps": 10_000,
    "tasks.segments_per_sample": 1,
    "tasks.bond_release_ms": 1_000, "tasks.draw_retry_ms": 500, "tasks.samples": 1,
    "tasks.verifiers": 1, "tasks.verifiers_sure": 1, "tasks.jury": 1, "tasks.new_windows": 0,
    "tasks.custody_copies": 0,
}  # fmt: skip
"""Times that a slow machine does not miss, short waits where nothing has to happen, and a jury about results."""


class World:
    """The chain: one store, one mempool; accounts 0 to 9 of the network tests are rich."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.genesis = Genesis(
            7, "node test", START_MS, True,
            tuple((account(n).address, 1_000_000 * COIN) for n in range(10)),
            (GenesisValidator(VALIDATOR.address, VALIDATOR.vote_key, vrf_key_of(VALIDATOR).public, 1_000 * COIN),),
            tuple(sorted(PARAMETERS.items())),
        )  # fmt: skip
        self.runtime = make_runtime(self.genesis, check_invariants=True)
        self.store = Store.open(path / "chain", self.genesis, self.runtime.genesis_changes)
        self.chain = Chain(self.store, self.runtime)
        self.ledger = NodeLedger(self.store, self.chain, self.runtime, MempoolOptions())
        self.wires = Wires()

    def mint(self, *, after_ms: int = BLOCK_MS) -> Executed:
        """Make, execute and commit a block of what waits."""
        tip = self.store.tip
        view = tip.height + 1
        block, checked = self.chain.build(
            tip.block_hash, epoch=epoch_of(view, self.runtime.chain), view=view, seat=0,
            time_ms=max(tip.time_ms, START_MS) + after_ms, voters_bitmap=b"\1",
            vrf_proof=self.prove(tip.block_hash, view),
            transactions=self.ledger.take(500, self.ledger.room_after(tip.block_hash)),
        )  # fmt: skip
        executed = self.chain.execute(block, checked, raw=encode_block(block))
        self.chain.commit(block.hash, b"certificate")
        self.ledger.on_commit([executed])
        for key in executed.execution.changes:
            if key[0] == Table.ACCOUNT and not key[1:].startswith(SYSTEM_PREFIX):
                [place] = self.store.history(key[1:], limit=1)
                assert place.height == executed.header.height, "changed, and not in the history"
        return executed

    def prove(self, parent_hash: bytes, view: int) -> bytes:
        """Return the leader's VRF proof."""
        return VoteKey(VALIDATOR).prove(self.chain.vrf_input(parent_hash, view))

    async def keep_minting(self) -> None:
        """Make blocks until cancelled."""
        while True:
            self.mint()
            await trio.sleep(PACE_S)

    async def mint_until(self, condition: Callable[[], bool], *, timeout_s: float = 60.0) -> None:
        """Make blocks until something is true."""
        with trio.fail_after(timeout_s):
            while not condition():
                self.mint()
                await trio.sleep(PACE_S)

    def wallet(self, number: int) -> Wallet:
        """Return a wallet of an account."""
        return Wallet(account(number), self.ledger)


class Machine:
    """One node of the market: a network of memory streams, blobs, a home, and duties that can be restarted."""

    def __init__(
        self, world: World, number: int, role: str, *, duties: type[DutyService] = DutyService,
        alone: bool = False, limits: NetworkLimits = NetworkLimits(),  # noqa: B008
    ) -> None:  # fmt: skip
        self.world, self.number, self.role, self._duties = world, number, role, duties
        self.home = Home(world.path / f"node {number}")
        self.wallet = world.wallet(number)
        self.options = NodeOptions(
            roles=(role,), registry=RegistryOptions(auto_register=False), executor=ExecutorOptions(engine="numpy")
        )
        self.network = Network(
            NetworkConfig(
                bootstrap=() if alone else tuple(
                    f"0x{account(n).address.hex()}@{memory_endpoint(n)}" for n in range(number)
                ),
                blob_dir=self.home.blobs,
                limits=limits,
            ),
            identity(number),
            dialers={} if alone else {"relay": world.wires},
            now_ms=lambda: NOW_MS,
        )  # fmt: skip
        if not alone:
            world.wires.networks[self.network.identity.address] = self.network
        self.duties: DutyService | None = None
        self._serves = False
        self._scope = trio.CancelScope()

    async def register(self) -> None:
        """Put the machine into the registry."""
        profile = describe_machine(self.wallet.address, self.options, 1_000)
        await self.wallet.send(REGISTER_NODE, node_payload(profile, 100 * COIN))

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Do duties until ``stop``; may be called again."""
        self.home.jobs.mkdir(parents=True, exist_ok=True)
        self._scope = trio.CancelScope()
        self.duties = self._duties(
            self.world.ledger, self.wallet, self.network, self.options, home=self.home,
            secret=account(self.number).secret, is_synced=lambda: True,
        )  # fmt: skip
        if not self._serves:
            self._serves = True
            self.duties.serve()
        with self._scope:
            task_status.started()
            await self.duties.run()

    def stop(self) -> None:
        """End the duties as a node that goes down does."""
        self._scope.cancel()


def world_with(folder: Path, monkeypatch: pytest.MonkeyPatch, parameters: Mapping[str, int]) -> World:
    """Return a chain with these parameters beside its own; its nodes try again sooner than others."""
    monkeypatch.setattr(node.market.duties, "RETRY_S", 0.3)
    monkeypatch.setattr(node.market.inputs, "FETCH_PAUSE_S", 0.1)
    for name, value in parameters.items():
        monkeypatch.setitem(PARAMETERS, name, value)
    return World(folder)


@contextmanager
def world_of_containers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parameters: Mapping[str, int]
) -> Iterator[World]:
    """Make a chain as ``world_with`` does; at the end remove the disks of containers that its nodes left."""
    made = world_with(tmp_path / "world", monkeypatch, parameters)
    try:
        yield made
    finally:
        made.store.close()
        for disk in tmp_path.glob("world/node */data/containers/*/disk"):
            ContainerDisk(disk.parent).remove()
