"""What the benchmarks make of what they counted."""

from __future__ import annotations

import itertools
import json
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from testnet.wan.bench.measure import longest_gap_s, percentile
from testnet.wan.bench.paths import ROUTES, topology_of
from testnet.wan.bench.plot import WAYS, draw, figures_of, table
from testnet.wan.topology import document_of, parse_topology, plan

NS = 1_000_000_000


@given(st.lists(st.integers(-5 * NS, 25 * NS)))
def test_the_longest_gap_is_between_neighbours_inside_the_span(times: list[int]) -> None:
    gap = longest_gap_s(times, since_ns=0, until_ns=20 * NS)
    marks = [0, *sorted(t for t in times if 0 <= t <= 20 * NS), 20 * NS]
    gaps = [(b - a) / NS for a, b in itertools.pairwise(marks)]
    assert gap == max(gaps)
    assert 20 / (len(marks) - 1) <= gap + 1e-6
    assert gap <= 20


def test_a_silence_counts_whole() -> None:
    assert longest_gap_s([], since_ns=0, until_ns=14 * NS) == 14


@given(st.lists(st.floats(0, 1e6), min_size=1), st.integers(0, 100))
def test_a_percentile_is_one_of_the_values_with_enough_below(values: list[float], percent: int) -> None:
    found = percentile(values, percent)
    assert found in values
    assert sum(value <= found for value in values) * 100 >= min(percent, 99) * len(values)


def test_every_route_is_a_topology_that_can_be_written_down() -> None:
    for route in ROUTES:
        topology = topology_of(route)
        made = plan(parse_topology(json.dumps(document_of(topology))))
        assert made.topology == topology
        assert made.rtt_us("A", "B") == route.rtt_ms * 1_000
        last = f"R{route.relays}"
        over = made.rtt_us("A", "R1") + made.rtt_us(last, "B")
        over += made.rtt_us("R1", "R2") if route.relays == 2 else 0
        assert over == route.rtt_ms * 1_000  # relays do not shorten the way


def test_later_lines_replace_earlier_ones_and_all_that_was_measured_is_drawn() -> None:
    rates = {"direct": 1.8, "relayed": 93.1, "chosen": 92.5}
    figures = {f"{route.name}_{way}_mbit_per_s": rate for route in ROUTES for way, rate in rates.items()}
    lines = [
        json.dumps({"bench": "paths", "figures": dict.fromkeys(figures, 1.0)}), "no JSON", "[1]",
        json.dumps(figures),
    ]  # fmt: skip
    known = figures_of("\n".join(lines))
    assert known == figures
    root = ElementTree.fromstring(draw(known))
    bars = [each for each in root.iter() if each.tag.endswith("title")]
    assert len(bars) == len(ROUTES) * len(WAYS)
    assert table(known).count("| 1.8 | 93.1 | 92.5 | 0.99 |") == len(ROUTES)
    assert "nan" not in draw({}) and len(table({}).splitlines()) == 2
