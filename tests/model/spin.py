"""Runs the Promela model of ``docs/model``: whatever came before, does a good network make a block final?

``python -m tests.model.spin FAULTY_LEADS [--talks-on] [--change NAME]`` goes through every run in which the faulty
seat leads that view and each fourth one after it. Needs Debian's ``spin`` and a C compiler.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MODEL: Final = Path(__file__).parents[2] / "docs" / "model" / "sdbft.pml"
CHANGES: Final = tuple(dict.fromkeys(re.findall(r"\bCHANGED_(\w+)", MODEL.read_text())))
"""Rules that can be changed; each change must stop the chain."""
POSITIONS: Final = (1, 2, 3, 4)
DEPTH_MAX: Final = 10_000
"""Steps of a run; the longest has some 130."""
MEMORY_MB: Final = 4_000


class SpinFailed(Exception):
    """The model could not be checked whole; the text is what the tool printed."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What the search came to."""

    states: int
    is_live: bool
    """No run stops, or goes on for ever, without a block that is final everywhere."""


def is_installed() -> bool:
    """Return whether the model can be checked here."""
    return shutil.which("spin") is not None and shutil.which("gcc") is not None


def check(
    faulty_leads: int, *, talks_on: bool = False, change: str | None = None, memory_mb: int = MEMORY_MB
) -> Checked:
    """Go through every run. Raises SpinFailed when the search was not complete, or found something else."""
    options = [f"-DFAULTY_LEADS={faulty_leads}"]
    options += ["-DTALKS_ON"] if talks_on else []
    options += [f"-DCHANGED_{change}"] if change else []
    # Where they would not fit, 64 bits of each are kept: two of 50 million pass for one once in 10,000 searches.
    store = "-DHC4" if talks_on else "-DCOLLAPSE"
    with tempfile.TemporaryDirectory(prefix="dekube-spin-") as folder:
        for command in (
            ["spin", *options, "-a", str(MODEL)],
            ["gcc", "-O1", "-w", store, f"-DMEMLIM={memory_mb}", "-o", "pan", "pan.c"],
            ["./pan", "-a", f"-m{DEPTH_MAX}", "-w24"],
        ):
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
            if done.returncode:
                raise SpinFailed(done.stdout + done.stderr)
    return read(done.stdout)


def read(output: str) -> Checked:
    """Return what the search printed. Raises SpinFailed when it was not complete, or found something else."""
    errors, states = re.search(r"errors: (\d+)", output), re.search(r"(\d+) states, stored", output)
    stopped = "Search not completed" in output
    if errors is None or states is None or "max search depth too small" in output:
        raise SpinFailed(output)
    is_live = errors[1] == "0"
    if is_live == stopped or is_live == ("acceptance cycle (at" in output):
        raise SpinFailed(output)
    return Checked(int(states[1]), is_live)


def main() -> int:
    """Check one position; 1 when the chain can stop."""
    parser = argparse.ArgumentParser(prog="python -m tests.model.spin", description=__doc__)
    parser.add_argument("faulty_leads", type=int, choices=POSITIONS)
    parser.add_argument(
        "--talks-on", action="store_true", help="the faulty seat also speaks when the network is good"
    )
    parser.add_argument("--change", choices=CHANGES)
    parser.add_argument("--memory-mb", type=int, default=MEMORY_MB)
    options = parser.parse_args()
    found = check(
        options.faulty_leads, talks_on=options.talks_on, change=options.change, memory_mb=options.memory_mb
    )
    what = "a block becomes final in every run" if found.is_live else "the chain can stop"
    print(f"{found.states:,} states: {what}")
    return not found.is_live


if __name__ == "__main__":
    sys.exit(main())
