"""Running a segment: what its worker commits to at its end, and what a dispute asks for after any of its steps.

The worker runs it to work, a verifier to check, and both sides of a dispute to play. Of a step only the probe is
hashed. States are hashed on demand, and found again from those that are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Final

from state.primitives.hashing import digest
from tasks.dispute.commitments import SegmentWitness, StepRecord, StepTrace
from tasks.dispute.contents import KEPT_BYTES, TraceContents
from tasks.programs.arrays import Array, Arrays
from tasks.programs.divergence import Divergence, diverged_root, extend_diverged
from tasks.programs.errors import StoreDiverged
from tasks.programs.operators import Context
from tasks.programs.program import Program, SourceKind
from tasks.programs.running import Runner, StepResult, content_of
from tasks.programs.states import state_root
from tasks.programs.tensors import tensor_root
from tasks.programs.work import WORK_START, add_losses, extend_work

__all__ = ["SegmentRun"]

KEPT_STATES_MAX: Final = 16
"""States kept of a segment, those between the parts of the first interval that is in question.

To find another state re-runs the steps from the last one before it: a sixteenth of all at most.
"""
_MARK_BITS: Final = 22
_NO_MARK: Final = bytes(4)


def _mark(secret: bytes) -> bytes:
    """Return the bits of a quiet binary32 NaN: no store gives one."""
    number = int.from_bytes(digest(b"diverged-mark", secret)[:4], "big")
    return (0x7FC0_0000 | number % (1 << _MARK_BITS)).to_bytes(4, "little")


def _diverged_record(secret: bytes, loss_total: int) -> StepRecord:
    """Return what stands for every record after a diverged step. It tells nothing of the mark."""
    return StepRecord(digest(b"diverged-state", secret), digest(b"diverged-work", secret), loss_total)


class SegmentRun:
    """A segment of ``steps`` steps from ``step_from`` on, as this machine computes it."""

    def __init__(
        self, program: Program, arrays: Arrays, *, seed: bytes, state: Mapping[str, bytes],
        data: Mapping[str, bytes], step_from: int, steps: int, model: Mapping[str, bytes] | None = None,
        secret: bytes | None = None, claimed: Divergence | None = None, kept_states: int = KEPT_STATES_MAX,
        on_step: Callable[[int], None] | None = None, kept_bytes: int = KEPT_BYTES,
    ) -> None:  # fmt: skip
        """Run it. ``state``, ``data`` and ``model``, with its adapters, are contents of tensors by name.

        Raises SourceInvalid, StoreDiverged.

        A challenger of a segment that should have diverged gives a ``secret`` that it shows to nobody. The run
        ends in the diverged step. What it has from there on follows from the secret: no accused committed to the
        same by chance or design.

        ``claimed`` is what the segment's worker claims of its last step, if that diverges. Where it does, the run
        ends with what a worker commits to then, whatever store it is.

        ``on_step`` hears the number of steps done after each. What it raises ends the run. ``kept_states`` is 1 at
        least: the first is always kept. ``kept_bytes`` bounds the contents of a trace that are held.
        """
        self.program, self.step_from, self.steps = program, step_from, steps
        self._arrays, self._seed = arrays, seed
        self._runner = Runner(program, arrays)
        self._data = self._runner.load(SourceKind.DATA, data)
        self._model = {
            name: tensor
            for kind in (SourceKind.MODEL, SourceKind.ADAPTER)
            for name, tensor in self._runner.load(kind, model or {}).items()
        }
        self._kept_bytes = kept_bytes
        self._every = -(-steps // min(kept_states, KEPT_STATES_MAX))
        self._mark = None if secret is None else _mark(secret)
        self._work, self._losses = [WORK_START], [0]
        current = self._runner.load(SourceKind.STATE, state)
        self._kept: dict[int, dict[str, Array]] = {}
        self._diverged: StepRecord | None = None
        self._claimed = claimed
        self.divergence: Divergence | None = None
        """How the last step diverged, of a segment for which that is claimed."""
        for place in range(steps):
            if place % self._every == 0:
                self._kept[place] = current
            try:
                result = self._step(place, current)
            except StoreDiverged:
                if claimed is not None and place == steps - 1:
                    self._diverged = self._diverged_end(place, current)
                    break
                if secret is None:
                    raise
                self._diverged = _diverged_record(secret, self._losses[-1])
                break
            self._note(result)
            current = result.stores
            if on_step is not None:
                on_step(place + 1)
        self._done = len(self._work) - 1
        self._last, self._end = (self._done, current), current

    def _step(self, place: int, state: Mapping[str, Array]) -> StepResult:
        context = Context(self.step_from + place, self._seed)
        return self._runner.run(self._runner.sources(state, self._data, self._model), context)

    def _diverged_end(self, place: int, state: Mapping[str, Array]) -> StepRecord:
        """Return where the segment stands after its last step, which diverged."""
        context = Context(self.step_from + place, self._seed)
        found = self._runner.diverged(self._runner.sources(state, self._data, self._model), context)
        before = self._root_of(place, state)
        self.divergence = Divergence(context.step, found.store, found.row, found.column, before)
        work = extend_diverged(self._work[-1], found.results_root)
        return StepRecord(diverged_root(self.divergence), work, self._losses[-1])

    def _root_of(self, place: int, state: Mapping[str, Array]) -> bytes:
        types, stores = self.program.types, self.program.stores
        tensors = {name: (types[stores[name]], self._root(stores[name], state[name])) for name in stores}
        return state_root(self.step_from + place, tensors)

    def _note(self, result: StepResult) -> None:
        program = self.program
        loss = int.from_bytes(self._content(program.loss, result.loss), "little")
        self._losses.append(add_losses(self._losses[-1], loss))
        probe_root = self._root(program.probe, result.probe)
        self._work.append(extend_work(self._work[-1], probe_root, self._losses[-1]))

    def _content(self, tensor: int, values: Array) -> bytes:
        return content_of(self._arrays, self.program.types[tensor], values)

    def _root(self, tensor: int, values: Array) -> bytes:
        return tensor_root(self.program.types[tensor], self._content(tensor, values))

    def _state(self, place: int) -> dict[str, Array]:
        """Return the state after ``place`` steps, from the last one that is still there."""
        start = place - place % self._every
        if start not in self._kept:
            start = max(self._kept)
        at, state = self._last
        if not start < at <= place:
            at, state = start, self._kept[start]
        for before in range(at, place):
            state = self._step(before, state).stores
        self._last = place, state
        return state

    @cached_property
    def end(self) -> dict[str, bytes]:
        """The contents of the tensors of the last state, by name; the one before a diverged step is the last."""
        return {name: self._content(self.program.stores[name], values) for name, values in self._end.items()}

    @cached_property
    def end_record(self) -> StepRecord:
        """What the worker commits to: where the segment stands after its last step."""
        return self.record(self.steps)

    def record(self, place: int) -> StepRecord:
        """Return where the segment stands after ``place`` steps: its state is hashed."""
        if place > self._done:
            assert self._diverged is not None
            return self._diverged
        state = self._end if place == self._done else self._state(place)
        return StepRecord(self._root_of(place, state), self._work[place], self._losses[place])

    def trace(self, place: int) -> StepTrace:
        """Return all tensors of a step, by its place in the segment."""
        step = self.step_from + place
        sources = self._runner.sources(self._state(place), self._data, self._model)
        store, mark = None, self._mark
        if self._claimed is not None and place == self.steps - 1:
            store = self._claimed.store
            # Nobody opens what an accused has from its store on; a challenger's mark is its own.
            mark = mark if mark is not None or self.divergence is None else _NO_MARK
        context = Context(step, self._seed)
        contents = TraceContents(
            self.program, lambda wanted: self._runner.contents(sources, context, mark, wanted), self._kept_bytes
        )
        return StepTrace(self.program, step, contents, store, contents.roots)

    def witness(self) -> SegmentWitness:
        """Return what this machine can show in a dispute.

        All records that were asked for are kept, and the last trace.
        """
        records: dict[int, StepRecord] = {}
        traces: dict[int, StepTrace] = {}

        def record(place: int) -> StepRecord:
            if place not in records:
                records[place] = self.record(place)
            return records[place]

        def trace(place: int) -> StepTrace:
            if place not in traces:
                traces.clear()
                traces[place] = self.trace(place)
            return traces[place]

        return SegmentWitness(record, trace)
