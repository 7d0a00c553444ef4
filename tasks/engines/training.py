"""A training run in segments: from a committed state, through the seed's batches, to the next committed state.

See market.md 4.3.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from state.primitives.hashing import digest
from tasks.engines import exact
from tasks.engines.adamw import AdamW, Slot
from tasks.engines.arrays import Array, Arrays
from tasks.engines.datasets import Dataset
from tasks.engines.errors import DatasetInvalid, Diverged, StateInvalid
from tasks.engines.mlp import Gradients, Layer, gradients, logits
from tasks.engines.order import DataOrder, initial_weights
from tasks.engines.plan import TrainingPlan
from tasks.engines.state import TrainingState
from tasks.programs.work import WORK_START, add_losses, extend_work

__all__ = ["Evaluation", "SegmentResult", "Trainer", "evaluation_rows_max", "initial_state"]

PARAMETER_LIMIT: Final = 2.0**40
"""With LAYERS_MAX layers of WIDTH_MAX units no sum exceeds 2**450, inside what ``exact`` carries exactly."""
MOMENT_LIMIT: Final = 2.0**126
_EVALUATION_BATCH: Final = 512
EVALUATION_UNITS: Final = 1 << 36
"""Work of an evaluation at most, about half a minute of a slow core: a data set may have millions of rows for
testing, of which no step says anything, and they hold up the last window."""
EVALUATION_INPUT_UNITS: Final = 128
"""Units of work, about a multiplication and addition each, for each feature of a row; one for each parameter."""
EVALUATION_OUTPUT_UNITS: Final = 4096
"""For each output of a layer and row."""


@dataclass(frozen=True)
class SegmentResult:
    """What a segment commits to. ``loss_bits`` is the float64 pattern of the sum of its steps' losses."""

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
    units = (
        plan.parameters + EVALUATION_INPUT_UNITS * plan.widths[0] + EVALUATION_OUTPUT_UNITS * sum(plan.widths[1:])
    )
    return max(_EVALUATION_BATCH, EVALUATION_UNITS // units)


def initial_state(plan: TrainingPlan) -> TrainingState:
    """Return the state before the first step: weights from the seed, zero biases and moments."""
    tensors: dict[str, bytes] = {}
    for name, shape in plan.tensors().items():
        group, layer, part = name.split("/")
        if group == "parameter" and part == "weight":
            weights = initial_weights(plan.seed, int(layer), *shape)
            tensors[name] = (weights.astype("<f4") + np.float32(0)).tobytes()
        else:
            tensors[name] = bytes(4 * shape[0] * shape[1])
    return TrainingState(0, tensors)


class Trainer:
    """One run of ``plan`` over ``dataset``, standing at ``state``.

    Raises StateInvalid or DatasetInvalid where they do not fit the plan.
    """

    def __init__(self, plan: TrainingPlan, dataset: Dataset, arrays: Arrays, state: TrainingState) -> None:
        if (dataset.columns, dataset.classes) != (plan.widths[0], plan.widths[-1]):
            raise DatasetInvalid(
                f"{dataset.columns} features and {dataset.classes} classes for a model of widths {plan.widths}"
            )
        self._plan, self._arrays, self._optimiser = plan, arrays, AdamW(plan)
        self._order = DataOrder(plan.seed, dataset.train_rows, plan.batch)
        self._rows = np.frombuffer(dataset.features, dtype=np.uint8).reshape(dataset.rows, dataset.columns)
        self._labels = np.frombuffer(dataset.labels, dtype=np.uint8)
        self._train_rows, self._feature_scale = dataset.train_rows, 0.5**dataset.shift
        self._one_hot = np.eye(plan.widths[-1], dtype=np.float64)
        self.step = state.step
        self._slots = self._load(state)

    def run_segment(self, steps: int, on_step: Callable[[int], None] = lambda _step: None) -> SegmentResult:
        """Do ``steps`` steps; ``on_step`` hears the number of steps done after each. Raises Diverged."""
        step_from = self.step
        work, losses = WORK_START, 0
        for _ in range(steps):
            at = self.step.to_bytes(8, "big")
            picked = self._order.batch(self.step)
            rows, labels = self._rows[picked], self._labels[picked]
            with np.errstate(all="ignore"):  # what overflows is found by _check_range
                found = self._one_step(rows, labels)
            probe = exact.storable(self._arrays, found.layers[0].weight)
            loss = struct.pack("<d", float(self._arrays.store(found.loss)[0, 0]))
            losses = add_losses(losses, int.from_bytes(loss, "little"))
            work = extend_work(work, digest(b"train-probe", at + self._bytes(probe)), losses)
            on_step(self.step)
        return SegmentResult(
            step_from=step_from,
            step_to=self.step,
            state_root=self.state().root(self._plan),
            work_digest=work,
            loss_bits=losses,
        )

    def _one_step(self, rows: np.ndarray, labels: np.ndarray) -> Gradients:
        arrays, plan = self._arrays, self._plan
        features = arrays.load(rows * self._feature_scale)
        layers = tuple(Layer(weight.parameter, bias.parameter) for weight, bias in self._slots)
        found = gradients(arrays, layers, features, arrays.load(self._one_hot[labels]), plan.activation)
        number = self.step + 1
        self._slots = tuple(
            (
                self._optimiser.update(arrays, weight, gradient.weight, number, decays=True),
                self._optimiser.update(arrays, bias, gradient.bias, number, decays=False),
            )
            for (weight, bias), gradient in zip(self._slots, found.layers, strict=True)
        )
        self._check_range(number)
        self.step = number
        return found

    def _check_range(self, step: int) -> None:
        for pair in self._slots:
            for slot in pair:
                for values, limit in (
                    (slot.parameter, PARAMETER_LIMIT),
                    (slot.m, MOMENT_LIMIT),
                    (slot.v, MOMENT_LIMIT),
                ):
                    if not bool((self._arrays.abs(values) < limit).all()):  # NaN is not below
                        raise Diverged(step=step)

    def state(self) -> TrainingState:
        """Return where the run stands."""
        tensors: dict[str, bytes] = {}
        for index, (weight, bias) in enumerate(self._slots):
            for part, slot in (("weight", weight), ("bias", bias)):
                tensors[f"parameter/{index}/{part}"] = self._bytes(slot.parameter)
                tensors[f"adam_m/{index}/{part}"] = self._bytes(slot.m)
                tensors[f"adam_v/{index}/{part}"] = self._bytes(slot.v)
        return TrainingState(self.step, tensors)

    def evaluate(self) -> Evaluation:
        """Count the right answers on the test split, as far as ``evaluation_rows_max`` allows.

        Of equal scores the lowest class answers.
        """
        right, rows = 0, min(len(self._rows), self._train_rows + evaluation_rows_max(self._plan))
        layers = tuple(Layer(weight.parameter, bias.parameter) for weight, bias in self._slots)
        for start in range(self._train_rows, rows, _EVALUATION_BATCH):
            stop = min(start + _EVALUATION_BATCH, rows)
            features = self._arrays.load(self._rows[start:stop] * self._feature_scale)
            scores = self._arrays.store(logits(self._arrays, layers, features, self._plan.activation))
            right += int((scores.argmax(axis=1) == self._labels[start:stop]).sum())
        return Evaluation(right, rows - self._train_rows)

    def _bytes(self, values: Array) -> bytes:
        return self._arrays.store(values).astype("<f4").tobytes()

    def _load(self, state: TrainingState) -> tuple[tuple[Slot, Slot], ...]:
        def tensor(name: str, limit: float, *, signed: bool = True) -> Array:
            raw = np.frombuffer(state.tensors[name], dtype="<f4").astype(np.float64)
            magnitude = np.abs(raw)
            if not (magnitude < limit).all() or ((magnitude < 2.0**exact.TINY_EXPONENT) & (magnitude > 0)).any():
                raise StateInvalid(f"tensor {name} holds numbers outside the range of the profile")
            negative = np.signbit(raw)
            if (negative if not signed else negative & (raw == 0)).any():
                raise StateInvalid(f"tensor {name} holds a negative zero or a negative second moment")
            return self._arrays.load(raw.reshape(shapes[name]))

        def slot(name: str) -> Slot:
            return Slot(
                tensor(f"parameter/{name}", PARAMETER_LIMIT),
                tensor(f"adam_m/{name}", MOMENT_LIMIT),
                tensor(f"adam_v/{name}", MOMENT_LIMIT, signed=False),
            )

        shapes = self._plan.tensors()
        return tuple((slot(f"{index}/weight"), slot(f"{index}/bias")) for index in range(len(self._plan.layers)))
