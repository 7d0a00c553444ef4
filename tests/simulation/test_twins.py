"""Twins: a ninth of all scenarios of two rounds of four seats with one twin; `make nightly` plays all of them."""

from __future__ import annotations

import random

import pytest

from consensus.simulation.twins import count_scenarios, run_twins, scenario_of

PARTS = 8
STRIDE = 9
"""Shares no factor with the 64 choices of a round, so that the sample has each choice in each round."""
FINALISATIONS = 2
"""Enough to see each honest node go on; the nightly runs wait for ten."""


@pytest.mark.parametrize("part", range(PARTS))
def test_a_sample_of_the_scenarios_of_two_rounds(part: int) -> None:
    for index in range(part * STRIDE, count_scenarios(4, 1, 2), PARTS * STRIDE):
        run_twins(scenario_of(index), finalisations=FINALISATIONS)


def test_a_sample_of_seven_seats_with_two_twins() -> None:
    rng = random.Random(7)
    for _ in range(20):
        index = rng.randrange(count_scenarios(7, 2, 4))
        run_twins(scenario_of(index, seats=7, twins=2, rounds=4))


def test_a_sample_of_three_rounds_ends_with_ten_blocks() -> None:
    for index in random.Random(3).sample(range(count_scenarios(4, 1, 3)), 30):
        run_twins(scenario_of(index, rounds=3))


def test_numbers_and_scenarios_are_one_to_one() -> None:
    assert count_scenarios(4, 1, 2) == 4_096
    assert count_scenarios(4, 1, 3) == 262_144
    assert len({scenario_of(index) for index in range(4_096)}) == 4_096
    assert len({scenario_of(index, rounds=1) for index in range(64)}) == 64
    with pytest.raises(ValueError, match="no scenario"):
        scenario_of(4_096)


def test_the_choices_of_a_round_are_every_leader_with_every_split() -> None:
    rounds = {scenario_of(index, rounds=1).rounds[0] for index in range(64)}
    assert {each.leader for each in rounds} == {0, 1, 2, 3}
    splits = {frozenset((frozenset(i for i in range(5) if each.sides[i]),
                         frozenset(i for i in range(5) if not each.sides[i]))) for each in rounds}  # fmt: skip
    assert len(splits) == 16
