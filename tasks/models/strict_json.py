"""JSON from strangers: one object, no name twice, no number that JSON does not have."""

from __future__ import annotations

import json
import re
from typing import Any, Final

__all__ = ["DEPTH_MAX", "JsonFault", "read_object"]

DEPTH_MAX: Final = 64
"""Levels of objects and lists. The library's parser recurses in C: where another library has raised the
process's limit of recursion, a deeper text would end the process."""
_NESTING: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)
"""A string as a whole, closed or not, or a bracket. It never goes back, so a text takes time by its length."""


class JsonFault(ValueError):
    """What is wrong with a text; ``column`` is where, as far as it is one place."""

    def __init__(self, text: str, line: int | None = None, column: int | None = None) -> None:
        super().__init__(text)
        self.line, self.column = line, column


def read_object(text: str) -> dict[str, Any]:
    """Return the one JSON object of a text. Raises JsonFault."""
    _check_depth(text)
    try:
        found = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_no_twins)
    except json.JSONDecodeError as error:
        raise JsonFault(f"not valid JSON: {error.msg}", error.lineno, error.colno) from None
    except (ValueError, RecursionError) as error:
        raise JsonFault(f"not valid JSON: {str(error)[:80]}") from None
    if not isinstance(found, dict):
        raise JsonFault(f"a JSON object expected, not {type(found).__name__}", 1, 1)
    return found


def _check_depth(text: str) -> None:
    depth = 0
    for found in _NESTING.finditer(text):
        mark = text[found.start()]
        if mark in "[{":
            depth += 1
            if depth > DEPTH_MAX:
                raise JsonFault(f"not valid JSON here: nested more than {DEPTH_MAX} levels deep")
        elif mark in "]}":
            depth -= 1


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("duplicate name in an object")
    return found
