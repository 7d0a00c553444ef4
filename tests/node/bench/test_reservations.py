"""The light clients of the relay's benchmark: from where they come, and that they fail aloud."""

from __future__ import annotations

import socket
from collections import Counter
from ipaddress import ip_address

import pytest

from node.bench.relay import _account, _identity, _process, _relay
from node.bench.reservations import CLIENTS_MAX, BenchFailed, reserving, source_of
from p2p.base.endpoint import Endpoint
from p2p.base.netgroups import block_of, network_of
from relay.protocol.limits import RelayLimits

pytestmark = pytest.mark.slow


def test_clients_come_from_as_few_addresses_as_the_bounds_of_hosts_and_networks_allow() -> None:
    limits = RelayLimits()
    hosts = Counter(source_of(number) for number in range(20_000))
    networks = Counter(host.rpartition(".")[0] for host in hosts.elements())
    assert max(hosts.values()) == limits.reservations_per_host_max
    assert max(networks.values()) == limits.reservations_per_network_max
    for number in (0, 20_000, CLIENTS_MAX - 1):
        assert ip_address(source_of(number)).is_loopback and not source_of(number).startswith("127.0.")


def test_no_block_sends_more_at_once_than_a_relay_lets_in() -> None:
    limits = RelayLimits()
    numbers = range(20_000)
    assert (
        max(Counter(block_of(source_of(number)) for number in numbers).values()) <= limits.accepts_per_block_burst
    )
    assert max(Counter(network_of(source_of(number)) for number in numbers).values()) <= (
        limits.accepts_per_network_burst
    )


@pytest.mark.cluster
def test_a_real_relay_grants_more_than_one_block_may_ask_for_at_once() -> None:
    count = 2 * RelayLimits().accepts_per_block_burst
    with _process(_relay) as (_, port):
        relay = Endpoint("127.0.0.1", port, _account("relay").address)
        with reserving(relay, count, _identity, processes=1) as took_s:
            assert took_s > 0


def test_a_relay_that_is_not_there_or_closes_fails_the_benchmark() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        relay = Endpoint("127.0.0.1", sock.getsockname()[1], bytes(20))
        with pytest.raises(BenchFailed, match="ConnectionRefused"), reserving(relay, 2, _identity, processes=1):
            pass
    with pytest.raises(BenchFailed), reserving(relay, CLIENTS_MAX + 1, _identity):
        pass
