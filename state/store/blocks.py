"""The records of a block in the database: its bytes, receipts, certificate and index entries.

``delete_block`` removes what ``put_block`` writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from state.store.library_errors import reported
from state.store.records import (
    ADDRESS,
    BLOCK,
    CERTIFICATE,
    INDEX,
    RECEIPTS,
    TRANSACTION,
    FinalisedBlock,
    decode_index,
    decode_position,
    encode_index,
    encode_position,
    encode_receipts,
    height_key,
    named,
)

__all__ = ["delete_block", "put_block", "stale_entries"]

_PLACE_BYTES: Final = 12


def put_block(batch: Any, block: FinalisedBlock, *, index_addresses: bool) -> None:
    """Write a block and where its transactions, and with ``index_addresses`` its addresses, are found."""
    put, height = batch.put, block.tip.height
    at_height = height.to_bytes(8, "big")
    for index, transaction_hash in enumerate(block.transaction_hashes):
        put(TRANSACTION + transaction_hash, at_height + index.to_bytes(4, "big"))
    listed = block.addresses if index_addresses else ()
    for index, addresses in enumerate(listed):
        place = at_height + index.to_bytes(4, "big")
        for address in addresses:
            put(ADDRESS + address + place, b"")
    put(INDEX + at_height, encode_index(block.transaction_hashes, listed))
    put(BLOCK + at_height, block.block)
    put(RECEIPTS + at_height, encode_receipts(block.receipts, block.block_receipt))
    put(CERTIFICATE + at_height, block.certificate)


def delete_block(batch: Any, db: Any, height: int) -> int:
    """Delete the records of a block; return the number of deleted index entries. Raises StoreDamaged."""
    with reported():
        record = db.get(height_key(INDEX, height), verify_checksums=True)
    hashes, listed = ([], []) if record is None else named(height, decode_index, record)
    for transaction_hash in hashes:
        batch.delete(TRANSACTION + transaction_hash)
    for position, addresses in enumerate(listed):
        place = encode_position(height, position)
        for address in addresses:
            batch.delete(ADDRESS + address + place)
    for prefix in (BLOCK, RECEIPTS, CERTIFICATE, INDEX):
        batch.delete(height_key(prefix, height))
    return len(hashes) + sum(map(len, listed))


def stale_entries(db: Any, pruned: int) -> Iterator[bytes]:
    """Yield index entries up to height ``pruned`` that no index record lists."""
    with db.iterator(prefix=TRANSACTION, verify_checksums=True, fill_cache=False) as entries:
        for key, value in entries:
            if decode_position(value).height <= pruned:
                yield key
    with db.iterator(prefix=ADDRESS, include_value=False, fill_cache=False) as keys:
        for key in keys:
            if decode_position(key[-_PLACE_BYTES:]).height <= pruned:
                yield key
