"""The abstract rules hold in every run within the bounds, for every way in which weights can make quorums."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.primitives.committee import quorum
from tests.model.chain_check import explore
from tests.model.interleaving_check import Interleavings
from tests.model.liveness_check import check_no_dead_end
from tests.model.rules import Chain, Rules, committees
from tests.model.view_check import reachable

VIEWS = int(os.environ.get("MODEL_VIEWS", "5"))
LIVE_VIEWS = max(4, VIEWS - 2)
COMMITTEES = committees(30)


def test_ten_committees_of_four_stand_for_all_weights() -> None:
    assert len(COMMITTEES) == 10
    assert len(committees(45)) == 10, "greater weights make no quorums that smaller ones do not"
    assert {rules.honest for rules in COMMITTEES} >= {(1, 1, 1), (1, 1, 4)}


@given(st.integers(1, 10**30), st.integers(0, 10**30))
def test_the_quorum_of_the_chain_is_that_of_the_model(honest: int, faulty: int) -> None:
    faulty %= (honest + 1) // 2  # below a third
    weight = honest + faulty
    assert 3 * quorum(weight) > 2 * weight >= 3 * (quorum(weight) - 1)
    assert 2 * quorum(weight) - weight > faulty, "two quorums share an honest seat"
    assert honest >= quorum(weight), "the honest seats are a quorum"


@pytest.mark.slow
@pytest.mark.parametrize("committee", COMMITTEES, ids=str)
@pytest.mark.parametrize("last_height", [1, 2, 3])
@pytest.mark.parametrize("views", [VIEWS, pytest.param(VIEWS + 1, marks=pytest.mark.nightly)])
def test_every_chain_of_views_keeps_the_promises(committee: Rules, last_height: int, views: int) -> None:
    explored = explore(replace(committee, last_height=last_height), views)
    print(f"{explored.states} states, {explored.chains_seen} chains of up to {views} views")
    assert explored.final_heights == last_height, "the check reaches the end of the epoch"
    assert any(all(record.is_null for record in chain) for chain in explored.chains)


@pytest.mark.slow
@pytest.mark.parametrize("committee", COMMITTEES, ids=str)
@pytest.mark.parametrize("last_height", [1, 2])
def test_no_dead_end(committee: Rules, last_height: int) -> None:
    live = check_no_dead_end(replace(committee, last_height=last_height), LIVE_VIEWS)
    assert live.known_chains > 500


@pytest.mark.parametrize("committee", COMMITTEES, ids=str)
def test_the_idle_wait_adds_no_votes_and_takes_none_away(committee: Rules) -> None:
    for candidates in range(4):
        hasty = reachable(committee, candidates)
        waiting = reachable(committee, candidates, waiting=True)
        assert {state.seats for state in waiting} == {state.seats for state in hasty}
    for leader in range(3):
        hasty = reachable(committee, 1, leader=leader)
        waiting = reachable(committee, 1, leader=leader, waiting=True)
        assert {state.seats for state in waiting} == {state.seats for state in hasty}
        # A faulty leader can do what an honest one does, so checks with the former leave nothing out.
        assert {state.seats for state in hasty} <= {state.seats for state in reachable(committee, 1)}


def _chains_in_turn(rules: Rules, views: int) -> set[Chain]:
    return {
        chain if chain[-1].is_over else chain[:-1]
        for length in range(1, views + 1)
        for chain in explore(rules, length).chains
    }


@pytest.mark.slow
@pytest.mark.parametrize("committee", COMMITTEES, ids=str)
@pytest.mark.parametrize("last_height", [1, 2])
def test_two_views_vote_by_vote_make_the_same_chains(committee: Rules, last_height: int) -> None:
    rules = replace(committee, last_height=last_height)
    assert Interleavings(rules, 2).run().chains == _chains_in_turn(rules, 2)


@pytest.mark.slow
@pytest.mark.nightly
def test_three_views_vote_by_vote() -> None:
    rules = Rules(last_height=1)
    free = Interleavings(rules, 3).run()
    print(f"{free.states} states, {free.steps} steps, {len(free.chains)} chains of certificates")
    assert free.chains == _chains_in_turn(rules, 3)
    assert free.states == 2_895_156
