"""One step of decoding a batch of prompts, as a program (market.md 4.6).

A step takes each row of a batch from one place to the next. It reads the token there, adds its keys and values to
a cache, and chooses the next token: the likeliest one, or a random one (``sampling``). The state has the tokens of
all rows, and the cache of one batch. So whatever a step reads was agreed on before, and the first false token of a
liar is an element of one step.

While a row stands within its prompt its choices are made too, and nobody reads them. A token of ``ends`` that was
made repeats itself to the end of the row.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from tasks.programs import decoder, finetune
from tasks.programs.builder import Builder, Quantised
from tasks.programs.checks import check_bounds
from tasks.programs.decoder import DecoderShape
from tasks.programs.errors import ProgramInvalid
from tasks.programs.finetune import FinetuneShape
from tasks.programs.llama import CACHE_EXPONENT_MAX, CACHE_PARTS
from tasks.programs.llama_layers import TUNED_PAIR_BITS, Layers
from tasks.programs.llama_shape import (
    BITS,
    Adapter,
    LlamaShape,
    frozen_tensors,
)
from tasks.programs.looped import loop_of_layout
from tasks.programs.marks import ONCE, Mark, Marked
from tasks.programs.operators.decoding import ENDS_MAX, stored_element
from tasks.programs.operators.row_sampling import KEY_COLUMNS, KEY_PART_MAX, TEMPERATURE_MICRO_MAX
from tasks.programs.operators.rows import EXPONENT_MIN, WIDTHS
from tasks.programs.operators.scalars import NANO
from tasks.programs.operators.schedules import STEPS_MAX
from tasks.programs.operators.storage import STORED_EXPONENT_MAX
from tasks.programs.permutation import COUNT_MAX
from tasks.programs.program import Program, Source, SourceKind
from tasks.programs.sampling import RowColumns, Sampling, sampled, sampled_by_row
from tasks.programs.tensors import DIMENSION_MAX, ElementType, TensorType

__all__ = [
    "BATCH_MAX",
    "KEYS",
    "LENGTHS",
    "LIMITS",
    "MADE",
    "OWN",
    "PROMPTS",
    "STOPS",
    "STOP_COLUMNS_MAX",
    "TEMPERATURES",
    "TOP_K",
    "TOP_P",
    "ByRow",
    "GenerateShape",
    "adapter_state",
    "check_tuned",
    "generate_program",
    "layer_tensors",
    "made_tensor",
    "marked_program",
    "prompt_tensors",
    "state_tensors",
    "tuned_shape",
    "whole_shape",
]

BATCH_MAX: Final = 4096
PROMPTS: Final = "prompts"
LENGTHS: Final = "lengths"
"""Tokens of each prompt; what stands in its row beyond them is not read."""
MADE: Final = "tokens"
"""Of the state: column ``p`` has the token after place ``p``."""
LIMITS: Final = "limits"
"""Tokens after each prompt at most. No step reads them: a row has the first ones of what is made."""
TEMPERATURES: Final = "temperatures"
TOP_K: Final = "top_k"
TOP_P: Final = "top_p"
KEYS: Final = "keys"
STOPS: Final = "stops"
"""Texts that end a row: how many bytes, and three bytes a column. No step reads them."""
STOP_COLUMNS_MAX: Final = 1_536
OWN: Final = (TEMPERATURES, TOP_K, TOP_P, KEYS)
"""Tensors that say how a row's tokens are drawn, in the order of RowColumns."""
_EXPONENTS: Final = (EXPONENT_MIN, CACHE_EXPONENT_MAX)


class ByRow(NamedTuple):
    """That rows say how they are decoded (R136). Texts that end them take ``stop_columns`` columns; 0: none."""

    stop_columns: int

    def check(self) -> None:
        """Raises ProgramInvalid."""
        if not 0 <= self.stop_columns <= STOP_COLUMNS_MAX:
            raise ProgramInvalid(f"{self.stop_columns} columns of stop texts, at most {STOP_COLUMNS_MAX}")


@dataclass(frozen=True)
class GenerateShape:
    """What a step's program follows from.

    There are ``rows`` prompts of ``length`` tokens at most; ``batch`` of them are decoded together. The longest
    gets ``new`` tokens, shorter ones more. ``ends`` are tokens, in order. A tuned model has an ``adapter``.
    Without ``sampling`` the likeliest token is taken. Raises ProgramInvalid.
    """

    model: LlamaShape
    batch: int
    rows: int
    length: int
    new: int
    ends: tuple[int, ...] = ()
    adapter: Adapter | None = None
    sampling: Sampling | None = None
    by_row: ByRow | None = None
    """Of a job whose rows have numbers of their own; then ``sampling`` says nothing."""

    def __post_init__(self) -> None:
        if self.length < 1 or self.new < 1 or self.places > self.model.context:
            raise ProgramInvalid(
                f"prompts of {self.length} tokens, {self.new} new ones; the context has {self.model.context}"
            )
        if not 1 <= self.batch <= BATCH_MAX or not self.batch <= self.rows <= COUNT_MAX or self.rows % self.batch:
            raise ProgramInvalid(f"{self.rows} prompts, {self.batch} at a time")
        is_sorted = list(self.ends) == sorted(set(self.ends))
        if (
            len(self.ends) > ENDS_MAX
            or not is_sorted
            or not all(0 <= t < self.model.vocabulary for t in self.ends)
        ):
            raise ProgramInvalid(f"end tokens: up to {ENDS_MAX} of the vocabulary, in order, each once")

        if self.sampling is not None:
            self.sampling.check()
        if self.by_row is not None:
            self.by_row.check()
            if self.sampling is not None:
                raise ProgramInvalid("rows say how tokens are drawn, and so does the job")
        if self.adapter is not None:
            check_tuned(self.model, self.adapter)

    @property
    def places(self) -> int:
        """Places of a row that a token is chosen at: of the longest prompt, and of all new tokens but one."""
        return self.length + self.new - 1

    @property
    def widest(self) -> int:
        """Values of the largest tensor of a pass, for each token of a batch."""
        model = self.model
        return max(model.vocabulary, model.hidden, model.width, model.heads * max(model.head_width, self.places))

    @property
    def batches(self) -> int:
        """Batches of all rows."""
        return self.rows // self.batch

    @property
    def steps(self) -> int:
        """Steps of the whole job."""
        return self.batches * self.places


def prompt_tensors(shape: GenerateShape) -> dict[str, TensorType]:
    """Return name and type of every tensor of the data."""
    columns = {LENGTHS: 1, PROMPTS: shape.length}
    if shape.by_row is not None:
        columns |= dict.fromkeys((LIMITS, TEMPERATURES, TOP_K, TOP_P), 1) | {KEYS: KEY_COLUMNS}
        columns |= {STOPS: shape.by_row.stop_columns} if shape.by_row.stop_columns else {}
    return {name: TensorType(ElementType.INT32, shape.rows, count) for name, count in columns.items()}


def check_tuned(model: LlamaShape, adapter: Adapter) -> None:
    """Raises ProgramInvalid for adapters, or a whole model, that no training leaves."""
    adapter.check(model)
    if not 0 <= adapter.step <= STEPS_MAX:
        raise ProgramInvalid(f"adapters that were trained with {adapter.step} steps")
    if adapter.is_whole:
        whole_shape(model, adapter)
    else:
        tuned_shape(model, adapter)


def tuned_shape(model: LlamaShape, adapter: Adapter) -> FinetuneShape:
    """Return a shape of fine-tuning whose states have these adapters. Raises ProgramInvalid."""
    rank, alpha, targets, _, layout = adapter
    accumulate, evaluate_every, keeps_best = loop_of_layout(layout)
    return FinetuneShape(
        model, rank, alpha, targets, batch=1, length=1, slots=1, rows=2, train_rows=1, accumulate=accumulate,
        evaluate_every=evaluate_every, keeps_best=keeps_best,
    )  # fmt: skip


def whole_shape(model: LlamaShape, adapter: Adapter) -> DecoderShape:
    """Return a shape of training from scratch whose states have the model of an adapter. Raises ProgramInvalid."""
    return DecoderShape(model, 1, 1, 2, 1, *loop_of_layout(adapter.layout))


def adapter_state(model: LlamaShape, adapter: Adapter) -> dict[str, TensorType]:
    """Return name and type of every tensor of the state that an adapter, or a whole model, is in."""
    if adapter.is_whole:
        return decoder.state_tensors(model, whole_shape(model, adapter))
    return finetune.state_tensors(tuned_shape(model, adapter))


def _ranges(shape: GenerateShape) -> dict[str, tuple[int, int]]:
    limit = WIDTHS[BITS if shape.adapter is None else TUNED_PAIR_BITS].limit
    return {part: _EXPONENTS if part.endswith("exponents") else (-limit, limit) for part in CACHE_PARTS}


def made_tensor(shape: GenerateShape) -> TensorType:
    """Return the type of the tokens of all rows."""
    return TensorType(stored_element(0, shape.model.vocabulary - 1), shape.rows, shape.places)


def layer_tensors(shape: GenerateShape, layer: int) -> dict[str, TensorType]:
    """Return name and type of every tensor of a layer's cache."""
    rows, width = shape.batch * shape.model.key_heads * shape.places, shape.model.head_width
    return {
        f"cache/{layer}/{part}": TensorType(
            stored_element(*limits), rows, 1 if part.endswith("exponents") else width
        )
        for part, limits in _ranges(shape).items()
    }


def state_tensors(shape: GenerateShape) -> dict[str, TensorType]:
    """Return name and type of every tensor of a state, sorted."""
    found = {MADE: made_tensor(shape)}
    for layer in range(shape.model.layers):
        found |= layer_tensors(shape, layer)
    return dict(sorted(found.items()))


def generate_program(shape: GenerateShape, *, checks_bounds: bool = True) -> Program:
    """Return the program of one step. Raises ProgramInvalid.

    Without ``checks_bounds`` the caller knows that no number can leave the exact range (``check_generate``).
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


def marked_program(shape: GenerateShape) -> Marked:
    """Return the program of one step with its parts. Bounds are not checked. Raises ProgramInvalid."""
    frozen = frozen_tensors(shape.model, shape.adapter)
    sources = [Source(SourceKind.MODEL, name, kind) for name, kind in frozen.items()]
    sources += [Source(SourceKind.DATA, name, kind) for name, kind in prompt_tensors(shape).items()]
    sources += [Source(SourceKind.STATE, name, kind) for name, kind in state_tensors(shape).items()]
    if shape.adapter is not None:
        kinds = adapter_state(shape.model, shape.adapter)
        sources += [Source(SourceKind.ADAPTER, name, kind) for name, kind in kinds.items()]
    step = _Step(shape, Builder(sources))
    return Marked(step.program(), step.marks)


class _Step(Layers):
    """The tensors of a step while its program is built."""

    def __init__(self, shape: GenerateShape, build: Builder) -> None:
        place = build.call("step_place", attributes=(1, shape.places, 1))
        super().__init__(
            shape.model,
            build,
            batch=shape.batch,
            length=1,
            first=place,
            kind=SourceKind.MODEL,
            adapter=shape.adapter,
        )
        self._ranges = _ranges(shape)
        self._job, self._stores = shape, dict[str, int]()
        self.marks = [Mark(Part.START, ONCE, 0)]

    def program(self) -> Program:
        """Return the whole step."""
        build, job = self.build, self._job
        largest_token = job.model.vocabulary - 1
        base = build.call("step_place", attributes=(job.places, job.batches, job.batch))
        rows = build.call("positions", base, attributes=(1, job.batch))
        prompts = self._column(PROMPTS, rows, largest_token)
        lengths = self._column(LENGTHS, rows, job.length)
        stored = self._held(MADE, 0, largest_token)
        made = build.call("gather", stored, rows)
        token = build.call("token_at", prompts, made, lengths, self.first)
        stream = self.embedded(token)
        for layer in range(job.model.layers):
            self.marks.append(Mark(Part.LAYERS, layer, build.calls))
            stream = self.layer(stream, layer).stream
        self.marks.append(Mark(Part.HEAD, ONCE, build.calls))
        _, logits = self.logits(stream)
        largest = build.call("row_maximum", logits)
        if job.by_row is not None:
            choice = sampled_by_row(build, self._own_columns(rows), logits, largest, self.first)
        elif job.sampling is None:
            choice = build.call("find", logits, largest)
        else:
            choice = sampled(build, job.sampling, logits, largest, rows, self.first)
        following = build.call(
            "until", choice, token, lengths, self.first, attributes=(job.model.vocabulary, *job.ends)
        )
        turned = (build.call("transpose", made), build.call("transpose", following))
        longer = build.call("transpose", build.call("place_rows", *turned, self.first, attributes=(1, 1)))
        self._keep(MADE, build.call("place_rows", stored, longer, base, attributes=(1, 1)), 0, largest_token)
        probe = build.call("store", largest, attributes=(STORED_EXPONENT_MAX,))
        loss = build.row_sum(build.call("transpose", largest))
        step = 0 if job.adapter is None else job.adapter.step
        return build.program(self._stores, probe, loss, adapter_step=step)

    def _own_columns(self, rows: int) -> RowColumns:
        """Return how the tokens of each row are drawn."""
        most = (TEMPERATURE_MICRO_MAX, DIMENSION_MAX, NANO, KEY_PART_MAX)
        return RowColumns(*(self._column(name, rows, one) for name, one in zip(OWN, most, strict=True)))

    def _column(self, name: str, rows: int, most: int) -> int:
        """Return integers of the batch's rows of the data."""
        found = self.build.call("gather", self.source(name, SourceKind.DATA), rows)
        return self.build.call("load_integers", found, attributes=(0, most))

    def _held(self, name: str, low: int, high: int) -> int:
        """Return integers of the state."""
        return self.build.call("load_integers", self.source(name, SourceKind.STATE), attributes=(low, high))

    def _keep(self, name: str, values: int, low: int, high: int) -> None:
        self._stores[name] = self.build.call("store_integers", values, attributes=(low, high))

    def kept_keys(self, rows: Quantised, layer: int) -> Quantised:
        """See Layers."""
        return self._kept(rows, layer, CACHE_PARTS[:2])

    def kept_values(self, rows: Quantised, layer: int) -> Quantised:
        """See Layers."""
        return self._kept(rows, layer, CACHE_PARTS[2:])

    def _kept(self, found: Quantised, layer: int, parts: tuple[str, ...]) -> Quantised:
        """Return rows as integers with those of earlier places, and keep them all."""
        placed: list[int] = []
        for part, new in zip(parts, found[:2], strict=True):
            name, limits = f"cache/{layer}/{part}", self._ranges[part]
            placed.append(
                self.build.call(
                    "place_rows", self._held(name, *limits), new, self.first, attributes=(self.batch, self.groups)
                )
            )
            self._keep(name, placed[-1], *limits)
        return Quantised(placed[0], placed[1], self.pair_bits)
