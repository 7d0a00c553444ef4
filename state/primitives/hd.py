"""Keys derived from one seed (BIP-32) along the path that Ethereum's wallets use (BIP-44)."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Final

from state.primitives.errors import KeystoreError
from state.primitives.keys import GROUP_ORDER, SecretKey

__all__ = ["HARDENED", "INDEX_MAX", "derive_key", "ethereum_path"]

HARDENED: Final = 1 << 31
INDEX_MAX: Final = HARDENED - 1
SEED_BYTES: Final = range(16, 65)


def ethereum_path(index: int) -> tuple[int, ...]:
    """Return the path m/44'/60'/0'/0/index."""
    if not 0 <= index <= INDEX_MAX:
        raise KeystoreError(f"index {index}: 0 to {INDEX_MAX} expected")
    return (44 + HARDENED, 60 + HARDENED, HARDENED, 0, index)


def derive_key(seed: bytes, path: Sequence[int]) -> SecretKey:
    """Return the key at ``path`` below ``seed``. Raises KeystoreError."""
    if len(seed) not in SEED_BYTES:
        raise KeystoreError("a seed of 16 to 64 bytes is expected")
    secret, chain = _halves(b"Bitcoin seed", seed)
    number = int.from_bytes(secret, "big")
    for index in path:
        parent = _key(number)
        if index >= HARDENED:
            data = b"\0" + parent.secret
        else:
            point = parent.public_key
            data = bytes((2 + point[64] % 2,)) + point[1:33]
        left, chain = _halves(chain, data + index.to_bytes(4, "big"))
        offset = int.from_bytes(left, "big")
        if offset >= GROUP_ORDER:
            raise KeystoreError("this index has no key: take the next")  # one in 2^127
        number = (offset + number) % GROUP_ORDER
    return _key(number)


def _halves(key: bytes, data: bytes) -> tuple[bytes, bytes]:
    made = hmac.digest(key, data, hashlib.sha512)
    return made[:32], made[32:]


def _key(number: int) -> SecretKey:
    if not 0 < number < GROUP_ORDER:
        raise KeystoreError("this seed has no key")  # one in 2^127
    return SecretKey(number.to_bytes(32, "big"))
