"""Selection: caps, anchors, the lottery's exact chances, and what a faulty part of the stake can reach with it."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import combinations
from math import comb, isqrt

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from state.primitives.committee import SEATS_MAX, Committee, Seat
from state.primitives.hashing import digest
from state.transition.selection import (
    CANDIDATES_MAX,
    Candidate,
    Draw,
    Selection,
    anchors_of,
    cap_weights,
    draw_seats,
    draw_tickets,
    limit_growth,
    permutation,
    seated,
    select,
)

COIN = 10**18
STAKES = st.integers(1, 10**9 * COIN)


def candidates_of(stakes: list[int]) -> list[Candidate]:
    return [
        Candidate(digest(b"a", b"%d" % n)[:20], digest(b"v", b"%d" % n), digest(b"f", b"%d" % n), stake)
        for n, stake in enumerate(stakes)
    ]


# Everybody sits


def cap_share(count: int) -> Fraction:
    return max(Fraction(1, 10), Fraction(12, 10) / count)


@given(st.lists(STAKES, min_size=1, max_size=SEATS_MAX))
@example([10**27])
@example([1, 10**27])
@example([10**27, 1, 1])
@example([10**27] * 5 + [1] * 95)
@example([1] * 100)
def test_no_weight_is_above_its_cap_of_the_final_sum(stakes: list[int]) -> None:
    weights = cap_weights(stakes)
    cap, share, total = max(weights), cap_share(len(stakes)), sum(weights)
    assert weights == [min(stake, cap) for stake in stakes]
    assert cap <= share * total
    if cap < max(stakes):  # the cap is the largest that is allowed
        higher = [min(stake, cap + 1) for stake in stakes]
        assert cap + 1 > share * sum(higher)


@pytest.mark.parametrize(("count", "percent"), [(4, 30), (5, 24), (10, 12), (12, 10), (13, 10), (100, 10)])
def test_a_giant_holds_the_cap_and_no_more(count: int, percent: int) -> None:
    weights = cap_weights([10**30] + [10**20] * (count - 1))
    share = Fraction(weights[0], sum(weights))
    assert Fraction(percent, 100) - Fraction(1, 10**12) < share <= Fraction(percent, 100)


@given(st.lists(STAKES, min_size=1, max_size=SEATS_MAX), st.randoms(use_true_random=False))
def test_a_small_network_seats_everybody(stakes: list[int], chance: object) -> None:
    candidates = candidates_of(stakes)
    selection = select(candidates, epoch=3, randomness=b"r" * 32, seats_max=SEATS_MAX)
    assert {seat.address for seat in selection.committee.seats} == {c.address for c in candidates}
    assert (selection.anchors, selection.lottery_weight, selection.is_tail_large) == (len(stakes), 0, False)
    chance.shuffle(candidates)  # type: ignore[attr-defined]
    assert select(candidates, epoch=3, randomness=b"r" * 32, seats_max=SEATS_MAX).committee.hash == (
        selection.committee.hash
    )


# Anchors and the lottery


@settings(max_examples=40, deadline=None)
@given(st.lists(STAKES, min_size=101, max_size=400), st.binary(min_size=32, max_size=32))
@example([10**27] + [1] * 150, b"r" * 32)
@example([1] * 101, b"r" * 32)
def test_anchors_are_exact_and_the_tail_is_represented_exactly(stakes: list[int], randomness: bytes) -> None:
    candidates = candidates_of(stakes)
    selection = select(reversed(candidates), epoch=9, randomness=randomness, seats_max=SEATS_MAX)
    assert select(candidates, epoch=9, randomness=randomness, seats_max=SEATS_MAX).committee.hash == (
        selection.committee.hash
    )
    seats, anchors = selection.committee.seats, selection.anchors
    ranked = sorted(candidates, key=lambda c: (-c.stake, c.address))
    assert 50 <= anchors <= 67
    assert len(seats) <= SEATS_MAX
    assert [(s.address, s.vote_key, s.vrf_key, s.weight) for s in seats[:anchors]] == ranked[:anchors]
    total, tail = sum(stakes), sum(c.stake for c in ranked[anchors:])
    assert selection.lottery_weight == tail
    assert selection.committee.weight == total
    assert selection.is_tail_large == (5 * tail > total)
    if anchors > 50:  # one anchor less would have left too much
        assert 5 * (tail + ranked[anchors - 1].stake) > total
    tickets = SEATS_MAX - anchors
    stake_of = {c.address: c.stake for c in ranked[anchors:]}
    for seat in seats[anchors:]:
        share = Fraction(stake_of[seat.address] * tickets, tail)
        held = Fraction(seat.weight * tickets, tail)
        assert -(-share // 1) * (1 + Fraction(tickets, tail)) >= held - Fraction(tickets, tail)


def test_the_candidates_are_bounded() -> None:
    stakes = [COIN * (1 + n) for n in range(CANDIDATES_MAX + 50)]
    committee = select(candidates_of(stakes), epoch=0, randomness=b"r" * 32, seats_max=SEATS_MAX).committee
    assert committee.weight == sum(stakes[50:])


@pytest.mark.parametrize(
    ("stakes", "expected"),
    [
        ([100] * 50 + [1] * 100, (50, False)),  # a tail of 2 %
        ([100] * 50 + [30] * 60, (65, False)),  # 1,350 of 6,800
        ([100] * 200, (67, True)),
        ([100] * 60 + [25] * 60, (60, False)),  # 20 % exactly
        ([100] * 60 + [25] * 61, (61, False)),
    ],
)
def test_the_fewest_anchors_that_leave_a_fifth(stakes: list[int], expected: tuple[int, bool]) -> None:
    assert anchors_of(stakes, SEATS_MAX) == expected


@pytest.mark.parametrize("seats_max", [1, 2, 3, 4, 7, 10, 99])
def test_fewer_seats_have_their_anchors_too(seats_max: int) -> None:
    selection = select(candidates_of([5] * 150), epoch=0, randomness=b"r" * 32, seats_max=seats_max)
    assert 0 < selection.committee.size <= seats_max
    assert seats_max / 2 <= selection.anchors <= (2 * seats_max + 2) // 3


# The lottery's chances, exactly: every path of the draw with its probability


class _Path(Draw):
    """Follows a prefix of answers, then answers 0; ``bounds`` are those it was asked."""

    def __init__(self, answers: list[int]) -> None:
        super().__init__(b"")
        self.answers = answers
        self.bounds: list[int] = []

    def below(self, bound: int) -> int:
        at = len(self.bounds)
        self.bounds.append(bound)
        return self.answers[at] if at < len(self.answers) else 0


def distribution(stakes: list[int], tickets: int) -> dict[tuple[int, ...], Fraction]:
    found: Counter[tuple[int, ...]] = Counter()
    chances: dict[tuple[int, ...], Fraction] = {}
    waiting: list[list[int]] = [[]]
    while waiting:
        answers = waiting.pop()
        path = _Path(answers)
        won = tuple(draw_tickets(stakes, tickets, path))
        if len(path.bounds) > len(answers):
            waiting += [[*answers, value] for value in range(path.bounds[len(answers)])]
            continue
        chance = Fraction(1)
        for bound in path.bounds:
            chance /= bound
        found[won] += 1
        chances[won] = chances.get(won, Fraction(0)) + chance
    return chances


@pytest.mark.parametrize(
    ("stakes", "tickets"),
    [
        ([3, 2, 2, 1], 2),
        ([1, 1, 1, 1], 3),
        ([5, 1, 1], 2),
        ([4, 3, 2], 1),
        ([7, 1], 3),
        ([2, 2, 1, 1], 4),
        ([6], 5),
    ],
)
def test_every_stake_gets_its_share_of_the_lottery_exactly(stakes: list[int], tickets: int) -> None:
    chances = distribution(stakes, tickets)
    assert sum(chances.values()) == 1
    shares = [Fraction(stake * tickets, sum(stakes)) for stake in stakes]
    for number, share in enumerate(shares):
        assert sum(chance * won[number] for won, chance in chances.items()) == share
        assert {won[number] for won in chances} <= {share // 1, -(-share // 1)}
    for won in chances:
        assert sum(won) == tickets
    for one, other in combinations(range(len(stakes)), 2):  # who gets more takes it from the others
        together = sum(chance * won[one] * won[other] for won, chance in chances.items())
        assert together <= shares[one] * shares[other]


@pytest.mark.parametrize("pieces", [1, 3, 40])
def test_splitting_a_stake_gains_nothing(pieces: int) -> None:
    """A faulty 30 % of a tail of 200 honest stakes, in one to many pieces: mean and spread of its tickets."""
    honest = [100 + n % 7 for n in range(200)]
    faulty = [sum(honest) * 3 // 7 // pieces] * pieces
    stakes, tickets, draws = honest + faulty, 33, 1_000
    share = Fraction(sum(faulty), sum(stakes))
    seen = [sum(draw_tickets(stakes, tickets, Draw(b"%d/%d" % (pieces, n)))[len(honest) :]) for n in range(draws)]
    variance = tickets * share * (1 - share)  # of as many independent draws
    assert abs(Fraction(sum(seen), draws) - tickets * share) < 5 * Fraction(isqrt(int(variance * 10**6)), 31_600)
    mean = tickets * share
    assert sum((found - mean) ** 2 for found in seen) / draws < variance * Fraction(5, 4)


def test_draws_are_even() -> None:
    draw, rounds = Draw(b"seed"), 7_000
    counts = Counter(draw.below(7) for _ in range(rounds))
    assert set(counts) == set(range(7))
    assert all(abs(count - rounds / 7) < 5 * (rounds / 7) ** 0.5 for count in counts.values())
    orders = Counter(tuple(permutation(4, draw)) for _ in range(12_000))
    assert len(orders) == 24
    assert all(abs(count - 500) < 5 * 500**0.5 for count in orders.values())
    assert [Draw(b"x").below(1), permutation(1, draw), permutation(0, draw)] == [0, [0], []]


def test_each_epoch_has_its_own_draw_and_order() -> None:
    candidates = candidates_of([100 - n // 4 for n in range(300)])
    chosen = {
        select(candidates, epoch=epoch, randomness=randomness, seats_max=SEATS_MAX).committee.hash
        for epoch in range(3)
        for randomness in (b"a" * 32, b"b" * 32)
    }
    assert len(chosen) == 6


# What a faulty part of the stake reaches: consensus.md 10.3


def at_least(faulty: int, draws: int, share: Fraction) -> Fraction:
    """The chance of ``faulty`` or more in ``draws`` independent ones."""
    if faulty <= 0:
        return Fraction(1)
    return sum(
        (comb(draws, k) * share**k * (1 - share) ** (draws - k) for k in range(faulty, draws + 1)), Fraction(0)
    )


def lottery_only(seats: int, share: Fraction) -> Fraction:
    return at_least(-(-seats // 3), seats, share)


def with_anchors(tickets: int, tail: Fraction, share: Fraction) -> Fraction:
    """The chance of a third of the weight or more, for the worst split of the faulty over anchors and tail."""
    worst = Fraction(0)
    for drawn in range(1, tickets + 1):  # the most that may hide in the tail for so many tickets to be enough
        inside = min(share, tail, tail * drawn / tickets - Fraction(1, 3) + share)
        if inside > 0:
            worst = max(worst, at_least(drawn, tickets, inside / tail))
    return worst


PERCENT = [10, 15, 20, 25]


@pytest.mark.parametrize(
    ("seats", "expected"),
    [(21, [3e-3, 3e-2, 0.11, 0.26]), (50, [4e-6, 7e-4, 1.4e-2, 0.10]), (100, [7e-11, 1.8e-6, 7e-4, 2.8e-2])],
)
def test_independent_seats_fail_as_often_as_the_table_says(seats: int, expected: list[float]) -> None:
    for percent, chance in zip(PERCENT, expected, strict=True):
        assert 0.5 < float(lottery_only(seats, Fraction(percent, 100))) / chance < 1.5


@pytest.mark.parametrize(
    ("anchors", "tail", "expected"),
    [(67, Fraction(1, 5), [0, 2e-36, 9e-16, 1e-6]), (50, Fraction(3, 10), [3e-33, 2e-19, 1.5e-10, 7e-5])],
)
def test_anchors_make_a_captured_committee_rare(anchors: int, tail: Fraction, expected: list[float]) -> None:
    for percent, chance in zip(PERCENT, expected, strict=True):
        found = float(with_anchors(SEATS_MAX - anchors, tail, Fraction(percent, 100)))
        assert found <= chance * 2
        assert found >= chance / 2


# Empty seats


@settings(max_examples=80, deadline=None)
@given(
    st.lists(STAKES, min_size=2, max_size=40), st.integers(2, 12), st.binary(min_size=32, max_size=32), st.data()
)
def test_who_is_absent_moves_nobody_else(
    stakes: list[int], seats_max: int, seed: bytes, data: st.DataObject
) -> None:
    """The seats, tickets and order of the others are those of the whole draw, whichever operators are excluded."""
    candidates = candidates_of(stakes)
    absent = data.draw(st.sets(st.sampled_from([candidate.address for candidate in candidates])))
    drawn = draw_seats(candidates, epoch=5, randomness=seed, seats_max=seats_max)
    whole, rest = seated(drawn), seated(drawn, absent)
    assert whole is not None
    assert whole == select(candidates, epoch=5, randomness=seed, seats_max=seats_max)._replace(
        committee=whole.committee
    )
    kept = [seat for seat in whole.committee.seats if seat.address not in absent]
    if rest is None:
        assert not kept
        return
    committee = rest.committee
    assert [seat[:3] for seat in committee.seats] == [seat[:3] for seat in kept]
    in_order = [whole.committee.seats[place].address for place in whole.committee.order]
    assert [committee.seats[place].address for place in committee.order] == [
        address for address in in_order if address not in absent
    ]
    if len(stakes) > seats_max:
        assert committee.seats == tuple(kept)
        assert rest.lottery_weight == sum(committee.weights[rest.anchors :])
    else:
        assert list(committee.weights) == cap_weights([c.stake for c in drawn.ranked if c.address not in absent])


def seat_of(number: int, weight: int) -> Seat:
    return Seat(
        number.to_bytes(20, "big"), digest(b"vote", b"%d" % number), digest(b"vrf", b"%d" % number), weight
    )


def grown(
    weights: dict[int, int], before: dict[int, int], *, out: frozenset[int] = frozenset(), **more: int
) -> Selection:
    """Return what becomes of a selection of seats, all of them anchors unless told."""
    selection = Selection(
        Committee(seat_of(number, weight) for number, weight in weights.items()),
        more.get("anchors", len(weights)), more.get("lottery_weight", 0), False,
    )  # fmt: skip
    return limit_growth(
        selection, Committee(seat_of(number, weight) for number, weight in before.items()),
        seats_max=more.get("seats_max", 100), out=lambda who: int.from_bytes(who, "big") in out,
    )  # fmt: skip


def weights_of(selection: Selection) -> dict[int, int]:
    return {int.from_bytes(seat.address, "big"): seat.weight for seat in selection.committee.seats}


def test_growth_is_cut_to_a_third_and_what_was_there_is_left_as_it_is() -> None:
    four = dict.fromkeys(range(4), 300)
    assert weights_of(grown(four | {4: 500}, four)) == four | {4: 500}, "less than a third"
    assert weights_of(grown(four | {4: 5_000, 5: 5_000}, four)) == four | {4: 300, 5: 300}
    assert weights_of(grown(four | {0: 9_300}, four)) == four | {0: 900}, "a stake that grows is no better"
    assert weights_of(grown({0: 300, 4: 10**6}, four)) == {0: 300, 4: 150}
    assert weights_of(grown({0: 1, 4: 10**6}, {0: 1})) == {0: 1, 4: 1}, "nobody has less than one"


def test_where_nobody_stays_those_who_sat_go_on_beside_the_new_ones() -> None:
    four = dict.fromkeys(range(4), 300)
    assert weights_of(grown({9: 10**6}, four)) == four | {9: 600}
    assert weights_of(grown({9: 10**6}, four, out=frozenset({0, 1}))) == {2: 300, 3: 300, 9: 300}
    assert weights_of(grown({9: 10**6}, four, out=frozenset(range(4)))) == {9: 10**6}, "proven faulty, all of them"
    for seats_max in range(1, 6):
        found = grown({8: 500, 9: 10**6}, four, seats_max=seats_max)
        assert found.committee.size <= seats_max or seats_max == 1
        assert {8, 9} & set(weights_of(found)), "no chain keeps all newcomers out"


def test_the_lottery_draws_others_each_time_and_is_left_alone() -> None:
    before = {0: 400, 1: 400, 2: 100, 3: 100}
    found = grown({0: 400, 1: 400, 7: 100, 8: 100}, before, anchors=2, lottery_weight=200)
    assert weights_of(found) == {0: 400, 1: 400, 7: 100, 8: 100} and found.lottery_weight == 200
    found = grown({0: 400, 9: 10**6, 7: 100, 8: 100}, before, anchors=2, lottery_weight=200)
    assert weights_of(found) == {0: 400, 9: 300, 7: 100, 8: 100}
