"""Jobs that tune a model, by processes of the executor: windows, proofs, checks and games (market.md R57)."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import trio
import trio.lowlevel

from tasks.dispute.commitments import Question, start_record
from tasks.dispute.game import Ending, Side, begin, play, turn_of
from tasks.dispute.moves import decode_move
from tasks.engines.errors import DatasetInvalid
from tasks.engines.input_blobs import join_tensors, read_model, read_rows
from tasks.engines.state import TrainingState
from tasks.engines.tuning import Tuner, first_state
from tasks.executor.errors import JobFailed
from tasks.executor.playing import Play, Player
from tasks.executor.resource_needs import needs_of
from tasks.executor.results import WindowResult
from tasks.executor.service import Executor, ExecutorOptions
from tasks.executor.supervisor import ProcessOptions
from tasks.kinds.finetune import TrainingLoop
from tasks.programs.finetune import row_tensors
from tasks.programs.llama_shape import weight_tensors
from tasks.proofs import Code
from tasks.spec import Schedule, decode_spec, encode_spec
from tests.tasks.dispute.liars import Job as LiarJob
from tests.tasks.dispute.liars import lie
from tests.tasks.executor.model_jobs import Windows, check_orders
from tests.tasks.programs.engines import engine
from tests.tasks.programs.test_finetune_units import SMOL
from tests.tasks.tuned import STEPS, tuned

_SPEC, PLAN, MADE = tuned()
SPEC = decode_spec(encode_spec(_SPEC.changed(schedule=Schedule(STEPS, 1, STEPS // 2))))
ROWS = join_tensors(row_tensors(PLAN.shape), MADE.data)
MODEL = join_tensors(weight_tensors(PLAN.shape.model), MADE.model)
TASK = b"\x33" * 32
OPTIONS = ExecutorOptions(ProcessOptions(engine="numpy"))


def test_blobs_of_rows_and_model_have_one_form_and_the_size_that_the_ledger_counts() -> None:
    assert [given.size_bytes for given in SPEC.inputs()] == [len(ROWS), len(MODEL)]
    assert (read_rows(PLAN.shape, ROWS), read_model(PLAN.shape, MODEL)) == (dict(MADE.data), dict(MADE.model))
    for blob in (b"", ROWS[:-1], ROWS + b"\0"):
        with pytest.raises(DatasetInvalid):
            read_rows(PLAN.shape, blob)
    with pytest.raises(DatasetInvalid):
        join_tensors(row_tensors(PLAN.shape), {**MADE.data, "tokens": b""})


def test_a_job_that_tunes_a_model_comes_back_as_it_was() -> None:
    check_orders(SPEC, ROWS, 2, MODEL)


@pytest.mark.slow
async def test_a_tuned_model_is_trained_proved_checked_and_disputed_by_processes(tmp_path: Path) -> None:
    executor, windows = Executor(OPTIONS, tmp_path / "worker"), Windows(TASK, SPEC)
    assert await executor.try_task(TASK, SPEC, ROWS, model=MODEL) > 0
    done = await executor.run_task(TASK, SPEC, ROWS, windows.hand_on, model=MODEL)
    direct = Tuner(PLAN, MADE.model, MADE.data, engine("numpy"), first_state(PLAN))
    direct.run_steps(STEPS)
    assert len(windows.found) == 2
    assert windows.found[-1][1][-1] == direct.state().encode()
    assert (done.steps, done.state_root, done.accuracy) == (STEPS, direct.state().root(PLAN), (0, 0))

    verifier = Executor(OPTIONS, tmp_path / "verifier")
    await windows.check_second(verifier, ROWS, MODEL)

    leaves, states = windows.found[1]
    before, leaf = TrainingState.decode(states[1], PLAN), leaves[1]
    root = before.root(PLAN)
    job = LiarJob(SPEC.program(), SPEC.seed, before.tensors, MADE.data, leaf.step_from, 1, MADE.model)
    honest, random = job.run(engine("numpy")), Random(3)
    assert (honest.end_record.state_root, honest.end_record.loss_total) == (leaf.state_root_after, leaf.loss_bits)
    liars = (
        lie(
            job,
            honest,
            engine("numpy"),
            0,
            random.randrange(len(job.program.sources), len(job.program.types)),
            random,
        )
        for _ in range(50)
    )
    liar = next(liar for liar in liars if liar.question.end != honest.end_record)
    question = Question(
        SPEC.program(), SPEC.seed, SPEC.dataset.root, leaf.step_from, 1, start_record(root), liar.question.end,
        model=SPEC.model_root(),
    )  # fmt: skip
    accused = Player(question, Side.ACCUSED, liar.witness)
    heard = 0
    game, moves = begin(question), tuple[bytes, ...]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(verifier.run_players)
        await trio.lowlevel.checkpoint()
        while (side := turn_of(game)) is not None:

            async def order(moves: tuple[bytes, ...] = moves) -> Play:
                return Play(
                    SPEC, ROWS, states[1], root, leaf.step_from, 1, Side.CHALLENGER, question.end, b"s" * 32,
                    moves, model=MODEL,
                )  # fmt: skip

            if side is Side.CHALLENGER:
                move = await verifier.play(TASK, b"game", moves, order)
            else:
                accused.hear(moves[heard:])
                heard, move = len(moves), accused.answer()
            game = play(question, game, side, decode_move(move))
            moves += (move,)
        nursery.cancel_scope.cancel()
    assert game.ending is Ending.ELEMENT_WRONG


@pytest.mark.parametrize(("rows", "model"), [(ROWS, b""), (ROWS, bytes(len(MODEL))), (b"", MODEL), (MODEL, MODEL)])
async def test_other_blobs_than_the_job_names_end_it_for_good(tmp_path: Path, rows: bytes, model: bytes) -> None:
    async def hand_on(_result: WindowResult) -> None:
        raise AssertionError

    with pytest.raises(JobFailed) as caught:
        await Executor(OPTIONS, tmp_path).run_task(TASK, SPEC, rows, hand_on, model=model)
    assert caught.value.reason == "dataset_invalid"


@pytest.mark.nightly
async def test_a_model_larger_than_a_frame_is_handed_to_its_process(tmp_path: Path) -> None:
    """The shape of SmolLM2-135M, random weights: a segment of one step, in the memory that is asked for."""
    spec, plan, made = tuned(shape=SMOL, segment=1)
    rows = join_tensors(row_tensors(plan.shape), made.data)
    model = join_tensors(weight_tensors(plan.shape.model), made.model)
    assert len(model) > 1 << 28
    needs = needs_of(spec, open_windows_max=1)
    assert needs.process < 6 << 30
    options = ProcessOptions(engine="numpy", memory_mib=needs.process >> 20, no_progress_s=1_800.0)
    executor = Executor(ExecutorOptions(options), tmp_path)
    assert await executor.try_task(TASK, spec, rows, model=model) > 0


@pytest.mark.slow
async def test_a_job_ends_in_the_middle_of_a_segment_and_of_a_window(tmp_path: Path) -> None:
    """After 25 of 30 steps, by its validation loss (R87); its checker runs what the worker's leaf says."""
    spec, plan, made = tuned(updates=12, samples=3, loop=TrainingLoop(2, 2, 1, 1), window=20)
    rows = join_tensors(row_tensors(plan.shape), made.data)
    model = join_tensors(weight_tensors(plan.shape.model), made.model)
    check_orders(spec, rows, 2, model)
    executor, windows = Executor(OPTIONS, tmp_path / "worker"), Windows(TASK, spec)
    done = await executor.run_task(TASK, spec, rows, windows.hand_on, model=model)
    direct = Tuner(plan, made.model, made.data, engine("numpy"), first_state(plan))
    direct.run_steps(30)
    assert (direct.step, done.steps, done.state_root) == (25, 25, direct.state().root(plan))
    leaves, states = windows.found[1]
    assert [(leaf.step_from, leaf.step_to) for leaf in leaves] == [(20, 22), (22, 24), (24, 25)]
    assert states[-1] == direct.state().encode()
    again = Windows(TASK, spec)
    assert (await executor.run_task(TASK, spec, rows, again.hand_on, model=model)).steps == 25
    assert again.found == [], "both windows were handed on, and nothing is run again"

    verifier = Executor(OPTIONS, tmp_path / "verifier")
    found = await verifier.verify_segment(TASK, spec, rows, leaves[2], states[2], model=model)
    assert (found.code, found.mismatches) == (Code.COMPUTED, ())
    beyond = leaves[2]._replace(step_to=26)  # who goes on is found by what the steps give, not by where they end
    found = await verifier.verify_segment(TASK, spec, rows, beyond, states[2], model=model)
    assert found.mismatches == ("state_root_after", "loss_bits")[: len(found.mismatches)] and found.mismatches


async def test_a_worker_that_died_after_the_end_goes_no_further(tmp_path: Path) -> None:
    spec, plan, made = tuned(updates=12, samples=3, loop=TrainingLoop(2, 2, 1, 1), window=30)
    rows = join_tensors(row_tensors(plan.shape), made.data)
    model = join_tensors(weight_tensors(plan.shape.model), made.model)
    executor = Executor(OPTIONS, tmp_path)

    class Died(Exception):
        pass

    async def die(_result: WindowResult) -> None:
        raise Died

    with pytest.raises(Died):
        await executor.run_task(TASK, spec, rows, die, model=model)
    windows = Windows(TASK, spec)
    done = await Executor(OPTIONS, tmp_path).run_task(TASK, spec, rows, windows.hand_on, model=model)
    assert (done.steps, done.accuracy, len(windows.found)) == (25, (0, 0), 1)
    assert windows.found[0][0][-1].step_to == 25
