"""Jobs whose way back computes layers again: same states, fewer values at once (market.md R152)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError
from tasks.dispute.commitments import StepRecord
from tasks.dispute.game import Side
from tasks.engines.decoder_plan import DecoderPlan
from tasks.engines.decoder_training import DecoderTrainer
from tasks.engines.state import TrainingState
from tasks.engines.tuning import Tuner, first_state
from tasks.engines.tuning_plan import TuningPlan
from tasks.kinds.finetune import Preference, Recompute, TrainingLoop
from tasks.ledger.lifecycle import Phase
from tasks.models.adapters import Receipt, receipt_of
from tasks.programs.errors import ProgramInvalid
from tasks.programs.finetune import PROJECTIONS, Part, marked_program
from tasks.programs.memory import step_memory
from tasks.requests.errors import RequestInvalid
from tasks.requests.reading import request_of
from tasks.spec import decode_spec, encode_spec
from tests.tasks.dispute.liars import Job
from tests.tasks.model_jobs import games_of_liars
from tests.tasks.programs.engines import NAMES, engine
from tests.tasks.programs.llamas import TINY
from tests.tasks.programs.test_decoder import ADAMW
from tests.tasks.programs.test_finetune_units import RATES
from tests.tasks.programs.trainings import training
from tests.tasks.programs.tunings import tuning
from tests.tasks.trained import trained
from tests.tasks.tuned import tuned
from tests.tasks.world import World

ARRAYS = engine("numpy")
AGAIN = Recompute(1)


def again(plan: Any) -> Any:
    return replace(plan, shape=replace(plan.shape, recompute=1))


@pytest.mark.parametrize("name", NAMES)
def test_adapters_of_all_weights_are_the_same_to_the_bit(name: str) -> None:
    check_same_adapters(name, PROJECTIONS, 0)


@pytest.mark.parametrize(
    ("targets", "preference"), [(("query", "key", "value", "output"), 0), (("down",), 100_000_000)]
)
def test_adapters_of_some_weights_are_the_same_to_the_bit(targets: tuple[str, ...], preference: int) -> None:
    check_same_adapters("numpy", targets, preference)


def check_same_adapters(name: str, targets: tuple[str, ...], preference: int) -> None:
    made = tuning(replace(TINY, layers=2), RATES, targets, preference=preference)
    roots = list[bytes]()
    for plan in (TuningPlan(made.job, RATES, bytes(32)), again(TuningPlan(made.job, RATES, bytes(32)))):
        state = TrainingState(0, made.state)
        run = Tuner(plan, made.model, made.data, engine(name), state)
        run.run_segment(2)
        roots.append(run.state().root(plan))
    assert roots[0] == roots[1]


@pytest.mark.parametrize("name", NAMES)
def test_weights_from_scratch_are_the_same_to_the_bit(name: str) -> None:
    rates = RATES._replace(adamw=ADAMW)
    made = training(replace(TINY, layers=2), rates)
    results = []
    for plan in (DecoderPlan(made.job, rates, bytes(32)), again(DecoderPlan(made.job, rates, bytes(32)))):
        run = DecoderTrainer(plan, made.data, engine(name), TrainingState(0, made.state))
        results.append((run.run_segment(2).state_root, run.run_steps(1)))
    assert results[0] == results[1]  # probe and loss too


def test_a_deep_model_needs_less_memory_and_costs_a_quarter_more() -> None:
    made = tuning(replace(TINY, layers=12), RATES, PROJECTIONS, length=24, batch=8, rows=8)
    plan = TuningPlan(made.job, RATES, bytes(32))
    assert step_memory(again(plan).program).step < step_memory(plan.program).step / 2
    assert 1.1 < again(plan).step_units / plan.step_units < 1.4


@pytest.mark.parametrize("made", [tuned()[0], trained()[0]], ids=["finetune", "train"])
def test_a_specification_has_one_encoding(made: Any) -> None:
    spec = made.changed(recompute=AGAIN)
    assert decode_spec(encode_spec(spec)) == spec
    plan: Any = spec.plan()
    assert plan.shape.recompute == 1
    value: Any = decode(encode_spec(spec), limit_bytes=2048)
    at = value.index([1], 9)
    wrongs: list[Any] = [[], [0], [2], [1, 1], [True]]
    for wrong in wrongs:
        with pytest.raises(DecodeError):
            decode_spec(encode([*value[:at], wrong, *value[at + 1 :]]))


def test_all_fields_of_later_versions_stand_together() -> None:
    spec = tuned(preference=100_000_000, loop=TrainingLoop(2))[0].changed(recompute=AGAIN)
    part: Any = spec.part
    assert part.preference == Preference(100_000_000)
    assert decode_spec(encode_spec(spec)) == spec


@pytest.mark.slow
def test_a_liar_loses_the_dispute_about_a_layer_that_is_computed_again() -> None:
    spec, plan, made = tuned()
    spec, plan = spec.changed(recompute=AGAIN), again(plan)
    tuner = Tuner(plan, made.model, made.data, ARRAYS, first_state(plan))
    before = tuner.state()
    done = tuner.run_segment(2)
    job = Job(spec.program(), spec.seed, before.tensors, made.data, 0, 2, made.model)
    honest = job.run(ARRAYS)
    assert honest.end_record == StepRecord(done.state_root, done.work_digest, done.loss_bits)
    marks = marked_program(plan.shape, plan.rates).marks
    first = next(mark.call for mark in marks if mark.part == Part.BACKWARD)
    after = next(mark.call for mark in marks if mark.part > Part.BACKWARD)
    offset = len(job.program.sources)
    tensors = range(offset + first, offset + after)
    for game in games_of_liars(spec, job, honest, before.root(plan), tensors):
        accused, challenger = game.as_accused.game.ending, game.as_challenger.game.ending
        assert accused is not None and accused.loser is Side.ACCUSED
        assert challenger is None or challenger.loser is Side.CHALLENGER


def test_a_task_is_created_proven_checked_and_settled_by_the_units_of_its_program() -> None:
    world, spec = World(), tuned()[0].changed(recompute=AGAIN)
    world.add_machine(1), world.add_machine(2), world.add_machine(3)
    assert spec.step_units == spec.program().units > tuned()[0].step_units
    assert world.run_to(world.create(spec), Phase.SETTLED).final_windows == spec.windows


@pytest.mark.parametrize("number", [-1, 2])
def test_a_shape_says_it_or_does_not(number: int) -> None:
    for job in (tuning(TINY, RATES).job, training(TINY, RATES).job):
        with pytest.raises(ProgramInvalid, match="again"):
            replace(job, recompute=number)


@pytest.mark.parametrize("kind", ["finetune", "train"])
def test_a_request_has_the_field_of_trainers(kind: str) -> None:
    fields = {"kind": kind, "data": "rows.jsonl"} | ({"model": "m"} if kind == "finetune" else {})
    for value in (True, False):
        made: Any = request_of(fields | {"gradient_checkpointing": value})
        assert made.settings.recompute is value
    for wrong in (1, "layers", None):
        with pytest.raises(RequestInvalid, match="gradient_checkpointing: true or false"):
            request_of(fields | {"gradient_checkpointing": wrong})


def test_a_receipt_says_it_and_those_of_before_are_read() -> None:
    spec, plan, _ = tuned()
    terms: Any = {
        "base": "some/model", "task": None, "model_root": spec.model_root(), "rows_root": spec.dataset.root,
    }  # fmt: skip
    for shape, found in ((plan.shape, None), (again(plan).shape, 1)):
        receipt = receipt_of(shape, first_state(plan), **terms)
        assert Receipt.decode(receipt.encode()) == receipt
        assert json.loads(receipt.encode())["shape"].get("recompute") == found
