"""What a job's process has before it knows its job is no more than its plan says (market.md R153)."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

from tasks.executor.resource_needs import LIBRARY_BYTES

CODE = """
import sys
from tasks.engines.arrays import NumpyArrays
from tasks.engines.torch_arrays import TorchArrays
from tasks.executor.child import _warm_up
_warm_up(TorchArrays("cpu") if sys.argv[1] == "torch" else NumpyArrays())
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
NAMES = [
    "numpy",
    pytest.param(
        "torch",
        marks=[
            pytest.mark.slow,
            pytest.mark.skipif(
                find_spec("torch") is None, reason="torch (extra ml) IS NOT INSTALLED: ITS MEMORY WAS NOT CHECKED"
            ),
        ],
    ),
]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("name", NAMES)
def test_libraries_need_no_more_than_is_planned(name: str) -> None:
    found = subprocess.run([sys.executable, "-c", CODE, name], capture_output=True, text=True, check=True)
    assert int(found.stdout) << 10 <= LIBRARY_BYTES[name]
