"""Too few validators halt without forking; enough go on; a whole network that is killed goes on where it was."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from node.home.load import load_genesis
from node.home.paths import Home
from state.primitives.keys import SecretKey
from state.primitives.transactions import sign_transaction
from state.transition.transfer import TRANSFER_GAS, TRANSFER_KIND, transfer_payload
from testnet.cluster import lay_out
from testnet.plan import COIN, derive_key
from tests.cluster.network import Network, dekube, network, parameters

pytestmark = pytest.mark.cluster

LEADER_MS = 1_000
HALTED_S = 2 * (LEADER_MS + 2 * LEADER_MS) / 1_000
"""Twice both timers of a view."""
ALL = [f"validator-{i}" for i in range(4)]


def payment(key: SecretKey, net: Network, nonce: int) -> str:
    chain_id = load_genesis(Home(net.root / "validator-0").genesis).chain_id
    raw = sign_transaction(
        key, chain_id=chain_id, nonce=nonce, kind=TRANSFER_KIND, payload=transfer_payload(b"t" * 20, 1),
        gas_limit=TRANSFER_GAS, max_fee_per_gas=10**12,
    )  # fmt: skip
    return "0x" + raw.hex()


def test_a_network_needs_three_of_four_and_survives_the_death_of_all(tmp_path: Path) -> None:
    root = tmp_path / "net"
    words = parameters(10_000, leader_ms=LEADER_MS)[1::2]
    numbers = {name: int(number) for name, number in (word.split("=") for word in words)}
    # Members send transactions of their own, which some pools have and others have not: they pay nothing here.
    payer = derive_key(1, "payer")
    with network(root, "--no-task", "--workers", "0") as net:
        lay_out(
            root, validators=4, workers=0, seed=1, base_port=net.base_port, parameters=numbers,
            allocations=((payer.address, COIN),),
        )  # fmt: skip
        net.start("--without", "validator-2", "--without", "validator-3")
        net.wait_up()
        assert [net.state(name) for name in ALL] == ["running", "running", "absent", "absent"]
        time.sleep(HALTED_S)  # that nothing happens can only be seen by waiting
        assert [net.height(name) for name in ALL[:2]] == [0, 0]
        net.verb("restart", "validator-2")  # three of four
        net.wait_height("validator-0", 4)
        net.check_agreement(*ALL[:3])
        net.verb("restart", "validator-3")  # from nothing
        net.wait_height("validator-3", net.height("validator-0"))
        height = net.check_agreement(*ALL)

        net.verb("kill", "validator-1")
        net.verb("kill", "validator-2")
        halted_at = max(net.height("validator-0"), net.height("validator-3")) + 1  # votes may have been under way
        time.sleep(HALTED_S)
        assert max(net.height("validator-0"), net.height("validator-3")) <= halted_at
        who = "0x" + payer.address.hex()
        nonce = net.call("validator-0", "dekube_getNonce", who)["nonce"]
        sent = net.submit("validator-0", payment(payer, net, nonce))
        net.verb("restart", "validator-0")
        assert net.call("validator-0", "eth_getTransactionByHash", sent)["blockHash"] is None
        assert net.call("validator-0", "dekube_getNonce", who)["pending_nonce"] == nonce + 1
        net.verb("restart", "validator-1")
        net.wait_height("validator-0", halted_at + 2)
        assert net.call("validator-0", "dekube_waitForReceipt", sent)["receipt"]["succeeded"] is True
        net.verb("restart", "validator-2")
        height = net.check_agreement(*ALL)

        known = {name: net.block(name, height)["hash"] for name in ALL}
        status, _ = net.end(signal.SIGKILL)
        assert status == -signal.SIGKILL
        net.start()
        net.wait_up()
        assert all(net.height(name) >= height for name in ALL)
        for name in ALL:
            assert net.block(name, height)["hash"] == known[name]
        net.wait_height("validator-0", height + 4)
        last = net.check_agreement(*ALL)
        for name in ALL:
            log = (root / name / "log").read_text()
            assert "faulty" not in log and "Traceback" not in log, name

        net.verb("stop", "validator-3")
        done = dekube("db", "verify", "--home", root / "validator-3", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["height"] >= last
        done = dekube("db", "verify", "--home", root / "validator-0")  # it runs
        assert done.returncode == 1
        assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) <= 2, done.stderr
        assert net.interrupt() == 0  # idle: it did its work
