"""A network that cannot be leaves nothing behind: the next try with right numbers finds a free folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from node.cli import group
from state.primitives.errors import ConfigError
from testnet.cluster import PLAN_FILE, lay_out

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


@pytest.mark.parametrize("number", ["²", "-1", "x", ""])
def test_a_parameter_is_a_number(number: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(
        group, ["testnet", "up", "--dir", str(tmp_path / "net"), "--parameter", f"chain.epoch_blocks={number}"],
        standalone_mode=False,
    )  # fmt: skip
    assert isinstance(done.exception, ConfigError)
    assert "NAME=NUMBER expected" in str(done.exception)
