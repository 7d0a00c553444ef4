"""Generated networks of processes: killed, paused, out of disk, with wrong clocks; then one chain, and no lies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.manifest import KINDS, build_clock, draw, play, set_clock

LASTS_S = 15.0
SEED = 54
"""Its short form has all kinds of disturbances."""


@pytest.mark.cluster
def test_a_generated_network_is_level_again(tmp_path: Path) -> None:
    manifest = draw(SEED, lasts_s=LASTS_S)
    print(manifest.to_json())
    assert play(manifest, tmp_path) > 3


def test_numbers_give_networks_of_every_kind_and_always_the_same() -> None:
    manifests = [draw(seed) for seed in range(40)]
    assert manifests == [draw(seed) for seed in range(40)]
    assert {manifest.validators for manifest in manifests} == {4, 5, 6}
    assert {one.kind for manifest in manifests for one in manifest.disturbances} == set(KINDS)
    assert {bool(manifest.late) for manifest in manifests} == {False, True}
    assert {one.kind for one in draw(SEED, lasts_s=LASTS_S).disturbances} == set(KINDS)
    for manifest in manifests:
        ends: dict[str, float] = {}
        for one in manifest.disturbances:
            assert one.member != manifest.late
            assert one.at_s >= ends.get(one.member, 0.0), "a member suffers one thing at a time"
            ends[one.member] = one.at_s + one.for_s


def test_a_clock_is_stepped_while_its_process_runs(tmp_path: Path) -> None:
    library = build_clock(tmp_path)
    set_clock(tmp_path, 0)
    code = "import time; print(-int(input()) + time.time_ns(), flush=True); print(-int(input()) + time.time_ns())"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path, env={"LD_PRELOAD": str(library)}, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("0\n")
        process.stdin.flush()
        before = int(process.stdout.readline())
        set_clock(tmp_path, -3_600_000)
        process.stdin.write(f"{before}\n")
        process.stdin.flush()
        assert -3_600 * 10**9 < int(process.stdout.readline()) < -1_800 * 10**9
