"""Jobs about what another task has left, by nodes: its state comes from the network (market.md R132, R133)."""

from __future__ import annotations

from typing import Any, cast

import pytest
import trio

from tasks.engines.tuning import Tuner, first_state
from tasks.engines.tuning_plan import TuningPlan
from tasks.ledger.lifecycle import Phase, WindowPhase
from tasks.ledger.records import load_window
from tasks.models.left import Tuned, tuned_adapter
from tasks.proofs import Code
from tasks.spec import JobSpec, Schedule, decode_spec, encode_spec
from tests.node.market.test_tuning import MADE, MODEL, PLAN, ROWS, has, job, name_of, put, started, world
from tests.node.world import Machine, World
from tests.tasks.programs.engines import engine
from tests.tasks.test_pass_jobs import JOBS, blobs_of, run
from tests.tasks.test_starts import Left
from tests.tasks.tuned import STEPS

__all__ = ["world"]


def going_on(first: Tuned, seed: bytes) -> JobSpec:
    """Return the job that goes on from what ``first`` has left."""
    left = tuned_adapter(first)
    plan: Any = PLAN
    begun = left.begun(plan)
    changed = job(seed=seed).changed(
        start=left, init_root=begun.of(first.state).root(plan), schedule=Schedule(STEPS, 1, STEPS // 2)
    )
    return decode_spec(encode_spec(changed))


@pytest.mark.slow
async def test_a_job_goes_on_from_a_task_and_a_false_beginning_is_nobodys_failure(world: World) -> None:
    """The worker makes the first state of the blob; verifiers have it from the worker, and check its root."""
    assert isinstance(PLAN, TuningPlan)
    direct = Tuner(PLAN, MADE.model, MADE.data, engine("numpy"), first_state(PLAN))
    direct.run_steps(STEPS)
    first = Left(job(), direct.state())
    spec = going_on(first, b"g" * 32)
    begun = spec.start()
    assert begun is not None
    worker, verifier = Machine(world, 1, "compute"), Machine(world, 2, "verify")
    async with trio.open_nursery() as nursery:
        market, holder = await started(world, nursery, worker, verifier)
        put(holder, ROWS, MODEL, first.state.encode())
        await nursery.start(worker.run)
        await nursery.start(verifier.run)
        await market.post(spec)
        await world.mint_until(lambda: market.record.phase == Phase.SETTLED, timeout_s=120)
        windows = [load_window(world.store, market.task, number) for number in range(spec.windows)]
        assert len(windows) == 2
        for window in windows:
            assert window.phase == WindowPhase.FINAL
            assert {f.code for seat in window.verifiers for f in seat.findings or ()} == {Code.COMPUTED}
        assert has(worker, first.state.encode()) and not has(verifier, first.state.encode())
        plan: Any = spec.plan()
        again = Tuner(plan, MADE.model, MADE.data, engine("numpy"), begun.of(first.state))
        again.run_steps(STEPS)
        assert windows[-1].proof.state_root_out == again.state().root(plan) != direct.state().root(plan)

        duties = worker.duties
        assert duties is not None
        declined = duties._worker.tasks_declined
        false = decode_spec(encode_spec(spec.changed(seed=b"f" * 32, init_root=b"x" * 32)))
        await market.post(false)
        await world.mint_until(lambda: duties._worker.tasks_declined > declined, timeout_s=60)
        assert market.record.phase in (Phase.MATCHING, Phase.ASSIGNED, Phase.PREPARING)
        nursery.cancel_scope.cancel()


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["trained", "vectors of tuned"])
async def test_a_model_of_a_task_is_evaluated_and_makes_vectors(world: World, name: str) -> None:
    """Rows, model and state come from the network; of a model that a task has trained there is no frozen one."""
    made = JOBS[name]
    rows, blob = blobs_of(made)
    size, part = made.plan.model_bytes, cast("Any", made.spec.part)
    model, state = blob[:size], blob[size:]
    adapter = part.adapter._replace(blob=name_of(state))
    fields = {"dataset": part.dataset._replace(blob=name_of(rows)), "adapter": adapter}
    if model:
        fields["model"] = part.model._replace(blob=name_of(model))
    spec = decode_spec(encode_spec(made.spec.changed(**fields)))
    worker, verifier = Machine(world, 1, "compute"), Machine(world, 2, "verify")
    async with trio.open_nursery() as nursery:
        market, holder = await started(world, nursery, worker, verifier)
        put(holder, *[one for one in (rows, model, state) if one])
        for machine in (worker, verifier):
            await nursery.start(machine.run)
        await market.post(spec)
        await world.mint_until(lambda: market.record.phase == Phase.SETTLED, timeout_s=120)
        nursery.cancel_scope.cancel()
    window = load_window(world.store, market.task, 0)
    assert {f.code for seat in window.verifiers for f in seat.findings or ()} == {Code.COMPUTED}
    assert window.proof.state_root_out == run(made, made.plan.steps).state().root(made.plan)
