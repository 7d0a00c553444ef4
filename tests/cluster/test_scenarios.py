"""Machines that cheat on a network of processes: the cheat pays, and the requester has a right result."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from node.home.load import load_node_options
from node.home.paths import Home
from rpc.client import Client
from state.primitives.errors import DekubeError
from state.primitives.listen import dial_target
from testnet.cluster import LOG_FILE, ask
from tests.cluster.network import run_here, wait_for
from tests.cluster.ports import free_ports

pytestmark = pytest.mark.cluster

PATIENCE_S = 240.0
END_PATIENCE_S = 30.0
"""A network that ends early ends its members before it says why."""
KILLED_AFTER = 2
"""Moves of the liar before its node is killed; there is one more to come in every game."""


def lines(root: Path, member: str, event: str) -> list[dict[str, Any]]:
    """Return the lines of a member's log about ``event``."""
    try:
        text = (root / member / LOG_FILE).read_text(errors="replace")
    except OSError:
        return []
    found = [json.loads(line) for line in text.splitlines() if event in line and line.startswith("{")]
    return [line for line in found if line["event"] == event]


@contextmanager
def scenario(name: str, root: Path) -> Iterator[subprocess.Popen[str]]:
    command = ["testnet", "scenario", name, "--dir", str(root), "--base-port", str(free_ports()), "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "node", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    except Exception as error:
        with suppress(subprocess.TimeoutExpired):
            error.add_note("\n".join(process.communicate(timeout=END_PATIENCE_S)))  # which says why it ends early
        raise
    finally:
        process.kill()
        process.wait()


def outcome(process: subprocess.Popen[str]) -> dict[str, Any]:
    said, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, said + errors
    found: dict[str, Any] = json.loads(said)
    assert found["right"] and found["exact"] and not found["honest_lost"]
    assert found["cheat_lost"] == (found["cheat"] is not None)
    return found


def test_a_lying_worker_loses_its_bond_though_its_node_is_killed_in_mid_game(tmp_path: Path) -> None:
    root = tmp_path / "net"
    with scenario("cheating-worker", root) as process:
        wait_for(
            lambda: len(lines(root, "worker-0", "move made")) >= KILLED_AFTER or process.poll() is not None,
            "the liar plays", patience_s=PATIENCE_S,
        )  # fmt: skip
        ask(root, "kill", "worker-0")
        before = len(lines(root, "worker-0", "move made"))
        ask(root, "restart", "worker-0")
        found = outcome(process)
    assert len(lines(root, "worker-0", "move made")) > before
    assert found["voided_windows"] >= 1
    endings = {
        line["ending"]
        for name in ("validator-0", "validator-1", "validator-2", "validator-3", "worker-0")
        for event in ("a dispute is won", "a dispute is lost")
        for line in lines(root, name, event)
    }
    assert endings == {"element_wrong"}


@pytest.mark.nightly
def test_a_lie_in_an_adapter_costs_its_worker_the_bond_and_the_folder_proves_itself(tmp_path: Path) -> None:
    root = tmp_path / "net"
    with scenario("finetune", root) as process:
        found = outcome(process)
    assert found["voided_windows"] >= 1 and int(found["gains"]["worker-1"]) > 0
    assert found["disputes"]["worker-0"] == {"lost": found["disputes"]["worker-0"]["lost"]}


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["other-rate", "coarse-weights", "skipped-steps", "copied-result"])
def test_a_worker_that_trains_otherwise_or_copies_loses_its_bond(name: str, tmp_path: Path) -> None:
    """Each on a network of processes; the copied states are right, and what their worker cannot know is not."""
    root = tmp_path / "net"
    with scenario(name, root) as process:
        found = outcome(process)
    assert found["voided_windows"] >= 1 and int(found["gains"]["worker-1"]) > 0
    assert set(found["disputes"]["worker-0"]) == {"lost"}


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["false-challenger", "lazy-verifier"])
def test_a_cheating_verifier_pays_the_worker(name: str, tmp_path: Path) -> None:
    with scenario(name, tmp_path / "net") as process:
        found = outcome(process)
    assert found["voided_windows"] == 0
    assert found["disputes"]["validator-3"]["lost"] >= 1


@pytest.mark.nightly
def test_a_worker_whose_line_was_cut_resumes_its_game_and_is_paid(tmp_path: Path) -> None:
    root = tmp_path / "net"
    with scenario("cut-line", root) as process:
        found = outcome(process)
    (accused,) = (
        name for name in ("worker-0", "worker-1") if lines(root, name, "a suspended dispute was resumed")
    )
    assert found["disputes"][accused]["won"] >= 1 and int(found["gains"][accused]) > 0
    assert found["disputes"]["validator-3"]["lost"] >= 1 and found["voided_windows"] == 0


@pytest.mark.nightly
def test_long_checks_cost_no_verifier_its_bond(tmp_path: Path) -> None:
    with scenario("overload", tmp_path / "net") as process:
        found = outcome(process)
    assert found["voided_windows"] == 0 and not found["disputes"]
    verifiers = [name for name in found["gains"] if name.startswith("validator")]
    assert len(verifiers) == 4 and all(int(found["gains"][name]) > 0 for name in verifiers)


@pytest.mark.nightly
def test_garbage_in_custody_costs_its_worker_the_bond(tmp_path: Path) -> None:
    root = tmp_path / "net"
    with scenario("garbage-custody", root) as process:
        found = outcome(process)
    shown = [name for name in found["gains"] if lines(root, name, "a false output in custody was shown")]
    assert shown and all(int(found["gains"][name]) > 0 for name in shown)
    assert int(found["gains"]["worker-1"]) > 0, "another machine does the work"


@pytest.mark.nightly
def test_a_requester_that_is_offline_has_its_result_when_it_returns(tmp_path: Path) -> None:
    root = tmp_path / "net"
    with scenario("offline-requester", root) as process:
        found = outcome(process)
    assert found["voided_windows"] == 0
    assert not lines(root, "validator-3", "the key of a task was handed to its worker"), "it was offline"
    handed = [name for name in found["gains"] if lines(root, name, "a share of a key was handed to its worker")]
    assert len(handed) >= 2 and set(handed) <= {"worker-2", "worker-3", "worker-4"}


CUSTODIANS = ("worker-2", "worker-3", "worker-4")
HUNG_S = 22.0
"""A machine that hangs misses the time to sign, which is 20 s here."""


def done(root: Path, member: str, **what: Any) -> bool:
    """Tell whether a machine has done a duty of custody."""
    return any(what.items() <= line.items() for line in lines(root, member, "custody duty done"))


def who(root: Path, phase: str) -> str | None:
    """Return a custodian that has come to a phase of custody."""
    for name in CUSTODIANS:
        if {
            "drawn": phase == "drawn" and _is_posted(root),
            "keeps the input": done(root, name, action="sign", input=True),
            "keeps an output": done(root, name, action="sign", window=0),
        }[phase]:
            return name
    return None


def _is_posted(root: Path) -> bool:
    try:
        with Client(f"http://{dial_target(load_node_options(Home(root / 'validator-0')).rpc.listen)}") as client:
            return next(iter(client.items("dekube_getTasks")), None) is not None
    except (DekubeError, OSError):
        return False


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("phase", "hangs"),
    [("drawn", False), ("drawn", True), ("keeps the input", False), ("keeps an output", True)],
)
def test_a_custodian_that_crashes_or_hangs_costs_nobody_the_task_or_a_bond(
    phase: str, hangs: bool, tmp_path: Path
) -> None:
    root = tmp_path / "net"
    with scenario("offline-requester", root) as process:
        victim = wait_for(lambda: who(root, phase), f"a custodian {phase}", patience_s=PATIENCE_S)
        if hangs:
            [pid] = [row["pid"] for row in run_here("testnet", "list", "--dir", root) if row["name"] == victim]
            os.kill(pid, signal.SIGSTOP)
            try:
                time.sleep(HUNG_S)
            finally:
                os.kill(pid, signal.SIGCONT)
        else:
            ask(root, "kill", victim)
            ask(root, "restart", victim)
        found = outcome(process)
    assert found["voided_windows"] == 0
    assert sum(done(root, name, action="sign", input=True) for name in CUSTODIANS) >= 2
