"""Decides how a node begins: state sync, block sync after its newest block, or an error. Pure.

Every starting point is a root of trust and expires. Its voters may have withdrawn their stake since, and could
sign a second history without loss (consensus.md R18). This holds for the genesis and for the newest block of a
database. An expired root needs a checkpoint, or the operator's explicit consent.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from consensus.light import TrustExpired, trusting_period_ms
from node.home.config import Checkpoint
from node.home.options import HistoryOptions
from state.primitives.errors import DekubeError
from state.primitives.genesis import ChainParameters, Genesis, read_parameters

__all__ = ["Beginning", "CheckpointMismatch", "NewestBlock", "RootExpired", "how_to_begin", "is_expired"]

AUTO_EPOCHS_MIN: Final = 3
"""A younger chain has no snapshots worth fetching."""
PEERS_KEEP_EPOCHS: Final = HistoryOptions().epochs
"""Peers keep the blocks of this many epochs. After a longer absence most have pruned the next block."""
HOUR_MS: Final = 3_600_000


class Beginning(Enum):
    """What a node does before it follows the chain."""

    BLOCKS = "blocks"
    """Nothing: peers send the blocks above its newest one."""
    STATE_OR_BLOCKS = "state or blocks"
    """Fetch the state if a peer has a snapshot."""
    STATE = "state"
    """Fetch the state; wait for peers with a snapshot."""


class NewestBlock(NamedTuple):
    """The newest block of an existing database."""

    height: int
    time_ms: int
    boundary_ms: int | None = None
    """Time of the newest last block of an epoch in it; the root of trust of a state sync."""


class RootExpired(TrustExpired):
    """The available root of trust is too old. The message says how to proceed."""

    def __init__(self, what: str, *, age_ms: int, period_ms: int) -> None:
        super().__init__(age_ms=age_ms, period_ms=period_ms)
        self.args = (
            f"{what} is {age_ms // HOUR_MS} h old, trust in it ends after {period_ms // HOUR_MS} h (two thirds of "
            "the unbonding time): who voted then may sign another history today. Begin with the last block of a "
            "recent epoch, from a source you trust: dekube node run --checkpoint HEIGHT:HASH, or sync.checkpoint "
            "in config.toml. Only for a chain that stood still or has not begun, or at your own risk: "
            'sync.mode = "blocks"',
        )


class CheckpointMismatch(DekubeError):
    """The chain has another block at the checkpoint's height. One of the two is wrong."""

    code = "checkpoint_mismatch"

    def __init__(self, checkpoint: Checkpoint, found: bytes) -> None:
        super().__init__(
            f"the block at height {checkpoint.height} is {found.hex()} here, and {checkpoint.block_hash.hex()} by "
            "the checkpoint: one of the two sources is wrong. Ask other sources. If the checkpoint is right, run "
            "dekube db repair --force and start the node with it"
        )


def is_expired(genesis: Genesis, time_ms: int, now_ms: int) -> bool:
    """Tell whether a block of ``time_ms`` is too old to be a root of trust."""
    chain = read_parameters(ChainParameters, "chain", genesis)
    return now_ms - time_ms > trusting_period_ms(chain.unbonding_ms)


def how_to_begin(
    genesis: Genesis, *, mode: str, checkpoint: Checkpoint | None, keeps_all: bool, kept: NewestBlock | None,
    is_begun: bool = False, is_founder: bool = False, now_ms: int,
) -> Beginning:  # fmt: skip
    """Decide how a node begins. ``mode``, ``checkpoint`` and ``keeps_all`` (all blocks) are its options.

    A database with only the genesis counts as none. A database that ends more than an epoch below the checkpoint
    is replaced. Block sync is used if it ends less far below, in mode ``blocks``, and with ``keeps_all`` unless
    the mode is ``state``.

    A node that was offline for longer than peers keep blocks fetches the state, with its own newest boundary block
    as root if that is not too old. ``is_begun``: a state sync is unfinished. Test networks continue from old
    databases, and their founders from an old genesis. They may stand still for weeks, and an attack would gain
    nothing.

    Raises RootExpired.
    """
    chain = read_parameters(ChainParameters, "chain", genesis)
    period_ms = trusting_period_ms(chain.unbonding_ms)
    if mode == "blocks":
        return Beginning.BLOCKS
    if kept is not None and kept.height > 0:
        is_newer = checkpoint is not None and checkpoint.height > kept.height
        is_far = checkpoint is not None and checkpoint.height > kept.height + chain.epoch_blocks
        if is_far and (mode == "state" or not keeps_all):
            return Beginning.STATE
        if is_expired(genesis, kept.time_ms, now_ms) and not (is_newer or genesis.testnet):
            age_ms = now_ms - kept.time_ms
            raise RootExpired(f"the newest block here, {kept.height},", age_ms=age_ms, period_ms=period_ms)
        is_long = now_ms - kept.time_ms > PEERS_KEEP_EPOCHS * chain.epoch_blocks * chain.block_interval_ms_min
        has_root = kept.boundary_ms is not None and not is_expired(genesis, kept.boundary_ms, now_ms)
        wants_blocks = is_newer or keeps_all or genesis.testnet
        return Beginning.STATE_OR_BLOCKS if is_long and has_root and not wants_blocks else Beginning.BLOCKS
    if checkpoint is not None:
        return Beginning.STATE
    age_ms = now_ms - genesis.time_ms
    if age_ms > period_ms:
        if genesis.testnet and is_founder and mode == "auto":
            return Beginning.BLOCKS  # a snapshot would need trust in the genesis
        raise RootExpired("the genesis", age_ms=age_ms, period_ms=period_ms)
    if mode == "state":
        return Beginning.STATE
    is_old = age_ms > AUTO_EPOCHS_MIN * chain.epoch_blocks * chain.block_interval_ms_min
    is_alone = is_founder and len(genesis.validators) == 1  # nobody else can have begun the chain
    return (
        Beginning.STATE_OR_BLOCKS if is_begun or (is_old and not keeps_all and not is_alone) else Beginning.BLOCKS
    )
