"""What a disk can do to the files: every outcome is a typed error or the state as it was."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from state.primitives.errors import StoreError
from state.store import StoreDamaged
from state.store.records import Undo, decode_receipts, decode_tip
from tests.state.store.chain import genesis_changes, grow, open_store


def exercise(path: Path) -> None:
    with open_store(path) as store:
        store.verify()
        for height in range(1, store.tip.height + 1):
            store.block(height), store.receipts(height), store.certificate(height), store.height(height)
        for height in range(store.oldest_state, store.tip.height + 1):
            store.prove(b"\1\0\1", height)
        grow(store, 1, 1)


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("intact") / "db"
    with open_store(path) as store:
        grow(store, 11, 6)
    with open_store(path) as store:  # reopening moves the log into a table, so that both forms are on the disk
        grow(store, 12, 2)
    return path


@pytest.mark.parametrize("seed", range(30))
def test_damaged_files_are_typed_errors_or_harmless(intact: Path, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    path = tmp_path / "db"
    shutil.copytree(intact, path)
    files = sorted(file for file in path.iterdir() if file.name not in ("LOCK", "LOG", "LOG.old"))
    victim = chance.choice(files)
    data = bytearray(victim.read_bytes())
    match chance.choice(["flip", "cut", "remove", "zero", "garbage"]):
        case "flip" if data:
            for _ in range(3):
                data[chance.randrange(len(data))] ^= chance.randrange(1, 256)
            victim.write_bytes(data)
        case "cut":
            victim.write_bytes(data[: chance.randrange(len(data) + 1)])
        case "zero" if data:
            start = chance.randrange(len(data))
            data[start : start + 600] = bytes(len(data[start : start + 600]))
            victim.write_bytes(data)
        case "garbage":
            victim.write_bytes(chance.randbytes(max(1, len(data))))
        case _:
            victim.unlink()
    try:
        exercise(path)
    except StoreError as error:
        assert error.code in {"store_damaged", "store_unavailable", "store_other_chain", "store_incompatible"}


def test_a_lost_directory_entry_is_not_taken_for_a_new_database(intact: Path, tmp_path: Path) -> None:
    path = tmp_path / "db"
    shutil.copytree(intact, path)
    (path / "CURRENT").unlink()
    with pytest.raises(StoreDamaged):
        open_store(path)
    assert not (path / "CURRENT").exists()


def test_verify_finds_a_changed_value_and_a_lost_node(tmp_path: Path) -> None:
    import plyvel

    with open_store(tmp_path / "a") as store:
        grow(store, 1, 2)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for name in ("a", "b"):
        db = plyvel.DB(str(tmp_path / name))
        if name == "a":
            db.put(b"s\1\0\1", b"forged")
        else:
            db.delete(b"n1")
        db.close()
        with open_store(tmp_path / name) as store, pytest.raises(StoreDamaged):
            store.verify()


@pytest.mark.parametrize("decoder", [Undo.decode, decode_receipts, decode_tip])
def test_records_decode_strictly(decoder: object) -> None:
    chance = random.Random(3)
    assert callable(decoder)
    for size in (0, 1, 5, 40, 200):
        for _ in range(40):
            with pytest.raises(StoreDamaged):
                decoder(b"\x87" + chance.randbytes(size))


WRITER = """
import random, sys
from pathlib import Path
from tests.state.store.chain import next_block, open_store, random_changes
store = open_store(Path(sys.argv[1]))
chance = random.Random(int(sys.argv[2]))
print("open", store.tip.height, flush=True)
many = {b"\\2" + bytes([a, b]): b"v" for a in range(60) for b in range(60)}  # enough for nodes to be written late
while True:
    store.commit(next_block(store, random_changes(chance, 60) if store.tip.height else many))
    print(store.tip.height, flush=True)
"""


def test_kill_at_any_moment_leaves_a_whole_height(tmp_path: Path) -> None:
    chance = random.Random(5)
    acknowledged = 0
    for attempt in range(6):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "db"), str(attempt)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )
        assert child.stdout is not None
        wanted = chance.randrange(0, 40) if attempt else -1  # the first is killed while it makes the genesis
        try:
            for line in child.stdout if wanted >= 0 else ():
                if line.startswith("open"):
                    start = int(line.split()[1])
                    assert start >= acknowledged
                    continue
                acknowledged = int(line)
                if acknowledged >= start + wanted:
                    break
        finally:
            child.send_signal(signal.SIGKILL)
            rest = child.stdout.read().split()
            child.stdout.close()
            child.wait()
        whole = [int(word) for word in rest if word.isdigit()]
        acknowledged = max([acknowledged, *whole[:-1]])  # the last line may be cut
        with open_store(tmp_path / "db") as store:
            assert store.tip.height >= acknowledged
            assert store.verify() > 0
            for height in range(1, store.tip.height + 1):
                assert store.block(height) == b"block %d" % height
            if store.tip.height == 0:
                assert dict(store.scan(b"", b"\xff", 10**6)) == genesis_changes()
            store.prove(b"\1\0\1", store.oldest_state)
