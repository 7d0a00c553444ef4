"""``dekube node guard``: the record of what a validator's key has signed, and its move to another machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import click

from consensus.guard import Guard, GuardMissing, Watermark
from consensus.guard_log import GUARD_FILE, VoteDirectory
from consensus.signer import EPOCH_LIMIT, VIEW_LIMIT
from node.cli.options import home_option, open_key
from node.cli.output import json_option, show_fields
from node.home import Home, write_private
from state.primitives.errors import ConfigError
from state.primitives.genesis import genesis_hash

__all__ = ["WatermarkLower", "export_guard", "guard", "import_guard", "read_watermark", "write_watermark"]

FILE_LIMIT_BYTES: Final = 4096
_VERSION: Final = 1


class WatermarkLower(ConfigError):
    """A watermark below the votes that are known here: importing it would help nothing and hide a mistake."""

    code = "watermark_lower"


@click.group()
def guard() -> None:
    """The vote guard: what this validator's key has signed.

    A key that votes twice in a view loses its stake. Whoever moves a validator moves its watermark too: the new
    machine votes in no view up to it.

    \b
    Moving a validator:
      1. old machine: stop the node, then    dekube node guard export watermark.json
      2. old machine: remove keys/vote.json, so that it can never vote again
      3. new machine: keys/, config.toml, genesis.json, then    dekube node guard import watermark.json
      4. new machine: dekube node run
    """


@guard.command()
@home_option
@json_option
def show(home: Home, as_json: bool) -> None:
    """Show up to where the key has voted; also while the node runs."""
    chain, vote_key = _whose(home)
    try:
        data = (home.guard_of(vote_key) / GUARD_FILE).read_bytes()
    except OSError:
        raise GuardMissing(f"{home.guard_of(vote_key)}: no record of this key's votes") from None
    loaded, _ = Guard.load(data, chain, vote_key)
    mark = loaded.watermark()
    fields = {"vote_key": mark.vote_key, "genesis_hash": mark.genesis_hash, "epoch": mark.epoch, "view": mark.view}
    show_fields({**fields, "votes_kept": len(loaded.votes())}, as_json=as_json, title="Vote guard")


@guard.command()
@home_option
@click.argument("file", type=click.Path(path_type=Path))
@json_option
def export(home: Home, file: Path, as_json: bool) -> None:
    """Write the watermark to FILE. The node must be stopped, and must not vote any more afterwards."""
    export_guard(home, *_whose(home), file, as_json=as_json)
    if not as_json:
        click.echo(f"\nThis machine must not vote again: remove {home.path(home.load_options().keys.vote)}.")


@guard.command(name="import")
@home_option
@click.argument("file", type=click.Path(path_type=Path))
@json_option
def import_(home: Home, file: Path, as_json: bool) -> None:
    """Take over the watermark in FILE: from now on this machine votes only above it.

    The key and the chain must be the file's. A record that knows of later votes is left as it is.
    """
    import_guard(home, *_whose(home), file, as_json=as_json)


def export_guard(home: Home, chain: bytes, vote_key: bytes, file: Path, *, as_json: bool) -> None:
    """Write the watermark of the guard in ``home``, which nobody may be using, to a new file.

    Raises GuardMissing, StoreError while a process votes with it, and ConfigError when the file exists.
    """
    folder = home.guard_of(vote_key)
    if not (folder / GUARD_FILE).exists():
        raise GuardMissing(f"{folder}: no record of this key's votes")
    directory = VoteDirectory(folder)
    try:
        mark = directory.load_guard(chain, vote_key).watermark()
    finally:
        directory.close()
    write_watermark(mark, file, as_json=as_json)


def write_watermark(mark: Watermark, file: Path, *, as_json: bool) -> None:
    """Write a watermark to a new file and say so. Raises ConfigError when the file exists."""
    document = {
        "version": _VERSION,
        "genesis_hash": "0x" + mark.genesis_hash.hex(),
        "vote_key": "0x" + mark.vote_key.hex(),
        "epoch": mark.epoch,
        "view": mark.view,
    }
    write_private(file, json.dumps(document, indent=2) + "\n")
    show_fields({"file": str(file), "epoch": mark.epoch, "view": mark.view}, as_json=as_json)


def import_guard(home: Home, chain: bytes, vote_key: bytes, file: Path, *, as_json: bool) -> None:
    """Take the watermark in a file over into the guard in ``home``, which nobody may be using.

    Raises ConfigError for a file of another key or chain, WatermarkLower, and StoreError while a process votes.
    """
    mark = read_watermark(file)
    if mark.genesis_hash != chain:
        raise ConfigError(f"{file}: a watermark of another chain")
    if mark.vote_key != vote_key:
        raise ConfigError(f"{file}: a watermark of another vote key than this home's")
    directory = VoteDirectory(home.guard_of(vote_key))
    try:
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
    finally:
        directory.close()
    epoch, view = loaded.floor
    show_fields({"home": str(home.root), "votes_only_above": f"epoch {epoch}, view {view}"}, as_json=as_json)


def read_watermark(file: Path) -> Watermark:
    """Return the watermark in a file. Raises ConfigError."""
    try:
        with file.open("rb") as opened:
            data = opened.read(FILE_LIMIT_BYTES + 1)
        document: Any = json.loads(data) if len(data) <= FILE_LIMIT_BYTES else None
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    except (ValueError, RecursionError):
        document = None
    match document:
        case {
            "version": 1,
            "genesis_hash": str(chain),
            "vote_key": str(key),
            "epoch": int(epoch),
            "view": int(view),
        }:
            pass
        case _:
            raise ConfigError(f"{file}: not a watermark; `dekube node guard export` makes one")
    try:
        mark = Watermark(_hex(chain, 32), _hex(key, 32), epoch, view)
    except ValueError:
        mark = None
    if (
        mark is None
        or len(document) != 5
        or isinstance(epoch, bool) or isinstance(view, bool)
        or not (0 <= epoch < EPOCH_LIMIT and 0 <= view < VIEW_LIMIT)
    ):  # fmt: skip
        raise ConfigError(f"{file}: not a watermark; `dekube node guard export` makes one")
    return mark


def _hex(text: str, size_bytes: int) -> bytes:
    data = bytes.fromhex(text.removeprefix("0x"))
    if len(data) != size_bytes:
        raise ValueError(text)
    return data


def _whose(home: Home) -> tuple[bytes, bytes]:
    """Return the chain and the vote key of a validator's home. Raises ConfigError, KeystoreError."""
    options = home.load_options()
    path = home.path(options.keys.vote)
    if not path.exists() and options.signer.endpoint:
        raise ConfigError(f"{home.root}: the guard is the signer's; on its machine: dekube signer status")
    if not path.exists():
        raise ConfigError(f"{path}: no vote key, so no guard; this home is not a validator's")
    key = open_key(path, home.passphrase_file(options.keys))
    return genesis_hash(home.load_genesis()), key.vote_key
