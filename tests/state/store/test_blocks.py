"""What a block leaves beside the state is wholly taken away again, and nothing of another block with it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from state.primitives.hashing import ZERO_HASH
from state.store.blocks import delete_block, put_block, stale_entries
from state.store.memory import MemoryDatabase
from state.store.records import INDEX, FinalisedBlock, Tip, height_key

ADDRESSES = st.lists(
    st.lists(st.sampled_from([b"a" * 20, b"b" * 20, b"c" * 20]), max_size=3, unique=True), max_size=4
)


def block(height: int, addresses: list[list[bytes]]) -> FinalisedBlock:
    hashes = [bytes([height, number]) * 16 for number in range(len(addresses))]
    tip = Tip(height, bytes([height]) * 32, ZERO_HASH, ZERO_HASH, 1, 1, b"header")
    return FinalisedBlock(tip, b"block", b"certificate", hashes, addresses, [b"r"] * len(hashes), None, {}, {})


def content(db: MemoryDatabase) -> dict[bytes, bytes]:
    with db.iterator() as entries:
        return dict(entries)


def put(db: MemoryDatabase, one: FinalisedBlock, *, index_addresses: bool) -> None:
    with db.write_batch(sync=True) as batch:
        put_block(batch, one, index_addresses=index_addresses)


@settings(max_examples=50, deadline=None)
@given(kept=ADDRESSES, gone=ADDRESSES, index_addresses=st.booleans(), higher=st.booleans())
def test_what_is_put_is_deleted(
    kept: list[list[bytes]], gone: list[list[bytes]], index_addresses: bool, higher: bool
) -> None:
    db = MemoryDatabase()
    put(db, block(5, kept), index_addresses=True)
    before, height = content(db), 6 if higher else 4
    put(db, block(height, gone), index_addresses=index_addresses)
    assert len(content(db)) > len(before)
    with db.write_batch(sync=True) as batch:
        entries = delete_block(batch, db, height)
    assert content(db) == before
    assert entries == len(gone) + index_addresses * sum(map(len, gone))


@settings(max_examples=50, deadline=None)
@given(kept=ADDRESSES, gone=ADDRESSES)
def test_entries_that_no_index_record_names_are_found_by_their_height(
    kept: list[list[bytes]], gone: list[list[bytes]]
) -> None:
    db = MemoryDatabase()
    put(db, block(5, kept), index_addresses=True)
    before = content(db)
    put(db, block(4, gone), index_addresses=True)
    db.delete(height_key(INDEX, 4))
    with db.write_batch(sync=True) as batch:
        assert delete_block(batch, db, 4) == 0
        for key in stale_entries(db, 4):
            batch.delete(key)
    assert content(db) == before
    assert list(stale_entries(db, 4)) == []
