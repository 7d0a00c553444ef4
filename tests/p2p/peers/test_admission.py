"""Which of two connections is kept, who is drawn to be dialled, and where a node can be reached; without I/O."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from p2p.base.endpoint import Endpoint
from p2p.base.limits import HalfOpenSlot, NetworkLimits
from p2p.peers.admission import ConnectionPriority, replaces
from p2p.peers.handshake_limits import HandshakeLimits
from p2p.peers.inbound import OwnEndpoints, own_endpoints
from p2p.peers.outbound import PersistentPeerDraw

LOW, HIGH = b"\1" * 20, b"\2" * 20
KEY, OTHER_KEY = b"k" * 32, b"o" * 32
LIMITS = NetworkLimits()

times = st.floats(0, 1_000)


def kept(first: ConnectionPriority, second: ConnectionPriority, *, own: bytes, other: bytes) -> ConnectionPriority:
    """Return what is left of two connections that come in this order; both go on as long as they are kept."""
    return second if replaces(second, first, is_old_attached=True, own=own, other=other) else first


@given(st.lists(st.floats(0, 4.9), min_size=4, max_size=4), st.booleans(), st.booleans())
def test_of_two_dialled_at_once_both_ends_keep_the_same(at: list[float], at_low: bool, at_high: bool) -> None:
    """In whichever order each of the two ends has seen them."""

    def left_at(own: bytes, other: bytes, own_at: float, other_at: float, is_own_first: bool) -> bool:
        dialled, came = ConnectionPriority(1, KEY, True, own_at), ConnectionPriority(1, KEY, False, other_at)
        order = (dialled, came) if is_own_first else (came, dialled)
        return kept(*order, own=own, other=other) is dialled

    is_lows_kept = left_at(LOW, HIGH, at[0], at[1], at_low)
    is_highs_kept = left_at(HIGH, LOW, at[2], at[3], at_high)
    assert is_lows_kept and not is_highs_kept


@given(st.integers(0, 9), st.integers(0, 9), st.booleans(), st.booleans(), times, times)
def test_a_later_certificate_goes_before_all_else(
    new: int, old: int, is_new_ours: bool, is_old_ours: bool, new_at: float, old_at: float
) -> None:
    for is_attached in (True, False):
        found = replaces(
            ConnectionPriority(new, OTHER_KEY, is_new_ours, new_at),
            ConnectionPriority(old, KEY, is_old_ours, old_at),
            is_old_attached=is_attached,
            own=LOW,
            other=HIGH,
        )
        assert found == (new >= old)  # of one certificate with other keys, the newest handshake


@given(times, st.floats(0, 100))
def test_a_connection_that_has_died_stands_in_nobodys_way(at: float, later_s: float) -> None:
    old, new = ConnectionPriority(1, KEY, True, at), ConnectionPriority(1, KEY, False, at + later_s)
    assert replaces(new, old, is_old_attached=False, own=LOW, other=HIGH)
    assert replaces(new, old, is_old_attached=True, own=HIGH, other=LOW)
    assert replaces(new, old, is_old_attached=True, own=LOW, other=HIGH) == (new.since - old.since > 5)
    assert replaces(new._replace(is_outbound=True), old, is_old_attached=True, own=LOW, other=HIGH)


@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 30), st.booleans())
def test_seats_are_drawn_one_at_a_time_and_ever_more_slowly(
    seed: int, enough: int, count: int, has_one: bool
) -> None:
    draw, now, drawn_at = PersistentPeerDraw(limits=LIMITS, random=Random(seed)), 0.0, []
    wanted = [bytes([number]) * 20 for number in range(count)]
    connected = int(has_one and enough > 1)
    while now < 300:
        if (found := draw.next(wanted, connected=connected, enough=enough, now=now)) is not None:
            assert found in wanted
            drawn_at.append(now)
        now += 0.25
    limit_s = LIMITS.redial_max_s if connected else LIMITS.redial_persistent_max_s
    gaps = [later - earlier for earlier, later in pairwise(drawn_at)]
    assert gaps and all(gap <= 1.25 * limit_s + 0.5 for gap in gaps)
    assert all(gap >= 0.75 * limit_s - 0.5 for gap in gaps[-3:])
    # Enough of them: none is drawn, and when one is lost again the next is drawn without delay.
    assert draw.next(wanted, connected=enough, enough=enough, now=now) is None
    assert draw.next([], connected=0, enough=enough, now=now + limit_s) is None
    assert draw.next(wanted, connected=0, enough=enough, now=now + 2 * limit_s) in wanted


def test_what_the_owner_advertises_goes_before_what_the_sockets_tell() -> None:
    bound = (("192.0.2.7", 1), ("0.0.0.0", 2), ("::", 2), ("::", 3))
    assert own_endpoints(bound, ()) == OwnEndpoints((Endpoint("192.0.2.7", 1),), (2, 3))
    named = (Endpoint("node.example", 9),)
    assert own_endpoints(bound, named) == OwnEndpoints(named)
    assert own_endpoints((), ()) == OwnEndpoints()


def test_a_relay_that_brings_without_end_leaves_the_others_their_part() -> None:
    handshake_limits = HandshakeLimits(LIMITS)
    flood = [handshake_limits.circuit("relay:aa", 0.0) for _ in range(10_000)]
    assert sum(place is not None for place in flood) == LIMITS.accepts_per_block_burst
    assert handshake_limits.circuit("relay:bb", 0.0) is not None
    for second in range(1, 20):
        flood = [handshake_limits.circuit("relay:aa", float(second)) for _ in range(10_000)]
        assert sum(place is not None for place in flood) == LIMITS.accepts_per_block_per_s
        assert all(handshake_limits.circuit("relay:bb", float(second)) is not None for _ in range(50))


def test_a_few_blocks_that_knock_without_end_leave_a_part_of_the_rate_to_others() -> None:
    handshake_limits = HandshakeLimits(LIMITS)
    came, places = 0, list[HalfOpenSlot]()
    for tick in range(1, 200):
        now = tick / 10
        for number in range(60):  # of three blocks, each of its connections from elsewhere in it
            host = f"100.{64 + number % 3}.{(tick + number) % 250}.{tick % 250}"
            place = handshake_limits.connection(host, now)
            if place is not None:
                places.append(place)
        if tick % 10 == 0:  # once a second somebody of a block of its own
            place = handshake_limits.connection(f"198.{tick // 10}.7.7", now)
            came += place is not None
            places += [] if place is None else [place]
        while len(places) > 100:
            handshake_limits.half_open.leave(places.pop(0))
    assert came == 19
