"""Speed trials on a network of processes: a machine is killed in the middle of one, a verifier falls silent."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cluster.network import WITH_TRIALS, Network, network, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]

PATIENCE_S: Final = 180.0
TIMES: Final = (
    "--parameter", "tasks.trial_ms=8000", "--parameter", "tasks.trial_step_ms=40000",
    "--parameter", "tasks.trial_pause_ms=10000", "--parameter", "tasks.trial_valid_ms=60000",
)  # fmt: skip
"""Long enough to be hit in their middle; a rate is measured again after fifty seconds."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    with network(tmp_path_factory.mktemp("trials"), "--no-task", "--workers", "1", *WITH_TRIALS, *TIMES) as made:
        made.start()
        made.wait_up()
        yield made


def trial(running: Network, address: str, asked: str = "validator-0") -> dict[str, Any]:
    node = running.call(asked, "dekube_getNode", address)["node"]
    return (node or {}).get("trial") or {"phase": "none"}


def in_phase(running: Network, address: str, phase: str, asked: str = "validator-0") -> dict[str, Any]:
    def found() -> dict[str, Any] | None:
        now = trial(running, address, asked)
        return now if now["phase"] == phase else None

    return wait_for(found, f"the trial is {phase}", patience_s=PATIENCE_S)


def test_a_machine_that_is_killed_in_its_trial_goes_on_with_it(running: Network) -> None:
    address = running.status("worker-0")["address"]
    folder = Path(running.root, "worker-0", "data", "trials")
    begun = in_phase(running, address, "running")["begun_ms"]
    wait_for(
        lambda: folder.is_dir() and any(path.stat().st_size for path in folder.iterdir()), "links are on disk"
    )
    running.verb("kill", "worker-0")
    running.verb("restart", "worker-0")
    done = in_phase(running, address, "idle")
    assert (done["begun_ms"], done["checked"]) == (begun, True) and done["rate"] > 0


def test_a_verifier_that_falls_silent_is_replaced(running: Network) -> None:
    address = running.status("worker-0")["address"]
    members = {running.status(name)["address"].lower(): name for name in
               (f"validator-{number}" for number in range(4))}  # fmt: skip
    drawn = in_phase(running, address, "showing")["verifier"].lower()
    asked = next(name for name in members.values() if name != members[drawn])
    [pid] = [row["pid"] for row in running.verb("list") if row["name"] == members[drawn]]
    os.kill(pid, signal.SIGSTOP)
    try:
        again = wait_for(
            lambda: (now := trial(running, address, asked))["phase"] == "judging"
            and now["verifier"].lower() != drawn and now,
            "another verifier was drawn", patience_s=PATIENCE_S,
        )  # fmt: skip
        assert again["phase"] == "judging"
        done = in_phase(running, address, "idle", asked)
        assert done["checked"] and done["rate"] > 0
    finally:
        os.kill(pid, signal.SIGCONT)
