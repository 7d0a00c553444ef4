"""How often custody is looked at as it ends: a drawn custodian has to show a chunk (market.md R157)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

__all__ = ["LOOKS_AT_ONCE", "LOOKS_MIN", "LOOKS_SAFETY", "is_looked_at", "look"]

LOOKS_AT_ONCE: Final = 16
"""Chunks of one task that are asked for at once: as many as a requester may demand of it. Otherwise a requester
that ends the custody of many small outputs in one block has a custodian show more chunks than it can in its time
(N79)."""
LOOKS_MIN: Final = 16
"""At least one custodian of so many is asked: with two copies one output of eight. The simulator found that one of
eight tasks is enough where only the result is asked for (docs/market-testing.md)."""
LOOKS_SAFETY: Final = 2
"""So many times the least chance at which a custodian without the output loses what it saves: some get the chunk
elsewhere."""


def is_looked_at(lot: int, count: int, pay: int, bond: int) -> bool:
    """Tell whether a drawn one of ``count`` custodians is asked for a chunk as custody ends (R157).

    ``lot`` has 64 bits. A custodian without the output loses its ``pay`` and its ``bond`` if it is asked. It has
    saved less than that pay. So each is asked with the chance ``pay / (pay + bond)`` at least, up to
    ``1 / count``.
    """
    return lot * LOOKS_MIN < count << 64 or lot * (pay + bond) < LOOKS_SAFETY * count * pay << 64


def look(seed: bytes, keepers: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """Return which custodian has to show a chunk, and a number of 64 bits that picks it; None if nobody has to.

    ``seed`` has 24 bytes at least. ``keepers`` are the pay and the bond of each.
    """
    which, lot, chunk = (int.from_bytes(seed[at : at + 8], "big") for at in (0, 8, 16))
    if not keepers or not is_looked_at(lot, len(keepers), *keepers[which % len(keepers)]):
        return None
    return which % len(keepers), chunk
