"""What holds for every job with a decoder: its specification, and games about a segment of its worker."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from random import Random
from typing import NamedTuple

from node.cli.jobs import spec_from_json
from rpc.methods.jobs import spec_to_json
from tasks.dispute.commitments import Question, StepRecord
from tasks.dispute.running import SegmentRun
from tasks.engines.generating_plan import GeneratingPlan
from tasks.engines.state import TrainingState
from tasks.engines.tuning_plan import TuningPlan
from tasks.kinds.finetune import FinetunePart
from tasks.kinds.generate import GeneratePart
from tasks.ledger.questions import question_of
from tasks.ledger.records import Opened, load_window
from tasks.ledger.screening import check_start
from tasks.programs.program import SourceKind
from tasks.spec import JobSpec, decode_spec, encode_spec, spec_hash
from tests.tasks.dispute.liars import Job, Played, lie, play_out
from tests.tasks.programs.engines import engine
from tests.tasks.world import World

LIARS = 5


def check_specification(
    spec: JobSpec, plan: TuningPlan | GeneratingPlan, start: TrainingState, expected_hash: str
) -> None:
    """Check that a specification has one encoding, that its JSON form is read back, and what follows from it."""
    raw, part = encode_spec(spec), spec.part
    assert isinstance(part, FinetunePart | GeneratePart)
    assert decode_spec(raw) == spec
    assert spec_from_json(spec_to_json(spec)) == spec
    assert spec_hash(raw).hex() == expected_hash
    assert spec.plan() == plan
    assert (spec.step_units, plan.step_calls) == (plan.program.units, len(plan.program.calls))
    roots = {SourceKind.DATA: part.dataset.root, SourceKind.MODEL: part.model.root}
    if isinstance(part, GeneratePart) and part.adapter is not None:
        roots[SourceKind.ADAPTER] = part.adapter.root
    assert {given.kind: given.root for given in spec.inputs()} == roots
    assert len(start.encode()) <= plan.state_limit_bytes
    assert check_start(spec) == []
    assert [found.code for found in check_start(spec.changed(init_root=bytes(32)))] == ["init_root_differs"]


class LiarsGames(NamedTuple):
    """How games about one lie ended: with the liar as the accused, and as challenger of the honest worker."""

    as_accused: Played
    as_challenger: Played


def games_of_liars(
    spec: JobSpec, job: Job, honest: SegmentRun, before: bytes, tensors: range | None = None
) -> Iterator[LiarsGames]:
    """Yield the games of LIARS liars, each with one false tensor of the segment that ``honest`` ran.

    The questions are those of a window on a ledger, after ``before``, the root of the state there.
    With ``tensors`` the false one is one of these.
    """
    arrays, world, end = engine("numpy"), World(), honest.end_record
    world.add_machine(1), world.add_machine(2)
    task = world.create(spec)
    world.run(task, until=lambda record: record.next_window > 0)
    window = load_window(world.state, task, 0)

    def asked(end: StepRecord) -> Question:
        opened = Opened(job.step_from // job.steps, before, end.state_root, end.work_digest, end.loss_total)
        return question_of(spec, window, opened)

    question, games = asked(end), 0
    shown = honest.trace(0)
    assert question.data == shown.data_tree.root
    assert not question.model or question.model == shown.model_tree.root
    assert not question.adapter or question.adapter == shown.adapter_tree.root
    for seed in count():
        random = Random(seed)
        step, tensor = (
            random.randrange(job.steps),
            random.choice(tensors or range(len(job.program.sources), len(job.program.types))),
        )
        liar, served = lie(job, honest, arrays, step, tensor, random), bool(seed % 2)
        if liar.question.end == end:
            continue
        yield LiarsGames(
            play_out(asked(liar.question.end), liar.witness, honest.witness(), served=served),
            play_out(question, honest.witness(), liar.witness, served=served),
        )
        games += 1
        if games == LIARS:
            return
