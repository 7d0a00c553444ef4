"""A job of fine-tuning from the files of a model and a file of rows: its specification and its blobs.

What is wrong is found before the weights are read where it can be, and always before anything is paid.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, NamedTuple, Protocol, TypeVar

from state.primitives.hashing import HASH_BYTES
from tasks.engines.errors import UnsupportedJob
from tasks.engines.input_blobs import MODEL_SENT_BYTES_MAX, join_tensors, model_root, rows_root
from tasks.engines.tuning import first_state
from tasks.kinds.classifier import OPTIMISER_ADAMW, Optimiser
from tasks.kinds.finetune import (
    KIND_FINETUNE,
    Adapters,
    BaseModel,
    FinetunePart,
    Packing,
    Preference,
    RateSchedule,
    Recompute,
    RowSet,
    TrainingLoop,
    family_of,
)
from tasks.kinds.plan import JobPlan
from tasks.models.errors import RowsInvalid
from tasks.models.left import Tuned, check_base, name_of, tuned_adapter
from tasks.models.llama import Model
from tasks.models.packing import PACKED_LENGTH, packed_with
from tasks.models.rows import (
    Example,
    Pair,
    TokenRows,
    Tokens,
    examples_of,
    fitted,
    fitted_pairs,
    pair_rows_of,
    pairs_of,
    rows_of,
    split_rows,
)
from tasks.programs.finetune import row_tensors
from tasks.programs.llama_shape import FUSED, LlamaShape, model_bytes, projections_of, weight_tensors
from tasks.programs.loop import EVALUATIONS_MAX, Loop
from tasks.programs.operators.scalars import NANO
from tasks.spec import (
    LEVEL_EXACT,
    PROFILE_EXACT_2,
    SEGMENT_MS_MAX,
    SEGMENTS_MAX,
    STEP_UNITS_PER_MS,
    WINDOW_STATES_BYTES_MAX,
    JobSpec,
    Requirements,
    Schedule,
)

__all__ = [
    "LazyTokens",
    "ModelFiles",
    "TokenFiles",
    "TuningJob",
    "TuningSettings",
    "base_model",
    "kept_steps",
    "make_tuning",
    "name_of",
    "schedule_of",
    "targets_of",
    "usual_batch",
    "usual_evaluations",
]

SEGMENTS_WANTED: Final = 128
"""Segments of a window: with fewer, checks cost more of its price."""
BETA1_NANO: Final = 900_000_000
BETA2_NANO: Final = 999_000_000
EPSILON_NANO: Final = 10
_SEPARATE: Final = ("query", "key", "value")
"""Weights that are one in GPT-2."""


@dataclass(frozen=True)
class TuningSettings:
    """What a requester chooses. ``steps`` 0: as many as ``epochs`` have. ``max_length`` 0: that of the model.

    A step is an update of the weights. ``accumulate`` batches make one.
    """

    epochs: int = 3
    steps: int = 0
    batch: int = 4
    max_length: int = 0
    long_rows: str = "refuse"
    rank: int = 8
    alpha: int = 16
    targets: tuple[str, ...] = ("query", "key", "value", "output")
    learning_rate_nano: int = 200_000
    weight_decay_nano: int = 0
    schedule: str = "cosine"
    warmup_steps: int = 0
    clip_nano: int = NANO
    segment_steps: int = 0
    """0: so many that the job has ``SEGMENTS_WANTED`` segments, if it has as many steps."""
    window_steps: int = 0
    """Steps that are proved and paid at once. 0: as many as a worker can keep the states of.

    Of both, a step is one batch.
    """
    accumulate: int = 1
    validation_nano: int = 0
    """Share of the rows that are for validation, in units of 10^-9; 0 with a file of its own, or without any."""
    evaluate_every: int = 0
    """0: once an epoch, but EVALUATIONS_MAX times at most."""
    keep: str = "last"
    """Whose adapters the result has: of the ``last`` state, or of the ``best``, by validation loss."""
    patience: int = 0
    """Evaluations in a row without a lower loss that end the job; 0 never ends it early."""
    beta_nano: int = 0
    """Of a job on preferences; 0 trains on rows as they are."""
    save_every: int = 0
    """Updates between two states that are kept: windows are as long. 0: as ``window_steps`` says."""
    recompute: bool = False
    """Whether the way back computes each layer again: less memory, more time, the same result."""
    packing: bool = False
    """Whether several rows share a sequence of ``max_length`` tokens, or PACKED_LENGTH (R155)."""


_Row = TypeVar("_Row")


class TuningJob(NamedTuple):
    """A specification, the blobs that it names, and what was changed or dropped as the files were read."""

    spec: JobSpec
    rows: bytes
    model: bytes
    notes: tuple[str, ...]
    adapter: bytes = b""
    """The state that it goes on from, if it does."""


class _Data(NamedTuple):
    """The rows of a job, of which the first ``train_rows`` are for training, and notes about their files."""

    rows: TokenRows
    train_rows: int
    notes: tuple[str, ...]


class ModelFiles(Protocol):
    """An open model (``tasks.models.opening``)."""

    @property
    def shape(self) -> LlamaShape:
        """Its shape."""

    @property
    def load(self) -> Callable[[], Model]:
        """Freezes its weights."""

    @property
    def tokeniser(self) -> Callable[[], Tokens]:
        """Reads its tokeniser."""


class TokenFiles(Protocol):
    """What has a tokeniser."""

    @property
    def tokeniser(self) -> Callable[[], Tokens]:
        """Reads its tokeniser."""


class LazyTokens:
    """A model's tokeniser, opened by the first text: rows of numbers need none."""

    def __init__(self, opened: TokenFiles) -> None:
        self._opened = opened

    @cached_property
    def _made(self) -> Tokens:
        return self._opened.tokeniser()

    @property
    def is_open(self) -> bool:
        """Whether a text was read."""
        return "_made" in vars(self)

    @property
    def ends(self) -> frozenset[int]:
        """See Tokeniser."""
        return self._made.ends

    def encode(self, text: str) -> list[int]:
        """See Tokeniser."""
        return self._made.encode(text)


def make_tuning(
    opened: ModelFiles, data: bytes, settings: TuningSettings, *, seed: bytes, max_price_per_tera_unit: int,
    match_ms: int, validation: bytes | None = None, start: Tuned | None = None,
) -> TuningJob:  # fmt: skip
    """Return the job of a model's files and a file of JSON lines; ``validation`` is another one.

    With ``start`` it goes on from the adapters that a task has left.

    Raises RowsInvalid with line and column; ModelError with file and remedy; UnsupportedJob; TokenizersMissing.
    """
    shape = opened.shape
    if (size := model_bytes(shape)) > MODEL_SENT_BYTES_MAX:
        raise UnsupportedJob(f"a model of {size} bytes; machines take {MODEL_SENT_BYTES_MAX} at most")
    if settings.max_length > shape.context:
        raise UnsupportedJob(f"rows of {settings.max_length} tokens, and the model takes {shape.context}")
    left = None if start is None else tuned_adapter(start)
    if left is not None:
        settings = replace(settings, rank=left.rank, alpha=left.alpha, targets=left.targets)
    made = _data(opened, data, validation, settings)
    rows, unnamed = made.rows, _part(opened, made, settings)._replace(start=left)
    loop = Loop(unnamed.batch, rows.rows, made.train_rows, *unnamed.loop[:2])
    total = loop._replace(updates=settings.steps or settings.epochs * loop.epoch_updates).steps
    plan = unnamed.plan(seed, total)
    plan.check()

    model = opened.load()
    contents = model.contents()
    rows_blob = join_tensors(row_tensors(plan.shape), rows.contents)
    model_blob = join_tensors(weight_tensors(shape), contents)
    part = unnamed._replace(
        model=unnamed.model._replace(blob=name_of(model_blob), root=model_root(plan.shape, contents)),
        dataset=unnamed.dataset._replace(blob=name_of(rows_blob), root=rows_root(plan.shape, rows.contents)),
    )
    first = first_state(plan)
    if start is not None and left is not None:
        check_base(start, part.model.root)
        first = left.begun(plan).of(start.state)
    kept = kept_steps(plan.loop, settings.save_every)
    schedule = schedule_of(plan, total, settings.segment_steps, settings.window_steps, kept)
    spec = JobSpec(
        KIND_FINETUNE, LEVEL_EXACT, PROFILE_EXACT_2, part, seed, first.root(plan), schedule,
        max_price_per_tera_unit, Requirements(0, 0, 0), match_ms,
    )  # fmt: skip
    state = b"" if start is None else start.state.encode()
    return TuningJob(spec, rows_blob, model_blob, (*made.notes, *model.notes), state)


def _data(opened: ModelFiles, data: bytes, validation: bytes | None, settings: TuningSettings) -> _Data:
    most, tokens = settings.max_length or opened.shape.context, LazyTokens(opened)
    vocabulary, long_rows = opened.shape.vocabulary, settings.long_rows

    def examples(content: bytes) -> tuple[list[Example], list[tuple[int, str]]]:
        return fitted(examples_of(content, tokens, vocabulary), most, long_rows)

    def pairs(content: bytes) -> tuple[list[Pair], list[tuple[int, str]]]:
        return fitted_pairs(pairs_of(content, tokens, vocabulary), most, long_rows)

    if settings.beta_nano:
        return _parted(
            data, validation, settings, pairs,
            lambda kept, held, dropped: (pair_rows_of([*kept, *held], dropped), len(kept)),
        )  # fmt: skip
    if settings.packing:
        room = settings.max_length or min(opened.shape.context, PACKED_LENGTH)
        return _parted(
            data, validation, settings, examples,
            lambda kept, held, dropped: packed_with(kept, held, dropped, room),
        )  # fmt: skip
    return _parted(
        data, validation, settings, examples,
        lambda kept, held, dropped: (rows_of([*kept, *held], dropped), len(kept)),
    )  # fmt: skip


def _parted(
    data: bytes, validation: bytes | None, settings: TuningSettings,
    read: Callable[[bytes], tuple[list[_Row], list[tuple[int, str]]]],
    made: Callable[[Sequence[_Row], Sequence[_Row], Sequence[tuple[int, str]]], tuple[TokenRows, int]],
) -> _Data:  # fmt: skip
    kept, dropped = read(data)
    notes = [f"line {line} gives no row: {why}" for line, why in dropped]
    held: list[_Row] = []
    if validation is not None:
        try:
            held, others = read(validation)
        except RowsInvalid as error:
            error.is_validation = True
            raise
        notes += [f"validation: line {line} gives no row: {why}" for line, why in others]
    elif settings.validation_nano:
        kept, held = split_rows(kept, settings.validation_nano)
    rows, train_rows = made(kept, held, dropped)
    if settings.packing:
        notes.append(f"{len(kept) + len(held)} rows share {rows.rows} sequences of {rows.length} tokens")
    return _Data(rows, train_rows, tuple(notes))


def _part(opened: ModelFiles, made: _Data, settings: TuningSettings) -> FinetunePart:
    shape, nothing, rows = opened.shape, bytes(HASH_BYTES), made.rows
    batch, every = min(settings.batch, made.train_rows), settings.evaluate_every
    if made.train_rows == rows.rows:
        every = 0
    elif not every:
        epoch = Loop(batch, rows.rows, made.train_rows, settings.accumulate).epoch_updates
        every = usual_evaluations(epoch, settings.steps or settings.epochs * epoch)
    return FinetunePart(
        base_model(shape, nothing, nothing),
        RowSet(nothing, nothing, rows.rows, made.train_rows, rows.length, rows.slots),
        Adapters(
            settings.rank, settings.alpha, targets_of(shape, settings.targets)
        ),
        batch,
        Optimiser(
            OPTIMISER_ADAMW, settings.learning_rate_nano, BETA1_NANO, BETA2_NANO, EPSILON_NANO,
            settings.weight_decay_nano,
        ),
        RateSchedule(settings.schedule, settings.warmup_steps, settings.clip_nano),
        TrainingLoop(settings.accumulate, every, int(settings.keep == "best" and every > 0), settings.patience),
        preference=Preference(settings.beta_nano) if settings.beta_nano else None,
        recompute=Recompute(1) if settings.recompute else None,
        packing=Packing() if settings.packing else None,
    )  # fmt: skip


def targets_of(shape: LlamaShape, targets: tuple[str, ...]) -> tuple[str, ...]:
    """Return the weights that get adapters, in their order. GPT-2 has queries, keys and values in one of them.

    Raises UnsupportedJob for a weight that the model does not have.
    """
    wanted, names = set(targets), projections_of(shape)
    if shape.is_gpt2 and wanted >= set(_SEPARATE):
        wanted = wanted - set(_SEPARATE) | {FUSED}
    if missing := sorted(wanted - set(names)):
        raise UnsupportedJob(f"targets: the model has no weight {missing[0]}; it has {', '.join(names)}")
    return tuple(name for name in names if name in wanted)


def usual_evaluations(epoch: int, updates: int) -> int:
    """Return the updates between two evaluations: those of an epoch, more where they would be too many."""
    return max(epoch, -(-updates // EVALUATIONS_MAX))


def kept_steps(loop: Loop, save_every: int) -> int:
    """Return the steps between kept states, of the updates between them; 0 for 0. Raises UnsupportedJob."""
    kept = loop.steps_between(save_every) if save_every else 0
    if save_every and not kept:
        raise UnsupportedJob(_uneven(loop, save_every))
    return kept


def _uneven(loop: Loop, save_every: int) -> str:
    """Return why states cannot be kept every so many updates, and every how many they can."""
    least = next(
        (updates for updates in range(1, loop.updates + 1) if loop.steps_between(updates)), loop.epoch_updates
    )
    return (
        f"save_every is {save_every}: between kept states there are as many batches each time, and "
        f"{'evaluations' if loop.evaluate_every else 'epochs'} end in between; a multiple of {least} expected"
    )


def base_model(shape: LlamaShape, blob: bytes, root: bytes) -> BaseModel:
    """Return what a specification says of a frozen model."""
    return BaseModel(
        family_of(shape), blob, root, shape.vocabulary, shape.width, shape.layers, shape.heads, shape.key_heads,
        shape.head_width, shape.hidden, shape.context, shape.rotary_base, shape.epsilon_nano, int(shape.tied),
        int(shape.biased),
    )  # fmt: skip


def schedule_of(
    plan: JobPlan, total: int, segment_steps: int, window_steps: int = 0, kept_steps: int = 0
) -> Schedule:
    """Return segments that a verifier can re-run, and windows whose states a worker can keep.

    Windows have ``kept_steps`` steps, if that is not 0: the state after each is kept.
    Raises UnsupportedJob for a window that is no whole number of segments, or has too many states.
    """
    step_ms = -(-plan.step_units // STEP_UNITS_PER_MS)
    wanted = min(max(1, SEGMENT_MS_MAX // step_ms), -(-total // SEGMENTS_WANTED))
    even = (steps for steps in range(wanted, 0, -1) if not total % steps and total // steps <= SEGMENTS_MAX)
    if kept_steps:
        window_steps = min(kept_steps, total)
        even = (steps for steps in range(wanted, 0, -1) if not window_steps % steps)
    segment = min(total, segment_steps or next(even, wanted))
    states = max(1, WINDOW_STATES_BYTES_MAX // plan.state_limit_bytes - 1)
    most = segment * min(SEGMENTS_MAX, states, total // segment)
    if window_steps % segment or window_steps > most:
        name = "save_every, in batches," if kept_steps else "window_steps"
        raise UnsupportedJob(f"{name} is {window_steps}: a multiple of {segment} up to {most} expected")
    return Schedule(total, segment, window_steps or most)


def usual_batch(rows: int, most: int) -> int:
    """Return how many rows a step takes: so few that there are SEGMENTS_WANTED steps, at most ``most``."""
    return min(most, max(1, rows // SEGMENTS_WANTED))
