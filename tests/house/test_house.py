"""The rules of the house find what they look for."""

from __future__ import annotations

import ast
from itertools import pairwise

import pytest

from tests.house import __main__ as house
from tests.house import citations, exceptions, imports, prose, sizes


def test_sentences_are_counted_without_code_tables_and_headings() -> None:
    text = (
        "# A heading of five words\n\nOne two three. Four five six seven!\n\n"
        "```\na b c d\n```\n| a b c | d |\n- `x y z` is one word\n"
    )
    assert prose.sentences(text) == ["One two three.", "Four five six seven!", "code is one word"]
    assert prose.lengths([text]) == prose.Lengths(sentences=3, median=4, p90=4)


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("(consensus.md 3.2)", ["3.2"]),
        ("market.md, section 6)", ["6"]),
        ("rpc.md 4 and 5", ["4", "5"]),
        ("consensus.md R3 to R5.", ["R3", "R5"]),
        ("network.md 6.1, 6.2: frames", ["6.1", "6.2"]),
        ("README.md says so", []),
    ],
)
def test_citations_are_found(text: str, places: list[str]) -> None:
    assert [place for _, place in citations.places(text)] == places


def test_code_lines_leave_out_comments_and_docstrings() -> None:
    text = '"""Says\nmuch."""\n\n# nothing\nx = (1,\n     2)\n\n\n'
    text += 'def f() -> None:\n    """Doc."""\n    return None  # why\n'
    assert sizes.code_lines(text, ast.parse(text)) == {5, 6, 9, 11}


def test_every_circle_that_is_found_is_one() -> None:
    for circle in imports.circles():
        for module in circle:
            assert any(target in circle for target in imports.own_imports(module))


def test_the_way_to_what_is_not_pure_is_one_of_imports() -> None:
    ways = imports.impure()
    assert ways
    for way in ways.values():
        for importer, imported in pairwise(way.split(" -> ")):
            assert imports.graph().direct_import_exists(importer=importer, imported=imported)


def test_an_exception_needs_a_reason_and_a_use() -> None:
    for table in (exceptions.LONG_FUNCTIONS, exceptions.LONG_FILES, exceptions.LARGE_CLASSES, exceptions.IMPURE):
        assert all(reason.strip() for reason in table.values())
    assert house.without_excuse("long", {"a.b": "9 > 8"}, {"c": "why"}) == [
        "long: a.b: 9 > 8",
        "long: the exception c is no longer needed",
    ]
    assert house.without_excuse("long", {"a.b": "9 > 8"}, {"a.*": "why"}) == []
