"""Slots for inbound peers: a network that fills them makes room for others, and useful peers are kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from p2p.base.limits import NetworkLimits
from p2p.base.netgroups import Netgroups, Origin, block_of, network_of, origin_of
from p2p.peers.eviction import (
    DEPARTED_S,
    TRIAL_S,
    AdmissionDecision,
    DepartedPeers,
    InboundPeer,
    admit,
    keyed_hash,
)
from p2p.peers.handshake_limits import HandshakeLimits
from p2p.secure.channel import Channel, Hello, HelloKind
from p2p.secure.handshake import Handshake
from p2p.secure.identity import Identity, Purpose
from p2p.service import Network, NetworkConfig
from p2p.session.usefulness import USEFUL_PERIOD_S, Usefulness
from tests.p2p.helpers import NOW_MS, identity
from tests.p2p.test_service import running, wires

__all__ = ["wires"]

PLACES, PER_NETWORK = 16, 4


def origin(block: int, network: int = 0, *, is_bounded: bool = True) -> Origin:
    return Origin(f"{block}.{network}", str(block), is_bounded)


class House:
    """Guests of one node under virtual time; some are useful whenever they can be, some never."""

    def __init__(self, slots_max: int = PLACES, *, key: bytes = b"house") -> None:
        self.slots_max = slots_max
        self.peers: dict[bytes, InboundPeer] = {}
        self.usefulness: dict[bytes, Usefulness] = {}
        self.workers: set[bytes] = set()
        self.draw = keyed_hash(key)
        self.standings = DepartedPeers()
        self.count = 0
        self.now = 0.0

    def wait(self, seconds: float) -> None:
        """Let time pass, in which those who work miss no period."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + USEFUL_PERIOD_S / 2)
            self._work()

    def _work(self) -> None:
        for name in self.workers & self.peers.keys():
            self.usefulness[name].note(self.now)
            self.peers[name] = replace(self.peers[name], useful_periods=self.usefulness[name].periods)

    def drawn(self, newcomer: str) -> set[str]:
        blocks = {newcomer, *self.blocks()}
        return set(sorted(blocks, key=self.draw)[: self.slots_max // 8])

    def leave(self, name: bytes) -> Origin:
        where = self.peers.pop(name).origin
        self.standings.keep(name, where.block, self.usefulness[name], self.now)
        return where

    def knock(
        self,
        where: Origin,
        *,
        score: float = 0.0,
        rtt_s: float | None = None,
        works: bool = False,
        name: bytes = b"",
    ) -> AdmissionDecision:
        """Let a newcomer ask for a place, or ``name`` who has left."""
        answer = admit(
            [*self.peers.values()], where, now=self.now, slots_max=self.slots_max,
            per_network_max=PER_NETWORK, draw=self.draw,
            useful_periods=self.standings.periods(name, where.block, self.now),
        )  # fmt: skip
        if answer.evicted is not None:
            self.leave(answer.evicted)
        if answer.refusal is None:
            self.count += not name
            self.now += 0.001
            name = name or self.count.to_bytes(20, "big")
            self.usefulness[name] = self.standings.take(name, where.block, self.now)
            self.peers[name] = InboundPeer(name, where, self.now, self.usefulness[name].periods, score, rtt_s)
            if works:
                self.workers.add(name)
                self._work()
        return answer

    def blocks(self) -> Counter[str]:
        return Counter(peer.origin.block for peer in self.peers.values())


origins = st.builds(
    origin, st.integers(0, 9), st.integers(0, 9), is_bounded=st.booleans()
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(origins, st.floats(-200, 100), st.none() | st.floats(0.001, 1)), max_size=80))
def test_bounds_hold_and_who_is_alone_in_its_block_gives_way_to_a_drawn_one_at_most(
    knocks: list[tuple[Origin, float, float | None]],
) -> None:
    house = House()
    for where, score, rtt_s in knocks:
        before, blocks = dict(house.peers), house.blocks()
        answer = house.knock(where, score=score, rtt_s=rtt_s)
        assert len(house.peers) <= PLACES
        networks = Counter(g.origin.network for g in house.peers.values() if g.origin.is_bounded)
        if answer.refusal is None and where.is_bounded:
            assert networks[where.network] <= PER_NETWORK
        if answer.evicted is not None:
            left = before[answer.evicted].origin.block
            is_crowd = blocks[left] >= 2 and blocks[left] > blocks[where.block] + 1
            assert is_crowd or (not blocks[where.block] and where.block in house.drawn(where.block))


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 12), st.lists(st.tuples(st.integers(0, 11), st.integers(0, 30)), max_size=80))
def test_a_crowd_of_few_blocks_cannot_keep_a_newcomer_out_nor_push_it_out_again(
    blocks: int, attack: list[tuple[int, int]]
) -> None:
    """However good its members look: the netgroup came first, answers at once and has earned the best scores."""
    house = House(64)
    for number in range(200):
        house.knock(origin(number % blocks, number % 50), score=100.0, rtt_s=0.001)
    assert house.knock(origin(99)).refusal is None
    honest = next(peer for peer in house.peers.values() if peer.origin.block == "99")
    for block, network in attack:
        house.knock(origin(block % blocks, network), score=100.0, rtt_s=0.001)
        assert honest.address in house.peers


def test_the_newest_of_the_largest_network_gives_way_and_the_useful_are_passed_over() -> None:
    house = House(8)
    for number in range(8):
        house.knock(
            origin(1, number // 3),
            rtt_s=0.5 - number / 100,
            score=number if number == 5 else 0,
            works=number in (4, 6),
        )
    # 5 and 7 have worked, 8 is the nearest, 6 has the best score; 1 to 3 and 4 to 6 share a network each.
    assert house.knock(origin(2)).evicted == (4).to_bytes(20, "big")
    assert house.knock(origin(3)).evicted == (3).to_bytes(20, "big")


def test_the_nearest_stays_and_who_shares_no_network_is_not_asked_first() -> None:
    house = House(8)
    for number, network in enumerate((0, 1, 9, 9, 9, 9, 2, 3)):
        house.knock(origin(1, network), rtt_s=0.01 if number == 5 else 0.5)
    # 3 to 6 share a network, and 6 is the newest of them and the nearest of all; 7 and 8 are newer.
    assert house.knock(origin(2)).evicted == (5).to_bytes(20, "big")


steps = st.tuples(
    st.integers(0, 70),
    st.integers(0, 8),
    st.sampled_from([0, 0, 0, 0, 0, 0, 1, 3]),
    st.booleans(),
    st.sampled_from([0.0, 1.0, 90.0, 2_000.0]),
)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 2),
    st.integers(1, 4),
    st.lists(steps, min_size=30, max_size=120),
    st.binary(min_size=1, max_size=8),
)
def test_no_number_of_blocks_pushes_out_who_has_long_been_useful(
    before: int, honest: int, attack: list[tuple[int, int, int, bool, float]], key: bytes
) -> None:
    """The bound: those who came later never count; those who came before do, two a block, against half the places.

    The netgroup looks as good as it can: its scores and round trips are the best, it works whenever it can, comes
    from the blocks of the honest too, leaves and comes as it likes, and comes back for what it is remembered for.
    The honest only work.
    """
    house = House(key=key)
    for block in range(before):
        for _ in range(3):
            house.knock(origin(block), score=100.0, rtt_s=0.001, works=True)
    house.wait(USEFUL_PERIOD_S)
    for number in range(honest):
        house.knock(origin(50 + number // 2, 9), works=True)
    names = [name for name, peer in house.peers.items() if peer.origin.network.endswith(".9")]
    assert len(names) == honest and 2 * before + honest <= PLACES // 2
    for block, network, leaves, works, waits_s in attack:
        house.wait(waits_s)
        house.knock(origin(block, network), score=100.0, rtt_s=0.001, works=works)
        others = [name for name in house.peers if name not in names]
        for name in others[:leaves]:
            gone = house.leave(name)
            if works:
                house.knock(origin(60 + block), works=True)
                house.knock(gone, score=100.0, works=True, name=name)
        assert all(name in house.peers for name in names)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 200), st.booleans()), min_size=40, max_size=150))
def test_who_worked_longest_outranks_whoever_came_first_and_did_nothing(attack: list[tuple[int, bool]]) -> None:
    house = House(64)
    for number in range(60):
        house.knock(origin(number), score=100.0, rtt_s=0.001)
    for number in range(4):
        house.knock(origin(300 + number), works=True)
    names = [name for name in house.workers if name in house.peers]
    assert len(names) == 4
    house.wait(TRIAL_S)
    for block, works in attack:
        house.knock(origin(block), score=100.0, rtt_s=0.001, works=works)
        house.wait(10)
        assert all(name in house.peers for name in names)


def test_merely_sitting_holds_no_place_for_long() -> None:
    house = House(64)
    for number in range(64):
        house.knock(origin(number), score=100.0, rtt_s=0.001)
    strangers = [number for number in range(100, 140) if str(number) not in house.drawn(str(number))]
    assert house.knock(origin(strangers[0])).refusal == "refused_full", "all have their first minutes"
    house.wait(TRIAL_S)
    for number in strangers[1:11]:
        assert house.knock(origin(number), works=True).evicted is not None
    # Ten of them work now: they stay whoever comes, while those who sit take turns.
    assert sum(house.blocks()[str(number)] for number in strangers[1:11]) == 10
    for number in range(200, 300):
        house.wait(60)
        house.knock(origin(number))
    assert sum(house.blocks()[str(number)] for number in strangers[1:11]) == 10


def test_a_share_of_the_places_is_drawn_however_many_blocks_others_have_and_whatever_they_do() -> None:
    """64 blocks that came first, work and are near hold all places: one newcomer in eight gets in, and stays."""
    taken = 0
    for number in range(100):
        house = House(64, key=number.to_bytes(4, "big"))
        for block in range(64):
            house.knock(origin(block), score=100.0, rtt_s=0.001, works=True)
        house.now += 2 * TRIAL_S
        if house.knock(origin(99)).refusal is None:
            taken += 1
            for block in range(64):
                house.knock(origin(block), score=100.0, rtt_s=0.001, works=True)
            assert house.blocks()["99"] == 1
    assert 6 <= taken <= 19  # 8 of 65: 12.3 of 100


def test_who_worked_and_lost_its_connection_is_let_in_again_for_whoever_did_less() -> None:
    house = House()
    house.knock(origin(1), works=True)
    (worker,) = house.peers
    house.wait(10 * USEFUL_PERIOD_S)
    house.leave(worker)
    for block in range(2, 2 + PLACES):  # all places are taken meanwhile, by blocks of one
        house.knock(origin(block), works=True)
    house.wait(5 * USEFUL_PERIOD_S)
    assert house.knock(origin(90)).refusal == "refused_full" or "90" in house.drawn("90")
    assert house.knock(origin(1), name=worker, works=True).evicted is not None
    assert worker in house.peers


def test_nobody_makes_room_for_a_standing_that_is_less_or_of_a_block_that_has_its_share() -> None:
    house = House()
    for block in range(PLACES):
        house.knock(origin(block), works=True)
    house.wait(10 * USEFUL_PERIOD_S)
    least = dict.fromkeys(house.peers.values(), 11)
    assert all(peer.useful_periods >= 10 for peer in least)
    peers = [*house.peers.values()]
    draw = lambda block: 0 if block == "5" else int(block) + 1  # noqa: E731
    for useful_periods, is_let_in in ((1, False), (9, False), (99, True)):
        answer = admit(
            peers, origin(70), now=house.now, slots_max=PLACES, per_network_max=PER_NETWORK,
            draw=draw, useful_periods=useful_periods,
        )  # fmt: skip
        assert (answer.refusal is None) == is_let_in
    netgroup = [replace(peer, origin=origin(3 + number // 12, number)) for number, peer in enumerate(peers)]
    for where, is_let_in in ((origin(3, 99), False), (origin(70), True)):
        better = [replace(peer, useful_periods=200 if peer.origin.block == "3" else 0) for peer in netgroup]
        answer = admit(
            better, where, now=house.now, slots_max=PLACES, per_network_max=PER_NETWORK, draw=draw,
            useful_periods=99,
        )  # fmt: skip
        assert (answer.refusal is None) == is_let_in, "two of a block are kept for their standing, not a third"


def test_what_is_remembered_is_for_one_block_for_a_while_and_a_little_less_each_time() -> None:
    standings = DepartedPeers()
    usefulness = Usefulness(periods=3)
    standings.keep(b"a", "block", usefulness, 0.0)
    assert standings.periods(b"a", "block", 1.0) == 2 and standings.periods(b"b", "block", 1.0) == 0
    assert standings.periods(b"a", "other", 1.0) == 0 and standings.periods(b"a", "block", DEPARTED_S) == 0
    usefulness = standings.take(b"a", "block", 1.0)
    assert usefulness.periods == 2 and len(standings) == 0
    standings.keep(b"a", "block", usefulness, 2.0)
    assert standings.take(b"a", "other", 3.0).periods == 0, "earned in one block, it is of no use in another"
    assert standings.take(b"a", "block", 3.0).periods == 0
    standings.keep(b"a", "block", Usefulness(periods=1), 4.0)
    assert len(standings) == 0, "nothing would be left of it"


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9), st.floats(0, 20)), max_size=80))
def test_the_memory_of_standing_is_bounded_and_keeps_those_who_did_most(
    gone: list[tuple[int, int, float]],
) -> None:
    standings, now = DepartedPeers(departed_max=8, kept_s=100.0), 0.0
    least = 0
    for number, periods, waits_s in gone:
        now += waits_s
        name = bytes([number])
        before = {bytes([n]): standings.periods(bytes([n]), "block", now) for n in range(31)}
        standings.keep(name, "block", Usefulness(periods=periods), now)
        assert len(standings) <= 8
        lost = [n for n, had in before.items() if n != name and had and not standings.periods(n, "block", now)]
        assert len(lost) <= 1
        least = min((before[n] for n in lost), default=least)
        assert all(before[n] <= periods for n in lost)


def test_a_burst_of_usefulness_counts_once() -> None:
    usefulness = Usefulness()
    for tick in range(100):
        usefulness.note(USEFUL_PERIOD_S * tick / 100)
    assert usefulness.periods == 1
    usefulness.note(USEFUL_PERIOD_S)
    usefulness.note(USEFUL_PERIOD_S / 2)
    assert usefulness.periods == 2


def test_a_house_of_one_crowd_stays_as_it_is_for_more_of_it() -> None:
    """As in a test network on one machine: nobody is pushed about."""
    house = House()
    for _ in range(PLACES):
        assert house.knock(origin(1, is_bounded=False)).refusal is None
    assert house.knock(origin(1, is_bounded=False)) == AdmissionDecision("refused_full")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=120))
def test_crowds_know_their_largest(steps: list[tuple[int, bool]]) -> None:
    netgroups: Netgroups[int] = Netgroups()
    model: dict[int, str] = {}
    for number, (at, leaves) in enumerate(steps):
        if leaves and model:
            gone = list(model)[at % len(model)]
            netgroups.leave(gone)
            del model[gone]
        else:
            netgroups.enter(str(at), number)
            model[number] = str(at)
        sizes = Counter(model.values())
        assert len(netgroups) == len(model) and all(netgroups.size(name) == sizes[name] for name in "01234")
        last = netgroups.eviction_candidate(str(at))
        if max(sizes.values(), default=0) < sizes[str(at)] + 2:
            assert last is None
        else:
            assert last is not None and sizes[model[last]] == max(sizes.values())
            assert last == max(n for n, name in model.items() if name == model[last])


def test_the_rate_of_all_is_not_for_one_block_to_use_up() -> None:
    """As many connections as come through from all homes of one provider, of any number of sites."""
    limits = NetworkLimits()
    door = HandshakeLimits(limits)
    taken = Counter[bool]()
    for tick in range(10 * 500):
        slot = door.connection(f"2a00:1:{tick % 50:x}:{tick % 7:x}::1", tick / 500)
        taken[slot is not None] += 1
        if slot is not None:
            door.half_open.leave(slot)
        if tick % 100 == 0:
            honest = door.connection(f"2b00:{tick:x}::1", tick / 500)
            assert honest is not None
            door.half_open.leave(honest)
    assert 10 * limits.accepts_per_block_per_s * 0.9 < taken[True] < 10 * limits.accepts_per_s / 2


def test_origins() -> None:
    assert origin_of("8.8.8.8") == Origin("8.8.8.0/24", "8.8.0.0/16", True)
    assert origin_of("::ffff:8.8.8.8") == origin_of("8.8.8.9") == origin_of("punch:8.8.8.9")
    assert origin_of("2a00:1:2:3::4") == Origin("2a00:1:2::/48", "2a00:1::/32", True)
    for inner in ("127.0.0.1", "10.1.2.3", "fe80::1%eth0", "::1", "relay:0xab:8.8.8.8:1", "memory"):
        assert not origin_of(inner).is_bounded
    brought = origin_of("relay:0xab:8.8.8.8:1")
    assert (
        brought.is_relayed and not origin_of("punch:8.8.8.9").is_relayed and not origin_of("10.1.2.3").is_relayed
    )
    assert brought.of_its_own(b"a").block != brought.of_its_own(b"b").block != brought.block


async def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for is the doing of sockets
        await trio.sleep(0.005)


class Caller:
    """A peer that dials from one address of this machine and says no more than it must."""

    def __init__(self, who: Identity, host: str, port: int) -> None:
        self.who, self.host, self.port = who, host, port
        self.stream: trio.SocketStream | None = None

    async def dial(self) -> None:
        stream = await trio.open_tcp_stream("127.0.0.1", self.port, local_address=self.host)
        self.stream = stream
        handshake = Handshake(self.who, Purpose.PEER, is_initiator=True, now_ms=NOW_MS)
        try:
            await stream.send_all(handshake.start())
            while handshake.session is None:
                data = await stream.receive_some()
                if not data:
                    return
                await stream.send_all(handshake.receive(bytes(data)))
            await stream.send_all(Channel(handshake.session).seal(Hello(HelloKind.NEW).encode()))
        except trio.BrokenResourceError:
            return


async def test_an_eclipse_from_a_few_blocks_leaves_room_for_honest_newcomers_and_seats() -> None:
    """Real connections from many addresses, each of which counts as what a public one would."""
    seat = identity(900)
    alice = Network(
        NetworkConfig(
            listen=(("127.0.0.1", 0),),
            limits=NetworkLimits(peers_in_max=8, peers_per_network_max=4, peers_out_target=0, idle_timeout_s=600),
        ),
        identity(0),
        origin_of=lambda host: Origin(network_of(host), block_of(host), True),
        now_ms=lambda: NOW_MS,
        random=Random(1),
    )
    alice.set_persistent([seat.address])
    async with running(alice):
        port = alice.bound[0][1]
        callers: list[Caller] = []

        def refused() -> int:
            return alice.counters["refused_full"] + alice.counters["refused_network"]

        async def come(number: int, host: str) -> bytes:
            """Dial, and wait until the node has decided."""
            before = refused()
            caller = Caller(identity(number), host, port)
            callers.append(caller)
            await caller.dial()
            await wait_until(lambda: alice.is_connected(caller.who.address) or refused() > before)
            return caller.who.address

        with trio.fail_after(120):
            for number in range(1, 25):  # 24 of them, in eight networks of two blocks
                await come(number, f"127.{10 + number % 2}.{number % 8}.{number}")
            assert len(alice.peers()) == 8 and refused() == 16
            last = max(alice.peers(), key=lambda peer: alice._peers[peer.address].since).address
            alice.credit(last)  # the first that would have to go
            honest = [await come(100 + number, f"127.{20 + number}.0.1") for number in range(3)]
            assert all(alice.is_connected(address) for address in honest)
            for number in range(25, 45):
                await come(number, f"127.{10 + number % 2}.{number % 8}.{number}")
            await come(900, "127.10.0.1")  # from where the netgroup is, and to its own place
            assert alice.is_connected(seat.address)
            assert all(alice.is_connected(address) for address in honest)
            assert alice.counters["closed_evicted"] >= 3 and len(alice.peers()) <= 9
            assert alice.is_connected(last)
        for caller in callers:
            if caller.stream is not None:
                caller.stream.socket.close()


async def test_a_seat_is_let_in_from_an_address_whose_places_are_taken(autojump_clock: object) -> None:
    """A house of many nodes behind one address: only after its handshake a connection is known to be of a seat."""
    site, limits = "8.8.8.8", NetworkLimits()
    alice, seat, stranger = (
        Network(NetworkConfig(), identity(n), now_ms=lambda: NOW_MS, random=Random(n)) for n in (40, 41, 42)
    )
    alice.set_persistent([seat.identity.address])
    async with running(alice), trio.open_nursery() as nursery:
        for _ in range(limits.peers_per_ip_max):
            slot = alice.parts.inbound.handshake_limits.connection(site, trio.current_time())
            assert slot is not None
            alice.parts.inbound.handshake_limits.half_open.leave(slot)
            alice.parts.inbound.handshake_limits.count(site, 1)

        async def knock(who: Network) -> None:
            near, far = trio.testing.memory_stream_pair()
            slot = alice.parts.inbound.handshake_limits.connection(site, trio.current_time())
            assert slot is not None
            nursery.start_soon(alice.parts.inbound.incoming, far, site, site, slot)
            handshake = Handshake(who.identity, Purpose.PEER, is_initiator=True, now_ms=NOW_MS)
            await near.send_all(handshake.start())
            while handshake.session is None:
                await near.send_all(handshake.receive(bytes(await near.receive_some(4096))))
            await near.send_all(Channel(handshake.session).seal(Hello(HelloKind.NEW).encode()))

        await knock(stranger)
        await trio.testing.wait_all_tasks_blocked()
        assert alice.counters["refused_site"] == 1 and not alice.peers()
        await knock(seat)
        with trio.fail_after(10):
            await alice.wait_peers(1)
        assert alice.is_connected(seat.identity.address)
        nursery.cancel_scope.cancel()


class Brought:
    """Peers that an acceptor brings a node, as a relay does."""

    def __init__(self, node: Network, nursery: trio.Nursery) -> None:
        self.node, self.nursery = node, nursery
        self.ends: dict[bytes, trio.abc.Stream] = {}

    async def come(self, number: int, remote: str) -> bool:
        """HandshakeRunner hands a second later; whether the peer was let in."""
        await trio.sleep(1)
        near, far = trio.testing.memory_stream_pair()
        who = identity(number)
        self.ends[who.address] = near
        self.node.accept(far, remote)
        handshake = Handshake(who, Purpose.CIRCUIT, is_initiator=True, now_ms=NOW_MS)
        await near.send_all(handshake.start())
        while handshake.session is None:
            await near.send_all(handshake.receive(bytes(await near.receive_some(4096))))
        await near.send_all(Channel(handshake.session).seal(Hello(HelloKind.NEW).encode()))
        await trio.testing.wait_all_tasks_blocked()
        return self.node.is_connected(who.address)


def node_with(slots: int) -> Network:
    limits = NetworkLimits(peers_in_max=slots, peers_out_target=0, idle_timeout_s=1e6, resume_s=1.0)
    return Network(NetworkConfig(limits=limits), identity(0), now_ms=lambda: NOW_MS, random=Random(1))


async def test_homes_behind_one_relay_that_answer_with_a_bond_do_not_push_each_other_out(
    autojump_clock: object,
) -> None:
    bonded = {identity(number).address for number in (105, 106, 107)}
    alice = node_with(8)
    alice.on_bonded(bonded.__contains__)
    async with running(alice), trio.open_nursery() as nursery:
        brought = Brought(alice, nursery)
        assert all([await brought.come(100 + n, "relay:ab:relay.example:1") for n in range(8)])
        assert await brought.come(200, "8.8.8.8")
        assert await brought.come(201, "9.9.9.9")
        # The newest of those who stand for nothing have made room, and nobody of those who do.
        assert {peer.address for peer in alice.peers()} == {
            *bonded, *(identity(number).address for number in (100, 101, 102, 200, 201))
        }  # fmt: skip
        # From a bare address a bond changes nothing: there the bounds of networks and blocks hold as they are.
        assert alice.parts.admission.origin(identity(105).address, "8.8.8.8") == origin_of("8.8.8.8")
        nursery.cancel_scope.cancel()


async def test_a_peer_that_lost_its_connection_has_its_standing_when_it_is_back(autojump_clock: object) -> None:
    alice, useful, false = node_with(8), identity(300).address, identity(301).address
    async with running(alice), trio.open_nursery() as nursery:
        brought = Brought(alice, nursery)
        for number in (300, 301):
            assert await brought.come(number, "relay:ab:relay.example:1")
        for _ in range(5):
            alice.credit(useful)
            alice.credit(false)
            await trio.sleep(USEFUL_PERIOD_S)
        assert alice._peers[useful].usefulness.periods == 5
        for address in (useful, false):
            if address == false:
                alice.ban(address, "lied", ban_s=1.0)
            await brought.ends[address].aclose()
        await trio.sleep(5)
        assert not alice.peers()
        for number in (300, 301):
            assert await brought.come(number, "relay:ab:relay.example:1")
        assert alice._peers[useful].usefulness.periods == 4
        assert alice._peers[false].usefulness.periods == 0
        nursery.cancel_scope.cancel()
