"""``dekube bench train``: the cost of the exact profile, against the same training in plain float32 NumPy.

Both train the same classifier of handwritten digits on the same batches with AdamW, on one thread. Figures are
processor time, so other work on the machine matters little. Needs the extra ``datasets``.
"""

from __future__ import annotations

import struct
from time import process_time
from typing import Any

import numpy as np

from tasks.engines.arrays import NumpyArrays
from tasks.engines.builtin_datasets import make_dataset
from tasks.engines.datasets import Dataset
from tasks.engines.plan import NANO, TrainingPlan
from tasks.engines.training import Trainer, initial_state
from tasks.programs.permutation import order_keys, permuted

__all__ = ["PlainClassifier", "run"]

_SEED = b"\x07" * 32


def run(*, steps: int = 200, batch: int = 64, widths: tuple[int, ...] = (64, 256, 128, 10)) -> dict[str, float]:
    """Measure and return the figures; ``loss_gap`` is the relative difference of the mean loss at the end."""
    dataset = make_dataset("digits")
    plan = TrainingPlan(
        widths, "relu", batch, dataset.rows, dataset.train_rows, dataset.shift, _SEED, 2_000_000,
        weight_decay_nano=10_000_000,
    )  # fmt: skip
    trainer = Trainer(plan, dataset, NumpyArrays(), initial_state(plan))
    tail = min(50, steps // 2)
    trainer.run_segment(1)  # imports and first touches
    started = process_time()
    trainer.run_segment(steps - 1 - tail)
    last = trainer.run_segment(tail)
    exact_s = process_time() - started
    (loss_sum,) = struct.unpack(">d", last.loss_bits.to_bytes(8, "big"))
    found = trainer.evaluate()
    started = process_time()
    plain = PlainClassifier(plan, dataset)
    losses = [plain.step() for _ in range(steps)]
    plain_s = process_time() - started
    plain_loss = float(np.mean(losses[-tail:]))
    return {
        "steps_per_s": (steps - 1) / exact_s,
        "exact_ms_per_step": 1e3 * exact_s / (steps - 1),
        "plain_float32_ms_per_step": 1e3 * plain_s / steps,
        "slowdown_ratio": exact_s / (steps - 1) / (plain_s / steps),
        "loss_gap": abs(loss_sum / tail - plain_loss) / plain_loss,
        "accuracy_percent": 100 * found.right / found.samples,
        "parameters": float(plan.parameters),
    }


class PlainClassifier:
    """The same classifier with NumPy's own operations, at the start of a plan, in binary32 or binary64."""

    def __init__(self, plan: TrainingPlan, dataset: Dataset, dtype: Any = np.float32) -> None:
        self._plan, self._type = plan, np.dtype(dtype).type
        self._rows = np.frombuffer(dataset.features, dtype=np.uint8).reshape(dataset.rows, dataset.columns)
        self._labels = np.frombuffer(dataset.labels, dtype=np.uint8)
        self._scale = self._type(0.5**dataset.shift)
        start, self._done = initial_state(plan), 0
        self.tensors = {
            name: np.frombuffer(start.tensors[name], dtype="<f4").reshape(kind.rows, kind.columns).astype(dtype)
            for name, kind in plan.tensors().items()
        }
        """Parameters and moments by name."""

    def batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs and labels of a step."""
        picked = _picked(self._plan, step)
        return self._rows[picked] * self._scale, self._labels[picked]

    def gradients(self, step: int) -> tuple[float, dict[str, np.ndarray], np.ndarray]:
        """Return loss, gradients by layer, and logits less the largest of each row."""
        plan, tensors = self._plan, self.tensors
        first, target = self.batch(step)
        inputs, depth, found = [first], len(plan.layers), dict[str, np.ndarray]()
        for at in range(depth):
            sums = inputs[-1] @ tensors[f"parameter/{at}/weight"].T + tensors[f"parameter/{at}/bias"]
            inputs.append(np.maximum(sums, 0) if at < depth - 1 else sums)
        shifted = inputs[-1] - inputs[-1].max(1, keepdims=True)
        powers = np.exp(shifted)
        norms = powers.sum(1, keepdims=True)
        everyone = np.arange(plan.batch)
        loss = float((np.log(norms[:, 0]) - shifted[everyone, target]).mean())
        gradient = powers / norms
        gradient[everyone, target] -= 1
        gradient *= self._type(1 / plan.batch)
        for at in range(depth - 1, -1, -1):
            found |= {f"{at}/weight": gradient.T @ inputs[at], f"{at}/bias": gradient.sum(0, keepdims=True)}
            if at:
                gradient = (gradient @ tensors[f"parameter/{at}/weight"]) * (inputs[at] > 0)
        return loss, found, shifted

    def step(self) -> float:
        """Do a step of AdamW; return its loss."""
        plan, number = self._plan, self._type
        loss, gradients, _ = self.gradients(self._done)
        self._done += 1
        rate, decay = number(plan.learning_rate_nano / NANO), number(plan.weight_decay_nano / NANO)
        beta1, beta2 = number(plan.beta1_nano / NANO), number(plan.beta2_nano / NANO)
        unbias1, unbias2 = 1 / (1 - beta1**self._done), 1 / (1 - beta2**self._done)
        for name, slope in gradients.items():
            values, m, v = (self.tensors[f"{group}/{name}"] for group in ("parameter", "adam_m", "adam_v"))
            m += (1 - beta1) * (slope - m)
            v += (1 - beta2) * (slope * slope - v)
            if name.endswith("weight"):
                values *= 1 - rate * decay
            values -= rate * (m * unbias1) / (np.sqrt(v * unbias2) + number(plan.epsilon_nano / NANO))
        return loss


def _picked(plan: TrainingPlan, step: int) -> np.ndarray:
    """Return the samples of a step."""
    places = [divmod(step * plan.batch + at, plan.train_rows) for at in range(plan.batch)]
    return np.array([permuted(place, plan.train_rows, order_keys(plan.seed, epoch)) for epoch, place in places])
