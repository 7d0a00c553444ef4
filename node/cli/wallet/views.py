"""``dekube wallet balance``, ``tx`` and ``history``: the chain's data of an account and of a transaction."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final

import click

from node.cli.arguments import PathName, WholeNumber, parse_hash
from node.cli.option_conflicts import only_with
from node.cli.output import (
    json_option,
    show,
    show_amount,
    show_fields,
    show_gwei,
    show_receipt,
    show_rows,
    show_time,
)
from node.cli.session import Session, reading_options
from rpc.client.results import Transaction
from state.primitives.address import format_address
from state.primitives.errors import ConfigError
from state.primitives.transactions import CALL_KIND

__all__ = ["HISTORY_MAX", "balance", "change_text", "history", "tx"]

HISTORY_MAX: Final = 1_000
_ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]{40}")
AMOUNT_AT: Final[Mapping[str, int]] = {
    "stake": 0, "unstake": 0, "fund_carriage": 0, "withdraw_carriage": 0,
    "register_node": 1, "update_node": 1, "top_up_task": 1, "demand_result": 1,
}  # fmt: skip
"""Position of the amount in the payload, by transaction kind. Transfers and calls are handled separately."""
_NATURAL: Final = re.compile(r"[0-9]{1,80}")


@only_with(("--genesis",), "--verify")
@click.command()
@reading_options
@click.argument("name", required=False)
@click.option("--verify", "proves", is_flag=True,
              help="Verify the proof against the validators' signatures; trust no gateway.")  # fmt: skip
@click.option("--genesis", type=PathName(),
              help="Genesis to trust with --verify. Default: the genesis in --home.")  # fmt: skip
@json_option
def balance(session: Session, name: str | None, proves: bool, genesis: Path | None, as_json: bool) -> None:
    """Show the balance, nonces and stake of NAME or ADDRESS.

    Default: the account of the node in --home, else the only account.

    \b
    Examples:
      dekube wallet balance savings
      dekube wallet balance 0x52908400098527886E0F7030069857D2E4169EE7 --verify
    """
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
    """Return an account as the light client proves it. The client continues from the state of `dekube light`."""
    from node.cli.light import FILE, begin, check_genesis, open_light
    from node.home.load import load_genesis

    place = session.home.root / "light" / FILE
    urls = session.gateways()
    if not place.exists():
        file = genesis or session.home.genesis
        if not os.path.lexists(file):
            raise ConfigError("no genesis to trust; give --genesis FILE, or run `dekube light init` first")
        begin(place, load_genesis(file), urls)
    elif genesis is not None:
        check_genesis(place, genesis)
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


@click.command(name="tx")
@reading_options
@click.argument("transaction_hash")
@json_option
def tx(session: Session, transaction_hash: str, as_json: bool) -> None:
    """Show a transaction and its receipt.

    The exit status is 1 if the transaction is unknown.

    \b
    Example:
      dekube wallet tx 0xHASH
    """
    hash_ = parse_hash(transaction_hash, "TRANSACTION_HASH")
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
    """Return a transaction in readable form: position, recipient, amounts and fees with units."""
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
            case "payload", list(items) if (place := AMOUNT_AT.get(found.kind_name or "")) is not None:
                if len(items) > place and _NATURAL.fullmatch(str(items[place])):
                    fields["amount"] = show_amount(int(items[place]))
                    items = [*items[:place], *items[place + 1 :]]
                fields[name] = items or None
            case ("max_fee_per_gas" | "max_priority_fee_per_gas", str(fee)) if _NATURAL.fullmatch(fee):
                fields[name] = show_gwei(int(fee))
            case _:
                fields[name] = value
    return fields


def _pays(found: Transaction, to: str, amount: str) -> bool:
    """Tell whether a transaction is a transfer, or a call with the same beginning of its payload."""
    is_known = found.kind_name == "transfer" or found.kind == CALL_KIND
    return is_known and bool(_ADDRESS.fullmatch(to) and _NATURAL.fullmatch(amount))


@click.command()
@reading_options
@click.argument("name", required=False)
@click.option("--limit", default=20, show_default=True, type=WholeNumber(1, HISTORY_MAX),
              help="Highest number of entries.")  # fmt: skip
@json_option
def history(session: Session, name: str | None, limit: int, as_json: bool) -> None:
    """Show the balance changes of NAME or ADDRESS, newest first.

    They include transactions, payouts, refunds, tips and returned stake.

    \b
    Example:
      dekube wallet history savings --limit 50
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
            "changes": "; ".join(change_text(change.document) for change in entry.changes),
        }
        for entry in found
    ]
    show_rows(rows, ("height", "kind", "changes", "transaction"), as_json=False, title="History")


def change_text(change: Mapping[str, Any]) -> str:
    """Return, in words, the reason and the amount of a balance change."""
    amount = int(change["amount"])
    shown = f"{'+' if amount >= 0 else '-'}{show_amount(abs(amount))}"
    kind: str = change["kind"]
    return f"{shown} {kind} of the stake" if change["holding"] == "bonded" else f"{shown} {kind}"
