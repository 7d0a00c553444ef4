"""Sentences of the documents: how many words they have. Code, tables and headings do not count."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

from tests.house.imports import ROOT

MEDIAN_MAX: Final = 15
P90_MAX: Final = 28
_LEFT_OUT: Final = ("docs/decisions/", "docs/model/")  # decisions are records of their time


class Lengths(NamedTuple):
    """Words a sentence: how many sentences, their median and ninth decile."""

    sentences: int
    median: int
    p90: int


def documents() -> list[Path]:
    """Return README, ARCHITECTURE and the documents whose sentences are held to the limits."""
    paths = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path for path in paths if not str(path.relative_to(ROOT)).startswith(_LEFT_OUT)]


def sentences(text: str) -> list[str]:
    """Return the sentences of a Markdown text: paragraphs and list items."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^(\||#|<|\s*!\[).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`", "code", text)  # one word, whatever stands in it
    found = []
    for block in re.split(r"\n\s*\n|^\s*(?:[-*]|\d+\.)\s+", text, flags=re.MULTILINE):
        flat = " ".join(block.split())
        found += [part for part in re.split(r"(?<=[.!?:])\s+(?=[A-Z`(\"*])", flat) if len(part.split()) >= 3]
    return found


def lengths(texts: list[str]) -> Lengths:
    """Return the lengths of all sentences in some texts."""
    words = sorted(len(sentence.split()) for text in texts for sentence in sentences(text))
    if not words:
        return Lengths(0, 0, 0)
    return Lengths(len(words), words[len(words) // 2], words[len(words) * 9 // 10])
