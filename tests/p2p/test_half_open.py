"""Places for strangers: whoever takes many of them, from however many addresses, makes room for the others."""

from __future__ import annotations

import socket

import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from p2p.base.endpoint import Endpoint
from p2p.base.limits import HalfOpen, NetworkLimits, Place
from p2p.base.netgroups import crowd_of, network_of
from p2p.service import Network, NetworkConfig
from tests.p2p.helpers import NOW_MS, identity
from tests.p2p.test_service import running


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 12), st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=120))
def test_a_newcomer_always_gets_in_at_the_cost_of_the_largest_crowd(
    places_max: int, steps: list[tuple[int, bool]]
) -> None:
    half_open = HalfOpen(places_max)
    inside: list[Place] = []
    for crowd, leaves in steps:
        if leaves and inside:
            half_open.leave(inside.pop(crowd % len(inside)))
            continue
        sizes = [sum(place.crowd == f"net{n}" for place in inside) for n in range(6)]
        is_full = len(half_open) == places_max
        inside.append(half_open.enter(f"net{crowd}"))
        lost = [place for place in inside if place.is_lost]
        assert len(lost) == is_full
        for place in lost:
            assert sizes[int(place.crowd[3:])] == max(sizes)
            assert place is next(other for other in inside if other.crowd == place.crowd)  # its oldest
            inside.remove(place)
            half_open.leave(place)  # its owner notices later, and that changes nothing
        assert len(half_open) == len(inside) <= places_max


def test_a_small_network_is_not_pushed_out_by_a_large_one() -> None:
    half_open = HalfOpen(256)
    honest = half_open.enter("home")
    for number in range(5_000):
        half_open.enter(f"attacker {number % 32}")
    assert not honest.is_lost and len(half_open) == 256


def test_networks_of_addresses() -> None:
    assert network_of("192.0.2.7") == network_of("::ffff:192.0.2.99") == "192.0.2.0/24"
    assert network_of("2001:db8:1:2::3") == network_of("2001:db8:1:ffff::3") == "2001:db8:1::/48"
    assert network_of("fe80::1%eth0") == "fe80::/48"
    assert crowd_of("8.8.8.8") == "8.8.8.0/24" and crowd_of("127.0.0.1") is None and crowd_of(None) is None


async def test_an_honest_peer_gets_in_while_strangers_hold_every_place() -> None:
    """Hostile connections from eight networks say nothing, and are made again as fast as they are dropped."""
    limits = NetworkLimits(half_open_max=24)
    alice = Network(NetworkConfig(listen=(("127.0.0.1", 0),), limits=limits), identity(0), now_ms=lambda: NOW_MS)
    made = 0

    async def hostile(number: int) -> None:
        nonlocal made
        while True:
            sock = trio.socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            with sock:
                await sock.bind((f"127.{number % 8 + 1}.0.1", 0))
                await sock.connect(alice.bound[0])
                made += 1
                try:
                    await sock.recv(1)
                except OSError:
                    pass

    with trio.fail_after(120):
        async with running(alice), trio.open_nursery() as nursery:
            for number in range(40):
                nursery.start_soon(hostile, number)
            while made < 40 or alice.counters["half_open_lost"] < 16:  # noqa: ASYNC110 - has no event
                await trio.sleep(0.01)
            assert len(alice.parts.accepting.entrance.half_open) == 24
            for number in range(1, 6):
                bob = Network(NetworkConfig(), identity(number), now_ms=lambda: NOW_MS)
                async with running(bob):
                    bob.add_endpoint(alice.identity.address, Endpoint(*alice.bound[0]))
                    await bob.request(alice.identity.address, "peers", b"", timeout_s=30)
            assert alice.counters["half_open_lost"] > 16
            nursery.cancel_scope.cancel()
