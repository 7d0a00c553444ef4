"""Validators at home behind NAT, no port open: they agree on blocks through relays, also when one relay dies."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from p2p.path.dial_back import DialBackOptions
from testnet.wan.lab import Lab, load_plan
from testnet.wan.network import METRICS_PORT, PEER_PORT, HomeNetwork, lay_out_homes
from testnet.wan.topology import parse_topology, plan
from tests.cluster.network import PATIENCE_S, wait_for
from tests.testnet.wan.emulated import need_emulation

pytestmark = pytest.mark.cluster

BLOCKS = 3
REACHED_PATIENCE_S = 3 * DialBackOptions().per_peer_s
"""A peer that could not reach a node within seconds, as on a busy machine, is asked again only after this time."""


def heights(network: HomeNetwork) -> list[int]:
    statuses = [network.status(host) for host in network.validators]
    return [-1 if status is None else int(status["height"]) for status in statuses]


def have(network: HomeNetwork, height: int) -> bool:
    return min(heights(network)) >= height


def go_on(network: HomeNetwork, what: str) -> None:
    """Wait until every validator has ``BLOCKS`` blocks more than the highest has now."""
    wait_for(partial(have, network, max(heights(network)) + BLOCKS), what, patience_s=2 * PATIENCE_S)


def reservations(network: HomeNetwork) -> list[int]:
    statuses = [network.status(host) for host in network.validators]
    return [-1 if status is None else int(status["relays"]) for status in statuses]


def timeouts(network: HomeNetwork) -> int:
    """Return in how many views, of all validators together, somebody waited in vain."""
    read = (
        f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:{METRICS_PORT}/metrics').read().decode())"
    )
    texts = [network.lab.run(host, [sys.executable, "-c", read]).stdout for host in network.validators]
    lines = [line for text in texts for line in text.splitlines() if "view_timeouts_total{" in line]
    return int(sum(float(line.rsplit(" ", 1)[1]) for line in lines))


def test_validators_that_nobody_can_dial_agree_on_blocks(tmp_path: Path) -> None:
    need_emulation()
    with Lab(load_plan("validators"), f"v{os.getpid()}") as lab:
        network = lay_out_homes(lab, tmp_path / "net")
        with network.running() as processes:
            wait_for(lambda: min(heights(network)) >= 3, "blocks are final at every home")
            # A busy machine makes time-outs of its own: a kill may cost as many as the blocks before it did.
            costs: list[tuple[int, int]] = []
            for relay in ("R1", "R2", "R1"):
                began = timeouts(network)
                go_on(network, "blocks with all relays")
                before = timeouts(network)
                processes[relay].kill()
                processes[relay].wait()
                go_on(network, "blocks go on without a relay")
                costs.append((before - began, timeouts(network) - before))
                assert all(process.poll() is None for host, process in processes.items() if host != relay)
                if costs[-1][1] <= costs[-1][0]:
                    break
                processes[relay] = network.start(relay)
                wait_for(lambda: all(reserved == 2 for reserved in reservations(network)), "it is used again")
            assert any(after <= before for before, after in costs), (
                f"views timed out before, after a kill: {costs}"
            )


MIXED = """
name = "mixed"
[hosts.GA]
region = "home"
nat = "cone"
[hosts.A]
behind = "GA"
[hosts.R1]
region = "hub"
[hosts.P1]
region = "hub"
[hosts.P2]
region = "hub"
[hosts.P3]
region = "hub"
[regions.home]
rtt = "40ms"
[regions."home/hub"]
rtt = "20ms"
[regions.hub]
rtt = "10ms"
"""


def test_validators_find_out_how_they_are_reached(tmp_path: Path) -> None:
    """All as ``dekube init`` makes them: they listen everywhere, and nobody tells them where that is."""
    need_emulation()
    with Lab(plan(parse_topology(MIXED)), f"m{os.getpid()}") as lab:
        network = lay_out_homes(lab, tmp_path / "net", public_validators=("P1", "P2", "P3"))
        with network.running():
            wait_for(lambda: min(heights(network)) >= 3, "blocks are final everywhere")

            def reached(host: str) -> dict[str, Any]:
                status = network.status(host)
                return {} if status is None else dict(status["reachability"])

            def is_direct(host: str) -> bool:
                return reached(host).get("how") == "direct"

            for host in ("P1", "P2", "P3"):
                known = "it knows that others can dial it"
                wait_for(partial(is_direct, host), known, patience_s=REACHED_PATIENCE_S)
                there = f"tcp:{lab.plan.address4(host)}:{PEER_PORT}"
                assert reached(host)["endpoints"] == {there: "public"}
            through = "it is reached through its relay"
            wait_for(lambda: reached("A").get("how") == "relays", through, patience_s=REACHED_PATIENCE_S)
            at_home = reached("A")
            assert len(at_home["relays"]) == 1
            # Whether anybody could try it directly depends on who dialled whom first.
            assert {*at_home["endpoints"].values()} <= {"closed", "unknown"}
