"""The way back through the layers of a decoder whose weights are all trained (market.md R88).

Weights are binary32 tensors of the state. A step quantises each of them once. The way back contracts the integers
of the way forward along their other axis: the exponents of a weight's rows go into the columns of the gradient
before that is quantised. The gradient of a weight is the product of the columns of gradient and input.
"""

from __future__ import annotations

from typing import Final

from tasks.programs.builder import Builder
from tasks.programs.gelu import Gelu, gelu_slope
from tasks.programs.llama_layers import TRAINED_BITS, Attended, Gated, Layer, Layers, Normed
from tasks.programs.llama_shape import FUSED, LlamaShape
from tasks.programs.program import SourceKind

__all__ = ["TrainedLayers"]

_GRADIENT_BOUND: Final = 100


class TrainedLayers(Layers):
    """Builds the calls of a way forward and back; ``gradients`` has those of all weights that it passed.

    Activations and gradients have ``bits`` where they meet weights or each other's columns. Weights and the
    inputs of a weight's gradient have TRAINED_BITS, both sides in the heads ``pair_bits``.
    """

    def __init__(self, shape: LlamaShape, build: Builder, *, batch: int, length: int) -> None:
        super().__init__(
            shape, build, batch=batch, length=length, first=build.call("number", attributes=(0,)),
            kind=SourceKind.STATE, trained=SourceKind.STATE,
        )  # fmt: skip
        self.gradients: dict[str, int] = {}
        self._taken: dict[str, int] = {}

    # What is trained

    def state(self, name: str) -> int:
        """Return a tensor of the state before the step."""
        return self.build.call("load", self.source(name))

    def take(self, values: int, name: str) -> None:
        """See Layers: the input, for the weight's gradient."""
        self._taken[name] = values

    def linear(self, values: int, name: str) -> int:
        """See Layers."""
        self.take(values, name)
        return super().linear(values, name)

    # The way back

    def transposed(self, values: int) -> int:
        """Return rows as columns."""
        return self.build.call("transpose", values)

    def columns_product(self, gradient: int, values: int) -> int:
        """Return the products of each column of a gradient with each column of what a weight was applied to."""
        return self.build.contract(
            self.transposed(gradient), self.transposed(values), self.bits, TRAINED_BITS
        )  # fmt: skip

    def back(self, name: str, gradient: int) -> int:
        """Note the gradient of a weight and of its bias; return that of its input."""
        self.gradients[name] = self.columns_product(gradient, self._taken[name])
        if self.has_bias(name):
            self.gradients[f"{name}_bias"] = self._column_sums(gradient)
        return self.folded(gradient, self.weight(name), 1, self.bits)

    def _column_sums(self, values: int) -> int:
        return self.transposed(self.build.row_sum(self.transposed(values)))

    def through_norm(self, norm: Normed, name: str, gradient: int) -> int:
        """Note the gradient of a norm's weights; return that of the rows before the norm."""
        build = self.build
        # Far below this as it is; beyond it the store of the gradient finds that the training has diverged.
        bounded = build.call("bound", gradient, attributes=(_GRADIENT_BOUND,))
        self.gradients[name] = self._column_sums(build.call("multiply", bounded, norm.rows))
        if self.shape.is_gpt2:
            self.gradients[f"{name}_bias"] = self._column_sums(bounded)
        return self.before_norm(norm, build.call("multiply", bounded, norm.weight))

    def through_layer(self, layer: Layer, number: int, gradient: int) -> int:
        """Return the gradient of the stream before a layer."""
        at = f"layer/{number}"
        found = self._through_gates(layer.gated, at, self.back(f"{at}/down", gradient))
        found = self.through_norm(layer.hidden_norm, f"{at}/hidden_norm", found)
        gradient = self.rounded(gradient, found)
        found = self._through_heads(layer.attended, at, self.back(f"{at}/output", gradient))
        found = self.through_norm(layer.attention_norm, f"{at}/attention_norm", found)
        return self.rounded(gradient, found)

    def _through_gates(self, gated: Gated | Gelu, at: str, gradient: int) -> int:
        build = self.build
        if isinstance(gated, Gelu):
            return self.back(f"{at}/up", build.call("multiply", gradient, gelu_slope(build, gated)))
        up = self.back(f"{at}/up", build.call("multiply", gradient, gated.active))
        bend = build.call("multiply", gated.bounded, build.call("subtract", self.one, gated.sigmoid))
        slope = build.call("multiply", gated.sigmoid, build.call("add", bend, self.one))
        change = build.call("multiply", build.call("multiply", gradient, gated.up), slope)
        return build.call("add", up, self.back(f"{at}/gate", change))

    def _through_heads(self, heads: Attended, at: str, gradient: int) -> int:
        """Return the gradient of the rows that queries, keys and values were projected from."""
        build, shape, bits = self.build, self.shape, self.pair_bits
        read = build.quantised(self.split(gradient, shape.heads), bits)
        shares = build.call("transpose_groups", heads.shares, attributes=(self.groups,))
        values = self.folded(shares, read, self.groups, bits)
        found = -1
        if not shape.is_gpt2:
            found = self.back(f"{at}/value", self._joined(values, shape.key_heads))
        # Of the softmax: shares times what is left of each gradient without their mean.
        changes = build.call(
            "contract_groups", read.integers, heads.values.integers, read.exponents, heads.values.exponents,
            attributes=(bits, self.groups),
        )  # fmt: skip
        changes = build.call("bound", changes, attributes=(_GRADIENT_BOUND,))
        dots = build.row_sum(build.call("multiply", changes, heads.shares))
        mean = build.call("bound", dots, attributes=(_GRADIENT_BOUND,))
        scores = build.call("multiply", heads.shares, build.call("subtract", changes, mean))
        queries = self.folded(scores, heads.keys, self.groups, bits)
        if not shape.is_gpt2:
            found = build.call("add", found, self._turned_back(f"{at}/query", queries, shape.heads))
        turned = build.call("transpose_groups", scores, attributes=(self.groups,))
        keys = self.folded(turned, heads.queries, self.groups, bits)
        if shape.is_gpt2:
            scale = build.constant(shape.head_width**-0.5)
            queries, keys = (build.call("multiply", one, scale) for one in (queries, keys))
            return self.back(f"{at}/{FUSED}", self.together(heads.fused, (queries, keys, values)))
        return build.call("add", found, self._turned_back(f"{at}/key", keys, shape.key_heads))

    def _joined(self, values: int, heads: int) -> int:
        return self.build.call("join_heads", values, attributes=(self.batch, heads))

    def _turned_back(self, name: str, values: int, heads: int) -> int:
        """Return the gradient of what queries or keys were projected from, given that of scaled scores' rows."""
        build = self.build
        inverse = build.call("subtract", self.zero, self.sines)
        turned = build.call("rotate", self._joined(values, heads), self.cosines, inverse)
        return self.back(name, build.call("multiply", turned, build.constant(self.shape.head_width**-0.5)))
