"""A job that trains a decoder from scratch on a file of texts: its specification and its blob (market.md R88).

What is wrong is found before anything is paid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from state.primitives.hashing import HASH_BYTES
from tasks.engines.decoder_training import first_state
from tasks.engines.input_blobs import join_tensors, rows_root
from tasks.kinds.classifier import KIND_TRAIN, OPTIMISER_ADAMW, Optimiser
from tasks.kinds.decoder import DecoderModel, DecoderPart
from tasks.kinds.decoder import TextRows as NamedRows
from tasks.kinds.finetune import MODEL_GPT2, MODEL_LLAMA, RateSchedule, Recompute, TrainingLoop
from tasks.models.errors import RowsInvalid
from tasks.models.jobs import kept_steps, schedule_of, usual_evaluations
from tasks.models.left import Begin, name_of
from tasks.models.rows import Tokens
from tasks.models.texts import TextRows, split_stream, texts_of, token_rows, token_stream
from tasks.programs.decoder import row_tensors
from tasks.programs.loop import Loop
from tasks.programs.operators.scalars import NANO
from tasks.spec import LEVEL_EXACT, PROFILE_EXACT_2, JobSpec, Requirements

__all__ = ["PRESETS", "DecoderSize", "TextFile", "TrainingJob", "TrainingSettings", "make_training"]

BETA1_NANO: Final = 900_000_000
BETA2_NANO: Final = 950_000_000
"""As decoders are trained from scratch: with 0.999 the first steps count for too long."""
EPSILON_NANO: Final = 10
ROTARY_BASE: Final = 10_000
NORM_EPSILON_NANO: Final = 10_000
WARMUP_PART: Final = 20
"""The warm-up is a twentieth of the steps, if nobody says how long it is."""
_HIDDEN_MULTIPLE: Final = 8


@dataclass(frozen=True)
class DecoderSize:
    """Sizes of a decoder. 0: ``key_heads`` as ``heads``; ``hidden`` 8/3 of the width, a multiple of 8.

    With the ``architecture`` of GPT-2 ``hidden`` is four times the width.
    """

    layers: int
    width: int
    heads: int
    context: int
    key_heads: int = 0
    hidden: int = 0
    tied: bool = True
    architecture: str = MODEL_LLAMA

    def model(self, vocabulary: int) -> DecoderModel:
        """Return the model of a vocabulary; a program says whether there is one."""
        is_gpt2 = self.architecture == MODEL_GPT2
        usual = -(-8 * self.width // 3 // _HIDDEN_MULTIPLE) * _HIDDEN_MULTIPLE
        hidden = self.hidden or (4 * self.width if is_gpt2 else usual)
        return DecoderModel(
            self.architecture, vocabulary, self.width, self.layers, self.heads, self.key_heads or self.heads,
            self.width // self.heads, hidden, self.context, 0 if is_gpt2 else ROTARY_BASE, NORM_EPSILON_NANO,
            int(self.tied),
        )  # fmt: skip


PRESETS: Final[Mapping[str, DecoderSize]] = MappingProxyType({
    "tiny": DecoderSize(2, 64, 4, 64),
    "small": DecoderSize(4, 128, 4, 128),
    "medium": DecoderSize(6, 256, 8, 256),
    "large": DecoderSize(8, 384, 8, 256),
})  # fmt: skip
"""Sizes by name. With bytes as tokens they have 0.1, 0.8, 4.8 and 14.3 million weights."""


@dataclass(frozen=True)
class TrainingSettings:
    """What a requester chooses. ``steps`` 0: as many as ``epochs`` have; ``warmup_steps`` -1: see WARMUP_PART.

    A step is an update of the weights. ``accumulate`` batches make one.
    """

    size: DecoderSize = PRESETS["small"]
    epochs: int = 10
    steps: int = 0
    batch: int = 8
    learning_rate_nano: int = 3_000_000
    weight_decay_nano: int = 100_000_000
    schedule: str = "cosine"
    warmup_steps: int = -1
    clip_nano: int = NANO
    segment_steps: int = 0
    window_steps: int = 0
    accumulate: int = 1
    validation_nano: int = 0
    """Share of the tokens, the last ones, that are for validation, in units of 10^-9; 0 with a file or without."""
    evaluate_every: int = 0
    """0: once an epoch, but EVALUATIONS_MAX times at most."""
    keep: str = "last"
    """The result is the ``last`` state, or the ``best`` by validation loss."""
    patience: int = 0
    """Evaluations in a row without a lower loss that end the job; 0 never ends it early."""
    save_every: int = 0
    """Updates between two states that are kept: windows are as long. 0: as ``window_steps`` says."""
    recompute: bool = False
    """Whether the way back computes each layer again: less memory, more time, the same result."""


class TextFile(NamedTuple):
    """A file of texts; its name says how they are read (``texts_of``)."""

    data: bytes
    name: str


class TrainingJob(NamedTuple):
    """A specification, the blob that it names, and notes for its requester. No model comes from outside."""

    spec: JobSpec
    rows: bytes
    notes: tuple[str, ...]
    model: bytes = b""
    adapter: bytes = b""
    """The state that it goes on from, if it does."""


def make_training(
    texts: TextFile, tokens: Tokens, vocabulary: int, settings: TrainingSettings, *, seed: bytes,
    max_price_per_tera_unit: int, match_ms: int, start: Begin | None = None, validation: TextFile | None = None,
) -> TrainingJob:  # fmt: skip
    """Return the job of a file of texts; ``validation`` is another one.

    With ``start`` it begins with these weights (``begin_of_task``, ``begin_of_files``), and the model has their
    size.

    Raises RowsInvalid with line and column; UnsupportedJob.
    """
    model, left = settings.size.model(vocabulary), None
    if start is not None:
        model, left = start.model, start.named
    made = _rows_of(texts, validation, tokens, model, settings)
    rows, unnamed = made.rows, _part(made, model, settings)._replace(start=left)
    loop = Loop(unnamed.batch, rows.rows, made.train_rows, *unnamed.loop[:2])
    total = updates = settings.steps or settings.epochs * loop.epoch_updates
    if unnamed.loop != TrainingLoop():
        total = loop._replace(updates=updates).steps
    elif not settings.steps:  # epochs are laid end to end
        total = updates = -(-settings.epochs * rows.rows // unnamed.batch)
    if settings.warmup_steps < 0:
        unnamed = unnamed._replace(rates=unnamed.rates._replace(warmup_steps=updates // WARMUP_PART))
    plan = unnamed.plan(seed, total)
    plan.check()
    kept = kept_steps(plan.loop, settings.save_every)
    blob = join_tensors(row_tensors(plan.shape), rows.contents)
    part = unnamed._replace(
        dataset=unnamed.dataset._replace(blob=name_of(blob), root=rows_root(plan.shape, rows.contents))
    )
    first = first_state(plan) if start is None or left is None else left.begun(plan).of(start.state)
    spec = JobSpec(
        KIND_TRAIN, LEVEL_EXACT, PROFILE_EXACT_2, part, seed, first.root(plan),
        schedule_of(plan, total, settings.segment_steps, settings.window_steps, kept), max_price_per_tera_unit,
        Requirements(0, 0, 0), match_ms,
    )  # fmt: skip
    state = b"" if start is None else start.state.encode()
    return TrainingJob(spec, blob, made.notes, adapter=state)


class _Data(NamedTuple):
    """The rows of a job, of which the first ``train_rows`` are for training, and notes for its requester."""

    rows: TextRows
    train_rows: int
    notes: tuple[str, ...]


def _rows_of(
    texts: TextFile, validation: TextFile | None, tokens: Tokens, model: DecoderModel, settings: TrainingSettings
) -> _Data:
    stream = token_stream(texts_of(*texts, tokens, model.vocabulary), model.vocabulary)
    if validation is None and not settings.validation_nano:
        rows = token_rows(stream, model.context)
        return _Data(rows, rows.rows, _notes(rows))
    if validation is None:
        stream, held = split_stream(stream, settings.validation_nano)
    else:
        try:
            held = token_stream(texts_of(*validation, tokens, model.vocabulary), model.vocabulary)
        except RowsInvalid as error:
            error.is_validation = True
            raise
    train = token_rows(stream, model.context)
    if len(held.tokens) <= train.length:
        short = RowsInvalid(
            f"{len(held.tokens)} tokens are for validation, and a row has {train.length} and the next one"
        )
        short.is_validation = validation is not None
        raise short
    other = token_rows(held, train.length)
    contents = {name: one + other.contents[name] for name, one in train.contents.items()}
    both = TextRows(
        train.rows + other.rows, train.length, train.tokens + other.tokens, train.texts + other.texts, contents
    )
    notes = tuple(f"validation: {note}" for note in _notes(other))
    return _Data(both, train.rows, (*_notes(train), *notes))


def _part(made: _Data, model: DecoderModel, settings: TrainingSettings) -> DecoderPart:
    nothing, rows = bytes(HASH_BYTES), made.rows
    batch, every = min(settings.batch, made.train_rows), settings.evaluate_every
    if made.train_rows < rows.rows and not every:
        epoch = Loop(batch, rows.rows, made.train_rows, settings.accumulate).epoch_updates
        every = usual_evaluations(epoch, settings.steps or settings.epochs * epoch)
    keeps_best = int(settings.keep == "best" and every > 0)
    return DecoderPart(
        model,
        NamedRows(nothing, nothing, rows.rows, made.train_rows, rows.length),
        batch,
        Optimiser(
            OPTIMISER_ADAMW, settings.learning_rate_nano, BETA1_NANO, BETA2_NANO, EPSILON_NANO,
            settings.weight_decay_nano,
        ),
        RateSchedule(settings.schedule, max(settings.warmup_steps, 0), settings.clip_nano),
        loop=TrainingLoop(settings.accumulate, every, keeps_best, settings.patience),
        recompute=Recompute(1) if settings.recompute else None,
    )  # fmt: skip


def _notes(rows: TextRows) -> tuple[str, ...]:
    twice = rows.rows * rows.length - (rows.tokens - 1)
    return (f"{twice} tokens are in two rows, so that no token is left out",) if twice else ()
