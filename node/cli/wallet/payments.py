"""``dekube wallet send``, ``call`` and ``faucet``: what moves coins, shown before it is signed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

import click

from node.cli.arguments import AMOUNT, FEE
from node.cli.combinations import refuse_given
from node.cli.options import ask_whether
from node.cli.output import counted, json_option, show_amount, show_fields, show_gwei, show_receipt, show_rows
from node.cli.patience import NotFinal, TellingClient
from node.cli.session import Session, reading_options, session_options
from rpc.client import Client, ClientError, GatewayUnreachable
from rpc.client.contracts import functions_of, parse_argument, shown
from rpc.client.shapes import Receipt
from state.primitives.address import format_address
from state.primitives.errors import ConfigError
from state.primitives.transactions import decode_transaction

__all__ = ["call", "faucet", "send"]

_Function = TypeVar("_Function", bound=Callable[..., Any])
SPENDING: Final = ("--value", "--nonce", "--max-fee", "--tip", "--yes", "--key", "--passphrase-file", "--chain-id")
"""What has an effect on a call that is sent alone."""
NOBODY: Final = bytes(20)
"""The address that takes and never gives: no key has it."""


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
        ask_whether("Hand it in?")
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


@click.command()
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


@click.command()
@reading_options
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


@click.command()
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
            refuse_given(SPENDING, "without a FUNCTION nothing is called")
            _list_functions(client, contract, as_json)
            return
        wanted = client.function(contract, function)
        if len(arguments) != len(wanted.inputs):
            raise ConfigError(f"{wanted} takes {counted(len(wanted.inputs), 'argument')}, not {len(arguments)}")
        values = [parse_argument(*pair) for pair in zip(wanted.inputs, arguments, strict=True)]
        if wanted.is_view:
            refuse_given(SPENDING, f"{wanted} only reads, so nothing is signed or paid")
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
