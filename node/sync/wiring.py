"""Database and sync as a node's options say: for the composition root and the commands."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from node.config import Checkpoint, NodeOptions, parse_checkpoint
from node.home import Home
from node.sync.core import NOTHING_FOUNDER_MS, NOTHING_MS
from node.sync.keeper import SnapshotKeeper
from node.sync.server import ServingNetwork, SyncServer
from node.sync.service import AskingNetwork, StateSync, begins_with_state, sync_first, trust_root
from state.primitives.genesis import ChainParameters, Genesis, read_parameters
from state.store import Store, StoreDamaged, StoreOptions, Tip
from state.store.profiles import profile_options
from state.transition.runtime import Runtime

__all__ = [
    "make_server",
    "make_state_sync",
    "open_chain",
    "snapshots_path",
    "store_options",
    "sync_before_start",
    "wants_state_sync",
]


def store_options(options: NodeOptions, genesis: Genesis) -> StoreOptions:
    """Return what the profile in the options keeps."""
    chain = read_parameters(ChainParameters, "chain", genesis)
    return profile_options(options.store.profile, epochs=options.store.epochs, epoch_blocks=chain.epoch_blocks)


def open_chain(home: Home, options: NodeOptions, runtime: Runtime) -> Store:
    """Open the node's database, or begin it with the genesis.

    Raises as ``Store.open``; what is damaged is named, with the command that helps.
    """
    try:
        return Store.open(
            home.chain, runtime.genesis, runtime.genesis_changes, store_options(options, runtime.genesis)
        )
    except StoreDamaged as error:
        raise StoreDamaged(
            f"{home.chain}: {error}. `dekube db repair` moves it aside; the node then syncs anew, "
            "keys and vote guard stay"
        ) from None


def snapshots_path(home: Home) -> Path:
    """Return the directory of the snapshots for others."""
    return home.chain.with_name("snapshots")


def make_server(home: Home, options: NodeOptions, store: Store, network: ServingNetwork) -> SyncServer:
    """Return what serves those who begin; run it as a part of the node, and tell it of commits."""
    return SyncServer(store, SnapshotKeeper(store, snapshots_path(home), kept=options.sync.snapshots), network)


def wants_state_sync(home: Home, options: NodeOptions, runtime: Runtime) -> bool:
    """Tell whether a node is to run a state sync before its database is opened."""
    return begins_with_state(
        home.chain,
        runtime.genesis,
        mode=options.sync.mode,
        checkpoint=_checkpoint(options),
        keeps_all=options.store.profile == "archive",
        now_ms=_wall_ms(),
    )


def make_state_sync(
    home: Home, options: NodeOptions, runtime: Runtime, network: AskingNetwork,
    count: Callable[[str], None] = lambda _result: None, *, address: bytes = b"",
) -> StateSync:  # fmt: skip
    """Return the state sync of a node, from the trust root in its options; ``address`` is its account's."""
    is_founder = any(validator.address == address for validator in runtime.genesis.validators)
    root, trust = trust_root(runtime.genesis, runtime.versions)
    return StateSync(
        home.chain,
        runtime.genesis,
        network,
        root,
        trust,
        wall_ms=_wall_ms,
        checkpoint=_checkpoint(options),
        options=store_options(options, runtime.genesis),
        nothing_ms=NOTHING_FOUNDER_MS if is_founder else NOTHING_MS,
        count=count,
    )


async def sync_before_start(options: NodeOptions, sync: StateSync) -> Tip | None:
    """Run a state sync; None when the options leave the blocks as the other way and no snapshot can be had.

    Raises what ``StateSync.run`` does.
    """
    may_give_up = options.sync.mode == "auto" and not options.sync.checkpoint
    return await sync_first(sync, may_give_up=may_give_up)


def _checkpoint(options: NodeOptions) -> Checkpoint | None:
    return parse_checkpoint(options.sync.checkpoint) if options.sync.checkpoint else None


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
