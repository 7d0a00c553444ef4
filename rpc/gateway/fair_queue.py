"""A queue for costly calls that is fair among callers: bounded slots in all and for each caller.

See rpc.md R26.

A call without a free slot waits in its caller's own queue. A slot that becomes free goes to the next caller in
turn, however long the queues of others are. So no batch is refused, and no batch blocks other callers.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque

__all__ = ["FairQueue"]


class FairQueue:
    """The slots of one kind of calls. With ``of_caller_max`` 0 one caller may use all of them."""

    def __init__(self, slots_max: int, of_caller_max: int) -> None:
        self._free = slots_max
        self._of_caller_max = of_caller_max or slots_max
        self._taken: dict[str, int] = {}
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """Waiting calls by caller; the caller whose turn is next comes first."""

    async def acquire(self, caller: str) -> None:
        """Wait until ``caller`` has a slot; ``release`` returns it."""
        mine = self._taken.get(caller, 0)
        if self._free and mine < self._of_caller_max and caller not in self._lines:
            self._take(caller)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(caller, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the slot was granted in the same moment
                self.release(caller)
            else:
                self._drop(caller, turn)
            raise

    def release(self, caller: str) -> None:
        """Return a slot, which goes to the next caller in turn."""
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
        # Callers that are skipped have all the slots that one may have, so they are few.
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
            if not turn.done():  # else the call was cancelled and has not run since
                self._take(caller)
                turn.set_result(None)

    def _drop(self, caller: str, turn: asyncio.Future[None]) -> None:
        line = self._lines.get(caller)
        if line is not None and turn in line:
            line.remove(turn)
            if not line:
                del self._lines[caller]
