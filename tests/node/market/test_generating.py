"""Jobs that decode prompts, by nodes: prompts and model come from the network (market.md R77)."""

from __future__ import annotations

from typing import Any

import trio

from node.market.duties import DutyService
from tasks.engines.generating import completions
from tasks.engines.input_blobs import join_tensors
from tasks.engines.state import TrainingState
from tasks.ledger.lifecycle import Phase, WindowPhase
from tasks.ledger.records import load_window
from tasks.models.decoding import Decoder
from tasks.programs.generate import prompt_tensors
from tasks.programs.llama_shape import weight_tensors
from tasks.proofs import Code
from tasks.spec import decode_spec, encode_spec
from tests.node.market.test_tuning import name_of, put, started, world
from tests.node.world import Machine, World
from tests.tasks.generated import STEPS, generated
from tests.tasks.programs.engines import engine

__all__ = ["world"]

_SPEC, PLAN, MADE = generated(segment=3, window=STEPS // 2)
PROMPTS = join_tensors(prompt_tensors(PLAN.shape), MADE.data)
MODEL = join_tensors(weight_tensors(PLAN.shape.model), MADE.model)
_PART: Any = _SPEC.part
SPEC = decode_spec(encode_spec(_SPEC.changed(
    dataset=_PART.dataset._replace(blob=name_of(PROMPTS)), model=_PART.model._replace(blob=name_of(MODEL))
)))  # fmt: skip


async def test_prompts_are_decoded_checked_and_paid(world: World) -> None:
    worker, verifier = Machine(world, 1, "compute"), Machine(world, 2, "verify")
    async with trio.open_nursery() as nursery:
        market, holder = await started(world, nursery, worker, verifier)
        put(holder, PROMPTS, MODEL)
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
        decoder = Decoder(MADE.frozen, engine("numpy"))
        wanted = decoder.decode(MADE.prompts, PLAN.shape.new, frozenset(PLAN.shape.ends)).tokens
        assert completions(PLAN.shape, MADE.data, state) == wanted
        nursery.cancel_scope.cancel()
