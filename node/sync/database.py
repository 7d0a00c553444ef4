"""Opens the database and runs the sync as a node's options say; used by the composition root and the commands."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import structlog

from node.home.config import Checkpoint, parse_checkpoint
from node.home.options import NodeOptions
from node.home.paths import Home
from node.sync.core import NOTHING_FOUNDER_MS, NOTHING_MS
from node.sync.server import ServingNetwork, SyncServer
from node.sync.service import AskingNetwork, StateSync, is_fresh, sync_first, sync_path, trust_root
from node.sync.snapshot_keeper import SnapshotKeeper
from node.sync.start_plan import Beginning, CheckpointMismatch, NewestBlock, how_to_begin, is_expired
from state.primitives.genesis import ChainParameters, Genesis, read_parameters
from state.store import Store, StoreDamaged, StoreOptions, Tip
from state.store.inspection import Inspection, inspect_database
from state.store.profiles import profile_options
from state.transition.runtime import Runtime

__all__ = [
    "beginning_of",
    "checkpoint_of",
    "make_server",
    "make_state_sync",
    "open_chain",
    "snapshots_path",
    "store_options",
    "sync_before_start",
]

_log = structlog.get_logger("sync")


def store_options(options: NodeOptions, genesis: Genesis) -> StoreOptions:
    """Return what the history profile in the options keeps."""
    chain = read_parameters(ChainParameters, "chain", genesis)
    return profile_options(options.store.profile, epochs=options.store.epochs, epoch_blocks=chain.epoch_blocks)


def open_chain(home: Home, options: NodeOptions, runtime: Runtime) -> Store:
    """Open the node's database, or create it from the genesis.

    Raises as ``Store.open``, and CheckpointMismatch for a database of another history than the checkpoint's. An
    error about damage names the command that repairs it.
    """
    try:
        store = Store.open(
            home.chain, runtime.genesis, runtime.genesis_changes, store_options(options, runtime.genesis)
        )
    except StoreDamaged as error:
        raise StoreDamaged(
            f"{home.chain}: {error}. `dekube db repair` moves it aside. The node then syncs again; "
            "keys and vote guard stay"
        ) from None
    checkpoint = checkpoint_of(options)
    if checkpoint is not None and store.base < checkpoint.height <= store.tip.height:
        record = store.height(checkpoint.height)
        if record is not None and record.block_hash != checkpoint.block_hash:
            store.close()
            raise CheckpointMismatch(checkpoint, record.block_hash)
    return store


def snapshots_path(home: Home) -> Path:
    """Return the directory of the snapshots for peers."""
    return home.chain.with_name("snapshots")


def make_server(home: Home, options: NodeOptions, store: Store, network: ServingNetwork) -> SyncServer:
    """Return the snapshot server. Run it as a component of the node, and call it at each commit."""
    return SyncServer(store, SnapshotKeeper(store, snapshots_path(home), kept=options.sync.snapshots), network)


def beginning_of(home: Home, options: NodeOptions, runtime: Runtime, *, address: bytes = b"") -> Beginning:
    """Decide how a node begins, before its database is opened. ``address`` is its account's.

    Raises RootExpired if no available root can be trusted any more, StoreLocked, StoreUnavailable.
    """
    begun, found = sync_path(home.chain), _look(home.chain)
    if found is not None and (found.damage or found.genesis_hash not in (None, runtime.genesis_hash)):
        return Beginning.BLOCKS  # opening it says what is wrong; it is not to be replaced unseen
    if found is None and (whole := _look(begun)) is not None and whole.tip is not None:
        return Beginning.STATE  # nothing is missing but to be put into its place
    genesis, now_ms = runtime.genesis, _wall_ms()
    kept = None
    if found is not None and found.tip is not None:
        boundary = found.boundary
        kept = NewestBlock(found.tip.height, found.tip.time_ms, None if boundary is None else boundary.time_ms)
    beginning = how_to_begin(
        genesis,
        mode=options.sync.mode,
        checkpoint=checkpoint_of(options),
        keeps_all=options.store.profile == "archive",
        kept=kept,
        is_begun=begun.exists(),
        is_founder=_is_founder(genesis, address),
        now_ms=now_ms,
    )
    if kept is not None and beginning is Beginning.BLOCKS and is_expired(genesis, kept.time_ms, now_ms):
        _log.warning(
            "the newest block of this database is older than the trusting period: compare the newest blocks that "
            "this node shows with a source that you trust",
            height=kept.height,
        )
    if kept is not None and kept.height and beginning is Beginning.STATE_OR_BLOCKS:
        open_chain(home, options, runtime).close()  # it is whole, and of the checkpoint's history
        _log.info(
            "this node was offline for longer than peers keep blocks; it fetches the state", height=kept.height
        )
    return beginning


def _look(path: Path) -> Inspection | None:
    """Return what the database in ``path`` contains; None if there is none."""
    return None if is_fresh(path) else inspect_database(path)


def _is_founder(genesis: Genesis, address: bytes) -> bool:
    return any(validator.address == address for validator in genesis.validators)


def make_state_sync(
    home: Home, options: NodeOptions, runtime: Runtime, network: AskingNetwork,
    count: Callable[[str], None] = lambda _result: None, *, address: bytes = b"",
) -> StateSync:  # fmt: skip
    """Return the state sync of a node, from the root of trust in its options. ``address`` is its account's.

    If the node's database reaches beyond the checkpoint, its newest boundary block replaces the checkpoint. Then
    only snapshots above its newest block are useful.
    """
    is_founder = _is_founder(runtime.genesis, address)
    checkpoint, above = checkpoint_of(options), 0
    found = _look(home.chain)
    tip, own = (None, None) if found is None else (found.tip, found.boundary)
    if tip is not None and own is not None and (checkpoint is None or checkpoint.height <= own.height):
        checkpoint, above = Checkpoint(own.height, own.block_hash), tip.height
    root, trust = trust_root(runtime.genesis, runtime.versions)
    return StateSync(
        home.chain,
        runtime.genesis,
        network,
        root,
        trust,
        wall_ms=_wall_ms,
        checkpoint=checkpoint,
        above=above,
        options=store_options(options, runtime.genesis),
        nothing_ms=NOTHING_FOUNDER_MS if is_founder else NOTHING_MS,
        count=count,
    )


async def sync_before_start(beginning: Beginning, sync: StateSync) -> Tip | None:
    """Run a state sync. Returns None if no snapshot is available and the node may sync the blocks instead.

    Raises what ``StateSync.run`` does.
    """
    return await sync_first(sync, may_give_up=beginning is Beginning.STATE_OR_BLOCKS)


def checkpoint_of(options: NodeOptions) -> Checkpoint | None:
    """Return the checkpoint in the options."""
    return parse_checkpoint(options.sync.checkpoint) if options.sync.checkpoint else None


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
