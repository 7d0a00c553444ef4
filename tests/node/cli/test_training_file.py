"""Files of jobs that train a decoder: what they describe, and what is refused with file and line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from node.cli.tasks.job_file import read_job
from node.cli.tasks.told import told_job
from rpc.client.jobs import blobs_of, make_job
from rpc.client.stores import is_remote, model_named
from state.primitives.errors import DecodeError, DekubeError
from tasks.engines.errors import UnsupportedJob
from tasks.engines.input_blobs import check_tensors
from tasks.ledger.screening import check_start
from tasks.models.left import begin_of_files
from tasks.models.llama import expanded, frozen
from tasks.models.opening import open_model
from tasks.models.training import PRESETS
from tasks.programs.llama_shape import LlamaShape, parameters_of
from tasks.requests.errors import RequestInvalid
from tasks.requests.reading import kind_of, read_file
from tasks.requests.references import TaskRef
from tasks.spec import Schedule, decode_spec, encode_spec
from tests.tasks.models.checkpoints import write_folder
from tests.tasks.models.test_gpt2 import laid_out, written
from tests.tasks.programs.gpt2s import GPT2
from tests.tasks.trained import TINY as TRAINED
from tests.tasks.trained import left_behind
from tests.tasks.tuned import TINY, tuned

FILE = """
kind: train
data: book.txt
shape: {layers: 2, width: 16, heads: 2, context: 12}
steps: 40
batch: 2
learning_rate: 1e-2
"""
TEXT = "A text that is learned by heart. " * 4 + "End."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "book.txt").write_text(TEXT)
    (tmp_path / "train.yaml").write_text(FILE)
    return tmp_path


def made(folder: Path) -> Any:
    return make_job(
        read_job(folder / "train.yaml").request, seed=b"s" * 32, max_price_per_tera_unit=10**15, match_ms=60_000
    )


def test_a_job_is_made_of_a_text(folder: Path) -> None:
    job = made(folder)
    assert kind_of(read_job(folder / "train.yaml").request) == "train"
    assert decode_spec(encode_spec(job.spec)) == job.spec and check_start(job.spec) == []
    (given,) = job.spec.inputs()
    check_tensors(given.tensors, given.root, job.rows)
    assert blobs_of(job) == (job.rows,)
    part = job.spec.part
    assert part.model[1:] == (257, 16, 2, 2, 2, 8, 48, 12, 10_000, 10_000, 1)
    assert (part.dataset.rows, part.dataset.length, part.batch) == (12, 12, 2)
    assert part.rates == ("cosine", 2, 10**9) and part.optimiser.learning_rate_nano == 10_000_000
    assert job.spec.schedule == Schedule(40, 1, 40)
    assert job.notes and "12 tokens" in told_job(job)["rows"] and "vocabulary 257" in told_job(job)["model"]
    assert made(folder) == job


def test_validation_accumulation_and_an_early_end_are_fields_of_a_training(folder: Path) -> None:
    """The last tokens are for validation, or a file of its own."""
    loop = "accumulate: 2\nvalidation: 0.25\nevaluate_every: 4\npatience: 2\n"
    (folder / "train.yaml").write_text(FILE + loop)
    job = made(folder)
    part = job.spec.part
    assert decode_spec(encode_spec(job.spec)) == job.spec and check_start(job.spec) == []
    assert part.loop == (2, 4, 1, 2) and (part.dataset.rows, part.dataset.samples) == (12, 9)
    plan = job.spec.plan()
    assert (plan.loop.updates, part.rates.warmup_steps) == (40, 2)
    told = told_job(job)
    assert told["updates"].startswith("40, 2 x 2 rows each") and "3 rows" in told["validation"]
    assert "the best state is kept" in told["validation"] and "2 evaluations" in told["ends early"]
    (folder / "other.txt").write_text("Something else that nobody learns.")
    (folder / "train.yaml").write_text(FILE + "validation: other.txt\nkeep: best\n")
    part = made(folder).spec.part
    assert (part.dataset.rows, part.dataset.samples, part.loop) == (12 + 3, 12, (1, 6, 1, 0))
    (folder / "train.yaml").write_text(FILE + "accumulate: 3\nsave_every: 2\n")
    spec = made(folder).spec
    assert spec.part.loop == (3, 0, 0, 0) and spec.schedule.window_steps == 6


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("patience: 2", "patience needs rows for validation"),
        ("keep: best", "keep needs rows for validation"),
        ("validation: 1", "a share of the rows above 0 and below 1"),
        ("validation: short.txt", "tokens are for validation, and a row has 12"),
        ("validation: missing.txt", "validation in .* names a file"),
        ("validation: 0.01", "2 tokens are for validation"),
        ("validation: 0.25\nevaluate_every: 1\nsteps: 400", "400 evaluations, at most 128"),
        ("save_every: 2\nwindow_steps: 4", "save_every and window_steps: give one"),
    ],
)
def test_a_loop_that_cannot_be_is_refused_before_anything_is_paid(folder: Path, more: str, why: str) -> None:
    (folder / "short.txt").write_text("short")
    text = FILE.replace("steps: 40\n", "") if "steps: 400" in more else FILE
    (folder / "train.yaml").write_text(f"{text}{more}\n")
    with pytest.raises(DekubeError, match=why):
        made(folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_shapes_that_jobs_can_have(folder: Path, name: str) -> None:
    (folder / "book.txt").write_text(TEXT * 20)
    for shape in (f"shape: {name}", f"shape: {{preset: {name}, tied: false}}"):
        text = FILE.replace("shape: {layers: 2, width: 16, heads: 2, context: 12}", shape)
        text = text.replace("batch: 2", "batch: 8")
        (folder / "train.yaml").write_text(text)
        spec = made(folder).spec
        assert decode_spec(encode_spec(spec)) == spec
        assert spec.part.model.tied == ("tied" not in shape)


def test_the_tokens_of_a_models_folder_are_taken(folder: Path) -> None:
    (folder / "model").mkdir()
    write_folder(folder / "model", TINY)
    (folder / "rows.jsonl").write_text('{"input_ids": [1, 2, 3, 4, 5]}\n')
    text = FILE.replace("book.txt", "rows.jsonl") + "tokenizer: model\n"
    (folder / "train.yaml").write_text(text)
    assert made(folder).spec.part.model.vocabulary == TINY.vocabulary
    (folder / "rows.jsonl").write_text('{"input_ids": [1, 99]}\n')
    with pytest.raises(RequestInvalid, match=f"vocabulary has {TINY.vocabulary}"):
        made(folder)


def test_an_architecture_is_a_field_of_a_shape(folder: Path) -> None:
    """R154: specification, state and checks are those of a GPT-2; its head width may be odd."""
    text = FILE.replace("layers: 2, width: 16", "architecture: gpt2, layers: 2, width: 16")
    (folder / "train.yaml").write_text(text)
    job = made(folder)
    assert decode_spec(encode_spec(job.spec)) == job.spec and check_start(job.spec) == []
    assert job.spec.part.model == ("gpt2", 257, 16, 2, 2, 2, 8, 64, 12, 0, 10_000, 1)
    for other in (job.spec.part.model._replace(name="llama"), job.spec.part.model._replace(rotary_base=10_000)):
        with pytest.raises(DecodeError, match=r"model\.name"):
            decode_spec(encode_spec(job.spec.changed(model=other)))


@pytest.mark.parametrize(
    ("was", "now", "why"),
    [
        ("heads: 2", "heads: 2, architecture: gpt3", "line 4: architecture: llama, gpt2"),
        ("heads: 2", "heads: 2, architecture: gpt2, key_heads: 1", "line 4: key_heads: 2 expected"),
        ("steps: 40", "stesp: 40", "train.yaml: line 5: stesp is not a known field; did you mean steps?"),
        ("layers: 2", "layres: 2", "line 4: shape.layres is not a known field; did you mean shape.layers?"),
        ("heads: 2", "heads: 3", "line 4: heads: 3 heads of an even part of width 16"),
        ("heads: 2", "heads: 2, key_heads: 3", "line 4: key_heads: a divisor of 2 heads"),
        ("heads: 2", "heads: 2, tied: 1", "line 4: tied: true or false"),
        ("{layers: 2, width: 16, heads: 2, context: 12}", "huge", "line 4: shape: tiny, small, medium, large"),
        ("steps: 40", "steps: 40\nepochs: 3", "steps and epochs: give one of them"),
        ("batch: 2", "model: some", "line 4: shape: a model that is trained on has its own"),
        ("width: 16", "width: 8192", "the job cannot run"),
        ("data: book.txt", "data: none.txt", "none.txt: No such file"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(folder: Path, was: str, now: str, why: str) -> None:
    assert was in FILE
    (folder / "train.yaml").write_text(FILE.replace(was, now))
    with pytest.raises(RequestInvalid) as caught:
        made(folder)
    assert why in str(caught.value)


def test_a_fault_of_the_text_has_its_line(folder: Path) -> None:
    (folder / "book.txt").write_bytes(b"one\ntw\xff")
    with pytest.raises(RequestInvalid) as caught:
        made(folder)
    assert (caught.value.line, caught.value.code) == (2, "rows_invalid")


ASK = """
kind: generate
model: task:0x{task}
data: prompts.jsonl
new_tokens: 2
"""


def test_a_job_asks_the_model_of_a_task(folder: Path) -> None:
    left = left_behind(shape=replace(TRAINED, vocabulary=257))
    (folder / "ask.yaml").write_text(ASK.format(task="ab" * 32))
    (folder / "prompts.jsonl").write_text('{"prompt": "abc"}\n')
    request = read_job(folder / "ask.yaml").request
    assert (request.model, getattr(request, "adapter", None)) == ("", TaskRef(b"\xab" * 32))
    terms: dict[str, Any] = {"seed": b"s" * 32, "max_price_per_tera_unit": 1}
    job: Any = make_job(request, tuned=left, **terms)
    assert decode_spec(encode_spec(job.spec)) == job.spec
    assert blobs_of(job) == (left.state.encode(), job.rows)
    assert told_job(job)["model"] == "the model of the task that trained it, after 6 steps"
    with pytest.raises(RequestInvalid, match="the result of its task is needed"):
        make_job(request, **terms)
    with pytest.raises(RequestInvalid, match="kind finetune has no model"):
        make_job(request, tuned=left._replace(spec=tuned()[0]), **terms)


@pytest.mark.parametrize(
    ("was", "now", "why"),
    [
        ("task:0xabab", "task:0xzzab", "line 3: model: task: and the ID of a task that trained"),
        ("new_tokens: 2", "adapter: task:0x", "line 5: adapter: task: and the ID of a task that fine-tuned"),
    ],
)
def test_what_is_wrong_about_the_model_of_a_task_is_named(folder: Path, was: str, now: str, why: str) -> None:
    (folder / "prompts.jsonl").write_text('{"prompt": "abc"}\n')
    (folder / "ask.yaml").write_text(ASK.format(task="ab" * 32).replace(was, now, 1))
    with pytest.raises(RequestInvalid, match=why):
        read_job(folder / "ask.yaml")


def test_steps_train_a_model_and_ask_it(folder: Path) -> None:
    text = "jobs:\n  learn:\n" + "".join(f"    {line}\n" for line in FILE.strip().splitlines())
    text += "  ask:\n    kind: generate\n    model: job:learn\n    data: prompts.jsonl\n"
    found = read_file(text, str(folder / "steps.yaml"))
    assert [(step.name, step.after) for step in found.steps] == [("learn", ()), ("ask", ("learn",))]
    asked = found.request_of(found.steps[1].members[0], {"learn": "task:0x" + "ab" * 32})
    assert (asked.model, getattr(asked, "adapter", None)) == ("", TaskRef(b"\xab" * 32))
    with pytest.raises(RequestInvalid, match="no job 'learned' before this one"):
        read_file(text.replace("job:learn", "job:learned"), "steps.yaml")


def test_all_weights_of_a_model_in_files_are_trained(folder: Path) -> None:
    """The first state has the model's weights; its worker makes it of a public blob (R170)."""
    (folder / "model").mkdir()
    write_folder(folder / "model", TINY)
    (folder / "rows.jsonl").write_text('{"input_ids": [1, 2, 3, 4, 5]}\n')
    (folder / "train.yaml").write_text("kind: train\nmodel: model\ndata: rows.jsonl\nsteps: 4\nbatch: 1\n")
    job = made(folder)
    assert decode_spec(encode_spec(job.spec)) == job.spec and check_start(job.spec) == []
    part: Any = job.spec.part
    assert part.model.shape == TINY and part.start.step == 0
    begun: Any = job.spec.start()
    first = begun.state(job.adapter)
    assert first.root(job.spec.plan()) == job.spec.init_root
    with open_model(folder / "model") as opened:
        model = opened.load()
    for name in parameters_of(TINY):
        values = np.frombuffer(first.tensors[f"parameter/{name}"], "<f4")
        assert values.tobytes() == expanded(model, name).tobytes()
        again = model.tensors[name]
        if again.dtype == np.int16:  # frozen again, they are the integers that other jobs have
            assert (frozen(values.reshape(again.shape).astype(float))[0] == again).all()
    assert blobs_of(job) == (job.adapter, job.rows)


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        (replace(TINY, biased=True), "a model with biases of queries, keys and values"),
        (replace(TINY, vocabulary=40_000, width=512, head_width=256), "parameters, at most 16777216"),
    ],
)
def test_a_model_that_no_job_trains_as_a_whole_is_refused(shape: LlamaShape, why: str) -> None:
    class Files(NamedTuple):
        shape: LlamaShape

        def load(self) -> Any:
            raise AssertionError("refused before a weight is read")

    files: Any = Files(shape)
    with pytest.raises(UnsupportedJob, match=why):
        begin_of_files(files)


def test_steps_train_a_model_tune_it_and_ask_it(folder: Path) -> None:
    """The adapters change a model that a task has left, which whoever posts the job fetches (R169)."""
    text = "jobs:\n  learn:\n" + "".join(f"    {line}\n" for line in FILE.strip().splitlines())
    text += "  tune: {kind: finetune, model: 'job:learn@8', data: rows.jsonl}\n"
    text += "  ask: {kind: generate, model: 'job:learn@8', adapter: 'job:tune', data: prompts.jsonl}\n"
    found = read_file(text, str(folder / "steps.yaml"))
    assert found.steps[2].after == ("learn", "tune")
    tasks = {"learn": "task:0x" + "ab" * 32, "tune": "task:0x" + "cd" * 32}
    tune, ask = (found.request_of(step.members[0], tasks) for step in found.steps[1:])
    for request in (tune, ask):
        assert model_named(request) == TaskRef(b"\xab" * 32, 8) and is_remote(request)
    assert getattr(ask, "adapter", None) == TaskRef(b"\xcd" * 32)


def test_all_weights_of_a_gpt2_from_files_are_trained_on(folder: Path) -> None:
    """R154, R170: the state has its biases and positions, as the frozen model has them."""
    written(folder / "model", laid_out(GPT2), GPT2)
    with open_model(folder / "model") as opened:
        begun = begin_of_files(opened)
        model = opened.load()
    assert begun.model.name == "gpt2" and begun.model.shape == GPT2
    for name in ("positions", "norm_bias", "layer/1/query_key_value", "layer/0/down_bias"):
        assert begun.state.tensors[f"parameter/{name}"] == expanded(model, name).tobytes()
