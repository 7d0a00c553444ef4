"""Disputes about a step of training a decoder: a liar at a random value of any call loses."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from itertools import count
from random import Random

import pytest

from tasks.dispute.game import Ending, Side
from tasks.dispute.running import SegmentRun
from tasks.programs.adamw import Rates
from tasks.programs.decoder import decoder_program
from tasks.programs.finetune import FinetuneRates
from tasks.programs.llama_shape import LlamaShape
from tasks.programs.operators.scalars import NANO
from tasks.programs.program import Program
from tests.tasks.dispute.liars import Job, lie, play_out
from tests.tasks.programs.engines import engine
from tests.tasks.programs.trainings import SEED, training

GAMES = int(os.environ.get("DISPUTE_GAMES", "6"))
ARRAYS = engine("numpy")
MODEL = LlamaShape(
    vocabulary=40, width=8, layers=1, heads=2, key_heads=1, head_width=4, hidden=12, context=16,
    rotary_base=10_000, epsilon_nano=10_000,
)  # fmt: skip
RATES = FinetuneRates(Rates(20_000_000, weight_decay_nano=10_000_000), "cosine", 1, 9, NANO)
MADE = training(MODEL, RATES, batch=2, rows=4, length=6, spread=1.0)
PROGRAM = decoder_program(MADE.job, MADE.rates)
JOB = Job(PROGRAM, SEED, MADE.state, MADE.data, 0, 2)


GPT2 = replace(MODEL, rotary_base=0, key_heads=2)
GPT2_MADE = training(GPT2, RATES, batch=2, rows=4, length=6, spread=1.0)
GPT2_PROGRAM = decoder_program(GPT2_MADE.job, GPT2_MADE.rates)
GPT2_JOB = Job(GPT2_PROGRAM, SEED, GPT2_MADE.state, GPT2_MADE.data, 0, 2)


@cache
def _honest() -> SegmentRun:
    return JOB.run(ARRAYS)


@cache
def _honest_gpt2() -> SegmentRun:
    return GPT2_JOB.run(ARRAYS)


@pytest.mark.parametrize("served", [True, False], ids=["served", "on-chain"])
def test_a_liar_at_a_random_value_loses(served: bool) -> None:
    honest = _honest()
    played_out = 0
    for seed in count():
        random = Random(seed)
        tensor = random.randrange(len(PROGRAM.sources), len(PROGRAM.types))
        liar = lie(JOB, honest, ARRAYS, random.randrange(JOB.steps), tensor, random)
        if liar.question.end == honest.end_record:
            continue  # rounding took what was changed
        played = play_out(liar.question, liar.witness, honest.witness(), served=served, clever=random)
        assert played.game.ending is Ending.ELEMENT_WRONG, (seed, played.game.ending)
        played_out += 1
        if played_out == GAMES:
            break


@pytest.mark.slow
@pytest.mark.parametrize("operator", sorted({call.operator for call in PROGRAM.calls}))
def test_a_lie_in_any_operator_is_found(operator: str) -> None:
    """One game on each operator of the program whose result reaches what is committed to."""
    _lose(JOB, PROGRAM, _honest(), operator)


@pytest.mark.parametrize("operator", ["gather_groups", "place_rows", "positions", "number", "bound", "select"])
def test_a_lie_about_what_gpt2_has_of_its_own_is_found(operator: str) -> None:
    """R154: queries, keys and values taken apart and put together, learned positions, the bend of the GELU."""
    _lose(GPT2_JOB, GPT2_PROGRAM, _honest_gpt2(), operator)


def _lose(job: Job, program: Program, honest: SegmentRun, operator: str) -> None:
    calls = [
        number for number, call in enumerate(program.calls, len(program.sources)) if call.operator == operator
    ]
    for seed in range(40):
        random = Random(seed)
        number = random.choice(calls)
        # A number of a row that is off by so much is none, and no engine reads it.
        coarse = 0.0 if program.types[number].element.is_integer else 200.0
        liar = lie(job, honest, ARRAYS, 0, number, random, coarse=coarse)
        if liar.question.end != honest.end_record:
            played = play_out(liar.question, liar.witness, honest.witness(), served=True)
            assert played.game.ending is not None and played.game.ending.loser is Side.ACCUSED
            return
    pytest.fail("no lie about it changed what is committed to")
