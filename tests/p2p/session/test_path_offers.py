"""Bulk connections requested from the end that can dial: planned by the sender of the bulk, within the limits of
the other."""

from __future__ import annotations

from functools import partial

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from p2p.base.endpoint import Endpoint
from p2p.base.errors import FrameInvalid
from p2p.path.bulk_plan import BulkPlanner
from p2p.path.paths import PathTable
from p2p.records.records import sign_record
from p2p.secure.channel import Channel
from p2p.secure.frame import TrafficClass, frame
from p2p.session.mux import Mux
from p2p.session.path_offers import (
    ANY_PATH,
    OFFERED_PATHS_MAX,
    OfferedPath,
    PathNumbers,
    decode_offer,
    decode_request,
    encode_offer,
    encode_request,
)
from tests.p2p.helpers import NOW_MS, account, identity, sessions
from tests.p2p.session.test_stall_detection import collect, feed, holes
from tests.p2p.test_moves import FIRST, SECOND, Roads, member, until
from tests.p2p.test_service import BLOCK, A, B, Inbox, running

ENDPOINTS = st.builds(Endpoint, st.sampled_from("abcdefghijklmnopqrstuvwxyz"), st.integers(1, 3))


@given(st.dictionaries(st.integers(1, 255), st.integers(0, 8), max_size=OFFERED_PATHS_MAX))
def test_ways_and_wishes_come_back(pairs: dict[int, int]) -> None:
    paths = tuple(OfferedPath(number, relays) for number, relays in pairs.items())
    assert decode_offer(encode_offer(paths)) == paths
    assert decode_request(encode_request(pairs)) == pairs


@pytest.mark.parametrize(
    "body",
    [b"\x01", bytes((1, 0, 1, 0)), bytes((0, 0)), bytes((1, 9)), bytes(n for i in range(17) for n in (i + 1, 0))],
    ids=["half a pair", "twice the same", "no number", "a long way", "too many"],
)
def test_malformed_ways_are_refused(body: bytes) -> None:
    with pytest.raises(FrameInvalid):
        decode_offer(body)
    one, other = sessions()
    with pytest.raises(FrameInvalid):
        Mux(Channel(other)).receive(Channel(one).seal(frame(TrafficClass.CONSENSUS, 0xFB, 0, body)))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(ENDPOINTS, max_size=20), max_size=60))
def test_numbers_stay_with_their_ways_and_name_what_was_offered_last(offers: list[list[Endpoint]]) -> None:
    numbers = PathNumbers()
    before: dict[int, Endpoint] = {}
    for paths in offers:
        offered = numbers.offer(paths)
        now = {one.number: path for one, path in zip(offered, dict.fromkeys(paths), strict=False)}
        assert len(offered) == min(len(set(paths)), OFFERED_PATHS_MAX) == len(now) and ANY_PATH not in now
        assert all(numbers.path(number) == path for number, path in now.items())
        assert all(numbers.path(number) is None for number in range(256) if number not in now)
        assert all(before[number] == now[number] for number in now.keys() & before.keys())
        assert decode_offer(encode_offer(offered)) == offered
        before = now


def test_ways_of_the_peer_are_planned_like_our_own() -> None:
    near, far = OfferedPath(1, 0), OfferedPath(2, 2)
    table = PathTable()
    table.offer([near, far])
    planner = BulkPlanner(table)
    planner.start(64 * 2**20, 0.0)
    assert set(planner.plan) == {near, far}
    now = 0.0
    while now < 30:
        now += 0.25
        planner.tick({path: (2_000_000 if path == far else 50_000) for path in planner.plan}, 8 * 2**20, now)
    assert set(planner.plan) == {far}


async def test_whoever_cannot_dial_finds_the_faster_of_its_peers_ways(autojump_clock: object) -> None:
    async with holes() as roads:
        roads.bytes_per_s = {"first": 100_000, "second": 1_500_000}
        alice, bob = member(0, roads), member(1, roads)
        inbox = Inbox(alice, BLOCK)
        alice.add_endpoint(B, SECOND)
        alice.add_endpoint(B, FIRST)
        async with running(alice, bob), trio.open_nursery() as nursery:
            await bob.wait_peers(1)
            await trio.sleep(2)
            nursery.start_soon(partial(feed, gap_s=0.0), bob, A, 350)
            await collect(inbox, 100)
            [at_bob], [at_alice] = bob._peers.values(), alice._peers.values()
            began = trio.current_time()
            await collect(inbox, 200)
            assert 200 * 100_000 / (trio.current_time() - began) > 400_000  # the slow way alone brings 100,000
            assert any(connection.offered_path is not None for connection in at_bob.bulk_connections)
            assert any(connection.endpoint == SECOND for connection in at_alice.bulk_connections)
            assert not bob.counters["dials"]
            await collect(inbox, 50)
        assert bob.memory.used_bytes == alice.memory.used_bytes == 0


async def test_both_directions_have_bulk_connections_of_their_own(autojump_clock: object) -> None:
    async with holes() as roads:
        roads.bytes_per_s = {"first": 1_000_000}
        alice, bob = member(0, roads), member(1, roads)
        inboxes = Inbox(alice, BLOCK), Inbox(bob, BLOCK)
        alice.add_endpoint(B, FIRST)
        async with running(alice, bob), trio.open_nursery() as nursery:
            await bob.wait_peers(1)
            await trio.sleep(2)
            nursery.start_soon(feed, alice, B, 100)
            await collect(inboxes[1], 30)
            nursery.start_soon(feed, bob, A, 100)
            await collect(inboxes[0], 50)
            [at_bob], [at_alice] = bob._peers.values(), alice._peers.values()
            for peer in (at_alice, at_bob):
                assert (
                    peer.bulk_connections.count(is_ours=True) >= 1
                    and peer.bulk_connections.count(is_ours=False) >= 1
                )
            await collect(inboxes[0], 50)
            await collect(inboxes[1], 70)


async def test_bulk_connections_go_to_whoever_asks_and_to_no_more_than_the_limit(autojump_clock: object) -> None:
    roads = Roads()
    alice, bob = member(0, roads, bulk_connections_max=5), member(1, roads)
    alice.add_endpoint(B, FIRST)
    async with running(alice, bob):
        await bob.wait_peers(1)
        await trio.sleep(2)
        [peer] = bob._peers.values()
        for _ in range(20):
            peer.request_connections(dict.fromkeys(range(16), 255))
            await trio.sleep(0.5)
        [at_alice] = alice._peers.values()
        assert at_alice.bulk_connections.count(is_ours=False) == 5 == len(at_alice.bulk_connections)
        assert set(roads.dials) == {"first"}
        await trio.sleep(3 * alice.limits.bulk_idle_s)
        assert not at_alice.bulk_connections and at_alice.closed_for is None


async def test_a_peer_is_not_made_to_dial_where_its_asker_says(autojump_clock: object) -> None:
    """Bob's record may name any host, and ever new ones; what Alice dials of them because he asks is counted."""
    roads = Roads()
    alice, bob = member(0, roads), member(1, roads)
    alice.add_endpoint(B, FIRST)
    strangers = 0
    async with running(alice, bob):
        await bob.wait_peers(1)
        await trio.sleep(2)
        [peer] = bob._peers.values()
        before = alice.counters["dials"]
        began = trio.current_time()
        for round_ in range(100):
            endpoints = tuple(Endpoint(f"stranger{strangers + n}", 1, account(1).address) for n in range(6))
            roads.closed.update(endpoint.host for endpoint in endpoints)
            strangers += len(endpoints)
            record = sign_record(identity(1), endpoints, now_ms=NOW_MS, above=NOW_MS + round_)
            await alice.parts.records.validate(B, record.data)
            peer.request_connections({ANY_PATH: 1})
            await trio.sleep(0.5)
            told = bob.parts.path_selection._offered[peer].paths
            peer.request_connections({path.number: 1 for path in told if isinstance(path, OfferedPath)})
            await trio.sleep(0.5)
        limits = alice.limits
        allowed = limits.bulk_new_paths_burst + limits.bulk_new_paths_per_s * (trio.current_time() - began)
        assert 0 < alice.counters["dials_failed"] <= allowed + 1
        assert (
            alice.counters["dials"] - before <= allowed + 20
        )  # and bulk connections by the way that leads to him
        await until(lambda: alice.is_connected(B))


async def test_one_bulk_connection_is_there_for_everybody_who_asks(autojump_clock: object) -> None:
    """Who asks for many leaves one for each of the others, however many have been asked for."""
    roads = Roads()
    alice = member(0, roads, bulk_connections_requested_max=4)
    others = [member(number, roads) for number in range(1, 5)]
    for other in others:
        alice.add_endpoint(other.identity.address, Endpoint("first", 1, other.identity.address))
    async with running(alice, *others):
        await alice.wait_peers(0)
        for other in others:
            await alice.request(other.identity.address, "peers", b"")
        for other in others:
            next(iter(other._peers.values())).request_connections({ANY_PATH: 16})
            await trio.sleep(1)
        counts = [alice._peers[other.identity.address].bulk_connections.count(is_ours=False) for other in others]
        assert counts == [4, 1, 1, 1]


async def test_ways_that_are_mere_words_are_not_preferred_to_those_of_the_peer(autojump_clock: object) -> None:
    """Alice's record names a place where nobody answers; Bob finds out once, and asks."""
    roads = Roads()
    alice, bob = member(0, roads), member(1, roads)
    inbox = Inbox(alice, BLOCK)
    roads.closed.add("nowhere")
    alice.add_endpoint(B, FIRST)
    async with running(alice, bob), trio.open_nursery() as nursery:
        await bob.wait_peers(1)
        await trio.sleep(2)
        bob.add_endpoint(A, Endpoint("nowhere", 1, A))
        failed = []
        for _ in range(3):
            nursery.start_soon(feed, bob, A, 30)
            await collect(inbox, 30)
            assert any(
                connection.offered_path is not None
                for connection in next(iter(bob._peers.values())).bulk_connections
            )
            failed.append(bob.counters["dials_failed"])
            await trio.sleep(70)  # the bulk connections have closed, and its pause is over
        assert 0 < failed[0] == failed[-1]
