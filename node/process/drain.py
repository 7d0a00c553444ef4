"""Draining before a stop: the node accepts no new work, finishes current work, and reports when it is empty."""

from __future__ import annotations

from typing import Any, NamedTuple

import trio

__all__ = ["Drain", "RemainingWork"]


class RemainingWork(NamedTuple):
    """The work that is still under way at a node."""

    is_offered: bool
    """The registry still offers this machine for tasks."""
    tasks: int
    """Tasks that may still require work of this worker."""
    checks: int
    """Verdicts that this verifier still has to give."""
    running: int
    """Duties that run now."""
    transactions: int
    """Own transactions that are not final yet."""
    is_serving: bool
    """The gateway still runs."""

    @property
    def is_empty(self) -> bool:
        """Whether a stop would lose no work."""
        return not any(self)


class Drain:
    """Whether the node drains, and whether it then stops. The next start of the node ends the drain."""

    def __init__(self) -> None:
        self.is_on = False
        self.stops_when_empty = False
        self.is_taken_back = False
        """Containers of strangers end too: the owner wants the machine."""
        self._changed = trio.Event()

    def switch(self, *, on: bool, stops_when_empty: bool = False, takes_back: bool = False) -> None:
        """Begin or end draining. A second call only changes whether the node then stops.

        What ``takes_back`` has begun lasts until the draining ends: containers are ending.
        """
        self.is_on, self.stops_when_empty = on, on and stops_when_empty
        self.is_taken_back = on and (self.is_taken_back or takes_back)
        self._changed.set()
        self._changed = trio.Event()

    async def wait(self, *, on: bool) -> None:
        """Wait until the node drains, or no longer drains."""
        while self.is_on != on:
            await self._changed.wait()

    def describe(self, work: RemainingWork) -> dict[str, Any]:
        """Return the progress of the drain for the node's owner."""
        return {
            "draining": self.is_on,
            "taken_back": self.is_taken_back,
            "stops_when_empty": self.stops_when_empty,
            "empty": self.is_on and work.is_empty,
            "offered": work.is_offered,
            "tasks": work.tasks,
            "checks": work.checks,
            "running": work.running,
            "transactions": work.transactions,
            "serving": work.is_serving,
        }
