"""Paths of files that the documents for readers of the code name: each must exist."""

from __future__ import annotations

import re
from typing import Final

from tests.house.imports import ROOT

READERS_DOCUMENTS: Final = ("ARCHITECTURE.md", "docs/reading.md")
_PATH: Final = re.compile(
    r"`((?:state|billing|tasks|consensus|p2p|relay|rpc|node|testnet|tests|docs)(?:/[\w.-]+)*)`"
)
_LINK: Final = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def paths(text: str) -> list[str]:
    """Return the paths from the root of the tree that stand between backticks."""
    return _PATH.findall(text)


def links(text: str) -> list[str]:
    """Return the relative targets of the links, without the anchor."""
    return _LINK.findall(text)


def missing() -> list[str]:
    """Return, with its document, each named path and linked file that does not exist."""
    found = []
    for document in READERS_DOCUMENTS:
        text = (ROOT / document).read_text()
        found += [f"{document}: {path}" for path in paths(text) if not (ROOT / path).exists()]
        folder = (ROOT / document).parent
        found += [f"{document}: {target}" for target in links(text) if not (folder / target).exists()]
    return found
