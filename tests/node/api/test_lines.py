"""Lines of batches: what is refused, where it is told, and what a result says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from node.api.errors import ApiError
from node.api.lines import GREEDY, Answer, Drawing, check_lines, cut, error_line, output_line, parse_lines
from node.api.requests import CHAT, COMPLETIONS
from tasks.programs.operators.scalars import NANO

QUESTION = [{"role": "user", "content": "why?"}]


def line(number: int = 1, url: str = CHAT, **body: Any) -> dict[str, Any]:
    prompt = {"messages": QUESTION} if url == CHAT else {"prompt": "why?"}
    return {"custom_id": f"r{number}", "method": "POST", "url": url, "body": {"model": "m", **prompt, **body}}


def data(*lines: Any) -> bytes:
    return b"\n".join(one if isinstance(one, bytes) else json.dumps(one).encode() for one in lines)


def refusal(url: str = CHAT, **body: Any) -> ApiError:
    [found], faults = parse_lines(data(line(url=url, **body)), url)
    assert not faults
    assert found.refused is not None
    return found.refused


def test_a_broken_line_is_named_by_its_number() -> None:
    rows = [data(line(number)) for number in range(1, 17)]
    broken = data(*rows, b'{"custom_id": ', *rows)
    _, faults = parse_lines(broken, CHAT)
    assert (faults[0].reason, faults[0].line) == ("invalid_json_line", 17)
    with pytest.raises(ApiError, match="line 17") as refused:
        check_lines(broken)
    assert (refused.value.status, refused.value.reason) == (400, "invalid_jsonl")
    assert check_lines(data(*rows)) == 16


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"custom_id": None}, "missing_required_parameter"),
        ({"custom_id": "r1"}, "duplicate_custom_id"),
        ({"method": "GET"}, "invalid_method"),
        ({"url": COMPLETIONS}, "invalid_url"),
        ({"body": None}, "missing_required_parameter"),
        ({"body": []}, "invalid_value"),
        ({"body": {"messages": QUESTION}}, "missing_required_parameter"),
        ({"extra": 1}, "unknown_parameter"),
        ({"custom_id": "\ud800"}, "invalid_value"),
        ({"\ud800": 1}, "unknown_parameter"),
        ({"body": {"model": "other", "messages": QUESTION}}, "mismatched_model"),
    ],
)
def test_a_line_that_is_no_request_fails_the_batch(change: dict[str, Any], reason: str) -> None:
    found, faults = parse_lines(data(line(1), {**line(2), **change}), CHAT)
    assert not found
    assert [(fault.reason, fault.line) for fault in faults] == [(reason, 2)]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"logprobs": True}, "logprobs"),
        ({"top_logprobs": 5}, "top_logprobs"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"frequency_penalty": 1}, "frequency_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"stream": True}, "stream"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
         "messages[0].content[0]"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "x", "name": "y"}]}, "messages[0].name"),
    ],
    ids=str,
)  # fmt: skip
def test_what_no_job_does_is_a_typed_error_of_its_request(body: dict[str, Any], param: str) -> None:
    error = refusal(**body)
    assert (error.status, error.reason, error.param) == (400, "unsupported_parameter", param)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"bogus": 1}, "unknown_parameter"),
        ({"max_tokens": 0}, "invalid_value"),
        ({"max_tokens": True}, "invalid_value"),
        ({"max_tokens": 4, "max_completion_tokens": 5}, "invalid_value"),
        ({"messages": []}, "invalid_value"),
        ({"messages": None}, "missing_required_parameter"),
        ({"messages": [{"role": "oracle", "content": "x"}]}, "invalid_value"),
        ({"messages": [{"role": "user"}]}, "missing_required_parameter"),
        ({"stop": ["a"] * 5}, "invalid_value"),
        ({"stop": [""]}, "invalid_value"),
        ({"top_p": 2}, "invalid_value"),
        ({"top_p": -0.1}, "invalid_value"),
        ({"temperature": 2.1}, "invalid_value"),
        ({"temperature": -1}, "invalid_value"),
        ({"temperature": "0.7"}, "invalid_value"),
        ({"temperature": True}, "invalid_value"),
        ({"seed": 0.5}, "invalid_value"),
        ({"seed": 2**63}, "invalid_value"),
        ({"n": 0}, "invalid_value"),
        ({"n": 129}, "invalid_value"),
        ({"top_k": 40}, "unknown_parameter"),
    ],
    ids=str,
)
def test_values_that_the_format_refuses(body: dict[str, Any], reason: str) -> None:
    assert refusal(**body).reason == reason


@pytest.mark.parametrize(
    ("body", "drawing"),
    [
        ({}, Drawing(NANO, NANO)), ({"temperature": None, "top_p": None, "seed": None}, Drawing(NANO, NANO)),
        ({"temperature": 0.7, "top_p": 0.9, "seed": -5}, Drawing(7 * NANO // 10, 9 * NANO // 10, -5)),
        ({"temperature": 2, "top_p": 0}, Drawing(2 * NANO, 0)), ({"temperature": 1 / 3}, Drawing(333_333_333)),
        ({"temperature": 0, "top_p": 0.5, "seed": 7}, GREEDY), ({"temperature": 1e-12}, GREEDY),
    ],
    ids=str,
)  # fmt: skip
def test_tokens_are_drawn_with_the_defaults_of_the_format(body: dict[str, Any], drawing: Drawing) -> None:
    [found], faults = parse_lines(data(line(**body)), CHAT)
    assert (faults, found.refused, found.drawing, found.copies) == ([], None, drawing, 1)


def test_answers_to_one_prompt_are_counted_over_all_prompts() -> None:
    [found], _ = parse_lines(data(line(n=4)), CHAT)
    assert found.copies == 4
    [found], _ = parse_lines(data(line(url=COMPLETIONS, prompt=["a", "b"], n=64, best_of=64)), COMPLETIONS)
    assert (len(found.prompts), found.copies) == (2, 64)
    assert refusal(COMPLETIONS, prompt=["a", "b"], n=65).param == "n"
    assert refusal(COMPLETIONS, prompt="a", n=2, best_of=3).param == "best_of"


def test_completions_take_texts_and_tokens_and_nothing_is_echoed() -> None:
    for prompt, rows in (
        ("a", [{"prompt": "a"}]),
        (["a", "b"], [{"prompt": "a"}, {"prompt": "b"}]),
        ([1, 2], [{"input_ids": [1, 2]}]),
        ([[1], [2, 3]], [{"input_ids": [1]}, {"input_ids": [2, 3]}]),
    ):
        [found], _ = parse_lines(data(line(url=COMPLETIONS, prompt=prompt)), COMPLETIONS)
        assert list(found.prompts) == rows
    for body, param in (({"echo": True}, "echo"), ({"best_of": 2}, "best_of"), ({"logprobs": 1}, "logprobs")):
        assert refusal(COMPLETIONS, **body).param == param
    wrong: list[Any] = [[], [[]], [1, "a"], {"a": 1}, 5]
    for one in wrong:
        assert refusal(COMPLETIONS, prompt=one).reason == "invalid_value"


def test_neutral_values_and_parts_of_text_are_taken() -> None:
    parts = [{"role": "developer", "content": "be short"}, {"role": "user", "content": [
        {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]  # fmt: skip
    body: dict[str, Any] = {
        "messages": parts, "n": 1, "temperature": 0, "top_p": 0.9, "stream": False, "logprobs": None, "seed": 5,
        "tools": [], "response_format": {"type": "text"}, "stop": "\n", "max_completion_tokens": 9, "user": "me",
    }  # fmt: skip
    [found], faults = parse_lines(data(line(**body)), CHAT)
    assert (faults, found.refused, found.new_tokens, found.stops) == ([], None, 9, ("\n",))
    assert found.prompts[0] == {
        "messages": [{"role": "system", "content": "be short"}, {"role": "user", "content": "ab"}]
    }


def test_a_text_ends_before_the_first_stop() -> None:
    assert cut("one two three", ("three", "two")) == ("one ", True)
    assert cut("one", ("two",)) == ("one", False)


def test_results_have_the_form_that_clients_read() -> None:
    told = [Answer("x", True, 3, 2), Answer("y", False, 4, 5)]
    made = json.loads(
        output_line(7, "r7", "m", CHAT, told, batch="batch_1", created_s=9, fingerprint="fp_1")
    )  # fmt: skip
    assert made["custom_id"] == "r7" and made["error"] is None and made["response"]["status_code"] == 200
    body = made["response"]["body"]
    assert body["usage"] == {"prompt_tokens": 7, "completion_tokens": 7, "total_tokens": 14}
    assert [one["finish_reason"] for one in body["choices"]] == ["stop", "length"]
    refused = json.loads(error_line(8, "r8", ApiError("no", reason="why"), batch="batch_1"))
    assert refused["response"]["status_code"] == 400
    assert refused["response"]["body"]["error"]["code"] == "why"
    late = json.loads(error_line(8, "r8", ApiError("late", reason="batch_expired"), batch="b", was_asked=False))
    assert late["response"] is None and late["error"]["code"] == "batch_expired"
