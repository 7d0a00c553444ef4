"""A relay's access to the chain over JSON-RPC: the funds of its payers, and the settlement of their receipts."""

from __future__ import annotations

from typing import Any, Final

from billing.relay import Receipt
from relay.payment.credit import PayerFunds
from relay.protocol.errors import SettlementUnavailable
from rpc.client import Client, TransactionRefused
from rpc.client.errors import ClientError, GatewayUnreachable, OtherChain
from state.primitives.address import parse_address
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES
from state.primitives.keys import SecretKey
from tasks.ledger.carriage import SETTLE_CARRIAGE

__all__ = ["RpcSettlementGateway", "funds_from_document", "settlement_fee"]

TIMEOUT_S: Final = 15.0
SETTLE_TIMEOUT_S: Final = 70.0
"""A gateway answers when the transaction is final, after at most a minute."""
RELAYS_MAX: Final = 16
AMOUNT_LIMIT: Final = 1 << 128
AMOUNT_DIGITS_MAX: Final = 39


def funds_from_document(document: Any, relay: bytes) -> PayerFunds:
    """Return the payer's funds for ``relay`` from an answer of dekube_getCarriage. Raises DecodeError."""
    match document:
        case {
            "deposit": str(deposit),
            "withdrawing": str(withdrawing),
            "earning": bool(is_earning),
            "room": bool(has_room),
            "due": str(dues),
            "relays": list(relays),
        } if len(relays) <= RELAYS_MAX:
            leaving = _amount(withdrawing)
            free = max(0, _amount(deposit) - leaving)
            here = PayerFunds(free, _amount(dues), 0, is_earning, has_room, b"", -1, 0, leaving)
            for item in relays:
                here = _with_relay(here, item, relay)
            return here
        case _:
            raise DecodeError("not an answer of dekube_getCarriage")


def _with_relay(funds: PayerFunds, item: Any, relay: bytes) -> PayerFunds:
    match item:
        case {
            "relay": str(who),
            "channel": str(channel),
            "opened_ms": int(opened_ms),
            "amount": str(amount),
            "due": str(due),
        } if channel.startswith("0x") and len(channel) == 2 + 2 * HASH_BYTES:
            if parse_address(who) != relay:
                return funds
            try:
                named = bytes.fromhex(channel[2:])
            except ValueError:
                raise DecodeError("the channel is not hexadecimal") from None
            return funds._replace(
                due_here=_amount(due), has_room=True, channel=named, opened_ms=opened_ms, amount=_amount(amount)
            )
        case _:
            raise DecodeError("not an entry of a relay in an answer of dekube_getCarriage")


def _amount(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= AMOUNT_DIGITS_MAX) or int(text) >= AMOUNT_LIMIT:
        raise DecodeError("not an amount")
    return int(text)


class RpcSettlementGateway:
    """A relay's settlement gateway over JSON-RPC at ``urls``; the relay's account ``key`` pays the fees.

    Each call opens its own connection, so threads may share the object.
    """

    def __init__(self, urls: tuple[str, ...], key: SecretKey) -> None:
        """Raises ConfigError for an invalid URL."""
        Client(*urls).close()
        self._urls = urls
        self._key = key

    def funds(self, payer: bytes) -> PayerFunds:
        """Return what ``payer`` can pay. Raises SettlementUnavailable."""
        try:
            with Client(*self._urls, timeout_s=TIMEOUT_S) as client:
                document = client.call("dekube_getCarriage", address="0x" + payer.hex())
            return funds_from_document(document, self._key.address)
        except (GatewayUnreachable, ClientError, DecodeError) as error:
            raise SettlementUnavailable(str(error)) from error

    def fee(self) -> int:
        """Return the maximum fee to settle one receipt. Raises SettlementUnavailable."""
        try:
            with Client(*self._urls, timeout_s=TIMEOUT_S) as client:
                return settlement_fee(client)
        except (GatewayUnreachable, ClientError) as error:
            raise SettlementUnavailable(str(error)) from error

    def settle(self, receipt: Receipt, certificate: bytes) -> str | None:
        """Settle a receipt on the chain; return the reason of a refusal, or None. Raises SettlementUnavailable."""
        try:
            with Client(*self._urls, timeout_s=SETTLE_TIMEOUT_S) as client:
                client.send(self._key, SETTLE_CARRIAGE, [receipt.encode(), certificate])
        except TransactionRefused as error:
            return error.reason or str(error)
        except (GatewayUnreachable, ClientError, OtherChain) as error:
            raise SettlementUnavailable(str(error)) from error
        return None


def settlement_fee(client: Client) -> int:
    """Return the maximum fee to settle one receipt now."""
    quote = client.quote()
    return sum(item.gas for item in quote.kinds if item.kind == SETTLE_CARRIAGE) * quote.max_fee_per_gas
