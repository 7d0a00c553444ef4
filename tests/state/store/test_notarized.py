"""NOTARIZE certificates of final views: kept with their blocks, the newest, within bytes and the evidence age."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import plyvel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state.store import Store, StoreDamaged, StoreOptions, StoreUnavailable, ViewCertificate, ViewCertificates
from state.store.memory import MemoryDatabase
from state.store.profiles import profile_options
from state.store.records import NOTARIZED, Span, decode_span, encode_span
from tests.state.store.chain import EPOCH_BLOCKS, genesis_changes, genesis_of, next_block

GENESIS = genesis_of()
SHORT = replace(GENESIS, parameters=(*GENESIS.parameters, ("chain.evidence_epochs", 3)))
LIMIT = StoreOptions(notarized_bytes_max=1_000)


def grow(store: Store, *found: ViewCertificate) -> None:
    store.commit(next_block(store, {})._replace(views=ViewCertificates((), found)))


def kept(database: MemoryDatabase) -> list[tuple[int, int, int]]:
    with database.iterator(prefix=NOTARIZED) as entries:
        return [
            (int.from_bytes(key[1:5], "big"), int.from_bytes(key[5:], "big"), len(value)) for key, value in entries
        ]


def test_they_are_durable_with_their_block_and_read_again_after_a_restart(tmp_path: Path) -> None:
    with Store.open(tmp_path, GENESIS, genesis_changes) as store:
        grow(store, ViewCertificate(0, 2, b"two"), ViewCertificate(0, 3, b"three"))
        grow(store)
        grow(store, ViewCertificate(0, 7, b"seven"), ViewCertificate(0, 3, b"other"))
    with Store.open(tmp_path, GENESIS, genesis_changes) as store:
        assert [store.views.notarized(0, view) for view in (1, 2, 3, 7)] == [None, b"two", b"other", b"seven"]
        assert store.views.notarized(1, 2) is None and store.views.nullified(0, 2) is None
        assert store.views.notarized_from(0, 3) == [
            ViewCertificate(0, 3, b"other"),
            ViewCertificate(0, 7, b"seven"),
        ]
        assert store.views.notarized_from(0, 0, 1) == [ViewCertificate(0, 2, b"two")]
        assert "notarizations" in store.sizes()


def test_what_the_disk_refused_is_neither_kept_nor_counted() -> None:
    database = MemoryDatabase()
    store = Store.over(database, GENESIS, genesis_changes, LIMIT)

    def refuse(is_sync: bool) -> None:
        raise plyvel.IOError("no space left")

    database.before_write = refuse
    for _ in range(20):
        with pytest.raises(StoreUnavailable):
            grow(store, ViewCertificate(0, 2, b"n" * 900))
    database.before_write = lambda is_sync: None
    grow(store, ViewCertificate(0, 2, b"n" * 900))
    grow(store, ViewCertificate(0, 3, b"n" * 90))
    assert kept(database) == [(0, 2, 900), (0, 3, 90)]


@settings(max_examples=40)
@given(
    commits=st.lists(st.lists(st.integers(1, 400), max_size=4), min_size=5, max_size=30),
    restarts=st.sets(st.integers(0, 30)),
)
def test_the_newest_are_kept_within_bytes(commits: list[list[int]], restarts: set[int]) -> None:
    database = MemoryDatabase()
    store = Store.over(database, GENESIS, genesis_changes, LIMIT)
    put: list[tuple[int, int, int]] = []
    view = 0
    for number, sizes in enumerate(commits):
        found = []
        for size in sizes:
            view += 1
            found.append(ViewCertificate(0, view, b"n" * size))
            put.append((0, view, size))
        grow(store, *found)
        held = kept(database)
        assert held == put[len(put) - len(held) :], "the newest, without a gap"
        assert sum(size for *_, size in held) <= max(1_000, sum(sizes))
        if len(held) < len(put):  # no more went than had to
            assert sum(size for *_, size in put[len(put) - len(held) - 1 :]) > 1_000
        if number in restarts:
            store.close()
            database.reopen()
            store = Store.over(database, GENESIS, genesis_changes, LIMIT)


def test_they_go_when_nothing_can_be_proven_with_them_any_more() -> None:
    database = MemoryDatabase()
    store = Store.over(database, SHORT, genesis_changes)
    for epoch in range(8):
        for height in range(EPOCH_BLOCKS):
            grow(store, *([ViewCertificate(epoch, 5, b"n%d" % epoch)] if height == 1 else []))
        assert [one for one, *_ in kept(database)] == list(range(max(0, epoch - 3), epoch + 1))


def test_a_smaller_bound_takes_effect_little_by_little() -> None:
    database = MemoryDatabase()
    store = Store.over(database, GENESIS, genesis_changes)
    grow(store, *[ViewCertificate(0, view, b"n" * 10) for view in range(1, 301)])
    store.close()
    database.reopen()
    store = Store.over(database, GENESIS, genesis_changes, LIMIT)
    left = []
    for _ in range(5):
        grow(store)
        left.append(len(kept(database)))
    assert left == [236, 172, 108, 100, 100]
    assert kept(database)[-1] == (0, 300, 10)


def test_what_a_rollback_brings_again_is_counted_once() -> None:
    database = MemoryDatabase()
    store = Store.over(database, GENESIS, genesis_changes, LIMIT)
    for _ in range(40):
        grow(store, ViewCertificate(0, 1, b"n" * 400))
        store.rollback(store.tip.height - 1)
    grow(store, ViewCertificate(0, 1, b"n" * 400), ViewCertificate(0, 2, b"n" * 600))
    assert kept(database) == [(0, 1, 400), (0, 2, 600)]


def test_the_record_of_how_much_is_kept_has_one_form() -> None:
    assert decode_span(None) == Span() == Span(0, 0, 0)
    assert decode_span(encode_span(Span(5, 6, 7))) == Span(5, 6, 7)
    for wrong in (
        b"",
        b"junk",
        encode_span(Span(-1)),
        encode_span(Span(0, 2**32)),
        encode_span(Span(0, 0, 2**48)),
    ):
        with pytest.raises(StoreDamaged):
            decode_span(wrong)
    light, full = (profile_options(name, epochs=3, epoch_blocks=4) for name in ("light", "full"))
    assert light.notarized_bytes_max < full.notarized_bytes_max == StoreOptions().notarized_bytes_max
