"""Changes reach the parts of an input, and what is around a part goes on to be right."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from random import Random
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz import marks
from tests.fuzz.mutate import mutate
from tests.fuzz.structure import Kind, structure_of

VALUES = st.recursive(
    st.none() | st.integers(-(2**70), 2**70) | st.binary(max_size=40) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=5),
    max_leaves=20,
)


@given(VALUES)
def test_every_item_of_cbor_is_found_where_it_lies(value: Any) -> None:
    data = cbor2.dumps([value, 0])
    levels = structure_of(data)
    ((top,), *_) = levels
    assert (top.start, top.end) == (0, len(data))
    for level in levels:
        for item in level:
            assert data[item.start : item.end] == cbor2.dumps(cbor2.loads(data[item.start : item.end]))


@pytest.mark.slow
@given(st.recursive(st.none() | st.integers() | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v)))
def test_every_value_of_json_is_found_where_it_lies(value: Any) -> None:
    data = json.dumps([value], indent=1).encode()
    ((top,), *_) = structure_of(data)
    assert (top.kind, top.start, top.end) == (Kind.JSON_ARRAY, 0, len(data))
    for level in structure_of(data):
        for item in level:
            json.loads(data[item.start : item.end])


@given(st.binary(max_size=200))
def test_any_bytes_have_a_structure_or_none(data: bytes) -> None:
    for level in structure_of(data):
        for item in level:
            assert 0 <= item.start <= item.content <= item.end <= len(data)


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def unframed(data: bytes) -> Any:
    assert len(data) == 4 + int.from_bytes(data[:4], "big")
    return cbor2.loads(data[4:])


INNER = cbor2.dumps([1, b"x" * 20, [2, 3]])


@pytest.mark.parametrize(
    ("data", "read"),
    [
        (cbor2.dumps([7, b"y" * 30, [INNER, b"\x02" + INNER]]), cbor2.loads),
        (framed(cbor2.dumps([7, INNER])), unframed),
        (json.dumps({"a": [1, {"b": None}], "c": "text"}).encode(), json.loads),
        (b'a = 5\n[b]\nc = "text"\nd = ["e"]\n', lambda data: tomllib.loads(data.decode())),
    ],
    ids=["cbor", "frame", "json", "toml"],
)
def test_many_changes_pass_the_first_gate(data: bytes, read: Callable[[bytes], Any]) -> None:
    random, passed = Random(1), set()
    for _ in range(2_000):
        changed = mutate(random, data, [data])
        try:
            read(changed)
        except Exception:
            continue
        passed.add(changed)
    assert len(passed) > 150


def test_the_length_around_a_changed_item_is_right() -> None:
    random, reached = Random(1), set()
    data = cbor2.dumps([9, cbor2.dumps([8, INNER])])
    for _ in range(5_000):
        try:
            outer, middle = cbor2.loads(mutate(random, data, [data]))
            eight, inner = cbor2.loads(middle)
            found = cbor2.loads(inner)
        except Exception:
            continue
        if (outer, eight) == (9, 8) and inner != INNER:
            reached.add(len(found) if isinstance(found, list) else -1)
    assert {2, 3, 4} <= reached


def test_the_same_seed_makes_the_same_changes() -> None:
    data = cbor2.dumps([1, b"x", [2]])
    one, other = ([mutate(random, data, [INNER]) for _ in range(500)] for random in (Random(7), Random(7)))
    assert one == other


SOURCE = '''
def f(x):
    """Told."""
    if x > 5:
        return "more"
    elif x == 3:
        y = "three"
    else:
        y = "less"
    for _ in range(x):
        try:
            int("no")
        except ValueError:
            y += "!"
    match x:
        case 1:
            return "one"
        case _:
            pass
    return y
'''


def test_a_block_is_marked_when_it_runs_and_nothing_else_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "MARKS", bytearray())
    plain: dict[str, Any] = {}
    marked: dict[str, Any] = {"__fuzz_marks__": marks.MARKS}
    exec(SOURCE, plain)
    exec(marks.compile_marked(SOURCE, "f.py"), marked)
    assert marked["f"].__doc__ == "Told."
    seen = []
    for x in (0, 0, 1, 2, 3, 6, 6):
        before = bytes(marks.MARKS)
        assert marked["f"](x) == plain["f"](x)
        seen.append(before != marks.MARKS)
    assert seen == [True, False, True, False, True, True, False]
    assert all(marks.MARKS)
    of_marked, of_plain = ({line for *_, line in code["f"].__code__.co_lines()} for code in (marked, plain))
    assert of_marked - {None} == of_plain - {None}
