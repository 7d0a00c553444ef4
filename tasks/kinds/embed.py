"""The kind ``embed``: a vector for each text, by a frozen encoder or decoder (market.md R84)."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Final, NamedTuple

from state.primitives.codec import Value
from state.primitives.hashing import HASH_BYTES
from tasks.engines.embedding_plan import EmbeddingPlan
from tasks.engines.errors import UnsupportedJob
from tasks.engines.tuning_plan import ROWS_BYTES_MAX
from tasks.kinds.adapters import ADAPTER_RANGES, TunedAdapter
from tasks.kinds.fields import INTEGER_MAX, Found, KindFields
from tasks.kinds.finetune import DECODERS, BaseModel
from tasks.kinds.generate import PromptSet
from tasks.kinds.plan import Input
from tasks.programs.bert_shape import BertShape
from tasks.programs.embed import EmbedShape, ModelShape, frozen_bytes, frozen_tensors, text_tensors
from tasks.programs.errors import ProgramInvalid
from tasks.programs.lazy import LazyMapping
from tasks.programs.program import SourceKind

__all__ = ["EMBED_FIELDS", "KIND_EMBED", "MODEL_BERT", "EmbedPart", "Pooling", "shape_of"]

KIND_EMBED: Final = "embed"
MODEL_BERT: Final = "bert"
PLANS_HELD_MAX: Final = 256
"""Plans kept in memory."""


class Pooling(NamedTuple):
    """What a vector is of a text's tokens, and whether it is divided by its length (0 or 1)."""

    name: str
    normalised: int


class EmbedPart(NamedTuple):
    """What a specification of this kind has of its own. ``batch`` texts are embedded in a step.

    A model named ``bert`` has as many key heads as heads, which share its columns; no rotary base (0); and both
    flags are 1.
    """

    model: BaseModel
    dataset: PromptSet
    batch: int
    pooling: Pooling
    adapter: TunedAdapter | None = None

    @classmethod
    def of(cls, found: Found) -> EmbedPart:
        """Return the part of checked fields."""
        return cls(
            BaseModel(*[found[f"model.{field}"] for field in BaseModel._fields]),
            PromptSet(*[found[f"dataset.{field}"] for field in PromptSet._fields]),
            found["batch"],
            Pooling(*[found[f"pooling.{field}"] for field in Pooling._fields]),
            TunedAdapter.of(found),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """What must be named as this version runs it: the plan names what it does not know."""
        return ()

    def to_value(self) -> list[Value]:
        """Return the part's fields in their order."""
        found: list[Value] = [list(self.model), list(self.dataset), self.batch, list(self.pooling)]
        return found if self.adapter is None else [*found, TunedAdapter.to_value(self.adapter)]

    def plan(self, seed: bytes, total_steps: int) -> EmbeddingPlan:
        """Return the plan of a job. Raises UnsupportedJob."""
        plan = _plan(self, seed)
        if total_steps != plan.steps:
            text = f"{self.dataset.rows} texts, {self.batch} at a time, are {plan.steps} steps, not {total_steps}"
            raise UnsupportedJob(f"schedule.total_steps: {text}")
        return plan

    def inputs(self) -> tuple[Input, ...]:
        """Return the blobs that a job starts from: its texts, the frozen model, and its adapters.

        See GeneratePart of a model that was trained from scratch.
        """
        shape, model = self._shape, self.model
        texts = text_tensors(shape)
        size = sum(kind.size_bytes for kind in texts.values())
        weights = LazyMapping(lambda: frozen_tensors(shape.model))
        found = [Input(SourceKind.DATA, self.dataset.blob, self.dataset.root, texts, size)]
        if self.adapter is None or self.adapter.rank:
            found.append(Input(SourceKind.MODEL, model.blob, model.root, weights, frozen_bytes(shape.model)))
        if self.adapter is not None:
            plan = _plan(self, bytes(HASH_BYTES))
            found.append(self.adapter.input(plan.adapter_plan, partial(plan.check_adapter, self.adapter.root)))
        return tuple(found)

    @property
    def _shape(self) -> EmbedShape:
        data, pooling, adapter = self.dataset, self.pooling, None
        if self.adapter is not None:
            self.adapter.check_model(self.model)
            adapter = self.adapter.program_part
        return EmbedShape(
            shape_of(self.model), self.batch, data.rows, data.length, pooling.name, bool(pooling.normalised),
            adapter,
        )  # fmt: skip


def shape_of(model: BaseModel) -> ModelShape:
    """Return the shape of a model of any architecture. Raises ProgramInvalid."""
    if model.name in DECODERS:
        return model.shape
    if model.name != MODEL_BERT:
        raise ProgramInvalid(f"model.name: {', '.join((MODEL_BERT, *DECODERS))} expected, not {model.name[:20]!r}")
    found = BertShape(
        model.vocabulary, model.width, model.layers, model.heads, model.hidden, model.context, model.epsilon_nano
    )
    rest = (model.key_heads, model.head_width, model.rotary_base, model.tied, model.biased)
    if rest != (model.heads, found.head_width, 0, 1, 1):
        raise ProgramInvalid("an encoder with settings of a decoder")
    return found


EMBED_FIELDS: Final = KindFields(
    fields=(
        ("model", list, BaseModel._fields), ("dataset", list, PromptSet._fields), ("batch", int, ()),
        ("pooling", list, Pooling._fields), ("adapter", list, TunedAdapter._fields),
    ),
    ranges={
        **{f"model.{name}": (1, INTEGER_MAX) for name in BaseModel._fields[3:11]},
        "model.rotary_base": (0, INTEGER_MAX), "model.epsilon_nano": (0, INTEGER_MAX),
        "model.tied": (0, 1), "model.biased": (0, 1), "batch": (1, INTEGER_MAX),
        **{f"dataset.{name}": (1, ROWS_BYTES_MAX) for name in PromptSet._fields[2:]},
        "pooling.normalised": (0, 1),
        **ADAPTER_RANGES,
    },
    hashes=frozenset({"model.blob", "model.root", "dataset.blob", "dataset.root", "adapter.blob", "adapter.root"}),
    texts=frozenset({"model.name", "pooling.name"}),
    names=frozenset({"adapter.targets"}),
    later=("adapter",),
)  # fmt: skip


@lru_cache(maxsize=PLANS_HELD_MAX)
def _plan(part: EmbedPart, seed: bytes) -> EmbeddingPlan:
    try:
        return EmbeddingPlan(seed, part._shape)
    except ProgramInvalid as error:
        raise UnsupportedJob(str(error)) from None
