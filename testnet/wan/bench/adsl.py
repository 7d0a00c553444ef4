"""Bulk on an ADSL line in the first minute: with the node's choice of paths, and with each path alone.

One home has 10 Mbit/s down and 1 Mbit/s up. Every path to the other host has a round trip of 250 ms and 2 % loss,
direct or through one of two relays. No path is better, so any deficit of the choice is the cost of its trials.
"""

from __future__ import annotations

from typing import Final

from testnet.wan.agent import AgentSpec
from testnet.wan.bench.measure import bulk_rate, lab_name, lateness_of, node_at, relays_at, say
from testnet.wan.fleet import NODE_PORT, RELAY_PORT, agents
from testnet.wan.lab import Lab
from testnet.wan.topology import Host, Shape, Topology, plan

__all__ = ["adsl_topology", "first_minute"]

RTT_MS: Final = 250
LOSS_PPM: Final = 20_000
_RELAYS: Final = ("R1", "R2")
_WAYS: Final = ("direct", "relayed", "chosen")
_DIRECTIONS: Final = (("up", "A", "B"), ("down", "B", "A"))


def adsl_topology() -> Topology:
    """Return a home A with such a line, a host B with a good one, and two relays near B."""
    far = Shape(delay_us=RTT_MS * 500, loss_ppm=LOSS_PPM)
    near = Shape(delay_us=5_000)
    before = Shape(delay_us=RTT_MS * 500 - near.delay_us, loss_ppm=LOSS_PPM)
    links = {("A", "B"): far}
    for relay in _RELAYS:
        links |= {("A", relay): before, (relay, "B"): near}
    links |= {(other, one): line for (one, other), line in links.items()}
    up, down = Shape(rate_bit_per_s=10**6), Shape(rate_bit_per_s=10**7)
    good = Shape(rate_bit_per_s=100 * 10**6)
    hosts = (Host("A", up=up, down=down), Host("B", up=good, down=good), *map(Host, _RELAYS))
    return Topology("bench-adsl", hosts, links)


def first_minute(seconds: int = 60) -> dict[str, float]:
    """Measure bulk in both directions from the first byte, on each path alone and with the node's choice;
    Mbit/s.
    """
    figures: dict[str, float] = {}
    with Lab(plan(adsl_topology()), lab_name("paths")) as lab:
        for name, sender, receiver in _DIRECTIONS:
            say(f"ADSL, {name} ...")
            rates = {way: _rate(lab, way, sender, receiver, seconds) for way in _WAYS}
            say("  " + ", ".join(f"{way} {rate:.2f}" for way, rate in rates.items()))
            figures |= {f"adsl_{name}_{way}_mbit_per_s": round(rate, 3) for way, rate in rates.items()}
            better = max(rates["direct"], rates["relayed"])
            figures[f"adsl_{name}_share_of_better"] = round(rates["chosen"] / better, 3)
        return figures | lateness_of(lab)


def _rate(lab: Lab, way: str, sender: str, receiver: str, seconds: int) -> float:
    relays = _RELAYS if way != "direct" else ()
    specs = {name: AgentSpec(name, relay=f"0.0.0.0:{RELAY_PORT}") for name in relays}
    specs["A"] = AgentSpec("A", punches=False)
    listen = "" if way == "relayed" else f"0.0.0.0:{NODE_PORT}"
    specs["B"] = AgentSpec("B", listen=listen, reserve=relays_at(lab, *relays), punches=False)
    with agents(lab, specs) as nodes:
        for relay in relays:
            nodes["A"].ask("know", peer="B", path=list(relays_at(lab, relay)))
        if way != "relayed":
            nodes["A"].ask("know", peer="B", path=[node_at(lab, "B")])
        nodes["A"].ask("connect", peer="B")
        return bulk_rate(nodes[sender], nodes[receiver], seconds=seconds, warm_s=0)
