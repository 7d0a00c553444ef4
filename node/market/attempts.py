"""Tracks the attempts at a node's duties: which run, which wait after a failure, and the reason of each failure.

A duty is identified by its key, and is listed again at every head while the chain requires it. The caller passes
the time and writes the log (``node.market.duties``).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

__all__ = ["Attempts", "Trouble"]


class Trouble(NamedTuple):
    """Why a duty failed."""

    code: str
    text: str


class Attempts:
    """Duties and their attempts; a failed duty is retried after ``retry_s``."""

    def __init__(self, retry_s: float) -> None:
        self.troubles: dict[Hashable, Trouble] = {}
        """Failures of duties that are still required or running."""
        self._retry_s = retry_s
        self._asked: set[Hashable] = set()
        """Duties at the newest head."""
        self._running: set[Hashable] = set()
        self._rests: dict[Hashable, float] = {}
        self._given_up: set[Hashable] = set()

    @property
    def running(self) -> int:
        """Number of running duties."""
        return len(self._running)

    def is_running(self, key: Hashable) -> bool:
        """Tell whether a duty runs."""
        return key in self._running

    def look(self, now: float) -> None:
        """Begin processing a new head: no duty is listed yet."""
        self._asked.clear()
        self._rests = {key: until for key, until in self._rests.items() if until > now}

    def begin(self, key: Hashable, now: float) -> bool:
        """Note that the head requires a duty; return whether to start it: it does not run, wait or count as given
        up.
        """
        self._asked.add(key)
        if key in self._running or key in self._given_up or self._rests.get(key, 0.0) > now:
            return False
        self._running.add(key)
        return True

    def looked(self) -> None:
        """Finish processing a head: drop the failures of duties that are no longer required."""
        wanted = self._asked | self._running
        self._given_up &= wanted
        self.troubles = {key: why for key, why in self.troubles.items() if key in wanted}

    def rest(self, key: Hashable, now: float) -> None:
        """Let a duty wait before its next attempt."""
        self._rests[key] = now + self._retry_s

    def give_up(self, key: Hashable) -> None:
        """Give a duty up while it is required."""
        self._given_up.add(key)

    def failed(self, key: Hashable, trouble: Trouble) -> bool:
        """Note why a duty failed; return whether the reason is new. Amounts in the text change with each block."""
        before = self.troubles.get(key)
        self.troubles[key] = trouble
        return before is None or before.code != trouble.code

    def went_well(self, key: Hashable) -> None:
        """Clear a duty's failure."""
        self.troubles.pop(key, None)

    def ended(self, key: Hashable) -> None:
        """Note that a duty has ended, with or without success."""
        self._running.discard(key)
