"""Every option and argument of every command, given what it cannot be: one error line, a status, nothing written.

The table is the tree of commands itself, so a new command is covered as it is added.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

import click
import pytest

from node import cli
from node.cli import main
from node.cli.arguments import PathName, WholeNumber
from node.home import files, load
from node.home.create import create_founder, create_home
from state.primitives.genesis import genesis_to_json
from tests.node.cli.test_mistakes import plan_genesis
from tests.node.cli.test_option_conflicts import LEAVES

HASH = "0x" + "ab" * 32
LONG_DIGITS = "9" * 50
NO_NUMBERS = ("", "nan", "inf", "1e5", "0x10", "-1", LONG_DIGITS, "\u0661", "1_0", " 5", "\x1b[2J", "a\nb")
NO_TEXTS: dict[str, tuple[str, ...]] = {
    "amount": ("", "-1", "nan", "1e400", "9" * 5000, "\u0661", "\x1b[2J"),
    "fee": ("", "-1gwei", "nan", "9" * 5000, "5", "\x1b[2J"),
    "seconds": ("", "-1", "nan", "inf", "9" * 400, "\x1b[2J"),
    "task": ("", "0x12", HASH + "00", "0x" + "zz" * 32, "\x1b[2J"),
    "address": ("", "0x12", "0x" + "ab" * 21, "0x" + "zz" * 20, "\x1b[2J"),
    "choice": ("", "nonsense", "\x1b[2J"),
}
"""Texts that are none of what a type reads, by its name."""
NO_GATEWAYS = ("", "http://[::1", "http://a:b@c", "127.0.0.1:99999", "ftp://x", "x" * 5000, "\x1b[2J", "a\nb")
NO_PLACES = ("x", "127.0.0.1:99999", "127.0.0.1:-1", "[::1", "x" * 5000, "\x1b[2J", "a\nb")
NO_KEYS = ("0x12", "0x" + "zz" * 48, "nonsense", "x" * 5000, "\x1b[2J")
NO_SETTINGS = ("", "=", "a=", "=1", "a=b", "a=-1", "a=" + LONG_DIGITS, "x" * 5000, "\x1b[2J", "a\nb")
BY_NAME = {
    "--rpc": NO_GATEWAYS, "--from": NO_GATEWAYS,
    "--listen": NO_PLACES, "--bootstrap": NO_PLACES, "--relay": NO_PLACES, "--advertise": NO_PLACES,
    "--vote-key": NO_KEYS, "--client": NO_KEYS, "--checkpoint": NO_KEYS,
    "--parameter": NO_SETTINGS, "--set": NO_SETTINGS, "--allocation": NO_SETTINGS,
    "--start": ("", "soon", "2027-01-31", "9" * 5000, "\x1b[2J"),
    "--without": ("", "nobody", "x" * 5000, "\x1b[2J", "a\nb"),
    "--dir": ("", "x" * 110),
}  # fmt: skip
"""What options of plain text cannot be, by their names."""
READS = {"--genesis", "--draft", "draft_file", "founder_files", "--keystore", "--passphrase-file", "--database"}
"""Paths that are read; the argument ``file`` is read by the commands of READ_FILES."""
READ_FILES = {("node", "guard", "import"), ("signer", "import"), ("genesis", "show"), ("blob", "put")}
UNREADABLE = (
    "none", "none/x", "file/x", "folder", "empty", "binary", "sparse", "pipe", "deep", "digits", "loop",
    "/dev/zero", "/dev/full", "x" * 300, "\x1b[31mred",
)  # fmt: skip
NO_FILES = ("none", "none/x", "file/x", "folder", "pipe", "loop", "/dev/zero", "/dev/full")
LIBERAL = {
    ("testnet", "layout"): "--dir",  # no process of this machine has its socket there
    ("testnet", "wan", "network"): "--dir",
    ("relay", "settle"): "--rpc",  # a relay without receipts asks no gateway
}
"""Options that take more in one command than elsewhere; an empty folder name is refused there as well."""
MAKES_A_HOME = {("init",), ("relay", "init"), ("signer", "init"), ("genesis", "found")}
SAMPLES = {"--genesis": "genesis.json", "--draft": "draft.json", "draft_file": "draft.json", "--from": "http://x"}
BY_TYPE = {"amount": "1.5", "fee": "1gwei", "task": HASH, "blob": HASH, "hash": HASH, "address": "0x" + "ab" * 20,
           "integer range": "5", "seconds": "1", "path": "file"}  # fmt: skip


@pytest.fixture(autouse=True)
def recursion_of_a_node() -> Iterator[None]:
    """Set the recursion limit of a node: a library of the tests (py_ecc, of web3) raises that of the process."""
    raised = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000)
    yield
    sys.setrecursionlimit(raised)


@pytest.fixture(scope="module")
def monkeypatch_all() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, monkeypatch_all: pytest.MonkeyPatch) -> Path:
    """Enter a folder with a home of each kind, and whatever may stand in place of a file."""
    root, monkeypatch = tmp_path_factory.mktemp("world"), monkeypatch_all
    monkeypatch.chdir(root)
    monkeypatch.setattr(files, "WRITER_S", 0.0)
    # What is endless is read up to a limit, 1,400 times; and 200 lines look for commands that packages add.
    monkeypatch.setattr(load, "GENESIS_LIMIT_BYTES", 1 << 20)
    monkeypatch.setattr(cli, "_entry_points", cache(cli._entry_points))
    for command in ("init", "relay", "signer"):
        monkeypatch.setattr(f"node.cli.{command}.create_home", partial(create_home, scrypt_n=16))
    monkeypatch.setattr("node.cli.genesis.create_founder", partial(create_founder, scrypt_n=16))
    Path("genesis.json").write_text(genesis_to_json(plan_genesis()))
    ended(monkeypatch, ["genesis", "draft", "--name", "x", "--chain-id", "7", "--out", "draft.json"])
    for kind, words in (("node", ["init"]), ("relay", ["relay", "init"]), ("signer", ["signer", "init"])):
        line = [*words, "--home", kind, "--genesis", "genesis.json"]
        assert ended(monkeypatch, line + ["--unattended"] * (kind != "relay")) == 0
    Path("folder").mkdir()
    Path("loop").symlink_to("loop")
    os.mkfifo("pipe", 0o600)
    contents = {"file": b"data", "empty": b"", "binary": b"\xff\xfe\x00\xd8", "sparse": b"", "digits": b"9" * 6000,
                "deep": b"[" * 60_000}  # fmt: skip
    for name, data in contents.items():
        Path(name).write_bytes(data)
        Path(name).chmod(0o600)
    os.truncate("sparse", 1 << 30)
    return root


def ended(monkeypatch: pytest.MonkeyPatch, line: list[str]) -> object:
    """Run the command line as the program does; return its exit status."""
    monkeypatch.setattr(sys, "argv", ["dekube", *line])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code


def home_of(path: tuple[str, ...]) -> str:
    if path in MAKES_A_HOME:
        return "new"
    return path[0] if path[0] in ("relay", "signer") else "node"


def hostile(path: tuple[str, ...], parameter: click.Parameter) -> tuple[str, ...]:
    """Return what a parameter cannot be."""
    name, kind = parameter.opts[0], parameter.type
    if name in BY_NAME:
        return BY_NAME[name][: (name == "--dir") if LIBERAL.get(path) == name else None]
    if name == "--home":
        return ("", "~nobody-of-this-name/x", "file", "file/x", "loop", "x" * 300, "pipe")
    if isinstance(kind, PathName):
        is_read = name in READS or (name == "file" and path in READ_FILES)
        # A blob may be any file; a node's --passphrase-file is read once a gateway was asked.
        found = tuple(one for one in UNREADABLE if path != ("blob", "put") or one in NO_FILES)
        return ("", *(found if is_read and name != "--passphrase-file" else ()))
    if isinstance(kind, WholeNumber):
        beyond = [str(int(kind.min or 0) - 1)] * (kind.min is not None) + [str(int(kind.max or 0) + 1)] * (
            kind.max is not None
        )
        return tuple(one for one in (*NO_NUMBERS, *beyond) if one != "-1" or (kind.min or 0) >= 0)
    return NO_TEXTS.get(kind.name, ())


def line_with(path: tuple[str, ...], chosen: click.Parameter, value: str) -> list[str]:
    """Return a command line on which all that is required is right, but ``chosen`` is ``value``."""
    line, arguments = list(path), []
    for one in LEAVES[path].params:
        name = one.opts[0]
        if one is chosen:
            given = value
        elif name == "--home":
            given = home_of(path)
        elif name == "--rpc":
            given = "http://127.0.0.1:1"
        elif one.required:
            choices = getattr(one.type, "choices", ("text",))
            given = SAMPLES.get(name) or BY_TYPE.get(one.type.name, str(choices[0]))
        elif name in ("--yes", "--unattended"):
            line.append(name)
            continue
        else:
            continue
        if isinstance(one, click.Argument):
            arguments.append(given)
        else:
            line.append(f"{name}={given}")
    return [*line, "--", *arguments] if arguments else line


def tree(root: Path) -> Iterator[tuple[str, int, int]]:
    """Return each file with what would tell of a change; locks and what a key directory keeps of itself apart."""
    for folder, _, names in os.walk(root):
        for name in names:
            if name not in ("lock", "votes.lock", "node-secret"):
                state = os.lstat(os.path.join(folder, name))
                yield os.path.join(folder, name), state.st_size, state.st_mode


@pytest.mark.slow
@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_what_an_option_cannot_be_is_one_error_line_and_leaves_no_file(
    path: tuple[str, ...], world: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    before = sorted(tree(world))
    capfd.readouterr()
    for parameter in LEAVES[path].params:
        if isinstance(parameter, click.Option) and parameter.is_flag:
            continue
        for value in hostile(path, parameter):
            line = line_with(path, parameter, value)
            status, said = ended(monkeypatch, line), capfd.readouterr().err
            where = (line, said)
            assert status in (1, 2, 78), where
            assert "Traceback" not in said and "\x1b" not in said, where
            assert len(said) < 2_500, where
            errors = re.findall(r"^(?:Error: .+|dekube: .+ \[[a-z_]+\])$", said, re.M)
            assert len(errors) == 1, where
        assert sorted(tree(world)) == before, (path, parameter.name)


def test_no_command_reads_numbers_and_paths_by_looser_types() -> None:
    loose = [
        (path, parameter.opts[0])
        for path, command in LEAVES.items()
        for parameter in command.params
        if (isinstance(parameter.type, click.types.IntParamType) and not isinstance(parameter.type, WholeNumber))
        or (isinstance(parameter.type, click.Path) and not isinstance(parameter.type, PathName))
        or isinstance(parameter.type, click.types.FloatParamType | click.File)
    ]
    assert loose == []


@pytest.mark.parametrize("part", ["config.toml", "genesis.json", "keys/account.json", "keys/passphrase"])
@pytest.mark.parametrize("what", ["pipe", "folder", "loop", "binary", "sparse", "/dev/zero"])
def test_a_home_with_something_else_in_place_of_a_file_is_one_error_line(
    part: str, what: str, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for kind, line in (
        ("node", ["node", "config"]),
        ("signer", ["signer", "add-key"]),
        ("node", ["tx", "unstake"]),
    ):
        if part == "keys/account.json" and kind == "signer":
            continue  # it adds a vote key, and opens no account
        if what == "loop" and (part == "keys/passphrase" or (part, line[0]) == ("genesis.json", "tx")):
            continue  # a link that leads nowhere is no file: a person is asked, or the gateway
        home = tmp_path / line[-1]
        shutil.copytree(world / kind, home)
        (home / part).unlink()
        (home / part).symlink_to(Path(what).absolute())
        before = sorted(tree(home))
        capfd.readouterr()
        amount = ["1"] if line[0] == "tx" else []
        status = ended(monkeypatch, [*line, *amount, "--home", str(home)])
        said = capfd.readouterr().err
        assert status in (1, 78) and re.fullmatch(r"dekube: .*\[(config|keystore)_error\]\n", said), (line, said)
        assert sorted(tree(home)) == before
