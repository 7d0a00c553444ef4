"""``dekube signer``: a validator's vote key and its guard in a separate process."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import trio

from consensus.signer import AskKeys, AskStatus, Keys, Request, Retire, SignerStatus, SignerUnavailable
from node.cli.arguments import ADDRESS, OUTPUT_FILE, PathName
from node.cli.commands import CommandGroup, as_command
from node.cli.guard import (
    check_new,
    choose_key,
    export_guard,
    export_retired,
    import_guard,
    read_watermark,
    vote_key_option,
)
from node.cli.option_conflicts import only_with
from node.cli.options import (
    announce_key_generation,
    ask_new_passphrase,
    ask_passphrase,
    open_key,
    prompt_secret,
    signer_home_option,
)
from node.cli.output import json_option, log_field, show, show_fields
from node.home.config import parse_listen, toml_value
from node.home.create import check_new_home, create_home
from node.home.keyring import random_key
from node.home.load import load_genesis
from node.home.paths import Home
from state.primitives.address import format_address, parse_address
from state.primitives.genesis import genesis_hash
from state.primitives.keys import SecretKey
from state.primitives.listen import format_host_port
from state.transition.staking import stake_payload

__all__ = ["signer"]

_Answer = TypeVar("_Answer", SignerStatus, Keys)
_Function = TypeVar("_Function", bound=Callable[..., Any])


def _vote_options(function: _Function) -> _Function:
    """Add the options for an existing vote key to a command."""
    function = click.option(
        "--passphrase-file",
        type=PathName(),
        help="File (mode 0600) with the passphrase of --keystore. Default: prompt.",
    )(function)
    return click.option(
        "--keystore", type=PathName(), help="Existing vote key to use. Default: generate a new one."
    )(function)


@click.group(cls=CommandGroup)
def signer() -> None:
    """Run a separate signer for a validator's vote key.

    The node requests each vote from the signer. The signer's guard refuses conflicting votes. An attacker
    on the node can stop its votes. It can neither read the key nor sign conflicting votes.

    \b
    Moving the key of a running validator to a signer:
      1. stop the node, then               dekube node guard export watermark.json
      2. on the signer's machine           dekube signer init --genesis genesis.json --keystore vote.json
                                           dekube signer import watermark.json
                                           dekube signer run
      3. in the node's config.toml         [signer] endpoint and vote_key; remove keys/vote.json
      4. start the node
    """


@only_with(("--passphrase-file",), "--keystore")
@only_with(("--client",), "--listen")
@signer.command()
@signer_home_option
@click.option("--genesis", required=True, type=PathName(), help="Genesis file of the network.")
@_vote_options
@click.option(
    "--listen",
    default="",
    metavar="HOST:PORT",
    help="Serve nodes on other machines, encrypted. Default: only this machine.",
)
@click.option(
    "--client",
    "clients",
    multiple=True,
    metavar="0xADDRESS",
    help="Node that may connect to --listen; repeat for several.",
)
@click.option(
    "--unattended",
    is_flag=True,
    help="Generate a passphrase and store it in the home (mode 0600). The signer then restarts without a prompt.",
)
@json_option
def init(
    home: Home, genesis: Path, keystore: Path | None, passphrase_file: Path | None, listen: str,
    clients: tuple[str, ...], unattended: bool, as_json: bool,
) -> None:  # fmt: skip
    """Create a signer's home: the vote key, its guard and an identity key.

    An existing key starts without a record: import its watermark before the first run.

    \b
    Examples:
      dekube signer init --genesis genesis.json
      dekube signer init --genesis genesis.json --keystore vote.json --listen 10.0.0.2:26690 --client 0xADDRESS
    """
    from node.signer.home import SignerHomeOptions, check_signer_options, signer_socket

    options = check_signer_options(SignerHomeOptions(listen=listen, clients=clients))
    document = load_genesis(genesis)
    check_new_home(home)
    vote = random_key() if keystore is None else open_key(keystore, passphrase_file)
    passphrase = secrets.token_hex(16) if unattended else ask_new_passphrase(None)
    announce_key_generation(as_json=as_json)
    account = random_key()
    create_home(
        home.root, genesis=document, account=account, vote=vote, is_new_vote_key=keystore is None, options=options,
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
            first = as_command("dekube", "signer", "import", "WATERMARK", "--home", home.root)
            click.echo(f"Before the first run: {first}")
        then = as_command("dekube", "signer", "run", "--home", home.root)
        click.echo(f"Then: {then}\nand in the config.toml of its node:\n")
        where = f"{fields['address']}@tcp:{_reached_at(listen)}" if listen else f"unix:{signer_socket(home)}"
        click.echo(f"[signer]\nendpoint = {toml_value(where)}\nvote_key = {toml_value(fields['vote_key'])}")


def _reached_at(listen: str) -> str:
    """Return the address under which nodes on other machines reach ``listen``, as far as it is known."""
    host, port = parse_listen(listen)[0]
    return f"HOST:{port}" if host in ("", "0.0.0.0", "::") else format_host_port(host, port)  # noqa: S104  compared, not listened at


@only_with(("--passphrase-file",), "--keystore")
@signer.command(name="add-key")
@signer_home_option
@_vote_options
@json_option
def add_key(home: Home, keystore: Path | None, passphrase_file: Path | None, as_json: bool) -> None:
    """Add another vote key, with its own guard, to the signer's home.

    The signer serves it after its next start. An existing key starts without a record: import its watermark
    before that start.

    \b
    To replace a key while the node votes:
      dekube signer add-key
      dekube signer possession 0xACCOUNT --vote-key 0x... --json > possession.json
      dekube tx stake 0 --possession possession.json
      # set signer.vote_key_next in the node's config.toml; restart signer and node
    """
    from node.signer.home import add_signer_key

    vote = random_key() if keystore is None else open_key(keystore, passphrase_file)
    add_signer_key(home, vote, is_new_key=keystore is None, passphrase=_passphrase(home))
    show_fields({"home": str(home.root), "vote_key": "0x" + vote.vote_key.hex()}, as_json=as_json)
    if not as_json:
        click.echo("\nStart the signer again to serve it.")


@signer.command()
@signer_home_option
@vote_key_option
@click.argument("account", type=ADDRESS)
@json_option
def possession(home: Home, vote_key: bytes, account: str, as_json: bool) -> None:
    """Prove to the chain that ACCOUNT owns the signer's vote key.

    Pass the output to `dekube tx stake 0 --possession FILE`.

    \b
    Example:
      dekube signer possession 0xACCOUNT --vote-key 0x... --json > possession.json
    """
    address = parse_address(account)
    key = _key_of(home, vote_key)
    _, public, signature, vrf_key, vrf_proof = stake_payload(
        0, key, genesis_hash=genesis_hash(load_genesis(home.genesis)), address=address
    )
    fields = {"vote_key": public, "possession": signature, "vrf_key": vrf_key, "vrf_possession": vrf_proof}
    show_fields(fields, as_json=as_json, title=f"Possession, for {format_address(address)}")


@signer.command()
@signer_home_option
@click.option(
    "--accept-empty-guard",
    is_flag=True,
    help="Start with an empty guard. The key must never have voted, or the stake is lost.",
)
def run(home: Home, accept_empty_guard: bool) -> None:
    """Run the signer in --home until SIGTERM or Ctrl-C.

    \b
    Example:
      dekube signer run
    """
    from node.signer.service import run_signer

    run_signer(
        home,
        prompt_secret,
        accepts_empty_guard=accept_empty_guard,
    )


@signer.command()
@signer_home_option
@json_option
def status(home: Home, as_json: bool) -> None:
    """Show each key's last vote and whether a node is connected.

    The signer in --home must be running.

    \b
    Example:
      dekube signer status
    """
    keys = _ask(home, AskKeys(), Keys).vote_keys
    first, *others = [_status_fields(_ask(home, AskStatus(key), SignerStatus)) for key in keys]
    if as_json:
        show(first | {"others": others})
        return
    for number, fields in enumerate((first, *others)):
        show_fields(fields, as_json=False, title=f"Key {number + 1}" if others else "Signer")


def _status_fields(found: SignerStatus) -> dict[str, Any]:
    return {
        "vote_key": found.mark.vote_key,
        "genesis_hash": found.mark.genesis_hash,
        "epoch": found.mark.epoch,
        "view": found.mark.view,
        "votes_kept": found.votes_kept,
        "node_connected": bool(found.is_taken),
        "retired": bool(found.is_retired),
        "log_lines_dropped": found.log_dropped,
        **log_field(found.log_dropped, found.log_since_ms),
    }


@signer.command()
@signer_home_option
@vote_key_option
@click.argument("file", type=OUTPUT_FILE)
@json_option
def export(home: Home, vote_key: bytes, file: Path, as_json: bool) -> None:
    """Write the key's watermark to FILE and stop signing votes with it.

    The signer refuses to vote with the key, also after restarts. Import a watermark of the key here to
    allow votes again.

    \b
    Example:
      dekube signer export watermark.json
    """
    try:
        chosen = choose_key(_ask(home, AskKeys(), Keys).vote_keys, vote_key)
        before = _ask(home, AskStatus(chosen), SignerStatus)
        check_new(file, before.mark if before.is_retired else None)
        found = _ask(home, Retire(chosen), SignerStatus)
    except SignerUnavailable:
        chain, key = genesis_hash(load_genesis(home.genesis)), _key_of(home, vote_key)
        export_guard(home, chain, key.vote_key, file, as_json=as_json)
    else:
        export_retired(home, found.mark, file, as_json=as_json)
    if not as_json:
        click.echo(
            f"\nThis signer no longer votes with the key: remove its file from {home.root / 'keys'} when it has "
            "moved. To undo the export, stop the signer and run: "
            + as_command("dekube", "signer", "import", file, "--home", home.root)
        )


@signer.command(name="import")
@signer_home_option
@click.argument("file", type=PathName())
@json_option
def import_(home: Home, file: Path, as_json: bool) -> None:
    """Import the watermark in FILE and allow this signer to vote above it.

    Stop the signer first. Import a file on one machine only: two machines with one key lose the stake.

    \b
    Example:
      dekube signer import watermark.json
    """
    from node.signer.home import vote_keys_of

    mark = read_watermark(file)
    keys = [key.vote_key for key in vote_keys_of(home, _passphrase(home))]
    mine = mark.vote_key if mark.vote_key in keys else keys[0]
    import_guard(home, genesis_hash(load_genesis(home.genesis)), mine, file, as_json=as_json)


def _ask(home: Home, request: Request, expected: type[_Answer]) -> _Answer:
    from node.signer.service import ask_home

    answer = trio.run(ask_home, home, request)
    if not isinstance(answer, expected):
        raise SignerUnavailable("the process at the signer's socket is not a signer")
    return answer


def _key_of(home: Home, vote_key: bytes) -> SecretKey:
    """Return the selected key of a signer's home. Raises ConfigError, KeystoreError."""
    from node.signer.home import vote_keys_of

    keys = {key.vote_key: key for key in vote_keys_of(home, _passphrase(home))}
    return keys[choose_key(list(keys), vote_key)]


def _passphrase(home: Home) -> str:
    """Return the passphrase of a signer's home; prompt for it if the home does not keep it."""
    from node.signer.home import load_signer_options

    return ask_passphrase(home.passphrase_file(load_signer_options(home.config).keys))
