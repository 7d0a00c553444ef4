"""What an Ethereum wallet does, for tests, and what none should: both forms signed with any field changed."""

from __future__ import annotations

from typing import Any

from state.primitives.hashing import keccak
from state.primitives.keys import SecretKey
from state.primitives.signing import encode_rlp as rlp

__all__ = ["rlp", "sign_dynamic", "sign_legacy"]


def sign_dynamic(
    key: SecretKey, *, chain_id: int, nonce: int, to: bytes, value: int = 0, data: bytes = b"", gas: int = 21_000,
    fee: int, tip: int = 0, access: Any = (),
) -> bytes:  # fmt: skip
    """Return the raw bytes of an EIP-1559 transaction."""
    fields: list[Any] = [chain_id, nonce, tip, fee, gas, to, value, data, list(access)]
    signature = key.sign(keccak(b"\x02" + rlp(fields)))
    return b"\x02" + rlp([*fields, signature[64], *_numbers(signature)])


def sign_legacy(
    key: SecretKey, *, chain_id: int, nonce: int, to: bytes, value: int = 0, data: bytes = b"", gas: int = 21_000,
    price: int,
) -> bytes:  # fmt: skip
    """Return the raw bytes of a legacy transaction with replay protection."""
    fields: list[Any] = [nonce, price, gas, to, value, data]
    signature = key.sign(keccak(rlp([*fields, chain_id, b"", b""])))
    return rlp([*fields, 35 + 2 * chain_id + signature[64], *_numbers(signature)])


def _numbers(signature: bytes) -> tuple[int, int]:
    return int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:64], "big")
