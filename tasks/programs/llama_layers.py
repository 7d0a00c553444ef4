"""The layers of decoders, Llama and GPT-2: the calls of the way forward, and tensors that the way back needs.

Weights are frozen, as integers of 15 bits with an exponent a row, or trained ones in binary32, which a step
quantises to TRAINED_BITS. The stream between layers is rounded to binary32 after each half of a layer, so the
bounds of a layer do not depend on how many came before.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tasks.programs.builder import Builder, Quantised, widths
from tasks.programs.gelu import Gelu, gelu
from tasks.programs.llama_shape import BITS, FUSED, WEIGHT_EXPONENT_MAX, Adapter, LlamaShape, exponents_of
from tasks.programs.operators.rows import EXPONENT_MIN, WIDTHS
from tasks.programs.operators.scalars import NANO, constant_bits
from tasks.programs.program import SourceKind

__all__ = [
    "NOTHING",
    "STREAM_LIMIT",
    "TRAINED_BITS",
    "TUNED_BITS",
    "TUNED_PAIR_BITS",
    "Attended",
    "Gated",
    "Layer",
    "Layers",
    "Normed",
    "PackedRows",
]

STREAM_LIMIT: Final = 60
TUNED_BITS: Final = 23
"""Of activations and gradients that meet weights of a tuned model. With 15 bits a deep model's gradients are a
percent off."""
TUNED_PAIR_BITS: Final = 23
"""Width of both sides in the heads, and of adapters on the way forward (market.md R151). A score of 90 that is
rounded by 2^-20 of itself changes its share by 10^-4."""
TRAINED_BITS: Final = 20
"""Of trained weights, and of the inputs of their gradients."""
NOTHING: Final = 2.0**-80
"""Added to a number above 2^-16 it changes no bit; it tells the bounds that a number is not zero."""
_NORMED_EXPONENT: Final = 16
"""A value divided by the root mean square of its row is at most the root of the row's length."""
_SCORE_EXPONENT: Final = 60
_HIDDEN_SCORE: Final = -(2.0**61)
_GATE_EXPONENT: Final = 7
"""Where silu bends, as in the classifier."""


class PackedRows(NamedTuple):
    """Columns with a number for each token, of sequences that several rows share.

    ``positions`` are those within the token's own row, and ``starts`` the places where this begins. Of a token of
    no row the start is the length of a sequence: it sees nothing.
    """

    positions: int
    starts: int


class Normed(NamedTuple):
    """A norm: its result, the rows before the norm's weights, and the root that they were divided by.

    Of GPT-2 the rows had their mean taken away before.
    """

    result: int
    rows: int
    root: int
    weight: int


class Attended(NamedTuple):
    """The heads of a layer: what they came from, the shares of each token, and what they read, also joined.

    ``fused`` are the rows of queries, keys and values together, of GPT-2; -1 for others.
    """

    queries: Quantised
    keys: Quantised
    values: Quantised
    shares: int
    read: int
    joined: int
    fused: int = -1


class Gated(NamedTuple):
    """The hidden part of a layer: ``inner`` is silu of ``gate``, times ``up``. ``sigmoid`` is of ``bounded``."""

    gate: int
    bounded: int
    sigmoid: int
    active: int
    up: int
    inner: int


class Layer(NamedTuple):
    """Tensors of one layer. ``stream`` of one that is computed again lacks what its hidden part adds."""

    attention_norm: Normed
    attended: Attended
    hidden_norm: Normed
    gated: Gated | Gelu
    stream: int


class Layers:
    """Builds the calls of layers over ``batch`` sequences of ``length`` tokens, whose weights are of ``kind``."""

    bits = BITS
    """Width of rows that meet weights."""
    pair_bits = BITS
    """Width of both sides where rows meet rows."""
    _group = "parameter"
    """Of a trained model the group of a state with its weights."""

    def __init__(
        self, shape: LlamaShape, build: Builder, *, batch: int, length: int, first: int, kind: SourceKind,
        adapter: Adapter | None = None, trained: SourceKind | None = None, packed: PackedRows | None = None,
    ) -> None:  # fmt: skip
        """``first`` is the tensor of first positions. With an ``adapter`` widths are those of training.

        ``trained`` is the kind of sources with weights in binary32, of a model that is trained from scratch.
        ``packed`` says which rows share a sequence.
        """
        if adapter is not None and adapter.is_whole:
            self._group = adapter.group
            adapter, trained = None, SourceKind.ADAPTER
        self._adapter, self._trained = adapter, trained
        if adapter is not None or trained is not None:
            self.bits, self.pair_bits = TUNED_BITS, TUNED_PAIR_BITS
        if adapter is not None:
            self._scale = build.constant(adapter.alpha / adapter.rank)
        self.shape, self.build, self.batch, self.length = shape, build, batch, length
        self.first, self._kind = first, kind
        self.zero, self.one = build.constant(0.0), build.constant(1.0)
        self._packed = packed
        if packed is None:
            self.positions = build.call("positions", first, attributes=(batch, length))
        else:
            self.positions = packed.positions
        if shape.is_gpt2:
            return
        self.sines, self.cosines = (
            build.call("rotary", self.positions, attributes=(shape.rotary_base, shape.head_width, quarter))
            for quarter in (0, 1)
        )

    @property
    def groups(self) -> int:
        """Groups of rows of queries that share a key head of one sequence."""
        return self.batch * self.shape.key_heads

    def embedded(self, tokens: int) -> int:
        """Return the rows of a column of tokens; of GPT-2 with those of their positions."""
        found = self._rows_of("embedding", tokens)
        return self.rounded(found, self._rows_of("positions", self.positions)) if self.shape.is_gpt2 else found

    def _rows_of(self, name: str, numbers: int) -> int:
        """Return rows of a weight."""
        build = self.build
        if self._trained is not None:
            return build.call("load", build.call("gather", self._parameter(name), numbers))
        weight = self.weight(name)
        return build.call(
            "scale_rows",
            build.call("gather", weight.integers, numbers),
            build.call("gather", weight.exponents, numbers),
            attributes=(BITS,),
        )

    def copied(self, stream: int) -> int:
        """Return the same numbers in a tensor of its own: what is stored below 2^STREAM_LIMIT has that bound."""
        return self.build.call("bound", stream, attributes=(STREAM_LIMIT,))

    def again(self, copied: int, number: int) -> Layer:
        """Return a layer as the way back computes it again, given a copy of the stream before it (R152).

        Calls that read the stream itself would be those of the way forward. What only the stream after the layer
        takes is not computed.
        """
        return self.layer(copied, number, ends=False)

    def layer(self, stream: int, number: int, *, ends: bool = True) -> Layer:
        """Return what a layer makes of the stream. Without ``ends`` it has no stream after it."""
        at = f"layer/{number}"
        attention_norm = self.normed(stream, f"{at}/attention_norm")
        attended = self._attended(attention_norm.result, number)
        stream = self.rounded(stream, self.linear(attended.joined, f"{at}/output"))
        hidden_norm = self.normed(stream, f"{at}/hidden_norm")
        gated = self._gated(hidden_norm.result, at)
        if ends:
            stream = self.rounded(stream, self.linear(gated.inner, f"{at}/down"))
        else:
            self.take(gated.inner, f"{at}/down")
        return Layer(attention_norm, attended, hidden_norm, gated, stream)

    def logits(self, stream: int) -> tuple[Normed, int]:
        """Return the last norm and the logits of rows of the stream."""
        norm = self.normed(stream, "norm")
        return norm, self.linear(norm.result, self.head)

    @property
    def head(self) -> str:
        """Name of the weight that gives logits."""
        return "embedding" if self.shape.tied else "head"

    def source(self, name: str, kind: SourceKind | None = None) -> int:
        """Return the number of a source, of the weights' kind unless said."""
        return self.build.source(self._kind if kind is None else kind, name)

    def integers(self, name: str, low: int, high: int) -> int:
        """Return a source's integers."""
        return self.build.call("load_integers", self.source(name), attributes=(low, high))

    def weight(self, name: str) -> Quantised:
        """Return a weight."""
        if self._trained is not None:
            return self.build.quantised(self.vector(name), TRAINED_BITS)
        limit = WIDTHS[BITS].limit
        exponents = self.integers(exponents_of(name), EXPONENT_MIN, WEIGHT_EXPONENT_MAX)
        return Quantised(self.integers(name, -limit, limit), exponents, BITS)

    def vector(self, name: str) -> int:
        """Return a vector, or a trained matrix, as fractions."""
        found = self.source(name) if self._trained is None else self._parameter(name)
        return self.build.call("load", found)

    def _parameter(self, name: str) -> int:
        return self.source(f"{self._group}/{name}", self._trained)

    def take(self, values: int, name: str) -> None:
        """Note what the way back needs of the rows that a weight is applied to."""

    def linear(self, values: int, name: str) -> int:
        """Return the products of rows with those of a weight, its bias, and what its adapter adds."""
        build, adapter = self.build, self._adapter
        found = build.products(build.quantised(values, self.bits), self.weight(name))
        if self.has_bias(name):
            found = build.call("add", found, self.vector(f"{name}_bias"))
        if adapter is None or name.split("/")[-1] not in adapter.targets:
            return found
        one, other = (
            build.call("load", self.source(f"{adapter.group}/{name}/{part}", SourceKind.ADAPTER)) for part in "ab"
        )
        inner = build.contract(values, one, TUNED_BITS, TUNED_PAIR_BITS)
        change = build.contract(inner, other, TUNED_PAIR_BITS)
        return build.call("add", found, build.call("multiply", change, self._scale))

    def has_bias(self, name: str) -> bool:
        """Tell whether a weight has a bias; those of queries, keys and values of Qwen2 are added apart."""
        return self.shape.is_gpt2 and name != self.head

    def rounded(self, stream: int, change: int) -> int:
        """Return the sum, rounded to binary32."""
        return self.build.binary32(self.build.call("add", stream, change), STREAM_LIMIT)

    def normed(self, values: int, name: str) -> Normed:
        """Return the rows divided by their root mean squares, times the norm's weights.

        Of GPT-2 without their mean, and with a bias.
        """
        build, shape = self.build, self.shape
        if shape.is_gpt2:
            mean = build.call("multiply", build.row_sum(values), build.constant(1.0 / shape.width))
            values = build.call("subtract", values, mean)
        squares = build.row_sum(build.call("multiply", values, values))
        mean = build.call("multiply", squares, build.constant(1.0 / shape.width))
        sums = build.call("add", mean, build.constant(shape.epsilon_nano / NANO))
        root = build.call("add", build.call("square_root", sums), build.constant(NOTHING))
        # At most 2^_NORMED_EXPONENT as it is; to bound it says so.
        rows = build.call("bound", build.call("divide", values, root), attributes=(_NORMED_EXPONENT,))
        weight = self.vector(name)
        found = build.call("multiply", rows, weight)
        if shape.is_gpt2:
            found = build.call("add", found, self.vector(f"{name}_bias"))
        return Normed(found, rows, root, weight)

    def before_norm(self, norm: Normed, inner: int) -> int:
        """Return the gradient of what a norm took, given that of its rows before the norm's weights."""
        build = self.build
        share = build.constant(1.0 / self.shape.width)
        dots = build.row_sum(build.call("multiply", inner, norm.rows))
        mean = build.call("multiply", dots, share)
        rest = build.call("subtract", inner, build.call("multiply", norm.rows, mean))
        if self.shape.is_gpt2:
            rest = build.call("subtract", rest, build.call("multiply", build.row_sum(inner), share))
        return build.call("divide", rest, norm.root)

    def _gated(self, values: int, at: str) -> Gated | Gelu:
        build = self.build
        if self.shape.is_gpt2:
            return gelu(build, self.linear(values, f"{at}/up"))
        gate, up = (self.linear(values, f"{at}/{name}") for name in ("gate", "up"))
        bounded = build.call("bound", gate, attributes=(_GATE_EXPONENT,))
        powers = build.call("exp", build.call("subtract", self.zero, bounded))
        sigmoid = build.call("divide", self.one, build.call("add", powers, self.one))
        active = build.call("multiply", build.call("select", gate, gate, bounded), sigmoid)
        return Gated(gate, bounded, sigmoid, active, up, build.call("multiply", active, up))

    def _projected(self, values: int, layer: int, name: str) -> int:
        found = self.linear(values, f"layer/{layer}/{name}")
        if self.shape.biased:
            found = self.build.call("add", found, self.vector(f"layer/{layer}/{name}_bias"))
        return found

    def split(self, tensor: int, heads: int) -> int:
        """Return the rows of heads."""
        return self.build.call("split_heads", tensor, attributes=(self.batch, heads))

    def kept_keys(self, rows: Quantised, layer: int) -> Quantised:
        """Return the keys that queries see; here those of this pass."""
        return rows

    def kept_values(self, rows: Quantised, layer: int) -> Quantised:
        """Return the values that queries read; here those of this pass."""
        return rows

    def _attended(self, values: int, layer: int) -> Attended:
        """Return what the heads of a layer read. Query heads of one key head are one group of rows."""
        build, shape, fused = self.build, self.shape, -1

        def turned(name: str) -> int:
            if fused >= 0:
                return self._part(fused, ("query", "key").index(name))
            found = build.call("rotate", self._projected(values, layer, name), self.cosines, self.sines)
            return self.split(found, shape.heads if name == "query" else shape.key_heads)

        if shape.is_gpt2:
            fused = self.split(self.linear(values, f"layer/{layer}/{FUSED}"), 3 * shape.heads)
        queries = build.quantised(turned("query"), self.pair_bits)
        keys = self.kept_keys(build.quantised(turned("key"), self.pair_bits), layer)
        if fused >= 0:
            projected = self._part(fused, 2)
        else:
            projected = self.split(self._projected(values, layer, "value"), shape.key_heads)
        kept = self.kept_values(build.quantised(projected, self.pair_bits), layer)
        scores = build.call(
            "contract_groups", queries.integers, keys.integers, queries.exponents, keys.exponents,
            attributes=(self.pair_bits, self.groups),
        )  # fmt: skip
        scores = build.call("multiply", scores, build.constant(shape.head_width**-0.5))
        shares = self._shares(build.call("bound", scores, attributes=(_SCORE_EXPONENT,)))
        # A value row's power of two goes into its shares, so no token's rounding depends on a later one.
        read = self.folded(shares, kept, self.groups, self.pair_bits)
        joined = build.call("join_heads", read, attributes=(self.batch, shape.heads))
        return Attended(queries, keys, kept, shares, read, joined, fused)

    def _part_first(self, number: int) -> int:
        """Return where queries, keys or values begin among the rows of all three of a sequence."""
        return self.build.call("number", attributes=(number * self.shape.heads * self.length,))

    def _part(self, fused: int, number: int) -> int:
        """Return the rows of queries (0), keys (1) or values (2) of GPT-2."""
        build, rows = self.build, self.shape.heads * self.length
        places = build.call("positions", self._part_first(number), attributes=(self.batch, rows))
        return build.call("gather_groups", fused, places, attributes=(self.batch,))

    def together(self, fused: int, parts: tuple[int, int, int]) -> int:
        """Return columns of queries, keys and values side by side, from rows of each; ``fused`` had such rows."""
        build = self.build
        for number, part in enumerate(parts):
            first = self._part_first(number)
            fused = build.call("place_rows", fused, part, first, attributes=(self.batch, self.batch))
        return build.call("join_heads", fused, attributes=(self.batch, 3 * self.shape.heads))

    def folded(self, values: int, rows: Quantised, groups: int, bits: int) -> int:
        """Return the products of rows of ``values`` with the columns of ``rows``, group by group.

        The powers of two of ``rows`` go into the columns of ``values`` before these are quantised.
        """
        build = self.build
        scaled = build.quantised(build.call("scale_columns", values, rows.exponents), bits)
        if groups > 1:
            turned = build.call("transpose_groups", rows.integers, attributes=(groups,))
        else:
            turned = build.call("transpose", rows.integers)  # engines copy nothing
        first, *rest = widths(scaled, rows)
        return build.call(
            "contract_groups", scaled.integers, turned, scaled.exponents, attributes=(first, groups, *rest)
        )

    def _shares(self, scores: int) -> int:
        """Return the softmax of each row over the positions that its token may see; beyond them it is zero."""
        build = self.build

        def visible(values: int, fill: float) -> int:
            attributes = (self.batch, self.length, constant_bits(fill))
            found = build.call("causal", values, self.first, attributes=attributes)
            if self._packed is None:
                return found
            return build.call("since", found, self._packed.starts, attributes=(self.batch, constant_bits(fill)))

        seen = visible(scores, _HIDDEN_SCORE)
        powers = visible(build.call("exp", build.call("subtract", seen, build.call("row_maximum", seen))), 0.0)
        norms = build.call("add", build.row_sum(powers), build.constant(NOTHING))
        # At most 1 as it is; to bound it says so.
        return build.call("bound", build.call("divide", powers, norms), attributes=(0,))
