"""Draining a node before it is stopped: it takes nothing new, finishes what runs, and says when it is empty."""

from __future__ import annotations

from typing import Any, NamedTuple

import trio

__all__ = ["Drain", "RemainingWork"]


class RemainingWork(NamedTuple):
    """What is still under way at a node."""

    is_offered: bool
    """The registry still offers this machine to tasks."""
    tasks: int
    """Tasks of which something may still be asked of this worker."""
    checks: int
    """Verdicts that this verifier owes."""
    running: int
    """Duties that are being done now."""
    transactions: int
    """Own transactions that are not final yet."""
    is_serving: bool
    """The gateway still answers."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing would be lost."""
        return not any(self)


class Drain:
    """Whether the node drains, and what is to follow; a start of the node ends it."""

    def __init__(self) -> None:
        self.is_on = False
        self.stops_when_empty = False
        self._changed = trio.Event()

    def switch(self, *, on: bool, stops_when_empty: bool = False) -> None:
        """Begin or end draining; doing so twice changes only whether the node ends afterwards."""
        self.is_on, self.stops_when_empty = on, on and stops_when_empty
        self._changed.set()
        self._changed = trio.Event()

    async def wait(self, *, on: bool) -> None:
        """Wait until the node drains, or no longer does."""
        while self.is_on != on:
            await self._changed.wait()

    def describe(self, work: RemainingWork) -> dict[str, Any]:
        """Return how far it is, for the node's owner."""
        return {
            "draining": self.is_on,
            "stops_when_empty": self.stops_when_empty,
            "empty": self.is_on and work.is_empty,
            "offered": work.is_offered,
            "tasks": work.tasks,
            "checks": work.checks,
            "running": work.running,
            "transactions": work.transactions,
            "serving": work.is_serving,
        }
