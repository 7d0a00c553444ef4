"""State sync of a node without a database, before the rest of the node is built."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from typing import Any, Protocol

import structlog
import trio

from node.home.options import NodeOptions
from node.home.paths import Home
from node.process.control import ControlServer
from node.process.health_warnings import warn_without_peers
from node.sync.core import SyncProgress
from node.sync.database import beginning_of, make_state_sync, sync_before_start
from node.sync.progress_bar import show_state_sync
from node.sync.service import AskingNetwork
from node.sync.start_plan import Beginning
from state.primitives.address import format_address
from state.primitives.genesis import genesis_hash
from state.transition.runtime import Runtime

__all__ = ["SyncingNetwork", "run_state_sync"]

_log = structlog.get_logger("sync")


class SyncingNetwork(AskingNetwork, Protocol):
    """A network that is not running yet, as ``p2p.service.Network``."""

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled."""
        ...

    async def wait_peers(self, count: int) -> None:
        """Wait until ``count`` connections exist."""
        ...


async def run_state_sync(
    home: Home,
    options: NodeOptions,
    runtime: Runtime,
    *,
    address: bytes,
    sought: Sequence[str],
    make_network: Callable[[], SyncingNetwork],
    wait_stop: Callable[[], Awaitable[None]],
    stop: Callable[[], None],
    count: Callable[[str], None],
) -> bool:
    """Fetch the state of a new node on an old chain; return False if it was told to stop meanwhile.

    Does nothing if block sync suffices (node.sync.start_plan). Meanwhile the node has peers, and answers
    ``status`` and ``stop`` at its control socket. ``sought`` are the peers that the owner configured. Raises
    RootExpired, and what ``StateSync.run`` does.
    """
    beginning = beginning_of(home, options, runtime, address=address)
    if beginning is Beginning.BLOCKS:
        return True
    age_s = time.time_ns() // 10**9 - runtime.genesis.time_ms // 1000
    _log.info(
        "the chain may be old: looking for a recent snapshot at the peers before syncing blocks", age_s=age_s
    )
    network = make_network()
    state_sync = make_state_sync(home, options, runtime, network, count, address=address)
    is_stopped = False

    async def status(_request: Any) -> Any:
        return _status(runtime, options, address, len(list(network.peers())), state_sync.progress())

    async def stop_verb(_request: Any) -> Any:
        stop()
        return {}

    async def watch(scope: trio.CancelScope) -> None:
        nonlocal is_stopped
        await wait_stop()
        is_stopped = True
        scope.cancel()

    control = ControlServer(home.control, {"status": status, "stop": stop_verb})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch, nursery.cancel_scope)
        await nursery.start(network.run)
        await nursery.start(control.run)
        nursery.start_soon(warn_without_peers, network.wait_peers, sought, genesis_hash(runtime.genesis))
        nursery.start_soon(show_state_sync, state_sync.progress)
        await sync_before_start(beginning, state_sync)
        nursery.cancel_scope.cancel()
    return not is_stopped


def _status(
    runtime: Runtime, options: NodeOptions, address: bytes, peers: int, progress: SyncProgress | None
) -> dict[str, Any]:
    """Return what ``dekube status`` shows, in the format of a node with a chain."""
    genesis = runtime.genesis
    return {
        "address": format_address(address),
        "chain": genesis.name,
        "chain_id": genesis.chain_id,
        "height": 0,
        "block": genesis_hash(genesis).hex(),
        "state_root": "",
        "block_time_ms": genesis.time_ms,
        "genesis_time_ms": genesis.time_ms,
        "since_genesis_ms": time.time_ns() // 1_000_000 - genesis.time_ms,
        "behind_ms": 0,
        "syncing": True,
        "highest": progress.target if progress else 0,
        "epoch": progress.epoch if progress else 0,
        "view": 0,
        "peers": peers,
        "mempool": 0,
        "relays": 0,
        "jobs": [],
        "roles": list(options.roles),
        "version": version("dekube-node"),
        "state_sync": progress._asdict() if progress else None,
    }
