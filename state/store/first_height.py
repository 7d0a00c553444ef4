"""The first height of a database: the genesis, or the height whose state was restored from others' pieces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from state.primitives.genesis import ChainParameters, Genesis
from state.primitives.hashing import ZERO_HASH
from state.store.nodes import PARTS, encode_flushed
from state.store.records import (
    BOUNDS,
    FLUSHED,
    FORMAT,
    HEIGHT,
    NODE,
    STATE,
    TIP,
    Bounds,
    Tip,
    encode_bounds,
    encode_tip,
    height_key,
)
from state.trie import Trie

__all__ = ["chunks", "create", "put_first"]

_CHUNK_ENTRIES: Final = 50_000


def create(
    db: Any, genesis: Genesis, chain: ChainParameters, chain_hash: bytes, changes: Mapping[bytes, bytes | None]
) -> Tip:
    """Write the genesis state; only the last write, of the tip, makes it count."""
    with db.iterator(include_value=False) as keys:  # what an interrupted creation has left
        for chunk in chunks(key for key in keys if key != FORMAT):
            with db.write_batch() as batch:
                for key in chunk:
                    batch.delete(key)
    update = Trie().update({key: value for key, value in changes.items() if value is not None})
    for prefix, entries in ((STATE, changes), (NODE, update.nodes)):
        for chunk in chunks(iter(entries)):
            with db.write_batch() as batch:
                for key in chunk:
                    value = entries[key]
                    if value is not None:
                        batch.put(prefix + key, value)
    tip = Tip(0, chain_hash, update.root, ZERO_HASH, chain.base_fee_initial, genesis.time_ms, b"")
    with db.write_batch(sync=True) as batch:
        put_first(batch, tip)
    return tip


def put_first(batch: Any, tip: Tip) -> None:
    """Write that the database begins at ``tip``, whose state and trie are there: below it nothing is kept."""
    record, height = encode_tip(tip), tip.height
    batch.put(height_key(HEIGHT, height), record)
    batch.put(FLUSHED, encode_flushed(dict.fromkeys(PARTS, height)))
    batch.put(BOUNDS, encode_bounds(Bounds(height, height, height)))
    batch.put(TIP, record)


def chunks(keys: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Yield keys in parts that one batch may hold."""
    chunk = []
    for key in keys:
        chunk.append(key)
        if len(chunk) == _CHUNK_ENTRIES:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
