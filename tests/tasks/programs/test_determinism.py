"""Programs give the same bits under all settings of a machine, and those written down in tests/vectors.

The vectors may change only together with the name of the profile, once tasks use it.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.tasks.engines.test_determinism import SETTINGS, supports
from tests.tasks.engines.test_determinism import in_a_process as fingerprint_in_a_process
from tests.tasks.programs.engines import engine
from tests.tasks.programs.fingerprint import fingerprint

ROOT = Path(__file__).parents[3]
VECTORS = ROOT / "tests" / "vectors" / "programs.json"


def written_down() -> dict[str, str]:
    vectors: dict[str, str] = json.loads(VECTORS.read_text(encoding="utf-8"))
    return vectors


def in_a_process(name: str, settings: dict[str, str]) -> dict[str, str]:
    return fingerprint_in_a_process(name, settings, "tests.tasks.programs.fingerprint")


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
    [{"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "2"}, {"ATEN_CPU_CAPABILITY": "default"}],
    ids=str,
)
def test_torch_gives_the_same_bits(settings: dict[str, str]) -> None:
    assert in_a_process("torch", settings) == written_down()
