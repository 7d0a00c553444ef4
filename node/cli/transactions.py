"""``dekube tx``: send transactions and look them up."""

from __future__ import annotations

import click

from node.cli.output import json_option, parse_amount, show, show_amount, show_fields
from node.cli.session import Session, send, session_options
from state.primitives.address import parse_address
from state.transition.staking import STAKE_KIND, UNSTAKE_KIND, stake_payload
from state.transition.transfer import TRANSFER_KIND

__all__ = ["tx"]


class _Amount(click.ParamType[int]):
    name = "amount"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return value if isinstance(value, int) else parse_amount(str(value))


AMOUNT = _Amount()


@click.group()
def tx() -> None:
    """Send transactions and look them up."""


@tx.command()
@session_options
@click.argument("to")
@click.argument("amount", type=AMOUNT)
@json_option
def transfer(session: Session, to: str, amount: int, as_json: bool) -> None:
    """Send AMOUNT (1.5 is 1.5 DKB; 1500wei the smallest unit) to address TO."""
    with session.client() as client:
        receipt = send(client, session.key(), TRANSFER_KIND, [parse_address(to), amount])
    _show_receipt(receipt, as_json)


@tx.command()
@session_options
@click.argument("amount", type=AMOUNT)
@json_option
def stake(session: Session, amount: int, as_json: bool) -> None:
    """Stake AMOUNT as a validator, with the vote key of the node in --home."""
    from node.home import load_key, read_passphrase

    options = session.home.load_options().keys
    vote = load_key(session.home.path(options.vote), read_passphrase(session.home.path(options.passphrase_file)))
    key = session.key()
    with session.client() as client:
        chain = bytes.fromhex(client.call("dekube_chainInfo")["genesis_hash"][2:])
        payload = stake_payload(amount, vote, genesis_hash=chain, address=key.address)
        receipt = send(client, key, STAKE_KIND, payload)
    _show_receipt(receipt, as_json)


@tx.command()
@session_options
@click.argument("amount", type=AMOUNT)
@json_option
def unstake(session: Session, amount: int, as_json: bool) -> None:
    """Take AMOUNT out of the stake; it returns after the unbonding time."""
    with session.client() as client:
        receipt = send(client, session.key(), UNSTAKE_KIND, [amount])
    _show_receipt(receipt, as_json)


@tx.command(name="show")
@session_options
@click.argument("transaction_hash")
@json_option
def show_(session: Session, transaction_hash: str, as_json: bool) -> None:
    """Show a transaction and its receipt."""
    with session.client() as client:
        transaction = client.call("dekube_getTransaction", transaction_hash)["transaction"]
        receipt = client.call("dekube_getReceipt", transaction_hash)["receipt"]
    if as_json:
        show({"transaction": transaction, "receipt": receipt})
        return
    if transaction is None:
        click.echo("unknown transaction")
        raise click.exceptions.Exit(1)
    show_fields({k: v for k, v in transaction.items() if k != "raw"}, as_json=False, title="Transaction")
    if receipt is not None:
        show_fields({k: v for k, v in receipt.items() if k != "events"}, as_json=False, title="Receipt")


@tx.command()
@session_options
@click.argument("address", required=False)
@json_option
def balance(session: Session, address: str | None, as_json: bool) -> None:
    """Show the account of ADDRESS, or of the signing key."""
    with session.client() as client:
        named = address if address is not None else "0x" + session.key().address.hex()
        account = client.call("dekube_getAccount", named)
    if not as_json:
        account["balance"] = show_amount(int(account["balance"]))
    show_fields(account, as_json=as_json)


def _show_receipt(receipt: dict[str, object], as_json: bool) -> None:
    show_fields({k: v for k, v in receipt.items() if as_json or k != "events"}, as_json=as_json, title="Final")
