"""``dekube signer``: a key's way from a node to a signer and on to another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import node.home.keys
from consensus.guard import GuardMissing
from consensus.signer import SignerUnavailable
from node.cli import group
from node.cli.guard import WatermarkLower, read_watermark
from node.cli.transactions import read_possession
from node.home.config import read_table
from node.home.keys import load_key, save_key
from node.home.lock import HomeInUse
from node.home.options import NodeOptions
from node.home.paths import Home
from node.signer.home import load_signer_options, vote_keys_of
from state.primitives.address import format_address
from state.primitives.errors import ConfigError
from state.primitives.genesis import genesis_hash, genesis_to_json
from state.primitives.keys import SecretKey
from state.primitives.keystore import encrypt_keystore
from state.transition.staking import stake_payload
from tests.node.signer.world import CHAIN, GENESIS, NODE, signer_process

KEY = SecretKey(b"k" * 32)
WHO = format_address(NODE.address)


@pytest.fixture(autouse=True)
def cheap_keystores(monkeypatch: pytest.MonkeyPatch) -> None:
    def encrypt(key: SecretKey, passphrase: str, **rest: Any) -> str:
        return encrypt_keystore(key, passphrase, **rest | {"scrypt_n": 2})

    monkeypatch.setattr(node.home.keys, "encrypt_keystore", encrypt)


def run(home: Path, verb: str, *arguments: object, json_wanted: bool = True) -> Result:
    more = ("--json",) if json_wanted else ()
    words = ["signer", verb, "--home", str(home), *map(str, arguments), *more]
    return CliRunner().invoke(group, words, standalone_mode=False)


def good(result: Result) -> Any:
    assert result.exception is None, result.exception
    return json.loads(result.output)


def init(tmp_path: Path, name: str, *more: object) -> Home:
    (tmp_path / "genesis.json").write_text(genesis_to_json(GENESIS))
    good(run(tmp_path / name, "init", "--genesis", tmp_path / "genesis.json", "--unattended", *more))
    return Home(tmp_path / name)


def keystore(tmp_path: Path) -> tuple[object, ...]:
    save_key(tmp_path / "vote.json", KEY, "secret")
    (tmp_path / "passphrase").write_text("secret\n")
    (tmp_path / "passphrase").chmod(0o600)
    return "--keystore", tmp_path / "vote.json", "--passphrase-file", tmp_path / "passphrase"


def mark(tmp_path: Path, name: str, view: int) -> Path:
    fields = {"version": 1, "genesis_hash": "0x" + CHAIN.hex(), "vote_key": "0x" + KEY.vote_key.hex()}
    (tmp_path / name).write_text(json.dumps({**fields, "epoch": 2, "view": view}))
    return tmp_path / name


def test_a_new_key_begins_its_record_and_an_existing_one_waits_for_its_watermark(tmp_path: Path) -> None:
    drawn = init(tmp_path, "new")
    assert (drawn.guard / "votes.guard").exists()
    moved = init(tmp_path, "moved", *keystore(tmp_path))
    assert not (moved.guard / "votes.guard").exists()
    assert isinstance(run(moved.root, "export", tmp_path / "no.json").exception, GuardMissing)
    assert not (tmp_path / "no.json").exists()
    good(run(moved.root, "import", mark(tmp_path, "mark.json", 9)))
    assert isinstance(run(moved.root, "import", mark(tmp_path, "old.json", 8)).exception, WatermarkLower)
    good(run(moved.root, "export", tmp_path / "again.json"))
    assert read_watermark(tmp_path / "again.json") == (genesis_hash(GENESIS), KEY.vote_key, 2, 9)
    for home in (drawn, moved):
        assert {path.stat().st_mode & 0o077 for path in home.root.glob("keys/*")} == {0}


def test_a_signer_for_other_machines_names_its_nodes(tmp_path: Path) -> None:
    (tmp_path / "genesis.json").write_text(genesis_to_json(GENESIS))
    for wrong in (("--listen", "h:1"), ("--listen", "h:1", "--client", "0x12"), ("--listen", "nowhere")):
        done = run(tmp_path / "signer", "init", "--genesis", tmp_path / "genesis.json", "--unattended", *wrong)
        assert isinstance(done.exception, ConfigError)
        assert not (tmp_path / "signer").exists()
    home = init(tmp_path, "signer", "--listen", "127.0.0.1:1", "--client", "0x" + "ab" * 20)
    assert load_signer_options(home.config).clients == ("0x" + "ab" * 20,)
    done = run(home.root, "init", "--genesis", tmp_path / "genesis.json", "--unattended")
    assert isinstance(done.exception, ConfigError), "keys are never overwritten"


@pytest.mark.parametrize(
    ("listen", "endpoint"),
    [
        ("", "unix:{home}/run/signer.sock"),
        ("10.0.0.2:7", "{address}@tcp:10.0.0.2:7"),
        (":7", "{address}@tcp:HOST:7"),
    ],
)
def test_a_new_signer_says_what_its_node_needs(tmp_path: Path, listen: str, endpoint: str) -> None:
    (tmp_path / "genesis.json").write_text(genesis_to_json(GENESIS))
    more = ("--listen", listen, "--client", "0x" + "ab" * 20) if listen else ()
    home = tmp_path / "signer"
    told = run(
        home, "init", "--genesis", tmp_path / "genesis.json", "--unattended", *more, json_wanted=False
    ).output
    account = load_key(home / "keys/account.json", (home / "keys/passphrase").read_text().strip())
    [vote] = vote_keys_of(Home(home), (home / "keys/passphrase").read_text().strip())
    where = endpoint.format(home=home, address=format_address(account.address))
    assert f'[signer]\nendpoint = "{where}"\nvote_key = "0x{vote.vote_key.hex()}"\n' in told
    assert f"dekube signer run --home {home}" in told
    if listen != ":7":
        read_table(told[told.index("[signer]") :], NodeOptions)


@pytest.mark.slow
def test_a_running_signer_shows_itself_and_votes_no_more_once_exported(tmp_path: Path) -> None:
    home = init(tmp_path, "signer", *keystore(tmp_path))
    good(run(home.root, "import", mark(tmp_path, "mark.json", 9)))
    assert isinstance(run(home.root, "status").exception, SignerUnavailable)
    with signer_process(home):
        shown = good(run(home.root, "status"))
        assert (shown["epoch"], shown["view"], shown["node_connected"], shown["retired"]) == (2, 9, False, False)
        assert isinstance(run(home.root, "import", mark(tmp_path, "later.json", 99)).exception, HomeInUse)
        (tmp_path / "taken.json").touch()
        assert isinstance(run(home.root, "export", tmp_path / "taken.json").exception, ConfigError)
        assert not good(run(home.root, "status"))["retired"], "nothing was done"
        good(run(home.root, "export", tmp_path / "moved.json"))
        assert read_watermark(tmp_path / "moved.json").view == 9
        assert good(run(home.root, "status"))["retired"]
        told = run(home.root, "export", tmp_path / "second.json", json_wanted=False)
        assert "no longer votes" in told.output
        assert f"dekube signer import {tmp_path / 'second.json'}" in told.output
    with signer_process(home):  # over a restart too
        assert good(run(home.root, "status"))["retired"]
    good(run(home.root, "import", tmp_path / "second.json"))
    with signer_process(home):
        assert not good(run(home.root, "status"))["retired"], "its watermark brings it back"
    good(run(home.root, "export", tmp_path / "third.json"))  # of a signer that does not run
    with signer_process(home):
        assert good(run(home.root, "status"))["retired"]


def test_a_second_key_has_a_guard_of_its_own_and_is_named_where_it_matters(tmp_path: Path) -> None:
    home = init(tmp_path, "signer")
    first = good(run(home.root, "possession", WHO))["vote_key"]
    second = good(run(home.root, "add-key"))["vote_key"]
    assert first != second
    brought = keystore(tmp_path)
    good(run(home.root, "add-key", *brought))
    assert isinstance(run(home.root, "add-key", *brought).exception, ConfigError), "it is here already"
    third = "0x" + KEY.vote_key.hex()
    options = load_signer_options(home.config)
    assert len(options.vote_files) == 3
    # The key that was brought may have voted: without its watermark nothing starts.
    with pytest.raises(AssertionError), signer_process(home):
        pass
    moved = good(run(home.root, "import", mark(tmp_path, "mark.json", 9)))
    assert "view 9" in moved["votes_only_above"]
    assert isinstance(run(home.root, "export", tmp_path / "x.json").exception, ConfigError), "which one?"
    with signer_process(home):
        shown = good(run(home.root, "status"))
        assert [shown["vote_key"], *(one["vote_key"] for one in shown["others"])] == [first, second, third]
        assert [one["view"] for one in shown["others"]] == [0, 9]
        assert "Key 3" in run(home.root, "status", json_wanted=False).output
        assert isinstance(run(home.root, "export", tmp_path / "x.json").exception, ConfigError)
        good(run(home.root, "export", tmp_path / "x.json", "--vote-key", third))
        assert read_watermark(tmp_path / "x.json").vote_key == KEY.vote_key
        shown = good(run(home.root, "status"))
        assert [shown["retired"], *(one["retired"] for one in shown["others"])] == [False, False, True]
    assert isinstance(run(home.root, "possession", WHO).exception, ConfigError)
    assert isinstance(run(home.root, "possession", WHO, "--vote-key", "0x12").exception, ConfigError)
    proof = good(run(home.root, "possession", WHO, "--vote-key", third))
    made = stake_payload(0, KEY, genesis_hash=CHAIN, address=NODE.address)
    (tmp_path / "possession.json").write_text(json.dumps(proof))
    assert read_possession(tmp_path / "possession.json") == made[1:]
