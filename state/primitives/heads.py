"""The newest block of a chain, as all parts of a node tell it to each other."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Head"]


class Head(NamedTuple):
    """The newest finalised block and what follows from it.

    ``state_root`` is the root after executing it (the next header carries it), ``base_fee_next`` the base fee
    of the next block. State is readable from ``oldest_state`` up, blocks from ``oldest_block``.
    ``stood_still_ms`` is its chain time less its steady time.
    """

    height: int
    hash: bytes
    time_ms: int
    state_root: bytes
    base_fee: int
    base_fee_next: int
    oldest_state: int
    oldest_block: int
    stood_still_ms: int = 0

    @property
    def steady_ms(self) -> int:
        """Steady time of the block: deadlines count in it."""
        return self.time_ms - self.stood_still_ms
