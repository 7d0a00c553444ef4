"""Tables of docs/spec: what each row names, and the whole number in its second column."""

from __future__ import annotations

import re
from typing import Final

from tests.house.citations import SPEC

DOCUMENTS: Final = ("consensus.md", "chain.md", "market.md", "network.md", "rpc.md")
_ROW: Final = re.compile(r"^\| `([a-z0-9_.]+)` \| ([0-9][0-9,]*) \|", re.MULTILINE)
_CROSS: Final = re.compile(r"\b(consensus|chain|market|network|rpc)\.md (\d+(?:\.\d+)*|R\d+)\b")
_OWN: Final = re.compile(r"\b[Ss]ections? (\d+(?:\.\d+)*)\b(?! of )")
_RULE: Final = re.compile(r"\((R\d+)\)")


def text_of(document: str) -> str:
    """Return the text of a document of the specification."""
    return (SPEC / document).read_text()


def numbers(document: str) -> dict[str, int]:
    """Return the number of each row ``| `name` | 1,234 | ...``; a name that stands twice is an error."""
    found: dict[str, int] = {}
    for name, number in _ROW.findall(text_of(document)):
        if name in found:
            raise AssertionError(f"{document}: {name} stands in two tables")
        found[name] = int(number.replace(",", ""))
    return found


def references(document: str) -> list[tuple[str, str]]:
    """Return which places of which documents a document of the specification refers to."""
    text = text_of(document)
    own = [(document, place) for pattern in (_OWN, _RULE) for place in pattern.findall(text)]
    return [(name + ".md", place) for name, place in _CROSS.findall(text)] + own
