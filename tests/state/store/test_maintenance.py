"""What an operator does to a database: keep less, take blocks back, check it; and the records of epochs."""

from __future__ import annotations

import random
from pathlib import Path

import plyvel
import pytest

from state.store import HeightUnknown, Pruned, Store, StoreDamaged, StoreOptions
from state.store import store as module
from state.store.records import decode_epoch
from state.trie import verify_proof
from tests.state.store.chain import EPOCH_BLOCKS, HISTORY_HEIGHTS, grow, next_block, open_store, random_changes

SENDER = bytes(19) + b"\1"
KEEP_3 = StoreOptions(block_heights=3)


def everything(store: Store) -> dict[bytes, bytes]:
    return dict(store.scan(b"", b"\xff", 10**6))


def raw_entries(path: Path) -> dict[bytes, bytes]:
    """All that is on the disk, but for what tells when which part of the trie was written."""
    db = plyvel.DB(str(path))
    try:
        return {key: value for key, value in db if key[:1] != b"N"}
    finally:
        db.close()


def test_records_of_epochs_are_written_at_boundaries_and_stay(tmp_path: Path) -> None:
    with open_store(tmp_path, options=KEEP_3) as store:
        grow(store, 1, 3 * EPOCH_BLOCKS + 1)
        for epoch in range(3):
            record = store.epoch_record(epoch)
            assert record is not None
            last = (epoch + 1) * EPOCH_BLOCKS
            assert decode_epoch(record) == (b"header", b"certificate %d" % last, b"committee after %d" % last)
        assert store.epoch_record(3) is None
        assert store.epoch_record(-1) is None
        records = store.epoch_records(0, limit_bytes=10**6)
        assert records == [store.epoch_record(epoch) for epoch in range(3)]
        assert store.epoch_records(1, limit_bytes=1) == records[1:2]
        assert store.epoch_records(3, limit_bytes=10**6) == []


def test_a_profile_that_keeps_less_takes_effect_block_by_block(tmp_path: Path) -> None:
    count = 5 * module._PRUNE_HEIGHTS_MAX
    with open_store(tmp_path) as store:
        grow(store, 1, count, 5)
        assert store.oldest_block == 1
    with open_store(tmp_path, options=KEEP_3) as store:
        assert store.block(1) == b"block 1"  # nothing is taken away by opening
        seen = []
        for _ in range(6):
            store.commit(next_block(store, {}))
            seen.append(store.oldest_block)
            assert store.block(store.oldest_block) == b"block %d" % store.oldest_block
        assert seen[:3] == [step * module._PRUNE_HEIGHTS_MAX + 1 for step in (1, 2, 3)]
        assert seen[-1] == store.tip.height - 2
    with open_store(tmp_path) as store:  # and keeping more again does not bring anything back
        store.commit(next_block(store, {}))
        assert store.oldest_block == seen[-1]
        with pytest.raises(Pruned):
            store.block(1)


def test_pruning_at_once_sweeps_what_the_index_records_do_not_name(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        grow(store, 1, HISTORY_HEIGHTS + 20, 5)  # of the older heights, no index record is left
        hashes = next_block(store, {}).transaction_hashes
    steps: list[tuple[int, int]] = []
    with open_store(tmp_path, options=KEEP_3) as store:
        assert store.prune(lambda done, total: steps.append((done, total))) == HISTORY_HEIGHTS + 17
        assert steps[-1] == (HISTORY_HEIGHTS + 17, HISTORY_HEIGHTS + 17)
        assert {place.height for place in store.history(SENDER, limit=1_000)} == {26, 27, 28}
        assert store.transaction_position(hashes[0]) is None
        assert store.prune() == 0
        assert store.verify() > 0
    left = raw_entries(tmp_path)
    for prefix in (b"b", b"r", b"c", b"x"):
        heights = {int.from_bytes(key[1:], "big") for key in left if key[:1] == prefix}
        assert heights == {26, 27, 28}, prefix
    assert len([key for key in left if key[:1] == b"t"]) == 9
    assert len([key for key in left if key[:1] == b"h"]) == HISTORY_HEIGHTS + 21


@pytest.mark.parametrize("seed", range(4))
def test_a_rollback_leaves_what_was_there_at_that_height(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with open_store(tmp_path / "db") as store:
        many = {b"\2" + number.to_bytes(2, "big"): b"v" for number in range(2_000)}  # so that nodes are late
        store.commit(next_block(store, many))
        grow(store, seed, HISTORY_HEIGHTS + 2)
        target = store.tip.height
        before, tip, oldest = everything(store), store.tip, store.oldest_state
    files = raw_entries(tmp_path / "db")
    count = chance.randrange(1, HISTORY_HEIGHTS)
    with open_store(tmp_path / "db") as store:
        for _ in range(count):
            store.commit(next_block(store, random_changes(chance, 60)))
        steps: list[tuple[int, int]] = []
        store.rollback(target, lambda done, total: steps.append((done, total)))
        assert steps == [(step, count) for step in range(1, count + 1)]
        assert (everything(store), store.tip) == (before, tip)
        assert store.oldest_state == oldest + count  # the undo records below are gone
        store.verify()
        with pytest.raises(Pruned):
            store.rollback(oldest)
        with pytest.raises(HeightUnknown):
            store.rollback(target + 1)
    after = raw_entries(tmp_path / "db")
    short_lived = (b"u", b"x", b"B")  # undo and index records that were too old meanwhile, and the note of that
    assert {key: value for key, value in after.items() if key[:1] not in short_lived} == {
        key: value for key, value in files.items() if key[:1] not in short_lived
    }
    with open_store(tmp_path / "db") as store:
        assert store.oldest_state == oldest + count
        states = grow(store, seed + 100, HISTORY_HEIGHTS + 3)
        assert store.oldest_state == store.tip.height - HISTORY_HEIGHTS
        assert everything(store) == states[-1]
        proof = store.prove(b"\1\0\1", store.oldest_state)
        assert verify_proof(proof.root, b"\1\0\1", proof.value, proof.proof)
        store.verify()


def test_a_rollback_below_what_is_kept_of_bodies(tmp_path: Path) -> None:
    with open_store(tmp_path, options=KEEP_3) as store:
        grow(store, 1, 12)
        store.rollback(6)
        assert (store.tip.height, store.oldest_block) == (6, 7)
        with pytest.raises(Pruned):
            store.block(6)
        store.commit(next_block(store, {}))
        assert store.block(7) == b"block 7"


def test_a_rollback_that_does_not_lead_to_the_recorded_root_stops(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        grow(store, 1, 4)
    db = plyvel.DB(str(tmp_path))
    db.put(b"u" + (3).to_bytes(8, "big"), db.get(b"u" + (2).to_bytes(8, "big")))
    db.close()
    with open_store(tmp_path) as store:
        with pytest.raises(StoreDamaged, match="height 3"):
            store.rollback(0)
        assert store.tip.height == 3


def test_a_view_of_an_earlier_height_is_whole(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        states = grow(store, 3, HISTORY_HEIGHTS + 3)
        views = {height: store.view(height) for height in range(store.oldest_state, store.tip.height + 1)}
        grow(store, 4, 5)
        for height, view in views.items():
            entries = list(view.entries())
            assert len(entries) == view.trie.count
            assert dict(entries) == states[height]
            assert view.trie.root == store.height(height).state_root  # type: ignore[union-attr]
        with pytest.raises(Pruned):
            store.view(0)
        with pytest.raises(HeightUnknown):
            store.view(99)


def test_verify_in_several_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_VERIFY_ENTRIES_MAX", 200)
    many = {b"\2" + number.to_bytes(2, "big"): b"v" for number in range(2_000)}
    with open_store(tmp_path) as store:
        store.commit(next_block(store, many))
        grow(store, 1, 3)
        steps: list[tuple[int, int]] = []
        count = store.verify(lambda done, total: steps.append((done, total)))
        assert count == len(everything(store))
        assert steps == sorted(steps)
        assert {total for _, total in steps} == {16 * count}
    for damage in (b"s\2\0\5", b"n3", b"nff"):
        db = plyvel.DB(str(tmp_path))
        kept = db.get(damage)
        db.put(damage, (kept or b"\0")[:-1] + b"x")
        db.close()
        with pytest.raises(StoreDamaged), open_store(tmp_path) as store:  # some of it at the opening already
            store.verify()
        db = plyvel.DB(str(tmp_path))
        db.put(damage, kept) if kept else db.delete(damage)
        db.close()
        with open_store(tmp_path) as store:
            store.verify()


def test_sizes_name_every_table(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        grow(store, 1, 30)
    with open_store(tmp_path) as store:
        sizes = store.sizes()
        assert {"state", "trie", "blocks", "headers", "epoch records"} <= sizes.keys()
        assert sizes["trie"] > 0
