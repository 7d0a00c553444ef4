"""Steps of a program one after another, and what a worker commits to at the end of a segment (market.md 4.3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tasks.engines.arrays import Array, Arrays
from tasks.engines.errors import Diverged
from tasks.engines.state import StatePlan, TrainingState
from tasks.programs.divergence import Divergence, diverged_root, extend_diverged
from tasks.programs.errors import StoreDiverged
from tasks.programs.operators import Context
from tasks.programs.program import Program
from tasks.programs.running import Runner, StepResult, content_of
from tasks.programs.tensors import tensor_root
from tasks.programs.work import WORK_START, add_losses, extend_work

__all__ = ["SegmentResult", "StepPlan", "Steps"]


@dataclass(frozen=True)
class SegmentResult:
    """What a segment commits to. ``loss_bits`` is the binary64 pattern of the sum of its steps' losses.

    ``diverged`` is how its last step diverges: then it ends with that, and the rest is what stands for it.
    """

    step_from: int
    step_to: int
    state_root: bytes
    work_digest: bytes
    loss_bits: int
    diverged: Divergence | None = None


class StepPlan(StatePlan, Protocol):
    """What a run of steps follows from."""

    @property
    def seed(self) -> bytes:
        """The job's seed."""

    @property
    def program(self) -> Program:
        """The program of one step."""


class Steps:
    """A run of a plan's program, standing after ``step`` steps."""

    def __init__(
        self, plan: StepPlan, arrays: Arrays, runner: Runner, *, state: dict[str, Array],
        data: Mapping[str, Array], model: Mapping[str, Array], step: int,
    ) -> None:  # fmt: skip
        self._steps_plan, self._arrays, self._runner = plan, arrays, runner
        self._program, self._state, self._data, self._model = plan.program, state, data, model
        self.step = step

    def run_segment(self, steps: int, on_step: Callable[[int], None] = lambda _step: None) -> SegmentResult:
        """Do ``steps`` steps, fewer if the job ends before; ``on_step`` hears how many are done after each.

        Raises Diverged: then ``diverged_segment`` says what is committed to.
        """
        step_from = self.step
        work, losses = self.run_steps(steps, on_step)
        return SegmentResult(step_from, self.step, self.state().root(self._steps_plan), work, losses)

    def run_steps(self, steps: int, on_step: Callable[[int], None] = lambda _step: None) -> tuple[bytes, int]:
        """Do ``steps`` steps as ``run_segment``; return the work digest and the sum of losses alone."""
        work, losses, left = WORK_START, 0, steps
        while left:
            try:
                with np.errstate(all="ignore"):  # what overflows is found where it is stored
                    done = self._advance(left)
            except StoreDiverged:
                raise Diverged(step=self.step + 1, work_digest=work, loss_bits=losses) from None
            for probe, loss in done:
                losses = add_losses(losses, int.from_bytes(loss, "little"))
                work = extend_work(work, tensor_root(self._program.types[self._program.probe], probe), losses)
                self.step += 1
                on_step(self.step)
            left = 0 if self.is_over else left - len(done)
        return work, losses

    @property
    def is_over(self) -> bool:
        """Whether the job ends here before its last step; a run that reaches such a step goes no further."""
        return False

    def _advance(self, _most: int) -> list[tuple[bytes, bytes]]:
        """Do one step or more, ``most`` at most; return probe and loss of each. Raises StoreDiverged.

        The state is that after all of them. Whoever called it counts the steps.
        """
        found = self._runner.run(self._sources(), self._context())
        self._state = found.stores
        return [(self._content(self._program.probe, found), self._content(self._program.loss, found))]

    def diverged_segment(self, step_from: int, error: Diverged) -> SegmentResult:
        """Return what is committed to for the segment from ``step_from`` on that ``error`` has ended (R34).

        The run stands before the step that diverged, which is run once more.
        """
        with np.errstate(all="ignore"):
            found = self._runner.diverged(self._sources(), self._context())
        before = self.state().root(self._steps_plan)
        claim = Divergence(self.step, found.store, found.row, found.column, before)
        work = extend_diverged(error.work_digest, found.results_root)
        return SegmentResult(step_from, error.step, diverged_root(claim), work, error.loss_bits, claim)

    def _sources(self) -> list[Array]:
        return self._runner.sources(self._state, self._data, self._model)

    def _context(self) -> Context:
        return Context(self.step, self._steps_plan.seed)

    def _content(self, tensor: int, found: StepResult) -> bytes:
        values = found.probe if tensor == self._program.probe else found.loss
        return content_of(self._arrays, self._program.types[tensor], values)

    def state(self) -> TrainingState:
        """Return where the run stands."""
        types = self._steps_plan.tensors()
        return TrainingState(
            self.step, {name: content_of(self._arrays, kind, self._state[name]) for name, kind in types.items()}
        )
