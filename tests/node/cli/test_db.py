"""``dekube db`` on the database of a stopped node: whole, pruned, rolled back, damaged."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import plyvel
import pytest
from click.testing import CliRunner, Result

from node.chain.runtime import make_runtime
from node.cli import EXIT_FAILED, EXIT_NEEDS_OPERATOR, exit_status, group, main
from node.home.create import create_home
from node.home.load import load_node_options
from node.home.lock import HomeInUse, live_in
from node.home.options import HistoryOptions, NetworkOptions, NodeOptions, RpcOptions
from node.home.paths import Home
from node.sync.audit import audit_chain
from node.sync.database import open_chain, snapshots_path
from node.sync.snapshot_keeper import SnapshotKeeper
from node.sync.start_plan import RootExpired
from state.primitives.codec import encode
from state.primitives.errors import ConfigError, DekubeError, RecordDamaged, StoreError
from state.primitives.keys import SecretKey
from state.store import Restore, StoreDamaged, StoreLocked
from state.store.records import Tip, decode_tip, encode_tip, height_key
from state.transition.epochs import genesis_committee
from state.transition.runtime import Runtime
from state.trie.trie import TrieDamaged
from tests.node.sync.world import EPOCH_BLOCKS, GENESIS, HISTORY_HEIGHTS, World, open_store

BLOCKS = 3 * EPOCH_BLOCKS + 2
FOUNDING = genesis_committee(GENESIS, 100)


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("home")
    options = NodeOptions(p2p=NetworkOptions(listen="127.0.0.1:0"), rpc=RpcOptions(listen=""))
    create_home(
        root, genesis=GENESIS, options=options, account=SecretKey(b"a" * 32), vote=None, passphrase="p",
        scrypt_n=2,
    )  # fmt: skip
    world = World(root / "data")
    world.mint(3 * EPOCH_BLOCKS, accounts=4)
    world.mint_pair()
    SnapshotKeeper(world.store, root / "data" / "snapshots").make(3 * EPOCH_BLOCKS)
    world.store.close()
    return root


@pytest.fixture
def home(grown: Path, tmp_path: Path) -> Home:
    return Home(Path(shutil.copytree(grown, tmp_path / "home")))


def run(home: Home, *arguments: object) -> Result:
    verb, *rest = map(str, arguments)
    return CliRunner().invoke(group, ["db", verb, "--home", str(home.root), *rest], standalone_mode=False)


def read(home: Home, *arguments: object) -> Any:
    done = run(home, *arguments, "--json")
    assert done.exception is None, done.exception
    return json.loads(done.stdout)


def damage(home: Home, change: Callable[[Any], object]) -> None:
    db = plyvel.DB(str(home.chain))
    change(db)
    db.close()


def test_inspect_shows_what_is_there(home: Home) -> None:
    found = read(home, "inspect")
    assert (found["height"], found["epoch"], found["profile"]) == (BLOCKS, 3, "full")
    assert (found["oldest_header"], found["oldest_block"]) == (0, 1)
    assert found["can_roll_back_to"] == BLOCKS - HISTORY_HEIGHTS
    assert found["epoch_records"] == [0, 2]
    assert [row["height"] for row in found["snapshots"]] == [3 * EPOCH_BLOCKS]
    assert {"state", "trie", "blocks"} <= found["sizes"].keys()
    assert not found["damage"] and not found["unfinished_sync"]
    with open_store(home.chain, Runtime(GENESIS)) as store:
        record = store.height(5)
    assert record is not None
    assert read(home, "inspect", "--height", 5)["block_at"] == "0x" + record.block_hash.hex()
    above = run(home, "inspect", "--height", BLOCKS + 1)
    assert isinstance(above.exception, ConfigError)
    assert f"the database has heights 0 to {BLOCKS}" in str(above.exception)
    table = run(home, "inspect").output
    assert "epoch records" in table and str(BLOCKS) in table


def test_inspect_writes_nothing_where_the_disk_may_not_be_written(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is mounted read-only: nothing of the home changes, not even a lock or a log."""
    before = read(home, "inspect")
    shutil.rmtree(home.root / "run")
    files = {path: path.stat().st_mtime_ns for path in home.root.rglob("*")}
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and may(path, mode))
    found = read(home, "inspect", "--height", 5)
    assert found.pop("at") == 5 and found.pop("block_at").startswith("0x")
    assert {**found, "sizes": None} == {**before, "sizes": None}
    assert {path: path.stat().st_mtime_ns for path in home.root.rglob("*")} == files
    with live_in(home), pytest.raises(HomeInUse):
        # Beside a process that lives here: flock is of the open file, so the same process is another one too.
        raise run(home, "inspect").exception or AssertionError


def test_inspect_of_a_damaged_database_shows_the_rest(home: Home) -> None:
    damage(home, lambda db: (db.put(b"T", b"garbage"), db.put(b"N", b"short")))
    done = run(home, "inspect")
    assert done.return_value == 1 or isinstance(done.exception, SystemExit | Exception)
    assert "Damaged: tip" in done.output and "epoch_records" in done.output
    (home.chain / "CURRENT").unlink()
    assert "CURRENT" in run(home, "inspect").output


def test_a_running_node_keeps_its_database(home: Home) -> None:
    with open_store(home.chain, Runtime(GENESIS)):
        for arguments in (
            ("inspect",),
            ("verify",),
            ("rollback", 1, "--yes"),
            ("prune",),
            ("repair",),
            ("repair", "--force", "--no-sync"),
        ):
            error = run(home, *arguments).exception
            assert isinstance(error, StoreLocked), arguments
            assert "stop the node" in str(error)
        assert not home.chain.with_name("chain.damaged-1").exists()
        for table in home.chain.glob("*.ldb"):
            table.write_bytes(b"")
        (home.chain / "CURRENT").unlink()
        assert isinstance(run(home, "repair", "--force", "--no-sync").exception, StoreLocked), "damaged or not"


def test_what_lives_in_a_home_is_told_to_whoever_needs_it_alone(home: Home) -> None:
    """Also without a database: a node that syncs the state has none yet."""
    for is_there in (True, False):
        if not is_there:
            shutil.rmtree(home.chain)
        before = sorted(home.root.rglob("*"))
        with live_in(home):
            for arguments in (
                ("verify",), ("rollback", 1, "--yes"), ("prune",), ("repair",), ("repair", "--force", "--no-sync"),
                ("switch-chain", f"1:{'ab' * 32}", "--yes"), ("inspect",), ("inspect", "--height", 1), ("sync",),
            ):  # fmt: skip
                error = run(home, *arguments).exception
                assert isinstance(error, HomeInUse), (arguments, error)
                assert f"(pid {os.getpid()})" in str(error)
            if is_there:
                accused = run(home, "report-fork", 1, "--rpc", "http://127.0.0.1:1").exception
                assert isinstance(accused, HomeInUse)
        assert [path for path in sorted(home.root.rglob("*")) if "run" not in path.parts] == [
            path for path in before if "run" not in path.parts
        ]  # fmt: skip


def test_where_no_node_lives_no_home_is_begun(tmp_path: Path) -> None:
    nowhere = Home(tmp_path / "nowhere")
    for verb in ("inspect", "verify", "prune", "repair", "sync"):
        assert isinstance(run(nowhere, verb).exception, ConfigError), verb
    assert isinstance(run(nowhere, "switch-chain", f"1:{'ab' * 32}").exception, ConfigError)
    assert not nowhere.root.exists()


def test_where_nothing_can_be_trusted_any_more_it_says_what_helps(home: Home) -> None:
    done = run(home, "repair", "--force")
    assert isinstance(done.exception, RootExpired)
    assert "--checkpoint HEIGHT:HASH" in str(done.exception) and "chain.damaged-1" in done.output
    assert isinstance(run(home, "sync").exception, RootExpired)


@pytest.mark.slow
def test_a_service_that_no_restart_heals_ends_with_a_status_of_its_own(home: Home) -> None:
    passphrase = home.root / "keys" / "passphrase"
    passphrase.write_text("p\n")
    passphrase.chmod(0o600)

    def start(*arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "node", "node", "run", "--home", str(home.root), *arguments],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        last = done.stderr.strip().splitlines()[-1]
        return done.returncode, last[last.rindex("[") :]

    assert start("--checkpoint", f"{EPOCH_BLOCKS}:{'ab' * 32}") == (EXIT_NEEDS_OPERATOR, "[checkpoint_mismatch]")
    with open_store(home.chain, Runtime(GENESIS)):  # by another process: it may end
        assert start() == (EXIT_FAILED, "[store_locked]")
    damage(home, lambda db: db.put(b"T", b"garbage"))
    assert start() == (EXIT_NEEDS_OPERATOR, "[store_damaged]")
    shutil.rmtree(home.chain)
    assert start() == (EXIT_NEEDS_OPERATOR, "[trust_expired]")


def test_the_same_error_of_a_command_is_only_an_error() -> None:
    for error in (StoreDamaged(""), ConfigError("")):
        assert [exit_status(error, ends_service=service) for service in (False, True)] == [
            EXIT_FAILED, EXIT_NEEDS_OPERATOR,
        ]  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        try:
            raise OSError("address in use")
        except OSError:
            raise ConfigError("cannot listen") from None
    assert exit_status(caught.value, ends_service=True) == EXIT_FAILED, "it may be free at the next start"


def test_verify_checks_all_of_the_chain_and_the_state(home: Home) -> None:
    found = read(home, "verify")
    assert (found["height"], found["headers"], found["bodies"]) == (BLOCKS, BLOCKS + 1, BLOCKS)
    assert found["certificates"] == BLOCKS - 1 + 3  # of each block but the first of the pair; of three epochs
    assert found["keys"] > 0
    assert read(home, "verify", "--quick")["keys"] is None


def rewritten(db: Any, height: int, **changes: Any) -> None:
    key = height_key(b"h", height)
    db.put(key, encode_tip(decode_tip(db.get(key))._replace(**changes)))


DAMAGE: dict[str, tuple[str, Callable[[Any], object]]] = {
    "header": ("height 3", lambda db: rewritten(db, 3, header=b"\x80")),
    "another header": ("height 5", lambda db: db.put(height_key(b"h", 5), db.get(height_key(b"h", 4)))),
    "no header": ("height 2", lambda db: db.delete(height_key(b"h", 2))),
    "root": ("height 6", lambda db: rewritten(db, 6, state_root=b"r" * 32)),
    "body": ("height 7", lambda db: db.put(height_key(b"b", 7), db.get(height_key(b"b", 6)))),
    "no body": ("block 7", lambda db: db.delete(height_key(b"b", 7))),
    "receipts": ("height 8", lambda db: db.put(height_key(b"r", 8), encode([[], None]))),
    "certificate": ("height 9", lambda db: db.put(height_key(b"c", 9), b"garbage")),
    "no certificate": ("height 9", lambda db: db.delete(height_key(b"c", 9))),
    "forged certificate": ("height 9", lambda db: db.put(
        height_key(b"c", 9), flipped(db.get(height_key(b"c", 9))))),
    "epoch": ("epoch 1", lambda db: db.delete(height_key(b"e", 1))),
    "another epoch": ("height 8", lambda db: db.put(height_key(b"e", 1), db.get(height_key(b"e", 0)))),
    "hash": ("height 4", lambda db: db.delete(b"i" + decode_tip(db.get(height_key(b"h", 4))).block_hash)),
    "state": ("state", lambda db: db.put(next(db.iterator(prefix=b"s\1", include_value=False)), b"rich" * 6)),
}  # fmt: skip


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_named_and_repaired_by_one_command(home: Home, what: str) -> None:
    named, change = DAMAGE[what]
    damage(home, change)
    error = run(home, "verify").exception
    assert isinstance(error, DekubeError) and error.code == "store_damaged"
    assert named in str(error)
    keys = {path.name: path.read_bytes() for path in (home.root / "keys").iterdir()}
    home.guard.mkdir(parents=True, exist_ok=True)
    (home.guard / "votes").write_bytes(b"what the key has signed")
    found = read(home, "repair", "--no-sync")
    assert named in found["damage"]
    assert not home.chain.exists() and Path(found["moved_to"]).is_dir()
    assert {path.name: path.read_bytes() for path in (home.root / "keys").iterdir()} == keys
    assert (home.guard / "votes").read_bytes() == b"what the key has signed"
    with open_chain(home, load_node_options(home), make_runtime(GENESIS)) as store:  # what the next start begins
        assert store.tip.height == 0
    assert read(home, "repair", "--no-sync") == {"damage": None, "moved_to": None}


def test_a_database_that_does_not_open_names_the_command(home: Home) -> None:
    damage(home, lambda db: db.delete(b"N"))
    with pytest.raises(StoreDamaged, match="dekube db repair"):
        open_chain(home, load_node_options(home), make_runtime(GENESIS))
    assert "parts" in read(home, "repair", "--quick", "--no-sync")["damage"]


@pytest.mark.parametrize("error", [StoreDamaged, TrieDamaged, RecordDamaged])
def test_every_damage_names_the_command_once(
    error: type[StoreError], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also what a running node meets: that its trie lacks a node, a record that no rule has written."""
    for text in (
        "height 7: the block is absent",
        "data/chain: CURRENT is lost; `dekube db repair` makes it again",
    ):

        def fail(text: str = text, **_: object) -> None:
            raise error(text)

        monkeypatch.setattr(group, "main", fail)
        with pytest.raises(SystemExit):
            main()
        said = capsys.readouterr().err
        assert text in said and "[store_damaged]" in said
        assert said.count("dekube db repair") == 1


def test_repair_leaves_what_is_well(home: Home) -> None:
    assert read(home, "repair", "--no-sync")["moved_to"] is None
    assert read(home, "inspect")["height"] == BLOCKS
    first = read(home, "repair", "--force", "--no-sync")["moved_to"]
    assert first.endswith("chain.damaged-1")
    for force in ((), ("--force",)):
        nothing = run(home, "repair", "--no-sync", *force).exception
        assert isinstance(nothing, ConfigError) and "no database to repair" in str(nothing)
    assert not home.chain.exists()


def test_rollback_and_prune(home: Home) -> None:
    assert CliRunner().invoke(
        group, ["db", "rollback", "--home", str(home.root), "3"], input="n\n"
    ).exit_code  # fmt: skip
    for unasked in (("rollback", 3), ("rollback", 3, "--json"), ("prune", "--profile", "light", "--json")):
        assert isinstance(run(home, *unasked).exception, click.UsageError), "nobody can be asked"
    assert read(home, "inspect")["height"] == BLOCKS
    assert read(home, "rollback", 3, "--yes")["height"] == BLOCKS - 3
    assert read(home, "verify")["height"] == BLOCKS - 3
    error = run(home, "rollback", BLOCKS, "--yes").exception
    assert isinstance(error, DekubeError) and error.code == "pruned"
    assert "blocks can be taken back" in str(error)
    options = load_node_options(home)
    assert options.store == HistoryOptions()
    assert read(home, "prune")["blocks_removed"] == 0  # the profile keeps more than there is
    assert isinstance(run(home, "prune", "--profile", "nothing").exception, ConfigError)


def test_a_pruned_database_verifies(home: Home) -> None:
    from state.store import StoreOptions

    with open_store(home.chain, Runtime(GENESIS), StoreOptions(block_heights=4)) as store:
        assert store.prune() == BLOCKS - 4
    found = read(home, "verify")
    assert (found["headers"], found["bodies"], found["certificates"]) == (BLOCKS + 1, 4, 3 + 3)
    assert read(home, "inspect")["oldest_block"] == BLOCKS - 3


def test_without_a_database_nothing_is_begun(home: Home) -> None:
    shutil.rmtree(home.chain)
    for verb in ("inspect", "verify", "prune"):
        assert isinstance(run(home, verb).exception, ConfigError), verb
    assert not home.chain.exists()
    home.chain.mkdir()
    assert isinstance(run(home, "verify").exception, ConfigError)


def test_a_synced_database_verifies_from_its_beginning(home: Home) -> None:
    with open_store(home.chain, Runtime(GENESIS)) as store:
        keeper = SnapshotKeeper(store, snapshots_path(home))
        target: Tip | None = store.height(3 * EPOCH_BLOCKS)
        records = store.epoch_records(1, limit_bytes=1 << 20)
        piece = keeper.piece(3 * EPOCH_BLOCKS, 0)
    assert target is not None and piece is not None
    shutil.rmtree(home.chain)
    restore = Restore.open(home.chain, GENESIS)
    for epoch, record in enumerate(records, 1):
        restore.keep_record(epoch, record)
    restore.begin(target)
    restore.add(bytes(32), None, piece)
    restore.finish()
    restore.close()
    with open_store(home.chain, Runtime(GENESIS)) as store:
        steps: list[tuple[int, int]] = []
        audited = audit_chain(store, FOUNDING, lambda done, total: steps.append((done, total)))
        assert (audited.headers, audited.bodies, steps) == (1, 0, [(1, 1)])
    assert read(home, "inspect")["oldest_header"] == target.height


def test_sync_is_for_a_home_without_a_database(home: Home) -> None:
    assert isinstance(run(home, "sync").exception, ConfigError)
