"""Paces bulk while consensus messages are exchanged, so that the queue at the bottleneck stays short.

If acknowledgements arrive in bunches, BBR overestimates the rate and may keep two round trips of data in flight.
The second one queues at the bottleneck, and every vote of this machine queues behind it. So while votes are
exchanged, a bulk connection whose round trip shows a queue is paced slightly below its rate. It may grow again
when the queue is gone. The rate stays above ``floor_percent`` of the original. A lower rate cannot fill the line,
so a remaining queue is caused by others, and this connection slows down no further.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

__all__ = ["BulkPacing", "BulkPacingParameters"]


@dataclass(frozen=True, slots=True)
class BulkPacingParameters:
    """Parameters of one bulk connection; a tick is ``NetworkLimits.plan_interval_s``."""

    queue_s: float = 0.010
    """Allowed queueing delay at the line."""
    slower_percent: int = 7
    """Reduction for each tick with a longer queue, ..."""
    faster_percent: int = 2
    """... and increase for each other tick."""
    floor_percent: int = 80
    """Lowest rate in percent of the original one."""
    free_percent: int = 125
    """A bulk connection that reaches this share of its original rate is no longer paced."""
    patience_s: float = 5.0
    """After this long at the floor with a queue, other traffic is the cause, ..."""
    rest_s: float = 30.0
    """... and pacing pauses for this long."""
    window_ticks: int = 4
    """Its rate is the mean of this many ticks."""

    def __post_init__(self) -> None:
        assert 0 < self.floor_percent < 100 < self.free_percent
        assert 0 < self.faster_percent < self.slower_percent < 100 - self.floor_percent


class BulkPacing:
    """The pacing of one bulk connection. Each tick takes its acknowledged bytes and round trip, and returns its
    rate limit.
    """

    def __init__(self, parameters: BulkPacingParameters | None = None) -> None:
        self._parameters = parameters if parameters is not None else BulkPacingParameters()
        self._acked: deque[tuple[float, int]] = deque(maxlen=self._parameters.window_ticks + 1)
        self._bound: float | None = None
        self._base = 0.0
        """Its rate when pacing began."""
        self._at_floor_since: float | None = None
        self._free_until = 0.0

    def let_go(self) -> None:
        """Remove the limit, and set none before the rate without a limit is known."""
        self._bound = None
        self._acked.clear()

    def tick(self, now: float, *, acked_bytes: int, waiting_s: float) -> int | None:
        """Return the rate limit in bytes per second; None: no limit.

        ``acked_bytes`` since the connection began. ``waiting_s`` is the round trip minus the shortest one.
        Consecutive ticks must be of a connection that always has data to send.
        """
        if now < self._free_until:
            return None
        self._acked.append((now, acked_bytes))
        if waiting_s > self._parameters.queue_s:
            self._slow(now)
        else:
            self._let_grow()
        return None if self._bound is None else int(self._bound)

    def _slow(self, now: float) -> None:
        parameters = self._parameters
        if self._bound is None:
            rate = self._rate()
            if rate <= 0:
                return
            self._bound = self._base = rate
            self._at_floor_since = None
        floor = self._base * parameters.floor_percent / 100
        self._bound = max(self._bound * (100 - parameters.slower_percent) / 100, floor)
        if self._bound > floor:
            self._at_floor_since = None
        elif self._at_floor_since is None:
            self._at_floor_since = now
        elif now - self._at_floor_since >= parameters.patience_s:
            self.let_go()
            self._free_until = now + parameters.rest_s

    def _let_grow(self) -> None:
        parameters = self._parameters
        self._at_floor_since = None
        if self._bound is not None:
            self._bound *= (100 + parameters.faster_percent) / 100
            if self._bound > self._base * parameters.free_percent / 100:
                self.let_go()

    def _rate(self) -> float:
        """Bytes per second over the last ticks; 0 before there are enough."""
        if len(self._acked) < (self._acked.maxlen or 0):
            return 0.0
        (began, first), (ended, last) = self._acked[0], self._acked[-1]
        return (last - first) / (ended - began) if ended > began else 0.0
