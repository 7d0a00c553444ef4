"""Jobs at the edges of what a specification allows: the same bits however an engine orders its work.

``Contrary`` is NumPy told to do everything that IEEE 754 leaves open the other way round: terms in reverse and in
pieces, arrays laid out by columns, the other zero out of a maximum. It divides by a plain number as torch does on
a GPU.
"""

from __future__ import annotations

from hashlib import shake_256
from importlib.util import find_spec
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tasks.engines.arrays import Array, Arrays, NumpyArrays
from tasks.engines.datasets import SHIFT_MAX, Dataset
from tasks.engines.errors import Diverged
from tasks.engines.plan import ACTIVATIONS, NANO, TrainingPlan
from tasks.engines.state import STEP_MAX, TrainingState
from tasks.engines.torch_arrays import TorchArrays
from tasks.engines.training import SegmentResult, Trainer

TERMS_AT_ONCE: Final = 3
STEPS: Final = 3
HAS_TORCH: Final = find_spec("torch") is not None
NEEDS_TORCH = pytest.mark.skipif(
    not HAS_TORCH,
    reason="torch (extra ml) IS NOT INSTALLED: THAT BOTH ENGINES AGREE AT THE EDGES WAS NOT CHECKED",
)


class _ByReciprocal(np.ndarray):
    """Divides by a plain number as torch does on a GPU: it multiplies by the reciprocal."""

    def __truediv__(self, other: Any) -> Any:
        return self * (1.0 / other) if isinstance(other, int | float) else super().__truediv__(other)


class Contrary(NumpyArrays):
    """Another order of everything that has none."""

    def load(self, values: np.ndarray) -> Array:
        return np.asfortranarray(super().load(values)).view(_ByReciprocal)

    def to_doubles(self, values: Array) -> Array:
        return super().to_doubles(values).view(_ByReciprocal)

    def matmul(self, left: Array, right: Array) -> Array:
        if left.ndim == 3:
            return np.stack([self.matmul(*pair) for pair in zip(left, right, strict=True)])
        result = np.zeros((left.shape[0], right.shape[1]), order="F")
        for stop in range(left.shape[1], 0, -TERMS_AT_ONCE):
            terms = slice(max(0, stop - TERMS_AT_ONCE), stop)
            result += (right[terms].T[:, ::-1] @ left[:, terms].T[::-1]).T
        return result

    def sum_integers(self, values: Array, axis: int) -> Array:
        return np.flip(np.flip(values, axis).cumsum(axis=axis).take([-1], axis=axis), axis)

    def running_sums(self, values: Array) -> Array:
        after = np.flip(np.flip(values, 1).cumsum(axis=1), 1)
        return np.asfortranarray(after[:, :1] - after + values)

    def amax(self, values: Array, axis: int) -> Array:
        found = super().amax(values, axis)
        return np.where(found == 0, -0.0, found)


@st.composite
def plans(draw: st.DrawFn) -> TrainingPlan:
    """Any model that is small enough to be quick, with the optimiser's numbers at and between their limits."""
    widths = draw(st.lists(st.sampled_from((1, 2, 3, 17)), min_size=1, max_size=8))
    nano = st.one_of(st.sampled_from((0, 1, NANO // 2, NANO - 1)), st.integers(0, NANO - 1))
    return TrainingPlan(
        widths=(*widths, draw(st.sampled_from((2, 3, 256)))),
        activation=draw(st.sampled_from(ACTIVATIONS)),
        batch=draw(st.sampled_from((1, 2, 7, 65))),
        rows=(rows := draw(st.sampled_from((1, 2, 64, 100)))) + 1,
        train_rows=rows,
        shift=draw(st.integers(0, SHIFT_MAX)),
        seed=draw(st.binary(min_size=32, max_size=32)),
        learning_rate_nano=1 + draw(nano),
        beta1_nano=draw(nano),
        beta2_nano=draw(nano),
        epsilon_nano=1 + draw(nano),
        weight_decay_nano=draw(st.one_of(nano, st.just(NANO))),
    )


def data_for(plan: TrainingPlan) -> Dataset:
    """Rows of all kinds of bytes, among them whole rows and columns of zeros."""
    rows, columns, classes = plan.rows, plan.widths[0], plan.widths[-1]
    stream = shake_256(b"edges" + plan.seed).digest(rows * (columns + 1))
    features = np.frombuffer(stream[: rows * columns], dtype=np.uint8).reshape(rows, columns).copy()
    features[0], features[:, 0] = 0, features[:, 0] & 1
    labels = bytes(byte % classes for byte in stream[rows * columns :])
    return Dataset(rows, columns, classes, plan.shift, plan.train_rows, features.tobytes(), labels)


def state_for(plan: TrainingPlan, step: int, exponents: tuple[int, int, int]) -> TrainingState:
    """A state as a stranger may publish it: numbers of any size that the profile allows, and zeros."""
    tensors: dict[str, bytes] = {}
    for name, kind in plan.tensors().items():
        group = name.split("/")[0]
        top = exponents[("parameter", "adam_m", "adam_v").index(group)]
        count = kind.values
        words = np.frombuffer(shake_256(plan.seed + name.encode()).digest(8 * count), dtype="<u4").reshape(2, -1)
        values = np.ldexp(1.0 + words[0] / 2.0**33, top - (words[1] % 40).astype(np.int64))
        values[(words[1] >> 8) % 5 == 0] = 0.0
        values[np.abs(values) < 2.0**-100] = 0.0
        if group != "adam_v":
            values = np.where((words[1] >> 16) % 2 == 0, -values, values) + 0.0
        tensors[name] = values.astype("<f4").tobytes()
    return TrainingState(step, tensors)


def outcome(
    arrays: Arrays, plan: TrainingPlan, data: Dataset, state: TrainingState
) -> tuple[list[SegmentResult], str]:
    """What a run ends with: its segments of one step, and how it ended."""
    trainer, found = Trainer(plan, data, arrays, state), list[SegmentResult]()
    try:
        for _ in range(STEPS):
            found.append(trainer.run_segment(1))
    except Diverged as error:
        return found, str(error)
    return found, f"{trainer.evaluate().samples} tested"


edges = given(
    plans(),
    st.sampled_from((0, 1, 1 << 32, STEP_MAX - STEPS - 1)),
    st.tuples(st.integers(-110, 39), st.integers(-110, 99), st.integers(-110, 99)),
)  # fmt: skip
VAST = TrainingPlan((17,) * 8 + (256,), "silu", 65, 65, 64, 0, bytes(32), NANO, 0, 0, NANO, NANO)
"""Activations and gradients as large as they can get, in one step."""


@edges
@example(VAST, 0, (39, 99, 99))
@settings(max_examples=80, deadline=None)
def test_n11_no_order_of_the_work_changes_a_bit(
    plan: TrainingPlan, step: int, exponents: tuple[int, int, int]
) -> None:
    data, state = data_for(plan), state_for(plan, step, exponents)
    assert outcome(Contrary(), plan, data, state) == outcome(NumpyArrays(), plan, data, state)


@pytest.mark.slow
@NEEDS_TORCH
@pytest.mark.parametrize("flushes", [False, True], ids=["subnormals", "flushed to zero"])
def test_n11_both_engines_agree_whatever_the_processor_does_with_subnormals(flushes: bool) -> None:
    import torch

    torch_arrays = TorchArrays()

    @edges
    @example(VAST, 0, (39, 99, 99))
    @settings(max_examples=40, deadline=None)
    def agree(plan: TrainingPlan, step: int, exponents: tuple[int, int, int]) -> None:
        data, state = data_for(plan), state_for(plan, step, exponents)
        expected = outcome(NumpyArrays(), plan, data, state)
        torch.set_flush_denormal(flushes)  # of this thread, NumPy's operations too
        try:
            assert outcome(torch_arrays, plan, data, state) == expected
            assert outcome(NumpyArrays(), plan, data, state) == expected
        finally:
            torch.set_flush_denormal(False)

    agree()
