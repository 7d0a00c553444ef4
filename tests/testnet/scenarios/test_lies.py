"""The lie of the scenarios: its worker loses every game, and so does a verifier that claims it."""

from __future__ import annotations

import pytest

from tasks.dispute.commitments import SegmentWitness
from tasks.dispute.game import Ending, Side, begin, play, turn_of
from tasks.dispute.moves import decode_move
from tasks.dispute.running import SegmentRun
from tasks.executor.playing import Player
from tasks.programs.running import Runner
from testnet.scenarios import lies
from tests.tasks.dispute.liars import question_of
from tests.tasks.executor.test_playing import ARRAYS, HONEST, JOB

RECORDS = [HONEST.record(place) for place in range(JOB.steps + 1)]
TRACES = [HONEST.trace(place) for place in range(JOB.steps)]
KNOWN = SegmentWitness(RECORDS.__getitem__, TRACES.__getitem__)
"""What an honest machine shows, computed before this process lies."""


@pytest.fixture
def lying(monkeypatch: pytest.MonkeyPatch) -> SegmentRun:
    """The same segment as a liar computes it."""
    monkeypatch.setattr(Runner, "run", Runner.run)  # both come back after the test
    monkeypatch.setattr(Runner, "contents", Runner.contents)
    lies.install()
    return JOB.run(ARRAYS)


def ending_of(accused: SegmentWitness, challenger: SegmentWitness) -> Ending | None:
    question = question_of(JOB, HONEST, accused.record(JOB.steps))
    players = {
        Side.ACCUSED: Player(question, Side.ACCUSED, accused),
        Side.CHALLENGER: Player(question, Side.CHALLENGER, challenger),
    }
    game = begin(question)
    while (side := turn_of(game)) is not None:
        move = players[side].answer()
        for player in players.values():
            player.hear([move])
        game = play(question, game, side, decode_move(move))
    return game.ending


def test_a_liar_commits_to_another_end(lying: SegmentRun) -> None:
    assert lying.end_record != RECORDS[-1]
    assert lying.record(lies.OFFSET) == RECORDS[lies.OFFSET]
    assert lying.record(lies.OFFSET + 1) != RECORDS[lies.OFFSET + 1]


def test_a_lying_worker_loses_by_one_wrong_element(lying: SegmentRun) -> None:
    assert ending_of(lying.witness(), KNOWN) is Ending.ELEMENT_WRONG


def test_a_verifier_that_claims_the_lie_loses_by_a_right_element(lying: SegmentRun) -> None:
    assert ending_of(KNOWN, lying.witness()) is Ending.ELEMENT_RIGHT
