"""Members are killed (kill -9) and started again: blocks go on, everybody agrees, work that ran is finished."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from testnet.plan import TESTNET_PARAMETERS
from tests.cluster.network import WITH_TRIALS, Network, network, wait_for
from tests.tasks.executor.helpers import children

pytestmark = pytest.mark.cluster

INTERVAL_MS = 1_000 + TESTNET_PARAMETERS["consensus.idle_ms"]
"""Between two blocks while nothing is in the mempool."""
STALL_MS_MAX = TESTNET_PARAMETERS["consensus.leader_ms"] + INTERVAL_MS + INTERVAL_MS + 2_000
"""A view whose leader is dead, then that of the next one, and a margin for a busy machine."""
WORKERS = ("worker-0", "worker-1")
VIEWS = 8
"""Enough for each of four leaders to have its turn, the dead one too."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    with network(tmp_path_factory.mktemp("crashes"), "--no-task", *WITH_TRIALS) as made:
        made.start()
        made.wait_up()
        made.wait_height("validator-0", 2)
        yield made


def longest_gap_ms(running: Network, name: str, first: int, last: int) -> int:
    times: list[int] = [running.block(name, height)["time_ms"] for height in range(first, last + 1)]
    return max(after - before for before, after in pairwise(times))


@pytest.mark.parametrize("victim", ["validator-1", pytest.param("validator-2", marks=pytest.mark.nightly)])
def test_blocks_go_on_without_a_killed_validator_and_it_catches_up(running: Network, victim: str) -> None:
    before = running.height("validator-0")
    running.verb("kill", victim)
    assert running.state(victim) == "killed"
    running.wait_height("validator-0", before + VIEWS)
    assert longest_gap_ms(running, "validator-0", before, before + VIEWS) <= STALL_MS_MAX
    running.verb("restart", victim)
    assert running.state(victim) == "running"
    running.wait_height(victim, running.height("validator-0"))
    height = running.check_agreement(victim, "validator-0", "validator-3")
    assert height >= before + VIEWS


def test_workers_come_back_to_a_killed_relay(running: Network) -> None:
    wait_for(lambda: running.status("worker-0")["relays"] == 1, "the worker reserved at the relay")
    running.verb("kill", "relay-0")
    wait_for(lambda: running.status("worker-0")["relays"] == 0, "the worker noticed")
    before = running.height("worker-0")
    running.wait_height("worker-0", before + 2)  # workers dial validators directly: they follow without a relay
    running.verb("restart", "relay-0")
    for worker in ("worker-0", "worker-1"):
        wait_for(lambda name=worker: running.status(name)["relays"] == 1, f"{worker} reserved again")  # type: ignore[misc]


def test_the_speed_of_machines_was_measured_and_checked(running: Network) -> None:
    """From the registration on, while the tests before killed validators: no task is matched without it."""

    def checked() -> list[dict[str, Any]] | None:
        found = [
            running.call("validator-0", "dekube_getNode", running.status(name)["address"])["node"]
            for name in WORKERS
        ]
        return found if all(node and node["trial"] and node["trial"]["checked"] for node in found) else None

    for node in wait_for(checked, "trials of both workers were checked"):
        rate = min(node["rate"], node["trial"]["rate"])
        # An eighth until a round has measured all machines together, and then what that round found at most.
        assert 0 < rate // 8 <= node["measured_rate"] <= rate


def test_a_task_settles_although_its_worker_is_killed(running: Network) -> None:
    demonstration = subprocess.Popen(
        [sys.executable, "-m", "node", "testnet", "demonstrate", "--home", str(running.root / "validator-0")],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:

        def busy() -> tuple[str, int] | None:
            assert demonstration.poll() is None, demonstration.communicate()[0]
            for name in ("worker-0", "worker-1"):
                jobs = running.status(name)["jobs"]
                if jobs and jobs[0]["step"] > 0:
                    return name, jobs[0]["step"]
            return None

        worker, _ = wait_for(busy, "a worker is at work")
        [node] = [row["pid"] for row in running.verb("list") if row["name"] == worker]
        jobs = [pid for pid in children(node) if b"tasks.executor.child" in command_of(pid)]
        for pid in jobs:  # it hears of nothing from now on, and must end with its node all the same
            os.kill(pid, signal.SIGSTOP)
        running.verb("kill", worker)
        assert not [pid for pid in jobs if b"tasks.executor.child" in command_of(pid)]
        running.verb("restart", worker)
        said, _ = demonstration.communicate(timeout=600)
    finally:
        demonstration.kill()
        demonstration.wait()
    assert demonstration.returncode == 0, said
    assert "is SETTLED" in said and "(exact)" in said
    found = re.search(r"^Task (0x[0-9a-f]{64})$", said, re.MULTILINE)
    assert found is not None
    check_result(running, worker, found[1])


def command_of(pid: int) -> bytes:
    """Return the command line of a process; nothing of one that is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def check_result(running: Network, worker: str, task: str) -> None:
    """One worker did it all, and verifiers re-ran it to the same roots."""
    address = running.status(worker)["address"]
    record = running.call("validator-0", "dekube_getTask", task)["task"]
    windows = running.call("validator-3", "dekube_getTaskWindows", task, None, 100)["items"]
    assert record["phase"] == "settled"
    assert [window["phase"] for window in windows] == ["final"] * len(windows)
    assert {window["worker"].lower() for window in windows} == {address.lower()}
    assert not any(window["jurors"] for window in windows)
    for before, after in pairwise(windows):
        assert before["proof"]["state_root_out"] == after["proof"]["state_root_in"]
    log = (running.root / worker / "log").read_text()
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    assert [line["event"] for line in lines].count("starting") == 2
    assert "job done" in [line["event"] for line in lines]
