"""Processes of games: kept between moves, started again when lost, and never more than there is room for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext

import pytest
import trio
import trio.testing

from tasks.dispute.commitments import StepRecord
from tasks.dispute.game import Side
from tasks.executor.errors import JobFailed
from tasks.executor.job import Hello, Order
from tasks.executor.players import GAMES_KEPT_MAX, IDLE_S, LOOK_S, Players
from tasks.executor.playing import Play, Played
from tasks.executor.supervisor import Capabilities, Listener, MoveSource
from tests.tasks.executor.helpers import make_spec

END = StepRecord(bytes(32), bytes(32), 0)


def order_of(moves: tuple[bytes, ...]) -> Play:
    return Play(make_spec(), b"data", b"state", bytes(32), 0, 5, Side.ACCUSED, END, None, moves)


class Echo:
    """Answers with the last move and the number of moves."""

    def __init__(self) -> None:
        self.starts: list[tuple[bytes, ...]] = []
        self.ends = 0
        self.fails_at = -1

    def pause(self) -> AbstractContextManager[None]:
        return nullcontext()

    async def probe(self) -> Capabilities:
        raise NotImplementedError

    async def end_leftovers(self) -> int:
        return 0

    async def run(self, order: Order, listener: Listener, more: MoveSource | None = None) -> None:
        assert isinstance(order, Play) and more is not None
        moves = order.moves
        self.starts.append(moves)
        try:
            await listener(Hello("cpu", frozenset()))
            while True:
                if len(moves) == self.fails_at:
                    raise JobFailed(reason="died", text="as told")
                await listener(Played(b"%d after %s" % (len(moves), moves[-1] if moves else b"")))
                moves += (await more.receive()).moves
        finally:
            self.ends += 1


@asynccontextmanager
async def playing(backend: Echo) -> AsyncIterator[Players]:
    players = Players(backend)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(players.run)
        await trio.testing.wait_all_tasks_blocked()
        yield players
        nursery.cancel_scope.cancel()


async def play(players: Players, game: bytes, *moves: bytes) -> bytes:
    async def order() -> Play:
        return order_of(moves)

    return await players.move(game, moves, order)


async def test_a_process_is_kept_between_the_moves_of_a_game() -> None:
    backend = Echo()
    async with playing(backend) as players:
        assert await play(players, b"a") == b"0 after "
        assert await play(players, b"a", b"x", b"y") == b"2 after y"
        assert await play(players, b"a", b"x", b"y", b"z", b"w") == b"4 after w"
        assert backend.starts == [()]
    assert backend.ends == 1


async def test_a_move_that_was_lost_is_given_again() -> None:
    backend = Echo()
    async with playing(backend) as players:
        assert await play(players, b"a", b"x") == await play(players, b"a", b"x")
        assert backend.starts == [(b"x",)]


async def test_a_game_that_went_another_way_gets_another_process() -> None:
    backend = Echo()
    async with playing(backend) as players:
        await play(players, b"a", b"x")
        assert await play(players, b"a", b"v", b"w") == b"2 after w"
        assert backend.starts == [(b"x",), (b"v", b"w")]
        await trio.testing.wait_all_tasks_blocked()
        assert backend.ends == 1


async def test_a_process_that_fails_is_started_again_at_the_next_try() -> None:
    backend = Echo()
    async with playing(backend) as players:
        await play(players, b"a", b"x")
        backend.fails_at = 3
        with pytest.raises(JobFailed, match="as told"):
            await play(players, b"a", b"x", b"y", b"z")
        backend.fails_at = -1
        assert await play(players, b"a", b"x", b"y", b"z") == b"3 after z"
        assert len(backend.starts) == 2


async def test_the_game_that_moved_longest_ago_gives_way() -> None:
    backend = Echo()
    async with playing(backend) as players:
        for game in range(GAMES_KEPT_MAX + 1):
            await play(players, bytes([game]))
        assert players.games == frozenset(bytes([game]) for game in range(1, GAMES_KEPT_MAX + 1))
        await play(players, bytes([0]), b"x")  # from the beginning
        assert backend.starts[-1] == (b"x",)


async def test_a_game_whose_move_is_not_wanted_any_more_leaves_nothing() -> None:
    backend = Echo()
    async with playing(backend) as players:
        await play(players, b"a")
        with trio.CancelScope() as scope:
            scope.cancel()
            await play(players, b"a", b"x", b"y")
        await trio.testing.wait_all_tasks_blocked()
        assert await play(players, b"a", b"x", b"y") == b"2 after y"
        players.forget(b"a")
        await trio.testing.wait_all_tasks_blocked()
        assert backend.ends == len(backend.starts)


async def test_a_process_that_nobody_asks_any_more_ends(autojump_clock: trio.testing.MockClock) -> None:
    backend = Echo()
    async with playing(backend) as players:
        await play(players, b"a")
        await trio.sleep(IDLE_S + 2 * LOOK_S)
        assert players.games == frozenset()
        assert backend.ends == 1
