"""Containers in the simulator: honest ones cost what they should, and what false ones take is bounded by rule."""

from __future__ import annotations

from typing import Final

import pytest

from tasks.simulation.boxes import Terms
from tasks.simulation.dice import Dice
from tasks.simulation.market import DKB
from tasks.simulation.rules import WITHOUT
from tasks.simulation.stage import Conditions, Outcome, Setting, draw_conditions, honest_cast, play
from tasks.simulation.strategies import STRATEGIES
from tasks.simulation.strategies_boxes import boxed

BY_NAME: Final = {strategy.name: strategy for strategy in STRATEGIES}
SMALL: Final[Conditions] = draw_conditions(Dice(b"strategies"))._replace(
    windows=1, segments=16, cost_per_tera=DKB // 3, is_seasoned=True
)
IDLE: Final[Setting] = {
    "share": 20, "works": 0.0, "fakes": True, "stored": "stale", "exits": True, "every": 4,
}  # fmt: skip
LEAVES: Final[Setting] = {
    "share": 20, "after": 1, "offset": 0.5, "way": "gives up", "stored": "real", "every": 2, "stays": False,
}  # fmt: skip


def pair(name: str, setting: Setting, number: int = 0) -> tuple[Outcome, Outcome]:
    """Return what a strategy comes to, and honest ones in its place."""
    strategy = BY_NAME[name]
    assert strategy.cast is not None
    found, honest = (
        play(cast, setting, number, own_tasks=strategy.own_tasks, conditions=SMALL)
        for cast in (strategy.cast, strategy.baseline)
    )
    return found, honest


@pytest.mark.parametrize("terms", [Terms(), Terms(every=4), Terms(every=2, stays=True), Terms(level=1)])
@pytest.mark.parametrize("number", range(2))
def test_honest_containers_end_with_the_right_output_and_pay_for_their_seconds(terms: Terms, number: int) -> None:
    found = play(boxed(honest_cast, terms), {"share": 33}, number)
    assert (found.refused, found.tasks, found.tasks_failed, found.is_over) == ({}, 2, 0, True)
    assert (found.honest_loss, found.forged_windows_paid) == (0, 0)
    assert found.unworked_ticks < 1 and found.reasons["container_exited"] == 4


@pytest.mark.slow
@pytest.mark.parametrize("stored", ["stale", "garbage", "nothing", "real"])
@pytest.mark.parametrize("works", [0.0, 0.5])
@pytest.mark.parametrize("every", [2, 4])
def test_who_opens_its_checkpoints_pays_for_an_interval_and_a_tick_of_idling_at_most(
    stored: str, works: float, every: int
) -> None:
    found, _ = pair("idle host", {**IDLE, "stored": stored, "works": works, "every": every})
    assert found.refused == {}
    assert found.unworked_ticks < every + 2, "what is due is named too late by a tick, and a stop takes a block"


def test_who_looks_at_a_true_log_pays_for_its_interval_and_a_tick() -> None:
    setting: Setting = {**IDLE, "every": 0, "looks": 2, "fakes": False, "exits": False}
    found, _ = pair("idle host", setting)
    assert 0 < found.unworked_ticks <= 2 + 2


def test_a_false_log_takes_the_whole_pay_where_nothing_is_stored() -> None:
    """Assurance V0 proves nothing: without checkpoints a requester sees what its machine shows."""
    found, honest = pair("idle host", {**IDLE, "every": 0})
    assert found.forged_windows_paid == 1, "the other job is another machine's"
    assert found.profit > honest.profit + SMALL.window_price // 2
    assert found.unworked_ticks >= 9


def test_what_a_machine_loses_by_leaving_is_done_again_and_paid_once() -> None:
    for way in ("gives up", "silent", "reports"):
        found, honest = pair("leaving host", {**LEAVES, "way": way})
        assert found.profit < honest.profit + SMALL.window_price // 50 and found.honest_loss == 0
        assert found.tasks_failed == 0 and found.unworked_ticks < 1, way


def test_a_report_of_tampering_saves_no_fine_of_leaving_early() -> None:
    profits = {
        way: pair("leaving host", {**LEAVES, "way": way, "stays": True})[0].profit
        for way in ("gives up", "reports")
    }
    assert profits["reports"] <= profits["gives up"] < pair("leaving host", {**LEAVES, "stays": True})[1].profit


def test_a_stop_in_the_last_moment_saves_a_requester_nothing() -> None:
    found, honest = pair("greedy tenant", {"share": 20, "at": 1.0, "every": 2})
    assert found.profit <= honest.profit
    assert found.honest_profit > honest.honest_profit - SMALL.window_price // 20


def test_what_others_sealed_or_revealed_earns_nothing() -> None:
    for waits in (0.1, 1.5):
        found, honest = pair("quorum copier", {"share": 20, "lies": "copies", "waits": waits})
        assert found.profit < honest.profit and found.forged_windows_paid == 0
        assert found.honest_loss == 0


@pytest.mark.parametrize(
    ("rule", "strategy", "setting"),
    [
        ("refused-after", "leaving host", {**LEAVES, "offset": 0.0, "way": "names and leaves", "stored": "stale"}),
        (
            "refused-machine",
            "leaving host",
            {**LEAVES, "offset": 0.0, "way": "names and leaves", "stored": "unstorable"},
        ),
        ("refused-end", "idle host", {**IDLE, "works": 0.9, "stored": "real"}),
    ],
)
def test_what_cheating_hosts_gain_comes_from_an_absent_rule(rule: str, strategy: str, setting: Setting) -> None:
    cast = BY_NAME[strategy].cast
    assert cast is not None
    found = play(cast, setting, 0, conditions=SMALL)
    without = play(cast, setting, 0, WITHOUT[rule], conditions=SMALL)
    assert found.profit < without.profit - SMALL.window_price // 20
    assert found.tasks_failed == 0


@pytest.mark.parametrize(("part", "by"), [(0.25, "name"), (0.75, "name"), (0.25, "machine"), (0.75, "machine")])
def test_who_refuses_good_work_has_less_than_who_pays_for_it(part: float, by: str) -> None:
    found, paying = pair("refusing tenant", {"share": 20, "every": 2, "at": part, "by": by})
    lost = paying.honest_profit - found.honest_profit
    assert 0 < lost < paying.profit - found.profit, "what it takes from machines it loses itself, and the fee"
    assert found.honest_loss == 0


def test_who_refuses_a_good_end_pays_for_it_all_the_same() -> None:
    refusing, paying = pair("refusing tenant", {"share": 20, "every": 2, "at": 0.5, "by": "end"})
    lost = paying.honest_profit - refusing.honest_profit
    assert 0 < lost < paying.profit - refusing.profit and refusing.honest_loss == 0


@pytest.mark.parametrize("way", ["names and leaves", "gives up"])
def test_who_says_that_nothing_can_be_stored_earns_nothing_by_leaving(way: str) -> None:
    found, honest = pair("leaving host", {**LEAVES, "offset": 0.0, "way": way, "stored": "unstorable"})
    assert found.profit < honest.profit and found.tasks_failed == 0
    assert "meter_mismatch" not in found.refused
