"""The kind ``generate``: tokens after prompts, by a frozen decoder of the Llama family (market.md R77)."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from state.primitives.codec import Value
from tasks.engines.errors import UnsupportedJob
from tasks.engines.generating_plan import GeneratingPlan
from tasks.engines.tuning_plan import ROWS_BYTES_MAX
from tasks.kinds.fields import INTEGER_MAX, Found, KindFields
from tasks.kinds.finetune import MODEL_LLAMA, BaseModel
from tasks.kinds.plan import Input
from tasks.programs.errors import ProgramInvalid
from tasks.programs.generate import GenerateShape, prompt_tensors
from tasks.programs.program import SourceKind

__all__ = [
    "DECODING_GREEDY",
    "GENERATE_FIELDS",
    "GENERATE_NAMES",
    "KIND_GENERATE",
    "Decoding",
    "GeneratePart",
    "PromptSet",
]

KIND_GENERATE: Final = "generate"
DECODING_GREEDY: Final = "greedy"
PLANS_HELD_MAX: Final = 256
"""Plans kept in memory."""


class PromptSet(NamedTuple):
    """The data: content address of the blob, and root of its tensors (prompts, lengths).

    There are ``rows`` prompts of ``length`` tokens at most.
    """

    blob: bytes
    root: bytes
    rows: int
    length: int


class Decoding(NamedTuple):
    """How tokens are chosen, how many after the longest prompt, and which of them end a row."""

    name: str
    new_tokens: int
    ends: tuple[int, ...]


class GeneratePart(NamedTuple):
    """What a specification of this kind has of its own. ``batch`` prompts are decoded together."""

    model: BaseModel
    dataset: PromptSet
    batch: int
    decoding: Decoding

    @classmethod
    def of(cls, found: Found) -> GeneratePart:
        """Return the part of checked fields."""
        name, new, ends = (found[f"decoding.{field}"] for field in Decoding._fields)
        return cls(
            BaseModel(*[found[f"model.{field}"] for field in BaseModel._fields]),
            PromptSet(*[found[f"dataset.{field}"] for field in PromptSet._fields]),
            found["batch"],
            Decoding(name, new, tuple(ends)),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """What must be named as this version runs it."""
        return self.model.name, self.decoding.name

    def to_value(self) -> list[Value]:
        """Return the part's fields in their order."""
        name, new, ends = self.decoding
        return [list(self.model), list(self.dataset), self.batch, [name, new, list(ends)]]

    def plan(self, seed: bytes, total_steps: int) -> GeneratingPlan:
        """Return the plan of a job. Raises UnsupportedJob."""
        plan = _plan(self, seed)
        if total_steps != plan.shape.steps:
            shape = plan.shape
            raise UnsupportedJob(
                f"schedule.total_steps: {shape.batches} batches of {shape.places} places are {shape.steps} steps, "
                f"not {total_steps}"
            )
        return plan

    def inputs(self) -> tuple[Input, ...]:
        """Return the blobs that a job starts from: its prompts, and the frozen model."""
        prompts = prompt_tensors(self._shape)
        size = sum(kind.size_bytes for kind in prompts.values())
        return Input(SourceKind.DATA, self.dataset.blob, self.dataset.root, prompts, size), self.model.input()

    @property
    def _shape(self) -> GenerateShape:
        data, decoding = self.dataset, self.decoding
        return GenerateShape(
            self.model.shape, self.batch, data.rows, data.length, decoding.new_tokens, decoding.ends
        )


GENERATE_NAMES: Final = (MODEL_LLAMA, DECODING_GREEDY)
GENERATE_FIELDS: Final = KindFields(
    fields=(
        ("model", list, BaseModel._fields), ("dataset", list, PromptSet._fields), ("batch", int, ()),
        ("decoding", list, Decoding._fields),
    ),
    ranges={
        **{f"model.{name}": (1, INTEGER_MAX) for name in BaseModel._fields[3:13]},
        "model.tied": (0, 1), "model.biased": (0, 1), "batch": (1, INTEGER_MAX),
        **{f"dataset.{name}": (1, ROWS_BYTES_MAX) for name in PromptSet._fields[2:]},
        "decoding.new_tokens": (1, INTEGER_MAX),
    },
    hashes=frozenset({"model.blob", "model.root", "dataset.blob", "dataset.root"}),
    texts=frozenset({"model.name", "decoding.name"}),
    integers=frozenset({"decoding.ends"}),
)  # fmt: skip


@lru_cache(maxsize=PLANS_HELD_MAX)
def _plan(part: GeneratePart, seed: bytes) -> GeneratingPlan:
    try:
        return GeneratingPlan(part._shape, seed)
    except ProgramInvalid as error:
        raise UnsupportedJob(str(error)) from None
