"""What a job names and its worker commits to is what a dispute about it opens."""

from __future__ import annotations

from tasks.dispute.commitments import StepRecord, start_record
from tasks.dispute.running import SegmentRun
from tasks.engines.training import Trainer, initial_state
from tasks.spec import classifier_plan
from tests.tasks.executor.helpers import DATA, make_spec
from tests.tasks.programs.engines import engine


def test_a_workers_segment_and_a_disputed_one_have_the_same_records() -> None:
    spec = make_spec()
    plan, arrays = classifier_plan(spec), engine("numpy")
    trainer = Trainer(plan, DATA, arrays, initial_state(plan))
    before = trainer.state()
    for _ in range(2):
        done = trainer.run_segment(spec.schedule.segment_steps)
        segment = SegmentRun(
            spec.program(), arrays, seed=spec.seed, state=before.tensors, data=DATA.contents,
            step_from=before.step, steps=spec.schedule.segment_steps,
        )  # fmt: skip
        trace = segment.trace(0)
        assert trace.data_tree.root == spec.dataset.root
        assert segment.record(0) == start_record(before.root(plan)) == start_record(trace.before_tree.root)
        assert segment.end_record == StepRecord(done.state_root, done.work_digest, done.loss_bits)
        before = trainer.state()
        assert segment.end == before.tensors
    assert initial_state(plan).root(plan) == spec.init_root
