"""A validator that signs two histories: who sees both stops, and the procedure of the manual gets it out of it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from node.cli import EXIT_NEEDS_OPERATOR
from tests.cluster.network import PATIENCE_S, Network, network, parameters, run_here

pytestmark = pytest.mark.cluster

LIAR, OTHER = "validator-0", "worker-0"


def test_a_node_that_has_seen_a_fork_is_brought_to_the_chain_that_goes_on(tmp_path: Path) -> None:
    options = ["--no-task", "--validators", "1", "--workers", "1", *parameters(2_000)]
    with network(tmp_path / "net", *options) as running:
        running.start()
        running.wait_up()
        running.wait_height(OTHER, 3)
        liar, other = running.root / LIAR, running.root / OTHER
        running.verb("stop", LIAR)
        shutil.copytree(liar / "data", tmp_path / "earlier")
        running.verb("restart", LIAR)
        running.wait_height(OTHER, running.height(LIAR) + 3)
        running.verb("stop", OTHER)
        running.verb("stop", LIAR)
        left = run_here("db", "inspect", "--home", other)
        # An old copy of database and guard: the one thing that nobody may do.
        shutil.rmtree(liar / "data")
        shutil.copytree(tmp_path / "earlier", liar / "data")
        running.verb("restart", LIAR)
        running.wait_height(LIAR, left["height"] + 3)

        done = run_alone(other)
        assert done.returncode == EXIT_NEEDS_OPERATOR, done.stderr
        assert done.stderr.strip().endswith("[safety]"), done.stderr

        # What was voted for when the copy was made is in both histories.
        own = {height: block_at(other, height) for height in range(left["height"], 0, -1)}
        fork = min(height for height, block in own.items() if running.block(LIAR, height)["hash"] != block)
        chosen = str(running.block(LIAR, fork)["hash"]).removeprefix("0x")
        settled = run_here("db", "switch-chain", "--home", other, f"{fork}:{chosen}", "--yes")
        assert not settled["on_chain"] and Path(settled["moved_to"]).is_dir()
        accused = run_here(
            "db",
            "report-fork",
            fork,
            "--home",
            other,
            "--database",
            settled["moved_to"],
            "--rpc",
            running.url(LIAR),
        )
        assert (len(accused["convicted"]), accused["percent"]) == (1, 100)
        running.verb("restart", OTHER)
        running.wait_height(OTHER, running.height(LIAR))
        running.check_agreement(OTHER, LIAR)
        assert punished(running) == accused["convicted"]


def block_at(home: Path, height: int) -> str:
    return str(run_here("db", "inspect", "--home", home, "--height", height)["block_at"])


def run_alone(home: Path) -> subprocess.CompletedProcess[str]:
    """Run a member's node as a service manager does, until it ends."""
    command = [sys.executable, "-m", "node", "node", "run", "--home", str(home)]
    return subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False)


def punished(running: Network) -> list[str]:
    """Who was slashed, once the proof is in a block."""
    running.wait_height(LIAR, running.height(LIAR) + 3)
    return [str(one["operator"]).lower() for one in running.call(LIAR, "dekube_getSlashes")["items"]]
