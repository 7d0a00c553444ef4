"""A whole committee and those who follow it, each pair a handshake and a conversation of its own.

Time is virtual, so nothing here depends on how fast the machine is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest
import trio

from p2p.secure.frame import TrafficClass
from p2p.service import Network
from tests.p2p.helpers import account
from tests.p2p.test_service import Wires, in_memory, memory_endpoint

VOTE, BLOCK = 1, 2
VOTE_BYTES = 200
LOOK_S = 0.25
KEPT = 3
"""Seats to which a node that is none keeps connections."""


class Committee:
    """``seats`` networks that want all of each other, and ``followers`` that want some of them."""

    def __init__(self, nursery: trio.Nursery, seats: int, followers: int) -> None:
        self.seats = tuple(account(number).address for number in range(seats))
        self.heard: dict[int, Counter[bytes]] = {}
        self.networks: dict[int, Network] = {}
        self._wires = Wires()
        self._nursery = nursery
        self._scopes: dict[int, trio.CancelScope] = {}
        self.all = range(seats + followers)

    def is_seat(self, number: int) -> bool:
        return number < len(self.seats)

    async def start(self, number: int) -> None:
        network = in_memory(number, self._wires, bootstrap=() if number == 0 else (0, 1 if number > 1 else 0))
        heard = self.heard[number] = Counter[bytes]()

        async def hear(_peer: bytes, body: bytes) -> None:
            heard[body[:8]] += 1

        network.on_message(VOTE, hear)
        network.on_message(BLOCK, hear)
        network.set_persistent(self.seats, kept=None if self.is_seat(number) else KEPT)
        self.networks[number] = self._wires.networks[network.identity.address] = network
        await self._nursery.start(self._run, number, network)
        network.advertise("test", (memory_endpoint(number),))

    async def _run(
        self, number: int, network: Network, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        with trio.CancelScope() as self._scopes[number]:
            await network.run(task_status)

    def stop(self, number: int) -> None:
        self._scopes[number].cancel()

    def connections(self, number: int) -> int:
        """Seats that a node is connected to."""
        return sum(self.networks[number].is_connected(seat) for seat in self.seats)

    @property
    def is_whole(self) -> bool:
        return all(
            self.connections(n) >= (len(self.seats) - 1 if self.is_seat(n) else KEPT) for n in self.networks
        )

    def sent_bytes(self) -> int:
        return sum(peer.bytes_out for network in self.networks.values() for peer in network.peers())


async def until(is_so: Callable[[], bool], within_s: float) -> None:
    with trio.fail_after(within_s):
        while not is_so():  # noqa: ASYNC110
            await trio.sleep(LOOK_S)


@pytest.mark.parametrize(
    ("seats", "followers", "restarted"),
    [(7, 2, 1), pytest.param(20, 8, 2, marks=pytest.mark.nightly)],
)
async def test_a_committee_finds_itself_and_bears_restarts(
    autojump_clock: object, seats: int, followers: int, restarted: int
) -> None:
    async with trio.open_nursery() as nursery:
        committee = Committee(nursery, seats, followers)
        for number in committee.all:
            await committee.start(number)
        await until(lambda: committee.is_whole, 60)

        # A vote of each to all others leaves each line once for each of them, with little around it.
        await trio.sleep(3)
        before = committee.sent_bytes()
        await trio.sleep(2)
        without, before = committee.sent_bytes() - before, committee.sent_bytes()
        for number in range(seats):
            vote = number.to_bytes(8, "big") + bytes(VOTE_BYTES - 8)
            committee.networks[number].broadcast(committee.seats, TrafficClass.CONSENSUS, VOTE, vote)
        await trio.sleep(2)
        assert all(len(committee.heard[n]) == seats - 1 for n in range(seats))
        votes = seats * (seats - 1)
        assert (committee.sent_bytes() - before - without) / votes < 1.5 * VOTE_BYTES
        assert all(set(committee.heard[n].values()) == {1} for n in range(seats))

        # A block reaches all, and the followers too, with about two uploads of its leader.
        body = b"a block." + Random(1).randbytes(150_000)
        leader = committee.networks[3]
        before = sum(peer.bytes_out for peer in leader.peers())
        rest = [network.identity.address for n, network in committee.networks.items() if not committee.is_seat(n)]
        connected = [address for address in rest if leader.is_connected(address)]
        leader.multicast(committee.seats, TrafficClass.BLOCK, BLOCK, body, followers=connected)
        await until(lambda: all(committee.heard[n][b"a block."] == 1 for n in range(seats) if n != 3), 10)
        assert sum(peer.bytes_out for peer in leader.peers()) - before < (3 + len(connected)) * len(body)

        # Some seats are started again: nobody is left alone, and nobody has lost its place to others.
        away = range(seats // 2, seats // 2 + restarted)
        for number in away:
            committee.stop(number)
        await until(lambda: all(committee.connections(n) == seats - 1 - restarted for n in range(seats // 2)), 30)
        for number in away:
            await committee.start(number)
        await until(lambda: committee.is_whole, 60)
        for network in committee.networks.values():
            assert len(network.peers()) <= seats + network.limits.peers_in_max + network.limits.peers_out_target
            assert not network.bans.left_s()
        nursery.cancel_scope.cancel()
