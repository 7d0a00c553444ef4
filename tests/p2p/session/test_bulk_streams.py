"""Bulk over bulk connections that die, and a conversation over connections that do: nothing lost, nothing
twice."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2p.base.errors import FrameInvalid, ReceiveMemoryExceeded, RecordDamaged
from p2p.base.limits import MemoryAccount, ReceiveMemory
from p2p.secure.channel import Channel, ChannelFrame, Hello, HelloKind
from p2p.secure.frame import TrafficClass, frame
from p2p.secure.record import RecordReader
from p2p.session.bulk_streams import OUTSTANDING_MAX, BulkIn, BulkOut, BulkStream, Message, WindowLimits
from p2p.session.mux import Mux
from tests.p2p.helpers import sessions

MIB = 1024 * 1024
KIB = 1024


def account(limit_bytes: int = 64 * MIB) -> MemoryAccount:
    return ReceiveMemory(1024 * MIB).open(limit_bytes, lambda: None)


class Bulk:
    """Both halves of one direction of bulk, and bulk connections between them."""

    def __init__(self, window: WindowLimits | None = None) -> None:
        limits = window or WindowLimits()
        self.out = BulkOut(queue_bytes_max=64 * MIB, message_bytes_max=MIB, window_bytes=limits.first_bytes)
        self.taken = account()
        self.into = BulkIn(self.taken, message_bytes_max=MIB, limits=limits)
        self.got: list[Message] = []
        self.now = 0.0

    def stream(self) -> tuple[BulkStream, BulkStream]:
        one, other = sessions()
        back = BulkOut(queue_bytes_max=1, message_bytes_max=1, window_bytes=1)
        unused = BulkIn(account(), message_bytes_max=1, limits=WindowLimits())
        return BulkStream(Channel(one), self.out, unused), BulkStream(Channel(other), back, self.into)

    def tell(self) -> None:
        """Carry what the receiver has to say, which goes over the control connection and is never lost."""
        self.out.done(self.into.take_done())
        if self.into.wants_grant:
            self.into.wants_grant = False
            self.out.grant(self.into.granted_bytes)

    def release(self, message: Message) -> None:
        self.got.append(message)
        self.now += 0.02
        self.into.release(message.number, self.now, 0.02)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 200_000), max_size=40), st.integers(0, 2**32), st.integers(1, 5))
def test_whatever_bulk_connections_die_every_message_arrives_once(sizes: list[int], seed: int, count: int) -> None:
    rng = Random(seed)
    bulk = Bulk()
    sent = [rng.randbytes(size) for size in sizes]
    for body in sent:
        assert bulk.out.queue(1, body)
    streams = [bulk.stream() for _ in range(count)]
    flying: dict[BulkStream, list[bytes]] = {near: [] for near, _ in streams}
    dying: list[BulkStream] = []
    for step in range(20_000):
        if len(bulk.got) == len(sent) and not bulk.out.outstanding_bytes + bulk.out.waiting_bytes:
            break
        index = rng.randrange(count)
        near, far = streams[index]
        match rng.randrange(12):
            case 0 if step < 300:  # it dies; the two ends notice one after the other, and what flew is lost
                near.lost()
                dying.append(far)
                streams[index] = bulk.stream()
                flying[streams[index][0]] = []
            case 1 if dying:
                dying.pop(0).lost()
            case 2 if step < 300 and count > 1:  # it stands still for a while: others carry what it has too
                near.is_suspended = not near.is_suspended
                if near.is_suspended:
                    bulk.out.suspend(near)
            case 2 | 3:
                near.is_suspended &= step < 300
                bulk.tell()
            case choice if choice < 8:
                record = near.next_record()
                if record is not None:
                    flying[near].append(record)
            case _ if flying[near]:
                messages, _ = far.receive(flying[near].pop(0))
                for message in messages:
                    bulk.release(message)
            case _:
                pass
    assert sorted(m.body for m in bulk.got) == sorted(sent)
    while dying:
        dying.pop(0).lost()
    assert bulk.into.held_bytes == bulk.taken.held_bytes == 0
    assert bulk.out.waiting_bytes == bulk.out.outstanding_bytes == 0


def test_the_window_grows_while_it_is_the_bound_and_no_further_than_allowed() -> None:
    bulk = Bulk(WindowLimits(256 * KIB, MIB))
    near, far = bulk.stream()
    widest = 0
    for _ in range(200):
        bulk.out.queue(1, bytes(64 * KIB))
    while (record := near.next_record()) is not None or bulk.out.outstanding_bytes:
        if record is not None:
            widest = max(widest, bulk.out.outstanding_bytes)
            for message in far.receive(record)[0]:
                bulk.got.append(message)
            continue
        bulk.now += 0.05  # one round trip
        for message in bulk.got[-(bulk.into.held_bytes // (64 * KIB)) :]:
            bulk.into.release(message.number, bulk.now, 0.05)
        bulk.tell()
    assert len(bulk.got) == 200
    assert MIB // 2 < widest <= MIB


@pytest.mark.parametrize(
    "plaintext",
    [
        frame(4, 1, 0, bytes(4)),
        frame(4, 1, 1, bytes(3)),
        frame(4, 1, OUTSTANDING_MAX + 1, bytes(4)),
        frame(4, 1, 1, (2 * MIB).to_bytes(4, "big") + b"x"),
        frame(4, 1, 1, (9).to_bytes(4, "big") + b"x") + frame(4, 1, 2, (9).to_bytes(4, "big") + b"x"),
        frame(4, 1, 1, (9).to_bytes(4, "big") + b"x") + frame(4, 2, 1, (8).to_bytes(4, "big") + b"x"),
        frame(0, 1, 0, b"vote"),
        frame(3, 0xE0, 0, b"request"),
    ],
    ids=["no number", "no count", "runs ahead", "too large", "two at once", "another kind", "a vote", "a request"],
)
def test_hostile_bulk_is_refused(plaintext: bytes) -> None:
    bulk = Bulk()
    near, far = bulk.stream()
    with pytest.raises(FrameInvalid):
        far.receive(near.channel.seal(plaintext))


def test_bulk_done_that_was_never_sent_or_twice_is_refused() -> None:
    bulk = Bulk()
    with pytest.raises(FrameInvalid):
        bulk.out.done([1])
    bulk.out.queue(1, bytes(300 * KIB))
    with pytest.raises(FrameInvalid):  # it waits
        bulk.out.done([1])
    bulk.out.queue(1, bytes(300 * KIB))
    near, _ = bulk.stream()
    near.next_record()
    with pytest.raises(FrameInvalid):  # it has left in part
        bulk.out.done([2])


def test_who_holds_most_gives_way_and_votes_are_never_refused() -> None:
    memory = ReceiveMemory(10 * MIB)
    evicted: list[str] = []
    hog = memory.open(8 * MIB, lambda: evicted.append("hog"))
    honest = memory.open(8 * MIB, lambda: evicted.append("honest"))
    third = memory.open(8 * MIB, lambda: evicted.append("third"))
    hog.take(7 * MIB)
    with pytest.raises(ReceiveMemoryExceeded):
        hog.take(2 * MIB)
    honest.take(MIB)
    third.take(2 * MIB)
    assert hog.is_scarce
    with pytest.raises(ReceiveMemoryExceeded):  # the asker itself holds most
        hog.take(MIB // 2)
    hog.take_always(MIB // 4)
    honest.take(MIB)
    assert evicted == ["hog"] and memory.used_bytes == 4 * MIB
    hog.take_always(MIB)
    hog.give(MIB)
    for one in (honest, third):
        one.close()
    assert memory.used_bytes == 0


def fragments(stream: int, total: int, count: int, cls: TrafficClass = TrafficClass.REQUEST) -> list[bytes]:
    """Return the first fragments, of 32 KiB each, of a message that says that it has ``total`` bytes."""
    size = 32 * KIB
    return [
        frame(cls, 1, stream, (total - n * size).to_bytes(4, "big") + bytes(size)) for n in range(1, count + 1)
    ]


def test_a_peer_may_hold_no_more_than_its_share_of_memory() -> None:
    one, other = sessions()
    receiver = Mux(Channel(other), account=account(MIB))
    sender = Channel(one)
    with pytest.raises(ReceiveMemoryExceeded):
        for stream in range(1, 10):
            for fragment in fragments(stream, 3 * MIB, 8):
                receiver.receive(sender.seal(fragment))


def test_what_is_announced_holds_no_memory_until_it_comes() -> None:
    """Nobody is kept from receiving by those who say much and send nothing."""
    memory = ReceiveMemory(8 * MIB)
    liars = []
    for _ in range(5):
        one, other = sessions()
        account = memory.open(64 * MIB, lambda: liars.append("evicted"))
        receiver, sender = Mux(Channel(other), account=account), Channel(one)
        for stream in (1, 2, 3):  # 27 MiB in words
            receiver.receive(sender.seal(frame(3, 1, stream, (9 * MIB - 1).to_bytes(4, "big") + b"x")))
        receiver.receive(sender.seal(frame(4, 1, 1, (9 * MIB - 1).to_bytes(4, "big") + b"x")))
        assert 0 < account.held_bytes < 32 * KIB and receiver.reassembly_bytes == 27 * MIB
    one, other = sessions()
    honest = memory.open(64 * MIB, lambda: liars.append("honest"))
    receiver, sender = Mux(Channel(other), account=honest), Channel(one)
    for number, fragment in enumerate(fragments(1, 4 * MIB, 128), 1):
        messages = receiver.receive(sender.seal(fragment))
        arrived = number * 32 * KIB
        assert arrived == 4 * MIB or arrived <= honest.held_bytes <= arrived + 4 * KIB
        assert memory.used_bytes <= memory.limit_bytes
    assert [len(message.body) for message in messages] == [4 * MIB] and honest.held_bytes == 0 and not liars


def test_one_message_begun_on_many_bulk_connections_is_counted_on_each() -> None:
    """Bulk connections that the sender has given up may not have ended here, so one number may come on several."""
    bulk = Bulk(WindowLimits(MIB, MIB))
    streams = [bulk.stream() for _ in range(8)]
    for near, far in streams:
        far.receive(near.channel.seal(fragments(1, MIB, 4, TrafficClass.BULK)[0]))
    assert bulk.into.held_bytes == MIB and bulk.taken.held_bytes == 8 * 36 * KIB
    for _, far in streams[:-1]:
        far.lost()
    assert bulk.into.held_bytes == MIB and bulk.taken.held_bytes == 36 * KIB
    streams[-1][1].lost()
    assert bulk.into.held_bytes == bulk.taken.held_bytes == 0


# -- the conversation ----------------------------------------------------------------------------------------


class Pair:
    """Two ends of a conversation and the connection between them, which may be replaced at any moment."""

    def __init__(self) -> None:
        one, other = sessions()
        self.ends = Mux(Channel(one)), Mux(Channel(other))
        self.flying: tuple[list[bytes], list[bytes]] = [], []

    def step(self, side: int, rng: Random) -> list[Message]:
        """Let one end write or the other one read something."""
        sender, receiver = self.ends[side], self.ends[1 - side]
        if rng.random() < 0.5:
            record = sender.next_record()
            if record is not None:
                self.flying[side].append(record)
            return []
        if not self.flying[side] or receiver.channel is None:
            return []
        return receiver.receive(self.flying[side].pop(0))

    def move(self, *, read_on: bool) -> list[tuple[int, Message]]:
        """Replace the connection: each end says what it has; one may still read the old one for a while."""
        said = [end.received for end in self.ends]
        late = []
        if read_on and self.flying[0]:
            late = [(1, m) for m in self.ends[1].receive(self.flying[0].pop(0))]
        for end in self.ends:
            end.detach()
        for flying in self.flying:
            flying.clear()
        for side, session in enumerate(sessions()):
            self.ends[side].attach(Channel(session), said[1 - side])
        return late


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 1),
            st.sampled_from([TrafficClass.CONSENSUS, TrafficClass.BLOCK, TrafficClass.GOSSIP, TrafficClass.BULK]),
            st.integers(0, 150_000),
        ),
        max_size=25,
    ),
    st.integers(0, 2**32),
)
def test_over_any_number_of_moves_every_message_arrives_once_in_the_order_of_its_class(
    wanted: list[tuple[int, TrafficClass, int]], seed: int
) -> None:
    rng = Random(seed)
    pair = Pair()
    sent: tuple[list[Message], list[Message]] = [], []
    got: tuple[list[Message], list[Message]] = [], []
    queue = [(side, Message(cls, 1, rng.randbytes(size))) for side, cls, size in wanted]

    def take(side: int, message: Message) -> None:
        if message.kind >= 0xF0:
            return
        got[side].append(message)
        if message.number:
            pair.ends[side].release_bulk(message.number, 0.0, 0.0)

    for step in range(4_000):
        if queue and rng.random() < 0.2:
            side, message = queue.pop()
            assert pair.ends[side].queue(*message[:3])
            sent[side].append(message)
        if step < 1_000 and rng.random() < 0.02:
            for side, message in pair.move(read_on=rng.random() < 0.5):
                take(side, message)
        side = rng.randrange(2)
        for message in pair.step(side, rng):
            take(1 - side, message)
        if not queue and not any(end.has_output for end in pair.ends) and not any(pair.flying):
            break
    for side in (0, 1):
        for cls in TrafficClass:
            ours = [m.body for m in sent[side] if m.cls is cls]
            assert [m.body for m in got[1 - side] if m.cls is cls] == ours


def test_what_is_not_acknowledged_is_bounded_and_the_rest_waits() -> None:
    one, other = sessions()
    sender, receiver = Mux(Channel(one)), Mux(Channel(other))
    for _ in range(3):
        assert sender.queue(TrafficClass.BLOCK, 1, bytes(9 * MIB))
    records = []
    while (record := sender.next_record()) is not None:
        records.append(record)
    assert 8 * MIB <= sum(map(len, records)) < 9 * MIB and sender.is_owed and not sender.has_output
    for record in records:
        receiver.receive(record)
    acknowledgement = receiver.next_record()
    assert acknowledgement is not None
    sender.receive(acknowledgement)
    assert sender.has_output


def test_a_connection_that_leaves_something_out_or_invents_something_is_refused() -> None:
    pair = Pair()
    pair.ends[0].queue(TrafficClass.CONSENSUS, 1, b"vote")
    assert pair.ends[0].next_record() is not None  # lost
    one, other = sessions()
    with pytest.raises(FrameInvalid):
        pair.ends[0].attach(Channel(one), 2)
    receiver = pair.ends[1]
    receiver.attach(Channel(other), 0)
    channel = Channel(one)
    channel.say(ChannelFrame.START, (1).to_bytes(8, "big"))
    with pytest.raises(FrameInvalid):
        receiver.receive(channel.seal())
    one, other = sessions()
    receiver.attach(Channel(other), 0)
    with pytest.raises(FrameInvalid):  # does not say where it goes on
        receiver.receive(Channel(one).seal(frame(0, 1, 0, b"vote")))


def test_a_record_that_the_line_changed_is_told_from_one_that_the_peer_made() -> None:
    one, other = sessions()
    record = bytearray(Channel(one).seal(frame(0, 1, 0, b"vote")))
    record[5] ^= 1
    with pytest.raises(RecordDamaged):
        Mux(Channel(other)).receive(bytes(record))


@given(st.sampled_from(list(HelloKind)), st.binary(min_size=16, max_size=16), st.integers(0, 2**32 - 2), st.data())
def test_hellos_come_back(opening: HelloKind, name: bytes, generation: int, data: st.DataObject) -> None:
    hello = Hello(opening, name, generation, data.draw(st.integers(0, 2**64 - 1)))
    assert Hello.decode(hello.encode()) == hello


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 65_000), min_size=1, max_size=12), st.integers(0, 2**32))
def test_records_come_out_whole_however_they_are_cut_and_asked_for(sizes: list[int], seed: int) -> None:
    rng = Random(seed)
    one, other = sessions()
    sender, reader = Channel(one), RecordReader(other.receive)
    sent = [rng.randbytes(size) for size in sizes]
    stream = b"".join(sender.seal(plaintext) for plaintext in sent)
    got: list[bytes] = []
    while stream or rng.random() < 0.9:
        cut = rng.choice((0, 1, 2, 3, rng.randrange(70_000), rng.randrange(300_000)))
        reader.feed(stream[:cut])
        stream = stream[cut:]
        for _ in range(rng.randrange(4)):
            plaintext = reader.next_plaintext()
            if plaintext is not None:
                got.append(plaintext)
    while (plaintext := reader.next_plaintext()) is not None:
        got.append(plaintext)
    assert got == sent
