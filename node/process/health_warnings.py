"""Warnings for a node's owner: no peer answers, or this machine's clock is wrong.

A peer of another chain cannot report that: the first message of the handshake fails to decrypt. A node with a
wrong clock refuses other nodes' blocks and does not vote on them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog
import trio

__all__ = ["ClockWatch", "warn_without_peers"]

_log = structlog.get_logger("node")

ALONE_S: Final = 15.0
CLOCK_OFF_MS_MIN: Final = 10_000
"""Blocks arrive late because of a slow line or a waiting leader, but not by this much every time."""
PAST_S_MIN: Final = 60.0
"""A genesis time further in the past is logged."""
COUNT_DOWN_S_MAX: Final = 3_600.0
CLOCK_BLOCKS: Final = 8
"""Number of consecutive blocks that must show the difference."""


async def warn_without_peers(
    wait_peers: Callable[[int], Awaitable[None]], peers: Sequence[str], genesis_hash: bytes
) -> None:
    """Log after ALONE_S that none of ``peers`` answers. Without configured peers nothing is logged."""
    if not peers:
        return
    with trio.move_on_after(ALONE_S):
        await wait_peers(1)
        return
    _log.warning(
        "no peer answers: check address, host and port, and that genesis.json is that of the network",
        peers=list(peers), genesis=genesis_hash,
    )  # fmt: skip


async def log_genesis_countdown(
    genesis_ms: int, height: Callable[[], int], now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
) -> None:
    """Log a countdown to a genesis time in the future, and a note on one in the distant past.

    Logs nothing if the chain has a block.
    """
    if height():
        return
    left_ms = genesis_ms - now_ms()
    if left_ms < -PAST_S_MIN * 1000:
        _log.info(
            "the genesis time is long past; this does no harm: the first block carries the time of its creation",
            past_s=-left_ms // 1000,
        )
    while left_ms > 0 and not height():
        _log.info("waiting for the genesis time: the chain begins then", begins_in_s=-(-left_ms // 1000))
        # Each line when half of what was left has passed: few for days, and one each second at the end.
        await trio.sleep(max(1.0, min(left_ms / 2000, COUNT_DOWN_S_MAX)) if left_ms > 1_000 else left_ms / 1000)
        left_ms = genesis_ms - now_ms()


class ClockWatch:
    """Compares this machine's clock with the times of new blocks."""

    def __init__(self) -> None:
        self._offsets: deque[int] = deque(maxlen=CLOCK_BLOCKS)

    def note(self, block_time_ms: int, now_ms: int) -> bool:
        """Process a new block; return whether the clock has just been found to be wrong."""
        was_off = bool(self.off_ms)
        self._offsets.append(now_ms - block_time_ms)
        return bool(self.off_ms) and not was_off

    @property
    def off_ms(self) -> int:
        """How far the clock is ahead of the chain (negative: behind); 0 while it is right or unknown."""
        if len(self._offsets) < CLOCK_BLOCKS or min(self._offsets) < 0 < max(self._offsets):
            return 0
        least = min(self._offsets, key=abs)
        return least if abs(least) >= CLOCK_OFF_MS_MIN else 0
