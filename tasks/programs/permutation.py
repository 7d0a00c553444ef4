"""A keyed permutation of [0, n): the order of samples in an epoch, computable for one place alone (market.md 4.6).

A Feistel network over the fewest bits that hold n numbers, with cycle walking: what lands at n or above is
permuted again. So every place is found in a few steps, without a sort of all samples. ``feistel`` takes Python
integers and arrays of unsigned 64-bit integers alike.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import shake_256
from typing import Any, Final

__all__ = ["COUNT_MAX", "ROUNDS", "feistel", "order_keys", "permuted", "width_of"]

ROUNDS: Final = 6
"""Each half is changed three times."""
COUNT_MAX: Final = 1 << 28
_WORD: Final = (1 << 64) - 1
_WORD_BITS: Final = 64
_FIRST: Final = 0xBF58476D1CE4E5B9  # the mixing function of SplitMix64
_SECOND: Final = 0x94D049BB133111EB


@lru_cache(maxsize=64)
def order_keys(seed: bytes, epoch: int) -> tuple[int, ...]:
    """Return the keys of an epoch's rounds."""
    label = b"dekube sample order\x00" + seed + (epoch % (1 << 64)).to_bytes(8, "big")
    stream = shake_256(label).digest(8 * ROUNDS)
    return tuple(int.from_bytes(stream[at : at + 8], "little") for at in range(0, len(stream), 8))


def width_of(count: int) -> int:
    """Return the bits that the network for ``count`` numbers permutes."""
    return (count - 1).bit_length()


def permuted(place: int, count: int, keys: tuple[int, ...]) -> int:
    """Return the number at ``place`` in the permutation of [0, count)."""
    width = width_of(count)
    number: int = feistel(place, width, keys)
    while number >= count:
        number = feistel(number, width, keys)
    return number


def feistel(value: Any, width: int, keys: tuple[int, ...]) -> Any:
    """Return the image of ``value`` in a permutation of [0, 2^width)."""
    left_bits = width // 2
    right_bits = width - left_bits
    left, right = value >> right_bits, value & ((1 << right_bits) - 1)
    for at, key in enumerate(keys):
        if at % 2 and left_bits:
            left = left ^ _mixed(right, key, left_bits)
        elif not at % 2 and right_bits:
            right = right ^ _mixed(left, key, right_bits)
    return left << right_bits | right


def _mixed(value: Any, key: int, bits: int) -> Any:
    """Return the upper ``bits`` of a 64-bit mix of ``value`` and ``key``."""
    word = (value + key) & _WORD
    word = ((word ^ (word >> 30)) * _FIRST) & _WORD
    word = ((word ^ (word >> 27)) * _SECOND) & _WORD
    return (word ^ (word >> 31)) >> (_WORD_BITS - bits)
