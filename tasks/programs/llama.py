"""The way forward of decoders of the Llama family: SmolLM2, Llama and Qwen2 shapes (market.md 4.6).

Root mean square norms, rotary positions, key heads shared by query heads, gated feed-forward layers. Weights are
frozen: integers of 15 bits with an exponent a row. The stream between layers is rounded to binary32 after each
half of a layer, so the bounds of a layer do not depend on how many came before.

A token's results depend on no later token, bit for bit. So do those of a cache: with ``capacity`` the keys and
values of earlier tokens are sources, and decoding token by token equals one pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from tasks.programs.builder import Builder, Quantised
from tasks.programs.checks import check_computation
from tasks.programs.errors import ProgramInvalid
from tasks.programs.operators.rotary import BASE_MAX, POSITION_MAX, WIDTH_MAX
from tasks.programs.operators.rows import EXPONENT_MIN, TERMS_MAX, WIDTHS
from tasks.programs.operators.scalars import NANO, constant_bits
from tasks.programs.program import Computation, Source, SourceKind
from tasks.programs.tensors import ElementType, TensorType

__all__ = [
    "BITS",
    "CACHE_PARTS",
    "FIRST",
    "LAYERS_MAX",
    "PICKED",
    "TOKENS",
    "WEIGHT_EXPONENT_MAX",
    "LlamaShape",
    "Pass",
    "cache_tensors",
    "exponents_of",
    "llama_forward",
    "weight_tensors",
]

BITS: Final = 15
LAYERS_MAX: Final = 256
WEIGHT_EXPONENT_MAX: Final = 20
"""Weights are below 2^21."""
TOKENS: Final = "tokens"
FIRST: Final = "first"
PICKED: Final = "picked"
CACHE_PARTS: Final = ("keys", "key_exponents", "values", "value_exponents")
_STREAM_LIMIT: Final = 60
_NORMED_EXPONENT: Final = 16
"""A value divided by the root mean square of its row is at most the root of the row's length."""
_SCORE_EXPONENT: Final = 60
_HIDDEN_SCORE: Final = -(2.0**61)
_CACHE_EXPONENT_MAX: Final = 400
_NOTHING: Final = 2.0**-80
"""Added to a number above 2^-16 it changes no bit; it tells the bounds that a number is not zero."""
_GATE_EXPONENT: Final = 7
"""Where silu bends, as in the classifier."""


@dataclass(frozen=True)
class LlamaShape:
    """What a model's program follows from. ``epsilon_nano`` is that of the norms in units of 10^-9.

    Raises ProgramInvalid for a shape that no program is made of.
    """

    vocabulary: int
    width: int
    layers: int
    heads: int
    key_heads: int
    head_width: int
    hidden: int
    context: int
    rotary_base: int
    epsilon_nano: int
    tied: bool = True
    biased: bool = False

    def __post_init__(self) -> None:
        sizes = (self.vocabulary, self.width, self.heads * self.head_width, self.hidden, self.context)
        if not all(1 <= size <= TERMS_MAX for size in sizes) or not 1 <= self.layers <= LAYERS_MAX:
            raise ProgramInvalid(f"sizes of {', '.join(map(str, sizes))}, {self.layers} layers")
        if not 1 <= self.key_heads <= self.heads or self.heads % self.key_heads:
            raise ProgramInvalid(f"{self.heads} heads over {self.key_heads} key heads")
        if not 2 <= self.head_width <= WIDTH_MAX or self.head_width % 2:
            raise ProgramInvalid(f"heads of {self.head_width} columns")
        if not 2 <= self.rotary_base <= BASE_MAX or self.context > POSITION_MAX:
            raise ProgramInvalid(f"a context of {self.context} tokens, rotary base {self.rotary_base}")
        if not 1 <= self.epsilon_nano <= NANO:
            raise ProgramInvalid(f"an epsilon of {self.epsilon_nano} x 10^-9")

    @property
    def key_width(self) -> int:
        """Columns of keys and of values."""
        return self.key_heads * self.head_width


class Pass(NamedTuple):
    """What one run computes: sequences, new tokens of each, and what is kept.

    With ``capacity``, 0 for none, earlier tokens' keys and values are sources of that many rows a key head, and
    the results hold them with the new ones. With ``picked`` there is one row of logits for each sequence: of the
    token whose row in the batch is a source. Without it there is one for each token.
    """

    batch: int
    length: int
    capacity: int = 0
    picked: bool = False


def exponents_of(name: str) -> str:
    """Return the name of the tensor with the exponents of a weight's rows."""
    return f"{name}/exponents"


def weight_tensors(shape: LlamaShape) -> dict[str, TensorType]:
    """Return name and type of every frozen tensor. Weights are outputs by inputs."""
    found: dict[str, TensorType] = {}

    def weight(name: str, rows: int, columns: int) -> None:
        found[name] = TensorType(ElementType.INT16, rows, columns)
        found[exponents_of(name)] = TensorType(ElementType.INT16, rows, 1)

    def vector(name: str, columns: int) -> None:
        found[name] = TensorType(ElementType.BINARY32, 1, columns)

    weight("embedding", shape.vocabulary, shape.width)
    queries, keys = shape.heads * shape.head_width, shape.key_width
    for layer in range(shape.layers):
        at = f"layer/{layer}"
        vector(f"{at}/attention_norm", shape.width)
        for name, columns in (("query", queries), ("key", keys), ("value", keys)):
            weight(f"{at}/{name}", columns, shape.width)
            if shape.biased:
                vector(f"{at}/{name}_bias", columns)
        weight(f"{at}/output", shape.width, queries)
        vector(f"{at}/hidden_norm", shape.width)
        weight(f"{at}/gate", shape.hidden, shape.width)
        weight(f"{at}/up", shape.hidden, shape.width)
        weight(f"{at}/down", shape.width, shape.hidden)
    vector("norm", shape.width)
    if not shape.tied:
        weight("head", shape.vocabulary, shape.width)
    return found


def cache_tensors(shape: LlamaShape, batch: int, capacity: int) -> dict[str, TensorType]:
    """Return name and type of the keys and values of earlier tokens, in the order of the results."""
    rows = batch * shape.key_heads * capacity
    return {
        f"cache/{layer}/{part}": TensorType(
            ElementType.INT64, rows, 1 if part.endswith("exponents") else shape.head_width
        )
        for layer in range(shape.layers)
        for part in CACHE_PARTS
    }


def llama_forward(shape: LlamaShape, run: Pass) -> Computation:
    """Return the computation of a pass: logits, the token with the largest of each row, the cache.

    Of equal logits the first is the largest. Raises ProgramInvalid.

    Its sources are, in this order: the weights, ``tokens`` (a column, one sequence below the other), ``picked``,
    and with a cache ``first`` (how many tokens of each sequence came before) and the cache.
    """
    batch, length, capacity, picked = run
    last = capacity or length
    if batch < 1 or length < 1 or last < length or last > shape.context:
        raise ProgramInvalid(f"{batch} sequences of {length} tokens, capacity {capacity}")
    sources = [Source(SourceKind.DATA, name, kind) for name, kind in weight_tensors(shape).items()]
    columns = {TOKENS: batch * length} | ({PICKED: batch} if picked else {}) | ({FIRST: batch} if capacity else {})
    for name, rows in columns.items():
        sources.append(Source(SourceKind.DATA, name, TensorType(ElementType.INT64, rows, 1)))
    if capacity:
        cache = cache_tensors(shape, batch, capacity)
        sources += [Source(SourceKind.DATA, name, kind) for name, kind in cache.items()]
    found = _Forward(shape, run, Builder(sources)).computation()
    check_computation(found)
    return found


class _Forward:
    """The tensors of the way forward while it is built."""

    def __init__(self, shape: LlamaShape, run: Pass, build: Builder) -> None:
        self._shape, self._run, self._build = shape, run, build
        self._zero, self._one = build.constant(0.0), build.constant(1.0)
        self._first = (
            self._integers(FIRST, 0, run.capacity - run.length)
            if run.capacity
            else build.call("number", attributes=(0,))
        )
        positions = build.call("positions", self._first, attributes=(run.batch, run.length))
        self._sines, self._cosines = (
            build.call("rotary", positions, attributes=(shape.rotary_base, shape.head_width, quarter))
            for quarter in (0, 1)
        )
        self._cache: list[int] = []

    def computation(self) -> Computation:
        build, shape = self._build, self._shape
        rows = self._integers(TOKENS, 0, shape.vocabulary - 1)
        embedding = self._weight("embedding")
        stream = build.call(
            "scale_rows",
            build.call("gather", embedding.integers, rows),
            build.call("gather", embedding.exponents, rows),
            attributes=(BITS,),
        )
        for layer in range(shape.layers):
            at = f"layer/{layer}"
            normed = self._normed(stream, f"{at}/attention_norm")
            stream = self._rounded(stream, self._linear(self._attention(normed, layer), f"{at}/output"))
            normed = self._normed(stream, f"{at}/hidden_norm")
            gate, up = (self._linear(normed, f"{at}/{name}") for name in ("gate", "up"))
            inner = build.call("multiply", self._silu(gate), up)
            stream = self._rounded(stream, self._linear(inner, f"{at}/down"))
        if self._run.picked:
            tokens = self._run.batch * self._run.length
            stream = build.call("gather", stream, self._integers(PICKED, 0, tokens - 1))
        logits = self._linear(self._normed(stream, "norm"), "embedding" if shape.tied else "head")
        choice = build.call("find", logits, build.call("row_maximum", logits))
        return build.computation(logits, choice, *self._cache)

    def _source(self, name: str) -> int:
        return self._build.source(SourceKind.DATA, name)

    def _integers(self, name: str, low: int, high: int) -> int:
        return self._build.call("load_integers", self._source(name), attributes=(low, high))

    def _weight(self, name: str) -> Quantised:
        limit = WIDTHS[BITS].limit
        exponents = self._integers(exponents_of(name), EXPONENT_MIN, WEIGHT_EXPONENT_MAX)
        return Quantised(self._integers(name, -limit, limit), exponents, BITS)

    def _vector(self, name: str) -> int:
        return self._build.call("load", self._source(name))

    def _linear(self, values: int, name: str) -> int:
        build, weight = self._build, self._weight(name)
        rows = build.quantised(values, BITS)
        return build.call(
            "contract", rows.integers, weight.integers, rows.exponents, weight.exponents, attributes=(BITS,)
        )

    def _rounded(self, stream: int, change: int) -> int:
        build = self._build
        stored = build.call("store", build.call("add", stream, change), attributes=(_STREAM_LIMIT,))
        return build.call("load", stored)

    def _normed(self, values: int, name: str) -> int:
        """Return the rows divided by their root mean squares, times the norm's weights."""
        build, shape = self._build, self._shape
        squares = build.row_sum(build.call("multiply", values, values))
        mean = build.call("multiply", squares, build.constant(1.0 / shape.width))
        sums = build.call("add", mean, build.constant(shape.epsilon_nano / NANO))
        root = build.call("add", build.call("square_root", sums), build.constant(_NOTHING))
        # At most 2^_NORMED_EXPONENT as it is; to bound it says so.
        normed = build.call("bound", build.call("divide", values, root), attributes=(_NORMED_EXPONENT,))
        return build.call("multiply", normed, self._vector(name))

    def _silu(self, values: int) -> int:
        build = self._build
        bounded = build.call("bound", values, attributes=(_GATE_EXPONENT,))
        powers = build.call("exp", build.call("subtract", self._zero, bounded))
        gate = build.call("divide", self._one, build.call("add", powers, self._one))
        return build.call("multiply", build.call("select", values, values, bounded), gate)

    def _projected(self, values: int, layer: int, name: str) -> int:
        found = self._linear(values, f"layer/{layer}/{name}")
        if self._shape.biased:
            found = self._build.call("add", found, self._vector(f"layer/{layer}/{name}_bias"))
        return found

    def _attention(self, values: int, layer: int) -> int:
        """Return what the heads of a layer read, joined. Query heads of one key head are one group of rows."""
        build, shape, run = self._build, self._shape, self._run
        groups = run.batch * shape.key_heads

        def split(tensor: int, heads: int) -> int:
            return build.call("split_heads", tensor, attributes=(run.batch, heads))

        def turned(name: str) -> int:
            return build.call("rotate", self._projected(values, layer, name), self._cosines, self._sines)

        queries = build.quantised(split(turned("query"), shape.heads), BITS)
        keys = self._kept(split(turned("key"), shape.key_heads), layer, CACHE_PARTS[:2])
        read = self._kept(split(self._projected(values, layer, "value"), shape.key_heads), layer, CACHE_PARTS[2:])
        scores = build.call(
            "contract_groups", queries.integers, keys.integers, queries.exponents, keys.exponents,
            attributes=(BITS, groups),
        )  # fmt: skip
        scores = build.call("multiply", scores, build.constant(shape.head_width**-0.5))
        shares = self._shares(build.call("bound", scores, attributes=(_SCORE_EXPONENT,)))
        # A value row's power of two goes into its shares, so no token's rounding depends on a later one.
        scaled = build.quantised(build.call("scale_columns", shares, read.exponents), BITS)
        turned_values = build.call("transpose_groups", read.integers, attributes=(groups,))
        found = build.call(
            "contract_groups", scaled.integers, turned_values, scaled.exponents, attributes=(BITS, groups)
        )
        return build.call("join_heads", found, attributes=(run.batch, shape.heads))

    def _shares(self, scores: int) -> int:
        """Return the softmax of each row over the positions that its token may see; beyond them it is zero."""
        build = self._build

        def visible(values: int, fill: float) -> int:
            attributes = (self._run.batch, self._run.length, constant_bits(fill))
            return build.call("causal", values, self._first, attributes=attributes)

        seen = visible(scores, _HIDDEN_SCORE)
        powers = visible(build.call("exp", build.call("subtract", seen, build.call("row_maximum", seen))), 0.0)
        norms = build.call("add", build.row_sum(powers), build.constant(_NOTHING))
        # At most 1 as it is; to bound it says so.
        return build.call("bound", build.call("divide", powers, norms), attributes=(0,))

    def _kept(self, values: int, layer: int, parts: tuple[str, ...]) -> Quantised:
        """Return rows as integers, with those of earlier tokens where there is a cache."""
        build, shape, run = self._build, self._shape, self._run
        found = build.quantised(values, BITS)
        if not run.capacity:
            return found
        limit, groups = WIDTHS[BITS].limit, run.batch * shape.key_heads
        placed = [
            build.call(
                "place_rows", self._integers(f"cache/{layer}/{part}", low, high), new, self._first,
                attributes=(run.batch, groups),
            )
            for part, new, low, high in (
                (parts[0], found.integers, -limit, limit),
                (parts[1], found.exponents, EXPONENT_MIN, _CACHE_EXPONENT_MAX),
            )
        ]  # fmt: skip
        self._cache += placed
        return Quantised(placed[0], placed[1], BITS)
