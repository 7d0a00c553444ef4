"""Two homes behind NAT meet through relays and go on without them, where their NATs allow it."""

from __future__ import annotations

import os

import pytest

from testnet.wan.agent import AgentSpec
from testnet.wan.bench.measure import node_at, relays_at
from testnet.wan.fleet import NODE_PORT, RELAY_PORT, AgentFailed, agents
from testnet.wan.lab import Lab
from testnet.wan.topology import parse_topology, plan
from tests.testnet.wan.emulated import need_emulation

pytestmark = pytest.mark.cluster

TOPOLOGY = """
name = "punch"

[hosts.GA]
nat = "cone"

[hosts.A]
behind = "GA"

[hosts.GB]
nat = "{nat}"

[hosts.B]
behind = "GB"

[hosts.R1]

[hosts.R2]

[default]
rtt = "40ms"
"""


@pytest.mark.nightly
def test_behind_one_relay_a_public_peer_is_the_other_observer() -> None:
    need_emulation()
    with Lab(plan(parse_topology(TOPOLOGY.format(nat="cone"))), f"q{os.getpid()}") as lab:
        specs = {"R1": AgentSpec("R1", relay=f"0.0.0.0:{RELAY_PORT}")}
        specs["R2"] = AgentSpec("R2", listen=f"0.0.0.0:{NODE_PORT}")  # no relay: a node that accepts connections
        for name in ("A", "B"):
            specs[name] = AgentSpec(name, reserve=relays_at(lab, "R1"))
        with agents(lab, specs) as nodes:
            home, other = nodes["A"], nodes["B"]
            for node in (home, other):
                node.ask("connect", peer="R2", path=[node_at(lab, "R2")])
            assert home.ask("connect", peer="B", path=list(relays_at(lab, "R1")))["remote"].startswith("relay:")
            home.ask("await_path", peer="B", scheme="punch")
            other.ask("await_path", peer="A", scheme="punch")


@pytest.mark.parametrize("nat", ["cone", pytest.param("symmetric", marks=pytest.mark.nightly)])
def test_homes_meet_directly_where_their_nats_allow_it(nat: str) -> None:
    need_emulation()
    with Lab(plan(parse_topology(TOPOLOGY.format(nat=nat))), f"p{os.getpid()}") as lab:
        specs = {name: AgentSpec(name, relay=f"0.0.0.0:{RELAY_PORT}") for name in ("R1", "R2")}
        for name in ("A", "B"):
            specs[name] = AgentSpec(name, reserve=relays_at(lab, "R1", "R2"))
        with agents(lab, specs) as nodes:
            home, other = nodes["A"], nodes["B"]
            (relay,) = relays_at(lab, "R1")
            assert home.ask("connect", peer="B", path=[relay])["remote"].startswith("relay:")
            voting = home.begin("votes", peer="B", count=1_000, interval_ms=20)
            if nat == "symmetric":
                with pytest.raises(AgentFailed):
                    home.ask("await_path", peer="B", scheme="punch", timeout_s=18)
                assert home.ask("peers")["peers"][0]["remote"].startswith("relay:")
            else:
                home.ask("await_path", peer="B", scheme="punch")
                other.ask("await_path", peer="A", scheme="punch")
            home.finish(voting)
            other.ask("await_votes", peer="A", count=1_000)  # the change of paths lost nothing
            if nat == "cone":
                nodes["R1"].kill()
                nodes["R2"].kill()
                home.ask("votes", peer="B", count=20, interval_ms=20)
                other.ask("heard", peer="A")
                home.ask("send", peer="B", count=8, message_bytes=65_536)
                other.ask("await_bulk", peer="A", size_bytes=8 * 65_536)
