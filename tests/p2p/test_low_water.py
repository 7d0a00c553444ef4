"""Who reads a socket is woken for a record, not for each packet of it."""

from __future__ import annotations

import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from p2p.base.sockets import LOW_WATER_BYTES_MAX, LOW_WATER_BYTES_MIN, LowWater
from p2p.session.connection import Connection, ConnectionLost
from tests.p2p.helpers import sessions

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="of the kernel's low-water mark")
PACKET = 1_000


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[Connection, Connection]]:
    """Two ends of one TCP connection."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    near = await trio.open_tcp_stream("127.0.0.1", listeners[0].socket.getsockname()[1])
    far = await listeners[0].accept()
    ours, theirs = sessions()
    connections = Connection(ours, near, remote="near"), Connection(theirs, far, remote="far")
    yield connections
    for connection in connections:
        await connection.aclose()
    await listeners[0].aclose()


async def arrived(connection: Connection, count: int) -> None:
    """Wait until the kernel of the receiver holds so many bytes of a connection."""
    while True:
        info = connection.tcp_info()
        assert info is not None
        if info.bytes_received >= count:
            return
        await trio.sleep(0.001)


async def test_a_record_that_comes_in_small_packets_is_read_in_few_turns() -> None:
    async with pair() as (near, far):
        record = near.channel.seal(bytes(60_000))
        turns = 0

        async def send() -> None:
            for at in range(0, len(record), PACKET):
                await near.send(record[at : at + PACKET], timeout_s=5)
                await arrived(far, min(at + PACKET, len(record)))
                await trio.testing.wait_all_tasks_blocked(0.002)  # the reader has its chance at each packet

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send)
                while (plaintext := far.channel.next_plaintext()) is None:
                    far.channel.feed(await far.receive())
                    turns += 1
        assert plaintext == bytes(60_000)
        assert turns <= 2 + len(record) // LOW_WATER_BYTES_MAX + 1


async def test_what_is_small_and_what_comes_next_wake_at_once() -> None:
    async with pair() as (near, far):
        for size in (LOW_WATER_BYTES_MIN, 20_000, 1, 40_000, 30, 1):
            record = near.channel.seal(bytes(size))
            await near.send(record[:100], timeout_s=5)
            with trio.fail_after(5):
                far.channel.feed(await far.receive())
                assert (far.channel.next_plaintext() is None) == (len(record) > 100)
                await near.send(record[100:] or b"", timeout_s=5)
                while far.channel.lacking:
                    far.channel.feed(await far.receive())
                    far.channel.next_plaintext()


async def test_an_end_in_the_middle_of_a_record_is_told_at_once() -> None:
    async with pair() as (near, far):
        record = near.channel.seal(bytes(60_000))
        await near.send(record[:2_000], timeout_s=5)
        far.channel.feed(await far.receive())
        assert far.channel.next_plaintext() is None and far.channel.lacking > LOW_WATER_BYTES_MAX
        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(near.aclose)
                with pytest.raises(ConnectionLost):
                    await far.receive()


def test_the_mark_is_moved_only_where_that_is_worth_a_call_and_never_on_a_closed_socket() -> None:
    calls: list[int] = []

    class Counting:
        def setsockopt(self, level: int, option: int, value: int, /) -> None:
            assert (level, option) == (socket.SOL_SOCKET, socket.SO_RCVLOWAT)
            if value == 5_000:
                raise OSError
            calls.append(value)

    mark = LowWater(Counting())
    for lacking in (0, 1, LOW_WATER_BYTES_MIN - 1, 10_000, 10_000, 10**6, 10**6 - 1, 0, 0):
        mark.expect(lacking)
    assert calls == [10_000, LOW_WATER_BYTES_MAX, 1]
    mark.expect(5_000)
    mark.expect(6_000)
    assert calls == [10_000, LOW_WATER_BYTES_MAX, 1], "closed: it is let be"
    LowWater(None).expect(10_000)
