"""The way forward of decoders: SmolLM2, Llama, Qwen2 and GPT-2 shapes (market.md 4.6).

Root mean square norms, rotary positions, key heads shared by query heads, gated feed-forward layers
(``llama_layers``). A token's results depend on no later token, bit for bit. So do those of a cache: with
``capacity`` the keys and values of earlier tokens are sources, and decoding token by token equals one pass.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tasks.programs.builder import Builder, Quantised
from tasks.programs.checks import check_computation
from tasks.programs.errors import ProgramInvalid
from tasks.programs.llama_layers import Layers
from tasks.programs.llama_shape import (
    BITS,
    LAYERS_MAX,
    WEIGHT_EXPONENT_MAX,
    Adapter,
    LlamaShape,
    adapter_tensors,
    exponents_of,
    frozen_tensors,
    weight_tensors,
)
from tasks.programs.operators.rows import EXPONENT_MIN, WIDTHS
from tasks.programs.program import Computation, Source, SourceKind
from tasks.programs.tensors import ElementType, TensorType

__all__ = [
    "BITS",
    "CACHE_EXPONENT_MAX",
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

TOKENS: Final = "tokens"
FIRST: Final = "first"
PICKED: Final = "picked"
CACHE_PARTS: Final = ("keys", "key_exponents", "values", "value_exponents")
CACHE_EXPONENT_MAX: Final = 400


class Pass(NamedTuple):
    """What one run computes: sequences, new tokens of each, and what is kept.

    With ``capacity``, 0 for none, earlier tokens' keys and values are sources of that many rows a key head, and
    the results hold them with the new ones. With ``picked`` there is one row of logits for each sequence: of the
    token whose row in the batch is a source. Without it there is one for each token. With an ``adapter`` its
    matrices are sources.
    """

    batch: int
    length: int
    capacity: int = 0
    picked: bool = False
    adapter: Adapter | None = None


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
    with a cache ``first`` (how many tokens of each sequence came before) and the cache, and matrices of adapters.
    """
    batch, length, capacity, picked, adapter = run
    last = capacity or length
    if batch < 1 or length < 1 or last < length or last > shape.context:
        raise ProgramInvalid(f"{batch} sequences of {length} tokens, capacity {capacity}")
    sources = [Source(SourceKind.DATA, name, kind) for name, kind in frozen_tensors(shape, adapter).items()]
    columns = {TOKENS: batch * length} | ({PICKED: batch} if picked else {}) | ({FIRST: batch} if capacity else {})
    for name, rows in columns.items():
        sources.append(Source(SourceKind.DATA, name, TensorType(ElementType.INT64, rows, 1)))
    if capacity:
        cache = cache_tensors(shape, batch, capacity)
        sources += [Source(SourceKind.DATA, name, kind) for name, kind in cache.items()]
    if adapter is not None:
        sources += [
            Source(SourceKind.ADAPTER, name, kind) for name, kind in adapter_tensors(shape, adapter).items()
        ]
    found = _Forward(shape, run, Builder(sources)).computation()
    check_computation(found)
    return found


class _Forward(Layers):
    """The way forward of one run."""

    def __init__(self, shape: LlamaShape, run: Pass, build: Builder) -> None:
        self._run = run
        self._cache: list[int] = []
        if run.capacity:
            source = build.source(SourceKind.DATA, FIRST)
            first = build.call("load_integers", source, attributes=(0, run.capacity - run.length))
        else:
            first = build.call("number", attributes=(0,))
        super().__init__(
            shape,
            build,
            batch=run.batch,
            length=run.length,
            first=first,
            kind=SourceKind.DATA,
            adapter=run.adapter,
        )

    def computation(self) -> Computation:
        """Return the whole way."""
        build, shape = self.build, self.shape
        stream = self.embedded(self.integers(TOKENS, 0, shape.vocabulary - 1))
        for layer in range(shape.layers):
            stream = self.layer(stream, layer).stream
        if self._run.picked:
            tokens = self._run.batch * self._run.length
            stream = build.call("gather", stream, self.integers(PICKED, 0, tokens - 1))
        _, logits = self.logits(stream)
        choice = build.call("find", logits, build.call("row_maximum", logits))
        return build.computation(logits, choice, *self._cache)

    def kept_keys(self, rows: Quantised, layer: int) -> Quantised:
        """See Layers."""
        return self._kept(rows, layer, CACHE_PARTS[:2])

    def kept_values(self, rows: Quantised, layer: int) -> Quantised:
        """See Layers."""
        return self._kept(rows, layer, CACHE_PARTS[2:])

    def _kept(self, found: Quantised, layer: int, parts: tuple[str, ...]) -> Quantised:
        """Return rows as integers, with those of earlier tokens where there is a cache."""
        if not self._run.capacity:
            return found
        limit = WIDTHS[self.pair_bits].limit
        placed = [
            self.build.call(
                "place_rows", self.integers(f"cache/{layer}/{part}", low, high), new, self.first,
                attributes=(self._run.batch, self.groups),
            )
            for part, new, low, high in (
                (parts[0], found.integers, -limit, limit),
                (parts[1], found.exponents, EXPONENT_MIN, CACHE_EXPONENT_MAX),
            )
        ]  # fmt: skip
        self._cache += placed
        return Quantised(placed[0], placed[1], self.pair_bits)
