"""``dekube signer``: a validator's vote key and its guard in a process of their own."""

from __future__ import annotations

import secrets
from pathlib import Path

import click
import trio

from consensus.signer import AskStatus, Request, Retire, SignerStatus, SignerUnavailable
from node.cli.guard import export_guard, import_guard, write_watermark
from node.cli.options import ask_new_passphrase, home_option, open_key
from node.cli.output import json_option, show_fields
from node.home import Home, load_genesis
from node.keyring import random_key
from state.primitives.address import format_address
from state.primitives.errors import ConfigError
from state.primitives.genesis import genesis_hash

__all__ = ["signer"]


@click.group()
def signer() -> None:
    """Keep a validator's vote key in a process of its own, or on a machine of its own.

    The node asks the signer for each vote; the signer's guard refuses what an earlier vote forbids. Whoever takes
    the node over can stop its votes, but can neither read the key nor make it contradict itself.

    \b
    Moving the key of a running validator to a signer:
      1. stop the node, then               dekube node guard export watermark.json
      2. on the signer's machine           dekube signer init --genesis genesis.json --keystore vote.json
                                           dekube signer import watermark.json
                                           dekube signer run
      3. in the node's config.toml         [signer] endpoint and vote_key; remove keys/vote.json
      4. start the node
    """


@signer.command()
@home_option
@click.option("--genesis", required=True, type=click.Path(path_type=Path), help="The genesis file of the network.")
@click.option(
    "--keystore", type=click.Path(path_type=Path), help="An existing vote key; without it a new one is drawn."
)
@click.option(
    "--passphrase-file",
    type=click.Path(path_type=Path),
    help="File (mode 0600) with the passphrase of --keystore; else it is asked for.",
)
@click.option("--listen", default="", metavar="HOST:PORT", help="Serve nodes on other machines, encrypted.")
@click.option(
    "--client",
    "clients",
    multiple=True,
    metavar="0xADDRESS",
    help="A node that may use --listen; repeat for several.",
)
@click.option(
    "--unattended",
    is_flag=True,
    help="Make a random passphrase and keep it in the home (mode 0600), so the signer restarts alone.",
)
@json_option
def init(
    home: Home, genesis: Path, keystore: Path | None, passphrase_file: Path | None, listen: str,
    clients: tuple[str, ...], unattended: bool, as_json: bool,
) -> None:  # fmt: skip
    """Make a signer's home: the vote key, the record of its votes, and what it proves itself with to nodes.

    An existing key gets no record: import its watermark before the first run.
    """
    from node.signer import SignerHomeOptions, check_signer_options, create_signer_home

    options = check_signer_options(SignerHomeOptions(listen=listen, clients=clients))
    document = load_genesis(genesis)
    vote = random_key() if keystore is None else open_key(keystore, passphrase_file)
    passphrase = secrets.token_hex(16) if unattended else ask_new_passphrase(None)
    account = random_key()
    create_signer_home(
        home.root, genesis=document, account=account, vote=vote, is_new_key=keystore is None, options=options,
        passphrase=passphrase, keep_passphrase=unattended,
    )  # fmt: skip
    fields = {
        "home": str(home.root),
        "vote_key": "0x" + vote.vote_key.hex(),
        "address": format_address(account.address),
    }
    show_fields(fields, as_json=as_json)
    if not as_json:
        click.echo(f"\nBack up {home.root / 'keys'}, but never {home.guard}.")
        if keystore is not None:
            click.echo("Before the first run: dekube signer import WATERMARK")


@signer.command()
@home_option
@click.option(
    "--accept-empty-guard",
    is_flag=True,
    help="Begin the record of a key that has certainly never voted. A mistake costs the stake.",
)
def run(home: Home, accept_empty_guard: bool) -> None:
    """Run the signer in --home until SIGTERM or Ctrl-C."""
    from node.signer import run_signer

    run_signer(
        home,
        lambda: str(click.prompt("Passphrase", hide_input=True, err=True)),
        accepts_empty_guard=accept_empty_guard,
    )


@signer.command()
@home_option
@json_option
def status(home: Home, as_json: bool) -> None:
    """Show up to where the running signer in --home has voted, and whether a node uses it."""
    found = _ask(home, AskStatus())
    show_fields(
        {
            "vote_key": found.mark.vote_key,
            "genesis_hash": found.mark.genesis_hash,
            "epoch": found.mark.epoch,
            "view": found.mark.view,
            "votes_kept": found.votes_kept,
            "node_connected": bool(found.is_taken),
            "retired": bool(found.is_retired),
        },
        as_json=as_json,
        title="Signer",
    )


@signer.command()
@home_option
@click.argument("file", type=click.Path(path_type=Path))
@json_option
def export(home: Home, file: Path, as_json: bool) -> None:
    """Write the watermark to FILE, to move the key. A signer that runs votes no more from then on."""
    if file.exists():
        raise ConfigError(f"{file}: exists already; nothing was changed")
    try:
        found = _ask(home, Retire())
    except SignerUnavailable:
        export_guard(home, *_whose(home), file, as_json=as_json)
    else:
        write_watermark(found.mark, file, as_json=as_json)
    if not as_json:
        click.echo(f"\nThis signer must not run again: remove {home.root / 'keys' / 'vote.json'}.")


@signer.command(name="import")
@home_option
@click.argument("file", type=click.Path(path_type=Path))
@json_option
def import_(home: Home, file: Path, as_json: bool) -> None:
    """Take over the watermark in FILE: from now on this signer votes only above it. It must not run."""
    import_guard(home, *_whose(home), file, as_json=as_json)


def _ask(home: Home, request: Request) -> SignerStatus:
    from node.signer import ask_home

    answer = trio.run(ask_home, home, request)
    if not isinstance(answer, SignerStatus):
        raise SignerUnavailable("what answers is no signer")
    return answer


def _whose(home: Home) -> tuple[bytes, bytes]:
    """Return the chain and the vote key of a signer's home. Raises ConfigError, KeystoreError."""
    from node.signer import load_signer_options

    options = load_signer_options(home.config)
    file = home.path(options.keys.passphrase_file) if options.keys.passphrase_file else None
    key = open_key(home.path(options.keys.vote), file if file is not None and file.exists() else None)
    return genesis_hash(home.load_genesis()), key.vote_key
