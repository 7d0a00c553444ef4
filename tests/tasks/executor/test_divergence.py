"""A job that diverges in its process: the window ends with that step, and another machine finds the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
import trio.lowlevel

from tasks.dispute.commitments import Question, StepRecord, start_record
from tasks.dispute.game import Ending, Side, begin, play, turn_of
from tasks.dispute.moves import ShowDiverged, decode_move
from tasks.engines.state import TrainingState
from tasks.executor.job import Order
from tasks.executor.journal import Journal
from tasks.executor.playing import Play
from tasks.executor.results import WindowResult, make_leaves, make_window_proof, segment_salts
from tasks.executor.service import Executor, ExecutorOptions
from tasks.executor.supervisor import Listener, MoveSource, ProcessBackend, ProcessOptions
from tasks.programs.divergence import diverged_root, is_store
from tasks.proofs import Code, check_leaves
from tasks.spec import JobSpec
from tests.tasks.executor.helpers import BLOB, TASK, make_diverging
from tests.tasks.executor.test_service import OPTIONS, SECRET, Windows, roots

SPEC = make_diverging()
STEP = 10


class Counted(ProcessBackend):
    """Counts the processes that it starts."""

    starts = 0

    async def run(self, order: Order, listener: Listener, more: MoveSource | None = None) -> None:
        self.starts += 1
        await super().run(order, listener, more)


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> WindowResult:
    """The only window of the job."""
    windows = Windows()
    executor = Executor(OPTIONS, tmp_path_factory.mktemp("journal"))
    result = trio.run(executor.run_task, TASK, SPEC, BLOB, windows)
    (found,) = windows.found
    assert found.diverged is not None
    assert (result.steps, result.state_root, result.accuracy) == (STEP, found.diverged.state_before, None)
    return found


def test_the_window_ends_with_the_step_that_diverges_and_leaves_the_state_before(window: WindowResult) -> None:
    claim, plan = window.diverged, SPEC.plan()
    assert claim is not None and claim.step == STEP
    assert is_store(SPEC.program(), claim.store, claim.row, claim.column)
    assert [(part.step_from, part.step_to) for part in window.segments] == [(0, 4), (4, 8), (8, STEP + 1)]
    assert window.segments[-1].state_root_after == diverged_root(claim)
    state = TrainingState.decode(window.load_state(3), plan)
    assert (state.step, state.root(plan)) == (STEP, claim.state_before)


def test_its_proof_and_leaves_fit(window: WindowResult) -> None:
    leaves = make_leaves(window, segment_salts(SECRET, TASK, 0, 3), [bytes([at]) * 32 for at in range(3)])
    proof = make_window_proof(TASK, window, leaves, leaves_blob=b"l" * 32, output_blob=b"o" * 32)
    check_leaves(SPEC, proof, leaves)
    assert (proof.step_to, proof.segments, proof.diverged) == (STEP + 1, 3, window.diverged)
    output = TrainingState.decode(window.load_state(3), SPEC.plan())
    assert (proof.result_step, proof.result_root) == (STEP, output.root(SPEC.plan()))


async def test_a_verifier_finds_the_same_or_says_what_it_found(window: WindowResult, tmp_path: Path) -> None:
    executor = Executor(OPTIONS, tmp_path)
    leaves = make_leaves(window, segment_salts(SECRET, TASK, 0, 3), [bytes(32)] * 3)
    state, last = window.load_state(2), window.segments[-1]
    found = await executor.verify_segment(TASK, SPEC, BLOB, leaves[2], state)
    assert found.ok and found.work_digest == last.work_digest and found.loss_bits == last.loss_bits
    # Of a claim of an earlier step it finds where that step leads.
    early = leaves[2]._replace(step_to=STEP)
    found = await executor.verify_segment(TASK, SPEC, BLOB, early, state)
    assert last.diverged is not None
    assert found.finding.code is Code.DIFFERS and found.state_root_after == last.diverged.state_before
    # Of one that goes on, that there is no such end.
    late = leaves[2]._replace(step_to=STEP + 2)
    found = await executor.verify_segment(TASK, SPEC, BLOB, late, state)
    assert found.finding.code is Code.DIFFERS and found.state_root_after == bytes(32)


async def test_a_worker_that_restarts_before_its_claim_is_on_chain_claims_the_same(
    window: WindowResult, tmp_path: Path
) -> None:
    before, after = Windows(stop_after=1), Windows()
    with before.scope:
        await Executor(OPTIONS, tmp_path).run_task(TASK, SPEC, BLOB, before)
    backend = Counted(OPTIONS.process)
    restarted = Executor(OPTIONS, tmp_path, backend)
    assert len(await restarted.unfinished()) == 1
    assert await restarted.resumes(TASK, SPEC, 0, SPEC.init_root)
    await restarted.run_task(TASK, SPEC, BLOB, after)
    assert backend.starts == 0, "the claim is in the journal"
    assert roots(after.found) == roots(before.found) == roots([window])
    assert after.found[0].diverged == window.diverged
    # Once it is handed on, nothing comes again; where that was void, the work begins anew.
    assert not await restarted.resumes(TASK, SPEC, 0, SPEC.init_root)


async def test_a_damaged_record_of_it_is_computed_again(window: WindowResult, tmp_path: Path) -> None:
    before, after = Windows(stop_after=1), Windows()
    with before.scope:
        await Executor(OPTIONS, tmp_path).run_task(TASK, SPEC, BLOB, before)
    path = tmp_path / TASK.hex() / f"segment-{8:016d}"
    path.write_bytes(path.read_bytes()[:-1])
    assert Journal(tmp_path).entries()[0].step == 8
    await Executor(OPTIONS, tmp_path).run_task(TASK, SPEC, BLOB, after)
    assert roots(after.found) == roots([window])


@pytest.mark.parametrize("total", [10, 20])
async def test_a_job_that_diverges_in_the_last_step_of_a_window_or_of_all(total: int, tmp_path: Path) -> None:
    spec, windows = make_diverging(total, 5, 10, beta1=990_000_000), Windows()
    executor = Executor(OPTIONS, tmp_path)
    pace_ms = await executor.try_task(TASK, spec, BLOB)
    assert pace_ms > 0
    result = await executor.run_task(TASK, spec, BLOB, windows)
    (found,) = windows.found
    assert found.diverged is not None and (found.diverged.step, found.step_to) == (9, 10)
    assert (result.steps, result.accuracy, found.accuracy) == (9, None, None)


async def test_a_job_that_diverges_while_it_is_tried_is_still_claimed(tmp_path: Path) -> None:
    spec, windows = make_diverging(40, 20, 20), Windows()
    executor = Executor(OPTIONS, tmp_path)
    await executor.try_task(TASK, spec, BLOB)
    await executor.run_task(TASK, spec, BLOB, windows)
    (found,) = windows.found
    assert len(found.segments) == 1 and found.diverged is not None and found.diverged.step == STEP


@contextmanager
def machines(root: Path, challenger: ProcessOptions) -> Iterator[dict[Side, Executor]]:
    backends = {Side.ACCUSED: ProcessBackend(OPTIONS.process), Side.CHALLENGER: ProcessBackend(challenger)}
    yield {side: Executor(ExecutorOptions(), root / side.name, backend) for side, backend in backends.items()}


async def ending_of(players: dict[Side, Executor], spec: JobSpec, window: WindowResult) -> Ending | None:
    """Play the game about the last segment of a window that diverges; None if a side has nothing to say."""
    last, state = window.segments[-1], window.load_state(len(window.segments) - 1)
    start = start_record(last.state_root_before)
    end = StepRecord(last.state_root_after, last.work_digest, last.loss_bits)
    steps = last.step_to - last.step_from
    question = Question(
        spec.program(),
        spec.seed,
        spec.dataset.root,
        last.step_from,
        steps,
        start,
        end,
        diverged=window.diverged,
    )
    game, moves = begin(question), tuple[bytes, ...]()
    async with trio.open_nursery() as nursery:
        for player in players.values():
            nursery.start_soon(player.run_players)
        await trio.lowlevel.checkpoint()
        while (side := turn_of(game)) is not None:

            async def order(side: Side = side, moves: tuple[bytes, ...] = moves) -> Play:
                secret = None if side is Side.ACCUSED else b"s" * 32
                return Play(
                    spec, BLOB, state, last.state_root_before, last.step_from, steps, side, end, secret, moves,
                    window.diverged,
                )  # fmt: skip

            move = await players[side].play(TASK, b"game", moves, order)
            if not move:
                break
            game = play(question, game, side, decode_move(move))
            moves += (move,)
        nursery.cancel_scope.cancel()
    if game.ending is not None:
        assert any(isinstance(decode_move(move), ShowDiverged) for move in moves) or game.step < steps - 1
    return game.ending


async def test_an_honest_challenger_has_nothing_to_say(window: WindowResult, tmp_path: Path) -> None:
    with machines(tmp_path, OPTIONS.process) as players:
        assert await ending_of(players, SPEC, window) is None
