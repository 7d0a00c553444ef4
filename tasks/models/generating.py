"""A job of decoding from the files of a model and a file of prompts: its specification and its blobs.

What is wrong is found before the weights are read where it can be, and always before anything is paid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from state.primitives.hashing import HASH_BYTES
from tasks.engines.errors import UnsupportedJob
from tasks.engines.generating import first_state, prompt_contents
from tasks.engines.input_blobs import MODEL_SENT_BYTES_MAX, join_tensors, model_root, rows_root
from tasks.engines.state import TrainingState
from tasks.kinds.finetune import FinetunePart
from tasks.kinds.generate import (
    KIND_GENERATE,
    Decoding,
    GeneratePart,
    PromptSet,
    TunedAdapter,
)
from tasks.models.jobs import LazyTokens, ModelFiles, base_model, name_of, schedule_of
from tasks.models.prompts import prompts_of
from tasks.programs.generate import prompt_tensors
from tasks.programs.llama_shape import model_bytes, weight_tensors
from tasks.programs.sampling import Sampling
from tasks.spec import LEVEL_EXACT, PROFILE_EXACT_2, JobSpec, Requirements

__all__ = ["GeneratingJob", "GeneratingSettings", "Tuned", "make_generating"]

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


class Tuned(Protocol):
    """What a task of fine-tuning has left: its job, and its state after a final window."""

    @property
    def spec(self) -> JobSpec:
        """The job of fine-tuning."""

    @property
    def state(self) -> TrainingState:
        """The state with the adapters."""


class GeneratingJob(NamedTuple):
    """A specification, the blobs that it names (``rows`` is that of prompts), and notes for its requester."""

    spec: JobSpec
    rows: bytes
    model: bytes
    notes: tuple[str, ...]
    adapter: bytes = b""
    """The state with the model's adapters, of a tuned model."""


def make_generating(
    opened: ModelFiles, data: bytes, settings: GeneratingSettings, *, seed: bytes, max_price_per_tera_unit: int,
    match_ms: int, tuned: Tuned | None = None,
) -> GeneratingJob:  # fmt: skip
    """Return the job of a model's files and a file of JSON lines. With ``tuned`` the model has its adapters.

    Raises RowsInvalid with line and column; ModelError with file and remedy; UnsupportedJob; TokenizersMissing.
    """
    shape, tokens = opened.shape, LazyTokens(opened)
    if (size := model_bytes(shape)) > MODEL_SENT_BYTES_MAX:
        raise UnsupportedJob(f"a model of {size} bytes; machines take {MODEL_SENT_BYTES_MAX} at most")
    if settings.new_tokens > shape.context:
        raise UnsupportedJob(f"new_tokens is {settings.new_tokens}, and the model takes {shape.context} tokens")
    prompts = prompts_of(data, tokens, shape.vocabulary, shape.context + 1 - settings.new_tokens)
    ends = settings.ends
    if ends is None:
        ends = tuple(sorted(tokens.ends)) if tokens.is_open else ()
    rows, length, nothing = len(prompts), max(len(one.tokens) for one in prompts), bytes(HASH_BYTES)
    batch, notes = _batch(settings.batch, rows)
    unnamed = GeneratePart(
        base_model(shape, nothing, nothing), PromptSet(nothing, nothing, rows, length), batch,
        Decoding.of(settings.new_tokens, ends, settings.sampling), None if tuned is None else _adapter(tuned),
    )  # fmt: skip
    total = rows // batch * (length + settings.new_tokens - 1)
    plan = unnamed.plan(seed, total)
    plan.check()

    model = opened.load()
    contents = model.contents()
    data_contents = prompt_contents(plan.shape, [list(one.tokens) for one in prompts])
    prompts_blob = join_tensors(prompt_tensors(plan.shape), data_contents)
    model_blob = join_tensors(weight_tensors(shape), contents)
    root = model_root(plan.shape, contents)
    if tuned is not None and tuned.spec.model_root() != root:
        raise UnsupportedJob("the adapters were trained on another model; name the model of their task")
    part = unnamed._replace(
        model=base_model(shape, name_of(model_blob), root),
        dataset=PromptSet(name_of(prompts_blob), rows_root(plan.shape, data_contents), rows, length),
    )
    spec = JobSpec(
        KIND_GENERATE, LEVEL_EXACT, PROFILE_EXACT_2, part, seed, first_state(plan).root(plan),
        schedule_of(plan, total, settings.segment_steps), max_price_per_tera_unit, Requirements(0, 0, 0), match_ms,
    )  # fmt: skip
    adapter = b"" if tuned is None else tuned.state.encode()
    return GeneratingJob(spec, prompts_blob, model_blob, (*notes, *model.notes), adapter)


def _adapter(tuned: Tuned) -> TunedAdapter:
    """Return the adapters that a task has left. Raises UnsupportedJob."""
    part = tuned.spec.part
    if not isinstance(part, FinetunePart):
        raise UnsupportedJob(
            f"a task of kind {tuned.spec.kind} has no adapters; name one that fine-tuned the model"
        )
    return TunedAdapter(
        name_of(tuned.state.encode()), tuned.state.root(tuned.spec.plan()), *part.adapters, tuned.state.step
    )


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
