"""Routed IPv6 in namespaces: direct, through a relay, and from a home of IPv4 alone to one of IPv6 alone."""

from __future__ import annotations

import os

import pytest

from testnet.wan.agent import AgentSpec, relay_at
from testnet.wan.bench.measure import relays_at
from testnet.wan.fleet import NODE_PORT, RELAY_PORT, Agent, agents
from testnet.wan.lab import Lab
from testnet.wan.topology import parse_topology, plan
from tests.testnet.wan.emulated import TWO_HOMES, need_emulation

pytestmark = pytest.mark.cluster

TOPOLOGY = f"""
name = "six"
{TWO_HOMES}
[hosts.R]
[hosts.P]
[default]
rtt = "20ms"
"""


def told(node: Agent, peer: str, count: int = 20) -> None:
    """Let ``node`` send votes and bulk to another; the other must be asked for them."""
    node.ask("votes", peer=peer, count=count, interval_ms=5)
    node.ask("send", peer=peer, count=4, message_bytes=65_536)


def heard(node: Agent, peer: str, count: int = 20) -> None:
    node.ask("await_votes", peer=peer, count=count)
    node.ask("await_bulk", peer=peer, size_bytes=4 * 65_536)
    node.ask("heard", peer=peer)


def test_routed_ipv6_carries_conversations_reservations_and_circuits() -> None:
    need_emulation()
    with Lab(plan(parse_topology(TOPOLOGY)), f"s{os.getpid()}") as lab:
        lab.run("A", ["ip", "-6", "address", "flush", "dev", "wan0"])
        lab.run("B", ["ip", "-4", "address", "flush", "dev", "wan0"])
        (four,) = relays_at(lab, "R")
        six = f"R@[{lab.address6('R')}]:{RELAY_PORT}"
        specs = {
            "R": AgentSpec("R", relay=f":{RELAY_PORT}"),
            "P": AgentSpec("P", listen=f":{NODE_PORT}"),
            "A": AgentSpec("A", reserve=(six, four)),
            "B": AgentSpec("B", reserve=(four, six)),
        }
        with agents(lab, specs) as nodes:
            old, new, public = nodes["A"], nodes["B"], nodes["P"]
            for node in (old, new):
                node.ask("await_reserved", count=1)
            there = f"[{lab.address6('P')}]:{NODE_PORT}"
            assert new.ask("connect", peer="P", path=[there])["remote"] == f"tcp:{there}"
            told(new, "P")
            heard(public, "B")
            # Each home is told of by every place of its relay, whichever it can reach itself.
            places = [set(node.ask("record", peer=name)["endpoints"]) for name, node in (("A", old), ("B", new))]
            assert places[0] == places[1] == {str(relay_at(text)) for text in (four, six)}
            # One of IPv4 alone dials one of IPv6 alone at the place that only the other can reach.
            assert old.ask("connect", peer="B", path=[six])["remote"].startswith("relay:")
            told(old, "B")
            heard(new, "A")
            told(new, "A")
            heard(old, "B")
