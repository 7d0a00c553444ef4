"""Running a segment with the records that its worker commits to, and the trace of any of its steps on demand.

Both sides of a dispute use it: the accused on what it did, the challenger on the same state before the segment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from state.primitives.hashing import digest
from tasks.dispute.commitments import SegmentWitness, StepRecord, StepTrace
from tasks.programs.arrays import Array, Arrays
from tasks.programs.errors import StoreDiverged
from tasks.programs.operators import Context
from tasks.programs.program import Program, SourceKind
from tasks.programs.running import Runner, StepResult, content_of
from tasks.programs.states import state_root
from tasks.programs.tensors import tensor_root
from tasks.programs.work import add_losses

__all__ = ["SegmentRun"]

KEPT_STATES_MAX: Final = 16
"""States kept of a segment: a trace re-runs the steps from the last one before it, a sixteenth of them at most."""
_MARK_BITS: Final = 22


def _mark(secret: bytes) -> bytes:
    """Return the bits of a quiet binary32 NaN: no store gives one."""
    number = int.from_bytes(digest(b"diverged-mark", secret)[:4], "big")
    return (0x7FC0_0000 | number % (1 << _MARK_BITS)).to_bytes(4, "little")


class SegmentRun:
    """A segment of ``steps`` steps from ``step_from`` on, as this machine computes it."""

    def __init__(
        self, program: Program, arrays: Arrays, *, seed: bytes, state: Mapping[str, bytes],
        data: Mapping[str, bytes], step_from: int, steps: int, secret: bytes | None = None,
    ) -> None:  # fmt: skip
        """Run it. ``state`` and ``data`` are contents of tensors by name. Raises SourceInvalid, StoreDiverged.

        A challenger of a segment that should have diverged gives a ``secret``: the run then ends in the diverged
        step, which has no right record. What stands there follows from the secret, so that no accused committed
        to the same by chance or design.
        """
        self.program, self.step_from = program, step_from
        self._arrays, self._seed = arrays, seed
        self._runner = Runner(program, arrays)
        self._data = self._runner.load(SourceKind.DATA, data)
        self._every = -(-steps // KEPT_STATES_MAX)
        self._kept: dict[int, dict[str, Array]] = {}
        self._mark = None if secret is None else _mark(secret)
        current = self._runner.load(SourceKind.STATE, state)
        records: list[StepRecord] = []
        losses = 0
        for place in range(steps):
            if place % self._every == 0:
                self._kept[place] = current
            try:
                result = self._step(place, current)
            except StoreDiverged:
                if self._mark is None:
                    raise
                records += [self.trace(place).record(losses)] * (steps - place)
                break
            records.append(self._record(place, result, losses))
            current, losses = result.stores, records[-1].loss_total
        self.records = tuple(records)
        self.end = {name: self._content(program.stores[name], values) for name, values in current.items()}

    def _step(self, place: int, state: Mapping[str, Array]) -> StepResult:
        context = Context(self.step_from + place, self._seed)
        return self._runner.run(self._runner.sources(state, self._data), context)

    def _content(self, tensor: int, values: Array) -> bytes:
        return content_of(self._arrays, self.program.types[tensor], values)

    def _root(self, tensor: int, values: Array) -> bytes:
        return tensor_root(self.program.types[tensor], self._content(tensor, values))

    def _record(self, place: int, result: StepResult, losses: int) -> StepRecord:
        program = self.program
        tensors = {
            name: (program.types[program.stores[name]], self._root(program.stores[name], values))
            for name, values in result.stores.items()
        }
        loss = int.from_bytes(self._content(program.loss, result.loss), "little")
        return StepRecord(
            state_root(self.step_from + place + 1, tensors),
            self._root(program.probe, result.probe),
            add_losses(losses, loss),
        )

    def trace(self, place: int) -> StepTrace:
        """Return all tensors of a step, by its place in the segment."""
        start = place - place % self._every
        state = self._kept[start]
        for before in range(start, place):
            state = self._step(before, state).stores
        step = self.step_from + place
        sources = self._runner.sources(state, self._data)
        contents = self._runner.trace(sources, Context(step, self._seed), self._mark)
        return StepTrace(self.program, step, contents)

    def witness(self) -> SegmentWitness:
        """Return what this machine can show in a dispute; the last trace that was asked for is kept."""
        kept: dict[int, StepTrace] = {}

        def trace(place: int) -> StepTrace:
            if place not in kept:
                kept.clear()
                kept[place] = self.trace(place)
            return kept[place]

        return SegmentWitness(self.records, trace)
