"""The kind ``evaluate``: the loss of each row, by a frozen decoder (market.md R85)."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Final, NamedTuple

from state.primitives.codec import Value
from state.primitives.hashing import HASH_BYTES
from tasks.engines.errors import UnsupportedJob
from tasks.engines.evaluation_plan import EvaluationPlan
from tasks.engines.tuning_plan import ROWS_BYTES_MAX
from tasks.kinds.adapters import ADAPTER_RANGES, TunedAdapter
from tasks.kinds.fields import INTEGER_MAX, Found, KindFields
from tasks.kinds.finetune import DECODERS, BaseModel
from tasks.kinds.plan import Input
from tasks.programs.errors import ProgramInvalid
from tasks.programs.evaluate import EvaluateShape, row_tensors
from tasks.programs.program import SourceKind

__all__ = ["EVALUATE_FIELDS", "EVALUATE_NAMES", "KIND_EVALUATE", "EvaluatePart", "LabelledRows"]

KIND_EVALUATE: Final = "evaluate"
PLANS_HELD_MAX: Final = 256
"""Plans kept in memory."""


class LabelledRows(NamedTuple):
    """The data: content address of the blob, and root of its tensors (places, targets, tokens).

    There are ``rows`` rows of ``length`` tokens, ``slots`` of which are trained at most.
    """

    blob: bytes
    root: bytes
    rows: int
    length: int
    slots: int


class EvaluatePart(NamedTuple):
    """What a specification of this kind has of its own. ``batch`` rows are evaluated in a step."""

    model: BaseModel
    dataset: LabelledRows
    batch: int
    adapter: TunedAdapter | None = None

    @classmethod
    def of(cls, found: Found) -> EvaluatePart:
        """Return the part of checked fields."""
        return cls(
            BaseModel(*[found[f"model.{field}"] for field in BaseModel._fields]),
            LabelledRows(*[found[f"dataset.{field}"] for field in LabelledRows._fields]),
            found["batch"],
            TunedAdapter.of(found),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """What must be named as this version runs it."""
        return (self.model.name,)

    def to_value(self) -> list[Value]:
        """Return the part's fields in their order."""
        return [list(self.model), list(self.dataset), self.batch, TunedAdapter.to_value(self.adapter)]

    def plan(self, seed: bytes, total_steps: int) -> EvaluationPlan:
        """Return the plan of a job. Raises UnsupportedJob."""
        plan = _plan(self, seed)
        if total_steps != plan.steps:
            text = f"{self.dataset.rows} rows, {self.batch} at a time, are {plan.steps} steps, not {total_steps}"
            raise UnsupportedJob(f"schedule.total_steps: {text}")
        return plan

    def inputs(self) -> tuple[Input, ...]:
        """Return the blobs that a job starts from: its rows, the frozen model, and its adapters.

        See GeneratePart of a model that was trained from scratch."""
        rows = row_tensors(self._shape)
        size = sum(kind.size_bytes for kind in rows.values())
        found = [Input(SourceKind.DATA, self.dataset.blob, self.dataset.root, rows, size)]
        if self.adapter is None or self.adapter.rank:
            found.append(self.model.input())
        if self.adapter is not None:
            plan = _plan(self, bytes(HASH_BYTES))
            found.append(self.adapter.input(plan.adapter_plan, partial(plan.check_adapter, self.adapter.root)))
        return tuple(found)

    @property
    def _shape(self) -> EvaluateShape:
        data, adapter = self.dataset, None
        if self.adapter is not None:
            self.adapter.check_model(self.model)
            adapter = self.adapter.program_part
        return EvaluateShape(self.model.shape, self.batch, data.rows, data.length, data.slots, adapter)


EVALUATE_NAMES: Final = (DECODERS,)
EVALUATE_FIELDS: Final = KindFields(
    fields=(
        ("model", list, BaseModel._fields), ("dataset", list, LabelledRows._fields), ("batch", int, ()),
        ("adapter", list, TunedAdapter._fields),
    ),
    ranges={
        **{f"model.{name}": (1, INTEGER_MAX) for name in BaseModel._fields[3:13]},
        "model.rotary_base": (0, INTEGER_MAX),
        "model.tied": (0, 1), "model.biased": (0, 1), "batch": (1, INTEGER_MAX),
        **{f"dataset.{name}": (1, ROWS_BYTES_MAX) for name in LabelledRows._fields[2:]},
        **ADAPTER_RANGES,
    },
    hashes=frozenset({"model.blob", "model.root", "dataset.blob", "dataset.root", "adapter.blob", "adapter.root"}),
    texts=frozenset({"model.name"}),
    names=frozenset({"adapter.targets"}),
    optional=frozenset({"adapter"}),
)  # fmt: skip


@lru_cache(maxsize=PLANS_HELD_MAX)
def _plan(part: EvaluatePart, seed: bytes) -> EvaluationPlan:
    try:
        return EvaluationPlan(seed, part._shape)
    except ProgramInvalid as error:
        raise UnsupportedJob(str(error)) from None
