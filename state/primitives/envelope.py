"""The decoded envelope, common to all transaction forms, with its limits and the numbers of the forms."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from state.primitives.hashing import keccak
from state.primitives.keys import recover_address

__all__ = [
    "CALL_KIND",
    "CHAIN_ID_MAX",
    "DYNAMIC_FORM",
    "FEE_MAX",
    "GAS_LIMIT_MAX",
    "KIND_MAX",
    "LEGACY_FORM",
    "NATIVE_FORM",
    "NONCE_MAX",
    "TRANSACTION_LIMIT_BYTES",
    "VALUE_MAX",
    "Signed",
    "Transaction",
]

TRANSACTION_LIMIT_BYTES: Final = 64 * 1024
NONCE_MAX: Final = 2**64 - 2
GAS_LIMIT_MAX: Final = 2**63 - 1
FEE_MAX: Final = 2**128 - 1
KIND_MAX: Final = 2**16 - 1
CHAIN_ID_MAX: Final = 2**31 - 1
VALUE_MAX: Final = 2**256 - 1

CALL_KIND: Final = 0x00
"""Kind of Ethereum's forms, with payload [to, value, data]; the runtime maps it to another kind."""
NATIVE_FORM: Final = 0x44
DYNAMIC_FORM: Final = 0x02
LEGACY_FORM: Final = 0xC0


Signed: TypeAlias = tuple[bytes, int, int, bytes]
"""The signed bytes: a prefix, the start and end of a slice of the received bytes, and a suffix."""


class Transaction:
    """A decoded transaction of any form.

    ``raw`` is what was received and ``hash`` its keccak-256. ``payload`` is the decoded array that the rule of
    ``kind`` reads. ``sender`` is empty until the signature was checked; nothing executes an empty sender.
    Amounts are in the smallest unit (10^-18 DKB); fees are for one unit of gas.
    """

    __slots__ = (
        "_signed", "chain_id", "form", "gas_limit", "hash", "kind", "max_fee_per_gas",
        "max_priority_fee_per_gas", "nonce", "payload", "raw", "sender", "signature",
    )  # fmt: skip

    def __init__(
        self, raw: bytes, form: int, chain_id: int, nonce: int, max_priority_fee_per_gas: int,
        max_fee_per_gas: int, gas_limit: int, kind: int, payload: list[Any], signed: Signed, signature: bytes,
    ) -> None:  # fmt: skip
        self.raw = raw
        self.hash = keccak(raw)
        self.form = form
        self.chain_id = chain_id
        self.nonce = nonce
        self.max_priority_fee_per_gas = max_priority_fee_per_gas
        self.max_fee_per_gas = max_fee_per_gas
        self.gas_limit = gas_limit
        self.kind = kind
        self.payload = payload
        self._signed = signed
        self.signature = signature
        self.sender = b""

    def __repr__(self) -> str:
        return f"Transaction(0x{self.hash.hex()}, kind={self.kind:#x}, nonce={self.nonce})"

    @property
    def digest(self) -> bytes:
        """The digest that the signature covers; computed on request, since most callers know the sender."""
        head, start, end, tail = self._signed
        return keccak(head + self.raw[start:end] + tail)

    def recover_sender(self) -> bytes:
        """Return the signer's address and keep it as ``sender``. Raises SignatureInvalid."""
        if not self.sender:
            self.sender = recover_address(self.digest, self.signature)
        return self.sender
