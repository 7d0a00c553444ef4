"""Disputes about a step of fine-tuning: a liar at a random value of any call loses."""

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
from tasks.programs.finetune import FinetuneRates, finetune_program, state_tensors
from tasks.programs.llama_shape import LlamaShape
from tasks.programs.operators.scalars import NANO
from tasks.programs.program import Program
from tests.tasks.dispute.liars import Job, lie, play_out
from tests.tasks.programs.engines import engine
from tests.tasks.programs.tunings import SEED, Tuning, tuning

GAMES = int(os.environ.get("DISPUTE_GAMES", "6"))
ARRAYS = engine("numpy")
MODEL = LlamaShape(
    vocabulary=40, width=8, layers=1, heads=2, key_heads=1, head_width=4, hidden=12, context=16,
    rotary_base=10_000, epsilon_nano=10_000,
)  # fmt: skip
MADE = tuning(MODEL, FinetuneRates(Rates(20_000_000), "cosine", 1, 9, NANO), batch=2, rows=4, length=6, slots=4)
PROGRAM = finetune_program(MADE.job, MADE.rates)


def _looped() -> tuple[Tuning, Program]:
    """Return a job that accumulates and evaluates: of 2 + 2 + 1 steps, and once more."""
    shape = replace(MADE.job, train_rows=3, accumulate=2, evaluate_every=2, keeps_best=1)
    state = {name: MADE.state.get(name, bytes(kind.size_bytes)) for name, kind in state_tensors(shape).items()}
    made = replace(MADE, job=shape, state=state, rates=MADE.rates._replace(total_steps=4))
    return made, finetune_program(made.job, made.rates)


LOOPED, LOOPED_PROGRAM = _looped()
JOBS = {
    "whole": Job(PROGRAM, SEED, MADE.state, MADE.data, 0, 2, MADE.model),
    "accumulated": Job(LOOPED_PROGRAM, SEED, LOOPED.state, LOOPED.data, 2, 2, LOOPED.model),
    "evaluated": Job(LOOPED_PROGRAM, SEED, LOOPED.state, LOOPED.data, 4, 2, LOOPED.model),
}
"""The second has the last batch of an epoch and of an update; the third an evaluation and a batch after it."""


@cache
def _honest(name: str) -> SegmentRun:
    return JOBS[name].run(ARRAYS)


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("served", [True, False], ids=["served", "on-chain"])
def test_a_liar_at_a_random_value_loses(served: bool, name: str) -> None:
    honest, job = _honest(name), JOBS[name]
    program, played_out = job.program, 0
    for seed in count():
        random = Random(seed)
        tensor = random.randrange(len(program.sources), len(program.types))
        liar = lie(job, honest, ARRAYS, random.randrange(job.steps), tensor, random)
        if liar.question.end == honest.end_record:
            continue  # rounding took what was changed
        played = play_out(liar.question, liar.witness, honest.witness(), served=served, clever=random)
        assert played.game.ending is Ending.ELEMENT_WRONG, (seed, played.game.ending)
        played_out += 1
        if played_out == GAMES:
            break


@pytest.mark.parametrize("served", [True, False], ids=["served", "on-chain"])
def test_a_lie_about_a_product_of_several_blocks_is_found(served: bool) -> None:
    """Products with rows of A have 160 terms of 23 by 23 bits: two blocks of the kernel."""
    made = tuning(replace(MODEL, width=160), MADE.rates, batch=2, rows=4, length=6, slots=4)
    program = finetune_program(made.job, made.rates)
    job = Job(program, SEED, made.state, made.data, 0, 2, made.model)
    honest = job.run(ARRAYS)
    number = next(
        number for number, call in enumerate(program.calls, len(program.sources))
        if call.operator == "contract" and call.attributes == (23,)
        and program.types[call.inputs[0]].columns == 160
    )  # fmt: skip
    liar = lie(job, honest, ARRAYS, 0, number, Random(3), coarse=200.0)
    assert liar.question.end != honest.end_record
    played = play_out(liar.question, liar.witness, honest.witness(), served=served)
    assert played.game.fold is not None and played.game.fold.terms == 160
    assert played.game.ending is not None and played.game.ending.loser is Side.ACCUSED


def _operators() -> list[tuple[str, str]]:
    """Return every operator, with a job whose program has it."""
    names = {call.operator: "evaluated" for call in LOOPED_PROGRAM.calls}
    return sorted((names | {call.operator: "whole" for call in PROGRAM.calls}).items())


@pytest.mark.slow
@pytest.mark.parametrize(("operator", "name"), _operators())
def test_a_lie_in_any_operator_is_found(operator: str, name: str) -> None:
    """One game on each operator of the program whose result reaches what is committed to."""
    honest, job = _honest(name), JOBS[name]
    program = job.program
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
