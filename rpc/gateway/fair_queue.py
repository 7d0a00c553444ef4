"""Places for what takes long or much memory: so many in all, so many of one caller, and callers take turns.

See rpc.md R26.

Whoever finds no place waits in his own line; a place that comes free goes to the caller whose turn is next,
however many stand in the lines of others. So nobody's batch is refused, and nobody's batch keeps others out.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque

__all__ = ["FairQueue"]


class FairQueue:
    """The places of one lane; ``of_caller_max`` 0: one caller may have them all."""

    def __init__(self, places_max: int, of_caller_max: int) -> None:
        self._free = places_max
        self._of_caller_max = of_caller_max or places_max
        self._taken: dict[str, int] = {}
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """Who waits, the caller whose turn is next first."""

    async def enter(self, caller: str) -> None:
        """Return as soon as ``caller`` has a place, which ``leave`` gives back."""
        mine = self._taken.get(caller, 0)
        if self._free and mine < self._of_caller_max and caller not in self._lines:
            self._take(caller)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(caller, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it came in the very moment
                self.leave(caller)
            else:
                self._drop(caller, turn)
            raise

    def leave(self, caller: str) -> None:
        """Give a place back, to whoever is next."""
        self._free += 1
        left = self._taken[caller] - 1
        if left:
            self._taken[caller] = left
        else:
            del self._taken[caller]
        self._let_in()

    def _take(self, caller: str) -> None:
        self._free -= 1
        self._taken[caller] = self._taken.get(caller, 0) + 1

    def _let_in(self) -> None:
        # Those who are passed over have all the places that one may have, so they are few.
        while self._free:
            for caller in self._lines:
                if self._taken.get(caller, 0) < self._of_caller_max:
                    break
            else:
                return
            line = self._lines[caller]
            turn = line.popleft()
            if line:
                self._lines.move_to_end(caller)
            else:
                del self._lines[caller]
            if not turn.done():  # else he was cancelled and has not noticed yet
                self._take(caller)
                turn.set_result(None)

    def _drop(self, caller: str, turn: asyncio.Future[None]) -> None:
        line = self._lines.get(caller)
        if line is not None and turn in line:
            line.remove(turn)
            if not line:
                del self._lines[caller]
