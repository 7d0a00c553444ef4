"""``dekube relay``: carry circuits between nodes that accept no connection."""

from __future__ import annotations

import secrets
from pathlib import Path

import click

from node.cli.options import home_option
from node.cli.output import json_option, show_fields
from node.home import Home, load_genesis
from node.keyring import random_key
from state.primitives.address import format_address

__all__ = ["relay"]


@click.group()
def relay() -> None:
    """Run a relay: it carries encrypted circuits between addresses and knows nothing of their content."""


@relay.command()
@home_option
@click.option("--genesis", required=True, type=click.Path(path_type=Path), help="The genesis file of the network.")
@json_option
def init(home: Home, genesis: Path, as_json: bool) -> None:
    """Make a relay's home: a key (opened by a random passphrase kept beside it, mode 0600) and its options."""
    from node.relay import RelayHomeOptions, create_relay_home

    account = random_key()
    create_relay_home(
        home.root, genesis=load_genesis(genesis), account=account, passphrase=secrets.token_hex(16),
        options=RelayHomeOptions(),
    )  # fmt: skip
    show_fields({"home": str(home.root), "address": format_address(account.address)}, as_json=as_json)


@relay.command()
@home_option
def run(home: Home) -> None:
    """Run the relay in --home until SIGTERM or Ctrl-C."""
    from node.relay import run_relay_home

    run_relay_home(home)
