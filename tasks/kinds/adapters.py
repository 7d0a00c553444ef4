"""The state that a task of training has left, as another job names it (market.md R82, R89, R133)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from state.primitives.codec import Value
from tasks.engines.decoder_plan import DecoderPlan
from tasks.engines.pass_plan import adapter_plan_of
from tasks.engines.starting import Start, state_left
from tasks.engines.state import state_size
from tasks.engines.tuning_plan import TuningPlan
from tasks.kinds.fields import INTEGER_MAX, Found
from tasks.kinds.plan import Input, NamedBlob
from tasks.programs.errors import ProgramInvalid
from tasks.programs.generate import check_tuned
from tasks.programs.lazy import LazyMapping
from tasks.programs.llama_shape import LAYOUT_MAX, Adapter, LlamaShape
from tasks.programs.operators.schedules import STEPS_MAX
from tasks.programs.program import SourceKind

__all__ = ["ADAPTER_RANGES", "AdapterPlan", "TunedAdapter", "adapter_ranges"]

AdapterPlan: TypeAlias = TuningPlan | DecoderPlan
"""What a state with adapters follows from, or that of a model that was trained from scratch."""


def adapter_ranges(name: str) -> Mapping[str, tuple[int, int]]:
    """Return the ranges of the fields of an adapter that stands in the field ``name``."""
    return MappingProxyType({
        f"{name}.step": (0, STEPS_MAX), f"{name}.rank": (0, INTEGER_MAX), f"{name}.alpha": (0, INTEGER_MAX),
        f"{name}.layout": (0, LAYOUT_MAX),
    })  # fmt: skip


ADAPTER_RANGES: Final = adapter_ranges("adapter")


class TunedAdapter(NamedTuple):
    """The adapters of a tuned model: the state that fine-tuning left after ``step`` steps.

    With rank 0, alpha 0 and no targets it is the state of a model that was trained from scratch (R89).
    ``blob`` is the content address of its encoding, and ``root`` its root. ``layout`` is
    that of ``Adapter``.
    """

    blob: bytes
    root: bytes
    rank: int
    alpha: int
    targets: tuple[str, ...]
    step: int
    layout: int = 0

    @classmethod
    def of(cls, found: Found, name: str = "adapter") -> TunedAdapter | None:
        """Return the adapter of checked fields; None if they have none."""
        if f"{name}.blob" not in found:
            return None
        blob, root, rank, alpha, targets, step, layout = (found[f"{name}.{field}"] for field in cls._fields)
        return cls(blob, root, rank, alpha, tuple(targets), step, layout)

    @staticmethod
    def to_value(adapter: TunedAdapter | None) -> list[Value]:
        """Return the fields in their order; none without an adapter."""
        if adapter is None:
            return []
        blob, root, rank, alpha, targets, step, layout = adapter
        return [blob, root, rank, alpha, list(targets), step, layout]

    @property
    def program_part(self) -> Adapter:
        """What a program follows from."""
        return Adapter(*self[2:])

    def check_model(self, model: NamedBlob) -> None:
        """Raises ProgramInvalid where a model is named beside a state that is one (R89)."""
        if not self.rank and (any(model.blob) or any(model.root)):
            raise ProgramInvalid("model.blob and model.root: zeros expected, the model is the state in adapter")

    def check_start(self, model: LlamaShape, trained: tuple[int, int, tuple[str, ...]]) -> None:
        """Raises ProgramInvalid unless the state has what a job trains: rank, alpha and targets (R133)."""
        check_tuned(model, self.program_part)
        if (self.rank, self.alpha, self.targets) != trained:
            raise ProgramInvalid("start: a state with other rank, alpha or targets than the job trains")

    def begun(self, plan: AdapterPlan) -> Start:
        """Return the start of a job of ``plan`` from this state."""
        return Start(plan, self.root, self.program_part)

    def started(self, model: LlamaShape) -> Input:
        """Return the blob of the state that a job of a model goes on from. Raises UnsupportedJob."""
        other = adapter_plan_of(model, self.program_part)
        tensors, size = LazyMapping(other.tensors), state_size(other, self.step)
        return Input(SourceKind.STATE, self.blob, self.root, tensors, size, partial(self._check, model))

    def _check(self, model: LlamaShape, blob: bytes) -> None:
        state_left(model, self.program_part, self.root, blob)

    def input(self, plan: AdapterPlan | None, check: Callable[[bytes], None]) -> Input:
        """Return the blob of the state, which ``plan`` is of."""
        assert plan is not None
        size = state_size(plan, self.step)
        return Input(SourceKind.ADAPTER, self.blob, self.root, LazyMapping(plan.tensors), size, check)
