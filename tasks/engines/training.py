"""A training run in segments: from a committed state, step by step of a program, to the next committed state.

See market.md 4.3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from tasks.engines.arrays import Arrays
from tasks.engines.datasets import Dataset
from tasks.engines.errors import DatasetInvalid, Diverged, StateInvalid
from tasks.engines.plan import TrainingPlan
from tasks.engines.state import TrainingState
from tasks.engines.weights import initial_weights
from tasks.programs.classifier import SCORED_ROWS
from tasks.programs.errors import SourceInvalid, StoreDiverged
from tasks.programs.operators import Context
from tasks.programs.program import SourceKind
from tasks.programs.running import ResultRunner, Runner, StepResult, content_of
from tasks.programs.tensors import tensor_root
from tasks.programs.work import WORK_START, add_losses, extend_work

__all__ = ["Evaluation", "SegmentResult", "Trainer", "evaluation_rows_max", "initial_state"]

EVALUATION_UNITS: Final = 1 << 37
"""Work of an evaluation at most, about half a minute of a slow core: a data set may have many rows for testing, of
which no step says anything, and they hold up the last window."""


@dataclass(frozen=True)
class SegmentResult:
    """What a segment commits to. ``loss_bits`` is the binary64 pattern of the sum of its steps' losses."""

    step_from: int
    step_to: int
    state_root: bytes
    work_digest: bytes
    loss_bits: int


@dataclass(frozen=True)
class Evaluation:
    """Right answers among the first ``samples`` rows of the test split: all, or ``evaluation_rows_max``."""

    right: int
    samples: int


def evaluation_rows_max(plan: TrainingPlan) -> int:
    """Return how many rows an evaluation of ``plan``'s model looks at, at most."""
    return max(1, EVALUATION_UNITS // plan.scores.units) * SCORED_ROWS


def initial_state(plan: TrainingPlan) -> TrainingState:
    """Return the state before the first step: weights from the seed, zero biases and moments."""
    tensors: dict[str, bytes] = {}
    for name, kind in plan.tensors().items():
        group, layer, part = name.split("/")
        if group == "parameter" and part == "weight":
            weights = initial_weights(plan.seed, int(layer), kind.columns, kind.rows)
            tensors[name] = (weights.astype("<f4") + np.float32(0)).tobytes()
        else:
            tensors[name] = bytes(kind.size_bytes)
    return TrainingState(0, tensors)


class Trainer:
    """One run of ``plan`` over ``dataset``, standing at ``state``.

    Raises StateInvalid or DatasetInvalid where they do not fit the plan.
    """

    def __init__(self, plan: TrainingPlan, dataset: Dataset, arrays: Arrays, state: TrainingState) -> None:
        found = (dataset.columns, dataset.classes, dataset.rows, dataset.train_rows, dataset.shift)
        wanted = (plan.widths[0], plan.widths[-1], plan.rows, plan.train_rows, plan.shift)
        if found != wanted:
            raise DatasetInvalid(
                "a data set of {} features, {} classes, {} rows, {} to train on, and shift {}".format(*found)
                + " where the job has {}, {}, {}, {} and {}".format(*wanted)
            )
        self._plan, self._arrays, self._dataset = plan, arrays, dataset
        self._program = plan.program
        self._runner = Runner(self._program, arrays)
        self._data = self._runner.load(SourceKind.DATA, dataset.contents)
        try:
            self._state = self._runner.load(SourceKind.STATE, state.tensors)
        except SourceInvalid as error:
            raise StateInvalid(str(error)) from None
        self.step = state.step

    def run_segment(self, steps: int, on_step: Callable[[int], None] = lambda _step: None) -> SegmentResult:
        """Do ``steps`` steps; ``on_step`` hears the number of steps done after each. Raises Diverged."""
        step_from = self.step
        work, losses = self.run_steps(steps, on_step)
        return SegmentResult(step_from, self.step, self.state().root(self._plan), work, losses)

    def run_steps(self, steps: int, on_step: Callable[[int], None] = lambda _step: None) -> tuple[bytes, int]:
        """Do ``steps`` steps as ``run_segment``; return the work digest and the sum of losses alone."""
        work, losses = WORK_START, 0
        for _ in range(steps):
            found = self._one_step()
            probe = self._content(self._program.probe, found)
            losses = add_losses(losses, int.from_bytes(self._content(self._program.loss, found), "little"))
            work = extend_work(work, tensor_root(self._program.types[self._program.probe], probe), losses)
            self._state = found.stores
            self.step += 1
            on_step(self.step)
        return work, losses

    def _one_step(self) -> StepResult:
        sources = self._runner.sources(self._state, self._data)
        try:
            with np.errstate(all="ignore"):  # what overflows is found where it is stored
                return self._runner.run(sources, Context(self.step, self._plan.seed))
        except StoreDiverged:
            raise Diverged(step=self.step + 1) from None

    def _content(self, tensor: int, found: StepResult) -> bytes:
        values = found.probe if tensor == self._program.probe else found.loss
        return content_of(self._arrays, self._program.types[tensor], values)

    def state(self) -> TrainingState:
        """Return where the run stands."""
        types = self._plan.tensors()
        return TrainingState(
            self.step, {name: content_of(self._arrays, kind, self._state[name]) for name, kind in types.items()}
        )

    def evaluate(self) -> Evaluation:
        """Count the right answers on the test split, as far as ``evaluation_rows_max`` allows.

        Of equal scores the lowest class answers.
        """
        plan, data = self._plan, self._dataset
        scores = plan.scores
        runner = ResultRunner(scores, self._arrays)
        parameters = [self._state[source.key] for source in scores.sources if source.kind == SourceKind.STATE]
        right, stop = 0, min(data.rows, data.train_rows + evaluation_rows_max(plan))
        for start in range(data.train_rows, stop, SCORED_ROWS):
            end = min(start + SCORED_ROWS, stop)
            content = data.features[start * data.columns : end * data.columns]
            features = self._arrays.from_content(content, "u1", end - start, data.columns)
            (result,) = runner.run([features, *parameters], Context(self.step, plan.seed))
            found = self._arrays.store(result)
            labels = np.frombuffer(data.labels[start:end], dtype=np.uint8)
            right += int((found.argmax(axis=1) == labels).sum())
        return Evaluation(right, stop - data.train_rows)
