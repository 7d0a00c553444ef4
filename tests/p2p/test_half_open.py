"""Slots for unauthenticated connections: a network that takes many makes room for the others."""

from __future__ import annotations

import socket

import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from p2p.base.endpoint import Endpoint
from p2p.base.limits import HalfOpenSlot, HalfOpenSlots, NetworkLimits
from p2p.base.netgroups import network_of, public_netgroup_of
from p2p.service import Network, NetworkConfig
from tests.p2p.helpers import NOW_MS, identity
from tests.p2p.test_service import running


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 12), st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=120))
def test_a_newcomer_always_gets_in_at_the_cost_of_the_largest_crowd(
    slots_max: int, steps: list[tuple[int, bool]]
) -> None:
    half_open = HalfOpenSlots(slots_max)
    inside: list[HalfOpenSlot] = []
    for netgroup, leaves in steps:
        if leaves and inside:
            half_open.leave(inside.pop(netgroup % len(inside)))
            continue
        sizes = [sum(slot.netgroup == f"net{n}" for slot in inside) for n in range(6)]
        is_full = len(half_open) == slots_max
        inside.append(half_open.enter(f"net{netgroup}"))
        lost = [slot for slot in inside if slot.is_lost]
        assert len(lost) == is_full
        for slot in lost:
            assert sizes[int(slot.netgroup[3:])] == max(sizes)
            assert slot is next(other for other in inside if other.netgroup == slot.netgroup)  # its oldest
            inside.remove(slot)
            half_open.leave(slot)  # its owner notices later, and that changes nothing
        assert len(half_open) == len(inside) <= slots_max


def test_a_small_network_is_not_pushed_out_by_a_large_one() -> None:
    half_open = HalfOpenSlots(256)
    honest = half_open.enter("home")
    for number in range(5_000):
        half_open.enter(f"attacker {number % 32}")
    assert not honest.is_lost and len(half_open) == 256


def test_networks_of_addresses() -> None:
    assert network_of("192.0.2.7") == network_of("::ffff:192.0.2.99") == "192.0.2.0/24"
    assert network_of("2001:db8:1:2::3") == network_of("2001:db8:1:ffff::3") == "2001:db8:1::/48"
    assert network_of("fe80::1%eth0") == "fe80::/48"
    assert (
        public_netgroup_of("8.8.8.8") == "8.8.8.0/24"
        and public_netgroup_of("127.0.0.1") is None
        and public_netgroup_of(None) is None
    )


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
            assert len(alice.parts.inbound.handshake_limits.half_open) == 24
            for number in range(1, 6):
                bob = Network(NetworkConfig(), identity(number), now_ms=lambda: NOW_MS)
                async with running(bob):
                    bob.add_endpoint(alice.identity.address, Endpoint(*alice.bound[0]))
                    await bob.request(alice.identity.address, "peers", b"", timeout_s=30)
            assert alice.counters["half_open_lost"] > 16
            nursery.cancel_scope.cancel()
