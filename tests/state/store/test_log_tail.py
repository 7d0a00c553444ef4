"""What a power loss leaves at the end of a database's log: cut off where it is certain, damage everywhere else."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import plyvel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state.store import StoreDamaged, StoreOptions
from state.store.database import open_database
from state.store.log_tail import BLOCK_BYTES, cut_tail, torn_at
from tests.state.store.chain import grow, open_store

BATCHES = 24


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, list[int]]:
    """A database whose log was never moved into a table, the log's name, and its size after each batch."""
    path = tmp_path_factory.mktemp("logged") / "db"
    chance, sizes = random.Random(1), [0]
    db = open_database(path, StoreOptions())
    (log,) = path.glob("*.log")
    for number in range(BATCHES):
        with db.write_batch(sync=True) as batch:
            for entry in range(chance.choice((1, 8, 60, 200))):  # also more than one block
                batch.put(b"%d-%d" % (number, entry), chance.randbytes(300) + bytes(chance.choice((0, 0, 9))))
            batch.put(b"tip", b"%d" % number)
        sizes.append(log.stat().st_size)
    copy = path.with_name("copy")
    shutil.copytree(path, copy)
    db.close()
    return copy, log.name, sizes


@pytest.fixture(scope="module")
def content(logged: tuple[Path, str, list[int]]) -> bytes:
    path, log, sizes = logged
    data = (path / log).read_bytes()
    assert len(data) == sizes[-1] > 3 * BLOCK_BYTES
    return data


def test_a_whole_log_is_left_alone(logged: tuple[Path, str, list[int]], content: bytes) -> None:
    assert [torn_at(content[:size]) for size in logged[2]] == [None] * (BATCHES + 1)
    assert torn_at(b"") is None


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_tail_that_was_never_written_is_cut_at_the_last_whole_record(
    logged: tuple[Path, str, list[int]], content: bytes, data: st.DataObject
) -> None:
    sizes = logged[2]
    whole = data.draw(st.sampled_from(range(BATCHES)), "batches that were written wholly")
    lost_from = data.draw(st.integers(sizes[whole], sizes[whole + 1] - 1), "the first byte that was not")
    size = data.draw(st.integers(lost_from, sizes[whole + 1] + 5_000), "size of the file")
    torn = content[:lost_from] + bytes(size - lost_from)
    found = torn_at(torn)
    if torn[: sizes[whole + 1]] == content[: sizes[whole + 1]]:
        assert found in (None, sizes[whole + 1])  # what was lost was zero
    elif torn.endswith(b"\0"):
        # Zeros at a block's end may be unused room: nothing was written there.
        assert found == sizes[whole] or (found is None and len(torn) - sizes[whole] < 7)
    else:
        assert found is None, "cut short, which LevelDB knows"


@settings(max_examples=30, deadline=None)
@given(at=st.integers(0, 10**9), change=st.integers(1, 255), zeros=st.sampled_from((0, 1, 4_096)))
def test_a_record_that_was_written_and_changed_since_is_not_cut_off(
    logged: tuple[Path, str, list[int]], content: bytes, at: int, change: int, zeros: int
) -> None:
    """Only the last record may be gone: one in the middle takes what others rest on with it."""
    sizes = logged[2]
    at %= sizes[-2]
    damaged = bytearray(content)
    damaged[at] ^= change
    found = torn_at(bytes(damaged) + bytes(zeros))
    assert found is None or found == sizes[-1], "whole records stay"


@pytest.mark.parametrize("seed", range(6))
def test_the_database_opens_with_the_batches_that_were_whole(
    logged: tuple[Path, str, list[int]], content: bytes, tmp_path: Path, seed: int
) -> None:
    path, log, sizes = logged
    chance = random.Random(seed)
    for number in range(6):
        copy = tmp_path / str(number)
        shutil.copytree(path, copy)
        lost_from = chance.randrange(sizes[3] + 1, sizes[-1])
        whole = max(n for n, size in enumerate(sizes) if size <= lost_from)
        (copy / log).write_bytes(content[:lost_from] + bytes(chance.choice((1, 700, 4_096, 100_000))))
        db = open_database(copy, StoreOptions())
        tip = int(db.get(b"tip"))
        assert tip == whole - 1 or (tip == whole and content[lost_from : sizes[whole + 1]].strip(b"\0") == b"")
        assert db.get(b"%d-0" % tip) is not None
        db.close()


def test_what_is_cut_is_said_also_where_zeros_cover_many_records(
    logged: tuple[Path, str, list[int]], content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, log, sizes = logged
    copy = tmp_path / "db"
    shutil.copytree(path, copy)
    assert not cut_tail(copy) and not caplog.records
    written = sizes[4] + 20
    (copy / log).write_bytes(content[:written] + bytes(sizes[-1] - written))
    assert cut_tail(copy)
    assert (copy / log).read_bytes() == content[: sizes[4]]
    (told,) = caplog.records
    assert f"kept_bytes={sizes[4]} cut_bytes={sizes[-1] - sizes[4]} " in told.getMessage()


def test_other_damage_is_still_refused_and_nothing_is_cut(
    logged: tuple[Path, str, list[int]], content: bytes, tmp_path: Path
) -> None:
    path, log, sizes = logged
    copy = tmp_path / "db"
    shutil.copytree(path, copy)
    damaged = bytearray(content)
    damaged[sizes[5] + 20] ^= 1
    for data in (bytes(damaged), bytes(damaged) + bytes(4_096)):
        (copy / log).write_bytes(data)
        with pytest.raises(StoreDamaged):
            open_database(copy, StoreOptions())
        assert (copy / log).read_bytes()[: len(content)] == bytes(damaged)


def test_a_node_goes_on_from_the_last_whole_height(tmp_path: Path) -> None:
    path, copy = tmp_path / "db", tmp_path / "copy"
    store = open_store(path)
    grow(store, 5, 6)
    shutil.copytree(path, copy)
    store.close()
    log = max(copy.glob("*.log"), key=lambda file: int(file.stem))
    log.write_bytes(log.read_bytes()[:-60] + bytes(60 + 4_096))
    with pytest.raises(plyvel.Error):
        plyvel.DB(str(copy), paranoid_checks=True)
    with open_store(copy) as reopened:
        assert reopened.tip.height == 5
        reopened.verify()
        grow(reopened, 6, 3)
