"""Bulk connections that die without a word are noticed by what does not move on them, and slow ones are left in
peace."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from random import Random

import pytest
import trio
import trio.testing

from p2p.base.endpoint import Endpoint
from p2p.base.errors import FrameInvalid
from p2p.base.limits import ReceiveMemory
from p2p.secure.channel import Channel, ChannelFrame
from p2p.secure.frame import TrafficClass
from p2p.service import Network, NetworkConfig
from p2p.session.bulk_streams import BulkIn, BulkOut, BulkStream, WindowLimits
from p2p.session.connection import Connection
from p2p.session.stall_detection import StallDetector, StallParameters, StallTimeout
from tests.p2p.helpers import NOW_MS, identity, sessions
from tests.p2p.test_moves import FIRST, SECOND, Roads, member, until
from tests.p2p.test_service import BLOCK, VOTE, A, B, Inbox, running

TICK_S = 0.25


# -- the core ------------------------------------------------------------------------------------------------


class Line:
    """A bulk connection as its sender sees it: what the peer said of it, and what it said at all, over time."""

    def __init__(self, arrivals: Iterator[float], rtt_s: float, *, patience: StallTimeout | None = None) -> None:
        self.arrivals = arrivals
        self.rtt_s = rtt_s
        self.patience = patience or StallTimeout()

    def alarm(self, until_s: float, *, is_mute: Callable[[float], bool] = lambda _now: False) -> float | None:
        """Return when the bulk connection is given up, if it is. ``is_mute``: when the peer says nothing at
        all."""
        watch = StallDetector(self.patience, 0.0)
        moved = heard = 0
        said: list[
            tuple[float, bool]
        ] = []  # when a word of the peer's is here, and whether the bulk connection had moved
        now, next_arrival, has_moved = 0.0, next(self.arrivals, None), False
        while now < until_s:
            now += TICK_S
            while next_arrival is not None and next_arrival <= now:
                has_moved, next_arrival = True, next(self.arrivals, None)
            if not is_mute(now):
                said.append((now + self.rtt_s / 2, has_moved))
                has_moved = False
            while said and said[0][0] <= now:
                moved += said.pop(0)[1]
                heard += 1
            if watch.tick(now, is_owed=True, moved=moved, heard=heard, rtt_s=self.rtt_s):
                return now
        return None


def steady(until_s: float) -> Iterator[float]:
    now = 0.0
    while now < until_s:
        now += 0.1
        yield now


def lossy(rng: Random, *, rtt_s: float, loss: float, bits_per_s: float = 2e6) -> Iterator[float]:
    """Yield when a TCP flow with a small window delivers: it stops at each loss until that is mended.

    Without the newer repairs of TCP: a segment lost again is sent again only after a time-out that doubles.
    """
    at, segment_s = 0.0, 1_460 * 8 / bits_per_s
    while True:
        flight = 8
        lost = next((index for index in range(flight) if rng.random() < loss), None)
        for index in range(flight if lost is None else lost):
            yield at + rtt_s / 2 + index * segment_s
        at += max(rtt_s, flight * segment_s)
        if lost is not None:
            timeout_s = max(0.2, 2 * rtt_s)
            while rng.random() < loss:
                at += timeout_s
                timeout_s *= 2
            yield at + rtt_s / 2
            at += rtt_s


@pytest.mark.parametrize("rtt_s", [0.001, 0.05, 0.3])
def test_a_bulk_connection_that_swallows_everything_is_given_up_in_seconds(rtt_s: float) -> None:
    at = Line(steady(10.0), rtt_s).alarm(60)
    least_s = max(2.0, 16 * rtt_s)
    assert at is not None and 10 + least_s <= at <= 10 + least_s + 3 * rtt_s + 1


@pytest.mark.parametrize("seed", range(6))
def test_a_slow_line_that_loses_packets_is_left_in_peace(seed: int) -> None:
    """2 Mbit/s, 300 ms, 5 % of all packets lost: twenty minutes of it."""
    assert Line(lossy(Random(seed), rtt_s=0.3, loss=0.05), 0.3).alarm(1_200) is None


def test_a_peer_that_stands_still_is_no_matter_of_its_bulk_connections() -> None:
    def pausing() -> Iterator[float]:
        return (at for at in steady(100) if not 10 < at < 17)

    line = Line(pausing(), 0.05)
    assert line.alarm(90, is_mute=lambda now: 10 <= now < 17) is None
    # But where it goes on to speak and the bulk connection does not, that time counts.
    line = Line(steady(10), 0.05)
    at = line.alarm(90, is_mute=lambda now: 10 <= now < 17)
    assert at is not None and 18 <= at <= 21


def test_nothing_owed_is_nothing_missed() -> None:
    watch = StallDetector(StallTimeout(), 0.0)
    assert not any(
        watch.tick(step * TICK_S, is_owed=False, moved=0, heard=step, rtt_s=0.1) for step in range(1_000)
    )


def test_each_alarm_makes_the_next_one_slower_for_a_while() -> None:
    patience = StallTimeout(StallParameters(quiet_s=2, round_trips=0, alarms_max=2, memory_s=600))
    limits = []
    for now in (0.0, 1.0, 2.0, 3.0):
        limits.append(patience.limit_s(now, 0.0))
        patience.alarmed(now)
    assert limits == [2, 4, 8, 8]
    assert patience.limit_s(602.0, 0.0) == 8 and patience.limit_s(604.0, 0.0) == 2


def test_what_the_peer_says_of_a_bulk_connection_is_held_against_what_was_sent() -> None:
    account = ReceiveMemory(2**20).open(2**20, lambda: None)
    out = BulkOut(queue_bytes_max=2**20, message_bytes_max=2**20, window_bytes=2**20)
    one, other = sessions()
    incoming = BulkIn(account, message_bytes_max=2**20, limits=WindowLimits())
    near, far = BulkStream(Channel(one), out, incoming), BulkStream(Channel(other), out, incoming)
    assert near.name == far.name and not near.is_owed
    out.queue(1, bytes(1000))
    record = near.next_record()
    assert record is not None and near.is_owed
    far.receive(record)
    assert far.received_records == 1
    near.channel.say(ChannelFrame.PING, bytes(8))
    word = near.next_record()
    assert word is not None
    far.receive(word)
    assert far.received_records == 1  # words are not counted: they would be told of for ever
    with pytest.raises(FrameInvalid):
        near.note_progress(2)
    near.note_progress(1)
    near.note_progress(0)  # said earlier
    assert not near.is_owed and near.moved == 2


# -- whole networks ------------------------------------------------------------------------------------------


class Holes(Roads):
    """Roads that can swallow everything without a word; what stood in them comes when they open again."""

    def __init__(self, nursery: trio.Nursery) -> None:
        super().__init__()
        self.swallowing: set[str] = set()
        """Names of roads, or of single connections: ``name#number``, counted from 0 for each road."""
        self.bytes_per_s: dict[str, float] = {}
        """What one connection of a road carries, where that is bounded."""
        self._nursery = nursery
        self._counts: dict[str, int] = {}
        self._changed = trio.Event()

    async def dial(self, endpoint: Endpoint, target: bytes | None) -> trio.abc.Stream:
        stream = await super().dial(endpoint, target)
        near, far = trio.testing.memory_stream_pair()
        number = self._counts.get(endpoint.host, 0)
        self._counts[endpoint.host] = number + 1
        names = {endpoint.host, f"{endpoint.host}#{number}"}
        for source, sink in ((far, stream), (stream, far)):
            self._nursery.start_soon(self._pump, source, sink, names, endpoint.host)
        return near

    def swallow(self, *names: str) -> None:
        """Let exactly these swallow from now on."""
        self.swallowing = set(names)
        self._changed.set()
        self._changed = trio.Event()

    async def _pump(self, source: trio.abc.Stream, sink: trio.abc.Stream, names: set[str], host: str) -> None:
        try:
            while data := await source.receive_some(16_384):
                rate = self.bytes_per_s.get(host)
                if rate is not None:
                    await trio.sleep(len(data) / rate)
                while names & self.swallowing:
                    await self._changed.wait()
                await sink.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            if not names & self.swallowing:
                with trio.CancelScope(shield=True):
                    await trio.aclose_forcefully(sink)


@asynccontextmanager
async def holes() -> AsyncIterator[Holes]:
    async with trio.open_nursery() as nursery:
        yield Holes(nursery)
        nursery.cancel_scope.cancel()


async def feed(network: Network, to: bytes, count: int, *, gap_s: float = 0.05) -> None:
    for number in range(count):
        await network.send_when_room(to, TrafficClass.BULK, BLOCK, number.to_bytes(4, "big") + bytes(100_000))
        await trio.sleep(gap_s)


async def collect(inbox: Inbox, count: int) -> list[int]:
    return sorted([int.from_bytes((await inbox.receive.receive())[1][:4], "big") for _ in range(count)])


async def test_what_was_under_way_on_a_bulk_connection_that_swallows_it_arrives_by_another(
    autojump_clock: object,
) -> None:
    async with holes() as roads:
        alice, bob = member(0, roads), member(1, roads)
        inbox = Inbox(bob, BLOCK)
        alice.add_endpoint(B, FIRST)
        alice.add_endpoint(B, SECOND)
        async with running(alice, bob), trio.open_nursery() as nursery:
            await alice.wait_peers(1)
            await trio.sleep(1)
            control = roads.dials[0]
            nursery.start_soon(feed, alice, B, 220)
            assert len(await collect(inbox, 20)) == 20
            connection = next(iter(next(iter(alice._peers.values())).bulk_connections))
            assert connection.endpoint is not None
            host = connection.endpoint.host
            # Every bulk connection of that road, and not the control connection, if it goes there.
            roads.swallow(*(f"{host}#{number}" for number in range(1 if host == control else 0, 50)))
            began = trio.current_time()
            got = await collect(inbox, 100)
            assert trio.current_time() - began < 8 and len(got) == 100
            await until(lambda: alice.counters["bulk_connections_stalled"] >= 1)
            await collect(inbox, 100)
            assert alice.peers()[0].age_s > 10
            await until(lambda: not bob.memory.used_bytes)
            await until(lambda: all(other.closed_for is None for other in bob._peers.values()))


async def test_the_other_end_closes_what_was_given_up(autojump_clock: object) -> None:
    """Bob cannot dial Alice; the bulk connection that she opened for him swallows, and nothing on it tells her
    so."""
    async with holes() as roads:
        alice, bob = member(0, roads), member(1, roads)
        inbox = Inbox(alice, BLOCK)
        alice.add_endpoint(B, FIRST)
        async with running(alice, bob), trio.open_nursery() as nursery:
            await bob.wait_peers(1)
            await trio.sleep(1)
            nursery.start_soon(feed, bob, A, 160)
            await collect(inbox, 20)
            [peer] = alice._peers.values()
            assert len(peer.bulk_connections) == 1
            roads.swallow("first#1")
            await until(lambda: not any(connection.since < 3 for connection in peer.bulk_connections))
            await collect(inbox, 140)
            assert alice.counters["bulk_connections_stalled"] == bob.counters["bulk_connections_stalled"] == 1


async def test_a_receiver_that_takes_its_time_is_no_dead_bulk_connection(autojump_clock: object) -> None:
    async with holes() as roads:
        alice, bob = member(0, roads), member(1, roads)
        got: list[bytes] = []

        async def take(peer: bytes, body: bytes) -> None:
            await trio.sleep(9)
            got.append(body)

        bob.on_message(BLOCK, take)
        alice.add_endpoint(B, FIRST)
        async with running(alice, bob), trio.open_nursery() as nursery:
            await alice.wait_peers(1)
            nursery.start_soon(feed, alice, B, 12)
            await until(lambda: len(got) >= 5)
            assert alice.counters["bulk_connections_stalled"] == bob.counters["bulk_connections_stalled"] == 0
            assert alice.peers()[0].bulk_connections >= 1
            nursery.cancel_scope.cancel()


async def test_a_line_that_is_gone_for_a_while_altogether_costs_no_bulk_connection(autojump_clock: object) -> None:
    async with holes() as roads:
        alice, bob = member(0, roads), member(1, roads)
        inbox = Inbox(bob, BLOCK)
        alice.add_endpoint(B, FIRST)
        async with running(alice, bob), trio.open_nursery() as nursery:
            await alice.wait_peers(1)
            await trio.sleep(1)
            nursery.start_soon(feed, alice, B, 100)
            await collect(inbox, 10)
            roads.swallow("first")
            await trio.sleep(8)
            roads.swallow()
            await collect(inbox, 90)
            assert alice.counters["bulk_connections_stalled"] == 0


class Proxy:
    """A TCP splice in front of a listener; single connections can be made to swallow."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.swallowing: set[int] = set()
        """Ports of the callers."""

    async def serve(self, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        task_status.started(listeners[0].socket.getsockname()[1])
        await trio.serve_listeners(self._splice, listeners)

    async def _splice(self, caller: trio.SocketStream) -> None:
        port = caller.socket.getpeername()[1]
        callee = await trio.open_tcp_stream("127.0.0.1", self.target)
        async with trio.open_nursery() as nursery:
            for source, sink in ((caller, callee), (callee, caller)):
                nursery.start_soon(self._pump, source, sink, port, nursery.cancel_scope)

    async def _pump(
        self, source: trio.SocketStream, sink: trio.SocketStream, port: int, scope: trio.CancelScope
    ) -> None:
        try:
            while data := await source.receive_some(65_536):
                if port in self.swallowing:
                    await trio.sleep_forever()
                await sink.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        scope.cancel()


async def test_a_swallowed_bulk_connection_over_real_sockets() -> None:
    def network(number: int) -> Network:
        config = NetworkConfig(listen=(("127.0.0.1", 0),))
        return Network(config, identity(number), now_ms=lambda: NOW_MS)

    def bulk_connections(of: Network) -> list[Connection]:
        return [connection for peer in of._peers.values() for connection in peer.bulk_connections]

    alice, bob = network(0), network(1)
    inbox = Inbox(bob, BLOCK)
    with trio.fail_after(120):
        async with running(alice, bob), trio.open_nursery() as nursery:
            proxy = Proxy(bob.bound[0][1])
            alice.add_endpoint(B, Endpoint("127.0.0.1", await nursery.start(proxy.serve)))
            await alice.request(B, "peers", b"")
            nursery.start_soon(partial(feed, gap_s=0.01), alice, B, 200)
            await collect(inbox, 20)
            while not bulk_connections(alice):  # noqa: ASYNC110 - has no event
                await trio.sleep(0.01)
            [connection, *_] = bulk_connections(alice)
            socket = connection._socket
            assert socket is not None
            proxy.swallowing.add(socket.getsockname()[1])
            await collect(inbox, 180)
            await until(lambda: alice.counters["bulk_connections_stalled"] >= 1)
            nursery.cancel_scope.cancel()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_whatever_lines_do_bulk_of_both_ends_arrives_once(seed: int, autojump_clock: object) -> None:
    """Connections swallow, come back and end, one by one and road by road; only Alice can dial."""
    rng = Random(seed)
    async with holes() as roads:
        roads.bytes_per_s = {"first": 2_000_000, "second": 1_000_000}
        ends = member(0, roads), member(1, roads)
        got: tuple[list[int], list[int]] = [], []

        def taking(numbers: list[int]) -> Callable[[bytes, bytes], Awaitable[None]]:
            async def take(peer: bytes, body: bytes) -> None:
                numbers.append(int.from_bytes(body[:4], "big"))
                await trio.sleep(rng.choice((0, 0, 0, 0.02, 0.3)))

            return take

        for end, numbers in zip(ends, got, strict=True):
            end.on_message(BLOCK, taking(numbers))
        ends[0].add_endpoint(B, FIRST)
        ends[0].add_endpoint(B, SECOND)
        async with running(*ends), trio.open_nursery() as nursery:
            await ends[0].wait_peers(1)
            await trio.sleep(1)
            nursery.start_soon(feed, ends[0], B, 150)
            nursery.start_soon(feed, ends[1], A, 150)
            for _ in range(15):
                await trio.sleep(rng.uniform(0.1, 2))
                match rng.randrange(4):
                    case 0:
                        await roads.cut(rng.choice(("first", "second")), for_good=False)
                    case 1:
                        roads.swallow(rng.choice(("first", "second")))
                        await trio.sleep(rng.uniform(0.5, 4))
                    case _:
                        roads.swallow(
                            *(f"{rng.choice(('first', 'second'))}#{rng.randrange(12)}" for _ in range(3))
                        )
                if rng.random() < 0.5:
                    roads.swallow()
            roads.swallow()
            await until(lambda: all(len(numbers) >= 150 for numbers in got))
            await trio.sleep(5)
            assert [sorted(numbers) for numbers in got] == [list(range(150))] * 2
            assert all(end.memory.used_bytes == 0 for end in ends)
            assert all(end.peers()[0].age_s > 5 for end in ends)


@pytest.mark.parametrize("is_voter", [True, False])
async def test_votes_go_by_another_way_a_second_after_theirs_fell_silent(
    is_voter: bool, autojump_clock: object
) -> None:
    """Only Alice can dial. Who sends the votes does not matter: who hears none any more asks too."""
    async with holes() as roads:
        alice, bob = member(0, roads), member(1, roads)
        voter, other = (alice, B) if is_voter else (bob, A)
        came: list[tuple[float, int]] = []

        async def take(_peer: bytes, body: bytes) -> None:
            came.append((trio.current_time(), int.from_bytes(body, "big")))

        (bob if is_voter else alice).on_message(VOTE, take)
        alice.add_endpoint(B, SECOND)
        alice.add_endpoint(B, FIRST)
        async with running(alice, bob):
            await voter.wait_peers(1)
            for number in range(500):
                if number == 150:
                    used = roads.dials[-1]
                    roads.swallow(used)
                assert voter.send(other, TrafficClass.CONSENSUS, VOTE, number.to_bytes(2, "big"))
                await trio.sleep(0.02)
            assert [number for _, number in came] == list(range(500))
            assert max(later - earlier for (earlier, _), (later, _) in pairwise(came)) <= 1.0
            assert alice.peers()[0].moves == 1 and roads.dials[-1] != used
            assert alice.counters["silent_paths"] == 1 and not alice.counters["false_alarms"]


async def test_a_way_that_speaks_while_another_is_tried_is_kept(autojump_clock: object) -> None:
    async with holes() as roads:
        alice, bob = member(0, roads), member(1, roads)
        inbox = Inbox(bob)
        alice.add_endpoint(B, SECOND)
        alice.add_endpoint(B, FIRST)
        async with running(alice, bob), trio.open_nursery() as nursery:
            await alice.wait_peers(1)
            await trio.sleep(2)
            [used] = roads.dials
            [other] = {"first", "second"} - {used}
            roads.swallow(used, other)  # a line that stood still for a while, whichever way
            for number in range(200):
                assert alice.send(B, TrafficClass.CONSENSUS, VOTE, number.to_bytes(2, "big"))
                await trio.sleep(0.02)
                if number == 60:  # tried by now, and not there yet
                    assert other in roads.dials
                    roads.swallow(other)
                if number == 70:
                    roads.swallow()
            for number in range(200):
                assert (await inbox.receive.receive())[1] == number.to_bytes(2, "big")
            assert alice.peers()[0].moves == 0 and alice.counters["suspicions_refuted"] == 1
            assert not alice.counters["silent_paths"] and not alice.counters["false_alarms"]
            nursery.cancel_scope.cancel()


async def bulk_gap(dead: Callable[[list[str]], tuple[str, ...]]) -> tuple[float, Network, list[int]]:
    """Cut roads under bulk and votes; return the longest pause of bulk after that, and what came."""
    async with holes() as roads:
        roads.bytes_per_s = {"first": 2_000_000, "second": 2_000_000}
        alice, bob = member(0, roads), member(1, roads)
        came: list[tuple[float, int]] = []

        async def take(_peer: bytes, body: bytes) -> None:
            came.append((trio.current_time(), int.from_bytes(body[:4], "big")))

        bob.on_message(BLOCK, take)
        alice.add_endpoint(B, SECOND)
        alice.add_endpoint(B, FIRST)
        async with running(alice, bob), trio.open_nursery() as nursery:
            await alice.wait_peers(1)
            nursery.start_soon(partial(feed, gap_s=0.0), alice, B, 400)
            await until(lambda: len(came) >= 60)
            [peer] = alice._peers.values()
            used = [
                connection.endpoint.host for connection in peer.bulk_connections if connection.endpoint is not None
            ]
            cut_at = trio.current_time()
            roads.swallow(*dead(used))
            for number in range(150):
                assert alice.send(B, TrafficClass.CONSENSUS, VOTE, number.to_bytes(2, "big"))
                await trio.sleep(0.02)
            after = [at for at, _ in came if cut_at < at]
            gap_s = max(later - earlier for earlier, later in pairwise([cut_at, *after, trio.current_time()]))
            await until(lambda: len(came) >= 400)
            nursery.cancel_scope.cancel()
    return gap_s, alice, sorted(number for _, number in came)


@pytest.mark.slow
async def test_bulk_goes_by_another_way_within_two_seconds_whatever_fell_silent(autojump_clock: object) -> None:
    """The road of the bulk connection, with the control connection on it or not: all that is there but one
    road."""
    for road in ("first", "second"):
        gap_s, alice, came = await bulk_gap(lambda _used, road=road: (road,))  # type: ignore[misc]
        assert gap_s <= 2.0 and came == list(range(400)), road
        assert not alice.counters["false_alarms"]


def test_a_bulk_connection_is_doubted_then_suspended_then_dead_and_one_word_takes_it_back() -> None:
    patience = StallTimeout()
    for rtt_s in (0.001, 0.05, 0.1, 0.2):
        steps = patience.suspect_s(0.0, rtt_s), patience.suspend_s(0.0, rtt_s), patience.limit_s(0.0, rtt_s)
        assert steps == tuple(sorted(set(steps)))
        assert steps[1] + 3.5 * rtt_s < 1.75  # bulk is back within two seconds
    watch = StallDetector(patience, 0.0)
    moved = 1

    def look(now: float, *, is_heard: bool = True) -> tuple[bool, bool]:
        watch.tick(now, is_owed=True, moved=moved, heard=int(now * 10) * is_heard, rtt_s=0.05)
        return watch.is_suspected(now, 0.05), watch.must_suspend(now, 0.05)

    assert look(10.0) == (False, False)
    steps_seen = [look(10 + step / 10) for step in range(1, 9)]
    assert steps_seen == [(False, False)] * 4 + [(True, False)] * 3 + [(True, True)]
    moved = 2
    assert look(10.9) == (False, False)
    assert look(11.6) == (False, False)  # it has paused for so long before, and moved
    assert look(12.2) == (True, True)


def test_a_bulk_connection_of_a_peer_that_says_nothing_at_all_is_not_suspended() -> None:
    watch = StallDetector(StallTimeout(), 0.0)
    watch.tick(0.0, is_owed=True, moved=1, heard=1, rtt_s=0.05)
    for step in range(1, 100):
        watch.tick(step / 10, is_owed=True, moved=1, heard=1, rtt_s=0.05)
        assert not watch.must_suspend(step / 10, 0.05)
    assert watch.is_suspected(9.9, 0.05)
