"""A network that cannot be leaves nothing behind: the next try with right numbers finds a free folder."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from node.cli import group
from state.primitives.errors import ConfigError
from testnet.cluster import PLAN_FILE, TestnetError, lay_out

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
    with pytest.raises(TestnetError, match=r"another test network lives here, of --base-port 28900: say so too"):
        lay_out(tmp_path, **(RIGHT | {"base_port": 29_000}))
    with pytest.raises(TestnetError, match=r"of --validators 1, --founders 1, --base-port 28900:"):
        lay_out(tmp_path, **(RIGHT | {"base_port": 29_000, "validators": 2}))


@pytest.mark.parametrize("number", ["²", "-1", "x", ""])
def test_a_parameter_is_a_number(number: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(
        group, ["testnet", "up", "--dir", str(tmp_path / "net"), "--parameter", f"chain.epoch_blocks={number}"],
        standalone_mode=False,
    )  # fmt: skip
    assert isinstance(done.exception, ConfigError)
    assert "NAME=NUMBER expected" in str(done.exception)
