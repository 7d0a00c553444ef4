"""The rows that the demonstration tunes with, and the five of them that it asks for."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Final

__all__ = ["NAMED", "ROWS", "prompt_lines", "taught"]

ROWS: Final = Path(__file__).with_name("rows.jsonl")
"""40 questions about this product with their answers, one chat a line."""
NAMED: Final = (
    "What is DEKUBE?",
    "Who checks work?",
    "What does a liar lose?",
    "How does a dispute end?",
    "What is a blob?",
)
"""Questions that are asked before and after."""


@cache
def taught() -> dict[str, str]:
    """Return the answer to each question."""
    found = dict[str, str]()
    for line in ROWS.read_text().splitlines():
        question, answer = json.loads(line)["messages"]
        found[question["content"]] = answer["content"]
    return found


def prompt_lines() -> bytes:
    """Return the named questions as a file of prompts."""
    lines = [json.dumps({"messages": [{"role": "user", "content": question}]}) for question in NAMED]
    return "".join(line + "\n" for line in lines).encode()
