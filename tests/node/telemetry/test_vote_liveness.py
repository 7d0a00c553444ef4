"""Whose votes come while no block does."""

from __future__ import annotations

from typing import Any

import pytest

from node.cli.status import _health, _silent
from node.telemetry.metrics import NodeMetrics
from node.telemetry.vote_liveness import HEARD_S_MAX, HEARD_S_MIN, STILL_S, VoteLiveness
from state.primitives.address import format_address
from state.primitives.committee import Committee, Seat

WEIGHTS = (40, 20, 20, 20)
COMMITTEE = Committee(
    Seat(bytes([n]) * 20, bytes([n]) * 32, bytes([n]) * 32, weight) for n, weight in enumerate(WEIGHTS, 1)
)
NAMES = [format_address(seat.address) for seat in COMMITTEE.seats]


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def tell(vote_liveness: VoteLiveness, still_s: float, own: int | None = 0, view: int = 9) -> Any:
    return vote_liveness.tell(COMMITTEE, own=own, view=view, still_s=still_s)


def test_while_blocks_come_nothing_is_said(clock: Clock) -> None:
    vote_liveness = VoteLiveness(clock)
    clock.now_s += 1_000
    assert tell(vote_liveness, STILL_S - 1) is None
    assert tell(vote_liveness, STILL_S) is not None


def test_a_node_that_was_just_started_says_nothing_of_others(clock: Clock) -> None:
    vote_liveness = VoteLiveness(clock)
    clock.now_s += HEARD_S_MIN - 1
    assert tell(vote_liveness, 3_600.0) is None
    clock.now_s += 1
    assert tell(vote_liveness, 3_600.0)["heard_percent"] == 40.0


def test_votes_of_the_last_block_do_not_count_and_those_that_came_since_do(clock: Clock) -> None:
    vote_liveness = VoteLiveness(clock)
    clock.now_s += 1_000
    for name in NAMES[1:]:  # of the last block
        vote_liveness.note(name, 8)
    clock.now_s += 70
    vote_liveness.note(NAMES[1], 8)
    found = tell(vote_liveness, 71.0)
    assert found == {"view": 9, "heard_percent": 60.0, "enough": False, "silent": NAMES[2:]}
    vote_liveness.note(NAMES[2], 8)
    assert tell(vote_liveness, 71.0)["enough"], "80 of 100"
    assert tell(vote_liveness, 71.0, own=None) == {
        "view": 9, "heard_percent": 40.0, "enough": False, "silent": [NAMES[0], NAMES[3]],
    }  # fmt: skip
    clock.now_s += HEARD_S_MAX + 1
    assert tell(vote_liveness, 400.0)["silent"] == NAMES[1:], "long ago is not now"


def test_a_seat_that_has_voted_in_the_view_that_does_not_end_is_there(clock: Clock) -> None:
    """It repeats that vote, and nothing new comes of it."""
    vote_liveness = VoteLiveness(clock)
    clock.now_s += 1_000
    for name, view in zip(NAMES[1:], (9, 8, 10), strict=True):
        vote_liveness.note(name, view)
    clock.now_s += 3_600
    assert tell(vote_liveness, 3_600.0) == {"view": 9, "heard_percent": 80.0, "enough": True, "silent": NAMES[2:3]}


def test_exactly_two_thirds_are_not_enough(clock: Clock) -> None:
    committee = Committee(seat._replace(weight=10**24) for seat in COMMITTEE.seats[:3])
    vote_liveness = VoteLiveness(clock)
    clock.now_s += 1_000
    vote_liveness.note(NAMES[1], 8)
    found = vote_liveness.tell(committee, own=0, view=9, still_s=100.0)
    assert found is not None
    assert (found["heard_percent"], found["enough"]) == (66.6, False)


def test_votes_are_noted_where_the_consensus_counts_them_and_forgotten_with_their_epoch(clock: Clock) -> None:
    metrics = NodeMetrics()
    metrics.vote_liveness = VoteLiveness(clock)
    clock.now_s += 1_000
    metrics.set("seat_last_vote_view", 7.0, seat=NAMES[3])
    metrics.set("view", 7.0)
    assert tell(metrics.vote_liveness, 100.0)["silent"] == NAMES[1:3]
    metrics.clear("seat_last_vote_view")
    assert tell(metrics.vote_liveness, 100.0)["silent"] == NAMES[1:]


def test_the_status_says_that_too_little_weight_votes_and_who_is_silent() -> None:
    state = {"syncing": False, "peers": 3, "behind_ms": 75_400}
    assert _health(state) == _health(state | {"votes": None}) == "no new block for 75 s"
    votes = {"view": 1_043, "heard_percent": 60.0, "enough": False, "silent": NAMES[2:]}
    assert _health(state | {"votes": votes}) == (
        "no new block for 75 s: 60.0 % of the weight votes in view 1,043, and a block needs more than two thirds "
        "of it"
    )
    assert _health(state | {"votes": votes, "peers": 0}).endswith("a block needs more than two thirds of it")
    assert _silent(votes) == {"silent": NAMES[2:]}
    many = votes | {"silent": [str(number) for number in range(11)]}
    assert _silent(many)["silent"][-2:] == ["7", "and 3 more"]
    enough = votes | {"heard_percent": 80.0, "enough": True, "silent": NAMES[3:]}
    assert "although 80.0 % of the weight votes in view 1,043" in _health(state | {"votes": enough})
    assert _silent(enough) == _silent(None) == {}
