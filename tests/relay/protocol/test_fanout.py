"""The fan-out of a relay: wire, groups, consent and limits, and a real daemon among hostile clients."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import NamedTuple, cast

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from p2p.base.endpoint import Endpoint
from p2p.base.errors import HandshakeFailed
from p2p.secure.handshake import Handshake, Session
from p2p.secure.identity import Purpose
from relay.client.publisher import FanoutClient, FanoutOptions
from relay.protocol.errors import RelayProtocolError, RelayUnreachable
from relay.protocol.fanout import (
    FANOUT_PREAMBLE,
    GROUPS_MAX,
    MEMBERS_MAX,
    MESSAGE_BYTES_MAX,
    PIECE_BYTES_MAX,
    PUBLISHERS_MAX,
    Copy,
    Delivery,
    FanoutChannel,
    FanoutCore,
    FanoutLimits,
    FanoutMessage,
    Group,
    Ping,
    Pong,
    Publish,
    Subscribe,
    decode_fanout,
    encode_fanout,
)
from relay.protocol.limits import HostTable, HostUse, RelayLimits
from relay.server.fanout_daemon import ANSWERS_BYTES_MAX, FanoutServer
from state.primitives.errors import DecodeError
from tests.relay.daemon_process import DaemonProcess, identity_of
from tests.relay.nodes import Node, wait_until

ALICE, BOB, CAROL, MALLORY = (bytes([number]) * 20 for number in (1, 2, 3, 66))
ADDRESS = st.binary(min_size=20, max_size=20)
MESSAGES = st.one_of(
    st.builds(Subscribe, st.lists(ADDRESS, max_size=PUBLISHERS_MAX).map(tuple)),
    st.builds(Group, st.integers(0, GROUPS_MAX - 1), st.lists(ADDRESS, max_size=MEMBERS_MAX).map(tuple)),
    st.builds(Publish, st.integers(0, GROUPS_MAX - 1), st.integers(1, PIECE_BYTES_MAX)),
    st.builds(Ping, st.integers(0, 2**32 - 1)),
    st.builds(Delivery, ADDRESS, st.integers(1, PIECE_BYTES_MAX)),
    st.builds(Pong, st.integers(0, 2**32 - 1)),
)


# -- the wire ---------------------------------------------------------------------------------------------------


@given(MESSAGES)
@settings(deadline=None)
def test_messages_come_back_as_they_were(message: FanoutMessage) -> None:
    data = encode_fanout(message)
    assert len(data) <= MESSAGE_BYTES_MAX
    assert decode_fanout(data) == message


@pytest.mark.parametrize(
    "message",
    [
        Subscribe((b"short",)),
        Subscribe((ALICE,) * (PUBLISHERS_MAX + 1)),
        Group(GROUPS_MAX, (ALICE,)),
        Group(0, (ALICE,) * (MEMBERS_MAX + 1)),
        Publish(0, 0),
        Publish(0, PIECE_BYTES_MAX + 1),
        Publish(-1, 1),
        Delivery(ALICE[1:], 1),
        Ping(2**32),
    ],
)
def test_messages_beyond_their_bounds_are_refused(message: FanoutMessage) -> None:
    with pytest.raises(DecodeError):
        decode_fanout(encode_fanout(message))


def session_of(name: str) -> Session:
    """Return a relay's side of a connection of ``name``."""
    now_ms = time.time_ns() // 1_000_000
    client = Handshake(identity_of(name), Purpose.RELAY_FANOUT, is_initiator=True, now_ms=now_ms)
    relay = Handshake(identity_of("relay"), Purpose.RELAY_FANOUT, is_initiator=False, now_ms=now_ms)
    relay.receive(client.receive(relay.receive(client.start())))
    assert relay.session is not None
    return relay.session


def sessions() -> tuple[Session, Session]:
    now_ms = time.time_ns() // 1_000_000
    one = Handshake(identity_of("one"), Purpose.RELAY_FANOUT, is_initiator=True, now_ms=now_ms)
    other = Handshake(identity_of("other"), Purpose.RELAY_FANOUT, is_initiator=False, now_ms=now_ms)
    other.receive(one.receive(other.receive(one.start())))
    assert one.session is not None and other.session is not None
    return one.session, other.session


def channels() -> tuple[FanoutChannel, FanoutChannel]:
    one, other = sessions()
    return FanoutChannel(one), FanoutChannel(other)


@given(st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
def test_a_channel_does_not_mind_how_bytes_are_cut(seed: int) -> None:
    random = Random(seed)
    one, other = channels()
    sent: list[tuple[FanoutMessage, bytes]] = []
    raw = b""
    for _ in range(6):
        piece = random.randbytes(random.choice((0, 1, 3_000, PIECE_BYTES_MAX)))
        message: FanoutMessage = Publish(3, len(piece)) if piece else Ping(7)
        sent.append((message, piece))
        raw += one.seal(message) + piece
    got: list[tuple[FanoutMessage, bytes]] = []
    while raw:
        step = random.choice((1, 7, 1_000, 100_000))
        got += other.receive(raw[:step])
        raw = raw[step:]
    assert got == sent


def test_a_channel_ends_with_what_is_not_authentic_or_too_long() -> None:
    for data in (b"\0\x20" + bytes(32), b"\xff\xff", b"\0\0"):
        _, other = channels()
        with pytest.raises(RelayProtocolError):
            other.receive(data)


# -- groups and limits ------------------------------------------------------------------------------------------


class Hub:
    """A core with a backlog that the test sets; connections are numbered 1, 2, ... in the order of names."""

    def __init__(self, *clients: bytes, limits: FanoutLimits | None = None) -> None:
        self.unsent: dict[int, int] = {}
        self.reserved = set(clients)
        self.debtors: set[bytes] = set()
        self.core = FanoutCore(
            limits or FanoutLimits(),
            is_reserved=lambda address: address in self.reserved,
            backlog=lambda number: self.unsent.get(number, 0),
            is_served=lambda address: address not in self.debtors,
        )
        for number, client in enumerate(clients, 1):
            assert self.core.opened(number, client, 0) is None

    def say(self, number: int, message: FanoutMessage, now_ms: int = 0) -> tuple[int, ...] | Pong | None:
        answer = self.core.message(number, message, now_ms)
        return answer.connections if isinstance(answer, Copy) else answer


def ready_hub(limits: FanoutLimits | None = None) -> Hub:
    """Alice (1) publishes to Bob (2) and Carol (3), who take it."""
    hub = Hub(ALICE, BOB, CAROL, MALLORY, limits=limits)
    hub.say(1, Group(0, (ALICE, BOB, CAROL)))
    for number in (2, 3):
        hub.say(number, Subscribe((ALICE,)))
    return hub


def test_a_piece_goes_to_the_members_who_take_it_and_never_back() -> None:
    hub = ready_hub()
    assert hub.say(1, Publish(0, 10)) == (2, 3)
    hub.say(1, Group(1, (CAROL, CAROL)))
    assert hub.say(1, Publish(1, 10)) == (3,)
    assert hub.say(1, Publish(2, 10)) == (), "a group that was never named"
    assert hub.core.carried[ALICE] == 30


def test_nobody_gets_what_it_has_not_asked_for() -> None:
    hub = ready_hub()
    hub.say(4, Group(0, (BOB, CAROL)))
    assert hub.say(4, Publish(0, 10)) == ()
    hub.say(2, Subscribe((MALLORY,)))
    assert hub.say(4, Publish(0, 10)) == (2,)
    assert hub.say(1, Publish(0, 10)) == (3,), "what was said before is replaced"


def test_without_a_reservation_there_is_nothing() -> None:
    hub = ready_hub()
    hub.reserved.remove(BOB)
    assert hub.say(1, Publish(0, 10)) == (3,)


def test_who_does_not_pay_the_relay_is_not_handed_on() -> None:
    hub = ready_hub()
    hub.debtors.add(ALICE)
    assert hub.say(1, Publish(0, 10)) is None
    hub.debtors.clear()
    assert hub.say(1, Publish(0, 10)) == (2, 3)


def test_a_slow_subscriber_is_passed_over_alone() -> None:
    hub = ready_hub(FanoutLimits(backlog_bytes_max=100))
    hub.unsent[2] = 91
    assert hub.say(1, Publish(0, 10)) == (3,)
    hub.unsent[2] = 90
    assert hub.say(1, Publish(0, 10)) == (2, 3)


def test_a_publisher_has_an_allowance_that_coming_back_does_not_renew() -> None:
    hub = ready_hub(FanoutLimits(copied_bytes_per_s=1_000, copied_bytes_burst=40, copy_bytes_min=1))
    assert hub.say(1, Publish(0, 10)) == (2, 3)
    assert hub.say(1, Publish(0, 10)) == (2, 3)
    assert hub.say(1, Publish(0, 10)) is None
    hub.core.closed(1)
    hub.core.opened(9, ALICE, 0)
    hub.say(9, Group(0, (BOB, CAROL)))
    assert hub.say(9, Publish(0, 10)) is None
    assert hub.say(9, Publish(0, 10), now_ms=20) == (2, 3)


def test_small_pieces_and_large_groups_cost_their_publisher_what_they_cost_the_relay() -> None:
    hub = ready_hub(FanoutLimits(copied_bytes_per_s=1, copied_bytes_burst=40, copy_bytes_min=10))
    assert [hub.say(1, Publish(0, 1)) for _ in range(3)] == [(2, 3), (2, 3), None]
    hub = Hub(ALICE, BOB, limits=FanoutLimits(messages_per_s=1, messages_burst=8, members_per_message=2))
    hub.say(1, Group(0, (BOB, CAROL, b"x" * 20, b"y" * 20)))
    hub.say(1, Publish(0, 10))
    hub.say(1, Publish(0, 10))
    with pytest.raises(RelayProtocolError):
        hub.say(1, Publish(0, 10))


def test_the_newest_connection_of_an_address_is_its_subscriber() -> None:
    hub = ready_hub()
    assert hub.core.opened(7, BOB, 0) == 2
    assert hub.say(1, Publish(0, 10)) == (3,), "it has not said yet whom it takes from"
    hub.say(7, Subscribe((ALICE,)))
    hub.core.closed(2)
    assert hub.say(1, Publish(0, 10)) == (7, 3)


def test_connections_messages_and_silence_are_bounded() -> None:
    hub = Hub(ALICE, BOB, limits=FanoutLimits(connections_max=2, messages_per_s=1, messages_burst=3))
    with pytest.raises(RelayProtocolError):
        hub.core.opened(3, CAROL, 0)
    for number in range(3):
        assert hub.say(1, Ping(number)) == Pong(number)
    with pytest.raises(RelayProtocolError):
        hub.say(1, Ping(3))
    for message in (Pong(1), Delivery(ALICE, 1)):
        with pytest.raises(RelayProtocolError):
            hub.say(2, message)
    assert hub.core.idle(FanoutLimits().idle_ms_max) == [1, 2]


# -- a real daemon ----------------------------------------------------------------------------------------------


class Client:
    """A node with a reservation, and its side of the fan-out."""

    def __init__(self, name: str, daemon: DaemonProcess) -> None:
        self.node = Node(name, daemon.endpoint)
        self.address = self.node.address
        self.fanout = FanoutClient(
            lambda: self.node.identity, FanoutOptions(backoff_s_min=0.05, backoff_s_max=0.2, connect_s_max=5)
        )
        self.heard: list[tuple[bytes, bytes, bytes]] = []

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.node.run)
            nursery.start_soon(self.fanout.run, lambda *piece: self.heard.append(piece))


@asynccontextmanager
async def clients(daemon: DaemonProcess, *names: str) -> AsyncIterator[list[Client]]:
    """Run clients that wait for each other's pieces."""
    found = [Client(name, daemon) for name in names]
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            for client in found:
                nursery.start_soon(client.run)
            for client in found:
                await client.node.client.wait_reserved()
                client.fanout.subscribe([daemon.endpoint], [other.address for other in found])
            for client in found:
                await wait_until(lambda client=client: bool(client.fanout.waiting_at))  # type: ignore[misc]
            yield found
            nursery.cancel_scope.cancel()


async def heard_after(publisher: Client, daemon: DaemonProcess, receiver: Client, members: list[bytes]) -> None:
    """Publish until a receiver hears: its word whom it takes pieces from is on its way to the relay."""
    while not receiver.heard:
        await publisher.fanout.publish(daemon.endpoint, members, b"piece")
        await trio.sleep(0.01)


async def test_pieces_pass_a_daemon_and_are_told_by_their_publisher(shared_relay: DaemonProcess) -> None:
    async with clients(shared_relay, "alice", "bob", "carol") as (alice, bob, carol):
        members = [bob.address, carol.address]
        await heard_after(alice, shared_relay, bob, members)
        await heard_after(alice, shared_relay, carol, members)
        # The pieces published last may still be on their way to one of them: the large ones come behind these.
        large = bytes(PIECE_BYTES_MAX)
        for number in range(GROUPS_MAX + 4):  # more groups than a connection has
            await alice.fanout.publish(shared_relay.endpoint, [bob.address, bytes([number]) * 20], large)
        small_heard, large_heard = ((shared_relay.address, alice.address, piece) for piece in (b"piece", large))
        await wait_until(lambda: bob.heard.count(large_heard) == GROUPS_MAX + 4)
        assert {*carol.heard} == {small_heard}
        assert bob.heard == [small_heard] * (len(bob.heard) - GROUPS_MAX - 4) + [large_heard] * (GROUPS_MAX + 4)
        assert not alice.heard


async def test_what_a_subscriber_does_not_take_any_more_does_not_come(shared_relay: DaemonProcess) -> None:
    async with clients(shared_relay, "alice", "bob", "carol") as (alice, bob, carol):
        members = [bob.address, carol.address]
        await heard_after(alice, shared_relay, bob, members)
        bob.fanout.subscribe([shared_relay.endpoint], [carol.address])
        await trio.testing.wait_all_tasks_blocked()
        await heard_after(bob, shared_relay, alice, [alice.address])  # his word went before his piece
        bob.heard.clear()
        carol.heard.clear()
        await heard_after(alice, shared_relay, carol, members)
        assert all(publisher != alice.address for _, publisher, _ in bob.heard)


async def test_pieces_of_those_whom_nobody_asked_for_are_not_looked_at() -> None:
    """A relay could else have a node check as many as its line carries, each under another name."""
    identity, heard = identity_of("relay"), list[tuple[bytes, bytes, bytes]]()

    async def hand_out(stream: trio.SocketStream) -> None:
        assert await stream.receive_some(len(FANOUT_PREAMBLE)) == FANOUT_PREAMBLE
        now_ms = time.time_ns() // 1_000_000
        handshake = Handshake(identity, Purpose.RELAY_FANOUT, is_initiator=False, now_ms=now_ms)
        while handshake.session is None:
            await stream.send_all(handshake.receive(bytes(await stream.receive_some())))
        channel = FanoutChannel(handshake.session)
        for publisher in (MALLORY, ALICE, CAROL, BOB):
            await stream.send_all(channel.seal(Delivery(publisher, 5)) + b"piece")
        await trio.sleep_forever()

    client = FanoutClient(lambda: identity_of("dave"))
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            [listener] = await nursery.start(partial(trio.serve_tcp, hand_out, 0, host="127.0.0.1"))
            endpoint = Endpoint("127.0.0.1", listener.socket.getsockname()[1], identity.address)
            client.subscribe([endpoint], [ALICE, BOB])
            nursery.start_soon(client.run, lambda *piece: heard.append(piece))
            await wait_until(lambda: any(publisher == BOB for _, publisher, _ in heard))
            nursery.cancel_scope.cancel()
    assert [publisher for _, publisher, _ in heard] == [ALICE, BOB]


async def test_a_client_goes_on_after_its_relay_was_killed(start_relay: Callable[..., DaemonProcess]) -> None:
    daemon = start_relay()
    async with clients(daemon, "alice", "bob") as (alice, bob):
        await heard_after(alice, daemon, bob, [bob.address])
        daemon.kill()
        await wait_until(lambda: not alice.fanout.waiting_at and not bob.fanout.waiting_at)
        with pytest.raises((RelayUnreachable, OSError)):
            await alice.fanout.publish(daemon.endpoint, [bob.address], b"piece")
        start_relay(port=daemon.port)
        await wait_until(lambda: bool(alice.fanout.waiting_at and bob.fanout.waiting_at))
        await bob.node.client.wait_reserved()
        bob.heard.clear()
        await heard_after(alice, daemon, bob, [bob.address])


async def test_garbage_costs_its_sender_alone(shared_relay: DaemonProcess) -> None:
    async with clients(shared_relay, "alice", "bob") as (alice, bob):
        await heard_after(alice, shared_relay, bob, [bob.address])
        for data in (FANOUT_PREAMBLE + bytes(200), FANOUT_PREAMBLE + b"\xff\xff", b"DKRX"):
            stream = await trio.open_tcp_stream("127.0.0.1", shared_relay.port)
            await stream.send_all(data)
            assert await closed(stream)
        mallory = await shaken("mallory", shared_relay)
        await mallory.stream.send_all(mallory.channel.seal(Delivery(bob.address, 5)) + b"piece")
        assert await closed(mallory.stream)
        mallory = await shaken("mallory", shared_relay)
        await mallory.stream.send_all(b"\0\x20" + bytes(32))
        assert await closed(mallory.stream)
        bob.heard.clear()
        await heard_after(alice, shared_relay, bob, [bob.address])


async def closed(stream: trio.SocketStream) -> bool:
    """Tell whether the other side closes without another word."""
    try:
        return not await stream.receive_some(1_000)
    except trio.BrokenResourceError:
        return True


class Raw(NamedTuple):
    """A connection for fan-out after its handshake, to say anything over."""

    stream: trio.SocketStream
    channel: FanoutChannel


async def shaken(name: str, daemon: DaemonProcess) -> Raw:
    stream = await trio.open_tcp_stream("127.0.0.1", daemon.port)
    handshake = Handshake(
        identity_of(name),
        Purpose.RELAY_FANOUT,
        is_initiator=True,
        now_ms=time.time_ns() // 1_000_000,
        expected=daemon.address,
    )
    await stream.send_all(FANOUT_PREAMBLE + handshake.start())
    while handshake.session is None:
        data = await stream.receive_some()
        assert data
        await stream.send_all(handshake.receive(bytes(data)))
    return Raw(stream, FanoutChannel(handshake.session))


async def test_a_handshake_for_another_purpose_opens_nothing(shared_relay: DaemonProcess) -> None:
    stream = await trio.open_tcp_stream("127.0.0.1", shared_relay.port)
    now_ms = time.time_ns() // 1_000_000
    handshake = Handshake(identity_of("mallory"), Purpose.RELAY_CONTROL, is_initiator=True, now_ms=now_ms)
    await stream.send_all(FANOUT_PREAMBLE + handshake.start())
    with trio.fail_after(120):
        answer = await stream.receive_some()
        with pytest.raises(HandshakeFailed):
            handshake.receive(bytes(answer))


class Unread:
    """A transport whose other side reads nothing."""

    def __init__(self) -> None:
        self.waiting = 0

    def set_protocol(self, _protocol: object) -> None: ...

    def get_extra_info(self, _name: str) -> None: ...

    def set_write_buffer_limits(self, *, high: int) -> None: ...

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def write(self, data: bytes) -> None:
        self.waiting += len(data)


def fan_out_server(limits: FanoutLimits, dropped: list[str]) -> FanoutServer:
    return FanoutServer(
        limits, is_reserved=lambda _: True, is_served=lambda *_: True, charge=lambda *_: None, now_ms=lambda: 0,
        drop=lambda _transport, reason, _who: dropped.append(reason), connection_closed=lambda _: None,
    )  # fmt: skip


def stranger() -> HostUse:
    host = HostTable(RelayLimits(trusted_networks=())).use("192.0.2.1", 0)
    assert host is not None
    return host


def test_one_host_cannot_take_all_the_connections() -> None:
    dropped: list[str] = []
    server = fan_out_server(FanoutLimits(connections_per_host_max=2), dropped)
    host = stranger()
    opened = [session_of(name) for name in ("one", "other", "third")]
    for number, session in enumerate(opened):
        server.open(number, cast(asyncio.Transport, Unread()), session, host)
    assert dropped == ["fanout_host"] and server.core.connections == 2
    for line in list(server._connections.values()):
        server.closed(line)
    assert host.fanouts == 1, "the one that was dropped is yet to be closed"


def test_pings_of_who_does_not_read_the_answers_cost_the_relay_no_memory() -> None:
    ours, theirs = sessions()
    server = fan_out_server(FanoutLimits(messages_burst=10**6), [])
    transport = Unread()
    server.open(1, cast(asyncio.Transport, transport), theirs, stranger())
    channel = FanoutChannel(ours)
    (line,) = server._connections.values()
    for number in range(5_000):
        line.data_received(channel.seal(Ping(number)))
    assert transport.waiting < ANSWERS_BYTES_MAX + 100
