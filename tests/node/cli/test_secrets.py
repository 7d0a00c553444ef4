"""Where a passphrase comes from: the terminal, a file, or a line of standard input, and nothing is said of it."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from node.cli.options import LINE_LIMIT_BYTES
from node.home.create import create_home
from node.home.keys import load_key
from node.home.options import NodeOptions
from node.home.paths import Home
from node.relay.home import RelayHomeOptions
from state.primitives.keys import SecretKey
from tests.node.home.test_create import GENESIS

PASSPHRASE = "corréct horse"
PROGRAM = (sys.executable, "-m", "node")


def make_home(root: Path, *, is_relay: bool = False) -> Home:
    return create_home(
        root, genesis=GENESIS, options=RelayHomeOptions() if is_relay else NodeOptions(),
        account=SecretKey(b"a" * 32), vote=None if is_relay else SecretKey(b"v" * 32), passphrase=PASSPHRASE,
        scrypt_n=2, keep_passphrase=False,
    )  # fmt: skip


def run(*arguments: object, said: str = "", terminal: int | None = None) -> subprocess.CompletedProcess[str]:
    """Run the program with ``said`` on its standard input; without a ``terminal`` it has none."""
    own = None if terminal is None else lambda: _take(terminal)
    return subprocess.run(
        [*PROGRAM, *map(str, arguments)], input=said, capture_output=True, text=True, timeout=60, check=False,
        start_new_session=True, preexec_fn=own,
    )  # fmt: skip


def _take(terminal: int) -> None:
    os.close(os.open(os.ttyname(terminal), os.O_RDWR))  # the first that the leader of a session opens is its own


def _answer(keyboard: int) -> None:
    """Type the passphrase once something is asked."""
    os.read(keyboard, 1)
    os.write(keyboard, f"{PASSPHRASE}\n".encode())


@pytest.mark.slow
def test_a_piped_passphrase_is_one_line_and_nothing_is_said_about_it(tmp_path: Path) -> None:
    home = make_home(tmp_path)
    for line in (f"{PASSPHRASE}\n", f"{PASSPHRASE}\r\nmore\n", PASSPHRASE):
        done = run("node", "guard", "show", "--home", home.root, "--json", said=line)
        assert (done.returncode, done.stderr) == (0, ""), done
    wrong = run("node", "guard", "show", "--home", home.root, said="wrong\n")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (1, 1)
    assert wrong.stderr.endswith("the passphrase does not open this file [keystore_error]\n")
    none = run("node", "guard", "show", "--home", home.root)
    assert (none.returncode, none.stderr.count("\n")) == (1, 1)
    assert "--passphrase-file" in none.stderr and "[keystore_error]" in none.stderr


@pytest.mark.slow
def test_a_new_passphrase_is_piped_once(tmp_path: Path) -> None:
    file = tmp_path / "genesis.json"
    make_home(tmp_path / "other").genesis.rename(file)
    done = run("init", "--home", tmp_path / "home", "--genesis", file, "--json", said=f"{PASSPHRASE}\n")
    assert (done.returncode, done.stderr) == (0, "")
    load_key(tmp_path / "home/keys/account.json", PASSPHRASE)


@pytest.mark.slow
def test_a_pipe_is_read_also_where_there_is_a_terminal_unless_it_is_something_else(tmp_path: Path) -> None:
    home = make_home(tmp_path)
    keyboard, terminal = pty.openpty()
    try:
        piped = run("wallet", "sign", "m", "--home", home.root, "--json", said=PASSPHRASE, terminal=terminal)
        assert (piped.returncode, piped.stderr) == (0, ""), piped
        message = ("wallet", "sign", "--file", "-", "--home", home.root, "--json")
        nobody = run(*message, said="m")
        assert (nobody.returncode, nobody.stderr.count("\n")) == (1, 1), (
            "the message is not taken for a passphrase"
        )
        assert "[keystore_error]" in nobody.stderr
        person = threading.Thread(target=_answer, args=(keyboard,), daemon=True)
        person.start()
        asked = run(*message, said="m", terminal=terminal)
        assert asked.returncode == 0, asked
        assert asked.stdout == piped.stdout
    finally:
        os.close(keyboard)
        os.close(terminal)


@pytest.mark.parametrize("is_typed", [True, False])
def test_a_secret_in_another_encoding_is_refused_in_a_line_that_does_not_repeat_it(
    tmp_path: Path, is_typed: bool
) -> None:
    home = make_home(tmp_path)
    secret = PASSPHRASE.encode("latin-1") + b"\n"
    keyboard, terminal = pty.openpty()
    try:
        if is_typed:
            threading.Thread(
                target=lambda: (os.read(keyboard, 1), os.write(keyboard, secret)), daemon=True
            ).start()
        done = subprocess.run(
            [*PROGRAM, "wallet", "sign", "m", "--home", str(home.root), "--json"],
            stdin=terminal if is_typed else None, input=None if is_typed else secret, capture_output=True,
            timeout=60, check=False, start_new_session=True,
            preexec_fn=(lambda: _take(terminal)) if is_typed else None,
        )  # fmt: skip
    finally:
        os.close(keyboard)
        os.close(terminal)
    assert (done.returncode, done.stdout) == (1, b"")
    last = done.stderr.splitlines()[-1]
    assert b"not UTF-8" in last and b"[keystore_error]" in last
    assert b"Traceback" not in done.stderr and b"corr" not in done.stderr


def test_a_file_that_is_named_opens_the_key_of_a_home(tmp_path: Path) -> None:
    home = make_home(tmp_path)
    file = tmp_path / "mine"
    file.write_text(PASSPHRASE + "\n")
    file.chmod(0o600)
    done = run("wallet", "sign", "m", "--home", home.root, "--passphrase-file", file, "--json")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", [("tx", "stake", "0"), ("tx", "rotate-keys")])
def test_a_validators_transactions_ask_once_where_the_passphrase_is_not_kept(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    home = make_home(tmp_path)
    done = run(*command, "--home", home.root, "--rpc", "http://127.0.0.1:1", said=f"{PASSPHRASE}\n")
    assert done.stderr.endswith("[gateway_unreachable]\n"), "the keys are open, the gateway is asked"


@pytest.mark.slow
def test_a_relay_asks_where_the_passphrase_is_not_kept(tmp_path: Path) -> None:
    home = make_home(tmp_path, is_relay=True)
    home.config.write_text(
        'kind = "relay"\nlisten = "127.0.0.1:1"\nmetrics = ""\n'
    )  # nobody but root may have that port
    refused = run("relay", "run", "--home", home.root, said="wrong\n")
    assert "the passphrase does not open this file [keystore_error]" in refused.stderr
    command = ("relay", "register", "--home", home.root, "--rpc", "http://127.0.0.1:1", "--at", "h:1")
    done = run(*command, said=f"{PASSPHRASE}\n")
    assert done.stderr.endswith("[gateway_unreachable]\n"), done.stderr


def test_a_line_without_an_end_is_not_read_for_ever(tmp_path: Path) -> None:
    home = make_home(tmp_path)
    done = run("node", "guard", "show", "--home", home.root, said="x" * (3 * LINE_LIMIT_BYTES))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
