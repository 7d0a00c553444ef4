"""Requests as rows of a job, and completions as answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from node.api.batches import TextBatch
from node.api.errors import ApiError
from node.api.lines import parse_lines
from node.api.prompting import NEW_TOKENS_USUAL, BatchPlan, Results, plan_batch, results_of
from node.api.requests import CHAT, COMPLETIONS
from tasks.models.prompts import prompts_of
from tests.node.api.test_lines import data, line

VOCABULARY = 200
END = 0


class Letters:
    """A token for each byte; 0 ends."""

    ends = frozenset({END})

    def encode(self, text: str) -> list[int]:
        return [ord(one) % VOCABULARY for one in text]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(map(chr, tokens))


def planned(*bodies: dict[str, Any], context: int = 20) -> BatchPlan:
    lines = [line(number, COMPLETIONS, **body) for number, body in enumerate(bodies)]
    found, faults = parse_lines(data(*lines), COMPLETIONS)
    assert not faults
    return plan_batch(found, Letters(), VOCABULARY, context)


def results(plan: BatchPlan, completions: list[list[int]]) -> Results:
    return results_of(
        plan, completions, Letters(), ends={END}, batch="batch_1", endpoint=COMPLETIONS, created_s=1,
        fingerprint="fp", unfinished=ApiError("late", reason="batch_expired"),
    )  # fmt: skip


def texts(made: bytes) -> list[list[tuple[str, str]]]:
    bodies = [json.loads(one)["response"]["body"] for one in made.splitlines()]
    return [[(choice["text"], choice["finish_reason"]) for choice in body["choices"]] for body in bodies]


def test_requests_with_several_prompts_and_lengths_share_one_job() -> None:
    plan = planned({"prompt": "ab", "max_tokens": 2}, {"prompt": [[99], [5, 6]], "max_tokens": 4}, {"prompt": "x"})
    assert plan.rows == ((0, (97, 98)), (1, (99,)), (1, (5, 6)), (2, (120,)))
    assert (plan.new_tokens, plan.limits) == (20, (2, 4, 20))  # one token and 20 are one above the context
    rows = [json.loads(row) for row in plan.data().splitlines()]
    assert [row["input_ids"] for row in rows] == [[97, 98], [99], [5, 6], [120]]
    assert [row["max_new_tokens"] for row in rows] == [2, 4, 4, 20]
    assert all((row["temperature"], row["top_p"]) == (1, 1) and "seed" not in row for row in rows)


def test_several_answers_to_a_prompt_are_rows_of_their_own() -> None:
    plan = planned({"prompt": ["ab", "c"], "n": 2, "max_tokens": 2}, {"prompt": "d", "max_tokens": 2})
    assert plan.rows == ((0, (97, 98)), (0, (97, 98)), (0, (99,)), (0, (99,)), (1, (100,)))
    made = results(plan, [[101], [102], [103], [104], [105]])
    assert [[text for text, _ in one] for one in texts(made.output)] == [["e", "f", "g", "h"], ["i"]]
    usage = json.loads(made.output.splitlines()[0])["response"]["body"]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (3, 4)


def test_each_request_has_its_tokens_drawn_as_it_says() -> None:
    """Answers to one prompt have seeds of their own; a greedy request has nothing to draw with (R136)."""
    first: dict[str, Any] = {"prompt": "a", "max_tokens": 2, "temperature": 0.7, "seed": 3}
    other: list[dict[str, Any]] = [
        {"temperature": 0.8}, {"temperature": 0}, {"top_p": 0.5}, {"seed": None}, {"n": 2}, {"max_tokens": 9},
        {"temperature": 1e-9},
    ]  # fmt: skip
    plan = planned({"prompt": [VOCABULARY]}, first, *({**first, **change} for change in other))
    assert [(one.refused.reason, one.refused.param) for one in plan.lines if one.refused] == [
        ("invalid_prompt", "input_ids")
    ]
    rows = [json.loads(row) for row in plan.data().splitlines()]
    told = [(row.get("temperature"), row.get("top_p"), row.get("seed"), row["max_new_tokens"]) for row in rows]
    assert told == [
        (0.7, 1, 3, 2), (0.8, 1, 3, 2), (None, None, None, 2), (0.7, 0.5, 3, 2), (0.7, 1, None, 2), (0.7, 1, 3, 2),
        (0.7, 1, "3/1", 2), (0.7, 1, 3, 9), (0, 1, 3, 2),
    ]  # fmt: skip
    assert plan.new_tokens == 9
    found = prompts_of(plan.data(), Letters(), VOCABULARY, 20)
    assert [one.own.seed for one in found][:2] == ["3", "3"] and found[6].own.seed == "3/1"


def test_what_does_not_fit_is_refused_alone() -> None:
    plan = planned({"prompt": "a" * 19, "max_tokens": 3}, {"prompt": "a" * 19, "max_tokens": 2}, {"prompt": ""})
    assert [one.refused and one.refused.reason for one in plan.lines] == [
        "context_length_exceeded", None, "invalid_prompt"
    ]  # fmt: skip
    crowded = planned({"prompt": "a" * 19, "max_tokens": 2}, {"prompt": "a", "max_tokens": 9})
    assert [one.refused is None for one in crowded.lines] == [True, True]
    assert crowded.limits == (2, 9)
    usual = planned({"prompt": "a"}, context=5_000)
    assert usual.new_tokens == NEW_TOKENS_USUAL


def test_tokens_outside_of_the_vocabulary_are_refused() -> None:
    plan = planned({"prompt": [VOCABULARY], "max_tokens": 1})
    assert plan.lines[0].refused is not None and not plan.rows


def test_answers_end_at_ends_stops_and_limits() -> None:
    plan = planned(
        {"prompt": "a", "max_tokens": 3}, {"prompt": "a", "max_tokens": 5},
        {"prompt": "a", "max_tokens": 5, "stop": "c"}, {"prompt": ["a", "b"], "max_tokens": 5},
    )  # fmt: skip
    done = [[98, 99, 100, END], [98, END], [98, 99, 100], [98], [99, 100]]
    made = results(plan, done)
    assert texts(made.output) == [
        [("bcd", "length")], [("b", "stop")], [("b", "stop")], [("b", "length"), ("cd", "length")]
    ]  # fmt: skip
    assert (made.completed, made.failed, made.prompt_tokens, made.new_tokens) == (4, 0, 5, 3 + 2 + 3 + 3)


def test_requests_that_were_not_done_are_told_as_errors() -> None:
    plan = planned({"prompt": "a", "max_tokens": 3}, {"prompt": ["a", "b"], "max_tokens": 3}, {"logprobs": 3})
    made = results(plan, [[98], [98]])
    assert (made.completed, made.failed) == (1, 2)
    late, refused = (json.loads(one) for one in made.errors.splitlines())
    assert (late["custom_id"], late["error"]["code"], late["response"]) == ("r1", "batch_expired", None)
    assert (refused["custom_id"], refused["response"]["body"]["error"]["param"]) == ("r2", "logprobs")


def test_answers_of_a_task_that_was_made_of_other_rows_are_given_to_nobody() -> None:
    """An earlier version refused requests that are done now, and its tasks have no rows for them."""
    batch = TextBatch(planned({"prompt": "a"}, {"prompt": "b", "temperature": 0}), Letters(), COMPLETIONS)
    for rows, done in ((2, 2), (1, 0)):
        part = SimpleNamespace(dataset=SimpleNamespace(rows=rows))
        found: Any = SimpleNamespace(spec=SimpleNamespace(part=part), completions=lambda: [[98], [99]])
        made = batch.results(
            found, batch="b", created_s=1, fingerprint="fp", unfinished=ApiError("late", reason="batch_failed")
        )
        assert (made.completed, made.failed) == (done, 2 - done)


def test_a_chat_is_rendered_once() -> None:
    found, _ = parse_lines(data(line(url=CHAT)), CHAT)
    plan = plan_batch(found, Letters(), VOCABULARY, 500)
    text = Letters().decode(plan.rows[0][1])
    assert text == "<|im_start|>user\nwhy?<|im_end|>\n<|im_start|>assistant\n"
