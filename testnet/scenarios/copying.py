"""A worker that computes nothing: it publishes what another machine has left of the same job.

Its states are the right ones, under its own name. What it cannot copy are the work digests: they stand under a
seal, and no state shows them (market.md 7.1). So it makes them up, and is found as soon as a window is audited.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from node.market.duties import DutyService
from node.market.inputs import InputUnavailable, Supply
from node.market.worker import Worker
from state.primitives.hashing import digest
from tasks.executor.job import SegmentRecord
from tasks.executor.results import WindowResult
from tasks.ledger.lifecycle import Phase
from tasks.ledger.queries import WorkDuty, tasks_by_phase
from tasks.ledger.records import WindowRecord, load_spec, load_window
from tasks.proofs import SegmentLeaf
from tasks.spec import JobSpec

__all__ = ["CopiersDuties"]

LOOKED_AT_MAX: Final = 64
"""Settled tasks among which it looks for the same job."""


class _Copier(Worker):
    """Takes tasks that another machine has done already."""

    async def _try(self, task: bytes, spec: JobSpec, duty: WorkDuty) -> None:
        await self._copied(task, spec, duty.window)  # raises where there is nothing to copy

    async def _compute(self, task: bytes, spec: JobSpec, duty: WorkDuty) -> None:
        for window in range(duty.window, spec.windows):
            await self._submit_window(task, spec, await self._copied(task, spec, window))

    async def _copied(self, task: bytes, spec: JobSpec, number: int) -> WindowResult:
        """Return a window as another machine has proved it. Raises InputUnavailable."""
        window = self._other(spec, number)
        supply = Supply(partial(self._inputs.holders, window))
        leaves = await self._inputs.leaves(spec, window, supply)
        states = [await self._inputs.segment_state(window.task, number, leaf, supply, spec) for leaf in leaves]
        states.append(await self._inputs.fetch_state(window, supply, spec))
        return WindowResult(number, tuple(map(_guessed, leaves)), states.__getitem__, "", None)

    def _other(self, spec: JobSpec, number: int) -> WindowRecord:
        for other in tasks_by_phase(self._ledger.store, Phase.SETTLED, None, LOOKED_AT_MAX).items:
            if load_spec(self._ledger.store, other.id).init_root == spec.init_root:
                return load_window(self._ledger.store, other.id, number)
        raise InputUnavailable("nobody has done this job")


def _guessed(leaf: SegmentLeaf) -> SegmentRecord:
    """Return a segment of another machine with a made-up work digest."""
    return SegmentRecord(
        leaf.step_from, leaf.step_to, leaf.state_root_before, leaf.state_root_after,
        digest(b"made up", leaf.state_root_after), leaf.loss_bits, compute_ms=1,
    )  # fmt: skip


class CopiersDuties(DutyService):
    """Copies results."""

    worker_type = _Copier
