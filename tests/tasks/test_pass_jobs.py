"""Jobs of the kinds ``embed`` and ``evaluate``: specification, ledger, disputes, processes, folders."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from node.cli.jobs import FORMATS, spec_from_json
from rpc.methods.jobs import spec_to_json
from state.primitives.errors import DecodeError
from tasks.custody.layout import state_size
from tasks.dispute.commitments import StepRecord
from tasks.dispute.game import Side
from tasks.engines.datasets import DATASET_BYTES_MAX
from tasks.engines.embedding_plan import EmbeddingPlan
from tasks.engines.errors import DatasetInvalid, UnsupportedJob
from tasks.engines.input_blobs import join_tensors
from tasks.engines.passing import RowPass
from tasks.executor.job import Job as ExecutorJob
from tasks.executor.loading import beginning_of, make_run
from tasks.executor.resource_needs import needs_of
from tasks.ledger.lifecycle import Phase
from tasks.ledger.screening import check_start
from tasks.models.errors import FolderInvalid
from tasks.models.row_results import (
    EVALUATION,
    INDEX,
    METRICS,
    RECEIPT,
    VECTOR_FILE,
    RowReceipt,
    check_row_folder,
    evaluation_of,
    row_folder,
    vectors_of,
)
from tasks.programs.layered import LayeredProgram
from tasks.programs.llama_shape import LAYERS_MAX
from tasks.programs.program import SourceKind
from tasks.spec import Schedule, decode_spec, encode_spec, spec_hash
from tests.tasks.dispute.liars import Job
from tests.tasks.model_jobs import games_of_liars
from tests.tasks.passed import ADAPTER, STEPS, WHOLE, Passed, embedded, evaluated
from tests.tasks.programs.engines import engine
from tests.tasks.programs.llamas import TINY
from tests.tasks.world import World

ARRAYS = engine("numpy")
JOBS = {
    "embed": embedded(),
    "decoder": embedded(TINY),
    "evaluate": evaluated(),
    "tuned": evaluated(adapter=ADAPTER),
    "trained": evaluated(adapter=WHOLE),
    "vectors of tuned": embedded(TINY, adapter=ADAPTER),
    "vectors of trained": embedded(TINY, adapter=WHOLE, pooling="last"),
}
HASHES = {
    "embed": "900da395b87d909e5697d792c0e0a2b8219f2bdf959ed7714d2194d7077208bb",
    "decoder": "dee40728ca8ab89b447f333ec31914ba8f900831409d98047a140c45f81d5be3",
    "evaluate": "4c2b3238c2f233f44f5ef86b476eb3163c956cafbd2b0f0f56c80926710b3613",
    "tuned": "5ca6b4a39f21ec9ec1f4e52cece2bc08f27b440b1a1f4328e63fc365287c8ed6",
    "trained": "b66232a9eccb4a9b87ee857fef653e0a1b19e7a0f47f083548170647d99f198b",
    "vectors of tuned": "c1d5b9948a8c7ff1c95fb4470792a24ea943a72c023e86471a4e2aa2f7a8da7e",
    "vectors of trained": "0efdddd2e86829efd8ed8fe8983add5690432d872d1cbb02f903975a5d6d5b30",
}
EMBED, TUNED = JOBS["embed"].spec, JOBS["tuned"].spec
EMBED_PART: Any = EMBED.part
TUNED_PART: Any = TUNED.part
named = pytest.mark.parametrize("name", JOBS)


@named
def test_a_specification_has_one_encoding_and_its_json_form_is_read_back(name: str) -> None:
    spec, plan, _, _ = JOBS[name]
    raw = encode_spec(spec)
    assert decode_spec(raw) == spec and spec_from_json(spec_to_json(spec)) == spec
    assert spec_hash(raw).hex() == HASHES[name]
    assert spec.plan() == plan
    assert (spec.step_units, plan.step_calls) == (plan.program.units, len(plan.program.calls))
    roots = {given.kind: given.root for given in spec.inputs()}
    assert roots[SourceKind.DATA] == spec.dataset.root
    assert roots.get(SourceKind.MODEL, b"") == spec.model_root()
    assert (SourceKind.MODEL in roots) is ("trained" not in name)
    assert roots.get(SourceKind.ADAPTER, b"") == spec.adapter_root()
    assert check_start(spec) == []
    assert [found.code for found in check_start(spec.changed(init_root=bytes(32)))] == ["init_root_differs"]
    assert len(plan.first_state().encode()) == state_size(plan, 0) <= plan.state_limit_bytes


@pytest.mark.parametrize(
    "change",
    [
        {"model": EMBED_PART.model._replace(name="gpt2")},
        {"model": EMBED_PART.model._replace(name="llama")},
        {"model": EMBED_PART.model._replace(key_heads=1)},
        {"model": EMBED_PART.model._replace(rotary_base=10_000)},
        {"model": EMBED_PART.model._replace(tied=0)},
        {"model": EMBED_PART.model._replace(layers=0)},
        {"model": EMBED_PART.model._replace(width=1 << 62)},
        {"dataset": EMBED_PART.dataset._replace(rows=9)},
        {"dataset": EMBED_PART.dataset._replace(rows=0)},
        {"dataset": EMBED_PART.dataset._replace(rows=DATASET_BYTES_MAX)},
        {"dataset": EMBED_PART.dataset._replace(length=17)},
        {"dataset": EMBED_PART.dataset._replace(root=b"short")},
        {"batch": 0}, {"batch": 3}, {"batch": 1 << 40},
        {"pooling": EMBED_PART.pooling._replace(name="max")},
        {"pooling": EMBED_PART.pooling._replace(normalised=2)},
        {"kind": "generate"}, {"kind": "evaluate"}, {"level": 2},
        {"schedule": Schedule(STEPS - 1, 1, 1)}, {"schedule": Schedule(STEPS + 1, 1, 1)},
    ],
    ids=str,
)  # fmt: skip
def test_a_job_of_embedding_that_cannot_be_run_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(DecodeError):
        decode_spec(encode_spec(EMBED.changed(**change)))


@pytest.mark.parametrize(
    "change",
    [
        {"model": TUNED_PART.model._replace(name="bert")},
        {"model": TUNED_PART.model._replace(vocabulary=0)},
        {"dataset": TUNED_PART.dataset._replace(rows=9)},
        {"dataset": TUNED_PART.dataset._replace(slots=0)},
        {"dataset": TUNED_PART.dataset._replace(slots=99)},
        {"batch": 12}, {"kind": "embed"}, {"profile": "exact/1"},
        *[
            {"adapter": TUNED_PART.adapter._replace(**one)}
            for one in (
                {"rank": 0}, {"rank": 1 << 40}, {"alpha": 0}, {"targets": ()}, {"targets": ("down", "query")},
                {"root": b"short"}, {"blob": b""}, {"step": -1}, {"step": 1 << 40},
            )
        ],
    ],
    ids=str,
)  # fmt: skip
def test_a_job_of_evaluating_that_cannot_be_run_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(DecodeError):
        decode_spec(encode_spec(TUNED.changed(**change)))


@pytest.mark.parametrize("name", ["trained", "vectors of trained"])
def test_a_model_beside_a_state_that_is_one_is_refused(name: str) -> None:
    spec = JOBS[name].spec
    part: Any = spec.part
    for field in ("blob", "root"):
        with pytest.raises(DecodeError, match="zeros expected"):
            decode_spec(encode_spec(spec.changed(model=part.model._replace(**{field: b"m" * 32}))))


def test_an_encoder_has_no_adapters() -> None:
    adapter: Any = JOBS["vectors of tuned"].spec.part
    with pytest.raises(DecodeError, match="adapters of an encoder"):
        decode_spec(encode_spec(EMBED.changed(adapter=adapter.adapter)))


def test_a_field_that_came_later_is_absent_or_says_something() -> None:
    from state.primitives.codec import decode, encode

    value: Any = decode(encode_spec(EMBED), limit_bytes=1 << 16)
    tuned: Any = decode(encode_spec(JOBS["vectors of tuned"].spec), limit_bytes=1 << 16)
    at = 4 + 4
    assert len(tuned) == len(value) + 1 and len(tuned[at]) == 7
    with pytest.raises(DecodeError, match="adapter: 7 fields expected"):
        decode_spec(encode([*value[:at], [], *value[at:]]))


@named
def test_no_validator_builds_all_layers_of_a_deep_model(name: str) -> None:
    job = JOBS[name]
    part: Any = job.spec.part
    spec = decode_spec(encode_spec(job.spec.changed(model=part.model._replace(layers=LAYERS_MAX))))
    spec.plan().check()
    assert isinstance(spec.program(), LayeredProgram)
    assert spec.step_units == spec.program().units


@named
def test_a_task_is_created_proven_checked_and_settled_by_the_units_of_its_program(name: str) -> None:
    spec = JOBS[name].spec.changed(schedule=Schedule(STEPS, 1, STEPS // 2))
    world = World()
    world.add_machine(1), world.add_machine(2), world.add_machine(3)
    task = world.create(spec)
    record = world.run_to(task, Phase.SETTLED)
    assert record.final_windows == spec.windows == 2


def run(job: Passed, steps: int) -> RowPass:
    found = RowPass(job.plan, job.model, job.rows, ARRAYS, job.plan.first_state())
    found.run_steps(steps)
    return found


@pytest.mark.slow
@named
def test_a_workers_segments_and_a_disputed_one_have_the_same_records_and_a_liar_loses(name: str) -> None:
    """The engine's state and work are what the game opens, under the roots that stand in the specification."""
    job = JOBS[name]
    worker = run(job, 2)
    before = worker.state()
    done = worker.run_segment(2)
    disputed = Job(job.spec.program(), job.spec.seed, before.tensors, job.rows, 2, 2, job.model)
    honest = disputed.run(ARRAYS)
    assert honest.end_record == StepRecord(done.state_root, done.work_digest, done.loss_bits)
    for game in games_of_liars(job.spec, disputed, honest, before.root(job.plan)):
        accused, challenger = game.as_accused.game.ending, game.as_challenger.game.ending
        assert accused is not None and accused.loser is Side.ACCUSED
        assert challenger is None or challenger.loser is Side.CHALLENGER


def blobs_of(job: Passed) -> tuple[bytes, bytes]:
    """Return the blobs of rows, and of model and adapters."""
    model = join_tensors(job.plan.weight_tensors(), job.model)
    layout = job.plan.adapter_plan
    if layout is not None:
        from tasks.engines.state import TrainingState

        kinds = layout.tensors()
        state = TrainingState(job.plan.adapter_step, {name: job.model[name] for name in kinds})
        model += state.encode()
    return join_tensors(job.plan.row_tensors(), job.rows), model


@named
def test_a_process_runs_the_job_of_its_bytes(name: str) -> None:
    job = JOBS[name]
    made = ExecutorJob.of(job.spec)
    assert ExecutorJob.decode(made.encode()) == made
    rows, model = blobs_of(job)
    roots: Mapping[str, Any] = {
        "dataset_root": made.dataset_root, "root_of_model": made.model_root, "root_of_adapter": made.adapter_root,
    }  # fmt: skip
    found, _ = make_run(ARRAYS, made.plan, beginning_of(made.plan), rows, [model], **roots)
    found.run_steps(STEPS)
    assert found.state() == run(job, STEPS).state()
    changed = bytes([model[0] ^ 1]) + model[1:]
    for data, wrong in (
        (rows[:-4] + b"\1\0\0\0", model),
        (rows, changed),
        (rows, model + b"x"),
        (rows, model[:-1]),
    ):
        with pytest.raises(DatasetInvalid):
            make_run(ARRAYS, made.plan, beginning_of(made.plan), data, [wrong], **roots)
    needs = needs_of(job.spec, open_windows_max=4)
    assert needs.process > 0 and needs.blobs > len(rows) + len(model)


@named
def test_bytes_of_a_job_that_say_something_else_are_refused(name: str) -> None:
    from state.primitives.codec import decode, encode

    raw = ExecutorJob.of(JOBS[name].spec).encode()
    value: Any = decode(raw, limit_bytes=1 << 16)
    changes: list[Any] = [[[1]], [], [*value[1][:-1], "x"], [value[1][0], [1, 2], *value[1][2:]]]
    for change in changes:
        with pytest.raises((DecodeError, UnsupportedJob)):
            ExecutorJob.decode(encode([value[0], change, *value[2:]]))


@named
@pytest.mark.parametrize("steps", [0, 2, STEPS])
@pytest.mark.parametrize("task", [None, b"\x07" * 32])
def test_a_folder_gives_the_state_that_was_proved(name: str, steps: int, task: bytes | None) -> None:
    job = JOBS[name]
    state = run(job, steps).state()
    receipt = RowReceipt(task, job.spec, steps, state.root(job.plan))
    folder = row_folder(receipt, state)
    assert check_row_folder(folder) == receipt
    assert row_folder(receipt, state) == folder
    for suffix in FORMATS:
        FORMATS[suffix](state, job.plan)
    for file, content in folder.items():
        for changed in (content + b" ", content[:-1], content.replace(b"0", b"1", 1), b"", b"\xff" * 9):
            if changed != content:
                with pytest.raises(FolderInvalid):
                    check_row_folder({**folder, file: changed})
        with pytest.raises(FolderInvalid):
            check_row_folder({other: one for other, one in folder.items() if other != file})


def test_vectors_are_a_file_of_numpy() -> None:
    job = JOBS["embed"]
    state = run(job, STEPS).state()
    folder = row_folder(RowReceipt(None, job.spec, STEPS, state.root(job.plan)), state)
    assert sorted(folder) == sorted((VECTOR_FILE, INDEX, RECEIPT))
    found = np.load(io.BytesIO(folder[VECTOR_FILE]), allow_pickle=False)
    assert found.dtype == np.float32 and found.shape == (11, 8)
    assert (found == vectors_of(job.spec, state)).all()
    saved = io.BytesIO()
    np.save(saved, found)
    assert saved.getvalue() == folder[VECTOR_FILE]
    index = json.loads(folder[INDEX])
    assert (index["rows"], index["rows_in_all"], index["pooling"], index["normalised"]) == (11, 11, "mean", True)
    with pytest.raises(UnsupportedJob):
        evaluation_of(job.spec, state)


def test_losses_are_sums_and_the_loss_of_all_is_no_mean_of_means() -> None:
    job = JOBS["evaluate"]
    state = run(job, STEPS).state()
    folder = row_folder(RowReceipt(None, job.spec, STEPS, state.root(job.plan)), state)
    assert sorted(folder) == sorted((METRICS, EVALUATION, RECEIPT))
    lines = [json.loads(line) for line in folder[METRICS].splitlines()]
    whole = json.loads(folder[EVALUATION])
    assert [line["row"] for line in lines] == list(range(11))
    tokens = sum(line["tokens"] for line in lines)
    assert whole["tokens"] == tokens and whole["loss_sum"] == pytest.approx(
        sum(line["loss_sum"] for line in lines)
    )
    assert whole["loss"] == whole["loss_sum"] / tokens
    assert whole["loss"] != pytest.approx(np.mean([line["loss"] for line in lines]), rel=1e-6)
    assert whole["perplexity"] == pytest.approx(np.exp(whole["loss"]), rel=1e-12)
    assert all(line["perplexity"] == pytest.approx(np.exp(line["loss"]), rel=1e-12) for line in lines)
    with pytest.raises(UnsupportedJob):
        vectors_of(job.spec, state)
    assert isinstance(EMBED.plan(), EmbeddingPlan)
