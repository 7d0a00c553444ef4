"""Disputes about a deep model: machines run its step by need, and the judge never builds all of its layers."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any

import pytest

from tasks.dispute import running
from tasks.dispute.game import Side
from tasks.dispute.running import SegmentRun
from tasks.engines.generating import Generator, first_state
from tasks.programs.adamw import Rates
from tasks.programs.arrays import Array
from tasks.programs.finetune import FinetuneRates, finetune_program
from tasks.programs.generate import marked_program
from tasks.programs.layered import LAYERS, Pattern, layered_program
from tasks.programs.llama_shape import LlamaShape
from tasks.programs.operators.scalars import NANO
from tasks.programs.program import Program
from tasks.programs.running import Runner, content_of
from tasks.programs.tensors import ElementType
from tests.tasks.dispute.liars import Job, play_out, question_of
from tests.tasks.programs.engines import engine
from tests.tasks.programs.generations import Generation, generation, real_weights, smollm_generation
from tests.tasks.programs.test_finetune_units import SMOL
from tests.tasks.programs.tunings import SEED, Tuning, pattern_of, tuning

ARRAYS = engine("numpy")
RATES = FinetuneRates(Rates(20_000_000), "cosine", 1, 9, NANO)
DEEP = LlamaShape(
    vocabulary=40, width=8, layers=11, heads=2, key_heads=1, head_width=4, hidden=12, context=16,
    rotary_base=10_000, epsilon_nano=10_000,
)  # fmt: skip

COARSE = ("add", "contract", "divide", "multiply", "subtract")


def liar_of(program: Program, tensor: int, random: Random) -> type[Runner]:
    """Return a runner whose result of one call has one false value."""
    kind = program.types[tensor]
    place = random.randrange(kind.values)

    class Liar(Runner):
        def _one(self, job: Any, tensors: list[Array], context: Any, number: int) -> Array:
            values = super()._one(job, tensors, context, number)
            if number != tensor:
                return values
            content, at = content_of(self._arrays, kind, values), place * kind.element.size
            (value,) = struct.unpack_from("<d", content, at)
            false = struct.pack("<d", value + 1.0 if abs(value) < 1.0 else value * 1.5)
            changed = content[:at] + false + content[at + kind.element.size :]
            return self._arrays.from_content(changed, "f8", kind.rows, kind.columns)

    return Liar


def play_deep(make: Callable[[], Program], made: Job, games: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Play games on chain about one step, each with a liar at a random call."""
    lazy, arrays = make(), ARRAYS
    job = made._replace(program=lazy)
    honest, played = job.run(arrays), 0
    for seed in count():
        random = Random(seed)
        tensor = random.randrange(len(lazy.sources), len(lazy.types))
        call = lazy.call_of(tensor)
        if call is None or call.operator not in COARSE or lazy.types[tensor].element != ElementType.BINARY64:
            continue
        with monkeypatch.context() as patched:
            patched.setattr(running, "Runner", liar_of(lazy, tensor, random))
            false: SegmentRun = job.run(arrays)
        if false.end_record == honest.end_record:
            continue
        # The judge has a pattern of its own.
        question = question_of(job, honest, false.end_record)._replace(program=make())
        found = play_out(question, false.witness(), honest.witness(), served=False)
        assert found.game.ending is not None and found.game.ending.loser is Side.ACCUSED, (seed, found)
        played += 1
        if played == games:
            return


def tuning_by_need(made: Tuning) -> tuple[Callable[[], Program], Job]:
    def make() -> Program:
        return layered_program(pattern_of(made.job, made.rates), made.job.model.layers)

    return make, Job(make(), SEED, made.state, made.data, 0, 1, made.model)


def decoding_by_need(made: Generation, step: int) -> tuple[Callable[[], Program], Job]:
    """Return the program of a step of decoding, and what the step starts from."""

    def make() -> Program:
        like = replace(made.shape, model=replace(made.shape.model, layers=LAYERS))
        return layered_program(Pattern(marked_program(like)), made.shape.model.layers)

    run = Generator(made.plan, made.model, made.data, ARRAYS, first_state(made.plan))
    run.run_steps(step)
    return make, Job(make(), SEED, run.state().tensors, made.data, step, 1, made.model)


@pytest.mark.slow
def test_a_liar_at_a_random_call_of_a_deep_model_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    made = tuning(DEEP, RATES, batch=2, rows=4, length=6, slots=4)
    play_deep(*tuning_by_need(made), 1, monkeypatch)


def test_a_liar_at_a_random_call_of_a_deep_models_decoding_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    play_deep(*decoding_by_need(generation(DEEP), 4), 2, monkeypatch)


@pytest.mark.nightly
@real_weights
def test_a_liar_at_a_random_call_of_smollm2_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its real weights, at the place after the prompts."""
    made = smollm_generation()
    play_deep(*decoding_by_need(made, made.shape.length), 1, monkeypatch)


@pytest.mark.slow
def test_a_step_by_need_is_the_step_of_the_whole_program() -> None:
    made = tuning(DEEP, RATES, batch=2, rows=4, length=6, slots=4)
    lazy = layered_program(pattern_of(made.job, made.rates), DEEP.layers)
    whole = finetune_program(made.job, made.rates)
    one, other = (Job(each, SEED, made.state, made.data, 0, 2, made.model).run(ARRAYS) for each in (lazy, whole))
    assert one.end_record == other.end_record
    assert one.trace(1).trace_tree.root == other.trace(1).trace_tree.root
    assert (one.trace(1).data_tree.root, one.trace(1).model_tree.root) == (
        other.trace(1).data_tree.root, other.trace(1).model_tree.root,
    )  # fmt: skip


@pytest.mark.nightly
def test_a_liar_at_a_random_call_of_the_shape_of_smollm2_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    """SmolLM2-135M with random weights: 18,567 calls, 2 gigabytes of tensors, ten minutes."""
    made = tuning(SMOL, RATES, batch=1, rows=1, length=8, slots=4, spread=0.02)
    play_deep(*tuning_by_need(made), 1, monkeypatch)
