"""``dekube wallet send``, ``call`` and ``faucet``: payments, shown before they are signed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import click

from node.cli.arguments import AMOUNT, FEE, WholeNumber
from node.cli.commands import next_command
from node.cli.confirm import confirm_and_send, yes_option
from node.cli.option_conflicts import refuse_given
from node.cli.output import (
    counted,
    json_option,
    parse_amount,
    show_amount,
    show_fields,
    show_receipt,
    show_rows,
)
from node.cli.progress_client import ProgressClient
from node.cli.session import Session, reading_options, session_options
from node.cli.wallet.watching import wait_for_receipt
from rpc.client import Client, GatewayUnreachable
from rpc.client.contracts import functions_of, parse_argument, shown
from state.primitives.abi import AbiValue, Parameter
from state.primitives.address import format_address
from state.primitives.errors import ConfigError
from state.primitives.transactions import decode_transaction

__all__ = ["call", "faucet", "send"]

_Function = TypeVar("_Function", bound=Callable[..., Any])
SPENDING: Final = ("--value", "--nonce", "--max-fee", "--tip", "--yes", "--key", "--passphrase-file", "--chain-id")
"""Options that affect only a call that is sent as a transaction."""
GRANT_TIMEOUT_S: Final = 60.0
NOBODY: Final = bytes(20)
"""The zero address, which receives only: no key has it."""


def _fee_options(function: _Function) -> _Function:
    for option in (
        yes_option,
        click.option("--tip", type=FEE,
                     help="Fee for the leader per unit of gas, at most --max-fee: 2.5gwei or 1500wei."),
        click.option("--max-fee", type=FEE, help="Highest fee per unit of gas: 2.5gwei or 1500wei."),
        click.option("--nonce", type=WholeNumber(0, 2**48),
                     help="Nonce of the transaction; replaces a pending one if the fee is 10 % higher. "
"Default: the next one."),
    ):  # fmt: skip
        function = option(function)
    return function


@click.command()
@session_options
@click.argument("to")
@click.argument("amount", type=AMOUNT)
@_fee_options
@click.option("--burn", is_flag=True, help="Allow the zero address, where coins are lost.")
@json_option
def send(
    session: Session, to: str, amount: int, nonce: int | None, max_fee: int | None, tip: int | None, yes: bool,
    burn: bool, as_json: bool,
) -> None:  # fmt: skip
    """Send AMOUNT to TO and wait until the payment is final.

    TO is an address or the name of a wallet account. AMOUNT is in DKB: 1.5, or 1500wei in the smallest
    unit. The cost is shown on standard error. At a terminal the command asks before it sends.

    To replace a pending payment, repeat it with the same --nonce and a higher --max-fee.

    \b
    Example:
      dekube wallet send 0x52908400098527886E0F7030069857D2E4169EE7 1.5 --key savings
    """
    from state.transition.transfer import TRANSFER_KIND  # its rule weighs more than the client

    if not to:
        raise click.BadParameter("empty; give an address or the name of an account", param_hint="TO")
    who = session.address(to, known=False)
    if (who == NOBODY) != burn:
        raise click.UsageError(
            "--burn is only for the zero address." if burn else
            f"coins sent to {format_address(who)} are lost: it has no key. Add --burn to send them anyway"
        )  # fmt: skip
    shown_to = format_address(who)
    what = {"to": shown_to if to.startswith("0x") else f"{shown_to} ({to})", "amount": show_amount(amount)}
    key = session.key()
    with session.client() as client:
        sign = partial(client.sign, key, TRANSFER_KIND, [who, amount])
        raw = sign(nonce=nonce, max_fee_per_gas=max_fee, max_priority_fee_per_gas=tip)
        receipt, _ = confirm_and_send(
            client, raw, what, yes=yes, again=_signer_again(sign, raw) if nonce is None else None
        )
    show_receipt(receipt, as_json)


@click.command()
@reading_options
@click.argument("name", required=False)
@click.option(
    "--from", "url", required=True, metavar="URL", help="URL of the faucet, such as http://127.0.0.1:26621."
)
@json_option
def faucet(session: Session, name: str | None, url: str, as_json: bool) -> None:
    """Request coins of a test network for NAME or ADDRESS.

    With --rpc, or with a node in --home, it waits until the payment is final.

    \b
    Example:
      dekube wallet faucet savings --from http://127.0.0.1:26621
    """
    who = session.address(name, known=False)
    has_gateway = bool(session.urls) or session.home.config.exists()
    with ProgressClient(*(session.gateways() if has_gateway else (url,))) as client:
        try:
            hash_ = client.faucet(url, who)
        except GatewayUnreachable as error:
            where = "`dekube testnet list` shows where a test network's is"
            raise GatewayUnreachable(f"{error}; no faucet answers at that address; {where}") from None
        fields: dict[str, Any] = {"address": format_address(who), "transaction": "0x" + hash_.hex()}
        if has_gateway:
            click.echo("Waiting until the grant is final ...", err=True)
            receipt = wait_for_receipt(client, hash_, GRANT_TIMEOUT_S)
            balance = client.balance(who)
            fields |= {
                "height": receipt.block.height,
                "balance": str(balance) if as_json else show_amount(balance),
            }
    show_fields(fields, as_json=as_json)
    if not as_json and not has_gateway:
        click.echo(
            "\nThe coins are not on the account yet: they are when that transaction is final. With --rpc this "
            f"command waits for it; `{next_command('wallet', 'tx', fields['transaction'])}` shows it."
        )


@click.command()
@session_options
@click.argument("contract", required=False)
@click.argument("function", required=False)
@click.argument("arguments", nargs=-1)
@click.option(
    "--value", type=AMOUNT, default="0", help="Amount to send to a payable function, in DKB. Default: 0."
)
@_fee_options
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
    """Call FUNCTION of a system CONTRACT: registry, tasks, billing or staking.

    Without FUNCTION, list the functions. A reading function answers at once. A writing function is signed
    with --key, sent, and shown when it is final.

    Integers are decimal or 0x hex; bytes are 0x hex. Amounts are in 10^-18 DKB, or written 1.5DKB. An
    address may be the name of a wallet account.

    \b
    Examples:
      dekube wallet call staking
      dekube wallet call staking minimumStake
      dekube wallet call staking unstake 1DKB --key savings
    """
    with session.client() as client:
        if contract is None or function is None:
            refuse_given(SPENDING, "without a FUNCTION nothing is called")
            _list_functions(client, contract, as_json)
            return
        wanted = client.function(contract, function)
        if len(arguments) != len(wanted.inputs):
            raise ConfigError(f"{wanted} takes {counted(len(wanted.inputs), 'argument')}, not {len(arguments)}")
        values = [_argument(session, *pair) for pair in zip(wanted.inputs, arguments, strict=True)]
        names = [parameter.name or f"argument{number}" for number, parameter in enumerate(wanted.inputs)]
        if wanted.is_view:
            refuse_given(SPENDING, f"{wanted} only reads, so nothing is signed or paid")
            found = shown(wanted.outputs, client.view(wanted, values))
            show_fields(found if as_json else in_coins(wanted.outputs, found), as_json=as_json)
            return
        sign = partial(client.sign_call, session.key(), wanted.address, value=value, data=wanted.encode(values))
        raw = sign(nonce=nonce, max_fee_per_gas=max_fee, max_priority_fee_per_gas=tip)
        what = {
            "to": format_address(wanted.address),
            "contract": contract,
            "function": str(wanted),
            "arguments": in_coins(wanted.inputs, shown(wanted.inputs, dict(zip(names, values, strict=True)))),
            "amount": show_amount(value),
        }
        receipt, _ = confirm_and_send(
            client, raw, what, yes=yes, again=_signer_again(sign, raw) if nonce is None else None
        )
    show_receipt(receipt, as_json)


def in_coins(parameters: Sequence[Parameter], values: Mapping[str, str | bool]) -> dict[str, str | bool]:
    """Return a contract's values in readable form, with amounts in DKB."""
    return {
        name: f"{show_amount(int(value))} ({value})" if _is_amount(parameter) else value
        for parameter, (name, value) in zip(parameters, values.items(), strict=True)
    }


def _is_amount(parameter: Parameter) -> bool:
    return parameter.type == "uint256"  # of the system contracts no other number has this type; a test looks


def _signer_again(sign: Callable[..., bytes], raw: bytes) -> Callable[[], bytes]:
    """Return a function that signs the same transaction with the next nonce and the fees of ``raw``."""
    first = decode_transaction(raw)
    return partial(
        sign, max_fee_per_gas=first.max_fee_per_gas, max_priority_fee_per_gas=first.max_priority_fee_per_gas
    )


def _argument(session: Session, parameter: Parameter, text: str) -> AbiValue:
    """Return the value of an argument as ``parse_argument``; also 1.5DKB, and the NAME of an account."""
    if _is_amount(parameter) and text.strip().endswith("DKB"):
        return parse_amount(text)
    if parameter.type == "address":
        return session.address(text, known=False)
    return parse_argument(parameter, text)


def _list_functions(client: Client, contract: str | None, as_json: bool) -> None:
    contracts = [item for item in client.contracts() if contract in (None, item.name)]
    if not contracts:
        raise ConfigError(f"no contract {contract!r}; `dekube wallet call` lists the contracts")
    rows = [
        {"contract": item.name, "function": str(found), "kind": found.mutability}
        for item in contracts
        for found in functions_of(item)
    ]
    show_rows(rows, ["contract", "function", "kind"], as_json=as_json, title="Functions")
