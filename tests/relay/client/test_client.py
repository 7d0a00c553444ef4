"""The client against relays that lie, stall or talk nonsense."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from p2p.base.endpoint import Endpoint
from p2p.secure.handshake import Handshake
from p2p.secure.identity import Purpose, Role
from relay.client.client import RelayClient
from relay.client.known_relays import ENDPOINTS_PER_RELAY_MAX, OFFERED_MAX
from relay.client.options import RelayClientOptions
from relay.client.reputation import Fault
from relay.protocol.errors import Refusal, RelayProtocolError, RelayRefused, RelayUnreachable
from relay.protocol.wire import (
    Connect,
    ControlChannel,
    Incoming,
    Message,
    Offered,
    Ping,
    Pong,
    Refused,
    Reserve,
    Reserved,
    Voucher,
    encode_message,
)
from state.primitives.errors import ConfigError
from tests.relay.daemon_process import account_of, identity_of
from tests.relay.nodes import Node, wait_until
from tests.relay.test_circuits import running

RELAY = account_of("relay").address
BOB = account_of("bob").address
SOON = RelayClientOptions(connect_s_max=0.3, answer_s_max=0.3, ping_s=0.1, backoff_s_min=0.01, backoff_s_max=0.05)


class FakeRelay:
    """Shakes hands as the relay; what it says then is the test's ``script``."""

    def __init__(self, script: Callable[[FakeRelay], Awaitable[None]], data_status: bytes = b"\0") -> None:
        self.script = script
        self.data_status = data_status
        self.connections = 0
        self.endpoint = Endpoint("127.0.0.1", 1, RELAY)
        self._heard: list[Message] = []

    async def serve(self, stream: trio.SocketStream) -> None:
        try:
            await self._serve(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    async def _serve(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        async with stream:
            begin = bytes(await stream.receive_some(4))
            if begin == b"DKRD":
                await stream.receive_some()
                await stream.send_all(self.data_status)
                await trio.sleep_forever()
            handshake = Handshake(
                identity_of("relay", Role.RELAY),
                Purpose.RELAY_CONTROL,
                is_initiator=False,
                now_ms=time.time_ns() // 1_000_000,
            )
            while handshake.session is None:
                data = bytes(await stream.receive_some())
                if not data:
                    return
                await stream.send_all(handshake.receive(data))
            self.stream, self.channel = stream, ControlChannel(handshake.session)
            await self.script(self)

    async def say(self, message: Message) -> None:
        await self.stream.send_all(self.channel.seal(message))

    async def hear(self) -> Message:
        data = b""
        while True:
            self._heard += self.channel.receive(data)
            if self._heard:
                return self._heard.pop(0)
            data = bytes(await self.stream.receive_some())
            if not data:
                raise trio.BrokenResourceError


@asynccontextmanager
async def serving(relay: FakeRelay, *nodes: Node) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, relay.serve, 0, host="127.0.0.1"))
        port = listeners[0].socket.getsockname()[1]
        relay.endpoint = Endpoint("127.0.0.1", port, RELAY)
        async with running(*nodes):
            yield
        nursery.cancel_scope.cancel()


async def silence(relay: FakeRelay) -> None:
    await trio.sleep_forever()


async def answer_wrongly(relay: FakeRelay) -> None:
    await relay.hear()
    await relay.say(Reserved(1, 60, b"", ""))
    await trio.sleep_forever()


async def speak_as_a_client(relay: FakeRelay) -> None:
    await relay.say(Reserve(1, 60))
    await trio.sleep_forever()


async def send_nonsense(relay: FakeRelay) -> None:
    await relay.stream.send_all(b"\x00\x30" + bytes(48))
    await trio.sleep_forever()


async def hang_up(relay: FakeRelay) -> None:
    return


@pytest.mark.parametrize("script", [silence, answer_wrongly, speak_as_a_client, send_nonsense, hang_up])
async def test_a_faulty_relay_is_an_error_of_its_own_soon(script: Callable[[FakeRelay], Awaitable[None]]) -> None:
    alice = Node("alice", options=SOON)
    relay = FakeRelay(script)
    async with serving(relay, alice):
        with pytest.raises((RelayUnreachable, RelayProtocolError)):
            await alice.client.dial(relay.endpoint, BOB)


async def test_a_port_where_nobody_shakes_hands_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    async def swallow(stream: trio.SocketStream) -> None:
        async with stream:
            while await stream.receive_some():
                pass

    alice = Node("alice", options=RelayClientOptions(connect_s_max=1))
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, swallow, 0, host="127.0.0.1"))
        endpoint = Endpoint("127.0.0.1", listeners[0].socket.getsockname()[1], RELAY)
        async with running(alice):
            with pytest.raises(RelayUnreachable, match="too slow"):
                await alice.client.dial(endpoint, BOB)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("forge", ["signature", "client", "relay"])
async def test_a_voucher_that_is_not_the_relays_is_not_shown_to_anybody(forge: str) -> None:
    signer = identity_of("another relay" if forge == "relay" else "relay", Role.RELAY)
    client = account_of("somebody else").address if forge == "client" else BOB
    voucher = Voucher.issue(signer, client=client, not_after_ms=2**50).encode()
    if forge == "signature":
        voucher = voucher[:-1] + bytes((voucher[-1] ^ 1,))

    async def script(relay: FakeRelay) -> None:
        message = await relay.hear()
        assert isinstance(message, Reserve)
        await relay.say(Reserved(message.request, 60, voucher, ""))
        await trio.sleep_forever()

    relay = FakeRelay(script)
    async with serving(relay):
        bob = Node("bob", relay.endpoint, options=SOON)
        async with running(bob):
            await wait_until(lambda: relay.connections >= 3)  # it tries again, and believes it no more
            assert bob.client.reservations == () and bob.advertised == {}


async def test_a_relay_that_falls_silent_is_left_and_tried_again() -> None:
    async def script(relay: FakeRelay) -> None:
        message = await relay.hear()
        assert isinstance(message, Reserve)
        await relay.say(Reserved(message.request, 60, voucher, "192.0.2.1:5"))
        await trio.sleep_forever()

    voucher = Voucher.issue(identity_of("relay", Role.RELAY), client=BOB, not_after_ms=2**50).encode()
    relay = FakeRelay(script)
    async with serving(relay):
        bob = Node("bob", relay.endpoint, options=SOON)
        async with running(bob):
            await bob.client.wait_reserved()
            assert bob.client.reservations[0].observed == "192.0.2.1:5"
            await wait_until(lambda: relay.connections >= 2)
            assert str(relay.endpoint) in bob.advertised


async def test_a_relay_without_a_reservation_is_named_as_down_since_it_was_lost() -> None:
    is_up = True

    async def script(relay: FakeRelay) -> None:
        message = await relay.hear()
        assert isinstance(message, Reserve)
        if is_up:
            await relay.say(Reserved(message.request, 60, voucher, "192.0.2.1:5"))
            await ended.wait()

    ended = trio.Event()
    voucher = Voucher.issue(identity_of("relay", Role.RELAY), client=BOB, not_after_ms=2**50).encode()
    relay = FakeRelay(script)
    async with serving(relay):
        bob = Node("bob", relay.endpoint, options=SOON)
        async with running(bob):
            await bob.client.wait_reserved()
            assert not bob.client.down
            is_up = False
            lost_at = trio.current_time()
            ended.set()
            await wait_until(lambda: bool(bob.client.down))
            await wait_until(lambda: relay.connections >= 4)
            [down] = bob.client.down
            assert down.endpoint == relay.endpoint and down.why == "the relay closed the connection"
            assert lost_at <= down.since_s <= lost_at + 1  # of the loss, not of the newest attempt
            is_up, ended = True, trio.Event()
            await bob.client.wait_reserved()
            assert bob.client.down == ()


async def test_a_relay_that_was_never_reached_is_named_as_down_with_the_reason() -> None:
    with trio.socket.socket() as unused:
        await unused.bind(("127.0.0.1", 0))
        nowhere = Endpoint("127.0.0.1", unused.getsockname()[1], RELAY)
        bob = Node("bob", nowhere, options=SOON)
        async with running(bob):
            await wait_until(lambda: bool(bob.client.down))
            [down] = bob.client.down
            assert down.endpoint == nowhere and "failed" in down.why and str(nowhere) not in down.why


async def test_a_relay_that_pings_is_answered() -> None:
    pongs: list[Message] = []

    async def script(relay: FakeRelay) -> None:
        await relay.say(Ping(77))
        while not pongs:
            message = await relay.hear()
            if isinstance(message, Pong):
                pongs.append(message)

    relay = FakeRelay(script)
    async with serving(relay):
        bob = Node("bob", relay.endpoint, options=SOON)
        async with running(bob):
            await wait_until(lambda: bool(pongs))
    assert pongs == [Pong(77)]


async def test_announcements_beyond_the_bound_are_declined() -> None:
    declined: list[Message] = []

    async def script(relay: FakeRelay) -> None:
        for n in range(40):
            await relay.say(Incoming(bytes((n,)) * 32, account_of("alice").address, 5_000))
        while True:
            message = await relay.hear()
            if not isinstance(message, Reserve | Ping):
                declined.append(message)

    relay = FakeRelay(script, data_status=b"")
    options = RelayClientOptions(incoming_max=30, connect_s_max=20)
    async with serving(relay):
        bob = Node("bob", relay.endpoint, options=options)
        async with running(bob):
            await wait_until(lambda: len(declined) == 10)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (bytes((Refusal.DECLINED,)), RelayRefused),
        (b"\xfe", RelayProtocolError),
    ],
)
async def test_the_status_of_a_data_connection_is_an_error_unless_joined(
    status: bytes, error: type[Exception]
) -> None:
    async def script(relay: FakeRelay) -> None:
        await relay.hear()
        await relay.say(Offered(1, bytes(32), 1000))
        await trio.sleep_forever()

    alice = Node("alice")
    relay = FakeRelay(script, data_status=status)
    async with serving(relay, alice):
        with pytest.raises(error):
            await alice.client.dial(relay.endpoint, BOB)


async def test_a_dial_that_is_cancelled_leaves_the_link_usable() -> None:
    is_asked = trio.Event()

    async def script(relay: FakeRelay) -> None:
        await relay.hear()
        is_asked.set()
        while True:  # the first question is left open, the second answered
            message = await relay.hear()
            if not isinstance(message, Ping):
                await relay.say(Refused(2, Refusal.NO_RESERVATION, 0))

    alice = Node("alice")
    relay = FakeRelay(script)
    async with serving(relay, alice):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(alice.client.dial, relay.endpoint, BOB)
            await is_asked.wait()
            nursery.cancel_scope.cancel()
        with pytest.raises(RelayRefused):
            await alice.client.dial(relay.endpoint, BOB)
        assert relay.connections == 1


async def test_what_is_no_relay_endpoint_is_refused() -> None:
    with pytest.raises(ConfigError):
        RelayClient(lambda: identity_of("alice"), [Endpoint("127.0.0.1", 5)])
    alice = Node("alice")
    async with running(alice):
        for endpoint, target in (
            (Endpoint("127.0.0.1", 5), BOB),
            (Endpoint("127.0.0.1", 5, RELAY), None),
            (Endpoint("127.0.0.1", 1, RELAY), BOB),
            (Endpoint("no..such..host", 1, RELAY), BOB),
        ):
            with pytest.raises(RelayUnreachable):
                await alice.client.dial(endpoint, target)


def test_links_are_bounded_messages_fit() -> None:
    voucher = Voucher.issue(identity_of("relay", Role.RELAY), client=BOB, not_after_ms=2**52).encode()
    longest = Reserved(2**32 - 1, 2**32 - 1, voucher, "[" + "f" * 61 + "]")
    assert len(encode_message(longest)) <= 512


async def test_no_more_relays_are_joined_than_allowed() -> None:
    alice = Node("alice", options=RelayClientOptions(links_max=0))
    async with running(alice):
        with pytest.raises(RelayUnreachable, match="as many relays"):
            await alice.client.dial(Endpoint("127.0.0.1", 9, RELAY), BOB)


async def test_a_good_relay_is_not_blamed_for_a_place_that_only_bears_its_name() -> None:
    good, decoy = Endpoint("127.0.0.1", 1, RELAY), Endpoint("127.0.0.1", 2, RELAY)
    client = RelayClient(lambda: identity_of("alice"), [good])
    reputation = client.known.reputation
    for fault in Fault:
        client.known.blame(decoy, fault)
    client.measured(decoy, 9.0)
    assert (
        client.known.reputation.points(RELAY, trio.current_time()) == 0
        and client.known.reputation.rtt_s(RELAY) is None
    )
    client.reserving.offer_alternatives([str(decoy)])
    client.known.blame(decoy, Fault.LOST)
    assert client.known.reputation.points(RELAY, trio.current_time()) == 0, (
        "nor is it taken from a relay that is full"
    )
    client.measured(good, 1.0)
    client.known.blame(good, Fault.LOST)
    assert (
        client.known.reputation.points(RELAY, trio.current_time()) > 0
        and client.known.reputation.rtt_s(RELAY) == 1.0
    )
    other = Endpoint("127.0.0.1", 2, BOB)
    client.known.blame(other, Fault.LOST)
    assert reputation.points(BOB, trio.current_time()) > 0, "one that nobody else names"


async def test_relays_to_wait_at_are_of_as_many_networks_as_there_are() -> None:
    """A host may run a relay for each of its cores, all of them the nearest."""
    crowd = [Endpoint("192.0.2.7", 26_680 + n, bytes([n]) * 20) for n in range(8)]
    far, ipv6 = Endpoint("198.51.100.1", 26_680, b"f" * 20), Endpoint("2001:db8::1", 26_680, b"v" * 20)
    client = RelayClient(lambda: identity_of("alice"), [*crowd, far, ipv6], RelayClientOptions(reservations=3))
    for at, endpoint in enumerate((*crowd, ipv6, far)):
        client.measured(endpoint, 0.01 * (at + 1))
    assert client.reserving.choose([*crowd, far, ipv6]) == [crowd[0], ipv6, far]
    assert client.reserving.choose([*crowd, far]) == [crowd[0], far, crowd[1]]
    assert client.reserving.choose(crowd) == crowd[:3]
    while not client.known.reputation.is_avoided(far.relay or b"", trio.current_time()):
        client.known.blame(far, Fault.LOST)
    assert client.reserving.choose([*crowd, far]) == crowd[:3], "one that is left only where there is no other"
    assert client.reserving.choose([far, crowd[0]]) == [crowd[0], far]


def test_relays_that_move_without_end_are_known_at_their_last_places() -> None:
    client = RelayClient(lambda: identity_of("alice"), (Endpoint("r", 1, RELAY),))
    for number in range(3_000):  # the registry as it is told with each block
        client.offer(
            [Endpoint("203.0.113.1", number + 1, BOB), Endpoint("198.51.100.1", 7, account_of("b").address)]
        )
    assert [e.port for e in client.known.endpoints if e.relay == BOB] == [2_997, 2_998, 2_999, 3_000]
    assert (
        len(client.known.endpoints) == ENDPOINTS_PER_RELAY_MAX + 2
        and len(client.known._offered_at) <= ENDPOINTS_PER_RELAY_MAX + 1
    )
    for number in range(2 * OFFERED_MAX):
        client.offer([Endpoint("203.0.113.1", 1, number.to_bytes(20, "big"))])
    assert len(client.known.endpoints) == OFFERED_MAX + 1
    assert client.known.endpoints[0] == Endpoint("r", 1, RELAY) and client.known.endpoints[
        -1
    ].relay == number.to_bytes(20, "big")


@pytest.mark.parametrize(("percent", "is_heard_in_time"), [(100, True), (1, False)])
async def test_a_relay_that_talks_without_end_is_read_no_faster_than_its_share(
    percent: int, is_heard_in_time: bool
) -> None:
    async def talk(relay: FakeRelay) -> None:
        request = await relay.hear()
        assert isinstance(request, Connect)
        for number in range(0, 20_000, 1_000):
            await relay.stream.send_all(
                b"".join(relay.channel.seal(Pong(n)) for n in range(number, number + 1_000))
            )
        await relay.say(Refused(request.request, Refusal.NO_RESERVATION, 0))
        await trio.sleep_forever()

    # At one part in a hundred what took 10 ms of the loop costs the relay a second.
    answer_s = 60 if is_heard_in_time else 1
    options = RelayClientOptions(answer_s_max=answer_s, event_loop_percent_max=percent, event_loop_burst_s=0)
    alice = Node("alice", options=options)
    relay = FakeRelay(talk)
    async with serving(relay, alice):
        with pytest.raises(RelayRefused if is_heard_in_time else RelayUnreachable):
            await alice.client.dial(relay.endpoint, BOB)
