"""Citations of the specification: each names a document in docs/spec and a heading or rule that stands there."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from tests.house.imports import ROOT
from tests.house.sizes import sources

SPEC: Final = ROOT / "docs" / "spec"
CITATIONS_MIN: Final = 80
# "consensus.md 3.2", "market.md, section 6", "rpc.md 4 and 5", "consensus.md R3 to R5", "market.md 4.1, 4.2".
_CITATION: Final = re.compile(
    r"\b(?P<document>[A-Za-z]+)\.md,? (?:sections? )?"
    r"(?P<places>(?:\d+(?:\.\d+)*|R\d+)(?:(?:, | and | to )(?:\d+(?:\.\d+)*|R\d+))*)"
)
_HEADING: Final = re.compile(r"^#+ (\d+(?:\.\d+)*|R\d+)\b|^\*\*(R\d+)\b", re.MULTILINE)


class Citation(NamedTuple):
    """Where a file cites which document and which place in it."""

    where: str
    document: str
    place: str


def citations() -> list[Citation]:
    """Return all citations of a document by section or rule in the product's sources."""
    found = []
    for path in sources():
        text = path.read_text()
        for match in _CITATION.finditer(text):
            where = f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}"
            found += [Citation(where, document, place) for document, place in _named(match)]
    return found


def places(text: str) -> list[tuple[str, str]]:
    """Return the documents and places that a text cites."""
    return [one for match in _CITATION.finditer(text) for one in _named(match)]


def _named(match: re.Match[str]) -> list[tuple[str, str]]:
    return [(match["document"] + ".md", place) for place in re.split(r", | and | to ", match["places"])]


def headings(document: str) -> set[str]:
    """Return the numbers of the headings and rules of a document in docs/spec; none if there is no such file."""
    path = SPEC / document
    if not path.is_file():
        return set()
    return {first or second for first, second in _HEADING.findall(path.read_text())}


def repeated() -> list[str]:
    """Return numbers of headings and rules that a document in docs/spec has twice."""
    found = []
    for path in sorted(SPEC.glob("*.md")):
        numbers = [first or second for first, second in _HEADING.findall(path.read_text())]
        twice = sorted({number for number in numbers if numbers.count(number) > 1})
        found += [f"{path.name} has {number} twice" for number in twice]
    return found


def unresolved() -> list[Citation]:
    """Return citations that name no heading of docs/spec."""
    known = {citation.document: headings(citation.document) for citation in citations()}
    return [citation for citation in citations() if citation.place not in known[citation.document]]
