"""A state cut into pieces and put together again: the same database, whatever happens on the way."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest

from state.primitives.errors import ProtocolError
from state.store import (
    Piece,
    Pruned,
    Restore,
    Store,
    StoreDamaged,
    StoreLocked,
    StoreOfAnotherChain,
    StoreUnavailable,
    Tip,
    cut_state,
    install,
)
from state.store.snapshots import START_BYTES
from state.trie import verify_proof
from tests.state.store.chain import HISTORY_HEIGHTS, genesis_of, grow, next_block, open_store

PIECE = 2_000


def pieces_of(store: Store, height: int, scratch: Path, piece_bytes: int = PIECE) -> list[Piece]:
    return list(cut_state(store.view(height), scratch, piece_bytes=piece_bytes))


def filled(path: Path, keys: int = 3_000) -> Store:
    store = open_store(path)
    store.commit(next_block(store, {b"\2" + number.to_bytes(2, "big"): b"v%d" % number for number in range(keys)}))
    grow(store, 1, 3)
    return store


def tip_of(store: Store, height: int) -> Tip:
    tip = store.height(height)
    assert tip is not None
    return tip


def everything(store: Store) -> dict[bytes, bytes]:
    return dict(store.scan(b"", b"\xff", 10**6))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tip, list[Piece], dict[bytes, bytes]]:
    """A state that is some blocks old when it is cut."""
    path = tmp_path_factory.mktemp("source")
    with filled(path / "db") as store:
        target, state = store.tip, everything(store)
        grow(store, 2, HISTORY_HEIGHTS - 1)
        pieces = pieces_of(store, target.height, path / "scratch")
        assert not (path / "scratch").exists()
    return target, pieces, state


def test_pieces_cover_all_places_in_order_and_stay_small(source: tuple[Tip, list[Piece], object]) -> None:
    _, pieces, _ = source
    assert pieces[0].start == bytes(32)
    assert pieces[-1].stop is None
    assert all(below.stop == above.start for below, above in pairwise(pieces))
    assert all(piece.start[START_BYTES:] == bytes(32 - START_BYTES) for piece in pieces)
    assert len(pieces) > 10
    assert max(len(piece.data) for piece in pieces) < 8 * PIECE


def test_how_a_state_is_cut_depends_on_the_state_alone(tmp_path: Path) -> None:
    with open_store(tmp_path / "a") as first, open_store(tmp_path / "b") as second:
        changes: dict[bytes, bytes | None] = {b"\2%d" % number: b"v" for number in range(900)}
        first.commit(next_block(first, changes))
        half = dict(sorted(changes.items())[:450])
        second.commit(next_block(second, half))
        second.commit(next_block(second, changes))
        ours, theirs = pieces_of(first, 1, tmp_path / "c"), pieces_of(second, 2, tmp_path / "c")
        assert ours == theirs


@pytest.mark.parametrize("keys", [0, 1])
def test_a_tiny_state_is_one_piece(tmp_path: Path, keys: int) -> None:
    with open_store(tmp_path / "db") as store:
        emptied: dict[bytes, bytes | None] = dict.fromkeys(everything(store))
        emptied.update({b"\2key": b"value"} if keys else {})
        store.commit(next_block(store, emptied))
        store.commit(next_block(store, {}))
        (piece,) = pieces_of(store, 1, tmp_path / "scratch")
        target = tip_of(store, 1)
    restore = Restore.open(tmp_path / "new", genesis_of())
    restore.begin(target)
    assert restore.add(*piece) == keys
    restore.finish()
    restore.close()
    with open_store(tmp_path / "new") as store:
        assert len(everything(store)) == keys == store.verify()


def test_a_restored_database_goes_on_like_the_one_it_came_from(
    tmp_path: Path, source: tuple[Tip, list[Piece], dict[bytes, bytes]]
) -> None:
    target, pieces, state = source
    restore = Restore.open(tmp_path / "sync", genesis_of())
    restore.keep_record(0, b"record 0")
    restore.begin(target)
    for piece in random.Random(3).sample(pieces, len(pieces)):
        restore.add(*piece)
    restore.finish()
    restore.close()
    install(tmp_path / "sync", tmp_path / "db")
    with open_store(tmp_path / "db") as store:
        assert (store.tip, store.base, store.oldest_state) == (target, target.height, target.height)
        assert store.oldest_block == target.height + 1
        assert everything(store) == state
        assert store.verify() == len(state)
        assert store.epoch_record(0) == b"record 0"
        assert store.height(target.height) == target
        assert store.height(target.height - 1) is None
        assert store.height_of(target.block_hash) == target.height
        for height in (1, target.height):
            with pytest.raises(Pruned):
                store.block(height)
        with pytest.raises(Pruned):
            store.at(target.height - 1)
        with pytest.raises(Pruned):
            store.rollback(target.height - 1)
        states = grow(store, 9, 3)
        assert store.oldest_state == target.height
        assert store.block(target.height + 1) == b"block %d" % (target.height + 1)
        proof = store.prove(b"\1\0\1", target.height)
        assert proof.root == target.state_root
        assert verify_proof(proof.root, b"\1\0\1", proof.value, proof.proof)
        store.rollback(target.height)
        assert store.tip == target
        grow(store, 9, HISTORY_HEIGHTS + 3)
        assert everything(store) == states[-1] or store.tip.height > target.height + 3
        store.verify()
    with open_store(tmp_path / "db") as store:
        store.verify()


def test_a_false_piece_changes_nothing(tmp_path: Path, source: tuple[Tip, list[Piece], object]) -> None:
    target, pieces, _ = source
    restore = Restore.open(tmp_path, genesis_of())
    restore.begin(target)
    chance = random.Random(5)
    for piece in pieces[:6]:
        for _ in range(8):
            data = bytearray(piece.data)
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            with pytest.raises(ProtocolError):
                restore.add(piece.start, piece.stop, bytes(data))
        for other in pieces[6:9]:
            with pytest.raises(ProtocolError):
                restore.add(piece.start, piece.stop, other.data)
        assert not restore.has(piece.start, piece.stop)
        restore.add(*piece)
        assert restore.has(piece.start, piece.stop)
    with pytest.raises(StoreDamaged):
        restore.finish()
    restore.close()


def test_what_was_taken_in_is_there_after_a_crash_at_any_step(
    tmp_path: Path, source: tuple[Tip, list[Piece], dict[bytes, bytes]]
) -> None:
    target, pieces, state = source
    taken = 0
    for end in range(len(pieces) + 3):  # one more piece in each life, then finishing in two of them
        restore = Restore.open(tmp_path / "sync", genesis_of())
        assert restore.target == (target if end else None)
        restore.begin(target)
        missing = [piece for piece in pieces if not restore.has(piece.start, piece.stop)]
        assert len(missing) == (0 if restore.is_whole else len(pieces) - taken)
        if missing:
            restore.add(*missing[len(missing) // 2])
            taken += 1
        elif end > len(pieces):
            restore.finish()
        restore.close()
    install(tmp_path / "sync", tmp_path / "db")
    with open_store(tmp_path / "db") as store:
        assert everything(store) == state
        store.verify()


def test_another_target_begins_anew_and_keeps_the_records(
    tmp_path: Path, source: tuple[Tip, list[Piece], dict[bytes, bytes]]
) -> None:
    target, pieces, state = source
    with open_store(tmp_path / "other") as store:
        grow(store, 4, 2)
        other, others = store.tip, pieces_of(store, 2, tmp_path / "scratch")
    restore = Restore.open(tmp_path / "sync", genesis_of())
    restore.keep_record(0, b"record")
    restore.begin(other)
    for piece in others[:3]:
        restore.add(*piece)
    restore.begin(target)
    assert not restore.has(others[0].start, others[0].stop)
    assert list(restore.records()) == [(0, b"record")]
    for piece in pieces:
        restore.add(*piece)
    restore.finish()
    restore.close()
    with open_store(tmp_path / "sync") as store:
        assert everything(store) == state
        store.verify()


def test_an_unfinished_database_is_no_node_s(tmp_path: Path, source: tuple[Tip, list[Piece], object]) -> None:
    target, pieces, _ = source
    restore = Restore.open(tmp_path / "sync", genesis_of())
    restore.begin(target)
    restore.add(*pieces[0])
    with pytest.raises(StoreLocked):
        Restore.open(tmp_path / "sync", genesis_of())
    restore.close()
    with pytest.raises(StoreDamaged):
        open_store(tmp_path / "sync")
    with pytest.raises(StoreOfAnotherChain):
        Restore.open(tmp_path / "sync", genesis_of(8))
    with open_store(tmp_path / "db"):
        pass
    with pytest.raises(StoreUnavailable):
        install(tmp_path / "sync", tmp_path / "db")  # a database is never replaced
