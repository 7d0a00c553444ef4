"""NULLIFY certificates that a chain rests on: kept with its blocks, in bounds, for as long as evidence counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import plyvel
import pytest

from state.store import Store, StoreUnavailable, ViewCertificate, ViewCertificates
from state.store.memory import MemoryDatabase
from tests.state.store.chain import EPOCH_BLOCKS, genesis_changes, genesis_of, next_block

GENESIS = genesis_of()
SHORT = replace(GENESIS, parameters=(*GENESIS.parameters, ("chain.evidence_epochs", 3)))
SMALLEST_BOUND = 256


def grow(store: Store, *nullified: ViewCertificate) -> None:
    store.commit(next_block(store, {})._replace(views=ViewCertificates(nullified)))


def test_they_are_durable_with_their_block_and_read_again_after_a_restart(tmp_path: Path) -> None:
    with Store.open(tmp_path, GENESIS, genesis_changes) as store:
        grow(store, ViewCertificate(0, 2, b"two"), ViewCertificate(0, 3, b"three"))
        grow(store)
        grow(store, ViewCertificate(0, 7, b"seven"), ViewCertificate(0, 3, b"three"))
    with Store.open(tmp_path, GENESIS, genesis_changes) as store:
        assert [store.views.nullified(0, view) for view in (1, 2, 3, 7)] == [None, b"two", b"three", b"seven"]
        assert store.views.nullified(1, 2) is None
        assert store.views.nullified_from(0, 3) == [
            ViewCertificate(0, 3, b"three"),
            ViewCertificate(0, 7, b"seven"),
        ]
        assert store.sizes()["nullifications"] >= 0


def test_what_the_disk_refused_is_not_kept() -> None:
    database = MemoryDatabase()
    store = Store.over(database, GENESIS, genesis_changes)

    def refuse(is_sync: bool) -> None:
        raise plyvel.IOError("no space left")

    database.before_write = refuse
    with pytest.raises(StoreUnavailable):
        grow(store, ViewCertificate(0, 2, b"two"))
    database.before_write = lambda is_sync: None
    assert store.views.nullified(0, 2) is None
    grow(store, ViewCertificate(0, 2, b"two"))
    assert store.views.nullified(0, 2) == b"two"


@pytest.mark.parametrize("at_once", [1, 40])
def test_of_one_epoch_the_newest_are_kept_in_a_bounded_number(at_once: int) -> None:
    database = MemoryDatabase()
    store = Store.over(database, GENESIS, genesis_changes)
    assert store.views.nullified_max == SMALLEST_BOUND
    view = 0
    while view < 3 * SMALLEST_BOUND:
        found = [ViewCertificate(0, view + number, b"n") for number in range(1, at_once + 1)]
        view += at_once
        grow(store, *found)
        if view == 400:  # counted anew after a restart
            store.close()
            database.reopen()
            store = Store.over(database, GENESIS, genesis_changes)
        assert len(store.views.nullified_from(0, 0)) == min(view, SMALLEST_BOUND)
    kept = store.views.nullified_from(0, 0)
    assert [one.view for one in kept] == list(range(view - SMALLEST_BOUND + 1, view + 1))


def test_they_go_when_nothing_can_be_proven_with_them_any_more() -> None:
    store = Store.over(MemoryDatabase(), SHORT, genesis_changes)
    for epoch in range(8):
        for height in range(EPOCH_BLOCKS):
            grow(store, *([ViewCertificate(epoch, 5, b"n%d" % epoch)] if height == 1 else []))
        kept = [known for known in range(epoch + 1) if store.views.nullified(known, 5) is not None]
        assert kept == list(range(max(0, epoch - 3), epoch + 1))
