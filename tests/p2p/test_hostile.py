"""Peers that are authentic and mean harm: what they say costs them their place, and the node nothing."""

from __future__ import annotations

import socket
from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing

from p2p.base.endpoint import Endpoint
from p2p.base.errors import FrameInvalid, PeerUnreachable, PunchFailed, RecordDamaged
from p2p.base.limits import NetworkLimits, ReceiveMemory, SendBacklog, excess_holders
from p2p.base.observed_address import ObservedAddress
from p2p.gossip.core import BACKOFFS_MAX, Deliver, Gossip, GossipParameters, Verdict
from p2p.path.hole_punch import PUNCHED, HolePuncher, HolePunchOptions, _Port
from p2p.secure.channel import GENERATION_MAX, Channel, ChannelFrame, Hello, HelloKind, conversation_of
from p2p.secure.frame import TrafficClass, frame, header
from p2p.secure.record import RecordReader
from p2p.service import Network, NetworkConfig
from p2p.session.bulk_streams import OUTSTANDING_MAX, BulkIn, BulkOut, BulkStream, WindowLimits
from p2p.session.mux import Mux, MuxLimits
from state.primitives.codec import Value, encode
from tests.p2p.helpers import NOW_MS, identity, sessions
from tests.p2p.path.test_hole_punch import ALICE, observer, pair
from tests.p2p.test_moves import FIRST, SECOND, Roads, member, until
from tests.p2p.test_service import BLOCK, VOTE, A, B, C, Inbox, connect, drained, running

MIB = 1024 * 1024


@pytest.fixture
def roads() -> Roads:
    return Roads()


def bulk(kind: int, number: int, body: bytes, left: int = 0) -> bytes:
    """Return a fragment of bulk."""
    return header(TrafficClass.BULK, kind, number, 4 + len(body)) + left.to_bytes(4, "big") + body


# -- moves -------------------------------------------------------------------------------------------------------


def test_a_generation_that_has_no_successor_is_refused() -> None:
    assert Hello.decode(Hello(HelloKind.RESUME, bytes(16), GENERATION_MAX - 1).encode()).generation
    Hello(HelloKind.RESUME, bytes(16), GENERATION_MAX).encode()
    with pytest.raises(FrameInvalid):
        Hello.decode(Hello(HelloKind.RESUME, bytes(16), GENERATION_MAX).encode())


async def test_a_peer_that_counts_moves_up_to_the_end_does_not_end_the_node(
    roads: Roads, autojump_clock: object
) -> None:
    alice, bob = member(0, roads), member(1, roads)
    alice.add_endpoint(B, FIRST)
    async with running(alice, bob):
        await alice.wait_peers(1)
        await trio.sleep(1)
        name = next(iter(alice._peers.values())).conversation
        for generation in (GENERATION_MAX, GENERATION_MAX - 1):
            stream, _ = await connect(alice, bob.identity, Hello(HelloKind.RESUME, name, generation, 0))
            await trio.sleep(0.5)
            await trio.aclose_forcefully(stream)
            await trio.sleep(15)
        await until(lambda: alice.is_connected(B))
        assert await alice.request(B, "peers", b"")


async def test_a_move_whose_answer_was_lost_can_be_tried_again(roads: Roads, autojump_clock: object) -> None:
    """Bob cannot dial Alice, so it is hers alone to come back."""
    alice, bob = member(0, roads), member(1, roads)
    inbox = Inbox(bob)
    alice.add_endpoint(B, FIRST)
    async with running(alice, bob):
        await alice.wait_peers(1)
        await trio.sleep(1)
        [peer] = alice._peers.values()
        # He takes the move over, she never hears so; his end gives her old connection up.
        stream, _ = await connect(bob, alice.identity, peer.migration.next_hello(peer.mux.received))
        await trio.sleep(0.01)
        await trio.aclose_forcefully(stream)
        alice.send(B, TrafficClass.CONSENSUS, VOTE, b"vote")
        with trio.fail_after(3):
            assert await inbox.receive.receive() == (A, b"vote")
        assert alice.peers()[0].age_s > 0.9 and alice.peers()[0].is_attached


def test_what_still_came_by_the_old_connection_may_be_acknowledged_on_the_new_one() -> None:
    one, other = sessions()
    sender, receiver = Mux(Channel(one)), Mux(Channel(other))
    for number in range(8):
        assert sender.queue(TrafficClass.BLOCK, 1, bytes((number,)) * 60_000)
    records = []
    while (record := sender.next_record()) is not None:
        records.append(record)
    got = [message for record in records[:2] for message in receiver.receive(record)]
    said = receiver.received  # its hello; what follows was under way already
    got += [message for record in records[2:] for message in receiver.receive(record)]
    one, other = sessions()
    sender.attach(Channel(one), said)
    receiver.attach(Channel(other), sender.received)
    receiver.ping(bytes(8))  # says how much has come
    word = receiver.next_record()
    assert word is not None
    sender.receive(word)
    assert sender.queue(TrafficClass.BLOCK, 1, b"the last")
    while (record := sender.next_record()) is not None:
        got += receiver.receive(record)
    assert [m.body[:1] for m in got if m.kind == 1] == [*(bytes((n,)) for n in range(8)), b"t"]


# -- records and bulk --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 2, 30])
def test_a_length_that_the_line_changed_does_not_speak_against_the_peer(cut: int) -> None:
    """The length of a record travels in clear, so a relay can make any of it."""
    one, other = sessions()
    record = bytearray(Channel(one).seal(frame(0, 1, 0, b"vote")))
    record[:2] = (3).to_bytes(2, "big")
    reader = RecordReader(other.receive)
    with pytest.raises(RecordDamaged):
        for at in range(0, len(record), cut):
            reader.feed(bytes(record[at : at + cut]))
            while reader.next_plaintext() is not None:
                pass


def test_a_receiver_cannot_make_its_sender_keep_more_than_a_window() -> None:
    sender = Mux(Channel(sessions()[0]))
    sender.bulk_out.grant(2**32 - 1)
    connection, kept = object(), 0
    for _ in range(100):
        if not sender.queue(TrafficClass.BULK, 1, bytes(4 * MIB)):
            break
        kept += 1
        while sender.bulk_out.take(connection, [], 65_000):
            pass
    assert kept * 4 * MIB <= MuxLimits().window.max_bytes + 20 * MIB


def test_bulk_of_one_who_hears_nothing_is_bounded() -> None:
    """What is done is told in records of the conversation, and those wait for who acknowledges nothing."""
    account = ReceiveMemory(64 * MIB).open(64 * MIB, lambda: None)
    bulk_in = BulkIn(account, message_bytes_max=MIB, limits=WindowLimits())
    connection = object()
    with pytest.raises(FrameInvalid):
        for number in range(1, 10 * OUTSTANDING_MAX):
            assert bulk_in.take(connection, 1, number, memoryview(bytes(4))) is not None
            bulk_in.release(number, 0.0, 0.0)
    assert number <= OUTSTANDING_MAX + 2


async def test_a_request_that_came_by_bulk_connection_before_its_peer_left_does_not_end_the_node(
    roads: Roads, autojump_clock: object
) -> None:
    alice = member(0, roads)
    began = trio.Event()

    async def slow(peer: bytes, body: bytes) -> None:
        began.set()
        await trio.sleep(0.5)

    alice.on_message(BLOCK, slow)
    async with running(alice):
        control, channel = await connect(alice, identity(1), Hello(HelloKind.NEW))
        await alice.wait_peers(1)
        name = conversation_of(channel.session)
        lane_stream, connection = await connect(alice, identity(1), Hello(HelloKind.BULK, name))
        ask = encode([1, "peers", 100_000, b""])
        await lane_stream.send_all(connection.seal(bulk(BLOCK, 1, b"slow") + bulk(0xE0, 2, ask)))
        await began.wait()
        channel.say(ChannelFrame.BYE)
        await control.send_all(channel.seal())
        await trio.sleep(5)
        assert alice.peers() == [] and alice.memory.used_bytes == 0
        await connect(alice, identity(2), Hello(HelloKind.NEW))
        await alice.wait_peers(1)


async def test_a_message_that_arrives_slowly_keeps_its_bulk_connection(
    roads: Roads, autojump_clock: object
) -> None:
    alice = member(0, roads)
    inbox = Inbox(alice, BLOCK)
    async with running(alice):
        control, channel = await connect(alice, identity(1), Hello(HelloKind.NEW))
        await alice.wait_peers(1)
        name = conversation_of(channel.session)
        stream, connection = await connect(alice, identity(1), Hello(HelloKind.BULK, name))
        parts = 30
        for number in range(parts):  # three times as long as an idle bulk connection lives
            left = (parts - 1 - number) * 1_000
            await stream.send_all(connection.seal(bulk(BLOCK, 1, bytes(1_000), left)))
            channel.say(ChannelFrame.PING, bytes(8))
            await control.send_all(channel.seal())
            await trio.sleep(6 * alice.limits.bulk_idle_s / parts)
        with trio.fail_after(1):
            assert await inbox.receive.receive() == (B, bytes(parts * 1_000))


def test_a_bulk_connection_counts_what_comes_in_pieces() -> None:
    one, other = sessions()
    mux = Mux(Channel(other))
    connection = BulkStream(
        Channel(other), BulkOut(queue_bytes_max=1, message_bytes_max=1, window_bytes=1), mux.bulk_in
    )
    channel = Channel(one)
    connection.receive(channel.seal())
    assert not connection.received_bytes
    connection.receive(channel.seal(bulk(1, 1, bytes(10), 5)))
    assert connection.received_bytes


# -- places ------------------------------------------------------------------------------------------------------


async def test_bulk_connections_of_strangers_leave_room_for_those_of_the_committee(
    roads: Roads, autojump_clock: object
) -> None:
    alice = member(0, roads, bulk_connections_in_max=2)
    alice.set_persistent([B])
    async with running(alice):
        for number, is_taken in ((2, True), (1, True)):
            _, channel = await connect(alice, identity(number), Hello(HelloKind.NEW))
            await until(lambda: alice.is_connected(identity(number).address))  # noqa: B023
            name = conversation_of(channel.session)
            bulk_connections = [
                (await connect(alice, identity(number), Hello(HelloKind.BULK, name)))[0] for _ in range(3)
            ]
            await trio.sleep(0.5)
            info = next(i for i in alice.peers() if i.address == identity(number).address)
            assert info.bulk_connections == (2 if number == 2 else 3) and is_taken
            assert len(bulk_connections) == 3


async def test_who_is_elected_is_banned_no_more(roads: Roads, autojump_clock: object) -> None:
    alice, bob = member(0, roads), member(1, roads)
    alice.add_endpoint(B, FIRST)
    async with running(alice, bob):
        await alice.wait_peers(1)
        alice.ban(B, "bad_score")
        await trio.sleep(5)
        assert not alice.is_connected(B)
        alice.set_persistent([B])
        with trio.fail_after(10):
            await until(lambda: alice.is_connected(B))


async def test_a_peer_cannot_make_a_node_dial_without_end(roads: Roads, autojump_clock: object) -> None:
    """Asking for bulk connections costs one small frame, opening them sixteen handshakes."""
    alice = member(0, roads)
    roads.networks[B] = member(1, roads)
    alice.add_endpoint(B, FIRST)
    async with running(alice, roads.networks[B]):
        await alice.wait_peers(1)
        await trio.sleep(1)
        [peer] = roads.networks[B]._peers.values()
        roads.closed.add("first")
        before = alice.counters["dials"]
        for _ in range(1_000):
            peer.request_connections({0: 16, 1: 16})
            await trio.sleep(0.005)
        assert alice.counters["dials"] - before <= 16 * 7


async def test_a_peer_that_answers_what_it_was_not_asked_is_no_nearer(
    roads: Roads, autojump_clock: object
) -> None:
    """The nearest have places of their own among those that come in."""
    alice = member(0, roads)
    async with running(alice):
        stream, channel = await connect(alice, identity(2), Hello(HelloKind.NEW))
        await until(lambda: alice.is_connected(identity(2).address))
        for _ in range(20):
            channel.say(ChannelFrame.PONG, int(trio.current_time() * 1e6).to_bytes(8, "big"))
            await stream.send_all(channel.seal())
            await trio.sleep(0.1)
        info = alice.peer(identity(2).address)
        assert info is not None and info.rtt_ms is None


# -- punching ----------------------------------------------------------------------------------------------------


async def test_a_peer_that_leaves_in_the_middle_of_punching_harms_nobody() -> None:
    async with trio.open_nursery() as nursery:
        observers = [await observer(nursery), await observer(nursery)]
        alice, _, _, bobs = await pair(nursery, observers)
        alice._options = HolePunchOptions(try_s=0.1)

        async def answer_and_leave(peer: bytes, body: bytes) -> bytes:
            if body[1:2] == b"\x01":
                return ObservedAddress.of("127.0.0.1", 9).encode()
            raise PeerUnreachable("it went")

        bobs.handler = answer_and_leave
        with pytest.raises(PunchFailed):
            await alice.dial(PUNCHED, bobs.me)
        nursery.cancel_scope.cancel()


async def test_an_attempt_that_is_given_up_while_observers_are_asked_keeps_no_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever asks for one may go at any time, and ask again when it is back."""
    made: list[_Port] = []

    class Noted(_Port):
        def __init__(self, family: socket.AddressFamily) -> None:
            super().__init__(family)
            made.append(self)

    async def never(_host: str, _family: socket.AddressFamily) -> list[str]:
        await trio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr("p2p.path.hole_punch._Port", Noted)
    observers = [Endpoint("127.0.0.1", 9), Endpoint("127.0.0.1", 10)]
    puncher = HolePuncher(lambda: observers, look_up=never)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(puncher._open)
        await trio.testing.wait_all_tasks_blocked()
        held = list(made[0]._held)
        assert held and all(sock.fileno() >= 0 for sock in held)
        nursery.cancel_scope.cancel()
    assert all(sock.fileno() < 0 for sock in held)


async def test_a_peer_may_say_go_only_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each word makes the node knock at an address that the peer chose."""
    dialled = []

    async def count(port: object, theirs: object, deadline: float) -> None:
        dialled.append(theirs)
        await trio.sleep_until(deadline)

    monkeypatch.setattr("p2p.path.hole_punch._dial_until", count)
    async with trio.open_nursery() as nursery:
        observers = [await observer(nursery), await observer(nursery)]
        _, bob, _, bobs = await pair(nursery, observers)
        assert bobs.handler is not None
        await bobs.handler(ALICE, encode([1, bytes(16), ObservedAddress.of("127.0.0.1", 9).encode()]))
        refused = 0
        for _ in range(50):
            try:
                await bobs.handler(ALICE, encode([2, bytes(16)]))
            except Exception:
                refused += 1
        await trio.testing.wait_all_tasks_blocked()
        assert len(dialled) <= bob._options.tries and refused >= 50 - bob._options.tries
        nursery.cancel_scope.cancel()


# -- blobs -------------------------------------------------------------------------------------------------------


async def test_a_source_that_is_busy_is_asked_again(roads: Roads, tmp_path: Path, autojump_clock: object) -> None:
    """A node at its limit answers busy, and the late peer gets the blob a little later."""
    content = b"blob" * 700_000

    def network(number: int) -> Network:
        made = Network(
            NetworkConfig(
                limits=NetworkLimits(blob_peers_served_max=1, blob_turn_s=0.5),
                blob_dir=tmp_path / str(number),
            ),
            identity(number),
            dialers={"relay": roads},
            now_ms=lambda: NOW_MS,
            random=Random(number),
        )
        roads.networks[made.identity.address] = made
        return made

    alice, bob, carol = map(network, range(3))
    for other in (bob, carol):
        other.add_endpoint(A, Endpoint("first", 1, A))
    got: list[bytes] = []

    async def fetch(who: Network, name: bytes) -> None:
        got.append((await who.fetch_blob(name, [A])).read_bytes())

    async with running(alice, bob, carol):
        assert alice.blobs is not None
        name = alice.blobs.add(content)
        with trio.fail_after(100):
            async with trio.open_nursery() as nursery:
                for who in (bob, carol):
                    nursery.start_soon(fetch, who, name)
    assert got == [content, content]


# -- gossip ------------------------------------------------------------------------------------------------------


def test_those_who_come_refuse_and_go_fill_no_memory() -> None:
    gossip = Gossip(random=Random(1), now=0.0)
    gossip.subscribe("tx", 1024)
    refusal = encode([5, "tx", 3_600])
    for number in range(2 * BACKOFFS_MAX):
        peer = number.to_bytes(20, "big")
        gossip.peer_joined(peer, outbound=False)
        gossip.receive(peer, refusal, 0.0)
        gossip.peer_left(peer)
    assert len(gossip._topics["tx"].backoff) <= BACKOFFS_MAX


def test_who_leaves_and_comes_back_may_have_no_more_waiting() -> None:
    gossip = Gossip(random=Random(1), now=0.0, parameters=GossipParameters(pending_of_peer_max=10))
    gossip.subscribe("tx", 1024)
    peer, number = bytes(20), 0
    waiting: list[bytes] = []
    for _ in range(5):
        gossip.peer_joined(peer, outbound=False)
        gossip.verdict([(name, Verdict.IGNORE) for name in waiting])
        payloads = [(number + at).to_bytes(4, "big") for at in range(100)]
        number += len(payloads)
        effects = gossip.receive(peer, encode([1, "tx", list[Value](payloads)]), 0.0)
        waiting = [effect.message_id for effect in effects if isinstance(effect, Deliver)]
        assert len(waiting) <= 10
        gossip.peer_left(peer)


async def hold(stream: trio.abc.Stream, channel: Channel, total: int, pieces: int) -> None:
    """Send so many pieces, of 32 KiB each, of a block part that is never finished."""
    for number in range(1, pieces + 1):
        left = (total - number * 32 * 1024).to_bytes(4, "big")
        piece = header(TrafficClass.BLOCK, BLOCK, 1, 4 + 32 * 1024) + left + bytes(32 * 1024)
        try:
            await stream.send_all(channel.seal(piece))
        except trio.BrokenResourceError:
            return


async def test_whoever_must_go_because_others_fill_the_memory_is_not_banned(
    roads: Roads, autojump_clock: object
) -> None:
    alice = member(0, roads, receive_bytes_max=MIB)
    async with running(alice):
        for _ in range(8):
            stream, channel = await connect(alice, identity(1), Hello(HelloKind.NEW))
            await until(lambda: alice.is_connected(B))
            await hold(stream, channel, 5 * MIB, 20)
            netgroup, other = await connect(alice, identity(2), Hello(HelloKind.NEW))
            await until(lambda: alice.is_connected(C))
            await hold(netgroup, other, 4 * MIB, 16)
            await drained(stream)
            await trio.aclose_forcefully(netgroup)
        assert alice.counters["closed_receive_memory"] >= 8
        assert not alice.counters["bans"]


async def test_who_asks_for_much_and_takes_nothing_is_let_go_before_it_fills_the_memory(
    roads: Roads, autojump_clock: object
) -> None:
    alice = member(0, roads, send_bytes_max=4 * MIB)

    async def serve(peer: bytes, body: bytes) -> bytes:
        return bytes(MIB // 2)

    alice.on_request("much", serve)
    async with running(alice):
        stream, channel = await connect(alice, identity(1), Hello(HelloKind.NEW))
        _, _ = await connect(alice, identity(2), Hello(HelloKind.NEW))
        await until(lambda: alice.is_connected(B) and alice.is_connected(C))
        for number in range(4):
            await stream.send_all(
                channel.seal(frame(TrafficClass.REQUEST, 0xE0, 0, encode([number, "much", MIB, b""])))
            )
        await trio.sleep(2)
        assert alice.is_connected(B)  # that much may wait
        for number in range(4, 12):
            await stream.send_all(
                channel.seal(frame(TrafficClass.REQUEST, 0xE0, 0, encode([number, "much", MIB, b""])))
            )
        await until(lambda: not alice.is_connected(B))
        assert alice.counters["closed_send_memory"] == 1
        assert alice.is_connected(C) and not alice.counters["bans"]


def test_what_waits_for_many_is_held_once_and_who_holds_most_goes_first() -> None:
    block = 7, 9 * MIB
    slow = {number: SendBacklog(9 * MIB + number, (block,)) for number in range(200)}
    assert excess_holders(slow, 10 * MIB) == []
    assert excess_holders({**slow, "greedy": SendBacklog(2 * MIB)}, 10 * MIB) == ["greedy"]
    own = {number: SendBacklog(MIB * number, ((number, MIB),)) for number in range(5)}
    assert excess_holders(own, 10 * MIB) == []
    assert excess_holders(own, 10 * MIB - 1) == [4]
    assert excess_holders(own, 2 * MIB) == [4, 3, 2]


async def test_bulk_for_a_peer_that_takes_no_bulk_connections_goes_the_one_way_there_is(
    roads: Roads, autojump_clock: object
) -> None:
    """Its places may be taken by others: then each bulk connection is opened, greeted and closed again."""
    alice, bob = member(0, roads), member(1, roads, bulk_connections_in_max=0)
    inbox = Inbox(bob, BLOCK)
    alice.add_endpoint(B, FIRST)
    alice.add_endpoint(B, SECOND)
    async with running(alice, bob):
        await alice.wait_peers(1)
        for _ in range(20):
            await alice.send_when_room(B, TrafficClass.BULK, BLOCK, bytes(200_000))
        with trio.fail_after(20):
            for _ in range(20):
                assert len((await inbox.receive.receive())[1]) == 200_000
        assert alice.counters["dials"] < 30
        for _ in range(5):
            await alice.send_when_room(B, TrafficClass.BULK, BLOCK, bytes(200_000))
            with trio.fail_after(20):
                assert len((await inbox.receive.receive())[1]) == 200_000
        assert alice.counters["dials"] < 60


async def test_a_conversation_goes_on_under_a_renewed_certificate(roads: Roads, autojump_clock: object) -> None:
    alice, bob = member(0, roads), member(1, roads)
    inbox = Inbox(bob, BLOCK)
    alice.add_endpoint(B, FIRST)
    async with running(alice, bob):
        await alice.wait_peers(1)
        await trio.sleep(1)
        bob.renew(identity(1, sequence=NOW_MS + 1))
        assert await alice.move(B, FIRST)
        for _ in range(10):
            await alice.send_when_room(B, TrafficClass.BULK, BLOCK, bytes(200_000))
        for _ in range(10):
            assert len((await inbox.receive.receive())[1]) == 200_000
        assert alice.peers()[0].bulk_connections == 1 and alice.peers()[0].age_s > 0.9
