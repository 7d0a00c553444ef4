"""The network that typed clients read: four validators with quick blocks, and workers that always have a task."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import trio

from node.home.paths import Home
from rpc.client import Client, TaskEnded
from rpc.ethereum.contracts import CONTRACTS
from state.primitives.hashing import digest
from state.primitives.keys import SecretKey
from testnet.cluster import lay_out
from testnet.demonstration import run_demonstration
from testnet.plan import CHAIN_ID, COIN
from tests.cluster.network import Network, wait_for
from tests.cluster.ports import free_ports

VALIDATORS: Final = 4
WORKERS: Final = 2
FUNDS: Final = 1_000 * COIN
INTERVAL_MS: Final = 100
PARAMETERS: Final = {
    "chain.block_interval_ms_min": INTERVAL_MS,
    "consensus.block_interval_ms": INTERVAL_MS,
    "consensus.idle_ms": INTERVAL_MS,
}
TASK_PATIENCE_S: Final = 180.0


def account(name: str) -> SecretKey:
    """Return the account of a client: anybody can derive it, so it is for tests alone."""
    return SecretKey(digest(b"client-tests", name.encode()))


def key_of(name: str) -> str:
    """Return the same as clients take it."""
    return "0x" + digest(b"client-tests", name.encode()).hex()


@dataclass
class World:
    """Where the gateway is, and what went on."""

    port: int
    home: Home
    requester: SecretKey
    tasks: list[str] = field(default_factory=list)
    """Tasks that were settled."""
    failed: list[str] = field(default_factory=list)

    def setting(self, client: str, blocks: int) -> dict[str, Any]:
        """Return what a client is told (``Setting`` of each)."""
        with Client(f"http://127.0.0.1:{self.port}") as node:
            machines = [item["address"] for item in node.items("dekube_getNodes")]
        return {
            "http": f"http://127.0.0.1:{self.port}", "ws": f"ws://127.0.0.1:{self.port}/ws", "chain_id": CHAIN_ID,
            "key": key_of(client), "blocks": blocks, "machines": machines, "task": self.tasks[0],
            "contracts": {name: "0x" + address.hex() for address, name in CONTRACTS.items()},
        }  # fmt: skip

    def work(self, done: threading.Event) -> None:
        """Give the workers one task after the other."""
        while not done.is_set():
            try:
                said: list[str] = []
                self.tasks.append(trio.run(run_demonstration, self.home, self.requester, said.append))
            except TaskEnded as ended:
                self.failed.append(str(ended))
                done.wait(1)


@contextmanager
def world(folder: Path, clients: frozenset[str]) -> Iterator[World]:
    """Run the network until its workers have had their first task; they have others until the end."""
    base_port = free_ports()
    plan = lay_out(
        folder, validators=VALIDATORS, workers=WORKERS, seed=1, base_port=base_port, parameters=PARAMETERS,
        allocations=tuple((account(name).address, FUNDS) for name in sorted(clients)),
    )  # fmt: skip
    options = ("--validators", str(VALIDATORS), "--workers", str(WORKERS), "--no-task")
    network = Network(folder, base_port, *options)
    network.start()
    done = threading.Event()
    it = World(base_port + 3 + 1, Home(folder / "validator-0"), plan.requester)
    worker = threading.Thread(target=it.work, args=(done,), daemon=True)
    try:
        network.wait_up()
        worker.start()
        wait_for(lambda: it.tasks, f"a task is settled: {it.failed}", patience_s=TASK_PATIENCE_S)
        yield it
    finally:
        done.set()
        network.end(signal.SIGTERM)
        worker.join(30)
