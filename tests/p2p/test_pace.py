"""A connection can be slowed and let go again, as the kernel sees it."""

import socket
import sys

import pytest
import trio

from p2p.base.endpoint import Endpoint
from p2p.base.sockets import PACE_BYTES_MIN
from p2p.secure.frame import TrafficClass
from p2p.service import Network, NetworkConfig
from p2p.session.connection import Connection
from tests.p2p.helpers import NOW_MS, identity, sessions
from tests.p2p.test_service import running

SO_MAX_PACING_RATE = 47


@pytest.mark.skipif(not sys.platform.startswith("linux") or sys.maxsize < 2**32, reason="the kernel's part")
async def test_a_link_is_slowed_down_to_a_bound_and_let_go_again() -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    stream = await trio.open_tcp_stream("127.0.0.1", listeners[0].socket.getsockname()[1])
    connection = Connection(sessions()[0], stream, remote="127.0.0.1")

    def kernel() -> int:
        return int.from_bytes(stream.socket.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, 8), sys.byteorder)

    before = kernel()
    connection.pace(None)
    assert kernel() == before
    for wanted, given in ((2_000_000, 2_000_000), (1, PACE_BYTES_MIN), (None, before)):
        connection.pace(wanted)
        assert kernel() == given
    await connection.aclose()
    await listeners[0].aclose()
    connection.pace(5)  # what has ended cannot be slowed, and nobody is told


@pytest.mark.skipif(not sys.platform.startswith("linux") or sys.maxsize < 2**32, reason="the kernel's part")
async def test_the_bulk_connections_of_a_way_that_is_squeezed_are_slowed_and_let_go() -> None:
    config = NetworkConfig(listen=(("127.0.0.1", 0),))
    alice, bob = (Network(config, identity(number), now_ms=lambda: NOW_MS) for number in (0, 1))
    bulk = 5

    async def drop(_peer: bytes, _body: bytes) -> None:
        pass

    bob.on_message(bulk, drop)
    to = bob.identity.address

    async def feed() -> None:
        while True:
            await alice.send_when_room(to, TrafficClass.BULK, bulk, bytes(64 * 1024))

    def held() -> set[int]:
        [peer] = alice._peers.values()
        sockets = [connection._socket for connection, stream in peer.bulk_connections.items() if stream.is_ours]
        return {
            int.from_bytes(sock.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, 8), sys.byteorder)
            for sock in sockets
            if sock is not None
        }

    async def until(wanted: set[int]) -> None:
        while held() != wanted:  # noqa: ASYNC110 - what is waited for is the doing of sockets
            await trio.sleep(0.02)

    async with running(alice, bob), trio.open_nursery() as nursery:
        alice.connect(to, Endpoint(*bob.bound[0]))
        with trio.fail_after(120):
            await alice.wait_peers(1)
            nursery.start_soon(feed)
            await until({2**64 - 1})
            [planner] = alice.parts.path_selection._planners.values()
            planner.caps = dict.fromkeys(planner.plan, 600_000.0)
            await until({600_000})
            planner.caps = {}
            await until({2**64 - 1})
        nursery.cancel_scope.cancel()
