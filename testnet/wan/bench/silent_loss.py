"""Interruption of votes and bulk after a silent path failure, and the rate of false alarms on a bad line.

Packets are dropped without resets, as after the failure of a router. In the second part the line is 3G: no path
may be given up there, whatever TCP retransmits.
"""

from __future__ import annotations

import time
from typing import Any, Final

from testnet.wan.agent import AgentSpec, address_of
from testnet.wan.bench.measure import lab_name, lateness_of, longest_gap_s, node_at, relays_at, say
from testnet.wan.fleet import NODE_PORT, RELAY_PORT, Agent, agents
from testnet.wan.lab import Lab
from testnet.wan.topology import Host, Shape, Topology, plan

__all__ = ["false_alarms", "mobile_topology", "silent_death", "silent_topology"]

RTT_MS: Final = 100
VOTE_MS: Final = 20
MOBILE_VOTE_MS: Final = 100
CALM_S: Final = 8.0
"""Until bulk has reached its rate."""
BEFORE_S: Final = 2.0
AFTER_S: Final = 14.0
_NS: Final = 1_000_000_000
_RELAYS: Final = ("R1", "R2")
_ALARMS: Final = ("false_alarms", "silent_paths", "bulk_connections_stalled")
"""Counters of paths left for their silence. Without a failure each count is a false alarm."""
_TRIES: Final = ("suspicions_refuted",)


def silent_topology(rtt_ms: int = RTT_MS) -> Topology:
    """Return two hosts with a line between them, and two relays halfway on separate lines."""
    access = Shape(rate_bit_per_s=100 * 10**6)
    links = {("A", "B"): Shape(delay_us=rtt_ms * 500, loss_ppm=100)}
    links |= {pair: Shape(delay_us=rtt_ms * 250, loss_ppm=100) for relay in _RELAYS for pair in _ends(relay)}
    return _network("bench-silent", access, access, links)


def mobile_topology() -> Topology:
    """Return the same on 3G: round trip 400 ms and 3 % loss from end to end on every path."""
    up, down = Shape(rate_bit_per_s=2 * 10**6), Shape(rate_bit_per_s=7 * 10**6)
    links = {("A", "B"): Shape(delay_us=200_000, loss_ppm=30_000)}
    for relay in _RELAYS:
        links["A", relay] = Shape(delay_us=150_000, loss_ppm=30_000)
        links["B", relay] = Shape(delay_us=50_000)
    return _network("bench-mobile", up, down, links)


def _ends(relay: str) -> tuple[tuple[str, str], tuple[str, str]]:
    return ("A", relay), ("B", relay)


def _network(name: str, up: Shape, down: Shape, links: dict[tuple[str, str], Shape]) -> Topology:
    links = links | {(other, one): line for (one, other), line in links.items()}
    hosts = [Host("A", up=up, down=down), Host("B", up=Shape(rate_bit_per_s=100 * 10**6))]
    return Topology(name, (*hosts, *map(Host, _RELAYS)), links)


def silent_death(rounds: int = 1) -> dict[str, float]:
    """Cut the path in use under votes and bulk; return the worst interruption of each over all rounds."""
    figures: dict[str, float] = {}
    for number in range(rounds):
        for way in ("direct", "relay"):
            say(f"the {way} way in use disappears, round {number + 1} ...")
            with Lab(plan(silent_topology()), lab_name("paths")) as lab:
                for name, value in (_cut(lab, way) | lateness_of(lab)).items():
                    figures[name] = max(figures.get(name, 0.0), value)
    return figures


def _cut(lab: Lab, way: str) -> dict[str, float]:
    with agents(lab, _specs(lab, listens=way == "direct")) as nodes:
        home, other = _connect(lab, nodes, is_direct=way == "direct")
        other.ask("heard", peer="A")
        flood = home.begin("flood", peer="B")
        time.sleep(CALM_S)
        count = int((BEFORE_S + AFTER_S) * 1_000 / VOTE_MS)
        votes = home.begin("votes", peer="B", count=count, interval_ms=VOTE_MS)
        time.sleep(BEFORE_S)
        used = _relay_in_use(home)
        cut = ("A-B",) if used is None else (f"A-{used}", f"B-{used}")
        at = time.monotonic_ns()
        for line in cut:
            lab.set(line, down=True)
        home.finish(votes)
        home.ask("stop", peer="B")
        home.finish(flood)
        time.sleep(1.0)
        heard = other.ask("heard", peer="A")
    numbers = {number for number, _, _ in heard["votes"]}
    span = {"since_ns": at - _NS // 2, "until_ns": at + int((AFTER_S - 2) * _NS)}
    figures = {
        f"silent_{way}_votes_s": longest_gap_s((came for _, _, came in heard["votes"]), **span),
        f"silent_{way}_bulk_s": longest_gap_s((came for came, _ in heard["bulk"]), **span),
        f"silent_{way}_votes_lost": float(count - len(numbers)),
    }
    say("  " + ", ".join(f"{name} {value:.2f}" for name, value in figures.items()))
    return {name: round(value, 3) for name, value in figures.items()}


def false_alarms(seconds: int = 120) -> dict[str, float]:
    """Send votes and bulk over 3G for this time; return how often a path was given up or tried in vain."""
    say(f"votes and bulk over 3G for {seconds} s ...")
    with Lab(plan(mobile_topology()), lab_name("paths")) as lab:
        with agents(lab, _specs(lab, listens=True)) as nodes:
            home, other = _connect(lab, nodes, is_direct=True)
            flood = home.begin("flood", peer="B", message_bytes=16_384)
            time.sleep(CALM_S)
            before = [_counters(home), _counters(other)]
            count = seconds * 1_000 // MOBILE_VOTE_MS
            votes = home.begin("votes", peer="B", count=count, interval_ms=MOBILE_VOTE_MS)
            home.finish(votes, within_s=seconds + 60)
            after = [_counters(home), _counters(other)]
            home.ask("stop", peer="B")
            home.finish(flood)
        changes = [
            {name: end.get(name, 0) - start.get(name, 0) for name in end}
            for start, end in zip(before, after, strict=True)
        ]
        figures = {
            "mobile_false_alarms": float(max(sum(one.get(name, 0) for name in _ALARMS) for one in changes)),
            "mobile_tries_refuted": float(sum(one.get(name, 0) for one in changes for name in _TRIES)),
        }
        say("  " + ", ".join(f"{name} {value:.0f}" for name, value in figures.items()))
        return figures | lateness_of(lab)


def _specs(lab: Lab, *, listens: bool) -> dict[str, AgentSpec]:
    specs = {name: AgentSpec(name, relay=f"0.0.0.0:{RELAY_PORT}") for name in _RELAYS}
    specs["A"] = AgentSpec("A", punches=False)
    listen = f"0.0.0.0:{NODE_PORT}" if listens else ""
    specs["B"] = AgentSpec("B", listen=listen, reserve=relays_at(lab, *_RELAYS), punches=False)
    return specs


def _connect(lab: Lab, nodes: dict[str, Agent], *, is_direct: bool) -> tuple[Agent, Agent]:
    home, other = nodes["A"], nodes["B"]
    for relay in _RELAYS:
        home.ask("know", peer="B", path=list(relays_at(lab, relay)))
    if is_direct:
        home.ask("know", peer="B", path=[node_at(lab, "B")])
    home.ask("connect", peer="B")
    return home, other


def _counters(agent: Agent) -> dict[str, int]:
    counters: dict[str, int] = agent.ask("peers")["counters"]
    return counters


def _relay_in_use(home: Agent) -> str | None:
    """Return the relay that votes from A to B use; None: they go directly."""
    remotes: list[dict[str, Any]] = home.ask("peers")["peers"]
    remote = next(peer["remote"] for peer in remotes if peer["address"] == address_of("B").hex())
    return next((name for name in _RELAYS if address_of(name).hex() in remote), None)
