"""``dekube key``: keystore v3 files, as geth, cast and every wallet write and read them."""

from __future__ import annotations

import secrets
from pathlib import Path

import click

from node.cli.options import ask_new_passphrase, ask_passphrase, open_key
from node.cli.output import json_option, show_fields, show_rows
from node.home import read_keystore, save_key
from state.primitives.address import format_address, parse_address
from state.primitives.errors import DecodeError, KeystoreError, SignatureInvalid
from state.primitives.hashing import keccak
from state.primitives.keys import SecretKey, recover_address
from state.primitives.keystore import decrypt_keystore, keystore_address

__all__ = ["key", "random_key"]

_passphrase_file = click.option(
    "--passphrase-file",
    type=click.Path(path_type=Path),
    help="File (mode 0600) with the passphrase; else it is asked for.",
)
_file = click.argument("file", type=click.Path(path_type=Path))


@click.group()
def key() -> None:
    """Make, import, show and use keys (Ethereum keystore v3 files)."""


@key.command()
@_file
@_passphrase_file
@json_option
def new(file: Path, passphrase_file: Path | None, as_json: bool) -> None:
    """Make a new key and write it to FILE."""
    made = random_key()
    save_key(file, made, ask_new_passphrase(passphrase_file))
    show_fields({"address": format_address(made.address), "file": str(file)}, as_json=as_json)


@key.command(name="import")
@_file
@click.option("--keystore", type=click.Path(path_type=Path), help="Import from another keystore file.")
@_passphrase_file
@json_option
def import_(file: Path, keystore: Path | None, passphrase_file: Path | None, as_json: bool) -> None:
    """Write an existing key to FILE: from another keystore, or 64 hex digits that are asked for (not shown)."""
    if keystore is not None:
        made = decrypt_keystore(read_keystore(keystore), ask_passphrase(None, f"Passphrase of {keystore.name}"))
    else:
        text = str(click.prompt("Secret key (64 hex digits)", hide_input=True, err=True))
        try:
            made = SecretKey(bytes.fromhex(text.strip().removeprefix("0x")))
        except (ValueError, DecodeError):
            raise KeystoreError("not a secret key: 64 hex digits expected") from None
    save_key(file, made, ask_new_passphrase(passphrase_file))
    show_fields({"address": format_address(made.address), "file": str(file)}, as_json=as_json)


@key.command()
@_file
@_passphrase_file
@click.option("--reveal-secret", is_flag=True, help="Open the file and show the secret key. Mind who looks on.")
@json_option
def show(file: Path, passphrase_file: Path | None, reveal_secret: bool, as_json: bool) -> None:
    """Show the address and the vote key of FILE."""
    named = keystore_address(read_keystore(file))
    if named is not None and not reveal_secret:
        show_fields({"address": format_address(named), "file": str(file)}, as_json=as_json)
        return
    opened = open_key(file, passphrase_file)
    fields = {"address": format_address(opened.address), "vote_key": opened.vote_key, "file": str(file)}
    if reveal_secret:
        fields["secret"] = opened.secret
    show_fields(fields, as_json=as_json)


@key.command(name="list")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False, exists=True))
@json_option
def list_(folder: Path, as_json: bool) -> None:
    """List the keystore files in FOLDER."""
    rows = []
    for path in sorted(folder.iterdir()):
        try:
            named = keystore_address(read_keystore(path)) if path.is_file() else None
        except KeystoreError:
            continue
        if named is not None:
            rows.append({"file": path.name, "address": format_address(named)})
    show_rows(rows, ["file", "address"], as_json=as_json, title="Keys")


@key.command()
@_file
@click.argument("message")
@_passphrase_file
@json_option
def sign(file: Path, message: str, passphrase_file: Path | None, as_json: bool) -> None:
    """Sign MESSAGE with the key in FILE, as wallets do (EIP-191, personal_sign)."""
    opened = open_key(file, passphrase_file)
    signature = opened.sign(_personal_digest(message))
    # Wallets write the recovery id as 27 or 28.
    wallet_form = signature[:64] + bytes([signature[64] + 27])
    show_fields({"address": format_address(opened.address), "signature": wallet_form}, as_json=as_json)


@key.command()
@click.argument("address")
@click.argument("signature")
@click.argument("message")
@json_option
def verify(address: str, signature: str, message: str, as_json: bool) -> None:
    """Check that SIGNATURE of MESSAGE is ADDRESS's (EIP-191); exit status 1 when it is not."""
    try:
        raw = bytes.fromhex(signature.removeprefix("0x"))
        recovery = raw[64:] if raw[64:] in (b"\0", b"\1") else bytes([max(raw[64] - 27, 0)])
        found = recover_address(_personal_digest(message), raw[:64] + recovery)
    except (ValueError, IndexError, SignatureInvalid):
        raise SignatureInvalid("not a signature of any key: 65 bytes of hex expected") from None
    valid = found == parse_address(address)
    show_fields({"valid": valid, "signer": format_address(found)}, as_json=as_json)
    if not valid:
        raise click.exceptions.Exit(1)


def _personal_digest(message: str) -> bytes:
    data = message.encode()
    return keccak(b"\x19Ethereum Signed Message:\n" + str(len(data)).encode() + data)


def random_key() -> SecretKey:
    """Return a key drawn from the system's randomness."""
    while True:
        try:
            return SecretKey(secrets.token_bytes(32))
        except DecodeError:  # zero or not below the group's order: one in 2^128
            continue
