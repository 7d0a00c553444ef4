"""Links to other relays: nobody fills them with relays of its own, and who needs one gets one."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from p2p.base.endpoint import Endpoint
from p2p.secure.handshake import Handshake
from p2p.secure.identity import Identity, Purpose
from relay.protocol.errors import Refusal
from relay.protocol.limits import HostTable, HostUse, RelayLimits
from relay.protocol.wire import PREAMBLE_BYTES, ControlChannel, Extend, Ping
from relay.server.next_hop import NextHopConnection, NextHopLinks
from relay.server.next_hop_eviction import Eviction, NextHopUse, choose_eviction
from tests.relay.daemon_process import identity_of

LIMITS = replace(RelayLimits(), trusted_networks=(), relays_max=12, relays_per_client_network_max=3)
HOSTS = HostTable(LIMITS)


def host(block: int, network: int = 0) -> HostUse:
    found = HOSTS.use(f"100.{block}.{network}.1", 0)
    assert found is not None
    return found


def relay_at(number: int, ip: str = "r", port: int = 1) -> Endpoint:
    return Endpoint(ip, port, number.to_bytes(20, "big"))


class Links:
    def __init__(self, limits: RelayLimits = LIMITS) -> None:
        self.limits = limits
        self.links: dict[Endpoint, NextHopUse] = {}
        self.now_ms = self.count = 0

    def ask(self, client_host: HostUse | None, *, is_kept: bool = False) -> Eviction:
        room = choose_eviction([*self.links.values()], client_host, self.limits, self.now_ms)
        if room.evicted is not None:
            del self.links[room.evicted]
        if room.refusal is None:
            self.count += 1
            endpoint = relay_at(self.count)
            self.links[endpoint] = NextHopUse(endpoint, client_host, self.now_ms, is_kept)
        return room


def test_one_network_has_few_and_its_unused_ones_go_first() -> None:
    links = Links()
    for _ in range(3):
        assert links.ask(host(1)) == Eviction()
    assert links.ask(host(1)) == Eviction(Refusal.HOST_LIMIT)
    assert links.ask(host(1, 1)) == Eviction()
    links.now_ms = LIMITS.relay_spare_ms
    assert links.ask(host(1)) == Eviction(evicted=relay_at(1))


def test_a_full_house_makes_room_for_who_has_less_and_keeps_what_the_operator_named() -> None:
    links = Links()
    for _ in range(2):
        assert links.ask(None, is_kept=True) == Eviction()
    for number in range(10):
        assert links.ask(host(1, number)) == Eviction()
    assert links.ask(host(1, 99)) == Eviction(Refusal.RELAY_FULL)
    assert links.ask(host(2)) == Eviction(evicted=relay_at(3))
    links.now_ms = 10 * LIMITS.relay_spare_ms
    assert links.ask(host(1, 99)).evicted == relay_at(4)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 9), st.integers(0, 500)), max_size=80))
def test_whoever_fills_them_from_few_blocks_cannot_keep_others_out(attack: list[tuple[int, int, int]]) -> None:
    links = Links()
    for block, network, pause_ms in attack:
        links.now_ms += pause_ms
        links.ask(host(block, network))
        assert len(links.links) <= LIMITS.relays_max
        askers = [link.client_host.network for link in links.links.values() if link.client_host is not None]
        assert all(askers.count(name) <= LIMITS.relays_per_client_network_max for name in askers)
    assert links.ask(host(9)).refusal is None


class Daemon:
    """What links need of a relay, on which this machine's addresses count as the world's."""

    def __init__(self, limits: RelayLimits) -> None:
        self.limits = limits
        self.hosts = HostTable(limits)
        self.failed: list[tuple[int, Refusal]] = []

    def identity(self) -> Identity:
        return identity_of("relay")

    def may_reach(self, ip: str, *, is_trusted: bool) -> bool:
        return True

    def adopt(self, transport: asyncio.Transport, ip: str) -> HostUse | None:
        return self.hosts.use(ip, 0)

    def connection_closed(self, transport: asyncio.Transport) -> None:
        pass

    def next_hop_opened(self, circuit: int, connection: NextHopConnection) -> None:
        raise AssertionError("nobody answers here")

    def next_hop_failed(self, circuit: int, refusal: Refusal) -> None:
        self.failed.append((circuit, refusal))

    def next_hop_lost(self, connection: NextHopConnection) -> None:
        raise AssertionError("nobody answers here")


def test_routes_that_name_own_relays_leave_the_links_to_others() -> None:
    """Real sockets: relays that take a connection and say nothing, all on a few hosts."""

    async def play() -> None:
        limits = replace(
            LIMITS, relays_per_client_network_max=6, relays_per_network_max=4, handshake_ms_max=60_000
        )
        daemon = Daemon(limits)
        links = NextHopLinks(daemon)
        server = await asyncio.start_server(lambda _reader, _writer: asyncio.sleep(60), "0.0.0.0", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            async with asyncio.timeout(20):
                for number in range(8):
                    links.extend(number, relay_at(number, "127.3.0.1", port), b"", host(1))
                while len(daemon.failed) < 4:  # noqa: ASYNC110 - the doing of sockets
                    await asyncio.sleep(0.01)
                # Two were too many for who asked, two too many for the network that they are in.
                assert sorted(refusal for _, refusal in daemon.failed) == [
                    Refusal.HOST_LIMIT, Refusal.HOST_LIMIT, Refusal.NEXT_UNREACHABLE, Refusal.NEXT_UNREACHABLE,
                ]  # fmt: skip
                links.extend(20, relay_at(20, "127.4.0.1", port), b"", host(2))
                while relay_at(20, "127.4.0.1", port) not in links._links:  # noqa: ASYNC110 - as above
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0)
                assert all(circuit != 20 for circuit, _ in daemon.failed)
        finally:
            links.close()
            server.close()
            await asyncio.sleep(0)

    asyncio.run(play())


Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter, ControlChannel], Awaitable[None]]


@contextlib.asynccontextmanager
async def linked(script: Script) -> AsyncIterator[tuple[Daemon, NextHopLinks, Endpoint]]:
    """Links with one to a relay that a stranger named, which shakes hands and then does what it likes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(PREAMBLE_BYTES)
        handshake = Handshake(
            identity_of("relay 2"), Purpose.RELAY_CONTROL, is_initiator=False, now_ms=time.time_ns() // 1_000_000
        )
        while handshake.session is None:
            writer.write(handshake.receive(await reader.read(4096)))
        with contextlib.suppress(OSError):
            await script(reader, writer, ControlChannel(handshake.session))
        writer.close()

    daemon = Daemon(LIMITS)
    links = NextHopLinks(daemon)
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    server = await asyncio.start_server(serve, sock=sock, limit=1024)
    endpoint = Endpoint("127.0.0.1", sock.getsockname()[1], identity_of("relay 2").address)
    try:
        async with asyncio.timeout(60):
            links.extend(1, endpoint, b"", host(1))
            while endpoint not in links.known and not daemon.failed:  # noqa: ASYNC110 - the doing of sockets
                await asyncio.sleep(0.01)
            yield daemon, links, endpoint
    finally:
        links.close()
        server.close()
        await asyncio.sleep(0)


def test_a_relay_that_somebody_named_keeps_no_loop_busy_with_its_words() -> None:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, channel: ControlChannel) -> None:
        async def read_answers() -> None:  # or it would be thrown out for not reading
            with contextlib.suppress(OSError):
                while await reader.read(4096):
                    pass

        async with asyncio.TaskGroup() as group:
            group.create_task(read_answers())
            for number in range(20_000):
                if writer.is_closing():
                    return
                writer.write(channel.seal(Ping(number)))
                await asyncio.sleep(0)

    async def play() -> None:
        async with linked(flood) as (daemon, links, endpoint):
            # All may be said before any of it is read: how far the flood is tells nothing.
            while not daemon.failed:  # noqa: ASYNC110 - the doing of sockets
                await asyncio.sleep(0.01)
            assert daemon.failed == [(1, Refusal.NEXT_UNREACHABLE)] and endpoint not in links.known

    asyncio.run(play())


def test_a_relay_that_does_not_read_fills_no_memory() -> None:
    async def stand_still(_r: asyncio.StreamReader, _w: asyncio.StreamWriter, _c: ControlChannel) -> None:
        await asyncio.sleep(60)

    async def play() -> None:
        async with linked(stand_still) as (daemon, links, endpoint):
            link = links._links[endpoint]
            for number in range(20_000):
                link.send(Extend(number, bytes(1_024), b""))
                if not link.is_open:
                    break
                await asyncio.sleep(0)
            assert not link.is_open and endpoint not in links.known
            await asyncio.sleep(0)
            assert daemon.failed == [(1, Refusal.NEXT_UNREACHABLE)]

    asyncio.run(play())
