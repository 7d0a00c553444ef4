"""Which windows are asked of whom: by hand, and against a model of peers that serve, lie, are slow or silent."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st

from consensus.events import ConsensusParameters
from consensus.sync import AHEAD_BLOCKS_MAX, BlockSync, Request, Window
from consensus.votes import Certificate
from consensus.wire import BLOCKS_MAX
from state.primitives.blocks import VERSION, Block, Header
from state.primitives.hashing import ZERO_HASH
from state.primitives.votes import FINALIZE

PARAMETERS = ConsensusParameters(window_ms=3_000)
OWN = b"o" * 20
PEERS = tuple(bytes((number,)) * 20 for number in range(1, 6))


def sync_of(*, root: int = 0, last_height: int = 3_600) -> BlockSync:
    sync = BlockSync(PARAMETERS, OWN, root=root, last_height=last_height)
    sync.begin_epoch(last_height, (OWN, *PEERS))
    return sync


@cache
def window_of(from_height: int, count: int, size_bytes: int = 1_000) -> Window:
    blocks = []
    for height in range(from_height, from_height + count):
        header = Header(
            VERSION, b"g" * 32, height, 0, height, 0, ZERO_HASH, height, ZERO_HASH, ZERO_HASH, ZERO_HASH,
            ZERO_HASH, b"", ZERO_HASH, ZERO_HASH, b"", 0, 0, 0, 1,
        )  # fmt: skip
        blocks.append((height.to_bytes(32, "big"), Block(header, ()), b""))
    certificate = Certificate(FINALIZE, 0, from_height + count - 1, 0, blocks[-1][0], b"\x07", b"")
    return Window(from_height, certificate, tuple(blocks), size_bytes)


def test_windows_go_to_several_peers_at_once_and_end_with_the_epoch() -> None:
    sync = sync_of(root=3_400)
    for peer in PEERS:
        sync.claim(peer, 10_000, 0)
    requests = sync.plan(0)
    assert [(request.from_height, request.blocks_max) for request in requests] == [
        (3_401, 64), (3_465, 64), (3_529, 64), (3_593, 8)
    ]  # fmt: skip
    assert len({request.address for request in requests}) == 4
    assert sync.plan(0) == [], "one request in flight for each window"


def test_a_small_gap_is_left_to_the_votes_until_nothing_moves() -> None:
    sync = sync_of(root=10)
    sync.commit(10, 5_000)
    sync.claim(PEERS[0], 12, 5_000)
    assert sync.plan(5_000) == []
    assert sync.plan(7_999) == []
    assert sync.plan(8_000) == [Request(PEERS[0], 11, 2)]


def test_a_claim_above_what_a_certificate_proves_is_believed_by_nobody() -> None:
    sync = sync_of()
    sync.claim(PEERS[0], 2**40, 0)
    assert sync.proven_height == 0
    assert {request.address for request in sync.plan(0)} == {PEERS[0]}
    assert sync.expire(3_000) is False
    sync.plan(3_000)
    sync.expire(6_000)
    sync.claim(PEERS[0], 2**40, 6_001)
    assert sync.plan(6_001) == [], "it is forgotten"
    assert sync.progress(6_001).claimed_height == 2**40, "its word stands while nothing moves"
    sync.claim(PEERS[0], 2**40, 17_000)
    assert sync.plan(17_000), "for a while"
    sync.expire(20_000)
    sync.plan(20_000)
    sync.expire(23_000)
    sync.claim(PEERS[0], 2**40, 40_000)
    assert sync.plan(40_000) == [], "and for twice as long the next time"


def minutes_of(sync: BlockSync, ask: Callable[[int], None], minutes: int = 60) -> list[int]:
    """Return what the peers are said to claim at each second."""
    claimed = []
    for now_ms in range(0, minutes * 60_000, 1_000):
        ask(now_ms)
        claimed.append(sync.progress(now_ms).claimed_height)
    return claimed


def test_a_node_that_nobody_serves_never_takes_itself_for_synced() -> None:
    sync = sync_of(root=1_000)

    def ask(now_ms: int) -> None:
        for peer in PEERS:
            if now_ms % 5_000 == 0:
                sync.claim(peer, 200_000 + now_ms // 1_000, now_ms)
        sync.expire(now_ms)
        sync.plan(now_ms)

    assert min(minutes_of(sync, ask)) >= 200_000


def test_peers_that_keep_the_blocks_no_more_are_not_forgotten_and_asked_seldom() -> None:
    sync, asked = sync_of(root=1_000), list[Request]()

    def ask(now_ms: int) -> None:
        for peer in PEERS:
            if now_ms % 5_000 == 0:
                sync.claim(peer, 200_000, now_ms)
        assert not sync.expire(now_ms)
        for request in sync.plan(now_ms):
            asked.append(request)
            assert not sync.pruned(OWN, request.from_height, 150_000, now_ms), "somebody else was asked"
            assert sync.pruned(request.address, request.from_height, 150_000, now_ms + 10)
            assert not sync.pruned(request.address, request.from_height, 150_000, now_ms + 10), "once"

    assert set(minutes_of(sync, ask)) == {200_000}
    assert sync.progress(3_600_000).oldest_height == 150_000
    assert len(asked) < 5 * 60, "a peer is asked anew now and then, for up to four windows"


def test_who_keeps_the_blocks_is_asked_for_what_others_do_not_keep() -> None:
    sync = sync_of()
    archive, *others = PEERS
    for peer in PEERS:
        sync.claim(peer, 3_000, 0)
    for request in sync.plan(0):
        if request.address != archive:
            sync.pruned(request.address, request.from_height, 2_000, 10)
    for _ in others:
        for request in sync.plan(20):
            if request.address != archive:
                sync.pruned(request.address, request.from_height, 2_000, 20)
    assert {request.address for request in sync.plan(30)} <= {archive}
    assert sync.progress(30).oldest_height == 0, "one of them serves"
    sync.commit(1_999, 1_000)
    assert {request.address for request in sync.plan(1_000)} & set(others), "from there on they all may"


def test_the_silent_do_not_count_while_blocks_come() -> None:
    sync = sync_of(root=1_000)
    liars, honest = PEERS[:3], PEERS[3:]
    for now_ms in range(0, 120_000, 1_000):
        sync.commit(1_000 + now_ms // 1_000, now_ms)
        for peer in liars:
            sync.claim(peer, 2**40, now_ms)
        for peer in honest:
            sync.claim(peer, 1_001 + now_ms // 1_000, now_ms)
        sync.expire(now_ms)
        sync.plan(now_ms)
        if now_ms >= 30_000:
            progress = sync.progress(now_ms)
            assert progress.claimed_height <= progress.height + 1 or any(
                not sync._is_forgotten(peer, now_ms) for peer in liars
            )


def test_the_word_of_who_was_blamed_is_worth_nothing() -> None:
    sync = sync_of(root=10)
    sync.claim(PEERS[0], 2**40, 0)
    sync.blamed(PEERS[0], 1)
    sync.claim(PEERS[0], 2**40, 2)
    assert sync.progress(2).claimed_height == 10


def test_a_peer_is_asked_for_no_more_windows_than_it_serves_at_once() -> None:
    sync = sync_of()
    sync.claim(PEERS[0], 1_000, 0)
    assert [request.from_height for request in sync.plan(0)] == [1, 65]
    sync.arrived(PEERS[0], window_of(1, 64), 10)
    assert [request.from_height for request in sync.plan(10)] == [129]


def test_the_window_that_all_others_wait_for_is_asked_for_however_much_waits() -> None:
    sync = sync_of()
    for peer in PEERS:
        sync.claim(peer, 1_000, 0)
    first, *others = sync.plan(0)
    for request in others:
        sync.arrived(request.address, window_of(request.from_height, 64, 2**25), 10)
    assert sync.plan(10) == []
    sync.blamed(first.address, 20)
    again = sync.plan(20)
    assert [request.from_height for request in again] == [1]
    assert again[0].address != first.address
    assert len(sync.arrived(again[0].address, window_of(1, 64), 30)) == 4
    assert sync.plan(30) == [], "now execution has to catch up"


def test_what_a_certificate_proves_is_asked_of_the_committee_without_any_claim() -> None:
    sync = sync_of()
    sync.prove(200)
    requests = sync.plan(0)
    assert {request.address for request in requests} <= set(PEERS)
    assert OWN not in {request.address for request in requests}
    assert sum(request.blocks_max for request in requests) == 200


def test_the_fastest_is_asked_first_and_the_unknown_once() -> None:
    sync = sync_of(last_height=10**6)
    for peer in PEERS[:3]:
        sync.claim(peer, 3 * 64, 0)
    answers = {request.address: request for request in sync.plan(0)}
    assert len(answers) == 3
    for slow, (peer, request) in enumerate(sorted(answers.items())):
        sync.arrived(peer, window_of(request.from_height, request.blocks_max, 10**6), 100 * (1 + 10 * slow))
    sync.commit(64 * 3, 3_000)
    for peer in PEERS[:3]:
        sync.claim(peer, 4 * 64, 3_000)
    assert sync.plan(3_000)[0].address == min(answers)


def test_windows_that_overtake_others_wait_for_them() -> None:
    sync = sync_of()
    for peer in PEERS:
        sync.claim(peer, 1_000, 0)
    first, second, third, *_ = sync.plan(0)
    assert sync.arrived(third.address, window_of(third.from_height, 64), 10) == []
    assert sync.arrived(second.address, window_of(second.from_height, 64), 20) == []
    ready = sync.arrived(first.address, window_of(first.from_height, 64), 30)
    assert [window.from_height for window in ready] == [1, 65, 129]


def test_a_window_waits_no_more_when_the_blocks_below_it_came_by_another_way() -> None:
    sync = sync_of()
    for peer in PEERS:
        sync.claim(peer, 128, 0)
    first, second = sync.plan(0)
    assert sync.arrived(second.address, window_of(second.from_height, 64), 10) == []
    assert sync.ready() == []
    for height in range(first.from_height, second.from_height):
        sync.commit(height, 20)
    assert [window.from_height for window in sync.ready()] == [second.from_height]
    assert sync.ready() == []


def test_a_window_cut_short_leaves_a_gap_that_is_asked_for() -> None:
    sync = sync_of()
    sync.claim(PEERS[0], 128, 0)
    assert len(sync.plan(0)) == 2
    assert sync.is_asked(PEERS[0], 1, 5)
    assert not sync.is_asked(PEERS[1], 1, 5)
    assert not sync.is_asked(PEERS[0], 2, 5)
    assert not sync.is_asked(PEERS[0], 1, 65)
    sync.arrived(PEERS[0], window_of(1, 5), 10)
    assert sync.plan(10) == [Request(PEERS[0], 6, 59)]


def test_a_late_window_is_still_taken() -> None:
    sync = sync_of()
    sync.claim(PEERS[0], 64, 0)
    assert len(sync.plan(0)) == 1
    sync.expire(3_000)
    assert sync.is_asked(PEERS[0], 1, 64)
    assert sync.arrived(PEERS[0], window_of(1, 64), 3_500)


def test_after_enough_silence_the_blocks_are_asked_for_one_by_one() -> None:
    sync = sync_of()
    sync.prove(100)
    now_ms, has_failed = 0, False
    for _ in range(20):
        sync.plan(now_ms)
        now_ms += 3_000
        has_failed = has_failed or sync.expire(now_ms)
    assert has_failed


def test_any_number_of_names_that_serve_nothing_costs_little() -> None:
    """Names are free and claim what they like; seats cost stake, and who has served is known."""
    seats = [bytes((1, number)) * 10 for number in range(4)]
    liars = [bytes((2, number)) * 10 for number in range(60)]
    height = 10_000
    sync = BlockSync(PARAMETERS, OWN, root=0, last_height=height)
    sync.begin_epoch(height, (OWN, *seats))
    now_ms, root, due = 0, 0, list[tuple[int, Request]]()
    while root < height:
        if now_ms % 5_000 == 0:
            for address in (*liars[::2], *seats, *liars[1::2]):
                sync.claim(address, height if address in seats else 2**40, now_ms)
        due += [(now_ms + 200, request) for request in sync.plan(now_ms) if request.address in seats]
        now_ms += 50
        for _, request in [found for found in due if found[0] <= now_ms]:
            for window in sync.arrived(
                request.address, window_of(request.from_height, request.blocks_max), now_ms
            ):
                root = window.from_height + len(window.blocks) - 1
                sync.commit(root, now_ms)
        due = [found for found in due if found[0] > now_ms]
        assert not sync.expire(now_ms), "the blocks never have to be asked for one by one"
        assert now_ms < 20_000, f"height {root} of {height}"


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 600),
    st.lists(st.sampled_from(["honest", "short", "silent", "liar", "slow"]), min_size=1, max_size=5),
    st.randoms(use_true_random=False),
)
def test_one_honest_peer_is_enough(height: int, kinds: list[str], rng: object) -> None:
    """Whatever the others do, every block arrives once, in order, and what is kept stays bounded."""
    sync = sync_of(last_height=10**6)
    kinds = [*kinds, "honest"]
    now_ms, root = 0, 0
    due: list[tuple[int, Request]] = []
    for _ in range(4_000):
        for number, kind in enumerate(kinds):
            sync.claim(bytes((number,)) * 20, 2**40 if kind == "liar" else height, now_ms)
        for request in sync.plan(now_ms):
            assert root < request.from_height <= root + AHEAD_BLOCKS_MAX
            assert 0 < request.blocks_max <= BLOCKS_MAX
            kind = kinds[request.address[0]]
            if kind in ("honest", "short"):
                due.append((now_ms + 100, request))
            elif kind == "slow":
                due.append((now_ms + 3_500, request))
        assert sync.sizes()["sync_windows"] <= AHEAD_BLOCKS_MAX
        now_ms += 500
        for at in [item for item in due if item[0] <= now_ms]:
            due.remove(at)
            request = at[1]
            count = min(request.blocks_max, height - request.from_height + 1)
            if kinds[request.address[0]] == "short":
                count = min(count, rng.randint(1, 3))  # type: ignore[attr-defined]
            if count <= 0 or not sync.is_asked(request.address, request.from_height, count):
                continue
            if request.from_height + count - 1 <= root:
                continue
            for window in sync.arrived(request.address, window_of(request.from_height, count), now_ms):
                assert window.from_height <= root + 1
                root = max(root, window.from_height + len(window.blocks) - 1)
                sync.commit(root, now_ms)
        sync.expire(now_ms)
        if root == height:
            break
    assert root == height
    assert sync.proven_height == height
