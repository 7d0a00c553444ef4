"""Punching on loopback: real sockets, observers of our own; NAT itself is the business of the network tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import pytest
import trio

from p2p.base.endpoint import Endpoint
from p2p.base.errors import PunchFailed, RequestRefused
from p2p.base.observed_address import OBSERVE_PREAMBLE, ObservedAddress, observed_answer
from p2p.path.hole_punch import (
    METHOD_PUNCH,
    PUNCHED,
    HolePuncher,
    HolePunchOptions,
    _checked,
)
from p2p.secure.identity import Role
from p2p.service import Network, NetworkConfig
from p2p.session.peerinfo import PeerInfo
from state.primitives.codec import encode
from state.primitives.errors import DecodeError
from tests.p2p.helpers import NOW_MS, identity
from tests.p2p.test_service import running

ALICE, BOB = identity(1).address, identity(2).address
OPTIONS = HolePunchOptions(try_s=5.0)
RELAYED = f"relay:{'ab' * 20}:192.0.2.1:1"


class Wire:
    """Two ends whose requests reach each other at once; what acceptors bring is kept."""

    def __init__(self, me: bytes, ends: dict[bytes, Wire]) -> None:
        self.me, self.ends = me, ends
        self.identity = identity(1 if me == ALICE else 2)
        self.remote = RELAYED
        self.moved: list[bytes] = []
        self.maker: Callable[[bytes, tuple[Endpoint, ...]], Iterable[Endpoint]] | None = None
        self.handler: Callable[[bytes, bytes], Awaitable[bytes]] | None = None
        self.arrived, self.taken = trio.open_memory_channel[trio.abc.Stream](8)
        ends[me] = self

    def on_request(self, method: str, handler: Callable[[bytes, bytes], Awaitable[bytes]]) -> None:
        assert method == METHOD_PUNCH
        self.handler = handler

    async def request(
        self, address: bytes, method: str, body: bytes, *, timeout_s: float, limit_bytes: int
    ) -> bytes:
        handler = self.ends[address].handler
        assert handler is not None
        try:
            return await handler(self.me, body)
        except DecodeError as error:
            raise RequestRefused(error.code) from None

    def peers(self) -> list[PeerInfo]:
        return [
            PeerInfo(name, Role(0), True, self.remote, 0.0, 0.0, 60.0, 0, 0)
            for name in self.ends
            if name != self.me
        ]

    def peer(self, address: bytes) -> PeerInfo | None:
        return next((info for info in self.peers() if info.address == address), None)

    async def move(self, address: bytes, endpoint: Endpoint) -> bool:
        assert endpoint == PUNCHED
        self.moved.append(address)
        return True

    def on_paths(self, maker: Callable[[bytes, tuple[Endpoint, ...]], Iterable[Endpoint]]) -> None:
        self.maker = maker

    def accept(self, stream: trio.abc.Stream, remote: str) -> None:
        self.arrived.send_nowait(stream)

    def advertise(self, source: str, endpoints: tuple[Endpoint, ...]) -> None:
        raise AssertionError("a punched way has no endpoint")


async def observer(nursery: trio.Nursery, *, shift: int = 0) -> Endpoint:
    """Start an observer; ``shift`` makes it see other ports than there are, as behind a symmetric NAT."""

    async def serve(stream: trio.SocketStream) -> None:
        data = await stream.receive_some(4)
        assert data == OBSERVE_PREAMBLE
        host, port = stream.socket.getpeername()[:2]
        await stream.send_all(observed_answer(host, port + shift if port + shift < 65_536 else port - shift))
        await stream.receive_some(1)

    async def serve_mildly(stream: trio.SocketStream) -> None:
        with trio.CancelScope():
            try:
                await serve(stream)
            except trio.BrokenResourceError:
                pass

    listeners = await nursery.start(trio.serve_tcp, serve_mildly, 0)
    port = next(item.socket.getsockname()[1] for item in listeners if item.socket.family.name == "AF_INET")
    return Endpoint("127.0.0.1", port)


async def pair(nursery: trio.Nursery, observers: list[Endpoint]) -> tuple[HolePuncher, HolePuncher, Wire, Wire]:
    ends: dict[bytes, Wire] = {}
    made = []
    for name in (ALICE, BOB):
        wire = Wire(name, ends)
        puncher = HolePuncher(lambda: observers, options=OPTIONS)
        puncher.attach(wire)
        nursery.start_soon(puncher.run, wire)
        made.append((puncher, wire))
    await trio.testing.wait_all_tasks_blocked()
    return made[0][0], made[1][0], made[0][1], made[1][1]


async def test_both_ends_get_one_stream() -> None:
    async with trio.open_nursery() as nursery:
        observers = [await observer(nursery), await observer(nursery)]
        alice, _bob, _, bobs = await pair(nursery, observers)
        with trio.fail_after(30):
            here = await alice.dial(PUNCHED, BOB)
            there = await bobs.taken.receive()
            await here.send_all(b"hello")
            assert await there.receive_some(5) == b"hello"
            await there.send_all(b"world")
            assert await here.receive_some(5) == b"world"
        assert (alice.attempts, alice.successes) == (1, 1)
        nursery.cancel_scope.cancel()


async def test_a_node_tells_who_asks_from_where_it_is_seen_and_goes_on_to_shake_hands_with_others() -> None:
    config = NetworkConfig(listen=(("127.0.0.1", 0),))
    node = Network(config, identity(3), now_ms=lambda: NOW_MS)
    friend = Network(NetworkConfig(), identity(4), now_ms=lambda: NOW_MS)
    with trio.fail_after(30):
        async with running(node, friend):
            port = node.bound[0][1]
            for question, is_answered in (
                (OBSERVE_PREAMBLE, True),
                (b"DKRX", False),
                (OBSERVE_PREAMBLE[:3], False),
            ):
                async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                    await stream.send_all(question)
                    if not is_answered:
                        await stream.send_eof()
                    host, own_port = stream.socket.getsockname()[:2]
                    wanted = observed_answer(host, own_port) if is_answered else b""
                    assert bytes(await stream.receive_some(64)) == wanted
            assert node.counters["observed"] == 1
            friend.add_endpoint(node.identity.address, Endpoint("127.0.0.1", port))
            await friend.request(node.identity.address, "peers", b"")
            assert friend.dialled == (Endpoint("127.0.0.1", port),)


async def test_a_peer_is_an_observer_beside_a_relay() -> None:
    config = NetworkConfig(listen=(("127.0.0.1", 0),))
    public = Network(config, identity(3), now_ms=lambda: NOW_MS)
    with trio.fail_after(30):
        async with running(public), trio.open_nursery() as nursery:
            observers = [await observer(nursery), Endpoint("127.0.0.1", public.bound[0][1])]
            alice, _bob, _, bobs = await pair(nursery, observers)
            here = await alice.dial(PUNCHED, BOB)
            there = await bobs.taken.receive()
            await here.send_all(b"hello")
            assert await there.receive_some(5) == b"hello"
            nursery.cancel_scope.cancel()


async def test_a_symmetric_nat_is_recognised_and_not_asked_again_soon() -> None:
    async with trio.open_nursery() as nursery:
        observers = [await observer(nursery), await observer(nursery, shift=1)]
        alice, _, _, _ = await pair(nursery, observers)
        with pytest.raises(PunchFailed, match="symmetric"):
            await alice.dial(PUNCHED, BOB)
        assert not alice.can_try
        nursery.cancel_scope.cancel()


async def test_one_observer_that_lies_is_outvoted_and_asked_last() -> None:
    async with trio.open_nursery() as nursery:
        liar = await observer(nursery, shift=1)
        observers = [await observer(nursery), liar, await observer(nursery)]
        alice, _, _, bobs = await pair(nursery, observers)
        with trio.fail_after(30):
            here = await alice.dial(PUNCHED, BOB)
            there = await bobs.taken.receive()
            await here.send_all(b"hello")
            assert await there.receive_some(5) == b"hello"
        assert alice.can_try and alice._in_turn()[-1] == liar
        nursery.cancel_scope.cancel()


async def test_two_observers_that_disagree_are_doubted_for_a_while_and_three_believed_for_long() -> None:
    pauses = []
    for shifts in ((0, 1), (0, 1, 2)):
        async with trio.open_nursery() as nursery:
            observers = [await observer(nursery, shift=shift) for shift in shifts]
            alice, _, _, _ = await pair(nursery, observers)
            with pytest.raises(PunchFailed, match="symmetric"):
                await alice.dial(PUNCHED, BOB)
            assert not alice.can_try
            pauses.append(alice._symmetric_until - trio.current_time())
            nursery.cancel_scope.cancel()
    assert pauses[0] <= OPTIONS.contradicted_s < OPTIONS.symmetric_s / 2 < pauses[1]


async def test_one_observer_is_not_enough() -> None:
    async with trio.open_nursery() as nursery:
        alice, _, _, _ = await pair(nursery, [await observer(nursery)])
        with pytest.raises(PunchFailed):
            await alice.dial(PUNCHED, BOB)
        nursery.cancel_scope.cancel()


async def test_relayed_peers_are_tried_once_in_a_while_and_by_one_end_first(autojump_clock: object) -> None:
    async with trio.open_nursery() as nursery:
        nowhere = [Endpoint("127.0.0.1", 1), Endpoint("127.0.0.1", 2)]
        _, _, alices, bobs = await pair(nursery, nowhere)
        first, second = sorted((alices, bobs), key=lambda wire: wire.identity.address)
        await trio.sleep(20)
        assert (len(first.moved), len(second.moved)) == (1, 0)
        await trio.sleep(40)
        assert (len(first.moved), len(second.moved)) == (1, 1)
        await trio.sleep(700)
        assert (len(first.moved), len(second.moved)) == (2, 2)
        assert alices.maker is not None
        assert list(alices.maker(BOB, (Endpoint.parse(RELAYED),))) == [PUNCHED]
        assert list(alices.maker(BOB, (Endpoint("192.0.2.1", 1),))) == []  # it accepts connections
        assert list(alices.maker(bytes(20), ())) == []
        alices.remote = "tcp:192.0.2.1:1"
        before = len(alices.moved)
        await trio.sleep(2_000)
        assert len(alices.moved) == before
        nursery.cancel_scope.cancel()


async def test_a_peer_may_not_ask_for_ever() -> None:
    async with trio.open_nursery() as nursery:
        observers = [await observer(nursery), await observer(nursery)]
        _, _, _, bobs = await pair(nursery, observers)
        assert bobs.handler is not None
        word = [encode([1, bytes([i]) * 16, ObservedAddress.of("127.0.0.1", 9).encode()]) for i in range(3)]
        await bobs.handler(ALICE, word[0])
        await bobs.handler(ALICE, word[1])
        with pytest.raises(RequestRefused):
            await bobs.handler(ALICE, word[2])
        with pytest.raises(RequestRefused):
            await bobs.handler(ALICE, encode([2, bytes([9]) * 16]))  # an attempt that nobody prepared
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        encode([1, b"short", b""]),
        encode([3, bytes(16)]),
        encode([1, bytes(16), encode(["224.0.0.1", 5])]),
        encode([1, bytes(16), encode(["0.0.0.0", 5])]),
        encode([1, bytes(16), encode(["127.0.0.1", 0])]),
        encode([1, bytes(16), encode(["::ffff:127.0.0.1", 5])]),
        encode([1, bytes(16), encode(["host.example", 5])]),
    ],
)
async def test_malformed_words_are_refused(body: bytes) -> None:
    async with trio.open_nursery() as nursery:
        _, _, _, bobs = await pair(nursery, [])
        assert bobs.handler is not None
        with pytest.raises(DecodeError):
            await bobs.handler(ALICE, body)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("own", "theirs"),
    [("8.8.8.8", "10.0.0.1"), ("8.8.8.8", "127.0.0.1"), ("10.0.0.9", "127.0.0.1"), ("8.8.8.8", "2001:4860::1")],
)
def test_nobody_is_made_to_dial_inside_a_network(own: str, theirs: str) -> None:
    with pytest.raises(DecodeError):
        _checked(ObservedAddress.of(theirs, 80), ObservedAddress.of(own, 80))
