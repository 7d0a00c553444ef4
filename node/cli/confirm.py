"""Confirmation of commands that move money: show the transaction, ask at a terminal, send.

The display is decoded from the signed bytes, with the command's own description. Without a terminal the command
does not ask: it would hang.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import click

from node.cli.options import confirm_at_terminal
from node.cli.output import show_amount, show_fields, show_gwei
from node.cli.progress_client import NotFinal, ProgressClient
from rpc.client import Client, ClientError, GatewayUnreachable, TransactionRefused
from rpc.client.results import Receipt
from state.primitives.address import format_address
from state.primitives.codec import Value
from state.primitives.keys import SecretKey
from state.primitives.transactions import decode_transaction

__all__ = ["confirm_and_send", "send", "send_signed", "why_refused", "yes_option"]

_Function = TypeVar("_Function", bound=Callable[..., Any])
WHY: Final[Mapping[str, str]] = {
    "wrong_phase": "the task's phase does not allow it",
    "not_yours": "it belongs to another account",
    "task_unknown": "there is no such task",
    "insufficient_funds": "the balance is too low",
    "stake_too_small": "the stake would be below the minimum",
    "stake_insufficient": "the amount is above the stake",
    "too_many_unbondings": "too many withdrawals are pending",
    "vote_key_taken": "another validator has this vote key",
    "vote_key_not_proven": "the proof of the vote key is invalid",
    "operator_tombstoned": "the account was slashed for voting twice and is excluded for ever",
    "node_known": "the machine is already registered",
    "node_unknown": "the machine is not registered",
    "payment_missing": "the amount does not fit what is due",
    "nothing_due": "no payment is due",
    "terms_mismatch": "the machine's owner has set other terms, or another sponsor",
    "terms_bound": "a sponsor has bonded on the present terms",
}
"""Explanations of the chain's reasons for refusal; they are shown beside the reason."""


NONCE_TRIES: Final = 5
NONCE_USED: Final = frozenset({"replacement_underpriced", "nonce_too_low"})
"""Reasons for which a gateway refuses a transaction whose nonce is already used."""


def yes_option(function: _Function) -> _Function:
    """Add ``--yes`` to a command that moves money; the function gets ``yes``."""
    return click.option("--yes", "-y", is_flag=True, help="Send without asking for confirmation.")(function)


def send(
    client: Client, key: SecretKey, kind: int, payload: Sequence[Value], what: Mapping[str, Any], *, yes: bool,
    prepare: Callable[[], None] | None = None,
) -> Receipt:  # fmt: skip
    """Send a transaction as ``send_signed``; return its receipt alone."""
    return send_signed(client, key, kind, payload, what, yes=yes, prepare=prepare)[0]


def send_signed(
    client: Client, key: SecretKey, kind: int, payload: Sequence[Value], what: Mapping[str, Any], *, yes: bool,
    prepare: Callable[[], None] | None = None, beside: Callable[[bytes], None] | None = None,
) -> tuple[Receipt, bytes]:  # fmt: skip
    """Show a transaction, ask for confirmation and send it; return its receipt when it is final, and its bytes.

    ``what`` describes it in words. ``prepare`` runs between the confirmation and the submission. A transaction
    that fails in a block still costs its fee, so it is checked against the newest state first. Raises
    TransactionRefused, before signing, if it would fail, and click.Abort if the user declines.
    """
    outcome = client.estimate(key.address, kind, list(payload))
    if not outcome.succeeded:
        reason = outcome.reason or "unknown"
        raise TransactionRefused(
            f"the chain would reject the transaction: {why_refused(reason)}; nothing was sent", reason=reason
        )
    raw = client.sign(key, kind, list(payload))
    first = decode_transaction(raw)

    def again() -> bytes:
        return client.sign(
            key, kind, list(payload), max_fee_per_gas=first.max_fee_per_gas,
            max_priority_fee_per_gas=first.max_priority_fee_per_gas,
        )  # fmt: skip

    return confirm_and_send(client, raw, what, yes=yes, prepare=prepare, again=again, beside=beside)


def why_refused(reason: str) -> str:
    """Return the explanation of a reason for refusal, with the reason itself."""
    return f"{WHY[reason]} ({reason})" if reason in WHY else reason


def confirm_and_send(
    client: Client, raw: bytes, what: Mapping[str, Any], *, yes: bool, prepare: Callable[[], None] | None = None,
    again: Callable[[], bytes] | None = None, beside: Callable[[bytes], None] | None = None,
) -> tuple[Receipt, bytes]:  # fmt: skip
    """Show what ``raw`` does and costs, ask at a terminal, and send it; return its receipt and its bytes.

    ``what`` and ``prepare`` are as in ``send_signed``. ``again`` signs the same transaction with the next nonce
    and the shown fees: the account's node may have used the nonce in the meantime. ``beside`` is called with the
    bytes before they are sent, to send what belongs into the same block: it waits for their nonce. Raises as
    ``wait``, and click.Abort.
    """
    signed, chain = decode_transaction(raw), client.chain()
    sender = signed.recover_sender()
    behind = _behind(client, sender, signed.nonce)
    fee, limit = signed.max_fee_per_gas, signed.gas_limit
    shown = {
        "chain": f"{chain.name} ({signed.chain_id})",
        "from": format_address(sender),
        **what,
        "fee": f"at most {show_amount(fee * limit)} ({limit} gas, {show_gwei(fee)} each)",
        "nonce": f"{signed.nonce}, which waits for {behind}" if behind else signed.nonce,
    }
    show_fields(shown, as_json=False, title="To be signed", err=True)
    if not yes:
        confirm_at_terminal("Send it?")
    if prepare is not None:
        prepare()
    click.echo("Waiting until it is final ...", err=True)
    if again is not None and client.account(sender).pending_nonce != signed.nonce:
        raw = again()
    for left in range(NONCE_TRIES - 1, -1, -1):
        try:
            if beside is not None:
                beside(raw)
            return _wait(client, raw, sender), raw
        except ClientError as error:  # it was surely not taken
            if again is None or error.reason not in NONCE_USED or not left:
                raise
            raw = again()
    raise AssertionError("at least one try")


def _wait(client: Client, raw: bytes, sender: bytes) -> Receipt:
    """Submit and return the receipt. Raises as ``wait``; NotFinal names the missing nonces."""
    nonce = decode_transaction(raw).nonce
    behind = _behind(client, sender, nonce)
    try:
        return client.send_and_wait(raw, behind=behind) if isinstance(client, ProgressClient) else client.wait(raw)
    except NotFinal as error:
        with suppress(ClientError, GatewayUnreachable):  # then what was so before still has to do
            behind = _behind(client, sender, nonce)
        if not behind:
            raise
        raise NotFinal(f"{error}: it waits for {behind} of {format_address(sender)}", hash_=error.hash) from None


def _behind(client: Client, sender: bytes, nonce: int) -> str:
    """Return the nonces that ``sender`` has to use before ``nonce``, in words; empty if there are none."""
    first = client.account(sender).pending_nonce
    if first >= nonce:
        return ""
    return f"nonces {first} to {nonce - 1}" if first < nonce - 1 else f"nonce {first}"
