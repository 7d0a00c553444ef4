"""``dekube bench``: every benchmark runs and ends with one line of the agreed form."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

TINY = {
    "simulate": ("scenarios=2",),
    "transport": ("bulk_mib=4", "small_messages=2000", "wan=0"),
    "relay": ("megabytes=8", "circuits=2", "reservations=4", "wan=0"),
    "light": ("records=2", "accounts=500"),
    "market": ("tasks=60", "machines=20", "repeats=1"),
    "train": ("steps=8", "batch=16"),
    "operators": ("rounds=1", "torch=0"),
    "programs": ("drawn=3", "changes=1"),
    "executor": ("starts=1",),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] * (name == "market")) for name in TINY]
)
def test_the_last_line_of_a_benchmark_is_one_object(name: str) -> None:
    settings = [part for setting in TINY[name] for part in ("--set", setting)]
    command = [sys.executable, "-m", "node", "bench", name, "--json", *settings]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=600)
    answer = json.loads(done.stdout.splitlines()[-1])
    assert set(answer) == {"bench", "figures", "machine"}
    assert answer["bench"] == name
    assert answer["figures"]
    assert all(isinstance(value, int | float) for value in answer["figures"].values())
    assert answer["machine"]["cores"] >= 1


def test_an_unknown_setting_is_refused_with_the_known_ones() -> None:
    command = [sys.executable, "-m", "node", "bench", "simulate", "--set", "speed=9"]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert "scenarios" in done.stderr
