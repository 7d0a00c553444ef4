"""Arrays and steps in a file: which tasks they are, in which order, and the line of what is wrong."""

from __future__ import annotations

import pytest

from tasks.requests.arrays import MEMBERS_MAX
from tasks.requests.errors import RequestInvalid
from tasks.requests.generating import GeneratingRequest
from tasks.requests.reading import kind_of, read_file, request_of_member
from tasks.requests.tuning import TuningRequest

SWEEP = """kind: finetune
model: m
data: d.jsonl
lora: {alpha: 8}
matrix:
  learning_rate: [1e-4, 3e-4, 1e-3]
  lora.rank: [2, 4, 8, 16]
budget: 2.5 DKB
"""
STEPS = """budget: 3 DKB
jobs:
  tune:
    kind: finetune
    model: m
    data: d.jsonl
    budget: 2 DKB
  ask:
    kind: generate
    model: m
    data: p.jsonl
"""


def test_a_matrix_is_every_combination_in_the_order_of_the_file() -> None:
    found = read_file(SWEEP, "/jobs/sweep.yaml")
    (step,) = found.steps
    requests = [request_of_member(member) for member in step.members]
    assert not found.is_single and len(requests) == 12
    settings = [request.settings for request in requests if isinstance(request, TuningRequest)]
    assert [(one.learning_rate_nano, one.rank) for one in settings] == [
        (rate, rank) for rate in (100_000, 300_000, 1_000_000) for rank in (2, 4, 8, 16)
    ]
    assert {(one.alpha, request.model) for one, request in zip(settings, requests, strict=True)} == {
        (8, "/jobs/m")
    }
    assert step.members[5].name == "learning_rate=0.0003, lora.rank=4"
    assert found.terms.budget == 25 * 10**17


def test_steps_are_jobs_of_their_own_with_shares_of_the_budget() -> None:
    found = read_file(STEPS, "steps.yaml")
    assert [(step.name, step.budget, len(step.members)) for step in found.steps] == [
        ("tune", 2 * 10**18, 1), ("ask", None, 1),
    ]  # fmt: skip
    assert [kind_of(request_of_member(step.members[0])) for step in found.steps] == ["finetune", "generate"]
    assert isinstance(request_of_member(found.steps[1].members[0]), GeneratingRequest)
    swept = STEPS.replace("    budget: 2 DKB", "    matrix: {batch: [1, 2]}")
    assert [len(step.members) for step in read_file(swept, "f").steps] == [2, 1]


@pytest.mark.parametrize(
    ("was", "now", "why", "line"),
    [
        ("[1e-4, 3e-4, 1e-3]", "1e-4", "learning_rate: a list expected", 6),
        ("[1e-4, 3e-4, 1e-3]", "[]", "learning_rate: a list of different values", 6),
        ("[1e-4, 3e-4, 1e-3]", "[1e-4, 0.0001]", "learning_rate: a list of different values", 6),
        ("[1e-4, 3e-4, 1e-3]", "[1e-4, x]", "learning_rate: a number from 0 to 1000", 6),
        ("[2, 4, 8, 16]", "[2, 4,\n    0]", "rank: a whole number of 1 or more", 8),
        ("lora.rank:", "lora.rnak:", "lora.rnak is not a known field; did you mean lora.rank?", 7),
        ("lora.rank:", "lora.alpha:", "lora.alpha stands outside of the matrix too", 7),
        ("lora.rank:", "kind:", "kind is the same for all tasks", 7),
        ("lora.rank:", "model.rank:", "model has no fields of its own", 7),
        ("[2, 4, 8, 16]", str(list(range(1, 23))), f"{MEMBERS_MAX} tasks at most", 7),
        ("matrix:\n", "matrix: 7\nx:\n", "matrix: fields with lists expected", 5),
    ],
)
def test_what_is_wrong_in_a_matrix_has_its_line(was: str, now: str, why: str, line: int) -> None:
    assert was in SWEEP
    with pytest.raises(RequestInvalid, match=None) as caught:
        read_file(SWEEP.replace(was, now), "f")
    assert why in str(caught.value) and caught.value.line == line


@pytest.mark.parametrize(
    ("was", "now", "why", "line"),
    [
        ("budget: 3 DKB", "budget: 1 DKB", "the budgets of the jobs are 2 DKB together, the budget 1 DKB", 1),
        ("budget: 3 DKB", "kind: finetune", "kind belongs into one of the jobs", 1),
        ("  ask:", "  a b:", "the name of a job has letters", 8),
        (
            "    model: m\n    data: p.jsonl",
            "    model: m\n    data: p.jsonl\n    new_tokens: job:tune",
            "only adapter, model, data can be what a job",
            12,
        ),
        ("    data: p.jsonl", "    data: p.jsonl\n    adapter: job:later", "adapter: no job 'later' before", 12),
        ("    data: p.jsonl", "    dat: p.jsonl", "dat is not a known field; did you mean data?", 11),
        ("    data: p.jsonl", "", "data is missing", 8),
    ],
)
def test_what_is_wrong_in_steps_has_its_line(was: str, now: str, why: str, line: int) -> None:
    assert was in STEPS
    with pytest.raises(RequestInvalid) as caught:
        read_file(STEPS.replace(was, now), "f")
    assert why in str(caught.value) and caught.value.line == line
