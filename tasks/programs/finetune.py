"""One step of fine-tuning a decoder with low-rank adapters (LoRA), as a program (market.md 4.6).

The base is frozen and is no part of the state. A chosen weight W of a layer, outputs by inputs, gets two small
matrices: ``x W' + (alpha / rank) x A' B'`` takes the place of ``x W'``. They and AdamW's moments are the state.

Only tokens of completions are trained. A row of the data has ``slots`` for them; the head runs for these alone.
The loss is the sum over all trained tokens of a batch divided by their number.

A job on preferences (DPO) has pairs of sequences in place of rows: one that is chosen and one that is rejected.
The same model without adapters is the reference, in the same step. The loss of a pair is
``log(1 + exp(-margin))``. The margin is ``beta`` times how much more the adapters add to the log probability of
the chosen one.

The way back through a frozen weight contracts the weight's own integers along their other axis. The exponents of
its rows go into the columns of the gradient before that is quantised, so a weight is never quantised again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from tasks.programs.adamw import Gate, Rates, adamw
from tasks.programs.builder import Builder
from tasks.programs.checks import ADAPTER_LIMIT, check_bounds
from tasks.programs.errors import ProgramInvalid
from tasks.programs.gelu import Gelu, gelu_slope
from tasks.programs.llama_layers import (
    NOTHING,
    STREAM_LIMIT,
    TUNED_BITS,
    TUNED_PAIR_BITS,
    Attended,
    Gated,
    Layer,
    Layers,
    Normed,
    PackedRows,
)
from tasks.programs.llama_shape import (
    FUSED,
    PROJECTIONS,
    LlamaShape,
    projection,
    projections_of,
    weight_tensors,
)
from tasks.programs.loop import Loop
from tasks.programs.looped import (
    GRADIENT_LIMIT,
    LoopCalls,
    check_loop,
    groups_of,
    is_gated,
    losses_leaf,
    single_tensors,
)
from tasks.programs.marks import ONCE, Mark, Marked
from tasks.programs.operators.rows import TERMS_MAX
from tasks.programs.operators.scalars import NANO
from tasks.programs.operators.schedules import SCHEDULES, STEPS_MAX
from tasks.programs.permutation import COUNT_MAX
from tasks.programs.program import Program, Source, SourceKind
from tasks.programs.tensors import ElementType, TensorType

__all__ = [
    "BETA_NANO_MAX",
    "CLIPPED_MAX",
    "PLACES",
    "POSITIONS",
    "PROJECTIONS",
    "RANK_MAX",
    "ROW_TOKENS",
    "SLOTS",
    "STARTS",
    "TARGETS",
    "FinetuneRates",
    "FinetuneShape",
    "Needs",
    "Part",
    "adapter_tensors",
    "check_rates",
    "finetune_program",
    "layer_adapters",
    "layer_tensors",
    "marked_program",
    "row_tensors",
    "state_tensors",
]

RANK_MAX: Final = 256
ALPHA_MAX: Final = 1 << 16
STEP_BITS: Final = TUNED_BITS
PAIR_BITS: Final = TUNED_PAIR_BITS
BACK_BITS: Final = 20
"""Of adapters on the way back: with 23 bits there gradients are no nearer to those of binary64."""
HEAD_BITS: Final = 28
"""Width of the gradient by the logits: most of a softmax over a vocabulary is below 2^-20 of its largest."""
CLIPPED_MAX: Final = 448
"""Matrices whose gradients are clipped by their common norm: with each more its bound doubles."""
ROW_TOKENS: Final = "tokens"
PLACES: Final = "places"
"""For each slot of a row the place of the token whose next one is trained; a free slot has the row's length."""
TARGETS: Final = "targets"
"""For each slot the token that should come next."""
SLOTS: Final = "slots"
"""For each token of a row its slot; the number of slots if it has none."""
POSITIONS: Final = "positions"
"""Of packed rows: for each token its place in its own row."""
STARTS: Final = "starts"
"""Of packed rows: for each token where its row begins; the length of a sequence if it is of no row."""
_GRADIENT_BOUND: Final = 100
BETA_NANO_MAX: Final = 100 * NANO
MARGIN_EXPONENT: Final = 7
"""Margins of pairs count up to 2^7."""


@dataclass(frozen=True)
class FinetuneShape:
    """What a step's program follows from: model, adapters, and the data's rows.

    Of ``rows`` rows of ``length`` tokens and ``slots`` trained ones the first ``train_rows`` are trained on,
    ``batch`` a step, and ``accumulate`` steps make an update. The other rows are for validation, after every
    ``evaluate_every`` updates; 0 does not evaluate. ``keeps_best`` is 0 or 1. Raises ProgramInvalid.
    """

    model: LlamaShape
    rank: int
    alpha: int
    targets: tuple[str, ...]
    batch: int
    length: int
    slots: int
    rows: int
    train_rows: int
    accumulate: int = 1
    evaluate_every: int = 0
    keeps_best: int = 0
    preference: int = 0
    """Of a job on preferences ``beta`` in units of 10^-9. Then ``rows`` are pairs, of twice ``length`` tokens."""
    recompute: int = 0
    """1: the way back computes each layer again (R152), 0: the way forward keeps what the way back needs."""
    packed: int = 0
    """Whether several rows of a file share a sequence (R155), 0 or 1. Then ``rows`` are sequences."""

    def __post_init__(self) -> None:
        if not 1 <= self.rank <= RANK_MAX or not 1 <= self.alpha <= ALPHA_MAX:
            raise ProgramInvalid(f"adapters of rank {self.rank}, alpha {self.alpha}")
        names = projections_of(self.model)
        if not self.targets or self.targets != tuple(name for name in names if name in self.targets):
            raise ProgramInvalid(f"targets are some of {', '.join(names)}, in this order")
        if not 1 <= self.slots <= self.length <= self.model.context:
            raise ProgramInvalid(f"{self.slots} trained of {self.length} tokens; context {self.model.context}")
        if self.packed not in (0, 1) or (self.packed and self.preference):
            raise ProgramInvalid(f"packing {self.packed} of a job {'on preferences' if self.preference else ''}")
        if not 0 <= self.preference <= BETA_NANO_MAX:
            raise ProgramInvalid(f"a beta of {self.preference} x 10^-9")
        if self.recompute not in (0, 1):
            raise ProgramInvalid("layers are computed again or not")
        if self.batch < 1 or self.sequences * self.length > TERMS_MAX:
            raise ProgramInvalid(f"a batch of {self.batch} rows of {self.length} tokens")
        if not 1 <= self.train_rows <= self.rows <= COUNT_MAX:
            raise ProgramInvalid(f"{self.train_rows} rows to train on out of {self.rows}")
        check_loop(self, self.loop(max(1, self.evaluate_every)))

    def loop(self, updates: int) -> Loop:
        """Return the training loop of so many updates."""
        return Loop(self.batch, self.rows, self.train_rows, self.accumulate, self.evaluate_every, updates)

    @property
    def parts(self) -> int:
        """Sequences of a row: two of a pair."""
        return 2 if self.preference else 1

    @property
    def sequences(self) -> int:
        """Sequences of a batch."""
        return self.batch * self.parts

    @property
    def is_whole(self) -> bool:
        """Whether every step is an update by a whole batch: a program of such a shape reads no loop."""
        return self.accumulate == 1 and not self.evaluate_every and self.train_rows % self.batch == 0

    @property
    def is_gated(self) -> bool:
        """Whether some steps update nothing."""
        return is_gated(self)

    @property
    def losses_place(self) -> tuple[int, int]:
        """The leaf of the losses in the tree over a state of a job that evaluates, and its leaves."""
        return losses_leaf(self, 2 * len(self.targets) * self.model.layers)


class FinetuneRates(NamedTuple):
    """Numbers of AdamW, and how the rate changes; ``clip_nano`` bounds the gradient's norm, 0 does not.

    ``warmup_steps`` and ``total_steps`` are numbers of updates.
    """

    adamw: Rates
    schedule: str = "constant"
    warmup_steps: int = 0
    total_steps: int = 1
    clip_nano: int = 0

    def check(self) -> None:
        """Raises ProgramInvalid for numbers that are no rates."""
        self.adamw.check()
        if self.schedule not in SCHEDULES:
            raise ProgramInvalid(f"schedule must be one of {', '.join(SCHEDULES)}")
        if not 0 <= self.warmup_steps < self.total_steps <= STEPS_MAX:
            raise ProgramInvalid(f"a warm-up of {self.warmup_steps} out of {self.total_steps} steps")
        if not 0 <= self.clip_nano <= 1000 * NANO:
            raise ProgramInvalid("the norm of gradients is bounded by 1000 at most")


def check_rates(shape: FinetuneShape, rates: FinetuneRates) -> None:
    """Raises ProgramInvalid for rates that no program of ``shape`` has."""
    rates.check()
    shape.loop(rates.total_steps).check()
    matrices = 2 * len(shape.targets) * shape.model.layers
    if rates.clip_nano and matrices > CLIPPED_MAX:
        raise ProgramInvalid(f"gradients of {matrices} matrices cannot be clipped together, at most {CLIPPED_MAX}")


def layer_tensors(shape: FinetuneShape) -> list[TensorType]:
    """Return the types of a layer's trained matrices: of each target A, rank by inputs, and B, outputs by rank."""
    found: list[TensorType] = []
    for target in shape.targets:
        outputs, inputs = projection(shape.model, target)
        found.append(TensorType(ElementType.BINARY32, shape.rank, inputs))
        found.append(TensorType(ElementType.BINARY32, outputs, shape.rank))
    return found


def layer_adapters(shape: FinetuneShape) -> dict[str, TensorType]:
    """Return name, within its layer, and type of a layer's trained matrices."""
    names = [f"{target}/{matrix}" for target in shape.targets for matrix in ("a", "b")]
    return dict(zip(names, layer_tensors(shape), strict=True))


def adapter_tensors(shape: FinetuneShape) -> dict[str, TensorType]:
    """Return name and type of every trained matrix."""
    kinds = layer_adapters(shape)
    return {f"layer/{layer}/{name}": kind for layer in range(shape.model.layers) for name, kind in kinds.items()}


def state_tensors(shape: FinetuneShape) -> dict[str, TensorType]:
    """Return name and type of every tensor of a state, sorted."""
    found = {
        f"{group}/{name}": kind for group in groups_of(shape) for name, kind in adapter_tensors(shape).items()
    }
    found |= {name: TensorType(ElementType.BINARY32, 1, count) for name, count in single_tensors(shape)}
    return dict(sorted(found.items()))


def row_tensors(shape: FinetuneShape) -> dict[str, TensorType]:
    """Return name and type of every tensor of the data."""
    columns = {PLACES: shape.slots, SLOTS: shape.length, TARGETS: shape.slots, ROW_TOKENS: shape.length}
    columns |= {POSITIONS: shape.length, STARTS: shape.length} if shape.packed else {}
    return {
        name: TensorType(ElementType.INT32, shape.rows, shape.parts * count) for name, count in columns.items()
    }


def finetune_program(shape: FinetuneShape, rates: FinetuneRates, *, checks_bounds: bool = True) -> Program:
    """Return the program of one step. Raises ProgramInvalid.

    Without ``checks_bounds`` the caller knows that no number can leave the exact range (``check_finetune``).
    """
    program = marked_program(shape, rates).program
    if checks_bounds:
        check_bounds(program)
    return program


def marked_program(shape: FinetuneShape, rates: FinetuneRates) -> Marked:
    """Return the program of one step with its parts. Bounds are not checked. Raises ProgramInvalid."""
    check_rates(shape, rates)
    sources = [Source(SourceKind.MODEL, name, kind) for name, kind in weight_tensors(shape.model).items()]
    sources += [Source(SourceKind.DATA, name, kind) for name, kind in row_tensors(shape).items()]
    sources += [Source(SourceKind.STATE, name, kind) for name, kind in state_tensors(shape).items()]
    step = _Step(shape, rates, Builder(sources))
    return Marked(step.program(), step.marks)


class Part(IntEnum):
    """Parts of a step in the order of their calls; many do one layer after another."""

    START = 1
    FORWARD = 2
    BETWEEN = 3
    """The rows of tokens as the reference reads them."""
    REFERENCE = 4
    """The way forward without adapters, of a job on preferences."""
    HEAD = 5
    BACKWARD = 6
    """From the highest layer to the lowest."""
    GRADIENTS = 7
    PROBE = 8
    SQUARES = 9
    SUMS = 10
    FACTOR = 11
    CLIPPED = 12
    RATE = 13
    UPDATES = 14
    BEST = 15


@dataclass(frozen=True)
class Needs:
    """What the way back through a layer has to compute, given the targets and whether layers lie below."""

    below: bool
    targets: tuple[str, ...]

    def any(self, *names: str) -> bool:
        """Tell whether layers below need a gradient, or an adapter of these weights does."""
        return self.below or any(name in self.targets for name in names)


class Reference(Layers):
    """The model without adapters, with the widths of fine-tuning."""

    bits = STEP_BITS
    pair_bits = PAIR_BITS


class _Step(Layers):
    """The tensors of a step while its program is built."""

    bits = STEP_BITS
    pair_bits = PAIR_BITS

    def __init__(self, shape: FinetuneShape, rates: FinetuneRates, build: Builder) -> None:
        self._job, self._rates, self.build = shape, rates, build
        self._loop = shape.loop(rates.total_steps)
        packed, self._used = None, -1
        if shape.packed:
            self._order = self._rows_taken()
            packed = self._packed_rows()
        super().__init__(
            shape.model, build, batch=shape.sequences, length=shape.length,
            first=build.call("number", attributes=(0,)), kind=SourceKind.MODEL, packed=packed,
        )  # fmt: skip
        self._scale = build.constant(shape.alpha / shape.rank)
        self._order = self._rows_taken()  # of packed rows the same call once more
        self._stores = dict[str, int]()
        self._looping = LoopCalls(build, shape, self._loop, self._state, self._stores)
        self.marks = [Mark(Part.START, ONCE, 0)]
        self._taken: dict[str, tuple[int, int]] = {}
        self._gradients: dict[str, int] = {}

    def _rows_taken(self) -> int:
        """Return the numbers of the rows of the step."""
        if self._job.is_whole:
            attributes = (self._job.batch, self._job.train_rows)
            return self.build.call("sample_order", attributes=attributes)
        return self.build.call("loop_rows", attributes=self._loop)

    def _packed_rows(self) -> PackedRows:
        """Return where rows begin that share a sequence; note which tokens are of a row."""
        length, build = self._job.length, self.build
        starts = self._column(STARTS, length, length)
        # 1 for a token of a row: the start of another one is no column.
        self._used = build.row_sum(build.call("one_hot", starts, attributes=(length,)))
        return PackedRows(self._column(POSITIONS, length, length - 1), starts)

    def _of_rows(self, values: int) -> int:
        """Return what a weight was applied to, zero for tokens of no row: no gradient is rounded by them."""
        if not self._job.packed:
            return values
        return self.build.call("select", self._used, values, self.zero)

    def program(self) -> Program:
        """Return the whole step."""
        build, job = self.build, self._job
        first = stream = self.embedded(self._column(ROW_TOKENS, job.length, job.model.vocabulary - 1))
        layers, copies = list[Layer](), list[int]()
        for number in range(job.model.layers):
            self._mark(Part.FORWARD, number)
            if job.recompute:
                copies.append(self.copied(stream))
            layers.append(self.layer(stream, number))
            stream = layers[-1].stream
        if job.preference:
            self._refer(first)
        self._mark(Part.HEAD)
        loss, gradient = self._head(stream)
        if job.is_gated:
            loss = self._looping.summed(loss, self._tokens)
        for number in range(job.model.layers - 1, -1, -1):
            self._mark(Part.BACKWARD, number)
            if copies:
                layers[number] = self.again(copies[number], number)
            gradient = self._through_layer(layers[number], number, gradient)
        names = list(adapter_tensors(job))
        gradients = {name: self._whole(name) for name in self._marked(Part.GRADIENTS, names)}
        self._mark(Part.PROBE)
        # It takes the whole way back. At the first step B is zero, and with it the gradient of A.
        probe = build.call("store", gradients[names[1]], attributes=(GRADIENT_LIMIT,))
        self._updated(self._clipped(gradients))
        return build.program(self._stores, probe, loss)

    def _mark(self, part: Part, layer: int = ONCE) -> None:
        self.marks.append(Mark(part, layer, self.build.calls))

    def _marked(self, part: Part, names: Sequence[str]) -> Iterator[str]:
        """Yield names of trained matrices; mark where those of a layer begin."""
        each = 2 * len(self._job.targets)
        for at, name in enumerate(names):
            if at % each == 0:
                self._mark(part, at // each)
            yield name

    def _state(self, name: str) -> int:
        return self.build.call("load", self.source(name, SourceKind.STATE))

    def _column(self, name: str, width: int, most: int) -> int:
        """Return integers of the batch's rows as one column, one row below the other."""
        rows = self.build.call("gather", self.build.source(SourceKind.DATA, name), self._order)
        found = self.build.call("load_integers", rows, attributes=(0, most))
        return self.build.call("split_heads", found, attributes=(self._job.batch, self._job.parts * width))

    def _whole(self, name: str) -> int:
        """Return the gradient of a matrix over all trained tokens of an update, as far as it has come."""
        found = self.build.binary32(self._gradients[name], GRADIENT_LIMIT)
        return self._looping.whole(name, found) if self._job.is_gated else found

    def _transposed(self, values: int) -> int:
        return self.build.call("transpose", values)

    def _sum(self, values: list[int]) -> int:
        found = values[0]
        for other in values[1:]:
            found = self.build.call("add", found, other)
        return found

    def linear(self, values: int, name: str) -> int:
        """See Layers. With the share of the adapter, if the weight has one."""
        found = super().linear(values, name)
        self.take(values, name)
        if name not in self._taken:
            return found
        build, (_, inner) = self.build, self._taken[name]
        change = build.contract(inner, self._state(f"parameter/{name}/b"), PAIR_BITS)
        return build.call("add", found, build.call("multiply", change, self._scale))

    def take(self, values: int, name: str) -> None:
        """See Layers: the rows, and their products with the first matrix of the weight's adapter."""
        if name.split("/")[-1] in self._job.targets:
            matrix = self._state(f"parameter/{name}/a")
            self._taken[name] = values, self.build.contract(values, matrix, STEP_BITS, PAIR_BITS)

    def _back(self, name: str, gradient: int, *, needed: bool) -> list[int]:
        """Note the gradients of a weight's adapter; return what adds up to that of its input, if ``needed``."""
        build = self.build
        parts = [self.folded(gradient, self.weight(name), 1, STEP_BITS)] if needed else []
        if name not in self._taken:
            return parts
        values, inner = (self._of_rows(one) for one in self._taken[name])
        change = build.call("multiply", gradient, self._scale)
        columns = self._transposed(change)
        self._gradients[f"{name}/b"] = build.contract(columns, self._transposed(inner), BACK_BITS)
        turned = self._transposed(self._state(f"parameter/{name}/b"))
        inner_change = build.contract(change, turned, BACK_BITS)
        self._gradients[f"{name}/a"] = build.contract(
            self._transposed(inner_change), self._transposed(values), BACK_BITS
        )
        if needed:
            turned = self._transposed(self._state(f"parameter/{name}/a"))
            parts.append(build.contract(inner_change, turned, BACK_BITS))
        return parts

    def _refer(self, first: int) -> None:
        """Note the stream after all layers of the model without adapters."""
        build, job = self.build, self._job
        self._mark(Part.BETWEEN)
        self._reference = Reference(
            job.model, build, batch=self.batch, length=self.length, first=self.first, kind=SourceKind.MODEL
        )
        # The same numbers in a tensor of its own: otherwise the first layer would share calls with that above.
        stream = build.binary32(first, STREAM_LIMIT)
        for number in range(job.model.layers):
            self._mark(Part.REFERENCE, number)
            stream = self._reference.layer(stream, number).stream
        self._referred = stream

    def _preferred(self, losses: int, used: int, places: int, wanted: int) -> tuple[int, int]:
        """Return the mean loss of pairs, and by what the gradient of each trained token's cross entropy counts."""
        build, job, ones = self.build, self._job, self.one
        picked = build.call("gather_groups", self._referred, places, attributes=(self.batch,))
        _, logits = self._reference.logits(picked)
        shifted = build.call("subtract", logits, build.call("row_maximum", logits))
        norms = build.row_sum(build.call("exp", shifted))
        chosen = build.row_sum(build.call("multiply", shifted, wanted))
        others = build.call("subtract", build.call("log", norms), chosen)
        gains = build.call("multiply", build.call("subtract", others, losses), used)
        slots, pair = (self.batch, job.slots), (job.batch, job.parts)
        sums = build.row_sum(build.call("join_heads", gains, attributes=slots))
        numbers = [build.call("number", attributes=(number,)) for number in range(job.parts)]
        first, second = (build.call("one_hot", number, attributes=(job.parts,)) for number in numbers)
        signs = build.call("subtract", first, second)  # the chosen one, and the rejected one
        pairs = build.call("multiply", build.call("join_heads", sums, attributes=pair), signs)
        beta = build.constant(job.preference / NANO)
        margin = build.call("multiply", build.row_sum(pairs), beta)
        # Beyond 2^7 the loss stays what it is there, and a pair that is as wrong as that counts in full.
        margin = build.call("bound", margin, attributes=(MARGIN_EXPONENT,))
        powers = build.call("exp", build.call("subtract", self.zero, margin))
        loss = build.call("log", build.call("add", powers, ones))
        weight = build.call("divide", ones, build.call("add", build.call("exp", margin), ones))
        share = self._pair_share()
        mean = build.row_sum(self._transposed(build.call("multiply", loss, share)))
        weight = build.call("multiply", build.call("multiply", weight, beta), share)
        column = build.call("split_heads", build.call("multiply", weight, signs), attributes=pair)
        spread = build.call("multiply", build.call("join_heads", used, attributes=slots), column)
        return mean, build.call("split_heads", spread, attributes=slots)

    def _pair_share(self) -> int:
        """Return by what each pair counts: its share of the batch, or 1 where some steps update nothing."""
        build, job = self.build, self._job
        if job.is_whole:
            return build.constant(1.0 / job.batch)
        counted = build.call("loop_weights", attributes=(*self._loop, 1))
        self._tokens = build.row_sum(self._transposed(counted))
        if job.is_gated:
            return counted
        count = build.call("add", self._tokens, build.constant(NOTHING))
        return build.call("bound", build.call("divide", counted, count), attributes=(0,))

    def _token_share(self, used: int) -> tuple[int, int]:
        """Return which slots count, and by what: their share of all, or 1 where some steps update nothing."""
        build, job = self.build, self._job
        if not job.is_whole:
            weights = build.call("loop_weights", attributes=(*self._loop, job.slots))
            used = build.call("multiply", used, weights)
        self._tokens = build.row_sum(self._transposed(used))
        if job.is_gated:
            return used, used
        count = build.call("add", self._tokens, build.constant(NOTHING))
        return used, build.call("bound", build.call("divide", used, count), attributes=(0,))

    def _head(self, stream: int) -> tuple[int, int]:
        """Return the mean cross entropy of the trained tokens, or loss of pairs, and its gradient by the stream.

        Where some steps update nothing it is the sum in place of the mean.
        """
        build, job = self.build, self._job
        places = self._column(PLACES, job.slots, job.length)
        picked = build.call("gather_groups", stream, places, attributes=(self.batch,))
        norm, logits = self.logits(picked)
        targets = self._column(TARGETS, job.slots, job.model.vocabulary - 1)
        wanted = build.call("one_hot", targets, attributes=(job.model.vocabulary,))
        # 1 for a slot that is used: the place of a free one is no column.
        used = build.row_sum(build.call("one_hot", places, attributes=(job.length,)))
        share = used
        if not job.preference:
            used, share = self._token_share(used)
        shifted = build.call("subtract", logits, build.call("row_maximum", logits))
        powers = build.call("exp", shifted)
        norms = build.row_sum(powers)
        chosen = build.row_sum(build.call("multiply", shifted, wanted))
        losses = build.call("subtract", build.call("log", norms), chosen)
        if job.preference:
            loss, share = self._preferred(losses, used, places, wanted)
        else:
            loss = build.row_sum(self._transposed(build.call("multiply", losses, share)))
        shares = build.call("bound", build.call("divide", powers, norms), attributes=(0,))
        surplus = build.call("multiply", build.call("subtract", shares, wanted), share)
        gradient = self._through_norm(norm, self.folded(surplus, self.weight(self.head), 1, HEAD_BITS))
        slots = self._column(SLOTS, job.length, job.slots)
        gathered = build.call("gather_groups", gradient, slots, attributes=(self.batch,))
        return loss, build.binary32(gathered, GRADIENT_LIMIT)

    def _through_norm(self, norm: Normed, gradient: int) -> int:
        build = self.build
        # Far below this as it is; beyond it the store of the gradient finds that the training has diverged.
        bounded = build.call("bound", gradient, attributes=(_GRADIENT_BOUND,))
        inner = build.call("multiply", bounded, norm.weight)
        return self.before_norm(norm, inner)

    def _through_layer(self, layer: Layer, number: int, gradient: int) -> int:
        """Return the gradient by the stream before a layer, as far as anything needs it."""
        at, needs = f"layer/{number}", Needs(number > 0, self._job.targets)
        attended = needs.any("query", "key", "value", FUSED)
        middle = attended or needs.any("output")
        hidden = middle or needs.any("gate", "up")
        inner = self._back(f"{at}/down", gradient, needed=hidden)
        if not hidden:
            return gradient
        parts = self._through_gates(layer.gated, at, self._sum(inner), needed=middle)
        if not middle:
            return gradient
        gradient = self.rounded(gradient, self._through_norm(layer.hidden_norm, self._sum(parts)))
        joined = self._back(f"{at}/output", gradient, needed=attended)
        if not attended:
            return gradient
        parts = self._through_heads(layer.attended, at, self._sum(joined), needs)
        if not needs.below:
            return gradient
        return self.rounded(gradient, self._through_norm(layer.attention_norm, self._sum(parts)))

    def _through_gates(self, gated: Gated | Gelu, at: str, gradient: int, *, needed: bool) -> list[int]:
        build = self.build
        if isinstance(gated, Gelu):
            return self._back(
                f"{at}/up", build.call("multiply", gradient, gelu_slope(build, gated)), needed=needed
            )
        parts = self._back(f"{at}/up", build.call("multiply", gradient, gated.active), needed=needed)
        bend = build.call("multiply", gated.bounded, build.call("subtract", self.one, gated.sigmoid))
        slope = build.call("multiply", gated.sigmoid, build.call("add", bend, self.one))
        change = build.call("multiply", build.call("multiply", gradient, gated.up), slope)
        return parts + self._back(f"{at}/gate", change, needed=needed)

    def _through_heads(self, heads: Attended, at: str, gradient: int, needs: Needs) -> list[int]:
        """Return what adds up to the gradient by the rows that queries, keys and values were projected from."""
        build, shape, parts = self.build, self.shape, list[int]()
        rows = self.split(gradient, shape.heads)
        read = build.quantised(rows, PAIR_BITS)
        scale = build.constant(shape.head_width**-0.5)
        inverse, fused = -1, dict[str, int]()
        if not shape.is_gpt2:
            inverse = build.call("subtract", self.zero, self.sines)

        def back(name: str, found: int, *, turned: bool) -> None:
            if shape.is_gpt2:
                fused[name] = build.call("multiply", found, scale) if turned else found
                return
            count = shape.heads if name == "query" else shape.key_heads
            joined = build.call("join_heads", found, attributes=(self.batch, count))
            if turned:
                joined = build.call("multiply", build.call("rotate", joined, self.cosines, inverse), scale)
            parts.extend(self._back(f"{at}/{name}", joined, needed=needs.below))

        if needs.any("value", FUSED):
            shares = build.call("transpose_groups", heads.shares, attributes=(self.groups,))
            back("value", self.folded(shares, read, self.groups, PAIR_BITS), turned=False)
        if not needs.any("query", "key", FUSED):
            return parts
        # Of the softmax: shares times what is left of each gradient without their mean.
        changes = build.call(
            "contract_groups", read.integers, heads.values.integers, read.exponents, heads.values.exponents,
            attributes=(PAIR_BITS, self.groups),
        )  # fmt: skip
        changes = build.call("bound", changes, attributes=(_GRADIENT_BOUND,))
        dots = build.row_sum(build.call("multiply", changes, heads.shares))
        mean = build.call("bound", dots, attributes=(_GRADIENT_BOUND,))
        scores = build.call("multiply", heads.shares, build.call("subtract", changes, mean))
        if needs.any("query", FUSED):
            back("query", self.folded(scores, heads.keys, self.groups, PAIR_BITS), turned=True)
        if needs.any("key", FUSED):
            turned = build.call("transpose_groups", scores, attributes=(self.groups,))
            back("key", self.folded(turned, heads.queries, self.groups, PAIR_BITS), turned=True)
        if fused:
            joined = self.together(heads.fused, (fused["query"], fused["key"], fused["value"]))
            return self._back(f"{at}/{FUSED}", joined, needed=needs.below)
        return parts

    def _clipped(self, gradients: Mapping[str, int]) -> dict[str, int]:
        """Return gradients whose common norm is at most the bound, if there is one."""
        build, most = self.build, self._rates.clip_nano / NANO
        if not most:
            return dict(gradients)
        names, squares = list(gradients), list[int]()
        for name in self._marked(Part.SQUARES, names):
            square = build.call("multiply", gradients[name], gradients[name])
            squares.append(build.row_sum(self._transposed(build.row_sum(square))))
        total = squares[0]
        for at, _ in enumerate(self._marked(Part.SUMS, names)):
            total = build.call("add", total, squares[at]) if at else total
        self._mark(Part.FACTOR)
        norm, bound = build.call("square_root", total), build.constant(most)
        larger = build.call("select", build.call("subtract", norm, bound), norm, bound)
        factor = build.call("divide", bound, build.call("add", larger, build.constant(NOTHING)))
        return {
            name: build.call("multiply", gradients[name], factor) for name in self._marked(Part.CLIPPED, names)
        }

    def _updated(self, gradients: Mapping[str, int]) -> None:
        """Store what AdamW makes of gradients, and the best matrices."""
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

        for name in self._marked(Part.UPDATES, list(gradients)):
            self._stores |= adamw(
                build, rates.adamw, name, gradients[name], self._state, lambda: rate, keep if decay else None,
                ADAPTER_LIMIT, gate=gate,
            )  # fmt: skip
        if job.keeps_best:
            for name in self._marked(Part.BEST, list(gradients)):
                self._looping.best(name)
