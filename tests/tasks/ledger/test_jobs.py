"""The job of a task as its steps read it: as it was checked, with the sizes from its creation (R78)."""

from __future__ import annotations

from typing import Any

import pytest

from state.primitives.errors import RecordDamaged
from state.view import EMPTY, Overlay, Table
from tasks.custody.layout import state_size
from tasks.engines import tuning_plan
from tasks.ledger.disputes import RELEASED_MOVES_MAX, release_moves
from tasks.ledger.jobs import kept_job, sizes_of
from tasks.ledger.records import load_job, save_spec
from tasks.spec import JobSpec, encode_spec
from tests.tasks.generated import asked, generated
from tests.tasks.passed import ADAPTER, embedded, evaluated
from tests.tasks.trained import trained
from tests.tasks.tuned import tuned
from tests.tasks.world import World, spec

JOBS: dict[str, JobSpec] = {
    "train": spec(),
    "decoder": trained(12)[0],
    "finetune": tuned(12)[0],
    "generate": generated()[0],
    "adapted": asked()[0],
    "embed": embedded().spec,
    "evaluate": evaluated(adapter=ADAPTER).spec,
}


def _all_of(job: JobSpec) -> tuple[int, ...]:
    units = job.step_units, job.step_ms, job.window_units(0)
    return (*units, job.state_limit_bytes, job.inputs_bytes(), job.model_bytes())


@pytest.mark.parametrize("name", JOBS)
def test_a_kept_job_is_the_one_that_was_checked_and_has_its_sizes(name: str) -> None:
    job = JOBS[name]
    kept = kept_job(encode_spec(job), sizes_of(job))
    assert kept == job
    assert type(kept.part) is type(job.part)
    assert _all_of(kept) == _all_of(job)
    for step in (0, 23, 24, 255, 1 << 20):
        assert kept.state_bytes(step) == state_size(job.plan(), step)


def test_a_changed_copy_of_a_kept_job_computes_its_own_sizes() -> None:
    job = tuned(12)[0]
    part: Any = job.part
    other = {"model": part.model._replace(layers=5)}
    kept = kept_job(encode_spec(job), sizes_of(job))
    assert kept.changed(**other).step_units == job.changed(**other).step_units != job.step_units


def test_a_step_of_a_task_computes_no_work_units(monkeypatch: pytest.MonkeyPatch) -> None:
    job = tuned(12)[0]
    sizes = sizes_of(job)

    class Refusing:
        def __getattr__(self, name: str) -> None:
            raise AssertionError("counted again")

    monkeypatch.setattr(tuning_plan, "_HELD", Refusing())
    kept = kept_job(encode_spec(job._replace(seed=b"o" * 32)), sizes)
    assert kept.window_units(0) == sizes.step_units * job.schedule.window_steps


def test_a_damaged_specification_is_told_as_damage() -> None:
    world = World()
    task = world.task(world.create())
    state = Overlay(EMPTY)
    for raw in (b"", b"\x80", b"\x82\x01\x65train", encode_spec(spec())[:-1]):
        save_spec(state, task.id, raw)
        with pytest.raises(RecordDamaged):
            load_job(state, task)


def test_a_block_looks_at_so_many_ended_games_whose_moves_are_gone() -> None:
    state = Overlay(EMPTY)
    count = 3 * RELEASED_MOVES_MAX
    for at in range(count):
        state.put(bytes([Table.DISPUTE_RELEASE]) + at.to_bytes(32, "big") + bytes(8), b"\x01")
    release_moves(state)
    assert sum(value is not None for value in state.changes.values()) == count - RELEASED_MOVES_MAX
