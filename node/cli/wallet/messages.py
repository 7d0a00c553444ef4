"""``dekube wallet sign`` and ``verify``: text messages (EIP-191) and typed data (EIP-712)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from node.cli.arguments import FILE, parse_hex
from node.cli.files import parse_json, read_text
from node.cli.option_conflicts import only_with
from node.cli.options import confirm_at_terminal, read_input
from node.cli.output import json_option, show_fields
from node.cli.session import Session, signing_options, wallet_options
from state.primitives.address import format_address
from state.primitives.errors import DecodeError, SignatureInvalid
from state.primitives.signing import personal_digest, recover_wallet_signature, wallet_form
from state.primitives.typed_data import TYPED_DATA_LIMIT_BYTES, parse_typed_data

__all__ = ["sign", "verify"]

_Function = TypeVar("_Function", bound=Callable[..., Any])
MESSAGE_LIMIT_BYTES: Final = 1024 * 1024
EXPECTED: Final = "typed data (EIP-712): an object with types, primaryType, domain and message"


def _message_options(function: _Function) -> _Function:
    for option in (
        click.option("--typed", "typed_file", type=FILE, help="Typed data (EIP-712) in a JSON file."),
        click.option("--hex", "is_hex", is_flag=True, help="Read MESSAGE as bytes in 0x hex."),
        click.option("--file", "message_file", type=FILE, help="Read the message from this file."),
    ):
        function = option(function)
    return function


def _digest(
    message: str | None, message_file: Path | None, is_hex: bool, typed_file: Path | None, *, shows: bool = False
) -> bytes:
    """Return the digest to sign: of typed data, which is shown on standard error, or of a text message
    (EIP-191).
    """
    if sum(given is not None for given in (message, message_file, typed_file)) != 1:
        raise click.UsageError("give exactly one of MESSAGE, --file and --typed")
    if typed_file is not None:
        text = read_text(typed_file, TYPED_DATA_LIMIT_BYTES, EXPECTED)
        parse_json(text.encode(), str(typed_file), EXPECTED)  # what is no JSON is told with its line
        try:
            typed = parse_typed_data(text)
        except DecodeError as error:
            raise DecodeError(f"{typed_file}: {error}") from None
        if shows:
            parts = {"domain": typed.domain, "primaryType": typed.primary_type, "message": typed.message}
            click.echo(json.dumps(parts, indent=2), err=True)  # as ASCII: nothing of it reaches the terminal raw
        return typed.digest
    if message_file is not None:
        return personal_digest(read_input(message_file, MESSAGE_LIMIT_BYTES))
    assert message is not None
    if not is_hex:
        return personal_digest(message.encode(errors="surrogateescape"))
    return personal_digest(parse_hex(message, "MESSAGE"))


@only_with(("--hex",), "MESSAGE")
@only_with(("--yes",), "--typed")
@click.command()
@signing_options
@click.argument("message", required=False)
@_message_options
@click.option("--yes", "-y", is_flag=True, help="Sign typed data without asking for confirmation.")
@json_option
def sign(
    session: Session, message: str | None, message_file: Path | None, is_hex: bool, typed_file: Path | None,
    yes: bool, as_json: bool,
) -> None:  # fmt: skip
    """Sign a MESSAGE (EIP-191, personal_sign) or typed data (EIP-712).

    Typed data can authorize an order or a payment. The command shows it on standard error and, at a
    terminal, asks first.

    \b
    Examples:
      dekube wallet sign "hello" --key savings
      dekube wallet sign --typed permit.json --key savings
    """
    passphrase_first = session.key() if str(session.passphrase_file) == "-" else None
    digest = _digest(message, message_file, is_hex, typed_file, shows=True)
    if typed_file is not None and not yes:
        confirm_at_terminal("Sign it?")
    key = passphrase_first or session.key()
    signature = wallet_form(key.sign(digest))
    show_fields({"address": format_address(key.address), "signature": signature}, as_json=as_json)


@only_with(("--hex",), "MESSAGE")
@click.command()
@wallet_options
@click.argument("address")
@click.argument("signature")
@click.argument("message", required=False)
@_message_options
@json_option
def verify(
    session: Session, address: str, signature: str, message: str | None, message_file: Path | None, is_hex: bool,
    typed_file: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Verify that ADDRESS signed MESSAGE with SIGNATURE.

    ADDRESS may be the name of a wallet account. The exit status is 1 if the signature does not match.

    \b
    Example:
      dekube wallet verify 0xADDRESS 0xSIGNATURE "hello"
    """
    who = session.address(address, known=False)
    digest = _digest(message, message_file, is_hex, typed_file)
    try:
        found = recover_wallet_signature(digest, bytes.fromhex(signature.removeprefix("0x")))
    except ValueError:
        raise SignatureInvalid("SIGNATURE is not a valid signature; give 0x and 65 bytes in hex") from None
    valid = found == who
    show_fields({"valid": valid, "signer": format_address(found)}, as_json=as_json)
    if not valid:
        raise click.exceptions.Exit(1)
