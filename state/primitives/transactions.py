"""Typed transactions (EIP-2718): the first byte names the form; bytes are kept and hashed as received.

The native form is ``0x44 || CBOR [chain_id, nonce, max_priority_fee_per_gas, max_fee_per_gas, gas_limit, kind,
payload, signature]``. Its signing digest is the keccak-256 of the same bytes with an array of the first seven
items, so no reader has to encode anything again. Forms 0x00-0x7f are one table (``FORMS``); legacy Ethereum
transactions, whose first byte is 0xc0 or more, take their place in it under ``LEGACY_FORM``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from state.primitives.codec import Value, decode, encode
from state.primitives.errors import DecodeError
from state.primitives.hashing import keccak
from state.primitives.keys import SIGNATURE_BYTES, SecretKey, recover_address

__all__ = [
    "CALL_KIND",
    "CHAIN_ID_MAX",
    "FEE_MAX",
    "FORMS",
    "GAS_LIMIT_MAX",
    "KIND_MAX",
    "LEGACY_FORM",
    "NATIVE_FORM",
    "NONCE_MAX",
    "TRANSACTION_LIMIT_BYTES",
    "Transaction",
    "decode_transaction",
    "sign_transaction",
]

TRANSACTION_LIMIT_BYTES: Final = 64 * 1024
NONCE_MAX: Final = 2**64 - 2
GAS_LIMIT_MAX: Final = 2**63 - 1
FEE_MAX: Final = 2**128 - 1
KIND_MAX: Final = 2**16 - 1
CHAIN_ID_MAX: Final = 2**31 - 1

CALL_KIND: Final = 0x00
"""What Ethereum's forms carry: [to, value, data], which the runtime turns into a kind of its own."""
NATIVE_FORM: Final = 0x44
LEGACY_FORM: Final = 0xC0

_SIGNATURE_ITEM_BYTES: Final = 2 + SIGNATURE_BYTES  # 0x58 0x41 and the bytes themselves

_NATIVE_TYPES: Final = (int, int, int, int, int, int, list, bytes)


class Transaction:
    """A decoded transaction of any form.

    ``raw`` is what was received and ``hash`` its keccak-256. ``payload`` is the decoded array that the rule of
    ``kind`` reads. ``sender`` is empty until the signature was checked; nothing executes an empty sender.
    Amounts are in the smallest unit (10^-18 DKB); fees are for one unit of gas.
    """

    __slots__ = (
        "chain_id", "digest", "form", "gas_limit", "hash", "kind", "max_fee_per_gas",
        "max_priority_fee_per_gas", "nonce", "payload", "raw", "sender", "signature",
    )  # fmt: skip

    def __init__(
        self, raw: bytes, form: int, chain_id: int, nonce: int, max_priority_fee_per_gas: int,
        max_fee_per_gas: int, gas_limit: int, kind: int, payload: list[Any], digest: bytes, signature: bytes,
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
        self.digest = digest
        self.signature = signature
        self.sender = b""

    def __repr__(self) -> str:
        return f"Transaction(0x{self.hash.hex()}, kind={self.kind:#x}, nonce={self.nonce})"

    def recover_sender(self) -> bytes:
        """Return the signer's address and keep it as ``sender``. Raises SignatureInvalid."""
        if not self.sender:
            self.sender = recover_address(self.digest, self.signature)
        return self.sender


def _decode_native(raw: bytes) -> Transaction:
    # The length is bounded here, so a slice of the tail is within the bytes or the types below are others.
    value = decode(raw[1:], limit_bytes=TRANSACTION_LIMIT_BYTES)
    if type(value) is list and tuple(map(type, value)) == _NATIVE_TYPES:  # a tenth of the cost of class patterns
        chain_id, nonce, tip, fee, gas_limit, kind, payload, signature = value
        if (
            0 < chain_id <= CHAIN_ID_MAX and 0 <= nonce <= NONCE_MAX and 0 <= tip <= fee <= FEE_MAX
            and 0 <= gas_limit <= GAS_LIMIT_MAX and 0 <= kind <= KIND_MAX and len(signature) == SIGNATURE_BYTES
        ):  # fmt: skip
            digest = keccak(b"\x44\x87" + raw[2:-_SIGNATURE_ITEM_BYTES])
            return Transaction(
                raw, NATIVE_FORM, chain_id, nonce, tip, fee, gas_limit, kind, payload, digest, signature
            )
    raise DecodeError("not a native transaction")


FORMS: Final[dict[int, Callable[[bytes], Transaction]]] = {NATIVE_FORM: _decode_native}
"""Decoder of each known form; an adapter of another form adds its own line."""


def decode_transaction(raw: bytes) -> Transaction:
    """Return the transaction whose bytes are ``raw``, its signature not yet checked.

    Raises DecodeError: unknown form, too long, not canonical, a field out of range.
    """
    if not raw or len(raw) > TRANSACTION_LIMIT_BYTES:
        raise DecodeError(f"a transaction of {len(raw)} bytes, limit {TRANSACTION_LIMIT_BYTES}")
    form = raw[0] if raw[0] < LEGACY_FORM else LEGACY_FORM
    decoder = FORMS.get(form)
    if decoder is None:
        raise DecodeError(f"transaction type not supported: {raw[0]:#04x}")
    return decoder(raw)


def sign_transaction(
    key: SecretKey, *, chain_id: int, nonce: int, kind: int, payload: list[Value], gas_limit: int,
    max_fee_per_gas: int, max_priority_fee_per_gas: int = 0,
) -> bytes:  # fmt: skip
    """Return the raw bytes of a native transaction signed by ``key``."""
    head: list[Value] = [
        chain_id, nonce, max_priority_fee_per_gas, max_fee_per_gas, gas_limit, kind, payload,
    ]  # fmt: skip
    body = encode(head)
    signature = key.sign(keccak(b"\x44" + body))
    return b"\x44\x88" + body[1:] + b"\x58\x41" + signature
