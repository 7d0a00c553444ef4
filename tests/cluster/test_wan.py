"""Two homes that accept no connection talk through relays; the relay in use is killed and they talk on."""

from __future__ import annotations

import os

import pytest

from testnet.wan.agent import AgentSpec, address_of
from testnet.wan.bench.measure import relays_at
from testnet.wan.bench.relay import dial, relays_in_use
from testnet.wan.fleet import RELAY_PORT, AgentFailed, agents
from testnet.wan.lab import Lab, load_plan
from tests.testnet.wan.emulated import need_emulation

pytestmark = pytest.mark.cluster

RELAYS = ("R1", "R2", "R3", "R4")
VOTES = 400


def test_homes_behind_nat_talk_through_relays_and_outlive_the_one_in_use() -> None:
    need_emulation()
    with Lab(load_plan("homes"), f"c{os.getpid()}") as lab:
        specs = {name: AgentSpec(name, relay=f"0.0.0.0:{RELAY_PORT}") for name in RELAYS}
        specs["A"] = AgentSpec("A", reserve=relays_at(lab, "R1", "R3"), punches=False)
        specs["B"] = AgentSpec("B", reserve=relays_at(lab, "R2", "R4"), punches=False)
        with agents(lab, specs) as nodes:
            home, other = nodes["A"], nodes["B"]
            dial(lab, nodes)
            assert home.ask("peers")["reserved"] == 2

            home.ask("votes", peer="B", count=20, interval_ms=20)
            other.ask("await_votes", peer="A", count=20)
            heard = other.ask("heard", peer="A")
            assert [number for number, _, _ in heard["votes"]] == list(range(20))

            home.ask("send", peer="B", count=8, message_bytes=65_536)
            other.ask("await_bulk", peer="A", size_bytes=8 * 65_536)
            other.ask("heard", peer="A")

            voting = home.begin("votes", peer="B", count=VOTES, interval_ms=20)
            used = relays_in_use(home, nodes)[0]
            other.ask("await_votes", peer="A", count=10)
            nodes.pop(used).kill()
            home.finish(voting)
            other.ask("await_votes", peer="A", count=VOTES, within_s=40)
            heard = other.ask("heard", peer="A")
            assert {number for number, _, _ in heard["votes"]} == set(range(VOTES))  # nothing is lost
            assert relays_in_use(home, nodes)

            home.ask("send", peer="B", count=8, message_bytes=65_536)
            other.ask("await_bulk", peer="A", size_bytes=8 * 65_536)

            # And nobody came in by another way.
            remotes = {peer["address"]: peer["remote"] for peer in home.ask("peers")["peers"]}
            assert remotes[address_of("B").hex()].startswith("relay:")

            with pytest.raises(AgentFailed):
                home.ask("dance")
