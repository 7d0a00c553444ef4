"""Over IPv6: conversations, reservations, circuits; through a relay of both families from one to the other."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable

import pytest
import trio

from p2p.base.endpoint import Endpoint
from p2p.secure.frame import TrafficClass
from p2p.service import Network, NetworkConfig
from relay.client.control_link import is_no_route
from tests.relay.daemon_process import DaemonProcess, identity_of
from tests.relay.nodes import wait_until
from tests.relay.test_network import KIND, Member, members


@pytest.fixture(autouse=True)
def loopback() -> None:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"NOT RUN: this machine has no IPv6, not even of its own: {error}")


def free_port() -> int:
    """Return a port that is free for both families."""
    with socket.socket(socket.AF_INET6) as sock:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(("::", 0))
        return int(sock.getsockname()[1])


def places(daemon: DaemonProcess) -> tuple[Endpoint, Endpoint]:
    return Endpoint("127.0.0.1", daemon.port, daemon.address), Endpoint("::1", daemon.port, daemon.address)


async def test_a_node_that_listens_everywhere_is_reached_over_both_families() -> None:
    heard: list[tuple[bytes, bytes]] = []

    async def hear(peer: bytes, body: bytes) -> None:
        heard.append((peer, body))

    port = free_port()
    server = Network(NetworkConfig(listen=(("", port),)), identity_of("server"))
    server.on_message(KIND, hear)
    callers = {host: Network(NetworkConfig(), identity_of(f"from {host}")) for host in ("127.0.0.1", "::1")}
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(server.run)
            assert {bound for _, bound in server.bound} == {port} and server.open_ports == (port,)
            for host, caller in callers.items():
                await nursery.start(caller.run)
                caller.add_endpoint(server.identity.address, Endpoint(host, port))
                caller.send(server.identity.address, TrafficClass.CONSENSUS, KIND, host.encode())
            await wait_until(lambda: len(heard) == 2)
            assert {(callers[body.decode()].identity.address, body) for _, body in heard} == set(heard)
            assert {peer.host for peer in server.peers()} == {"127.0.0.1", "::1"}
            nursery.cancel_scope.cancel()


async def test_homes_of_one_family_each_meet_through_a_relay_of_both(
    start_relay: Callable[..., DaemonProcess],
) -> None:
    daemon = start_relay(host="", port=free_port())
    four, six = places(daemon)
    alice, bob = Member("alice", (four,)), Member("bob", (six,))
    async with members(alice, bob):
        for member in (alice, bob):
            await member.client.wait_reserved()
        assert [each.endpoint for each in bob.client.reservations] == [six]
        # Each dials the other at the place that the other knows, over the connection that it has to that relay.
        alice.network.add_endpoint(bob.identity.address, six)
        assert alice.network.send(bob.identity.address, TrafficClass.CONSENSUS, KIND, b"from four to six")
        with trio.fail_after(30):
            assert await bob.heard.receive() == (alice.identity.address, b"from four to six")
        assert alice.client.links == (four,)
        assert bob.network.send(alice.identity.address, TrafficClass.CONSENSUS, KIND, b"and back")
        with trio.fail_after(30):
            assert await alice.heard.receive() == (bob.identity.address, b"and back")


async def test_a_relay_of_two_places_is_reserved_at_once_and_told_with_both(
    start_relay: Callable[..., DaemonProcess],
) -> None:
    daemon = start_relay(host="", port=free_port())
    four, six = places(daemon)
    nowhere = Endpoint("::1", 9, daemon.address)  # another place of it, at which nothing answers
    member = Member("alice", (nowhere, four))
    async with members(member):
        await member.client.wait_reserved()
        (reservation,) = member.client.reservations
        assert reservation.endpoint == four
        record = member.network.record(member.identity.address)
        assert record is not None and set(record.endpoints) == {four, nowhere}
        assert not member.client.known.reputation.is_avoided(daemon.address, trio.current_time())
        member.client.offer((six,))
        record = member.network.record(member.identity.address)
        assert record is not None and set(record.endpoints) == {four, six, nowhere}
        await trio.sleep(0.5)  # the choice is thought over meanwhile
        assert [each.endpoint for each in member.client.reservations] == [four]


def test_that_this_machine_has_no_way_is_told_from_a_relay_that_does_not_answer() -> None:
    none = OSError("all attempts failed")
    none.__cause__ = ExceptionGroup("", [OSError(errno.ENETUNREACH, "no route")])
    assert is_no_route(none) and is_no_route(OSError(errno.EAFNOSUPPORT, "no IPv6"))
    both = OSError("all attempts failed")
    both.__cause__ = ExceptionGroup("", [OSError(errno.ENETUNREACH, ""), ConnectionRefusedError(111, "")])
    assert not is_no_route(both) and not is_no_route(TimeoutError()) and not is_no_route(trio.TooSlowError())
