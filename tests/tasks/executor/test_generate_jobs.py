"""Jobs that decode prompts, by processes of the executor: windows, proofs, checks and games (market.md R77)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from state.primitives.errors import DecodeError
from tasks.dispute.commitments import StepRecord
from tasks.dispute.game import Side
from tasks.engines.errors import DatasetInvalid, UnsupportedJob
from tasks.engines.generating import Generator, completions, first_state
from tasks.engines.input_blobs import join_tensors, read_model, read_rows
from tasks.engines.state import TrainingState
from tasks.executor.errors import JobFailed
from tasks.executor.job import Job, Train, decode_parent_frame, encode_frame
from tasks.executor.playing import Play
from tasks.executor.resource_needs import needs_of
from tasks.executor.results import WindowResult, make_leaves, make_window_proof, segment_salts
from tasks.executor.segments import make_player
from tasks.executor.service import Executor, ExecutorOptions
from tasks.executor.supervisor import ProcessOptions
from tasks.models.decoding import Decoder
from tasks.programs.generate import prompt_tensors
from tasks.programs.llama_shape import weight_tensors
from tasks.proofs import Code, SegmentLeaf, check_leaves
from tests.tasks.generated import STEPS, generated
from tests.tasks.programs.engines import engine

SPEC, PLAN, MADE = generated(segment=3, window=STEPS // 2)
PROMPTS = join_tensors(prompt_tensors(PLAN.shape), MADE.data)
MODEL = join_tensors(weight_tensors(PLAN.shape.model), MADE.model)
TASK = b"\x34" * 32
OPTIONS = ExecutorOptions(ProcessOptions(engine="numpy"))


def test_blobs_of_prompts_and_model_have_one_form_and_the_size_that_the_ledger_counts() -> None:
    assert [given.size_bytes for given in SPEC.inputs()] == [len(PROMPTS), len(MODEL)]
    assert (read_rows(PLAN.shape, PROMPTS), read_model(PLAN.shape, MODEL)) == (dict(MADE.data), dict(MADE.model))
    for blob in (b"", PROMPTS[:-1], PROMPTS + b"\0"):
        with pytest.raises(DatasetInvalid):
            read_rows(PLAN.shape, blob)


def test_a_job_that_decodes_comes_back_as_it_was() -> None:
    job = Job.of(SPEC)
    assert Job.decode(job.encode()) == job
    order = Train(job, PROMPTS, None, 3, False, MODEL)
    assert decode_parent_frame(encode_frame(order)[4:], MODEL) == order
    raw = job.encode()
    for at in range(len(raw)):
        try:
            assert Job.decode(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]) != job
        except (DecodeError, UnsupportedJob):
            pass
    with pytest.raises(UnsupportedJob):
        replace(job, model_root=b"")
    assert needs_of(SPEC, open_windows_max=2).process > 8 * len(MODEL)


async def test_prompts_are_decoded_proved_and_checked_by_processes(tmp_path: Path) -> None:
    executor, windows = Executor(OPTIONS, tmp_path / "worker"), list[tuple[tuple[SegmentLeaf, ...], list[bytes]]]()

    async def hand_on(result: WindowResult) -> None:
        count = len(result.segments)
        states = [result.load_state(number) for number in range(count + 1)]
        leaves = make_leaves(result, segment_salts(b"s" * 32, TASK, result.window, count), [b"b" * 32] * count)
        proof = make_window_proof(TASK, result, leaves, leaves_blob=b"l" * 32, output_blob=b"o" * 32)
        check_leaves(SPEC, proof, leaves)
        windows.append((leaves, states))

    assert await executor.try_task(TASK, SPEC, PROMPTS, model=MODEL) > 0
    done = await executor.run_task(TASK, SPEC, PROMPTS, hand_on, model=MODEL)
    assert len(windows) == 2
    state = TrainingState.decode(windows[-1][1][-1], PLAN)
    assert (done.steps, done.state_root, done.accuracy) == (STEPS, state.root(PLAN), (0, 0))
    decoder = Decoder(MADE.frozen, engine("numpy"))
    wanted = decoder.decode(MADE.prompts, PLAN.shape.new, frozenset(PLAN.shape.ends)).tokens
    assert completions(PLAN.shape, MADE.data, state) == wanted

    verifier = Executor(OPTIONS, tmp_path / "verifier")
    leaves, states = windows[1]
    right = await verifier.verify_segment(TASK, SPEC, PROMPTS, leaves[1], states[1], model=MODEL)
    assert (right.code, right.mismatches) == (Code.COMPUTED, ())
    false = leaves[1]._replace(state_root_after=bytes(32))
    wrong = await verifier.verify_segment(TASK, SPEC, PROMPTS, false, states[1], model=MODEL)
    assert wrong.mismatches == ("state_root_after",)


def test_a_player_of_a_disputed_segment_has_the_records_of_its_worker() -> None:
    worker = Generator(PLAN, MADE.model, MADE.data, engine("numpy"), first_state(PLAN))
    worker.run_steps(6)
    before = worker.state()
    done = worker.run_segment(3)
    end = StepRecord(done.state_root, done.work_digest, done.loss_bits)
    order = Play(
        SPEC, PROMPTS, before.encode(), before.root(PLAN), 6, 3, Side.ACCUSED, end, b"s" * 32, (), model=MODEL
    )
    steps: list[int] = []
    assert make_player(engine("numpy"), order, steps.append) is not None
    assert steps == [7, 8, 9]


@pytest.mark.parametrize(
    ("rows", "model"),
    [(PROMPTS, b""), (b"", MODEL), (MODEL, PROMPTS)],
    ids=["no model", "no prompts", "exchanged"],
)
async def test_other_blobs_than_the_job_names_end_it_for_good(tmp_path: Path, rows: bytes, model: bytes) -> None:
    async def hand_on(_result: WindowResult) -> None:
        raise AssertionError

    with pytest.raises(JobFailed) as caught:
        await Executor(OPTIONS, tmp_path).run_task(TASK, SPEC, rows, hand_on, model=model)
    assert caught.value.reason == "dataset_invalid"
