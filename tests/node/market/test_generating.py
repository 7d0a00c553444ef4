"""Jobs that decode prompts, by nodes: prompts and model come from the network (market.md R77)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import trio

from node.market.duties import DutyService
from tasks.engines.generating import Generator, first_state
from tasks.engines.generating_plan import GeneratingPlan
from tasks.engines.input_blobs import join_tensors
from tasks.engines.state import TrainingState
from tasks.executor.results import Verdict
from tasks.executor.service import Executor
from tasks.ledger.lifecycle import Phase, WindowPhase
from tasks.ledger.records import load_window
from tasks.programs.generate import prompt_tensors
from tasks.programs.llama_shape import weight_tensors
from tasks.proofs import Code
from tasks.spec import JobSpec, decode_spec, encode_spec
from tests.node.market.test_tuning import name_of, put, started, world
from tests.node.world import Machine, World
from tests.tasks.generated import STEPS, asked, sampled
from tests.tasks.programs.engines import engine
from tests.tasks.programs.generations import Generation

__all__ = ["world"]


class Published(NamedTuple):
    """A job whose blobs are named by their content, its plan, and these blobs."""

    spec: JobSpec
    plan: GeneratingPlan
    made: Generation
    blobs: tuple[bytes, ...]


def published(make: Callable[..., tuple[JobSpec, GeneratingPlan, Generation]]) -> Published:
    spec, plan, made = make(segment=3, window=STEPS // 2)
    prompts = join_tensors(prompt_tensors(plan.shape), made.data)
    model = join_tensors(weight_tensors(plan.shape.model), made.frozen.contents())
    part: Any = spec.part
    fields = {
        "dataset": part.dataset._replace(blob=name_of(prompts)),
        "model": part.model._replace(blob=name_of(model)),
    }
    blobs = [prompts, model]
    if made.adapter is not None:
        blobs.append(made.adapter.encode())
        fields["adapter"] = part.adapter._replace(blob=name_of(blobs[-1]))
    return Published(decode_spec(encode_spec(spec.changed(**fields))), plan, made, tuple(blobs))


@pytest.mark.slow
@pytest.mark.parametrize("make", [asked, sampled], ids=["tuned", "sampled"])
async def test_a_job_is_run_checked_in_one_pass_and_paid(
    world: World, monkeypatch: pytest.MonkeyPatch, make: Callable[..., tuple[JobSpec, GeneratingPlan, Generation]]
) -> None:
    """Prompts, model and adapters come from the network, and what a verifier has as guesses too."""
    spec, plan, made, blobs = published(make)
    claimed, verify_segment = list[TrainingState](), Executor.verify_segment

    async def noted(self: Executor, *args: Any, **named: Any) -> Verdict:
        claimed.append(TrainingState.decode(named["claimed"], plan))
        return await verify_segment(self, *args, **named)

    monkeypatch.setattr(Executor, "verify_segment", noted)
    worker, verifier = Machine(world, 1, "compute"), Machine(world, 2, "verify")
    async with trio.open_nursery() as nursery:
        market, holder = await started(world, nursery, worker, verifier)
        put(holder, *blobs)
        await nursery.start(worker.run)
        await nursery.start(verifier.run)
        await market.post(spec)
        await world.mint_until(lambda: market.record.phase == Phase.SETTLED, timeout_s=120)
        windows = [load_window(world.store, market.task, number) for number in range(spec.windows)]
        for window in windows:
            assert window.phase == WindowPhase.FINAL
            assert {f.code for seat in window.verifiers for f in seat.findings or ()} == {Code.COMPUTED}
        assert isinstance(worker.duties, DutyService)
        assert worker.network.blobs is not None
        state = TrainingState.decode(worker.network.blobs.read(windows[-1].proof.output_blob), plan)
        assert state.root(plan) == windows[-1].proof.state_root_out
        direct = Generator(plan, made.model, made.data, engine("numpy"), first_state(plan))
        ends = dict[int, TrainingState]()
        for _ in range(0, STEPS, 3):
            direct.run_steps(3)
            ends[direct.step] = direct.state()
        assert state == ends[STEPS]
        assert claimed and all(one == ends[one.step] for one in claimed)
        assert {one.step % 6 for one in claimed} == {0, 3}, "ends of windows, and of segments within"
        nursery.cancel_scope.cancel()
