"""Trie nodes that are written late: whatever moment the process ends at, the next one has the same trie."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import plyvel
import pytest

from state.store import Store, StoreDamaged, StoreOptions
from state.store.nodes import PARTS
from state.trie import verify_proof
from tests.state.store.chain import HISTORY_HEIGHTS, next_block, open_store


def key_of(number: int) -> bytes:
    return b"\2" + number.to_bytes(4, "big")


def commit_span(store: Store, start: int, stop: int, value: bytes | None) -> None:
    store.commit(next_block(store, {key_of(number): value for number in range(start, stop)}))


def crashed(path: Path, copy: Path) -> Path:
    """Return a copy of the files as they are now: what a power cut would leave."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(path, copy)
    return copy


def late(store: Store) -> int:
    return len(store.nodes.late_nodes())


def test_a_crash_with_late_nodes_loses_nothing(tmp_path: Path) -> None:
    chance = random.Random(2)
    with open_store(tmp_path / "db") as store:
        commit_span(store, 0, 4_000, b"first")
        assert late(store) == 0  # the block that made the trie large wrote all of it
        for _ in range(3 * HISTORY_HEIGHTS):
            store.commit(
                next_block(
                    store,
                    {
                        key_of(chance.randrange(5_000)): chance.randbytes(3) if chance.random() < 0.7 else None
                        for _ in range(200)
                    },
                )
            )
            assert late(store) > 0
            assert min(store.nodes.flushed.values()) > store.tip.height - HISTORY_HEIGHTS
            with open_store(crashed(tmp_path / "db", tmp_path / "copy")) as again:
                assert again.tip == store.tip
                assert again.nodes.late_nodes().keys() <= store.nodes.late_nodes().keys()
                changes = {key_of(number): b"next" for number in range(0, 5_000, 17)}
                assert again.trie.update(changes) == store.trie.update(changes)
        store.verify()
        for height in range(store.oldest_state, store.tip.height + 1):
            proof = store.prove(key_of(3), height)
            assert verify_proof(proof.root, key_of(3), proof.value, proof.proof)
    with open_store(tmp_path / "db") as store:  # a clean end leaves nothing late
        assert late(store) == 0
        assert set(store.nodes.flushed.values()) == {store.tip.height}
        store.verify()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_trie_that_grows_and_shrinks_across_the_limit(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    seen = set()
    with open_store(tmp_path / "db") as store:
        size = 0
        for _ in range(30):
            target = chance.choice([0, 300, 600, 800, 1_000, 1_400, 3_000])
            commit_span(store, min(size, target), max(size, target), b"v" if target > size else None)
            size = target
            store.commit(next_block(store, {key_of(chance.randrange(3_000)): None for _ in range(5)}))
            seen.add(late(store) > 0)
            with open_store(crashed(tmp_path / "db", tmp_path / "copy")) as again:
                again.verify()
                again.commit(next_block(again, {key_of(1): b"more"}))
                again.verify()
        store.verify()
    assert seen == {True, False}


def test_the_number_of_late_nodes_is_bounded(tmp_path: Path) -> None:
    options = StoreOptions(late_nodes_max=300)
    with open_store(tmp_path / "a", options=options) as store, open_store(tmp_path / "b") as free:
        for each in (store, free):
            commit_span(each, 0, 8_000, b"v")
            for height in range(5):
                commit_span(each, 0, 8_000, b"%d" % height)
        assert late(store) < late(free)


def test_period_zero_writes_each_node_with_its_block(tmp_path: Path) -> None:
    with open_store(tmp_path, options=StoreOptions(node_period_blocks=0)) as store:
        for height in range(3):
            commit_span(store, 0, 4_000, b"%d" % height)
            assert late(store) == 0
    with open_store(tmp_path) as store:
        commit_span(store, 0, 4_000, b"late")
        assert late(store) > 0
        store.verify()


@pytest.mark.parametrize("damage", ["part", "record", "undo", "future"])
def test_parts_that_do_not_fit_are_found_at_the_opening(tmp_path: Path, damage: str) -> None:
    with open_store(tmp_path / "db") as store:
        commit_span(store, 0, 4_000, b"first")
        commit_span(store, 0, 4_000, b"second")
        crashed(tmp_path / "db", tmp_path / "copy")
        part = next(part for part in PARTS if store.nodes.flushed[part] == 2)
    db = plyvel.DB(str(tmp_path / "copy"))
    match damage:
        case "part":
            db.delete(b"n" + part)
        case "record":
            db.put(b"N", b"short")
        case "undo":
            db.delete(b"u" + (2).to_bytes(8, "big"))
        case _:
            db.put(b"N", (99).to_bytes(6, "big") * 256)
    db.close()
    with pytest.raises(StoreDamaged):
        open_store(tmp_path / "copy")
