"""Jobs of the kind ``train`` with a decoder: specification, cost, life on the ledger, disputes (market.md R88)."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest

from node.cli.jobs import spec_from_json
from rpc.methods.jobs import spec_to_json
from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError
from state.primitives.merkle import MerkleProof, verify_merkle_proof
from tasks.dispute.commitments import StepRecord
from tasks.dispute.game import Ending, Side
from tasks.engines.decoder_training import DecoderTrainer, first_state
from tasks.engines.errors import UnsupportedJob
from tasks.evaluations import evaluations_of, is_end, least_steps, show_losses
from tasks.kinds.finetune import TrainingLoop
from tasks.ledger.lifecycle import Phase
from tasks.ledger.screening import check_start, dataset_objections, kind_objections, read_dataset_facts
from tasks.programs.loop import EVALUATIONS_MAX
from tasks.programs.looped import EVALUATION_LOSSES, losses_in
from tasks.programs.program import SourceKind
from tasks.programs.states import tensor_leaf
from tasks.programs.tensors import ElementType, TensorType, tensor_root
from tasks.spec import Schedule, classifier_plan, decode_spec, encode_spec, read_checked_spec, spec_hash
from tests.tasks.dispute.liars import Job
from tests.tasks.model_jobs import games_of_liars
from tests.tasks.programs.engines import engine
from tests.tasks.trained import STEPS, trained
from tests.tasks.world import World

ARRAYS = engine("numpy")
LOSSES = TensorType(ElementType.BINARY32, 1, EVALUATIONS_MAX)
SPEC, PLAN, MADE = trained()
PART: Any = SPEC.part
HASH = "b43de37b7bb4b6809f58441508015e8c457eca1f2e01133cae198742242286de"


def test_a_specification_has_one_encoding_and_its_json_form_is_read_back() -> None:
    raw = encode_spec(SPEC)
    assert decode_spec(raw) == read_checked_spec(raw) == SPEC
    assert spec_from_json(spec_to_json(SPEC)) == SPEC
    assert spec_hash(raw).hex() == HASH
    assert SPEC.plan() == PLAN
    assert (SPEC.step_units, PLAN.step_calls) == (PLAN.program.units, len(PLAN.program.calls))
    assert [(given.kind, given.root) for given in SPEC.inputs()] == [(SourceKind.DATA, PART.dataset.root)]
    assert (SPEC.model_bytes(), SPEC.model_root(), SPEC.adapter_root()) == (0, b"", b"")
    assert len(first_state(PLAN).encode()) <= PLAN.state_limit_bytes
    with pytest.raises(UnsupportedJob):
        classifier_plan(SPEC)


def test_what_a_requester_could_have_wrong_is_named() -> None:
    assert check_start(SPEC) == [] == kind_objections(SPEC)
    assert [found.code for found in check_start(SPEC.changed(init_root=bytes(32)))] == ["init_root_differs"]
    rows = read_dataset_facts(bytes(SPEC.inputs()[0].size_bytes))
    assert dataset_objections(SPEC, rows) == []
    shorter = dataset_objections(SPEC, rows._replace(size_bytes=rows.size_bytes - 1))
    assert [found.code for found in shorter] == ["dataset_size_differs"]


@pytest.mark.parametrize(
    "change",
    [
        {"model": PART.model._replace(name="mlp")},
        {"model": PART.model._replace(name="gpt2")},
        {"model": PART.model._replace(layers=0)},
        {"model": PART.model._replace(layers=200)},
        {"model": PART.model._replace(heads=3, key_heads=2)},
        {"model": PART.model._replace(tied=2)},
        {"model": PART.model._replace(vocabulary=1 << 21)},
        {"model": PART.model._replace(vocabulary=1 << 19, width=64)},
        {"model": PART.model._replace(width=1 << 62)},
        {"dataset": PART.dataset._replace(samples=5)},
        {"dataset": PART.dataset._replace(length=17)},
        {"dataset": PART.dataset._replace(rows=1 << 25)},
        {"dataset": PART.dataset._replace(blob=b"short")},
        {"batch": 0},
        {"batch": 1 << 40},
        {"optimiser": PART.optimiser._replace(name="sgd")},
        {"optimiser": PART.optimiser._replace(learning_rate_nano=0)},
        {"rates": PART.rates._replace(name="step")},
        {"rates": PART.rates._replace(warmup_steps=STEPS)},
        {"kind": "finetune"},
        {"kind": "generate"},
        {"level": 2},
        {"schedule": Schedule(STEPS, 4, STEPS)},
    ],
    ids=str,
)
def test_a_job_that_cannot_be_run_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(DecodeError):
        decode_spec(encode_spec(SPEC.changed(**change)))


LOOPED, LOOPED_PLAN, _ = trained(loop=TrainingLoop(1, 2, 1, 2), samples=3, segment=1)
LOOPED_PART: Any = LOOPED.part


def test_a_loop_stands_behind_the_start_and_shows_its_losses() -> None:
    """One in which every step is an update stands nowhere: there is one encoding (R134)."""
    raw = encode_spec(LOOPED)
    assert decode_spec(raw) == read_checked_spec(raw) == LOOPED == spec_from_json(spec_to_json(LOOPED))
    assert LOOPED.plan() == LOOPED_PLAN and LOOPED.schedule.total_steps == LOOPED_PLAN.loop.steps == 6 + 3
    assert (LOOPED.step_units, LOOPED_PLAN.step_calls) == (
        LOOPED_PLAN.program.units, len(LOOPED_PLAN.program.calls),
    )  # fmt: skip
    assert len(first_state(LOOPED_PLAN).encode()) <= LOOPED_PLAN.state_limit_bytes
    value: Any = decode(raw, limit_bytes=2048)
    assert value[9:11] == [[], [1, 2, 1, 2]]
    loops: list[Any] = [[], [1, 0, 0], [2, 0, 0, 1], [1, 2, 1, 0], [1, 2], [1, 2, 2]]
    for loop in loops:
        with pytest.raises(DecodeError):
            decode_spec(encode([*value[:10], loop, *value[11:]]))
    assert LOOPED.losses_of(0, 9) == 6 and SPEC.losses_of(0, 6) == 6


def test_losses_of_a_training_are_those_of_the_state_that_a_proof_leaves() -> None:
    """The path leads to the root; another loss, another place or another state do not (R86)."""
    _, plan, made = trained(loop=TrainingLoop(2, 1, 1), samples=3)
    job = trained(loop=TrainingLoop(2, 1, 1), samples=3)[0]
    run = DecoderTrainer(plan, made.data, ARRAYS, first_state(plan))
    run.run_steps(6)
    state = run.state()
    shown = show_losses(job, state)
    assert shown is not None and losses_in(shown.content)[0] > 0
    leaf = tensor_leaf(EVALUATION_LOSSES, LOSSES, tensor_root(LOSSES, shown.content))
    proof = MerkleProof(*plan.shape.losses_place, shown.siblings)
    assert verify_merkle_proof(state.root(plan), leaf, proof)
    assert not verify_merkle_proof(run.state().root(plan)[::-1], leaf, proof)
    assert [one.update for one in evaluations_of(job, 6, shown.content)] == [1, 2]
    assert show_losses(SPEC, first_state(PLAN)) is None


def test_a_training_ends_early_where_its_losses_say_so() -> None:
    """Each evaluation after the first is no lower: with a patience of 1 the second one ends the job (R87)."""
    spec, plan, made = trained(loop=TrainingLoop(1, 1, 1, 1), samples=3)
    risen = struct.pack(f"<{EVALUATIONS_MAX}f", 1.0, 2.0, *[0.0] * (EVALUATIONS_MAX - 2))
    end = plan.loop.evaluated_at(1)
    assert plan.ends_at(end, risen) and not plan.ends_at(end - 1, risen)
    state = first_state(plan)
    assert is_end(spec, replace(state, step=end, tensors={**state.tensors, EVALUATION_LOSSES: risen}))
    assert least_steps(spec) == end < spec.schedule.total_steps
    run = DecoderTrainer(plan, made.data, ARRAYS, state)
    run.run_steps(plan.loop.steps)
    assert run.step == (end if plan.ends_at(end, run.state().tensors[EVALUATION_LOSSES]) else run.step)


def test_a_specification_with_another_number_of_fields_is_refused() -> None:
    value = decode(encode_spec(SPEC), limit_bytes=2048)
    assert isinstance(value, list)
    for wrong in (value[:-1], [*value, 0], value[:4], value[:5], []):
        with pytest.raises(DecodeError):
            decode_spec(encode(wrong))


def test_a_task_is_created_proven_checked_and_settled_by_the_units_of_its_program() -> None:
    """Machines whose work is made up, for the ledger looks at none of it before a dispute."""
    world = World()
    world.add_machine(1), world.add_machine(2), world.add_machine(3)
    task = world.create(SPEC)
    record = world.run_to(task, Phase.SETTLED)
    assert record.final_windows == SPEC.windows


def test_a_liar_loses_in_both_seats_and_who_is_honest_never_does() -> None:
    """The engine's state and work are what the game opens, under the roots that stand in the specification."""
    trainer = DecoderTrainer(PLAN, MADE.data, ARRAYS, first_state(PLAN))
    trainer.run_segment(2)
    before = trainer.state()
    done = trainer.run_segment(2)
    job = Job(SPEC.program(), SPEC.seed, before.tensors, MADE.data, 2, 2)
    honest = job.run(ARRAYS)
    assert honest.end_record == StepRecord(done.state_root, done.work_digest, done.loss_bits)
    for game in games_of_liars(SPEC, job, honest, before.root(PLAN)):
        challenger = game.as_challenger.game.ending
        assert game.as_accused.game.ending is Ending.ELEMENT_WRONG
        assert challenger is None or challenger.loser is Side.CHALLENGER
