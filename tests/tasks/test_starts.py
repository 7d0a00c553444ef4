"""Jobs of training that go on from the state of another task, and jobs about what it has left (market.md R133)."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from struct import unpack
from typing import Any, NamedTuple, cast

import numpy as np
import pytest

from node.cli.jobs import spec_from_json
from rpc.methods.jobs import spec_to_json
from state.primitives.errors import DecodeError
from tasks.engines.decoder_training import DecoderTrainer
from tasks.engines.embedding_plan import EmbeddingPlan
from tasks.engines.errors import DatasetInvalid, UnsupportedJob
from tasks.engines.evaluation_plan import EvaluationPlan
from tasks.engines.generating import Generator
from tasks.engines.generating import first_state as no_tokens
from tasks.engines.generating_plan import GeneratingPlan
from tasks.engines.input_blobs import read_model, read_rows, split_tensors
from tasks.engines.passing import RowPass
from tasks.engines.state import TrainingState
from tasks.engines.tuning import Tuner, first_state
from tasks.kinds.adapters import TunedAdapter
from tasks.kinds.finetune import TrainingLoop
from tasks.ledger.lifecycle import Phase
from tasks.ledger.screening import check_start
from tasks.models.byte_tokens import ByteTokens
from tasks.models.embedding import EmbeddingSettings, TrainedEmbedder, make_embedding
from tasks.models.evaluating import EvaluatingSettings, make_evaluating
from tasks.models.generating import GeneratingSettings, TrainedModel, byte_tokens, make_generating
from tasks.models.jobs import TuningSettings, make_tuning
from tasks.models.left import begin_of_files, begin_of_task, tuned_adapter, whole_model
from tasks.models.opening import open_model
from tasks.models.row_results import evaluation_of
from tasks.models.trained import left_model
from tasks.models.training import DecoderSize, TextFile, TrainingSettings, make_training
from tasks.programs.llama_shape import LlamaShape
from tasks.programs.program import SourceKind
from tasks.spec import JobSpec, Requirements, decode_spec, encode_spec
from tests.tasks.programs.engines import engine
from tests.tasks.programs.generations import made_model
from tests.tasks.trained import left_behind, trained
from tests.tasks.tuned import STEPS, TINY, tuned
from tests.tasks.world import World

ARRAYS = engine("numpy")
TERMS: dict[str, Any] = {"seed": bytes(range(32)), "max_price_per_tera_unit": 10**15, "match_ms": 60_000}
ROWS = b'{"input_ids": [1, 2, 3, 4, 5]}\n{"input_ids": [6, 7, 8]}\n{"input_ids": [9, 10, 11, 12]}\n'


class Left(NamedTuple):
    """What a task has left."""

    spec: JobSpec
    state: TrainingState


class Files(NamedTuple):
    """A model as one that lies on a disk, whose tokens are given as numbers."""

    shape: LlamaShape
    load: Any
    tokeniser: Any = None
    pooling: str = "last"
    normalised: bool = True


MODEL = made_model(TINY, 3)
OPENED: Any = Files(TINY, lambda: MODEL)


def tuned_on(start: Left | None, updates: int, seed: bytes = TERMS["seed"], **settings: Any) -> tuple[Left, bytes]:
    """Return what a job of ``updates`` updates leaves, which may go on from another one, and its model's blob."""
    chosen = TuningSettings(
        steps=updates, batch=3, rank=2, alpha=4, targets=("query", "down"), schedule="constant",
        learning_rate_nano=30_000_000, **settings,
    )  # fmt: skip
    job = make_tuning(OPENED, ROWS, chosen, start=start, **{**TERMS, "seed": seed})
    spec = decode_spec(encode_spec(job.spec))
    plan: Any = spec.plan()
    begun = spec.start()
    assert job.adapter == (b"" if start is None else start.state.encode())
    first = first_state(plan) if begun is None else begun.state(job.adapter)
    assert first.root(plan) == spec.init_root
    run = Tuner(plan, read_model(plan.shape, job.model), read_rows(plan.shape, job.rows), ARRAYS, first)
    run.run_steps(spec.schedule.total_steps)
    return Left(spec, run.state()), job.model


@cache
def first_tuned() -> Left:
    return tuned_on(None, 8)[0]


def losses(job: Any) -> float:
    """Return the loss of a token by a job of evaluating."""
    spec = decode_spec(encode_spec(job.spec))
    plan = spec.plan()
    assert isinstance(plan, EvaluationPlan)
    model = split_tensors(plan.weight_tensors(), job.model)
    if job.adapter:
        model |= plan.read_adapter(job.adapter).tensors
    run = RowPass(plan, model, split_tensors(plan.row_tensors(), job.rows), ARRAYS, plan.first_state())
    run.run_steps(plan.steps)
    return evaluation_of(spec, run.state()).total.loss


def test_a_job_that_goes_on_has_the_loss_that_the_first_one_ended_with() -> None:
    """Its first evaluation is of the adapters it began with: the second job learns on, and does not begin anew."""
    first = first_tuned()
    second, _ = tuned_on(first, 8)
    third, _ = tuned_on(second, 8, seed=b"o" * 32)
    found = [losses(make_evaluating(OPENED, ROWS, EvaluatingSettings(), tuned=left, **TERMS))
             for left in (None, first, second, third)]  # fmt: skip
    assert found == sorted(found, reverse=True) and found[3] < 0.6 * found[0], found


def test_matrices_come_from_the_other_task_and_nothing_else() -> None:
    first = first_tuned()
    second, _ = tuned_on(first, 1, validation_nano=400_000_000, evaluate_every=1, keep="best", accumulate=2)
    begun = second.spec.start()
    assert begun is not None
    state = begun.of(first.state)
    assert state.step == 0 and state.tensors.keys() == begun.plan.tensors().keys()
    for name, content in state.tensors.items():
        assert content == first.state.tensors[name] if name.startswith("parameter/") else not any(content)
    # And from the best state, where the other job has kept that.
    third, _ = tuned_on(second, 1)
    again = third.spec.start()
    assert again is not None and again.layout.group == "best"
    for name, content in again.of(second.state).tensors.items():
        if name.startswith("parameter/"):
            assert content == second.state.tensors["best/" + name.removeprefix("parameter/")]


def test_a_specification_names_the_state_and_has_one_encoding() -> None:
    second, _ = tuned_on(first_tuned(), 1)
    spec, first = second.spec, first_tuned()
    assert spec_from_json(spec_to_json(spec)) == spec
    assert [given.kind for given in spec.inputs()] == [SourceKind.DATA, SourceKind.MODEL, SourceKind.STATE]
    given, plan = spec.inputs()[2], cast("Any", first.spec.plan())
    assert (given.root, given.size_bytes) == (first.state.root(plan), len(first.state.encode()))
    assert given.check is not None
    given.check(first.state.encode())
    other = first_state(plan).encode()
    for wrong in (other, first.state.encode()[:-1], b"", replace(first.state, step=9).encode()):
        with pytest.raises(DatasetInvalid):
            given.check(wrong)
    assert (spec.adapter_root(), check_start(spec)) == (b"", [])
    # Programs follow from the job alone: whoever judges a dispute needs no state but the one before the segment.
    plain = first.spec.changed(start=None)
    assert spec.program() == decode_spec(encode_spec(plain.changed(schedule=spec.schedule))).program()


@pytest.mark.parametrize(
    "change",
    [
        {"rank": 1}, {"rank": 0}, {"alpha": 5}, {"targets": ("query",)}, {"targets": ()}, {"root": b"x"},
        {"layout": 8}, {"step": 1 << 40}, {"rank": 0, "alpha": 0, "targets": ()},
    ],
    ids=str,
)  # fmt: skip
def test_a_state_of_other_adapters_is_no_start(change: dict[str, Any]) -> None:
    spec = tuned_on(first_tuned(), 1)[0].spec
    part: Any = spec.part
    with pytest.raises(DecodeError):
        decode_spec(encode_spec(spec.changed(start=part.start._replace(**change))))


def test_adapters_of_another_model_and_tasks_without_adapters_are_refused() -> None:
    other: Any = Files(TINY, lambda: made_model(TINY, 4))
    makers: list[tuple[Any, str, Any]] = [
        (make_tuning, "start", TuningSettings()), (make_evaluating, "tuned", EvaluatingSettings()),
        (make_embedding, "tuned", EmbeddingSettings()),
    ]  # fmt: skip
    for make, name, settings in makers:
        with pytest.raises(UnsupportedJob, match="trained on another model"):
            make(other, ROWS, settings, **{name: first_tuned()}, **TERMS)
        with pytest.raises(UnsupportedJob, match="kind train has no adapters"):
            make(OPENED, ROWS, settings, **{name: left_behind()}, **TERMS)


def test_vectors_of_a_tuned_and_of_a_trained_model_are_of_their_weights() -> None:
    found = []
    sources: list[tuple[Any, Left | None]] = [
        (OPENED, None), (OPENED, first_tuned()), (TrainedEmbedder(model_left()), None),
    ]  # fmt: skip
    for opened, left in sources:
        job = make_embedding(opened, ROWS, EmbeddingSettings(), tuned=left, **TERMS)
        plan: Any = decode_spec(encode_spec(job.spec)).plan()
        assert isinstance(plan, EmbeddingPlan) and plan.shape.pooling == "last"
        model = split_tensors(plan.weight_tensors(), job.model)
        if job.adapter:
            model |= plan.read_adapter(job.adapter).tensors
        run = RowPass(plan, model, split_tensors(plan.row_tensors(), job.rows), ARRAYS, plan.first_state())
        run.run_steps(plan.steps)
        found.append(np.frombuffer(run.state().tensors["vectors"], "<f4"))
    assert all(np.isfinite(one).all() and one.any() for one in found)
    assert not np.array_equal(found[0], found[1]) and not np.array_equal(found[0], found[2])


def model_left() -> TrainedModel:
    return TrainedModel.of(left_behind(), None)


TEXT = b"the quick brown fox jumps over the lazy dog. " * 6


def trained_on(start: Left | None, steps: int) -> Left:
    size = DecoderSize(1, 16, 2, 32)
    asked = TrainingSettings(size=size, steps=steps, batch=4, schedule="constant", learning_rate_nano=10_000_000)
    begin = None if start is None else begin_of_task(start, 257)
    job = make_training(TextFile(TEXT, "a.txt"), ByteTokens(), 257, asked, start=begin, **TERMS)
    spec = decode_spec(encode_spec(job.spec))
    assert spec_from_json(spec_to_json(spec)) == spec
    plan: Any = spec.plan()
    begun = spec.start()
    if begun is None:
        from tasks.engines.decoder_training import first_state as first_weights

        first = first_weights(plan)
    else:
        first = begun.state(job.adapter)
        assert [given.kind for given in spec.inputs()] == [SourceKind.DATA, SourceKind.STATE]
    assert first.root(plan) == spec.init_root
    run = DecoderTrainer(plan, read_rows(plan.shape, job.rows), ARRAYS, first)
    run.run_steps(steps)
    return Left(spec, run.state())


def test_a_trained_model_is_trained_on_evaluated_and_asked() -> None:
    rows = b'{"text": "' + TEXT[:30] + b'"}\n'
    first = trained_on(None, 10)
    second = trained_on(first, 10)
    found = [losses(make_evaluating(TrainedModel.of(left, None), rows, EvaluatingSettings(), **TERMS))
             for left in (first, second)]  # fmt: skip
    assert found[1] < found[0] < np.log(257), found
    job = make_generating(
        TrainedModel.of(second, None), b'{"prompt": "the q"}\n', GeneratingSettings(new_tokens=3), **TERMS
    )
    plan: Any = decode_spec(encode_spec(job.spec)).plan()
    assert isinstance(plan, GeneratingPlan)
    rows_asked, model = read_rows(plan.shape, job.rows), read_model(plan.shape, job.adapter)
    Generator(plan, model, rows_asked, ARRAYS, no_tokens(plan)).run_steps(plan.shape.steps)


def test_a_trained_model_is_tuned_and_its_adapters_are_evaluated(tmp_path: Path) -> None:
    """Its weights are frozen by whoever posts the job: who has the state makes the same root (R169)."""
    first = trained_on(None, 20)
    files = left_model(first.spec, first.state, b"t" * 32)
    assert files is not None and left_model(first_tuned().spec, first_tuned().state, None) is None
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    rows = b'{"prompt": "the q", "completion": "uilt covers the bed"}\n' * 4
    with open_model(tmp_path) as found:
        opened: Any = Files(found.shape, found.load, byte_tokens(found.shape.vocabulary))
        chosen = TuningSettings(steps=12, batch=2, rank=4, alpha=8, learning_rate_nano=30_000_000)
        job = make_tuning(opened, rows, chosen, **TERMS)
        spec = decode_spec(encode_spec(job.spec))
        plan: Any = spec.plan()
        run = Tuner(
            plan, read_model(plan.shape, job.model), read_rows(plan.shape, job.rows), ARRAYS, first_state(plan)
        )
        run.run_steps(12)
        tuned_left = Left(spec, run.state())
        before, after = (
            losses(make_evaluating(opened, rows, EvaluatingSettings(), tuned=left, **TERMS))
            for left in (None, tuned_left)
        )
        whole = losses(make_evaluating(TrainedModel.of(first, None), rows, EvaluatingSettings(), **TERMS))
        assert abs(before - whole) < 1e-3 * whole  # as near as 15 bits are to the weights of the state
        assert after < 0.99 * before, (before, after)  # the head, which is the embedding, is not tuned
        with pytest.raises(UnsupportedJob, match="trained on another model"):
            make_generating(
                OPENED, b'{"input_ids": [1]}\n', GeneratingSettings(new_tokens=2), tuned=tuned_left, **TERMS
            )


def test_all_weights_of_a_model_in_files_are_trained_on() -> None:
    """The first step's loss is that of the files' model, and the last one's is lower."""
    model = made_model(TINY, 3)
    files: Any = Files(TINY, lambda: model)
    rows = b'{"input_ids": [1, 2, 3, 4, 5, 6, 7, 8, 9]}\n'
    asked = TrainingSettings(steps=16, batch=1, schedule="constant", learning_rate_nano=3_000_000, warmup_steps=0)
    job = make_training(
        TextFile(rows, "a.jsonl"), ByteTokens(), TINY.vocabulary, asked, start=begin_of_files(files), **TERMS
    )
    spec = decode_spec(encode_spec(job.spec))
    begun, plan = spec.start(), cast("Any", spec.plan())
    assert begun is not None
    run = DecoderTrainer(plan, read_rows(plan.shape, job.rows), ARRAYS, begun.state(job.adapter))
    found = [unpack("<d", run.run_steps(1)[1].to_bytes(8, "little"))[0] for _ in range(16)]
    wanted = losses(make_evaluating(files, rows, EvaluatingSettings(), **TERMS))
    assert abs(found[0] - wanted) < 1e-3 * wanted and found[-1] < 0.7 * found[0], (wanted, found)


def test_a_model_of_other_tokens_or_of_another_kind_is_not_trained_on() -> None:
    with pytest.raises(UnsupportedJob, match="the model has 40 tokens, and this tokeniser 257"):
        begin_of_task(left_behind(), 257)
    with pytest.raises(UnsupportedJob, match="kind finetune has no model of its own"):
        begin_of_task(first_tuned(), 257)
    spec, left = trained()[0], whole_model(left_behind(shape=replace(TINY, layers=2)))
    assert isinstance(left, TunedAdapter)
    changed = spec.changed(start=left._replace(rank=2, alpha=4, targets=("query",)))
    with pytest.raises(DecodeError):
        decode_spec(encode_spec(changed))


def test_a_task_that_goes_on_is_created_proved_checked_and_settled() -> None:
    """Its requester posts it, and the ledger asks no more of it than of any other."""
    loop = TrainingLoop()
    spec, plan, _ = tuned(loop=loop, segment=1, window=STEPS // 2)
    state = first_state(plan)
    left = TunedAdapter(b"a" * 32, state.root(plan), 2, 4, plan.shape.targets, 0)
    left = left._replace(rank=plan.shape.rank, alpha=plan.shape.alpha)
    assert tuned_adapter(Left(spec, state))[1:] == left[1:]
    going = decode_spec(encode_spec(spec.changed(start=left, requirements=Requirements(0, 0, 0))))
    assert going.model_bytes() == spec.model_bytes() + len(state.encode())
    world = World()
    world.add_machine(1), world.add_machine(2), world.add_machine(3)
    record = world.run_to(world.create(going), Phase.SETTLED)
    assert record.final_windows == going.windows == 2
