"""Filters of logs, and the bits by which a bloom excludes a block without reading it."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from state.primitives.hashing import keccak
from state.primitives.receipts import Event

__all__ = ["CHOICES_OF_FILTER", "LogFilter", "bloom_bits"]

CHOICES_OF_FILTER: Final = 64
"""Addresses and topics in one filter that count as one more filter."""


class LogFilter(NamedTuple):
    """Selects events by address and topics.

    An empty ``addresses`` selects any address. Each of ``topics`` lists the values allowed at its position; None
    allows any value.
    """

    addresses: frozenset[bytes]
    topics: tuple[frozenset[bytes] | None, ...]

    @property
    def weight(self) -> int:
        """How many filters this one counts as: a filter with many choices takes the memory of many."""
        return 1 + (len(self.addresses) + sum(len(choices or ()) for choices in self.topics)) // CHOICES_OF_FILTER

    def matches(self, event: Event) -> bool:
        """Return whether the filter selects ``event``."""
        if self.addresses and event.address not in self.addresses:
            return False
        if len(self.topics) > len(event.topics):
            return False
        return all(want is None or have in want for want, have in zip(self.topics, event.topics, strict=False))

    def masks(self) -> tuple[tuple[int, ...], ...]:
        """Return the bloom bits of the choices of each condition.

        A block whose bloom has none of a condition's masks has no event that the filter selects.
        """
        conditions = [self.addresses, *(choices for choices in self.topics if choices)]
        return tuple(tuple(map(bloom_bits, choices)) for choices in conditions if choices)


@lru_cache(maxsize=4096)
def bloom_bits(item: bytes) -> int:
    """Return the bits of an address or a topic in a bloom of 2048 bits (Ethereum, yellow paper 4.3.1)."""
    hashed = keccak(item)
    bits = 0
    for at in (0, 2, 4):
        bits |= 1 << (int.from_bytes(hashed[at : at + 2], "big") & 2047)
    return bits
