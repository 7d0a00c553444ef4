"""The count of random games: each side that is wrong loses, and the count says which."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.dispute.game import Side, play
from tests.tasks.dispute import tally
from tests.tasks.dispute import test_game as games


def test_each_wrong_side_loses_and_is_counted() -> None:
    found = tally.tally(8)
    assert (found["games"], found["liars_lost"], found["lying_challengers_lost"]) == (8, 4, 4)
    assert found["honest_sides_lost"] == 0 and sum(found["endings"].values()) == 8
    assert found["moves"] > 8
    assert vars(games)["play"] is play


@pytest.mark.parametrize("kind", tally.Lie)
def test_each_kind_of_liar_loses(kind: tally.Lie) -> None:
    """One that plays for an element, a false root, seal or loss over honest traces (N1), and a silent one."""
    found = [seed for seed in range(400) if tally.lie_of(seed) is kind]
    assert len(found) >= 20
    played = [game for seed in found[:4] if (game := tally._against_a_liar(seed)) is not None]
    losers = {silent if game.ending is None else game.ending.loser for game, silent in played}
    assert played and losers == {Side.ACCUSED}


def test_a_game_that_the_honest_side_lost_stops_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    played = tally._against_the_honest(1)[0]
    monkeypatch.setattr(tally, "_against_a_liar", lambda _seed: (played, Side.CHALLENGER))
    with pytest.raises(AssertionError, match="the honest side"):
        tally.tally(1)


def test_a_run_that_was_stopped_goes_on_and_other_code_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tally.json"
    whole = tally.tally(8)
    assert tally.tally(3, path)["games"] == 3
    found = tally.tally(8, path)
    timeless = [{**one, "judge_ms": None} for one in (whole, found)]
    assert timeless[0] == timeless[1]
    monkeypatch.setattr(tally, "_play_next", lambda _count: pytest.fail("nothing is left to play"))
    assert tally.tally(8, path) == found
    monkeypatch.setattr(tally, "_code", lambda: "another")
    assert tally.load(path) == tally.Count("another")
