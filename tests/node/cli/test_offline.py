"""Commands that need no network: JSON parses, a mistake is one line with a code, help is everywhere."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import node.home.keys
from billing.relay import Receipt
from node.cli import group, main
from node.home.paths import Home
from node.relay.home import RECEIPTS
from p2p.secure.identity import Identity
from relay.payment.receipts import ReceiptStore, StoredReceipt
from state.primitives.address import format_address
from state.primitives.genesis import genesis_to_json
from state.primitives.keys import SecretKey
from state.primitives.keystore import encrypt_keystore
from tests.node.cli.test_commands import COMMANDS
from tests.state.transition.chain import genesis

KEY = SecretKey(b"k" * 32)


class Ended(NamedTuple):
    """How the program ended and what it said."""

    status: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def cheap_keystores(monkeypatch: pytest.MonkeyPatch) -> None:
    def encrypt(key: SecretKey, passphrase: str, **rest: Any) -> str:
        return encrypt_keystore(key, passphrase, **rest | {"scrypt_n": 2})

    monkeypatch.setattr(node.home.keys, "encrypt_keystore", encrypt)


@pytest.fixture
def dekube(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """The program as it is run from a shell."""

    def run(*arguments: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["dekube", *map(str, arguments)])
        status = 0
        try:
            main()
        except SystemExit as stop:
            status = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
        said = capsys.readouterr()
        return Ended(status, said.out, said.err)

    return run


@pytest.fixture
def passphrase(tmp_path: Path) -> Path:
    file = tmp_path / "passphrase"
    file.write_text("secret\n")
    file.chmod(0o600)
    return file


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_help_and_refuses_what_it_does_not_know(path: tuple[str, ...]) -> None:
    done = CliRunner().invoke(group, [*path, "--help"])
    assert done.exit_code == 0
    assert COMMANDS[path].help and done.output.startswith("Usage:")
    assert CliRunner().invoke(group, [*path, "--no-such-option"]).exit_code == 2
    for parameter in COMMANDS[path].params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{path}: {parameter.name}"


def test_a_node_and_a_relay_get_their_homes_once(dekube: Any, tmp_path: Path) -> None:
    file = tmp_path / "genesis.json"
    file.write_text(genesis_to_json(genesis()))
    for command, name in (("init", "node"), ("relay", "relay")):
        arguments = ["init"] if command == "init" else ["relay", "init"]
        extra = ["--unattended", "--role", "validator"] if command == "init" else []
        home = tmp_path / name
        done = dekube(*arguments, "--home", home, "--genesis", file, *extra, "--json")
        assert done.status == 0, done.err
        assert json.loads(done.out)["address"].startswith("0x")
        assert Home(home).config.exists()
        again = dekube(*arguments, "--home", home, "--genesis", file, *extra)
        assert (again.status, again.err.count("\n")) == (1, 1)
        assert again.err.endswith("[config_error]\n")


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("wallet", "address", "nothing.json"), 1),
        (("wallet", "address", "nobody", "--home", "nowhere"), 1),
        (("wallet", "address", "--home", "nowhere"), 1),
        (("wallet", "new", "a name", "--home", "nowhere"), 1),
        (("wallet", "export", "x"), 2),
        (("wallet", "verify", "0x12", "0x12", "m"), 1),
        (("wallet", "verify", format_address(KEY.address), "0x" + "00" * 65, "m"), 1),
        (("wallet", "verify", format_address(KEY.address), "0x" + "ff" * 65, "m"), 1),
        (("wallet", "verify", format_address(KEY.address), "0x" + "11" * 65), 2),
        (("wallet", "list", "nowhere"), 2),
        (("node", "run", "--home", "nowhere"), 1),
        (("db", "verify", "--home", "nowhere"), 1),
        (("node", "guard", "show", "--home", "nowhere"), 1),
        (("relay", "run", "--home", "nowhere"), 1),
        (("status", "--home", "nowhere"), 1),
        (("wallet", "balance", format_address(KEY.address), "--home", "nowhere"), 1),
        (("wallet", "send", "0x12", "1", "--home", "nowhere"), 1),
        (("wallet", "call", "--home", "nowhere"), 1),
        (("wallet", "watch", "0x12", "--home", "nowhere"), 1),
        (("tx", "unstake", "1", "--home", "nowhere"), 1),
        (("testnet", "list", "--dir", "nowhere"), 1),
        (("testnet", "kill", "validator-0", "--dir", "nowhere"), 1),
        (("testnet", "up", "--dir", "nowhere", "--validators", "0"), 2),
        (("testnet", "up", "--dir", "nowhere", "--parameter", "x"), 2),
        (("bench", "nothing"), 2),
        (("completion", "cobol"), 2),
        (("nothing",), 2),
    ],
)
def test_a_mistake_is_said_in_few_words_and_by_the_exit_status(
    dekube: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], status: int
) -> None:
    monkeypatch.chdir(tmp_path)
    done = dekube(*arguments)
    assert (done.status, done.out) == (status, "")
    assert "Traceback" not in done.err
    if status == 1:
        assert done.err.startswith("dekube: ")
        assert done.err.count("\n") == 1
        assert done.err.rstrip().endswith("]"), "a code in brackets"


def test_a_damaged_keystore_genesis_or_configuration_is_one_line(
    dekube: Any, tmp_path: Path, passphrase: Path
) -> None:
    for content in (b"", b"{", b"\xff\xfe", b"[" * 5000, b'{"version": 3}', bytes(20_000)):
        file = tmp_path / "file"
        file.with_name("file.json").write_bytes(content)
        file.write_bytes(content)
        home = tmp_path / "home"
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_bytes(content or b"=")
        for arguments in (
            ("wallet", "sign", "m", "--key", f"{file}.json", "--passphrase-file", passphrase),
            ("wallet", "verify", format_address(KEY.address), "0x" + "11" * 65, "--typed", file),
            ("init", "--home", tmp_path / "new", "--genesis", file, "--unattended"),
            ("node", "run", "--home", home),
            ("node", "guard", "import", file, "--home", home),
        ):
            done = dekube(*arguments)
            status = 78 if arguments[:2] == ("node", "run") else 1  # a service must not be started over and over
            assert (done.status, done.err.count("\n")) == (status, 1), (arguments, done.err)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.text(max_size=140) | st.sampled_from(["\udcff", "0x" + "\udcff" * 64, "-" * 3, "\0", "--"]))
def test_no_text_of_a_shell_makes_a_traceback(dekube: Any, text: str) -> None:
    for arguments in (
        ("wallet", "verify", text, "0x" + "11" * 65, "m"),
        ("wallet", "verify", format_address(KEY.address), text, "m"),
        ("wallet", "verify", format_address(KEY.address), "0x" + "11" * 65, text),
        ("completion", text),
    ):
        assert dekube(*arguments).status in (0, 1, 2)


def test_receipts_of_a_relay_are_shown_and_expired_ones_go(dekube: Any, tmp_path: Path) -> None:
    file, home = tmp_path / "genesis.json", tmp_path / "relay"
    file.write_text(genesis_to_json(genesis()))
    assert dekube("relay", "init", "--home", home, "--genesis", file).status == 0
    payer = Identity.create(KEY, genesis_hash=b"g" * 32, now_ms=2**50, node_secret=bytes(32))
    fresh = Receipt(b"g" * 32, b"r" * 20, KEY.address, b"c" * 32, 1, 1, 2**30, 10**16, 2**52)
    stale = replace(fresh, channel=b"d" * 32, opened_ms=2, not_after_ms=1)
    certificate = payer.certificate.encode()
    store = ReceiptStore(home / RECEIPTS)
    store.save([StoredReceipt(each.signed_by(payer.signer), certificate) for each in (fresh, stale)])
    done = dekube("relay", "settle", "--home", home, "--json")
    assert done.status == 0, done.err
    rows = json.loads(done.out)
    assert [(row["state"], row["amount"]) for row in rows] == [("waits", 10**16), ("expired", 10**16)]
    assert [stored.receipt.channel for stored in store.load()] == [fresh.channel]
    refused = dekube("relay", "register", "--home", home, "--rpc", "http://127.0.0.1:1", "--at", "not a host")
    assert (refused.status, refused.err.count("\n")) == (1, 1)
