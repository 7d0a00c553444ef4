"""A job of evaluating from the files of a model and a file of rows: its specification and its blobs (R85).

Rows are read as for fine-tuning. What is wrong is found before anything is paid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from state.primitives.hashing import HASH_BYTES
from tasks.engines.errors import UnsupportedJob
from tasks.engines.input_blobs import MODEL_SENT_BYTES_MAX, join_tensors
from tasks.engines.pass_plan import root_of
from tasks.kinds.evaluate import KIND_EVALUATE, EvaluatePart, LabelledRows
from tasks.models.generating import Tuned, tuned_adapter
from tasks.models.jobs import LazyTokens, ModelFiles, base_model, name_of, schedule_of, usual_batch
from tasks.models.rows import TokenRows, examples_of, make_rows
from tasks.programs.evaluate import EvaluateShape, row_tensors
from tasks.programs.finetune import PLACES, ROW_TOKENS, TARGETS
from tasks.programs.llama_shape import model_bytes, weight_tensors
from tasks.spec import LEVEL_EXACT, PROFILE_EXACT_2, JobSpec, Requirements

__all__ = ["EvaluatingJob", "EvaluatingSettings", "make_evaluating", "padded_rows"]

BATCH_MOST: Final = 4
"""Rows of a step at most, where nobody says how many."""


@dataclass(frozen=True)
class EvaluatingSettings:
    """What a requester chooses. ``batch`` 0: ``usual_batch``. ``max_length`` 0: that of the model."""

    batch: int = 0
    max_length: int = 0
    long_rows: str = "refuse"
    segment_steps: int = 0
    window_steps: int = 0


class EvaluatingJob(NamedTuple):
    """A specification, the blobs that it names, and what was changed or dropped as the files were read."""

    spec: JobSpec
    rows: bytes
    model: bytes
    notes: tuple[str, ...]
    adapter: bytes = b""
    """The state with the model's adapters, of a tuned model."""


def padded_rows(shape: EvaluateShape, rows: TokenRows) -> Mapping[str, bytes]:
    """Return the tensors of rows, with rows without a trained token to the end of the last batch."""
    more = shape.table_rows - shape.rows
    fills = {ROW_TOKENS: (shape.length, 0), PLACES: (shape.slots, shape.length), TARGETS: (shape.slots, 0)}
    return {
        name: rows.contents[name] + np.full(more * columns, fill, "<i4").tobytes()
        for name, (columns, fill) in fills.items()
    }


def make_evaluating(
    opened: ModelFiles, data: bytes, settings: EvaluatingSettings, *, seed: bytes, max_price_per_tera_unit: int,
    match_ms: int, tuned: Tuned | None = None,
) -> EvaluatingJob:  # fmt: skip
    """Return the job of a model's files and a file of JSON lines. With ``tuned`` the model has its adapters.

    Raises RowsInvalid with line and column; ModelError with file and remedy; UnsupportedJob; TokenizersMissing.
    """
    shape = opened.shape
    if (size := model_bytes(shape)) > MODEL_SENT_BYTES_MAX:
        raise UnsupportedJob(f"a model of {size} bytes; machines take {MODEL_SENT_BYTES_MAX} at most")
    if settings.max_length > shape.context:
        raise UnsupportedJob(f"rows of {settings.max_length} tokens, and the model takes {shape.context}")
    examples = examples_of(data, LazyTokens(opened), shape.vocabulary)
    rows = make_rows(examples, settings.max_length or shape.context, settings.long_rows)
    nothing = bytes(HASH_BYTES)
    unnamed = EvaluatePart(
        base_model(shape, nothing, nothing),
        LabelledRows(nothing, nothing, rows.rows, rows.length, rows.slots),
        min(settings.batch or usual_batch(rows.rows, BATCH_MOST), rows.rows),
        None if tuned is None else tuned_adapter(tuned),
    )  # fmt: skip
    total = -(-rows.rows // unnamed.batch)
    plan = unnamed.plan(seed, total)
    plan.check()

    model = opened.load()
    frozen, weights, kinds = model.contents(), weight_tensors(shape), row_tensors(plan.shape)
    contents = padded_rows(plan.shape, rows)
    rows_blob, model_blob = join_tensors(kinds, contents), join_tensors(weights, frozen)
    root = root_of(weights, frozen)
    if tuned is not None and tuned.spec.model_root() != root:
        raise UnsupportedJob("the adapters were trained on another model; name the model of their task")
    part = unnamed._replace(
        model=base_model(shape, name_of(model_blob), root),
        dataset=unnamed.dataset._replace(blob=name_of(rows_blob), root=root_of(kinds, contents)),
    )
    spec = JobSpec(
        KIND_EVALUATE, LEVEL_EXACT, PROFILE_EXACT_2, part, seed, plan.first_state().root(plan),
        schedule_of(plan, total, settings.segment_steps, settings.window_steps), max_price_per_tera_unit,
        Requirements(0, 0, 0), match_ms,
    )  # fmt: skip
    dropped = tuple(f"line {line} gives no row: {why}" for line, why in rows.dropped)
    adapter = b"" if tuned is None else tuned.state.encode()
    return EvaluatingJob(spec, rows_blob, model_blob, (*dropped, *model.notes), adapter)
