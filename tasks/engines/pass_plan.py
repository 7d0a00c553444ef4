"""What a job follows from that passes once over its rows with a frozen model: ``embed`` and ``evaluate``.

A step is a batch of rows; the state has what was found for each row. No NumPy here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from tasks.engines.datasets import DATASET_BYTES_MAX, DATASET_LEAVES_MAX
from tasks.engines.decoder_plan import DecoderPlan
from tasks.engines.errors import DatasetInvalid, StateInvalid, UnsupportedJob
from tasks.engines.state import TrainingState
from tasks.engines.tuning_plan import MODEL_BYTES_MAX, TuningPlan
from tasks.programs.adamw import Rates
from tasks.programs.errors import ProgramInvalid
from tasks.programs.finetune import FinetuneRates
from tasks.programs.generate import tuned_shape, whole_shape
from tasks.programs.llama_shape import Adapter, LlamaShape
from tasks.programs.program import Program
from tasks.programs.states import data_root
from tasks.programs.tally import Cost
from tasks.programs.tensors import TensorType, tensor_root

__all__ = [
    "PassPlan", "adapter_plan_of", "root_of",
]  # fmt: skip

_TENSOR_BYTES: Final = 96
"""Room for a name and a length."""


def adapter_plan_of(model: LlamaShape, adapter: Adapter) -> TuningPlan | DecoderPlan:
    """Return the plan of a state with adapters, or with a whole model; only its layout counts.

    Raises UnsupportedJob.
    """
    try:
        if adapter.is_whole:
            like = whole_shape(model, adapter)
            return DecoderPlan(like, FinetuneRates(Rates(1)), bytes(32))
        return TuningPlan(tuned_shape(model, adapter), FinetuneRates(Rates(1)), bytes(32))
    except ProgramInvalid as error:
        raise UnsupportedJob(str(error)) from None


def root_of(kinds: Mapping[str, TensorType], contents: Mapping[str, bytes]) -> bytes:
    """Return the root of tensors that stand in a blob. Raises DatasetInvalid for one of another size."""
    for name, kind in kinds.items():
        if len(contents.get(name, b"")) != kind.size_bytes:
            raise DatasetInvalid(f"{name} is not {kind.rows} by {kind.columns} values")
    return data_root({name: (kind, tensor_root(kind, contents[name])) for name, kind in kinds.items()})


@dataclass(frozen=True)
class PassPlan(ABC):
    """The plan of such a job. The seed changes nothing. Raises UnsupportedJob beyond the limits of a job."""

    seed: bytes

    def __post_init__(self) -> None:
        if (size := self.model_bytes) > MODEL_BYTES_MAX:
            raise UnsupportedJob(f"a model of {size} bytes, at most {MODEL_BYTES_MAX}")
        rows = self.row_tensors().values()
        if (size := sum(kind.size_bytes for kind in rows)) > DATASET_BYTES_MAX:
            raise UnsupportedJob(f"rows of {size} bytes, at most {DATASET_BYTES_MAX}")
        if (leaves := sum(kind.leaves for kind in rows)) > DATASET_LEAVES_MAX:
            raise UnsupportedJob(f"rows of {leaves} leaves, at most {DATASET_LEAVES_MAX}")

    @property
    @abstractmethod
    def steps(self) -> int:
        """Steps of the whole job: one for each batch."""

    @property
    @abstractmethod
    def batch(self) -> int:
        """Rows of a step."""

    @property
    @abstractmethod
    def model_bytes(self) -> int:
        """Bytes of the frozen model, without adapters; 0 if a task has trained the model."""

    @abstractmethod
    def row_tensors(self) -> dict[str, TensorType]:
        """Names and types of the tensors of the rows."""

    @abstractmethod
    def weight_tensors(self) -> dict[str, TensorType]:
        """Names and types of the tensors of the frozen model."""

    @abstractmethod
    def tensors(self) -> dict[str, TensorType]:
        """Names and types of the tensors of a state, in canonical (sorted) order."""

    @property
    @abstractmethod
    def adapter(self) -> Adapter | None:
        """The adapters of the model, or that it is one that a task has trained."""

    @property
    @abstractmethod
    def decoder(self) -> LlamaShape:
        """The shape of a model that has adapters."""

    @property
    def adapter_plan(self) -> TuningPlan | DecoderPlan | None:
        """What the state with the model's adapters follows from, None without adapters. Raises UnsupportedJob."""
        return None if self.adapter is None else adapter_plan_of(self.decoder, self.adapter)

    @property
    def adapter_step(self) -> int:
        """Steps that the adapters were trained with; 0 without adapters."""
        return 0 if self.adapter is None else self.adapter.step

    @property
    @abstractmethod
    def program(self) -> Program:
        """The program of one step, which ``check`` says is exact. Raises UnsupportedJob for what is no program."""

    @abstractmethod
    def check(self) -> None:
        """Raises UnsupportedJob where a number of the program could leave the exact range."""

    @property
    @abstractmethod
    def _cost(self) -> Cost:
        """Work units and calls of the program."""

    @property
    def step_units(self) -> int:
        """Work units of one step: those of its program."""
        return self._cost.units

    @property
    def step_calls(self) -> int:
        """Calls of the program."""
        return self._cost.calls

    @cached_property
    def parameters(self) -> int:
        """Number of values of a state; none is trained."""
        return sum(kind.values for kind in self.tensors().values())

    @cached_property
    def state_limit_bytes(self) -> int:
        """Upper bound of an encoded state: its tensors, and room for names and lengths."""
        return 64 + sum(kind.size_bytes + _TENSOR_BYTES for kind in self.tensors().values())

    def alike(self) -> Iterator[tuple[int, str, TensorType]]:
        """See StatePlan: each tensor stands for itself."""
        for name, kind in self.tensors().items():
            yield 1, name, kind

    def first_state(self) -> TrainingState:
        """Return the state before the first step: nothing is found yet."""
        return TrainingState(0, {name: bytes(kind.size_bytes) for name, kind in self.tensors().items()})

    def read_adapter(self, blob: bytes) -> TrainingState:
        """Return the state with the adapters of the model. Raises DatasetInvalid."""
        plan = self.adapter_plan
        if plan is None:
            raise DatasetInvalid("adapters of a job that has none")
        try:
            return TrainingState.decode(blob, plan)
        except StateInvalid as error:
            raise DatasetInvalid(f"its adapters: {error}") from None

    def check_adapter(self, root: bytes, blob: bytes) -> None:
        """Return if a blob holds the state of a root, after the steps that the job says. Raises DatasetInvalid."""
        state, plan = self.read_adapter(blob), self.adapter_plan
        assert plan is not None
        if state.step != self.adapter_step or state.root(plan) != root:
            raise DatasetInvalid("its adapters are not those the job names")
