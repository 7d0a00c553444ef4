"""Shares of a task's key for a requester who is offline: any k of n bonded machines give it (market.md 11.4).

Shamir's scheme ("How to share a secret", 1979) over the integers modulo a prime above 2^256. The requester commits
to each share by a hash in the task: a false share is known by itself, and costs its holder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from state.primitives.codec import encode
from state.primitives.hashing import HASH_BYTES, digest
from tasks.custody.errors import SharesInvalid
from tasks.custody.keys import KEY_BYTES

__all__ = [
    "HOLDERS_MAX",
    "Share",
    "check_share",
    "join_shares",
    "share_hash",
    "split_key",
    "split_randomness_bytes",
]

HOLDERS_MAX: Final = 16
PRIME: Final = 2**256 + 297
"""The least prime above 2^256: every key is below it."""
VALUE_BYTES: Final = 33
SALT_BYTES: Final = 16
COEFFICIENT_BYTES: Final = 48
"""Random bytes of a coefficient: modulo a prime of 257 bits they are uniform up to 2^-126."""


class Share(NamedTuple):
    """A point of the polynomial at ``holder`` + 1, and the salt that hides it in its hash."""

    holder: int
    value: bytes
    salt: bytes


def share_hash(task: bytes, share: Share) -> bytes:
    """Return the commitment to a share that stands in the task."""
    return digest(b"task-key-share", encode([task, share.holder, share.value, share.salt]))


def check_share(task: bytes, commitments: Sequence[bytes], share: Share) -> None:
    """Check a share against the task. Raises SharesInvalid."""
    if not 0 <= share.holder < len(commitments) <= HOLDERS_MAX:
        raise SharesInvalid("the task has no such holder")
    if len(share.value) != VALUE_BYTES or len(share.salt) != SALT_BYTES:
        raise SharesInvalid("not a share")
    if share_hash(task, share) != commitments[share.holder]:
        raise SharesInvalid("the share is not the one that the task commits to")


def split_key(task_key: bytes, threshold: int, holders: int, randomness: bytes) -> tuple[Share, ...]:
    """Divide a task's key so that any ``threshold`` of ``holders`` shares give it, and fewer tell nothing.

    ``randomness`` are ``split_randomness_bytes`` fresh random bytes. Raises SharesInvalid.
    """
    if not 1 <= threshold <= holders <= HOLDERS_MAX or len(task_key) != KEY_BYTES:
        raise SharesInvalid(f"1 to {HOLDERS_MAX} holders, and no more needed than there are")
    if len(randomness) != split_randomness_bytes(threshold, holders):
        raise SharesInvalid("another number of random bytes is needed")
    coefficients = [int.from_bytes(task_key, "big")]
    coefficients += [
        int.from_bytes(randomness[at : at + COEFFICIENT_BYTES], "big") % PRIME
        for at in range(0, COEFFICIENT_BYTES * (threshold - 1), COEFFICIENT_BYTES)
    ]
    salts = randomness[COEFFICIENT_BYTES * (threshold - 1) :]
    shares = []
    for holder in range(holders):
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * (holder + 1) + coefficient) % PRIME
        salt = salts[SALT_BYTES * holder : SALT_BYTES * (holder + 1)]
        shares.append(Share(holder, value.to_bytes(VALUE_BYTES, "big"), salt))
    return tuple(shares)


def split_randomness_bytes(threshold: int, holders: int) -> int:
    """Return how many random bytes a division takes."""
    return COEFFICIENT_BYTES * (threshold - 1) + SALT_BYTES * holders


def join_shares(task: bytes, commitments: Sequence[bytes], threshold: int, shares: Mapping[int, Share]) -> bytes:
    """Return the task's key from ``threshold`` shares or more. Raises SharesInvalid.

    The caller checks the key against the task's root of keys: a requester may have shared another one.
    """
    for holder, share in shares.items():
        if holder != share.holder:
            raise SharesInvalid("a share of another holder")
        check_share(task, commitments, share)
    if not 1 <= threshold <= len(shares) or any(len(item) != HASH_BYTES for item in commitments):
        raise SharesInvalid(f"{len(shares)} shares, {threshold} are needed")
    points = [(holder + 1, int.from_bytes(shares[holder].value, "big")) for holder in sorted(shares)[:threshold]]
    secret = 0
    for x, y in points:
        above, below = 1, 1
        for other, _ in points:
            if other != x:
                above = above * other % PRIME
                below = below * (other - x) % PRIME
        secret = (secret + y * above * pow(below, -1, PRIME)) % PRIME
    if secret >> 256:
        raise SharesInvalid("the shares make no key")
    return secret.to_bytes(KEY_BYTES, "big")
