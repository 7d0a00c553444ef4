"""One training step of a classifier of fully connected layers, as a program (market.md 4.6).

Weights are stored outputs by inputs, so the way forward contracts them as they lie. Contractions have 15 bits, but
20 where the gradient of the softmax goes back through the last layer: most of its values are far smaller than the
largest of their row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from tasks.programs.adamw import Rates, adamw
from tasks.programs.builder import Builder
from tasks.programs.checks import check_bounds
from tasks.programs.errors import ProgramInvalid
from tasks.programs.operators.rows import TERMS_MAX
from tasks.programs.operators.scalars import NANO
from tasks.programs.program import Computation, Program, Source, SourceKind
from tasks.programs.tensors import ElementType, TensorType

__all__ = [
    "ACTIVATIONS",
    "FEATURES",
    "LABELS",
    "LAYERS_MAX",
    "SCORED_ROWS",
    "ClassifierShape",
    "Rates",
    "classifier_program",
    "classifier_scores",
]

ACTIVATIONS: Final = ("relu", "silu")
FEATURES: Final = "features"
LABELS: Final = "labels"
LAYERS_MAX: Final = 8
PROBE_LIMIT: Final = 100
BITS: Final = 15
HEAD_BITS: Final = 20
SCORED_ROWS: Final = 256
"""Rows whose scores are computed at once."""
_ARGUMENT_EXPONENT: Final = 7
"""Where silu bends: beyond 2^7 the sigmoid is 0 or 1 to any precision that is kept."""


@dataclass(frozen=True)
class ClassifierShape:
    """Widths from the features to the classes, activation, batch, and the data: rows, rows to train on, shift.

    A feature is a byte times 2^-shift.
    """

    widths: tuple[int, ...]
    activation: str
    batch: int
    rows: int
    train_rows: int
    shift: int

    def __post_init__(self) -> None:
        if not 2 <= len(self.widths) <= LAYERS_MAX + 1 or min(self.widths) < 1:
            raise ProgramInvalid(f"1 to {LAYERS_MAX} layers")
        if self.activation not in ACTIVATIONS:
            raise ProgramInvalid(f"activation must be one of {', '.join(ACTIVATIONS)}")
        if not 1 <= self.batch <= TERMS_MAX:
            raise ProgramInvalid(f"a batch of 1 to {TERMS_MAX}, not {self.batch}")
        if not 1 <= self.train_rows <= self.rows:
            raise ProgramInvalid(f"{self.train_rows} rows to train on out of {self.rows}")


def classifier_program(shape: ClassifierShape, rates: Rates) -> Program:
    """Return the program of one step. Raises ProgramInvalid."""
    rates.check()
    program = _Classifier(shape, rates).program()
    check_bounds(program)
    return program


def classifier_scores(shape: ClassifierShape) -> Computation:
    """Return the way forward for SCORED_ROWS rows of features: the computation of their scores.

    It has the calls of a step, and runs as well for another number of rows.
    """
    features = Source(SourceKind.DATA, FEATURES, TensorType(ElementType.UINT8, SCORED_ROWS, shape.widths[0]))
    return _Forward(shape, [features, *_state_sources(shape, "parameter")]).scores()


def _sources(shape: ClassifierShape) -> list[Source]:
    return [
        Source(SourceKind.DATA, FEATURES, TensorType(ElementType.UINT8, shape.rows, shape.widths[0])),
        Source(SourceKind.DATA, LABELS, TensorType(ElementType.UINT8, shape.rows, 1)),
        *_state_sources(shape, "adam_m", "adam_v", "parameter"),
    ]


def _state_sources(shape: ClassifierShape, *groups: str) -> list[Source]:
    sources: list[Source] = []
    for group in groups:
        for layer, (inputs, outputs) in enumerate(zip(shape.widths, shape.widths[1:], strict=False)):
            for part, rows, columns in (("bias", 1, outputs), ("weight", outputs, inputs)):
                kind = TensorType(ElementType.BINARY32, rows, columns)
                sources.append(Source(SourceKind.STATE, f"{group}/{layer}/{part}", kind))
    return sources


class _Gradients(NamedTuple):
    """Tensors of one layer's gradients."""

    weight: int
    bias: int


class _Forward:
    """The tensors of the way forward while a program is built."""

    def __init__(self, shape: ClassifierShape, sources: list[Source]) -> None:
        self._shape, self._layers = shape, len(shape.widths) - 1
        self._build = Builder(sources)
        self._zero, self._one = self._build.constant(0.0), self._build.constant(1.0)

    def scores(self) -> Computation:
        build = self._build
        features = build.call(
            "scale_bytes", build.source(SourceKind.DATA, FEATURES), attributes=(self._shape.shift,)
        )
        return build.computation(self._forward(features)[1][-1])

    def _state(self, name: str) -> int:
        return self._build.call("load", self._build.source(SourceKind.STATE, name))

    def _weight(self, layer: int) -> int:
        return self._state(f"parameter/{layer}/weight")

    def _forward(self, features: int) -> tuple[list[int], list[int]]:
        """Return the input of each layer and the sums it gives before its activation."""
        build = self._build
        inputs, sums = [features], list[int]()
        for layer in range(self._layers):
            product = build.contract(inputs[-1], self._weight(layer), BITS)
            sums.append(build.call("add", product, self._state(f"parameter/{layer}/bias")))
            if layer < self._layers - 1:
                inputs.append(self._activated(sums[-1]))
        return inputs, sums

    def _sigmoid(self, sums: int) -> tuple[int, int]:
        """Return ``sums`` bounded, and their sigmoid."""
        build = self._build
        bounded = build.call("bound", sums, attributes=(_ARGUMENT_EXPONENT,))
        powers = build.call("exp", build.call("subtract", self._zero, bounded))
        return bounded, build.call("divide", self._one, build.call("add", powers, self._one))

    def _activated(self, sums: int) -> int:
        build = self._build
        if self._shape.activation == "relu":
            return build.call("select", sums, sums, self._zero)
        bounded, gate = self._sigmoid(sums)
        return build.call("multiply", build.call("select", sums, sums, bounded), gate)


class _Classifier(_Forward):
    """The tensors of a step while its program is built."""

    def __init__(self, shape: ClassifierShape, rates: Rates) -> None:
        super().__init__(shape, _sources(shape))
        self._rates = rates

    def program(self) -> Program:
        build = self._build
        order = build.call("sample_order", attributes=(self._shape.batch, self._shape.train_rows))
        rows = build.call("gather", build.source(SourceKind.DATA, FEATURES), order)
        features = build.call("scale_bytes", rows, attributes=(self._shape.shift,))
        labels = build.call("gather", build.source(SourceKind.DATA, LABELS), order)
        targets = build.call("one_hot", labels, attributes=(self._shape.widths[-1],))
        inputs, sums = self._forward(features)
        loss, gradient = self._loss(sums[-1], targets)
        gradients = self._backward(inputs, sums, gradient)
        # It takes the whole way back, and has so few values that its hash costs nothing.
        probe = build.call("store", gradients[0].bias, attributes=(PROBE_LIMIT,))
        stores: dict[str, int] = {}
        for layer, found in enumerate(gradients):
            stores |= self._updated(f"{layer}/weight", found.weight, decays=True)
            stores |= self._updated(f"{layer}/bias", found.bias, decays=False)
        return build.program(stores, probe, loss)

    def _through_activation(self, gradient: int, sums: int) -> int:
        build = self._build
        if self._shape.activation == "relu":
            return build.call("select", sums, gradient, self._zero)
        bounded, gate = self._sigmoid(sums)
        bend = build.call("multiply", bounded, build.call("subtract", self._one, gate))
        return build.call("multiply", gradient, build.call("multiply", gate, build.call("add", bend, self._one)))

    def _loss(self, sums: int, targets: int) -> tuple[int, int]:
        """Return the mean cross entropy of the softmax, and its gradient by ``sums``."""
        build = self._build
        share = build.constant(1.0 / self._shape.batch)
        shifted = build.call("subtract", sums, build.call("row_maximum", sums))
        powers = build.call("exp", shifted)
        norms = build.row_sum(powers)
        chosen = build.row_sum(build.call("multiply", shifted, targets))
        losses = build.call("subtract", build.call("log", norms), chosen)
        loss = build.call("multiply", build.row_sum(build.call("transpose", losses)), share)
        # At most 1 as it is; to bound it says so.
        shares = build.call("bound", build.call("divide", powers, norms), attributes=(0,))
        surplus = build.call("subtract", shares, targets)
        return loss, build.call("multiply", surplus, share)

    def _backward(self, inputs: list[int], sums: list[int], gradient: int) -> list[_Gradients]:
        build = self._build
        found: list[_Gradients] = []
        for layer in range(self._layers - 1, -1, -1):
            bits = HEAD_BITS if layer == self._layers - 1 else BITS
            columns = build.call("transpose", gradient)
            weight = build.contract(columns, build.call("transpose", inputs[layer]), bits)
            found.append(_Gradients(weight, build.call("transpose", build.row_sum(columns))))
            if layer:
                back = build.contract(gradient, build.call("transpose", self._weight(layer)), bits)
                gradient = self._through_activation(back, sums[layer - 1])
        return found[::-1]

    def _updated(self, name: str, gradient: int, *, decays: bool) -> dict[str, int]:
        """Return what AdamW stores for one tensor."""
        build, rates = self._build, self._rates
        rate = rates.learning_rate_nano / NANO
        keep = 1.0 - rate * (rates.weight_decay_nano / NANO)
        return adamw(
            build, rates, name, gradient, self._state, lambda: build.constant(rate),
            (lambda: build.constant(keep)) if decays and keep != 1.0 else None,
        )  # fmt: skip
