"""``dekube wallet``: accounts in keystore files, payments, contracts, signatures, and news of them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from node.cli.commands import Commands
from node.cli.options import (
    AMOUNT,
    FEE,
    SECONDS,
    ask_line,
    ask_new_passphrase,
    open_key,
    read_input,
)
from node.cli.output import counted, json_option, show, show_amount, show_fields, show_gwei, show_rows, show_time
from node.cli.patience import NotFinal, TellingClient
from node.cli.session import Session, session_options
from node.cli.terminal import printable_lines
from node.home import save_key, write_private
from node.keyring import (
    MNEMONIC_WORDS,
    Keyring,
    key_at_path,
    new_mnemonic,
    parse_path,
    parse_secret,
    random_key,
)
from rpc.client import Client, ClientError, GatewayUnreachable
from rpc.client.contracts import functions_of, parse_argument, shown
from rpc.client.core import hexed
from rpc.client.shapes import HistoryEntry, Receipt, Transaction
from state.primitives.address import format_address, parse_address
from state.primitives.errors import ConfigError, DecodeError, SignatureInvalid
from state.primitives.hd import INDEX_MAX, ethereum_path
from state.primitives.signing import personal_digest, recover_wallet_signature, wallet_form
from state.primitives.transactions import CALL_KIND, decode_transaction
from state.primitives.typed_data import TYPED_DATA_LIMIT_BYTES, parse_typed_data

__all__ = ["wallet"]

_Function = TypeVar("_Function", bound=Callable[..., Any])
HISTORY_MAX: Final = 1_000
_IN_A_FILE: Final = "it can stand in a file of mode 0600"
MESSAGE_LIMIT_BYTES: Final = 1024 * 1024
STDOUT: Final = "-"
NOBODY: Final = bytes(20)
"""The address that takes and never gives: no key has it."""
_BYTES: Final = re.compile(r"0[xX](?:[0-9a-fA-F]{2})*")
_MORE_THAN_ADDRESS: Final = re.compile(r"0[xX][0-9a-fA-F]{41,}")
_NATURAL: Final = re.compile(r"[0-9]{1,80}")
_file_type: Final = click.Path(path_type=Path, allow_dash=True)


class _HdPath(click.ParamType[str]):
    """A path from the seed to a key (BIP-32), as ``parse_path`` reads it."""

    name = "path"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text itself."""
        try:
            parse_path(str(value))
        except ConfigError as error:
            self.fail(str(error), param, ctx)
        return str(value)


_path_option: Final = click.option(
    "--path", metavar="PATH", type=_HdPath(),
    help="Of the mnemonic's accounts this one (BIP-32): m/44'/60'/N'/0/0 is Ledger Live's, m/44'/60'/0'/N that of "
    "Ledger before it.  [default: m/44'/60'/0'/0/0]",
)  # fmt: skip


@click.group(cls=Commands)
def wallet() -> None:
    """Keep accounts, send, call contracts, sign, and follow what happens.

    Accounts are keystore files (Ethereum's v3, as geth, cast and MetaMask read and write them) in the folder
    wallet/ of --home; NAME is one of them, an address among them, or any keystore file. Secrets are asked for, or
    read from files; "-" is standard input. None is ever an argument.

    \b
    Examples:
      dekube wallet new savings --words 12
      dekube wallet send 0x52908400098527886E0F7030069857D2E4169EE7 1.5 --key savings
      dekube wallet call staking stakeOf 0x52908400098527886E0F7030069857D2E4169EE7
      dekube wallet watch savings
    """


# Accounts


@wallet.command()
@session_options
@click.argument("name")
@click.option("--words", type=click.Choice([str(count) for count in MNEMONIC_WORDS]),
              help="Derive it from a fresh mnemonic of so many words: the backup of the account.")  # fmt: skip
@click.option(
    "--mnemonic-file", type=_file_type,
    help='Write the mnemonic to this new file instead of showing it; "-": it alone to standard output, all else '
    "to standard error (with --json it is in the document).",
)  # fmt: skip
@_path_option
@json_option
def new(
    session: Session, name: str, words: str | None, mnemonic_file: Path | None, path: str | None, as_json: bool
) -> None:
    """Make a new account NAME.

    Without --words its file is the only copy. With it, whoever has the words has the account (path
    m/44'/60'/0'/0/0, or --path): write them down, and keep them from others.
    """
    if words is None and (mnemonic_file is not None or path is not None):
        raise click.UsageError("--mnemonic-file and --path go with --words.")
    place = _free(session.keyring.place(name))
    is_alone = str(mnemonic_file) == STDOUT and not as_json
    file = None if str(mnemonic_file) == STDOUT else mnemonic_file
    if file is not None:
        _free(file)
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


@wallet.command(name="import")
@session_options
@click.argument("name")
@click.option("--keystore", type=click.Path(path_type=Path), help="From another keystore file.")
@click.option(
    "--keystore-passphrase-file", type=_file_type, help="File with its passphrase; else it is asked for."
)
@click.option("--mnemonic", "is_mnemonic", is_flag=True, help="From a mnemonic that is asked for.")
@click.option("--mnemonic-file", type=_file_type, help="From the mnemonic in this file.")
@click.option("--index", type=click.IntRange(0, INDEX_MAX),
              help="Of the mnemonic's accounts this one: m/44'/60'/0'/0/INDEX.  [default: 0]")  # fmt: skip
@_path_option
@click.option("--extra", "asks_extra", is_flag=True, help="The mnemonic has a passphrase of its own: ask for it.")
@click.option("--secret-file", type=_file_type, help="From the 64 hex digits in this file.")
@json_option
def import_(
    session: Session, name: str, keystore: Path | None, keystore_passphrase_file: Path | None, is_mnemonic: bool,
    mnemonic_file: Path | None, index: int | None, path: str | None, asks_extra: bool, secret_file: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Make an account NAME of an existing key: by default of 64 hex digits that are asked for (not shown)."""
    place = _free(session.keyring.place(name))
    is_mnemonic = is_mnemonic or mnemonic_file is not None
    if sum((keystore is not None, is_mnemonic, secret_file is not None)) > 1:
        raise click.UsageError("one of --keystore, --mnemonic and --secret-file at most")
    if (index is not None or path is not None or asks_extra) and not is_mnemonic:
        raise click.UsageError("--index, --path and --extra go with a mnemonic.")
    if index is not None and path is not None:
        raise click.UsageError("one of --index and --path at most")
    if keystore is not None:
        made = open_key(keystore, keystore_passphrase_file)
    elif is_mnemonic:
        text = ask_line(mnemonic_file, "Mnemonic", instead=f"{_IN_A_FILE} (--mnemonic-file)")
        extra = ""
        if asks_extra:
            extra = ask_line(None, "Passphrase of the mnemonic", instead="it is the line after the mnemonic's")
        made = key_at_path(text, parse_path(path) if path else ethereum_path(index or 0), extra=extra)
    else:
        asked = "Secret key (64 hex digits)"
        made = parse_secret(ask_line(secret_file, asked, instead=f"{_IN_A_FILE} (--secret-file)"))
    save_key(place, made, ask_new_passphrase(session.passphrase_file))
    fields = {"address": format_address(made.address), "file": str(place)}
    show_fields(fields | ({} if path is None else {"path": path}), as_json=as_json)


def _free(place: Path) -> Path:
    """Return ``place`` if nothing is there: asked before any secret is. Raises ConfigError."""
    if place.exists():
        raise ConfigError(f"{place}: exists already; nothing was changed")
    return place


@wallet.command(name="list")
@session_options
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False, exists=True), required=False)
@json_option
def list_(session: Session, folder: Path | None, as_json: bool) -> None:
    """List the accounts, or the keystore files in FOLDER."""
    found = (session.keyring if folder is None else Keyring(folder.absolute())).accounts()
    rows = [{"name": a.name, "address": format_address(a.address), "file": str(a.file)} for a in found]
    show_rows(rows, ["name", "address", "file"], as_json=as_json, title="Accounts")


@wallet.command()
@session_options
@click.argument("name", required=False)
@json_option
def address(session: Session, name: str | None, as_json: bool) -> None:
    """Show the address of an account, without opening it."""
    show_fields({"address": format_address(session.address(name))}, as_json=as_json)


@wallet.command()
@session_options
@click.argument("name", required=False)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Write a keystore file for another wallet, with a new passphrase.",
)
@click.option("--new-passphrase-file", type=_file_type, help="File with its passphrase; else it is asked for.")
@click.option("--reveal-secret", is_flag=True, help="Show the secret key, and the vote key. Mind who looks on.")
@json_option
def export(
    session: Session, name: str | None, out: Path | None, new_passphrase_file: Path | None, reveal_secret: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Give an account to another wallet: as a keystore file, or as its secret."""
    if (out is None) == (not reveal_secret):
        raise click.UsageError("--out FILE or --reveal-secret says how.")
    if str(out) == STDOUT:
        raise click.UsageError("--out takes the name of a new file, not standard output.")
    if out is not None:
        _free(out)
    key = session.key(name)
    fields: dict[str, Any] = {"address": format_address(key.address)}
    if out is not None:
        save_key(out, key, ask_new_passphrase(new_passphrase_file))
        fields["file"] = str(out)
    else:
        fields |= {"vote_key": key.vote_key, "secret": key.secret}
    show_fields(fields, as_json=as_json)


# Messages


def _message_options(function: _Function) -> _Function:
    for option in (
        click.option("--typed", "typed_file", type=_file_type, help="Typed data (EIP-712) in a JSON file."),
        click.option("--hex", "is_hex", is_flag=True, help="MESSAGE is bytes in 0x hex."),
        click.option("--file", "message_file", type=_file_type, help="The message is the content of this file."),
    ):
        function = option(function)
    return function


def _digest(
    message: str | None, message_file: Path | None, is_hex: bool, typed_file: Path | None, *, shows: bool = False
) -> bytes:
    """Return what is signed: of typed data, shown on standard error, or of a message to people (EIP-191)."""
    if sum(given is not None for given in (message, message_file, typed_file)) != 1:
        raise click.UsageError("one of MESSAGE, --file and --typed is expected")
    if typed_file is not None:
        raw = read_input(typed_file, TYPED_DATA_LIMIT_BYTES)
        try:
            typed = parse_typed_data(raw.decode())
        except UnicodeDecodeError:
            raise DecodeError("typed data: not UTF-8") from None
        if shows:
            parts = {"domain": typed.domain, "primaryType": typed.primary_type, "message": typed.message}
            click.echo(json.dumps(parts, indent=2), err=True)  # as ASCII: nothing of it reaches the terminal raw
        return typed.digest
    if message_file is not None:
        return personal_digest(read_input(message_file, MESSAGE_LIMIT_BYTES))
    assert message is not None
    if not is_hex:
        return personal_digest(message.encode(errors="surrogateescape"))
    return personal_digest(_hex(message, "MESSAGE"))


def _hex(text: str, name: str) -> bytes:
    if not _BYTES.fullmatch(text):
        raise click.BadParameter("0x and hex digits expected", param_hint=name)
    return bytes.fromhex(text[2:])


def _hash(text: str, name: str) -> bytes:
    found = _hex(text, name)
    if len(found) != 32:
        raise click.BadParameter("0x and 64 hex digits expected", param_hint=name)
    return found


@wallet.command()
@session_options
@click.argument("message", required=False)
@_message_options
@click.option("--yes", "-y", is_flag=True, help="Do not ask before typed data is signed.")
@json_option
def sign(
    session: Session, message: str | None, message_file: Path | None, is_hex: bool, typed_file: Path | None,
    yes: bool, as_json: bool,
) -> None:  # fmt: skip
    """Sign MESSAGE as wallets do (EIP-191, personal_sign), or typed data (EIP-712).

    Typed data can be an order or a permit: it is shown on standard error, and at a terminal you are asked first.
    """
    passphrase_first = session.key() if str(session.passphrase_file) == "-" else None
    digest = _digest(message, message_file, is_hex, typed_file, shows=True)
    if typed_file is not None and not yes:
        _ask_whether("Sign it?")
    key = passphrase_first or session.key()
    signature = wallet_form(key.sign(digest))
    show_fields({"address": format_address(key.address), "signature": signature}, as_json=as_json)


@wallet.command()
@click.argument("address")
@click.argument("signature")
@click.argument("message", required=False)
@_message_options
@json_option
def verify(
    address: str, signature: str, message: str | None, message_file: Path | None, is_hex: bool,
    typed_file: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Check that SIGNATURE of MESSAGE is ADDRESS's; exit status 1 when it is not."""
    try:
        who = parse_address(address)
    except DecodeError as error:
        raise DecodeError(f"ADDRESS: {error}; `dekube wallet address NAME` shows that of an account") from None
    digest = _digest(message, message_file, is_hex, typed_file)
    try:
        found = recover_wallet_signature(digest, bytes.fromhex(signature.removeprefix("0x")))
    except ValueError:
        raise SignatureInvalid("not a signature of any key: 65 bytes of hex expected") from None
    valid = found == who
    show_fields({"valid": valid, "signer": format_address(found)}, as_json=as_json)
    if not valid:
        raise click.exceptions.Exit(1)


# Money


@wallet.command()
@session_options
@click.argument("name", required=False)
@click.option("--verify", "proves", is_flag=True,
              help="Check the proof against the validators' signatures: believe no gateway.")  # fmt: skip
@click.option("--genesis", type=click.Path(path_type=Path),
              help="With --verify: trust this genesis, where `dekube light init` has not begun.")  # fmt: skip
@json_option
def balance(session: Session, name: str | None, proves: bool, genesis: Path | None, as_json: bool) -> None:
    """Show the account NAME, or any ADDRESS: what it owns, its nonces and its stake."""
    who = session.address(name, known=False)
    if proves:
        fields = _proven(session, who, genesis)
        title = "Account (proven)"
    else:
        with session.client() as client:
            fields, title = dict(client.account(who).document), ""
    if not as_json:
        fields["balance"] = show_amount(int(fields["balance"]))
        if (stamp := fields.pop("at", None)) is not None:
            fields["height"] = stamp["height"]
        if fields.get("stake") is not None:
            fields["stake"] = show_amount(int(fields["stake"]["amount"]))
        if "unbonding" in fields:
            fields["unbonding"] = [
                f"{show_amount(int(item['amount']))} on {show_time(item['release_time_ms'])}"
                for item in fields["unbonding"]
            ] or None
    show_fields(fields, as_json=as_json, title=title)


def _proven(session: Session, who: bytes, genesis: Path | None) -> dict[str, Any]:
    """Return an account as the light client proves it; it goes on where `dekube light` is."""
    from node.cli.light import FILE, begin, open_light
    from node.home import load_genesis

    place = session.home.root / "light" / FILE
    urls = session.gateways()
    if not place.exists():
        file = genesis or session.home.genesis
        if not file.exists():
            raise ConfigError("--genesis FILE says what is trusted; or begin with `dekube light init`")
        begin(place, load_genesis(file), urls)
    with open_light(place, urls) as node:
        found = node.account(who)
    return {
        "address": format_address(who),
        "balance": str(found.account.balance),
        "nonce": found.account.nonce,
        "height": found.height,
        "block": found.block_hash,
        "endpoint": found.source,
    }


def _offer_options(function: _Function) -> _Function:
    for option in (
        click.option("--yes", "-y", is_flag=True, help="Do not ask before it is handed in."),
        click.option("--tip", type=FEE, help="Offered to the leader for a unit of gas, within --max-fee."),
        click.option("--max-fee", type=FEE, help="The most for a unit of gas: 2.5gwei, 1500wei."),
        click.option("--nonce", type=click.IntRange(0, 2**48),
                     help="Else the next one. That of a transaction that waits, with a fee a tenth above its own, "
                     "takes its place."),
    ):  # fmt: skip
        function = option(function)
    return function


def _hand_in(client: Client, raw: bytes, what: dict[str, Any], *, yes: bool) -> Receipt:
    """Show what ``raw`` does and costs, ask where somebody is there to answer, and return its receipt.

    ``what`` says of a call which one its data is, of a payment whose account TO names. Raises as ``wait``.
    """
    assert isinstance(client, TellingClient)  # as a session's are
    signed, chain = decode_transaction(raw), client.chain()
    sender = signed.recover_sender()
    behind = _behind(client, sender, signed.nonce)
    fee, limit = signed.max_fee_per_gas, signed.gas_limit
    to, amount = signed.payload[:2]  # of a transfer and of a call alike
    shown_first = {
        "chain": f"{chain.name} ({signed.chain_id})",
        "from": format_address(sender),
        "to": format_address(to),
        **what,
        "amount": show_amount(amount),
        "fee": f"at most {show_amount(fee * limit)} ({limit} gas, {show_gwei(fee)} each)",
        "nonce": f"{signed.nonce}, which waits for {behind}" if behind else signed.nonce,
    }
    show_fields(shown_first, as_json=False, title="To be signed", err=True)
    if not yes:
        _ask_whether("Hand it in?")
    try:
        return client.hand_in(raw, behind=behind)
    except NotFinal as error:
        with suppress(ClientError, GatewayUnreachable):  # then what was so before still has to do
            behind = _behind(client, sender, signed.nonce)
        if not behind:
            raise
        raise NotFinal(f"{error}: it waits for {behind} of {format_address(sender)}", hash_=error.hash) from None


def _behind(client: Client, sender: bytes, nonce: int) -> str:
    """Return the nonces that ``sender`` has to use before ``nonce``, in words; empty where there are none."""
    first = client.account(sender).pending_nonce
    if first >= nonce:
        return ""
    return f"nonces {first} to {nonce - 1}" if first < nonce - 1 else f"nonce {first}"


def _ask_whether(question: str) -> None:
    """Go on if somebody at a terminal says so; scripts are not asked."""
    if sys.stdin.isatty() and sys.stderr.isatty():
        click.confirm(question, abort=True, err=True)


@wallet.command()
@session_options
@click.argument("to")
@click.argument("amount", type=AMOUNT)
@_offer_options
@click.option("--burn", is_flag=True, help="Send to the address of zeros, whose coins are lost.")
@json_option
def send(
    session: Session, to: str, amount: int, nonce: int | None, max_fee: int | None, tip: int | None, yes: bool,
    burn: bool, as_json: bool,
) -> None:  # fmt: skip
    """Send AMOUNT (1.5 is 1.5 DKB; 1500wei the smallest unit) to TO, an address or NAME; return when it is final.

    What it costs is shown on standard error, and at a terminal you are asked before it leaves. A payment that
    waits because its fee is too low is replaced by sending it again with its --nonce and a higher --max-fee.
    """
    from state.transition.transfer import TRANSFER_KIND  # its rule weighs more than the client

    if not to:
        raise click.BadParameter("an address or the name of an account expected", param_hint="TO")
    who = session.address(to, known=False)
    if (who == NOBODY) != burn:
        raise click.UsageError(
            "--burn goes with the address of zeros alone." if burn else
            f"coins sent to {format_address(who)} are lost, nobody has its key; --burn sends them all the same"
        )  # fmt: skip
    what = {} if to.startswith("0x") else {"to": f"{format_address(who)} ({to})"}
    key = session.key()
    with session.client() as client:
        raw = client.sign(
            key, TRANSFER_KIND, [who, amount],
            nonce=nonce, max_fee_per_gas=max_fee, max_priority_fee_per_gas=tip,
        )  # fmt: skip
        receipt = _hand_in(client, raw, what, yes=yes)
    show_receipt(receipt, as_json)


@wallet.command()
@session_options
@click.argument("name", required=False)
@click.option("--from", "url", required=True, metavar="URL", help="The faucet, such as http://127.0.0.1:26621.")
@json_option
def faucet(session: Session, name: str | None, url: str, as_json: bool) -> None:
    """Ask the faucet of a test network for coins, for the account NAME or any ADDRESS."""
    who = session.address(name, known=False)
    with TellingClient(*(session.urls or (url,))) as client:
        try:
            hash_ = client.faucet(url, who)
        except GatewayUnreachable as error:
            where = "`dekube testnet list` shows where a test network's is"
            raise GatewayUnreachable(f"{error}; no faucet answers there: {where}") from None
    show_fields({"address": format_address(who), "transaction": hash_}, as_json=as_json)
    if not as_json:
        click.echo("\nThe coins are there when that transaction is in a block (dekube wallet balance).")


@wallet.command()
@session_options
@click.argument("contract", required=False)
@click.argument("function", required=False)
@click.argument("arguments", nargs=-1)
@click.option("--value", type=AMOUNT, default="0", help="Send this along, to a function that is payable.")
@_offer_options
@json_option
def call(
    session: Session,
    contract: str | None,
    function: str | None,
    arguments: tuple[str, ...],
    value: int,
    nonce: int | None,
    max_fee: int | None,
    tip: int | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Call FUNCTION of a system CONTRACT: registry, tasks, billing or staking. Without names, list what there is.

    What only reads is answered at once; what writes is sent as a transaction, signed with --key, and shown when it
    is final. Integers are decimal or 0x, bytes are 0x hex.

    \b
    Examples:
      dekube wallet call staking
      dekube wallet call staking minimumStake
      dekube wallet call staking unstake 1000000000000000000 --key savings
    """
    with session.client() as client:
        if contract is None or function is None:
            _list_functions(client, contract, as_json)
            return
        wanted = client.function(contract, function)
        if len(arguments) != len(wanted.inputs):
            raise ConfigError(f"{wanted} takes {counted(len(wanted.inputs), 'argument')}, not {len(arguments)}")
        values = [parse_argument(*pair) for pair in zip(wanted.inputs, arguments, strict=True)]
        if wanted.is_view:
            if value:
                raise ConfigError(f"{wanted} only reads: it takes no value")
            show_fields(shown(wanted.outputs, client.view(wanted, values)), as_json=as_json)
            return
        raw = client.sign_call(
            session.key(), wanted.address, value=value, data=wanted.encode(values),
            nonce=nonce, max_fee_per_gas=max_fee, max_priority_fee_per_gas=tip,
        )  # fmt: skip
        what = {"contract": contract, "function": str(wanted), "arguments": list(arguments)}
        receipt = _hand_in(client, raw, what, yes=yes)
    show_receipt(receipt, as_json)


def _list_functions(client: Client, contract: str | None, as_json: bool) -> None:
    contracts = [item for item in client.contracts() if contract in (None, item.name)]
    if not contracts:
        raise ConfigError(f"no contract {contract!r}")
    rows = [
        {"contract": item.name, "function": str(found), "kind": found.mutability}
        for item in contracts
        for found in functions_of(item)
    ]
    show_rows(rows, ["contract", "function", "kind"], as_json=as_json, title="Functions")


def show_receipt(receipt: Receipt, as_json: bool) -> None:
    """Show the receipt of a final transaction."""
    if as_json:
        show(dict(receipt.document))
        return
    fields = {
        "transaction": receipt.transaction_hash,
        "height": receipt.block.height,
        "kind": receipt.kind_name or f"{receipt.kind:#x}",
        "outcome": "succeeded" if receipt.succeeded else f"failed: {receipt.reason}",
        "fee": show_amount(receipt.fee),
        "gas": receipt.gas_used,
    }
    show_fields(fields, as_json=False, title="Final")


# Looking


@wallet.command(name="tx")
@session_options
@click.argument("transaction_hash")
@json_option
def tx(session: Session, transaction_hash: str, as_json: bool) -> None:
    """Show a transaction and its receipt; exit status 1 for one that is unknown."""
    hash_ = _hash(transaction_hash, "TRANSACTION_HASH")
    with session.client() as client:
        found, receipt = client.transaction(hash_), client.receipt(hash_)
    if as_json:
        show({
            "transaction": None if found is None else found.document,
            "receipt": None if receipt is None else receipt.document,
        })  # fmt: skip
    if found is None:
        if not as_json:
            click.echo("unknown transaction")
        raise click.exceptions.Exit(1)
    if not as_json:
        show_fields(_in_coins(found), as_json=False, title="Transaction")
        if receipt is not None:
            show_receipt(receipt, False)


def _in_coins(found: Transaction) -> dict[str, Any]:
    """Return a transaction as people read it: where it stands, whom it pays, amounts and fees in their units."""
    fields: dict[str, Any] = {}
    for name, value in found.document.items():
        match name, value:
            case "raw", _:
                pass
            case "block", _:
                fields["height"] = "waits for a block" if found.block is None else found.block.height
                if found.block is not None:
                    fields["time"] = show_time(found.block.time_ms)
            case "payload", [str(to), str(amount), *rest] if _pays(found, to, amount):
                fields |= {"to": format_address(bytes.fromhex(to[2:])), "amount": show_amount(int(amount))}
                fields |= {"data": rest[0]} if rest else {}
            case ("max_fee_per_gas" | "max_priority_fee_per_gas", str(fee)) if _NATURAL.fullmatch(fee):
                fields[name] = show_gwei(int(fee))
            case _:
                fields[name] = value
    return fields


def _pays(found: Transaction, to: str, amount: str) -> bool:
    """Tell whether a transaction is a transfer, or a call, whose payload begins alike."""
    is_known = found.kind_name == "transfer" or found.kind == CALL_KIND
    return is_known and len(to) == 42 and bool(_BYTES.fullmatch(to) and _NATURAL.fullmatch(amount))


@wallet.command()
@session_options
@click.argument("name", required=False)
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, HISTORY_MAX),
              help="So many at most.")  # fmt: skip
@json_option
def history(session: Session, name: str | None, limit: int, as_json: bool) -> None:
    """Show what moved the coins of the account NAME, or any ADDRESS, the newest first.

    Transactions, and what blocks did by themselves: payouts, refunds, tips, stake that came back.
    """
    who = session.address(name, known=False)
    with session.client() as client:
        found = list(islice(client.history(who), limit))
    if as_json:
        show([entry.document for entry in found])
        return
    rows = [
        {
            "height": entry.block.height,
            "transaction": None if entry.transaction is None else entry.transaction.document["hash"],
            "kind": "the chain" if entry.transaction is None else entry.transaction.document["kind_name"],
            "changes": "; ".join(_change_text(change.document) for change in entry.changes),
        }
        for entry in found
    ]
    show_rows(rows, ("height", "kind", "changes", "transaction"), as_json=False, title="History")


@wallet.command()
@session_options
@click.argument("what", required=False)
@click.option("--timeout", "timeout_s", type=SECONDS, help="End after so many seconds.  [default: never]")
@json_option
def watch(session: Session, what: str | None, timeout_s: float | None, as_json: bool) -> None:
    """Follow an account (NAME or ADDRESS) or a transaction (HASH) live, a line for each change.

    An account is followed until Ctrl-C or --timeout; a transaction until it is final, with exit status 1 when it
    failed. With --json each line is a JSON document.
    """
    with session.client() as client:
        if what is not None and _MORE_THAN_ADDRESS.fullmatch(what):
            _watch_transaction(client, _hash(what, "WHAT"), timeout_s, as_json)
            return
        for line in _account_news(client, session.address(what, known=False), timeout_s):
            _say(line, as_json, f"height {line['height']:>7}  {_account_text(line)}")


def _account_news(client: Client, who: bytes, timeout_s: float | None) -> Iterator[dict[str, Any]]:
    before = client.account(who)
    yield {
        "height": before.at.height, "balance": str(before.balance), "nonce": before.nonce, "transactions": [],
        "changes": [],
    }  # fmt: skip
    for news in client.news("heads", from_height=before.at.height + 1, timeout_s=timeout_s):
        now = client.account(who)
        if now.at.height <= before.at.height:
            continue  # told already with a block before
        if (now.balance, now.nonce, now.document.get("stake")) != (
            before.balance, before.nonce, before.document.get("stake"),
        ):  # fmt: skip
            fresh = _since(client, who, before.at.height)
            yield {
                "height": now.at.height,
                "balance": str(now.balance),
                "change": str(now.balance - before.balance),
                "nonce": now.nonce,
                "transactions": [found.transaction.document for found in fresh if found.transaction is not None],
                "changes": [change.document for found in fresh for change in found.changes],
            }
        before = now
        del news


def _since(client: Client, who: bytes, height: int) -> list[HistoryEntry]:
    found = []
    for item in islice(client.history(who), HISTORY_MAX):  # newest first
        if item.block.height <= height:
            break
        found.append(item)
    return found[::-1]


def _account_text(line: dict[str, Any]) -> str:
    text = f"{show_amount(int(line['balance']))}, nonce {line['nonce']}"
    if "change" in line:
        change = int(line["change"])
        text += f"  ({'+' if change >= 0 else '-'}{show_amount(abs(change))})"
    for found in line["transactions"]:
        text += f"\n                {found['kind_name']} {found['hash']} from {found['from']}"
    for found in line["changes"]:
        text += f"\n                {_change_text(found)}"
    return text


def _change_text(change: Mapping[str, Any]) -> str:
    amount = int(change["amount"])
    shown = f"{'+' if amount >= 0 else '-'}{show_amount(abs(amount))}"
    kind: str = change["kind"]
    return f"{shown} {kind} of the stake" if change["holding"] == "bonded" else f"{shown} {kind}"


def _watch_transaction(client: Client, hash_: bytes, timeout_s: float | None, as_json: bool) -> None:
    told = ""
    start = client.head().at.height

    def look() -> Receipt | None:
        nonlocal told
        receipt = client.receipt(hash_)
        state = "final" if receipt else "waiting" if client.transaction(hash_) else "unknown"
        if state != told and receipt is None:
            _say({"hash": hexed(hash_), "state": state}, as_json, f"{hexed(hash_)} is {state}")
        told = state
        return receipt

    receipt = look()
    if receipt is None:
        for _ in client.news("heads", from_height=start + 1, timeout_s=timeout_s):
            receipt = look()
            if receipt is not None:
                break
    if receipt is None:
        raise NotFinal(f"not final in {timeout_s or 0:.10g} s", hash_=hash_)
    text = "succeeded" if receipt.succeeded else f"failed: {receipt.reason}"
    line = {"hash": hexed(hash_), "state": "final", "receipt": receipt.document}
    _say(line, as_json, f"{hexed(hash_)} is final at height {receipt.block.height} and {text}")
    if not receipt.succeeded:
        raise click.exceptions.Exit(1)


def _say(document: dict[str, Any], as_json: bool, text: str) -> None:
    click.echo(json.dumps(document) if as_json else printable_lines(text))
    sys.stdout.flush()
