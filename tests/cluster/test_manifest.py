"""Generated networks of processes: whatever befalls them, then one chain, no lies, and clients told the truth."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from tests.cluster.links import address, own_network, set_cuts
from tests.cluster.manifest import KINDS, NETWORK, RELAY, SIGNER, WORKER, draw
from tests.cluster.playing import build_disturb, play, tell

SAMPLE = (889, 8.0)
"""Seed and seconds: four validators and two light clients; a split, a death in a start, a move to another port."""
LARGER = (781, 15.0)
"""This one has a split, a full disk, a killed relay and homes behind it, short epochs, a rotated key, a late start
from the state, and rests."""


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("seed", "lasts_s"), [SAMPLE, pytest.param(*LARGER, marks=pytest.mark.nightly)], ids=["sample", "larger"]
)
def test_a_generated_network_is_level_again_and_told_its_clients_the_truth(
    seed: int, lasts_s: float, tmp_path: Path
) -> None:
    manifest = draw(seed, lasts_s=lasts_s)
    print(manifest.to_json())
    assert play(manifest, tmp_path) > 3


def test_numbers_give_networks_of_every_kind_and_always_the_same() -> None:
    manifests = [draw(seed) for seed in range(60)]
    assert manifests == [draw(seed) for seed in range(60)]
    assert {manifest.validators for manifest in manifests} == {4, 5, 6}
    assert {one.kind for manifest in manifests for one in manifest.disturbances} == set(KINDS)
    assert {bool(manifest.late) for manifest in manifests} == {False, True}
    assert {manifest.late_sync for manifest in manifests} == {"blocks", "state"}
    assert {manifest.epoch_blocks > 0 for manifest in manifests} == {False, True}
    assert {manifest.has_rests for manifest in manifests} == {False, True}
    deeds = {deed.kind for manifest in manifests for deed in manifest.deeds}
    assert deeds == {"stake", "unstake", "rotate", "upgrade", "task"}
    assert any(manifest.homes for manifest in manifests) and any(manifest.lights for manifest in manifests)
    for seed, lasts_s in (SAMPLE, LARGER):
        short = {one.kind for one in draw(seed, lasts_s=lasts_s).disturbances}
        assert "split" in short and len(short) > 2
    for manifest in manifests:
        there = [NETWORK, *manifest.names]
        there += [RELAY] if manifest.homes or manifest.has_task else []
        there += [SIGNER] if manifest.signer else []
        there += [WORKER] if manifest.has_task else []
        for member in {one.member for one in manifest.disturbances}:
            assert member != manifest.late and member in there
            own = [one for one in manifest.disturbances if one.member == member]
            for one, other in pairwise(own):
                assert other.at_s >= one.until_s, "a member suffers one thing at a time"
        if manifest.has_rests:
            for one, other in pairwise(manifest.disturbances):
                assert other.at_s >= one.until_s, "one thing at a time"
        for deed in manifest.deeds:
            assert deed.member in manifest.names
            assert (deed.kind == "task") if not manifest.epoch_blocks else True
            assert (deed.kind == "stake") == (deed.member == manifest.joins) or deed.kind == "upgrade"
        for one in manifest.disturbances:
            assert bool(one.cuts) == (one.kind == "split")
            assert all(source != target for source, target in one.cuts)


@contextmanager
def disturbed(folder: Path, code: str) -> Iterator[subprocess.Popen[str]]:
    """Run Python code as a member runs, its folder being ``folder``."""
    library = build_disturb(folder)
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=folder, env={"LD_PRELOAD": str(library)}, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        yield process


def say(process: subprocess.Popen[str], word: str) -> str:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(f"{word}\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def test_a_clock_is_stepped_while_its_process_runs(tmp_path: Path) -> None:
    tell(tmp_path)
    code = "import time; print(-int(input()) + time.time_ns(), flush=True); print(-int(input()) + time.time_ns())"
    with disturbed(tmp_path, code) as process:
        before = int(say(process, "0"))
        tell(tmp_path, step_ms=-3_600_000)
        assert -3_600 * 10**9 < int(say(process, str(before))) < -1_800 * 10**9


SYNC = """
import os, time
file = os.open("file", os.O_RDWR | os.O_CREAT)
while input():
    begun = time.monotonic()
    try:
        for sync in (os.fsync, os.fdatasync):
            sync(file)
        print(int(1000 * (time.monotonic() - begun)), flush=True)
    except OSError as error:
        print(-error.errno, flush=True)
"""


def test_syncs_are_slow_or_fail_while_their_process_runs(tmp_path: Path) -> None:
    tell(tmp_path)
    with disturbed(tmp_path, SYNC) as process:
        assert int(say(process, "sync")) >= 0
        tell(tmp_path, sync_ms=100)
        assert int(say(process, "sync")) >= 200
        tell(tmp_path, sync_fails=True)
        assert say(process, "sync") == "-5"
        tell(tmp_path)
        assert int(say(process, "sync")) >= 0
        assert process.stdin is not None
        process.stdin.write("\n")


TALK = """
import socket
connection = socket.create_connection(("{}", {}))
for word in iter(input, ""):
    connection.sendall(word.encode())
    print("sent", flush=True)
print(connection.recv(16).decode(), flush=True)
"""
SILENCE_S = 0.5


def test_what_is_sent_over_a_cut_link_comes_when_it_is_whole_again(tmp_path: Path) -> None:
    one, other = "validator-0", "validator-1"
    with own_network() as is_own:
        if not is_own:
            pytest.skip("NO NETWORK OF ONE'S OWN HERE: links of generated networks are not cut")
        tell(tmp_path, source=1)
        server = socket.create_server((address(other), 0))
        with server, disturbed(tmp_path, TALK.format(*server.getsockname())) as process:
            connection, (host, _) = server.accept()
            with connection:
                assert host == address(one)
                assert say(process, "a") == "sent" and connection.recv(16) == b"a"
                set_cuts([(one, other)])
                assert say(process, "b") == "sent"
                connection.settimeout(SILENCE_S)
                with pytest.raises(TimeoutError):
                    connection.recv(16)
                set_cuts([])
                connection.settimeout(60)
                assert connection.recv(16) == b"b"
                connection.sendall(b"c")
                assert say(process, "") == "c"
    with socket.create_server(("127.0.0.1", 0)) as server:  # this thread is where it was
        assert server.getsockname()[0] == "127.0.0.1"
