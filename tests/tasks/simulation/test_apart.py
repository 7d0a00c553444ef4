"""Groups and speed trials in the simulator: each strategy does on chain what it says, and honest ones earn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pytest

from tasks.simulation.market import DKB
from tasks.simulation.rules import ALL_RULES, WITHOUT, Absent
from tasks.simulation.stage import Conditions, Outcome, Setting, play
from tasks.simulation.strategies import STRATEGIES

BY_NAME: Final = {strategy.name: strategy for strategy in STRATEGIES}
SMALL: Final = Conditions(
    windows=1, segments=16, segment_steps=2_000, cost_per_tera=DKB // 3, margin_milli=1_500,
    price_slack_milli=3_000, rates=(5 * 10**9,) * 8, is_seasoned=True,
)  # fmt: skip
TRIED: Final[Mapping[str, int | float | str | bool]] = {"speed": 0.5, "judges": "agrees", "blocks": 1_000}


def pair(name: str, setting: Setting, number: int = 0, rule: Absent = ALL_RULES) -> tuple[Outcome, Outcome]:
    """Return what a strategy comes to, and honest ones in its place."""
    strategy = BY_NAME[name]
    assert strategy.cast is not None
    found, honest = (
        play(cast, setting, number, rule, conditions=SMALL) for cast in (strategy.cast, strategy.baseline)
    )
    return found, honest


def test_a_claimed_speed_earns_work_only_where_no_trial_measures_it() -> None:
    setting: Setting = {**TRIED, "share": 20, "forges": False}
    found, honest = pair("speed liar", setting)
    assert found.refused == honest.refused == {}
    assert found.profit <= honest.profit and found.tasks_failed == 0
    found, honest = pair("speed liar", setting, rule=WITHOUT["trials"])
    assert found.profit > honest.profit + SMALL.window_price // 4
    assert found.honest_profit < honest.honest_profit


def test_links_that_nobody_computed_pass_only_with_friends_that_judge_them() -> None:
    """Two friends among ten verifiers are seldom drawn; where nobody checks they pass."""
    setting: Setting = {**TRIED, "share": 20, "forges": True}
    found, honest = pair("speed liar", setting)
    assert found.profit < honest.profit + SMALL.window_price // 100, "fees of trials are all that differs"
    found, honest = pair("speed liar", setting, rule=WITHOUT["trial-checks"])
    assert found.profit > honest.profit + SMALL.window_price // 5


def test_one_device_that_answers_for_three_machines_is_slow_when_these_are_tried_together() -> None:
    setting: Setting = {"share": 20, "machines": 3, "blocks": 20}
    found, honest = pair("shared device", setting)
    assert found.profit <= honest.profit
    found, honest = pair("shared device", setting, rule=WITHOUT["trial-rounds"])
    assert found.profit > honest.profit + SMALL.window_price // 4


def test_verifiers_that_call_trials_wrong_pay_for_it() -> None:
    found, honest = pair("trial denier", {"share": 33, "judges": "denies", "blocks": 1_000})
    assert found.profit < honest.profit and found.tasks_failed == 0
    assert found.honest_loss == 0


@pytest.mark.parametrize("silent", [False, True])
def test_a_member_that_leaves_breaks_no_group(silent: bool) -> None:
    setting: Setting = {
        "share": 20, "members": 4, "machines": 2, "place": "compute", "silent": silent, "price": 2.5,
    }  # fmt: skip
    found, honest = pair("seat breaker", setting)
    assert found.refused == honest.refused == {}
    assert (found.tasks, found.tasks_failed, honest.tasks_failed) == (8, 0, 0)
    assert found.profit < honest.profit
    assert found.reasons["window_late" if silent else "worker_left"] > 0


def test_a_spare_is_not_paid_for_its_word_that_it_has_prepared() -> None:
    setting: Setting = {"share": 20, "members": 8, "way": "unprepared", "breaks": False, "minutes": 1}
    found, honest = pair("false spare", setting)
    assert abs(found.profit - honest.profit) < SMALL.window_price // 50  # what fetching costs
    without, _ = pair("false spare", setting, rule=WITHOUT["spare-word"])
    assert without.profit > found.profit + SMALL.window_price // 25


def test_groups_that_nobody_takes_gain_nothing_and_delay_others_by_seconds() -> None:
    found, honest = pair("group crowd", {"share": 20, "groups": 16, "members": 1, "limit": 0.2})
    assert found.profit < honest.profit
    assert found.wait_ms - honest.wait_ms <= 60_000
