"""``dekube genesis``: creates the genesis of a new chain, alone or with other founders."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from node.chain.founding import (
    FOUNDER_LIMIT_BYTES,
    Founder,
    check_genesis,
    found,
    founder_from_json,
    founder_to_json,
    make_founder,
)
from node.cli.arguments import AMOUNT, OUTPUT_FILE, PathName, WholeNumber, parse_numbers
from node.cli.commands import CommandGroup, as_command
from node.cli.options import announce_key_generation, ask_new_passphrase, home_option, read_input
from node.cli.output import counted, json_option, parse_amount, show, show_amount, show_fields, show_rows
from node.cli.terminal import printable
from node.home.create import check_new_home, create_founder
from node.home.files import write_whole
from node.home.keyring import random_key
from node.home.load import load_genesis
from node.home.paths import Home
from state.primitives.address import format_address, parse_address
from state.primitives.errors import ConfigError, DecodeError
from state.primitives.genesis import Genesis, check_name, genesis_hash, genesis_to_json

__all__ = ["genesis"]

DAY_MS: Final = 86_400_000
START_AWAY_MS_MAX: Final = 366 * DAY_MS
_COLUMNS: Final = ("founder", "stake", "share", "coins")


@click.group(cls=CommandGroup)
def genesis() -> None:
    """Create the genesis of a new chain, alone or with other founders.

    \b
    One of the founders:  dekube genesis draft --name mine --chain-id 4242 --out draft.json
    Each founder:         dekube genesis found --draft draft.json --stake 100000
                          (then sends the founder.json of the home to all others)
    Every founder:        dekube genesis seal draft.json founder-*.json --out genesis.json
    Each founder:         dekube init --genesis genesis.json --role validator --bootstrap ...
                          dekube node run

    Compare the hash that `seal` prints with all founders. It identifies the chain.
    """


@genesis.command()
@click.option("--name", required=True, help="Name of the chain, for people.")
@click.option(
    "--chain-id", required=True, type=WholeNumber(1, 2**31 - 1), help="Chain ID that wallets use for the chain."
)
@click.option(
    "--start",
    metavar="TIME",
    help="Earliest time of the first block: now, or 2027-01-31T12:00Z.  [default: now]",
)
@click.option(
    "--testnet", is_flag=True, help="Mark the chain as a test network: faucets may run, upgrades can be rehearsed."
)
@click.option(
    "--allocation", "allocations", multiple=True, metavar="0xADDRESS=AMOUNT",
    help="Initial balance (DKB) of an account; repeat for several. Founders' stakes are "
"added to it.",
)  # fmt: skip
@click.option(
    "--parameter", "parameters", multiple=True, metavar="NAME=NUMBER",
    help="Chain parameter to change, such as chain.epoch_blocks=600; repeat for several.",
)  # fmt: skip
@click.option("--out", required=True, type=OUTPUT_FILE, help="File to write the draft to.")
@json_option
def draft(
    name: str, chain_id: int, start: str | None, testnet: bool, allocations: tuple[str, ...],
    parameters: tuple[str, ...], out: Path, as_json: bool,
) -> None:  # fmt: skip
    """Write the draft that all founders must agree on.

    It sets the chain's name, start time, parameters and initial balances.

    \b
    Example:
      dekube genesis draft --name mine --chain-id 4242 --out draft.json
    """
    document = Genesis(
        chain_id=chain_id,
        name=name,
        time_ms=_time_ms(start),
        testnet=testnet,
        allocations=_allocations(allocations),
        validators=(),
        parameters=tuple(sorted(parse_numbers(parameters, "--parameter").items())),
    )
    try:
        check_name(name)  # of all that founds no chain, what cannot be hashed either
        check_genesis(document, is_draft=True)
    except ConfigError as error:
        raise click.BadParameter(str(error).removeprefix("genesis: ")) from None
    _write_new(out, genesis_to_json(document))
    with _removed_unless_shown(out):
        _show_genesis(load_genesis(out, is_draft=True), out, as_json=as_json)


@genesis.command(name="found")
@home_option
@click.option("--draft", "draft_file", required=True, type=PathName(), help="Draft of the genesis.")
@click.option("--stake", required=True, type=AMOUNT, help="Initial stake of the founder, in DKB.")
@click.option(
    "--coins", type=AMOUNT, default="10", show_default=True,
    help="Initial balance besides the stake, in DKB, for fees.",
)  # fmt: skip
@click.option(
    "--unattended",
    is_flag=True,
    help="Generate a passphrase and store it in the home (mode 0600). The node then restarts without a prompt.",
)
@json_option
def found_(home: Home, draft_file: Path, stake: int, coins: int, unattended: bool, as_json: bool) -> None:
    """Create a founder's keys and the file to send to the other founders.

    The keys stay in the new home. The file adds the founder to the draft and contains no secret. After
    `seal`, run `dekube init` with the same --home.

    \b
    Example:
      dekube genesis found --draft draft.json --stake 100000
    """
    document = load_genesis(draft_file, is_draft=True)
    check_new_home(home)
    account, vote = random_key(), random_key()
    founder = make_founder(document, account, vote, stake=stake, coins=coins)
    passphrase = secrets.token_hex(16) if unattended else ask_new_passphrase(None)
    announce_key_generation(as_json=as_json)
    create_founder(
        home.root, account=account, vote=vote, founder=founder_to_json(founder), passphrase=passphrase,
        keep_passphrase=unattended,
    )  # fmt: skip
    fields = {
        "home": str(home.root),
        "address": format_address(account.address),
        "vote_key": "0x" + vote.vote_key.hex(),
        "draft": "0x" + founder.draft.hex(),
        "file": str(home.founder),
    }
    show_fields(fields, as_json=as_json)
    if not as_json:
        click.echo(
            f"\nBack up {home.root / 'keys'}: nobody can restore it.\n"
            f"Send {home.founder} to the other founders; when the genesis is there:\n"
            + as_command("dekube", "init", "--home", home.root, "--genesis", "genesis.json", "--role", "validator")
        )


@genesis.command()
@click.argument("draft_file", metavar="DRAFT", type=PathName())
@click.argument("founder_files", metavar="FOUNDER...", nargs=-1, required=True, type=PathName())
@click.option("--out", required=True, type=OUTPUT_FILE, help="File to write the genesis to.")
@json_option
def seal(draft_file: Path, founder_files: tuple[Path, ...], out: Path, as_json: bool) -> None:
    """Build the genesis from a DRAFT and the founders' files.

    Every proof is verified. The same files give the same genesis in any order. Each founder can build it
    and compare the hash.

    \b
    Example:
      dekube genesis seal draft.json founder-*.json --out genesis.json
    """
    document = load_genesis(draft_file, is_draft=True)
    sealed = found(document, [_read_founder(path) for path in founder_files])
    _write_new(out, genesis_to_json(sealed))
    with _removed_unless_shown(out):
        _show_genesis(sealed, out, as_json=as_json)


@genesis.command(name="show")
@click.argument("file", type=PathName())
@click.option("--draft", "is_draft", is_flag=True, help="Read FILE as a draft.")
@json_option
def show_(file: Path, is_draft: bool, as_json: bool) -> None:
    """Show the contents and the hash of a genesis FILE.

    \b
    Examples:
      dekube genesis show genesis.json
      dekube genesis show draft.json --draft
    """
    _show_genesis(load_genesis(file, is_draft=is_draft), file, as_json=as_json)


def _show_genesis(document: Genesis, file: Path, *, as_json: bool) -> None:
    staked = sum(validator.stake for validator in document.validators)
    coins = dict(document.allocations)
    fields: dict[str, Any] = {
        "file": str(file),
        "name": document.name,
        "chain_id": document.chain_id,
        "start": datetime.fromtimestamp(document.time_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        "testnet": document.testnet,
        "hash": "0x" + genesis_hash(document).hex(),
    }
    if as_json:
        founders = [
            {"address": format_address(v.address), "stake": str(v.stake), "coins": str(coins.get(v.address, 0))}
            for v in document.validators
        ]
        owned = {"allocated": str(sum(coins.values())), "staked": str(staked)}
        show(fields | owned | {"parameters": dict(document.parameters), "founders": founders})
        return
    fields |= {"allocated": show_amount(sum(coins.values())), "staked": show_amount(staked)}
    fields |= {name: str(number) for name, number in document.parameters}
    show_fields(fields, as_json=False)
    rows = [
        {
            "founder": format_address(v.address),
            "stake": show_amount(v.stake),
            "share": f"{100 * v.stake / staked:.1f} %",
            "coins": show_amount(coins.get(v.address, 0)),
        }
        for v in document.validators
    ]
    if rows:
        click.echo()
        show_rows(rows, _COLUMNS, as_json=False)


def _read_founder(path: Path) -> Founder:
    try:
        return founder_from_json(read_input(path, FOUNDER_LIMIT_BYTES).decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text; expected a founder's file (JSON)") from None
    except ConfigError as error:
        raise ConfigError(str(error) if str(path) in str(error) else f"{path}: {error}") from None


def _write_new(path: Path, text: str) -> None:
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        raise ConfigError(f"{path}: exists already; nothing was changed") from None
    try:
        write_whole(path, text)
    except OSError:
        path.unlink(missing_ok=True)  # nothing stands in it yet
        raise


@contextmanager
def _removed_unless_shown(path: Path) -> Iterator[None]:
    """Remove a new file if the command fails after writing it: a second try would find the file and refuse.

    A closed pipe (``| head``) is not a failure: its reader has seen what it wanted.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _allocations(texts: tuple[str, ...]) -> tuple[tuple[bytes, int], ...]:
    found: dict[bytes, int] = {}
    for text in texts:
        owner, equals, amount = text.partition("=")
        if not (owner and equals and amount):
            raise click.BadParameter(f"{printable(text)}: not 0xADDRESS=AMOUNT", param_hint="--allocation")
        try:
            address = parse_address(owner)
            if address in found:
                raise click.BadParameter(f"{format_address(address)} is given twice")
            found[address] = parse_amount(amount)
        except (DecodeError, click.BadParameter) as error:
            raise click.BadParameter(f"{printable(text)}: {error}", param_hint="--allocation") from None
    return tuple(found.items())


def _time_ms(text: str | None) -> int:
    """Return the start time of a chain.

    Raises BadParameter for an invalid time, or one years away (a typing error).
    """
    now_ms = time.time_ns() // 1_000_000
    if text is None or text == "now":
        return now_ms
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        why = "has no time zone" if at is not None else "is not a time"
        raise click.BadParameter(f"{printable(text)} {why}; write 2027-01-31T12:00Z", param_hint="--start")
    start_ms = int(at.timestamp() * 1000)
    if abs(start_ms - now_ms) > START_AWAY_MS_MAX:
        away = "ago" if start_ms < now_ms else "from now"
        raise click.BadParameter(
            f"{printable(text)} is {counted(abs(start_ms - now_ms) // DAY_MS, 'day')} {away}; the start must be "
            "within one year of today",
            param_hint="--start",
        )
    return start_ms
