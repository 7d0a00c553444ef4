"""Jobs on preferences (DPO): files, specification, life on the ledger, disputes, processes (market.md R135)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError
from tasks.dispute.commitments import StepRecord
from tasks.dispute.game import Side
from tasks.engines.errors import UnsupportedJob
from tasks.engines.input_blobs import join_tensors
from tasks.engines.tuning import Tuner, first_state
from tasks.executor.job import Job as ExecutorJob
from tasks.executor.service import Executor, ExecutorOptions
from tasks.executor.supervisor import ProcessOptions
from tasks.kinds.finetune import Preference, TrainingLoop
from tasks.ledger.lifecycle import Phase
from tasks.models.adapters import Receipt, adapter_folder, check_folder, receipt_of
from tasks.models.byte_tokens import ByteTokens
from tasks.models.errors import FolderInvalid, RowsInvalid
from tasks.models.jobs import TuningSettings, make_tuning
from tasks.models.left import tuned_adapter
from tasks.models.rows import fitted_pairs, pair_rows_of, pairs_of
from tasks.programs.finetune import (
    BETA_NANO_MAX,
    Part,
    marked_program,
    row_tensors,
)
from tasks.programs.layered import LayeredProgram
from tasks.programs.llama_shape import weight_tensors
from tasks.programs.looped import EVALUATION_BEST, EVALUATION_LOSSES, losses_in
from tasks.programs.operators.scalars import NANO
from tasks.requests.errors import RequestInvalid
from tasks.requests.reading import request_of
from tasks.spec import Schedule, decode_spec, encode_spec
from tests.tasks.dispute.liars import Job
from tests.tasks.executor.model_jobs import Windows
from tests.tasks.model_jobs import check_specification, games_of_liars
from tests.tasks.programs.engines import engine
from tests.tasks.test_starts import OPENED, TERMS, Left
from tests.tasks.tuned import STEPS, tuned
from tests.tasks.world import World

ARRAYS = engine("numpy")
BETA = NANO // 10
SPEC, PLAN, MADE = tuned(preference=BETA)
PART: Any = SPEC.part
HASH = "75e4041fdbfef33610a4f5ab6bd0a195571d812d25c6d9b02fcd9afb5fce431a"
LINE = {"prompt": "Hi. ", "chosen": "Yes.", "rejected": "No."}


def lines(*rows: object) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def test_a_specification_has_one_encoding_and_its_json_form_is_read_back() -> None:
    check_specification(SPEC, PLAN, first_state(PLAN), HASH)
    value: Any = decode(encode_spec(SPEC), limit_bytes=2048)
    assert value[11:13] == [[], [BETA]]
    for wrong in ([*value[:12], [], *value[13:]], [*value[:11], *value[12:]], [*value[:12], *value[13:]]):
        with pytest.raises(DecodeError):
            decode_spec(encode(wrong))
    state = first_state(PLAN)
    start = tuned_adapter(Left(SPEC, state))
    both = SPEC.changed(start=start)
    assert decode_spec(encode_spec(both)) == both


@pytest.mark.parametrize("beta", [0, BETA_NANO_MAX + 1, -1])
def test_a_beta_that_is_none_is_refused(beta: int) -> None:
    with pytest.raises(DecodeError):
        decode_spec(encode_spec(SPEC.changed(preference=Preference(beta))))


def test_no_validator_builds_all_layers_of_a_deep_model() -> None:
    rates = PART.rates._replace(clip_nano=0)
    spec = decode_spec(encode_spec(SPEC.changed(model=PART.model._replace(layers=60), rates=rates)))
    spec.plan().check()
    assert isinstance(spec.program(), LayeredProgram)
    assert spec.step_units == spec.program().units


def test_a_task_is_created_proven_checked_and_settled_by_the_units_of_its_program() -> None:
    world = World()
    world.add_machine(1), world.add_machine(2), world.add_machine(3)
    record = world.run_to(world.create(SPEC), Phase.SETTLED)
    assert record.final_windows == SPEC.windows


@pytest.mark.slow
@pytest.mark.parametrize("part", [Part.REFERENCE, Part.HEAD])
def test_a_workers_segments_and_a_disputed_one_have_the_same_records_and_a_liar_loses(part: Part) -> None:
    """Each liar's tensor is of the reference, or of the head: its logits, and the loss of pairs."""
    tuner = Tuner(PLAN, MADE.model, MADE.data, ARRAYS, first_state(PLAN))
    tuner.run_segment(2)
    before = tuner.state()
    done = tuner.run_segment(2)
    job = Job(SPEC.program(), SPEC.seed, before.tensors, MADE.data, 2, 2, MADE.model)
    honest = job.run(ARRAYS)
    assert honest.end_record == StepRecord(done.state_root, done.work_digest, done.loss_bits)
    marks = marked_program(PLAN.shape, PLAN.rates).marks
    first = next(at for at, mark in enumerate(marks) if mark.part == part)
    after = next(mark for mark in marks[first:] if mark.part > part)
    tensors = range(marks[first].call, after.call)
    offset = len(job.program.sources)
    tensors = range(offset + tensors.start, offset + tensors.stop)
    for game in games_of_liars(SPEC, job, honest, before.root(PLAN), tensors):
        accused, challenger = game.as_accused.game.ending, game.as_challenger.game.ending
        assert accused is not None and accused.loser is Side.ACCUSED
        assert challenger is None or challenger.loser is Side.CHALLENGER


async def test_processes_run_and_check_it(tmp_path: Path) -> None:
    spec = decode_spec(encode_spec(SPEC.changed(schedule=Schedule(STEPS, 1, STEPS // 2))))
    assert ExecutorJob.decode(ExecutorJob.of(spec).encode()) == ExecutorJob.of(spec)
    rows, model = (
        join_tensors(kinds, contents) for kinds, contents in (
            (row_tensors(PLAN.shape), MADE.data), (weight_tensors(PLAN.shape.model), MADE.model),
        )
    )  # fmt: skip
    task, options = b"\x77" * 32, ExecutorOptions(ProcessOptions(engine="numpy"))
    windows = Windows(task, spec)
    await Executor(options, tmp_path / "worker").run_task(task, spec, rows, windows.hand_on, model=model)
    direct = Tuner(PLAN, MADE.model, MADE.data, ARRAYS, first_state(PLAN))
    direct.run_steps(STEPS)
    assert windows.found[-1][1][-1] == direct.state().encode()
    await windows.check_second(Executor(options, tmp_path / "verifier"), rows, model)


def test_pairs_that_nobody_trains_on_are_evaluated_and_a_folder_holds_the_adapters() -> None:
    """Before any update each pair has the loss of a coin; what is learned lowers that of pairs to train on."""
    loop = TrainingLoop(evaluate_every=1)
    spec, plan, made = tuned(preference=BETA, samples=2, updates=3, loop=loop, segment=1)
    run = Tuner(plan, made.model, made.data, ARRAYS, first_state(plan))
    run.run_steps(plan.loop.steps)
    losses = [one for one in losses_in(run.state().tensors[EVALUATION_LOSSES]) if one]
    assert len(losses) == 3 and all(abs(one - np.log(2)) < 0.5 for one in losses)
    receipt = receipt_of(
        plan.shape, run.state(), base="some/model", model_root=spec.model_root(), rows_root=spec.dataset.root,
        task=None,
    )  # fmt: skip
    folder = adapter_folder(receipt, run.state().tensors)
    assert check_folder(folder) == receipt == Receipt.decode(receipt.encode())
    assert json.loads(receipt.encode())["shape"]["preference"] == BETA


def test_adapters_of_an_evaluation_without_any_loss_are_there() -> None:
    """With a large beta all pairs are told apart so well that the lowest loss is zero: it is the best one."""
    spec, plan, _ = tuned(preference=BETA, samples=2, loop=TrainingLoop(evaluate_every=1, keeps_best=1), segment=1)
    before = first_state(plan)
    tensors = {
        name: before.tensors[name.replace("best/", "parameter/")] if name.startswith("best/") else content
        for name, content in before.tensors.items()
    }
    after = replace(before, step=plan.loop.evaluated_at(0), tensors=tensors)
    assert not any(after.tensors[EVALUATION_BEST])
    roots = {"model_root": spec.model_root(), "rows_root": spec.dataset.root}
    terms: Any = {"base": "some/model", "task": None, **roots}
    assert tuned_adapter(Left(spec, after)).root == after.root(plan)
    assert receipt_of(plan.shape, after, **terms).state_root == after.root(plan)
    with pytest.raises(UnsupportedJob, match="no best adapters yet"):
        tuned_adapter(Left(spec, before))
    with pytest.raises(FolderInvalid, match="no state is the best yet"):
        receipt_of(plan.shape, before, **terms)


# Files


def test_a_line_gives_two_sequences_of_which_what_comes_after_the_prompt_is_trained() -> None:
    tokens = ByteTokens()
    (pair,) = pairs_of(lines(LINE), tokens)
    for one, text in zip(pair, (b"Yes.", b"No."), strict=True):
        assert one.tokens == (*b"Hi. ", *text, 256)
        assert one.trained == (False,) * 4 + (True,) * (len(text) + 1)
    numbers = {"prompt_input_ids": [1, 2], "chosen_input_ids": [3], "rejected_input_ids": [4, 5]}
    (pair,) = pairs_of(lines(numbers), tokens, 40)
    assert [one.tokens for one in pair] == [(1, 2, 3), (1, 2, 4, 5)]
    chat = {
        "prompt": [{"role": "user", "content": "a"}], "chosen": [{"role": "assistant", "content": "b"}],
        "rejected": [{"role": "assistant", "content": "c"}],
    }  # fmt: skip
    (pair,) = pairs_of(lines(chat), tokens)
    assert bytes(
        t for t, is_trained in zip(pair.chosen.tokens, pair.chosen.trained, strict=True) if is_trained
    ) == (b"b<|im_end|>")


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({**LINE, "rejected": "Yes."}, "chosen and rejected are the same"),
        ({"prompt": "a", "completion": "b"}, "prompt, chosen and rejected expected"),
        ({**LINE, "chosen": 7}, "chosen: a text expected"),
        ({**LINE, "prompt": [{"role": "user"}]}, "objects with role and content"),
        ({"prompt_input_ids": [1], "chosen_input_ids": [40], "rejected_input_ids": [2]},
         "chosen_input_ids: 40 at place 0, the vocabulary has 40"),
        ({"prompt_input_ids": [1], "chosen_input_ids": [], "rejected_input_ids": [2]}, "no token to train"),
        ({"prompt_input_ids": [], "chosen_input_ids": [3], "rejected_input_ids": [2]}, "no token to train"),
    ],
    ids=str,
)  # fmt: skip
def test_a_line_that_is_no_pair_is_named(row: object, text: str) -> None:
    with pytest.raises(RowsInvalid, match=text) as caught:
        list(pairs_of(lines(LINE, row), ByteTokens(), 40))
    assert caught.value.line == 2


def test_a_pair_fits_or_is_refused_cut_or_dropped_as_a_whole() -> None:
    long = {**LINE, "chosen": "Yes, of course."}
    data = lines(LINE, long)
    with pytest.raises(RowsInvalid, match="20 tokens, at most 11") as caught:
        fitted_pairs(pairs_of(data, ByteTokens()), 10)
    assert caught.value.line == 2
    kept, dropped = fitted_pairs(pairs_of(data, ByteTokens()), 10, "drop")
    assert (len(kept), dropped) == (1, [(2, "20 tokens, at most 11")])
    kept, dropped = fitted_pairs(pairs_of(data, ByteTokens()), 10, "truncate")
    assert [[len(one.tokens) for one in pair] for pair in kept] == [[9, 8], [11, 8]] and not dropped
    rows = pair_rows_of(kept)
    assert (rows.rows, rows.length, rows.slots) == (2, 10, 7)
    assert len(rows.contents["tokens"]) == 4 * 2 * 2 * 10


def test_a_job_is_made_of_a_file_and_what_it_does_not_take_is_named() -> None:
    numbers = lines(*(
        {"prompt_input_ids": [1, row], "chosen_input_ids": [3 + row], "rejected_input_ids": [4, 5]}
        for row in range(6)
    ))  # fmt: skip
    settings = TuningSettings(beta_nano=BETA, validation_nano=NANO // 3, epochs=2, batch=2)
    job = make_tuning(OPENED, numbers, settings, **TERMS)
    spec = decode_spec(encode_spec(job.spec))
    part: Any = spec.part
    assert (part.preference, part.dataset.rows, part.dataset.samples) == (Preference(BETA), 6, 4)
    assert len(job.rows) == spec.inputs()[0].size_bytes
    with pytest.raises(RowsInvalid, match="a file of preferences needs preference: dpo"):
        make_tuning(OPENED, lines(LINE), TuningSettings(), **TERMS)


def test_a_request_names_the_method_and_beta() -> None:
    fields = {"kind": "finetune", "model": "m", "data": "p"}
    found: Any = [request_of({**fields, **more}) for more in (
        {}, {"preference": "dpo"}, {"preference": "dpo", "beta": 0.5},
    )]  # fmt: skip
    assert [one.settings.beta_nano for one in found] == [0, BETA, NANO // 2]
    for name, more, text in (
        ("beta", {"beta": 0.5}, "add preference: dpo"),
        ("beta", {"preference": "dpo", "beta": 0}, "above 0"),
        ("beta", {"preference": "dpo", "beta": 101}, "a number from 0 to 100"),
        ("preference", {"preference": "ppo"}, "dpo expected"),
    ):
        with pytest.raises(RequestInvalid, match=text) as caught:
            request_of({**fields, **more})
        assert caught.value.field == name
