from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from p2p.session.stall_detection import is_held_up, is_silent
from relay.client.reputation import AVOID_POINTS, HALF_LIFE_S, Fault, RelayReputation, has_stalled

R, S, T = (bytes((n,)) * 20 for n in (1, 2, 3))


def test_a_lie_is_enough_and_is_forgiven_with_time() -> None:
    reputation = RelayReputation()
    reputation.blame(R, Fault.PROTOCOL_VIOLATION, 0)
    assert reputation.is_avoided(R, 0) and not reputation.is_avoided(S, 0)
    assert reputation.is_avoided(R, HALF_LIFE_S)
    assert not reputation.is_avoided(R, HALF_LIFE_S + 1)


class Line:
    """One direction of a circuit over an honest relay: two TCP legs that lose packets and send them again."""

    def __init__(self, random: Random, rtt_s: float, loss: float) -> None:
        self.random, self.loss = random, loss
        self.leg_rtt_s = rtt_s / 2
        self.free_at = [0.0, 0.0]

    def carry(self, now: float) -> float:
        """Return when what is sent now arrives; nothing overtakes what was sent before it."""
        for leg in range(2):
            again_s = 0.2 + self.leg_rtt_s
            while self.random.random() < self.loss:
                now += again_s
                again_s *= 2
            now = self.free_at[leg] = max(now + self.leg_rtt_s / 2, self.free_at[leg])
        return now


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.floats(0.01, 0.5), st.sampled_from([0.0, 0.01, 0.03]), st.integers(1, 8))
def test_an_honest_relay_on_bad_lines_is_not_condemned(seed: int, rtt_s: float, loss: float, peers: int) -> None:
    """Ten minutes of votes with several peers; a peer that is silent for too long is reached by another path."""
    reputation = RelayReputation()
    for peer in range(peers):
        random = Random(seed + peer)
        out, back, links = Line(random, rtt_s, loss), Line(random, rtt_s, loss), Line(random, rtt_s, loss)
        now, heard_at = 0.0, 0.0
        while now < HALF_LIFE_S:
            arrived = back.carry(out.carry(now))
            silent_s = arrived - max(now, heard_at)
            if is_silent(silent_s, rtt_s=rtt_s, limit_s=2.5):
                # It is left at that moment; the relay was pinged every second meanwhile.
                left_at = max(now, heard_at) + max(2.5, 16 * rtt_s)
                pongs = [at for second in range(int(left_at) + 1) if (at := links.carry(now + second)) <= left_at]
                if has_stalled(silent_s=left_at - now, spoke_s=max(pongs, default=0.0) - now):
                    reputation.blame(R, Fault.STALLED, now, about=bytes((peer,)))
                out, back = Line(random, rtt_s, loss), Line(random, rtt_s, loss)
            heard_at = arrived
            now += 0.5
    assert not reputation.is_avoided(R, HALF_LIFE_S)


@given(st.floats(0.001, 2), st.floats(0.001, 2), st.floats(0, 5))
def test_a_line_that_is_full_at_either_end_is_no_fault_of_the_relay(
    least_s: float, elsewhere_s: float, full_s: float
) -> None:
    """What waits in a home's own queue waits on every way."""
    assert not is_held_up(least_s + full_s, least_s=least_s, elsewhere_s=elsewhere_s + full_s)
    assert is_held_up(4 * max(least_s, elsewhere_s) + 0.2, least_s=least_s, elsewhere_s=elsewhere_s)


def test_what_one_of_two_relays_has_done_is_held_against_each_by_half() -> None:
    reputation = RelayReputation()
    for relay in (R, S):
        reputation.blame(relay, Fault.STALLED, 0, about=T, among=2)
    reputation.blame(T, Fault.STALLED, 0, about=T)
    assert reputation.points(R, 0) == reputation.points(S, 0) == reputation.points(T, 0) / 2


@given(st.floats(0, 100), st.floats(0, 100))
def test_silence_counts_only_while_the_relay_speaks(silent_s: float, spoke_s: float) -> None:
    assert has_stalled(silent_s=silent_s, spoke_s=spoke_s) == (silent_s >= 1.5 and spoke_s >= 1.0)


def test_small_faults_add_up_when_they_come_close_together() -> None:
    reputation = RelayReputation()
    for at in range(4):
        assert not reputation.is_avoided(R, at)
        reputation.blame(R, Fault.LOST, at)
    assert reputation.is_avoided(R, 3)
    slow = RelayReputation()
    for at in range(50):
        slow.blame(R, Fault.LOST, at * HALF_LIFE_S)
        assert not slow.is_avoided(R, at * HALF_LIFE_S)


def test_one_stranger_cannot_make_us_leave_a_relay_and_several_can() -> None:
    reputation = RelayReputation()
    for at in range(100):
        reputation.blame(R, Fault.STALLED, at, about=S)
    assert not reputation.is_avoided(R, 100)
    for n in range(3):
        reputation.blame(R, Fault.STALLED, 100, about=bytes((n,)))
    assert reputation.is_avoided(R, 100)


def test_round_trips_that_grow_are_held_against_a_relay_and_a_single_slow_one_is_not() -> None:
    reputation = RelayReputation()
    for at in range(20):
        reputation.measured(R, 0.02, at)
    reputation.measured(R, 1.0, 20)
    reputation.measured(R, 0.02, 21)
    assert reputation.points(R, 21) == 0
    for at in range(22, 40):
        reputation.measured(R, 0.5, at)
    assert reputation.is_avoided(R, 40)


def test_order_is_by_round_trip_among_those_not_to_be_avoided() -> None:
    reputation = RelayReputation()
    reputation.measured(R, 0.01, 0)
    reputation.measured(S, 0.03, 0)
    assert reputation.order([T, S, R], 0) == [R, S, T]
    reputation.blame(R, Fault.PROTOCOL_VIOLATION, 0)
    assert reputation.order([R, T, S], 0) == [S, T, R]


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=2), st.sampled_from(Fault), st.floats(0, 1e6)), max_size=50)
)
def test_points_are_never_negative_and_memory_is_bounded(
    faults: list[tuple[bytes, Fault, float]],
) -> None:
    reputation = RelayReputation()
    for relay, fault, at in sorted(faults, key=lambda item: item[2]):
        reputation.blame(relay, fault, at, about=relay)
        assert reputation.points(relay, at) >= 0
        assert reputation.is_avoided(relay, at) == (reputation.points(relay, at) >= AVOID_POINTS)
    for n in range(2_000):
        reputation.blame(n.to_bytes(4, "big"), Fault.LOST, 1e6)
    assert len(reputation._records) <= 1_024


def test_what_the_other_end_can_make_a_relay_claim_does_not_drive_its_clients_away() -> None:
    reputation = RelayReputation()
    for second in range(500):
        reputation.blame(R, Fault.OVERCHARGED, second)
    assert reputation.points(R, 500) > 0 and not reputation.is_avoided(R, 500)
