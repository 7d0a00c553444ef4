"""Disputes about the real classifier: a liar at a random value of a random step loses, in few and small moves."""

from __future__ import annotations

import os
from itertools import count
from random import Random

import pytest

from tasks.dispute.game import Ending, Side
from tests.tasks.dispute.liars import Job, false_records, lie, play_out, question_of
from tests.tasks.engines.helpers import SEED
from tests.tasks.programs.engines import engine
from tests.tasks.programs.models import contents_of, first_state
from tests.tasks.programs.test_classifier import DATA, program_for

GAMES = int(os.environ.get("DISPUTE_GAMES", "12"))
ARRAYS = engine("numpy")


def _job(activation: str, steps: int = 5) -> Job:
    program = program_for(DATA, (DATA.columns, 24, DATA.classes), activation, 20)
    return Job(program, SEED, first_state(program), contents_of(DATA), 0, steps)


@pytest.mark.slow
@pytest.mark.parametrize("served", [True, False], ids=["served", "on-chain"])
@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_a_liar_at_a_random_value_loses(activation: str, served: bool) -> None:
    job = _job(activation)
    honest = job.run(ARRAYS)
    played_out = 0
    for seed in count():
        random = Random(seed)
        tensor = random.randrange(len(job.program.sources), len(job.program.types))
        liar = lie(job, honest, ARRAYS, random.randrange(job.steps), tensor, random)
        if liar.question.end == honest.end_record:
            continue  # rounding took what was changed
        played = play_out(liar.question, liar.witness, honest.witness(), served=served, clever=random)
        assert played.game.ending is Ending.ELEMENT_WRONG, (seed, played.game.ending)
        assert played.game.step == liar.place
        after = played.sizes[played.searched :]
        if served:
            assert len(after) <= 8 and sum(after) <= 6_144, (len(after), sum(after))
        else:
            assert len(played.sizes) <= 30 and sum(played.sizes) <= 20_480
        played_out += 1
        if played_out == GAMES:
            break


def test_a_liar_with_a_false_end_loses() -> None:
    """False states, seals and losses from a random step on, the traces honest."""
    job = _job("relu", 20)
    honest = job.run(ARRAYS)
    endings = set()
    for seed in range(GAMES):
        random = Random(seed)
        place = random.randrange(1, job.steps + 1)
        liar = false_records(honest, place, random)
        question = question_of(job, honest, liar.record(job.steps))
        played = play_out(question, liar, honest.witness(), served=random.random() < 0.5)
        assert played.game.step == place - 1
        assert played.silent is None and played.game.ending is not None
        assert played.game.ending.loser is Side.ACCUSED, (seed, played.game.ending)
        endings.add(played.game.ending)
    assert endings == {Ending.COMMITMENT_BROKEN, Ending.ACCUSED_INCONSISTENT}


def test_a_machine_that_failed_once_makes_no_move_and_proves_nothing_against_itself() -> None:
    job = _job("relu", 20)
    honest = job.run(ARRAYS)
    for seed in range(GAMES):
        random = Random(seed)
        false = false_records(honest, random.randrange(1, job.steps + 1), random)
        question = question_of(job, honest, false.record(job.steps))
        played = play_out(question, honest.witness(), honest.witness(), served=False)
        assert (played.silent, played.sizes) == (Side.ACCUSED, ())


def test_an_honest_worker_wins_against_one_who_computed_something_else() -> None:
    job = _job("relu", 3)
    honest = job.run(ARRAYS)
    for seed in range(GAMES):
        random = Random(seed)
        tensor = random.randrange(len(job.program.sources), len(job.program.types))
        wrong = lie(job, honest, ARRAYS, random.randrange(job.steps), tensor, random)
        if wrong.question.end == honest.end_record:
            continue
        question = question_of(job, honest, honest.end_record)
        for served in (True, False):
            played = play_out(question, honest.witness(), wrong.witness, served=served)
            assert played.game.ending in (Ending.ELEMENT_RIGHT, Ending.CHALLENGER_INCONSISTENT), seed
