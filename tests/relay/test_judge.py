from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from relay.judge import HALF_LIFE_S, LEAVE_POINTS, Fault, RelayJudge

R, S, T = (bytes((n,)) * 20 for n in (1, 2, 3))


def test_a_lie_is_enough_and_is_forgiven_with_time() -> None:
    judge = RelayJudge()
    judge.blame(R, Fault.LIED, 0)
    assert judge.is_left(R, 0) and not judge.is_left(S, 0)
    assert judge.is_left(R, HALF_LIFE_S)
    assert not judge.is_left(R, HALF_LIFE_S + 1)


def test_small_faults_add_up_when_they_come_close_together() -> None:
    judge = RelayJudge()
    for at in range(4):
        assert not judge.is_left(R, at)
        judge.blame(R, Fault.LOST, at)
    assert judge.is_left(R, 3)
    slow = RelayJudge()
    for at in range(50):
        slow.blame(R, Fault.LOST, at * HALF_LIFE_S)
        assert not slow.is_left(R, at * HALF_LIFE_S)


def test_one_stranger_cannot_make_us_leave_a_relay_and_several_can() -> None:
    judge = RelayJudge()
    for at in range(100):
        judge.blame(R, Fault.STALLED, at, about=S)
    assert not judge.is_left(R, 100)
    for n in range(3):
        judge.blame(R, Fault.STALLED, 100, about=bytes((n,)))
    assert judge.is_left(R, 100)


def test_round_trips_that_grow_are_held_against_a_relay_and_a_single_slow_one_is_not() -> None:
    judge = RelayJudge()
    for at in range(20):
        judge.measured(R, 0.02, at)
    judge.measured(R, 1.0, 20)
    judge.measured(R, 0.02, 21)
    assert judge.points(R, 21) == 0
    for at in range(22, 40):
        judge.measured(R, 0.5, at)
    assert judge.is_left(R, 40)


def test_order_is_by_round_trip_among_those_not_to_be_avoided() -> None:
    judge = RelayJudge()
    judge.measured(R, 0.01, 0)
    judge.measured(S, 0.03, 0)
    assert judge.order([T, S, R], 0) == [R, S, T]
    judge.blame(R, Fault.LIED, 0)
    assert judge.order([R, T, S], 0) == [S, T, R]


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=2), st.sampled_from(Fault), st.floats(0, 1e6)), max_size=50)
)
def test_points_are_never_negative_and_memory_is_bounded(
    faults: list[tuple[bytes, Fault, float]],
) -> None:
    judge = RelayJudge()
    for relay, fault, at in sorted(faults, key=lambda item: item[2]):
        judge.blame(relay, fault, at, about=relay)
        assert judge.points(relay, at) >= 0
        assert judge.is_left(relay, at) == (judge.points(relay, at) >= LEAVE_POINTS)
    for n in range(2_000):
        judge.blame(n.to_bytes(4, "big"), Fault.LOST, 1e6)
    assert len(judge._records) <= 1_024


def test_what_the_other_end_can_make_a_relay_claim_does_not_drive_its_clients_away() -> None:
    judge = RelayJudge()
    for second in range(500):
        judge.blame(R, Fault.OVERCHARGED, second)
    assert judge.points(R, 500) > 0 and not judge.is_left(R, 500)
