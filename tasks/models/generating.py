"""A job of decoding from the files of a model and a file of prompts: its specification and its blobs.

What is wrong is found before the weights are read where it can be, and always before anything is paid.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from state.primitives.hashing import HASH_BYTES
from tasks.engines.errors import UnsupportedJob
from tasks.engines.generating import Own, first_state, prompt_contents, stop_columns
from tasks.engines.input_blobs import MODEL_SENT_BYTES_MAX, join_tensors, rows_root
from tasks.engines.pass_plan import root_of
from tasks.kinds.adapters import TunedAdapter
from tasks.kinds.decoder import DecoderPart
from tasks.kinds.finetune import BaseModel
from tasks.kinds.generate import (
    KIND_GENERATE,
    Decoding,
    GeneratePart,
    PromptSet,
)
from tasks.models.byte_tokens import BYTES_VOCABULARY, ByteTokens
from tasks.models.jobs import LazyTokens, base_model, schedule_of
from tasks.models.left import Tuned, check_base, name_of, tuned_adapter, whole_model
from tasks.models.llama import Model
from tasks.models.prompts import Prompt, prompts_of
from tasks.models.row_options import RowOptions, own_of
from tasks.models.rows import Tokens
from tasks.programs.generate import ByRow, prompt_tensors
from tasks.programs.llama_shape import LlamaShape, frozen_bytes, weight_tensors
from tasks.programs.operators.row_sampling import MICRO
from tasks.programs.operators.scalars import NANO
from tasks.programs.sampling import Sampling
from tasks.spec import LEVEL_EXACT, PROFILE_EXACT_2, JobSpec, Requirements

__all__ = [
    "AskedModel", "GeneratingJob", "GeneratingSettings", "ModelSource", "TrainedModel", "Tuned", "adapter_named",
    "byte_tokens", "check_size", "make_generating", "model_source", "tuned_adapter", "with_state",
]  # fmt: skip

BATCH_WANTED: Final = 8
"""Rows that are decoded together at most, where nobody says how many."""


@dataclass(frozen=True)
class GeneratingSettings:
    """What a requester chooses.

    ``batch`` 0: the largest number up to ``BATCH_WANTED`` that divides the prompts. ``ends`` None: those of the
    tokeniser, none where no prompt is text. ``sampling`` None: the likeliest token is taken.
    """

    new_tokens: int = 64
    batch: int = 0
    ends: tuple[int, ...] | None = None
    segment_steps: int = 0
    """0: as for fine-tuning."""
    sampling: Sampling | None = None


class AskedModel(Protocol):
    """A model that is asked."""

    @property
    def shape(self) -> LlamaShape:
        """Its shape."""

    @property
    def load(self) -> Callable[[], Model]:
        """Freezes its weights."""

    @property
    def tokeniser(self) -> Callable[[], Tokens]:
        """Reads its tokeniser."""


class TrainedModel(NamedTuple):
    """The model that a task has trained from scratch (R89)."""

    tuned: Tuned
    shape: LlamaShape
    tokeniser: Callable[[], Tokens]

    @classmethod
    def of(cls, tuned: Tuned, tokeniser: Callable[[], Tokens] | None) -> TrainedModel:
        """Return the model of a task. Without ``tokeniser`` its tokens are bytes. Raises UnsupportedJob."""
        part = tuned.spec.part
        if not isinstance(part, DecoderPart):
            raise UnsupportedJob(
                f"a task of kind {tuned.spec.kind} has no model of its own: name one that trained a language model"
            )
        return cls(tuned, part.model.shape, tokeniser or byte_tokens(part.model.vocabulary))

    def load(self) -> Model:
        """Raises AssertionError: its weights are in the state of the task, and never frozen."""
        raise AssertionError("weights of a trained model are not frozen")


def byte_tokens(vocabulary: int) -> Callable[[], Tokens]:
    """Return what opens the tokens of a model whose tokens are bytes. It raises UnsupportedJob for another one."""

    def opened() -> Tokens:
        if vocabulary != BYTES_VOCABULARY:
            raise UnsupportedJob(
                "the tokens of this model are not bytes: name the folder of its tokeniser (tokenizer), or give "
                "prompts as input_ids"
            )
        return ByteTokens()

    return opened


class GeneratingJob(NamedTuple):
    """A specification, the blobs that it names (``rows`` is that of prompts), and notes for its requester."""

    spec: JobSpec
    rows: bytes
    model: bytes
    notes: tuple[str, ...]
    adapter: bytes = b""
    """The state with the model's adapters, of a tuned model."""


def make_generating(
    opened: AskedModel, data: bytes, settings: GeneratingSettings, *, seed: bytes, max_price_per_tera_unit: int,
    match_ms: int, tuned: Tuned | None = None,
) -> GeneratingJob:  # fmt: skip
    """Return the job of a model and a file of JSON lines. With ``tuned`` the model has its adapters.

    A TrainedModel is asked with the weights of its task's state, which is in the place of adapters.

    Raises RowsInvalid with line and column; ModelError with file and remedy; UnsupportedJob; TokenizersMissing.
    """
    shape, tokens = opened.shape, LazyTokens(opened)
    adapter = adapter_named(opened, tuned)
    check_size(shape, adapter)
    if settings.new_tokens > shape.context:
        raise UnsupportedJob(f"new_tokens is {settings.new_tokens}, and the model takes {shape.context} tokens")
    prompts = prompts_of(data, tokens, shape.vocabulary, shape.context, settings.new_tokens)
    ends = settings.ends
    if ends is None:
        ends = tuple(sorted(tokens.ends)) if tokens.is_open else ()
    rows, length, nothing = len(prompts), max(len(one.tokens) for one in prompts), bytes(HASH_BYTES)
    batch, notes = _batch(settings.batch, rows)
    own = _own_numbers(prompts, settings, seed)
    new_tokens, sampling = settings.new_tokens, settings.sampling
    by_row = ByRow(stop_columns(one.stops for one in own)) if own else None
    if own:  # the last place of the row that needs most
        new_tokens = max(1, max(len(p.tokens) + one.limit for p, one in zip(prompts, own, strict=True)) - length)
        sampling = None
    unnamed = GeneratePart(
        base_model(shape, nothing, nothing), PromptSet(nothing, nothing, rows, length), batch,
        Decoding.of(new_tokens, ends, sampling), adapter, by_row,
    )  # fmt: skip
    total = rows // batch * (length + new_tokens - 1)
    plan = unnamed.plan(seed, total)
    plan.check()

    model = model_source(opened, tuned)
    data_contents = prompt_contents(plan.shape, [list(one.tokens) for one in prompts], own)
    prompts_blob = join_tensors(prompt_tensors(plan.shape), data_contents)
    part = unnamed._replace(
        model=model.base,
        dataset=PromptSet(name_of(prompts_blob), rows_root(plan.shape, data_contents), rows, length),
    )
    spec = JobSpec(
        KIND_GENERATE, LEVEL_EXACT, PROFILE_EXACT_2, part, seed, first_state(plan).root(plan),
        schedule_of(plan, total, settings.segment_steps), max_price_per_tera_unit, Requirements(0, 0, 0), match_ms,
    )  # fmt: skip
    return GeneratingJob(spec, prompts_blob, model.blob, (*notes, *model.notes), model.state)


def _own_numbers(prompts: Sequence[Prompt], settings: GeneratingSettings, seed: bytes) -> list[Own]:
    """Return the numbers of rows, none if no line has one of its own. Raises RowsInvalid with its line."""
    if all(one.own == RowOptions() for one in prompts):
        return []
    sampling = settings.sampling
    if sampling is not None and sampling.temperature % (NANO // MICRO):
        raise UnsupportedJob("temperature: at most 6 digits after the point where rows have numbers of their own")
    return [
        own_of(
            one.own, row, seed=seed, new_tokens=settings.new_tokens, sampling=sampling, line=one.line
        )
        for row, one in enumerate(prompts)
    ]  # fmt: skip


class ModelSource(NamedTuple):
    """What a specification says of its model, the blobs that it names, and notes for its requester.

    ``state`` is that of the task that has tuned or trained the model.
    """

    base: BaseModel
    blob: bytes
    state: bytes
    notes: tuple[str, ...]


def adapter_named(opened: AskedModel, tuned: Tuned | None) -> TunedAdapter | None:
    """Return the adapters of a model, or the state that it is (R89); None without them. Raises UnsupportedJob."""
    if isinstance(opened, TrainedModel):
        return whole_model(opened.tuned)
    return None if tuned is None else tuned_adapter(tuned)


def check_size(shape: LlamaShape, adapter: TunedAdapter | None) -> None:
    """Raises UnsupportedJob for a frozen model that no machine takes."""
    size = frozen_bytes(shape, None if adapter is None else adapter.program_part)
    if size > MODEL_SENT_BYTES_MAX:
        raise UnsupportedJob(f"a model of {size} bytes; machines take {MODEL_SENT_BYTES_MAX} at most")


def model_source(opened: AskedModel, tuned: Tuned | None) -> ModelSource:
    """Return what a job says of a model, whose weights are frozen if no task has trained them.

    Raises ModelError with file and remedy; UnsupportedJob for adapters of another model.
    """
    shape = opened.shape
    if isinstance(opened, TrainedModel):
        nothing = bytes(HASH_BYTES)
        return ModelSource(base_model(shape, nothing, nothing), b"", opened.tuned.state.encode(), ())
    model, weights = opened.load(), weight_tensors(shape)
    contents = model.contents()
    blob, root = join_tensors(weights, contents), root_of(weights, contents)
    return with_state(ModelSource(base_model(shape, name_of(blob), root), blob, b"", model.notes), tuned)


def with_state(source: ModelSource, tuned: Tuned | None) -> ModelSource:
    """Return a model with the state of the task that has tuned it. Raises UnsupportedJob for another model."""
    if tuned is None:
        return source
    check_base(tuned, source.base.root)
    return source._replace(state=tuned.state.encode())


def _batch(wanted: int, rows: int) -> tuple[int, tuple[str, ...]]:
    """Return how many rows are decoded together, and what is to be said of it. Raises UnsupportedJob."""
    if wanted:
        batch = min(wanted, rows)
        if rows % batch:
            less = next(one for one in range(batch, 0, -1) if not rows % one)
            missing = -rows % batch
            raise UnsupportedJob(
                f"{rows} prompts are not a multiple of batch {batch}: set batch to {less}, or add {missing} more"
            )
        return batch, ()
    batch = next(one for one in range(min(BATCH_WANTED, rows), 0, -1) if not rows % one)
    if batch > 1 or rows == 1:
        return batch, ()
    return 1, (f"{rows} prompts are decoded one at a time; a multiple of {BATCH_WANTED} costs less a prompt",)
