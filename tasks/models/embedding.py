"""A job of embedding from the files of a model and a file of texts: its specification and its blobs (R84).

What is wrong is found before the weights are read where it can be, and always before anything is paid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import numpy as np

from state.primitives.hashing import HASH_BYTES
from tasks.engines.errors import UnsupportedJob
from tasks.engines.input_blobs import MODEL_SENT_BYTES_MAX, join_tensors
from tasks.engines.pass_plan import root_of
from tasks.kinds.embed import KIND_EMBED, MODEL_BERT, EmbedPart, Pooling
from tasks.kinds.finetune import BaseModel
from tasks.kinds.generate import PromptSet
from tasks.models.encoders import FrozenModel, PlainTokens, TextTokens
from tasks.models.errors import RowsInvalid
from tasks.models.generating import (
    ModelSource,
    TrainedModel,
    Tuned,
    adapter_named,
    model_source,
    tuned_adapter,
    with_state,
)
from tasks.models.jobs import ModelFiles, base_model, schedule_of, usual_batch
from tasks.models.left import name_of
from tasks.models.rows import objects_of, text_of, tokens_of
from tasks.programs.bert_shape import BertShape
from tasks.programs.embed import LAST, TEXT_TOKENS, ModelShape, frozen_bytes, frozen_tensors, text_tensors
from tasks.spec import LEVEL_EXACT, PROFILE_EXACT_2, JobSpec, Requirements

__all__ = [
    "LONG_TEXTS",
    "EmbeddingJob",
    "EmbeddingSettings",
    "TrainedEmbedder",
    "TunedEmbedder",
    "make_embedding",
    "texts_of",
]

BATCH_MOST: Final = 16
"""Texts of a step at most, where nobody says how many."""
LONG_TEXTS: Final = ("refuse", "truncate")
"""What is done with a text of more tokens than are allowed."""


@dataclass(frozen=True)
class EmbeddingSettings:
    """What a requester chooses. ``pooling`` empty and ``normalise`` None: what the model's files say.

    ``batch`` 0: so few that there are enough steps to check (``usual_batch``). ``max_length`` 0: that of the
    model.
    """

    batch: int = 0
    max_length: int = 0
    long_rows: str = "refuse"
    pooling: str = ""
    normalise: bool | None = None
    segment_steps: int = 0
    window_steps: int = 0


class EmbeddingJob(NamedTuple):
    """A specification, the blobs that it names (``rows`` is that of texts), and notes for its requester."""

    spec: JobSpec
    rows: bytes
    model: bytes
    notes: tuple[str, ...]
    adapter: bytes = b""
    """The state with the model's adapters, of a tuned model."""


class EmbedderFiles(Protocol):
    """An open model (``tasks.models.opening``). ``pooling`` and ``normalised`` are what its files say."""

    @property
    def shape(self) -> ModelShape:
        """Its shape."""

    @property
    def load(self) -> Callable[[], FrozenModel]:
        """Freezes its weights."""

    @property
    def tokens(self) -> Callable[[], TextTokens]:
        """Reads its tokeniser."""

    @property
    def pooling(self) -> str:
        """What a vector is."""

    @property
    def normalised(self) -> bool:
        """Whether a vector is divided by its length."""


class TrainedEmbedder(NamedTuple):
    """A model that a task has trained (R89), as one that makes vectors: as of any decoder, of the last token."""

    model: TrainedModel
    pooling: str = "last"
    normalised: bool = True

    @property
    def shape(self) -> ModelShape:
        """See EmbedderFiles."""
        return self.model.shape

    @property
    def tokens(self) -> Callable[[], TextTokens]:
        """See EmbedderFiles."""
        return lambda: PlainTokens(self.model.tokeniser())

    def load(self) -> FrozenModel:
        """Raises AssertionError: its weights are in the state of the task, and never frozen."""
        raise AssertionError("weights of a trained model are not frozen")


class TunedEmbedder(NamedTuple):
    """A decoder from its files as one that makes vectors, of the last token."""

    files: ModelFiles
    pooling: str = "last"
    normalised: bool = True

    @property
    def shape(self) -> ModelShape:
        """See EmbedderFiles."""
        return self.files.shape

    @property
    def tokens(self) -> Callable[[], TextTokens]:
        """See EmbedderFiles."""
        return lambda: PlainTokens(self.files.tokeniser())

    @property
    def load(self) -> Callable[[], FrozenModel]:
        """See EmbedderFiles."""

        def loaded() -> FrozenModel:
            found = self.files.load()
            return FrozenModel(found.shape, found.tensors, found.notes)

        return loaded


class _LazyTokens:
    """A model's tokeniser, opened by the first text: rows of numbers need none."""

    def __init__(self, opened: EmbedderFiles) -> None:
        self._opened, self._made = opened, list[TextTokens]()

    def encode(self, text: str, most: int | None = None) -> list[int]:
        """See TextTokens."""
        if not self._made:
            self._made.append(self._opened.tokens())
        return self._made[0].encode(text, most)


def texts_of(
    data: bytes, tokens: TextTokens, vocabulary: int, most: int, long_rows: str = "refuse"
) -> Iterator[tuple[int, list[int], bool]]:
    """Yield number, tokens and whether it was cut of each line of a file. Raises RowsInvalid with its line.

    A line has ``text``, or ``input_ids`` below ``vocabulary``.
    """
    for number, fields in objects_of(data):
        match sorted(fields):
            case ["input_ids"]:
                found = tokens_of(number, fields, vocabulary)
            case ["text"]:
                text = text_of(number, fields, "text")
                found = tokens.encode(text)
            case names:
                what = ", ".join(names)[:80] or "none"
                raise RowsInvalid(f"fields {what}; text or input_ids expected", number)
        if not found:
            raise RowsInvalid("a text without a token has no vector", number)
        is_long = len(found) > most
        if is_long:
            if long_rows == "refuse":
                raise RowsInvalid(f"{len(found)} tokens, at most {most}: shorten it, or set long_rows", number)
            found = found[:most] if "input_ids" in fields else tokens.encode(text, most)
        yield number, found, is_long


def make_embedding(
    opened: EmbedderFiles, data: bytes, settings: EmbeddingSettings, *, seed: bytes, max_price_per_tera_unit: int,
    match_ms: int, tuned: Tuned | None = None,
) -> EmbeddingJob:  # fmt: skip
    """Return the job of a model's files and a file of JSON lines. With ``tuned`` a decoder has its adapters.

    A TrainedEmbedder has the weights of its task's state.

    Raises RowsInvalid with line and column; ModelError with file and remedy; UnsupportedJob; TokenizersMissing.
    """
    shape, adapter = opened.shape, None
    if isinstance(opened, TrainedEmbedder):
        adapter = adapter_named(opened.model, None)
    elif tuned is not None:
        adapter = tuned_adapter(tuned)
    if (size := frozen_bytes(shape, None if adapter is None else adapter.program_part)) > MODEL_SENT_BYTES_MAX:
        raise UnsupportedJob(f"a model of {size} bytes; machines take {MODEL_SENT_BYTES_MAX} at most")
    if settings.max_length > shape.context:
        raise UnsupportedJob(f"texts of {settings.max_length} tokens, and the model takes {shape.context}")
    most = settings.max_length or shape.context
    found = list(texts_of(data, _LazyTokens(opened), shape.vocabulary, most, settings.long_rows))
    rows, length, nothing = len(found), max(len(tokens) for _, tokens, _ in found), bytes(HASH_BYTES)
    normalised = opened.normalised if settings.normalise is None else settings.normalise
    unnamed = EmbedPart(
        _base(shape, nothing, nothing), PromptSet(nothing, nothing, rows, length),
        min(settings.batch or usual_batch(rows, BATCH_MOST), rows),
        Pooling(settings.pooling or opened.pooling, int(normalised)), adapter,
    )  # fmt: skip
    total = -(-rows // unnamed.batch)
    plan = unnamed.plan(seed, total)
    plan.check()

    table, last = np.zeros((plan.shape.table_rows, length), "<i4"), np.zeros(plan.shape.table_rows, "<i4")
    for row in range(len(table)):  # the last text fills the last batch
        tokens = found[min(row, rows - 1)][1]
        table[row, : len(tokens)] = tokens
        last[row] = len(tokens) - 1
    kinds, contents = text_tensors(plan.shape), {TEXT_TOKENS: table.tobytes(), LAST: last.tobytes()}
    texts_blob, model = join_tensors(kinds, contents), _source(opened, tuned)
    part = unnamed._replace(
        model=model.base,
        dataset=PromptSet(name_of(texts_blob), root_of(kinds, contents), rows, length),
    )
    spec = JobSpec(
        KIND_EMBED, LEVEL_EXACT, PROFILE_EXACT_2, part, seed, plan.first_state().root(plan),
        schedule_of(plan, total, settings.segment_steps, settings.window_steps), max_price_per_tera_unit,
        Requirements(0, 0, 0), match_ms,
    )  # fmt: skip
    cut = tuple(f"line {number} was cut to {len(tokens)} tokens" for number, tokens, is_long in found if is_long)
    return EmbeddingJob(spec, texts_blob, model.blob, (*cut, *model.notes), model.state)


def _source(opened: EmbedderFiles, tuned: Tuned | None) -> ModelSource:
    """Return what a job says of its model. Raises ModelError; UnsupportedJob for adapters of another model."""
    if isinstance(opened, TrainedEmbedder):
        return model_source(opened.model, None)
    model, weights = opened.load(), frozen_tensors(opened.shape)
    contents = model.contents()
    blob, root = join_tensors(weights, contents), root_of(weights, contents)
    return with_state(ModelSource(_base(opened.shape, name_of(blob), root), blob, b"", model.notes), tuned)


def _base(shape: ModelShape, blob: bytes, root: bytes) -> BaseModel:
    if not isinstance(shape, BertShape):
        return base_model(shape, blob, root)
    return BaseModel(
        MODEL_BERT, blob, root, shape.vocabulary, shape.width, shape.layers, shape.heads, shape.heads,
        shape.head_width, shape.hidden, shape.context, 0, shape.epsilon_nano, 1, 1,
    )  # fmt: skip
