"""Which blocks of the product an input runs: a mark at the head of each, set once and cheap to look at.

``watch`` must be called before the product is imported. Its modules are then compiled from their sources with an
assignment at the head of every function, branch and handler, and behind every statement that has branches: some
20 ns each time one is run, where a tracing function takes 500 for every line.
"""

from __future__ import annotations

import ast
import builtins
import sys
from bisect import bisect_right
from collections.abc import Sequence
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

PACKAGES: Final = ("state", "billing", "tasks", "consensus", "p2p", "relay", "rpc", "node", "testnet")
MARKS: Final = bytearray()
"""A byte for each block that was compiled: 1 once it has run. Whoever counts clears it."""
ROOT: Final = Path(__file__).parents[2]
_FIRST: Final[list[int]] = []
"""The first mark of each module, in the order in which they were compiled ..."""
_FILES: Final[list[str]] = []
"""... and the module's file, from the root on."""
_NAME: Final = "__fuzz_marks__"
_BRANCHING: Final = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.Match, ast.With, ast.AsyncWith)


def compile_marked(source: str | bytes, path: str) -> CodeType:
    """Return the code of a module with marks in it; lines and what it does stay as they are."""
    tree = ast.parse(source, path)
    _Marker().visit(tree)
    return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


def watch() -> None:
    """Mark every module of the product that is imported from now on."""
    already = sorted(name for name in sys.modules if name.partition(".")[0] in PACKAGES)
    assert not already, f"imported before its blocks could be marked: {already[:3]}"
    setattr(builtins, _NAME, MARKS)
    sys.meta_path.insert(0, _Finder())


def files_run() -> set[str]:
    """Return the files of the product of which a block has run since the marks were cleared."""
    found, at = set[str](), MARKS.find(1)
    while at >= 0:
        number = bisect_right(_FIRST, at)
        found.add(_FILES[number - 1])
        at = MARKS.find(1, _FIRST[number]) if number < len(_FIRST) else -1
    return found


@cache
def imported_by(file: str) -> frozenset[str]:
    """Return the files of the product that a file names in its imports: its constants come from there."""
    modules = set[str]()
    for node in ast.walk(ast.parse((ROOT / file).read_bytes())):
        match node:
            case ast.ImportFrom(module=str(module), names=names, level=0):
                modules |= {module, *(f"{module}.{alias.name}" for alias in names)}
            case ast.Import(names=names):
                modules |= {alias.name for alias in names}
            case _:
                pass
    paths = {f"{module.replace('.', '/')}.py" for module in modules if module.partition(".")[0] in PACKAGES}
    return frozenset(path for path in paths if (ROOT / path).is_file())


class _Marker(ast.NodeTransformer):
    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        is_told = isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant)
        told, body = (node.body[:1], node.body[1:]) if is_told else ([], node.body)
        node.body = [*told, *_Blocks().block(body, node.body[-1])]
        return node


class _Blocks(ast.NodeTransformer):
    """Marks the blocks within a function."""

    def block(self, body: Sequence[ast.stmt], at: ast.stmt) -> list[ast.stmt]:
        """Return the statements with marks between them."""
        out = [_mark(body[0] if body else at)]
        for number, statement in enumerate(body):
            out.append(self.visit(statement))
            if isinstance(statement, _BRANCHING) and number + 1 < len(body):
                out.append(_mark(body[number + 1]))
        return out

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for field in ("body", "orelse", "finalbody"):
            body: Any = getattr(node, field, None)
            if body and isinstance(body, list):
                setattr(node, field, self.block(body, body[0]))
        for child in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            child.body = self.block(child.body, child.body[0])
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return _Marker().visit(node)  # type: ignore[no-any-return]

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return _Marker().visit(node)  # type: ignore[no-any-return]

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return _Marker().visit(node)  # type: ignore[no-any-return]


def _mark(before: ast.stmt) -> ast.stmt:
    number = len(MARKS)
    MARKS.append(0)
    place = ast.Subscript(ast.Name(_NAME, ast.Load()), ast.Constant(number), ast.Store())
    return ast.copy_location(ast.Assign([place], ast.Constant(1)), before)


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        _FIRST.append(len(MARKS))
        _FILES.append(str(Path(path).relative_to(ROOT)))
        return compile_marked(self.get_data(path), path)


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in PACKAGES:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(fullname, spec.loader.path)
        return spec
