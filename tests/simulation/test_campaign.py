"""Campaigns: every run once, resumed after an interruption, a broken one told with how to play it again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from node.simulation import campaign as campaigns
from node.simulation.__main__ import main
from node.simulation.campaign import ALL, PLANS, RUNS, Campaign, OtherCampaign, Part, Run, Share, play

PARTS = (Part("heal", 10, 4), Part("crash-points", 6, 3))


class Interrupted(Exception):
    pass


def test_an_interrupted_campaign_goes_on_where_it_was(tmp_path: Path) -> None:
    first = Campaign("test", PARTS, tmp_path)
    assert first.runs_total == 16

    def interrupt(_: object) -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        first.run(1, interrupt)
    with (tmp_path / "state.jsonl").open("a") as state:
        state.write('{"part": "he')  # torn by a crash
    second = Campaign("test", PARTS, tmp_path)
    assert 0 < second.runs_done < 16
    played: list[tuple[str, int]] = []
    second.run(1, lambda piece: played.append((piece.part, piece.first)))
    assert second.runs_done == 16
    assert len(played) + 1 == 5
    report = second.report()
    assert (report["runs"], report["violations"]) == (16, 0)
    assert json.loads((tmp_path / "report.json").read_text()) == report
    assert "None." in (tmp_path / "report.md").read_text()
    assert Campaign("test", PARTS, tmp_path).runs_done == 16


def test_machines_play_shares_that_add_up_to_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directories = [tmp_path / str(number) for number in (1, 2, 3)]
    for number, directory in enumerate(directories, 1):
        one = Campaign("test", PARTS, directory)
        one.run(1, share=Share(number, 3))
        assert one.is_done(Share(number, 3)) and not one.is_done(ALL)
    pieces = [set(Campaign("test", PARTS, directory).pieces) for directory in directories]
    assert [len(of_one) for of_one in pieces] == [2, 2, 1]
    whole = Campaign("test", PARTS, directories[0])
    own = whole.runs_done
    assert [whole.take_in(directory) > 0 for directory in directories] == [False, True, True]
    assert whole.take_in(directories[1]) == 0, "what is known is not counted twice"
    assert own < whole.runs_done == 16
    assert whole.is_done(ALL)
    assert Campaign("test", PARTS, directories[0]).runs_done == 16, "it is on disk"

    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "state.jsonl").write_text("")
    with pytest.raises(OtherCampaign):
        whole.take_in(tmp_path / "empty")
    monkeypatch.setattr(campaigns, "_code_digest", lambda: "other code")
    with pytest.raises(OtherCampaign):
        Campaign("test", PARTS, tmp_path / "anew").take_in(directories[1])


@pytest.mark.parametrize("share", ["0/2", "3/2", "1", "/2", "1/", "-1/2", "1/0", "a/b", "1/99999"])
def test_a_share_that_is_none_is_refused(share: str, tmp_path: Path) -> None:
    outcome = CliRunner().invoke(main, ["run", "short", "--share", share, "--directory", str(tmp_path)])
    assert outcome.exit_code == 2 and "not K/N" in outcome.output
    assert not list(tmp_path.iterdir()), "and nothing was played"


def test_other_code_or_another_plan_begins_anew_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Campaign("test", (Part("heal", 2, 2),), tmp_path).run(1)
    assert Campaign("test", (Part("heal", 2, 2),), tmp_path).runs_done == 2
    before = (tmp_path / "state.jsonl").read_text()
    monkeypatch.setattr(campaigns, "_code_digest", lambda: "other code")
    anew = Campaign("test", (Part("heal", 2, 2),), tmp_path)
    assert anew.runs_done == 0
    assert anew.set_aside is not None and anew.set_aside.read_text() == before
    assert Campaign("test", (Part("heal", 2, 2),), tmp_path).set_aside is None, "nothing was done meanwhile"


def test_a_run_that_breaks_is_told_with_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(number: int) -> Run:
        if number == 3:
            raise AssertionError("what it says")
        return Run("kind", 10, number)

    monkeypatch.setitem(RUNS, "heal", broken)
    piece = play("heal", 0, 5)
    assert piece.violations == [(3, "AssertionError: what it says")]
    assert (piece.runs, piece.kinds["kind"].runs, piece.kinds["kind"].slowest_number) == (5, 4, 4)


def test_one_run_is_played_again() -> None:
    done = CliRunner().invoke(main, ["replay", "twins-2", "17"])
    assert done.exit_code == 0, done.output
    assert "twin" in done.output


def test_seeds_are_of_replicas_and_as_many_of_whole_nodes() -> None:
    assert not any(RUNS["seeds"](number).kind.startswith("whole nodes") for number in (0, 1, 10))
    assert all(RUNS["whole"](number).kind.startswith("whole nodes") for number in (1, 2))
    for plan in ("nightly", "release"):
        runs = {part.name: part.runs for part in PLANS[plan]()}
        assert runs["seeds"] == runs["whole"]


def test_the_plans_are_what_they_promise() -> None:
    nightly = {part.name: part.runs for part in PLANS["nightly"]()}
    release = {part.name: part.runs for part in PLANS["release"]()}
    assert (nightly["seeds"], nightly["twins-2"], nightly["twins-7"]) == (100_000, 4_096, 50_000)
    assert {
        "above-f",
        "crash-points-epochs",
        "crash-points-whole",
        "heal-weights",
    } <= nightly.keys() & release.keys()
    assert nightly["crash-points-epochs"] > nightly["crash-points"] > 1_500
    assert (release["seeds"], release["twins-3"], release["twins-2"]) == (1_000_000, 262_144, 4_096)
