"""The layers of encoders of the BERT family (market.md R84).

Each token sees all tokens of its text. A text ends at its last place: what a row has beyond it is hidden, whatever
its tokens are. Norms have a mean and a bias, and come after each half of a layer. The hidden part is bent by the
exact GELU, x (1 + erf(x / sqrt(2))) / 2.
"""

from __future__ import annotations

from typing import Final

from tasks.programs.bert_shape import BertShape
from tasks.programs.builder import Builder, Quantised, widths
from tasks.programs.llama_layers import NOTHING, STREAM_LIMIT
from tasks.programs.llama_shape import BITS, WEIGHT_EXPONENT_MAX, exponents_of
from tasks.programs.operators.rows import EXPONENT_MIN, WIDTHS
from tasks.programs.operators.scalars import NANO, constant_bits
from tasks.programs.program import SourceKind

__all__ = ["ROOT_HALF", "BertLayers"]

ROOT_HALF: Final = 0.5**0.5
_NORMED_EXPONENT: Final = 16
"""A value divided by the standard deviation of its row is at most the root of the row's length."""
_SCORE_EXPONENT: Final = 60
_HIDDEN_SCORE: Final = -(2.0**61)


class BertLayers:
    """Builds the calls of layers over ``batch`` texts of ``length`` tokens.

    ``last`` is a tensor with the last place of each text.
    """

    bits = BITS
    """Width of rows that meet weights, and of both sides where rows meet rows."""

    def __init__(self, shape: BertShape, build: Builder, *, batch: int, length: int, last: int) -> None:
        self.shape, self.build, self.batch, self.length, self.last = shape, build, batch, length, last
        self.one = build.constant(1.0)

    def embedded(self, tokens: int) -> int:
        """Return the rows of a column of tokens, with those of their places, after the first norm."""
        build = self.build
        first = build.call("number", attributes=(0,))
        places = build.call("positions", first, attributes=(self.batch, self.length))
        rows = build.call("add", self._rows("embedding", tokens), self.vector("type"))
        return self.normed(build.call("add", rows, self._rows("positions", places)), "norm")

    def _rows(self, name: str, numbers: int) -> int:
        build, weight = self.build, self.weight(name)
        return build.call(
            "scale_rows",
            build.call("gather", weight.integers, numbers),
            build.call("gather", weight.exponents, numbers),
            attributes=(BITS,),
        )

    def layer(self, stream: int, number: int) -> int:
        """Return what a layer makes of the stream."""
        build, at = self.build, f"layer/{number}"
        read = self.linear(self._attended(stream, at), f"{at}/output")
        stream = self.normed(build.call("add", stream, read), f"{at}/attention_norm")
        inner = self._bent(self.linear(stream, f"{at}/up"))
        return self.normed(build.call("add", stream, self.linear(inner, f"{at}/down")), f"{at}/hidden_norm")

    def _bent(self, values: int) -> int:
        """Return the GELU of values."""
        build = self.build
        share = build.call("erf", build.call("multiply", values, build.constant(ROOT_HALF)))
        half = build.call("multiply", build.call("add", share, self.one), build.constant(0.5))
        return build.call("multiply", values, half)

    def weight(self, name: str) -> Quantised:
        """Return a frozen weight."""
        limit = WIDTHS[BITS].limit
        exponents = self._integers(exponents_of(name), EXPONENT_MIN, WEIGHT_EXPONENT_MAX)
        return Quantised(self._integers(name, -limit, limit), exponents, BITS)

    def _integers(self, name: str, low: int, high: int) -> int:
        source = self.build.source(SourceKind.MODEL, name)
        return self.build.call("load_integers", source, attributes=(low, high))

    def vector(self, name: str) -> int:
        """Return a frozen vector."""
        return self.build.call("load", self.build.source(SourceKind.MODEL, name))

    def linear(self, values: int, name: str) -> int:
        """Return the products of rows with those of a weight, and its bias."""
        build = self.build
        found = build.products(build.quantised(values, self.bits), self.weight(name))
        return build.call("add", found, self.vector(f"{name}_bias"))

    def normed(self, values: int, name: str) -> int:
        """Return rows less their mean, by their deviation, with the norm's weights; rounded to binary32."""
        build, share = self.build, self.build.constant(1.0 / self.shape.width)
        mean = build.call("multiply", build.row_sum(values), share)
        rest = build.call("subtract", values, mean)
        squares = build.row_sum(build.call("multiply", rest, rest))
        variance = build.call("multiply", squares, share)
        sums = build.call("add", variance, build.constant(self.shape.epsilon_nano / NANO))
        root = build.call("add", build.call("square_root", sums), build.constant(NOTHING))
        # At most 2^_NORMED_EXPONENT as it is; to bound it says so.
        rows = build.call("bound", build.call("divide", rest, root), attributes=(_NORMED_EXPONENT,))
        found = build.call("multiply", rows, self.vector(name))
        found = build.call("add", found, self.vector(f"{name}_bias"))
        return build.binary32(found, STREAM_LIMIT)

    def _attended(self, values: int, at: str) -> int:
        """Return what the heads of a layer read, joined."""
        build, shape, groups = self.build, self.shape, self.batch * self.shape.heads

        def rows(name: str) -> Quantised:
            split = build.call(
                "split_heads", self.linear(values, f"{at}/{name}"), attributes=(self.batch, shape.heads)
            )
            return build.quantised(split, self.bits)

        queries, keys, kept = rows("query"), rows("key"), rows("value")
        scores = build.call(
            "contract_groups", queries.integers, keys.integers, queries.exponents, keys.exponents,
            attributes=(self.bits, groups),
        )  # fmt: skip
        scores = build.call("multiply", scores, build.constant(shape.head_width**-0.5))
        shares = self._shares(build.call("bound", scores, attributes=(_SCORE_EXPONENT,)))
        # A value row's power of two goes into its shares: no rounding depends on what is hidden.
        scaled = build.quantised(build.call("scale_columns", shares, kept.exponents), self.bits)
        turned = build.call("transpose_groups", kept.integers, attributes=(groups,))
        read = build.call(
            "contract_groups",
            scaled.integers,
            turned,
            scaled.exponents,
            attributes=(*widths(scaled, kept), groups),
        )
        return build.call("join_heads", read, attributes=(self.batch, shape.heads))

    def _shares(self, scores: int) -> int:
        """Return the softmax of each row over the places of its text; beyond them it is zero."""
        build = self.build

        def visible(values: int, fill: float) -> int:
            return build.call("causal", values, self.last, attributes=(self.batch, 1, constant_bits(fill)))

        seen = visible(scores, _HIDDEN_SCORE)
        powers = visible(build.call("exp", build.call("subtract", seen, build.call("row_maximum", seen))), 0.0)
        norms = build.call("add", build.row_sum(powers), build.constant(NOTHING))
        return build.call("bound", build.call("divide", powers, norms), attributes=(0,))
