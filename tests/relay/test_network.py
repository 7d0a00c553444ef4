"""The peer network over relays alone: two nodes that listen nowhere find each other, talk, and survive a relay."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from p2p.base.endpoint import Endpoint
from p2p.secure.frame import TrafficClass
from p2p.service import Network, NetworkConfig
from relay.client.client import RelayClient
from relay.client.options import RelayClientOptions
from state.primitives.address import format_address
from tests.relay.daemon_process import DaemonProcess, identity_of
from tests.relay.nodes import wait_until

KIND = 7


class Member:
    """A whole network service whose only ways in and out are relays."""

    def __init__(self, name: str, relays: tuple[Endpoint, ...], bootstrap: tuple[str, ...] = ()) -> None:
        self.identity = identity_of(name)
        self.client = RelayClient(
            lambda: self.identity, relays, RelayClientOptions(backoff_s_min=0.05, backoff_s_max=0.2)
        )
        self.network = Network(
            NetworkConfig(bootstrap=bootstrap),
            self.identity,
            dialers={"relay": self.client},
            acceptors=(self.client,),
        )
        self.send, self.heard = trio.open_memory_channel[tuple[bytes, bytes]](math.inf)
        self.network.on_message(KIND, self._hear)

    async def _hear(self, peer: bytes, body: bytes) -> None:
        self.send.send_nowait((peer, body))


@asynccontextmanager
async def members(*all_members: Member) -> AsyncIterator[None]:
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            for member in all_members:
                nursery.start_soon(member.network.run)
            yield
            nursery.cancel_scope.cancel()


async def test_two_networks_without_listeners_meet_and_meet_again_after_the_relay_died(
    start_relay: Callable[..., DaemonProcess],
) -> None:
    daemon = start_relay()
    relays = (daemon.endpoint,)
    alice = Member("alice", relays)
    bob = Member("bob", relays, (f"{format_address(alice.identity.address)}@{daemon.endpoint}",))
    async with members(alice, bob):
        await alice.network.wait_peers(1)
        await bob.network.wait_peers(1)
        assert alice.network.bound == bob.network.bound == ()
        assert alice.network.send(bob.identity.address, TrafficClass.CONSENSUS, KIND, b"vote")
        assert await bob.heard.receive() == (alice.identity.address, b"vote")
        # Each tells the other where it can be reached: through the relay.
        await wait_until(lambda: alice.network.record(bob.identity.address) is not None)
        record = alice.network.record(bob.identity.address)
        assert record is not None and daemon.endpoint in record.endpoints

        daemon.kill()
        await wait_until(lambda: not alice.network.peers() and not bob.network.peers())
        start_relay(port=daemon.port)
        await bob.network.wait_peers(1)
        assert bob.network.send(alice.identity.address, TrafficClass.BULK, KIND, bytes(300_000))
        assert await alice.heard.receive() == (bob.identity.address, bytes(300_000))


async def test_of_two_relays_the_living_one_carries_on(start_relay: Callable[..., DaemonProcess]) -> None:
    first, second = start_relay(name="relay"), start_relay(name="second relay")
    relays = (first.endpoint, second.endpoint)
    alice = Member("alice", relays)
    bob = Member("bob", relays, (f"{format_address(alice.identity.address)}@{first.endpoint}",))
    async with members(alice, bob):
        await bob.network.wait_peers(1)
        await wait_until(
            lambda: (
                (record := bob.network.record(alice.identity.address)) is not None
                and second.endpoint in record.endpoints
            )
        )
        used = next(relay for relay in (first, second) if relay.metrics()["dekube_relay_circuits"])
        used.kill()
        with trio.move_on_after(60):
            while True:  # what is sent before the loss is noticed is lost with its circuit
                bob.network.send(alice.identity.address, TrafficClass.CONSENSUS, KIND, b"by the other")
                with trio.move_on_after(0.1):
                    assert await alice.heard.receive() == (bob.identity.address, b"by the other")
                    return
        raise AssertionError("no way was found through the relay that lives")
