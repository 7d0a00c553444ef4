"""Plans of every kind come back from their values, with each of their fields."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError
from tasks.engines.errors import UnsupportedJob
from tasks.engines.plan_values import plan_from_value, plan_to_value
from tasks.executor.job import _PLANS, Job
from tasks.kinds.finetune import TrainingLoop
from tasks.programs.errors import ProgramInvalid
from tasks.spec import JobSpec, Schedule
from tests.tasks.executor.helpers import make_spec
from tests.tasks.generated import asked, by_row, generated, sampled
from tests.tasks.passed import ADAPTER, embedded, evaluated
from tests.tasks.trained import trained
from tests.tasks.tuned import TINY, tuned

JOBS = {
    "classifier": make_spec(), "tuning": tuned()[0],
    "tuning that ends early": tuned(updates=4, samples=3, loop=TrainingLoop(2, 2, 1, 1))[0],
    "greedy": generated()[0], "sampled": sampled()[0], "asked": asked()[0], "encoder": embedded().spec,
    "decoder that embeds": embedded(TINY).spec, "evaluation": evaluated().spec,
    "evaluation of a tuned model": evaluated(adapter=ADAPTER).spec, "decoder": trained()[0],
    "decoder that ends early": trained(loop=TrainingLoop(1, 2, 1, 2), samples=3, segment=1)[0],
    "rows that say how they are decoded": by_row()[0],
}  # fmt: skip


def others(item: Any) -> Iterator[Any]:
    """Return values like one, each with another value of one of its fields, at any depth."""
    match item:
        case bool():
            yield not item
        case int():
            yield from (item + 1, item + 2, max(0, item - 1))
        case str():
            yield from ("cosine", "linear", "constant", "relu", "silu", "mean", "cls", "last")
        case bytes():
            yield bytes([item[0] ^ 1]) + item[1:]
        case tuple() if hasattr(item, "_fields"):
            named: Any = item
            for name in named._fields:
                for other in others(getattr(named, name)):
                    yield named._replace(**{name: other})
        case tuple():
            yield from (item[:-1], item[1:], (*item, *item))
        case None:
            return
        case _ if is_dataclass(item):
            for field in fields(item):
                for other in others(getattr(item, field.name)):
                    try:
                        yield replace(item, **{field.name: other})  # type: ignore[type-var]
                    except (ProgramInvalid, UnsupportedJob):
                        continue
        case _:
            raise AssertionError(f"no other value of {type(item)}")


def test_there_is_a_job_for_each_class_of_plans() -> None:
    assert {type(spec.plan()) for spec in JOBS.values()} == set(_PLANS.values())


@pytest.mark.parametrize("name", JOBS)
def test_each_field_of_a_plan_is_written_and_read(name: str) -> None:
    job = Job.of(JOBS[name])
    assert Job.decode(job.encode()) == job
    plan: Any = job.plan
    changed = [other for other in others(plan) if other != plan]
    names = {field.name for field in fields(plan)} - ({"patience"} if name in ("tuning", "decoder") else set())
    assert {one for one in names if any(getattr(other, one) != getattr(plan, one) for other in changed)} == names
    seen = {encode(plan_to_value(plan))}
    for other in changed:
        written = encode(plan_to_value(other))
        assert plan_from_value(type(plan), decode(written, limit_bytes=4096)) == other
        seen.add(written)
    assert len(seen) == 1 + len({repr(one) for one in changed}), "two plans have one value"


def with_steps(changed: list[JobSpec]) -> Iterator[JobSpec]:
    """Yield specifications with as many steps as they may have: with another batch there are other ones."""
    for spec in changed:
        for total in range(1, 61):
            one = spec._replace(schedule=Schedule(total, 1, total))
            try:
                Job.of(one)
            except (UnsupportedJob, ProgramInvalid):
                continue
            yield one


def reached(spec: JobSpec) -> tuple[Any, ...]:
    """Return what the job of a specification has of its own."""
    job = Job.of(spec)
    return plan_to_value(job.plan), job.dataset_root, job.model_root, job.adapter_root


@pytest.mark.parametrize("name", JOBS)
def test_each_field_of_a_specification_reaches_the_job(name: str) -> None:
    """One that changes nothing of what the process runs would be lost on the way, without an error."""
    spec = JOBS[name]
    part: Any = spec.part
    own, lost = reached(spec), set[str]()
    for field in part._fields:
        changed = [spec.changed(**{field: other}) for other in others(getattr(part, field))]
        if changed and not any(own != reached(one) for one in with_steps(changed)):
            lost.add(field)
    assert lost == set()


@pytest.mark.parametrize("name", JOBS)
def test_other_values_are_refused(name: str) -> None:
    plan: Any = Job.of(JOBS[name]).plan
    value: Any = plan_to_value(plan)
    for wrong in (None, 7, b"", [], value[:-1], [*value, 0], [[], *value[1:]], [*value[:-1], "x"], [value]):
        with pytest.raises((DecodeError, UnsupportedJob)):
            plan_from_value(type(plan), wrong)
