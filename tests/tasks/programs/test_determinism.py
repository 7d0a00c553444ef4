"""Programs give the same bits under all settings of a machine, and those written down in tests/vectors.

The vectors may change only together with the name of the profile.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.tasks.programs.engines import engine
from tests.tasks.programs.fingerprint import fingerprint

ROOT = Path(__file__).parents[3]
VECTORS = ROOT / "tests" / "vectors" / "programs.json"
VECTOR_UNITS = "X86_V3 X86_V4 AVX512_ICL AVX512_SPR"

SETTINGS = {
    "one thread": {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    "two threads": {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"},
    "Haswell kernels": {"OPENBLAS_CORETYPE": "Haswell"},
    "Nehalem kernels, NumPy without vector units": {
        "OPENBLAS_CORETYPE": "Nehalem",
        "NPY_DISABLE_CPU_FEATURES": VECTOR_UNITS,
    },
    "Prescott kernels, two threads": {"OPENBLAS_CORETYPE": "Prescott", "OPENBLAS_NUM_THREADS": "2"},
    "SkylakeX kernels": {"OPENBLAS_CORETYPE": "SkylakeX"},
}


def written_down() -> dict[str, str]:
    vectors: dict[str, str] = json.loads(VECTORS.read_text(encoding="utf-8"))
    return vectors


def in_a_process(name: str, settings: dict[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name in {"PATH", "LD_LIBRARY_PATH", "HOME"}}
    done = subprocess.run(
        [sys.executable, "-m", "tests.tasks.programs.fingerprint", name],
        cwd=ROOT,
        env=kept | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"} | settings,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


def supports(settings: dict[str, str]) -> bool:
    """Kernels for vector units that this processor lacks would crash, not differ."""
    if settings.get("OPENBLAS_CORETYPE") not in {"Haswell", "SkylakeX"}:
        return True
    flags = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    return "avx512f" in flags if settings["OPENBLAS_CORETYPE"] == "SkylakeX" else "avx2" in flags


def test_the_bits_are_those_written_down() -> None:
    assert fingerprint(engine("numpy")) == written_down()


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_no_setting_of_the_machine_changes_a_bit(name: str) -> None:
    if not supports(SETTINGS[name]):
        pytest.skip(f"this processor cannot run {name}")
    assert in_a_process("numpy", SETTINGS[name]) == written_down()


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("torch") is None,
    reason="torch (extra ml) IS NOT INSTALLED: THAT BOTH ENGINES GIVE THE SAME BITS WAS NOT CHECKED",
)
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"OMP_NUM_THREADS": "1"}, marks=pytest.mark.nightly),
        {"OMP_NUM_THREADS": "2"},
        pytest.param({"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}, marks=pytest.mark.nightly),
    ],
    ids=str,
)
def test_torch_gives_the_same_bits(settings: dict[str, str]) -> None:
    assert in_a_process("torch", settings) == written_down()
