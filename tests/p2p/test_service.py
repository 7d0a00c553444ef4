from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing

from p2p.base.endpoint import Endpoint, parse_bootstrap
from p2p.base.errors import BlobUnavailable, PeerUnreachable, RequestRefused, RequestTimeout
from p2p.base.limits import NetworkLimits
from p2p.gossip.core import Verdict
from p2p.secure.channel import Channel, Hello, HelloKind
from p2p.secure.frame import TrafficClass
from p2p.secure.handshake import Handshake
from p2p.secure.identity import Identity, Purpose
from p2p.secure.noise import StaticKey
from p2p.service import Network, NetworkConfig
from p2p.session.mux import Mux
from state.primitives.errors import ConfigError, ProtocolError
from tests.p2p.helpers import NOW_MS, account, identity

VOTE, BLOCK = 1, 2


class Wires:
    """Ways between networks of one test: memory streams that arrive as circuits do."""

    def __init__(self) -> None:
        self.networks: dict[bytes, Network] = {}
        self.is_cut = False
        self.open: list[trio.abc.Stream] = []

    async def dial(self, endpoint: Endpoint, target: bytes | None) -> trio.abc.Stream:
        assert endpoint.relay is not None
        listener = self.networks.get(endpoint.relay)
        if listener is None or not listener.is_running or self.is_cut:
            raise OSError("nobody there")
        near, far = trio.testing.memory_stream_pair()
        self.open += [near, far]
        listener.accept(far, "memory")
        return near


def memory_endpoint(number: int) -> Endpoint:
    return Endpoint("memory", 1, account(number).address)


@asynccontextmanager
async def running(*networks: Network, wires: Wires | None = None) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        for network in networks:
            if wires is not None:
                wires.networks[network.identity.address] = network
            await nursery.start(network.run)
        yield
        nursery.cancel_scope.cancel()


def in_memory(number: int, wires: Wires, *, bootstrap: tuple[int, ...] = (), **limits: float) -> Network:
    return Network(
        NetworkConfig(
            bootstrap=tuple(f"0x{account(n).address.hex()}@{memory_endpoint(n)}" for n in bootstrap),
            limits=replace(NetworkLimits(), **limits),  # type: ignore[arg-type]
        ),
        identity(number),
        dialers={"relay": wires},
        now_ms=lambda: NOW_MS,
        random=Random(number),
    )


class Inbox:
    def __init__(self, network: Network, kind: int = VOTE) -> None:
        self.send, self.receive = trio.open_memory_channel[tuple[bytes, bytes]](1000)
        network.on_message(kind, self._take)

    async def _take(self, peer: bytes, body: bytes) -> None:
        await self.send.send((peer, body))


@pytest.fixture
def wires() -> Iterator[Wires]:
    yield Wires()


A, B, C = (account(n).address for n in range(3))


async def test_messages_find_a_peer_known_by_its_address_only(wires: Wires, autojump_clock: object) -> None:
    alice, bob, carol = (in_memory(0, wires), in_memory(1, wires), in_memory(2, wires, bootstrap=(0, 1)))
    inbox = Inbox(bob)
    alice.advertise("memory", (memory_endpoint(0),))
    bob.advertise("memory", (memory_endpoint(1),))
    async with running(alice, bob, carol, wires=wires):
        await carol.wait_peers(2)
        # Alice has never been told where Bob is: his record reaches her by gossip through Carol.
        await trio.sleep(5)
        assert alice.record(B) is not None
        assert alice.send(B, TrafficClass.CONSENSUS, VOTE, b"vote")
        with trio.fail_after(10):
            assert await inbox.receive.receive() == (A, b"vote")


async def test_a_message_sent_before_the_connection_waits_for_it(wires: Wires, autojump_clock: object) -> None:
    alice, bob = in_memory(0, wires), in_memory(1, wires)
    inbox = Inbox(bob)
    alice.add_endpoint(B, memory_endpoint(1))
    async with running(alice, bob, wires=wires):
        assert not alice.is_connected(B)
        assert alice.broadcast([A, B], TrafficClass.CONSENSUS, VOTE, b"vote") == 1
        with trio.fail_after(10):
            assert await inbox.receive.receive() == (A, b"vote")


async def test_an_impostor_at_a_known_endpoint_gets_nothing(wires: Wires, autojump_clock: object) -> None:
    alice, mallory = in_memory(0, wires), in_memory(2, wires)
    inbox = Inbox(mallory)
    alice.add_endpoint(B, Endpoint("memory", 1, C))  # where Bob should be, Mallory answers
    async with running(alice, mallory, wires=wires):
        alice.send(B, TrafficClass.CONSENSUS, VOTE, b"secret vote")
        with pytest.raises(PeerUnreachable):
            await alice.request(B, "peers", b"", timeout_s=3)
        assert alice.counters["wrong_peer"] >= 1
        assert mallory.peers() == [] and inbox.receive.statistics().current_buffer_used == 0


async def test_simultaneous_dials_leave_one_connection_on_both_sides(wires: Wires, autojump_clock: object) -> None:
    alice, bob = in_memory(0, wires, bootstrap=(1,)), in_memory(1, wires, bootstrap=(0,))
    inboxes = Inbox(alice), Inbox(bob)
    async with running(alice, bob, wires=wires):
        await trio.sleep(20)
        (to_bob,), (to_alice,) = alice.peers(), bob.peers()
        assert to_bob.is_outbound != to_alice.is_outbound
        assert to_bob.age_s > 15  # and it is the first one still: nothing flaps
        alice.send(B, TrafficClass.CONSENSUS, VOTE, b"1")
        bob.send(A, TrafficClass.CONSENSUS, VOTE, b"2")
        assert await inboxes[1].receive.receive() == (A, b"1")
        assert await inboxes[0].receive.receive() == (B, b"2")


async def test_a_persistent_peer_is_dialled_again_until_it_is_back(wires: Wires, autojump_clock: object) -> None:
    alice, bob = in_memory(0, wires), in_memory(1, wires)
    alice.add_endpoint(B, memory_endpoint(1))
    alice.set_persistent([A, B])
    async with running(alice, bob, wires=wires):
        await alice.wait_peers(1)
        wires.is_cut = True
        for stream in wires.open:
            await trio.aclose_forcefully(stream)
        await trio.sleep(60)
        assert alice.peers() == [] == bob.peers()
        wires.is_cut = False
        with trio.fail_after(10):  # the back-off of persistent peers is short
            await alice.wait_peers(1)


async def test_the_newest_certificate_of_an_address_wins(wires: Wires, autojump_clock: object) -> None:
    alice = in_memory(0, wires)
    async with running(alice, wires=wires):
        old, new = identity(1, sequence=1), identity(1, sequence=2)
        first, _ = await connect_raw(alice, old)
        await alice.wait_peers(1)
        second, _ = await connect_raw(alice, new)
        assert await drained(first)  # replaced
        third, _ = await connect_raw(alice, old)
        assert await drained(third)  # revoked
        assert alice.is_connected(B)
        await second.aclose()


async def connect(network: Network, who: Identity, hello: Hello) -> tuple[trio.abc.Stream, Channel]:
    """Complete a handshake by hand, to misbehave afterwards."""
    near, far = trio.testing.memory_stream_pair()
    network.accept(far, "memory")
    handshake = Handshake(who, Purpose.CIRCUIT, is_initiator=True, now_ms=NOW_MS)
    await near.send_all(handshake.start())
    while handshake.session is None:
        await near.send_all(handshake.receive(bytes(await near.receive_some(4096))))
    channel = Channel(handshake.session)
    await near.send_all(channel.seal(hello.encode()))
    return near, channel


async def connect_raw(network: Network, who: Identity) -> tuple[trio.abc.Stream, Mux]:
    near, channel = await connect(network, who, Hello(HelloKind.NEW))
    return near, Mux(channel)


def garbage(mux: Mux) -> bytes:
    """Return a record that nobody else can have made, and that means nothing."""
    assert mux.channel is not None
    return mux.channel.seal(b"\xff" * 20)


async def drained(stream: trio.abc.Stream) -> bool:
    """Whether the other side closes within a while."""
    with trio.move_on_after(120):
        try:
            while await stream.receive_some(65536):
                pass
        except trio.BrokenResourceError:
            pass
        await trio.sleep(1)  # for the other side to finish its books
        return True
    return False


@pytest.mark.parametrize(
    "bytes_sent",
    [b"", b"GET / HTTP/1.1\r\n\r\n", bytes(5000), b"\x00\x20" + bytes(32), b"\x00"],
    ids=["silence", "http", "zeros", "weak key", "one byte"],
)
async def test_strangers_who_do_not_shake_hands_are_dropped_in_time(
    wires: Wires, autojump_clock: object, bytes_sent: bytes
) -> None:
    alice = in_memory(0, wires)
    async with running(alice, wires=wires):
        near, far = trio.testing.memory_stream_pair()
        alice.accept(far, "memory")
        if bytes_sent:
            await near.send_all(bytes_sent)
        began = trio.current_time()
        assert await drained(near)
        assert trio.current_time() - began <= alice.limits.handshake_timeout_s + 1
        assert alice.peers() == []


async def test_a_peer_that_goes_silent_or_garbles_is_dropped_alone(wires: Wires, autojump_clock: object) -> None:
    alice, bob = in_memory(0, wires, bootstrap=(1,)), in_memory(1, wires)
    async with running(alice, bob, wires=wires):
        silent, _ = await connect_raw(alice, identity(2))
        garbling, garbler = await connect_raw(alice, identity(3))
        dripping, _ = await connect_raw(alice, identity(4))
        await alice.wait_peers(4)
        await garbling.send_all(garbage(garbler))
        async with trio.open_nursery() as nursery:

            async def drip() -> None:
                with pytest.raises(trio.BrokenResourceError):
                    await dripping.send_all(b"\xff\xff")
                    while True:
                        await dripping.send_all(b"x")
                        await trio.sleep(1)

            nursery.start_soon(drip)
            await trio.sleep(40)
            nursery.cancel_scope.cancel()
        assert [peer.address for peer in alice.peers()] == [B]
        assert alice.counters["closed_peer_silent"] == 2 and alice.counters["closed_frame_invalid"] == 1
        assert await drained(silent)


async def test_who_garbles_again_and_again_is_banned(wires: Wires, autojump_clock: object) -> None:
    alice = in_memory(0, wires, ban_s=60)
    async with running(alice, wires=wires):
        for _ in range(8):
            stream, mux = await connect_raw(alice, identity(1))
            await trio.sleep(1)
            try:
                await stream.send_all(garbage(mux))
            except trio.BrokenResourceError:
                break
            await trio.sleep(1)
        assert alice.counters["bans"] == 1
        stream, _ = await connect_raw(alice, identity(1))
        assert await drained(stream) and not alice.is_connected(B)
        await trio.sleep(alice.limits.ban_s)
        stream, _ = await connect_raw(alice, identity(1))
        await alice.wait_peers(1)


async def test_unknown_kinds_are_skipped_and_a_handler_may_refuse_a_peer(
    wires: Wires, autojump_clock: object
) -> None:
    alice = in_memory(0, wires)

    async def picky(peer: bytes, body: bytes) -> None:
        if body == b"bad":
            raise ProtocolError("no vote")

    alice.on_message(VOTE, picky)
    async with running(alice, wires=wires):
        stream, mux = await connect_raw(alice, identity(1))
        await alice.wait_peers(1)
        mux.queue(TrafficClass.CONSENSUS, 77, b"of a later version")
        mux.queue(TrafficClass.CONSENSUS, VOTE, b"good")
        await stream.send_all(mux.next_record() or b"")
        await trio.sleep(1)
        assert alice.is_connected(B)
        mux.queue(TrafficClass.CONSENSUS, VOTE, b"bad")
        await stream.send_all(mux.next_record() or b"")
        assert await drained(stream) and not alice.is_connected(B)


async def test_inbound_places_are_limited_and_the_committee_has_its_own(
    wires: Wires, autojump_clock: object
) -> None:
    alice = in_memory(0, wires, peers_in_max=2)
    alice.set_persistent([account(9).address])
    async with running(alice, wires=wires):
        for number in (1, 2, 3):
            await connect_raw(alice, identity(number))
            await trio.sleep(1)
        assert len(alice.peers()) == 2 and alice.counters["refused_full"] == 1
        await connect_raw(alice, identity(9))
        await alice.wait_peers(3)


async def test_who_is_no_seat_keeps_a_few_and_draws_others_for_those_it_loses(
    wires: Wires, autojump_clock: object
) -> None:
    seats = [in_memory(number, wires) for number in range(1, 7)]
    alice = in_memory(0, wires, peers_out_target=0)
    for seat in seats:
        alice.add_endpoint(seat.identity.address, memory_endpoint(seats.index(seat) + 1))
    alice.set_persistent([seat.identity.address for seat in seats], kept=2)
    met: set[bytes] = set()
    async with running(alice, *seats, wires=wires):
        for _ in range(12):
            await alice.wait_peers(2)
            await trio.sleep(6)
            kept = [peer.address for peer in alice.peers()]
            assert len(kept) == 2
            met.update(kept)
            alice.disconnect(kept[0], "lost")
    assert len(met) > 3


async def test_all_outsiders_find_a_seat_where_each_could_fill_the_committee(
    wires: Wires, autojump_clock: object
) -> None:
    """Five of them and six places: if each dialled all three seats, the first two would have all places."""
    seats = [in_memory(number, wires, peers_in_max=2) for number in range(3)]
    outside = [in_memory(number, wires, peers_out_target=0) for number in range(10, 15)]
    addresses = [seat.identity.address for seat in seats]
    for network in (*seats, *outside):
        for number, address in enumerate(addresses):
            network.add_endpoint(address, memory_endpoint(number))
        network.set_persistent(addresses, kept=None if network in seats else 1)
    async with running(*seats, *outside, wires=wires):
        await trio.sleep(90)
        assert all(network.peers() for network in outside)
        for seat in seats:
            assert {*addresses} - {seat.identity.address} <= {peer.address for peer in seat.peers()}
        dials = sum(network.counters["dials"] for network in outside)
        await trio.sleep(60)
        assert sum(network.counters["dials"] for network in outside) < dials + 5  # who has a place is quiet


async def test_half_open_connections_are_limited(wires: Wires, autojump_clock: object) -> None:
    alice = in_memory(0, wires, half_open_max=3)
    async with running(alice, wires=wires):
        streams = []
        for _ in range(5):
            near, far = trio.testing.memory_stream_pair()
            alice.accept(far, "memory")
            streams.append(near)
            await trio.sleep(0.01)
        assert alice.counters["half_open_lost"] == 2
        assert await drained(streams[0])  # the oldest made room
        await trio.sleep(alice.limits.handshake_timeout_s + 1)
        await connect_raw(alice, identity(1))
        await alice.wait_peers(1)


async def test_requests_are_answered_refused_bounded_and_timed(wires: Wires, autojump_clock: object) -> None:
    alice, bob = in_memory(0, wires), in_memory(1, wires)
    alice.add_endpoint(B, memory_endpoint(1))
    alice.add_endpoint(C, memory_endpoint(2))

    async def echo(peer: bytes, body: bytes) -> bytes:
        assert peer == A
        return body * 1000

    async def never(peer: bytes, body: bytes) -> bytes:
        await trio.sleep_forever()
        raise AssertionError

    async def angry(peer: bytes, body: bytes) -> bytes:
        raise BlobUnavailable("no")

    bob.on_request("echo", echo)
    bob.on_request("bulk echo", echo, cls=TrafficClass.BULK)
    bob.on_request("never", never)
    bob.on_request("angry", angry)
    async with running(alice, bob, wires=wires):
        assert await alice.request(B, "echo", b"abc") == b"abc" * 1000
        assert await alice.request(B, "bulk echo", bytes(1000)) == bytes(1_000_000)
        with pytest.raises(RequestRefused, match="answer_too_large"):
            await alice.request(B, "echo", b"abc", limit_bytes=2999)
        with pytest.raises(RequestRefused, match="unknown_method"):
            await alice.request(B, "nothing", b"")
        with pytest.raises(RequestRefused, match="blob_unavailable"):
            await alice.request(B, "angry", b"")
        with pytest.raises(RequestTimeout):
            await alice.request(B, "never", b"", timeout_s=2)
        with pytest.raises(PeerUnreachable):
            await alice.request(C, "echo", b"", timeout_s=2)
        with pytest.raises(PeerUnreachable):
            await alice.request(A, "echo", b"", timeout_s=2)
        refused = 0

        async def ask() -> None:
            nonlocal refused
            try:
                await alice.request(B, "never", b"", timeout_s=5)
            except RequestRefused:
                refused += 1
            except RequestTimeout:
                pass

        async with trio.open_nursery() as nursery:
            for _ in range(bob.limits.requests_served_per_peer_max + 5):
                nursery.start_soon(ask)
        assert refused >= 5
        assert alice.is_connected(B)


async def test_a_lost_connection_fails_its_requests_at_once(wires: Wires, autojump_clock: object) -> None:
    alice, bob = in_memory(0, wires), in_memory(1, wires)
    alice.add_endpoint(B, memory_endpoint(1))

    async def hang_up(peer: bytes, body: bytes) -> bytes:
        bob.ban(peer, "test")
        await trio.sleep_forever()
        raise AssertionError

    bob.on_request("hang up", hang_up)
    async with running(alice, bob, wires=wires):
        began = trio.current_time()
        with pytest.raises(PeerUnreachable):
            await alice.request(B, "hang up", b"", timeout_s=30)
        assert trio.current_time() - began < 5


async def test_gossip_reaches_everybody_and_a_liar_is_banned(wires: Wires, autojump_clock: object) -> None:
    networks = [in_memory(n, wires, bootstrap=tuple(range(n))[-2:], peers_out_target=2) for n in range(6)]
    got: dict[int, list[bytes]] = {n: [] for n in range(6)}
    for number, network in enumerate(networks):

        async def validate(peer: bytes, payload: bytes, number: int = number) -> Verdict:
            if payload.startswith(b"lie"):
                return Verdict.REJECT
            got[number].append(payload)
            return Verdict.ACCEPT

        network.on_gossip("tx", validate)
    async with running(*networks, wires=wires):
        for network in networks:
            await network.wait_peers(2)
        await trio.sleep(2)
        networks[5].publish("tx", b"one", b"two")
        await trio.sleep(5)
        assert all(sorted(got[n]) == [b"one", b"two"] for n in range(5)) and got[5] == []
        earned = [peer.usefulness.periods for network in networks for peer in network._peers.values()]
        assert sum(earned) >= 5, "each heard it first of somebody"
        assert all(peer.usefulness.periods == 0 for peer in networks[5]._peers.values())
        for number in range(200):
            networks[0].publish("tx", b"lie %d" % number)
        await trio.sleep(1)
        liar = networks[0].identity.address
        assert all(not network.is_connected(liar) for network in networks[1:])
        assert any(network.counters["bans"] for network in networks[1:])


async def test_real_sockets_carry_blocks_gossip_and_blobs(tmp_path: Path) -> None:
    content = Random(1).randbytes(3 * 1024 * 1024 + 17)

    def network(number: int, bootstrap: tuple[str, ...] = ()) -> Network:
        config = NetworkConfig(
            listen=(("127.0.0.1", 0),),
            bootstrap=bootstrap,
            data_dir=tmp_path / str(number),
            blob_dir=tmp_path / str(number) / "blobs",
        )
        return Network(config, identity(number), now_ms=lambda: NOW_MS)

    alice = network(0)
    inbox = Inbox(alice, BLOCK)
    async with running(alice):
        host, port = alice.bound[0]
        bob = network(1, (f"{host}:{port}",))
        carol = network(2, (f"0x{A.hex()}@{host}:{port}",))
        async with running(bob, carol):
            with trio.fail_after(120):
                await alice.wait_peers(2)
                await bob.wait_peers(2)  # Carol found through Alice
                assert bob.send(A, TrafficClass.BLOCK, BLOCK, bytes(5_000_000))
                assert await inbox.receive.receive() == (B, bytes(5_000_000))
                assert alice.blobs is not None and bob.blobs is not None
                name = await trio.to_thread.run_sync(alice.blobs.add, content)
                steps: list[tuple[int, int]] = []
                path = await carol.fetch_blob(name, [A, B], progress=lambda done, of: steps.append((done, of)))
                assert path.read_bytes() == content
                assert steps[0] == (0, 4) and steps[-1] == (4, 4)
                assert (await bob.fetch_blob(name, [C])).read_bytes() == content  # who fetched it serves it
                with pytest.raises(BlobUnavailable):
                    await bob.fetch_blob(bytes(32), [A, C])
                assert alice.peers()[0].rtt_ms is not None
                assert alice.congestion_control
    # The address book is back after a restart, without any bootstrap peer.
    async with running(alice_again := network(0)):
        assert {r.address for r in map(alice_again.record, (B, C)) if r is not None} == {B, C}


async def test_a_listening_address_in_use_is_a_config_error() -> None:
    first = Network(NetworkConfig(listen=(("127.0.0.1", 0),)), identity(0), now_ms=lambda: NOW_MS)
    async with running(first):
        second = Network(NetworkConfig(listen=(first.bound[0],)), identity(1), now_ms=lambda: NOW_MS)
        with pytest.raises(ConfigError):
            await second.run()


def test_bootstrap_peers_are_read_strictly() -> None:
    assert parse_bootstrap("node.example:30303") == (None, Endpoint("node.example", 30303))
    assert parse_bootstrap(f"0x{A.hex()}@tcp:[::1]:1") == (A, Endpoint("::1", 1))
    assert parse_bootstrap(f"0x{A.hex()}@relay:{B.hex()}:h:2") == (A, Endpoint("h", 2, B))
    for text in ("", "host", "host:0", "host:65536", "0x12@h:1", f"{A.hex()}@h:1", "udp:h:1", "h h:1"):
        with pytest.raises(ConfigError):
            parse_bootstrap(text)


def test_renewing_keeps_the_address() -> None:
    network = Network(NetworkConfig(), identity(0), now_ms=lambda: NOW_MS)
    network.renew(identity(0, sequence=NOW_MS + 1))
    with pytest.raises(AssertionError):
        network.renew(identity(1))
    assert StaticKey.generate().public != network.identity.static.public


async def test_many_senders_are_paced_by_a_slow_receiver_and_votes_pass(
    wires: Wires, autojump_clock: object
) -> None:
    alice, bob = in_memory(0, wires), in_memory(1, wires)
    alice.add_endpoint(B, memory_endpoint(1))
    taken = 0
    votes = Inbox(bob)
    gate = trio.Event()

    async def slow(peer: bytes, body: bytes) -> bytes:
        nonlocal taken
        await gate.wait()
        taken += 1
        return b""

    async def take(peer: bytes, body: bytes) -> None:
        nonlocal taken
        taken += 1

    bob.on_message(BLOCK, take)
    bob.on_request("slow", slow)
    with pytest.raises(PeerUnreachable):
        await alice.send_when_room(B, TrafficClass.BULK, BLOCK, b"")
    async with running(alice, bob, wires=wires):
        alice.send(B, TrafficClass.BULK, BLOCK, b"")
        await alice.wait_peers(1)
        async with trio.open_nursery() as nursery:

            async def pour() -> None:
                for _ in range(20):
                    await alice.send_when_room(B, TrafficClass.BULK, BLOCK, bytes(1024 * 1024))

            for _ in range(3):
                nursery.start_soon(pour)
            nursery.start_soon(partial(alice.request, B, "slow", b"", timeout_s=100))
            alice.send(B, TrafficClass.CONSENSUS, VOTE, b"vote")
            assert await votes.receive.receive() == (A, b"vote")
            gate.set()
        with trio.fail_after(60):
            while taken < 62:
                await trio.testing.wait_all_tasks_blocked()
                await trio.sleep(0.1)


async def test_waiting_for_room_ends_with_the_connection(wires: Wires, autojump_clock: object) -> None:
    alice, bob = in_memory(0, wires), in_memory(1, wires)
    alice.add_endpoint(B, memory_endpoint(1))
    stuck = trio.Event()

    async def hang(peer: bytes, body: bytes) -> None:
        stuck.set()
        await trio.sleep_forever()

    bob.on_message(BLOCK, hang)
    async with running(alice, bob, wires=wires):
        alice.send(B, TrafficClass.BULK, BLOCK, b"")
        await stuck.wait()
        with pytest.raises(PeerUnreachable):  # Bob answers no ping while his handler hangs: he is given up
            while True:
                await alice.send_when_room(B, TrafficClass.BULK, BLOCK, bytes(1024 * 1024))


async def test_a_connection_that_only_takes_a_round_trip_is_no_failed_handshake() -> None:
    alice, bob = (
        Network(NetworkConfig(listen=(("127.0.0.1", 0),)), identity(number), now_ms=lambda: NOW_MS)
        for number in (0, 1)
    )
    async with running(alice, bob):
        with trio.fail_after(20):
            await alice.parts.path_selection._probe(bob.identity.address, Endpoint(*bob.bound[0]))
            while not bob.counters["connection_unused"]:  # noqa: ASYNC110 - what is waited for is the doing of sockets
                await trio.sleep(0.01)
    assert not bob.counters["handshake_failed"] and not alice.counters["handshake_failed"]
