from __future__ import annotations

import json

import pytest

from tasks.models.strict_json import DEPTH_MAX, JsonFault, read_object


def nested(depth: int) -> str:
    return '{"a":' + "[" * (depth - 1) + "]" * (depth - 1) + "}"


def test_what_is_nested_too_deeply_is_refused_before_it_is_parsed() -> None:
    assert read_object(nested(DEPTH_MAX))
    with pytest.raises(JsonFault, match="levels deep"):
        read_object(nested(DEPTH_MAX + 1))
    with pytest.raises(JsonFault, match="levels deep"):
        read_object('{"a":' * 1_000_000)


def test_brackets_in_strings_nest_nothing() -> None:
    value = {'"\\[' * 3: ["{[" * 100, "\\", '"', {"[[": "]" * 1000}]}
    assert read_object(json.dumps(value)) == value


@pytest.mark.parametrize("text", ['"' * 1_000_000, '"' + '\\"' * 500_000, '{"' + "\\" * 1_000_001])
def test_strings_that_do_not_end_take_no_longer_than_their_length(text: str) -> None:
    with pytest.raises(JsonFault):
        read_object(text)  # by the square of the length it would not end
