"""How long functions, files and classes are, in code lines: no comments, blank lines or docstrings."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from tests.house.imports import PACKAGES, ROOT

FUNCTION_LINES_MAX: Final = 100
FILE_LINES_MAX: Final = 800
METHODS_MAX: Final = 40
_NO_CODE: Final = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


class Size(NamedTuple):
    """One function, file or class; ``name`` is ``path:name`` and ``lines`` its size (methods for a class)."""

    name: str
    lines: int


@cache
def _measure() -> dict[str, list[Size]]:
    sizes: dict[str, list[Size]] = {"function": [], "file": [], "class": []}
    for path in sources():
        text = path.read_text()
        name = str(path.relative_to(ROOT))
        tree = ast.parse(text)
        code = code_lines(text, tree)
        sizes["file"].append(Size(name, len(code)))
        for node, called in _definitions(tree, name + ":"):
            if isinstance(node, ast.ClassDef):
                methods = [
                    member for member in node.body if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef)
                ]
                sizes["class"].append(Size(called, len(methods)))
            else:
                lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                sizes["function"].append(Size(called, sum(line in code for line in lines)))
    return {kind: sorted(found, key=lambda size: -size.lines) for kind, found in sizes.items()}


def sources() -> list[Path]:
    """Return the Python files of the product (not of its tests)."""
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def longest(kind: str) -> list[Size]:
    """Return all functions, files or classes, the longest first."""
    return _measure()[kind]


def _definitions(
    tree: ast.AST, prefix: str
) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, str]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node, prefix + node.name
            yield from _definitions(node, prefix + node.name + ".")
        else:
            yield from _definitions(node, prefix)


def code_lines(text: str, tree: ast.AST) -> set[int]:
    docstrings: set[int] = set()
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            docstrings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE and token.type != tokenize.ENDMARKER:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines - docstrings
