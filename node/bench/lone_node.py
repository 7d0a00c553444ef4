"""A single node without peers, and its gateway, as processes for ``dekube bench rpc``.

The node has a store, makes one block per second of the waiting transactions, and serves its socket. It measures
the processor time of block production, so that the cost of requests can be separated from it.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import trio

from node.chain.block_tree import Chain, Executed
from node.chain.ledger import NodeLedger
from node.chain.local_transactions import LocalTransactions
from node.chain.mempool import MempoolOptions
from node.home.files import write_whole
from node.process.children import die_with_parent
from rpc.backend.server import Backend
from rpc.backend.store_view import StoreView, describe
from rpc.gateway.connections import ConnectionOptions
from rpc.gateway.dispatch import DispatchOptions
from rpc.gateway.process import GatewayOptions, gateway_command, options_to_json
from rpc.process.limits import tune_collector
from rpc.protocol.records import Network, Peer, Sync
from state.primitives.accepted_evidence import AcceptedEvidence
from state.primitives.blocks import encode_block
from state.primitives.genesis import Genesis, GenesisValidator
from state.primitives.hashing import digest
from state.primitives.keys import SecretKey
from state.primitives.votes import VoteKey
from state.primitives.vrf import vrf_key_of
from state.store import Store
from state.transition.epochs import epoch_of
from state.transition.evidence import EvidenceRefused
from state.transition.runtime import Checked, Runtime

__all__ = ["CHAIN_ID", "SENDERS", "LoneNode", "account_of", "cpu_s", "key_of", "lone_node", "one_processor"]

CHAIN_ID: Final = 31_337
SENDERS: Final = 64
BLOCK_TRANSACTIONS: Final = 2_000
START_PATIENCE_S: Final = 60.0
_VALIDATOR: Final = SecretKey(b"\x77" * 32)


class LoneNode(NamedTuple):
    """The processes, the port of the gateway, and the node's folder with its socket."""

    node: subprocess.Popen[bytes]
    gateway: subprocess.Popen[bytes]
    port: int
    path: Path

    @property
    def socket(self) -> Path:
        """The socket at which the node answers gateways."""
        return _socket(self.path)

    def spent_s(self) -> tuple[float, float]:
        """Return the current processor time of the node without block production, and of the gateway.

        Blocks are made in a separate thread and written by the database's threads. The event loop measures its own
        share of block production.
        """
        return _thread_cpu_s(self.node.pid) - float(_blocks_file(self.path).read_text()), cpu_s(self.gateway.pid)


def key_of(sender: int) -> SecretKey:
    """Return the key of one of the ``SENDERS``."""
    return SecretKey(digest(b"bench-sender", bytes([sender])))


def account_of(number: int) -> bytes:
    """Return the address of an account that has coins and never spends them."""
    return digest(b"bench-account", number.to_bytes(4, "big"))[:20]


def cpu_s(pid: int) -> float:
    """Return the processor time of a process."""
    return time.clock_gettime(~pid << 3 | 2)  # the clock that Linux has for each process


def _thread_cpu_s(pid: int) -> float:
    """Return the processor time of a process's first thread, which runs its event loop."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


@contextmanager
def one_processor(*pids: int) -> Iterator[None]:
    """Pin all threads of the processes, and this one, to one processor.

    Two logical processors may share a core. Then work on one slows the other, and the result depends on other
    programs.
    """
    before = {
        int(thread): os.sched_getaffinity(int(thread)) for pid in (os.getpid(), *pids) for thread in _threads(pid)
    }
    chosen = {max(os.sched_getaffinity(0))}
    for thread in before:
        os.sched_setaffinity(thread, chosen)
    try:
        yield
    finally:
        for thread, processors in before.items():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(thread, processors)


def _threads(pid: int) -> list[str]:
    return os.listdir(f"/proc/{pid}/task")


def _genesis(accounts: int) -> Genesis:
    senders = [key_of(number).address for number in range(SENDERS)]
    others = [account_of(number) for number in range(accounts)]
    return Genesis(
        CHAIN_ID,
        "bench",
        1_700_000_000_000,
        True,
        tuple((address, 10**24) for address in (*senders, *others)),
        (GenesisValidator(_VALIDATOR.address, _VALIDATOR.vote_key, vrf_key_of(_VALIDATOR).public, 10**21),),
    )


class _SingleNode:
    """A single node without peers that makes one block per second of the waiting transactions."""

    def __init__(self, path: Path, accounts: int) -> None:
        genesis = _genesis(accounts)
        self.runtime = Runtime(genesis)
        self.store = Store.open(path / "db", genesis, self.runtime.genesis_changes)
        self.chain = Chain(self.store, self.runtime)
        self.ledger = NodeLedger(
            self.store, self.chain, self.runtime, MempoolOptions(sender_transactions_max=10**6)
        )
        description = describe(
            self.runtime, address=_VALIDATOR.address, roles=(), version="bench",
            parameters={"chain": self.runtime.chain},
        )  # fmt: skip
        self.view = StoreView(self.store, self.runtime, self.ledger.mempool, description)

    def admission(self) -> AbstractContextManager[Callable[[bytes, bytes], object]]:
        return self.ledger.admission()

    def submit_evidence(self, raw: bytes) -> AcceptedEvidence:
        raise EvidenceRefused("a node of one accuses nobody")

    def submit_fork(self, certificates: list[bytes], reporter: bytes | None) -> list[AcceptedEvidence]:
        raise EvidenceRefused("a node of one has no fork")

    def peers(self) -> list[Peer]:
        return []

    def network(self, after: bytes, limit: int) -> Network:
        return Network("none", "", (), (), 0, ())

    def sync(self) -> Sync:
        return Sync(0, self.store.tip.height, 0, 0, 0)

    async def make_blocks(self, path: Path) -> None:
        """Make a block per second in a separate thread, and measure the event loop's share of the cost."""
        loop_s = 0.0
        while True:
            write_whole(_blocks_file(path), repr(loop_s))
            await trio.sleep(1)
            started_s = time.thread_time()
            waiting = self.ledger.mempool.take(BLOCK_TRANSACTIONS)
            loop_s += time.thread_time() - started_s
            executed = await trio.to_thread.run_sync(self._make_block, waiting)
            started_s = time.thread_time()
            self.ledger.on_commit([executed])
            self.view.notify_head({executed.header.height: executed.execution.changes})
            loop_s += time.thread_time() - started_s

    def _make_block(self, waiting: list[Checked]) -> Executed:
        tip = self.store.tip
        view = tip.height + 1
        block, checked = self.chain.build(
            tip.block_hash, epoch=epoch_of(view, self.runtime.chain), view=view, seat=0,
            time_ms=tip.time_ms + 1_000, voters_bitmap=b"\1",
            vrf_proof=VoteKey(_VALIDATOR).prove(self.chain.vrf_input(tip.block_hash, view)),
            transactions=waiting,
        )  # fmt: skip
        executed = self.chain.execute(block, checked, raw=encode_block(block))
        self.chain.commit(block.hash, b"")
        return executed


def _blocks_file(path: Path) -> Path:
    return path / "blocks"


def _socket(path: Path) -> Path:
    return path / "node.sock"


async def _recover_none(_batch: bytes) -> bytes:
    """Replaces the signature workers: this node has no waiting transactions at its start."""
    raise AssertionError


async def _serve(path: Path, accounts: int) -> None:
    write_whole(_blocks_file(path), "0.0")
    live = _SingleNode(path, accounts)
    backend = Backend(live.view, live, _socket(path))
    kept = LocalTransactions(live.ledger, path / "mempool", recover=_recover_none, wait_peers=trio.sleep_forever)
    async with trio.open_nursery() as nursery:
        await nursery.start(kept.run)  # what a node does for its own users costs it time as well
        await nursery.start(backend.run)
        nursery.start_soon(live.make_blocks, path)
        _, port = await backend.wait_gateway()
        tune_collector()  # as a node does
        print(json.dumps({"port": port}), flush=True)
        await trio.sleep_forever()


@contextmanager
def lone_node(path: Path, accounts: int) -> Iterator[LoneNode]:
    """Run a single node in the empty folder ``path``, and its gateway without rate limits."""
    options = GatewayOptions(
        socket=str(_socket(path)),
        port=0,
        log_level="warning",
        dispatch=DispatchOptions(rate_per_s=0),
        connections=ConnectionOptions(connections_per_address_max=0),
    )
    read_end, write_end = os.pipe()
    ends_with_us = partial(die_with_parent, os.getpid())
    node = subprocess.Popen(
        [sys.executable, "-m", "node.bench.lone_node", str(path), str(accounts)], stdout=subprocess.PIPE,
        preexec_fn=ends_with_us,
    )  # fmt: skip
    gateway = subprocess.Popen(gateway_command(read_end), pass_fds=(read_end,), preexec_fn=ends_with_us)
    os.close(read_end)
    try:
        with os.fdopen(write_end, "w") as stream:
            stream.write(options_to_json(options))
        assert node.stdout is not None
        if not select.select([node.stdout], [], [], START_PATIENCE_S)[0]:
            raise AssertionError(f"not up: node {node.poll()}, gateway {gateway.poll()}")
        yield LoneNode(node, gateway, json.loads(node.stdout.readline())["port"], path)
    finally:
        for process in (gateway, node):
            process.kill()
            process.wait()


if __name__ == "__main__":
    try:
        trio.run(_serve, Path(sys.argv[1]), int(sys.argv[2]))
    except KeyboardInterrupt:
        pass
