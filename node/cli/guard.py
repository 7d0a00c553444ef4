"""``dekube node guard``: shows, exports and imports the vote record of a validator's key."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import click

from consensus.guard import Guard, GuardMissing, Watermark
from consensus.guard_log import GUARD_FILE, VoteDirectory
from consensus.signer import EPOCH_LIMIT, VIEW_LIMIT
from node.cli.arguments import OUTPUT_FILE, PathName
from node.cli.commands import CommandGroup, as_command
from node.cli.files import read_json
from node.cli.options import ask_passphrase, home_option
from node.cli.output import json_option, show_fields
from node.cli.output import show as show_json
from node.home.config import parse_vote_key
from node.home.files import read_bounded, write_private
from node.home.guards import is_retired, retire_guard, return_guard
from node.home.keys import load_key
from node.home.load import load_genesis, load_node_options
from node.home.lock import live_in
from node.home.paths import Home
from state.primitives.errors import ConfigError
from state.primitives.genesis import genesis_hash

__all__ = [
    "WatermarkLower",
    "check_new",
    "choose_key",
    "export_guard",
    "export_retired",
    "guard",
    "import_guard",
    "read_watermark",
    "vote_key_option",
]

FILE_LIMIT_BYTES: Final = 4096
_VERSION: Final = 1
EXPECTED: Final = "a watermark, as `dekube node guard export` writes it"


class WatermarkLower(ConfigError):
    """A watermark below the known votes. Importing it would have no effect and hide a mistake."""

    code = "watermark_lower"


def _as_key(_ctx: click.Context, _param: click.Parameter, text: str) -> bytes:
    return parse_vote_key(text) if text else b""


vote_key_option = click.option(
    "--vote-key",
    default="",
    callback=_as_key,
    metavar="0xKEY",
    help="Vote key to use; required if there are several.",
)


@click.group(cls=CommandGroup)
def guard() -> None:
    """Show, export or import the vote guard of a validator's key.

    The vote guard records what the key has signed. A key that votes twice in a view loses its stake. When
    you move a validator, move its watermark too. The new machine then never votes at or below it.

    \b
    Moving a validator:
      1. old machine: stop the node, then    dekube node guard export watermark.json
         From then on the node there refuses to start as a validator.
      2. new machine: keys/, config.toml, genesis.json, then    dekube node guard import watermark.json
      3. old machine: remove keys/vote.json
      4. new machine: dekube node run

    To undo an export, import the same file into the same home. Do this only if no other machine has
    imported it.

    After `dekube tx rotate-keys` there are two keys, each with its own record. `show` lists both. Export
    and import each with --vote-key, and remove both key files.
    """


@guard.command()
@home_option
@json_option
def show(home: Home, as_json: bool) -> None:
    """Show the last view that each vote key has voted in.

    It also works while the node runs.

    \b
    Example:
      dekube node guard show
    """
    chain, keys = _chain_and_keys(home)
    first, *others = [_shown(home, chain, key) for key in keys]
    if as_json:
        show_json(first | {"others": others} if others else first)
        return
    for fields in (first, *others):
        show_fields(fields, as_json=False, title="Vote guard")


def _shown(home: Home, chain: bytes, vote_key: bytes) -> dict[str, Any]:
    try:
        data = (home.guard_of(vote_key) / GUARD_FILE).read_bytes()
    except OSError:
        raise GuardMissing(f"{home.guard_of(vote_key)}: the record of this key's votes is missing") from None
    loaded, _ = Guard.load(data, chain, vote_key)
    mark = loaded.watermark()
    return {
        "vote_key": mark.vote_key, "genesis_hash": mark.genesis_hash, "epoch": mark.epoch, "view": mark.view,
        "votes_kept": len(loaded.votes()), "retired": is_retired(home.guard_of(vote_key)),
    }  # fmt: skip


@guard.command()
@home_option
@vote_key_option
@click.argument("file", type=OUTPUT_FILE)
@json_option
def export(home: Home, vote_key: bytes, file: Path, as_json: bool) -> None:
    """Write the key's watermark to FILE and stop voting on this machine.

    Stop the node first. Later starts fail (guard_retired) until you import a watermark of the key here.

    \b
    Example:
      dekube node guard export watermark.json
    """
    chain, keys = _chain_and_keys(home)
    chosen = choose_key(keys, vote_key)
    export_guard(home, chain, chosen, file, as_json=as_json)
    if not as_json:
        options = load_node_options(home).keys
        path = home.path((options.vote, options.vote_next)[keys.index(chosen)])
        click.echo(
            f"\nThis machine no longer votes: remove {path} when the key has moved. To undo the export: "
            + as_command("dekube", "node", "guard", "import", file, "--home", home.root)
        )


@guard.command(name="import")
@home_option
@click.argument("file", type=PathName())
@json_option
def import_(home: Home, file: Path, as_json: bool) -> None:
    """Import the watermark in FILE and allow this machine to vote above it.

    The file must be of this key and this chain. A record of later votes is kept unchanged. Import a file on
    one machine only: two machines with one key lose the stake.

    \b
    Example:
      dekube node guard import watermark.json
    """
    chain, keys = _chain_and_keys(home)
    mark = read_watermark(file)
    mine = mark.vote_key if mark.vote_key in keys else keys[0]
    if mine != keys[0]:  # the key that takes over has a record of its own beside the first one's
        home.own_guard_of(mine).mkdir(parents=True, exist_ok=True, mode=0o700)
    import_guard(home, chain, mine, file, as_json=as_json)


def export_guard(home: Home, chain: bytes, vote_key: bytes, file: Path, *, as_json: bool) -> None:
    """Write the watermark of the unused guard in ``home`` to a new file, and retire the guard.

    Raises GuardMissing, HomeInUse while a process votes with it, and ConfigError if the file exists.
    """
    folder = home.guard_of(vote_key)
    if not (folder / GUARD_FILE).exists():
        raise GuardMissing(f"{folder}: the record of this key's votes is missing")
    if not is_retired(folder):
        check_new(file)
    with live_in(home), closing(VoteDirectory(folder)) as directory:
        mark = directory.load_guard(chain, vote_key).watermark()
        was_retired = is_retired(folder)
        retire_guard(folder, _watermark_text(mark))  # first: from the file on, the key may vote elsewhere
        try:
            _write_watermark(mark, file)
        except (ConfigError, OSError):
            if not was_retired:
                return_guard(folder)
            raise
    _show_watermark(mark, file, as_json=as_json)


def export_retired(home: Home, mark: Watermark, file: Path, *, as_json: bool) -> None:
    """Write the watermark of a running signer that was told to retire the key to a new file."""
    retire_guard(home.guard_of(mark.vote_key), _watermark_text(mark))
    _write_watermark(mark, file)
    _show_watermark(mark, file, as_json=as_json)


def check_new(file: Path, mark: Watermark | None = None) -> None:
    """Raise ConfigError if ``file`` exists, before the guard is retired.

    An existing file with the watermark ``mark`` is accepted: an earlier export wrote it and failed afterwards.
    """
    if os.path.lexists(file) and (mark is None or not _is_watermark(mark, file)):
        raise ConfigError(f"{file}: the file exists; nothing was changed. Name another file, or remove this one")


def _write_watermark(mark: Watermark, file: Path) -> None:
    """Write a new file, or accept one with the same content. Raises ConfigError for other content."""
    if not _is_watermark(mark, file):
        write_private(file, _watermark_text(mark))


def _is_watermark(mark: Watermark, file: Path) -> bool:
    try:
        return file.is_file() and read_bounded(file, FILE_LIMIT_BYTES) == _watermark_text(mark).encode()
    except OSError:
        return False


def _watermark_text(mark: Watermark) -> str:
    document = {
        "version": _VERSION,
        "genesis_hash": "0x" + mark.genesis_hash.hex(),
        "vote_key": "0x" + mark.vote_key.hex(),
        "epoch": mark.epoch,
        "view": mark.view,
    }
    return json.dumps(document, indent=2) + "\n"


def _show_watermark(mark: Watermark, file: Path, *, as_json: bool) -> None:
    show_fields({"file": str(file), "epoch": mark.epoch, "view": mark.view}, as_json=as_json)


def import_guard(home: Home, chain: bytes, vote_key: bytes, file: Path, *, as_json: bool) -> None:
    """Import the watermark in a file into the unused guard in ``home``, so that it votes again.

    Raises ConfigError for a file of another key or chain, WatermarkLower, and HomeInUse while a process votes.
    """
    mark = read_watermark(file)
    if mark.genesis_hash != chain:
        raise ConfigError(f"{file}: the watermark is of another chain; export it from this chain's node")
    if mark.vote_key != vote_key:
        raise ConfigError(f"{file}: the watermark is of another vote key than the key in this home")
    with live_in(home), closing(VoteDirectory(home.guard_of(vote_key))) as directory:
        if directory.has_guard():
            loaded = directory.load_guard(chain, vote_key)
            known = loaded.watermark()
            if (mark.epoch, mark.view) < (known.epoch, known.view):
                raise WatermarkLower(
                    f"{file}: it ends at epoch {mark.epoch}, view {mark.view}, but this key has voted here up to "
                    f"epoch {known.epoch}, view {known.view}: an old file; nothing was changed"
                )
            loaded.raise_floor(mark.epoch, mark.view)
            directory.guard.replace(loaded.image())
        else:
            loaded = Guard(chain, vote_key, epoch=mark.epoch, view=mark.view)
            directory.create_guard(loaded)
        return_guard(home.guard_of(vote_key))
    epoch, view = loaded.floor
    show_fields({"home": str(home.root), "votes_only_above": f"epoch {epoch}, view {view}"}, as_json=as_json)


def read_watermark(file: Path) -> Watermark:
    """Return the watermark in a file. Raises ConfigError, which names the wrong line or field."""
    document = read_json(file, FILE_LIMIT_BYTES, EXPECTED)
    names = ("version", "genesis_hash", "vote_key", "epoch", "view")
    if type(document) is not dict or sorted(document) != sorted(names):
        raise ConfigError(f"{file}: not a JSON object with {', '.join(names)}; expected {EXPECTED}")
    for name, limit in (("version", 2), ("epoch", EPOCH_LIMIT), ("view", VIEW_LIMIT)):
        least = 1 if name == "version" else 0
        if type(document[name]) is not int or not least <= document[name] < limit:
            raise ConfigError(f"{file}: {name}: not a whole number from {least} to {limit - 1}")
    hashes: list[bytes] = []
    for name in ("genesis_hash", "vote_key"):
        try:
            hashes.append(_hex(document[name], 32))
        except (ValueError, TypeError, AttributeError):
            raise ConfigError(f"{file}: {name}: not 0x and 64 hex digits") from None
    return Watermark(hashes[0], hashes[1], document["epoch"], document["view"])


def _hex(text: str, size_bytes: int) -> bytes:
    data = bytes.fromhex(text.removeprefix("0x"))
    if len(data) != size_bytes:
        raise ValueError(text)
    return data


def choose_key(keys: Sequence[bytes], vote_key: bytes) -> bytes:
    """Return the named key, or the only one. Raises ConfigError."""
    if vote_key in keys:
        return vote_key
    if not vote_key and len(keys) == 1:
        return keys[0]
    there = ", ".join("0x" + key.hex() for key in keys)
    raise ConfigError(f"choose a key with --vote-key; the home has: {there}")


def _chain_and_keys(home: Home) -> tuple[bytes, list[bytes]]:
    """Return the chain and the vote keys of a validator's home; the next key is last.

    Raises ConfigError, KeystoreError.
    """
    options = load_node_options(home)
    path = home.path(options.keys.vote)
    if not path.exists() and options.signer.endpoint:
        raise ConfigError(f"{home.root}: the signer keeps the guard; on its machine use `dekube signer`")
    if not path.exists():
        raise ConfigError(f"{path}: no vote key, so no guard; the home is not a validator's")
    passphrase = ask_passphrase(home.passphrase_file(options.keys), f"Passphrase of {path.name}")
    paths = [path, home.path(options.keys.vote_next)] if options.keys.vote_next else [path]
    return genesis_hash(load_genesis(home.genesis)), [load_key(path, passphrase).vote_key for path in paths]
