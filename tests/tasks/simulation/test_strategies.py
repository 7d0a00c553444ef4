"""Each strategy does on chain what it says: games end as it wants, lines are cut, keys follow each other."""

from __future__ import annotations

import pytest

from tasks.simulation.dice import Dice
from tasks.simulation.market import DKB
from tasks.simulation.rules import ALL_RULES, WITHOUT, Absent
from tasks.simulation.stage import Conditions, Outcome, Setting, draw_conditions, honest_cast, play
from tasks.simulation.strategies import STRATEGIES

BY_NAME = {strategy.name: strategy for strategy in STRATEGIES}
SMALL: Conditions = draw_conditions(Dice(b"strategies"))._replace(
    windows=1, segments=16, cost_per_tera=DKB // 3, is_seasoned=True
)
HOUR_MS = 3_600_000


def outcome(name: str, setting: Setting, number: int = 0, conditions: Conditions = SMALL) -> Outcome:
    cast = BY_NAME[name].cast
    assert cast is not None
    return play(cast, {"share": 20, **setting}, number, conditions=conditions)


def honest(number: int = 0, share: int = 20) -> Outcome:
    return play(honest_cast, {"share": share}, number, conditions=SMALL)


def caught(escape: str) -> Outcome:
    """A liar in whose way no friend stands: the first of some markets in which it is caught."""
    setting: Setting = {"share": 10, "windows": 1.0, "segments": 1.0, "escape": escape}
    found = (outcome("cornered liar", setting, number) for number in range(8))
    return next(one for one in found if one.forged_windows_paid == 0)


@pytest.mark.parametrize(
    ("escape", "ending", "reason"),
    [
        ("plays", "element_wrong", "lie_proven"),
        ("silent", "rerun_wrong", "lie_proven"),
        ("resumes", "rerun_wrong", "lie_proven"),
        ("inconsistent", "accused_inconsistent", "lie_proven"),
        ("unopened", "rerun_wrong", "lie_proven"),
        ("leaves", "rerun_wrong", "lie_proven"),
    ],
)
def test_a_cornered_liar_takes_its_way_out(escape: str, ending: str, reason: str) -> None:
    found = caught(escape)
    assert reason in found.reasons
    assert ending in found.endings
    assert found.tasks_failed == 0  # somebody else does the work then


@pytest.mark.slow
@pytest.mark.parametrize(("way", "ending"), [("prompt", "element_right"), ("silent", "challenger_silent")])
@pytest.mark.parametrize("by", ["outsider", "verifier"])
def test_a_freezer_opens_false_games_and_loses_them(by: str, way: str, ending: str) -> None:
    setting: Setting = {"share": 45, "by": by, "way": way, "rate": 1.0, "seals": 4}
    found = [outcome("freezing challenger", setting, number) for number in range(6)]
    assert all(set(one.endings) <= {ending} for one in found)
    assert any(one.endings for one in found)
    assert max(one.honest_loss for one in found) == 0


def test_a_flooder_fills_the_games_that_run_at_a_time() -> None:
    setting: Setting = {"windows": 1.0, "segments": 1.0, "seals": 8, "way": "slow"}
    found = outcome("slot flooder", setting)
    assert sum(found.endings.values()) > 4


@pytest.mark.parametrize(
    ("at", "reason"), [("opening", "not_opened"), ("sealing", "seal_timeout"), ("revealing", "reveal_timeout")]
)
def test_a_cut_line_misses_what_is_due(at: str, reason: str) -> None:
    found = outcome("line cutter", {"at": at, "minutes": 1_500, "cuts": 16})
    assert reason in found.reasons or found.wait_ms > honest().wait_ms


def test_an_accused_whose_line_is_cut_for_minutes_resumes_and_wins() -> None:
    found = outcome("line cutter", {"at": "game", "minutes": 4, "cuts": 16})
    assert set(found.endings) == {"element_right"}
    assert found.honest_loss == 0 and found.tasks_failed == 0


def test_a_whitewasher_goes_on_under_another_key() -> None:
    setting: Setting = {
        "share": 10, "windows": 1.0, "segments": 1.0, "escape": "unopened", "sponsored": True, "withhold": 0,
    }  # fmt: skip
    cast, rules = BY_NAME["whitewasher"].cast, WITHOUT["replacement-draw"]
    assert cast is not None
    one, two = (
        play(cast, {**setting, "keys": keys}, 0, rules, conditions=SMALL).reasons["lie_proven"] for keys in (1, 2)
    )  # the lowest ask gets what the first one loses; otherwise few of its keys are drawn
    assert two > one > 0


@pytest.mark.slow
def test_verifiers_of_one_sponsor_have_one_seat_and_those_of_several_more() -> None:
    setting: Setting = {"share": 45, "windows": 1.0, "segments": 1.0, "honest_first": 0, "withhold": 0}
    conditions = SMALL._replace(is_seasoned=False)  # new workers have several verifiers
    paid = {
        sponsors: sum(
            outcome("sponsored set", {**setting, "sponsors": sponsors}, number, conditions).forged_windows_paid
            for number in range(12)
        )
        for sponsors in ("one", "each")
    }
    assert paid["one"] == 0 < paid["each"]


def test_a_copied_challenge_earns_nothing() -> None:
    setting: Setting = {"windows": 1.0, "segments": 1.0, "escape": "plays"}
    strategy = BY_NAME["challenge copier"]
    found = outcome("challenge copier", setting)
    without = play(strategy.baseline, {"share": 20, **setting}, 0, conditions=SMALL)
    assert found.reasons["lie_proven"] == without.reasons["lie_proven"] > 0
    assert set(found.endings) > {"element_wrong"}  # the copier has games, too
    # A share of the bond would be two fifths of a window's price; who is drawn for checks differs.
    assert found.profit < without.profit + SMALL.window_price // 5


def test_a_window_with_gaps_is_paid_only_where_nobody_looks_whether_leaves_fit() -> None:
    setting: Setting = {"share": 10, "windows": 1.0, "segments": 0.5, "honest_first": 0}
    cast = BY_NAME["torn window"].cast
    assert cast is not None
    found = play(cast, setting, 0, conditions=SMALL)
    assert found.reasons["lie_proven"] > 0 == found.forged_windows_paid
    without = play(cast, setting, 0, WITHOUT["fitting-leaves"], conditions=SMALL)
    assert without.forged_windows_paid > 0


def test_a_friend_that_shows_a_break_first_has_a_part_of_the_bond_and_the_plot_loses_the_rest() -> None:
    setting: Setting = {"share": 10, "windows": 1.0, "segments": 0.5, "honest_first": 0}
    alone, shown = (outcome("torn window", {**setting, "shows": shows}, 1) for shows in (False, True))
    assert alone.profit < shown.profit < honest(1, 10).profit - 2 * SMALL.window_price
    assert shown.reasons["lie_proven"] == 1 and shown.honest_loss == 0


def kept(setting: Setting, number: int = 0) -> tuple[Outcome, Outcome]:
    """A market with custody, with false custodians and with honest ones."""
    base: Setting = {"share": 45, "rate": 1.0, "ransom": 0.5, "garbage": False, "serves_results": False}
    strategy = BY_NAME["idle custodian"]
    assert strategy.cast is not None
    found, without = (
        play(cast, {**base, **setting}, number, conditions=SMALL, custody=True)
        for cast in (strategy.cast, honest_cast)
    )
    return found, without


def test_garbage_in_custody_costs_the_bond() -> None:
    found, honest = kept({"garbage": True, "way": "keeps", "ransom": 0.0})
    assert found.profit < honest.profit - 2 * SMALL.window_price
    assert found.honest_loss == 0


@pytest.mark.slow
def test_who_keeps_nothing_loses_its_bond_where_no_other_custodian_has_the_output() -> None:
    def loss(number: int) -> float:
        found, honest = kept({"way": "keeps nothing", "ransom": 0.0}, number)
        return (honest.profit - found.profit) / SMALL.window_price

    assert any(loss(number) > 1 for number in range(24))  # both custodians of an output were of the plot


def test_a_custodian_that_serves_nobody_delivers_or_loses_its_bond() -> None:
    for number in range(6):
        found, honest = kept({"way": "serves nobody", "ransom": 0.0}, number)
        assert found.profit <= honest.profit + SMALL.window_price // 100


def test_a_false_claim_is_refused_and_earns_nothing() -> None:
    setting: Setting = {"place": "start", "rate": 1.0, "price": 1.0}
    found = outcome("false claimer", setting)
    assert found.refused == {"claim_unproven": 1} and found.tasks_failed == 0
    assert found.profit < honest().profit


def test_jobs_with_stray_files_pay_who_shows_it() -> None:
    found = outcome("stray requester", {"tasks": 4, "claims": False, "limit": 1.0})
    assert found.honest_profit >= honest().honest_profit and found.tasks_failed == 0


def test_a_requester_that_bids_too_low_goes_without_or_posts_again() -> None:
    strategy = BY_NAME["reposting requester"]
    assert strategy.cast is not None
    setting: Setting = {"share": 20, "limit": 1.0, "cancels": "assigned", "reposts": 2}
    found = play(strategy.cast, setting, 0, own_tasks=True, conditions=SMALL)
    assert found.tasks == 4


@pytest.mark.slow
def test_bonds_locked_after_the_work_was_taken_do_not_count_in_its_draws() -> None:
    setting: Setting = {"share": 45, "windows": 1.0, "segments": 1.0, "honest_first": 0}
    conditions = SMALL._replace(is_seasoned=False)
    late = sum(outcome("late bonder", setting, at, conditions).forged_windows_paid for at in range(8))
    cast = BY_NAME["late bonder"].cast
    assert cast is not None
    rule = WITHOUT["register"]
    without = sum(play(cast, {**setting}, at, rule, conditions=conditions).forged_windows_paid for at in range(8))
    assert late < without


def test_friends_that_differ_and_fall_silent_do_not_pass_a_forged_window() -> None:
    setting: Setting = {
        "share": 45, "windows": 1.0, "segments": 1.0, "honest_first": 0, "way": "silent", "rate": 1.0,
    }  # fmt: skip
    found = [outcome("silent friends", setting, number) for number in range(6)]
    assert any("challenger_silent" in one.endings for one in found)
    assert sum(one.forged_windows_paid for one in found) == 0


def test_bytes_in_custody_that_are_no_state_sell_a_result_only_without_the_rule() -> None:
    cast = BY_NAME["false output"].cast
    assert cast is not None
    setting: Setting = {
        "share": 20, "rate": 1.0, "ransom": 0.9, "serves_results": False, "garbage": False, "other": True,
        "way": "keeps",
    }  # fmt: skip
    usual = play(honest_cast, {"share": 20}, 0, custody=True, conditions=SMALL).profit
    with_rule = play(cast, setting, 0, custody=True, conditions=SMALL).profit
    without = play(cast, setting, 0, WITHOUT["other-bytes"], custody=True, conditions=SMALL).profit
    assert with_rule < usual < without


def test_a_worker_that_is_asked_to_serve_keeps_its_bond_against_false_jurors() -> None:
    setting: Setting = {
        "share": 45, "cancels": "never", "cancels_after": 0, "withholds": False, "demands": False, "accuses": True,
    }  # fmt: skip
    cast = BY_NAME["griefing requester"].cast
    assert cast is not None

    def lost(rule: Absent) -> int:
        found = (play(cast, setting, number, rule, own_tasks=True, conditions=SMALL) for number in range(4))
        return sum(max(0, one.honest_loss) for one in found)

    assert lost(ALL_RULES) < lost(WITHOUT["serving-answer"]) / 4
