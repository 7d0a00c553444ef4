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
from tasks.engines.input_blobs import join_tensors
from tasks.engines.pass_plan import root_of
from tasks.kinds.evaluate import KIND_EVALUATE, EvaluatePart, LabelledRows
from tasks.models.generating import AskedModel, Tuned, adapter_named, check_size, model_source
from tasks.models.jobs import LazyTokens, base_model, schedule_of, usual_batch
from tasks.models.left import name_of
from tasks.models.rows import TokenRows, examples_of, make_rows
from tasks.programs.evaluate import EvaluateShape, row_tensors
from tasks.programs.finetune import PLACES, ROW_TOKENS, TARGETS
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
    opened: AskedModel, data: bytes, settings: EvaluatingSettings, *, seed: bytes, max_price_per_tera_unit: int,
    match_ms: int, tuned: Tuned | None = None,
) -> EvaluatingJob:  # fmt: skip
    """Return the job of a model's files and a file of JSON lines. With ``tuned`` the model has its adapters.

    A TrainedModel is evaluated with the weights of its task's state (R89).

    Raises RowsInvalid with line and column; ModelError with file and remedy; UnsupportedJob; TokenizersMissing.
    """
    shape = opened.shape
    adapter = adapter_named(opened, tuned)
    check_size(shape, adapter)
    if settings.max_length > shape.context:
        raise UnsupportedJob(f"rows of {settings.max_length} tokens, and the model takes {shape.context}")
    examples = examples_of(data, LazyTokens(opened), shape.vocabulary)
    rows = make_rows(examples, settings.max_length or shape.context, settings.long_rows)
    nothing = bytes(HASH_BYTES)
    unnamed = EvaluatePart(
        base_model(shape, nothing, nothing),
        LabelledRows(nothing, nothing, rows.rows, rows.length, rows.slots),
        min(settings.batch or usual_batch(rows.rows, BATCH_MOST), rows.rows),
        adapter,
    )  # fmt: skip
    total = -(-rows.rows // unnamed.batch)
    plan = unnamed.plan(seed, total)
    plan.check()

    model, kinds, contents = model_source(opened, tuned), row_tensors(plan.shape), padded_rows(plan.shape, rows)
    rows_blob = join_tensors(kinds, contents)
    part = unnamed._replace(
        model=model.base,
        dataset=unnamed.dataset._replace(blob=name_of(rows_blob), root=root_of(kinds, contents)),
    )
    spec = JobSpec(
        KIND_EVALUATE, LEVEL_EXACT, PROFILE_EXACT_2, part, seed, plan.first_state().root(plan),
        schedule_of(plan, total, settings.segment_steps, settings.window_steps), max_price_per_tera_unit,
        Requirements(0, 0, 0), match_ms,
    )  # fmt: skip
    dropped = tuple(f"line {line} gives no row: {why}" for line, why in rows.dropped)
    return EvaluatingJob(spec, rows_blob, model.blob, (*dropped, *model.notes), model.state)
