from __future__ import annotations

import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.primitives.committee import Committee, Seat, quorum
from state.primitives.errors import ConfigError


def committee_of(*weights: int) -> Committee:
    return Committee(
        Seat(bytes([n + 1]) * 20, bytes([n + 1]) * 32, bytes([n + 1]) * 32, weight)
        for n, weight in enumerate(weights)
    )


@given(st.integers(1, 10**30))
def test_two_quorums_share_more_than_a_third(weight: int) -> None:
    q = quorum(weight)
    assert q <= weight
    assert 3 * (2 * q - weight) > weight
    faulty = (weight - 1) // 3
    assert weight - faulty >= q, "the honest alone are a quorum"


@given(st.integers(1, 12), st.integers(0, 50))
def test_equal_seats_lead_once_in_each_round(size: int, rounds: int) -> None:
    committee = committee_of(*[7] * size)
    views = range(1 + rounds * size, 1 + (rounds + 1) * size)
    assert sorted(committee.leader(view) for view in views) == list(range(size))


@given(st.lists(st.integers(1, 20), min_size=1, max_size=8))
def test_seats_lead_by_their_weight(weights: list[int]) -> None:
    committee = committee_of(*weights)
    total = sum(weights)
    if total > 64 * len(weights):
        return
    count = Counter(committee.leader(view) for view in range(1, total + 1))
    assert [count[seat] for seat in range(len(weights))] == weights


def test_any_view_has_the_same_leader_however_it_is_asked_for() -> None:
    forward, direct = committee_of(3, 1, 5, 2), committee_of(3, 1, 5, 2)
    leaders = [forward.leader(view) for view in range(1, 600)]
    assert [direct.leader(view) for view in (599, 17, 2**40)] == [leaders[598], leaders[16], forward.leader(2**40)]


def test_the_order_breaks_ties() -> None:
    seats = committee_of(1, 1, 1).seats
    assert [Committee(seats, order=(2, 0, 1)).leader(view) for view in (1, 2, 3)] == [2, 0, 1]


def test_the_hash_covers_seats_weights_and_order() -> None:
    seats = committee_of(1, 1, 1).seats
    hashes = {Committee(seats).hash, Committee(seats, order=(2, 0, 1)).hash, committee_of(1, 1, 2).hash}
    assert len(hashes) == 3


@pytest.mark.parametrize(
    "seats",
    [
        [],
        [Seat(b"a" * 20, b"k" * 32, b"v" * 32, 0)],
        [Seat(b"a" * 20, b"k" * 31, b"v" * 32, 1)],
        [Seat(b"a" * 20, b"k" * 32, b"v" * 32, 1), Seat(b"b" * 20, b"k" * 32, b"v" * 32, 1)],
        [Seat(b"a" * 20, b"k" * 32, b"v" * 32, 1), Seat(b"a" * 20, b"l" * 32, b"v" * 32, 1)],
        [Seat(bytes([n]) * 20, bytes([n]) * 32, b"v" * 32, 1) for n in range(101)],
    ],
)
def test_a_committee_that_cannot_be_is_refused(seats: list[Seat]) -> None:
    with pytest.raises(ConfigError):
        Committee(seats)


@given(st.lists(st.integers(1, 10**27), min_size=1, max_size=100), st.randoms(use_true_random=False))
def test_a_committee_is_what_its_bytes_say(weights: list[int], rng: Random) -> None:
    seats = committee_of(*weights).seats
    order = list(range(len(seats)))
    rng.shuffle(order)
    committee = Committee(seats, order)
    again = Committee.decode(committee.encode())
    assert (again.seats, again.hash, again.encode()) == (seats, committee.hash, committee.encode())
    assert [again.leader(view) for view in range(1, 50)] == [committee.leader(view) for view in range(1, 50)]


def test_threads_that_share_a_committee_agree_on_its_leaders() -> None:
    seats = [Seat(bytes([n]) * 20, bytes([n]) * 32, bytes(32), 10 + n % 5) for n in range(1, 8)]
    expected = [Committee(seats).leader(view) for view in range(1, 400)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            for _ in range(20):
                shared = Committee(seats)

                def draw(step: int, committee: Committee = shared) -> list[tuple[int, int]]:
                    return [(view, committee.leader(view)) for view in range(step, 400, step)]

                for found in threads.map(draw, (1, 2, 3, 7)):
                    assert all(expected[view - 1] == leader for view, leader in found)
    finally:
        sys.setswitchinterval(interval)
