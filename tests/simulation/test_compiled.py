"""A compiled copy of the tree plays the same runs, and says that it is one."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from consensus.simulation.scenarios import run_scenario
from node.simulation.compiled import MODULES, TracesDiffer, compare, compile_tree

ROOT = Path(__file__).resolve().parents[2]


def _said(code: str, where: Path) -> list[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=where, env=environment, check=True, capture_output=True, text=True
    ).stdout.splitlines()


@pytest.mark.skipif(
    not Path(sysconfig.get_path("include"), "Python.h").exists(),
    reason="no Python.h here to compile with; Debian's python3-dev has it",
)
def test_a_compiled_tree_plays_the_same_run_and_is_told_from_the_interpreted(tmp_path: Path) -> None:
    compile_tree(ROOT, tmp_path / "compiled", ("consensus/simulation/disk.py",))
    code = "from node.simulation.campaign import _code_digest as d; print(d())"
    (plain,), (compiled,) = _said(code, ROOT), _said(code, tmp_path / "compiled")
    assert compiled == f"{plain} compiled"
    code = (
        "from consensus.simulation import disk, scenarios\n"
        "print(disk.__file__, *[scenarios.run_scenario(seed) for seed in (2, 3)], sep='\\n')"
    )
    file, *outcomes = _said(code, tmp_path / "compiled")
    assert file.endswith(".so") and file.startswith(str(tmp_path))
    assert outcomes == [str(run_scenario(seed)) for seed in (2, 3)]
    assert compare(ROOT, tmp_path / "compiled", 1) == 2
    with (tmp_path / "compiled" / "node" / "simulation" / "scenarios.py").open("a") as scenarios:
        scenarios.write("\n\n_played = run_whole\n\n\ndef run_whole(seed):\n    return _played(seed + 1)\n")
    with pytest.raises(TracesDiffer, match=r"interpreted: 0 "):
        compare(ROOT, tmp_path / "compiled", 1)


def test_what_is_compiled_exists() -> None:
    assert [name for name in MODULES if not (ROOT / name).is_file()] == []
