"""The book of a node's duties: which run, which rest after a failure, and what keeps them from being done.

A duty is known by its key, and comes again with every head for as long as the chain asks for it. Time is given,
and nothing is logged here: ``node.market.duties`` does what the book says.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

__all__ = ["Attempts", "Trouble"]


class Trouble(NamedTuple):
    """Why a duty was not done."""

    code: str
    text: str


class Attempts:
    """What is tried, and tried again ``retry_s`` after it failed."""

    def __init__(self, retry_s: float) -> None:
        self.troubles: dict[Hashable, Trouble] = {}
        """Of duties that are still asked for, or run."""
        self._retry_s = retry_s
        self._asked: set[Hashable] = set()
        """What the newest head asks for."""
        self._running: set[Hashable] = set()
        self._rests: dict[Hashable, float] = {}
        self._given_up: set[Hashable] = set()

    @property
    def running(self) -> int:
        """How many duties run."""
        return len(self._running)

    def is_running(self, key: Hashable) -> bool:
        """Tell whether a duty runs."""
        return key in self._running

    def look(self, now: float) -> None:
        """Begin with a new head: nothing is asked for yet."""
        self._asked.clear()
        self._rests = {key: until for key, until in self._rests.items() if until > now}

    def begin(self, key: Hashable, now: float) -> bool:
        """Note that a duty is asked for; tell whether to begin it now: it neither runs, rests nor is given up."""
        self._asked.add(key)
        if key in self._running or key in self._given_up or self._rests.get(key, 0.0) > now:
            return False
        self._running.add(key)
        return True

    def looked(self) -> None:
        """End with a head: what keeps a duty that nobody asks for any more is no trouble."""
        wanted = self._asked | self._running
        self._given_up &= wanted
        self.troubles = {key: why for key, why in self.troubles.items() if key in wanted}

    def rest(self, key: Hashable, now: float) -> None:
        """Leave a duty alone for a while."""
        self._rests[key] = now + self._retry_s

    def give_up(self, key: Hashable) -> None:
        """Begin a duty no more for as long as it is asked for."""
        self._given_up.add(key)

    def failed(self, key: Hashable, trouble: Trouble) -> bool:
        """Note why a duty was not done; tell whether that is news: amounts in the text change with each block."""
        before = self.troubles.get(key)
        self.troubles[key] = trouble
        return before is None or before.code != trouble.code

    def went_well(self, key: Hashable) -> None:
        """Note that nothing keeps a duty from being done."""
        self.troubles.pop(key, None)

    def ended(self, key: Hashable) -> None:
        """Note that a duty runs no more, however it ended."""
        self._running.discard(key)
