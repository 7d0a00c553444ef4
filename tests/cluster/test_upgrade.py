"""An upgrade of the protocol: signalled, activated at the end of an epoch, and who does not know it stops."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from node.cli import EXIT_NEEDS_OPERATOR
from tests.cluster.network import Network, dekube, network, parameters, wait_for

pytestmark = pytest.mark.cluster

EPOCH_BLOCKS = 20
ALL = [f"validator-{number}" for number in range(5)]
KNOWING, OLD = ALL[:4], ALL[4]
"""80 % of the weight signal, and are a quorum when the fifth is gone."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    options = ["--no-task", "--workers", "0", "--validators", "5", *parameters(EPOCH_BLOCKS, leader_ms=2_000)]
    for name in ALL:
        options += ["--without", name]
    with network(tmp_path_factory.mktemp("upgrade"), *options) as made:
        made.start()
        made.wait_up()
        # The old one runs before there is a block: else it might hear of version 2 with the block where it stops.
        made.verb("restart", OLD)
        made.wait_up()
        for name in KNOWING:  # there is no block without three of them: nobody is jailed for having started late
            upgrade(made, name)
        yield made


def upgrade(running: Network, name: str) -> None:
    """Do what an operator does: a new release, and a start."""
    config = running.root / name / "config.toml"
    config.write_text(config.read_text() + "\n[developer]\nprotocol_version = 2\n")
    running.verb("restart", name)


def epoch_of_version_2(running: Network) -> int | None:
    """Return the first epoch of version 2, when one is scheduled."""
    epoch = int(running.call(KNOWING[0], "dekube_status")["epoch"])
    for number in (epoch, epoch + 1):
        if running.call(KNOWING[0], "dekube_getEpoch", number)["version"] == 2:
            return number
    return None


def test_a_version_that_most_know_begins_and_who_does_not_know_it_stops_with_a_clear_message(
    running: Network,
) -> None:
    running.wait_height(OLD, 1)
    coming = wait_for(lambda: running.status(OLD)["upgrade"], f"{OLD} hears of version 2", patience_s=120)
    assert coming["version"] == 2 and coming["percent"] > 33
    assert running.status(KNOWING[0])["upgrade"] is None
    first = wait_for(lambda: epoch_of_version_2(running), "version 2 is scheduled", patience_s=120)
    boundary = first * EPOCH_BLOCKS

    wait_for(lambda: running.state(OLD) == "failed", f"{OLD} stops", patience_s=60)
    log = (running.root / OLD / "log").read_text()
    assert "[upgrade_required]" in log.splitlines()[-1]
    # Its owner was told before, with the block after which it would end.
    [told] = [json.loads(line) for line in log.splitlines() if "this node ends after last_height" in line]
    assert (told["version"], told["last_height"]) == (2, boundary) and told["percent"] >= 80

    # Those that know it go on, in the new version from the first block of that epoch on.
    for name in KNOWING:
        running.wait_height(name, boundary + 3)
    running.check_agreement(*KNOWING)
    assert [running.block(KNOWING[0], height)["version"] for height in (boundary, boundary + 1)] == [1, 2]

    # The old release says the same at each start, and has kept every block up to the end of its last epoch.
    again = dekube("node", "run", "--home", running.root / OLD, timeout_s=60)
    assert again.returncode == EXIT_NEEDS_OPERATOR
    last = again.stderr.strip().splitlines()[-1]
    assert last.endswith("[upgrade_required]") and "version 2" in last
    assert "Traceback" not in again.stderr
    inspected = dekube("db", "inspect", "--home", running.root / OLD, "--json")
    assert json.loads(inspected.stdout)["height"] == boundary

    # With the new release it follows from there.
    upgrade(running, OLD)
    running.wait_height(OLD, running.height(KNOWING[0]))
    running.check_agreement(OLD, KNOWING[0])
