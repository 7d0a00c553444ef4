"""YAML: one meaning for each text, the line of each field, bounds; what other readers would silently change."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.requests.errors import RequestInvalid
from tasks.requests.yaml_text import BYTES_MAX, DEPTH_MAX, NODES_MAX, read_yaml

HASH = "0x" + "0a" * 32
SIGNS = st.characters(exclude_categories=["Cs", "Cc"])
VALUES = st.recursive(
    st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=12,
)


def refused(text: str) -> RequestInvalid:
    with pytest.raises(RequestInvalid) as caught:
        read_yaml(text, "job.yaml")
    return caught.value


@given(st.dictionaries(st.sampled_from(["kind", "model", "steps"]), VALUES, min_size=1))
def test_json_is_read_as_what_it_is(values: dict[str, object]) -> None:
    assert read_yaml(json.dumps(values, ensure_ascii=False), "job.yaml").values == values


@given(st.text(max_size=80) | st.text("a: -[]{}&*!|>\n'\"#%@,?<\t", max_size=80))
def test_any_text_is_fields_or_one_error(text: str) -> None:
    try:
        found = read_yaml(text, "job.yaml")
    except RequestInvalid as error:
        assert error.line is None or 1 <= error.line <= text.count("\n") + 2
    else:
        assert found.values and all(type(name) is str for name in found.values)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2e-4", 2e-4), ("1e3", 1000.0), ("0.1", 0.1), ("-7", -7), ("0", 0), ("true", True), ("false", False),
        ("2.5 DKB", "2.5 DKB"), ("'no'", "no"), ('"010"', "010"), ("models/no", "models/no"), ("1.5b", "1.5b"),
        ("2026-01-01", "2026-01-01"), (HASH, HASH), (f"task:{HASH}", f"task:{HASH}"), ("12e", "12e"),
        ("[q, k]", ["q", "k"]), ("{rank: 8}", {"rank": 8}), ("|\n  two\n  lines\n", "two\nlines\n"),
    ],
)  # fmt: skip
def test_a_text_has_the_value_that_a_person_reads(text: str, value: object) -> None:
    found = read_yaml(f"a: {text}", "job.yaml").values["a"]
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    "text",
    ["no", "Yes", "on", "OFF", "y", "N", "True", "FALSE", "010", "0o17", "0x1F", "0b11", "1:30", "190:20:30.15",
     "1_000", ".5", "5.", ".inf", "-.INF", ".NaN", "08"],
)  # fmt: skip
def test_what_readers_of_yaml_understand_differently_is_refused(text: str) -> None:
    error = refused(f"kind: finetune\na: {text}")
    assert "two meanings" in str(error) and error.line == 2


@pytest.mark.parametrize(
    ("text", "why", "line"),
    [
        ("a: 1\nb: 2\na: 3", "a is there twice, first in line 1", 3),
        ("l: {a: 1, 'a': 2}", "a is there twice", 1),
        ("a: &x [1]\nb: *x", "no anchors and aliases", 1),
        ("a: 1\nb: *x", "no anchors and aliases", 2),
        ("&x a: 1", "the name of a field is a text", 1),
        ("a: !!python/object/apply:os.system [ls]", "no tags", 1),
        ("a: 1\nb: !!int '3'", "no tags", 2),
        ("a: ! x", "no tags", 1),
        ("a: {<<: {b: 1}}", "no merging", 1),
        ("? [a, b]\n: 1", "the name of a field is a text", 1),
        ("%YAML 1.1\n---\na: 1", "no directives", 1),
        ("a: 1\n---\nb: 2", "a second document begins here", 2),
        ("- a\n- b", "fields expected", 1),
        ("a", "fields expected", 1),
        ("a:\nb: 1", "a field without a value", 1),
        ("a: ~", "a field without a value", 1),
        ("a: b: c", "not valid YAML", 1),
        ("a:\n\t- 1", "not valid YAML", 2),
        ("a: 1\n b: 2", "not valid YAML", 2),
        ("a: \x07", "a control character", 1),
        ('a: "\\ud800"', "half a character", 1),
        ('"\\udc00": 1', "half a character", 1),
        ("'': 1", "the name of a field has 1 to", 1),
        (f"a: {'9' * 41}", "a number of more than 40", 1),
        ("a: " + "[" * (DEPTH_MAX + 1) + "]" * (DEPTH_MAX + 1), f"nested deeper than {DEPTH_MAX}", 1),
        ("a: [" + "1," * NODES_MAX + "]", f"more than {NODES_MAX} fields", 1),
    ],
)
def test_constructs_that_surprise_are_refused_with_their_line(text: str, why: str, line: int) -> None:
    error = refused(text)
    assert why in str(error) and error.line == line


def test_sizes_are_bounded_and_a_bomb_of_brackets_is_cheap() -> None:
    assert "too large" in str(refused("# " + "x" * BYTES_MAX))
    assert "nested deeper" in str(refused("a: " + "[" * (BYTES_MAX - 10)))
    assert "no field" in str(refused("# nothing\n"))


def test_each_field_and_item_has_its_line() -> None:
    lines = read_yaml("a: 1\nb:\n  c: [1,\n    2]\n", "job.yaml").lines
    assert (lines[("a",)], lines[("b",)], lines[("b", "c")], lines[("b", "c", 1)]) == (1, 2, 3, 4)
