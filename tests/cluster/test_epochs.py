"""A network whose validators change at every epoch: joins, leaves and jail, while blocks go on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testnet.plan import STAKE
from tests.cluster.network import Network, dekube, network, wait_for

pytestmark = pytest.mark.cluster

EPOCH_BLOCKS = 8
COIN = 10**18


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    options = ["--no-task", "--workers", "0", "--validators", "5", "--founders", "4"]
    for name, number in (
        ("chain.epoch_blocks", EPOCH_BLOCKS),
        ("chain.block_interval_ms_min", 300),
        ("consensus.block_interval_ms", 300),
        ("consensus.idle_ms", 100),
        ("consensus.leader_ms", 1_000),
        ("consensus.advance_ms", 2_000),
        ("consensus.silent_ms", 3_000),
    ):
        options += ["--parameter", f"{name}={number}"]
    with network(tmp_path_factory.mktemp("epochs"), 27_700, *options) as made:
        made.start()
        made.wait_up()
        made.wait_height("validator-0", 2)
        yield made


def seats(running: Network, name: str) -> set[str]:
    committee = running.call(name, "dekube_getCommittee")
    return {seat["address"] for seat in committee["seats"]}


def address(running: Network, name: str) -> str:
    return str(running.status(name)["address"])


def wait_seats(running: Network, name: str, wanted: set[str]) -> None:
    wait_for(lambda: seats(running, name) == wanted, f"the committee is {sorted(wanted)}", patience_s=90)


def epoch(running: Network, name: str) -> int:
    return int(running.status(name)["epoch"])


def sent(*arguments: object) -> None:
    done = dekube(*arguments)
    assert done.returncode == 0, done.stderr + done.stdout


def test_validators_join_leave_and_are_jailed_while_blocks_go_on(running: Network) -> None:
    names = [f"validator-{number}" for number in range(5)]
    accounts = {name: address(running, name) for name in names}
    founders = {accounts[name] for name in names[:4]}
    assert seats(running, names[0]) == founders

    # One joins: its stake of this epoch sits two epochs after the next boundary.
    sent("tx", "stake", STAKE // COIN, "--home", running.root / names[4])
    wait_seats(running, names[0], set(accounts.values()))
    joined = epoch(running, names[0])
    running.wait_height(names[4], (joined + 1) * EPOCH_BLOCKS + 2)
    view = running.call(names[0], "dekube_getBlock", (joined + 1) * EPOCH_BLOCKS)["block"]
    assert view["epoch"] == joined

    # One leaves.
    sent("tx", "unstake", STAKE // COIN, "--home", running.root / names[3])
    left = set(accounts.values()) - {accounts[names[3]]}
    wait_seats(running, names[0], left)

    # One is dead for an epoch: the others vote it out, and blocks go on all the time.
    running.verb("kill", names[1])
    wait_seats(running, names[0], left - {accounts[names[1]]})
    running.verb("restart", names[1])
    running.wait_height(names[1], running.height(names[0]))

    # It sits again when its time is over.
    wait_seats(running, names[0], left)
    height = running.check_agreement(*names)
    assert height > 4 * EPOCH_BLOCKS
