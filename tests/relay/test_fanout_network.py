"""Whole networks behind real relays on this machine: one upload reaches all, whatever a relay does."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random

import pytest
import trio

from p2p.base.endpoint import Endpoint
from p2p.multicast.wire import MulticastParameters
from p2p.secure.frame import TrafficClass
from p2p.service import Network, NetworkConfig
from relay.client.client import RelayClient
from relay.client.options import RelayClientOptions
from relay.client.publisher import FanoutClient, FanoutOptions
from state.primitives.address import format_address
from tests.relay.daemon_process import DaemonProcess, identity_of
from tests.relay.nodes import wait_until

KIND = 7
BODY = Random(1).randbytes(1_000_000)
COUNT = 7
BUSY = MulticastParameters(expiry_s=120, relay_backoff_s=600)
"""On a busy machine a message and its repair may take long: it is not forgotten, and a failed relay is not
tried again meanwhile."""
PATIENT = replace(BUSY, stall_s=10)
"""A relay that is slow because the machine is busy is waited for, too."""


class Home:
    """A network whose pieces can come through relays; where it does not listen, everything comes through them."""

    def __init__(
        self,
        number: int,
        relays: Sequence[Endpoint],
        parameters: MulticastParameters,
        *,
        listens: bool,
        first: str,
    ) -> None:
        self.identity = identity_of(f"home {number}")
        self.address = self.identity.address
        self.relays = RelayClient(
            lambda: self.identity, relays, RelayClientOptions(backoff_s_min=0.05, backoff_s_max=0.2)
        )
        self.fanout = FanoutClient(lambda: self.identity, FanoutOptions(backoff_s_min=0.05, backoff_s_max=0.2))
        self.network = Network(
            NetworkConfig(
                listen=(("127.0.0.1", 0),) if listens else (),
                bootstrap=(first,) if first else (),
                multicast=parameters,
            ),
            self.identity,
            dialers={"relay": self.relays},
            acceptors=(self.relays,),
            fanout=self.fanout,
        )
        self.send, self.heard = trio.open_memory_channel[tuple[bytes, bytes]](math.inf)
        self.network.on_message(KIND, self._hear)

    async def _hear(self, peer: bytes, body: bytes) -> None:
        self.send.send_nowait((peer, body))

    def count(self, name: str) -> int:
        return self.network.multicasts.core.counters[name]


@asynccontextmanager
async def homes(
    relays: Sequence[Endpoint], parameters: MulticastParameters = BUSY, *, listen: bool = True
) -> AsyncIterator[list[Home]]:
    """Run homes that know each other and wait at all these relays."""
    with trio.fail_after(150):
        async with trio.open_nursery() as nursery:
            all_homes = [Home(0, relays, parameters, listens=listen, first="")]
            await nursery.start(all_homes[0].network.run)
            at = Endpoint(*all_homes[0].network.bound[0]) if listen else relays[0]
            first = f"{format_address(all_homes[0].address)}@{at}"
            for number in range(1, COUNT):
                all_homes.append(Home(number, relays, parameters, listens=listen, first=first))
                await nursery.start(all_homes[-1].network.run)
            addresses = [home.address for home in all_homes]
            for home in all_homes:
                home.network.set_persistent(addresses)
            for home in all_homes:
                await home.network.wait_peers(COUNT - 1)
                await wait_until(lambda home=home: knows_all(home, addresses, relays))  # type: ignore[misc]
                await wait_until(lambda home=home: len(home.fanout.waiting_at) >= len(relays))  # type: ignore[misc]
            yield all_homes
            nursery.cancel_scope.cancel()


def knows_all(home: Home, addresses: Sequence[bytes], relays: Sequence[Endpoint]) -> bool:
    records = [home.network.record(address) for address in addresses]
    return all(record is not None and set(relays) <= set(record.endpoints) for record in records)


async def assert_all_hear(all_homes: Sequence[Home], body: bytes) -> None:
    for home in all_homes[1:]:
        assert await home.heard.receive() == (all_homes[0].address, body)


def send(all_homes: Sequence[Home], body: bytes) -> None:
    all_homes[0].network.multicast([home.address for home in all_homes], TrafficClass.BLOCK, KIND, body)


async def test_one_upload_through_a_relay_reaches_all(start_relay: Callable[..., DaemonProcess]) -> None:
    daemon = start_relay()
    async with homes([daemon.endpoint], PATIENT) as all_homes:
        for number in range(3):
            body = BODY[number:]
            send(all_homes, body)
            await assert_all_hear(all_homes, body)
        sender = all_homes[0]
        await wait_until(lambda: len(sender.network.multicasts.finished) == 3)
        assert all(f.missing == 0 and f.members == COUNT - 1 for f in sender.network.multicasts.finished)
        assert sum(home.count("pieces_by_relay") for home in all_homes) > 0
        assert daemon.metrics()['dekube_relay_fanout_total{what="bytes_out"}'] > COUNT * len(BODY)
        for home in all_homes:
            assert home.heard.statistics().current_buffer_used == 0, "exactly once"


@pytest.mark.slow
async def test_a_relay_killed_in_the_middle_costs_nobody_the_message(
    start_relay: Callable[..., DaemonProcess],
) -> None:
    first, second = start_relay(name="relay"), start_relay(name="second relay")
    async with homes([first.endpoint, second.endpoint]) as all_homes:
        send(all_homes, BODY)
        await wait_until(lambda: any(home.count("pieces_by_relay") for home in all_homes))
        first.kill()
        await assert_all_hear(all_homes, BODY)
        second.kill()
        send(all_homes, BODY[1:])
        await assert_all_hear(all_homes, BODY[1:])


async def test_a_relay_that_hands_nothing_on_is_gone_round(start_relay: Callable[..., DaemonProcess]) -> None:
    daemon = start_relay(options={"fanout": {"backlog_bytes_max": 1}})  # everybody is too slow for it
    async with homes([daemon.endpoint]) as all_homes:
        send(all_homes, BODY)
        await assert_all_hear(all_homes, BODY)
        assert sum(home.count("pieces_by_relay") for home in all_homes) == 0
        assert daemon.metrics()['dekube_relay_fanout_total{what="passed_over_slow"}'] > 0
        before = daemon.metrics()['dekube_relay_fanout_total{what="pieces_in"}']
        send(all_homes, BODY[1:])
        await assert_all_hear(all_homes, BODY[1:])
        assert daemon.metrics()['dekube_relay_fanout_total{what="pieces_in"}'] == before, "not asked again at once"


async def test_little_goes_to_each_as_it_is() -> None:
    async with homes([]) as all_homes:
        send(all_homes, b"little")
        await assert_all_hear(all_homes, b"little")
        assert not all_homes[0].count("sent")
        send(all_homes, BODY)
        await assert_all_hear(all_homes, BODY)
        assert all_homes[0].count("swaps") >= 1


@pytest.mark.slow
async def test_homes_that_listen_nowhere_reach_each_other_through_the_relay_that_lives(
    start_relay: Callable[..., DaemonProcess],
) -> None:
    first, second = start_relay(name="relay"), start_relay(name="second relay")
    async with homes([first.endpoint, second.endpoint], listen=False) as all_homes:
        send(all_homes, BODY)
        await assert_all_hear(all_homes, BODY)
        send(all_homes, BODY[1:])
        first.kill()
        await assert_all_hear(all_homes, BODY[1:])
