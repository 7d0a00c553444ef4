"""Blocks on their way from one node to the seats and to those who follow, over real connections."""

from __future__ import annotations

import math

import trio

from node.consensus.agreement import KIND_CONSENSUS, KIND_CONSENSUS_BULK, _NetworkPort
from p2p.service import Network, NetworkConfig
from state.primitives.address import format_address
from tests.p2p.helpers import NOW_MS, identity

SEATS = 5
BLOCK = bytes(range(256)) * 2_000


class Node:
    """A network and the consensus' way out of it."""

    def __init__(self, number: int, first: str = "") -> None:
        self.identity = identity(number)
        config = NetworkConfig(listen=(("127.0.0.1", 0),), bootstrap=(first,) if first else ())
        self.network = Network(config, self.identity, now_ms=lambda: NOW_MS)
        self.port = _NetworkPort(self.network)
        self.send, self.heard = trio.open_memory_channel[tuple[int, bytes, bytes]](math.inf)
        for kind in (KIND_CONSENSUS, KIND_CONSENSUS_BULK):
            self._listen(kind)

    def _listen(self, kind: int) -> None:
        async def hear(peer: bytes, body: bytes) -> None:
            self.send.send_nowait((kind, peer, body))

        self.network.on_message(kind, hear)


async def test_a_block_reaches_seats_and_followers_once_and_in_pieces() -> None:
    with trio.fail_after(150):
        async with trio.open_nursery() as nursery:
            nodes = [Node(0)]
            await nursery.start(nodes[0].network.run)
            host, port = nodes[0].network.bound[0]
            for number in range(1, SEATS + 1):
                nodes.append(Node(number, f"{format_address(nodes[0].identity.address)}@{host}:{port}"))
                await nursery.start(nodes[-1].network.run)
            seats = tuple(node.identity.address for node in nodes[:SEATS])
            for node in nodes:
                node.network.set_persistent(seats)
                node.port.seats = seats
            for node in nodes:
                await node.network.wait_peers(SEATS if node is nodes[0] else SEATS - 1)
            leader = nodes[0].identity.address
            for data, is_bulk, kind in (
                (BLOCK, True, KIND_CONSENSUS_BULK),
                (b"small block", True, KIND_CONSENSUS_BULK),
                (b"vote", False, KIND_CONSENSUS),
            ):
                await nodes[0].port.broadcast(data, is_bulk)
                for node in nodes[1:]:
                    assert await node.heard.receive() == (kind, leader, data)
            assert nodes[0].network.multicasts.core.counters["sent"] == 1
            assert nodes[SEATS].network.multicasts.core.counters["forwarded"] == 0, "it only follows"
            nursery.cancel_scope.cancel()
