"""A chain of made-up blocks for the tests of the store: valid to it, whatever the rules above would say."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

from state.primitives.genesis import Genesis, GenesisValidator
from state.primitives.hashing import ZERO_HASH, digest
from state.store import FinalisedBlock, Store, StoreOptions, Tip

HISTORY_HEIGHTS = 8
EPOCH_BLOCKS = 4


def genesis_of(chain_id: int = 7) -> Genesis:
    validator = GenesisValidator(bytes(19) + b"\1", bytes(31) + b"\1", bytes(31) + b"\1", 10**21)
    return Genesis(
        chain_id, "store", 1_000, True, (), (validator,),
        (("chain.epoch_blocks", EPOCH_BLOCKS), ("chain.history_heights", HISTORY_HEIGHTS)),
    )  # fmt: skip


def genesis_changes() -> dict[bytes, bytes | None]:
    return {b"\1" + number.to_bytes(2, "big"): b"genesis" for number in range(300)}


def open_store(path: Path, *, chain_id: int = 7, options: StoreOptions | None = None) -> Store:
    return Store.open(path, genesis_of(chain_id), genesis_changes, options)


def next_block(store: Store, changes: Mapping[bytes, bytes | None], *, transactions: int = 3) -> FinalisedBlock:
    height = store.tip.height + 1
    update = store.trie.update(changes)
    tip = Tip(
        height,
        digest(b"test-block", b"%d" % height),
        update.root,
        ZERO_HASH,
        10 + height,
        height * 1_000,
        b"header",
    )
    return FinalisedBlock(
        tip,
        b"block %d" % height,
        b"certificate %d" % height,
        [digest(b"test-tx", b"%d %d" % (height, at)) for at in range(transactions)],
        [
            (bytes(19) + b"\1", bytes(19) + bytes([at])) if at != 1 else (bytes(19) + b"\1",)
            for at in range(transactions)
        ],
        [b"receipt %d %d" % (height, at) for at in range(transactions)],
        b"hooks" if height % 2 else None,
        changes,
        update.nodes,
        b"committee after %d" % height if height % EPOCH_BLOCKS == 0 else None,
    )


def random_changes(chance: random.Random, count: int) -> dict[bytes, bytes | None]:
    return {
        b"\1" + chance.randrange(600).to_bytes(2, "big"): chance.randbytes(4) if chance.random() < 0.6 else None
        for _ in range(count)
    }


def grow(store: Store, seed: int, blocks: int, count: int = 80) -> list[dict[bytes, bytes]]:
    """Commit ``blocks`` random blocks; return the whole state before them and after each."""
    chance = random.Random(seed)
    state = dict(store.scan(b"", b"\xff", 10**6))
    states = [dict(state)]
    for _ in range(blocks):
        changes = random_changes(chance, count)
        store.commit(next_block(store, changes))
        for key, value in changes.items():
            if value is None:
                state.pop(key, None)
            else:
                state[key] = value
        states.append(dict(state))
    return states
