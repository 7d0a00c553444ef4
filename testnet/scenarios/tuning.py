"""The job of the scenario of fine-tuning: a small Llama with seeded weights learns a text, byte by byte."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NoReturn

import numpy as np

from rpc.client.results import Window
from rpc.client.tasks import TaskResult
from state.primitives.hashing import digest
from tasks.engines.arrays import NumpyArrays
from tasks.engines.input_blobs import read_model, read_rows
from tasks.engines.state import TrainingState
from tasks.engines.tuning import Tuner, first_state
from tasks.engines.tuning_plan import TuningPlan
from tasks.models.adapters import adapter_folder, check_folder, receipt_of
from tasks.models.jobs import TuningJob, TuningSettings, make_tuning
from tasks.models.llama import Model, frozen
from tasks.programs.finetune import PROJECTIONS
from tasks.programs.llama_shape import LlamaShape, exponents_of, weight_tensors
from tasks.programs.tensors import ElementType

__all__ = ["Losses", "SeededModel", "check_adapters", "make_tuning_job", "train_here"]

SHAPE: Final = LlamaShape(
    vocabulary=128, width=32, layers=1, heads=4, key_heads=2, head_width=8, hidden=64, context=64,
    rotary_base=10_000, epsilon_nano=10_000,
)  # fmt: skip
TEXT: Final = (
    "A worker proves a window. A verifier re-runs a part of it. If both find the same, the worker is paid. "
    "If not, they play a game about one step, one operator, one element. Every validator computes that element. "
    "Who was wrong pays. "
)
ROW: Final = 32
SETTINGS: Final = TuningSettings(
    steps=64, batch=5, rank=8, alpha=16, targets=PROJECTIONS, learning_rate_nano=20_000_000, segment_steps=8
)
BASE: Final = "seeded-llama"


@dataclass(frozen=True)
class SeededModel:
    """A model whose weights follow from a seed. It reads bytes, and needs no tokeniser."""

    seed: int
    shape: LlamaShape = SHAPE

    @cached_property
    def load(self) -> Callable[[], Model]:
        """Makes its weights."""
        return self._model

    @cached_property
    def tokeniser(self) -> Callable[[], NoReturn]:
        """Raises AssertionError: its rows are numbers."""

        def none() -> NoReturn:
            raise AssertionError

        return none

    def _model(self) -> Model:
        random, tensors = np.random.default_rng(self.seed), dict[str, np.ndarray]()
        for name, kind in weight_tensors(self.shape).items():
            if kind.element == ElementType.BINARY32:
                tensors[name] = np.ones((1, kind.columns), dtype=np.float32)
            elif name not in tensors:
                values = random.normal(0, kind.columns**-0.5, (kind.rows, kind.columns))
                tensors[name], tensors[exponents_of(name)] = frozen(values)
        return Model(self.shape, tensors)


def make_tuning_job(seed: bytes, max_price_per_tera_unit: int) -> TuningJob:
    """Return the job."""
    numbers = list(TEXT.encode("ascii"))
    rows = [numbers[at : at + ROW + 1] for at in range(0, len(numbers) - ROW, ROW)]
    data = "\n".join(json.dumps({"input_ids": row}) for row in rows).encode()
    return make_tuning(
        SeededModel(int.from_bytes(digest(b"seeded model", seed)[:8], "big")), data, SETTINGS, seed=seed,
        max_price_per_tera_unit=max_price_per_tera_unit, match_ms=600_000,
    )  # fmt: skip


@dataclass(frozen=True)
class Losses:
    """The mean loss of a token in the first and in the last steps that read all rows, and the state in the end."""

    first: float
    last: float
    state: TrainingState


def train_here(job: TuningJob) -> Losses:
    """Train the job on this machine."""
    plan = job.spec.plan()
    assert isinstance(plan, TuningPlan)
    tuner = Tuner(
        plan, read_model(plan.shape, job.model), read_rows(plan.shape, job.rows), NumpyArrays(), first_state(plan)
    )
    total, once = job.spec.schedule.total_steps, -(-plan.shape.rows // plan.shape.batch)
    _, first = tuner.run_steps(once)
    tuner.run_steps(total - 2 * once)
    _, last = tuner.run_steps(once)
    return Losses(_mean(first, once), _mean(last, once), tuner.state())


def _mean(loss_bits: int, steps: int) -> float:
    total: float = struct.unpack("<d", loss_bits.to_bytes(8, "little"))[0]
    return total / steps


def check_adapters(found: TaskResult, windows: list[Window]) -> int:
    """Return the window that proves the folder of a result. Raises FolderInvalid."""
    from node.cli.verify import check_spec, matching_window

    plan = found.spec.plan()
    assert isinstance(plan, TuningPlan)
    receipt = receipt_of(
        plan.shape, found.state, base=BASE, model_root=found.spec.model_root(), rows_root=found.spec.dataset.root,
        task=found.task,
    )  # fmt: skip
    checked = check_folder(adapter_folder(receipt, found.state.tensors))
    check_spec(checked, found.spec)
    return matching_window(checked, windows)
