"""How long a peer has been useful: counted in periods, so that a burst of work earns no more than one period.

``p2p.peers.eviction`` ranks inbound peers by this count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["USEFUL_PERIOD_S", "Usefulness"]

USEFUL_PERIOD_S: Final = 60.0


@dataclass(slots=True)
class Usefulness:
    """Number of periods in which a peer delivered something useful since it connected."""

    periods: int = 0
    _last: int = -1

    def note(self, now: float) -> None:
        """Note that the peer was useful at ``now``, in seconds of one monotonic clock."""
        period = int(now // USEFUL_PERIOD_S)
        if period > self._last:
            self._last = period
            self.periods += 1
