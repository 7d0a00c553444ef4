"""A training run in segments: from a committed state, step by step of a program, to the next committed state.

See market.md 4.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from tasks.engines.arrays import Arrays
from tasks.engines.datasets import Dataset
from tasks.engines.errors import DatasetInvalid, StateInvalid
from tasks.engines.plan import TrainingPlan
from tasks.engines.state import TrainingState
from tasks.engines.steps import SegmentResult, Steps
from tasks.engines.weights import initial_weights
from tasks.programs.classifier import SCORED_ROWS
from tasks.programs.errors import SourceInvalid
from tasks.programs.operators import Context
from tasks.programs.program import SourceKind
from tasks.programs.running import ResultRunner, Runner

__all__ = ["Evaluation", "SegmentResult", "Trainer", "evaluation_rows_max", "initial_state"]

EVALUATION_UNITS: Final = 1 << 37
"""Work of an evaluation at most, about half a minute of a slow core: a data set may have many rows for testing, of
which no step says anything, and they hold up the last window."""


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


class Trainer(Steps):
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
        self._plan, self._dataset = plan, dataset
        runner = Runner(plan.program, arrays)
        try:
            loaded = runner.load(SourceKind.STATE, state.tensors)
        except SourceInvalid as error:
            raise StateInvalid(str(error)) from None
        data = runner.load(SourceKind.DATA, dataset.contents)
        super().__init__(plan, arrays, runner, state=loaded, data=data, model={}, step=state.step)

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
