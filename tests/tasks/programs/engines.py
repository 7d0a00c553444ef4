"""The engines that are present, and one that does all that IEEE 754 leaves open the other way round."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import pytest

from tasks.engines.arrays import NumpyArrays
from tasks.engines.torch_arrays import TorchArrays
from tasks.programs.arrays import Arrays
from tests.tasks.engines.test_edges import Contrary

NAMES = [
    "numpy",
    "contrary",
    pytest.param(
        "torch",
        marks=[
            pytest.mark.slow,
            pytest.mark.skipif(
                find_spec("torch") is None,
                reason="torch (extra ml) IS NOT INSTALLED: THAT BOTH ENGINES AGREE WAS NOT CHECKED",
            ),
        ],
    ),
]


@cache
def engine(name: str) -> Arrays:
    if name == "torch":
        return TorchArrays()
    return Contrary() if name == "contrary" else NumpyArrays()
