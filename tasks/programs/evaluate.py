"""One step of evaluating a decoder on rows, as a program (market.md R85).

A step takes the next rows of the data, ``batch`` of them, through a frozen model with or without adapters, or
through one that a task has trained. It is
the way forward of fine-tuning, with its widths. The loss of a row is the sum of the cross entropies of its trained
tokens. It stands in the state with their number, so sums over any rows can be made of what is proved.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from tasks.programs.builder import Builder
from tasks.programs.checks import check_bounds
from tasks.programs.errors import ProgramInvalid
from tasks.programs.finetune import PLACES, ROW_TOKENS, TARGETS
from tasks.programs.generate import adapter_state, check_tuned
from tasks.programs.llama_layers import STREAM_LIMIT, TUNED_BITS, TUNED_PAIR_BITS, Layers
from tasks.programs.llama_shape import Adapter, LlamaShape, frozen_tensors
from tasks.programs.marks import ONCE, Mark, Marked
from tasks.programs.operators.rows import TERMS_MAX
from tasks.programs.permutation import COUNT_MAX
from tasks.programs.program import Program, Source, SourceKind
from tasks.programs.tensors import ElementType, TensorType

__all__ = [
    "COUNTS",
    "LOSSES",
    "EvaluateShape",
    "evaluate_program",
    "marked_program",
    "row_tensors",
    "state_tensors",
]

LOSSES: Final = "losses"
COUNTS: Final = "counts"
"""Trained tokens of each row."""


@dataclass(frozen=True)
class EvaluateShape:
    """What a step's program follows from.

    There are ``rows`` rows of ``length`` tokens, of which ``slots`` are trained at most. The last batch is filled
    with rows without a trained token. A tuned model has an ``adapter``, and so has one that a
    task has trained (R89). Raises ProgramInvalid.
    """

    model: LlamaShape
    batch: int
    rows: int
    length: int
    slots: int
    adapter: Adapter | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.slots <= self.length <= self.model.context:
            raise ProgramInvalid(f"{self.slots} trained of {self.length} tokens; context {self.model.context}")
        if not 1 <= self.batch <= self.rows <= COUNT_MAX or self.batch * self.length > TERMS_MAX:
            raise ProgramInvalid(f"{self.rows} rows of {self.length} tokens, {self.batch} at a time")
        if self.adapter is not None:
            check_tuned(self.model, self.adapter)

    @property
    def steps(self) -> int:
        """Steps of the whole job: one for each batch."""
        return -(-self.rows // self.batch)

    @property
    def table_rows(self) -> int:
        """Rows of data and state: those of whole batches."""
        return self.steps * self.batch


def row_tensors(shape: EvaluateShape) -> dict[str, TensorType]:
    """Return name and type of every tensor of the data."""
    columns = {PLACES: shape.slots, TARGETS: shape.slots, ROW_TOKENS: shape.length}
    return {name: TensorType(ElementType.INT32, shape.table_rows, count) for name, count in columns.items()}


def state_tensors(shape: EvaluateShape) -> dict[str, TensorType]:
    """Return name and type of every tensor of a state, sorted."""
    return {name: TensorType(ElementType.BINARY32, shape.table_rows, 1) for name in (COUNTS, LOSSES)}


def evaluate_program(shape: EvaluateShape, *, checks_bounds: bool = True) -> Program:
    """Return the program of one step. Raises ProgramInvalid.

    Without ``checks_bounds`` the caller knows that no number can leave the exact range (``check_evaluate``).
    """
    program = marked_program(shape).program
    if checks_bounds:
        check_bounds(program)
    return program


class Part(IntEnum):
    """Parts of a step in the order of their calls."""

    START = 1
    LAYERS = 2
    HEAD = 3


def marked_program(shape: EvaluateShape) -> Marked:
    """Return the program of one step with its parts. Bounds are not checked. Raises ProgramInvalid."""
    frozen = frozen_tensors(shape.model, shape.adapter)
    sources = [Source(SourceKind.MODEL, name, kind) for name, kind in frozen.items()]
    sources += [Source(SourceKind.DATA, name, kind) for name, kind in row_tensors(shape).items()]
    sources += [Source(SourceKind.STATE, name, kind) for name, kind in state_tensors(shape).items()]
    if shape.adapter is not None:
        kinds = adapter_state(shape.model, shape.adapter)
        sources += [Source(SourceKind.ADAPTER, name, kind) for name, kind in kinds.items()]
    step = _Step(shape, Builder(sources))
    return Marked(step.program(), step.marks)


class _Step(Layers):
    """The tensors of a step while its program is built."""

    bits = TUNED_BITS
    pair_bits = TUNED_PAIR_BITS

    def __init__(self, shape: EvaluateShape, build: Builder) -> None:
        super().__init__(
            shape.model, build, batch=shape.batch, length=shape.length,
            first=build.call("number", attributes=(0,)), kind=SourceKind.MODEL, adapter=shape.adapter,
        )  # fmt: skip
        self._job = shape
        self._base = build.call("step_place", attributes=(1, shape.steps, shape.batch))
        self._rows = build.call("positions", self._base, attributes=(1, shape.batch))
        self.marks = [Mark(Part.START, ONCE, 0)]

    def program(self) -> Program:
        """Return the whole step."""
        build, job = self.build, self._job
        stream = self.embedded(self._column(ROW_TOKENS, job.length, job.model.vocabulary - 1))
        for layer in range(job.model.layers):
            self.marks.append(Mark(Part.LAYERS, layer, build.calls))
            stream = self.layer(stream, layer).stream
        self.marks.append(Mark(Part.HEAD, ONCE, build.calls))
        places = self._column(PLACES, job.slots, job.length)
        _, logits = self.logits(build.call("gather_groups", stream, places, attributes=(job.batch,)))
        targets = self._column(TARGETS, job.slots, job.model.vocabulary - 1)
        wanted = build.call("one_hot", targets, attributes=(job.model.vocabulary,))
        # 1 for a slot that is used: the place of a free one is no column.
        used = build.row_sum(build.call("one_hot", places, attributes=(job.length,)))
        shifted = build.call("subtract", logits, build.call("row_maximum", logits))
        norms = build.row_sum(build.call("exp", shifted))
        chosen = build.row_sum(build.call("multiply", shifted, wanted))
        losses = build.call("multiply", build.call("subtract", build.call("log", norms), chosen), used)
        stores = {LOSSES: self._placed(LOSSES, losses), COUNTS: self._placed(COUNTS, used)}
        probe = build.call("store", losses, attributes=(STREAM_LIMIT,))
        step = 0 if job.adapter is None else job.adapter.step
        return build.program(stores, probe, build.row_sum(build.call("transpose", losses)), adapter_step=step)

    def _column(self, name: str, width: int, most: int) -> int:
        """Return integers of the batch's rows as one column, one row below the other."""
        rows = self.build.call("gather", self.source(name, SourceKind.DATA), self._rows)
        found = self.build.call("load_integers", rows, attributes=(0, most))
        return self.build.call("split_heads", found, attributes=(self._job.batch, width))

    def _placed(self, name: str, values: int) -> int:
        """Return the sums of the batch's rows, stored beside those of all others."""
        build, job = self.build, self._job
        sums = build.row_sum(build.call("join_heads", values, attributes=(job.batch, job.slots)))
        before = build.call("load", self.source(name, SourceKind.STATE))
        after = build.call("place_rows", before, sums, self._base, attributes=(1, 1))
        return build.call("store", after, attributes=(STREAM_LIMIT,))
