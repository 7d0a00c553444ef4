"""Who does not read holds no connection for ever, closed or not; who reads slowly has the time that it takes."""

from __future__ import annotations

import asyncio
import gc
import socket
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import uvloop
from uvicorn.config import Config
from uvicorn.server import ServerState
from websockets.asyncio.client import connect

from rpc.gateway.connections import ConnectionLimiter, ConnectionOptions
from rpc.gateway.memory_quota import HeldBytes, MemoryQuota
from rpc.gateway.protocols import make_protocols
from rpc.gateway.unsent_bytes import (
    CHECK_S,
    NOTSENT_LOWAT_BYTES,
    READ_BYTES_PER_S_MIN,
    SEND_DEADLINE_S,
    USER_TIMEOUT_S,
    UnsentBytes,
    bound_kernel,
    reset,
)
from tests.rpc.gateway.test_heads import Echo

LARGE = 16 * 1024 * 1024
LOOK_S = 0.002
"""Between two looks: other processes need the processor meanwhile."""
ACKNOWLEDGED_S = 1.0
"""Longer than the kernel delays an acknowledgement or a first probe of a closed window."""
CLOSE = "connection: close\r\n"
UPGRADE = (
    "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    "sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)


class Transport:
    def __init__(self, size: int) -> None:
        self.size = size
        self.closing = self.aborted = False

    def get_write_buffer_size(self) -> int:
        return self.size

    def is_closing(self) -> bool:
        return self.closing

    def get_extra_info(self, _name: str) -> None:
        return None

    def abort(self) -> None:
        self.aborted = True


def looks(transport: Transport, *, reads: int = 0, resumes: bool = False, count: int = 100) -> float | None:
    """Return when who takes ``reads`` bytes between two looks is thrown out."""
    unread = UnsentBytes(cast(Any, transport))
    for number in range(count):
        unread.check(number * CHECK_S)
        if transport.aborted:
            return number * CHECK_S
        transport.size = max(0, transport.size - reads)
        if resumes:
            unread.resumed()
    return None


@pytest.mark.parametrize("closing", [False, True])
def test_who_reads_nothing_is_thrown_out(closing: bool) -> None:
    transport = Transport(5)
    transport.closing = closing
    assert looks(transport) == pytest.approx(SEND_DEADLINE_S, abs=CHECK_S)
    # However much there is: one that reads nothing of it has no more time for that.
    transport = Transport(100 * READ_BYTES_PER_S_MIN)
    transport.closing = closing
    assert looks(transport) == pytest.approx(SEND_DEADLINE_S, abs=CHECK_S)


def test_who_reads_slowly_is_not_while_there_is_more_to_say() -> None:
    assert looks(Transport(10_000), reads=1, count=1_000) is None
    assert looks(Transport(10_000), resumes=True) is None
    assert looks(Transport(0)) is None
    transport = Transport(10_000)
    transport.closing = True
    assert looks(transport, reads=1) == pytest.approx(SEND_DEADLINE_S, abs=CHECK_S)
    transport = Transport(100 * READ_BYTES_PER_S_MIN)
    transport.closing = True
    assert looks(transport, reads=1) == pytest.approx(SEND_DEADLINE_S + 100, abs=CHECK_S)


async def application(scope: Any, _receive: Any, send: Any) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "bytes": bytes(LARGE)})
        await send({"type": "websocket.close"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % LARGE)]})
    await send({"type": "http.response.body", "body": bytes(LARGE)})


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110  what is waited for has no event
        await asyncio.sleep(LOOK_S)


@asynccontextmanager
async def served(
    doors: ConnectionLimiter, application: Any, made: list[weakref.ref[Any]]
) -> AsyncIterator[tuple[str, int]]:
    """Serve an application; ``made`` gets each protocol of HTTP that a connection begins with."""
    loop = asyncio.get_running_loop()
    http, websocket = make_protocols(doors, Echo())
    config: Any = Config(application, http=http, ws=websocket, log_config=None, lifespan="off")
    config.load()
    protocol: Any = http

    def make() -> Any:
        one = protocol(config, ServerState(), {}, loop)
        made.append(weakref.ref(one))
        return one

    server = await loop.create_server(make, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()
    server.close()


async def welcome(_scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "websocket.accept"})
    while (await receive())["type"] != "websocket.disconnect":
        pass


@pytest.mark.parametrize("is_socket", [False, True])
def test_a_closed_connection_that_is_not_read_is_given_back(is_socket: bool) -> None:
    async def main() -> None:
        doors = ConnectionLimiter(ConnectionOptions())
        async with served(doors, application, []) as place:
            client = socket.create_connection(place)
            lines = (
                "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n" if is_socket else ""
            )
            key = "sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n" if is_socket else "connection: close\r\n"
            client.sendall(f"GET / HTTP/1.1\r\nhost: localhost\r\n{lines}{key}\r\n".encode())
            async with asyncio.timeout(60):
                await until(lambda: any(one._transport.get_write_buffer_size() for one in doors.unsent))
                [unread] = doors.unsent
                unread._transport.close()  # as it does when the answer is given, or no pong comes
                assert unread._transport.is_closing()
                await acknowledged(unread)  # what the kernels still take would count as read
                unread.check(0.0)
                unread.check(SEND_DEADLINE_S - 1)
                await asyncio.sleep(0.01)
                assert doors.open == 1, "it has time"
                unread.check(SEND_DEADLINE_S)
                await until(lambda: not doors.open)
            assert not doors.unsent
            client.close()

    uvloop.run(main())


class Silent(asyncio.Protocol):
    """Keeps the transport of a connection that came in, and writes to it what it is told to."""

    transport: asyncio.Transport
    is_lost = False

    def connection_lost(self, _error: Exception | None) -> None:
        self.is_lost = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[asyncio.Transport, socket.socket]]:
    """A connection as the gateway accepts it, and its client, who reads nothing unless he is told to."""
    listener = socket.create_server(("127.0.0.1", 0))
    bound_kernel(listener)
    made: list[Silent] = []

    def accept() -> Silent:
        made.append(Silent())
        return made[-1]

    server = await asyncio.get_running_loop().create_server(accept, sock=listener)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.connect(listener.getsockname())
        client.settimeout(60)
        async with asyncio.timeout(30):
            await until(lambda: bool(made) and hasattr(made[0], "transport"))
        yield made[0].transport, client
    server.close()


async def acknowledged(unread: UnsentBytes) -> None:
    """Wait until the client's machine acknowledges no more: it goes on for a while after its last read."""
    before = None
    while (found := unread._ask_kernel()) != before:
        before = found
        await asyncio.sleep(ACKNOWLEDGED_S)


async def closed(transport: asyncio.Transport) -> None:
    """Wait until the socket is closed: before that a client that reads without a loop would wait for ever."""
    protocol = cast(Silent, transport.get_protocol())
    async with asyncio.timeout(30):
        await until(lambda: protocol.is_lost)


def test_the_kernel_takes_little_and_what_it_took_counts() -> None:
    async def main() -> None:
        memory_quota = MemoryQuota(0, 4 * LARGE)
        async with connected() as (transport, client):
            sock = transport.get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 1_000 * USER_TIMEOUT_S
            unread = UnsentBytes(transport, HeldBytes(memory_quota, "x"))
            transport.write(bytes(LARGE))
            in_kernel = LARGE - transport.get_write_buffer_size()
            assert in_kernel < 4 * NOTSENT_LOWAT_BYTES, "without a bound it takes megabytes"
            unread.check(0.0)
            assert 0 <= memory_quota.bytes - LARGE < 256 * 1024
            # What the process holds no more the kernel may hold yet.
            transport.resume_reading()
            at = 0
            while transport.get_write_buffer_size():
                at += len(client.recv(256 * 1024))
                await asyncio.sleep(0)
            written = LARGE
            while unread._ask_kernel()[0] < 16 * 1024:  # the client may have taken all at once
                transport.write(bytes(4_096))
                written += 4_096
                await asyncio.sleep(0)
            assert not transport.get_write_buffer_size()
            unread.check(1.0)
            assert memory_quota.bytes >= 16 * 1024
            while at < written:
                at += len(client.recv(256 * 1024))
            async with asyncio.timeout(30):
                while memory_quota.bytes:
                    unread.check(2.0)
                    await asyncio.sleep(0.01)

    uvloop.run(main())


def test_what_came_and_is_not_read_counts() -> None:
    async def main() -> None:
        memory_quota = MemoryQuota()
        async with connected() as (transport, client):
            unread = UnsentBytes(transport, HeldBytes(memory_quota, "x"))
            transport.pause_reading()
            client.sendall(bytes(20_000))
            async with asyncio.timeout(30):
                while not memory_quota.bytes:
                    unread.check(0.0)
                    await asyncio.sleep(0.01)

    uvloop.run(main())


def test_who_reads_all_the_time_has_all_the_time_and_who_stops_is_reset() -> None:
    """What is under way is never nothing where much is sent, so only what was confirmed shows who reads."""

    async def main() -> None:
        async with connected() as (transport, client):
            unread = UnsentBytes(transport, HeldBytes(MemoryQuota(), "x"))
            now = 0.0
            transport.write(bytes(LARGE))
            for _ in range(40):
                for _ in range(8):
                    transport.write(client.recv(64 * 1024))
                    await asyncio.sleep(0)
                unread.check(now := now + 20.0)
            assert not transport.is_closing()
            await acknowledged(unread)
            unread.check(now := now + 1)
            unread.check(now + SEND_DEADLINE_S + 1)
            assert transport.is_closing()
            await closed(transport)
            with pytest.raises(ConnectionResetError):
                while client.recv(64 * 1024):
                    pass

    uvloop.run(main())


def test_over_the_budget_it_is_reset() -> None:
    async def main() -> None:
        memory_quota = MemoryQuota(0, 1_000_000)
        async with connected() as (transport, client), connected() as (other, _client):
            held = [UnsentBytes(one, HeldBytes(memory_quota, "x")) for one in (transport, other)]
            for one in (transport, other):
                one.write(bytes(700_000))
            held[0].check(0.0)
            held[1].paused()
            assert other.is_closing() and not transport.is_closing()
            reset(transport)
            await closed(transport)
            with pytest.raises(ConnectionResetError):
                while client.recv(64 * 1024):
                    pass

    uvloop.run(main())


def test_connections_that_end_are_looked_at_no_more() -> None:
    async def main() -> None:
        doors = ConnectionLimiter(ConnectionOptions(connections_max=1))
        async with served(doors, welcome, []) as (host, port), asyncio.timeout(30):
            async with connect(f"ws://{host}:{port}/"):
                assert len(doors.unsent) == doors.open == 1
                reader, writer = await asyncio.open_connection(host, port)  # one too many
                assert await reader.read() == b""
                writer.close()
                assert len(doors.unsent) == 1
            await until(lambda: not doors.open)
            assert not doors.unsent

    uvloop.run(main())


def test_a_websocket_keeps_nothing_of_the_protocol_that_handed_over() -> None:
    async def main() -> None:
        made: list[weakref.ref[Any]] = []
        async with (
            asyncio.timeout(30),
            served(ConnectionLimiter(ConnectionOptions()), welcome, made) as (host, port),
            connect(f"ws://{host}:{port}/") as client,
        ):
            await (await client.ping())
            gc.collect()
            assert [one() for one in made] == [None]

    uvloop.run(main())
