"""The kind of a home: read from its options, and named in the error of a command for another kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from node.cli import group
from node.cli.session import Session
from node.home.config import dump_options
from node.home.create import check_no_keys, create_founder, create_home
from node.home.keyring import random_key
from node.home.keys import load_key
from node.home.kind import kind_of
from node.home.load import load_node_options
from node.home.options import KeyOptions, NodeOptions, RpcOptions
from node.home.paths import Home
from node.relay.any_home import gateways_of, keys_of
from node.relay.home import RelayHomeOptions, load_relay_options
from node.signer.home import SignerHomeOptions, load_signer_options
from state.primitives.address import format_address
from state.primitives.errors import ConfigError
from state.primitives.genesis import Genesis, genesis_to_json
from tests.state.primitives.test_objects import FOUNDED

OPTIONS: dict[str, Any] = {
    "node": NodeOptions(), "relay": RelayHomeOptions(), "signer": SignerHomeOptions(),
}  # fmt: skip
COMMANDS = {"node": "dekube node run", "relay": "dekube relay run", "signer": "dekube signer run"}
LOADS: dict[str, Callable[[Home], Any]] = {
    "node": load_node_options,
    "relay": load_relay_options,
    "signer": lambda home: load_signer_options(home.config),
}


def home_of(tmp_path: Path, options: Any) -> Home:
    return create_home(
        tmp_path / "home", genesis=Genesis(1, "x", 1, True, (), (), ()), account=random_key(), vote=None,
        passphrase="p", options=options, scrypt_n=2,
    )  # fmt: skip


@pytest.mark.parametrize("wanted", OPTIONS)
@pytest.mark.parametrize("kind", OPTIONS)
def test_another_home_is_named_with_its_commands(tmp_path: Path, kind: str, wanted: str) -> None:
    home = home_of(tmp_path, OPTIONS[kind])
    assert kind_of(home.config) == kind
    if kind == wanted:
        assert LOADS[wanted](home) == OPTIONS[kind]
        return
    with pytest.raises(ConfigError) as refused:
        LOADS[wanted](home)
    assert str(refused.value).startswith(f"{home.root}: this is the home of a {kind}, not of a {wanted}; ")
    assert f"`{COMMANDS[kind]}`" in str(refused.value)


@pytest.mark.parametrize("kind", OPTIONS)
def test_a_mistake_in_its_own_options_is_told_as_one(tmp_path: Path, kind: str) -> None:
    home = home_of(tmp_path, OPTIONS[kind])
    home.config.write_text("nonsense = 1\n" + home.config.read_text())
    assert kind_of(home.config) == kind
    with pytest.raises(ConfigError, match="unknown option nonsense"):
        LOADS[kind](home)


@pytest.mark.parametrize(
    "text", ["", "[", "nonsense = 1", "\0", "[keys]\n", 'kind = "x"', "kind = []", "kind = 1"]
)
def test_a_kind_that_is_not_written_is_not_guessed(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.toml").write_text(text)
    assert kind_of(tmp_path / "config.toml") == ""
    assert kind_of(tmp_path / "none") == ""


@pytest.mark.parametrize("kind", OPTIONS)
def test_a_missing_or_unknown_kind_is_an_error_that_says_what_to_write(tmp_path: Path, kind: str) -> None:
    home = home_of(tmp_path, OPTIONS[kind])
    own = f'kind = "{kind}"\n'
    assert own in home.config.read_text()
    for there, says in (
        ("", f"the option kind is missing; put {own.strip()} before all tables"),
        ("kind = 7\n", "kind = '7': one of node, relay, signer expected"),
        ("kind = 'nodes'\n", "kind = 'nodes': one of node, relay, signer expected"),
        ("kind = []\n", "one of node, relay, signer expected"),
    ):
        home.config.write_text(dump_options(OPTIONS[kind]).replace(own, there))
        with pytest.raises(ConfigError) as refused:
            LOADS[kind](home)
        assert str(refused.value).startswith(f"{home.config}: ")
        assert says in str(refused.value)


@pytest.mark.parametrize("kind", OPTIONS)
def test_the_account_of_every_home_is_had_by_the_wallet(tmp_path: Path, kind: str) -> None:
    options = replace(OPTIONS[kind], keys=KeyOptions(account="keys/mine.json"))
    home = home_of(tmp_path, options)
    assert keys_of(home).account == "keys/mine.json"
    account = load_key(home.path("keys/mine.json"), "p")
    session = Session(home, (), None, None)
    assert session.address() == session.key().address == account.address
    done = CliRunner().invoke(group, ["wallet", "address", "--home", str(home.root)], standalone_mode=False)
    assert format_address(account.address) in done.output


def test_a_relay_has_the_gateways_that_it_asks_and_a_signer_none(tmp_path: Path) -> None:
    node = home_of(tmp_path / "n", NodeOptions(rpc=RpcOptions(listen="0.0.0.0:7")))
    assert gateways_of(node) == ("http://127.0.0.1:7",)
    relay = home_of(tmp_path / "r", RelayHomeOptions(rpc=("http://a", "http://b")))
    assert gateways_of(relay) == ("http://a", "http://b")
    for name, options in (("relay", RelayHomeOptions()), ("signer", SignerHomeOptions())):
        home = home_of(tmp_path / name, options)
        with pytest.raises(ConfigError, match=f"a {name} has no gateway; name one"):
            gateways_of(home)


def test_the_chain_that_is_signed_for_is_that_of_the_home(tmp_path: Path) -> None:
    home = home_of(tmp_path, NodeOptions())

    def signed_for(chain_id: int | None = None) -> int | None:
        return Session(home, ("h:1",), None, None, chain_id).client().core.options.chain_id

    (tmp_path / "g").write_text(genesis_to_json(FOUNDED))
    (tmp_path / "g").replace(home.genesis)
    assert (signed_for(), signed_for(5)) == (FOUNDED.chain_id, 5)
    home.genesis.unlink()
    assert signed_for() is None


def test_an_account_in_a_broken_home_is_not_taken_from_elsewhere(tmp_path: Path) -> None:
    home = home_of(tmp_path, NodeOptions())
    home.config.write_text(dump_options(NodeOptions()) + "\n[p2p]\nnothing = 1\n")
    with pytest.raises(ConfigError, match=r"unknown option p2p\.nothing"):
        keys_of(home)
    with pytest.raises(ConfigError, match=r"unknown option p2p\.nothing"):
        gateways_of(home)


def test_a_founders_home_says_what_it_waits_for(tmp_path: Path) -> None:
    home = create_founder(
        tmp_path / "home", account=random_key(), vote=random_key(), founder="{}", passphrase="p", scrypt_n=2
    )
    with pytest.raises(ConfigError, match=r"a founder's keys, but no genesis yet. `dekube genesis seal`"):
        load_node_options(home)


@pytest.mark.parametrize("command", ["status", "node drain", "worker jobs", "node config", "db inspect"])
def test_a_command_of_a_node_says_that_a_relay_lives_there(tmp_path: Path, command: str) -> None:
    home = home_of(tmp_path, RelayHomeOptions())
    done = CliRunner().invoke(group, [*command.split(), "--home", str(home.root)], standalone_mode=False)
    assert isinstance(done.exception, ConfigError)
    assert "this is the home of a relay, not of a node" in str(done.exception)


def test_a_command_of_a_signer_says_that_a_node_lives_there(tmp_path: Path) -> None:
    home = home_of(tmp_path, NodeOptions())
    done = CliRunner().invoke(group, ["signer", "status", "--home", str(home.root)], standalone_mode=False)
    assert "this is the home of a node, not of a signer" in str(done.exception)


@pytest.mark.parametrize("kind", OPTIONS)
def test_a_home_that_is_taken_says_by_what(tmp_path: Path, kind: str) -> None:
    home = home_of(tmp_path, OPTIONS[kind])
    with pytest.raises(ConfigError, match=f"already the home of a {kind}; nothing was changed"):
        check_no_keys(home)
