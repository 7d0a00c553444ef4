"""Batches over embeddings: texts as rows of a job, vectors as answers, what is refused alone."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from node.api.batches import VectorBatch
from node.api.errors import ApiError
from node.api.lines import parse_lines
from node.api.making import ModelFile
from node.api.records import BATCH, JobRecord
from node.api.requests import EMBEDDINGS
from node.api.store import new_id
from node.api.vectors import VectorPlan, plan_vectors, vector_results
from state.primitives.errors import ConfigError
from tests.cluster.api_server import write_model
from tests.node.api.test_lines import data
from tests.node.api.test_making import made
from tests.tasks.models.test_encoders import write_encoder


class Letters:
    """A token for each byte."""

    def encode(self, text: str, most: int | None = None) -> list[int]:
        return list(text.encode())[:most]


def planned(*inputs: Any, **body: Any) -> VectorPlan:
    context = 5
    lines = [
        {
            "custom_id": str(number),
            "method": "POST",
            "url": EMBEDDINGS,
            "body": {"model": "m", "input": one, **body},
        }
        for number, one in enumerate(inputs)
    ]
    found, faults = parse_lines(data(*lines), EMBEDDINGS)
    assert not faults
    return plan_vectors(found, Letters(), 200, context)


def test_all_forms_of_inputs_are_rows_of_one_job() -> None:
    plan = planned("ab", ["a", "b"], [5, 6], [[7], [8, 9]])
    assert plan.rows == ((0, (97, 98)), (1, (97,)), (1, (98,)), (2, (5, 6)), (3, (7,)), (3, (8, 9)))
    assert [json.loads(row)["input_ids"] for row in plan.data().splitlines()][3:] == [[5, 6], [7], [8, 9]]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("", "invalid_input"), ("abcdef", "context_length_exceeded"), ([200], "invalid_input"),
        (["a", "abcdef"], "context_length_exceeded"), ("a\x00", "invalid_input"), ([], "invalid_value"),
        (7, "invalid_value"), ([[]], "invalid_value"), (["a"] * 129, "invalid_value"),
        (None, "missing_required_parameter"),
    ],
)  # fmt: skip
def test_a_request_that_cannot_be_done_is_refused_alone(value: Any, reason: str) -> None:
    plan = planned("a", value)
    assert [one.refused and one.refused.reason for one in plan.lines] == [None, reason]
    assert plan.rows == ((0, (97,)),)


def test_settings_of_the_format_are_read_or_refused() -> None:
    for name, value, reason in (
        ("dimensions", 3, "unsupported_parameter"), ("encoding_format", "int8", "invalid_value"),
        ("temperature", 0, "unknown_parameter"), ("user", 7, "invalid_type"),
    ):  # fmt: skip
        [refused] = planned("a", **{name: value}).lines
        assert refused.refused is not None
        assert (refused.refused.param, refused.refused.status) == (name, 400), reason
    [kept] = planned("a", encoding_format="base64", user="me").lines
    assert kept.refused is None and kept.as_base64


def test_answers_are_vectors_in_their_order_with_all_digits() -> None:
    plan = planned(["a", "bc"], "abcdefgh", "d")
    vectors = np.array([[0.1, -2.5e-8], [1 / 3, 1.0], [7.0, 0.0]], "<f4")
    made = vector_results(plan, vectors, batch="batch_1", unfinished=ApiError("late"))
    assert (made.completed, made.failed, made.prompt_tokens, made.new_tokens) == (2, 1, 4, 0)
    bodies = [json.loads(one)["response"]["body"] for one in made.output.splitlines()]
    assert [[one["index"] for one in body["data"]] for body in bodies] == [[0, 1], [0]]
    assert bodies[0]["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    told = [one["embedding"] for body in bodies for one in body["data"]]
    assert np.array(told, "<f4").tobytes() == vectors.tobytes()
    [refused] = [json.loads(one) for one in made.errors.splitlines()]
    assert refused["response"]["body"]["error"]["code"] == "context_length_exceeded"


def test_vectors_as_bytes() -> None:
    vectors = np.array([[0.1, 1 / 3]], "<f4")
    made = vector_results(
        planned("a", encoding_format="base64"), vectors, batch="batch_1", unfinished=ApiError("late")
    )  # fmt: skip
    told = json.loads(made.output)["response"]["body"]["data"][0]["embedding"]
    assert base64.b64decode(told) == vectors.tobytes()


@pytest.mark.parametrize(("done", "completed"), [(None, 0), (0, 0), (1, 1), (2, 1), (3, 2)])
def test_a_request_without_all_its_vectors_is_told_so(done: int | None, completed: int) -> None:
    vectors = None if done is None else np.zeros((done, 2), "<f4")
    found = vector_results(
        planned("a", ["b", "c"]), vectors, batch="batch_1", unfinished=ApiError("late", reason="batch_expired")
    )  # fmt: skip
    assert (found.completed, found.failed) == (completed, 2 - completed)
    for one in found.errors.splitlines():
        assert json.loads(one)["error"]["code"] == "batch_expired"


def test_an_encoder_and_a_decoder_make_jobs_of_vectors(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="extra models IS NOT INSTALLED: NO TEXTS READ")
    (tmp_path / "bert").mkdir()
    write_encoder(tmp_path / "bert")
    for name, model in (("encoder", tmp_path / "bert"), ("decoder", write_model(tmp_path / "tiny"))):
        (tmp_path / name).mkdir()
        ModelFile(name, model).check()
        store, maker = made(tmp_path / name, model)
        lines = [
            {
                "custom_id": "a",
                "method": "POST",
                "url": EMBEDDINGS,
                "body": {"model": "tiny", "input": ["a", "b c"]},
            }
        ]
        file = store.add_file("\n".join(map(json.dumps, lines)).encode(), "b.jsonl", "batch", 1)
        job = JobRecord(new_id(BATCH), BATCH, 1, {"endpoint": EMBEDDINGS}, "validating", "tiny", file.id, 0)
        asked = maker.plan(job)
        assert isinstance(asked, VectorBatch) and len(asked.rows) == 2
        spec = maker.make(job).spec
        assert (spec.kind, spec.dataset.rows) == ("embed", 2)
    with pytest.raises(ConfigError):
        ModelFile("none", tmp_path / "nothing").check()
