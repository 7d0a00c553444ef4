"""Players as jobs have them: they know the moves of the chain, and nothing else outlives a move."""

from __future__ import annotations

from random import Random

import pytest

from state.primitives.errors import DecodeError
from tasks.dispute.commitments import Question, SegmentWitness
from tasks.dispute.game import Ending, Game, Side, begin, play, turn_of
from tasks.dispute.moves import decode_move, encode_move
from tasks.executor.playing import Player
from tests.tasks.dispute.liars import CleverAccused, Job, Lie, lie, question_of
from tests.tasks.engines.helpers import SEED
from tests.tasks.programs.engines import engine
from tests.tasks.programs.models import contents_of, first_state
from tests.tasks.programs.test_classifier import DATA, program_for

ARRAYS = engine("numpy")
PROGRAM = program_for(DATA, (DATA.columns, 12, DATA.classes), "relu", 20)
JOB = Job(PROGRAM, SEED, first_state(PROGRAM), contents_of(DATA), 0, 20)
HONEST = JOB.run(ARRAYS)


def liars(count: int) -> list[Lie]:
    found, random = list[Lie](), Random(7)
    while len(found) < count:
        tensor = random.randrange(len(PROGRAM.sources), len(PROGRAM.types))
        made = lie(JOB, HONEST, ARRAYS, random.randrange(JOB.steps), tensor, random)
        if made.question.end != HONEST.end_record:  # else rounding took what was changed
            found.append(made)
    return found


def play_out(question: Question, witnesses: dict[Side, SegmentWitness], *, clever: bool = False) -> Game:
    """Play with kept players, and see that players that know nothing but the moves answer alike."""
    kept = {side: Player(question, side, witness) for side, witness in witnesses.items()}
    known = dict.fromkeys(Side, 0)
    game, moves = begin(question), list[bytes]()
    while (side := turn_of(game)) is not None:
        player = kept[side]
        player.hear(moves[known[side] :])
        known[side] = len(moves)
        answer = player.answer()
        fresh = Player(question, side, witnesses[side])
        fresh.hear(moves)
        assert fresh.answer() == answer
        if clever and side is Side.ACCUSED:
            answer = encode_move(CleverAccused(question, witnesses[side], Random(1)).move(game))
        if not answer:
            return game
        moves.append(answer)
        game = play(question, game, side, decode_move(answer))
    return game


def test_a_liar_loses_to_players_that_forget_everything() -> None:
    for liar in liars(6):
        sides = {Side.ACCUSED: liar.witness, Side.CHALLENGER: HONEST.witness()}
        game = play_out(liar.question, sides, clever=True)
        assert game.ending in (Ending.ELEMENT_WRONG, Ending.COMMITMENT_BROKEN)
        assert game.step == liar.place


def test_who_challenges_what_is_right_loses_or_falls_silent() -> None:
    question = question_of(JOB, HONEST, HONEST.end_record)
    for liar in liars(4):
        game = play_out(question, {Side.ACCUSED: HONEST.witness(), Side.CHALLENGER: liar.witness})
        assert game.ending in (Ending.ELEMENT_RIGHT, Ending.CHALLENGER_INCONSISTENT)
    game = play_out(question, {Side.ACCUSED: HONEST.witness(), Side.CHALLENGER: HONEST.witness()})
    assert game.ending is None and turn_of(game) is Side.CHALLENGER


def test_an_accused_that_computes_something_else_now_says_nothing() -> None:
    (liar,) = liars(1)
    player = Player(liar.question, Side.ACCUSED, HONEST.witness())
    assert player.answer() == b""


def test_a_player_answers_only_in_its_turn_and_to_moves_of_a_game() -> None:
    question = question_of(JOB, HONEST, HONEST.end_record)
    player = Player(question, Side.CHALLENGER, HONEST.witness())
    with pytest.raises(DecodeError):
        player.answer()
    with pytest.raises(DecodeError):
        player.hear([b"no move"])
