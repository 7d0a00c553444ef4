"""Ctrl-C, down and kill -9 of a network at any moment: nothing is left, and the same folder goes on."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

import pytest

from testnet.cluster import RATE_FILE
from tests.cluster.network import Network, check_free, dekube, network, parameters, wait_for
from tests.cluster.ports import free_ports

pytestmark = pytest.mark.cluster

SMALL = ("--validators", "3", "--workers", "1", *parameters(10_000), "--parameter", "tasks.call_ms=0")
"""The fewest members that a task waits for: one machine that works and four that check, itself among them."""


def test_a_network_ends_cleanly_at_any_moment_and_goes_on(tmp_path: Path) -> None:
    root = tmp_path / "net"
    with network(root, *SMALL) as net:
        net.start()  # during the start: members are on their way up
        wait_for((root / "validator-1" / "log").exists, "the first members start")
        assert net.interrupt() == 128 + signal.SIGINT

        net.start()  # during the task
        net.wait_up()
        wait_for(lambda: net.height("validator-0") >= 3, "blocks")
        wait_for(lambda: net.status("worker-0")["jobs"], "the task runs")
        height = net.height("validator-0")
        assert net.interrupt() == 128 + signal.SIGINT
        rates = {
            (root / name / "data" / "rate").read_text() for name in ("validator-0", "validator-2", "worker-0")
        }
        assert rates == {(root / RATE_FILE).read_text()}, "the machine was measured once for all"

        net.options = (*SMALL, "--no-task")
        net.start()  # idle
        net.wait_up()
        assert net.height("validator-0") >= height
        net.wait_height("validator-0", height + 3)
        check_second_supervisor(net)
        check_verbs(net)
        height = net.height("validator-0")
        assert net.end(signal.SIGKILL)[0] == -signal.SIGKILL

        net.start()  # at once: what was killed may still hold its ports
        net.wait_up()
        assert net.height("validator-0") >= height
        net.wait_height("worker-0", height + 2)
        net.check_agreement("validator-0", "validator-1", "worker-0")
        done = dekube("testnet", "down", "--dir", root, "--json")
        assert (done.returncode, json.loads(done.stdout)) == (0, {"ended": str(root)})
        check_free(root)
        assert net.end(0)[0] == 0


def check_second_supervisor(net: Network) -> None:
    done = dekube("testnet", "up", "--dir", net.root, "--base-port", net.base_port)
    assert done.returncode == 1
    assert "already runs here" in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


def check_verbs(net: Network) -> None:
    rows = net.verb("list")
    assert len(rows) == 5 and {row["state"] for row in rows} == {"running"}
    rows = net.verb("stop", "worker-0")
    stopped = next(row for row in rows if row["name"] == "worker-0")
    assert (stopped["state"], stopped["pid"]) == ("stopped", None)
    rows = net.verb("kill", "relay-0")
    assert next(row for row in rows if row["name"] == "relay-0")["state"] == "killed"
    for name in ("relay-0", "worker-0"):
        rows = net.verb("restart", name)
        assert next(row for row in rows if row["name"] == name)["state"] == "running"
    done = dekube("testnet", "kill", "nobody", "--dir", net.root)
    assert done.returncode == 1
    assert "no member 'nobody'" in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_port_that_is_taken_is_one_line(tmp_path: Path) -> None:
    base_port = free_ports()
    with socket.socket() as other:
        other.bind(("127.0.0.1", base_port + 4))
        other.listen()
        done = dekube("testnet", "up", "--dir", tmp_path / "net", "--base-port", base_port, "--no-task")
    assert done.returncode == 1
    assert (
        f"port {base_port + 4} of 127.0.0.1 cannot be used" in done.stderr and len(done.stderr.splitlines()) == 1
    )
    check_free(tmp_path / "net")


def test_no_network_is_one_line(tmp_path: Path) -> None:
    for verb in (("list",), ("down",), ("kill", "validator-0")):
        done = dekube("testnet", *verb, "--dir", tmp_path)
        assert done.returncode == 1
        assert (
            "no test network runs here; start one with `dekube testnet up`" in done.stderr
            and len(done.stderr.splitlines()) == 1
        )


def test_a_damaged_plan_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "testnet.json").write_text('{"validators": 4')
    done = dekube("testnet", "up", "--dir", tmp_path)
    assert done.returncode == 1
    assert "not the plan of a test network" in done.stderr and len(done.stderr.splitlines()) == 1
