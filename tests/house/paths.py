"""Paths and links in the documents: each names a file, and each anchor a heading of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from tests.house.imports import ROOT

READERS_DOCUMENTS: Final = ("ARCHITECTURE.md", "docs/reading.md")
"""Those that lead readers through the code."""
_PATH: Final = re.compile(
    r"`((?:state|billing|tasks|consensus|p2p|relay|rpc|node|testnet|tests|docs)(?:/[\w.-]+)*)`"
)
_MODULE: Final = re.compile(r"`((?:state|billing|tasks|consensus|p2p|relay|rpc|node|testnet|tests)(?:\.\w+)+)`")
_NAME: Final = re.compile(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)`")
_LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
_CODE: Final = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def paths(text: str) -> list[str]:
    """Return the paths from the root of the tree that stand between backticks."""
    return _PATH.findall(text)


def links(text: str) -> list[str]:
    """Return the targets of the links to files and headings of this tree."""
    return [target for target in _LINK.findall(_CODE.sub("", text)) if "://" not in target]


def anchors(text: str) -> set[str]:
    """Return the anchors of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", _CODE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def documents() -> list[Path]:
    """Return all documents."""
    return [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").rglob("*.md"))]


def missing_paths() -> list[str]:
    """Return, with its document, each named path and module that does not exist."""
    found = []
    for document in documents():
        text = document.read_text()
        names = [path for path in paths(text) if not (ROOT / path).exists()]
        names += [name for name in _MODULE.findall(text) if not is_module_or_option(name)]
        found += [f"{document.relative_to(ROOT)}: {name}" for name in names]
    return found


def is_module_or_option(dotted: str) -> bool:
    """Tell whether a dotted name is that of a module or of something in one, or none of this tree.

    ``p2p.listen`` is an option: only a name whose first two parts are a module is one of code.
    """
    parts = dotted.split(".")
    if not _source(parts[:2]):
        return True
    for count in range(len(parts), 1, -1):
        if source := _source(parts[:count]):
            return all(re.search(rf"\b{name}\b", source[0]) for name in parts[count:])
    return False


def _source(parts: list[str]) -> tuple[str] | None:
    place = ROOT.joinpath(*parts)
    for file in (place.with_suffix(".py"), place / "__init__.py"):
        if file.exists():
            return (file.read_text(),)
    return None


def names(text: str) -> list[str]:
    """Return the names of code that stand between backticks: the last part of each dotted name."""
    return [name.rpartition(".")[2] for name in _NAME.findall(text) if not (ROOT / name).exists()]


def missing_names(document: str) -> list[str]:
    """Return the names of code in a document that no file named in the same section contains."""
    found = []
    for section in re.split(r"^## ", (ROOT / document).read_text(), flags=re.MULTILINE)[1:]:
        files = [ROOT / path for path in paths(section) if (ROOT / path).is_file()]
        words = {word for file in files for word in re.findall(r"\w+", file.read_text())}
        found += [f"{section.splitlines()[0]}: {name}" for name in names(section) if name not in words]
    return found


def missing_links() -> list[str]:
    """Return, with its document, each link whose file or heading does not exist."""
    return [
        f"{document.relative_to(ROOT)}: {target}"
        for document in documents()
        for target in links(document.read_text())
        if not _leads_somewhere(document, target)
    ]


def _leads_somewhere(document: Path, target: str) -> bool:
    path, _, anchor = target.partition("#")
    file = document.parent / path if path else document
    if not file.exists():
        return False
    return not anchor or (file.suffix == ".md" and anchor in anchors(file.read_text()))
