"""Processes that play disputes, one a game. They are kept between the moves of a game."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from state.primitives.errors import DekubeError
from tasks.executor.errors import JobFailed
from tasks.executor.job import ChildFrame
from tasks.executor.playing import MoreMoves, Play, Played
from tasks.executor.supervisor import Backend

__all__ = ["GAMES_KEPT_MAX", "Players"]

GAMES_KEPT_MAX: Final = 4
"""Processes at one time; of more games, the one that moved longest ago gives way."""
IDLE_S: Final = 600.0
"""How long a process waits for further moves. The clocks of both sides are shorter."""
LOOK_S: Final = 10.0


class _Table:
    """One game under way: its process, the moves that it knows, and its last answer."""

    def __init__(self, order: Play) -> None:
        self._order = order
        self._moves = order.moves
        self._scope = trio.CancelScope()
        self._more, self._source = trio.open_memory_channel[MoreMoves](1)
        self._answers, self._answered = trio.open_memory_channel[bytes | DekubeError](2)
        self._last: bytes | None = None
        self.is_over = False
        self.used_at = trio.current_time()
        self.is_busy = False

    async def run(self, backend: Backend) -> None:
        """Run the process until ``end``, or until it fails."""
        failure: DekubeError = JobFailed(reason="died", text="the process was ended for another game")
        try:
            with self._scope:
                try:
                    await backend.run(self._order, self._listen, self._source)
                    failure = JobFailed(reason="bad_frame", text="ended without a move")
                except DekubeError as error:
                    failure = error
        finally:
            self.is_over = True
            self._answers.send_nowait(failure)

    async def _listen(self, message: ChildFrame) -> None:
        if isinstance(message, Played):
            self._answers.send_nowait(message.move)

    def knows(self, moves: tuple[bytes, ...]) -> bool:
        """Whether the process can go on to ``moves``."""
        return not self.is_over and moves[: len(self._moves)] == self._moves

    async def answer(self, moves: tuple[bytes, ...]) -> bytes:
        """Return the move that is due after ``moves``. Raises what the process failed with."""
        more = moves[len(self._moves) :]
        if self._last is not None and not more:
            return self._last  # it was sent, and did not become final
        if more:
            self._moves = moves
            self._more.send_nowait(MoreMoves(more))
        self.is_busy = True
        try:
            answer = await self._answered.receive()
        except BaseException:  # cancelled: what comes later is nobody's
            self.end()
            raise
        finally:
            self.is_busy, self.used_at = False, trio.current_time()
        if isinstance(answer, DekubeError):
            raise answer
        self._last = answer
        return answer

    def end(self) -> None:
        """End the process."""
        self.is_over = True
        self._scope.cancel()


class Players:
    """The games of this machine. ``run`` has to run meanwhile."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._tables: dict[bytes, _Table] = {}
        self._room = trio.CapacityLimiter(GAMES_KEPT_MAX)
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Keep the processes until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            while True:
                await trio.sleep(LOOK_S)
                for game, table in list(self._tables.items()):
                    if not table.is_busy and trio.current_time() > table.used_at + IDLE_S:
                        self.forget(game)

    async def move(self, game: bytes, moves: tuple[bytes, ...], order: Callable[[], Awaitable[Play]]) -> bytes:
        """Return the move that is due in ``game`` after ``moves``; empty if there is nothing to be said.

        ``order`` is asked for if the game has no process that can go on. One call at a time for a game.
        Raises JobFailed, JobStalled, IsolationMissing, EngineMissing, and what ``order`` raises.
        """
        async with self._room:
            table = self._tables.get(game)
            if table is None or not table.knows(moves):
                self.forget(game)
                play = await order()
                self._make_room()
                table = self._tables[game] = _Table(play)
                assert self._nursery is not None
                self._nursery.start_soon(table.run, self._backend)
            try:
                return await table.answer(moves)
            except DekubeError:
                self.forget(game)
                raise

    def _make_room(self) -> None:
        """End the game that moved longest ago. Fewer than GAMES_KEPT_MAX others are busy: ``move`` has room."""
        while len(self._tables) >= GAMES_KEPT_MAX:
            self.forget(min((table.is_busy, table.used_at, game) for game, table in self._tables.items())[2])

    @property
    def games(self) -> frozenset[bytes]:
        """The games that have a process."""
        return frozenset(self._tables)

    def forget(self, game: bytes) -> None:
        """End the process of a game, if it has one."""
        table = self._tables.pop(game, None)
        if table is not None:
            table.end()
