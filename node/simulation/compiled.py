"""A copy of the tree with its hottest modules compiled: the same campaigns in half the time.

The compiler is mypyc, which comes with mypy and compiles what mypy has checked; it needs a C compiler. What a node
runs is interpreted, so a compiled campaign is worth as much as the two agree: runs of every sort are played by
both, and must end with the same trace.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

__all__ = ["MODULES", "TracesDiffer", "compare", "compile_tree"]

MODULES: Final = (
    *("state/primitives/blocks.py", "state/primitives/codec.py", "state/primitives/committee.py"),
    *("state/primitives/hashing.py", "state/primitives/merkle.py", "state/primitives/votes.py"),
    *("consensus/actions.py", "consensus/events.py", "consensus/guard.py"),
    *("consensus/core/block_tree.py", "consensus/core/certificates.py", "consensus/core/committing.py"),
    *("consensus/core/core.py", "consensus/core/current_view.py", "consensus/core/doppelganger.py"),
    *("consensus/core/execution.py", "consensus/core/fetching.py", "consensus/core/limits.py"),
    *("consensus/core/outbox.py", "consensus/core/own_votes.py", "consensus/core/proposal_checks.py"),
    *("consensus/core/proposing.py", "consensus/core/retransmission.py", "consensus/core/seat_activity.py"),
    *("consensus/core/setup.py", "consensus/core/vote_table.py", "consensus/core/voting.py"),
    *("consensus/notarizations.py", "consensus/inbound.py", "consensus/journal.py", "consensus/sync.py"),
    *("consensus/reception.py", "consensus/replica.py"),
    *("consensus/votes.py", "consensus/wire.py"),
    *("consensus/simulation/cluster.py", "consensus/simulation/disk.py", "consensus/simulation/oracle.py"),
    *("consensus/simulation/worlds.py", "consensus/simulation/crash_points.py"),
    *("node/simulation/fork_oracle.py", "node/simulation/operators.py", "node/simulation/above_bound.py"),
)
"""Where the time goes, and what inherits from it: an interpreted class cannot inherit from a compiled one."""
_BUILD: Final = """
import sys
from mypyc.build import mypycify
from setuptools import setup
modules = mypycify(sys.argv[1:], opt_level="1", debug_level="0")
setup(name="compiled", packages=[], ext_modules=modules, script_args=["build_ext", "--inplace"])
"""
_PLAY: Final = """
import sys
from consensus.simulation.crash_points import COURSES, operations, run_crash_point
from consensus.simulation.disk import Fault
from consensus.simulation.heal import breaks, run_break
from consensus.simulation.scenarios import run_scenario
from consensus.simulation.twins import count_scenarios, run_twins, scenario_of
from node.simulation.above_bound import run_above
from node.simulation.scenarios import run_whole
for number in range(int(sys.argv[1])):
    print(number, run_whole(number) if number % 10 == 0 else run_scenario(number))
    if number % 2 == 0:
        print(number, run_twins(scenario_of(number * 5_237 % count_scenarios(4, 1, 3), rounds=3)))
    if number % 20 == 1:
        print(number, run_break(tuple(breaks())[number], number), run_above(number))
        for course in COURSES.values():
            print(number, run_crash_point(number % len(operations(course)) + 1, Fault.TORN, course))
"""


class TracesDiffer(Exception):
    """A compiled run is another one than the interpreted; the message has both."""


def compile_tree(root: Path, directory: Path, modules: tuple[str, ...] = MODULES) -> None:
    """Copy the sources below ``root`` to ``directory``, which is new, and compile ``modules`` there.

    Raises FileExistsError, and CalledProcessError where there is no compiler or it refuses a module.
    """
    directory.mkdir(parents=True)
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    for package in sorted({path.parent.name for path in root.glob("*/__init__.py")} - {"tests"}):
        shutil.copytree(root / package, directory / package, ignore=ignored)
    options = ("--config-file", str(root / "pyproject.toml"))
    subprocess.run([sys.executable, "-c", _BUILD, *options, *modules], cwd=directory, check=True)


def compare(root: Path, directory: Path, runs: int) -> int:
    """Play ``runs`` seeds, and some of every other sort, in both trees; return how many lines were compared.

    Raises TracesDiffer.
    """
    plain, compiled = (
        subprocess.run(
            [sys.executable, "-c", _PLAY, str(runs)], cwd=where, check=True, capture_output=True, text=True
        ).stdout.splitlines()
        for where in (root, directory)
    )
    for one, other in zip(plain, compiled, strict=True):
        if one != other:
            raise TracesDiffer(f"interpreted: {one}\ncompiled: {other}")
    return len(plain)
