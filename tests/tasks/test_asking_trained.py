"""Jobs of the kind ``generate`` whose model a task has trained from scratch (market.md R89)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.cli.jobs import spec_from_json
from rpc.methods.jobs import spec_to_json
from state.primitives.errors import DecodeError
from tasks.dispute.game import Ending, Side
from tasks.engines.decoder_training import first_state as first_weights
from tasks.engines.errors import DatasetInvalid, UnsupportedJob
from tasks.engines.generating import Generator, completions, first_state
from tasks.engines.input_blobs import read_adapter, read_model, read_rows
from tasks.executor.job import Job as ExecutorJob
from tasks.executor.service import Executor, ExecutorOptions
from tasks.executor.supervisor import ProcessOptions
from tasks.kinds.finetune import MODEL_LLAMA, TrainingLoop
from tasks.ledger.screening import check_start, kind_objections
from tasks.models.byte_tokens import BYTES_VOCABULARY
from tasks.models.generating import GeneratingSettings, TrainedModel, make_generating
from tasks.models.left import whole_model
from tasks.programs.errors import ProgramInvalid
from tasks.programs.generate import GenerateShape, generate_program, marked_program
from tasks.programs.generate_units import check_generate, generate_cost
from tasks.programs.layered import LAYERS, Pattern, layered_program
from tasks.programs.llama_shape import Adapter
from tasks.programs.program import SourceKind
from tasks.spec import GeneratePart, decode_spec, encode_spec
from tests.tasks.dispute.liars import Job
from tests.tasks.executor.model_jobs import Windows
from tests.tasks.model_jobs import games_of_liars
from tests.tasks.programs.engines import engine
from tests.tasks.programs.test_finetune_units import models
from tests.tasks.programs.test_layered import check_equal
from tests.tasks.trained import TINY, asked_whole, left_behind
from tests.tasks.tuned import tuned

ARRAYS = engine("numpy")
MADE, PLAN, LEFT = asked_whole()
SPEC = MADE.spec
PART: Any = SPEC.part
WHOLE = Adapter(0, 0, (), 6)


@st.composite
def whole_shapes(draw: st.DrawFn) -> GenerateShape:
    model, batch = replace(draw(models()), biased=False), draw(st.integers(1, 3))
    length, new = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    return GenerateShape(model, batch, batch * draw(st.integers(1, 3)), length, new, (), WHOLE)


@settings(max_examples=20, deadline=None)
@given(whole_shapes(), st.integers(LAYERS + 1, 12))
def test_units_and_layers_of_a_step_are_those_of_its_program(shape: GenerateShape, layers: int) -> None:
    program = generate_program(shape)
    check_generate(shape)
    assert generate_cost(shape) == (program.units, len(program.calls))
    deep, like = (replace(shape, model=replace(shape.model, layers=count)) for count in (layers, LAYERS))
    check_equal(
        layered_program(Pattern(marked_program(like)), layers), generate_program(deep, checks_bounds=False)
    )


def test_a_specification_names_the_state_and_no_other_model() -> None:
    raw = encode_spec(SPEC)
    assert decode_spec(raw) == SPEC == spec_from_json(spec_to_json(SPEC))
    assert [one.kind for one in SPEC.inputs()] == [SourceKind.DATA, SourceKind.ADAPTER]
    plan, state = LEFT.spec.plan(), LEFT.state
    assert (SPEC.model_root(), SPEC.adapter_root()) == (b"", state.root(plan))
    assert SPEC.inputs()[1].size_bytes == len(state.encode()) == len(MADE.adapter)
    assert (PART.adapter.step, PART.adapter.rank, MADE.model) == (state.step, 0, b"")
    assert check_start(SPEC) == [] == kind_objections(SPEC)
    check = SPEC.inputs()[1].check
    assert check is not None
    check(MADE.adapter)
    with pytest.raises(DatasetInvalid):
        check(first_weights(plan).encode())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"adapter": PART.adapter._replace(alpha=1)},
        {"adapter": PART.adapter._replace(targets=("query",))},
        {"adapter": PART.adapter._replace(rank=1)},
        {"model": PART.model._replace(root=b"r" * 32)},
        {"model": PART.model._replace(blob=b"b" * 32)},
        {"model": PART.model._replace(biased=1)},
    ],
    ids=str,
)
def test_a_state_of_another_kind_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(DecodeError):
        decode_spec(encode_spec(SPEC.changed(**change)))


def test_an_adapter_of_no_rank_is_a_whole_model_alone() -> None:
    for wrong in (WHOLE._replace(alpha=1), WHOLE._replace(targets=("query",)), WHOLE._replace(step=-1)):
        with pytest.raises(ProgramInvalid):
            GenerateShape(TINY, 1, 1, 2, 2, (), wrong)


def test_a_model_that_kept_its_best_weights_is_asked_with_these() -> None:
    """The layout of its state stands in the job; the last weights are not read."""
    left = left_behind(loop=TrainingLoop(1, 2, 1), samples=3)
    job = make_generating(
        TrainedModel.of(left, None), b'{"input_ids": [1, 2]}', GeneratingSettings(new_tokens=4), seed=bytes(32),
        max_price_per_tera_unit=10**15, match_ms=60_000,
    )  # fmt: skip
    plan: Any = job.spec.plan()
    part: Any = job.spec.part
    assert part.adapter.layout == 6 and decode_spec(encode_spec(job.spec)) == job.spec
    rows = read_rows(plan.shape, job.rows)

    def asked(change: str) -> Any:
        tensors = {
            name: bytes(len(one)) if name.startswith(change) else one for name, one in left.state.tensors.items()
        }
        model = read_model(plan.shape, replace(left.state, tensors=tensors).encode())
        run = Generator(plan, model, rows, ARRAYS, first_state(plan))
        run.run_steps(plan.shape.steps)
        return run.state()

    assert asked("parameter/") == asked("nothing") != asked("best/")
    before: Any = left.spec.plan()
    with pytest.raises(UnsupportedJob, match="no best model yet"):
        whole_model(left._replace(state=first_weights(before)))


def test_a_pass_over_guesses_gives_the_same_bits_as_steps() -> None:
    """Places in one pass quantise the weights once, and each step does; a verifier checks in one pass."""
    model, rows = read_model(PLAN.shape, MADE.adapter), read_rows(PLAN.shape, MADE.rows)
    worker = Generator(PLAN, model, rows, ARRAYS, first_state(PLAN))
    for _ in range(PLAN.shape.steps):
        worker.run_steps(1)
    done = worker.state()
    checker = Generator(PLAN, model, rows, ARRAYS, first_state(PLAN), claimed=done)
    checker.run_steps(PLAN.shape.steps)
    assert checker.state() == done
    assert [len(one) for one in completions(PLAN.shape, rows, done)] == [4] * 4


@pytest.mark.parametrize("name", ["torch"])
def test_engines_give_the_same_bits(name: str) -> None:
    pytest.importorskip("torch", reason="torch (extra ml) IS NOT INSTALLED: ONE ENGINE WAS NOT CHECKED")
    model, rows = read_model(PLAN.shape, MADE.adapter), read_rows(PLAN.shape, MADE.rows)
    runs = [Generator(PLAN, model, rows, engine(one), first_state(PLAN)) for one in ("numpy", name)]
    assert runs[0].run_segment(8) == runs[1].run_segment(8)


def test_a_liar_loses_in_both_seats_and_who_is_honest_never_does() -> None:
    model, rows = read_model(PLAN.shape, MADE.adapter), read_rows(PLAN.shape, MADE.rows)
    schedule = SPEC.schedule._replace(segment_steps=2, window_steps=12)
    spec = decode_spec(encode_spec(SPEC._replace(schedule=schedule)))
    run = Generator(PLAN, model, rows, ARRAYS, first_state(PLAN))
    run.run_segment(2)
    before = run.state()
    job = Job(spec.program(), spec.seed, before.tensors, rows, 2, 2, model)
    honest = job.run(ARRAYS)
    for game in games_of_liars(spec, job, honest, before.root(PLAN)):
        challenger = game.as_challenger.game.ending
        assert game.as_accused.game.ending is Ending.ELEMENT_WRONG
        assert challenger is None or challenger.loser is Side.CHALLENGER


async def test_processes_ask_a_trained_model(tmp_path: Path) -> None:
    schedule = SPEC.schedule._replace(segment_steps=3, window_steps=6)
    spec = decode_spec(encode_spec(SPEC._replace(schedule=schedule)))
    assert ExecutorJob.decode(ExecutorJob.of(spec).encode()) == ExecutorJob.of(spec)
    task, options = b"\x55" * 32, ExecutorOptions(ProcessOptions(engine="numpy"))
    executor, windows = Executor(options, tmp_path / "worker"), Windows(task, spec)
    await executor.run_task(task, spec, MADE.rows, windows.hand_on, model=MADE.adapter)
    assert len(windows.found) == 2
    await windows.check_second(Executor(options, tmp_path / "verifier"), MADE.rows, MADE.adapter)


def test_a_task_of_another_kind_has_no_model_of_its_own() -> None:
    spec = tuned()[0]
    with pytest.raises(UnsupportedJob, match="kind finetune has no model"):
        TrainedModel.of(LEFT._replace(spec=spec), None)


def test_texts_are_bytes_where_the_vocabulary_is_theirs() -> None:
    terms: dict[str, Any] = {"seed": bytes(32), "max_price_per_tera_unit": 1, "match_ms": 1}
    asked, data = GeneratingSettings(new_tokens=2), b'{"prompt": "ab"}\n'
    with pytest.raises(UnsupportedJob, match="not bytes"):
        make_generating(TrainedModel.of(LEFT, None), data, asked, **terms)
    left = left_behind(shape=replace(TINY, vocabulary=BYTES_VOCABULARY))
    part = make_generating(TrainedModel.of(left, None), data, asked, **terms).spec.part
    assert isinstance(part, GeneratePart)
    assert (part.model.name, part.decoding.ends, part.dataset.length) == (MODEL_LLAMA, (256,), 2)
    assert read_adapter(PLAN.shape, MADE.adapter) == LEFT.state
