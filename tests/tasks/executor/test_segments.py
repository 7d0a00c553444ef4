"""A dispute between two processes of jobs, one of which computes a lie."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.lowlevel

from tasks.dispute.commitments import Question, StepRecord, start_record
from tasks.dispute.game import Ending, Side, begin, play, turn_of
from tasks.dispute.moves import decode_move
from tasks.engines.training import initial_state
from tasks.executor.errors import JobFailed
from tasks.executor.job import ChildFrame, Job, Order, Segment, Train
from tasks.executor.playing import Play
from tasks.executor.service import Executor, ExecutorOptions
from tasks.executor.supervisor import Listener, MoveSource, ProcessBackend, ProcessOptions
from tasks.spec import classifier_plan
from tests.tasks.executor.helpers import BLOB, TASK, job_processes, make_spec

SPEC = make_spec(20, 10, 20)
PLAN = classifier_plan(SPEC)
STATE = initial_state(PLAN)
HONEST = ProcessOptions(engine="numpy")
LYING = replace(HONEST, child_module="testnet.scenarios.lying_child")


class Counted(ProcessBackend):
    """Counts the processes that it starts."""

    starts = 0

    async def run(self, order: Order, listener: Listener, more: MoveSource | None = None) -> None:
        self.starts += 1
        await super().run(order, listener, more)


async def end_of(options: ProcessOptions) -> StepRecord:
    """Return what a worker with these processes commits to for the first segment."""
    found: list[Segment] = []

    async def listen(message: ChildFrame) -> None:
        if isinstance(message, Segment):
            found.append(message)

    await ProcessBackend(options).run(Train(Job.of(SPEC), BLOB, None, 10, evaluate=False), listen)
    (segment,) = found
    return StepRecord(segment.state_root_after, segment.work_digest, segment.loss_bits)


def order_of(side: Side, end: StepRecord, moves: tuple[bytes, ...] = ()) -> Play:
    secret = None if side is Side.ACCUSED else b"s" * 32
    return Play(SPEC, BLOB, STATE.encode(), STATE.root(PLAN), 0, 10, side, end, secret, moves)


@contextmanager
def machines(root: Path, accused: ProcessOptions, challenger: ProcessOptions) -> Iterator[dict[Side, Executor]]:
    backends = {Side.ACCUSED: Counted(accused), Side.CHALLENGER: Counted(challenger)}
    yield {side: Executor(ExecutorOptions(), root / side.name, backend) for side, backend in backends.items()}
    assert all(backend.starts == 1 for backend in backends.values())  # one for the whole game


async def ending_of(players: dict[Side, Executor], end: StepRecord) -> Ending | None:
    start = start_record(STATE.root(PLAN))
    question = Question(SPEC.program(), SPEC.seed, SPEC.dataset.root, 0, 10, start, end)
    game, moves = begin(question), tuple[bytes, ...]()
    async with trio.open_nursery() as nursery:
        for player in players.values():
            nursery.start_soon(player.run_players)
        await trio.lowlevel.checkpoint()
        while (side := turn_of(game)) is not None:

            async def order(side: Side = side, moves: tuple[bytes, ...] = moves) -> Play:
                return order_of(side, end, moves)

            move = await players[side].play(TASK, b"game", moves, order)
            game = play(question, game, side, decode_move(move))
            moves += (move,)
        nursery.cancel_scope.cancel()
    assert job_processes() == []
    return game.ending


async def test_a_lying_worker_loses_to_an_honest_process(tmp_path: Path) -> None:
    with machines(tmp_path, LYING, HONEST) as players:
        assert await ending_of(players, await end_of(LYING)) is Ending.ELEMENT_WRONG


async def test_an_honest_worker_wins_against_a_lying_process(tmp_path: Path) -> None:
    with machines(tmp_path, HONEST, LYING) as players:
        assert await ending_of(players, await end_of(HONEST)) is Ending.ELEMENT_RIGHT


@pytest.mark.slow
@pytest.mark.parametrize(
    "order",
    [
        replace(order_of(Side.ACCUSED, start_record(bytes(32))), state_root=bytes(32)),
        replace(order_of(Side.ACCUSED, start_record(bytes(32))), state=b"nothing"),
        replace(order_of(Side.ACCUSED, start_record(bytes(32))), dataset=b"nothing"),
        order_of(Side.CHALLENGER, start_record(bytes(32))),  # it is not its turn
        order_of(Side.ACCUSED, start_record(bytes(32)), (b"no move",)),
    ],
    ids=["another state", "no state", "no data", "not its turn", "no move"],
)
async def test_an_order_that_does_not_fit_is_refused_by_its_process(order: Play) -> None:
    async def ignore(_message: ChildFrame) -> None:
        pass

    with pytest.raises(JobFailed):
        await ProcessBackend(HONEST).run(order, ignore)
