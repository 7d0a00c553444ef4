"""The settings of a machine that must not change a bit: kernels, vector units, threads, engines, Pythons."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["OTHER_PYTHONS", "SETTINGS", "Setting", "lacks", "python_of"]

ROOT: Final = Path(__file__).parents[2]
VENVS: Final = ROOT / "build" / "portability"
OTHER_PYTHONS: Final = ("3.12", "3.13")
INSTALL_TIMEOUT_S: Final = 900.0
NEEDED: Final = frozenset({
    "attrs", "cbor2", "cffi", "coincurve", "cryptography", "hypothesis", "idna", "iniconfig", "numpy", "outcome",
    "packaging", "pluggy", "pycparser", "pygments", "pynacl", "pytest", "safe-pysha3", "setuptools", "sniffio",
    "sortedcontainers", "trio", "typing-extensions",
})  # fmt: skip
"""Packages that the work imports. Not all locked ones have builds for each Python."""
_NO_VECTOR_UNITS: Final = "X86_V3 X86_V4 AVX512_ICL AVX512_SPR"


class Setting(NamedTuple):
    """A way to run the same work: ``at_once`` sequences together. ``python`` is a version, or empty."""

    name: str
    engine: str
    environment: dict[str, str]
    at_once: int
    python: str = ""


def _threads(count: int) -> dict[str, str]:
    return {"OMP_NUM_THREADS": str(count), "OPENBLAS_NUM_THREADS": str(count), "MKL_NUM_THREADS": str(count)}


SETTINGS: Final = (
    Setting("NumPy, one thread", "numpy", _threads(1), 1),
    Setting("NumPy, two threads", "numpy", _threads(2), 64),
    Setting("NumPy, kernels for Haswell", "numpy", {"OPENBLAS_CORETYPE": "Haswell", **_threads(1)}, 2),
    Setting("NumPy, kernels for SkylakeX", "numpy", {"OPENBLAS_CORETYPE": "SkylakeX", **_threads(2)}, 16),
    Setting(
        "NumPy, kernels for Nehalem, no vector units", "numpy",
        {"OPENBLAS_CORETYPE": "Nehalem", "NPY_DISABLE_CPU_FEATURES": _NO_VECTOR_UNITS, **_threads(1)}, 32,
    ),
    Setting("NumPy, kernels for Prescott", "numpy", {"OPENBLAS_CORETYPE": "Prescott", **_threads(2)}, 8),
    Setting("torch, one thread", "torch", _threads(1), 4),
    Setting("torch, two threads", "torch", _threads(2), 64),
    Setting(
        "torch, default kernels", "torch",
        {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", **_threads(2)}, 25,
    ),
    *(Setting(f"Python {one}, NumPy", "numpy", _threads(1), 50, one) for one in OTHER_PYTHONS),
)  # fmt: skip


def lacks(setting: Setting) -> str:
    """Return what this machine lacks for a setting; empty if it can run it."""
    kernels = setting.environment.get("OPENBLAS_CORETYPE")
    needed = {"Haswell": "avx2", "SkylakeX": "avx512f"}.get(kernels or "")
    flags = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").split()
    if needed and needed not in flags:
        return f"the processor has no {needed}"
    if setting.engine == "torch" and find_spec("torch") is None:
        return "torch (extra ml) is not installed"
    if setting.python and _found(setting.python) is None:
        return f"Python {setting.python} is not installed"
    return ""


def _found(version: str) -> str | None:
    """Return the interpreter of a version: on the path, or made by pyenv."""
    name = f"python{version}"
    homes = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/{name}"))
    for found in (shutil.which(name), *map(str, homes)):
        if found is not None:
            done = subprocess.run([found, "-c", "import venv"], check=False, capture_output=True, timeout=60)
            if done.returncode == 0:  # what pyenv puts on the path may have no version behind it
                return found
    return None


def python_of(setting: Setting) -> str:
    """Return the interpreter for a setting; of another version, with the locked packages installed."""
    if not setting.python:
        return sys.executable
    home = VENVS / f"python{setting.python}"
    python, stamp = home / "bin" / "python", home / "installed"
    if not stamp.exists():
        found = _found(setting.python)
        assert found is not None
        subprocess.run([found, "-m", "venv", "--clear", home], check=True, timeout=INSTALL_TIMEOUT_S)
        lock = home / "requirements.lock"
        lock.write_text(needed_of((ROOT / "requirements-dev.lock").read_text(encoding="ascii")))
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "--require-hashes", "-r", lock], check=True,
            timeout=INSTALL_TIMEOUT_S,
        )  # fmt: skip
        stamp.touch()
    return str(python)


def needed_of(lock: str) -> str:
    """Return the part of a lock file that the work needs: each name with its hashes."""
    parts = re.split(r"^(?=[a-z0-9])", lock, flags=re.MULTILINE)
    return "".join(part for part in parts if part.partition("==")[0] in NEEDED)
