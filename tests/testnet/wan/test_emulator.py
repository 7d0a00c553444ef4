"""Emulated lines: what they lose, delay and let through, measured in packets; NAT; changes; the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from testnet.wan.check import probe
from testnet.wan.emulator import EmulatorFailed
from testnet.wan.lab import Lab, attach, destroy, labs
from testnet.wan.topology import TopologyInvalid, parse_topology, plan
from tests.testnet.wan.emulated import need_emulation

pytestmark = pytest.mark.cluster

NAME = f"t{os.getpid()}"


@pytest.fixture(autouse=True)
def machine() -> None:
    need_emulation()


@contextmanager
def lab(document: dict[str, Any]) -> Iterator[Lab]:
    with Lab(plan(parse_topology(json.dumps({"name": "test", **document}))), NAME) as made:
        yield made


def line(**settings: Any) -> dict[str, Any]:
    return {"hosts": {"A": {}, "B": {}}, "links": [{"a": "A", "b": "B", "rtt": "10ms", **settings}]}


@pytest.mark.parametrize("version", [4, pytest.param(6, marks=pytest.mark.nightly)])
def test_losses_are_as_many_as_were_set(version: int) -> None:
    with lab(line(forward={"loss": "5%"})) as made:
        found = probe(made, "A", "B", count=6_000, rate_bit_per_s=30e6, version=version)
        counted = made.stats()["pipes"]["A>B"]
    # Five standard deviations of 6,000 packets at 5 % are 84.
    assert abs(counted["losses"] - 0.05 * counted["in"]) < 90
    assert abs(6_000 - found["received"] - 300) < 90
    assert counted["overflows"] == 0


@pytest.mark.nightly
def test_losses_in_bursts() -> None:
    with lab(line(burst={"every": 200, "length": 20})) as made:
        found = probe(made, "A", "B", count=6_000, rate_bit_per_s=30e6)
    assert 150 < 6_000 - found["received"] < 1_200  # 20 of 220 are 545; runs of losses vary much


def test_a_line_carries_its_rate_and_its_queue_holds_what_was_set() -> None:
    with lab(line(rate="8mbit", queue="30kB")) as made:
        made.reset()
        offered = 1_500
        probe(made, "A", "B", count=offered, rate_bit_per_s=16e6)
        counted = made.stats()["pipes"]["A>B"]
    assert counted["overflows"] > 0
    assert 28_000 <= counted["queue_peak_bytes"] <= 30_000
    # Offered at twice the rate for 1.1 s and more, it cannot have taken more than its rate and one queue.
    assert counted["out"] < 0.8 * offered


def test_delay_is_never_shorter_than_set() -> None:
    with lab(line(rtt="60ms", jitter="10ms")) as made:
        found = probe(made, "A", "B", count=300, rate_bit_per_s=2e6)
    assert found["received"] == 300
    assert found["delay_ms_min"] >= 30


def test_changes_hold_at_once_and_for_who_attaches() -> None:
    with lab(line()) as made:
        made.set("A-B", rtt="80ms")
        assert probe(attach(NAME), "A", "B", count=50, rate_bit_per_s=1e6)["delay_ms_min"] >= 40
        attach(NAME).set("A>B", down=True)
        assert attach(NAME).plan.pipes[made.plan.pipe_number("A>B")].shape.down
        with pytest.raises(TopologyInvalid):
            made.set("A>C", down=True)
        with pytest.raises(EmulatorFailed):
            made.emulator._tell("set 0 rate=fast")
        with pytest.raises(TopologyInvalid):
            made.set("A-B", speed="1mbit")


HOMES: dict[str, Any] = {
    "hosts": {
        "GA": {"nat": "cone"}, "A": {"behind": "GA"}, "GB": {"nat": "symmetric"}, "B": {"behind": "GB"}, "P": {},
    },
    "default": {"rtt": "4ms"},
}  # fmt: skip

OBSERVE = """
import socket, sys
here = socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM)
here.bind(("", 7000))
here.settimeout(15)
print("ready", flush=True)
for _ in range(2):
    data, at = here.recvfrom(100)
    print(at[0], at[1], flush=True)
    here.sendto(b"seen", at)
"""
ASK = """
import socket, sys
here = socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM)
here.bind(("", 5000))
here.settimeout(15)
for where in sys.argv[1:]:
    here.sendto(b"who am I", (where, 7000))
    assert here.recv(100) == b"seen"
"""


def observed(made: Lab, home: str, *observers: str) -> list[tuple[str, int]]:
    """Return as whom each observer sees one socket of a home."""
    seen: list[tuple[str, int]] = []
    processes = [
        made.popen(name, [sys.executable, "-c", OBSERVE.replace("range(2)", "range(1)"), where],
                   stdout=subprocess.PIPE, text=True)
        for name, where in zip(observers, wheres(made, observers), strict=True)
    ]  # fmt: skip
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    made.run(home, [sys.executable, "-c", ASK, *wheres(made, observers)], timeout=60)
    for process in processes:
        said, _ = process.communicate(timeout=60)
        host, port = said.split()
        seen.append((host, int(port)))
    return seen


def wheres(made: Lab, observers: tuple[str, ...]) -> list[str]:
    return [str(made.plan.address4(name)) for name in observers]


def test_gateways_translate_as_their_kind_does_and_let_nothing_in_unasked() -> None:
    document = {**HOMES, "hosts": {**HOMES["hosts"], "Q": {}}}
    with lab(document) as made:
        cone = observed(made, "A", "P", "Q")
        assert cone == [(str(made.plan.address4("GA")), 5000)] * 2
        symmetric = observed(made, "B", "P", "Q")
        assert {host for host, _ in symmetric} == {str(made.plan.address4("GB"))}
        assert symmetric[0][1] != symmetric[1][1]
        # From outside: no answer from behind a home's gateway over IPv6, where there is no translation to stop it.
        assert made.run("P", knock(made, "A"), check=False).returncode == 1
        # The other way there is one.
        listener = made.popen("P", [sys.executable, "-c", LISTEN], stdout=subprocess.PIPE, text=True)
        assert listener.stdout is not None and listener.stdout.readline() == "ready\n"
        assert made.run("A", knock(made, "P"), check=False).returncode == 0


LISTEN = """
import socket
here = socket.create_server(("::", 7001), family=socket.AF_INET6)
print("ready", flush=True)
here.accept()
"""
KNOCK = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 7001), 3)
except TimeoutError:
    sys.exit(1)
"""


def knock(made: Lab, host: str) -> list[str]:
    return [sys.executable, "-c", KNOCK, str(made.plan.address6(host))]


def test_a_lab_whose_maker_died_is_taken_down_by_its_name() -> None:
    script = f"""
import os
from testnet.wan.lab import Lab, load_plan
lab = Lab(load_plan("homes"), {NAME!r})
lab.up()
lab.popen("A", ["sleep", "1000"])
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", script], check=False)
    assert NAME in labs()
    assert attach(NAME).run("A", ["true"]).returncode == 0
    emulator = attach(NAME).emulator._running()
    assert emulator is not None
    assert destroy(NAME)
    assert NAME not in labs()
    assert not destroy(NAME)
    with pytest.raises(TopologyInvalid):
        attach(NAME)
