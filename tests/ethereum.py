"""What an Ethereum wallet does, for tests: RLP and signing of both forms, apart from the code that reads them."""

from __future__ import annotations

from typing import Any

from state.primitives.hashing import keccak
from state.primitives.keys import SecretKey

__all__ = ["rlp", "sign_dynamic", "sign_legacy"]


def rlp(item: Any) -> bytes:
    """Return the RLP of integers, bytes and lists of these."""
    if isinstance(item, int):
        item = item.to_bytes((item.bit_length() + 7) // 8, "big")
    if isinstance(item, bytes):
        if len(item) == 1 and item[0] < 0x80:
            return item
        return _head(0x80, len(item)) + item
    body = b"".join(map(rlp, item))
    return _head(0xC0, len(body)) + body


def _head(base: int, size: int) -> bytes:
    if size < 56:
        return bytes([base + size])
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([base + 55 + len(length)]) + length


def sign_dynamic(
    key: SecretKey, *, chain_id: int, nonce: int, to: bytes, value: int = 0, data: bytes = b"", gas: int = 21_000,
    fee: int, tip: int = 0, access: Any = (),
) -> bytes:  # fmt: skip
    """Return the raw bytes of an EIP-1559 transaction."""
    fields = [chain_id, nonce, tip, fee, gas, to, value, data, list(access)]
    signature = key.sign(keccak(b"\x02" + rlp(fields)))
    return b"\x02" + rlp([*fields, signature[64], *_numbers(signature)])


def sign_legacy(
    key: SecretKey, *, chain_id: int, nonce: int, to: bytes, value: int = 0, data: bytes = b"", gas: int = 21_000,
    price: int,
) -> bytes:  # fmt: skip
    """Return the raw bytes of a legacy transaction with replay protection."""
    fields = [nonce, price, gas, to, value, data]
    signature = key.sign(keccak(rlp([*fields, chain_id, b"", b""])))
    return rlp([*fields, 35 + 2 * chain_id + signature[64], *_numbers(signature)])


def _numbers(signature: bytes) -> tuple[int, int]:
    return int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:64], "big")
