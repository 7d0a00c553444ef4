"""Answers of a model, and those that transformers and PEFT give."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["Answers", "answers_of_peft"]


class Answers(NamedTuple):
    """New tokens of each prompt, with the end token, and their texts."""

    tokens: list[list[int]]
    texts: list[str]


def answers_of_peft(path: Path, folder: Path, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the new tokens that transformers and PEFT give with a folder of adapters."""
    command = [sys.executable, "-m", "testnet.llm.asking", str(path), str(folder)]
    done = subprocess.run(
        command, input=json.dumps(prompts), stdout=subprocess.PIPE, text=True, check=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )  # fmt: skip
    found: list[list[int]] = json.loads(done.stdout)
    return found
