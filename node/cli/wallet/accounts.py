"""``dekube wallet new``, ``import``, ``list``, ``address`` and ``export``: accounts in keystore files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from node.cli.arguments import FILE, OUTPUT_FILE, PathName, WholeNumber
from node.cli.option_conflicts import not_with, only_with
from node.cli.options import ask_new_passphrase, open_key, read_secret
from node.cli.output import json_option, show_fields, show_rows
from node.cli.session import Session, new_key_options, wallet_options
from node.cli.terminal import STDIO
from node.home.files import write_private
from node.home.keyring import (
    MNEMONIC_WORDS,
    Keyring,
    key_at_path,
    new_mnemonic,
    parse_path,
    parse_secret,
    random_key,
)
from node.home.keys import save_key
from state.primitives.address import format_address
from state.primitives.errors import ConfigError
from state.primitives.hd import INDEX_MAX, ethereum_path

__all__ = ["address", "export", "import_", "list_", "new"]

_IN_A_FILE: Final = "put it into a file of mode 0600"


class _HdPath(click.ParamType[str]):
    """A path from the seed to a key (BIP-32), as in ``parse_path``."""

    name = "path"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text unchanged."""
        try:
            parse_path(str(value))
        except ConfigError as error:
            self.fail(str(error), param, ctx)
        return str(value)


_path_option: Final = click.option(
    "--path", metavar="PATH", type=_HdPath(),
    help="BIP-32 path of the account. Ledger Live: m/44'/60'/N'/0/0; older Ledger: "
"m/44'/60'/0'/N.  [default: m/44'/60'/0'/0/0]",
)  # fmt: skip


@only_with(("--mnemonic-file", "--path"), "--words")
@click.command()
@new_key_options
@click.argument("name")
@click.option("--words", type=click.Choice([str(count) for count in MNEMONIC_WORDS]),
              help="Derive the account from a new mnemonic of this many words.")  # fmt: skip
@click.option(
    "--mnemonic-file", type=FILE,
    help='Write the mnemonic to this new file; "-" writes it alone to standard output. '
'Default: show it.',
)  # fmt: skip
@_path_option
@json_option
def new(
    session: Session, name: str, words: str | None, mnemonic_file: Path | None, path: str | None, as_json: bool
) -> None:
    """Create a new account NAME.

    Without --words, the keystore file is the only copy of the key. With --words, the mnemonic restores the
    account (path m/44'/60'/0'/0/0, or --path). Write the words down and keep them secret.

    \b
    Examples:
      dekube wallet new savings
      dekube wallet new savings --words 12
    """
    place = _check_absent(session.keyring.place(name))
    is_alone = str(mnemonic_file) == STDIO and not as_json
    file = None if str(mnemonic_file) == STDIO else mnemonic_file
    if file is not None:
        _check_absent(file)
    text = "" if words is None else new_mnemonic(int(words))
    made = key_at_path(text, parse_path(path) if path else ethereum_path(0)) if text else random_key()
    passphrase = ask_new_passphrase(session.passphrase_file)
    if file is not None:
        write_private(file, text + "\n")
    elif is_alone:
        click.echo(text)  # before the account is made, as a file would be: there is none without its words
    save_key(place, made, passphrase)
    fields: dict[str, Any] = {"address": format_address(made.address), "file": str(place)}
    if path is not None:
        fields["path"] = path
    if text and file is None and not is_alone:
        fields["mnemonic"] = text
    show_fields(fields, as_json=as_json, err=is_alone)


@only_with(("--keystore-passphrase-file",), "--keystore")
@only_with(("--index", "--path", "--extra"), "--mnemonic", "--mnemonic-file")
@not_with(("--index",), "--path")
@click.command(name="import")
@new_key_options
@click.argument("name")
@click.option("--keystore", type=PathName(), help="Import this keystore file.")
@click.option(
    "--keystore-passphrase-file", type=FILE, help="File with the passphrase of --keystore. Default: prompt."
)
@click.option("--mnemonic", "is_mnemonic", is_flag=True, help="Prompt for a mnemonic.")
@click.option("--mnemonic-file", type=FILE, help="Read the mnemonic from this file.")
@click.option("--index", type=WholeNumber(0, INDEX_MAX),
              help="Number of the mnemonic's account: m/44'/60'/0'/0/INDEX.  [default: 0]")  # fmt: skip
@_path_option
@click.option("--extra", "asks_extra", is_flag=True, help="Prompt for the mnemonic's own passphrase (BIP-39).")
@click.option("--secret-file", type=FILE, help="Read the secret key (64 hex digits) from this file.")
@json_option
def import_(
    session: Session, name: str, keystore: Path | None, keystore_passphrase_file: Path | None, is_mnemonic: bool,
    mnemonic_file: Path | None, index: int | None, path: str | None, asks_extra: bool, secret_file: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Import an existing key as the account NAME.

    Default: prompt for the secret key (64 hex digits, not echoed).

    \b
    Examples:
      dekube wallet import savings
      dekube wallet import savings --mnemonic --index 1
      dekube wallet import savings --keystore other.json
    """
    place = _check_absent(session.keyring.place(name))
    is_mnemonic = is_mnemonic or mnemonic_file is not None
    if sum((keystore is not None, is_mnemonic, secret_file is not None)) > 1:
        raise click.UsageError("give at most one of --keystore, --mnemonic and --secret-file")
    if keystore is not None:
        made = open_key(keystore, keystore_passphrase_file)
    elif is_mnemonic:
        text = read_secret(mnemonic_file, "Mnemonic", instead=f"{_IN_A_FILE} (--mnemonic-file)")
        extra = ""
        if asks_extra:
            extra = read_secret(
                None, "Passphrase of the mnemonic", instead="put it into the line after the mnemonic"
            )
        made = key_at_path(text, parse_path(path) if path else ethereum_path(index or 0), extra=extra)
    else:
        asked = "Secret key (64 hex digits)"
        made = parse_secret(read_secret(secret_file, asked, instead=f"{_IN_A_FILE} (--secret-file)"))
    save_key(place, made, ask_new_passphrase(session.passphrase_file))
    fields = {"address": format_address(made.address), "file": str(place)}
    show_fields(fields | ({} if path is None else {"path": path}), as_json=as_json)


def _check_absent(place: Path) -> Path:
    """Return ``place`` if it does not exist; called before any prompt for a secret. Raises ConfigError."""
    if place.exists():
        raise ConfigError(f"{place}: exists already; nothing was changed")
    return place


@not_with(("--home",), "FOLDER")
@click.command(name="list")
@wallet_options
@click.argument("folder", type=PathName(file_okay=False, exists=True), required=False)
@json_option
def list_(session: Session, folder: Path | None, as_json: bool) -> None:
    """List the wallet's accounts, or the keystore files in FOLDER.

    \b
    Example:
      dekube wallet list
    """
    found = (session.keyring if folder is None else Keyring(folder.absolute())).accounts()
    rows = [{"name": a.name, "address": format_address(a.address), "file": str(a.file)} for a in found]
    show_rows(rows, ["name", "address", "file"], as_json=as_json, title="Accounts")


@click.command()
@wallet_options
@click.argument("name", required=False)
@json_option
def address(session: Session, name: str | None, as_json: bool) -> None:
    """Show the address of the account NAME without opening its key.

    Default: the account of the node in --home, else the only account.

    \b
    Example:
      dekube wallet address savings
    """
    show_fields({"address": format_address(session.address(name))}, as_json=as_json)


@only_with(("--new-passphrase-file",), "--out")
@click.command()
@new_key_options
@click.argument("name", required=False)
@click.option(
    "--out",
    type=OUTPUT_FILE,
    help="Write a keystore file with a new passphrase.",
)
@click.option("--new-passphrase-file", type=FILE, help="File with the new passphrase. Default: prompt.")
@click.option("--reveal-secret", is_flag=True, help="Print the secret key and the vote key in plain text.")
@json_option
def export(
    session: Session, name: str | None, out: Path | None, new_passphrase_file: Path | None, reveal_secret: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Export the account NAME as a keystore file or as its secret key.

    Default: the account of the node in --home, else the only account.

    \b
    Examples:
      dekube wallet export savings --out savings.json
      dekube wallet export savings --reveal-secret
    """
    if (out is None) == (not reveal_secret):
        raise click.UsageError("give either --out FILE or --reveal-secret.")
    if out is not None:
        _check_absent(out)
    key = session.key(name)
    fields: dict[str, Any] = {"address": format_address(key.address)}
    if out is not None:
        save_key(out, key, ask_new_passphrase(new_passphrase_file))
        fields["file"] = str(out)
    else:
        fields |= {"vote_key": key.vote_key, "secret": key.secret}
    show_fields(fields, as_json=as_json)
