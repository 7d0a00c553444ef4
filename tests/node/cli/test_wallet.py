"""``dekube wallet``: accounts as other wallets have them, no secret in an argument, money against a gateway."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest
import trio
from click.testing import CliRunner, Result
from eth_account import Account

import node.home.keys
import rpc.client.api
from node.cli import group
from node.cli.arguments import FEE as FEE_TYPE
from node.cli.arguments import SECONDS
from node.cli.output import show_gwei
from node.cli.wallet import wallet
from node.home.keyring import key_of_mnemonic, new_mnemonic, parse_secret
from rpc.client import GatewayUnreachable
from state.primitives.address import format_address
from state.primitives.errors import ConfigError, DecodeError, DekubeError, KeystoreError
from state.primitives.genesis import genesis_to_json
from state.primitives.keys import SecretKey
from state.primitives.keystore import encrypt_keystore
from state.view.accounts import load_account
from tests.node.cli.test_commands import COMMANDS
from tests.rpc.harness import ALICE, BOB, COIN, DAVE, FEE, Node, gateway, hexed, served, transfer
from tests.state.primitives.test_signing import MAIL
from tests.wallets.tools import cast, installed

JUNK = "test test test test test test test test test test test junk"
FIRST, THIRD = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266", "0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC"
PASSPHRASE = "corréct horse"
SECRET = "ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80"


@pytest.fixture(autouse=True)
def cheap_keystores(monkeypatch: pytest.MonkeyPatch) -> None:
    def encrypt(key: SecretKey, passphrase: str, **rest: Any) -> str:
        return encrypt_keystore(key, passphrase, **rest | {"scrypt_n": 2})

    monkeypatch.setattr(node.home.keys, "encrypt_keystore", encrypt)


class Shell:
    """The command with a home and a passphrase file of its own."""

    def __init__(self, root: Path) -> None:
        self.home = root / "home"
        self.passphrase = root / "passphrase"
        self.passphrase.write_text(PASSPHRASE + "\n")
        self.passphrase.chmod(0o600)

    def result(self, *arguments: object, stdin: str = "") -> Result:
        command = ["wallet", *map(str, arguments), "--home", str(self.home)]
        return CliRunner().invoke(group, command, input=stdin, standalone_mode=False)

    def ask(self, *arguments: object, stdin: str = "") -> Any:
        done = self.result(*arguments, "--json", stdin=stdin)
        if done.exception is not None:
            raise done.exception
        return json.loads(done.stdout)

    @property
    def file(self) -> tuple[str, str]:
        return "--passphrase-file", str(self.passphrase)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


# Accounts


def test_an_account_is_made_listed_used_and_given_to_another_wallet(shell: Shell, tmp_path: Path) -> None:
    made = shell.ask("new", "savings", *shell.file)
    place = Path(made["file"])
    assert place == shell.home / "wallet" / "savings.json"
    assert (place.stat().st_mode & 0o777, place.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert shell.ask("list") == [{"name": "savings", "address": made["address"], "file": str(place)}]
    for name in ("savings", made["address"], made["address"].lower(), str(place)):
        assert shell.ask("address", name) == {"address": made["address"]}
    assert shell.ask("address") == {"address": made["address"]}, "the only one"
    with pytest.raises(ConfigError):
        shell.ask("new", "savings", *shell.file)

    secret = shell.ask("export", "savings", "--reveal-secret", *shell.file)["secret"]
    out = tmp_path / "out.json"
    shell.ask("export", "savings", "--out", out, *shell.file, "--new-passphrase-file", "-", stdin="other\n")
    assert out.stat().st_mode & 0o777 == 0o600
    assert hexed(Account.decrypt(json.loads(out.read_text()), "other")) == secret
    with pytest.raises(ConfigError):
        shell.ask("export", "savings", "--out", out, *shell.file, "--new-passphrase-file", "-", stdin="other\n")

    shell.ask("new", "second", *shell.file)
    with pytest.raises(ConfigError, match="second"):
        shell.ask("address")


def test_the_words_of_an_account_bring_it_back(shell: Shell, tmp_path: Path) -> None:
    words = tmp_path / "words"
    made = shell.ask("new", "one", "--words", 24, "--mnemonic-file", words, *shell.file)
    assert "mnemonic" not in made
    assert words.stat().st_mode & 0o777 == 0o600
    assert len(words.read_text().split()) == 24
    again = shell.ask("import", "again", "--mnemonic-file", words, *shell.file)
    assert again["address"] == made["address"]
    shown = shell.ask("new", "two", "--words", 12, *shell.file)
    assert key_of_mnemonic(shown["mnemonic"], 0).address == bytes.fromhex(shown["address"][2:])
    Account.enable_unaudited_hdwallet_features()
    theirs: Any = Account.from_mnemonic(shown["mnemonic"], account_path="m/44'/60'/0'/0/7")
    assert format_address(key_of_mnemonic(shown["mnemonic"], 7).address) == theirs.address
    other: Any = Account.from_mnemonic(shown["mnemonic"], passphrase="extra")
    assert format_address(key_of_mnemonic(shown["mnemonic"], 0, extra="extra").address) == other.address


def test_every_way_in_gives_the_same_account(shell: Shell, tmp_path: Path) -> None:
    assert shell.ask("import", "a", "--mnemonic-file", "-", *shell.file, stdin=JUNK + "\n")["address"] == FIRST
    assert shell.ask("import", "b", "--mnemonic", "--index", 2, *shell.file, stdin=JUNK.upper() + "\n")[
        "address"
    ] == (THIRD)
    assert shell.ask("import", "c", *shell.file, stdin=f"0x{SECRET}\n")["address"] == FIRST
    both = ("--secret-file", "-", "--passphrase-file", "-")
    assert shell.ask("import", "d", *both, stdin=f"{SECRET}\n{PASSPHRASE}\n")["address"] == FIRST
    theirs = tmp_path / "theirs.json"
    theirs.write_text(json.dumps(Account.encrypt(bytes.fromhex(SECRET), "their own", kdf="scrypt", iterations=2)))
    theirs.chmod(0o600)
    imported = shell.ask(
        "import", "e", "--keystore", theirs, "--keystore-passphrase-file", "-", *shell.file, stdin="their own\n"
    )
    assert imported["address"] == FIRST
    pbkdf2 = Account.encrypt(bytes.fromhex(SECRET), "p", kdf="pbkdf2", iterations=2)
    theirs.write_text(json.dumps(pbkdf2))
    assert shell.ask("export", theirs, "--reveal-secret", "--passphrase-file", "-", stdin="p\n")["secret"] == (
        "0x" + SECRET
    )
    # Asked for, at a terminal: the secret, and the new passphrase twice.
    assert shell.ask("import", "f", stdin=f"{SECRET}\npass\npass\n")["address"] == FIRST
    assert shell.ask("sign", "m", "--key", "f", stdin="pass\n")["address"] == FIRST


def test_the_words_alone_go_to_standard_output_where_that_is_asked_for(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.iterdir())
    done = shell.result("new", "one", "--words", 24, "--mnemonic-file", "-", *shell.file)
    assert done.exception is None
    [line] = done.stdout.splitlines()
    assert len(line.split()) == 24
    again = shell.ask("import", "again", "--mnemonic-file", "-", *shell.file, stdin=line + "\n")
    assert again["address"] in done.stderr and line not in done.stderr
    shown = shell.ask("new", "two", "--words", 12, "--mnemonic-file", "-", *shell.file)
    assert key_of_mnemonic(shown["mnemonic"], 0).address == bytes.fromhex(shown["address"][2:])
    with pytest.raises(click.UsageError):
        shell.ask("export", "one", "--out", "-", *shell.file, "--new-passphrase-file", "-", stdin="other\n")
    assert set(tmp_path.iterdir()) - before == {shell.home}, "no file is called -"


def test_a_file_of_words_that_is_there_is_told_before_anything_is_made(shell: Shell) -> None:
    with pytest.raises(ConfigError, match="exists already"):
        shell.ask("new", "x", "--words", 12, "--mnemonic-file", shell.passphrase)  # and no passphrase is asked for
    assert not (shell.home / "wallet").exists()


@pytest.mark.parametrize("path", ["m/44'/60'/1'/0/0", "m/44'/60'/0'/3"])
def test_accounts_of_other_paths_are_imported_and_made(shell: Shell, path: str) -> None:
    Account.enable_unaudited_hdwallet_features()
    theirs: Any = Account.from_mnemonic(JUNK, account_path=path)
    made = shell.ask("import", "a", "--mnemonic", "--path", path, *shell.file, stdin=JUNK + "\n")
    assert (made["address"], made["path"]) == (theirs.address, path)
    fresh = shell.ask("new", "b", "--words", 12, "--path", path, *shell.file)
    theirs = Account.from_mnemonic(fresh["mnemonic"], account_path=path)
    assert (fresh["address"], fresh["path"]) == (theirs.address, path)


@pytest.mark.parametrize(
    "arguments",
    [
        ("import", "a", "--mnemonic", "--path", "m/44'/60'/0'/0/2147483648"),
        ("import", "a", "--mnemonic", "--path", "44/60"),
        ("import", "a", "--mnemonic", "--path", "m/0", "--index", 0),
        ("import", "a", "--path", "m/0"),
        ("new", "a", "--path", "m/0"),
        ("new", "a", "--words", 12, "--path", "m"),
    ],
)
def test_a_path_that_is_none_or_one_too_many_is_refused(shell: Shell, arguments: tuple[object, ...]) -> None:
    with pytest.raises(click.UsageError):
        shell.ask(*arguments, *shell.file, stdin=JUNK + "\n")
    assert not (shell.home / "wallet").exists()


@pytest.mark.parametrize("command", [("new",), ("import", "--mnemonic")])
def test_no_account_is_called_as_a_stranger_is_paid(shell: Shell, command: tuple[str, ...]) -> None:
    verb, *rest = command
    with pytest.raises(ConfigError, match="that is an address"):
        shell.ask(verb, "0x52908400098527886E0F7030069857D2E4169EE7", *rest, *shell.file, stdin=JUNK + "\n")
    assert not (shell.home / "wallet").exists()


def test_the_files_of_geth_are_used_by_the_names_that_are_listed(shell: Shell, tmp_path: Path) -> None:
    name = "UTC--2022-05-19T04-21-29.990117000Z--19e7e376e7c213b7e7e7e46cc70a5dd086daff2a"
    (shell.home / "wallet").mkdir(parents=True)
    theirs = Account.encrypt(bytes.fromhex(SECRET), PASSPHRASE, kdf="scrypt", iterations=2)
    (shell.home / "wallet" / name).write_text(json.dumps(theirs))
    [listed] = shell.ask("list")
    assert listed["name"] == name
    assert shell.ask("address", name) == {"address": FIRST}
    assert shell.ask("sign", "m", "--key", name, *shell.file)["address"] == FIRST
    assert shell.ask("export", name, "--reveal-secret", *shell.file)["secret"] == "0x" + SECRET


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--mnemonic",), "the mnemonic, and standard input is empty: .*--mnemonic-file"),
        (("--mnemonic-file", "-"), "no line with the mnemonic"),
        ((), "the secret key, .*--secret-file"),
    ],
)
def test_what_nobody_gave_is_named(shell: Shell, arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(KeystoreError, match=said) as caught:
        shell.ask("import", "x", *arguments, *shell.file)
    assert "--unattended" not in str(caught.value)


def test_no_key_is_kept_under_an_empty_passphrase(shell: Shell) -> None:
    shell.passphrase.write_text("\n")
    for arguments in ((), ("--passphrase-file", "-"), shell.file):
        with pytest.raises(KeystoreError, match=r"(passphrase|first line) is empty"):
            shell.ask("new", "x", *arguments, stdin="\n")
    assert not (shell.home / "wallet").exists()


def test_a_keystore_without_a_field_is_told_which_before_a_passphrase_is_asked_for(shell: Shell) -> None:
    file = Path(shell.ask("new", "x", *shell.file)["file"])
    document = json.loads(file.read_text())
    del document["crypto"]["mac"]
    file.write_text(json.dumps(document))
    with pytest.raises(KeystoreError, match=r"x\.json: crypto\.mac is missing"):
        shell.ask("sign", "m", "--key", "x")


@pytest.mark.parametrize(
    "text",
    ["", "test", JUNK.replace("junk", "test"), JUNK + " test", "x " * 12, "tèst " * 11 + "junk", "a" * 10_000],
)
def test_what_is_no_mnemonic_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(KeystoreError) as caught:
        key_of_mnemonic(text, 0)
    assert "test" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "0x", SECRET[:-1], SECRET + "00", "g" * 64, "0" * 64, "f" * 64, " " * 64, "١" * 64]
)
def test_what_is_no_secret_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(KeystoreError) as caught:
        parse_secret(text)
    assert not text or text not in str(caught.value)


def test_a_mnemonic_has_the_words_that_it_should(shell: Shell) -> None:
    # The first vectors of BIP-39's reference implementation.
    assert new_mnemonic(12, entropy=bytes) == "abandon " * 11 + "about"
    assert new_mnemonic(24, entropy=lambda n: b"\x7f" * n).endswith(
        "year wave sausage worth useful legal winner thank year wave sausage worth title"
    )
    with pytest.raises(ConfigError):
        new_mnemonic(13)


def test_a_passphrase_file_that_others_may_read_is_refused(shell: Shell) -> None:
    shell.passphrase.chmod(0o644)
    with pytest.raises(KeystoreError):
        shell.ask("new", "x", *shell.file)
    assert not (shell.home / "wallet").exists()
    with pytest.raises(KeystoreError):
        shell.ask("new", "x", "--passphrase-file", "-")


def options(command: click.Command) -> Iterator[click.Option]:
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            yield parameter


def test_no_option_of_any_command_takes_a_secret() -> None:
    words = ("pass", "secret", "mnemonic", "private", "seed", "extra")
    public = {("testnet", "--seed"), ("task", "--seed"), ("bench", "--seed")}  # of test networks and of training
    for path, command in COMMANDS.items():
        for option in options(command):
            names = " ".join(option.opts)
            if any(word in names for word in words) and (path[0], option.opts[-1]) not in public:
                is_choice = isinstance(option.type, click.Choice)
                assert option.is_flag or is_choice or isinstance(option.type, click.Path), (path, names)
    for argument in (p for c in wallet.commands.values() for p in c.params if isinstance(p, click.Argument)):
        assert not any(word in str(argument.name) for word in words)


# Messages


def test_messages_and_typed_data_are_signed_and_checked(shell: Shell, tmp_path: Path) -> None:
    shell.ask("import", "a", *shell.file, "--secret-file", "-", stdin=SECRET + "\n")
    typed = tmp_path / "mail.json"
    typed.write_text(json.dumps(MAIL))
    for what in (("hello",), ("--hex", "0x68656c6c6f"), ("--file", typed), ("--typed", typed)):
        signed = shell.ask("sign", *what, "--key", "a", *shell.file)
        assert signed["address"] == FIRST
        assert shell.ask("verify", FIRST, signed["signature"], *what) == {"valid": True, "signer": FIRST}
        other = shell.result("verify", FIRST, signed["signature"], "hullo", "--json")
        assert (other.return_value, json.loads(other.stdout)["valid"]) == (1, False)
    piped = shell.ask("sign", "--file", "-", "--key", "a", "--passphrase-file", "-", stdin=f"{PASSPHRASE}\nhello")
    assert piped == shell.ask("sign", "hello", "--key", "a", *shell.file), "passphrase first, then the message"
    for wrong in ((), ("a", "--file", typed), ("--hex", "68"), ("--hex", "0x6")):
        with pytest.raises(click.UsageError):
            shell.ask("sign", *wrong, "--key", "a", *shell.file)


@pytest.mark.slow
def test_cast_opens_our_files_and_we_open_those_of_cast(shell: Shell, tmp_path: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed, so cast is not")
    installed()
    program = cast()
    if program is None:
        pytest.skip("cast is not made for this machine")

    def run(*words: object) -> str:
        environment = os.environ | {"HOME": str(tmp_path), "FOUNDRY_DIR": str(tmp_path / "foundry")}
        command = [str(program), "wallet", *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    made = shell.ask("import", "ours", "--secret-file", "-", *shell.file, stdin=SECRET + "\n")
    opened = ("--keystore", made["file"], "--password", PASSPHRASE)
    assert run("address", *opened) == FIRST
    assert run("sign", *opened, "hello") == shell.ask("sign", "hello", "--key", "ours", *shell.file)["signature"]
    typed = tmp_path / "mail.json"
    typed.write_text(json.dumps(MAIL))
    signed = shell.ask("sign", "--typed", typed, "--key", "ours", *shell.file)["signature"]
    assert run("sign", *opened, "--data", "--from-file", typed) == signed
    assert "succe" in run("verify", "--address", FIRST, "hello", run("sign", *opened, "hello"))

    folder = tmp_path / "theirs"
    folder.mkdir()
    secret = "0x" + "5" * 64
    run("import", "them", "--private-key", secret, "--unsafe-password", "pw", "--keystore-dir", folder)
    [file] = folder.iterdir()
    shell.ask("import", "them", "--keystore", file, "--keystore-passphrase-file", "-", *shell.file, stdin="pw\n")
    assert shell.ask("export", "them", "--reveal-secret", *shell.file)["secret"] == secret


def test_whose_signature_it_is_to_be_is_an_address_or_an_account(shell: Shell) -> None:
    made = shell.ask("import", "savings", *shell.file, "--secret-file", "-", stdin=SECRET + "\n")
    signature = shell.ask("sign", "m", "--key", "savings", *shell.file)["signature"]
    for name in ("savings", made["address"], made["file"]):
        assert shell.ask("verify", name, signature, "m") == {"valid": True, "signer": FIRST}
    with pytest.raises(ConfigError, match="no account 'nobody'"):
        shell.ask("verify", "nobody", signature, "m")
    with pytest.raises(DecodeError):
        shell.ask("verify", "0x12", signature, "m")


# Before a gateway is asked


@pytest.mark.parametrize("wrong", ["nan", "inf", "-inf", "1e300", "1e9", "-1", "-0.1", "", "soon", "0x10", "NaN"])
def test_a_time_that_is_none_is_refused(shell: Shell, wrong: str) -> None:
    with pytest.raises(click.BadParameter, match="seconds"):
        SECONDS.convert(wrong, None, None)
    with pytest.raises(click.UsageError):
        shell.ask("watch", hexed(BOB.address), f"--timeout={wrong}", "--rpc", "http://127.0.0.1:1")


def test_times_in_seconds() -> None:
    given = {"0": 0.0, "0.4": 0.4, "1e3": 1000.0, "31622400": 31_622_400.0}
    assert {text: SECONDS.convert(text, None, None) for text in given} == given


def test_coins_are_not_burnt_unless_that_is_said(shell: Shell) -> None:
    zeros, there = "0x" + "00" * 20, ("--rpc", "http://127.0.0.1:1", "--home", str(shell.home))
    with pytest.raises(click.UsageError, match=r"are lost.*--burn"):
        shell.ask("send", zeros, "1", *there)
    with pytest.raises(click.UsageError, match="only for the zero address"):
        shell.ask("send", hexed(BOB.address), "1", "--burn", *there)
    shell.ask("new", "x", *shell.file)
    with pytest.raises(GatewayUnreachable):
        shell.ask("send", zeros, "1", "--burn", *shell.file, *there)


@pytest.mark.parametrize("to", ["", "nobody", "0x12", "0X" + "11" * 20, "0x" + "11" * 21])
def test_who_is_nobody_is_paid_nothing(shell: Shell, to: str) -> None:
    shell.ask("new", "x", *shell.file)
    with pytest.raises((click.UsageError, DekubeError)) as caught:
        shell.ask("send", to, "1", *shell.file, "--rpc", "http://127.0.0.1:1")
    assert not isinstance(caught.value, GatewayUnreachable)


@pytest.mark.parametrize("what", ["0x" + "ab" * 31, "0X" + "ab" * 33, "0x" + "ab" * 31 + "c", "0x" + "ab" * 33])
def test_what_is_nearly_a_hash_is_refused_as_one(shell: Shell, what: str) -> None:
    for command in ("watch", "tx"):
        with pytest.raises(click.BadParameter, match="hex digits"):
            shell.ask(command, what, "--rpc", "http://127.0.0.1:1")


def test_a_hash_may_have_a_capital_x(shell: Shell) -> None:
    for command in ("watch", "tx"):
        with pytest.raises(GatewayUnreachable):
            shell.ask(command, "0X" + "ab" * 32, "--rpc", "http://127.0.0.1:1")


# Money, against a gateway


async def lines_of(stream: trio.abc.ReceiveStream) -> AsyncIterator[Any]:
    """Yield the documents that a process says, a line each."""
    data = b""
    async for part in stream:
        *whole, data = (data + part).split(b"\n")
        for line in whole:
            yield json.loads(line)


@pytest.mark.slow
async def test_a_payment_that_waits_is_replaced_and_what_it_costs_is_shown(shell: Shell, tmp_path: Path) -> None:
    chain = Node(tmp_path / "db")
    chain.mint()
    secret = shell.home.parent / "secret"
    secret.write_text(ALICE.secret.hex() + "\n")
    secret.chmod(0o600)
    shell.ask("import", "alice", "--secret-file", secret, *shell.file)
    async with served(chain, tmp_path / "s") as backend, gateway(backend, tmp_path / "s") as it:

        async def send(*arguments: object) -> Result:
            command = ("send", hexed(DAVE.address), "1.5", *arguments, "--json", *shell.file, "--rpc", it.url)
            return await trio.to_thread.run_sync(partial(shell.result, *command))

        stuck = transfer(ALICE, 0, BOB.address, 7, fee=FEE)
        await it.call("dekube_sendTransaction", hexed(stuck))
        refused = await send("--nonce", 0, "--max-fee", f"{FEE}wei")
        assert isinstance(refused.exception, DekubeError), refused
        assert refused.exception.code == "replacement_underpriced"
        tried = await send("--nonce", 0, "--max-fee", "1gwei", "--tip", "2gwei")
        assert isinstance(tried.exception, DekubeError)
        assert tried.exception.code == "config_error"
        async with trio.open_nursery() as nursery:

            async def make_blocks() -> None:
                while True:
                    if hexed(stuck) != hexed(chain.pool.take(1)[0].transaction.raw):
                        chain.mint()
                        return
                    await trio.sleep(0.05)

            nursery.start_soon(make_blocks)
            done = await send("--nonce", 0, "--max-fee", "2.5gwei")
        assert done.exception is None
        assert json.loads(done.stdout)["succeeded"] is True
        assert load_account(chain.store, DAVE.address).balance == 15 * COIN // 10
        assert load_account(chain.store, ALICE.address).nonce == 1
        for shown in (
            format_address(DAVE.address),
            "rpc test (7)",
            "1.5 DKB",
            "at most 0.0000525 DKB",
            "2.5 gwei each",
        ):
            assert shown in done.stderr, done.stderr


@pytest.mark.slow
async def test_a_payment_that_comes_after_others_says_so_and_is_not_lost(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc.client.api, "WAIT_MS", 100)
    monkeypatch.setattr(rpc.client.api.wait_for, "__kwdefaults__", {"timeout_s": 0.1})
    chain = Node(tmp_path / "db")
    chain.mint()
    shell.ask("import", "alice", "--secret-file", "-", *shell.file, stdin=ALICE.secret.hex() + "\n")
    shell.ask("import", "dave", "--secret-file", "-", *shell.file, stdin=DAVE.secret.hex() + "\n")
    async with served(chain, tmp_path / "s") as backend, gateway(backend, tmp_path / "s") as it:

        async def run(*arguments: object) -> Result:
            return await trio.to_thread.run_sync(partial(shell.result, *arguments, "--rpc", it.url))

        async def send(*arguments: object) -> Result:
            return await run("send", "dave", "0.2", *arguments, "--json", *shell.file, "--key", "alice")

        for nonce, behind in ((9, "nonces 0 to 8"), (1, "nonce 0")):
            late = await send("--nonce", nonce)
            assert isinstance(late.exception, DekubeError), late
            assert late.exception.code == "not_final"
            [waiting] = [item.transaction for item in chain.pool.of_sender(ALICE.address)
                         if item.transaction.nonce == nonce]  # fmt: skip
            assert hexed(waiting.hash) in str(late.exception)
            assert str(late.exception).endswith(f": it waits for {behind} of {format_address(ALICE.address)}")
            assert f"{nonce}, which waits for {behind}\n" in re.sub(" +\n", "\n", late.stderr)
            assert f"Sent: {hexed(waiting.hash)}\n" in late.stderr
            assert f"{format_address(DAVE.address)} (dave)" in late.stderr
            assert late.stdout == ""
        # Nothing is before it, and no block comes.
        first = await send()
        assert isinstance(first.exception, DekubeError)
        assert first.exception.code == "not_final"
        assert "waits for" not in first.stderr + str(first.exception)

        [next_] = [item.transaction for item in chain.pool.of_sender(ALICE.address) if item.transaction.nonce == 0]
        seen = await run("tx", hexed(next_.hash))
        words = [line.split(None, 1) for line in seen.stdout.splitlines()]
        fields = {word[0]: word[1].strip() for word in words if len(word) == 2}
        assert (fields["to"], fields["amount"]) == (format_address(DAVE.address), "0.2 DKB")
        assert fields["height"] == "waits for a block"
        assert fields["max_fee_per_gas"] == show_gwei(next_.max_fee_per_gas)
        assert fields["max_priority_fee_per_gas"] == "0 gwei"
        assert "{" not in seen.stdout and "payload" not in fields
        chain.mint()
        final = await run("tx", "0X" + next_.hash.hex())
        assert f"\nheight  {chain.store.tip.height}" in re.sub(" +", "  ", final.stdout)
        assert "{" not in final.stdout
        as_json = json.loads((await run("tx", hexed(next_.hash), "--json")).stdout)
        assert as_json["transaction"]["block"]["height"] == chain.store.tip.height
        assert as_json["transaction"]["payload"] == [hexed(DAVE.address), str(COIN // 5)]
        unknown = await run("watch", "0X" + "ab" * 32, "--timeout", "0.4")
        assert isinstance(unknown.exception, DekubeError)
        assert (unknown.exception.code, str(unknown.exception)) == ("not_final", "not final in 0.4 s")


@pytest.mark.parametrize(
    "wrong", ["1", "1.5", "0.5wei", "1.0000000001gwei", "-1wei", "gwei", "1 DKB", "\u0661wei", ""]
)
def test_a_fee_has_a_unit(wrong: str) -> None:
    with pytest.raises(click.BadParameter):
        FEE_TYPE.convert(wrong, None, None)


def test_fees_in_their_units() -> None:
    given = {"1wei": 1, "2.5gwei": 2_500_000_000, "0.000000001gwei": 1, "3 gwei": 3 * 10**9}
    assert {text: FEE_TYPE.convert(text, None, None) for text in given} == given


def test_typed_data_is_shown_before_it_is_signed(shell: Shell, tmp_path: Path) -> None:
    shell.ask("import", "junk", "--secret-file", "-", *shell.file, stdin=SECRET + "\n")
    file = tmp_path / "mail.json"
    file.write_text(json.dumps(MAIL).replace("Hello, Bob!", "Hello, \\u001b[31mBob!"))
    done = shell.result("sign", "--typed", file, "--json", *shell.file)
    assert done.exception is None, done
    assert json.loads(done.stdout)["address"] == FIRST
    assert '"primaryType": "Mail"' in done.stderr and '"verifyingContract"' in done.stderr
    assert "\\u001b[31mBob!" in done.stderr and "\x1b" not in done.stderr


@pytest.mark.slow
async def test_money_is_sent_contracts_are_called_and_accounts_are_followed(shell: Shell, tmp_path: Path) -> None:
    chain = Node(tmp_path / "db", epoch_blocks=4)
    chain.mint()
    secret = shell.home.parent / "secret"
    secret.write_text(ALICE.secret.hex() + "\n")
    secret.chmod(0o600)
    shell.ask("import", "alice", "--secret-file", secret, *shell.file)

    async def make_blocks() -> None:
        while True:
            await trio.sleep(0.1)
            chain.mint()

    async with (
        served(chain, tmp_path / "s") as backend,
        gateway(backend, tmp_path / "s") as it,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(make_blocks)
        target = ("--rpc", it.url)

        async def ask(*arguments: object) -> Any:
            return await trio.to_thread.run_sync(partial(shell.ask, *arguments, *target))

        async def refused(*arguments: object) -> str:
            with pytest.raises(DekubeError) as caught:
                await ask(*arguments)
            return caught.value.code

        before = await ask("balance")
        command = [sys.executable, "-m", "node", "wallet", "watch", "alice", "--json", *target]
        watching = await trio.lowlevel.open_process([*command, "--home", str(shell.home)], stdout=subprocess.PIPE)
        assert watching.stdout is not None
        lines = lines_of(watching.stdout)
        assert (await anext(lines))["balance"] == before["balance"]
        receipt = await ask("send", hexed(DAVE.address), "1.5", *shell.file)
        after = await ask("balance", hexed(ALICE.address))
        second = await ask("send", hexed(DAVE.address), "5wei", *shell.file)
        assert int(before["balance"]) - int(after["balance"]) == 15 * COIN // 10 + int(receipt["fee"])
        told: list[str] = []
        changes = 0
        while len(told) < 2:
            line = await anext(lines)
            changes += int(line["change"])
            told += [found["hash"] for found in line["transactions"]]
        assert told == [receipt["transaction_hash"], second["transaction_hash"]]
        assert changes == -(15 * COIN // 10 + 5 + int(receipt["fee"]) + int(second["fee"]))
        watching.kill()
        await watching.wait()

        shown = await ask("tx", receipt["transaction_hash"])
        assert shown["receipt"] == receipt
        final = await ask("watch", receipt["transaction_hash"])
        assert (final["state"], final["receipt"]) == ("final", receipt)
        assert await refused("watch", "0x" + "ab" * 32, "--timeout", "0.5") == "not_final"
        assert (
            await trio.to_thread.run_sync(partial(shell.result, "tx", "0x" + "ab" * 32, *target))
        ).return_value == 1
        assert await refused("send", hexed(BOB.address), "99999999", *shell.file) == "insufficient_funds"

        assert int((await ask("call", "staking", "minimumStake"))["amount"]) == chain.runtime.chain.stake_min
        stake = await ask("call", "staking", "stakeOf", hexed(ALICE.address))
        assert stake == {"amount": "0", "voteKey": "0x" + "00" * 32, "vrfKey": "0x" + "00" * 32}
        assert (await ask("call", "registry", "isRegistered", hexed(ALICE.address))) == {"registered": False}
        assert len(await ask("call")) > len(await ask("call", "staking")) >= 6
        assert await refused("call", "staking", "unstake", "5", *shell.file) == "stake_insufficient"
        for wrong in (
            ("nothing", "x"),
            ("staking", "x"),
            ("staking", "unstake"),
            ("staking", "stakeOf", "nobody"),
        ):
            assert await refused("call", *wrong, *shell.file) == "config_error"
        assert await refused("call", "staking", "stakeOf", "0x12") == "decode_error"
        assert await ask("call", "staking", "stakeOf", "alice") == stake, "by the name of an account"
        shown = await trio.to_thread.run_sync(partial(shell.result, "call", "staking", "minimumStake", *target))
        assert f"{chain.runtime.chain.stake_min // COIN} DKB ({chain.runtime.chain.stake_min})" in shown.stdout
        assert await refused("call", "staking", "unstake", "5DKB", *shell.file) == "stake_insufficient"

        # The chain's genesis is years old: the light client begins with it only where it is told so.
        (tmp_path / "genesis.json").write_text(genesis_to_json(chain.genesis))
        proven = ("balance", "alice", "--verify", "--genesis", tmp_path / "genesis.json")
        assert await refused(*proven) == "trust_expired"
        command = ["light", "init", "--genesis", str(tmp_path / "genesis.json"), "--accept-old", *target]
        begun = partial(CliRunner().invoke, group, [*command, "--home", str(shell.home / "light")])
        assert (await trio.to_thread.run_sync(begun)).exit_code == 0
        account = await ask("balance", "alice", "--verify")
        assert account["balance"] == (await ask("balance", "alice"))["balance"]
        assert account["endpoint"] == it.url
        nursery.cancel_scope.cancel()


def test_a_gateway_that_is_gone_is_told(shell: Shell) -> None:
    with pytest.raises(GatewayUnreachable):
        shell.ask("balance", hexed(BOB.address), "--rpc", "http://127.0.0.1:1")
