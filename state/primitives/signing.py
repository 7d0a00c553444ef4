"""Signing of Ethereum's transaction forms and of personal messages (EIP-191)."""

from __future__ import annotations

from typing import Final

from state.primitives.errors import SignatureInvalid
from state.primitives.hashing import keccak
from state.primitives.keys import SIGNATURE_BYTES, SecretKey, recover_address

__all__ = [
    "encode_rlp",
    "personal_digest",
    "recover_wallet_signature",
    "sign_dynamic",
    "sign_legacy",
    "wallet_form",
]

Rlp = int | bytes | list["Rlp"]
_RECOVERY_BASE: Final = 27
"""Wallets write the recovery id as 27 or 28."""
_LEGACY_BASE: Final = 35


def encode_rlp(item: Rlp) -> bytes:
    """Return the RLP of natural numbers, bytes and lists of these."""
    if isinstance(item, int):
        item = item.to_bytes((item.bit_length() + 7) // 8, "big")
    if isinstance(item, bytes):
        if len(item) == 1 and item[0] < 0x80:
            return item
        return _header(0x80, len(item)) + item
    body = b"".join(map(encode_rlp, item))
    return _header(0xC0, len(body)) + body


def _header(base: int, size: int) -> bytes:
    if size < 56:
        return bytes((base + size,))
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((base + 55 + len(length),)) + length


def sign_dynamic(
    key: SecretKey, *, chain_id: int, nonce: int, to: bytes, value: int = 0, data: bytes = b"",
    gas_limit: int, max_fee_per_gas: int, max_priority_fee_per_gas: int = 0,
) -> bytes:  # fmt: skip
    """Return the raw bytes of an EIP-1559 transaction signed by ``key``."""
    fields: list[Rlp] = [
        chain_id, nonce, max_priority_fee_per_gas, max_fee_per_gas, gas_limit, to, value, data, [],
    ]  # fmt: skip
    signature = key.sign(keccak(b"\x02" + encode_rlp(fields)))
    return b"\x02" + encode_rlp([*fields, signature[64], *_numbers(signature)])


def sign_legacy(
    key: SecretKey, *, chain_id: int, nonce: int, to: bytes, value: int = 0, data: bytes = b"",
    gas_limit: int, gas_price: int,
) -> bytes:  # fmt: skip
    """Return the raw bytes of a legacy transaction with replay protection (EIP-155) signed by ``key``."""
    fields: list[Rlp] = [nonce, gas_price, gas_limit, to, value, data]
    signature = key.sign(keccak(encode_rlp([*fields, chain_id, b"", b""])))
    return encode_rlp([*fields, _LEGACY_BASE + 2 * chain_id + signature[64], *_numbers(signature)])


def _numbers(signature: bytes) -> tuple[int, int]:
    return int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:64], "big")


def personal_digest(message: bytes) -> bytes:
    """Return what is signed of a message to people (EIP-191, personal_sign)."""
    return keccak(b"\x19Ethereum Signed Message:\n%d" % len(message) + message)


def wallet_form(signature: bytes) -> bytes:
    """Return a recoverable signature as wallets write it."""
    return signature[:64] + bytes((signature[64] + _RECOVERY_BASE,))


def recover_wallet_signature(digest: bytes, signature: bytes) -> bytes:
    """Return the address that signed ``digest``; the recovery id may be 0, 1, 27 or 28.

    Raises SignatureInvalid.
    """
    if len(signature) != SIGNATURE_BYTES:
        raise SignatureInvalid("not a signature of any key: 65 bytes expected")
    identifier = signature[64] - _RECOVERY_BASE if signature[64] >= _RECOVERY_BASE else signature[64]
    return recover_address(digest, signature[:64] + bytes((identifier,)))
