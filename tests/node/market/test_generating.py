"""Jobs that decode prompts, by nodes: prompts and model come from the network (market.md R77)."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from node.market.duties import DutyService
from tasks.engines.generating import Generator, first_state
from tasks.engines.input_blobs import join_tensors
from tasks.engines.state import TrainingState
from tasks.executor.results import Verdict
from tasks.executor.service import Executor
from tasks.ledger.lifecycle import Phase, WindowPhase
from tasks.ledger.records import load_window
from tasks.programs.generate import prompt_tensors
from tasks.programs.llama_shape import weight_tensors
from tasks.proofs import Code
from tasks.spec import decode_spec, encode_spec
from tests.node.market.test_tuning import name_of, put, started, world
from tests.node.world import Machine, World
from tests.tasks.generated import STEPS, asked
from tests.tasks.programs.engines import engine

__all__ = ["world"]

_SPEC, PLAN, MADE = asked(segment=3, window=STEPS // 2)
assert MADE.adapter is not None
PROMPTS = join_tensors(prompt_tensors(PLAN.shape), MADE.data)
MODEL = join_tensors(weight_tensors(PLAN.shape.model), MADE.model)
ADAPTER = MADE.adapter.encode()
_PART: Any = _SPEC.part
SPEC = decode_spec(encode_spec(_SPEC.changed(
    dataset=_PART.dataset._replace(blob=name_of(PROMPTS)), model=_PART.model._replace(blob=name_of(MODEL)),
    adapter=_PART.adapter._replace(blob=name_of(ADAPTER)),
)))  # fmt: skip


async def test_a_tuned_model_is_asked_checked_in_one_pass_and_paid(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts, model and adapters come from the network, and what a verifier has as guesses too."""
    claimed, verify_segment = list[TrainingState](), Executor.verify_segment

    async def noted(self: Executor, *args: Any, **named: Any) -> Verdict:
        claimed.append(TrainingState.decode(named["claimed"], PLAN))
        return await verify_segment(self, *args, **named)

    monkeypatch.setattr(Executor, "verify_segment", noted)
    worker, verifier = Machine(world, 1, "compute"), Machine(world, 2, "verify")
    async with trio.open_nursery() as nursery:
        market, holder = await started(world, nursery, worker, verifier)
        put(holder, PROMPTS, MODEL, ADAPTER)
        await nursery.start(worker.run)
        await nursery.start(verifier.run)
        await market.post(SPEC)
        await world.mint_until(lambda: market.record.phase == Phase.SETTLED, timeout_s=120)
        windows = [load_window(world.store, market.task, number) for number in range(SPEC.windows)]
        for window in windows:
            assert window.phase == WindowPhase.FINAL
            assert {f.code for seat in window.verifiers for f in seat.findings or ()} == {Code.COMPUTED}
        assert isinstance(worker.duties, DutyService)
        assert worker.network.blobs is not None
        state = TrainingState.decode(worker.network.blobs.read(windows[-1].proof.output_blob), PLAN)
        assert state.root(PLAN) == windows[-1].proof.state_root_out
        direct = Generator(PLAN, MADE.model, MADE.data, engine("numpy"), first_state(PLAN))
        ends = dict[int, TrainingState]()
        for _ in range(0, STEPS, 3):
            direct.run_steps(3)
            ends[direct.step] = direct.state()
        assert state == ends[STEPS]
        assert claimed and all(one == ends[one.step] for one in claimed)
        assert {one.step % 6 for one in claimed} == {0, 3}, "ends of windows, and of segments within"
        nursery.cancel_scope.cancel()
