"""Two homes behind firewalls that drop every inbound connection talk through a relay between them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.relay.daemon_process import DaemonProcess

ROOT = Path(__file__).parents[2]
TAG = f"dk{os.getpid()}"
RELAY, ALICE, BOB = (f"{TAG}{end}" for end in "rab")
HOMES = {ALICE: 1, BOB: 2}
CONNECT = (
    "import socket,sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=float(sys.argv[3]))"
)


def sh(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=20)


def inside(namespace: str, *command: str) -> list[str]:
    return ["ip", "netns", "exec", namespace, *command]


@pytest.fixture
def homes() -> Iterator[None]:
    """Three namespaces: the relay routes between two homes, whose firewalls let no connection in."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("iptables"):
        pytest.skip("NOT RUN: needs root, iproute2 and iptables to build two firewalled homes")
    made = []
    try:
        try:
            for namespace in (RELAY, *HOMES):
                sh("ip", "netns", "add", namespace)
                made.append(namespace)
                sh("ip", "-n", namespace, "link", "set", "lo", "up")
            sh(*inside(RELAY, "sysctl", "-qw", "net.ipv4.ip_forward=1"))
            for home, n in HOMES.items():
                sh(
                    "ip",
                    "link",
                    "add",
                    f"{TAG}v{n}",
                    "netns",
                    RELAY,
                    "type",
                    "veth",
                    "peer",
                    "eth0",
                    "netns",
                    home,
                )
                sh("ip", "-n", RELAY, "address", "add", f"10.77.{n}.1/24", "dev", f"{TAG}v{n}")
                sh("ip", "-n", RELAY, "link", "set", f"{TAG}v{n}", "up")
                sh("ip", "-n", home, "address", "add", f"10.77.{n}.2/24", "dev", "eth0")
                sh("ip", "-n", home, "link", "set", "eth0", "up")
                sh("ip", "-n", home, "route", "add", "default", "via", f"10.77.{n}.1")
                sh(*inside(home, "iptables", "-A", "INPUT", "-i", "eth0", "-p", "tcp", "--syn", "-j", "DROP"))
        except (subprocess.CalledProcessError, FileNotFoundError) as error:
            pytest.skip(f"NOT RUN: this machine permits no network namespaces: {error}")
        yield
    finally:
        for namespace in made:
            subprocess.run(["ip", "netns", "del", namespace], check=False, capture_output=True)


@pytest.mark.slow
def test_two_firewalled_homes_talk_through_the_relay_between_them(
    homes: None, start_relay: Callable[..., DaemonProcess]
) -> None:
    # The firewalls hold: a listener in one home cannot be reached from the other, nor from the relay.
    listen = (
        "import socket,time; s=socket.create_server(('0.0.0.0', 4000)); print('up', flush=True); time.sleep(60)"
    )
    listener = subprocess.Popen(inside(BOB, sys.executable, "-c", listen), stdout=subprocess.PIPE)
    try:
        assert listener.stdout is not None and listener.stdout.readline()
        connect = [sys.executable, "-c", CONNECT]
        assert subprocess.run(inside(BOB, *connect, "127.0.0.1", "4000", "5"), check=False).returncode == 0
        for outside in (ALICE, RELAY):
            refused = subprocess.run(
                inside(outside, *connect, "10.77.2.2", "4000", "0.5"), check=False, capture_output=True
            )
            assert b"TimeoutError" in refused.stderr
    finally:
        listener.kill()
        listener.communicate()

    daemon = start_relay(namespace=RELAY, host="0.0.0.0")
    endpoints = {home: f"relay:{daemon.address.hex()}:10.77.{n}.1:{daemon.port}" for home, n in HOMES.items()}
    node = [sys.executable, "-m", "tests.relay.home_node"]
    bob = subprocess.Popen(
        inside(BOB, *node, "answer", "bob", endpoints[BOB]), stdout=subprocess.PIPE, cwd=ROOT, text=True
    )
    try:
        assert bob.stdout is not None and bob.stdout.readline() == "reserved\n"
        alice = subprocess.run(
            inside(ALICE, *node, "call", "alice", endpoints[ALICE], "bob"),
            capture_output=True, cwd=ROOT, text=True, timeout=30, check=False,
        )  # fmt: skip
        assert alice.stdout == "emoh rehtona morf olleh\n", alice.stderr
        assert bob.wait(10) == 0
    finally:
        bob.kill()
        bob.communicate()
