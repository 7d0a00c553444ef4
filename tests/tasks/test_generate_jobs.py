"""Jobs of the kind ``generate``: their specification, what they cost, their life on the ledger, their disputes."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from node.cli.jobs import FORMATS, spec_from_json
from rpc.methods.jobs import spec_to_json
from state.primitives.codec import Value, decode, encode
from state.primitives.errors import DecodeError
from tasks.custody.layout import state_size
from tasks.dispute.commitments import StepRecord
from tasks.dispute.game import Ending, Side
from tasks.engines import generating_plan
from tasks.engines.generating import Generator, first_state
from tasks.engines.generating_plan import GeneratingPlan
from tasks.engines.held import COSTS_HELD_MAX
from tasks.engines.state import TrainingState
from tasks.ledger.lifecycle import Phase
from tasks.programs.generate import MADE
from tasks.programs.layered import LayeredProgram
from tasks.programs.llama_shape import LAYERS_MAX
from tasks.programs.operators.scalars import NANO
from tasks.programs.program import SourceKind
from tasks.spec import SPEC_LIMIT_BYTES, Schedule, decode_spec, encode_spec
from tests.tasks.dispute.liars import Job, lie, play_out
from tests.tasks.generated import HOW, STEPS, asked, by_row, generated, sampled
from tests.tasks.model_jobs import check_specification, games_of_liars
from tests.tasks.programs.engines import engine
from tests.tasks.world import World

ARRAYS = engine("numpy")
DRAWING = {
    "sum_from": 1 << 28, "count_from": 30, "raise_threshold": 1 << 26, "share_of": 1 << 28, "draw": 1 << 25,
    "sum_up_to": 1 << 27, "first_above": 1,
}  # fmt: skip
"""Operators that only sampling has, and by how much a lie about each is off."""
SPEC, PLAN, MADE_JOB = generated()
PART: Any = SPEC.part
ASKED_HASH = "ee73d11f72425bd203b60d3c311475779d36439a16981355a3a8a97b05ca0200"
SAMPLED_HASH = "d8fe1f0c1ef7f2139cb0124383e8e039847c534065175f110daff919100bb0ac"
HASH = "733c17573b8899634c55c2593c14a6410a8ea6945ba973cbd2a0a095194e0568"


ASKED, ASKED_PLAN, ASKED_JOB = asked()
ASKED_PART: Any = ASKED.part
SAMPLED, SAMPLED_PLAN, SAMPLED_JOB = sampled()
SAMPLED_PART: Any = SAMPLED.part


def test_a_specification_of_a_tuned_model_has_one_encoding_too() -> None:
    check_specification(ASKED, ASKED_PLAN, first_state(ASKED_PLAN), ASKED_HASH)
    assert ASKED_JOB.adapter is not None
    assert [given.size_bytes for given in ASKED.inputs()][2] == len(ASKED_JOB.adapter.encode())


@pytest.mark.parametrize(
    "change",
    [
        {"rank": 0}, {"rank": 1 << 40}, {"alpha": 0}, {"targets": ()}, {"targets": ("down", "query")},
        {"root": b"short"}, {"blob": b""}, {"step": -1}, {"step": 1 << 40},
    ],
    ids=str,
)  # fmt: skip
def test_a_job_with_adapters_that_cannot_be_run_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(DecodeError):
        decode_spec(encode_spec(ASKED.changed(adapter=ASKED_PART.adapter._replace(**change))))


def test_a_specification_that_samples_has_one_encoding_too() -> None:
    check_specification(SAMPLED, SAMPLED_PLAN, first_state(SAMPLED_PLAN), SAMPLED_HASH)
    assert SAMPLED_PLAN.shape.sampling == HOW
    assert len(encode_spec(SPEC)) < len(encode_spec(SAMPLED))


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 0}, {"temperature": -1}, {"temperature": 101 * NANO}, {"top_p": -1}, {"top_p": NANO + 1},
        {"top_k": -1}, {"top_k": 1 << 40}, {"name": "nucleus"}, {"ends": (7, 2)},
    ],
    ids=str,
)  # fmt: skip
def test_a_job_that_samples_otherwise_than_a_program_can_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(DecodeError):
        decode_spec(encode_spec(SAMPLED.changed(decoding=SAMPLED_PART.decoding._replace(**change))))


@pytest.mark.parametrize(
    "fields",
    [
        ["greedy", 4, [2, 7], 0, 0, 0],
        ["greedy", 4, [2, 7], 5, 5, 5],
        ["sampled", 4, [2, 7]],
        ["sampled", 4, [2, 7], 5],
        ["sampled", 4],
    ],
)
def test_a_greedy_job_has_no_fields_of_sampling(fields: list[Value]) -> None:
    value: Any = decode(encode_spec(SPEC), limit_bytes=SPEC_LIMIT_BYTES)
    place = next(at for at, one in enumerate(value) if isinstance(one, list) and one[:1] == ["greedy"])
    with pytest.raises(DecodeError):
        decode_spec(encode([*value[:place], fields, *value[place + 1 :]]))


def test_a_specification_has_one_encoding_and_its_json_form_is_read_back() -> None:
    check_specification(SPEC, PLAN, first_state(PLAN), HASH)


@pytest.mark.parametrize(
    "change",
    [
        {"model": PART.model._replace(name="gpt2")},
        {"model": PART.model._replace(layers=0)},
        {"model": PART.model._replace(tied=2)},
        {"model": PART.model._replace(width=1 << 62)},
        {"model": PART.model._replace(vocabulary=7)},
        {"dataset": PART.dataset._replace(rows=3)},
        {"dataset": PART.dataset._replace(rows=6)},
        {"dataset": PART.dataset._replace(rows=0)},
        {"dataset": PART.dataset._replace(length=17)},
        {"dataset": PART.dataset._replace(root=b"short")},
        {"batch": 0},
        {"batch": 3},
        {"batch": 1 << 40},
        {"decoding": PART.decoding._replace(name="sampled")},
        {"decoding": PART.decoding._replace(new_tokens=0)},
        {"decoding": PART.decoding._replace(new_tokens=1 << 62)},
        {"decoding": PART.decoding._replace(ends=(7, 2))},
        {"decoding": PART.decoding._replace(ends=(1 << 62,))},
        {"decoding": PART.decoding._replace(ends=tuple(range(9)))},
        {"kind": "train"},
        {"kind": "finetune"},
        {"level": 2},
        {"schedule": Schedule(STEPS, 5, STEPS)},
        {"schedule": Schedule(STEPS - 1, 1, 1)},
        {"schedule": Schedule(STEPS + 1, 1, 1)},
    ],
)
def test_a_job_that_cannot_be_run_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(DecodeError):
        decode_spec(encode_spec(SPEC.changed(**change)))


def test_the_work_units_of_as_many_jobs_are_known_as_of_fine_tuning() -> None:
    """Each proof of a window asks for them: with jobs of many shapes no validator computes them each time."""
    assert generating_plan._HELD._costs.cache_info().maxsize == COSTS_HELD_MAX


def test_no_validator_builds_all_layers_of_a_deep_model() -> None:
    spec = decode_spec(encode_spec(SPEC.changed(model=PART.model._replace(layers=LAYERS_MAX))))
    spec.plan().check()
    program, plan = spec.program(), spec.plan()
    assert isinstance(program, LayeredProgram) and isinstance(plan, GeneratingPlan)
    assert spec.step_units == program.units
    assert state_size(plan, STEPS) == len(first_state(plan).encode())


def test_a_task_is_created_proven_checked_and_settled_by_the_units_of_its_program() -> None:
    """Machines whose work is made up, for the ledger looks at none of it before a dispute."""
    spec = generated(window=STEPS // 2)[0]
    world = World()
    world.add_machine(1), world.add_machine(2), world.add_machine(3)
    task = world.create(spec)
    record = world.run_to(task, Phase.SETTLED)
    assert record.final_windows == spec.windows == 2


def test_a_state_is_written_in_the_types_of_its_tensors() -> None:
    state = run(STEPS).state()
    assert len(state.encode()) == state_size(PLAN, STEPS)
    for suffix in (".npz", ".safetensors"):
        assert state.tensors[MADE] in FORMATS[suffix](state, PLAN)


def run(steps: int) -> Generator:
    found = Generator(PLAN, MADE_JOB.model, MADE_JOB.data, ARRAYS, first_state(PLAN))
    found.run_steps(steps)
    return found


def test_a_workers_segments_and_a_disputed_one_have_the_same_records_and_a_liar_loses() -> None:
    """The engine's state and work are what the game opens, under the roots that stand in the specification."""
    worker = run(4)
    before = worker.state()
    done = worker.run_segment(2)
    job = Job(SPEC.program(), SPEC.seed, before.tensors, MADE_JOB.data, 4, 2, MADE_JOB.model)
    honest = job.run(ARRAYS)
    assert honest.end_record == StepRecord(done.state_root, done.work_digest, done.loss_bits)
    for game in games_of_liars(SPEC, job, honest, before.root(PLAN)):
        accused, challenger = game.as_accused.game.ending, game.as_challenger.game.ending
        assert accused is not None and accused.loser is Side.ACCUSED
        assert challenger is None or challenger.loser is Side.CHALLENGER


def sampled_job(steps: int) -> Job:
    worker = Generator(SAMPLED_PLAN, SAMPLED_JOB.model, SAMPLED_JOB.data, ARRAYS, first_state(SAMPLED_PLAN))
    worker.run_steps(steps)
    return Job(
        SAMPLED.program(), SAMPLED.seed, worker.state().tensors, SAMPLED_JOB.data, steps, 2, SAMPLED_JOB.model
    )  # fmt: skip


def test_a_liar_about_a_job_that_samples_loses() -> None:
    worker = Generator(SAMPLED_PLAN, SAMPLED_JOB.model, SAMPLED_JOB.data, ARRAYS, first_state(SAMPLED_PLAN))
    worker.run_steps(4)
    before, job = worker.state(), sampled_job(4)
    done, honest = worker.run_segment(2), job.run(ARRAYS)
    assert honest.end_record == StepRecord(done.state_root, done.work_digest, done.loss_bits)
    for game in games_of_liars(SAMPLED, job, honest, before.root(SAMPLED_PLAN)):
        accused, challenger = game.as_accused.game.ending, game.as_challenger.game.ending
        assert accused is not None and accused.loser is Side.ACCUSED
        assert challenger is None or challenger.loser is Side.CHALLENGER


@pytest.mark.parametrize("operator", DRAWING)
def test_a_liar_about_an_operator_of_sampling_loses(operator: str) -> None:
    """Whatever its lie does to the token: a lie without effect is a claim that is right."""
    job = sampled_job(4)
    honest, first = job.run(ARRAYS), len(job.program.sources)
    calls = [at for at, call in enumerate(job.program.calls, first) if call.operator == operator]
    lost = 0
    for seed, number in enumerate([*calls[:4], *calls[-4:]] * 4):
        liar = lie(job, honest, ARRAYS, 0, number, Random(seed), coarse=DRAWING[operator])
        if liar.question.end == honest.end_record:
            continue
        played = play_out(liar.question, liar.witness, honest.witness(), served=bool(seed % 2))
        assert played.game.ending is not None and played.game.ending.loser is Side.ACCUSED
        lost += 1
        if lost == 3:
            return
    assert lost


def own_job(steps: int) -> Job:
    spec, plan, made = by_row()
    worker = Generator(plan, made.model, made.data, ARRAYS, first_state(plan))
    worker.run_steps(steps)
    return Job(spec.program(), spec.seed, worker.state().tensors, made.data, steps, 2, made.model)


@pytest.mark.parametrize("operator", ["temper", "share_by", "draw_by"])
def test_a_liar_about_numbers_of_a_row_loses(operator: str) -> None:
    """What rows say of themselves is data, under the root of the job's prompts."""
    job = own_job(2)
    honest, first = job.run(ARRAYS), len(job.program.sources)
    (number,) = [at for at, call in enumerate(job.program.calls, first) if call.operator == operator]
    coarse = {"temper": 40, "share_by": 1 << 27, "draw_by": 1 << 25}[operator]
    lost = 0
    for seed in range(60):
        liar = lie(job, honest, ARRAYS, 0, number, Random(seed), coarse=coarse)
        if liar.question.end == honest.end_record:
            continue
        played = play_out(liar.question, liar.witness, honest.witness(), served=bool(seed % 2))
        assert played.game.ending is not None and played.game.ending.loser is Side.ACCUSED
        lost += 1
        if lost == 2:
            return
    assert lost


def test_rows_that_say_how_they_are_decoded_stand_behind_the_adapter() -> None:
    spec, plan, _ = by_row()
    raw = encode_spec(spec)
    assert decode_spec(raw) == spec == spec_from_json(spec_to_json(spec)) and spec.plan() == plan
    value: Any = decode(raw, limit_bytes=2048)
    assert value[8:10] == [[], [0]]
    wrong: list[Any] = [[], [-1], [1_537], [0, 0], 0]
    for one in wrong:
        with pytest.raises(DecodeError):
            decode_spec(encode([*value[:9], one, *value[10:]]))
    part: Any = spec.part
    with pytest.raises(DecodeError):
        decode_spec(encode_spec(spec.changed(decoding=part.decoding._replace(name="sampled", temperature=1))))


def test_a_worker_that_draws_with_another_seed_loses() -> None:
    """Its tokens are those of another job's honest run: its first random integer is an element that differs."""
    job = sampled_job(4)
    honest, other = job.run(ARRAYS), job._replace(seed=bytes(32)).run(ARRAYS)
    assert other.end_record != honest.end_record
    draw = next(at for at, call in enumerate(job.program.calls) if call.operator == "draw")
    first = honest.trace(0).contents[draw + len(job.program.sources)]
    assert other.trace(0).contents[draw + len(job.program.sources)] != first
    question = lie(job, honest, ARRAYS, 0, draw + len(job.program.sources), Random(1)).question
    asked_of = question._replace(end=other.end_record)
    for served in (True, False):
        played = play_out(asked_of, other.witness(), honest.witness(), served=served)
        assert played.game.ending is Ending.ELEMENT_WRONG


def test_a_worker_that_picks_its_own_token_loses() -> None:
    job = sampled_job(4)
    honest, store = job.run(ARRAYS), job.program.stores[MADE]
    for served in (True, False):
        liar = lie(job, honest, ARRAYS, 0, store, Random(1))
        played = play_out(liar.question, liar.witness, honest.witness(), served=served)
        assert played.game.ending is Ending.ELEMENT_WRONG


def test_a_liar_about_a_tuned_model_loses() -> None:
    """Its adapters stand under the root of the state that its training left."""
    worker = Generator(ASKED_PLAN, ASKED_JOB.model, ASKED_JOB.data, ARRAYS, first_state(ASKED_PLAN))
    worker.run_steps(4)
    before = worker.state()
    job = Job(ASKED.program(), ASKED.seed, before.tensors, ASKED_JOB.data, 4, 2, ASKED_JOB.model)
    honest = job.run(ARRAYS)
    for game in games_of_liars(ASKED, job, honest, before.root(ASKED_PLAN)):
        accused = game.as_accused.game.ending
        assert accused is not None and accused.loser is Side.ACCUSED
    program = ASKED.program()
    read = {number for call in program.calls for number in call.inputs}
    matrix = next(
        at for at, one in enumerate(program.sources) if one.kind is SourceKind.ADAPTER and at in read
    )  # fmt: skip
    load = next(
        at for at, call in enumerate(program.calls, len(program.sources)) if call.inputs == (matrix,)
    )  # fmt: skip
    for served in (True, False):
        liar = lie(job, honest, ARRAYS, 0, load, Random(1), coarse=1.0)
        played = play_out(
            liar.question._replace(adapter=ASKED.adapter_root()), liar.witness, honest.witness(), served=served
        )
        assert played.game.ending is Ending.ELEMENT_WRONG


def test_a_false_token_is_an_element_that_a_game_names() -> None:
    """A worker that writes another token than it chose, and goes on from there, loses by that store."""
    job = Job(SPEC.program(), SPEC.seed, run(4).state().tensors, MADE_JOB.data, 4, 2, MADE_JOB.model)
    honest, store = job.run(ARRAYS), job.program.stores[MADE]
    for served in (True, False):
        liar = lie(job, honest, ARRAYS, 0, store, Random(1))
        played = play_out(liar.question, liar.witness, honest.witness(), served=served)
        assert played.game.ending is Ending.ELEMENT_WRONG


def test_a_state_with_a_token_that_no_model_has_is_refused() -> None:
    from tasks.engines.errors import StateInvalid

    state = run(4).state()
    table = np.frombuffer(state.tensors[MADE], dtype="<i2").copy()
    table[0] = PLAN.shape.model.vocabulary
    with pytest.raises(StateInvalid):
        wrong = TrainingState(4, {**state.tensors, MADE: table.tobytes()})
        Generator(PLAN, MADE_JOB.model, MADE_JOB.data, ARRAYS, wrong)
