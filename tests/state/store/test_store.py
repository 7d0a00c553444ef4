from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state.primitives.genesis import genesis_hash
from state.primitives.hashing import ZERO_HASH
from state.store import (
    HeightUnknown,
    Pruned,
    Store,
    StoreClosed,
    StoreDamaged,
    StoreLocked,
    StoreOfAnotherChain,
    StoreOptions,
    StoreUnavailable,
    Tip,
    TransactionPosition,
)
from state.store.records import Undo
from state.trie import Trie, verify_proof
from tests.state.store.chain import (
    HISTORY_HEIGHTS,
    genesis_changes,
    genesis_of,
    grow,
    next_block,
    open_store,
    random_changes,
)

TINY_CACHES = StoreOptions(value_cache_entries=20, node_cache_entries=4, undo_cache_entries=100)


def test_a_new_store_has_the_genesis_state(tmp_path: Path) -> None:
    with open_store(tmp_path / "db") as store:
        chain_hash = genesis_hash(genesis_of())
        root = Trie().update(genesis_changes()).root
        assert store.tip == Tip(0, chain_hash, root, ZERO_HASH, 1_000_000_000, 1_000, b"")
        assert dict(store.scan(b"", b"\xff", 10**6)) == genesis_changes()
        assert store.verify() == 300
        assert (store.height_of(chain_hash), store.block(0), store.certificate(0)) == (0, None, None)


@pytest.mark.parametrize("options", [StoreOptions(), TINY_CACHES])
def test_commits_survive_a_reopening(tmp_path: Path, options: StoreOptions) -> None:
    with open_store(tmp_path, options=options) as store:
        states = grow(store, 1, 5)
        tip = store.tip
    with open_store(tmp_path, options=options) as store:
        assert store.tip == tip
        assert dict(store.scan(b"", b"\xff", 10**6)) == states[-1]
        assert all(store.get(key) == value for key, value in states[-1].items())
        assert store.get(b"\1absent") is None
        assert store.verify() == len(states[-1])
        grow(store, 2, 2)
        store.verify()


@pytest.mark.parametrize("options", [StoreOptions(), TINY_CACHES])
def test_earlier_heights_read_as_they_were(tmp_path: Path, options: StoreOptions) -> None:
    with open_store(tmp_path, options=options) as store:
        states = grow(store, 3, HISTORY_HEIGHTS + 4)
        for height in range(store.oldest_state, store.tip.height + 1):
            reader = store.at(height)
            assert dict(reader.scan(b"", b"\xff", 10**6)) == states[height]
            for number in range(600):
                key = b"\1" + number.to_bytes(2, "big")
                assert reader.get(key) == states[height].get(key)
        assert store.oldest_state == 4
        with pytest.raises(Pruned):
            store.at(3)
        with pytest.raises(HeightUnknown):
            store.at(store.tip.height + 1)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**16), start=st.integers(0, 600), length=st.integers(0, 600), limit=st.integers(0, 50))
def test_scans_at_earlier_heights_keep_order_and_limit(
    tmp_path_factory: pytest.TempPathFactory, seed: int, start: int, length: int, limit: int
) -> None:
    low, high = (b"\1" + number.to_bytes(2, "big") for number in (start, start + length))
    with open_store(tmp_path_factory.mktemp("scan")) as store:
        states = grow(store, seed, 4)
        for height, state in enumerate(states):
            expected = sorted((key, value) for key, value in state.items() if low <= key < high)[:limit]
            assert store.at(height).scan(low, high, limit) == expected
        assert store.scan(low, high, limit) == store.at(4).scan(low, high, limit)


def test_a_reader_keeps_its_height_while_the_chain_grows(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        states = grow(store, 4, 3)
        now, earlier = store.at(3), store.at(1)
        grow(store, 5, HISTORY_HEIGHTS + 5)
        assert dict(now.scan(b"", b"\xff", 10**6)) == states[3]
        assert dict(earlier.scan(b"", b"\xff", 10**6)) == states[1]


def test_proofs_at_every_kept_height(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        states = grow(store, 6, HISTORY_HEIGHTS + 2)
        for height in range(store.oldest_state, store.tip.height + 1):
            recorded = store.height(height)
            assert recorded is not None
            for number in (0, 5, 299, 300, 599, 1_000):
                key = b"\1" + number.to_bytes(2, "big")
                proof = store.prove(key, height)
                assert (proof.root, proof.value) == (recorded.state_root, states[height].get(key))
                assert verify_proof(proof.root, key, proof.value, proof.proof)
                assert not verify_proof(proof.root, key, b"other", proof.proof)
        with pytest.raises(Pruned):
            store.prove(b"\1", 0)


def test_blocks_and_indexes(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        first, second = (next_block(store, {b"\1k": b"1"}), None)
        store.commit(first)
        second = next_block(store, {b"\1k": b"2"})
        store.commit(second)
        assert store.height(2) == second.tip == store.tip
        assert store.height_of(first.tip.block_hash) == 1
        assert (store.block(1), store.certificate(2)) == (b"block 1", b"certificate 2")
        assert store.receipts(1) == ((b"receipt 1 0", b"receipt 1 1", b"receipt 1 2"), b"hooks")
        assert store.receipts(2) == ((b"receipt 2 0", b"receipt 2 1", b"receipt 2 2"), None)
        assert store.transaction_position(second.transaction_hashes[2]) == TransactionPosition(2, 2)
        for unknown in (store.block(3), store.receipts(3), store.certificate(3), store.height(3)):
            assert unknown is None
        assert store.height_of(bytes(32)) is None
        assert store.transaction_position(bytes(32)) is None


def test_history_of_an_address_in_pages_newest_first(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        grow(store, 8, 3)
        everything = [TransactionPosition(height, position) for height in (3, 2, 1) for position in (2, 1, 0)]
        sender = bytes(19) + b"\1"
        assert store.history(sender, limit=100) == everything
        page = store.history(sender, limit=4)
        assert page + store.history(sender, before=page[-1], limit=100) == everything
        assert store.history(bytes(19) + b"\2", limit=9) == [
            TransactionPosition(height, 2) for height in (3, 2, 1)
        ]
        assert store.history(b"\xff" * 20, limit=9) == []


def test_bodies_are_pruned_by_choice_and_headers_stay(tmp_path: Path) -> None:
    with open_store(tmp_path, options=StoreOptions(block_heights=3)) as store:
        blocks = [next_block(store, {})]
        store.commit(blocks[0])
        grow(store, 9, 5)
        assert store.oldest_block == 4
        assert store.block(4) == b"block 4"
        with pytest.raises(Pruned) as caught:
            store.block(3)
        assert (caught.value.height, caught.value.oldest, caught.value.code) == (3, 4, "pruned")
        with pytest.raises(Pruned):
            store.receipts(3)
        assert store.certificate(3) is None
        assert store.certificate(4) == b"certificate 4"
        assert store.height(1) == blocks[0].tip
        assert store.transaction_position(blocks[0].transaction_hashes[0]) is None
        sender = bytes(19) + b"\1"
        assert {place.height for place in store.history(sender, limit=100)} == {4, 5, 6}


def test_a_store_belongs_to_one_chain_and_one_process(tmp_path: Path) -> None:
    with open_store(tmp_path), pytest.raises(StoreLocked):
        open_store(tmp_path)
    with pytest.raises(StoreOfAnotherChain):
        open_store(tmp_path, chain_id=8)
    with open_store(tmp_path) as store:
        assert store.tip.height == 0


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    reader = store.at(0)
    store.close()
    for read in (
        lambda: store.get(b"\1unread"),
        lambda: store.scan(b"", b"\xff", 1),
        lambda: store.block(1),
        lambda: store.at(0),
        lambda: reader.get(b"\1unread"),
        lambda: store.history(bytes(20), limit=1),
        lambda: store.prove(b"k", 0),
    ):
        with pytest.raises(StoreClosed):
            read()


def test_an_interrupted_creation_is_done_again(tmp_path: Path) -> None:
    class PowerCut(Exception):
        pass

    def interrupted() -> dict[bytes, bytes | None]:
        raise PowerCut

    with pytest.raises(PowerCut):
        Store.open(tmp_path, genesis_of(), interrupted)
    import plyvel

    db = plyvel.DB(str(tmp_path))
    db.put(b"s\1left over", b"from the chunk that was written")
    db.close()
    with open_store(tmp_path) as store:
        assert store.verify() == 300


def test_a_file_in_the_way_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreUnavailable):
        open_store(tmp_path / "file")
    with pytest.raises(StoreUnavailable):
        open_store(tmp_path / "file" / "below")


def test_a_foreign_database_is_not_taken_over(tmp_path: Path) -> None:
    import plyvel

    db = plyvel.DB(str(tmp_path), create_if_missing=True)
    db.put(b"somebody", b"else's")
    db.close()
    with pytest.raises(StoreDamaged):
        open_store(tmp_path)
    db = plyvel.DB(str(tmp_path))
    assert db.get(b"somebody") == b"else's"
    db.close()


def test_reads_beside_a_writer_see_whole_heights(tmp_path: Path) -> None:
    """Each block sets every key to its height: a read that mixes two heights shows two values."""
    keys = [b"\2" + bytes([number]) for number in range(40)]
    with open_store(tmp_path, options=TINY_CACHES) as store:
        store.commit(next_block(store, dict.fromkeys(keys, b"1")))
        mixed: list[object] = []
        rounds: list[int] = []
        done = threading.Event()

        def read() -> None:
            while not done.is_set():
                try:
                    look()
                    rounds.append(1)
                except Pruned:
                    continue  # the writer ran ahead by all the heights that are kept: the typed answer
                except BaseException as error:
                    mixed.append(error)
                    raise

        def look() -> None:
            seen = {value for _, value in store.scan(b"\2", b"\3", 100)}
            height = max(1, store.tip.height - 1)
            reader = store.at(height)
            then = {reader.get(key) for key in keys} | {value for _, value in reader.scan(b"\2", b"\3", 100)}
            proof = store.prove(keys[7], height)
            if (
                len(seen) != 1
                or then != {b"%d" % height}
                or not verify_proof(proof.root, keys[7], b"%d" % height, proof.proof)
            ):
                mixed.append((seen, then, height))
            store.get(keys[3])

        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        try:
            for height in range(2, 60):
                store.commit(next_block(store, dict.fromkeys(keys, b"%d" % height)))
                assert store.get(keys[3]) == b"%d" % height
        finally:
            done.set()
            for reader in readers:
                reader.join()
        assert not mixed
        assert rounds
        assert all(store.get(key) == b"59" for key in keys)
        store.verify()


def test_a_block_that_changes_nothing_leaves_no_undo(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        same = dict(store.scan(b"", b"\xff", 5))
        root = store.tip.state_root
        store.commit(next_block(store, dict(same)))
        assert store.tip.state_root == root
        store.commit(next_block(store, random_changes(random.Random(1), 50)))
        assert dict(store.at(1).scan(b"", b"\xff", 5)) == same


def test_records_of_the_shortest_keys_and_values_are_read_again() -> None:
    keys = [number.to_bytes(2, "big") for number in range(1 << 16)]
    undo = Undo.decode(Undo(keys, [None] * len(keys)).encode())
    assert (undo.keys, undo.values) == (keys, [None] * len(keys))


def test_a_block_that_is_pruned_while_it_is_read_is_pruned_and_not_damage(tmp_path: Path) -> None:
    """Peers ask for the oldest block all the time; taken for damage, its end would be that of the node."""
    with open_store(tmp_path, options=StoreOptions(block_heights=3)) as store:
        grow(store, 1, 5)
        oldest = store.oldest_block
        assert store.block(oldest) is not None
        has_read, told = threading.Event(), list[object]()
        read, write_batch = store._read, store._db.write_batch

        def reads(key: bytes) -> bytes | None:
            data = read(key)
            if data is None:
                has_read.set()
            return data

        def ask() -> None:
            try:
                told.append(store.block(oldest))
            except Exception as error:
                told.append(error)

        class Batch:
            """Lets a reader look just after the write, before the writer has said what it means."""

            def __init__(self, batch: Any) -> None:
                self.put, self.delete, self._write = batch.put, batch.delete, batch.write

            def write(self) -> None:
                self._write()
                reader.start()
                assert has_read.wait(10)

        class Database:
            def __getattr__(self, name: str) -> Any:
                return getattr(db, name)

            def write_batch(self, **options: Any) -> Any:
                return Batch(write_batch(**options))

        db, store._db = store._db, Database()
        store._read = reads  # type: ignore[method-assign]
        reader = threading.Thread(target=ask)
        grow(store, 2, 1)
        reader.join(10)
        store._db = db
        assert store.oldest_block == oldest + 1
    assert [type(found) for found in told] == [Pruned]
