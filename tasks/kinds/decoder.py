"""The kind ``train`` with a decoder (``llama`` or ``gpt2``): all weights are trained, from scratch (R88)."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from state.primitives.codec import Value
from state.primitives.errors import DecodeError
from tasks.engines.decoder_plan import DecoderPlan
from tasks.engines.errors import UnsupportedJob
from tasks.engines.tuning_plan import ROWS_BYTES_MAX
from tasks.kinds.adapters import TunedAdapter, adapter_ranges
from tasks.kinds.classifier import KIND_TRAIN, OPTIMISER_ADAMW, Optimiser
from tasks.kinds.fields import INTEGER_MAX, Found, KindFields, with_later
from tasks.kinds.finetune import (
    DECODERS,
    KIND_FINETUNE,
    LOOP_RANGES,
    STEP_CALLS_MAX,
    RateSchedule,
    Recompute,
    TrainingLoop,
    check_family,
)
from tasks.kinds.plan import Input
from tasks.programs.adamw import Rates
from tasks.programs.decoder import DecoderShape, row_tensors
from tasks.programs.errors import ProgramInvalid
from tasks.programs.finetune import FinetuneRates
from tasks.programs.llama_shape import LlamaShape
from tasks.programs.loop import updates_of
from tasks.programs.program import SourceKind

__all__ = ["DECODER_FIELDS", "DECODER_NAMES", "TRAINING", "DecoderModel", "DecoderPart", "TextRows"]

TRAINING: Final = (KIND_TRAIN, KIND_FINETUNE)
"""Kinds of jobs whose loss says how far they are."""
PLANS_HELD_MAX: Final = 256
"""Plans kept in memory."""


class DecoderModel(NamedTuple):
    """The shape of the model (``LlamaShape``); ``tied`` is 0 or 1."""

    name: str
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

    @property
    def shape(self) -> LlamaShape:
        """The shape. Raises ProgramInvalid for one that no program is made of."""
        return check_family(self.name, LlamaShape(*self[1:11], tied=bool(self.tied)))


class TextRows(NamedTuple):
    """The data: content address of the blob, and root of its tensors (tokens, targets).

    Of ``rows`` rows of ``length`` tokens the first ``samples`` are for training.
    """

    blob: bytes
    root: bytes
    rows: int
    samples: int
    length: int


class DecoderPart(NamedTuple):
    """What a specification of this kind has of its own."""

    model: DecoderModel
    dataset: TextRows
    batch: int
    optimiser: Optimiser
    rates: RateSchedule
    start: TunedAdapter | None = None
    """The state whose weights this job goes on from (R133)."""
    loop: TrainingLoop = TrainingLoop()
    """Accumulation and validation (R134). One in which every step is an update stands in no specification."""
    recompute: Recompute | None = None
    """Of a job that computes layers again in the way back (R152)."""

    @classmethod
    def of(cls, found: Found) -> DecoderPart:
        """Return the part of checked fields. Raises DecodeError for a loop that says nothing."""
        loop = TrainingLoop()
        if "loop.accumulate" in found:
            loop = TrainingLoop(*[found.get(f"loop.{name}", 0) for name in TrainingLoop._fields])
            if loop.accumulate == 1 and not loop.evaluate_every:
                raise DecodeError("not a job specification: loop: a job in which every step is an update has none")
        return cls(
            DecoderModel(*[found[f"model.{name}"] for name in DecoderModel._fields]),
            TextRows(*[found[f"dataset.{name}"] for name in TextRows._fields]),
            found["batch"],
            Optimiser(*[found[f"optimiser.{name}"] for name in Optimiser._fields]),
            RateSchedule(*[found[f"rates.{name}"] for name in RateSchedule._fields]),
            TunedAdapter.of(found, "start"),
            loop,
            Recompute(found["recompute.layers"]) if "recompute.layers" in found else None,
        )

    @property
    def names(self) -> tuple[str, ...]:
        """What must be named as this version runs it."""
        return self.model.name, self.optimiser.name

    def to_value(self) -> list[Value]:
        """Return the part's fields in their order."""
        found: list[Value] = [
            list(self.model), list(self.dataset), self.batch, list(self.optimiser), list(self.rates),
        ]  # fmt: skip
        loop = self.loop.to_value() if self.loop != TrainingLoop() else []
        return with_later(found, TunedAdapter.to_value(self.start), loop, list(self.recompute or ()))

    def plan(self, seed: bytes, total_steps: int) -> DecoderPlan:
        """Return the plan of a job. Raises UnsupportedJob."""
        return _plan(self, seed, total_steps)

    def inputs(self) -> tuple[Input, ...]:
        """Return the blobs that a job starts from: its rows, and the state that it goes on from."""
        rows = row_tensors(self.shape)
        size = sum(kind.size_bytes for kind in rows.values())
        found = Input(SourceKind.DATA, self.dataset.blob, self.dataset.root, rows, size)
        return (found,) if self.start is None else (found, self.start.started(self.model.shape))

    @property
    def shape(self) -> DecoderShape:
        """The shape of its program. Raises ProgramInvalid for one that no program is made of."""
        rows, again = self.dataset, 0 if self.recompute is None else self.recompute.layers
        return DecoderShape(
            self.model.shape, self.batch, rows.length, rows.rows, rows.samples, *self.loop[:-1], again
        )


DECODER_NAMES: Final = (DECODERS, OPTIMISER_ADAMW)
DECODER_FIELDS: Final = KindFields(
    fields=(
        ("model", list, DecoderModel._fields), ("dataset", list, TextRows._fields), ("batch", int, ()),
        ("optimiser", list, Optimiser._fields), ("rates", list, RateSchedule._fields),
        ("start", list, TunedAdapter._fields), ("loop", list, TrainingLoop._fields),
        ("recompute", list, Recompute._fields),
    ),
    ranges={
        **{f"model.{name}": (1, INTEGER_MAX) for name in DecoderModel._fields[1:11]},
        "model.rotary_base": (0, INTEGER_MAX),
        "model.tied": (0, 1), "batch": (1, INTEGER_MAX),
        **{f"dataset.{name}": (1, ROWS_BYTES_MAX) for name in TextRows._fields[2:]},
        **{f"optimiser.{rate}": (0, INTEGER_MAX) for rate in Optimiser._fields[1:]},
        **{f"rates.{name}": (0, INTEGER_MAX) for name in RateSchedule._fields[1:]},
        **adapter_ranges("start"), **LOOP_RANGES, "recompute.layers": (1, 1),
    },
    hashes=frozenset({"dataset.blob", "dataset.root", "start.blob", "start.root"}),
    texts=frozenset({"model.name", "optimiser.name", "rates.name"}),
    names=frozenset({"start.targets"}),
    trailing={"loop": 1},
    later=("start", "loop", "recompute"),
)  # fmt: skip


@lru_cache(maxsize=PLANS_HELD_MAX)
def _plan(part: DecoderPart, seed: bytes, total_steps: int) -> DecoderPlan:
    try:
        shape = part.shape
        if part.start is not None:
            part.start.check_start(shape.model, (0, 0, ()))
        updates = updates_of(shape.loop(1), total_steps) if shape.is_gated else total_steps
        rates = FinetuneRates(
            Rates(*part.optimiser[1:]), part.rates.name, part.rates.warmup_steps, updates, part.rates.clip_nano
        )
    except ProgramInvalid as error:
        raise UnsupportedJob(str(error)) from None
    plan = DecoderPlan(shape, rates, seed, part.loop.patience)
    if plan.step_calls > STEP_CALLS_MAX:
        raise UnsupportedJob(f"a step of {plan.step_calls} calls, at most {STEP_CALLS_MAX}")
    return plan
