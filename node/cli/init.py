"""``dekube init``: creates a node's home."""

from __future__ import annotations

import secrets
from dataclasses import replace
from pathlib import Path
from typing import Final

import click

from node.chain.founding import FOUNDER_LIMIT_BYTES, founder_from_json
from node.cli.arguments import PathName, WholeNumber
from node.cli.commands import as_command
from node.cli.option_conflicts import not_with, refuse_given
from node.cli.options import announce_key_generation, ask_new_passphrase, home_option, read_input
from node.cli.output import json_option, show_fields
from node.home.config import check_options
from node.home.create import adopt_genesis, check_new_home, create_home
from node.home.keyring import random_key
from node.home.load import load_genesis
from node.home.options import MetricsOptions, NetworkOptions, NodeOptions, RpcOptions
from node.home.paths import Home
from node.process.ports import is_taken
from state.primitives.address import format_address
from state.primitives.errors import ConfigError
from state.primitives.genesis import Genesis

__all__ = ["init"]

PORT_MAX: Final = 65_535


@not_with(("--advertise",), "--no-listen")
@click.command()
@home_option
@click.option("--genesis", required=True, type=PathName(), help="Genesis file of the network to join.")
@click.option(
    "--role",
    "roles",
    multiple=True,
    default=("verify",),
    show_default=True,
    type=click.Choice(["validator", "compute", "verify", "storage"]),
    help="Role of the node; repeat for several.",
)
@click.option(
    "--bootstrap",
    multiple=True,
    metavar="0xADDRESS@tcp:HOST:PORT",
    help="Address of a first peer; repeat for several.",
)
@click.option(
    "--relay",
    "relays",
    multiple=True,
    metavar="0xADDRESS@HOST:PORT",
    help="Relay to reserve a slot at; repeat for several.",
)
@click.option(
    "--advertise",
    multiple=True,
    metavar="tcp:HOST:PORT",
    help="Address that other nodes can dial, such as a forwarded port; repeat for several. Default: detect it.",
)
@click.option(
    "--base-port",
    type=WholeNumber(1, PORT_MAX - 2),
    metavar="PORT",
    help="Use PORT for peers, PORT+1 for the gateway, PORT+2 for metrics.  [default: 26656, 8545, 9100]",
)
@click.option("--no-listen", is_flag=True, help="Accept no inbound connection; relays make the node reachable.")
@click.option(
    "--unattended",
    is_flag=True,
    help="Generate a passphrase and store it in the home (mode 0600). The node then restarts without a prompt.",
)
@json_option
def init(
    home: Home, genesis: Path, roles: tuple[str, ...], bootstrap: tuple[str, ...], relays: tuple[str, ...],
    advertise: tuple[str, ...], base_port: int | None, no_listen: bool, unattended: bool, as_json: bool,
) -> None:  # fmt: skip
    """Create a node's home: keys, configuration and genesis.

    In a founder's home (dekube genesis found), --role validator uses the founder's keys.

    \b
    Examples:
      dekube init --genesis genesis.json --bootstrap 0xADDRESS@tcp:HOST:26656
      dekube init --home ~/second --genesis genesis.json --base-port 26700     # a second node on one machine
    """
    p2p, rpc, metrics = NetworkOptions(), RpcOptions(), MetricsOptions()
    if base_port is not None:
        p2p = replace(p2p, listen=f":{base_port}")
        rpc = replace(rpc, listen=f"127.0.0.1:{base_port + 1}")
        metrics = replace(metrics, listen=f"127.0.0.1:{base_port + 2}")
    p2p = replace(
        p2p, listen="" if no_listen else p2p.listen, advertise=advertise, bootstrap=bootstrap, relays=relays
    )
    options = NodeOptions(roles=tuple(dict.fromkeys(roles)), p2p=p2p, rpc=rpc, metrics=metrics)
    check_options(options)
    document = load_genesis(genesis)
    if home.founder.exists() and not home.config.exists():
        refuse_given(("--unattended",), f"the founder's keys in {home.root} have their passphrase already")
        _complete_founder_home(home, document, options, as_json=as_json)
        return
    check_new_home(home)
    passphrase = secrets.token_hex(16) if unattended else ask_new_passphrase(None)
    announce_key_generation(as_json=as_json)
    account = random_key()
    vote = random_key() if "validator" in roles else None
    create_home(
        home.root, genesis=document, options=options, account=account, vote=vote, passphrase=passphrase,
        keep_passphrase=unattended,
    )  # fmt: skip
    fields = {"home": str(home.root), "address": format_address(account.address), "network": document.name}
    if vote is not None:
        fields["vote_key"] = "0x" + vote.vote_key.hex()
    _show(home, fields, options, as_json=as_json)


def _complete_founder_home(home: Home, genesis: Genesis, options: NodeOptions, *, as_json: bool) -> None:
    """Complete a founder's home. Raises ConfigError unless the genesis contains the founder as signed."""
    founder = founder_from_json(read_input(home.founder, FOUNDER_LIMIT_BYTES).decode())
    validator = founder.validator
    if "validator" not in options.roles:
        raise ConfigError(f"{home.root}: the home has a founder's keys; add --role validator")
    if validator not in genesis.validators:
        raise ConfigError(
            f"{home.root}: the genesis lacks the founder {format_address(validator.address)} of this home, or its "
            "entry differs; nothing was changed"
        )
    adopt_genesis(home, genesis=genesis, options=options, vote_key=validator.vote_key)
    fields = {"home": str(home.root), "address": format_address(validator.address), "network": genesis.name}
    _show(home, fields | {"vote_key": "0x" + validator.vote_key.hex()}, options, as_json=as_json)


def _show(home: Home, fields: dict[str, str], options: NodeOptions, *, as_json: bool) -> None:
    show_fields(fields, as_json=as_json)
    if as_json:
        return
    click.echo(
        f"\nBack up {home.root / 'keys'}: nobody can restore it.\n"
        f"Then: {as_command('dekube', 'node', 'run', '--home', home.root)}"
    )
    for name, listen in (
        ("p2p.listen", options.p2p.listen), ("rpc.listen", options.rpc.listen),
        ("metrics.listen", options.metrics.listen),
    ):  # fmt: skip
        if listen and is_taken(listen):
            click.echo(
                f"Note: another program has the port of {name} ({listen}) now. Two nodes on one machine need "
                f"ports of their own: change it in {home.config}, or see --base-port.",
                err=True,
            )
