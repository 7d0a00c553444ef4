"""One step of embedding texts, as a program (market.md R84).

A step takes the next ``batch`` texts of the data through a frozen model, and puts a vector for each into the
state. The vector of a text depends on its own tokens alone, bit for bit: not on its neighbours, and not on what
its row has beyond its last place.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

from tasks.programs import llama_shape
from tasks.programs.bert import BertLayers
from tasks.programs.bert_shape import BertShape, encoder_bytes, encoder_tensors
from tasks.programs.builder import Builder
from tasks.programs.checks import check_bounds
from tasks.programs.errors import ProgramInvalid
from tasks.programs.generate import adapter_state, check_tuned
from tasks.programs.llama_layers import NOTHING, STREAM_LIMIT, Layers
from tasks.programs.llama_shape import Adapter, LlamaShape
from tasks.programs.marks import ONCE, Mark, Marked
from tasks.programs.operators.rows import TERMS_MAX
from tasks.programs.operators.scalars import constant_bits
from tasks.programs.permutation import COUNT_MAX
from tasks.programs.program import Program, Source, SourceKind
from tasks.programs.tensors import DIMENSION_MAX, ElementType, TensorType

__all__ = [
    "COUNT_EXPONENT",
    "LAST",
    "POOLINGS",
    "TEXT_TOKENS",
    "VECTORS",
    "EmbedShape",
    "ModelShape",
    "embed_program",
    "frozen_bytes",
    "frozen_tensors",
    "marked_program",
    "state_tensors",
    "text_tensors",
]

ModelShape: TypeAlias = LlamaShape | BertShape
POOLINGS: Final = ("mean", "cls", "last")
"""What a vector is: the mean of a text's tokens, its first token, or its last one."""
TEXT_TOKENS: Final = "tokens"
LAST: Final = "last"
"""The last place of each text; what stands in its row beyond it is not read."""
VECTORS: Final = "vectors"
COUNT_BITS: Final = 28
COUNT_EXPONENT: Final = 26
"""With it an integer of COUNT_BITS bits is itself as binary64."""


@dataclass(frozen=True)
class EmbedShape:
    """What a step's program follows from: there are ``rows`` texts of ``length`` tokens at most.

    The last text fills the last batch. A decoder that was tuned, or trained by a task (R89), has an ``adapter``.
    Raises ProgramInvalid.
    """

    model: ModelShape
    batch: int
    rows: int
    length: int
    pooling: str
    normalised: bool
    adapter: Adapter | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.length <= self.model.context:
            raise ProgramInvalid(f"texts of {self.length} tokens; the context has {self.model.context}")
        if not 1 <= self.batch <= self.rows <= COUNT_MAX or self.batch * self.length > TERMS_MAX:
            raise ProgramInvalid(f"{self.rows} texts of {self.length} tokens, {self.batch} at a time")
        if self.batch * self.model.width > DIMENSION_MAX:
            raise ProgramInvalid(f"{self.batch} vectors of {self.model.width} numbers at a time")
        if self.pooling not in POOLINGS:
            raise ProgramInvalid(f"pooling: {', '.join(POOLINGS)} expected, not {self.pooling[:20]!r}")
        if self.adapter is not None:
            if isinstance(self.model, BertShape):
                raise ProgramInvalid("adapters of an encoder")
            check_tuned(self.model, self.adapter)

    @property
    def steps(self) -> int:
        """Steps of the whole job: one for each batch."""
        return -(-self.rows // self.batch)

    @property
    def table_rows(self) -> int:
        """Rows of data and state: those of whole batches."""
        return self.steps * self.batch


def frozen_tensors(model: ModelShape, adapter: Adapter | None = None) -> dict[str, TensorType]:
    """Return name and type of every frozen tensor: none of a model that a task has trained."""
    return encoder_tensors(model) if isinstance(model, BertShape) else llama_shape.frozen_tensors(model, adapter)


def frozen_bytes(model: ModelShape, adapter: Adapter | None = None) -> int:
    """Return the bytes of all frozen tensors."""
    return encoder_bytes(model) if isinstance(model, BertShape) else llama_shape.frozen_bytes(model, adapter)


def text_tensors(shape: EmbedShape) -> dict[str, TensorType]:
    """Return name and type of every tensor of the data."""
    columns = {LAST: 1, TEXT_TOKENS: shape.length}
    return {name: TensorType(ElementType.INT32, shape.table_rows, count) for name, count in columns.items()}


def state_tensors(shape: EmbedShape) -> dict[str, TensorType]:
    """Return name and type of the tensor of a state."""
    return {VECTORS: TensorType(ElementType.BINARY32, shape.table_rows, shape.model.width)}


def embed_program(shape: EmbedShape, *, checks_bounds: bool = True) -> Program:
    """Return the program of one step. Raises ProgramInvalid.

    Without ``checks_bounds`` the caller knows that no number can leave the exact range (``check_embed``).
    """
    program = marked_program(shape).program
    if checks_bounds:
        check_bounds(program)
    return program


class Part(IntEnum):
    """Parts of a step in the order of their calls."""

    START = 1
    LAYERS = 2
    POOL = 3


def marked_program(shape: EmbedShape) -> Marked:
    """Return the program of one step with its parts. Bounds are not checked. Raises ProgramInvalid."""
    frozen = frozen_tensors(shape.model, shape.adapter)
    sources = [Source(SourceKind.MODEL, name, kind) for name, kind in frozen.items()]
    sources += [Source(SourceKind.DATA, name, kind) for name, kind in text_tensors(shape).items()]
    sources += [Source(SourceKind.STATE, name, kind) for name, kind in state_tensors(shape).items()]
    if shape.adapter is not None and isinstance(shape.model, LlamaShape):
        kinds = adapter_state(shape.model, shape.adapter)
        sources += [Source(SourceKind.ADAPTER, name, kind) for name, kind in kinds.items()]
    step = _Step(shape, Builder(sources))
    return Marked(step.program(), step.marks)


class _Step:
    """The tensors of a step while its program is built."""

    def __init__(self, shape: EmbedShape, build: Builder) -> None:
        self._job, self._build = shape, build
        self.marks = [Mark(Part.START, ONCE, 0)]

    def program(self) -> Program:
        """Return the whole step."""
        build, job, model = self._build, self._job, self._job.model
        base = build.call("step_place", attributes=(1, job.steps, job.batch))
        rows = build.call("positions", base, attributes=(1, job.batch))
        found = self._integers(TEXT_TOKENS, rows, model.vocabulary - 1)
        tokens = build.call("split_heads", found, attributes=(job.batch, job.length))
        last = self._integers(LAST, rows, job.length - 1)
        stream = self._encoded(tokens, last)
        one = build.constant(1.0)
        pooled = self._pooled(stream, last, one)
        squares = build.row_sum(build.call("multiply", pooled, pooled))
        norms = build.call("add", build.call("square_root", squares), build.constant(NOTHING))
        vectors = pooled
        if job.normalised:
            vectors = build.call("bound", build.call("divide", pooled, norms), attributes=(0,))
        before = build.call("load", build.source(SourceKind.STATE, VECTORS))
        after = build.call("place_rows", before, vectors, base, attributes=(1, 1))
        stores = {VECTORS: build.call("store", after, attributes=(STREAM_LIMIT,))}
        probe = build.call("store", pooled, attributes=(STREAM_LIMIT,))
        step = 0 if job.adapter is None else job.adapter.step
        return build.program(stores, probe, build.row_sum(build.call("transpose", norms)), adapter_step=step)

    def _integers(self, name: str, rows: int, most: int) -> int:
        """Return integers of the batch's rows of the data."""
        found = self._build.call("gather", self._build.source(SourceKind.DATA, name), rows)
        return self._build.call("load_integers", found, attributes=(0, most))

    def _encoded(self, tokens: int, last: int) -> int:
        """Return the rows of all tokens after the last layer."""
        build, job = self._build, self._job
        if isinstance(job.model, BertShape):
            encoder = BertLayers(job.model, build, batch=job.batch, length=job.length, last=last)
            stream = encoder.embedded(tokens)
            for number in range(job.model.layers):
                self.marks.append(Mark(Part.LAYERS, number, build.calls))
                stream = encoder.layer(stream, number)
            self.marks.append(Mark(Part.POOL, ONCE, build.calls))
            return stream
        first = build.call("number", attributes=(0,))
        decoder = Layers(
            job.model, build, batch=job.batch, length=job.length, first=first, kind=SourceKind.MODEL,
            adapter=job.adapter,
        )  # fmt: skip
        stream = decoder.embedded(tokens)
        for number in range(job.model.layers):
            self.marks.append(Mark(Part.LAYERS, number, build.calls))
            stream = decoder.layer(stream, number).stream
        self.marks.append(Mark(Part.POOL, ONCE, build.calls))
        return decoder.normed(stream, "norm").result

    def _pooled(self, stream: int, last: int, one: int) -> int:
        """Return a row for each text."""
        build, job = self._build, self._job
        if job.pooling == "last":
            return build.call("gather_groups", stream, last, attributes=(job.batch,))
        if job.pooling == "cls":
            zero = build.call("number", attributes=(0,))
            places = build.call("positions", zero, attributes=(job.batch, 1))
            return build.call("gather_groups", stream, places, attributes=(job.batch,))
        turned = build.call("transpose_groups", stream, attributes=(job.batch,))
        seen = build.call("causal", turned, last, attributes=(job.batch, 1, constant_bits(0.0)))
        sums = build.call("join_heads", build.row_sum(seen), attributes=(job.batch, job.model.width))
        exponent = build.call("number", attributes=(COUNT_EXPONENT,))
        exponents = build.call("positions", exponent, attributes=(job.batch, 1))
        before = build.call("scale_rows", last, exponents, attributes=(COUNT_BITS,))
        return build.call("divide", sums, build.call("add", before, one))
