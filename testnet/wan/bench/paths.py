"""``dekube bench paths``: the path that a node chooses to a peer on routes of many kinds, and its rate.

Each route is measured with the product's transport in three variants: direct only, through relays only, and with
the node's choice between both. With ``rounds`` above 1 the variants alternate, and medians count. The target of
the choice: nine tenths of the access line's payload rate if one of the variants reaches that, and at least 0.95 of
the better variant.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Final

from testnet.wan.agent import AgentSpec
from testnet.wan.bench.adsl import first_minute
from testnet.wan.bench.measure import bulk_rate, lab_name, lateness_of, node_at, relays_at, say, verdict
from testnet.wan.bench.silent_loss import false_alarms, silent_death
from testnet.wan.fleet import NODE_PORT, RELAY_PORT, agents
from testnet.wan.lab import Lab
from testnet.wan.topology import Host, Shape, Topology, plan

__all__ = ["ROUTES", "Route", "run"]

ACCESS_MBIT: Final = 100
ACCESS: Final = Shape(rate_bit_per_s=ACCESS_MBIT * 10**6)
BACKBONE: Final = Shape(rate_bit_per_s=10**9, queue_us=50_000)
CLEAN_PPM: Final = 100
WAYS: Final = ("direct", "relayed", "chosen")
MEASURED_S: Final = 10
"""BBR drains its flow once in ten seconds for a round trip and 200 ms. A shorter measurement may or may not
contain that."""
_LATENESS: Final = ("emulator_late_percent", "emulator_late_max_ms")
BUFFERS: Final = {
    "net.ipv4.tcp_wmem": "4096 16384 33554432",
    "net.ipv4.tcp_rmem": "4096 131072 33554432",
    "net.ipv4.tcp_slow_start_after_idle": "0",
}


@dataclass(frozen=True, slots=True)
class Route:
    """Two hosts A and B, the line between them, and relays R1 near A and R2 near B (or one near A only)."""

    name: str
    rtt_ms: int
    loss_percent: float
    access_ms: int
    """Round trip between a host and its relay."""
    access_loss_percent: float = CLEAN_PPM / 10_000
    """Loss between A and its relay."""
    exchange_mbit: int = 0
    """Rate of the direct line if it is a bottleneck."""
    relays: int = 2


def _routes() -> Iterator[Route]:
    for rtt, access in ((40, 10), (100, 20), (200, 20)):
        for loss in (0, 0.1, 0.5, 1, 2):
            yield Route(f"rtt{rtt}_loss{loss:g}".replace(".", "p"), rtt, loss, access)
    for loss in (1, 3):
        yield Route(f"congested_loss{loss}", 160, loss, 10, exchange_mbit=2)
    for loss in (0.5, 1, 2):
        yield Route(f"near_loss{loss:g}".replace(".", "p"), 200, loss, 20, relays=1)
    for loss in (0.5, 1, 2):
        yield Route(f"lossy_access_loss{loss:g}".replace(".", "p"), 200, loss, 20, access_loss_percent=loss)


ROUTES: Final = tuple(_routes())


def run(
    *, first: int = 0, count: int = len(ROUTES), seconds: int = MEASURED_S, warm_s: int = 6, rounds: int = 1,
    silent: int = 1, mobile_s: int = 120, adsl_s: int = 60,
) -> dict[str, float]:  # fmt: skip
    """Measure ``count`` routes from number ``first`` and return the figures; rates in Mbit/s.

    ``silent``: number of rounds in which the used path fails silently. ``mobile_s``: duration of votes over 3G.
    ``adsl_s``: duration of bulk over ADSL.
    """
    figures: dict[str, float] = {}
    late: list[dict[str, float]] = []
    for measure, much in ((silent_death, silent), (false_alarms, mobile_s), (first_minute, adsl_s)):
        if much > 0:
            found = measure(much)
            late.append({name: found.pop(name) for name in _LATENESS})
            figures |= found
    for route in ROUTES[first : first + count]:
        say(f"{route.name} ...")
        taken: dict[str, list[float]] = {way: [] for way in WAYS}
        with Lab(plan(topology_of(route)), lab_name("paths")) as lab:
            for _ in range(rounds):
                for way in WAYS:
                    taken[way].append(_rate(lab, route, way, seconds, warm_s))
                say("  " + ", ".join(f"{way} {taken[way][-1]:.1f}" for way in WAYS))
            late.append(lateness_of(lab))
        rates = {way: median(taken[way]) for way in WAYS}
        figures |= {f"{route.name}_{way}_mbit_per_s": round(rate, 2) for way, rate in rates.items()}
        figures[f"{route.name}_share_of_better"] = round(
            rates["chosen"] / max(rates["direct"], rates["relayed"]), 3
        )
    figures |= {name: max(one[name] for one in late) for name in _LATENESS if late}
    return verdict(figures)


def _rate(lab: Lab, route: Route, way: str, seconds: int, warm_s: int) -> float:
    names = tuple(f"R{n + 1}" for n in range(route.relays)) if way != "direct" else ()
    specs = {name: AgentSpec(name, relay=f"0.0.0.0:{RELAY_PORT}") for name in names}
    specs["A"] = AgentSpec("A", reserve=relays_at(lab, *names[:1]))
    specs["B"] = AgentSpec(
        "B", listen=f"0.0.0.0:{NODE_PORT}" if way != "relayed" else "", reserve=relays_at(lab, *names[-1:])
    )
    with agents(lab, specs) as nodes:
        if names:
            nodes["A"].ask("know", peer="B", path=list(relays_at(lab, names[-1])))
        if way != "relayed":
            nodes["A"].ask("know", peer="B", path=[node_at(lab, "B")])
        nodes["A"].ask("connect", peer="B")
        return bulk_rate(nodes["A"], nodes["B"], seconds=seconds, warm_s=warm_s * (2 if way == "chosen" else 1))


def topology_of(route: Route) -> Topology:
    """Return the network of a route."""

    def shape(rtt_ms: int, loss_percent: float, mbit: int = 0) -> Shape:
        return Shape(delay_us=rtt_ms * 500, loss_ppm=round(loss_percent * 10_000), rate_bit_per_s=mbit * 10**6)

    bad = shape(route.rtt_ms, route.loss_percent, route.exchange_mbit)
    near = shape(route.access_ms, route.access_loss_percent)
    links: dict[tuple[str, str], Shape] = {("A", "B"): bad, ("A", "R1"): near}
    if route.relays == 1:
        links["R1", "B"] = shape(route.rtt_ms - route.access_ms, route.loss_percent)
    else:
        # Whoever goes from one side to the other without the relays' own line takes the bad one.
        links |= {("A", "R2"): bad, ("R1", "B"): bad}
        links["R1", "R2"] = Shape(
            rate_bit_per_s=BACKBONE.rate_bit_per_s, queue_us=BACKBONE.queue_us,
            delay_us=(route.rtt_ms - 2 * route.access_ms) * 500,
        )  # fmt: skip
        links["R2", "B"] = shape(route.access_ms, CLEAN_PPM / 10_000)
    links |= {(other, one): line for (one, other), line in links.items()}
    hosts = [Host("A", up=ACCESS, down=ACCESS), Host("B", up=ACCESS, down=ACCESS)]
    hosts += [Host(f"R{n + 1}") for n in range(route.relays)]
    return Topology("bench-paths", tuple(hosts), links, sysctl=BUFFERS)
