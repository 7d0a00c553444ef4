"""Errors of billing. A pool that does not cover a payment is a bug of the caller, so it is an AssertionError."""

from __future__ import annotations

from state.primitives.errors import ProtocolError

__all__ = ["EscrowUnknown", "PaymentMissing", "ReceiptInvalid"]


class EscrowUnknown(ProtocolError):
    """No escrow has this id."""

    code = "escrow_unknown"


class PaymentMissing(ProtocolError):
    """A deposit of another amount than the one that is due."""

    code = "payment_missing"

    def __init__(self, *, due: int, got: int) -> None:
        super().__init__(f"{due} is due, {got} was offered")
        self.due = due
        self.got = got


class ReceiptInvalid(ProtocolError):
    """A relay receipt that is forged, expired, or of another chain, relay or payer."""

    code = "receipt_invalid"
