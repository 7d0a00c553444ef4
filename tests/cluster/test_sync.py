"""A node whose database is gone or damaged begins with the state of the newest epoch, from its peers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import plyvel
import pytest

from tests.cluster.network import Network, dekube, network, parameters

pytestmark = pytest.mark.cluster

EPOCH_BLOCKS = 16


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    # Five: one after the other is stopped, and who was away for most of an epoch has no seat when the next one is.
    options = ["--no-task", "--workers", "0", "--validators", "5", *parameters(EPOCH_BLOCKS)]
    with network(tmp_path_factory.mktemp("sync"), *options) as made:
        made.start()
        made.wait_up()
        made.wait_height("validator-0", 2 * EPOCH_BLOCKS + 2)
        yield made


def want_state(home: Path) -> None:
    config = home / "config.toml"
    text = config.read_text()
    if "[sync]" not in text:
        config.write_text(text + '\n[sync]\nmode = "state"\n')


def follows(running: Network, name: str) -> int:
    """Wait until ``name`` has caught up with the others and agrees; return the oldest block it has."""
    running.wait_height(name, running.height("validator-0"))
    running.check_agreement(name, "validator-0")
    return int(running.call(name, "dekube_status")["oldest_block_height"])


def test_a_validator_without_its_database_begins_with_the_state(running: Network) -> None:
    name = "validator-3"
    home = running.root / name
    assert follows(running, name) == 1
    running.verb("stop", name)
    shutil.rmtree(home / "data" / "chain")
    want_state(home)
    running.verb("restart", name)
    oldest = follows(running, name)
    assert oldest > 1 and (oldest - 1) % EPOCH_BLOCKS == 0  # it begins with the end of an epoch
    assert not (home / "data" / "chain.sync").exists()


def test_a_damaged_database_is_named_and_replaced_by_one_command(running: Network) -> None:
    name = "validator-2"
    home = running.root / name
    running.verb("stop", name)
    database = plyvel.DB(str(home / "data" / "chain"))
    database.put(b"n0", b"\1" + bytes(576))
    database.close()
    found = dekube("db", "verify", "--home", home)
    assert found.returncode == 1 and "store_damaged" in found.stderr
    want_state(home)
    repaired = dekube("db", "repair", "--home", home, "--json")
    assert repaired.returncode == 0, repaired.stderr
    report = json.loads(repaired.stdout)
    assert report["height"] % EPOCH_BLOCKS == 0 and Path(report["moved_to"]).is_dir()
    running.verb("restart", name)
    assert follows(running, name) > report["height"] - EPOCH_BLOCKS
    running.verb("stop", name)
    verified = dekube("db", "verify", "--home", home, "--json")
    assert verified.returncode == 0, verified.stderr
    assert json.loads(verified.stdout)["headers"] > 1
    running.verb("restart", name)
    follows(running, name)


@pytest.mark.nightly
def test_a_checkpoint_far_above_the_database_replaces_it(running: Network) -> None:
    name = "validator-1"
    home = running.root / name
    running.verb("stop", name)
    inspected = dekube("db", "inspect", "--home", home, "--json")
    assert inspected.returncode == 0, inspected.stderr
    kept = json.loads(inspected.stdout)["height"]
    boundary = (kept // EPOCH_BLOCKS + 2) * EPOCH_BLOCKS
    running.wait_height("validator-0", boundary + 2)
    block_hash = running.call("validator-0", "dekube_getBlock", boundary)["block"]["hash"]
    with (home / "config.toml").open("a") as config:
        config.write(f'\n[sync]\ncheckpoint = "{boundary}:{block_hash}"\n')
    running.verb("restart", name)
    assert follows(running, name) > boundary, "it has the blocks after the checkpoint alone"
    assert (home / "data" / "chain.old-1").is_dir()
