"""Jobs that decode prompts, by processes of the executor: windows, proofs, checks and games (market.md R77)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from tasks.dispute.commitments import StepRecord
from tasks.dispute.game import Side
from tasks.engines.errors import DatasetInvalid
from tasks.engines.generating import Generator, completions, first_state
from tasks.engines.input_blobs import join_tensors, read_model, read_rows
from tasks.engines.state import TrainingState
from tasks.executor.errors import JobFailed
from tasks.executor.playing import Play
from tasks.executor.resource_needs import needs_of
from tasks.executor.results import WindowResult
from tasks.executor.segments import make_player
from tasks.executor.service import Executor, ExecutorOptions
from tasks.executor.supervisor import ProcessOptions
from tasks.models.decoding import Decoder
from tasks.programs.generate import MADE as MADE_TOKENS
from tasks.programs.generate import prompt_tensors
from tasks.programs.llama_shape import weight_tensors
from tasks.programs.operators.scalars import NANO
from tasks.programs.sampling import Sampling
from tasks.proofs import Code
from tests.tasks.executor.model_jobs import Windows, check_orders
from tests.tasks.generated import STEPS, asked, generated, job_of, sampled
from tests.tasks.programs.engines import engine
from tests.tasks.programs.generations import real_weights, smollm_generation

SPEC, PLAN, MADE = generated(segment=3, window=STEPS // 2)
PROMPTS = join_tensors(prompt_tensors(PLAN.shape), MADE.data)
MODEL = join_tensors(weight_tensors(PLAN.shape.model), MADE.model)
ASKED, ASKED_PLAN, ASKED_MADE = asked(segment=3, window=STEPS // 2)
assert ASKED_MADE.adapter is not None
ASKED_PROMPTS = join_tensors(prompt_tensors(ASKED_PLAN.shape), ASKED_MADE.data)
ASKED_MODEL = join_tensors(weight_tensors(PLAN.shape.model), ASKED_MADE.model) + ASKED_MADE.adapter.encode()
TASK = b"\x34" * 32
OPTIONS = ExecutorOptions(ProcessOptions(engine="numpy"))


def test_blobs_of_prompts_and_model_have_one_form_and_the_size_that_the_ledger_counts() -> None:
    assert [given.size_bytes for given in SPEC.inputs()] == [len(PROMPTS), len(MODEL)]
    assert (read_rows(PLAN.shape, PROMPTS), read_model(PLAN.shape, MODEL)) == (dict(MADE.data), dict(MADE.model))
    for blob in (b"", PROMPTS[:-1], PROMPTS + b"\0"):
        with pytest.raises(DatasetInvalid):
            read_rows(PLAN.shape, blob)


def test_a_job_that_decodes_comes_back_as_it_was() -> None:
    check_orders(SPEC, PROMPTS, 3, MODEL)
    check_orders(ASKED, ASKED_PROMPTS, 3, ASKED_MODEL)
    check_orders(sampled()[0], PROMPTS, 3, MODEL)


async def test_a_tuned_model_is_asked_and_checked_by_processes(tmp_path: Path) -> None:
    executor, windows = Executor(OPTIONS, tmp_path / "worker"), Windows(TASK, ASKED)
    done = await executor.run_task(TASK, ASKED, ASKED_PROMPTS, windows.hand_on, model=ASKED_MODEL)
    direct = Generator(ASKED_PLAN, ASKED_MADE.model, ASKED_MADE.data, engine("numpy"), first_state(ASKED_PLAN))
    direct.run_steps(STEPS)
    assert done.state_root == direct.state().root(ASKED_PLAN)
    verifier = Executor(OPTIONS, tmp_path / "verifier")
    await windows.check_second(verifier, ASKED_PROMPTS, ASKED_MODEL)


@pytest.mark.slow
async def test_a_job_that_samples_is_run_and_checked_by_processes(tmp_path: Path) -> None:
    """A worker that draws with another seed, or goes on with a token of its own, is found out."""
    spec, plan, made = sampled(segment=3, window=STEPS // 2)
    executor, windows = Executor(OPTIONS, tmp_path / "worker"), Windows(TASK, spec)
    done = await executor.run_task(TASK, spec, PROMPTS, windows.hand_on, model=MODEL)
    direct = Generator(plan, made.model, made.data, engine("numpy"), first_state(plan))
    direct.run_steps(STEPS)
    assert done.state_root == direct.state().root(plan)
    verifier = Executor(OPTIONS, tmp_path / "verifier")
    await windows.check_second(verifier, PROMPTS, MODEL)

    leaves, states = windows.found[1]
    other = replace(plan, seed=bytes(32))
    stranger = Generator(other, made.model, made.data, engine("numpy"), TrainingState.decode(states[1], plan))
    drawn = stranger.run_segment(3)
    table = np.frombuffer(TrainingState.decode(states[2], plan).tensors[MADE_TOKENS], dtype="<i2").copy()
    table[-2] = (table[-2] + 1) % plan.shape.model.vocabulary
    right = TrainingState.decode(states[2], plan)
    picked = replace(right, tensors={**right.tensors, MADE_TOKENS: table.tobytes()})
    for state in (stranger.state(), picked):
        lie = leaves[1]._replace(state_root_after=state.root(plan))
        found = await verifier.verify_segment(
            TASK, spec, PROMPTS, lie, states[1], model=MODEL, claimed=state.encode()
        )  # fmt: skip
        assert (found.code, found.mismatches) == (Code.COMPUTED, ("state_root_after",))
        assert found.finding.state_root_after == leaves[1].state_root_after
    assert drawn.state_root != leaves[1].state_root_after


class Watched:
    """A backend that notes the orders that it runs."""

    def __init__(self, backend: Any) -> None:
        self._backend, self.orders = backend, list[Any]()

    async def run(self, order: Any, listen: Any) -> None:
        self.orders.append(order)
        await self._backend.run(order, listen)


@pytest.mark.slow
async def test_a_claimed_state_saves_time_and_never_changes_a_verdict(tmp_path: Path) -> None:
    """Of an honest worker, of one that claims a state that nobody can load, and of one with false tokens."""
    executor, windows = Executor(OPTIONS, tmp_path / "worker"), Windows(TASK, SPEC)
    await executor.run_task(TASK, SPEC, PROMPTS, windows.hand_on, model=MODEL)
    leaves, states = windows.found[1]
    verifier = Executor(OPTIONS, tmp_path / "verifier")
    watched = Watched(verifier._backend)
    verifier._backend = cast("Any", watched)
    right = TrainingState.decode(states[2], PLAN)
    table = np.frombuffer(right.tensors[MADE_TOKENS], dtype="<i2").copy()

    def with_tokens(changed: np.ndarray) -> TrainingState:
        return replace(right, tensors={**right.tensors, MADE_TOKENS: changed.tobytes()})

    honest, others = leaves[1], [states[1], b"nothing", states[2][:-1]]
    for claimed, guess in [(states[2], right.tensors[MADE_TOKENS]), *((one, b"") for one in others)]:
        found = await verifier.verify_segment(TASK, SPEC, PROMPTS, honest, states[1], model=MODEL, claimed=claimed)
        assert (found.code, found.mismatches) == (Code.COMPUTED, ())
        assert watched.orders[-1].guess == guess
    for change in (1, 99 - table):  # other tokens, and one that no model has
        false = with_tokens((table + change).astype("<i2"))
        lie = honest._replace(state_root_after=false.root(PLAN))
        found = await verifier.verify_segment(
            TASK, SPEC, PROMPTS, lie, states[1], model=MODEL, claimed=false.encode()
        )
        assert (found.code, found.mismatches) == (Code.COMPUTED, ("state_root_after",))
        assert found.finding.state_root_after == honest.state_root_after
        assert watched.orders[-1].guess == false.tensors[MADE_TOKENS]


def test_the_adapters_of_a_job_are_those_that_it_names() -> None:
    assert ASKED_MADE.adapter is not None
    blob, check = ASKED_MADE.adapter.encode(), ASKED.inputs()[2].check
    assert check is not None
    check(blob)
    later = replace(ASKED_MADE.adapter, step=ASKED_MADE.adapter.step + 1).encode()
    for wrong in (b"", blob[:-1], blob + b"\0", blob[:-1] + bytes([blob[-1] ^ 1]), later):
        with pytest.raises(DatasetInvalid):
            check(wrong)


async def test_prompts_are_decoded_proved_and_checked_by_processes(tmp_path: Path) -> None:
    executor, windows = Executor(OPTIONS, tmp_path / "worker"), Windows(TASK, SPEC)
    assert await executor.try_task(TASK, SPEC, PROMPTS, model=MODEL) > 0
    done = await executor.run_task(TASK, SPEC, PROMPTS, windows.hand_on, model=MODEL)
    assert len(windows.found) == 2
    state = TrainingState.decode(windows.found[-1][1][-1], PLAN)
    assert (done.steps, done.state_root, done.accuracy) == (STEPS, state.root(PLAN), (0, 0))
    decoder = Decoder(MADE.frozen, engine("numpy"))
    wanted = decoder.decode(MADE.prompts, PLAN.shape.new, frozenset(PLAN.shape.ends)).tokens
    assert completions(PLAN.shape, MADE.data, state) == wanted

    verifier = Executor(OPTIONS, tmp_path / "verifier")
    await windows.check_second(verifier, PROMPTS, MODEL)


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
    [(PROMPTS, b""), (b"", MODEL), (MODEL, PROMPTS), (PROMPTS, MODEL + b"\0")],
    ids=["no model", "no prompts", "exchanged", "more"],
)
async def test_other_blobs_than_the_job_names_end_it_for_good(tmp_path: Path, rows: bytes, model: bytes) -> None:
    async def hand_on(_result: WindowResult) -> None:
        raise AssertionError

    with pytest.raises(JobFailed) as caught:
        await Executor(OPTIONS, tmp_path).run_task(TASK, SPEC, rows, hand_on, model=model)
    assert caught.value.reason == "dataset_invalid"


@pytest.mark.nightly
@real_weights
@pytest.mark.parametrize("how", [None, Sampling(8 * NANO // 10, 95 * NANO // 100, 50)], ids=["greedy", "sampled"])
async def test_a_real_model_of_thirty_layers_is_asked_in_the_memory_that_was_planned(
    tmp_path: Path, how: Sampling | None
) -> None:
    made = smollm_generation()
    made = replace(made, shape=replace(made.shape, sampling=how))
    spec, plan, _ = job_of(made, made.shape.steps, made.shape.steps)
    prompts = join_tensors(prompt_tensors(plan.shape), made.data)
    model = join_tensors(weight_tensors(plan.shape.model), made.model)
    needs = needs_of(spec, open_windows_max=1)
    assert needs.process < 4 << 30
    options = ProcessOptions(engine="numpy", memory_mib=needs.process >> 20, no_progress_s=1_800.0)
    windows = Windows(TASK, spec)
    await Executor(ExecutorOptions(options), tmp_path).run_task(TASK, spec, prompts, windows.hand_on, model=model)
    state = TrainingState.decode(windows.found[-1][1][-1], plan)
    if how is None:
        decoder = Decoder(made.frozen, engine("numpy"))
        wanted = decoder.decode(made.prompts, plan.shape.new, frozenset(plan.shape.ends)).tokens
        assert completions(plan.shape, made.data, state) == wanted
        return
    ((leaves, states),) = windows.found
    verifier = Executor(ExecutorOptions(options), tmp_path / "verifier")
    found = await verifier.verify_segment(
        TASK, spec, prompts, leaves[0], states[0], model=model, claimed=states[1]
    )  # fmt: skip
    assert (found.code, found.mismatches) == (Code.COMPUTED, ())
    tokens = completions(plan.shape, made.data, state)
    assert all(0 < len(one) <= plan.shape.new for one in tokens)
