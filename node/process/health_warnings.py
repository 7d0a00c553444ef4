"""What nobody else can tell the owner of a node: that nobody answers it, and that its clock is wrong.

A peer of another chain cannot even say so: the first message of the handshake does not open. And who has a wrong
clock finds the blocks of others wrong, and votes on none of them.
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
"""Blocks come later than they were made, by a slow line or a leader's patience, but not by so much every time."""
PAST_S_MIN: Final = 60.0
"""A genesis time that is longer past is told."""
COUNT_DOWN_S_MAX: Final = 3_600.0
CLOCK_BLOCKS: Final = 8
"""So many blocks in a row must say the same."""


async def warn_without_peers(
    wait_peers: Callable[[int], Awaitable[None]], peers: Sequence[str], genesis_hash: bytes
) -> None:
    """Say in the log that none of ``peers`` answers, once that took ALONE_S; say nothing where none are named."""
    if not peers:
        return
    with trio.move_on_after(ALONE_S):
        await wait_peers(1)
        return
    _log.warning(
        "no peer answers: are address, host and port right, and is genesis.json that of the network?",
        peers=list(peers), genesis=genesis_hash,
    )  # fmt: skip


async def log_genesis_countdown(
    genesis_ms: int, height: Callable[[], int], now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
) -> None:
    """Count down in the log to a genesis time that lies ahead; say what one that is long past means.

    Says nothing of a chain that has a block.
    """
    if height():
        return
    left_ms = genesis_ms - now_ms()
    if left_ms < -PAST_S_MIN * 1000:
        _log.info(
            "the genesis time is long past, which does no harm: the first block has the time of when it is made",
            past_s=-left_ms // 1000,
        )
    while left_ms > 0 and not height():
        _log.info("the chain begins at its genesis time", begins_in_s=-(-left_ms // 1000))
        # Each line when half of what was left has passed: few for days, and one each second at the end.
        await trio.sleep(max(1.0, min(left_ms / 2000, COUNT_DOWN_S_MAX)) if left_ms > 1_000 else left_ms / 1000)
        left_ms = genesis_ms - now_ms()


class ClockWatch:
    """Holds this machine's clock against the times of blocks that have just been made."""

    def __init__(self) -> None:
        self._offsets: deque[int] = deque(maxlen=CLOCK_BLOCKS)

    def note(self, block_time_ms: int, now_ms: int) -> bool:
        """Take in a new block; return whether it is now known that the clock is wrong, and was not before."""
        was_off = bool(self.off_ms)
        self._offsets.append(now_ms - block_time_ms)
        return bool(self.off_ms) and not was_off

    @property
    def off_ms(self) -> int:
        """How far the clock is ahead of the chain, below 0 behind; 0 while it is right, or not known."""
        if len(self._offsets) < CLOCK_BLOCKS or min(self._offsets) < 0 < max(self._offsets):
            return 0
        least = min(self._offsets, key=abs)
        return least if abs(least) >= CLOCK_OFF_MS_MIN else 0
