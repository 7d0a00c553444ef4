"""Typed transactions (EIP-2718): the first byte names the form; bytes are kept and hashed as received.

See chain.md 6.1.

The native form is ``0x44 || CBOR [chain_id, nonce, max_priority_fee_per_gas, max_fee_per_gas, gas_limit, kind,
payload, signature]``. Its signing digest is the keccak-256 of the same bytes with an array of the first seven
items, so no reader has to encode anything again. Forms 0x00-0x7f are one table (``FORMS``); legacy Ethereum
transactions, whose first byte is 0xc0 or more, take their place in it under ``LEGACY_FORM``. Ethereum's forms
(``state.primitives.ethereum``) carry a call, of which the runtime makes one of its kinds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from state.primitives.codec import Value, decode, encode
from state.primitives.envelope import (
    CALL_KIND,
    CHAIN_ID_MAX,
    DYNAMIC_FORM,
    FEE_MAX,
    GAS_LIMIT_MAX,
    KIND_MAX,
    LEGACY_FORM,
    NATIVE_FORM,
    NONCE_MAX,
    TRANSACTION_LIMIT_BYTES,
    Transaction,
)
from state.primitives.errors import DecodeError, NotSupported, SignatureInvalid
from state.primitives.ethereum import decode_dynamic, decode_legacy
from state.primitives.hashing import keccak
from state.primitives.keys import SIGNATURE_BYTES, SecretKey, recover_address

__all__ = [
    "CALL_KIND",
    "CHAIN_ID_MAX",
    "DYNAMIC_FORM",
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
    "recover_sender",
    "sign_transaction",
]

_SIGNATURE_ITEM_BYTES: Final = 2 + SIGNATURE_BYTES  # 0x58 0x41 and the bytes themselves

_NATIVE_TYPES: Final = (int, int, int, int, int, int, list, bytes)


def _decode_native(raw: bytes) -> Transaction:
    # The length is bounded here, so a slice of the tail is within the bytes or the types below are others.
    value = decode(raw[1:], limit_bytes=TRANSACTION_LIMIT_BYTES)
    if type(value) is list and tuple(map(type, value)) == _NATIVE_TYPES:  # a tenth of the cost of class patterns
        chain_id, nonce, tip, fee, gas_limit, kind, payload, signature = value
        if (
            0 < chain_id <= CHAIN_ID_MAX and 0 <= nonce <= NONCE_MAX and 0 <= tip <= fee <= FEE_MAX
            and 0 <= gas_limit <= GAS_LIMIT_MAX and 0 <= kind <= KIND_MAX and len(signature) == SIGNATURE_BYTES
        ):  # fmt: skip
            signed = b"\x44\x87", 2, len(raw) - _SIGNATURE_ITEM_BYTES, b""
            return Transaction(
                raw, NATIVE_FORM, chain_id, nonce, tip, fee, gas_limit, kind, payload, signed, signature
            )
    raise DecodeError("not a native transaction")


FORMS: Final[dict[int, Callable[[bytes], Transaction]]] = {
    DYNAMIC_FORM: decode_dynamic,
    NATIVE_FORM: _decode_native,
    LEGACY_FORM: decode_legacy,
}
"""Decoder of each known form."""


def decode_transaction(raw: bytes) -> Transaction:
    """Return the transaction whose bytes are ``raw``, its signature not yet checked.

    Raises DecodeError: unknown form, too long, not canonical, a field out of range.
    """
    size = len(raw)
    if not size:
        raise DecodeError(f"a transaction of 0 bytes, limit {TRANSACTION_LIMIT_BYTES}")
    form = raw[0] if raw[0] < LEGACY_FORM else LEGACY_FORM
    decoder = FORMS.get(form)
    if decoder is None:
        raise NotSupported(f"transaction type not supported: {raw[0]:#04x} is a transaction type not valid here")
    if size > TRANSACTION_LIMIT_BYTES:
        raise DecodeError(f"a transaction of {size} bytes, limit {TRANSACTION_LIMIT_BYTES}")
    return decoder(raw)


def recover_sender(raw: bytes) -> bytes:
    """Return who signed the transaction whose bytes are ``raw``; of the native form nothing is decoded for it.

    Bytes that are no transaction may have a signer too, so the caller still decodes them. Raises
    DecodeError and SignatureInvalid, as decoding and recovering one after the other would.
    """
    if raw[:2] == b"\x44\x88" and raw[-_SIGNATURE_ITEM_BYTES:-SIGNATURE_BYTES] == b"\x58\x41":
        try:
            return recover_address(keccak(b"\x44\x87" + raw[2:-_SIGNATURE_ITEM_BYTES]), raw[-SIGNATURE_BYTES:])
        except SignatureInvalid:
            pass  # unless what is wrong is found first when it is decoded
    return decode_transaction(raw).recover_sender()


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
