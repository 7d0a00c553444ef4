"""Homes whose addresses change under traffic: conversations, bulk, reservations and records come along."""

from __future__ import annotations

import os

import pytest

from testnet.wan.agent import AgentSpec
from testnet.wan.bench.measure import longest_gap_s, node_at, relays_at
from testnet.wan.fleet import NODE_PORT, RELAY_PORT, Agent, agents
from testnet.wan.lab import Lab
from testnet.wan.topology import TopologyInvalid, parse_topology, plan
from tests.testnet.wan.emulated import TWO_HOMES, need_emulation

pytestmark = pytest.mark.cluster

TOPOLOGY = f"""
name = "roam"
{TWO_HOMES}
[hosts.GC]
[hosts.C]
behind = "GC"
[hosts.R1]
[hosts.R2]
[hosts.P]
[hosts.Q]
[default]
rtt = "40ms"
"""
VOTES = 600
INTERVAL_MS = 20
BULK_BYTES = 8 * 1024 * 1024
AWAY_S_MAX = 15.0
"""A bound for a machine that is busy with much else; it takes two to four."""


@pytest.fixture(scope="module")
def lab() -> Lab:
    need_emulation()
    return Lab(plan(parse_topology(TOPOLOGY)), f"r{os.getpid()}")


def test_a_home_that_changes_its_address_keeps_circuits_and_direct_connections(lab: Lab) -> None:
    with lab:
        specs = {name: AgentSpec(name, relay=f":{RELAY_PORT}") for name in ("R1", "R2")}
        for name in ("A", "B"):
            specs[name] = AgentSpec(name, reserve=relays_at(lab, "R1", "R2"), punches=False)
        specs["P"] = AgentSpec("P", listen=f":{NODE_PORT}")
        with agents(lab, specs) as nodes:
            home, relayed, direct = nodes["A"], nodes["B"], nodes["P"]
            assert home.ask("connect", peer="B", path=[*relays_at(lab, "R1")])["remote"].startswith("relay:")
            assert not home.ask("connect", peer="P", path=[node_at(lab, "P")])["remote"].startswith("relay:")
            for peer in ("B", "P"):
                home.ask("send", peer=peer, count=20, message_bytes=65_536)
                nodes[peer].ask("await_bulk", peer="A", size_bytes=20 * 65_536)
                nodes[peer].ask("heard", peer="A")
            votes = [home.begin("votes", peer=peer, count=VOTES, interval_ms=INTERVAL_MS) for peer in ("B", "P")]
            bulk = home.begin("send", peer="B", count=BULK_BYTES // 65_536, message_bytes=65_536)
            for other in (relayed, direct):
                other.ask("await_votes", peer="A", count=20)
            before = lab.address4("A")
            assert lab.roam("A") != (before, lab.plan.address6("A"))
            said = lab.run("A", ["ip", "-4", "address", "show", "dev", "wan0"]).stdout
            assert f"{before}/" not in said and f"{lab.address4('A')}/" in said
            for voting in votes:
                home.finish(voting)
            home.finish(bulk)
            relayed.ask("await_bulk", peer="A", size_bytes=BULK_BYTES)
            gaps = [outage_s(other) for other in (relayed, direct)]
            assert max(gaps) < AWAY_S_MAX, f"seconds without a vote, relayed and direct: {gaps}"
            print(f"seconds without a vote, relayed and direct: {gaps}")
            home.ask("await_reserved", count=2)
            # And who dials it afterwards finds it where it is now.
            relayed.ask("votes", peer="A", count=20, interval_ms=INTERVAL_MS)
            home.ask("await_votes", peer="B", count=20)
            # Two addresses go and two come: the check may fall between any of these.
            assert 1 <= home.ask("peers")["counters"]["roamed"] <= 4


def outage_s(node: Agent) -> float:
    """Return for how long no vote came; every one did in the end."""
    node.ask("await_votes", peer="A", count=VOTES)
    votes = node.ask("heard", peer="A")["votes"]
    assert {number for number, _, _ in votes} == set(range(VOTES))
    times = [at for _, _, at in votes]
    return longest_gap_s(times, since_ns=min(times), until_ns=max(times))


@pytest.mark.nightly
def test_where_a_roaming_host_can_be_dialled_is_found_and_told_anew(lab: Lab) -> None:
    """Over IPv6 alone: nobody translates it, so a home can be dialled at an address of its own."""
    with lab:
        specs = {name: AgentSpec(name, listen=f":{NODE_PORT}") for name in ("C", "P", "Q")}
        with agents(lab, specs) as nodes:
            home = nodes["C"]
            for peer in ("P", "Q"):
                there = f"[{lab.address6(peer)}]:{NODE_PORT}"
                assert home.ask("connect", peer=peer, path=[there])["remote"]
            for roams in range(2):
                if roams:
                    lab.roam("C", away_s=0.5)
                at = f"tcp:[{lab.address6('C')}]:{NODE_PORT}"
                for peer in ("P", "Q"):
                    nodes[peer].ask("await_record", peer="C", endpoints=[at])
            with pytest.raises(TopologyInvalid):
                lab.roam("P")
