"""``dekube bench transport``: throughput of the encrypted peer channel on loopback, and votes behind bulk on a
home's uplink.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Final

from node.bench import transport as loopback
from testnet.wan.agent import AgentSpec
from testnet.wan.bench.measure import can_emulate, lab_name, lateness_of, node_at, percentile, say, verdict
from testnet.wan.fleet import NODE_PORT, agents
from testnet.wan.lab import Lab
from testnet.wan.topology import parse_topology, plan

__all__ = ["run"]

UPLINK: Final = """
name = "uplink"
[hosts.A]
up = { rate = "40mbit" }
down = { rate = "100mbit" }
[hosts.B]
up = { rate = "100mbit" }
down = { rate = "100mbit" }
[[links]]
a = "A"
b = "B"
rtt = "40ms"
"""
VOTE_MS: Final = 20
WINDOW_VOTES: Final = 100
WARM_S: Final = 6.0


def run(
    *, bulk_mib: int = 512, small_messages: int = 400_000, wan: int = 1, votes: int = 2_500
) -> dict[str, float]:
    """Measure and return the figures; ``wan=0`` leaves out the part that needs root.

    ``vote_p95_ms`` is one way, with ``votes`` votes at intervals of 20 ms. The first seconds of the transfer are
    left out; path trials during the rest are included. ``vote_calm_p95_ms`` is the median of its windows of 2 s.
    """
    figures = dict(loopback.run(bulk_mib=bulk_mib, small_messages=small_messages))
    if wan and can_emulate():
        figures |= _votes_under_bulk(votes)
    return verdict(figures)


def _votes_under_bulk(count: int) -> dict[str, float]:
    """Return the one-way times of votes while bulk fills the same uplink, and the bulk rate."""
    say("votes behind bulk on an uplink of 40 Mbit/s ...")
    with Lab(plan(parse_topology(UPLINK)), lab_name("transport")) as lab:
        specs = {name: AgentSpec(name, listen=f"0.0.0.0:{NODE_PORT}") for name in ("A", "B")}
        with agents(lab, specs) as nodes:
            sender, receiver = nodes["A"], nodes["B"]
            sender.ask("connect", peer="B", path=[node_at(lab, "B")])
            flood = sender.begin("flood", peer="B")
            time.sleep(WARM_S)
            began = receiver.ask("heard", peer="A")["at"]
            sender.ask("votes", peer="B", count=count, interval_ms=VOTE_MS, within_s=count * VOTE_MS / 1_000 + 30)
            time.sleep(0.5)
            heard = receiver.ask("heard", peer="A")
            sender.ask("stop", peer="B")
            sender.finish(flood)
        delays = [(at - sent_at) / 1e6 for _, sent_at, at in heard["votes"]]
        windows = [delays[at : at + WINDOW_VOTES] for at in range(0, len(delays), WINDOW_VOTES)]
        return {
            "vote_p50_ms": round(percentile(delays, 50), 2),
            "vote_p95_ms": round(percentile(delays, 95), 2),
            "vote_calm_p95_ms": round(median(percentile(window, 95) for window in windows), 2),
            "votes_lost": float(count - len(delays)),
            "vote_bulk_mbit_per_s": round(heard["bulk_bytes"] * 8e3 / (heard["at"] - began), 1),
            **lateness_of(lab),
        }
