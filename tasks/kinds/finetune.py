"""The kind ``finetune``: low-rank adapters for a frozen decoder (market.md 4.1)."""

from __future__ import annotations

from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple

from state.primitives.codec import Value
from tasks.engines.errors import UnsupportedJob
from tasks.engines.tuning_plan import ROWS_BYTES_MAX, TuningPlan
from tasks.kinds.adapters import TunedAdapter, adapter_ranges
from tasks.kinds.classifier import OPTIMISER_ADAMW, Optimiser
from tasks.kinds.fields import INTEGER_MAX, Found, KindFields, with_later
from tasks.kinds.plan import Input
from tasks.programs.adamw import Rates
from tasks.programs.errors import ProgramInvalid
from tasks.programs.finetune import BETA_NANO_MAX, FinetuneRates, FinetuneShape, row_tensors
from tasks.programs.lazy import LazyMapping
from tasks.programs.llama_shape import LlamaShape, model_bytes, weight_tensors
from tasks.programs.loop import ACCUMULATE_MAX, EVALUATIONS_MAX, UPDATES_MAX, updates_of
from tasks.programs.program import CALLS_MAX, SourceKind

__all__ = [
    "DECODERS",
    "FINETUNE_FIELDS",
    "FINETUNE_NAMES",
    "KIND_FINETUNE",
    "LOOP_RANGES",
    "MODEL_GPT2",
    "MODEL_LLAMA",
    "STEP_CALLS_MAX",
    "Adapters",
    "BaseModel",
    "FinetunePart",
    "Packing",
    "Preference",
    "RateSchedule",
    "Recompute",
    "RowSet",
    "TrainingLoop",
    "check_family",
    "family_of",
]

KIND_FINETUNE: Final = "finetune"
MODEL_LLAMA: Final = "llama"
MODEL_GPT2: Final = "gpt2"
DECODERS: Final = (MODEL_LLAMA, MODEL_GPT2)
"""Names of models that decode."""
STEP_CALLS_MAX: Final = CALLS_MAX
"""Calls of a step. What validators do for a new task or a move does not grow with it (``tasks/programs/layered``).
A machine that runs the step holds a call in half a kilobyte."""
PLANS_HELD_MAX: Final = 256
"""Plans kept in memory."""


def family_of(shape: LlamaShape) -> str:
    """Return the name that a specification has for models of a shape."""
    return MODEL_GPT2 if shape.is_gpt2 else MODEL_LLAMA


def check_family(name: str, shape: LlamaShape) -> LlamaShape:
    """Return the shape. Raises ProgramInvalid if it is not that of a model of this name (R154)."""
    if name != family_of(shape):
        raise ProgramInvalid(f"model.name: {family_of(shape)} expected with rotary_base {shape.rotary_base}")
    return shape


class BaseModel(NamedTuple):
    """The frozen model: content address of its blob, root of its tensors, and its shape (``LlamaShape``).

    ``tied`` and ``biased`` are 0 or 1.
    """

    name: str
    blob: bytes
    root: bytes
    vocabulary: int
    width: int
    layers: int
    heads: int
    key_heads: int
    head_width: int
    hidden: int
    context: int
    rotary_base: int
    epsilon_nano: int
    tied: int
    biased: int

    @property
    def shape(self) -> LlamaShape:
        """The shape. Raises ProgramInvalid for one that no program is made of."""
        return check_family(self.name, LlamaShape(*self[3:13], tied=bool(self.tied), biased=bool(self.biased)))

    def input(self) -> Input:
        """Return the blob of its weights. Raises ProgramInvalid."""
        shape = self.shape
        weights = LazyMapping(lambda: weight_tensors(shape))
        return Input(SourceKind.MODEL, self.blob, self.root, weights, model_bytes(shape))


class RowSet(NamedTuple):
    """The data: content address of the blob, and root of its tensors (tokens, places, targets, slots).

    Of ``rows`` rows of ``length`` tokens, ``slots`` of which are trained, the first ``samples`` are for training.
    """

    blob: bytes
    root: bytes
    rows: int
    samples: int
    length: int
    slots: int


class Adapters(NamedTuple):
    """Rank and alpha of the adapters; ``targets`` are the weights of a layer that they change."""

    rank: int
    alpha: int
    targets: tuple[str, ...]


class RateSchedule(NamedTuple):
    """How the learning rate changes over the job's steps; ``clip_nano`` bounds the gradients' norm, 0 does not."""

    name: str
    warmup_steps: int
    clip_nano: int


class TrainingLoop(NamedTuple):
    """Batches of an update; updates between two evaluations, 0 for none; whether the best state is kept, 0 or 1.

    Rows beyond ``samples`` are for validation. ``patience`` evaluations in a row without a lower loss end the job
    (R87). Of a job that never ends early it is 0, and no specification has it.
    """

    accumulate: int = 1
    evaluate_every: int = 0
    keeps_best: int = 0
    patience: int = 0

    def to_value(self) -> list[Value]:
        """Return the fields in their order, without the patience that a job does not have."""
        return list(self) if self.patience else list(self[:-1])


class Preference(NamedTuple):
    """``beta`` of a job on preferences (DPO), in units of 10^-9 (R135)."""

    beta_nano: int


class Recompute(NamedTuple):
    """What the way back computes again in place of keeping it (R152): ``layers`` is 1."""

    layers: int


class Packing(NamedTuple):
    """That several rows of a file share a sequence (R155)."""

    packed: int = 1


class FinetunePart(NamedTuple):
    """What a specification of this kind has of its own."""

    model: BaseModel
    dataset: RowSet
    adapters: Adapters
    batch: int
    optimiser: Optimiser
    rates: RateSchedule
    loop: TrainingLoop = TrainingLoop()
    start: TunedAdapter | None = None
    """The state whose adapters this job goes on from (R133)."""
    preference: Preference | None = None
    """Of a job on preferences, whose rows are pairs."""
    recompute: Recompute | None = None
    """Of a job that computes layers again in the way back."""
    packing: Packing | None = None
    """Of a job whose rows share sequences; its data set counts these."""

    @classmethod
    def of(cls, found: Found) -> FinetunePart:
        """Return the part of checked fields."""
        rank, alpha, targets = (found[f"adapters.{name}"] for name in Adapters._fields)
        return cls(
            BaseModel(*[found[f"model.{name}"] for name in BaseModel._fields]),
            RowSet(*[found[f"dataset.{name}"] for name in RowSet._fields]),
            Adapters(rank, alpha, tuple(targets)),
            found["batch"],
            Optimiser(*[found[f"optimiser.{name}"] for name in Optimiser._fields]),
            RateSchedule(*[found[f"rates.{name}"] for name in RateSchedule._fields]),
            TrainingLoop(*[found.get(f"loop.{name}", 0) for name in TrainingLoop._fields]),
            TunedAdapter.of(found, "start"),
            Preference(found["preference.beta_nano"]) if "preference.beta_nano" in found else None,
            Recompute(found["recompute.layers"]) if "recompute.layers" in found else None,
            Packing(found["packing.packed"]) if "packing.packed" in found else None,
        )

    @property
    def names(self) -> tuple[str, ...]:
        """What must be named as this version runs it."""
        return self.model.name, self.optimiser.name

    def to_value(self) -> list[Value]:
        """Return the part's fields in their order."""
        rank, alpha, targets = self.adapters
        found: list[Value] = [
            list(self.model), list(self.dataset), [rank, alpha, list(targets)], self.batch, list(self.optimiser),
            list(self.rates), self.loop.to_value(),
        ]  # fmt: skip
        return with_later(
            found, TunedAdapter.to_value(self.start), list(self.preference or ()), list(self.recompute or ()),
            list(self.packing or ()),
        )  # fmt: skip

    def plan(self, seed: bytes, total_steps: int) -> TuningPlan:
        """Return the plan of a job. Raises UnsupportedJob."""
        return _plan(self, seed, total_steps)

    def inputs(self) -> tuple[Input, ...]:
        """Return the blobs that a job starts from: its rows, the frozen model, and the state to go on from."""
        rows = row_tensors(self.shape)
        size = sum(kind.size_bytes for kind in rows.values())
        found = (Input(SourceKind.DATA, self.dataset.blob, self.dataset.root, rows, size), self.model.input())
        return found if self.start is None else (*found, self.start.started(self.model.shape))

    @property
    def shape(self) -> FinetuneShape:
        """The shape of its program. Raises ProgramInvalid for one that no program is made of."""
        rows, adapters = self.dataset, self.adapters
        return FinetuneShape(
            self.model.shape, adapters.rank, adapters.alpha, adapters.targets, self.batch, rows.length, rows.slots,
            rows.rows, rows.samples, *self.loop[:-1], 0 if self.preference is None else self.preference.beta_nano,
            0 if self.recompute is None else self.recompute.layers,
            0 if self.packing is None else self.packing.packed,
        )  # fmt: skip


LOOP_RANGES: Final = MappingProxyType({
    "loop.accumulate": (1, ACCUMULATE_MAX), "loop.evaluate_every": (0, UPDATES_MAX), "loop.keeps_best": (0, 1),
    "loop.patience": (1, EVALUATIONS_MAX),
})  # fmt: skip
"""Ranges of the fields of a training loop."""
FINETUNE_NAMES: Final = (DECODERS, OPTIMISER_ADAMW)
FINETUNE_FIELDS: Final = KindFields(
    fields=(
        ("model", list, BaseModel._fields), ("dataset", list, RowSet._fields),
        ("adapters", list, Adapters._fields), ("batch", int, ()), ("optimiser", list, Optimiser._fields),
        ("rates", list, RateSchedule._fields), ("loop", list, TrainingLoop._fields),
        ("start", list, TunedAdapter._fields), ("preference", list, Preference._fields),
        ("recompute", list, Recompute._fields),
        ("packing", list, Packing._fields),
    ),
    ranges={
        **{f"model.{name}": (1, INTEGER_MAX) for name in BaseModel._fields[3:13]},
        "model.rotary_base": (0, INTEGER_MAX),
        "model.tied": (0, 1), "model.biased": (0, 1), "batch": (1, INTEGER_MAX),
        **{f"dataset.{name}": (1, ROWS_BYTES_MAX) for name in RowSet._fields[2:]},
        **{f"adapters.{name}": (1, INTEGER_MAX) for name in Adapters._fields[:2]},
        **{f"optimiser.{rate}": (0, INTEGER_MAX) for rate in Optimiser._fields[1:]},
        **{f"rates.{name}": (0, INTEGER_MAX) for name in RateSchedule._fields[1:]},
        **LOOP_RANGES, **adapter_ranges("start"),
        "preference.beta_nano": (1, BETA_NANO_MAX), "recompute.layers": (1, 1), "packing.packed": (1, 1),
    },
    hashes=frozenset({
        "model.blob", "model.root", "dataset.blob", "dataset.root", "start.blob", "start.root",
    }),
    texts=frozenset({"model.name", "optimiser.name", "rates.name"}),
    names=frozenset({"adapters.targets", "start.targets"}),
    trailing={"loop": 1},
    later=("start", "preference", "recompute", "packing"),
)  # fmt: skip


@lru_cache(maxsize=PLANS_HELD_MAX)
def _plan(part: FinetunePart, seed: bytes, total_steps: int) -> TuningPlan:
    try:
        shape = part.shape
        if part.start is not None:
            part.start.check_start(shape.model, (shape.rank, shape.alpha, shape.targets))
        updates = updates_of(shape.loop(1), total_steps)
        rates = FinetuneRates(
            Rates(*part.optimiser[1:]), part.rates.name, part.rates.warmup_steps, updates, part.rates.clip_nano
        )
    except ProgramInvalid as error:
        raise UnsupportedJob(str(error)) from None
    plan = TuningPlan(shape, rates, seed, part.loop.patience)
    if plan.step_calls > STEP_CALLS_MAX:
        raise UnsupportedJob(f"a step of {plan.step_calls} calls, at most {STEP_CALLS_MAX}")
    return plan
