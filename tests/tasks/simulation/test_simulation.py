"""Markets with strategic agents: honest ones lose nothing, forgery is found, search and report hold."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable
from math import prod, sqrt
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import pytest

from billing.escrow import Purpose
from tasks.dispute import shares
from tasks.ledger import auction, dockets, games, queries
from tasks.ledger.lifecycle import Reason
from tasks.simulation import campaign
from tasks.simulation.agents.workers import ForgingWorker
from tasks.simulation.campaign import PLANS, Campaign
from tasks.simulation.dice import Dice
from tasks.simulation.market import Market, View
from tasks.simulation.picture import CHARTS, HEIGHT, WIDTH, Chart, Point, measure, svg
from tasks.simulation.power import Pair, choose, pairs, verdict
from tasks.simulation.report import judge, markdown
from tasks.simulation.rules import WITHOUT, absent
from tasks.simulation.search import Job, Score, best, evaluate, settings_of
from tasks.simulation.stage import (
    COMMON,
    FUNDS,
    Outcome,
    Setting,
    Stage,
    draw_conditions,
    honest_cast,
    play,
    run_market,
)
from tasks.simulation.strategies import JUDGED, STRATEGIES, Strategy

BOND: Final = Purpose.WORKER_BOND
BY_NAME = {strategy.name: strategy for strategy in STRATEGIES}
Values = dict[str, int | float | str | bool]
FORGES_ALL: Final[Values] = {"share": 10, "windows": 1.0, "segments": 1.0, "honest_first": 0}


def cheat(name: str, setting: Setting, number: int) -> Outcome:
    strategy = BY_NAME[name]
    assert strategy.cast is not None
    return play(strategy.cast, setting, number, own_tasks=strategy.own_tasks, custody=strategy.custody)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize(("own_tasks", "custody"), [(False, False), (True, False), (False, True)])
def test_honest_machines_lose_nothing_and_every_task_is_settled(
    number: int, own_tasks: bool, custody: bool
) -> None:
    outcome = play(honest_cast, {"share": 33}, number, own_tasks=own_tasks, custody=custody)
    assert (outcome.honest_loss, outcome.forged_windows_paid, outcome.tasks_failed) == (0, 0, 0)
    assert outcome.refused == {}
    assert outcome.is_over and outcome.tasks == 2
    assert 0 < outcome.gas_max < 300_000_000


def test_the_same_number_is_the_same_market_and_another_is_not() -> None:
    first, again, other = (cheat("colluding set", FORGES_ALL, number) for number in (3, 3, 4))
    assert first == again != other


def test_a_market_may_be_longer_than_an_epoch_of_the_chain() -> None:
    """Views begin with 1 in each epoch, and the block names its epoch: no market ended behind block 3,600."""
    market = Market({bytes(20): FUNDS}, {}, Dice(b"long"))
    while market.height < market.runtime.chain.epoch_blocks + 2:
        market.block(())
        market.wait_until(0)
    assert market.runtime.epoch_at(market.state, market.height).epoch == 1
    market.check_sums()


def test_forged_windows_are_paid_where_friends_check_them() -> None:
    share = {"share": 45}
    assert any(cheat("colluding set", FORGES_ALL | share, number).forged_windows_paid for number in range(6, 30))


def test_honest_verifiers_play_their_disputes_and_win() -> None:
    """A forger that answers is proven to lie; machines that are drawn after its silence find the same."""
    losses = []
    for is_frank in (True, False):
        stage = Stage(draw_conditions(Dice(b"frank")), 10, Dice(b"frank"))
        forger = ForgingWorker(
            stage.worker, stage.worker_offer(), stage.costs(0), stage.off, stage.plot, stage.dice.fork("forger")
        )
        forger.is_frank = is_frank
        machines, requester = stage.honest_machines(), stage.honest_requester()
        agents = [forger, *machines, requester]
        market = Market({agent.address: FUNDS for agent in agents}, {}, stage.dice)
        run_market(market, agents, is_seasoned=True)
        market.check_sums()
        (first, *_) = requester.tasks
        bills = queries.bill(market.state, first).lines
        (bond,) = [line.amount for line in bills if (line.party, line.purpose) == (forger.address, BOND)]
        losses.append(market.bond_lost(forger.address, forger.offer.bond, [first]) / bond)
        reasons = [entry.reason for entry in queries.task_history(market.state, first)]
        assert Reason.LIE_PROVEN in reasons
        assert max(market.bond_lost(one.address, one.offer.bond, requester.tasks) for one in machines) == 0
    assert losses == [1, 1]


def test_what_a_machine_remembers_of_the_chain_is_what_stands_there(monkeypatch: pytest.MonkeyPatch) -> None:
    remembered = Market.read

    def compared(market: Market, function: Callable[..., object], *arguments: Hashable) -> object:
        found = remembered(market, function, *arguments)
        assert found == View.read(market, function, *arguments)
        return found

    monkeypatch.setattr(Market, "read", compared)
    outcome = cheat("colluding set", FORGES_ALL | {"share": 33, "segments": 0.5}, 2)
    assert outcome.is_over


@pytest.mark.slow
def test_who_forges_alone_earns_less_than_who_works() -> None:
    score = evaluate(Job("forging worker", "", FORGES_ALL, 0, 6))
    assert score.mean_milli < -500  # windows that no audit was drawn for are paid


@pytest.mark.slow
def test_who_forges_alone_is_paid_for_what_no_audit_was_drawn_for_and_no_more() -> None:
    """A forged window passes with 1 - a on average, and none passes where an audit is certain."""
    found = [cheat("forging worker", FORGES_ALL, number) for number in range(24)]
    sure = [one for one in found if one.audits == one.forged_windows]
    assert len(sure) > 4 and not any(one.forged_windows_paid for one in sure)
    others = [one for one in found if one.audits < one.forged_windows]
    passed = sum(one.forged_windows - one.audits for one in others)
    spread = sqrt(sum(one.forged_windows for one in others)) / 2  # of as many lots, at most
    paid = sum(one.forged_windows_paid for one in others)
    assert 0 < paid <= passed + spread


def test_each_strategy_has_two_hundred_settings_that_differ() -> None:
    for strategy in JUDGED:
        assert prod(len(values) for values in strategy.space.values()) >= 200, strategy.name
        found = settings_of(strategy, 200)
        assert len({json.dumps(setting) for setting in found}) == 200
        assert found[:12] == settings_of(strategy, 12)
        assert all(setting["share"] in strategy.space["share"] for setting in found)


def test_what_needs_a_later_rule_is_never_reported_as_judged() -> None:
    waiting = [strategy for strategy in STRATEGIES if strategy.needs]
    assert waiting and all(strategy.cast is None for strategy in waiting)
    job = Job(JUDGED[0].name, "", settings_of(JUDGED[0], 1)[0], 0, 1)
    score = evaluate(job)
    report = judge("test", [(job, score)], [(job, score)])
    for strategy in waiting:
        assert report["strategies"][strategy.name] == {"verdict": "not yet judged", "needs": strategy.needs}
        assert strategy.name not in report["gaining"]
    assert report["strategies"][JUDGED[0].name]["verdict"] == "too few markets"


def score_of(*gains: int, loss: int = 0) -> Score:
    none = (0,) * len(gains)
    return Score(
        gains, none, none, none, (loss,) * len(gains), none, none, none, none, none, len(gains), 1, 1, 1, 0
    )


def test_a_strategy_gains_if_its_mean_is_clear_of_its_error() -> None:
    name, setting = "price shader", {"share": 20, "price": 1.0}
    job = Job(name, "", setting, 0, 8)
    for score, expected in (
        (score_of(*[300, 400] * 4), "gains"),
        (score_of(*[-900, 1000] * 4), "does not gain"),
        (score_of(*[5] * 8), "does not gain"),
        (score_of(300, 400), "too few markets"),
    ):
        report = judge("test", [], [(job, score)])
        assert report["strategies"][name]["verdict"] == expected
        assert report["gaining"] == ([name] if expected == "gains" else [])


def test_a_rule_is_reported_by_what_its_absence_changes() -> None:
    setting = {"share": 20, "price": 1.0}
    pair = Pair(*(Job("price shader", name, setting, 0, 8) for name in ("hold", "")))
    job, present = Job("price shader", "", setting, 0, 8), score_of(*[-100, 900] * 4)
    for without, figure, is_clear in (
        (score_of(*[250, 1_150] * 4), "gain", True),  # paired: the markets differ far more than the rule does
        (score_of(*[900, -100] * 4), "gain", False),
        (score_of(*[-100, 900] * 4, loss=70), "loss", True),
        (present, "gain", False),
    ):
        assert is_clear == (choose([(pair, without, present)], 1) == [(pair, figure)]) or figure == "gain"
        found = verdict(WITHOUT["hold"], [(pair, figure, without, present)])
        assert found["changes_nothing"] is not is_clear
        told = markdown(judge("test", [], [(job, present)], {"hold": found}))
        assert ("changes nothing" in told) is not is_clear
    assert not verdict(WITHOUT["hold"], [(pair, "gain", score_of(9, 9), score_of(1, 1))])["changes"][0]["is_clear"]


def test_each_rule_has_an_aimed_strategy_with_values_that_its_space_has() -> None:
    for rule in WITHOUT.values():
        assert rule.aims, rule.name
        for aim in rule.aims:
            space = BY_NAME[aim.strategy].space
            assert all(value in space[name] for name, value in aim.setting.items() if name not in COMMON), (
                rule.name,
                aim,
            )
        tried = pairs(rule, 3, 0, 1)
        assert {pair.without.rule for pair in tried} == {rule.name}
        assert all(pair.present == pair.without._replace(rule="") for pair in tried)


def test_what_is_switched_off_comes_back() -> None:
    before = games._is_copy, dockets.begin_dispute, auction._Call._spare, shares.challenge_bond
    for rule in WITHOUT.values():
        with pytest.raises(KeyError), absent(rule):
            raise KeyError
    assert before == (games._is_copy, dockets.begin_dispute, auction._Call._spare, shares.challenge_bond)
    with absent(WITHOUT["copies"]):
        assert games._is_copy is not before[0]


def test_the_best_settings_come_first() -> None:
    jobs = [Job("price shader", "", {"price": price}, 0, 1) for price in (1.0, 2.0, 3.0)]
    found = list(zip(jobs, [score_of(1), score_of(9), score_of(4)], strict=True))
    assert best(found, 2) == [jobs[1], jobs[2]]


@pytest.mark.nightly
def test_each_absent_rule_makes_a_market_that_runs() -> None:
    cast = BY_NAME["colluding set"].cast
    assert cast is not None
    conditions = draw_conditions(Dice(b"absent"))._replace(windows=1, segments=16)
    for rule in WITHOUT.values():
        assert play(cast, FORGES_ALL | {"share": 33}, 1, rule, conditions=conditions).is_over


def test_conditions_differ_from_market_to_market() -> None:
    drawn = [draw_conditions(Dice(number.to_bytes(8, "big"))) for number in range(50)]
    assert len({at.window_price for at in drawn}) == 50
    assert {at.is_seasoned for at in drawn} == {True, False}


@pytest.mark.slow
def test_a_sample_of_each_third_strategy_runs_and_is_reported(tmp_path: Path) -> None:
    """All of them run in the campaigns of the night."""
    chosen = JUDGED[::3]
    report = Campaign(PLANS["sample"], tmp_path, strategies=chosen, rules=()).run()
    assert set(report["strategies"]) == {"key withholder", *(one.name for one in chosen)}
    assert report["sums_exact"] and report["unfinished_markets"] == 0
    assert 0 < report["block_units_max"] <= 300_000_000
    assert report == json.loads((tmp_path / "report.json").read_text())
    assert "| key withholder | not yet judged" in (tmp_path / "report.md").read_text()


@pytest.mark.slow
def test_an_interrupted_campaign_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[Strategy] = [BY_NAME["rate liar"], BY_NAME["griefing worker"]]

    def run() -> dict[str, object]:
        return Campaign(PLANS["sample"], tmp_path, strategies=chosen, rules=("hold",)).run()

    report = run()
    path = tmp_path / "state.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:4]) + lines[4][:20])  # three results, and one that a crash has torn
    played: list[Job] = []

    def counted(job: Job) -> Score:
        played.append(job)
        return evaluate(job)

    monkeypatch.setattr(campaign, "evaluate", counted)
    assert run() == report
    assert len(played) == len(lines) - 4
    assert run() == report and len(played) == len(lines) - 4


def test_the_report_stands_after_each_strategy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = [BY_NAME["rate liar"], BY_NAME["griefing worker"]]

    def broken(job: Job) -> Score:
        if job.strategy == "griefing worker":
            raise KeyboardInterrupt
        return evaluate(job)

    monkeypatch.setattr(campaign, "evaluate", broken)
    with pytest.raises(KeyboardInterrupt):
        Campaign(PLANS["sample"], tmp_path, strategies=chosen, rules=()).run()
    report = json.loads((tmp_path / "report.json").read_text())
    assert "best_gain" in report["strategies"]["rate liar"]
    assert "griefing worker" not in report["strategies"]


def test_results_of_other_code_are_set_aside_and_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = [BY_NAME["rate liar"]]
    Campaign(PLANS["sample"], tmp_path, strategies=chosen, rules=()).run()
    monkeypatch.setattr(campaign, "_code_digest", lambda: "other")
    later = Campaign(PLANS["sample"], tmp_path, strategies=chosen, rules=())
    assert later.set_aside == tmp_path / "state.jsonl.1"
    assert later.set_aside.exists() and len((tmp_path / "state.jsonl").read_text().splitlines()) == 1


def test_the_picture_has_a_line_for_each_series_and_stays_within_its_frame() -> None:
    lines = {"one": [Point(-0.5, 0.2), Point(0.25, 0.1)], "two": [Point(0.0, 0.0), Point(1.0, 0.5)]}
    picture = ElementTree.fromstring(svg(lines, ["10 %", "45 %"], "a < caption", "a note"))
    found = [element for element in picture.iter() if element.tag.endswith("polyline")]
    assert len(found) == 2
    for line in found:
        for place in line.attrib["points"].split():
            across, down = map(float, place.split(","))
            assert 0 <= across <= WIDTH and 0 <= down <= HEIGHT
    assert [element.text for element in picture.iter() if element.text in lines] == ["one", "two"]


def test_each_chart_has_a_point_for_each_value_and_plays_what_the_strategy_has() -> None:
    for chart in CHARTS.values():
        for spots in chart.lines.values():
            assert len(spots) == len(chart.across)
            assert all(set(spot.setting) <= set(BY_NAME[spot.strategy].space) for spot in spots)
    whole = next(iter(CHARTS["bonds"].lines.values()))
    found = measure(Chart("", ["10 %"], {"forged": whole[:1]}), 2)
    assert found["forged"][0].gain < 0


def test_only_two_modules_know_transactions() -> None:
    folder = Path(campaign.__file__).parent
    knows = {
        str(path.relative_to(folder))
        for path in folder.rglob("*.py")
        if "tasks.ledger.transitions" in path.read_text() or "state.primitives.transactions" in path.read_text()
    }
    assert knows == {"actions.py", "market.py"}
