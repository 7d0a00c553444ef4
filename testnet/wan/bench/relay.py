"""``dekube bench relay``: the cost of the daemon on loopback, and two relays between two homes on a bad route.

The second part runs on the topology ``homes``, all variants in one run. They are plain TCP by iperf3 over a
forwarded port (cubic and BBR), the product's transport over the same port, and the product between homes without a
forwarded port and without hole punching. Last, the relays in use are killed under votes and bulk.
"""

from __future__ import annotations

import time
from typing import Any, Final

from node.bench import relay as loopback
from testnet.wan.agent import AgentSpec, address_of
from testnet.wan.bench.measure import (
    IPERF_PORT,
    bulk_rate,
    bulk_rate_and_settling,
    can_emulate,
    has_iperf,
    iperf,
    lab_name,
    lateness_of,
    longest_gap_s,
    relays_at,
    say,
    verdict,
)
from testnet.wan.fleet import NODE_PORT, RELAY_PORT, Agent, agents
from testnet.wan.lab import Lab, load_plan

__all__ = ["run"]

RELAYS: Final = ("R1", "R2", "R3", "R4")
VOTE_MS: Final = 20
CALM_S: Final = 3.0
FINDING_S: Final = 20.0
"""Time to find the best of nine paths by trying them with the traffic itself."""
AFTER_S: Final = 15.0
_NS: Final = 1_000_000_000


def run(
    *, megabytes: int = 2_000, circuits: int = 4, reservations: int = 10_000, wan: int = 1, seconds: int = 10,
    warm_s: int = 8, loopback_too: int = 1,
) -> dict[str, float]:  # fmt: skip
    """Measure and return the figures; ``wan=0`` leaves out the part that needs root."""
    figures: dict[str, float] = {}
    if loopback_too:
        say("the daemon on loopback ...")
        figures |= loopback.run(megabytes=megabytes, circuits=circuits, reservations=reservations)
    if wan and can_emulate():
        figures |= _homes(seconds, warm_s)
    return verdict(figures)


def _homes(seconds: int, warm_s: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    with Lab(load_plan("homes"), lab_name("relay")) as lab:
        at = str(lab.plan.address4("GB"))
        with lab.forwarded("GB", IPERF_PORT, "B"):
            for congestion in ("cubic", "bbr") if has_iperf() else ():
                say(f"plain TCP from home to home, {congestion} ...")
                rate = iperf(lab, "A", "B", congestion, seconds=seconds, warm_s=min(warm_s, 4), at=at)
                figures[f"{congestion}_mbit_per_s"] = rate
        say("the transport from home to home, no relay ...")
        homes = {"A": AgentSpec("A"), "B": AgentSpec("B", listen=f"0.0.0.0:{NODE_PORT}")}
        with lab.forwarded("GB", NODE_PORT, "B"), agents(lab, homes) as nodes:
            nodes["A"].ask("connect", peer="B", path=[f"{at}:{NODE_PORT}"])
            figures["direct_mbit_per_s"] = bulk_rate(nodes["A"], nodes["B"], seconds=seconds, warm_s=warm_s)
        say("the transport from home to home, relays ...")
        homes = {name: AgentSpec(name, relay=f"0.0.0.0:{RELAY_PORT}") for name in RELAYS}
        homes["A"] = AgentSpec("A", reserve=relays_at(lab, "R1", "R3"), punches=False)
        homes["B"] = AgentSpec("B", reserve=relays_at(lab, "R2", "R4"), punches=False)
        with agents(lab, homes) as nodes:
            dial(lab, nodes)
            figures["relayed_mbit_per_s"], figures["relayed_settled_after_s"] = bulk_rate_and_settling(
                nodes["A"], nodes["B"], seconds=seconds, warm_s=FINDING_S
            )
            figures |= _failover(nodes)
        figures |= lateness_of(lab)
    return {name: round(value, 3) for name, value in figures.items()}


def dial(lab: Lab, nodes: dict[str, Agent]) -> None:
    """Connect A to B through the relays at which each has a reservation."""
    for far in ("R4", "R2"):
        nodes["A"].begin("know", peer="B", path=list(relays_at(lab, far)))
    nodes["A"].ask("connect", peer="B")


def _failover(nodes: dict[str, Agent]) -> dict[str, float]:
    """Kill both relays in use, one after the other, under votes and bulk; return the longer interruption."""
    figures: dict[str, float] = {}
    alive = dict(nodes)
    for is_far in (True, False):
        for name, value in _kill(alive, is_far=is_far).items():
            figures[name] = max(figures.get(name, 0.0), value)
    return figures


def _kill(nodes: dict[str, Agent], *, is_far: bool) -> dict[str, float]:
    home, other = nodes["A"], nodes["B"]
    other.ask("heard", peer="A")
    flood = home.begin("flood", peer="B")
    time.sleep(CALM_S)
    count = int((CALM_S + AFTER_S) * 1_000 / VOTE_MS)
    votes = home.begin("votes", peer="B", count=count, interval_ms=VOTE_MS)
    time.sleep(CALM_S)
    used = relays_in_use(home, nodes)[0 if is_far else -1]
    say(f"{used}, a relay in use, is killed ...")
    killed_at = time.monotonic_ns()
    nodes.pop(used).kill()
    taken = home.finish(votes)["taken"]
    home.ask("stop", peer="B")
    home.finish(flood)
    time.sleep(1.0)
    heard = other.ask("heard", peer="A")
    numbers = {number for number, _, _ in heard["votes"]}
    span = {"since_ns": killed_at - _NS // 2, "until_ns": killed_at + int((AFTER_S - 1) * _NS)}
    return {
        "relay_failover_consensus_s": longest_gap_s((at for _, _, at in heard["votes"]), **span),
        "relay_failover_bulk_s": longest_gap_s((at for at, _ in heard["bulk"]), **span),
        "relay_failover_votes_lost": float(count - len(numbers)),
        "relay_failover_votes_refused": float(count - taken),
    }


def relays_in_use(home: Agent, nodes: dict[str, Agent]) -> list[str]:
    """Return the relays that votes from A to B use, beginning with B's own."""
    remotes: list[dict[str, Any]] = home.ask("peers")["peers"]
    remote = next(peer["remote"] for peer in remotes if peer["address"] == address_of("B").hex())
    found = {remote.find(address_of(name).hex()): name for name in nodes if name in RELAYS}
    return [name for at, name in sorted(found.items()) if at >= 0]
