"""Jobs of the kind ``finetune``: their specification, what they cost, their life on the ledger, their disputes."""

from __future__ import annotations

from typing import Any

import pytest

from state.primitives.errors import DecodeError
from tasks.dispute.commitments import StepRecord
from tasks.dispute.game import Ending, Side
from tasks.engines.errors import UnsupportedJob
from tasks.engines.tuning import Tuner, first_state
from tasks.kinds.finetune import STEP_CALLS_MAX
from tasks.ledger.lifecycle import Phase
from tasks.ledger.screening import dataset_objections, kind_objections, read_dataset_facts
from tasks.spec import Schedule, classifier_plan, decode_spec, encode_spec
from tests.tasks.dispute.liars import Job
from tests.tasks.model_jobs import check_specification, games_of_liars
from tests.tasks.programs.engines import engine
from tests.tasks.tuned import STEPS, tuned
from tests.tasks.world import World

ARRAYS = engine("numpy")
SPEC, PLAN, MADE = tuned()
PART: Any = SPEC.part
UNCLIPPED = PART.rates._replace(clip_nano=0)


def test_a_specification_has_one_encoding_and_its_json_form_is_read_back() -> None:
    check_specification(SPEC, PLAN, first_state(PLAN), HASH)
    assert kind_objections(SPEC) == []
    large = SPEC.changed(model=PART.model._replace(vocabulary=1 << 18, width=1 << 14, head_width=512))
    assert [found.code for found in kind_objections(large)] == ["model_too_large"]
    rows = read_dataset_facts(bytes(SPEC.inputs()[0].size_bytes))
    assert dataset_objections(SPEC, rows) == []
    shorter = dataset_objections(SPEC, rows._replace(size_bytes=rows.size_bytes - 1))
    assert [found.code for found in shorter] == ["dataset_size_differs"]
    with pytest.raises(UnsupportedJob):
        classifier_plan(SPEC)


HASH = "418bf23b080e8a759f87364146330a5ba16549c08777ae6e96f2e0c81844ee89"


@pytest.mark.parametrize(
    "change",
    [
        {"model": PART.model._replace(name="gpt2")},
        {"model": PART.model._replace(layers=0)},
        {"model": PART.model._replace(layers=200)},
        {"model": PART.model._replace(heads=3, key_heads=2)},
        {"model": PART.model._replace(tied=2)},
        {"model": PART.model._replace(blob=b"short")},
        {"model": PART.model._replace(vocabulary=1 << 19, hidden=1 << 19, width=1 << 19)},
        {"model": PART.model._replace(width=1 << 62)},
        {"dataset": PART.dataset._replace(samples=5)},
        {"dataset": PART.dataset._replace(slots=7)},
        {"dataset": PART.dataset._replace(length=17)},
        {"dataset": PART.dataset._replace(rows=1 << 25)},
        {"adapters": PART.adapters._replace(rank=257)},
        {"adapters": PART.adapters._replace(alpha=0)},
        {"adapters": PART.adapters._replace(targets=())},
        {"adapters": PART.adapters._replace(targets=("key", "query"))},
        {"adapters": PART.adapters._replace(targets=("query", "query"))},
        {"adapters": PART.adapters._replace(targets=("head",))},
        {"batch": 0},
        {"batch": 1 << 40},
        {"optimiser": PART.optimiser._replace(name="sgd")},
        {"optimiser": PART.optimiser._replace(learning_rate_nano=0)},
        {"rates": PART.rates._replace(name="step")},
        {"rates": PART.rates._replace(clip_nano=1 << 50)},
        {"rates": PART.rates._replace(warmup_steps=STEPS)},
        {"loop": PART.loop._replace(accumulate=0)},
        {"loop": PART.loop._replace(accumulate=1 << 17)},
        {
            "loop": PART.loop._replace(accumulate=4, evaluate_every=0),
            "schedule": Schedule(3, 3, 3),
            "dataset": PART.dataset._replace(samples=3),
        },
        {"loop": PART.loop._replace(evaluate_every=1)},
        {"loop": PART.loop._replace(keeps_best=1)},
        {"loop": PART.loop._replace(evaluate_every=1, keeps_best=2), "dataset": PART.dataset._replace(samples=3)},
        {"loop": PART.loop._replace(evaluate_every=4), "dataset": PART.dataset._replace(samples=2)},
        {"kind": "train"},
        {"kind": "generate"},
        {"kind": "embed"},
        {"level": 2},
        {"schedule": Schedule(STEPS, 4, STEPS)},
    ],
)
def test_a_job_that_cannot_be_run_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(DecodeError):
        decode_spec(encode_spec(SPEC.changed(**change)))


def test_a_specification_with_another_number_of_fields_is_refused() -> None:
    from state.primitives.codec import decode, encode

    value = decode(encode_spec(SPEC), limit_bytes=2048)
    assert isinstance(value, list)
    for wrong in (value[:-1], [*value, 0], value[:4], []):
        with pytest.raises(DecodeError):
            decode_spec(encode(wrong))
    value[6] = [4, 8, ["query", 1]]
    with pytest.raises(DecodeError, match=r"adapters\.targets"):
        decode_spec(encode(value))


def test_a_step_of_too_many_calls_is_refused_with_their_number() -> None:
    with pytest.raises(DecodeError, match=f"calls, at most {STEP_CALLS_MAX}"):
        decode_spec(encode_spec(SPEC.changed(model=PART.model._replace(layers=200), rates=UNCLIPPED)))


def test_a_task_is_created_proven_checked_and_settled_by_the_units_of_its_program() -> None:
    """Machines whose work is made up, for the ledger looks at none of it before a dispute."""
    world = World()
    world.add_machine(1), world.add_machine(2), world.add_machine(3)
    task = world.create(SPEC)
    record = world.run_to(task, Phase.SETTLED)
    assert record.final_windows == SPEC.windows


def test_a_workers_segments_and_a_disputed_one_have_the_same_records_and_a_liar_loses() -> None:
    """The engine's state and work are what the game opens, under the roots that stand in the specification."""
    tuner = Tuner(PLAN, MADE.model, MADE.data, ARRAYS, first_state(PLAN))
    tuner.run_segment(2)
    before = tuner.state()
    done = tuner.run_segment(2)
    job = Job(SPEC.program(), SPEC.seed, before.tensors, MADE.data, 2, 2, MADE.model)
    honest = job.run(ARRAYS)
    assert honest.end_record == StepRecord(done.state_root, done.work_digest, done.loss_bits)
    for game in games_of_liars(SPEC, job, honest, before.root(PLAN)):
        challenger = game.as_challenger.game.ending
        assert game.as_accused.game.ending is Ending.ELEMENT_WRONG
        assert challenger is None or challenger.loser is Side.CHALLENGER
