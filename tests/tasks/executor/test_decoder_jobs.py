"""Jobs that train a decoder, by processes of the executor: windows, proofs and checks (market.md R88)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tasks.engines.decoder_training import DecoderTrainer, first_state
from tasks.engines.errors import DatasetInvalid
from tasks.engines.input_blobs import join_tensors, read_rows
from tasks.engines.state import TrainingState
from tasks.evaluations import is_end
from tasks.executor.errors import JobFailed
from tasks.executor.resource_needs import needs_of
from tasks.executor.results import WindowResult
from tasks.executor.service import Executor, ExecutorOptions
from tasks.executor.supervisor import ProcessOptions
from tasks.kinds.finetune import TrainingLoop
from tasks.programs.decoder import row_tensors
from tasks.spec import Schedule, decode_spec, encode_spec
from tests.tasks.executor.model_jobs import Windows, check_orders
from tests.tasks.programs.engines import engine
from tests.tasks.trained import STEPS, trained

_SPEC, PLAN, MADE = trained()
SPEC = decode_spec(encode_spec(_SPEC.changed(schedule=Schedule(STEPS, 1, STEPS // 2))))
ROWS = join_tensors(row_tensors(PLAN.shape), MADE.data)
TASK = b"\x44" * 32
OPTIONS = ExecutorOptions(ProcessOptions(engine="numpy"))


def test_a_blob_of_rows_has_one_form_and_the_size_that_the_ledger_counts() -> None:
    assert [given.size_bytes for given in SPEC.inputs()] == [len(ROWS)]
    assert read_rows(PLAN.shape, ROWS) == dict(MADE.data)
    for blob in (b"", ROWS[:-1], ROWS + b"\0"):
        with pytest.raises(DatasetInvalid):
            read_rows(PLAN.shape, blob)


def test_a_job_comes_back_as_it_was_and_asks_for_memory() -> None:
    check_orders(SPEC, ROWS, 2, b"")
    assert needs_of(SPEC, open_windows_max=1).process > needs_of(SPEC, open_windows_max=1).journal > 0


@pytest.mark.slow
async def test_a_decoder_is_trained_proved_and_checked_by_processes(tmp_path: Path) -> None:
    executor, windows = Executor(OPTIONS, tmp_path / "worker"), Windows(TASK, SPEC)
    assert await executor.try_task(TASK, SPEC, ROWS) > 0
    done = await executor.run_task(TASK, SPEC, ROWS, windows.hand_on)
    direct = DecoderTrainer(PLAN, MADE.data, engine("numpy"), first_state(PLAN))
    direct.run_steps(STEPS)
    assert len(windows.found) == 2
    assert windows.found[-1][1][-1] == direct.state().encode()
    assert (done.steps, done.state_root, done.accuracy) == (STEPS, direct.state().root(PLAN), (0, 0))
    await windows.check_second(Executor(OPTIONS, tmp_path / "verifier"), ROWS, b"")


@pytest.mark.parametrize("rows", [b"", ROWS[:-4] + b"\x00\x00\x00\x01", ROWS[:-4]])
async def test_other_rows_than_the_job_names_end_it_for_good(tmp_path: Path, rows: bytes) -> None:
    async def hand_on(_result: WindowResult) -> None:
        raise AssertionError

    with pytest.raises(JobFailed) as caught:
        await Executor(OPTIONS, tmp_path).run_task(TASK, SPEC, rows, hand_on)
    assert caught.value.reason == "dataset_invalid"


async def test_a_training_that_evaluates_is_run_by_a_process_up_to_its_early_end(tmp_path: Path) -> None:
    """A rate of nearly 1 makes losses rise soon: with a patience of 1 the first that is not lower ends the job."""
    spec, plan, made = trained(loop=TrainingLoop(1, 1, 1, 1), samples=3)
    fast = plan.rates.adamw._replace(learning_rate_nano=900_000_000)
    part: Any = spec.part
    spec = spec.changed(optimiser=part.optimiser._replace(learning_rate_nano=fast.learning_rate_nano))
    plan = replace(plan, rates=plan.rates._replace(adamw=fast))
    direct = DecoderTrainer(plan, made.data, engine("numpy"), first_state(plan))
    direct.run_steps(plan.loop.steps)
    end = direct.step
    assert end < plan.loop.steps
    rows = join_tensors(row_tensors(plan.shape), made.data)
    check_orders(spec, rows, 1, b"")
    windows = Windows(TASK, spec)
    done = await Executor(OPTIONS, tmp_path / "worker").run_task(TASK, spec, rows, windows.hand_on)
    assert (done.steps, done.state_root) == (end, direct.state().root(plan))
    assert is_end(spec, TrainingState.decode(windows.found[-1][1][-1], plan))
