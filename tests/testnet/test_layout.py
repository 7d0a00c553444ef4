"""A network that cannot be leaves nothing behind: the next try with right numbers finds a free folder."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from node.cli import group, main
from node.home.load import load_genesis, load_node_options
from node.home.paths import Home
from node.process.control import ControlRefused
from state.primitives.errors import ConfigError
from testnet.cluster import PLAN_FILE, TestnetError, lay_out, note_up

RIGHT: dict[str, Any] = {"validators": 1, "workers": 0, "seed": 1, "base_port": 28_900}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"validators": 0}, "1 to 100 validators"),
        ({"validators": 101}, "1 to 100 validators"),
        ({"workers": -1}, "0 to 100 workers"),
        ({"founders": 2}, "1 to 1 of the validators are founders"),
        ({"base_port": 65_535}, "leaves no room"),
        ({"parameters": {"chain.epoch_block": 5}}, "unknown parameter chain.epoch_block"),
        ({"parameters": {"nothing.at_all": 5}}, "nothing.at_all"),
    ],
)
def test_impossible_numbers_are_refused_and_the_folder_stays_free(
    wrong: dict[str, Any], said: str, tmp_path: Path
) -> None:
    root = tmp_path / "net"
    with pytest.raises(ConfigError, match=said):
        lay_out(root, **(RIGHT | wrong))
    assert not (root / PLAN_FILE).exists()
    plan = lay_out(root, **RIGHT)
    assert (root / PLAN_FILE).exists()
    assert lay_out(root, **RIGHT).genesis == plan.genesis


def test_a_port_that_is_taken_leaves_the_folder_to_a_network_with_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("testnet.cluster.PORTS_PATIENCE_S", 0.0)
    root = tmp_path / "net"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = ["testnet", "up", "--dir", root, "--base-port", port - 5, "--validators", 1, "--workers", 0]
        done = CliRunner().invoke(group, [*map(str, command)], standalone_mode=False)
    assert isinstance(done.exception, TestnetError)
    assert "choose --base-port" in str(done.exception)
    assert not (root / PLAN_FILE).exists()


def test_another_network_in_the_folder_is_told_by_its_options(tmp_path: Path) -> None:
    lay_out(tmp_path, **RIGHT)
    note_up(tmp_path)
    with pytest.raises(
        TestnetError, match=r"this folder has a test network with --base-port 28900. Give the same options"
    ):
        lay_out(tmp_path, **(RIGHT | {"base_port": 29_000}))
    with pytest.raises(TestnetError, match=r"with --validators 1, --founders 1, --base-port 28900\."):
        lay_out(tmp_path, **(RIGHT | {"base_port": 29_000, "validators": 2}))


@pytest.mark.parametrize("number", ["²", "-1", "x", ""])
def test_a_parameter_is_a_number(number: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(
        group, ["testnet", "up", "--dir", str(tmp_path / "net"), "--parameter", f"chain.epoch_blocks={number}"],
        standalone_mode=False,
    )  # fmt: skip
    assert isinstance(done.exception, click.UsageError)
    assert "not NAME=NUMBER" in str(done.exception)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--validators", "101"], "101 is not in the range 1<=x<=100"),
        (["--workers", "-1"], "-1 is not in the range 0<=x<=100"),
        (["--base-port", "80"], "80 is not in the range"),
        (["--base-port", "65535"], "leaves no room"),
        (["--founders", "5"], "1 to 4 of the validators are founders"),
        (["--without", "validator-9"], "no member 'validator-9'; members: relay-0, validator-0"),
        (["--parameter", "chain.epoch_blocks=" + "9" * 5_000], "number too large"),
        (["--parameter", "chain.epoch_blocks=0"], "chain.epoch_blocks is 0, but must be from 1"),
        (["--dir", ""], "the path is empty"),
    ],
)
def test_what_makes_no_network_is_named_whatever_the_ports_and_nothing_is_left(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ports_in_use(*_: object, **__: object) -> None:
        raise TestnetError("port 26600 of 127.0.0.1 cannot be used")

    if "chain.epoch_blocks=0" not in arguments:  # what the genesis refuses comes after the ports
        monkeypatch.setattr("testnet.cli.check_new_ports", ports_in_use)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(group, ["testnet", "up", *arguments], standalone_mode=False)
    assert done.exception is not None and said in str(done.exception)
    assert not list(tmp_path.rglob("testnet.json"))


def test_a_network_that_never_came_up_gives_way_to_another_one_and_keeps_its_logs(tmp_path: Path) -> None:
    first = lay_out(tmp_path, **RIGHT)
    (tmp_path / "validator-0" / "log").write_text("what went wrong")
    assert lay_out(tmp_path, **RIGHT).genesis == first.genesis, "the same one is taken up again"
    other = RIGHT | {"base_port": 29_000, "seed": 2, "parameters": {"chain.epoch_blocks": 40}}
    second = lay_out(tmp_path, **other)
    home = Home(tmp_path / "validator-0")
    assert (load_genesis(home.genesis), load_node_options(home).rpc.listen) == (second.genesis, "127.0.0.1:29004")
    assert (home.root / "log").read_text() == "what went wrong"
    assert lay_out(tmp_path, **other).genesis == second.genesis

    note_up(tmp_path)
    assert lay_out(tmp_path, **other).genesis == second.genesis
    assert lay_out(tmp_path, **(other | {"parameters": None})).genesis == second.genesis
    with pytest.raises(TestnetError, match="this folder has a test network with"):
        lay_out(tmp_path, **RIGHT)
    with pytest.raises(TestnetError, match=r"has the chain parameters .*40.*, which cannot be changed"):
        lay_out(tmp_path, **(other | {"parameters": {"chain.epoch_blocks": 50}}))


def test_a_folder_with_something_of_others_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    done = CliRunner().invoke(group, ["testnet", "up", "--dir", str(tmp_path)], standalone_mode=False)
    assert isinstance(done.exception, TestnetError)
    assert f"{tmp_path}: the folder is not empty (thesis.txt)" in str(done.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_member_that_does_not_start_again_is_told_with_the_lines_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise ControlRefused("testnet_error", "validator-0 ended before it was ready:\nfirst\nsecond")

    monkeypatch.setattr("testnet.cluster.ask_node", refused)
    monkeypatch.setattr(sys, "argv", ["dekube", "testnet", "restart", "validator-0", "--dir", str(tmp_path)])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().err == (
        "dekube: validator-0 ended before it was ready:\nfirst\nsecond [testnet_error]\n"
    )
