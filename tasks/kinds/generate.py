"""The kind ``generate``: tokens after prompts, by a frozen decoder (market.md R77)."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Final, NamedTuple

from state.primitives.codec import Value
from state.primitives.hashing import HASH_BYTES
from tasks.engines.errors import UnsupportedJob
from tasks.engines.generating_plan import GeneratingPlan
from tasks.engines.input_blobs import check_adapter
from tasks.engines.tuning_plan import ROWS_BYTES_MAX
from tasks.kinds.adapters import ADAPTER_RANGES, TunedAdapter
from tasks.kinds.fields import INTEGER_MAX, Found, KindFields
from tasks.kinds.finetune import DECODERS, BaseModel
from tasks.kinds.plan import Input
from tasks.programs.errors import ProgramInvalid
from tasks.programs.generate import STOP_COLUMNS_MAX, ByRow, GenerateShape, prompt_tensors
from tasks.programs.operators.scalars import NANO
from tasks.programs.program import SourceKind
from tasks.programs.sampling import TEMPERATURE_MAX, Sampling
from tasks.programs.tensors import DIMENSION_MAX

__all__ = [
    "DECODING_GREEDY",
    "DECODING_SAMPLED",
    "GENERATE_FIELDS",
    "GENERATE_NAMES",
    "KIND_GENERATE",
    "SAMPLING_FIELDS",
    "Decoding",
    "GeneratePart",
    "PromptSet",
    "TunedAdapter",
]

KIND_GENERATE: Final = "generate"
DECODING_GREEDY: Final = "greedy"
DECODING_SAMPLED: Final = "sampled"
SAMPLING_FIELDS: Final = len(Sampling._fields)
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
    """How tokens are chosen, how many after the longest prompt, and which of them end a row.

    Of a greedy job the last three are 0, and no specification has them. See ``Sampling`` for their units.
    """

    name: str
    new_tokens: int
    ends: tuple[int, ...]
    temperature: int = 0
    top_p: int = 0
    top_k: int = 0

    @classmethod
    def of(cls, new_tokens: int, ends: tuple[int, ...], sampling: Sampling | None) -> Decoding:
        """Return a greedy decoding, or one that samples."""
        if sampling is None:
            return cls(DECODING_GREEDY, new_tokens, ends)
        return cls(DECODING_SAMPLED, new_tokens, ends, *sampling)

    @property
    def sampling(self) -> Sampling | None:
        """How tokens are drawn; None if the likeliest one is taken."""
        return Sampling(self.temperature, self.top_p, self.top_k) if self.name == DECODING_SAMPLED else None

    def check(self) -> Decoding:
        """Return itself. Raises ProgramInvalid for another name, and for a greedy job that says how to sample."""
        if self.name not in (DECODING_GREEDY, DECODING_SAMPLED):
            raise ProgramInvalid(f"decoding.name: {DECODING_GREEDY} or {DECODING_SAMPLED} expected")
        if self.sampling is None and any(self[-SAMPLING_FIELDS:]):
            raise ProgramInvalid(f"decoding: a {DECODING_GREEDY} job has {len(self) - SAMPLING_FIELDS} fields")
        return self

    def to_value(self) -> list[Value]:
        """Return the fields in their order, without those that a greedy job does not have."""
        found: list[Value] = [self.name, self.new_tokens, list(self.ends)]
        return found if self.sampling is None else [*found, *self.sampling]


class GeneratePart(NamedTuple):
    """What a specification of this kind has of its own. ``batch`` prompts are decoded together."""

    model: BaseModel
    dataset: PromptSet
    batch: int
    decoding: Decoding
    adapter: TunedAdapter | None = None
    by_row: ByRow | None = None
    """That rows have numbers of their own (R136); the decoding is greedy then, and says nothing."""

    @classmethod
    def of(cls, found: Found) -> GeneratePart:
        """Return the part of checked fields."""
        return cls(
            BaseModel(*[found[f"model.{field}"] for field in BaseModel._fields]),
            PromptSet(*[found[f"dataset.{field}"] for field in PromptSet._fields]),
            found["batch"],
            _decoding_of(found),
            TunedAdapter.of(found),
            ByRow(found["by_row.stop_columns"]) if "by_row.stop_columns" in found else None,
        )

    @property
    def names(self) -> tuple[str, ...]:
        """What must be named as this version runs it."""
        return (self.model.name,)

    def to_value(self) -> list[Value]:
        """Return the part's fields in their order."""
        adapter = TunedAdapter.to_value(self.adapter)
        found: list[Value] = [
            list(self.model), list(self.dataset), self.batch, self.decoding.to_value(), adapter,
        ]  # fmt: skip
        return found if self.by_row is None else [*found, list(self.by_row)]

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
        """Return the blobs that a job starts from: its prompts, the frozen model, and its adapters.

        A model that was trained from scratch is in the place of adapters, and there is no frozen one (R89).
        """
        shape, found = self._shape, list[Input]()
        prompts = prompt_tensors(shape)
        size = sum(kind.size_bytes for kind in prompts.values())
        found.append(Input(SourceKind.DATA, self.dataset.blob, self.dataset.root, prompts, size))
        if shape.adapter is None or not shape.adapter.is_whole:
            found.append(self.model.input())
        if self.adapter is not None:
            plan = GeneratingPlan(shape, bytes(HASH_BYTES)).adapter_plan
            found.append(self.adapter.input(plan, partial(check_adapter, shape, self.adapter.root)))
        return tuple(found)

    @property
    def _shape(self) -> GenerateShape:
        data, decoding = self.dataset, self.decoding.check()
        if self.adapter is not None:
            self.adapter.check_model(self.model)
        return GenerateShape(
            self.model.shape, self.batch, data.rows, data.length, decoding.new_tokens, decoding.ends,
            None if self.adapter is None else self.adapter.program_part, decoding.sampling,
            self.by_row,
        )  # fmt: skip


def _decoding_of(found: Found) -> Decoding:
    name, new, ends = (found[f"decoding.{field}"] for field in Decoding._fields[:-SAMPLING_FIELDS])
    rest = [found.get(f"decoding.{field}", 0) for field in Decoding._fields[-SAMPLING_FIELDS:]]
    return Decoding(name, new, tuple(ends), *rest)


GENERATE_NAMES: Final = (DECODERS,)
GENERATE_FIELDS: Final = KindFields(
    fields=(
        ("model", list, BaseModel._fields), ("dataset", list, PromptSet._fields), ("batch", int, ()),
        ("decoding", list, Decoding._fields), ("adapter", list, TunedAdapter._fields),
        ("by_row", list, ByRow._fields),
    ),
    ranges={
        **{f"model.{name}": (1, INTEGER_MAX) for name in BaseModel._fields[3:13]},
        "model.rotary_base": (0, INTEGER_MAX),
        "model.tied": (0, 1), "model.biased": (0, 1), "batch": (1, INTEGER_MAX),
        **{f"dataset.{name}": (1, ROWS_BYTES_MAX) for name in PromptSet._fields[2:]},
        "decoding.new_tokens": (1, INTEGER_MAX), "decoding.temperature": (1, TEMPERATURE_MAX * NANO),
        "decoding.top_p": (0, NANO), "decoding.top_k": (0, DIMENSION_MAX), **ADAPTER_RANGES,
        "by_row.stop_columns": (0, STOP_COLUMNS_MAX),
    },
    hashes=frozenset({"model.blob", "model.root", "dataset.blob", "dataset.root", "adapter.blob", "adapter.root"}),
    texts=frozenset({"model.name", "decoding.name"}),
    integers=frozenset({"decoding.ends"}),
    names=frozenset({"adapter.targets"}),
    optional=frozenset({"adapter"}),
    trailing={"decoding": SAMPLING_FIELDS},
    later=("by_row",),
)  # fmt: skip


@lru_cache(maxsize=PLANS_HELD_MAX)
def _plan(part: GeneratePart, seed: bytes) -> GeneratingPlan:
    try:
        return GeneratingPlan(part._shape, seed)
    except ProgramInvalid as error:
        raise UnsupportedJob(str(error)) from None
