"""``dekube relay``: runs a relay, which carries circuits between nodes that accept no connections."""

from __future__ import annotations

import os
import secrets
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from node.cli.arguments import AMOUNT, PathName
from node.cli.commands import CommandGroup, as_command
from node.cli.confirm import send, yes_option
from node.cli.option_conflicts import only_with
from node.cli.options import announce_key_generation, ask_passphrase, prompt_secret, relay_home_option
from node.cli.output import json_option, show_amount, show_fields, show_receipt, show_rows, show_time
from node.cli.progress_client import ProgressClient
from node.cli.relay_status import status
from node.cli.responses import checked_responses
from node.cli.session import Session, reading_options, session_options
from node.home.create import check_new_home, create_home
from node.home.keyring import random_key
from node.home.keys import load_key
from node.home.load import load_genesis
from node.home.paths import Home
from rpc.client import TransactionRefused
from state.primitives.address import format_address
from state.primitives.errors import ConfigError, DecodeError
from state.primitives.keys import SecretKey

__all__ = ["relay"]


@click.group(cls=CommandGroup)
def relay() -> None:
    """Run a relay, and manage the deposits that pay relays.

    A relay carries encrypted circuits between addresses and cannot read their content.
    """


@relay.command()
@relay_home_option
@click.option("--genesis", required=True, type=PathName(), help="Genesis file of the network.")
@json_option
def init(home: Home, genesis: Path, as_json: bool) -> None:
    """Create a relay's home: a key, its passphrase and its configuration.

    The passphrase is random and stored beside the key (mode 0600).

    \b
    Example:
      dekube relay init --home relay --genesis genesis.json
    """
    from node.relay.home import RelayHomeOptions

    document = load_genesis(genesis)
    check_new_home(home)
    announce_key_generation(as_json=as_json)
    account = random_key()
    create_home(
        home.root, genesis=document, account=account, vote=None, passphrase=secrets.token_hex(16),
        options=RelayHomeOptions(),
    )  # fmt: skip
    show_fields({"home": str(home.root), "address": format_address(account.address)}, as_json=as_json)
    if not as_json:
        click.echo(
            f"\nBack up {home.root / 'keys'}: nobody can restore it.\n"
            f"Then: {as_command('dekube', 'relay', 'run', '--home', home.root)}\n"
            "Nodes find it in the chain's registry: dekube relay register, once its account can pay bond and fee."
        )


@relay.command()
@relay_home_option
@click.option(
    "--rpc",
    "urls",
    multiple=True,
    metavar="URL",
    help="URL of the gateway to query; repeat for several. Default: those in config.toml.",
)
def run(home: Home, urls: tuple[str, ...]) -> None:
    """Run the relay in --home until SIGTERM or Ctrl-C.

    A relay with a price needs a gateway: --rpc or `rpc` in config.toml. It reads its payers' deposits there
    and settles their receipts. Without a gateway it treats every payer as unknown.

    \b
    Example:
      dekube relay run --home relay --rpc http://127.0.0.1:8545
    """
    from node.relay.home import run_relay_home

    run_relay_home(home, urls, prompt_secret)


@relay.command()
@session_options
@click.argument("amount", type=AMOUNT)
@yes_option
@json_option
def deposit(session: Session, amount: int, yes: bool, as_json: bool) -> None:
    """Deposit AMOUNT (DKB) to pay relays that charge a price.

    Relays carry this account's traffic against the deposit. The node's key can spend the deposit on relays,
    but nothing else of the account.

    \b
    Example:
      dekube relay deposit 5
    """
    from tasks.ledger.carriage import FUND_CARRIAGE

    if not amount:
        raise click.BadParameter("the amount must be above zero", param_hint="AMOUNT")
    with session.client() as client:
        what = {"does": "adds to the deposit for relays", "amount": show_amount(amount)}
        receipt = send(client, session.key(), FUND_CARRIAGE, [amount], what, yes=yes)
    show_receipt(receipt, as_json)


@relay.command()
@session_options
@click.argument("amount", type=AMOUNT)
@yes_option
@json_option
def withdraw(session: Session, amount: int, yes: bool, as_json: bool) -> None:
    """Withdraw AMOUNT (DKB) of the deposit; it is paid after eight days.

    Receipts that relays submit until then are deducted. Replaces a pending withdrawal and restarts the
    wait; 0 cancels it.

    \b
    Examples:
      dekube relay withdraw 2.5
      dekube relay withdraw 0
    """
    from tasks.ledger.carriage import WITHDRAW_CARRIAGE

    with session.client() as client:
        key = session.key()
        found = client.carriage(key.address)
        if amount > found.deposit:
            raise TransactionRefused(f"the deposit is {show_amount(found.deposit)}; withdraw at most this amount")
        if amount == found.withdrawing == 0:
            raise TransactionRefused("no withdrawal is pending, so there is nothing to cancel")
        what = {
            "does": "withdraws from the deposit for relays" if amount else "cancels the pending withdrawal",
            "amount": show_amount(amount),
            "left for relays": show_amount(found.deposit - amount),
            "paid out": "after eight days, less what relays still bring receipts for",
        }
        receipt = send(client, key, WITHDRAW_CARRIAGE, [amount], what, yes=yes)
        release_ms = client.carriage(key.address).release_ms
    show_receipt(receipt, as_json)
    if not as_json and release_ms:
        click.echo(
            f"\nIt is on the account again from {show_time(release_ms)} on, by itself (dekube relay account)."
        )


@relay.command()
@reading_options
@click.argument("account", required=False)
@json_option
def account(session: Session, account: str | None, as_json: bool) -> None:
    """Show the relay deposit of ACCOUNT and its debts to relays.

    ACCOUNT is an address or the name of a wallet account. Default: your own account.

    \b
    Example:
      dekube relay account savings
    """
    address = session.address(account, known=False)
    with session.client() as client:
        found = client.call("dekube_getCarriage", address="0x" + address.hex())
    if as_json:
        show_fields(found, as_json=True)
        return
    shown = {name: show_amount(int(found[name])) for name in ("deposit", "withdrawing", "due")}
    paid_out = show_time(found["release_ms"]) if found["release_ms"] else "-"
    shown |= {"paid out": paid_out, "machine that earns": "yes" if found["earning"] else "no"}
    show_fields({"account": format_address(address), **shown}, as_json=False)
    rows = [
        {"relay": item["relay"], "bytes": item["bytes"], "due": show_amount(int(item["due"]))}
        for item in found["relays"]
    ]
    show_rows(rows, ("relay", "bytes", "due"), as_json=False, title="Relays")


def _account(home: Home) -> SecretKey:
    from node.relay.home import load_relay_options

    keys = load_relay_options(home).keys
    return load_key(home.path(keys.account), ask_passphrase(home.passphrase_file(keys)))


@relay.command()
@relay_home_option
@click.option("--rpc", "url", required=True, metavar="URL", help="URL of the gateway to query.")
@click.option(
    "--at", "where", required=True, metavar="HOST:PORT", help="Address at which clients reach this relay."
)
@click.option("--bond", type=AMOUNT, default=None, help="Bond to lock, in DKB. Default: the chain's minimum.")
@yes_option
@json_option
def register(home: Home, url: str, where: str, bond: int | None, yes: bool, as_json: bool) -> None:
    """Register the relay in --home on chain, or renew its entry.

    Nodes find relays in this registry. Only a registered relay is paid. The relay's account pays the fee
    and locks the bond.

    \b
    Example:
      dekube relay register --home relay --rpc http://127.0.0.1:8545 --at relay.example:26680
    """
    from p2p.base.endpoint import Endpoint
    from tasks.ledger.registry import NodeProfile, NodeRole
    from tasks.ledger.transitions import REGISTER_NODE, UPDATE_NODE, node_payload

    key = _account(home)
    try:
        endpoint = Endpoint.parse(f"relay:{key.address.hex()}:{where}")
    except DecodeError as error:
        raise ConfigError(f"--at {where!r}: {error}") from None
    profile = NodeProfile(
        operator=key.address, roles=NodeRole.RELAY, gpus=(), cores=len(os.sched_getaffinity(0)), memory_mib=0,
        pcie_lanes=0, price_per_tera_unit=1, rate=0, slots=1, notice_ms=0, endpoints=(str(endpoint),),
        version=version("dekube-node"),
    )  # fmt: skip
    with checked_responses(), ProgressClient(url) as client:
        is_known = client.call("dekube_getNode", "0x" + key.address.hex())["node"] is not None
        least = 0 if is_known else int(client.call("dekube_genesis")["parameters"]["tasks.node_bond_min"])
        amount = least if bond is None else bond
        if amount < least:
            raise ConfigError(f"the bond must be at least {show_amount(least)}; raise --bond")
        kind = UPDATE_NODE if is_known else REGISTER_NODE
        what = {
            "does": "renews the relay's entry" if is_known else "enters the relay",
            "endpoint": str(endpoint),
            "bond": show_amount(amount) + (" more" if is_known else ", locked until it retires"),
        }
        receipt = send(client, key, kind, node_payload(profile, amount), what, yes=yes)
    shown = {"relay": format_address(key.address), "endpoint": str(endpoint)}
    show_fields({**shown, "transaction": receipt.document["transaction_hash"]}, as_json=as_json)


@only_with(("--all",), "--rpc")
@relay.command()
@relay_home_option
@click.option(
    "--rpc",
    "url",
    default="",
    metavar="URL",
    help="URL of the gateway to send to. Default: only list the receipts.",
)
@click.option("--all", "is_all", is_flag=True, help="Also send receipts that are worth less than their fee.")
@yes_option
@json_option
def settle(home: Home, url: str, is_all: bool, yes: bool, as_json: bool) -> None:
    """Submit the receipts of the relay's payers on chain and collect payment.

    Payment comes from a payer's deposit, else from its earnings. A relay with a gateway settles by itself.
    Use this command without a gateway, and for receipts of unknown payers. Each receipt costs one
    transaction fee; smaller receipts wait. Settled receipts are deleted.

    The relay may run meanwhile. Settle daily: receipts expire after a week, or with the payer's
    certificate.

    \b
    Examples:
      dekube relay settle --home relay
      dekube relay settle --home relay --rpc http://127.0.0.1:8545
    """
    from node.relay.home import RECEIPTS
    from node.relay.settlement_gateway import settlement_fee
    from relay.payment.receipts import ReceiptStore
    from tasks.ledger.carriage import SETTLE_CARRIAGE

    store = ReceiptStore(home.path(RECEIPTS))
    rows: list[dict[str, Any]] = []
    client = ProgressClient(url) if url else None
    key = _account(home) if client is not None else None
    fee = 0
    if client is not None and not is_all:
        fee = settlement_fee(client)
    for receipt, certificate in store.load():
        state = "waits"
        if receipt.not_after_ms <= time.time_ns() // 1_000_000:
            store.remove(receipt)
            state = "expired"
        elif receipt.amount < fee:
            state = "worth less than its fee"
        elif client is not None and key is not None:
            try:
                what = {
                    "does": "brings a receipt of a payer",
                    "payer": format_address(receipt.payer),
                    "amount": show_amount(receipt.amount),
                }
                send(client, key, SETTLE_CARRIAGE, [receipt.encode(), certificate], what, yes=yes)
                state = "settled"
            except TransactionRefused as error:
                state = str(error)
            if state == "settled" or "nothing_due" in state:
                store.remove(receipt)
        rows.append(
            {
                "payer": format_address(receipt.payer),
                "bytes": receipt.size_bytes,
                "amount": receipt.amount if as_json else show_amount(receipt.amount),
                "state": state,
            }
        )
    if client is not None:
        client.close()
    show_rows(rows, ("payer", "bytes", "amount", "state"), as_json=as_json, title="Receipts")


relay.add_command(status)
