"""Topologies: a strict form, read as written, planned as pipes and routes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testnet.wan.emulator import describe
from testnet.wan.lab import shipped
from testnet.wan.topology import (
    PPM,
    QUEUE_PACKETS_MIN,
    Burst,
    Host,
    Shape,
    Topology,
    TopologyInvalid,
    document_of,
    parse_settings,
    parse_topology,
    plan,
)

SMALL: dict[str, Any] = {
    "name": "small",
    "hosts": {"A": {"up": {"rate": "10mbit"}}, "G": {"nat": "cone"}, "B": {"behind": "G"}, "R": {}},
    "links": [{"a": "A", "b": "G", "rtt": "30ms", "loss": "1%", "back": {"loss": "0.5%"}}],
    "default": {"rtt": "100ms"},
}

shapes = st.builds(
    Shape,
    rate_bit_per_s=st.integers(0, 10**10),
    delay_us=st.integers(0, 60_000_000),
    jitter_us=st.integers(0, 60_000_000),
    loss_ppm=st.integers(0, PPM),
    burst=st.none() | st.builds(Burst, st.integers(1, 10**6), st.integers(1, 10**6), st.integers(0, PPM)),
    queue_us=st.integers(1, 60_000_000),
    reorder=st.booleans(),
    down=st.booleans(),
)
names = st.lists(st.from_regex(r"[A-Za-z][A-Za-z0-9-]{0,6}", fullmatch=True), min_size=1, max_size=6, unique=True)


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    known = draw(names)
    hosts: list[Host] = []
    for name in known:
        outside = draw(st.sampled_from(["", *(host.name for host in hosts)]))
        lines: dict[str, Any] = (
            {} if outside else {"up": draw(st.none() | shapes), "down": draw(st.none() | shapes)}
        )
        nat = draw(st.sampled_from(["", "cone", "symmetric"]))
        region = draw(st.sampled_from(["", "eu", "us"]))
        hosts.append(Host(name, nat=nat, behind=outside, region=region, block_udp=draw(st.booleans()), **lines))
    public = [host.name for host in hosts if not host.behind]
    links: dict[tuple[str, str], Shape] = {}
    for one in public:
        for other in public:
            if one < other and draw(st.booleans()):
                links |= {(one, other): draw(shapes), (other, one): draw(shapes)}
    between = draw(shapes)
    regions = draw(st.sampled_from([{}, {("eu", "us"): between, ("us", "eu"): between}, {("eu", "eu"): between}]))
    return Topology(
        draw(names)[0], tuple(hosts), links, regions, draw(st.none() | shapes), draw(st.integers(1_280, 9_000)),
        draw(st.integers(0, 2**31 - 1)), {"net.ipv4.ip_forward": "1"},
    )  # fmt: skip


@given(topologies())
def test_what_is_written_is_read_again(topology: Topology) -> None:
    assert parse_topology(json.dumps(document_of(topology))) == topology


@given(topologies())
def test_every_route_is_a_link_between_the_lines_of_its_ends(topology: Topology) -> None:
    made = plan(topology)
    for (one, other), way in made.routes.items():
        passed = [made.pipes[number].name for number in way]
        wanted = [f"{one}:up", f"{one}>{other}", f"{other}:down"]
        assert passed == [name for name in wanted if name in passed]
        assert f"{one}>{other}" in passed
        assert made.rtt_us(one, other) == made.rtt_us(other, one)
    assert all(made.address4(host.name).is_global == (not host.behind) for host in topology.hosts)
    assert all(made.address6(host.name).is_global for host in topology.hosts)
    addresses = [made.address4(host.name) for host in topology.hosts if not host.behind]
    addresses6 = [made.address6(host.name) for host in topology.hosts]
    assert len(set(addresses)) == len(addresses)
    assert len(set(addresses6)) == len(addresses6)


@given(shapes, st.integers(1_280, 9_000))
def test_a_queue_holds_at_least_some_packets(shape: Shape, mtu: int) -> None:
    limit = shape.queue_limit_bytes(mtu)
    assert limit == 0 if not shape.rate_bit_per_s else limit >= QUEUE_PACKETS_MIN * mtu
    assert 0 <= shape.passes_ppm() <= PPM - shape.loss_ppm


def test_directions_override_what_is_common() -> None:
    made = plan(parse_topology(json.dumps(SMALL)))
    by_name = {pipe.name: pipe.shape for pipe in made.pipes}
    assert by_name["A>G"] == Shape(delay_us=15_000, loss_ppm=10_000)
    assert by_name["G>A"] == Shape(delay_us=15_000, loss_ppm=5_000)
    assert by_name["A:up"].rate_bit_per_s == 10_000_000
    assert made.gateway("B") == "G"
    assert made.rtt_us("A", "B") == 30_000
    assert made.rtt_us("A", "R") == 100_000
    assert made.address6("B") in {made.address6("B")} - {made.address6("G")}
    assert int(made.address6("B")) >> 64 == int(made.address6("G")) >> 64


def test_a_change_keeps_what_it_does_not_name() -> None:
    made = plan(parse_topology(json.dumps(SMALL)))
    number = made.pipe_number("A>G")
    changed = made.changed(number, {"rate": "2mbit", "rtt": "80ms"}).pipes[number].shape
    assert changed == Shape(rate_bit_per_s=2_000_000, delay_us=40_000, loss_ppm=10_000)


def test_a_queue_in_time_follows_a_changed_rate() -> None:
    shape = Shape(**parse_settings({"rate": "100mbit", "queue": "100ms"}, where="here"))
    assert shape.queue_limit_bytes(1_500) == 1_250_000
    slower = Shape(**parse_settings({"rate": "10mbit", "queue": "100ms"}, where="here"))
    assert slower.queue_limit_bytes(1_500) == 125_000
    fixed = Shape(**parse_settings({"rate": "10mbit", "queue": "64KiB"}, where="here"))
    assert fixed.queue_limit_bytes(1_500) == 65_536


@pytest.mark.parametrize(
    "change",
    [
        {"hosts": {}},
        {"hosts": {f"H{n}": {} for n in range(300)}},
        {"hosts": {"A": {"color": "red"}}},
        {"hosts": {"../A": {}}},
        {"hosts": {"A": {"behind": "A"}}},
        {"hosts": {"A": {"behind": "B"}, "B": {"behind": "A"}}},
        {"hosts": {"A": {"behind": "Z"}}},
        {"hosts": {"A": {"behind": "B", "up": {}}, "B": {}}},
        {"hosts": {"A": {"nat": "full"}}},
        {"hosts": {"A": {"sysctl": {"kernel.core_pattern": "|/bin/sh"}}}},
        {"hosts": {"A": {"sysctl": {"net.ipv4.tcp_rmem": "1\n2"}}}},
        {"links": [{"a": "A", "b": "A"}]},
        {"links": [{"a": "A", "b": "B"}]},
        {"links": [{"a": "A", "b": "G"}, {"a": "G", "b": "A"}]},
        {"links": [{"a": "A", "b": "G", "rtt": "1ms", "delay": "1ms"}]},
        {"links": [{"a": "A", "b": "G", "rtt": 0.1}]},
        {"links": [{"a": "A", "b": "G", "loss": "101%"}]},
        {"links": [{"a": "A", "b": "G", "loss": "-1%"}]},
        {"links": [{"a": "A", "b": "G", "rate": "1"}]},
        {"links": [{"a": "A", "b": "G", "rate": "0mbit"}]},
        {"links": [{"a": "A", "b": "G", "rate": "1e9bit"}]},
        {"links": [{"a": "A", "b": "G", "down": "yes"}]},
        {"links": [{"a": "A", "b": "G", "burst": {"every": True, "length": 1}}]},
        {"links": {}},
        {"mtu": 1_000},
        {"mtu": True},
        {"seed": -1},
        {"default": []},
        {"more": 1},
        {"name": "a b"},
    ],
)
def test_what_is_not_of_the_form_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(TopologyInvalid):
        parse_topology(json.dumps(SMALL | change))


@pytest.mark.parametrize("text", ["", "{", "[1]", "hosts = 1", "name = 'x'", "{" * 100_000, '{"a":' * 50_000])
def test_what_is_no_document_is_refused(text: str) -> None:
    with pytest.raises(TopologyInvalid):
        parse_topology(text)


@pytest.mark.parametrize("name", sorted(shipped()))
def test_what_is_shipped_is_described_to_the_emulator(name: str, tmp_path: Any) -> None:
    made = plan(parse_topology(shipped()[name]))
    assert made.topology.name == name
    namespaces = {host: f"space-{host}" for host in made.public}
    lines = list(describe(made, namespaces=namespaces, control=tmp_path / "control"))
    kinds = [line.split()[0] for line in lines]
    assert kinds.count("host") == len(made.public)
    assert kinds.count("pipe") == len(made.pipes)
    assert kinds.count("route") == len(made.routes)
