"""Clients that break the rules, over real sockets: each costs itself its connection and nobody else anything."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import trio

from p2p.secure.handshake import Handshake
from p2p.secure.identity import Purpose
from relay.client.circuit_stream import CircuitStream
from relay.client.options import RelayClientOptions
from relay.protocol.errors import Refusal, RelayRefused
from relay.protocol.wire import (
    CONTROL_PREAMBLE,
    DATA_PREAMBLE,
    Connect,
    ControlChannel,
    Incoming,
    Message,
    Offered,
    Ping,
    Pong,
    Refused,
    Reserve,
    Terms,
)
from state.primitives.hashing import digest
from tests.relay.daemon_process import DaemonProcess, account_of, identity_of
from tests.relay.nodes import Node, wait_until
from tests.relay.test_circuits import running

TIME_LIMIT_S = 120
UNTRUSTING: dict[str, Any] = {"trusted_networks": []}
"""The bounds for one host hold for this machine too."""


class RawClient:
    """A client that says exactly what a test wants."""

    def __init__(self, stream: trio.SocketStream, channel: ControlChannel) -> None:
        self.stream = stream
        self.channel = channel
        self._heard: list[Message] = []

    @classmethod
    async def connect(cls, daemon: DaemonProcess, name: str) -> RawClient:
        stream = await trio.open_tcp_stream("127.0.0.1", daemon.port)
        handshake = Handshake(
            identity_of(name), Purpose.RELAY_CONTROL, is_initiator=True, now_ms=time.time_ns() // 1_000_000
        )
        await stream.send_all(CONTROL_PREAMBLE + handshake.start())
        while handshake.session is None:
            data = await stream.receive_some()
            assert data, "dropped during the handshake"
            await stream.send_all(handshake.receive(bytes(data)))
        return cls(stream, ControlChannel(handshake.session))

    async def say(self, message: Message) -> None:
        await self.stream.send_all(self.channel.seal(message))

    async def hear(self) -> Message:
        """Return what the relay says next, its terms apart, which come first."""
        data = b""
        while True:
            self._heard += [m for m in self.channel.receive(data) if not isinstance(m, Terms)]
            if self._heard:
                return self._heard.pop(0)
            data = bytes(await self.stream.receive_some())
            assert data, "dropped"


async def is_dropped(stream: trio.abc.ReceiveStream) -> bool:
    """Wait until the relay closes the connection; what it says before does not matter."""
    try:
        while await stream.receive_some():
            pass
    except trio.BrokenResourceError:
        pass
    return True


async def check_serves(daemon: DaemonProcess) -> None:
    """An honest pair talks through the relay as ever."""
    alice, bob = Node("honest alice"), Node("honest bob", daemon.endpoint)
    async with running(alice, bob):
        await bob.client.wait_reserved()
        out = await alice.client.dial(daemon.endpoint, bob.address)
        back = await bob.arrived.receive()
        await out.send_all(b"hello")
        assert await back.receive_some() == b"hello"


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"X",
        b"DKRX",
        bytes(1000),
        Random(1).randbytes(5000),
        CONTROL_PREAMBLE + b"\xff\xff",
        CONTROL_PREAMBLE + b"\x00\x20" + bytes(32),
        CONTROL_PREAMBLE + b"\x04\x00" + bytes(1024),
        DATA_PREAMBLE + bytes(32) + bytes(5000),
    ],
    ids=lambda data: data[:8].hex(),
)
async def test_garbage_is_dropped(shared_relay: DaemonProcess, data: bytes) -> None:
    with trio.fail_after(TIME_LIMIT_S):
        stream = await trio.open_tcp_stream("127.0.0.1", shared_relay.port)
        await stream.send_all(data)
        assert await is_dropped(stream)
        await check_serves(shared_relay)
        await wait_until(lambda: shared_relay.metrics()["dekube_relay_connections"] == 0)


async def test_a_wrong_token_is_answered_with_its_refusal(shared_relay: DaemonProcess) -> None:
    with trio.fail_after(TIME_LIMIT_S):
        before = shared_relay.metrics()['dekube_relay_refusals_total{reason="bad_token"}']
        stream = await trio.open_tcp_stream("127.0.0.1", shared_relay.port)
        await stream.send_all(DATA_PREAMBLE + bytes(32))
        assert await stream.receive_some() == bytes((Refusal.BAD_TOKEN,))
        assert await is_dropped(stream)
        assert shared_relay.metrics()['dekube_relay_refusals_total{reason="bad_token"}'] == before + 1


async def test_a_handshake_of_another_chain_or_purpose_is_refused(shared_relay: DaemonProcess) -> None:
    from p2p.secure.identity import Identity

    elsewhere = Identity.create(
        account_of("alice"),
        genesis_hash=digest(b"test", b"elsewhere"),
        now_ms=time.time_ns() // 1_000_000,
        node_secret=bytes(32),
    )
    with trio.fail_after(TIME_LIMIT_S):
        for identity, purpose in ((elsewhere, Purpose.RELAY_CONTROL), (identity_of("alice"), Purpose.PEER)):
            handshake = Handshake(identity, purpose, is_initiator=True, now_ms=time.time_ns() // 1_000_000)
            stream = await trio.open_tcp_stream("127.0.0.1", shared_relay.port)
            await stream.send_all(CONTROL_PREAMBLE + handshake.start())
            answer = bytes(await stream.receive_some())
            with pytest.raises(Exception, match="not authentic"):
                handshake.receive(answer)
            await stream.aclose()


async def test_who_is_slow_to_say_what_it_wants_is_dropped(start_relay: Callable[..., DaemonProcess]) -> None:
    daemon = start_relay(handshake_ms_max=300)
    dropped: list[int] = []

    async def drip(data: bytes) -> None:
        stream = await trio.open_tcp_stream("127.0.0.1", daemon.port)
        try:
            for at in range(len(data)):  # each byte in good time, the whole never
                await stream.send_all(data[at : at + 1])
                with trio.move_on_after(0.05):
                    if not await stream.receive_some():
                        break
        except trio.BrokenResourceError:
            pass
        dropped.append(1)

    with trio.fail_after(TIME_LIMIT_S):
        async with trio.open_nursery() as nursery:
            for data in (DATA_PREAMBLE, CONTROL_PREAMBLE + b"\x00\x20"):
                for _ in range(10):
                    nursery.start_soon(drip, data + bytes(30))
            await wait_until(lambda: len(dropped) == 20)
        assert daemon.metrics()['dekube_relay_drops_total{reason="slow_handshake"}'] == 20
        await check_serves(daemon)


async def test_half_open_connections_are_bounded_and_time_frees_them(
    start_relay: Callable[..., DaemonProcess],
) -> None:
    daemon = start_relay(half_open_per_host_max=4, handshake_ms_max=500, **UNTRUSTING)
    with trio.fail_after(TIME_LIMIT_S):
        streams = [await trio.open_tcp_stream("127.0.0.1", daemon.port) for _ in range(4)]
        await wait_until(lambda: daemon.metrics()["dekube_relay_half_open"] == 4)
        fifth = await trio.open_tcp_stream("127.0.0.1", daemon.port)
        assert await is_dropped(fifth)
        assert daemon.metrics()['dekube_relay_drops_total{reason="refused_host_half_open"}'] == 1
        for stream in streams:
            assert await is_dropped(stream)
        await check_serves(daemon)


async def test_connections_of_a_host_are_bounded_in_number_and_rate(
    start_relay: Callable[..., DaemonProcess],
) -> None:
    daemon = start_relay(connections_per_host_max=3, accepts_per_host_burst=5, **UNTRUSTING)
    with trio.fail_after(TIME_LIMIT_S):
        clients = [await RawClient.connect(daemon, f"client {n}") for n in range(3)]
        assert await is_dropped(await trio.open_tcp_stream("127.0.0.1", daemon.port))
        assert await is_dropped(await trio.open_tcp_stream("127.0.0.1", daemon.port))
        await clients[0].stream.aclose()
        await clients[1].say(Ping(5))  # those inside notice nothing
        assert await clients[1].hear() == Pong(5)
        assert daemon.metrics()['dekube_relay_drops_total{reason="refused_host_connections"}'] == 2
        for client in clients:
            await client.stream.aclose()


async def test_reservations_of_a_host_are_bounded(start_relay: Callable[..., DaemonProcess]) -> None:
    daemon = start_relay(reservations_per_host_max=2, **UNTRUSTING)
    with trio.fail_after(TIME_LIMIT_S):
        clients = [await RawClient.connect(daemon, f"client {n}") for n in range(3)]
        answers = []
        for client in clients:
            await client.say(Reserve(1, 60))
            answers.append(await client.hear())
        assert answers[2] == Refused(1, Refusal.HOST_LIMIT, 5_000)
        assert daemon.metrics()["dekube_relay_reservations"] == 2


async def test_a_flood_on_a_control_connection_ends_it(shared_relay: DaemonProcess) -> None:
    with trio.fail_after(TIME_LIMIT_S):
        client = await RawClient.connect(shared_relay, "flooder")
        try:
            await client.stream.send_all(b"".join(client.channel.seal(Ping(n)) for n in range(1000)))
        except trio.BrokenResourceError:
            pass
        assert await is_dropped(client.stream)
        await check_serves(shared_relay)


async def test_garbage_after_the_handshake_ends_the_connection(shared_relay: DaemonProcess) -> None:
    with trio.fail_after(TIME_LIMIT_S):
        for garbage in (b"\xff\xff", bytes(600), b"\x00\x14" + bytes(20)):
            client = await RawClient.connect(shared_relay, "vandal")
            await client.stream.send_all(garbage)
            assert await is_dropped(client.stream)
        liar = await RawClient.connect(shared_relay, "liar")
        await liar.say(Offered(1, bytes(32), 5))  # sealed well, but a relay's to say
        assert await is_dropped(liar.stream)
        await check_serves(shared_relay)


async def test_a_target_that_never_comes_costs_its_dialler_a_refusal_in_time(
    start_relay: Callable[..., DaemonProcess],
) -> None:
    daemon = start_relay(pending_ms_max=300)
    with trio.fail_after(TIME_LIMIT_S):
        lazy = await RawClient.connect(daemon, "lazy")
        await lazy.say(Reserve(1, 60))
        await lazy.hear()
        alice = Node("alice")
        async with running(alice):
            with pytest.raises(RelayRefused) as refused:
                await alice.client.dial(daemon.endpoint, account_of("lazy").address)
            assert refused.value.refusal is Refusal.TARGET_TIMEOUT
        metrics = daemon.metrics()
        assert metrics["dekube_relay_pending_circuits"] == 0


async def test_a_circuit_without_traffic_is_ended(start_relay: Callable[..., DaemonProcess]) -> None:
    daemon = start_relay(circuit_idle_ms_max=300)
    alice, bob = Node("alice"), Node("bob", daemon.endpoint)
    async with running(alice, bob):
        await bob.client.wait_reserved()
        out = await alice.client.dial(daemon.endpoint, bob.address)
        back = await bob.arrived.receive()
        for stream in (out, back):
            assert isinstance(stream, CircuitStream)
            assert await is_dropped(stream)
        assert daemon.metrics()['dekube_relay_drops_total{reason="circuit_idle"}'] == 1


async def test_a_client_takes_only_as_many_circuits_at_once_as_it_wants(
    start_relay: Callable[..., DaemonProcess],
) -> None:
    daemon = start_relay()
    modest = Node("modest", daemon.endpoint, options=RelayClientOptions(incoming_max=0))
    alice = Node("alice")
    async with running(alice, modest):
        await modest.client.wait_reserved()
        with pytest.raises(RelayRefused) as refused:
            await alice.client.dial(daemon.endpoint, modest.address)
        assert refused.value.refusal in (Refusal.DECLINED, Refusal.BAD_TOKEN)  # declined before or after we came


async def test_metrics_answer_and_mind_their_manners(shared_relay: DaemonProcess) -> None:
    with trio.fail_after(TIME_LIMIT_S):
        for request, expected in (
            (b"GET /healthz HTTP/1.1\r\n\r\n", b"HTTP/1.1 200 OK"),
            (b"GET /metrics HTTP/1.0\r\n\r\n", b"HTTP/1.1 200 OK"),
            (b"GET /metrics?name=x HTTP/1.0\r\n\r\n", b"HTTP/1.1 200 OK"),
            (b"GET /else HTTP/1.1\r\n\r\n", b"HTTP/1.1 404"),
            (b"nonsense\r\n\r\n", b"HTTP/1.1 404"),
        ):
            stream = await trio.open_tcp_stream("127.0.0.1", shared_relay.metrics_port)
            await stream.send_all(request)
            assert bytes(await stream.receive_some()).startswith(expected)
            await stream.aclose()
        for path, size in ((b"/healthz", 3), (b"/metrics", 1_000)):
            stream = await trio.open_tcp_stream("127.0.0.1", shared_relay.metrics_port)
            await stream.send_all(b"HEAD " + path + b" HTTP/1.0\r\n\r\n")
            head, _, body = b"".join([bytes(part) async for part in stream]).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK") and body == b""
            assert int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0]) >= size
        stream = await trio.open_tcp_stream("127.0.0.1", shared_relay.metrics_port)
        await stream.send_all(bytes(10_000))
        assert await is_dropped(stream)


async def test_an_incoming_circuit_names_its_dialler(shared_relay: DaemonProcess) -> None:
    with trio.fail_after(TIME_LIMIT_S):
        target = await RawClient.connect(shared_relay, "target")
        dialler = await RawClient.connect(shared_relay, "dialler")
        await target.say(Reserve(1, 60))
        await target.hear()
        await dialler.say(Connect(2, account_of("target").address))
        incoming = await target.hear()
        assert isinstance(incoming, Incoming)
        assert incoming.source == account_of("dialler").address
        offered = await dialler.hear()
        assert isinstance(offered, Offered) and offered.request == 2 and offered.token != incoming.token
