"""BLAKE2b-256 with the kind as personalisation; keccak-256 for what wallets hash (chain.md 2)."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

import sha3

__all__ = ["HASH_BYTES", "ZERO_HASH", "digest", "keccak"]

HASH_BYTES: Final = 32
ZERO_HASH: Final = bytes(HASH_BYTES)


def digest(kind: bytes, data: bytes) -> bytes:
    """Return the 32-byte BLAKE2b of ``data`` personalised by ``kind`` (at most 16 bytes).

    Two kinds never collide, so a hash of one object can never stand for an object of another kind.
    """
    return blake2b(data, digest_size=32, person=kind).digest()


def keccak(data: bytes) -> bytes:
    """Return keccak-256 of ``data``: transaction hashes, signing digests and addresses, as wallets do."""
    result: bytes = sha3.keccak_256(data).digest()
    return result
