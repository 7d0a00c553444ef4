"""Clocks of a game: so long for a move, so long for a side in all (market.md 7.8).

A clock runs while its side's move is due. It is told how long it may not count: while the chain stood still, and
in blocks whose room for moves was full.
"""

from __future__ import annotations

from typing import NamedTuple

from tasks.dispute.game import Side

__all__ = ["Clock"]


class Clock(NamedTuple):
    """Times in milliseconds of chain time. ``since_ms`` is when the move that is due became due."""

    side: Side
    since_ms: int
    accused_left_ms: int
    challenger_left_ms: int

    @classmethod
    def start(cls, side: Side, now_ms: int, side_ms: int) -> Clock:
        """Return the clock of a new game in which ``side`` moves first."""
        return cls(side, now_ms, side_ms, side_ms)

    def left_ms(self, side: Side) -> int:
        """Return what a side has left of its time in all, before the move under way."""
        return self.accused_left_ms if side is Side.ACCUSED else self.challenger_left_ms

    def deadline_ms(self, move_ms: int) -> int:
        """Return until when the move that is due has to come."""
        return self.since_ms + min(move_ms, self.left_ms(self.side))

    def stopped(self, by_ms: int) -> Clock:
        """Return the clock after it did not count for ``by_ms``."""
        return self._replace(since_ms=self.since_ms + by_ms)

    def given(self, side: Side, more_ms: int) -> Clock:
        """Return the clock after a side got so much more time in all, for a move that takes longer."""
        if side is Side.ACCUSED:
            return self._replace(accused_left_ms=self.accused_left_ms + more_ms)
        return self._replace(challenger_left_ms=self.challenger_left_ms + more_ms)

    def moved(self, side: Side, now_ms: int) -> Clock:
        """Return the clock after a move, when ``side`` is to move next."""
        spent = max(0, now_ms - self.since_ms)
        accused, challenger = self.accused_left_ms, self.challenger_left_ms
        if self.side is Side.ACCUSED:
            accused = max(0, accused - spent)
        else:
            challenger = max(0, challenger - spent)
        return Clock(side, now_ms, accused, challenger)
