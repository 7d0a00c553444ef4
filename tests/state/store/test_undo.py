"""Undo records in memory: always what the database has, within a bound, whichever come and go."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state.store.errors import StoreDamaged
from state.store.memory import MemoryDatabase
from state.store.records import UNDO, Undo, height_key
from state.store.undo import Undos

ENTRIES_MAX = 12


def undo_of(height: int) -> Undo:
    keys = [b"%d" % number for number in range(height % 5)]
    return Undo(keys, [b"%d" % height] * len(keys))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(("load", "keep", "forget")), st.integers(0, 9)), max_size=60))
def test_what_is_read_is_what_is_written_and_memory_is_bounded(moves: list[tuple[str, int]]) -> None:
    db, undos = MemoryDatabase(), Undos(ENTRIES_MAX)
    for height in range(10):
        db.put(height_key(UNDO, height), undo_of(height).encode())
    for move, height in moves:
        if move == "load":
            found = undos.load(db, height)
            assert (found.keys, found.values) == (undo_of(height).keys, undo_of(height).values)
        elif move == "keep":
            undos.keep(height, undo_of(height))
        else:
            undos.forget(height)
        assert undos._entries == sum(len(undo.keys) + 1 for undo in undos._kept.values())
        assert undos._entries <= ENTRIES_MAX or len(undos._kept) == 1


def test_a_record_that_is_absent_or_damaged_is_named_by_its_height() -> None:
    db, undos = MemoryDatabase(), Undos(ENTRIES_MAX)
    with pytest.raises(StoreDamaged, match="height 7 is absent"):
        undos.load(db, 7)
    db.put(height_key(UNDO, 7), b"\xff")
    with pytest.raises(StoreDamaged, match="height 7"):
        undos.load(db, 7)
    db.put(height_key(UNDO, 7), undo_of(7).encode())
    assert undos.load(db, 7).keys == undo_of(7).keys, "damage is not kept in mind"
