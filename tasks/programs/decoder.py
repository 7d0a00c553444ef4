"""One step of training a decoder of the Llama family from scratch, as a program (market.md R88).

All weights and AdamW's moments are the state. A row of the data has as many tokens as a sequence, and for each of
them the token that comes next. The loss is the mean cross entropy over all tokens of a batch.

The gradient of the embedding is a sum over the tokens of a batch, for each row of the vocabulary: the product of
the marks of these tokens with their gradients. It has one rounding, in whatever order an engine adds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from tasks.programs.adamw import Gate, adamw
from tasks.programs.builder import Builder
from tasks.programs.checks import ADAPTER_LIMIT, check_bounds
from tasks.programs.errors import ProgramInvalid
from tasks.programs.finetune import CLIPPED_MAX, ROW_TOKENS, TARGETS, FinetuneRates
from tasks.programs.llama_backward import TrainedLayers
from tasks.programs.llama_layers import NOTHING, Layer
from tasks.programs.llama_shape import BITS, LlamaShape, layer_parameters, other_parameters, parameters_of
from tasks.programs.loop import Loop
from tasks.programs.looped import (
    GRADIENT_LIMIT,
    LoopCalls,
    LoopShape,
    check_loop,
    groups_of,
    is_gated,
    losses_leaf,
    single_tensors,
)
from tasks.programs.marks import ONCE, Mark, Marked
from tasks.programs.operators.rows import TERMS_MAX
from tasks.programs.operators.scalars import NANO
from tasks.programs.operators.schedules import SCHEDULES
from tasks.programs.permutation import COUNT_MAX
from tasks.programs.program import Program, Source, SourceKind
from tasks.programs.tensors import ElementType, TensorType

__all__ = [
    "DecoderShape",
    "Part",
    "check_decoder_rates",
    "decays",
    "decoder_program",
    "marked_program",
    "row_tensors",
    "state_tensors",
]


@dataclass(frozen=True)
class DecoderShape:
    """What a step's program follows from: model, and the data's rows.

    Of ``rows`` rows of ``length`` tokens the first ``train_rows`` are trained on, ``batch`` a step, and
    ``accumulate`` steps make an update. The others are for validation, as in fine-tuning. Raises ProgramInvalid.
    """

    model: LlamaShape
    batch: int
    length: int
    rows: int
    train_rows: int
    accumulate: int = 1
    evaluate_every: int = 0
    keeps_best: int = 0
    recompute: int = 0
    """1: the way back computes each layer again (R152), 0: the way forward keeps what the way back needs."""

    def __post_init__(self) -> None:
        if not 1 <= self.length <= self.model.context:
            raise ProgramInvalid(f"rows of {self.length} tokens; context {self.model.context}")
        if self.batch < 1 or self.batch * self.length > TERMS_MAX:
            raise ProgramInvalid(f"a batch of {self.batch} rows of {self.length} tokens")
        if not 1 <= self.train_rows <= self.rows <= COUNT_MAX:
            raise ProgramInvalid(f"{self.train_rows} rows to train on out of {self.rows}")
        if self.model.biased:
            raise ProgramInvalid("a model without biases is trained")
        if self.recompute not in (0, 1):
            raise ProgramInvalid("layers are computed again or not")
        check_loop(self, self.loop(max(1, self.evaluate_every)))

    def loop(self, updates: int) -> Loop:
        """Return the training loop of so many updates."""
        return Loop(self.batch, self.rows, self.train_rows, self.accumulate, self.evaluate_every, updates)

    @property
    def is_gated(self) -> bool:
        """Whether some steps update nothing. A program of another shape reads no loop."""
        return is_gated(self)

    @property
    def losses_place(self) -> tuple[int, int]:
        """The leaf of the losses in the tree over a state of a job that evaluates, and its leaves."""
        model = self.model
        return losses_leaf(self, model.layers * len(layer_parameters(model)) + len(other_parameters(model)))


def decays(name: str) -> bool:
    """Tell whether a weight decays: matrices do, weights of norms and biases do not."""
    return not name.endswith(("norm", "bias"))


def state_tensors(model: LlamaShape, loop: LoopShape) -> dict[str, TensorType]:
    """Return name and type of every tensor of a state, sorted."""
    found = {f"{group}/{name}": kind for group in groups_of(loop) for name, kind in parameters_of(model).items()}
    found |= {name: TensorType(ElementType.BINARY32, 1, count) for name, count in single_tensors(loop)}
    return dict(sorted(found.items()))


def row_tensors(shape: DecoderShape) -> dict[str, TensorType]:
    """Return name and type of every tensor of the data."""
    return {name: TensorType(ElementType.INT32, shape.rows, shape.length) for name in (TARGETS, ROW_TOKENS)}


def check_decoder_rates(model: LlamaShape, rates: FinetuneRates) -> None:
    """Raises ProgramInvalid for rates that no program of a model has."""
    rates.check()
    count = len(layer_parameters(model)) * model.layers + len(other_parameters(model))
    if rates.clip_nano and count > CLIPPED_MAX:
        raise ProgramInvalid(f"gradients of {count} tensors cannot be clipped together, at most {CLIPPED_MAX}")


def decoder_program(shape: DecoderShape, rates: FinetuneRates, *, checks_bounds: bool = True) -> Program:
    """Return the program of one step. Raises ProgramInvalid.

    Without ``checks_bounds`` the caller knows that no number can leave the exact range (``check_decoder``).
    """
    program = marked_program(shape, rates).program
    if checks_bounds:
        check_bounds(program)
    return program


def marked_program(shape: DecoderShape, rates: FinetuneRates) -> Marked:
    """Return the program of one step with its parts. Bounds are not checked. Raises ProgramInvalid."""
    check_decoder_rates(shape.model, rates)
    sources = [Source(SourceKind.DATA, name, kind) for name, kind in row_tensors(shape).items()]
    sources += [Source(SourceKind.STATE, name, kind) for name, kind in state_tensors(shape.model, shape).items()]
    step = _Step(shape, rates, Builder(sources))
    return Marked(step.program(), step.marks)


class Part(IntEnum):
    """Parts of a step in the order of their calls; many do one layer after another."""

    START = 1
    FORWARD = 2
    HEAD = 3
    BACKWARD = 4
    """From the highest layer to the lowest."""
    EMBEDDING = 5
    GRADIENTS = 6
    OTHERS = 7
    """Gradients of no layer, and the probe."""
    SQUARES = 8
    SUMS = 9
    FACTOR = 10
    CLIPPED = 11
    RATE = 12
    UPDATES = 13
    LAST = 14
    """Updates of what is of no layer."""
    BEST = 15
    BEST_OTHERS = 16


class _Step(TrainedLayers):
    """The tensors of a step while its program is built."""

    def __init__(self, shape: DecoderShape, rates: FinetuneRates, build: Builder) -> None:
        self.marks = [Mark(Part.START, ONCE, 0)]
        super().__init__(shape.model, build, batch=shape.batch, length=shape.length)
        self._job, self._rates = shape, rates
        self._loop, self._stores = shape.loop(rates.total_steps), dict[str, int]()
        self._looping = LoopCalls(build, shape, self._loop, self.state, self._stores)
        if shape.is_gated:
            self._order = build.call("loop_rows", attributes=self._loop)
        else:
            self._order = build.call("sample_order", attributes=(shape.batch, shape.train_rows))

    def program(self) -> Program:
        """Return the whole step."""
        build, model = self.build, self.shape
        tokens = self._column(ROW_TOKENS)
        stream = self.embedded(tokens)
        layers, copies = list[Layer](), list[int]()
        for number in range(model.layers):
            self._mark(Part.FORWARD, number)
            if self._job.recompute:
                copies.append(self.copied(stream))
            layers.append(self.layer(stream, number))
            stream = layers[-1].stream
        self._mark(Part.HEAD)
        loss, gradient = self._head(stream)
        for number in range(model.layers - 1, -1, -1):
            self._mark(Part.BACKWARD, number)
            if copies:
                layers[number] = self.again(copies[number], number)
            gradient = self.through_layer(layers[number], number, gradient)
        self._mark(Part.EMBEDDING)
        self._embedding(tokens, gradient)
        gradients = self._each_layer(Part.GRADIENTS, self._whole)
        self._mark(Part.OTHERS)
        gradients |= {name: self._whole(name) for name in other_parameters(model)}
        # It takes nearly the whole way back, and has so few values that its hash costs nothing.
        probe = build.call("store", gradients["layer/0/attention_norm"], attributes=(GRADIENT_LIMIT,))
        self._updated(self._clipped(gradients))
        return build.program(self._stores, probe, loss)

    def _whole(self, name: str) -> int:
        """Return the gradient of a weight over all tokens of an update, as far as it has come."""
        found = self.build.binary32(self.gradients[name], GRADIENT_LIMIT)
        return self._looping.whole(name, found) if self._job.is_gated else found

    def _mark(self, part: Part, layer: int = ONCE) -> None:
        self.marks.append(Mark(part, layer, self.build.calls))

    def _layer_names(self, part: Part) -> Iterator[str]:
        """Yield names of weights of layers; mark where those of a layer begin."""
        for layer in range(self.shape.layers):
            self._mark(part, layer)
            for name in layer_parameters(self.shape):
                yield f"layer/{layer}/{name}"

    def _each_layer(self, part: Part, make: Callable[[str], int]) -> dict[str, int]:
        return {name: make(name) for name in self._layer_names(part)}

    def _column(self, name: str) -> int:
        """Return tokens of the batch's rows as one column, one row below the other."""
        rows = self.build.call("gather", self.source(name, SourceKind.DATA), self._order)
        found = self.build.call("load_integers", rows, attributes=(0, self.shape.vocabulary - 1))
        return self.build.call("split_heads", found, attributes=(self.batch, self.length))

    def _marks_of(self, tokens: int) -> int:
        """Return a row for each token: 1 in its column of the vocabulary."""
        return self.build.call("one_hot", tokens, attributes=(self.shape.vocabulary,))

    def _head(self, stream: int) -> tuple[int, int]:
        """Return the loss of the step, and its gradient by the stream: of a sum where some steps do no update."""
        build, job = self.build, self._job
        norm, logits = self.logits(stream)
        wanted = self._marks_of(self._column(TARGETS))
        shifted = build.call("subtract", logits, build.call("row_maximum", logits))
        powers = build.call("exp", shifted)
        norms = build.row_sum(powers)
        chosen = build.row_sum(build.call("multiply", shifted, wanted))
        losses = build.call("subtract", build.call("log", norms), chosen)
        if job.is_gated:
            share = build.call("loop_weights", attributes=(*self._loop, job.length))
            summed = build.row_sum(self.transposed(build.call("multiply", losses, share)))
            loss = self._looping.summed(summed, build.row_sum(self.transposed(share)))
        else:
            share = build.constant(1.0 / (self.batch * self.length))
            loss = build.call("multiply", build.row_sum(self.transposed(losses)), share)
        # At most 1 as it is; to bound it says so.
        shares = build.call("bound", build.call("divide", powers, norms), attributes=(0,))
        surplus = build.call("multiply", build.call("subtract", shares, wanted), share)
        last = self.through_norm(norm, "norm", self.back(self.head, surplus))
        return loss, self.build.binary32(last, GRADIENT_LIMIT)

    def _embedding(self, tokens: int, gradient: int) -> None:
        """Note the gradients of embedding and positions: with that of the logits if both have one matrix."""
        build = self.build
        given = build.quantised(self.transposed(gradient), self.bits)

        def summed(marks: int) -> int:
            """Return the sum of the gradients of each row's tokens."""
            return build.products(build.quantised(self.transposed(marks), BITS), given)  # zeros and ones: exact

        if self.shape.is_gpt2:
            places = build.call("one_hot", self.positions, attributes=(self.shape.context,))
            self.gradients["positions"] = summed(places)
        found = summed(self._marks_of(tokens))
        if self.shape.tied:
            found = build.call("add", self.gradients["embedding"], found)
        self.gradients["embedding"] = found

    def _clipped(self, gradients: Mapping[str, int]) -> dict[str, int]:
        """Return gradients whose common norm is at most the bound, if there is one."""
        build, most = self.build, self._rates.clip_nano / NANO
        if not most:
            return dict(gradients)

        def square(name: str) -> int:
            squares = build.call("multiply", gradients[name], gradients[name])
            return build.row_sum(self.transposed(build.row_sum(squares)))

        squares = self._each_layer(Part.SQUARES, square)
        others: Sequence[str] = list(other_parameters(self.shape))
        total = -1
        for name in self._layer_names(Part.SUMS):
            total = squares[name] if total < 0 else build.call("add", total, squares[name])
        self._mark(Part.FACTOR)
        for name in others:
            total = build.call("add", total, square(name))
        norm, bound = build.call("square_root", total), build.constant(most)
        larger = build.call("select", build.call("subtract", norm, bound), norm, bound)
        factor = build.call("divide", bound, build.call("add", larger, build.constant(NOTHING)))
        rest = {name: build.call("multiply", gradients[name], factor) for name in others}
        return self._each_layer(Part.CLIPPED, lambda name: build.call("multiply", gradients[name], factor)) | rest

    def _updated(self, gradients: Mapping[str, int]) -> None:
        """Store what AdamW makes of gradients, and the best weights."""
        build, rates, job = self.build, self._rates, self._job
        decay = rates.adamw.weight_decay_nano / NANO
        self._mark(Part.RATE)
        gate: Gate | None = None
        number: tuple[int, ...] = ()
        if job.is_gated:
            gate = self._looping.gate()
            number = (gate.number,)
        rate = build.call("learning_rate", *number, attributes=(
            rates.adamw.learning_rate_nano, SCHEDULES.index(rates.schedule), rates.warmup_steps, rates.total_steps,
        ))  # fmt: skip

        def keep() -> int:
            return build.call("subtract", self.one, build.call("multiply", rate, build.constant(decay)))

        def update(name: str) -> None:
            self._stores.update(adamw(
                build, rates.adamw, name, gradients[name], self.state, lambda: rate,
                keep if decay and decays(name) else None, ADAPTER_LIMIT, gate=gate,
            ))  # fmt: skip

        for name in self._layer_names(Part.UPDATES):
            update(name)
        self._mark(Part.LAST)
        for name in other_parameters(self.shape):
            update(name)
        if not job.keeps_best:
            return
        for name in self._layer_names(Part.BEST):
            self._looping.best(name)
        self._mark(Part.BEST_OTHERS)
        for name in other_parameters(self.shape):
            self._looping.best(name)
