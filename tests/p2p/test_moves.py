"""Connections of a live peer: lost, replaced, added for bulk; the peer and what it says stay whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing

from p2p.base.endpoint import Endpoint
from p2p.base.errors import PeerUnreachable
from p2p.base.limits import NetworkLimits
from p2p.base.sockets import kernel_notes
from p2p.secure.channel import Hello, HelloKind
from p2p.secure.frame import TrafficClass, header
from p2p.secure.handshake import Handshake
from p2p.secure.identity import Purpose
from p2p.service import Network, NetworkConfig
from tests.p2p.helpers import NOW_MS, account, identity
from tests.p2p.test_service import BLOCK, VOTE, A, B, Inbox, connect, drained, in_memory, running

FIRST, SECOND = (Endpoint(host, 1, account(1).address) for host in ("first", "second"))


class Roads:
    """Ways to networks by name, each of which can be cut; what is under way on them is lost then."""

    def __init__(self) -> None:
        self.networks: dict[bytes, Network] = {}
        self.closed: set[str] = set()
        self.open: dict[str, list[trio.abc.Stream]] = {}
        self.dials: list[str] = []

    async def dial(self, endpoint: Endpoint, target: bytes | None) -> trio.abc.Stream:
        assert endpoint.relay is not None
        listener = self.networks.get(endpoint.relay)
        if listener is None or not listener.is_running or endpoint.host in self.closed:
            raise OSError("nobody there")
        self.dials.append(endpoint.host)
        near, far = trio.testing.memory_stream_pair()
        self.open.setdefault(endpoint.host, []).extend((near, far))
        listener.accept(far, endpoint.host)
        return near

    async def cut(self, host: str, *, for_good: bool = True) -> None:
        if for_good:
            self.closed.add(host)
        for stream in self.open.pop(host, []):
            await trio.aclose_forcefully(stream)


@pytest.fixture
def roads() -> Roads:
    return Roads()


def member(number: int, roads: Roads, **limits: float) -> Network:
    network = in_memory(number, roads, **limits)  # type: ignore[arg-type]
    roads.networks[network.identity.address] = network
    return network


async def until(is_so: Callable[[], bool]) -> None:
    with trio.fail_after(120):
        while not is_so():  # noqa: ASYNC110 - looks at what has no event
            await trio.sleep(0.05)


async def test_what_was_under_way_on_a_lost_connection_arrives_by_another_once(
    roads: Roads, autojump_clock: object
) -> None:
    alice, bob = member(0, roads), member(1, roads, requests_served_per_peer_max=32)
    inbox = Inbox(bob)
    served: list[bytes] = []

    async def serve(peer: bytes, body: bytes) -> bytes:
        served.append(body)
        await trio.sleep(0.2)
        return body * 2

    bob.on_request("double", serve)
    alice.add_endpoint(B, SECOND)
    alice.add_endpoint(B, FIRST)
    answers: list[bytes] = []

    async def ask(number: int) -> None:
        answers.append(await alice.request(B, "double", b"%d" % number, timeout_s=20))

    async with running(alice, bob):
        await alice.request(B, "double", b"first")
        [before] = bob.peers()
        used = roads.dials[0]
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(ask, number)
                assert alice.send(B, TrafficClass.CONSENSUS, VOTE, b"%d" % number)
                if number % 5 == 2:
                    await trio.sleep(0.01)
                if number == 9:
                    await roads.cut(used)
                    assert alice.is_connected(B)
        assert sorted(answers) == sorted(b"%d" % n * 2 for n in range(20))
        assert sorted(served) == sorted([b"first", *(b"%d" % n for n in range(20))])  # none of them twice
        assert [(await inbox.receive.receive())[1] for _ in range(20)] == [b"%d" % n for n in range(20)]
        assert inbox.receive.statistics().current_buffer_used == 0
        [peer] = alice.peers()
        assert peer.moves == 1 and peer.age_s == pytest.approx(bob.peers()[0].age_s, abs=1)
        assert bob.peers()[0].age_s >= before.age_s and len(set(roads.dials)) == 2


async def test_a_connection_is_replaced_by_a_better_one_before_it_is_given_up(
    roads: Roads, autojump_clock: object
) -> None:
    alice, bob = member(0, roads), member(1, roads)
    inbox = Inbox(bob)
    alice.add_endpoint(B, FIRST)
    async with running(alice, bob):
        await alice.wait_peers(1)
        await trio.sleep(1)
        seen = 0
        for number in range(300):
            assert alice.send(B, TrafficClass.CONSENSUS, VOTE, number.to_bytes(2, "big"))
            if number in (50, 120, 121, 200):
                endpoint = SECOND if number % 100 > 20 else FIRST
                assert await alice.move(B, endpoint)
            if number == 250:
                assert await bob.move(A, Endpoint("first", 1, A)) is True
            while inbox.receive.statistics().current_buffer_used:
                assert (await inbox.receive.receive())[1] == seen.to_bytes(2, "big")
                seen += 1
            await trio.sleep(0.001)
        while seen < 300:
            with trio.fail_after(5):
                assert (await inbox.receive.receive())[1] == seen.to_bytes(2, "big")
            seen += 1
        assert alice.peers()[0].moves == bob.peers()[0].moves == 5
        assert not alice.counters["closed_connection_lost"]


async def test_both_may_look_for_another_way_at_once(roads: Roads, autojump_clock: object) -> None:
    alice, bob = member(0, roads), member(1, roads)
    inboxes = Inbox(alice), Inbox(bob)
    alice.add_endpoint(B, FIRST)
    bob.add_endpoint(A, Endpoint("third", 1, A))
    async with running(alice, bob):
        await alice.wait_peers(1)
        await trio.sleep(3)
        for _ in range(5):
            for host in ("first", "third"):
                await roads.cut(host, for_good=False)
            alice.send(B, TrafficClass.CONSENSUS, VOTE, b"to bob")
            bob.send(A, TrafficClass.CONSENSUS, VOTE, b"to alice")
            with trio.fail_after(5):
                assert await inboxes[1].receive.receive() == (A, b"to bob")
                assert await inboxes[0].receive.receive() == (B, b"to alice")
            await trio.sleep(2)
        await trio.sleep(10)
        assert alice.peers()[0].age_s > 20 and alice.peers()[0].moves == bob.peers()[0].moves
        assert len(roads.dials) < 25  # and they have agreed on one


async def test_a_conversation_without_any_way_ends_and_its_requests_fail(
    roads: Roads, autojump_clock: object
) -> None:
    alice, bob = member(0, roads), member(1, roads)

    async def never(peer: bytes, body: bytes) -> bytes:
        await trio.sleep_forever()
        raise AssertionError

    bob.on_request("never", never)
    alice.add_endpoint(B, FIRST)
    async with running(alice, bob):
        await alice.wait_peers(1)
        await trio.sleep(1)
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(roads.cut, "first")
            with pytest.raises(PeerUnreachable):
                await alice.request(B, "never", b"", timeout_s=60)
        assert trio.current_time() - began <= alice.limits.resume_s + 2
        assert alice.peers() == []
        await trio.sleep(2)
        assert bob.peers() == []
        assert alice.memory.used_bytes == bob.memory.used_bytes == 0


async def test_a_peer_that_began_anew_does_not_know_the_old_conversation(
    roads: Roads, autojump_clock: object
) -> None:
    alice, bob = member(0, roads), member(1, roads)
    alice.add_endpoint(B, FIRST)
    async with running(alice):
        async with running(bob):
            await alice.wait_peers(1)
            await trio.sleep(1)
        await until(lambda: not alice.peers())  # he said goodbye
        again = member(1, roads)
        inbox = Inbox(again)
        async with running(again):
            alice.send(B, TrafficClass.CONSENSUS, VOTE, b"vote")
            with trio.fail_after(30):
                assert await inbox.receive.receive() == (A, b"vote")


@pytest.mark.parametrize("opening", [HelloKind.RESUME, HelloKind.BULK, HelloKind.GONE])
async def test_a_stranger_cannot_join_the_conversation_of_others(
    roads: Roads, autojump_clock: object, opening: HelloKind
) -> None:
    alice, bob = member(0, roads), member(1, roads)
    alice.add_endpoint(B, FIRST)
    async with running(alice, bob):
        await alice.wait_peers(1)
        await trio.sleep(1)
        [peer] = alice._peers.values()
        name = peer.conversation
        # Even one who has learnt its name: another address, or an older certificate of the same.
        for who in (identity(7), identity(1, sequence=1)):
            stream, _ = await connect(alice, who, Hello(opening, name, 5, 0))
            assert await drained(stream)
        # And the peer itself cannot join one that it made up.
        stream, _ = await connect(alice, bob.identity, Hello(opening, bytes(16), 5, 0))
        assert await drained(stream)
        assert alice.peers()[0].moves == 0 and alice.peers()[0].bulk_connections == 0 and peer.is_attached


async def test_who_shakes_hands_and_says_nothing_is_dropped_in_time(roads: Roads, autojump_clock: object) -> None:
    alice = member(0, roads)
    async with running(alice):
        near, far = trio.testing.memory_stream_pair()
        alice.accept(far, "memory")
        handshake = Handshake(identity(3), Purpose.CIRCUIT, is_initiator=True, now_ms=NOW_MS)
        await near.send_all(handshake.start())
        while handshake.session is None:
            await near.send_all(handshake.receive(bytes(await near.receive_some(4096))))
        began = trio.current_time()
        assert await drained(near)
        assert trio.current_time() - began <= alice.limits.handshake_timeout_s + 2
        assert alice.peers() == []


async def test_bulk_opens_a_bulk_connection_that_closes_when_it_is_idle(
    roads: Roads, autojump_clock: object
) -> None:
    alice, bob = member(0, roads), member(1, roads)
    inbox = Inbox(bob, BLOCK)
    alice.add_endpoint(B, FIRST)
    async with running(alice, bob):
        await alice.wait_peers(1)
        alice.send(B, TrafficClass.BULK, BLOCK, b"little")
        assert await inbox.receive.receive() == (A, b"little")
        assert alice.peers()[0].bulk_connections == 0
        sent = [bytes((number,)) * 300_000 for number in range(30)]
        for body in sent:
            await alice.send_when_room(B, TrafficClass.BULK, BLOCK, body)
        assert sorted([(await inbox.receive.receive())[1] for _ in sent]) == sent
        assert alice.peers()[0].bulk_connections >= 1 and bob.peers()[0].bulk_connections >= 1
        assert any(not stats.is_control and stats.bytes_out > 1_000_000 for stats in alice.connection_stats(B))
        await trio.sleep(2 * alice.limits.bulk_idle_s + 5)
        assert alice.peers()[0].bulk_connections == bob.peers()[0].bulk_connections == 0
        assert alice.is_connected(B)


async def test_the_keys_of_a_bulk_connection_are_changed_from_time_to_time_in_both_directions(
    roads: Roads, autojump_clock: object
) -> None:
    """As those of the control connection are; one that is used all the time would keep its own for ever."""
    alice, bob = member(0, roads, rekey_interval_s=5), member(1, roads, rekey_interval_s=5)
    inbox = Inbox(bob, BLOCK)
    alice.add_endpoint(B, FIRST)
    async with running(alice, bob):
        await alice.wait_peers(1)
        keys: set[bytes] = set()
        for number in range(30):
            body = bytes((number,)) * 300_000
            await alice.send_when_room(B, TrafficClass.BULK, BLOCK, body)
            assert (await inbox.receive.receive())[1] == body
            ours, theirs = (next(iter(network._peers.values())).bulk_connections for network in (alice, bob))
            for connection in (*ours, *theirs):
                keys |= {connection.session.send._key, connection.session.receive._key}
            assert len(ours) <= 1
            await trio.sleep(1)
        assert len(keys) >= 8  # two directions, each with its first key and several more


async def test_whoever_can_be_dialled_by_nobody_opens_bulk_connections_when_asked(
    roads: Roads, autojump_clock: object
) -> None:
    """Bob has no way to Alice but the connection that she made."""
    alice, bob = member(0, roads), member(1, roads)
    inbox = Inbox(alice, BLOCK)

    async def large(peer: bytes, body: bytes) -> bytes:
        return bytes(5_000_000)

    bob.on_request("large", large)
    alice.add_endpoint(B, FIRST)
    async with running(alice, bob):
        await bob.wait_peers(1)
        for _ in range(10):
            await bob.send_when_room(A, TrafficClass.BULK, BLOCK, bytes(200_000))
        for _ in range(10):
            assert len((await inbox.receive.receive())[1]) == 200_000
        assert bob.peers()[0].bulk_connections == 1 and not bob.peers()[0].is_outbound
        # A large answer is bulk, whatever class its method has, and may be longer than any one record.
        assert len(await alice.request(B, "large", b"", limit_bytes=6_000_000)) == 5_000_000


async def test_where_no_bulk_connection_can_be_had_bulk_takes_the_one_connection(
    roads: Roads, autojump_clock: object
) -> None:
    alice, bob = member(0, roads), member(1, roads)
    inbox = Inbox(bob, BLOCK)
    alice.add_endpoint(B, FIRST)
    async with running(alice, bob):
        await alice.wait_peers(1)
        roads.closed.add("first")
        for _ in range(10):
            await alice.send_when_room(B, TrafficClass.BULK, BLOCK, bytes(200_000))
        with trio.fail_after(5):
            for _ in range(10):
                assert len((await inbox.receive.receive())[1]) == 200_000
        assert alice.peers()[0].bulk_connections == 0


async def test_bulk_connections_and_control_die_in_turn_and_bulk_is_whole(
    roads: Roads, autojump_clock: object
) -> None:
    rng = Random(5)
    alice, bob = member(0, roads, bulk_retry_s=0.1), member(1, roads)
    got: list[bytes] = []

    async def take(peer: bytes, body: bytes) -> None:
        got.append(body)
        await trio.sleep(0.005)

    bob.on_message(BLOCK, take)
    alice.add_endpoint(B, FIRST)
    alice.add_endpoint(B, SECOND)
    sent = [rng.randbytes(rng.randrange(100_000)) for _ in range(150)]

    async with running(alice, bob), trio.open_nursery() as nursery:
        await alice.wait_peers(1)

        async def cut() -> None:
            for _ in range(6):
                await trio.sleep(0.15)
                await roads.cut(rng.choice(("first", "second")), for_good=False)

        nursery.start_soon(cut)
        for body in sent:
            await alice.send_when_room(B, TrafficClass.BULK, BLOCK, body)
        await until(lambda: len(got) >= len(sent))
        await trio.sleep(1)
        assert sorted(got) == sorted(sent)
        assert alice.peers()[0].age_s > 0.9 and bob.memory.used_bytes == 0


async def test_bulk_connections_of_one_peer_are_bounded(roads: Roads, autojump_clock: object) -> None:
    alice, bob = member(0, roads, bulk_connections_max=3), member(1, roads)
    alice.add_endpoint(B, FIRST)
    async with running(alice, bob):
        await alice.wait_peers(1)
        await trio.sleep(1)
        name = next(iter(alice._peers.values())).conversation
        streams = [(await connect(alice, bob.identity, Hello(HelloKind.BULK, name)))[0] for _ in range(5)]
        await trio.sleep(1)
        assert alice.peers()[0].bulk_connections == 3 and alice.counters["bulk_connections_refused"] == 2
        for stream in streams:
            await trio.aclose_forcefully(stream)
        await until(lambda: not alice.peers()[0].bulk_connections)


async def test_who_fills_memory_is_dropped_and_the_others_live_on(roads: Roads, autojump_clock: object) -> None:
    alice = Network(
        NetworkConfig(limits=NetworkLimits(receive_bytes_max=20 * 1024 * 1024)),
        identity(0),
        dialers={"relay": roads},
        now_ms=lambda: NOW_MS,
        random=Random(0),
    )
    roads.networks[A] = alice
    bob = member(1, roads)
    inbox = Inbox(alice)
    bob.add_endpoint(A, Endpoint("first", 1, A))
    async with running(alice, bob):
        await alice.wait_peers(0)
        await bob.request(A, "peers", b"")
        for number in (2, 3, 4):
            stream, channel = await connect(alice, identity(number), Hello(HelloKind.NEW))
            await trio.sleep(0.5)
            for stream_number in (1, 2):  # begun, and never to be finished
                left = 5 * 1024 * 1024 + number
                for _ in range(160):
                    left -= 32 * 1024
                    begun = header(TrafficClass.REQUEST, 1, stream_number, 4 + 32 * 1024) + left.to_bytes(4, "big")
                    try:
                        await stream.send_all(channel.seal(begun + bytes(32 * 1024)))
                    except trio.BrokenResourceError:
                        break
                await trio.sleep(0.1)
        assert alice.memory.used_bytes <= alice.memory.limit_bytes
        assert alice.counters["closed_receive_memory"] >= 1
        bob.send(A, TrafficClass.CONSENSUS, VOTE, bytes(200_000))
        with trio.fail_after(5):
            assert await inbox.receive.receive() == (B, bytes(200_000))


async def test_when_this_machine_changes_its_address_its_connections_come_along() -> None:
    """Over real sockets; what the machine's address is, is said by the test."""
    hosts = ("127.0.0.1",)

    def network(number: int) -> Network:
        limits = NetworkLimits(roam_check_s=0.05)
        made = Network(
            NetworkConfig(listen=(("127.0.0.1", 0),), limits=limits), identity(number), now_ms=lambda: NOW_MS
        )
        if number == 0:
            made.parts.path_selection._own_hosts = lambda: hosts
        return made

    alice, bob = network(0), network(1)
    inbox = Inbox(bob)
    async with running(alice, bob):
        host, port = bob.bound[0]
        alice.add_endpoint(B, Endpoint(host, port))
        with trio.fail_after(120):
            await alice.request(B, "peers", b"")
            hosts = ("192.0.2.7",)
            while not alice.peers()[0].moves:
                alice.send(B, TrafficClass.CONSENSUS, VOTE, b"on the road")
                assert await inbox.receive.receive() == (A, b"on the road")
                await trio.sleep(0.05)
        assert alice.counters["roamed"] == 1 and len(bob.peers()) == 1
        stats = alice.connection_stats(B)[0]
        assert stats.is_control and stats.tcp is not None and stats.tcp.bytes_acked > 0 and stats.tcp.rtt_s > 0
        control = alice._peers[B].control
        assert control is not None and stats.tcp.segments > stats.tcp.retransmits
        assert sum(control.take_losses()[1] for _ in range(2)) >= stats.tcp.segments, "each is told of once"
        assert control.take_losses()[1] < stats.tcp.segments


def test_what_the_kernel_lacks_is_said(tmp_path: Path) -> None:
    ipv4 = tmp_path / "net/ipv4"
    ipv4.mkdir(parents=True)
    (ipv4 / "tcp_slow_start_after_idle").write_text("1\n")
    (ipv4 / "tcp_wmem").write_text("4096\t16384\t16777216\n")
    (ipv4 / "tcp_rmem").write_text("4096\t131072\t6291456\n")
    notes = kernel_notes(tmp_path)
    assert len(notes) == 2 and "slow_start" in notes[0] and "tcp_rmem" in notes[1]
