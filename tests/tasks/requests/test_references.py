"""Results of tasks in job files: ``task:ID@STEP`` as adapters, models and data."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.requests.errors import RequestInvalid
from tasks.requests.reading import read_file, request_of
from tasks.requests.references import TaskRef, read_ref

TASK = b"\xab" * 32
NAME = "task:0x" + TASK.hex()
STEPS = """
jobs:
  tune: {kind: finetune, model: m, data: t.jsonl, save_every: 10}
  ask: {kind: generate, model: m, data: p.jsonl, adapter: "job:tune@20"}
  again: {kind: finetune, model: m, data: "job:ask"}
"""


@given(st.binary(min_size=32, max_size=32), st.none() | st.integers(1, 10**16 - 1))
def test_a_reference_is_read_as_it_is_written(task: bytes, step: int | None) -> None:
    ref = TaskRef(task, step)
    assert read_ref(str(ref)) == ref
    assert read_ref(str(ref).replace("0x", "")) == ref


@given(st.text(max_size=90) | st.sampled_from((
    NAME + "@", NAME + "@0", NAME + "@01", NAME + "@-1", NAME + "@1@2", NAME + " ", NAME[:-1], NAME + "a",
    NAME.upper(), "task:", "job:" + NAME, NAME + "@" + "9" * 17, NAME + "@\u0661",
)))  # fmt: skip
def test_other_texts_are_no_references(text: str) -> None:
    assert read_ref(text) is None


@pytest.mark.parametrize("kind", ["finetune", "evaluate", "embed"])
def test_rows_of_a_task_are_data_and_keep_their_name(kind: str) -> None:
    found = request_of({"kind": kind, "model": "m", "data": NAME + "@12"})
    assert read_ref(found.data) == TaskRef(TASK, 12)
    with pytest.raises(RequestInvalid, match="data: task: and the ID of a task that continued prompts") as caught:
        request_of({"kind": kind, "model": "m", "data": "task:mine"})
    assert caught.value.field == "data"


def test_an_earlier_state_is_named_by_its_step() -> None:
    asked = request_of({"kind": "generate", "model": "m", "data": "p", "adapter": NAME + "@8"})
    tested = request_of({"kind": "evaluate", "model": "m", "data": "p", "adapter": NAME + "@8"})
    trained = request_of({"kind": "generate", "model": NAME + "@8", "data": "p"})
    refs = [getattr(one, "adapter", None) for one in (asked, tested, trained)]
    assert refs == [TaskRef(TASK, 8)] * 3
    with pytest.raises(RequestInvalid, match="adapter: task: and the ID"):
        request_of({"kind": "generate", "model": "m", "data": "p", "adapter": NAME + "@0"})


def test_a_job_may_use_an_earlier_state_or_the_completions_of_a_job_before_it() -> None:
    found = read_file(STEPS, "f")
    assert [(step.name, step.after) for step in found.steps] == [
        ("tune", ()), ("ask", ("tune",)), ("again", ("ask",)),
    ]  # fmt: skip
    tasks = {"tune": NAME, "ask": "task:0x" + "cd" * 32}
    asked = found.request_of(found.steps[1].members[0], tasks)
    again = found.request_of(found.steps[2].members[0], tasks)
    assert getattr(asked, "adapter", None) == TaskRef(TASK, 20)
    assert read_ref(again.data) == TaskRef(b"\xcd" * 32)
    with pytest.raises(RequestInvalid, match="adapter: no job 'tun' before this one"):
        read_file(STEPS.replace("job:tune@20", "job:tun@20"), "f")
    with pytest.raises(RequestInvalid, match="adapter: task: and the ID"):
        read_file(STEPS.replace("job:tune@20", "job:tune@x"), "f")


@pytest.mark.parametrize("kind", ["generate", "evaluate", "embed"])
def test_a_model_that_a_task_has_trained_is_named_as_model_with_its_tokeniser(kind: str) -> None:
    fields = {"kind": kind, "model": NAME + "@8", "data": "p", "tokenizer": "folder"}
    found: Any = request_of(fields)
    assert (found.model, found.adapter, found.tokenizer) == ("", TaskRef(TASK, 8), "folder")
    found = request_of({**fields, "tokenizer": "bytes"})
    assert found.tokenizer == ""
    tuned: Any = request_of({"kind": kind, "model": "m", "data": "p", "adapter": NAME})
    assert (tuned.model, tuned.adapter) == ("m", TaskRef(TASK))
    both: Any = request_of({**fields, "adapter": NAME})  # adapters of a model that a task has trained
    assert (both.model, both.adapter, both.tokenizer) == (NAME + "@8", TaskRef(TASK), "folder")
    both = request_of({"kind": kind, "model": NAME, "data": "p", "adapter": NAME + "@3"})
    assert (both.model, both.adapter, both.tokenizer) == (NAME, TaskRef(TASK, 3), "bytes")
    for name, wrong, text in (
        ("tokenizer", {**fields, "model": "m"}, "only for a model of a task"),
        ("model", {**fields, "model": "task:mine"}, "that trained a language model"),
    ):
        with pytest.raises(RequestInvalid, match=text) as caught:
            request_of(wrong)
        assert caught.value.field == name


def test_training_goes_on_from_a_task() -> None:
    tuned: Any = request_of({"kind": "finetune", "model": "m", "data": "p", "adapter": NAME + "@3"})
    trained: Any = request_of({"kind": "train", "model": NAME + "@3", "data": "p"})
    assert tuned.adapter == trained.adapter == TaskRef(TASK, 3) and (tuned.model, trained.model) == ("m", "")
    with pytest.raises(RequestInvalid, match="rank: a job that goes on from adapters of a task has theirs"):
        request_of({"kind": "finetune", "model": "m", "data": "p", "adapter": NAME, "lora": {"rank": 8}})
    with pytest.raises(RequestInvalid, match="shape: a model that is trained on has its own"):
        request_of({"kind": "train", "model": NAME, "data": "p", "shape": "tiny"})
    files: Any = request_of({"kind": "train", "model": "m", "data": "p"})
    assert (files.model, files.adapter, files.tokenizer) == ("m", None, "")
    with pytest.raises(RequestInvalid, match="tokenizer: a model that lies in files has its own"):
        request_of({"kind": "train", "model": "m", "data": "p", "tokenizer": "bytes"})


def test_a_model_that_a_task_has_trained_is_tuned() -> None:
    tuned: Any = request_of({"kind": "finetune", "model": NAME + "@3", "data": "p"})
    assert (tuned.model, tuned.tokenizer, tuned.adapter) == (NAME + "@3", "bytes", None)
    tuned = request_of({"kind": "finetune", "model": NAME, "data": "p", "tokenizer": "t", "adapter": NAME})
    assert (tuned.model, tuned.tokenizer, tuned.adapter) == (NAME, "t", TaskRef(TASK))
    for name, wrong, text in (
        ("tokenizer", {"model": "m", "tokenizer": "t"}, "only for a model of a task"),
        ("model", {"model": "task:mine"}, "that trained a language model"),
    ):
        with pytest.raises(RequestInvalid, match=text) as caught:
            request_of({"kind": "finetune", "data": "p", **wrong})
        assert caught.value.field == name


def test_jobs_of_a_file_and_of_an_array_go_on_from_each_other() -> None:
    text = """
jobs:
  learn: {kind: train, data: a.txt}
  more: {kind: train, model: "job:learn@4", data: b.txt}
  test: {kind: evaluate, model: "job:more", data: c.jsonl}
  tune: {kind: finetune, model: m, data: t.jsonl}
  again: {kind: finetune, model: m, data: t.jsonl, adapter: "job:tune", matrix: {learning_rate: [0.1, 0.2]}}
  vectors: {kind: embed, model: m, data: t.jsonl, adapter: "job:tune"}
"""
    found = read_file(text, "f")
    tasks = {step.name: f"task:0x{number:064x}" for number, step in enumerate(found.steps)}
    named: list[Any] = [found.request_of(member, tasks) for step in found.steps for member in step.members]
    assert [getattr(one.adapter, "step", None) for one in named] == [None, 4, None, None, None, None, None]
    assert [one.adapter and one.adapter.task[-1] for one in named] == [None, 0, 1, None, 3, 3, 3]
