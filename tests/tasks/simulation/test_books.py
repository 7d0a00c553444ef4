"""What dishonest orders gain in one call, on few books: the figures of market-testing.md are of many."""

from __future__ import annotations

import pytest

from tasks.simulation.books import LOADS, WAYS, draw_book, search
from tasks.simulation.dice import Dice

BOOKS = 60


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("way", ["shaded ask", "shaded bid"])
def test_an_honest_order_gains_nothing_against_itself(way: str, load: str) -> None:
    dice = Dice(b"honest")
    for _ in range(BOOKS):
        assert WAYS[way](draw_book(dice, *LOADS[load]), 100, dice) == 0


def test_where_machines_are_scarce_no_other_limit_than_the_worth_gains() -> None:
    assert search("shaded bid", "9 bids", BOOKS).mean <= 0.01


def test_leaving_a_match_to_bid_again_gains_nothing() -> None:
    for load in LOADS:
        assert search("cancel and repost", load, BOOKS).mean <= 0.01


@pytest.mark.slow
def test_a_higher_ask_gains_less_than_a_tenth_of_the_cost_in_the_mean() -> None:
    for load in LOADS:
        assert search("shaded ask", load, BOOKS).mean <= 0.1


def test_the_same_search_has_the_same_result() -> None:
    assert search("decoy bid", "5 bids", 20) == search("decoy bid", "5 bids", 20)
